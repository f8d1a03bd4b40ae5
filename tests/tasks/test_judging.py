"""Answers against the truth: metrics of rows that stand several times, confusion, confidence, support of answers."""

import tracemalloc

import numpy as np
import pytest

from polyhead.tasks.judging import from_labels, label_metrics
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Example, Task

TASKS = {
    "single": Task(name="a", kind="single_label", labels=("x", "y", "z")),
    "positive": Task(name="a", kind="single_label", labels=("x", "y"), positive="y"),
    "multi": Task(name="a", kind="multi_label", labels=("x", "y", "z"), threshold=0.4),
    "number": Task(name="a", kind="regression", range=(-2.0, 3.0)),
    "choice": Task(name="a", kind="multiple_choice"),
    "words": Task(name="a", kind="tagging", labels=("x", "y", "z")),
    "spans": Task(name="a", kind="tagging", labels=("O", "B-p", "I-p", "B-q")),
    "path": Task(name="a", kind="tagging", labels=("O", "B-p", "I-p", "B-q"), decoder="constrained"),
    "answers": Task(name="a", kind="span", null_answers=True),
}
ROWS = 60


def split(name, rows=ROWS, seed=0):
    """Outputs, targets and examples of a task, drawn at random; some words are not read."""
    task, rng = TASKS[name], np.random.default_rng(seed)
    outputs, targets, examples = [], [], []
    for _ in range(rows):
        words = int(rng.integers(1, 7))
        text = " ".join(f"w{int(rng.integers(4))}" for _ in range(words))
        example = Example(input=(text,))
        shape: tuple[int, ...] = (kind_of(task).width(task),)
        if name == "choice":
            shape, target = (3,), np.array(rng.integers(3))
        elif name in ("single", "positive"):
            target = np.array(rng.integers(len(task.labels)))
        elif name == "multi":
            target = (rng.random(3) < 0.4).astype(np.float32)
        elif name == "number":
            target = np.array(np.round(rng.random(), 1), np.float32)
        elif name == "answers":
            example = Example(input=("q", text))
            places = example.places
            place = int(rng.integers(len(places)))
            target = np.array([[place, place, *np.maximum(places[place], 0)]], np.int64)
            shape = (len(places), 2)
        else:
            shape, target = (words, len(task.labels)), rng.integers(len(task.labels), size=words)
        output = rng.normal(size=shape).astype(np.float32)
        if name == "number":
            output = np.round(output / 2 + 0.5, 1)
        if name in ("words", "spans", "path") and rng.random() < 0.3:
            output[-1] = np.nan
        outputs.append(output)
        targets.append(target)
        examples.append(example)
    return task, outputs, targets, examples


@pytest.mark.parametrize("name", TASKS)
def test_metrics_of_counted_rows_are_those_of_the_repeated_rows(name):
    task, outputs, targets, examples = split(name)
    kind, rng = kind_of(task), np.random.default_rng(1)
    counts = np.stack([np.bincount(rng.integers(ROWS, size=ROWS), minlength=ROWS) for _ in range(5)] + [np.ones(ROWS)])
    found = kind.judged(task, outputs, targets, examples).recount(counts.astype(np.float64))
    assert tuple(found) == kind.metrics(task)
    for place, each in enumerate(counts.astype(int)):
        rows = np.repeat(np.arange(ROWS), each)
        wanted = kind.evaluate(task, *([of[row] for row in rows] for of in (outputs, targets, examples)))
        assert {metric: values[place] for metric, values in found.items()} == pytest.approx(wanted, abs=1e-9), name


def test_a_recount_of_many_labels_takes_little_memory():
    """A table of the pairs of labels that occur, by all labels, grew with both."""
    rng, labels, rows = np.random.default_rng(0), 3000, 3000
    truth, answers = rng.integers(labels, size=(2, rows))
    answers[:1000] = truth[:1000]
    tracemalloc.start()
    recount = from_labels(truth, answers, np.arange(rows), labels, lambda *counts: label_metrics(*counts))
    found = recount(np.ones((2, rows)))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20e6
    assert found["accuracy"] == pytest.approx([(truth == answers).mean()] * 2)


def test_confusion_of_labels_is_that_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    task, outputs, targets, examples = split("single")
    confusion = kind_of(task).judged(task, outputs, targets, examples).confusion
    wanted = metrics.confusion_matrix(targets, [output.argmax() for output in outputs], labels=[0, 1, 2])
    assert confusion.counts.tolist() == wanted.tolist() and confusion.truths == confusion.answers == task.labels


def test_confusion_of_several_labels_is_that_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    task, outputs, targets, examples = split("multi")
    confusion = kind_of(task).judged(task, outputs, targets, examples).confusion
    given = 1 / (1 + np.exp(-np.stack(outputs))) >= 0.4
    ((left, wrong), (missed, right)) = metrics.multilabel_confusion_matrix(np.stack(targets), given).transpose(1, 2, 0)
    assert confusion.counts.T.tolist() == [right.tolist(), wrong.tolist(), missed.tolist(), left.tolist()]


def test_confusion_of_words_counts_every_word_and_those_that_were_not_read():
    metrics = pytest.importorskip("sklearn.metrics")
    task, outputs, targets, examples = split("words")
    judged = kind_of(task).judged(task, outputs, targets, examples)
    unread = np.isnan(np.concatenate(outputs)).any(axis=1)
    answers = np.where(unread, 3, np.nan_to_num(np.concatenate(outputs)).argmax(axis=1))
    wanted = metrics.confusion_matrix(np.concatenate(targets), answers, labels=[0, 1, 2, 3])
    assert unread.any() and judged.confusion.counts.tolist() == wanted[:3].tolist()
    assert len(judged.decisions.confidence) == (~unread).sum()


def test_confusion_of_numbers_is_a_histogram_of_both():
    task, outputs, targets, examples = split("number")
    judged = kind_of(task).judged(task, outputs, targets, examples)
    truth = -2 + 5 * np.array(targets, np.float64)
    answers = np.clip(-2 + 5 * np.array(outputs, np.float64)[:, 0], -2, 3)
    wanted, _, _ = np.histogram2d(truth, answers, 10, [(-2, 3), (-2, 3)])
    assert judged.confusion.counts.tolist() == wanted.astype(int).tolist()
    assert judged.differences == pytest.approx(answers - truth) and judged.decisions is None


@pytest.mark.parametrize("name", ["single", "positive", "multi", "choice", "words", "spans", "answers"])
def test_decisions_are_as_right_as_the_metrics_say(name):
    task, outputs, targets, examples = split(name)
    kind = kind_of(task)
    decisions, scores = (
        kind.judged(task, outputs, targets, examples).decisions,
        kind.evaluate(task, outputs, targets, examples),
    )
    assert ((decisions.confidence > 0) & (decisions.confidence <= 1)).all()
    if name in ("single", "positive", "choice"):
        assert decisions.is_right.mean() == pytest.approx(scores["accuracy"])
    if name == "answers":
        assert decisions.is_right.mean() == pytest.approx(scores["exact_match"])
    if name == "multi":
        assert decisions.is_right.reshape(ROWS, 3).all(axis=1).mean() == pytest.approx(scores["accuracy"])


@pytest.mark.parametrize("name", TASKS)
def test_an_answer_supports_itself_as_far_as_it_is_sure(name):
    task, outputs, targets, examples = split(name)
    kind = kind_of(task)
    if name == "choice":
        from polyhead.text.question import Question

        examples = [Example(input=Question(text="q", options=("a", "b", "c")))] * ROWS
    for answer in kind.decode_all(task, outputs, examples):
        own = kind.support(task, answer, answer)
        numbers = (
            [*answer.get("scores", {}).values()] if isinstance(answer.get("scores"), dict) else answer.get("scores")
        )
        if name == "multi" and not answer["labels"]:
            numbers = [1 - max(numbers)]
        numbers = numbers or [answer.get("score"), answer.get("value"), *(s["score"] for s in answer.get("spans", []))]
        assert set(own.values()) <= set(numbers)
        assert own or name in ("words", "spans", "path")


def test_a_span_is_supported_wherever_it_stands_now_and_not_where_it_is_gone():
    def answer(*spans):
        return {"spans": [{"start": a, "end": a + len(t), "label": n, "text": t, "score": s} for a, t, n, s in spans]}

    task, given = TASKS["spans"], answer((4, "lamp", "p", 0.9), (9, "ben", "q", 0.8))
    moved = answer((0, "lamp", "p", 0.4), (5, "ben", "p", 0.7))
    assert kind_of(task).support(task, given, moved) == {"p 'lamp'": 0.4, "q 'ben'": 0.0}


def test_a_text_is_supported_where_it_is_the_answer_still():
    task = TASKS["answers"]
    kind, given = kind_of(task), {"text": "two years", "start": 3, "end": 12, "score": 0.9}
    assert kind.support(task, given, {**given, "start": 0, "score": 0.5}) == {"two years": 0.5}
    assert kind.support(task, given, {"text": None, "score": 0.9}) == {"two years": 0.0}
    assert kind.support(task, {"text": None, "score": 0.6}, {"text": None, "score": 0.7}) == {"no answer": 0.7}
