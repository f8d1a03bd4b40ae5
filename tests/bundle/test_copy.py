"""Tasks that move: copied under another name, taken out of bundle.json and swept away, put back."""

import json
import shutil

import msgspec
import numpy as np
import pytest

from bundle.test_write import add, contents
from formats.write_v1 import golden_trunk
from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import Live, TaskRecord, read_bundle_file, renamed
from polyhead.bundle.read import Bundle
from polyhead.bundle.remove import put_back, sweep_bundle, unlist
from polyhead.bundle.versions import on_disk
from polyhead.bundle.write import set_versions
from polyhead.engine.session import Session
from polyhead.errors import BadName, BundleError, CorruptFile, UnknownTask
from polyhead.plan import Delta, Embed, Head, Layers, Pool, Prompt, owners_of
from polyhead.plan import Path as TaskPath
from polyhead.tasks.kinds import kind_of
from polyhead.testing import tiny_part, tiny_path, tiny_tasks, tiny_trunk
from polyhead.testing.strategies import inputs_for
from support.tiers import first_of


@pytest.fixture
def bundle(tmp_path):
    made = write_bundle(tmp_path / "bundle", golden_trunk())
    for name in ("first", "second", "third"):
        add(made, name)
    return Bundle.open(made.root)


def lines(root):
    return json.loads((root / "bundle.json").read_text())["tasks"]


def paths(task, trunk):
    """A pooled path, and one with layers of the task's own."""
    yield tiny_path(task, trunk, pool=Pool(layers="learned", positions="attention", part="task:x"))
    if not kind_of(task).per_word:
        embed, _, _, head = tiny_path(task, trunk, pool=Pool()).nodes
        own = Layers(start=0, stop=2, weights=f"task:{task.name}")
        yield TaskPath(nodes=(embed, own, Pool(), head))


@pytest.mark.parametrize("task", first_of(tiny_tasks()), ids=lambda task: task.name)
def test_task_under_another_name_answers_with_the_same_bits(tmp_path, task):
    trunk = tiny_trunk()
    for number, path in enumerate(paths(task, trunk)):
        arrays = tiny_part(path, trunk.architecture, f"task:{task.name}")
        record = TaskRecord(task=task, path=path, trunk=trunk.digest, trained_with={"seed": 3})
        bundle = write_bundle(tmp_path / str(number), trunk)
        bundle.add_task(record, arrays, scores={}, probes=[], card="")
        first = Bundle.open(bundle.root)
        again = renamed(first.tasks[task.name], {f"task:{task.name}": "task:another"})
        assert set(owners_of(again.path)) <= {"trunk", "task:another"}
        bundle.add_task(again, first.part(task.name), scores={}, probes=[], card="")
        session = Session(bundle.root, deterministic=True)
        one, other = (session.outputs(name, inputs_for(task)) for name in (task.name, "another"))
        assert one and [a.tobytes() for a in one] == [a.tobytes() for a in other]
        made = session.records["another"]
        assert (made.arrays, made.trained_with) == (first.tasks[task.name].arrays, {"seed": 3})


def test_owner_is_changed_wherever_a_path_names_it():
    owner = "task:first"
    nodes = (
        Embed(trunk="0" * 64, prompts=(Prompt(part=owner, rows=2),)),
        Layers(start=0, stop=1),
        Layers(start=1, stop=2, weights=owner, delta=Delta(kind="low_rank", part=owner, size=2)),
        Pool(positions="attention", part=owner),
        Head(kind="single_label", width=2, part=owner),
    )
    record = TaskRecord(task=tiny_tasks()[0], path=TaskPath(nodes=nodes), trunk="0" * 64, owner=owner)
    record = msgspec.structs.replace(record, task=msgspec.structs.replace(record.task, name="first"))
    found = renamed(record, {owner: "task:second"})
    assert list(owners_of(found.path)) == [
        "trunk", "task:second", "trunk", "task:second", "task:second", "task:second", "task:second",
    ]  # fmt: skip
    assert renamed(found, {"task:second": owner}).path == record.path
    assert (found.owner, found.task.name) == ("task:second", "second") and found.prefix != record.prefix
    with pytest.raises(BadName):
        renamed(record, {owner: "task:../second"})


def test_view_shares_the_trunk_and_shows_the_chosen_lines(bundle):
    bundle.trunk()
    some = bundle.view({"second": bundle.lines["second"]})
    assert list(some.tasks) == ["second"] and some.trunk() is bundle.trunk()
    assert list(bundle.tasks) == ["first", "second", "third"]
    with pytest.raises(UnknownTask):
        some.part("first")
    add(bundle, "second", shift=1, replace=True)
    opened = Bundle.open(bundle.root)
    old = opened.view({"second": bundle.lines["second"]})
    difference = opened.part("second")["head.output.bias"] - old.part("second")["head.output.bias"]
    np.testing.assert_allclose(difference, 1)


def test_touched_names_every_file_that_was_changed_once(bundle):
    assert list(bundle.touched()) == []
    changed = ["trunk/weights.safetensors", "tasks/first/v0001/scores.json", "tasks/third/v0001/part.safetensors"]
    for name in changed:
        raw = bytearray((bundle.root / name).read_bytes())
        raw[-2] ^= 1
        (bundle.root / name).write_bytes(bytes(raw))
    (bundle.root / "tasks/second/v0001/task.json").unlink()
    found = [str(error.path.relative_to(bundle.root)) for error in Bundle.open(bundle.root, verify=False).touched()]
    # a part and a trunk's weights have two digests, of the file and of the arrays in it
    assert list(dict.fromkeys(found)) == [*changed[:2], "tasks/second/v0001/task.json", changed[2]]
    tasks = list(Bundle.open(bundle.root, verify=False).touched_tasks())
    assert {error.path.parent.parent.name for error in tasks} == {"first", "second", "third"}
    with pytest.raises(CorruptFile, match=r"weights\.safetensors"):
        Bundle.open(bundle.root, verify=False).verify()


def test_unlisted_tasks_keep_their_folders_until_they_are_swept(bundle):
    before = contents(bundle.root)
    unlist(bundle.root, ["first", "third"])
    assert list(Bundle.open(bundle.root).tasks) == ["second"]
    assert set(contents(bundle.root)) == set(before)
    sweep_bundle(bundle.root)
    assert {path.name for path in (bundle.root / "tasks").iterdir()} == {"second"}
    with pytest.raises(UnknownTask):
        unlist(bundle.root, ["second", "first"])
    assert list(Bundle.open(bundle.root).tasks) == ["second"]


def test_sweeping_leaves_what_is_no_task_of_ours(bundle, tmp_path):
    (bundle.root / "tasks/notes").mkdir()
    (bundle.root / "tasks/notes/mine.txt").write_text("kept")
    (bundle.root / "tasks/README.md").write_text("kept")
    shutil.copytree(bundle.root / "tasks/first", tmp_path / "elsewhere")
    (bundle.root / "tasks/link").symlink_to(tmp_path / "elsewhere")
    before = contents(bundle.root)
    sweep_bundle(bundle.root)
    assert contents(bundle.root) == before and (tmp_path / "elsewhere/v0001/task.json").exists()


def test_put_back_undoes_adding_replacing_and_unlisting(bundle):
    before, raw = read_bundle_file(bundle.root), (bundle.root / "bundle.json").read_bytes()
    there = {owner: on_disk(bundle.root, owner) for owner in before.lines}
    add(bundle, "fourth")
    add(bundle, "second", shift=1, replace=True)
    unlist(bundle.root, ["first"])
    assert put_back(bundle.root, before, read_bundle_file(bundle.root), there) == []
    assert (bundle.root / "bundle.json").read_bytes() == raw
    opened = Bundle.open(bundle.root)
    opened.verify()
    assert opened.versions("second") == ["v0001"]


def test_put_back_keeps_what_another_writer_changed_after(bundle):
    before = read_bundle_file(bundle.root)
    there = {owner: on_disk(bundle.root, owner) for owner in before.lines}
    add(bundle, "second", shift=1, replace=True)
    after = read_bundle_file(bundle.root)
    add(bundle, "foreign")
    add(bundle, "third", shift=1, replace=True)
    put_back(bundle.root, before, after, there)
    opened = Bundle.open(bundle.root)
    assert {name: opened.version(name) for name in opened.tasks} == {
        "first": "v0001",
        "second": "v0001",
        "third": "v0002",
        "foreign": "v0001",
    }
    opened.verify()


def test_version_whose_folder_is_gone_is_not_put_back(bundle):
    before = read_bundle_file(bundle.root)
    bundle.remove_task("second")
    unlist(bundle.root, ["third"])
    assert put_back(bundle.root, before, read_bundle_file(bundle.root), {}) == ["second"]
    assert list(lines(bundle.root)) == ["first", "third"]


def test_version_that_was_edited_is_not_made_live_where_its_record_is_known(bundle):
    record = bundle.lines["second"].record
    add(bundle, "second", shift=1, replace=True)
    file = bundle.root / "tasks/second/v0001/task.json"
    file.write_bytes(file.read_bytes().replace(b'"epochs": 3', b'"epochs": 4'))
    with pytest.raises(CorruptFile, match=r"task\.json"):
        set_versions(bundle.root, {"second": "v0001"}, records={"second": record})
    assert Bundle.open(bundle.root).version("second") == "v0002"
    with pytest.raises(BundleError, match="v0009"):
        set_versions(bundle.root, {"second": "v0009"}, records={"second": record})


def test_removing_the_last_task_leaves_no_empty_folder(tmp_path):
    bundle = write_bundle(tmp_path / "b", golden_trunk())
    before = contents(bundle.root)
    add(bundle, "only")
    unlist(bundle.root, ["only"])
    sweep_bundle(bundle.root)
    assert contents(bundle.root) == before and not (bundle.root / "tasks").exists()


def test_line_of_a_version_that_is_not_there_is_refused(bundle):
    view = bundle.view({"first": Live(version="v0042", record="0" * 64)})
    with pytest.raises(CorruptFile, match="v0042"):
        view.part("first")
