"""Tasks come and go while a session answers: the others keep their bits, and no call sees half a change."""

import threading

import msgspec
import numpy as np
import pytest

from models import paths_of
from polyhead.bundle import write
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.engine.session import Changes, Session
from polyhead.errors import CorruptFile, UnknownTask, WeightsMismatch, WrongTrunk
from polyhead.plan import Pool
from polyhead.strategy import Pooled, Prompted
from polyhead.testing import tiny_part, tiny_path, tiny_tasks, tiny_trunk
from polyhead.testing.strategies import add_tiny, tiny_bundle, tiny_paths

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
            one.tobytes()
            for one in session.outputs(name, pairs if name == "alike" else [(text,) for text in TEXTS])
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
    assert bits(session, "names", "alike", "topics") == {
        "names": before["names"],
        "alike": before["alike"],
        **topics,
    }
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
    write.write_bundle(root, TRUNK)
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
    write.write_bundle(root.parent / "other", other)
    (root / "bundle.json").write_bytes((root.parent / "other" / "bundle.json").read_bytes())
    with pytest.raises((WrongTrunk, CorruptFile)):
        session.refresh()
    assert set(session.tasks) == {"mood", "names", "alike"}


class Held:
    """The backend's first run waits until it is let go."""

    def __init__(self, session, monkeypatch):
        self.begun, self.free = threading.Event(), threading.Event()
        inner = session.backend.run

        def run(plan, batch):
            self.begun.set()
            assert self.free.wait(SHORT)
            return inner(plan, batch)

        monkeypatch.setattr(session.backend, "run", run)


def in_thread(make):
    """The call, begun in a thread of its own, and a list that will hold what it gives."""
    found = []
    thread = threading.Thread(target=lambda: found.append(make()), daemon=True)
    thread.start()
    return thread, found


def test_a_task_is_attached_while_a_call_runs_and_replaced_only_after_it(root, monkeypatch):
    """The call, of several batches, has the old task in all of them; the next call has the new one."""
    session = opened(root)
    monkeypatch.setattr("polyhead.engine.rows.FIXED_ROWS", 1)  # a batch a text
    old = bits(session, "mood")["mood"]
    held = Held(session, monkeypatch)
    call, found = in_thread(lambda: bits(session, "mood")["mood"])
    assert held.begun.wait(SHORT)
    session.attach(*drawn("topics", 7))  # needs nobody to wait
    assert "topics" in session.tasks
    change, _ = in_thread(lambda: session.attach(*drawn("mood", 9)))
    assert change.is_alive() and not found
    held.free.set()
    for thread in (call, change):
        thread.join(SHORT)
        assert not thread.is_alive()
    assert found == [old]
    assert bits(session, "mood")["mood"] == bits_of_seed(root, 9) != old


def bits_of_seed(root, seed):
    session = opened(root)
    session.attach(*drawn("mood", seed))
    return bits(session, "mood")["mood"]


def test_calls_in_many_threads_see_one_version_each(root):
    """While a task changes again and again, each call's answers are those of one of its versions."""
    session = opened(root)
    known = [bits(session, "mood")["mood"], bits_of_seed(root, 9), bits_of_seed(root, 10)]
    done, seen = threading.Event(), []

    def ask():
        while not done.is_set():
            seen.append(bits(session, "mood")["mood"])

    askers = [threading.Thread(target=ask, daemon=True) for _ in range(3)]
    for thread in askers:
        thread.start()
    for turn in range(20):
        session.attach(*drawn("mood", (9, 10)[turn % 2]))
    done.set()
    for thread in askers:
        thread.join(SHORT)
    assert seen and all(one in known for one in seen)


def test_summaries_and_records_are_those_of_the_moment(root):
    session = opened(root)
    tasks = session.tasks
    session.attach(*drawn("topics", 7))
    assert "topics" not in tasks and np.all([name in session.records for name in ("topics", "mood")])
    assert session.asked(None) == ("mood", "names", "alike", "topics")


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
