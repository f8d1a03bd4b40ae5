"""Confident learning against a case worked by hand, and neighbours against all pairs."""

import numpy as np
import pytest

from polyhead.check.label_errors import (
    HITS,
    TIMES,
    LabelledRows,
    doubts,
    doubts_of_each,
    neighbours,
    planted,
    trusted,
    trusted_up_to,
)
from polyhead.check.split_rows import SplitRows
from polyhead.data.columns import Source
from polyhead.data.read import Examples, Reading, ReadReport
from polyhead.tasks.task import Task


def test_doubted_labels_are_those_of_a_case_worked_by_hand():
    """Thresholds: label 0 (0.9 + 0.6 + 0.3) / 3 = 0.6; label 1 (0.8 + 0.6) / 2 = 0.7; label 2 0.5.

    Row 2 has label 0 and 0.7 for label 1, which reaches 0.7: doubted. Row 4 has label 1 and 0.4 for label 0, below
    0.6: not doubted. Row 5 has label 2 and is above every threshold there is.
    """
    probabilities = np.array(
        [[0.9, 0.1, 0.0], [0.6, 0.3, 0.1], [0.3, 0.7, 0.0], [0.1, 0.8, 0.1], [0.4, 0.6, 0.0], [0.3, 0.2, 0.5]]
    )
    labels = np.array([0, 0, 0, 1, 1, 2])
    result = doubts(probabilities, labels)
    np.testing.assert_allclose(result.thresholds, [0.6, 0.7, 0.5])
    assert result.suggested.tolist() == [-1, -1, 1, -1, -1, -1]
    assert result.doubted.tolist() == [2]
    np.testing.assert_allclose(result.quality, [0.9, 0.6, 0.3, 0.8, 0.6, 0.5])
    assert result.order.tolist() == [2, 5, 1, 4, 3, 0]


def test_a_row_may_be_sure_of_two_labels_and_counts_for_the_more_probable():
    """Thresholds 0.5 and 0.45: row 0 reaches both and is more probably 1; row 3 reaches neither."""
    probabilities = np.array([[0.48, 0.52], [0.52, 0.48], [0.9, 0.1], [0.1, 0.9]])
    result = doubts(probabilities, np.array([0, 1, 1, 1]))
    np.testing.assert_allclose(result.thresholds, [0.48, 1.48 / 3])
    assert result.suggested.tolist() == [1, 0, 0, -1]


def test_a_label_without_rows_is_never_suggested():
    probabilities = np.array([[0.3, 0.1, 0.6], [0.1, 0.3, 0.6]])
    assert doubts(probabilities, np.array([0, 1])).suggested.tolist() == [-1, -1]


def test_neighbours_are_those_of_all_pairs(monkeypatch):
    generator = np.random.default_rng(2)
    vectors, labels = generator.normal(size=(80, 6)), generator.integers(0, 3, 80)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T - 5 * np.eye(80)
    nearest = labels[np.argsort(-cosines, axis=1)[:, :5]]
    for at_once in (2**24, 400):
        monkeypatch.setattr("polyhead.check.label_errors.AT_ONCE", at_once)
        result = neighbours(vectors, labels, of=5)
        assert result.agreeing.tolist() == [int((nearest[i] == labels[i]).sum()) for i in range(80)]
        assert result.count.tolist() == [np.bincount(row).max() for row in nearest]
        assert all(
            np.bincount(row)[label] == np.bincount(row).max() for row, label in zip(nearest, result.label, strict=True)
        )
    assert neighbours(vectors[:1], labels[:1]).of == 0


def test_labels_of_several_at_once_are_each_doubted_as_a_case_of_two():
    """Label 0: given to rows 0 and 1 with 0.9 and 0.3, mean 0.6; absent from rows 2 and 3 with 0.8 and 0.2, mean 0.5.

    Row 1 has it against 0.7, and row 2 lacks it against 0.8, which reach 0.5 and 0.6: doubted, row 2 first. Label 1 is
    given to no row, so none is doubted for it.
    """
    probabilities = np.array([[0.9, 0.7], [0.3, 0.7], [0.8, 0.7], [0.2, 0.7]])
    has_label = np.array([[1, 0], [1, 0], [0, 0], [0, 0]])
    several = doubts_of_each(probabilities, has_label)
    assert [(one.row, one.label, one.is_given) for one in several] == [(2, 0, False), (1, 0, True)]
    np.testing.assert_allclose([one.quality for one in several], [0.2, 0.3])


def test_a_label_that_is_less_probable_than_not_is_no_doubt():
    """Its mean where it is given is 0.3, which both 0.4 and 0.6 reach.

    Row 0 has it against 0.7, below 0.75, which is what rows without it have on average, and then above 0.65.
    """
    has_label = np.array([[1], [0], [0]])
    assert doubts_of_each(np.array([[0.3], [0.4], [0.1]]), has_label) == []
    assert [one.row for one in doubts_of_each(np.array([[0.3], [0.6], [0.1]]), has_label)] == [0, 1]


def test_a_list_of_doubts_ends_where_changed_labels_stop_being_found():
    """Chance 0.05: the first 20 hold 8, then one in twenty."""
    quality = np.linspace(0.01, 0.5, 200)
    changed = np.zeros(200, bool)
    changed[[0, 1, 3, 5, 8, 12, 15, 19, *range(39, 200, 20)]] = True
    assert trusted(quality, changed, 0.05) == quality[19]
    assert TIMES * 0.05 < 8 / 20


def test_a_list_that_is_no_better_than_chance_ends_at_once():
    generator = np.random.default_rng(0)
    quality = np.linspace(0.01, 0.5, 700)
    for _ in range(50):
        assert trusted(quality, generator.random(700) < 0.05, 0.05) == 0.0
    few = np.zeros(700, bool)
    few[: HITS - 1] = True
    assert trusted(quality, few, 0.05) == 0.0
    assert trusted(np.zeros(0), np.zeros(0, bool), 0.05) == 0.0


@pytest.mark.parametrize("kind", ["single_label", "multi_label"])
def test_heads_are_believed_as_far_as_they_find_changed_labels(kind):
    """Heads that know most rows find labels that were changed; heads that know nothing find none."""
    task = Task(name="mood", kind=kind, labels=("a", "b", "c"))
    generator = np.random.default_rng(5)
    labels = generator.integers(0, 3, 400)
    targets = list(labels) if kind == "single_label" else list(np.eye(3, dtype=np.float32)[labels])
    examples = Examples(inputs=[("",)] * 400, targets=targets, words=None, rows=[*range(400)], report=ReadReport())
    part = SplitRows(
        task,
        "train",
        Source(path="rows"),
        Reading(examples=examples, wrong=(), empty=(), unlabelled=(), overlapping=(), columns=(), rows=400),
    )
    rows = LabelledRows(places=[(part, row) for row in range(400)], examples=examples)
    trials = planted(rows)
    assert sum(int(trial.is_planted.sum()) for trial in trials) >= 60
    for trial in trials:
        before, after = np.stack(examples.targets), np.stack(trial.examples.targets)
        assert ((before != after) == trial.is_planted).all()
    known = 3 * np.eye(3)[labels] - 1.5 + generator.normal(size=(400, 3))
    blind = generator.normal(size=(400, 3))
    chosen = np.arange(400)
    assert trusted_up_to(rows, chosen, [(trial, known) for trial in trials]) > 0.05
    assert trusted_up_to(rows, chosen, [(trial, blind) for trial in trials]) == 0.0
