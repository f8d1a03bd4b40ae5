"""Calibrated answers: what a scale, thresholds and a request's choices make of scores."""

import msgspec
import numpy as np
import pytest

from polyhead.errors import BadValue
from polyhead.evaluate.calibrate import measures
from polyhead.evaluate.drift import sureness
from polyhead.evaluate.probabilities import label_scores_of
from polyhead.store.jobs.answers import calibrated_arrays
from polyhead.tasks.calibration import KEY, Calibration, CalibrationChoice, SetRule, with_calibrated
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task

RARE = Task(name="rare", kind="multi_label", labels=("a", "b", "c"), threshold=0.06)
CERTAIN = (SetRule(coverage=0.9, limit=1.0),)


def test_a_temperature_changes_no_labels_where_the_task_s_threshold_is_not_a_half():
    outputs = np.random.default_rng(0).normal(-3, 2, (300, 3)).astype(np.float32)
    answers = kind_of(RARE).decode_all(RARE, list(outputs), [None] * len(outputs))
    for scale in (0.2, 0.4, 1.0, 3.0):
        calibration = Calibration(scale=(scale,), sets=CERTAIN, coverage=0.9)
        for wish in (True, CalibrationChoice(thresholds={})):
            made = with_calibrated(RARE, calibration, answers, wish)
            assert [each[KEY]["labels"] for each in made] == [each["labels"] for each in answers]
            assert [each[KEY]["set"] for each in made] == [each["labels"] for each in answers]
        arrays = calibrated_arrays(RARE, calibration, outputs)
        assert (arrays["labels"] == kind_of(RARE).decode_rows(RARE, outputs).labels).all()
        assert (arrays["set"] == arrays["labels"]).all()


def test_a_label_of_no_probability_is_not_given():
    """At this scale the threshold itself is nearer to 0 than a float tells."""
    answer = {"labels": ["c"], "scores": {"a": 1e-9, "b": 0.05, "c": 0.9}}
    (made,) = with_calibrated(RARE, Calibration(scale=(50.0,)), [answer])
    assert made[KEY]["labels"] == ["c"]


@pytest.mark.parametrize("threshold", [0.06, 0.3, 0.9])
def test_a_temperature_that_leaves_only_0_and_1_changes_no_labels(threshold):
    """Rows that can be told apart without an error are scaled as far as a fit goes."""
    task = msgspec.structs.replace(RARE, threshold=threshold)
    outputs = np.random.default_rng(1).normal(0, 3, (200, 3)).astype(np.float32)
    answers = kind_of(task).decode_all(task, list(outputs), [None] * len(outputs))
    labels = [each["labels"] for each in answers]
    targets = [np.array([label in each for label in task.labels]) for each in labels]
    calibration = Calibration(scale=(50.0,), sets=CERTAIN, coverage=0.9)
    assert [each[KEY]["labels"] for each in with_calibrated(task, calibration, answers)] == labels
    assert (calibrated_arrays(task, calibration, outputs)["labels"] == np.stack(targets)).all()
    rows = label_scores_of(task, list(outputs), targets)
    assert measures(calibration, rows)["f1"] == 1
    assert sureness(rows, calibration, rng=np.random.default_rng(0)).accuracy == 1


@pytest.mark.parametrize("threshold", [0.06, 0.9])
@pytest.mark.parametrize("scale", [0.01, 50.0, 100.0])
def test_a_threshold_of_one_label_changes_no_other_label(threshold, scale):
    """Where scaling makes 1 of the task's own threshold, all that is scaled to 1 was given."""
    task = msgspec.structs.replace(RARE, threshold=threshold)
    outputs = np.random.default_rng(1).normal(0, 3, (200, 3)).astype(np.float32)
    answers = kind_of(task).decode_all(task, list(outputs), [None] * len(outputs))
    made = with_calibrated(task, Calibration(scale=(scale,)), answers, CalibrationChoice(thresholds={"a": 0.5}))
    for answer, its_outputs, calibrated in zip(answers, outputs, made, strict=True):
        expected = ["a"] * int(its_outputs[0] >= 0) + [label for label in answer["labels"] if label != "a"]
        assert calibrated[KEY]["labels"] == expected


def test_a_threshold_that_decides_nothing_is_refused():
    """Where one label's threshold decides between it and the others, those of the others were ignored in silence."""
    task = Task(name="d", kind="single_label", labels=("danger", "other"))
    calibration = Calibration(positive="danger", thresholds=(0.7, 0.0))
    answer = {"label": "danger", "scores": {"danger": 0.8, "other": 0.2}}
    (made,) = with_calibrated(task, calibration, [answer], CalibrationChoice(thresholds={"danger": 0.9}))
    assert (made[KEY]["label"], made[KEY]["unsure"]) == (None, True)
    every = CalibrationChoice(thresholds={"danger": 0.9, "other": 0.0})
    assert with_calibrated(task, calibration, [answer], every) == [made]
    with pytest.raises(BadValue, match="one label alone.*Got: other.*Allowed: danger"):
        with_calibrated(task, calibration, [answer], CalibrationChoice(thresholds={"other": 0.9}))
