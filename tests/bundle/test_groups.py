"""Tasks that can only change together: all in one step or none, and families that go with their readers."""

import os
import shutil

import numpy as np
import pytest

from bundle.test_write import contents
from formats.write_v1 import golden_trunk
from polyhead.bundle import versions
from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import read_bundle_file
from polyhead.bundle.read import Bundle
from polyhead.bundle.remove import put_back, remove_tasks, sweep_bundle, unlist
from polyhead.bundle.versions import made_with
from polyhead.bundle.write import add_tasks, set_versions
from polyhead.errors import BundleError, UnknownTask
from support.disk_failures import FullDisk, fsync, run_forking
from support.prompt_groups import ADAPTED, ADAPTERS, GROUP, ROWS, adapters, add, draft, group, make, plain


@pytest.fixture
def bundle(tmp_path):
    return make(tmp_path / "bundle")


def live(root):
    """Owner -> live version."""
    return {owner: line.version for owner, line in read_bundle_file(root).lines.items()}


def replaced(bundle, seed=1):
    """The group and the adapters in new versions."""
    add(bundle.root, group(bundle.digest, seed), replace=True)
    add(bundle.root, adapters(bundle.digest, seed), replace=True)
    return Bundle.open(bundle.root)


def only(made, name):
    """Of drafts and families one draft alone."""
    return [one for one in made[0] if one.record.task.name == name], made[1]


ALONE = {
    "replace a member": lambda b: add(b.root, only(group(b.digest, 2), "glad"), replace=True),
    "a smaller group": lambda b: add(b.root, group(b.digest, 2, GROUP[:2]), replace=True),
    "a member out of the group": lambda b: add_tasks(b.root, [draft("glad", plain("glad", b.digest))], replace=True),
    "remove a member": lambda b: remove_tasks(b.root, ["calm"]),
    "unlist two": lambda b: unlist(b.root, ["calm", "sad"]),
    "roll a member back": lambda b: set_versions(b.root, {"sad": "v0001"}),
}


@pytest.mark.parametrize("name", ALONE)
def test_a_change_of_some_of_a_group_is_refused_and_names_all(bundle, name):
    bundle = replaced(bundle)
    before = contents(bundle.root)
    with pytest.raises(BundleError, match="can only change together") as caught:
        ALONE[name](bundle)
    said = str(caught.value)
    assert "calm, glad, sad" in said and "name all of them in one call: calm glad sad" in said
    assert caught.value.tasks == tuple(sorted(GROUP)) and contents(bundle.root) == before
    Bundle.open(bundle.root).verify()


FAMILY_ALONE = {
    "replace": lambda b: add(b.root, only(adapters(b.digest, 2), "long"), replace=True),
    "roll back": lambda b: set_versions(b.root, {"long": "v0001"}),
}


@pytest.mark.parametrize("name", FAMILY_ALONE)
def test_other_arrays_of_a_family_for_some_of_its_readers_are_refused(bundle, name):
    bundle = replaced(bundle)
    before = contents(bundle.root)
    with pytest.raises(BundleError, match="long, short can only change together") as caught:
        FAMILY_ALONE[name](bundle)
    assert caught.value.tasks == ("long", "short") and contents(bundle.root) == before


def test_a_reader_of_a_family_is_changed_alone_where_the_family_is_not(bundle):
    drafts, _ = adapters(bundle.digest, seed=3, names=("long",))
    assert add_tasks(bundle.root, drafts, replace=True) == {"long": "v0002"}
    assert live(bundle.root)[ADAPTERS] == "v0001"
    set_versions(bundle.root, {"long": "v0001"})
    remove_tasks(bundle.root, ["long"])
    assert ADAPTERS in live(bundle.root)
    Bundle.open(bundle.root).verify()


def test_all_members_are_changed_in_one_step(bundle):
    first = live(bundle.root)
    new = replaced(bundle)
    assert live(bundle.root) == {owner: "v0001" if owner == "task:alone" else "v0002" for owner in first}
    assert new.tasks["sad"].needs["task:glad"] != bundle.tasks["sad"].needs["task:glad"]
    before = contents(bundle.root)
    set_versions(bundle.root, dict.fromkeys(GROUP, "v0001"))
    assert live(bundle.root)[ROWS] == "v0001"  # the family goes back with the tasks that read it
    set_versions(bundle.root, dict.fromkeys((*GROUP, *ADAPTED), "v0001"))
    assert live(bundle.root) == first
    old = Bundle.open(bundle.root)
    old.verify()
    for name in (*GROUP, *ADAPTED):
        for owner, arrays in bundle.others(name).items():
            for array, value in arrays.items():
                np.testing.assert_array_equal(old.others(name)[owner][array], value)
    set_versions(bundle.root, dict.fromkeys((*GROUP, *ADAPTED), "v0002"))
    assert contents(bundle.root) == before
    with pytest.raises(UnknownTask):
        set_versions(bundle.root, {"sad": "v0001", "nobody": "v0001"})


def test_versions_that_were_not_made_together_are_refused(bundle):
    replaced(bundle)
    with pytest.raises(BundleError, match="made together"):
        set_versions(bundle.root, {"sad": "v0001", "glad": "v0002", "calm": "v0001"})


def test_versions_to_go_back_to_are_those_that_were_made_with_the_first(bundle):
    root = bundle.root
    add_tasks(root, [draft("alone", plain("alone", bundle.digest), seed=1)], replace=True)
    for seed in (1, 2):
        replaced(bundle, seed)
    assert made_with(root, GROUP) == dict.fromkeys(GROUP, "v0002")
    assert made_with(root, GROUP, "v0001") == dict.fromkeys(GROUP, "v0001")
    assert made_with(root, ["alone", *GROUP[:1]]) == {"alone": "v0001", GROUP[0]: "v0002"}
    # `glad` has the same arrays in two versions, of which one was made with the others' old ones
    drafts, families = group(bundle.digest, 4)
    same = next(one for one in group(bundle.digest, 2)[0] if one.record.task.name == "glad")
    drafts = [same if one.record.task.name == "glad" else one for one in drafts]
    add_tasks(root, drafts, families=families, replace=True)
    assert made_with(root, ("sad", "glad", "calm")) == {"sad": "v0003", "glad": "v0003", "calm": "v0003"}
    set_versions(root, made_with(root, ("sad", "glad", "calm")))
    set_versions(root, made_with(root, ("calm", "glad", "sad"), "v0004"))
    assert {live(root)[f"task:{name}"] for name in GROUP} == {"v0004"}
    set_versions(root, dict.fromkeys(ADAPTED, "v0001"))
    with pytest.raises(BundleError, match="no version before v0001"):
        made_with(root, ADAPTED)
    with pytest.raises(BundleError, match="made with those chosen of sad"):
        made_with(root, ("sad", "alone", "glad"), "v0002") if _without(root, "glad", "v0002") else None


def _without(root, name, version):
    """Takes an old version away."""
    shutil.rmtree(root / "tasks" / name / version)
    return True


def test_a_family_goes_with_its_last_reader(bundle):
    remove_tasks(bundle.root, ["short"])
    assert ADAPTERS in live(bundle.root) and (bundle.root / "families/adapters").exists()
    remove_tasks(bundle.root, ["long"])
    assert ADAPTERS not in live(bundle.root) and not (bundle.root / "families/adapters").exists()
    remove_tasks(bundle.root, GROUP)
    assert set(live(bundle.root)) == {"task:alone"} and not (bundle.root / "families").exists()


def test_a_family_that_old_versions_need_stays_on_disk_until_they_go(bundle):
    trunk = bundle.digest
    add_tasks(bundle.root, [draft(name, plain(name, trunk)) for name in ADAPTED], replace=True)
    assert ADAPTERS not in live(bundle.root)  # nobody reads it now
    sweep_bundle(bundle.root)
    Bundle.open(bundle.root).verify()
    set_versions(bundle.root, dict.fromkeys(ADAPTED, "v0001"))
    assert live(bundle.root)[ADAPTERS] == "v0001"
    Bundle.open(bundle.root).verify()
    set_versions(bundle.root, dict.fromkeys(ADAPTED, "v0002"))
    remove_tasks(bundle.root, ADAPTED)
    assert not (bundle.root / "families/adapters").exists()


def test_a_version_whose_family_is_gone_is_not_made_live(bundle):
    replaced(bundle)
    (bundle.root / "families/adapters/v0001").rename(bundle.root.parent / "elsewhere")
    with pytest.raises(BundleError, match="no longer on disk"):
        set_versions(bundle.root, dict.fromkeys(ADAPTED, "v0001"))


def test_a_damaged_member_is_mended_by_adding_the_group_again(bundle):
    path = bundle.root / "tasks/glad/v0001/task.json"
    path.write_bytes(path.read_bytes().replace(b'"seed": 0', b'"seed": 9'))
    add_tasks(bundle.root, [draft("other", plain("other", bundle.digest))])  # hinders nobody else
    add(bundle.root, group(bundle.digest), replace=True)
    Bundle.open(bundle.root).verify()
    assert live(bundle.root)["task:glad"] == "v0002"


def test_what_an_operation_did_to_a_group_is_put_back(bundle):
    before, raw = read_bundle_file(bundle.root), (bundle.root / "bundle.json").read_bytes()
    there = {owner: ["v0001"] for owner in before.lines}
    replaced(bundle)
    unlist(bundle.root, ADAPTED)
    add(bundle.root, adapters(bundle.digest, names=("new",), called="family:new"))
    assert put_back(bundle.root, before, read_bundle_file(bundle.root), there) == []
    assert (bundle.root / "bundle.json").read_bytes() == raw
    sweep_bundle(bundle.root)
    assert {p.name for p in (bundle.root / "families").iterdir()} == {"adapters", "prompts+moods"}
    assert [p.name for p in (bundle.root / "families/adapters").iterdir()] == ["v0001"]
    Bundle.open(bundle.root).verify()


def test_putting_back_never_leaves_a_bundle_that_is_not_whole(bundle):
    """Somebody added a reader of the new family meanwhile: what is there stays, and is said."""
    before = read_bundle_file(bundle.root)
    add(bundle.root, adapters(bundle.digest, 1), replace=True)
    after = read_bundle_file(bundle.root)
    add_tasks(bundle.root, adapters(bundle.digest, 1, names=("foreign",))[0])
    now = contents(bundle.root)
    with pytest.raises(BundleError, match="foreign"):
        put_back(bundle.root, before, after, {})
    assert contents(bundle.root) == now


PAIR, ONE = GROUP[:2], ADAPTED[:1]


def regrouped(bundle):
    """The pair and the adapter in new versions, one of the pair on a path of its own and so the group gone."""
    more, families = adapters(bundle.digest, 2, ONE)
    drafts = [draft(name, plain(name, bundle.digest), 2) for name in PAIR]
    add_tasks(bundle.root, [*drafts, *more], families=families, replace=True)


CHANGES = {
    "add": lambda b: add(b.root, group(b.digest, names=("one", "two"), rows="family:prompts:new")),
    "replace": lambda b: add(b.root, group(b.digest, 2, PAIR), replace=True),
    "regroup": regrouped,
    "roll back": lambda b: set_versions(b.root, dict.fromkeys((*PAIR, *ONE), "v0001")),
    "remove": lambda b: remove_tasks(b.root, [*PAIR, *ONE]),
}
STEPS = {"add": 35, "replace": 35, "regroup": 45, "roll back": 3, "remove": 3}


def prepared(root):
    """A bundle of one group and one task with an adapter, each in two versions."""
    trunk = write_bundle(root, golden_trunk()).digest
    for seed in (0, 1):
        add(root, group(trunk, seed, PAIR), replace=True)
        add(root, adapters(trunk, seed, ONE), replace=True)
    return Bundle.open(root)


@pytest.mark.slow
@pytest.mark.parametrize("change", ["regroup", "remove"])
def test_full_disk_at_any_step_leaves_the_group_as_it_was(tmp_path, monkeypatch, change):
    """Only the flush after the last rename may fail with the change in place; no reader is misled then."""
    monkeypatch.setattr(os, "fsync", fsync)
    start, failures = prepared(tmp_path / "start"), 0
    before = contents(start.root)
    for failing in range(1, 300):
        bundle = Bundle.open(shutil.copytree(start.root, tmp_path / str(failing)), verify=False)
        with pytest.MonkeyPatch.context() as patch:
            disk = FullDisk(patch, failing, each=2)
            try:
                CHANGES[change](bundle)
                if disk.calls < failing:
                    break
            except BundleError as error:
                failures += 1
                assert "disk is full" in str(error)
        opened = Bundle.open(bundle.root)
        opened.verify()
        if contents(bundle.root) != before:
            assert "replace" in disk.names[: disk.failing]
        elif failing % 8 == 1:
            CHANGES[change](opened)  # room made, the same call works
            Bundle.open(bundle.root).verify()
    assert failures >= STEPS[change] * 2 // 3


# Forks a writer for every n, which dies without any cleaning up right before its n-th step.
KILLED = """
import os, shutil, sys
from pathlib import Path
from bundle.test_groups import CHANGES
from support.disk_failures import Kill, exit_code, fsync
from polyhead.bundle.read import Bundle

os.fsync = fsync
start, change, kills, seen = Path(sys.argv[1]), sys.argv[2], 0, []
for deadly in range(1, 300):
    root = shutil.copytree(start, start.with_name(str(deadly)))
    if os.fork() == 0:
        Kill(deadly)
        CHANGES[change](Bundle.open(root, verify=False))
        os._exit(0)
    code = exit_code()
    bundle = Bundle.open(root)
    lines = sorted((owner, live.version) for owner, live in bundle._content.lines.items())
    if lines not in seen:
        bundle.verify()
        seen.append(lines)
    shutil.rmtree(root)
    if code == 0:
        break
    kills += 1
print(kills, len(seen))
"""


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_a_writer_killed_at_any_step_leaves_the_whole_group_before_or_after(tmp_path, change):
    prepared(tmp_path / "start")
    kills, states = map(int, run_forking(KILLED, tmp_path / "start", change).split())
    assert kills >= STEPS[change] * 2 // 3 and states == 2


def test_what_a_killed_writer_left_is_removed_by_the_next(bundle, monkeypatch):
    root, before = bundle.root, contents(bundle.root)

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("polyhead.bundle.versions.replace_file", die)
        patch.setattr("polyhead.bundle.versions._undo", lambda *_: None)  # nobody cleans up
        with pytest.raises(KeyboardInterrupt):
            add(root, adapters(bundle.digest, names=("new",), called="family:new"))
    assert (root / "families/new/v0001").exists() and os.path.exists(root / "tasks/new")
    sweep_bundle(root)
    assert contents(root) == before


def test_no_version_has_its_name_before_all_of_the_change_are_written(bundle, monkeypatch):
    """A kill between two tasks left a version that was never live, to which a rollback then went."""
    root, seen = bundle.root, []
    real = versions.temporary_name

    def temporary_name(version):
        seen.append(sorted(str(p.relative_to(root)) for p in root.glob("*/*/v*")))
        return real(version)

    monkeypatch.setattr("polyhead.bundle.versions.temporary_name", temporary_name)
    before = sorted(str(p.relative_to(root)) for p in root.glob("*/*/v*"))
    add(root, adapters(bundle.digest, names=("new", "newer"), called="family:new"))
    assert len(seen) == 3 and all(one == before for one in seen)
    assert len(list(root.glob("*/*/v*"))) == len(before) + 3
