"""Two versions of a task on the same rows."""

import math

import msgspec
import numpy as np
import pytest

from polyhead.cli.evaluate_lines import comparison_lines
from polyhead.data.columns import Source
from polyhead.data.read import Examples, ReadReport
from polyhead.evaluate.compare import compare_versions
from polyhead.evaluate.details import details_of
from polyhead.evaluate.report.evaluation import Reported, page_of
from polyhead.evaluate.scores import SplitOutputs, evaluation_from
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


@pytest.mark.parametrize("lost", [("before", "after"), ("before",), ("after",)], ids="-".join)
def test_a_metric_that_is_no_number_compares_nothing_and_that_is_said(lost):
    """It was shown as `nan -> nan (+nan)`; kinds of other packages may have such metrics."""
    before, after = (version(("bad", "good"), answers) for answers in (TRUTH, ["good"] * 20))
    whole = compare_versions(after, before, against="v0001")
    lacking = msgspec.structs.replace(whole, difference=math.nan, **dict.fromkeys(lost, math.nan))
    details = details_of(evaluation_from(after, split="test"))
    for comparison, is_said in ((whole, False), (lacking, True)):
        page = page_of(Reported(title="t", facts=(), details=(details,), comparisons=(comparison,)))
        for shown in ("\n".join(comparison_lines(comparison)), page):
            assert ("accuracy is no number on these rows" in shown) == is_said and "+nan" not in shown
            assert ("1.0000" in shown and "(-0.5000" in shown) != is_said and "10 got worse" in shown
