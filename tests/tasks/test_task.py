"""A task that means nothing cannot be made."""

import pytest

from polyhead.errors import BadName, ConfigError
from polyhead.tasks.task import Task, check_name
from polyhead.values import to_value
from support.cases import cases


@cases("name", ["", "../x", "a/b", "a\\b", "a..b", ".a", "-a", "a b", "é", "a" * 65, "a\n", "a.", "a\0", "b:c"])
def test_unsafe_names_are_refused(name):
    with pytest.raises(BadName):
        Task(name=name, kind="single_label", labels=("a", "b"))


@pytest.mark.parametrize("name", ["a", "A-1_b.c", "0", "a" * 64])
def test_safe_names_are_allowed(name):
    check_name(name)


@cases(
    "fields",
    [
        {"kind": "single_label"},
        {"kind": "single_label", "labels": ("a",)},
        {"kind": "single_label", "labels": ("a", "a")},
        {"kind": "single_label", "labels": ("a", "")},
        {"kind": "single_label", "labels": ("a", "\ud800")},
        {"kind": "single_label", "labels": ("a", "b"), "positive": "c"},
        {"kind": "single_label", "labels": ("a", "b"), "range": (0.0, 1.0)},
        {"kind": "single_label", "labels": ("a", "b"), "threshold": 0.3},
        {"kind": "single_label", "labels": ("a", "b"), "metric": "f1"},
        {"kind": "multi_label"},
        {"kind": "multi_label", "labels": ("a",), "threshold": 1.0},
        {"kind": "multi_label", "labels": ("a",), "positive": "a"},
        {"kind": "regression"},
        {"kind": "regression", "range": (1.0, 1.0)},
        {"kind": "regression", "range": (0.0, float("inf"))},
        {"kind": "regression", "range": (0.0, float("nan"))},
        {"kind": "regression", "range": (0.0, 1.0), "labels": ("a",)},
        {"kind": "tagging", "labels": ("O", "I-x")},
        {"kind": "tagging", "labels": ("B-x", "I-x")},
        {"kind": "tagging", "labels": ("O", "B-x", "NOUN")},
        {"kind": "tagging", "labels": ("O", "B-")},
        {"kind": "tagging", "labels": ("O", "B-x"), "pair": "joined"},
        {"kind": "tagging", "labels": ("NOUN", "VERB"), "metric": "span_f1"},
        {"kind": "tagging", "labels": ("NOUN", "VERB"), "null_answers": True},
        {"kind": "multiple_choice", "labels": ("a", "b")},
        {"kind": "multiple_choice", "pair": "joined"},
        {"kind": "multiple_choice", "long_texts": "windows"},
        {"kind": "multiple_choice", "null_answers": True},
        {"kind": "multiple_choice", "metric": "f1"},
        {"kind": "span", "labels": ("a", "b")},
        {"kind": "span", "pair": "separate"},
        {"kind": "span", "metric": "accuracy"},
    ],
    ids=str,
)
def test_fields_that_do_not_fit_the_kind_are_refused(fields):
    with pytest.raises(ConfigError, match="task 't'"):
        Task(name="t", **fields)


def test_a_span_task_is_over_joined_pairs_without_being_told():
    task = Task(name="t", kind="span", null_answers=True, long_texts="windows")
    assert (task.pair, task) == ("joined", Task(**{f: getattr(task, f) for f in task.__struct_fields__}))
    assert to_value({"name": "t", "kind": "span"}, Task, source="x.toml").pair == "joined"


def test_a_task_read_from_plain_data_is_checked_too():
    data = {"name": "t", "kind": "regression", "range": [0.0, 5.0]}
    assert to_value(data, Task, source="x.toml").range == (0.0, 5.0)
    with pytest.raises(ConfigError, match="range"):
        to_value({"name": "t", "kind": "regression"}, Task, source="x.toml")
    with pytest.raises(BadName):
        to_value(data | {"name": ".."}, Task, source="x.toml")
