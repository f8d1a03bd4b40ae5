"""Labels that a new version would lose: which count as learned, of which kinds, and what a record says of them."""

import pytest

from polyhead.bundle.lost_labels import check_labels_stay, without_rows
from polyhead.bundle.manifest import TaskRecord
from polyhead.errors import BundleError
from polyhead.plan import Pool
from polyhead.tasks.task import Task
from polyhead.testing import tiny_path, tiny_trunk
from support.cases import cases

TRUNK = tiny_trunk()
BIO = ("O", "B-who", "I-who", "B-when", "I-when")


def record(kind, labels, unseen=()):
    task = Task(name="mood", kind=kind, labels=labels)
    return record_of(task, {"no_rows": list(unseen)} if unseen else {})


def record_of(task, learned):
    path = tiny_path(task, TRUNK, pool=Pool(positions="mean"))
    return TaskRecord(task=task, path=path, trunk=TRUNK.digest, trained_with=learned)


CASES = {
    "the same": (("single_label", ("a", "b")), ("single_label", ("b", "a")), (), ()),
    "more": (("single_label", ("a", "b")), ("single_label", ("a", "b", "c")), (), ()),
    "another set": (("single_label", ("a", "b")), ("single_label", ("x", "y")), (), ("a", "b")),
    "declared without a row": (("single_label", ("a", "b")), ("single_label", ("a", "b", "x")), ("b",), ("b",)),
    "never learned": (("single_label", ("a", "b"), ("b",)), ("single_label", ("a", "b")), ("b",), ()),
    "one of several": (("multi_label", ("a", "b")), ("multi_label", ("a", "b")), ("a",), ("a",)),
    "another kind of labels": (("single_label", ("a", "b")), ("multi_label", ("a", "b")), (), ()),
    "no inside of a span": (("tagging", BIO), ("tagging", BIO), ("I-who", "I-when"), ()),
    "no span at all": (("tagging", BIO), ("tagging", BIO), ("B-who", "I-who"), ("who",)),
    "no word outside": (("tagging", BIO), ("tagging", BIO), ("O",), ()),
    "plain words": (("tagging", ("x", "y")), ("tagging", ("x", "y")), ("y",), ("y",)),
}


@cases("before, after, unseen, lost", CASES.values(), ids=CASES)
def test_labels_are_lost_where_rows_taught_them_before_and_not_now(before, after, unseen, lost):
    live, new = record(*before), record(*after, unseen)
    assert without_rows(new) == list(unseen)
    if not lost:
        check_labels_stay(live, new.task, unseen, version="v0001", do="add rows")
        return
    with pytest.raises(BundleError, match=f"{len(lost)} of the .* labels of its live version v0001") as raised:
        check_labels_stay(live, new.task, unseen, version="v0001", do="add rows")
    assert raised.value.lost == lost


def test_a_task_of_numbers_asks_something_else():
    task = Task(name="mood", kind="regression", range=(0.0, 1.0))
    check_labels_stay(record("single_label", ("a", "b")), task, (), version="v0001", do="add rows")


@pytest.mark.parametrize("said", [None, "a", 3, {"a": 1}, [1, "a", None]])
def test_a_record_of_somebody_else_may_say_anything(said):
    task = Task(name="mood", kind="single_label", labels=("a", "b"))
    assert without_rows(record_of(task, {"no_rows": said})) == (["a"] if isinstance(said, list) else [])
