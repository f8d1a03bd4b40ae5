"""Texts of pairs read separately: each is read once, with what else reads it; and every pair is answered as alone."""

import msgspec
import numpy as np
import pytest

from polyhead.bundle.create import write_bundle
from polyhead.engine.backends.reference import ReferenceBackend
from polyhead.engine.session import Session
from polyhead.plan import Pool
from polyhead.testing import tiny_path, tiny_tasks, tiny_trunk
from polyhead.testing.strategies import add_tiny

TRUNK = tiny_trunk()
TASKS = {task.name: task for task in tiny_tasks()}
LONG = "please refund the broken lamp , my phone is good and ben is happy . " * 6  # 90 tokens of 48
A, B, LONE, EMPTY = "where is my order?", "the lamp is broken and late", "ben \ud800 is late", " "
MIXED = [
    (A,),
    (A, B),
    (LONG, A),
    ("good",),
    (LONG,),
    (B, LONG),
    (EMPTY,),
    (A, EMPTY),
    (B, B),
    (LONE, "anna"),
    (A, B),
    (A,),
    ("anna", LONE),
]
WORDS = [np.array([[0, 5], [6, 8]], np.int32) if given == (A,) else None for given in MIXED]
ALONE = ("mood", "topics", "names")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Single texts cut, in windows and word by word; a joined pair; two tasks over pairs read apart, of two depths."""
    folder = tmp_path_factory.mktemp("pairs") / "bundle"
    write_bundle(folder, TRUNK)
    windows = {name: msgspec.structs.replace(TASKS[name], long_texts="windows") for name in ("topics", "names")}
    low = msgspec.structs.replace(TASKS["alike"], name="low")
    tasks = [TASKS["mood"], *windows.values(), TASKS["same"], TASKS["alike"], low]
    for seed, task in enumerate(tasks):
        stop = 1 if task.name in ("low", "mood") else 2
        add_tiny(folder, TRUNK, task, tiny_path(task, TRUNK, pool=Pool(positions="mean"), stop=stop), seed=seed)
    return folder


@pytest.fixture
def session(root):
    return Session(root, backend="reference")


def rows_read(session, monkeypatch):
    """The texts of every batch that is run from now on, decoded."""
    kind, found = type(session.backend), []
    inner = kind.run

    def run(self, plan, batch):
        for ids, mask in zip(batch.ids, batch.mask, strict=True):
            found.append(tuple(ids[mask].tolist()))
        return inner(self, plan, batch)

    monkeypatch.setattr(kind, "run", run)
    return found


def encoded(session, *texts):
    return sorted(tuple(one.ids.tolist()) for one in session.tokenizer.encode([(text,) for text in texts]))


@pytest.mark.parametrize(
    ("inputs", "tasks", "texts"),
    [
        ([(A, B), (B, A), (A, A), (B, B), (A,), (B,)], (*ALONE, "alike", "low"), [A, B]),
        ([(A, B), (B, A), (A, A), (B, B)], (*ALONE, "alike", "low"), [A, B]),
        ([(A,), (A, B), (B,), (B, A)], ("alike",), [A, B]),
        ([(A,), (A, "good"), (B,), (A, B), (A,)], ("mood", "alike"), [A, A, B, "good"]),
        ([(A,), (A, B)], ("mood", "same"), [A]),
    ],
    ids=["with the texts alone", "pairs alone", "texts that nothing reads", "some in common", "joined"],
)
def test_each_text_of_pairs_is_read_once(session, monkeypatch, inputs, tasks, texts):
    wanted = encoded(session, *texts)
    if "same" in tasks:
        wanted += [tuple(one.ids.tolist()) for one in session.tokenizer.encode([(A, B)])]
    read = rows_read(session, monkeypatch)
    results = session.predict(inputs, tasks=tasks)
    assert sorted(read) == sorted(wanted)
    assert sum(one.receipt.passes for one in results) == len(read)
    assert sum(one.receipt.tokens for one in results) == sum(map(len, read))
    for given, result in zip(inputs, results, strict=True):
        assert set(result.answers) == {
            name for name in tasks if (session.tasks[name].pair == "none") == (len(given) == 1)
        }


def test_what_one_more_task_over_pairs_of_read_texts_runs_is_nothing(session):
    texts = [(A,), ("good",), (B,)]
    session.predict(texts, tasks=ALONE)
    before = session.backend.layers_run
    pairs = [(A, B), ("good", A), (B, "good")]
    results = session.predict([*texts, *pairs], tasks=[*ALONE, "alike", "low"])
    assert session.backend.layers_run == 2 * before == 4
    assert [(one.receipt.passes, one.receipt.layers) for one in results] == [(1, 2)] * 3 + [(0, 0)] * 3


def test_texts_that_no_pair_holds_are_not_read_for_pairs(session):
    """A deeper pair task runs its layers over the texts that it reads, and over no other."""
    tasks = ("mood", "alike")  # of one layer, and of two
    results = session.predict([(A,), ("good",), (B,), (A, B)], tasks=tasks)
    assert [one.receipt.layers for one in results] == [2, 1, 2, 0]


@pytest.mark.parametrize("backend", ["reference", "torch"])
@pytest.mark.parametrize("deterministic", [True, False])
def test_answers_in_one_call_are_those_of_a_call_for_each(root, backend, deterministic):
    """Long texts, windows, given words, an empty text, equal texts in a pair: to the bit in deterministic mode."""
    session = Session(root, backend=backend, deterministic=deterministic)
    columns = session.columns(MIXED, words=WORDS)
    answered = 0
    for row, (given, words) in enumerate(zip(MIXED, WORDS, strict=True)):
        alone = session.columns([given], words=[words])
        for name, column in columns.tasks.items():
            (place,) = np.nonzero(column.rows == row)
            assert len(place) == len(alone[name].rows)
            assert (row in column.skipped) == (0 in alone[name].skipped)
            if len(place):
                answered += 1
                one, other = column.outputs[place[0]], alone[name].outputs[0]
                if deterministic:
                    assert one.tobytes() == other.tobytes(), (name, row)
                np.testing.assert_allclose(one, other, atol=1e-5)
    assert answered == 4 * 3 + 7 * 3  # texts and pairs, by three tasks each
    assert not any(column.failed or column.late for column in columns.tasks.values())


def test_a_text_is_counted_for_the_input_that_it_is_else_for_the_first_pair(session):
    results = [one.receipt for one in session.predict(MIXED, words=WORDS)]
    alone = [session.predict([given])[0].receipt for given in MIXED]
    apart = ("alike", "low")
    joined = [session.predict([given], tasks=["same"])[0].receipt for given in MIXED]
    size = {text: len(session.tokenizer.encode([(text,)])[0].ids) for given in MIXED for text in given}
    counted = {1: [B], 9: [LONE, "anna"]}  # A and LONG are inputs, and the other pairs hold B, LONE and "anna" again
    for row, given in enumerate(MIXED):
        one, other = results[row], alone[row]
        assert (one.cut, one.windows, one.repaired) == (other.cut, other.windows, other.repaired), row
        assert one.added_flops == other.added_flops
        if len(given) == 2 and given[1] != EMPTY:
            mine = counted.get(row, [])
            assert one.passes == joined[row].passes + len(mine)
            assert one.layers == joined[row].layers + 2 * len(mine)
            assert one.tokens == joined[row].tokens + sum(size[text] for text in mine)
            assert set(apart) <= set(one.added_flops)
        else:
            assert (one.passes, one.layers, one.tokens) == (other.passes, other.layers, other.tokens)
    assert alone[2].cut > joined[2].cut > 0 and results[12].repaired == 1


def test_a_task_over_pairs_that_fails_is_named_for_the_pairs_and_stops_no_other(session, monkeypatch):
    """Its features fail, over texts that others read too."""
    whole, inner = session.predict(MIXED), ReferenceBackend._pooled

    def pooled(self, task, *given):
        if task == "alike":
            raise ValueError("no such pooler")
        return inner(self, task, *given)

    monkeypatch.setattr(ReferenceBackend, "_pooled", pooled)
    for one, other in zip(session.predict(MIXED), whole, strict=True):
        assert one.answers == {name: answer for name, answer in other.answers.items() if name != "alike"}
        assert one.failed == ({"alike": "ValueError: no such pooler"} if "alike" in other.answers else {})
        assert one.skipped == other.skipped and "alike" not in one.receipt.added_flops
        assert (one.receipt.passes, one.receipt.cut) == (other.receipt.passes, other.receipt.cut)


def test_pairs_of_one_call_that_could_not_be_compared_are_named_in_a_stream(session, monkeypatch):
    whole, compared = session.predict(MIXED), ReferenceBackend.compared

    def failing(self, task, first, second):
        if task == "low":
            raise ValueError("no such head")
        return compared(self, task, first, second)

    monkeypatch.setattr(ReferenceBackend, "compared", failing)
    stream = session.stream(MIXED)
    early = [(one.task, row) for one in stream for row in one.answers]
    assert len(set(early)) == len(early)
    assert set(early) == {(name, row) for row, one in enumerate(whole) for name in one.answers if name != "low"}
    failed = stream.columns()["low"].failed
    assert set(failed) == {row for row, one in enumerate(whole) if "low" in one.answers}


def test_pairs_of_which_one_text_is_late_are_late(session, monkeypatch):
    """A batch a text, the longest first; one batch is two layers."""
    from polyhead.engine import request

    monkeypatch.setattr("polyhead.engine.batch.TOKEN_BUDGET", 1)
    monkeypatch.setattr(request, "monotonic", lambda: float(session.backend.layers_run))
    inputs = [(LONG, B), (LONG, "good"), (B, LONG)]
    results = session.predict(inputs, tasks=["alike"], deadline=3)
    assert [one.late for one in results] == [(), ("alike",), ()]
    assert [one.receipt.passes for one in results] == [2, 0, 0]
    assert all(one.receipt.cut > 0 and "alike" in one.receipt.added_flops for one in results)
