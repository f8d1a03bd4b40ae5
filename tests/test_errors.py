"""The error tree is the one drawn in its docstring, and every message shows its facts in a printable form."""

import inspect
import re

import pytest

from polyhead import errors
from polyhead.errors import MissingExtra, PolyheadError, UnknownTask
from support.cases import cases

CLASSES = {
    name: value for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, PolyheadError)
}


def drawn() -> dict[str, str]:
    """Each class in the docstring's tree with the one above it."""
    found, above = {}, []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"((?:[│├└─ ]{4})*)([A-Z]\w+)(?:\s{2,}|$)", line)
        if match:
            level = len(match[1]) // 4
            above = [*above[:level], match[2]]
            found[match[2]] = above[-2] if level else "Exception"
    return found


def test_the_tree_in_the_docstring_is_the_tree_of_classes():
    assert len(CLASSES) >= 20
    assert drawn() == {name: value.__bases__[0].__name__ for name, value in CLASSES.items()}


@cases("name", CLASSES)
def test_every_error_says_what_it_is(name):
    assert (CLASSES[name].__doc__ or "").strip().endswith(".")


@cases("name", sorted(set(CLASSES) - {"MissingExtra"}))
def test_every_error_carries_the_four_facts(name):
    error = CLASSES[name]("the task is unknown", got="x", allowed=("a", "b"), do="add it", row=17)
    assert str(error) == "the task is unknown. Got: x. Allowed: a, b. Do: add it."
    assert (error.what, error.got, error.allowed, error.do) == ("the task is unknown", "x", ("a", "b"), "add it")
    assert error.row == 17
    assert error.facts == {"row": 17}


@cases("name", CLASSES)
def test_an_error_told_with_its_place_is_the_same_error(name):
    facts = {"got": "x", "allowed": "y", "do": "add it"}
    error = (
        MissingExtra("matplotlib", "plots", "drawing")
        if name == "MissingExtra"
        else CLASSES[name]("w", row=17, **facts)
    )
    found = error.at("file.toml, tasks[0]", path="$.tasks[0]")
    assert type(found) is CLASSES[name] and str(found) == f"file.toml, tasks[0]: {error}"
    assert found.facts == {**error.facts, "path": "$.tasks[0]"} and found.path == "$.tasks[0]"
    assert (found.got, found.allowed, found.do) == (error.got, error.allowed, error.do)


def test_facts_that_are_not_given_are_left_out():
    assert str(PolyheadError("it failed")) == "it failed."
    assert str(PolyheadError("it failed.", got=0)) == "it failed. Got: 0."
    assert str(PolyheadError("it failed", allowed=[])) == "it failed. Allowed: none."


def test_a_missing_extra_holds_the_line_that_installs_it():
    error = MissingExtra("matplotlib", "plots", "a plot")
    assert (error.package, error.extra) == ("matplotlib", "plots")
    assert "pip install 'polyhead[plots]'" in str(error)
    assert "a plot needs the package 'matplotlib'" in str(error)


HOSTILE = {
    "lone-surrogate": "a\ud800b",
    "newline": "a\nb",
    "escape": "\x1b[2Ja",
    "null": "a\0b",
    "right-to-left": "a\u202eb",
    "beyond-unicode-planes": "a\U000e0001b",
}


@cases("text", HOSTILE.values(), ids=HOSTILE)
@cases("fact", ["got", "allowed"])
def test_hostile_values_are_shown_escaped(text, fact):
    for value in (text, [text, "b"], {text}):
        message = str(PolyheadError("it failed", **{fact: value}))
        assert message.isprintable()
        assert message.encode("utf-8")
        assert "\\" in message


@pytest.mark.parametrize("text", [*HOSTILE.values(), "x" * 1_000_000], ids=[*HOSTILE, "long"])
def test_hostile_names_inside_a_sentence_are_shown_escaped_and_cut(text):
    message = str(PolyheadError(f"the task '{text}' is unknown", do=f"did you mean '{text}'?"))
    assert message.isprintable()
    assert message.encode("utf-8")
    assert len(message) < 3000


@pytest.mark.parametrize("fact", ["got", "allowed"])
@pytest.mark.parametrize("value", ["x" * 1_000_000, ["x"] * 1_000_000, "\ud800" * 1_000_000], ids=["x", "list", "lone"])
def test_long_values_are_cut_and_their_length_is_said(fact, value):
    message = str(PolyheadError("it failed", **{fact: value}))
    assert len(message) < 500
    assert "characters)" in message


def test_the_attribute_keeps_the_value_as_it_was():
    text = "a\ud800b" * 1000
    assert PolyheadError("it failed", got=text).got is text


def test_readable_text_of_any_language_is_shown_as_it_is():
    assert "Got: naïve 日本語 👍." in str(PolyheadError("it failed", got="naïve 日本語 👍"))


def test_a_task_that_is_unknown_names_what_is_near_or_there():
    assert "did you mean 'mood'?" in str(UnknownTask("no task", got="moud", allowed=["mood", "topic"]))
    assert "name one of these" in str(UnknownTask("no task", got="x", allowed=["mood"]))
    alone = str(UnknownTask("no task", got="x", allowed=[]))
    assert "name one of these" not in alone and "name another bundle" in alone
