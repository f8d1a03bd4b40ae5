"""The scale at which probabilities are right, against the temperature that `calibrate` finds."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from polyhead.evaluate.probabilities import best_temperature, error_of, label_scores_of
from polyhead.tasks.calibration import Calibration
from polyhead.tasks.task import Task
from polyhead.train.heads.temperature import best_scale

LABELS = ("a", "b", "c")


def answered(kind, rows, sure, seed=1):
    """Outputs that are `sure` times the logarithms of the shares by which targets are drawn."""
    chance = np.random.default_rng(seed)
    if kind == "multi_label":
        outputs = chance.normal(size=(rows, 3)) * 2
        targets = (chance.random((rows, 3)) < 1 / (1 + np.exp(-outputs))).astype(np.float32)
    else:
        outputs = chance.normal(size=(rows, 3)) * 2
        shares = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
        targets = np.array([chance.choice(3, p=share) for share in shares])
    return list((sure * outputs).astype(np.float32)), list(targets)


@pytest.mark.parametrize("kind", ["single_label", "multi_label", "multiple_choice"])
@pytest.mark.parametrize("sure", [0.3, 4.0])
def test_answers_that_are_too_sure_become_as_sure_as_they_are_right(kind, sure):
    task = Task(name="t", kind=kind, labels=() if kind == "multiple_choice" else LABELS)
    outputs, targets = answered(kind, 3000, sure)
    scale = best_scale(task, outputs, targets)
    assert scale == pytest.approx(1 / sure, rel=0.1)
    rows = label_scores_of(task, outputs, targets)
    assert scale == pytest.approx(1 / best_temperature(rows), rel=0.02)
    errors = [
        error_of(rows, Calibration(scale=each).probabilities(task, rows.logarithms)) for each in ((1.0,), (scale,))
    ]
    assert errors[1] < 0.03 < 0.08 < errors[0]


def test_words_count_one_by_one_and_unread_ones_do_not():
    task = Task(name="t", kind="tagging", labels=("O", "B-x", "I-x"), decoder="constrained")
    outputs, targets = answered("single_label", 900, 4.0)
    lines = [np.stack(outputs[i : i + 9]) for i in range(0, 900, 9)]
    words = [np.array(targets[i : i + 9]) for i in range(0, 900, 9)]
    alone = best_scale(Task(name="t", kind="single_label", labels=LABELS), outputs, targets)
    assert best_scale(task, lines, words) == pytest.approx(alone, rel=1e-5)
    unread = [np.concatenate([line, np.full((1, 3), np.nan, np.float32)]) for line in lines]
    assert best_scale(task, unread, [np.append(each, 1) for each in words]) == pytest.approx(alone, rel=1e-5)


def test_a_few_rows_say_little_and_some_answers_keep_their_scale():
    task = Task(name="t", kind="single_label", labels=LABELS)
    outputs, targets = answered("single_label", 4, 4.0)
    assert 0.1 < best_scale(task, outputs, targets) < 1
    for kind, rows, least, most in (("single_label", 8, 0.8, 0.97), ("multiple_choice", 8, 0.8, 0.97)):
        all_right = [np.eye(3, dtype=np.float32)[i % 3] * 18 for i in range(rows)]
        asked = Task(name="t", kind=kind, labels=LABELS if kind == "single_label" else ())
        margin = 18 * best_scale(asked, all_right, [np.int64(i % 3) for i in range(rows)])
        assert least < 1 / (1 + 2 * np.exp(-margin)) < most  # how sure it is then
    right = [np.eye(3, dtype=np.float32)[i % 3] * 9 for i in range(500)]
    sure = [
        1 / (1 + 2 * np.exp(-9 * best_scale(task, right[:rows], [i % 3 for i in range(rows)]))) for rows in (50, 500)
    ]
    assert sure[0] < sure[1] < 0.999
    several = answered("multi_label", 300, 4.0)
    assert best_scale(Task(name="t", kind="multi_label", labels=LABELS, threshold=0.4), *several) == 1
    number = Task(name="t", kind="regression", range=(0.0, 1.0))
    assert best_scale(number, [np.ones(1, np.float32)], [np.float32(0.5)]) == 1


def test_a_weight_scales_the_loss_of_its_row_and_not_its_answer():
    """Against the formula written out: the scale with the least sum of weighted cross-entropy, and the pull to 1."""
    task, labels = Task(name="t", kind="single_label", labels=("a", "b")), np.array([0] * 10 + [1] * 190)
    outputs = 9 * np.eye(2)[labels]  # all right
    weights = np.where(labels == 0, 1.0, 10 / 190)
    doubt = 2 / (len(labels) + 4)
    answers = np.abs(np.eye(2)[labels] - doubt)

    def cost(logarithm):
        logits = outputs * np.exp(logarithm)
        log_shares = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return -(weights[:, None] * answers * log_shares).sum() + logarithm**2 / 2

    best = minimize_scalar(cost, bounds=(-4, 4), method="bounded", options={"xatol": 1e-9}).x
    taught = list((weights[:, None] * np.eye(2)[labels]).astype(np.float32))
    assert np.log(best_scale(task, list(outputs.astype(np.float32)), taught)) == pytest.approx(best, abs=1e-4)
