"""Two versions of a task on the same rows."""

import numpy as np
import pytest

from polyhead.data.columns import Source
from polyhead.data.read import Examples, ReadReport
from polyhead.evaluate.compare import compare_versions
from polyhead.evaluate.scores import SplitOutputs
from polyhead.tasks.agreement import same_answer
from polyhead.tasks.task import Task

TRUTH = ["bad", "good"] * 10
TOPICS = Task(name="topics", kind="multi_label", labels=("bill", "order"))


def version(labels, answers):
    """A version that gives these answers, with the truth read by its own labels."""
    place = {label: number for number, label in enumerate(labels)}
    examples = Examples(
        inputs=[(f"text {row}",) for row in range(len(TRUTH))],
        targets=[np.asarray(place[label], np.int64) for label in TRUTH],
        words=None,
        rows=list(range(1, len(TRUTH) + 1)),
        report=ReadReport(),
    )
    outputs = [np.eye(len(labels), dtype=np.float32)[place[label]] for label in answers]
    task = Task(name="mood", kind="single_label", labels=labels)
    return SplitOutputs(task=task, source=Source(path="x.jsonl"), examples=examples, outputs=outputs)


def test_labels_in_another_order_are_the_same_answer():
    assert same_answer(TOPICS, {"labels": ["bill", "order"]}, {"labels": ["order", "bill"]})
    assert not same_answer(TOPICS, {"labels": ["bill", "order"]}, {"labels": ["bill"]})


@pytest.mark.parametrize("labels", [("bad", "good"), ("good", "bad"), ("awful", "bad", "good")])
def test_each_version_is_judged_by_its_own_labels(labels):
    """The truth has another number where labels stand in another order, and the same name."""
    before, after = version(("bad", "good"), TRUTH), version(labels, ["good"] * 20)
    comparison = compare_versions(after, before, against="v0001")
    assert (comparison.before, comparison.after) == (1.0, 0.5)
    assert (comparison.changed, comparison.got_right, comparison.got_wrong) == (10, 0, 10)
    assert comparison.probability == pytest.approx(2 * 0.5**10)
    for change in comparison.changes:
        assert (change.truth, change.before, change.after) == ("bad", "bad", "good")
        assert change.was_right and not change.is_right
