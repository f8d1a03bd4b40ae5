"""Which columns make the input."""

import pytest

from polyhead.data.tables import Survey, joint_word, word_of
from polyhead.engine.answers import Result
from polyhead.engine.inputs import Passage
from polyhead.engine.receipt import Receipt
from polyhead.errors import BadValue, ConfigError, DataError, MissingColumn
from polyhead.store.jobs.columns import Roles, check_readable, roles_of, why_none
from polyhead.tasks.kinds import KINDS
from polyhead.tasks.task import Task
from polyhead.text.question import Question
from support.cases import cases


def roles(named=None, **columns):
    return roles_of("in.csv", Survey(rows=1, columns=columns), named or {})


def asked(found, **values):
    return found.row_input(values, where="row 1", from_cells=True).input


def test_columns_have_the_roles_of_their_names():
    found = roles(text="text", text_b="text", id="int")
    assert found.wanted == ("text", "text_b") and found.types == {"text", "pair"}
    assert asked(found, text="a", text_b="b", id=1) == ("a", "b")
    assert asked(found, text="a", text_b="") == ("a",)
    found = roles(text_a="text", text_b="text")
    assert asked(found, text_a="a", text_b="b") == ("a", "b")


def test_a_named_column_leaves_out_what_does_not_go_with_it():
    found = roles({"question": "q"}, q="text", text="text", context="text", text_b="text")
    assert found.columns == {"question": ("q",), "context": ("context",)}
    assert asked(found, q="a", text="b", context="c") == Passage(question="a", context="c")
    found = roles({"text": "title"}, title="text", text="text", question="text")
    assert found.columns == {"text": ("title",)}
    assert roles({"text": "text_b"}, text="text", text_b="text").columns == {"text": ("text_b",)}
    found = roles({"text_b": "reply"}, text="text", reply="text")
    assert asked(found, text="a", reply="b") == ("a", "b")


def test_a_column_that_cannot_be_read_is_nobodys_beside_one_that_can():
    """Counts of tokens beside texts were refused, though nobody asked for them."""
    assert roles(text="text", tokens="int", question="object").columns == {"text": ("text",)}
    assert roles(question="text", context="text", text="float").types == {"passage"}


def test_lists_are_read_from_cells():
    found = roles({"choices": "answers"}, question="text", answers="text")
    assert asked(found, question="q", answers='["a", "b"]') == Question(text="q", options=("a", "b"))
    tokens = roles(tokens="list").row_input({"tokens": ["the", "lamp"]}, where="row 1", from_cells=False)
    assert tokens.input == ("the lamp",) and tokens.words.tolist() == [[0, 3], [4, 8]]


@cases(
    ("named", "columns", "error", "said"),
    [
        ({"text": "titel"}, {"title": "text"}, MissingColumn, "did you mean 'title'"),
        ({"text_b": "b"}, {"b": "text"}, MissingColumn, "no column 'text'"),
        ({"text": "b", "text_b": "b"}, {"b": "text"}, ConfigError, "named twice. Got: b"),
        ({}, {"body": "text"}, MissingColumn, "Got: body.*--text COLUMN"),
        ({}, {"text": "null"}, MissingColumn, "Got: text"),
        ({"text": "n"}, {"n": "int"}, DataError, "'n' .*type int"),
        ({}, {"text": "text", "text_b": "int"}, DataError, "'text_b' .*--text-b COLUMN"),
        ({"tokens": "t"}, {"t": "object"}, DataError, "lists of strings"),
        ({}, {"tokens": "int"}, DataError, "'tokens' .*type int.*--tokens COLUMN"),
        ({"tokens": "tokens"}, {"text": "text", "tokens": "int"}, DataError, "'tokens' .*type int"),
    ],
)
def test_columns_that_make_no_input_are_refused(named, columns, error, said):
    with pytest.raises(error, match=said):
        roles(named, **columns)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"question": "q"}, "a context to be answered from, or options"),
        ({"question": "q", "options": "x"}, "no options to choose from"),
        ({"question": "", "text": ""}, "column 'text' is empty"),
        ({"text": 3}, "must hold a string"),
    ],
)
def test_values_that_make_no_input_say_the_row(values, said):
    found = roles(text="text", question="text", options="text", context="text")
    with pytest.raises(BadValue, match=f"row 1.*{said}"):
        found.row_input(values, where="row 1", from_cells=True)


def test_words_of_values_are_joined():
    def word(*values):
        return joint_word({word_of(value) for value in values})

    assert word() == word(None) == "null"
    assert word(1, None) == "int" and word(1, 0.5) == "float" and word(True, 1) == "mixed"
    assert word("a", None) == "text" and word([1]) == "list" and word({}) == "object"
    assert word(2**63) == "mixed" and word(2**63 - 1, -(2**63)) == "int"
    assert word(2**53, 0.5) == "float" and word(2**53 + 1, 0.5) == word(-(2**53) - 1, 0.5, 1) == "mixed"
    assert word(2**53 + 1, None, 1) == "int" and word(2**53 + 1, True) == "mixed"


def test_every_kind_has_a_column():
    assert {name: kind.cell for name, kind in KINDS.items()} == {
        "single_label": "text",
        "multi_label": "texts",
        "regression": "number",
        "tagging": "json",
        "multiple_choice": "places",
        "span": "json",
        "summarization": "text",
    }


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"text": "text", "text_b": "other"}, "none of the tasks reads --text-b. Got"),
        ({"text": "other"}, None),
        ({"question": "text", "context": "other"}, "none of the tasks reads what the columns"),
    ],
)
def test_a_named_column_that_no_task_reads_is_told_by_its_option(named, said):
    tasks = {"mood": Task(name="mood", kind="single_label", labels=("good", "bad"))}
    roles = Roles(columns={role: (column,) for role, column in named.items()})
    if said is None:
        check_readable("in.csv", roles, tasks, named)
        return
    with pytest.raises(ConfigError, match=said):
        check_readable("in.csv", roles, tasks, named)


def test_a_row_without_answers_has_the_reason_of_each_task():
    """A pair without its second text had the reason of the first task, which reads questions."""

    def why(**skipped):
        return why_none(Result(answers={}, receipt=Receipt(passes=0, layers=0, tokens=0), skipped=skipped))

    question, pair = "this task reads a question, one text was given", "this task reads a pair, one text was given"
    assert why(where=question, same=pair, alike=pair) == f"where: {question}; same, alike: {pair}"
    assert why(same=pair, alike=pair) == pair and why() is None
