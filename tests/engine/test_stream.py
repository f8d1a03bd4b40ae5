"""Early answers: what needs few layers comes first, nothing more runs for it, and nothing is begun after a deadline."""

import msgspec
import numpy as np
import pytest

from polyhead.bundle.create import write_bundle
from polyhead.engine import batch, request
from polyhead.engine.backends.reference import ReferenceBackend
from polyhead.engine.session import Session
from polyhead.plan import Pool, cost
from polyhead.testing import tiny_path, tiny_tasks, tiny_trunk
from polyhead.testing.strategies import add_tiny
from support import tiny_project

TASKS = {task.name: task for task in tiny_tasks()}
DEPTHS = {"urgency": 3, "mood": 1, "topics": 4}  # layers of four
TEXTS = ["where is my order?", "the lamp is broken and late", "good"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    trunk, folder = tiny_trunk(layers=4), tmp_path_factory.mktemp("stream") / "b"
    write_bundle(folder, trunk)
    for seed, (name, stop) in enumerate(DEPTHS.items()):
        path = tiny_path(TASKS[name], trunk, pool=Pool(positions="mean"), stop=stop)
        add_tiny(folder, trunk, TASKS[name], path, seed=seed)
    for seed, name in enumerate(("names", "alike", "reply", "who"), 3):
        task = TASKS[name]
        if name == "names":
            task = msgspec.structs.replace(task, long_texts="windows")
        add_tiny(folder, trunk, task, tiny_path(task, trunk, pool=Pool()), seed=seed)
    return folder


@pytest.fixture(params=["reference", "openvino", "torch"])
def session(root, request):
    if request.param != "reference":
        pytest.importorskip(request.param)
    return Session(root, backend=request.param, precision="float32")


def test_what_needs_the_fewest_layers_comes_first_and_no_layer_above_it_has_run(session):
    stream = session.stream(TEXTS, tasks=list(DEPTHS))
    seen = []
    for early in stream:
        assert session.backend.layers_run == DEPTHS[early.task] == 4 - early.layers_left
        assert sorted(early.answers) == [0, 1, 2]
        seen.append(early.task)
    assert seen == ["mood", "urgency", "topics"]


def test_a_stream_gives_each_answer_of_a_call_once(session, monkeypatch):
    """Also of tasks that read windows, halves of pairs and options, over several pieces and batches."""
    from polyhead.testing.strategies import TEXTS as FORMS

    monkeypatch.setattr(batch, "FIRST", 3)
    monkeypatch.setattr(batch, "INPUTS", 4)
    monkeypatch.setattr("polyhead.engine.batch.TOKEN_BUDGET", 40)
    inputs = [*FORMS, ("the kettle was late . " * 30,), ("good",), ("  ",)]
    wanted, found = session.predict(inputs), [{} for _ in inputs]
    stream = session.stream(inputs)
    for early in stream:
        for row, answer in early.answers.items():
            assert early.task not in found[row]
            found[row][early.task] = answer
    for row, result in enumerate(wanted):
        assert found[row].keys() == result.answers.keys()
        if "mood" in found[row]:
            numbers = [one["mood"]["scores"]["good"] for one in (found[row], result.answers)]
            assert numbers[0] == pytest.approx(numbers[1], abs=1e-5)
    assert [one.receipt for one in stream.columns().results()] == [one.receipt for one in wanted]


def test_columns_may_be_asked_at_any_time_and_have_all_that_was_given(session, monkeypatch):
    """Over several pieces, with texts that nobody reads among them; asking changes nothing of what follows."""
    monkeypatch.setattr(batch, "FIRST", 3)
    monkeypatch.setattr(batch, "INPUTS", 3)
    texts = [*TEXTS, "", *TEXTS, "  ", *TEXTS]
    wanted, seen = session.predict(texts, tasks=list(DEPTHS)), {name: set() for name in DEPTHS}
    stream = session.stream(texts, tasks=list(DEPTHS))
    for early in stream:
        seen[early.task] |= set(early.answers)
        columns = stream.columns()
        for task, rows in seen.items():
            assert set(columns[task].rows.tolist()) == rows
            assert set(columns[task].late) == set(range(len(texts))) - rows - {3, 7}
        read = set().union(*seen.values())
        assert {row for row, passes in enumerate(columns.receipts.passes) if passes} == read
    found = stream.columns().results()
    assert [one.receipt for one in found] == [one.receipt for one in wanted]
    assert [one.answers.keys() for one in found] == [one.answers.keys() for one in wanted]
    assert [one.skipped for one in found] == [one.skipped for one in wanted]


def test_receipts_in_mid_stream_say_the_layers_that_have_run(session):
    stream = session.stream(TEXTS, tasks=list(DEPTHS))
    for early in stream:
        assert stream.columns().receipts.layers.tolist() == [DEPTHS[early.task]] * len(TEXTS)


def test_a_pass_that_nothing_came_of_is_in_no_receipt(root, monkeypatch):
    session = Session(root, backend="reference")

    def broken(self, plan, batch):
        raise ValueError("no memory")
        yield

    monkeypatch.setattr(ReferenceBackend, "stages", broken)
    stream = session.stream(TEXTS, tasks=["mood"])
    assert list(stream) == []
    columns = stream.columns()
    assert set(columns["mood"].failed) == {0, 1, 2}
    assert columns.receipts.passes.tolist() == columns.receipts.tokens.tolist() == [0, 0, 0]


def test_a_deadline_that_has_passed_tokenizes_nothing(session, monkeypatch):
    monkeypatch.setattr(session.tokenizer, "encodings", lambda *given, **named: pytest.fail("it was read"))
    results = session.predict(TEXTS, tasks=["mood"], deadline=0)
    assert [result.late for result in results] == [("mood",)] * 3


class Clock:
    """Time passes with the layers that run."""

    def __init__(self, session):
        self.session = session

    def __call__(self):
        return float(self.session.backend.layers_run)


@pytest.mark.parametrize("deadline", [1.5, 2.5])
def test_after_the_deadline_nothing_further_is_begun_and_the_late_tasks_are_named(session, monkeypatch, deadline):
    """The second and third layer are one stage, which was begun before; the fourth never is."""
    monkeypatch.setattr(request, "monotonic", Clock(session))
    (result,) = session.predict(TEXTS[:1], tasks=list(DEPTHS), deadline=deadline)
    assert session.backend.layers_run == 3
    assert set(result.answers) == {"mood", "urgency"} and result.late == ("topics",)
    assert result.receipt.layers == 3 and set(result.receipt.added_flops) == {"mood", "urgency"}
    assert not result.failed and not result.skipped


def test_a_task_that_fails_before_the_deadline_hides_none_that_is_late(root, monkeypatch):
    session = Session(root, backend="reference")
    tiny_project.fail_heads(monkeypatch, "mood")
    monkeypatch.setattr(request, "monotonic", Clock(session))
    for result in session.predict(TEXTS, tasks=list(DEPTHS), deadline=1):
        assert result.failed == {"mood": "ValueError: no such head"} and result.late == ("urgency", "topics")
    with pytest.raises(ValueError, match="no such head"):  # nothing is late, and nothing is answered
        session.predict(TEXTS, tasks=["mood"])


def test_a_stream_ends_at_the_deadline_and_says_what_is_late(session, monkeypatch):
    monkeypatch.setattr(request, "monotonic", Clock(session))
    stream = session.stream(TEXTS, tasks=list(DEPTHS), deadline=1)
    assert [early.task for early in stream] == ["mood"]
    assert session.backend.layers_run == 1
    columns = stream.columns()
    assert columns["mood"].late == () and columns["topics"].late == columns["urgency"].late == (0, 1, 2)
    assert columns.receipts.layers.tolist() == [1, 1, 1]


def test_batches_after_the_deadline_are_not_read_at_all(session, monkeypatch):
    monkeypatch.setattr(request, "monotonic", Clock(session))
    monkeypatch.setattr("polyhead.engine.batch.TOKEN_BUDGET", 1)  # a batch a text, the longest first
    results = session.predict(TEXTS, tasks=["topics"], deadline=1)
    assert [result.late for result in results] == [("topics",), (), ("topics",)]
    assert [result.receipt.passes for result in results] == [0, 1, 0]
    assert session.backend.layers_run == 4


def test_a_deadline_that_is_far_changes_nothing(session):
    texts = [*TEXTS, ("a", "b")]
    far, never = session.predict(texts, deadline=1e9), session.predict(texts)
    for one, other in zip(far, never, strict=True):
        assert one.receipt == other.receipt and one.answers.keys() == other.answers.keys() and not one.late


def test_a_task_that_fails_in_a_stream_is_named_and_the_others_come(root, monkeypatch):
    session = Session(root, backend="reference")
    tiny_project.fail_heads(monkeypatch, "urgency")
    stream = session.stream(TEXTS, tasks=list(DEPTHS))
    assert [early.task for early in stream] == ["mood", "topics"]
    assert set(stream.columns()["urgency"].failed.values()) == {"ValueError: no such head"}


def test_what_fails_again_and_again_is_not_run_twice_each_time(root, monkeypatch):
    session, runs = Session(root, backend="reference"), []
    run = ReferenceBackend.run
    monkeypatch.setattr(ReferenceBackend, "run", lambda *given: runs.append(given) or run(*given))
    with pytest.MonkeyPatch.context() as broken:
        tiny_project.fail_heads(broken, "urgency")
        for _ in range(3):
            (result, *_) = session.predict(TEXTS, tasks=list(DEPTHS))
            assert set(result.failed) == {"urgency"} and set(result.answers) == {"mood", "topics"}
        assert len(runs) == 1
        session.predict(TEXTS, tasks=["mood", "topics"])
        assert len(runs) == 2  # other tasks are not in question
        for _ in range(2):
            with pytest.raises(ValueError, match="no such head"):
                session.predict(TEXTS, tasks=["urgency"])
        assert len(runs) == 3
    for count in (3, 4):  # once in stages, which find that nothing fails any more
        assert not session.predict(TEXTS, tasks=list(DEPTHS))[0].failed and len(runs) == count


def test_a_stream_answers_as_it_began_where_its_tasks_are_replaced_and_removed_meanwhile(session):
    before = session.predict(TEXTS)
    stream = session.stream(TEXTS, tasks=list(DEPTHS))
    assert next(stream).task == "mood"
    changed = {name: array + 1 for name, array in session.bundle.part("topics").items()}
    session.attach(session.records["topics"], changed)
    session.detach("urgency")
    found = {early.task: early.answers for early in stream}
    assert list(found) == ["urgency", "topics"]
    for row, result in enumerate(before):
        assert {name: answers[row] for name, answers in found.items()} == {name: result.answers[name] for name in found}
    after = session.predict(TEXTS)
    assert after[0].answers["topics"] != before[0].answers["topics"] and "urgency" not in after[0].answers


def test_layers_that_are_left_are_those_that_the_plan_counts(session):
    tasks = [*DEPTHS, "names"]
    whole = cost.layer_evaluations(session.plan(tasks))
    early = next(session.stream(TEXTS[:1], tasks=tasks))
    assert whole - early.layers_left == session.backend.layers_run == np.int64(1)
