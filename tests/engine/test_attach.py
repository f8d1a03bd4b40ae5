"""Tasks come and go while a session answers: the others keep their bits, and no call sees half a change."""

import gc
import threading
import time
import weakref

import msgspec
import numpy as np
import pytest

from polyhead.bundle import write
from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.engine import request
from polyhead.engine.loaded import LoadedTasks
from polyhead.engine.session import Changes, Session
from polyhead.errors import BackendError, CorruptFile, UnknownTask, WeightsMismatch, WrongTrunk
from polyhead.plan import Pool
from polyhead.project.strategies import Pooled, Prompted
from polyhead.testing import tiny_part, tiny_path, tiny_tasks, tiny_trunk
from polyhead.testing.strategies import add_tiny, tiny_bundle, tiny_paths
from support.models import paths_of
from support.numpy_graphs import NumpyRuntime

TRUNK = tiny_trunk()
TASKS = {task.name: task for task in tiny_tasks()}
PATHS = tiny_paths(Pooled(layers="mean", of=2, positions="attention", heads=2, hidden=8), TRUNK)
TEXTS = ["where is my order?", "the lamp is broken and late", "good", "my bill is 12 . " * 12]
SHORT = 60  # seconds that a test waits for another thread before it fails


@pytest.fixture(params=["torch", "reference", "openvino"])
def backend(request):
    if request.param == "openvino":
        pytest.importorskip("openvino")
    return request.param


@pytest.fixture
def root(tmp_path):
    tiny_bundle(tmp_path / "b", TRUNK, {name: PATHS[name] for name in ("mood", "names", "alike")})
    return tmp_path / "b"


def opened(root, backend="reference"):
    return Session(root, backend=backend, precision="float32", deterministic=True)


def bits(session, *names):
    pairs = [(text, TEXTS[0]) for text in TEXTS]
    return {
        name: [
            one.tobytes() for one in session.outputs(name, pairs if name == "alike" else [(text,) for text in TEXTS])
        ]
        for name in names
    }


def drawn(name, seed, path=None):
    """A record and arrays that the bundle does not hold."""
    path = path or PATHS[name]
    record = TaskRecord(task=TASKS[name], path=path, trunk=TRUNK.digest)
    return record, tiny_part(path, TRUNK.architecture, path.head.part, seed=seed)


def test_tasks_that_come_go_and_are_replaced_leave_the_bits_of_others(root, backend):
    session = opened(root, backend)
    before = bits(session, "mood", "names", "alike")
    session.attach(*drawn("topics", 7))
    low = tiny_path(TASKS["urgency"], TRUNK, pool=Pool(positions="mean"), stop=1)
    session.attach(*drawn("urgency", 8, low))
    assert set(session.tasks) == {"mood", "names", "alike", "topics", "urgency"}
    assert bits(session, "mood", "names", "alike") == before
    (result,) = session.predict(TEXTS[:1])
    assert set(result.answers) == {"mood", "names", "topics", "urgency"} and result.receipt.layers == 2
    topics = bits(session, "topics")
    session.attach(*drawn("mood", 9))
    assert bits(session, "names", "alike", "topics") == {"names": before["names"], "alike": before["alike"], **topics}
    assert bits(session, "mood")["mood"] != before["mood"]
    session.detach("mood")
    session.detach("urgency")
    with pytest.raises(UnknownTask, match="mood"):
        session.predict(TEXTS, tasks=["mood"])
    session.attach(session.bundle.tasks["mood"], session.bundle.part("mood"))
    assert bits(session, "mood", "names", "alike") == before


def test_a_refreshed_session_answers_as_one_that_is_opened_anew(root, backend):
    session = opened(root, backend)
    names = bits(session, "names")
    assert session.refresh() == Changes()
    add_tiny(root, TRUNK, TASKS["topics"], PATHS["topics"], seed=7)
    add_tiny(root, TRUNK, TASKS["mood"], PATHS["mood"], seed=9, replace=True)
    Bundle.open(root).remove_task("alike")
    assert session.refresh() == Changes(attached=("topics",), replaced=("mood",), detached=("alike",))
    fresh = opened(root, backend)
    assert bits(session, "mood", "names", "topics") == bits(fresh, "mood", "names", "topics")
    assert bits(session, "names") == names and "alike" not in session.tasks
    assert session.bundle.version("mood") == "v0002" and session.refresh() == Changes()


def group(seed):
    """Two tasks whose prompts stand before the text together: each reads the other's."""
    drafts = []
    for shift, (name, path) in enumerate(paths_of(TRUNK, Prompted(), "mood", "topics").items()):
        arrays = tiny_part(path, TRUNK.architecture, path.head.part, seed=seed + shift)
        record = TaskRecord(task=TASKS[name], path=path, trunk=TRUNK.digest)
        drafts.append(write.Draft(record=record, arrays=arrays, scores={}, probes=[], card=""))
    return drafts


def test_a_prompt_group_is_replaced_as_one(tmp_path, backend):
    root = tmp_path / "b"
    write_bundle(root, TRUNK)
    write.add_tasks(root, group(1))
    session = opened(root, backend)
    before = bits(session, "mood", "topics")
    add_tiny(root, TRUNK, TASKS["names"], PATHS["names"], seed=3)
    assert session.refresh().attached == ("names",)
    assert bits(session, "mood", "topics") == before
    write.add_tasks(root, group(5), replace=True)
    assert session.refresh().replaced == ("mood", "topics")
    assert bits(session, "mood", "topics") == bits(opened(root, backend), "mood", "topics") != before


@pytest.mark.parametrize("behind", [False, True], ids=["waited for", "behind"])
def test_what_cannot_be_read_changes_nothing_and_is_said(root, behind):
    session = opened(root)
    before = bits(session, "mood", "names")
    add_tiny(root, TRUNK, TASKS["mood"], PATHS["mood"], seed=9, replace=True)
    add_tiny(root, TRUNK, TASKS["topics"], PATHS["topics"], seed=7)
    part = root / "tasks" / "topics" / "v0001" / "part.safetensors"
    whole = part.read_bytes()
    part.write_bytes(whole[:-4] + b"\0\0\0\1")
    with pytest.raises(CorruptFile):
        session.refresh_behind().result(SHORT) if behind else session.refresh()
    assert "topics" not in session.tasks and bits(session, "mood", "names") == before
    part.write_bytes(whole)
    assert session.refresh_behind().result(SHORT).replaced == ("mood",)


def test_a_task_of_another_trunk_or_with_other_arrays_is_refused(root):
    session = opened(root)
    record, arrays = drawn("topics", 7)
    with pytest.raises(WrongTrunk, match="topics"):
        session.attach(msgspec.structs.replace(record, trunk="0" * 64), arrays)
    with pytest.raises(WeightsMismatch, match="topics"):
        session.attach(record, dict(list(arrays.items())[1:]))
    with pytest.raises(UnknownTask, match="nobody"):
        session.detach("nobody")
    other = tiny_trunk(seed=1)
    write_bundle(root.parent / "other", other)
    (root / "bundle.json").write_bytes((root.parent / "other" / "bundle.json").read_bytes())
    with pytest.raises((WrongTrunk, CorruptFile)):
        session.refresh()
    assert set(session.tasks) == {"mood", "names", "alike"}


class Held:
    """The next call waits after its first batch until it is let go; calls after it do not."""

    def __init__(self, monkeypatch):
        self.begun, self.free = threading.Event(), threading.Event()
        inner = request.batched

        def batched(*given, **settings):
            first, *rest = inner(*given, **settings)
            yield first
            if not self.begun.is_set():
                self.begun.set()
                assert self.free.wait(SHORT)
            yield from rest

        monkeypatch.setattr(request, "batched", batched)


def in_thread(make):
    """The call, begun in a thread of its own, and a list that will hold what it gives."""
    found = []
    thread = threading.Thread(target=lambda: found.append(make()), daemon=True)
    thread.start()
    return thread, found


def ended(begun):
    """What a call in a thread gives, which needs nobody else to go on."""
    thread, found = begun
    thread.join(SHORT)
    assert not thread.is_alive() and found
    return found[0]


def bits_of_seed(root, seed, backend="reference"):
    session = opened(root, backend)
    session.attach(*drawn("mood", seed))
    return bits(session, "mood")["mood"]


def test_neither_a_change_nor_any_other_call_waits_for_a_call_that_runs(root, backend, monkeypatch):
    """A replacement waited for running calls and all later calls for it, with a deadline or without.

    The call that runs has the old tasks in all its batches.
    """
    monkeypatch.setattr("polyhead.engine.batch.FIXED_ROWS", 1)  # a batch a text
    new = bits_of_seed(root, 9, backend)
    session = opened(root, backend)
    old = bits(session, "mood", "names")
    held = Held(monkeypatch)
    running = in_thread(lambda: session.outputs("mood", [(text,) for text in TEXTS]))
    assert held.begun.wait(SHORT)
    ended(in_thread(lambda: session.attach(*drawn("mood", 9))))
    ended(in_thread(lambda: session.detach("names")))
    ended(in_thread(lambda: session.refresh()))
    (result, *_) = ended(in_thread(lambda: session.predict(TEXTS, deadline=1e9)))
    assert set(result.answers) == {"mood"} and not result.late
    assert ended(in_thread(lambda: bits(session, "mood")))["mood"] == new != old["mood"]
    assert running[0].is_alive()
    held.free.set()
    assert [one.tobytes() for one in ended(running)] == old["mood"]


def test_calls_go_on_while_the_task_that_replaces_another_is_compiled(root):
    """Graphs were compiled where no call was let in."""
    runtime = NumpyRuntime()
    session = Session(root, backend=runtime, deterministic=True)
    old, compiling, inner = bits(session, "mood"), threading.Event(), runtime.compile

    def compiled(*given, **settings):
        compiling.set()
        return inner(*given, **settings)

    runtime.compile = compiled
    runtime.wait.clear()
    change = in_thread(lambda: session.attach(*drawn("mood", 9)))
    assert compiling.wait(SHORT)
    assert ended(in_thread(lambda: bits(session, "mood"))) == old
    assert change[0].is_alive()
    runtime.wait.set()
    ended(change)
    assert bits(session, "mood") != old


def test_outputs_are_given_where_their_task_goes_while_they_are_asked(root, monkeypatch):
    """It was looked up before the call and once more in it, where it was a KeyError."""
    session, inner = opened(root), LoadedTasks.task_names
    old, inputs = bits(session, "mood")["mood"], [(text,) for text in TEXTS]

    def task_names(self, tasks):
        names = inner(self, tasks)
        monkeypatch.setattr(LoadedTasks, "task_names", inner)
        session.detach("mood")
        return names

    monkeypatch.setattr(LoadedTasks, "task_names", task_names)
    assert [one.tobytes() for one in session.outputs("mood", inputs)] == old
    with pytest.raises(UnknownTask, match="mood"):
        session.outputs("mood", inputs)


def test_outputs_of_a_call_are_given_where_a_task_goes_meanwhile(root, monkeypatch):
    session, inner = opened(root), request.Gathered
    inputs = [(text,) for text in TEXTS]
    old = bits(session, "mood")["mood"]

    def gathered(*given, **settings):
        monkeypatch.setattr(request, "Gathered", inner)
        session.detach("mood")
        return inner(*given, **settings)

    monkeypatch.setattr(request, "Gathered", gathered)
    found = session.columns(inputs, tasks=["mood", "names"])
    assert [one.tobytes() for one in found["mood"].outputs] == old
    with pytest.raises(UnknownTask, match="mood"):
        session.columns(inputs, tasks=["mood", "names"])


def test_layers_of_a_call_that_began_before_a_change_are_counted(root, backend):
    session = opened(root, backend)
    stream = session.stream(TEXTS[:1], tasks=["mood"])
    session.attach(*drawn("mood", 9))
    assert [early.task for early in stream] == ["mood"]
    assert session.backend.layers_run == 2
    session.predict(TEXTS[:1], tasks=["mood"])
    assert session.backend.layers_run == 4


def of_mood(backend):
    """The compiled graphs that the task has a part in, weakly."""
    known = backend._graphs._known.values()
    return [weakref.ref(one.compiled) for one in known if one.compiled and "mood" in one.recipe.label]


def test_nothing_that_a_call_gave_keeps_the_graphs_of_tasks_that_were_replaced(root):
    session = Session(root, backend=NumpyRuntime(), precision="float32")
    columns, stream, open_stream = session.columns(TEXTS), session.stream(TEXTS), session.stream(TEXTS)
    assert next(open_stream) and list(stream)
    old = of_mood(session.backend)
    session.attach(*drawn("mood", 9))
    gc.collect()
    assert old and all(one() is not None for one in old), "a stream that has not ended needs them"
    del open_stream
    gc.collect()
    assert [one() for one in old] == [None] * len(old)
    assert columns.results() and stream.columns().results()


def test_a_refresh_that_is_given_up_says_nothing_on_standard_error(root, monkeypatch):
    """Its thread failed with InvalidStateError, and Python printed that."""
    session, free, said = opened(root), threading.Event(), []
    monkeypatch.setattr(threading, "excepthook", said.append)
    inner = session.refresh

    def refresh():
        assert free.wait(SHORT)
        return inner()

    monkeypatch.setattr(session, "refresh", refresh)
    before = set(threading.enumerate())
    done = session.refresh_behind()
    (thread,) = set(threading.enumerate()) - before or {None}
    given_up = done.cancel()
    free.set()
    if thread is not None:
        thread.join(SHORT)
    assert not said
    assert given_up or done.result(SHORT) == Changes()


def test_calls_in_many_threads_see_one_version_each(root, backend):
    """While a task changes again and again, each call's answers are those of one of its versions, and each is met."""
    session = opened(root, backend)
    known = [bits(session, "mood")["mood"]]
    for seed in (9, 10):
        session.attach(*drawn("mood", seed))
        known.append(bits(session, "mood")["mood"])
    done, seen, failures = threading.Event(), [], []

    def ask():
        try:
            while not done.is_set():
                seen.append(bits(session, "mood")["mood"])
        except Exception as error:
            failures.append(error)

    askers = [threading.Thread(target=ask, daemon=True) for _ in range(3)]
    for thread in askers:
        thread.start()
    for turn in range(8):
        session.attach(*drawn("mood", (9, 10)[turn % 2]))
        enough, until = len(seen) + len(askers) + 1, time.monotonic() + SHORT
        while len(seen) < enough and not failures and time.monotonic() < until:
            time.sleep(0.001)  # of so many answers one began after the change
    done.set()
    for thread in askers:
        thread.join(SHORT)
    assert not failures, failures
    assert all(one in known for one in seen) and all(one in seen for one in known[1:])


def test_summaries_and_records_are_those_of_the_moment(root):
    session = opened(root)
    tasks = session.tasks
    session.attach(*drawn("topics", 7))
    assert "topics" not in tasks and np.all([name in session.records for name in ("topics", "mood")])
    assert session.task_names(None) == ("mood", "names", "alike", "topics")


def test_arrays_that_a_caller_changed_stay_as_they_are(root, backend):
    """A copy on write of the bundle's file: memory that the session gives back is of its own arrays alone."""
    session, bundle, inputs = opened(root, backend), Bundle.open(root), [(text,) for text in TEXTS]
    before, arrays = np.stack(session.outputs("mood", inputs)), bundle.part("mood")
    arrays["head.output.bias"] += 1
    changed = arrays["head.output.bias"].copy()
    session.attach(bundle.tasks["mood"], arrays)
    for _ in range(2):
        np.testing.assert_allclose(np.stack(session.outputs("mood", inputs)), before + 1, atol=1e-5)
    np.testing.assert_array_equal(arrays["head.output.bias"], changed)


def test_a_task_that_brings_other_arrays_of_what_it_shares_is_refused(tmp_path, backend):
    """Without a word all others of the group read the arrays of the one that came last."""
    root = tmp_path / "b"
    write_bundle(root, TRUNK)
    write.add_tasks(root, group(1))
    session = opened(root, backend)
    before = bits(session, "mood", "topics")
    mood, topics = group(5)
    with pytest.raises(BackendError, match="other arrays of 'task:.*' than the tasks that share it"):
        session.attach(mood.record, mood.arrays, others={"task:topics": topics.arrays})
    assert bits(session, "mood", "topics") == before


def test_tasks_of_another_precision_than_the_first_ones_are_told(root, caplog):
    session, (record, arrays) = Session(root, backend="reference"), drawn("topics", 7)
    session.attach(msgspec.structs.replace(record, trained_with={"numerics": {"precision": "bfloat16"}}), arrays)
    assert "topics: trained on a trunk in bfloat16, and this session computes in float32" in caplog.text
    caplog.clear()
    Session(root, backend="reference", precision="float32").attach(
        msgspec.structs.replace(record, trained_with={"numerics": {"precision": "bfloat16"}}), arrays
    )
    assert not caplog.text
