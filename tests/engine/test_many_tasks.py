"""Work grows no faster than the tasks: in calls of functions, which a busy machine does not change, and in graphs."""

from functools import cache

import msgspec
import pytest

from benchmarks.silent_growth import calls_of
from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.write import Draft, add_tasks
from polyhead.certify import Requester, remove_from
from polyhead.engine.session import Session
from polyhead.plan import Pool
from polyhead.tasks.task import owner_of
from polyhead.testing import tiny_part, tiny_path, tiny_tasks, tiny_trunk

FEW, MANY, MOST = 24, 96, 6.0  # four times the tasks: n log n gives 4 to 5, n^1.5 gives 8, n^2 gives 16
TEXT = ["where is my order?"]
KINDS = [task for task in tiny_tasks() if task.name in ("mood", "topics")]


def _drafts(count, *, start=0):
    trunk, made = tiny_trunk(), []
    for number in range(start, start + count):
        task = msgspec.structs.replace(KINDS[number % 2], name=f"task{number}")
        owner = owner_of(task)
        pool = Pool(positions="attention", heads=2, part=owner) if number % 3 else Pool()
        path = tiny_path(task, trunk, pool=pool)
        record = TaskRecord(task=task, path=path, trunk=trunk.digest)
        arrays, probes = tiny_part(path, trunk.architecture, owner), [{"text": [f"order {number}"]}]
        made.append(Draft(record=record, arrays=arrays, scores={}, probes=probes, card=""))
    return made


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """The bundle of so many tasks, and the calls of adding them all at once."""

    @cache
    def made(count):
        root = tmp_path_factory.mktemp("many") / "b"
        write_bundle(root, tiny_trunk())
        drafts = _drafts(count)
        return root, calls_of(lambda: add_tasks(root, drafts))

    return made


@pytest.fixture(scope="module")
def session(bundle):
    return cache(lambda count: Session(bundle(count)[0], backend="openvino", precision="float32"))


def _grown(work):
    few, many = work(FEW), work(MANY)
    assert few > 100
    return many / few


def test_adding_tasks(bundle):
    assert _grown(lambda count: bundle(count)[1]) <= MOST


def test_opening_a_bundle(bundle):
    assert _grown(lambda count: calls_of(lambda: Session(bundle(count)[0], backend="reference"))) <= MOST


@pytest.mark.parametrize("turn", ["first", "later"])
def test_asking_all_tasks(session, turn):
    pytest.importorskip("openvino", reason="tasks that share graphs")

    def work(count):
        opened = Session(session(count).bundle, backend="openvino", precision="float32")
        if turn == "later":
            opened.predict(TEXT)
        return calls_of(lambda: opened.predict(TEXT))

    assert _grown(work) <= MOST


def test_a_call_that_asks_ten_tasks_pays_for_ten(session):
    """As many calls of functions, and no more graphs, among four times the tasks."""
    pytest.importorskip("openvino", reason="tasks that share graphs")
    names, calls, graphs = [f"task{number}" for number in range(10)], [], []
    for count in (FEW, MANY):
        opened = session(count)
        opened.predict(TEXT, tasks=names)
        calls.append(calls_of(lambda opened=opened: opened.predict(TEXT, tasks=names)))
        program = opened.backend._loaded.program(opened.plan(names))
        graphs.append(len(program.calls))
    assert calls[1] <= 1.1 * calls[0] and graphs[1] <= graphs[0] + len(KINDS) * 2


def test_one_graph_holds_many_tasks(session):
    """Graphs of a call of all tasks: one for the trunk, and one for 32 tasks of a form at most."""
    pytest.importorskip("openvino", reason="tasks that share graphs")
    opened = session(MANY)
    program = opened.backend._loaded.program(opened.plan(opened.tasks))
    forms = {group.form for group in opened.backend._loaded.arranged.groups}
    assert len(program.calls) <= 1 + len(forms) + MANY // 32


@pytest.mark.slow
def test_taking_a_change_over_and_proving_one(bundle):
    pytest.importorskip("openvino", reason="tasks that share graphs")

    def taken(count):
        root, _ = bundle(count)
        opened = Session(root, backend="openvino", precision="float32")
        add_tasks(root, _drafts(1, start=count))
        refreshed = calls_of(opened.refresh)
        proven = calls_of(lambda: remove_from(root, [f"task{count}"], by=Requester()))
        return refreshed, proven

    few, many = taken(FEW), taken(MANY)
    assert [after / before <= MOST for before, after in zip(few, many, strict=True)] == [True, True], (few, many)
