"""A command that is repeated since it was stopped does once what it was asked for; one that cannot write says so."""

import json
import shutil

import pytest

from engine.test_isolation import BY_NAME, add, make, tree
from polyhead import files
from polyhead.bundle.journal import StartedOperation, finish, start_operation
from polyhead.bundle.manifest import Live
from polyhead.bundle.read import Bundle
from support.commands import run
from support.disk_failures import run_forking
from support.outside_files import listed

# Forks the command for every n, which dies without any cleaning up right before its n-th step on the disk; then it is
# repeated. Prints, for each n, the versions that are live and that are there.
KILLED = """
import os, shutil, sys
for name in ("torch", "openvino", "onnxruntime"):
    sys.modules[name] = None
from pathlib import Path
from support.disk_failures import Kill, exit_code, fsync
from support.commands import run
from polyhead.bundle.read import Bundle

base, words, folder = Path(sys.argv[1]), sys.argv[3:], Path(sys.argv[2])
root, states, code, deadly = folder / "bundle", [], 9, 0
os.fsync = fsync
while code == 9:
    deadly += 1
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(base, root)
    if os.fork() == 0:
        Kill(deadly)
        run("tasks", *words)
        os._exit(0)
    code = exit_code()
    middle = Bundle.open(root).version(words[-1])
    if code == 9:
        assert run("tasks", *words).code == 0
    after = Bundle.open(root)
    assert not (root / ".begun.json").exists()
    states.append(f"{middle}>{after.version(words[-1])}/{len(after.versions(words[-1]))}")
print(" ".join(dict.fromkeys(states)), len(states))
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Four versions of `mood`, the third of them live, beside another task."""
    made = make(tmp_path_factory.mktemp("repeated") / "base", "mood", "topics")
    for seed in (11, 12, 13):
        add(made, BY_NAME["mood"], seed=seed, replace=True)
    Bundle.open(made).set_version("mood", "v0003")
    return made


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return make(tmp_path_factory.mktemp("repeated") / "source", "mood", seed=40)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["rollback", "update"])
def test_a_command_repeated_after_a_kill_at_any_step_acts_once(root, source, tmp_path, verb):
    """After a kill past the commit a rollback went back by two versions, and an update made two new ones."""
    words = (verb, tmp_path / "bundle", *([source] if verb == "update" else []), "mood")
    *states, count = run_forking(KILLED, root, tmp_path, *words).split()
    goal = "v0002/4" if verb == "rollback" else "v0005/5"
    assert states[0] == f"v0003>{goal}" and states[-1] == f"{goal[:5]}>{goal}", states
    # A kill between the names of versions and the list leaves one that was never live.
    orphan = {"v0003>v0006/6"} if verb == "update" else set()
    assert set(states) - orphan == {f"v0003>{goal}", f"{goal[:5]}>{goal}"} and int(count) >= 4


def stopped_after_the_change(monkeypatch, *words):
    """The command, stopped when it would say that it is done."""

    def stop(*given, **named):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("polyhead.cli.tasks.end", stop)
        assert run("tasks", *words).code == 130


def test_a_repeated_rollback_says_so_and_the_next_goes_on(root, tmp_path, monkeypatch):
    name, bundle = "mood", shutil.copytree(root, tmp_path / "bundle")
    stopped_after_the_change(monkeypatch, "rollback", bundle, name)
    done = run("tasks", "rollback", bundle, name)
    assert done.code == 0 and f"rolled back {name}: v0003 -> v0002" in done.out
    assert "so it was not done again" in done.out
    done = run("tasks", "rollback", bundle, name)
    assert f"rolled back {name}: v0002 -> v0001" in done.out and "not done again" not in done.out
    assert len(list((bundle / "certificates").glob("*.json"))) in (2, 3)


def test_another_command_is_not_taken_for_the_one_that_was_stopped(root, tmp_path, monkeypatch):
    bundle = shutil.copytree(root, tmp_path / "bundle")
    stopped_after_the_change(monkeypatch, "rollback", bundle, "mood")
    done = run("tasks", "rollback", bundle, "mood", "v0004")
    assert "rolled back mood: v0002 -> v0004" in done.out and "not done again" not in done.out
    done = run("tasks", "rollback", bundle, "mood")
    assert "rolled back mood: v0004 -> v0003" in done.out


def test_what_was_changed_since_the_stop_is_not_taken_for_done(root, tmp_path, monkeypatch):
    bundle = shutil.copytree(root, tmp_path / "bundle")
    stopped_after_the_change(monkeypatch, "rollback", bundle, "mood")
    Bundle.open(bundle).set_version("mood", "v0004")
    assert "rolled back mood: v0004 -> v0003" in run("tasks", "rollback", bundle, "mood").out


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"operation": 1}', b"\xff", b"[" * 5000])
def test_a_damaged_note_of_what_was_begun_is_in_nobodys_way(root, tmp_path, content):
    bundle = shutil.copytree(root, tmp_path / "bundle")
    (bundle / ".begun.json").write_bytes(content)
    assert "v0003 -> v0002" in run("tasks", "rollback", bundle, "mood").out
    assert not (bundle / ".begun.json").exists()


def test_a_command_that_fails_leaves_no_note(root, tmp_path):
    bundle = shutil.copytree(root, tmp_path / "bundle")
    before = listed(bundle, but=[bundle / "certificates", bundle / ".lock"])
    run("tasks", "rollback", bundle, "mood", "v0009").refuses("no version v0009")
    assert listed(bundle, but=[bundle / "certificates", bundle / ".lock"]) == before


def test_only_what_was_begun_is_forgotten(root, tmp_path):
    bundle, line = shutil.copytree(root, tmp_path / "bundle"), {"a": Live(version="v0002", record="x")}
    first = start_operation(bundle, "rollback", ["a"], lines=line, wanted=lambda: {"a": "v0001"})
    other = start_operation(bundle, "rollback", ["b"], lines=line, wanted=lambda: {"a": "v0001"})
    finish(bundle, first)
    assert json.loads((bundle / ".begun.json").read_text())["arguments"] == ["b"]
    finish(bundle, other)
    assert not (bundle / ".begun.json").exists()


@pytest.mark.parametrize(
    ("before", "wanted", "live", "is_done"),
    [
        ("v0002", "v0001", "v0001", True),
        ("v0002", "v0001", "v0002", False),
        ("v0002", "v0001", "v0003", False),
        ("v0002", "v0002", "v0002", False),  # it was to change nothing
        ("v0002", "v0001", None, False),
    ],
)
def test_done_is_what_is_live_now_and_was_not(before, wanted, live, is_done):
    begun = StartedOperation(
        operation="rollback", arguments=("a",), before={"a": Live(version=before, record="x")}, wanted={"a": wanted}
    )
    assert begun.is_done({"a": Live(version=live, record="x")} if live else {}) is is_done


# bundles that may not be written


@pytest.mark.parametrize("verb", ["remove", "rollback", "update", "add"])
def test_a_bundle_that_may_not_be_written_is_not_said_to_be_changed(root, source, tmp_path, monkeypatch, verb):
    """`remove` said that what was changed is live, though nothing was."""
    bundle = shutil.copytree(root, tmp_path / "bundle")
    before = tree(bundle)

    def refused(path, mode="r", *rest, **named):
        if "x" in mode:
            raise PermissionError(13, "Permission denied", str(path))
        return open(path, mode, *rest, **named)

    words = {
        "remove": (bundle, "topics"),
        "rollback": (bundle, "mood"),
        "update": (bundle, source, "mood"),
        "add": (bundle, source, "mood", "--as", "mood=other"),
    }
    monkeypatch.setattr(files, "open", refused, raising=False)
    done = run("tasks", verb, *words[verb])
    monkeypatch.undo()
    done.refuses("Permission denied", "permissions")
    assert "is live" not in done.err and "could not be put back" not in done.err
    assert tree(bundle) == before
