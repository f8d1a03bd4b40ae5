"""Drift of tiny summaries: what is found, what is not, what is refused, and how sure answers are."""

import numpy as np
import pytest

from polyhead.bundle.row_profile import RowProfile
from polyhead.errors import EmptyData
from polyhead.evaluate.drift import Aspect, compare_profiles, drift_verdict, sureness, unlike_rows
from polyhead.evaluate.probabilities import label_scores_of
from polyhead.tasks.calibration import Calibration
from polyhead.tasks.task import Task

MOOD = Task(name="mood", kind="single_label", labels=("bad", "good"))


def drawn(rows, seed, *, towards=0.0, longer=1.0, share=0.5):
    """Rows of one distribution, or moved from it."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(rows, 12)) + 1
    vectors[:, 0] += towards
    good = np.where(rng.random(rows) < share, 0.9, 0.1) + rng.normal(size=rows) / 50
    return RowProfile(
        vectors=(vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32),
        lengths=(rng.gamma(4, 10, rows) * longer).astype(np.float32),
        scores=np.stack([1 - good, good], axis=1).astype(np.float32),
    )


def judged(known, rows, alpha=0.01, seed=0):
    rng = np.random.default_rng(seed)
    return drift_verdict({"mood": compare_profiles("mood", known, rows, level=alpha / 3, rng=rng)}, alpha)["mood"]


def test_each_shift_is_found_where_it_is():
    known = drawn(400, 0)
    for aspect, moved in (("texts", {"towards": 1.5}), ("lengths", {"longer": 2.0}), ("answers", {"share": 0.8})):
        aspects = judged(known, drawn(400, 1, **moved))
        assert {name for name, each in aspects.items() if each.differs} == {aspect}
        assert aspects[aspect].distance > 3 * max(each.distance for name, each in aspects.items() if name != aspect)


def test_rows_of_the_same_distribution_seldom_raise_an_alarm():
    """Of 60 files at 0.05, 3 false alarms are expected; more than 10 have a chance of 0.0002."""
    alarms = 0
    for seed in range(60):
        aspects = judged(drawn(80, 1000 + seed), drawn(80, 2000 + seed), alpha=0.05, seed=seed)
        alarms += any(each.differs for each in aspects.values())
    assert alarms <= 10


def test_a_task_without_scores_is_compared_by_its_texts():
    known, rows = drawn(60, 0), drawn(60, 1)
    bare = [
        RowProfile(vectors=each.vectors, lengths=each.lengths, scores=np.zeros((60, 0), np.float32))
        for each in (known, rows)
    ]
    assert set(judged(*bare)) == {"texts", "lengths"}


def test_several_tasks_are_decided_together():
    """A p of 0.002 holds at 0.01 for one task with three aspects, and for none of three such tasks."""
    quiet = {name: Aspect(distance=0.0, p=0.5) for name in ("texts", "lengths", "answers")}
    loud = {**quiet, "lengths": Aspect(distance=0.1, p=0.002)}
    assert drift_verdict({"a": loud}, 0.01)["a"]["lengths"].differs
    assert not drift_verdict({"a": loud, "b": quiet, "c": quiet}, 0.01)["a"]["lengths"].differs
    assert not any(aspect.differs for aspect in drift_verdict({"a": quiet}, 0.01)["a"].values())


def test_too_few_rows_are_refused():
    for sides in ((drawn(29, 0), drawn(100, 1)), (drawn(100, 0), drawn(29, 1))):
        with pytest.raises(EmptyData, match="30 or more"):
            judged(*sides)


def test_the_most_unlike_rows_come_first():
    known, rows = drawn(200, 0), drawn(50, 1)
    vectors = rows.vectors.copy()
    vectors[7] = -vectors[7]
    share, distances, order = unlike_rows(known, RowProfile(vectors=vectors, lengths=rows.lengths, scores=rows.scores))
    assert order[0] == 7
    assert distances[7] > 1
    assert 0.02 <= share < 0.2


def test_answers_that_are_too_sure_are_told_from_those_that_are_not():
    rng = np.random.default_rng(0)
    outputs = rng.normal(size=(600, 2)) * 2
    chances = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    targets = [np.asarray(rng.choice(2, p=row)) for row in chances]
    right = sureness(label_scores_of(MOOD, list(outputs), targets), None, rng=rng)
    sure = label_scores_of(MOOD, list(outputs * 4), targets)
    wrong = sureness(sure, None, rng=rng)
    assert not right.differs
    assert wrong.differs
    assert wrong.confidence > wrong.accuracy == right.accuracy
    assert not sureness(sure, Calibration(scale=(0.25,)), rng=rng).differs


def test_accuracy_and_sureness_of_labels_are_those_of_the_thresholds_in_use():
    """The confidence was counted with a threshold of 0.5, and the accuracy beside it with the task's own."""
    topics = Task(name="topics", kind="multi_label", labels=("order", "bill"), threshold=0.2)
    outputs = np.log([[0.1, 0.3], [0.3, 0.6]]) - np.log1p(-np.array([[0.1, 0.3], [0.3, 0.6]]))
    rows = label_scores_of(topics, list(outputs), list(np.array([[0, 0], [0, 1]])))
    for calibration, accuracy, confidence in (
        (None, 0.5, (0.9 + 0.3 + 0.3 + 0.6) / 4),
        (Calibration(thresholds=(0.5, 0.5)), 1.0, (0.9 + 0.7 + 0.7 + 0.6) / 4),
        (Calibration(thresholds=(0.5, 0.9)), 0.75, (0.9 + 0.7 + 0.7 + 0.4) / 4),
    ):
        shown = sureness(rows, calibration, rng=np.random.default_rng(0))
        assert (shown.accuracy, shown.confidence) == (accuracy, pytest.approx(confidence))
    assert sureness(rows, Calibration(scale=(0.5,)), rng=np.random.default_rng(0)).accuracy == 0.5
