"""A session after a fork: calls say so at once, where they waited for threads that the other process has."""

import json

import pytest

from polyhead.engine.backends import is_installed
from polyhead.engine.backends.base import ForkGuard
from polyhead.errors import BackendError
from support.disk_failures import run_forking

# The parent opens a session on each backend and answers; each child makes every call, and tells how it ends.
FORKED = """
import json, os, signal, sys, tempfile
from pathlib import Path
from polyhead.engine.session import Session
from polyhead.errors import PolyheadError
from polyhead.plan import Pool
from polyhead.testing import tiny_path, tiny_tasks, tiny_trunk
from polyhead.testing.strategies import tiny_bundle

trunk, task, folder = tiny_trunk(), tiny_tasks()[0], Path(tempfile.mkdtemp())
bundle = tiny_bundle(folder / "b", trunk, {"mood": tiny_path(task, trunk, pool=Pool(positions="mean"))})
if "torch" in sys.argv:
    import torch
    torch.set_num_threads(2)

def ends(call):
    signal.alarm(20)  # a call that hangs ends the child
    try:
        call()
    except PolyheadError as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:
        return f"raw {type(error).__name__}"
    return "answered"

def in_child(calls):
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, json.dumps([ends(call) for call in calls]).encode())
        os._exit(0)
    os.close(write)
    found = os.read(read, 100_000)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0, "hangs"
    return json.loads(found)

told = {}
for name in sys.argv[1:]:
    session = Session(bundle, backend=name, precision="float32")
    before = session.predict(["the lamp is late"] * 40)[0].answers
    begun = session.stream(["the lamp is late"])
    told[name] = in_child([
        lambda: session.predict(["good"]), lambda: session.columns(["good"]), lambda: session.stream(["good"]),
        lambda: session.outputs("mood", [("good",)]), lambda: next(begun),
        lambda: session.attach(session.bundle.tasks["mood"], bundle.part("mood")), lambda: session.detach("mood"),
        session.refresh, lambda: session.refresh_behind().result(), lambda: session.tasks,
    ])
    assert session.predict(["the lamp is late"] * 40)[0].answers == before  # the parent answers on
    new = lambda: Session(bundle, backend=name, precision="float32").predict(["good"])
    told[f"{name}, opened anew"] = in_child([new])
    if name == "torch":
        told["torch, opened anew on one thread"] = in_child([lambda: torch.set_num_threads(1), new])
print(json.dumps(told))
"""


@pytest.mark.slow
def test_every_call_of_a_session_that_was_opened_before_a_fork_says_so_at_once():
    """The torch backend waited for ever; so did a new session of it, of which torch's threads were gone."""
    names = [name for name in ("reference", "torch", "openvino", "onnxruntime") if is_installed(name)]
    names = ["reference", *[name for name in names if name != "reference"]]
    told = json.loads(run_forking(FORKED, *names))
    assert told.pop("reference") == ["answered"] * 10  # numpy alone: nothing is lost
    for name in names[1:]:
        assert len(told[name]) == 10
        for said in told[name]:
            assert said.startswith("BackendError: a session that was opened before a fork"), (name, said)
            assert "Got: " in said and "Allowed: " in said and "Do: " in said
        if name != "torch":
            assert told[f"{name}, opened anew"] == ["answered"]
    if "torch" in names:
        assert "torch.set_num_threads(1)" in told["torch, opened anew"][0]
        assert told["torch, opened anew on one thread"] == ["answered", "answered"]


def test_threads_are_missed_only_where_there_were_any(monkeypatch):
    hooks = []
    monkeypatch.setattr("os.register_at_fork", lambda *, after_in_child: hooks.append(after_in_child))
    single, several = ForkGuard(), ForkGuard()
    single.use(1)
    assert not hooks  # one thread computes in the caller's own
    several.use(2)
    several.use(2)
    assert len(hooks) == 1
    hooks[0]()
    several.use(1)
    with pytest.raises(BackendError, match="one thread"):
        several.use(2)
    single.use(2)
