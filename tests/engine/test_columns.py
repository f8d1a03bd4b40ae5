"""Answers as columns: the values of single answers, in order, whatever the pieces; and what fails fails alone."""

import math

import msgspec
import numpy as np
import pytest

from polyhead.engine import batch
from polyhead.engine.backends.reference import ReferenceBackend
from polyhead.engine.inputs import Passage
from polyhead.engine.session import Session
from polyhead.errors import BackendError, UnknownTask
from polyhead.project.strategies import Pooled
from polyhead.testing import tiny_trunk
from polyhead.testing.strategies import TEXTS, tiny_bundle, tiny_paths
from support import tiny_project

LONG = "the kettle is broken and my phone was late . " * 8
INPUTS = [*TEXTS, ("good",), (LONG,), ("",), ("ben \ud800 is late",), (LONG, "late"), ("sad", "the bill " * 40)]
PASS = ("passes", "layers", "tokens")  # of a receipt, what is said once for a text of several pairs


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    trunk = tiny_trunk()
    folder = tmp_path_factory.mktemp("columns") / "bundle"
    tiny_bundle(folder, trunk, tiny_paths(Pooled(positions="attention", heads=2, hidden=8), trunk))
    return folder


@pytest.fixture
def session(root):
    return Session(root, backend="reference")


def by_formula(session, name, entry):
    """The numbers of an answer from its outputs, by the formula of its kind; None for an input that does not fit."""
    try:
        (outputs,) = session.outputs(name, [entry])
    except Exception:
        return None
    raw = [float(number) for number in outputs]
    if name in ("mood", "same"):
        parts = [math.exp(number - max(raw)) for number in raw]
        return [part / sum(parts) for part in parts]
    if name == "topics":
        return [1 / (1 + math.exp(-number)) for number in raw]
    low, high = session.tasks[name].range
    return [min(max(low + raw[0] * (high - low), low), high)]


def test_a_result_that_is_changed_changes_no_other(session):
    first, second = session.predict(["good", "bad"], tasks=["mood"])
    first.versions["mood"] = "changed"
    assert second.versions == session.predict(["good"], tasks=["mood"])[0].versions == {"mood": "v0001"}


@pytest.mark.parametrize("name", ["mood", "topics", "urgency", "same", "alike"])
def test_a_column_holds_the_numbers_of_each_input_and_says_where_there_are_none(session, name):
    column = session.columns(INPUTS)[name]
    numbers = column.value[:, None] if column.scores is None else column.scores
    assert len(numbers) == len(INPUTS)
    answered = 0
    for entry, row in zip(INPUTS, numbers, strict=True):
        wanted = by_formula(session, name, entry)
        if wanted is None:
            assert np.isnan(row).all()
        else:
            answered += 1
            # float32 of the same text beside others: rows are filled up to few sizes, whose products round otherwise
            np.testing.assert_allclose(row, wanted, atol=5e-6)
    assert answered == len(column.rows) > 1
    assert set(column.rows.tolist()) | set(column.skipped) == set(range(len(INPUTS)))


def test_labels_are_those_of_the_largest_score_and_of_scores_over_the_threshold(session):
    columns = session.columns(INPUTS)
    mood, topics = columns["mood"], columns["topics"]
    there = ~np.isnan(mood.scores).any(axis=1)
    assert (mood.label[there] == mood.scores[there].argmax(axis=1)).all() and (mood.label[~there] == -1).all()
    assert (topics.labels == (np.nan_to_num(topics.scores) >= 0.5)).all() and topics.labels.any()
    assert (mood.labels, mood.value, topics.label, columns["urgency"].scores) == (None,) * 4


def test_results_hold_what_columns_hold_and_single_calls_give(session):
    columns, results = session.columns(INPUTS), session.predict(INPUTS)
    assert results == columns.results()
    for row, (entry, result) in enumerate(zip(INPUTS, results, strict=True)):
        (alone,) = session.predict([entry])
        receipt = alone.receipt
        if entry in ((LONG, "late"), ("sad", "the bill " * 40)):  # an input and another pair hold the first text
            (first,) = session.predict([entry[:1]], tasks=["mood"])
            less = {name: getattr(receipt, name) - getattr(first.receipt, name) for name in PASS}
            receipt = msgspec.structs.replace(receipt, **less)
        assert receipt == result.receipt == columns.receipt(row)
        assert (alone.skipped, result.failed, result.late) == (result.skipped, {}, ())
        assert list(alone.answers) == list(result.answers)
        for field in ("passes", "layers", "tokens", "cut", "windows", "repaired"):
            assert getattr(columns.receipts, field)[row] == getattr(receipt, field)
        if "mood" in result.answers:
            scores = result.answers["mood"]["scores"]
            np.testing.assert_allclose(list(scores.values()), columns["mood"].scores[row], atol=1e-7)
            label = session.tasks["mood"].labels[columns["mood"].label[row]]
            assert (list(scores), result.answers["mood"]["label"]) == (["bad", "good"], label)


def test_texts_that_stand_packed_in_rows_are_answered_as_each_alone(root, session):
    """A backend that packs: batches are filled by tokens, and every kind's answers are the yardstick's."""
    pytest.importorskip("openvino")
    packed = Session(root, backend="openvino", precision="float32")
    assert packed.backend.packs
    inputs = [*INPUTS, *((word,) for word in ["where", "is", "my", "order", "and", "the", "lamp"])]
    for result, expected in zip(packed.predict(inputs), session.predict(inputs), strict=True):
        assert result.receipt == expected.receipt and result.skipped == expected.skipped
        assert result.answers.keys() == expected.answers.keys()
        for name in ("mood", "topics", "same", "reply"):
            if name in result.answers:
                scores = [result.answers[name]["scores"], expected.answers[name]["scores"]]
                assert scores[0] == pytest.approx(scores[1], abs=1e-4)


def test_many_inputs_are_answered_in_their_order_piece_by_piece(session, monkeypatch):
    inputs = INPUTS * 3
    words = [np.array([[0, 3]], np.int32) if entry == ("good",) else None for entry in inputs]
    whole = session.predict(inputs, words=words)
    monkeypatch.setattr(batch, "FIRST", 2)
    monkeypatch.setattr(batch, "INPUTS", 5)
    made = []
    inner = batch.readings_of
    monkeypatch.setattr(batch, "readings_of", lambda *a, **k: made.append(len(a[0])) or inner(*a, **k))
    apart = session.predict(inputs, words=words)
    assert made == [2, *[5] * 8] and sum(made) == len(inputs)
    for one, other in zip(apart, whole, strict=True):
        if "alike" in one.answers:  # a text of pairs is read once a piece
            assert all(getattr(one.receipt, name) >= getattr(other.receipt, name) for name in PASS)
            one, other = (
                msgspec.structs.replace(some, receipt=msgspec.structs.replace(some.receipt, **dict.fromkeys(PASS, 0)))
                for some in (one, other)
            )
        assert one.receipt == other.receipt and one.skipped == other.skipped
        assert_close(one.answers, other.answers)


def assert_close(one, other):
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_close(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_close(a, b)
    else:
        assert one == (pytest.approx(other, abs=1e-5) if isinstance(one, float) else other)


@pytest.mark.parametrize("name", ["mood", "alike", "reply", "names"])
def test_a_task_that_fails_is_named_and_stops_no_other(session, monkeypatch, name):
    whole = session.predict(INPUTS)
    tiny_project.fail_heads(monkeypatch, name)
    columns = session.columns(INPUTS)
    for one, other in zip(columns.results(), whole, strict=True):
        assert one.answers == {task: answer for task, answer in other.answers.items() if task != name}
        assert one.failed == ({name: "ValueError: no such head"} if name in other.answers else {})
        assert one.skipped == other.skipped
        # of a pair read separately both texts were read to the end, and then could not be compared
        assert name == "alike" or name not in one.receipt.added_flops
    column = columns[name]
    assert len(column.rows) == 0 and set(column.failed) == {
        row for row, result in enumerate(whole) if name in result.answers
    }


def test_where_no_task_has_any_answer_the_failure_is_raised(session, monkeypatch):
    tiny_project.fail_heads(monkeypatch, "mood")
    for ask in (session.predict, session.columns):
        with pytest.raises(ValueError, match="no such head"):
            ask(["good"], tasks=["mood"])
    with pytest.raises(ValueError, match="no such head"):
        session.outputs("mood", [("good",)])
    assert session.predict([("good",)], tasks=["mood", "urgency"])[0].failed.keys() == {"mood"}


def test_a_failure_of_the_trunk_itself_is_raised_and_not_hidden(session, monkeypatch):
    def states(*batches):
        raise BackendError("out of memory")

    monkeypatch.setattr(ReferenceBackend, "_states", states)
    with pytest.raises(BackendError, match="out of memory"):
        session.predict(["good", "bad"])


def test_nothing_runs_for_a_column_that_nobody_knows(session):
    with pytest.raises(UnknownTask):
        session.columns(["good"], tasks=["nothing"])
    assert session.backend.layers_run == 0
    with pytest.raises(UnknownTask, match="'nope'.*Allowed: mood, topics"):
        session.columns([], tasks=["mood", "topics"])["nope"]
    empty = session.columns([])
    assert empty.results() == [] and empty["mood"].scores.shape == (0, 2)


def test_a_passage_is_a_pair_for_tasks_that_read_words_alone(session):
    passage = Passage(question="who is late?", context="ben is late")
    columns = session.columns([passage, ("who is late?", "ben is late")])
    assert columns["who"].answers[0] == columns["who"].answers[1]
    assert columns["same"].rows.tolist() == [1]


def test_kept_pieces_are_ready_one_by_one_while_the_next_are_made():
    """Up to AHEAD are made before they are asked for, in another thread; what fails is raised in its place."""
    import threading

    threads, made = set(), []

    def make(number):
        threads.add(threading.current_thread().name)
        if number == 5:
            raise KeyError(number)
        made.append(number)
        return number * 10

    pieces = batch.ahead(make, range(8))
    assert next(pieces) == 0 and max(made, default=0) <= batch.AHEAD
    assert [next(pieces) for _ in range(4)] == [10, 20, 30, 40]
    with pytest.raises(KeyError, match="5"):
        next(pieces)
    assert threads.isdisjoint({threading.current_thread().name}) and max(made) <= 4 + 1 + batch.AHEAD
    threads.clear()
    assert list(batch.ahead(make, [3])) == [30] and threads == {threading.current_thread().name}
