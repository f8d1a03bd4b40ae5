"""Wrong answers beside right ones, and the scores of each label, of every kind: cases worked by hand."""

import numpy as np
import pytest

from polyhead.tasks.kinds import KINDS, kind_of
from polyhead.tasks.task import Example, Mistake, Task
from polyhead.text.question import Question

HIGH = 9.0  # an output beside zeros: the softmax of two is 0.99988 and 0.00012
SURE = 1 / (1 + np.exp(-HIGH))


def mistake(task, outputs, label, example):
    """The mistake of these outputs where the label is this one."""
    kind, target = kind_of(task), kind_of(task).encode(task, label, example)
    return kind.mistake(task, kind.decode(task, np.array(outputs, np.float32), example), target, example)


def labels(task, outputs, wanted, examples):
    kind = kind_of(task)
    targets = [kind.encode(task, label, example) for label, example in zip(wanted, examples, strict=True)]
    found = kind.label_scores(task, [np.array(row, np.float32) for row in outputs], targets, examples)
    return {one.label: (one.precision, one.recall, one.f1, one.support, one.predicted) for one in found}


def test_every_kind_but_one_tells_its_mistakes():
    ours = {name for name, kind in KINDS.items() if type(kind).__module__.startswith("polyhead.")}
    assert {name for name in ours if not KINDS[name].tells_mistakes} == {"summarization"}


def test_single_label():
    task, example = Task(name="mood", kind="single_label", labels=("bad", "good")), Example(input=("a",))
    assert mistake(task, [HIGH, 0], "bad", example) is None
    wrong = mistake(task, [HIGH, 0], "good", example)
    assert (wrong.truth, wrong.answer) == ("good", "bad") and wrong.score == pytest.approx(SURE)
    rows = [([1, 0], "bad"), ([1, 0], "good"), ([1, 0], "bad"), ([0, 1], "bad")]
    found = labels(task, [o for o, _ in rows], [t for _, t in rows], [example] * 4)
    assert found == {"bad": pytest.approx((2 / 3, 2 / 3, 2 / 3, 3, 3)), "good": (0, 0, 0, 1, 1)}


def test_a_label_that_nobody_has_or_gets_scores_zero():
    task, example = Task(name="mood", kind="single_label", labels=("bad", "good", "so")), Example(input=("a",))
    assert labels(task, [[1, 0, 0]], ["bad"], [example])["so"] == (0, 0, 0, 0, 0)


def test_multi_label():
    task, example = Task(name="topics", kind="multi_label", labels=("a", "b", "c")), Example(input=("a",))
    assert mistake(task, [HIGH, -HIGH, -HIGH], ["a"], example) is None
    wrong = mistake(task, [HIGH, -2 * HIGH, -HIGH], ["b"], example)
    assert (wrong.truth, wrong.answer) == (["b"], ["a"])
    assert wrong.score == pytest.approx(1 / (1 + np.exp(-2 * HIGH)))  # of b, which is left out
    found = labels(task, [[1, 1, -1], [1, -1, -1]], [["a"], []], [example] * 2)
    assert found == {"a": pytest.approx((0.5, 1, 2 / 3, 1, 2)), "b": (0, 0, 0, 0, 1), "c": (0, 0, 0, 0, 0)}


def test_regression():
    task, example = Task(name="urgency", kind="regression", range=(0.0, 10.0)), Example(input=("a",))
    assert mistake(task, [0.5], 5.05, example) is None  # within a hundredth of the range
    wrong = mistake(task, [0.5], 7, example)
    assert (wrong.truth, wrong.answer) == (7.0, 5.0) and wrong.score == pytest.approx(0.2)
    assert labels(task, [[0.5]], [5], [example]) == {}


def test_multiple_choice():
    task, example = Task(name="reply", kind="multiple_choice"), Example(input=Question(text="q", options=("x", "y")))
    assert mistake(task, [0, HIGH], "y", example) is None
    wrong = mistake(task, [0, HIGH], 0, example)
    assert (wrong.truth, wrong.answer) == ("x", "y") and wrong.score == pytest.approx(SURE)


def test_span():
    task, example = Task(name="where", kind="span", null_answers=True), Example(input=("who?", "anna and ben"))
    places = len(example.places)
    ben = np.zeros((places, 2))
    ben[3] = HIGH
    assert mistake(task, ben, [{"text": "ben", "start": 9}], example) is None
    wrong = mistake(task, ben, [{"text": "anna", "start": 0}, {"text": "anna and", "start": 0}], example)
    assert (wrong.truth, wrong.answer) == (["anna", "anna and"], "ben") and 0.9 < wrong.score < 1
    nothing = np.zeros((places, 2))
    nothing[0] = HIGH
    assert mistake(task, nothing, [], example) is None
    assert mistake(task, nothing, [{"text": "ben", "start": 9}], example).answer is None
    assert mistake(task, ben, [], example).truth == []


def test_spans_of_tags():
    task = Task(name="names", kind="tagging", labels=("O", "B-x", "I-x", "B-y"))
    example = Example(input=("anna b ben",))
    outputs = np.eye(4)[[1, 2, 3]] * HIGH
    assert mistake(task, outputs, ["B-x", "I-x", "B-y"], example) is None
    wrong = mistake(task, outputs, ["B-x", "O", "B-y"], example)
    assert wrong.truth == [
        {"start": 0, "end": 4, "label": "x", "text": "anna"},
        {"start": 7, "end": 10, "label": "y", "text": "ben"},
    ]
    assert wrong.answer[0] == {"start": 0, "end": 6, "label": "x", "text": "anna b"}
    assert wrong.score == pytest.approx(np.exp(HIGH) / (np.exp(HIGH) + 3), abs=1e-6)
    missed = mistake(task, np.eye(4)[[0, 0, 3]] * HIGH, ["B-x", "O", "B-y"], example)
    assert missed.score is None and len(missed.answer) == 1  # nothing is there that should not be
    found = labels(task, [outputs], [["B-x", "O", "B-y"]], [example])
    assert found == {"x": (0, 0, 0, 1, 1), "y": (1, 1, 1, 1, 1)}


def test_labels_of_words():
    task, example = Task(name="pos", kind="tagging", labels=("n", "v")), Example(input=("anna runs",))
    unread = np.array([[HIGH, 0], [np.nan, np.nan]])
    wrong = mistake(task, unread, ["n", "v"], example)
    assert [word["label"] for word in wrong.truth] == ["n", "v"] and [word["label"] for word in wrong.answer] == ["n"]
    assert labels(task, [unread], [["n", "v"]], [example]) == {"n": (1, 1, 1, 1, 1), "v": (0, 0, 0, 1, 0)}


def test_the_constrained_decoder_does_not_change_what_is_right():
    task = Task(name="names", kind="tagging", labels=("O", "B-x", "I-x"), decoder="constrained")
    example = Example(input=("anna b",))
    wrong = mistake(task, np.eye(3)[[0, 0]] * HIGH, ["I-x", "O"], example)
    assert wrong == Mistake(truth=[{"start": 0, "end": 4, "label": "x", "text": "anna"}], answer=[], score=None)
