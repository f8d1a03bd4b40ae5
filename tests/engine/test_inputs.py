"""What is no input is refused with its number, before anything runs."""

import math
import re

import numpy as np
import pytest

from polyhead.engine.inputs import Passage, checked_inputs
from polyhead.engine.session import Session
from polyhead.errors import BadValue
from polyhead.plan import Pool
from polyhead.project.strategies import Pooled
from polyhead.tasks.task import Task
from polyhead.testing import tiny_path, tiny_trunk
from polyhead.testing.strategies import add_tiny, tiny_bundle, tiny_paths
from polyhead.text.question import Question

TRUNK = tiny_trunk()


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    root = tmp_path_factory.mktemp("inputs") / "b"
    paths = tiny_paths(Pooled(), TRUNK)
    tiny_bundle(root, TRUNK, {name: paths[name] for name in ("mood", "names", "alike")})
    words = Task(name="words", kind="tagging", labels=("a", "b"))
    add_tiny(root, TRUNK, words, tiny_path(words, TRUNK, pool=Pool()), seed=3)
    return Session(root, backend="reference")


@pytest.fixture(params=["predict", "columns", "stream", "outputs"])
def ask(session, request):
    """A call of one task that reads texts."""
    if request.param == "outputs":
        return lambda inputs, **more: session.outputs("words", inputs, **more)
    return lambda inputs, **more: getattr(session, request.param)(inputs, tasks=["words"], **more)


@pytest.mark.parametrize("text", ["\u200b", "\ufeff", "\0\x07", " \u00ad\n", "\u200e\u2060"], ids=ascii)
def test_a_text_that_shows_nothing_is_empty(session, text):
    """Its characters are no token: what an encoder says of no text at all was given as an answer."""
    assert session.tokenizer.encodings([(text,)]).lengths.tolist() == [2]  # the special tokens alone
    before = session.backend.layers_run
    result = session.predict([(text,)], tasks=["words"])[0]
    assert (dict(result.answers), result.skipped) == ({}, {"words": "the text is empty"})
    assert session.backend.layers_run == before
    assert session.predict([(text + "good",)], tasks=["words"])[0].answers


@pytest.mark.parametrize(
    "wrong",
    [
        1,
        None,
        b"good",
        (),
        ("a", "b", "c"),
        ("a", None),
        ["a", 2],
        {"text": "a"},
        Passage(question="a", context=None),
        Question(text="a", options=("b", 3)),
        Question(text="a", options="bc"),
        Question(text="a", options=("b", "c"), context=None),
    ],
    ids=repr,
)
def test_an_input_that_is_none_is_refused_with_its_number(session, ask, wrong):
    """Three texts were an IndexError of the receipts, others a bare TypeError, and took all answers down."""
    before = session.backend.layers_run
    with pytest.raises(BadValue, match=f"input 2 .*{re.escape(repr(wrong)[:20])}") as caught:
        ask(["good", ("bad",), wrong, 4])
    assert caught.value.row == 2 and session.backend.layers_run == before


def test_a_bad_input_is_told_beside_pairs_that_are_read_separately(session):
    with pytest.raises(BadValue, match="input 1 "):
        session.predict(["hello", ("a", "b", "c"), ("p", "q")])


@pytest.mark.parametrize(
    "wrong", ["hello", b"hello", None, 3, {"text": "a"}, Passage(question="a", context="b")], ids=repr
)
def test_one_value_in_the_place_of_a_list_is_refused(ask, wrong):
    """A string was answered letter by letter."""
    with pytest.raises(BadValue, match="in a list"):
        ask(wrong)


def test_a_list_is_a_pair_and_what_can_be_gone_through_is_inputs():
    given = ["a", ("a",), ("a", "b"), ["a", "b"], np.str_("a")]
    assert checked_inputs(iter(given)) == [("a",), ("a",), ("a", "b"), ("a", "b"), ("a",)]
    assert checked_inputs(np.array(["a", "b"])) == [("a",), ("b",)]


def test_one_name_in_the_place_of_tasks_is_refused(session):
    """It was asked letter by letter."""
    for ask in (session.predict, session.columns, session.stream):
        with pytest.raises(BadValue, match=r"ask for \['mood'\]"):
            ask(["good"], tasks="mood")
    (result,) = session.predict(["good"], tasks=(name for name in ["mood"]))
    assert set(result.answers) == {"mood"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "those of 0.*those of 2"),
        ([None, None, None], "those of 3.*those of 2"),
        ([None, np.zeros(3, np.int32)], "input 1: .*int32 .3,"),
        ([np.zeros((1, 3), np.int32), None], "input 0: .*int32 .1, 3"),
        ([None, np.array([[0.0, 1.5]])], "input 1: .*float64 .1, 2"),
        ([None, [["a", "b"]]], "input 1: "),
        ([None, [[0, 1], [2]]], "input 1: .*0, 1.*2"),
        ([None, [[0, 2], [-5, 2]]], "input 1: .*-5, 2.*<= 3"),
        ([[[0, 4], [100, 200]], None], "input 0: .*100, 200.*<= 9"),
        ([[[5, 2]], None], "input 0: .*5, 2"),
        ([[[-1, -1]], None], "input 0: .*-1, -1"),
        (5, "in a list.*5"),
        ("good", "in a list.*good"),
    ],
    ids=[
        *("none", "too many", "flat", "three numbers", "fractions", "strings", "ragged", "before the text"),
        *("behind it", "turned round", "nowhere in one text", "a number", "a string"),
    ],
)
def test_words_that_are_not_those_of_the_inputs_are_refused(ask, words, said):
    """Too few were an IndexError, those beyond their text were answered."""
    with pytest.raises(BadValue, match=said):
        ask(["good lamp", "bad"], words=words)


@pytest.mark.parametrize("kind", [np.int64, np.uint64, np.uint8])
def test_words_may_be_empty_reach_the_end_and_come_one_by_one(session, kind):
    """A token may be an empty string; of a pair the words are those of the second text, or nowhere."""
    words = ([np.array(places, kind)] for places in ([[0, 4], [5, 5], [5, 9]],))
    (found,) = session.predict(["good lamp"], tasks=["words"], words=next(words))
    assert [(one["start"], one["end"]) for one in found.answers["words"]["words"]] == [(0, 4), (5, 9)]
    assert type(found.answers["words"]["words"][0]["start"]) is int
    given, words = [("a", "good lamp"), "bad"], (one for one in [np.array([[-1, -1], [5, 9]]), None])
    assert session.predict(given, words=words)[0].answers
    (before,), (after,) = (session.predict(given[:1], words=[np.array([[5, 9]], each)]) for each in (np.int32, kind))
    assert after == before  # nowhere is there too, which has no sign of its own
    with pytest.raises(BadValue, match=r"input 0: .*5, 10.*<= 9"):
        session.predict(given, words=[[[5, 10]], None])


@pytest.mark.parametrize("wrong", [math.nan, math.inf, "3", [1], 10**400], ids=lambda one: repr(one)[:9])
def test_a_deadline_that_is_no_finite_number_is_refused(session, wrong):
    """NaN never came, and a string was a bare TypeError."""
    for ask in (session.predict, session.columns, session.stream):
        with pytest.raises(BadValue, match="deadline"):
            ask(["good"], deadline=wrong)
    assert session.predict(["good"], deadline=np.float32(1e6)) == session.predict(["good"])


@pytest.mark.parametrize("wrong", [5, [["x"]], [5], b"mood", ["mood", None]], ids=repr)
def test_what_is_no_list_of_names_is_refused(session, wrong):
    """Some of these were a bare TypeError."""
    for ask in (session.predict, session.columns, session.stream):
        with pytest.raises(BadValue, match="`tasks` must be a list of names"):
            ask(["good"], tasks=wrong)


def test_an_input_may_have_no_words_or_a_plain_list_of_them(session):
    found = session.predict(["good lamp", "bad lamp"], tasks=["words"], words=[[], [[0, 3]]])
    assert [len(one.answers["words"]["words"]) for one in found] == [0, 1]
