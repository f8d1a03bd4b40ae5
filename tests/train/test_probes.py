"""Pinned probes: enough of them, with every label, the longest text and the strangest, in the order of the file."""

import unicodedata

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from polyhead.bundle.live_versions import Probe
from polyhead.data.read import Examples, ReadReport
from polyhead.project.recipes import Training
from polyhead.project.strategies import Pooled
from polyhead.tasks.gold import TaggedSpan, cut_words
from polyhead.tasks.task import Task
from polyhead.text.question import Question
from polyhead.text.words import boundary_places, words_of
from polyhead.train.data.prepared import Prepared, Split
from polyhead.train.record.draft import PROBES, validation_probes

LABELS = tuple(f"l{i:03d}" for i in range(200))
TASKS = {
    "single_label": Task(name="t", kind="single_label", labels=LABELS),
    "multi_label": Task(name="t", kind="multi_label", labels=LABELS),
    "tagging": Task(name="t", kind="tagging", labels=LABELS),
    "regression": Task(name="t", kind="regression", range=(0.0, 1.0)),
}
PAIR = Task(name="t", kind="single_label", labels=LABELS, pair="joined")


def prepared(task, inputs, targets, words=None):
    """A task whose validation split has these rows."""
    counts = dict.fromkeys(ReadReport.__struct_fields__, 0)
    examples = Examples(
        inputs=inputs, targets=targets, words=words, rows=list(range(1, len(inputs) + 1)), report=ReadReport(**counts)
    )
    split = Split(name="validation", examples=examples)
    return Prepared(
        task=task, strategy=Pooled(), training=Training(), team=None, train=split, validation=split, test=None
    )


def target(kind, drawn):
    """A target of the kind from a row's label indices, as `Kind.encode` gives it."""
    labels = [LABELS[i] for i in drawn]
    if kind == "single_label":
        return np.asarray(drawn[0], np.int64)
    if kind == "tagging":
        return np.array(drawn, np.int64)
    if kind == "multi_label":
        return np.array([label in labels for label in LABELS], np.float32)
    return np.asarray(drawn[0] / len(LABELS), np.float32)


def numbered(texts):
    """Inputs with the row's number in front, so that a probe tells which row it is."""
    return [(f"{i:04d} {text}",) for i, text in enumerate(texts)]


def rows_of(probes):
    return [int(probe["text"][0][:4]) for probe in probes]


def is_strange(text):
    return any(ord(c) > 0xFFFF or unicodedata.combining(c) for c in text)


drawn_rows = st.lists(
    st.tuples(st.text(max_size=6), st.lists(st.integers(0, len(LABELS) - 1), min_size=1, max_size=4)),
    min_size=1,
    max_size=260,
)


@pytest.mark.parametrize("kind", TASKS)
@settings(max_examples=60, deadline=None)
@given(rows=drawn_rows)
@example(rows=[("same", [i % 200]) for i in range(260)])
@example(rows=[("plain", [0])] * 130 + [("\U0001f600", [0])] + [("ä", [1])] * 10)
def test_probes_are_enough_and_hold_what_they_must(kind, rows):
    texts, drawn = [text for text, _ in rows], [labels for _, labels in rows]
    inputs = numbered(texts)
    words = [np.zeros((len(d), 2), np.int32) for d in drawn] if kind == "tagging" else None
    found = rows_of(validation_probes(prepared(TASKS[kind], inputs, [target(kind, d) for d in drawn], words)))
    assert found == sorted(set(found))  # the order of the file, none twice
    assert len(found) >= min(PROBES, len(rows))
    if len(rows) <= PROBES:
        assert found == list(range(len(rows)))
    if kind != "regression":
        read = [d[:1] if kind == "single_label" else d for d in drawn]
        assert {i for row in found for i in read[row]} == {i for d in read for i in d}
    assert max(len(inputs[row][0]) for row in found) == max(len(text) for (text,) in inputs)
    for holds in (lambda text: not text.isascii(), is_strange):
        assert any(holds(texts[row]) for row in found) == any(map(holds, texts))


def test_more_labels_than_probes_are_all_there_and_nothing_else():
    drawn = [[i // 3] for i in range(450)]
    targets = [target("single_label", d) for d in drawn]
    found = rows_of(validation_probes(prepared(TASKS["single_label"], numbered(["x"] * 450), targets)))
    assert found == list(range(0, 450, 3))  # the first is the longest too: all are of one length


def test_rows_that_nothing_asks_for_are_spread_over_the_file():
    targets = [target("regression", [0])] * 6400
    found = rows_of(validation_probes(prepared(TASKS["regression"], numbered(["x"] * 6400), targets)))
    assert len(found) == PROBES and found[0] == 0  # 0: the first of the longest
    assert {row // (6400 // 8) for row in found} == set(range(8))
    gaps = np.diff(found[1:])
    assert gaps.max() - gaps.min() <= 1 and gaps.min() >= 100


def test_negative_labels_of_a_row_are_not_shown_by_it():
    """Each row has one of 100 labels; a row where a label is 0 must not count as one that shows it."""
    drawn = [[i % 100] for i in range(200)]
    targets = [target("multi_label", d) for d in drawn]
    found = validation_probes(prepared(TASKS["multi_label"], numbered(["x"] * 200), targets))
    assert rows_of(found) == list(range(100))


@pytest.mark.parametrize("long", [0, 1], ids=["first", "second"])
def test_both_texts_of_a_pair_count(long):
    count = 30 * PROBES  # so that no row is there by chance
    inputs = [(f"{i:04d} question", "answer") for i in range(count)]

    def with_side(row, text):
        sides = list(inputs[row])
        sides[long] += text
        inputs[row] = tuple(sides)

    with_side(1001, " and so on" * 5)
    with_side(1003, " caf\u00e9")
    targets = [target("single_label", [0])] * count
    plain = rows_of(validation_probes(prepared(PAIR, list(inputs), targets)))
    assert {1001, 1003} <= set(plain)
    with_side(1490, " cafe\u0301")
    probes = validation_probes(prepared(PAIR, inputs, targets))
    assert {1001, 1490} <= set(rows_of(probes)) and len(probes) == PROBES
    assert probes[rows_of(probes).index(1490)]["text"] == inputs[1490]


def test_a_tagging_probe_holds_the_words_of_its_text():
    texts = [f"word {i}" for i in range(5)]
    words = [np.array([[5, 9], [10, 11 + len(str(i))]], np.int32) for i in range(5)]
    targets = [np.array([0, 1], np.int64)] * 5
    probes = validation_probes(prepared(TASKS["tagging"], numbered(texts), targets, words))
    assert [probe["words"] for probe in probes] == [tuple(map(tuple, w.tolist())) for w in words]


def test_a_question_is_pinned_with_its_options_and_its_context():
    task = Task(name="t", kind="multiple_choice")
    inputs = [Question(text=f"{i:04d}", options=("a", "b", "c"), context="x" * (i % 2)) for i in range(5)]
    probes = validation_probes(prepared(task, inputs, [np.asarray(i % 3, np.int64) for i in range(5)]))
    assert [msgspec.convert(probe, Probe).input for probe in probes] == inputs
    count = 30 * PROBES
    inputs = [Question(text=f"{i:04d}", options=("a", "b")) for i in range(count)]
    inputs[1001] = Question(text="1001", options=("a", "b " * 9))
    inputs[1490] = Question(text="1490", options=("a", "cafe\u0301"))
    targets = [np.asarray(i == 1203, np.int64) for i in range(count)]
    assert {0, 1001, 1203, 1490} <= set(rows_of(validation_probes(prepared(task, inputs, targets))))


def test_probes_of_a_span_task_show_an_answer_and_none():
    task, count = Task(name="t", kind="span", null_answers=True), 30 * PROBES
    inputs = [(f"{i:04d}", "a b") for i in range(count)]
    answers = [np.array([[1, 2, 0, 3]]), np.array([[2, 2, 2, 3], [1, 1, 0, 1]])]
    targets = [np.zeros((1, 4), np.int64) if i in (1001, 1003) else answers[i % 2] for i in range(count)]
    words = [boundary_places("a b")] * count
    probes = validation_probes(prepared(task, inputs, targets, words))
    assert len(probes) == PROBES and {0, 1001} <= set(rows_of(probes)) and 1003 not in rows_of(probes)
    one = msgspec.convert(probes[0], Probe)
    assert (one.input, one.words) == (inputs[0], ((-1, -1), (0, 1), (2, 3))) and one.fits(task)


def test_a_probe_has_the_words_that_answers_have_where_gold_cut_them():
    """A caller gives no gold, so the bundle is proven on the text's own words."""
    text = "the Donaudampf ships"
    gold = (TaggedSpan(start=4, end=9, label="who"),)
    cut = cut_words(words_of(text), gold)
    task = Task(name="t", kind="tagging", labels=("O", "B-who", "I-who"))
    made = prepared(task, [(text,)], [np.array([0, 1, 0, 0])], [cut])
    split = made.validation
    split = msgspec.structs.replace(split, examples=msgspec.structs.replace(split.examples, gold=[gold]))
    (line,) = validation_probes(msgspec.structs.replace(made, validation=split))
    assert len(cut) == 4 and [list(word) for word in line["words"]] == words_of(text).tolist()
