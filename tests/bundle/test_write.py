import json
import shutil

import msgspec
import numpy as np
import pytest

from formats.write_v1 import golden_part, golden_record, golden_trunk
from polyhead.bundle import files
from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import TaskRecord, read_bundle_file
from polyhead.bundle.read import Bundle
from polyhead.bundle.remove import remove_tasks
from polyhead.bundle.write import Draft, add_tasks
from polyhead.encoder.data import TextSettings, arrays_digest
from polyhead.errors import BadName, BundleError, CorruptFile, PolyheadError, UnknownTask, WeightsMismatch, WrongTrunk
from polyhead.plan import Path as TaskPath
from polyhead.plan import Pool, Prompt, digest
from polyhead.testing import tiny_part, tiny_path, tiny_tasks, tiny_trunk
from support.disk_failures import FullDisk, run_forking
from support.tiers import first_of


def record_named(name, trunk):
    golden = golden_record(trunk)
    task = msgspec.structs.replace(golden.task, name=name)
    head = msgspec.structs.replace(golden.path.head, part=f"task:{name}")
    path = TaskPath(nodes=(*golden.path.nodes[:-1], head))
    return msgspec.structs.replace(golden, task=task, path=path)


def add(bundle, name, *, shift=0.0, **options):
    arrays = {key: array + np.float32(shift) for key, array in golden_part().items()}
    facts = {"scores": {"splits": {}}, "probes": [{"input": [name]}], "card": f"# {name}\n"}
    return bundle.add_task(record_named(name, bundle.digest), arrays, **(facts | options))


@pytest.fixture
def bundle(tmp_path):
    made = write_bundle(tmp_path / "bundle", golden_trunk())
    add(made, "first")
    return Bundle.open(made.root)


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize(("limit", "least"), [(48, 8), (5, 5)])
def test_prompts_that_leave_no_room_for_a_text_are_refused(tmp_path, limit, least):
    """Each text of more tokens failed when it was asked. A trunk that reads no more itself needs no more room."""
    trunk = tiny_trunk()
    trunk = msgspec.structs.replace(trunk, settings=TextSettings(max_tokens=limit))
    bundle, positions = write_bundle(tmp_path / "bundle", trunk), trunk.architecture.max_tokens
    task = tiny_tasks()[0]
    plain = tiny_path(task, trunk, pool=Pool(positions="mean"))

    def add_behind(rows):
        embed = msgspec.structs.replace(plain.embed, prompts=(Prompt(part=plain.head.part, rows=rows),), shift=True)
        path = TaskPath(nodes=(embed, *plain.nodes[1:]))
        arrays = tiny_part(path, trunk.architecture, path.head.part, seed=0)
        record = TaskRecord(task=task, path=path, trunk=trunk.digest)
        bundle.add_task(record, arrays, scores={"splits": {}}, probes=[], card="# task\n")

    for room in (least - 1, 0, -1):
        with pytest.raises(BundleError, match="leave too little room for a text") as raised:
            add_behind(positions - room)
        assert str(positions - room) in raised.value.got and str(positions - least) in raised.value.allowed
    add_behind(positions - least)


def test_written_bundle_gives_back_trunk_and_task(bundle):
    trunk = golden_trunk()
    assert bundle.digest == bundle.trunk().digest == trunk.digest
    assert bundle.trunk().tokenizer == trunk.tokenizer and bundle.trunk_name == "golden"
    assert bundle.architecture == trunk.architecture and bundle.trunk().settings == trunk.settings
    part = bundle.part("first")
    assert set(part) == set(golden_part())
    for name, array in golden_part().items():
        np.testing.assert_array_equal(part[name], array)
    record = bundle.tasks["first"]
    assert record.arrays == arrays_digest(part) and record.prefix == digest(record.path.stored())
    assert record.owner == "task:first" and record.trained_with == {"seed": 0, "epochs": 3}
    assert bundle.card("first") == "# first\n" and bundle.probes("first") == [{"input": ["first"]}]
    bundle.verify()


def test_adding_a_task_touches_one_folder_and_one_line(bundle):
    before = contents(bundle.root)
    assert add(bundle, "second") == "v0001"
    after = contents(bundle.root)
    changed = {name for name in before if before[name] != after[name]}
    new = {name for name in after if name not in before}
    assert changed == {"bundle.json"} and all(name.startswith("tasks/second/v0001/") for name in new)
    old_lines = json.loads(before["bundle.json"])["tasks"]
    new_lines = json.loads(after["bundle.json"])["tasks"]
    assert {**old_lines, "second": new_lines["second"]} == new_lines


def test_open_bundle_is_a_snapshot_and_adding_through_a_stale_one_loses_nothing(bundle):
    stale = Bundle.open(bundle.root)
    add(bundle, "second")
    assert list(stale.tasks) == ["first"]
    add(stale, "third")
    assert list(Bundle.open(bundle.root).tasks) == ["first", "second", "third"]


def test_taken_name_is_refused_unless_replaced_and_then_a_new_version_is_live(bundle):
    with pytest.raises(BadName, match="first"):
        add(bundle, "first")
    assert add(bundle, "first", shift=1, replace=True) == "v0002"
    opened = Bundle.open(bundle.root)
    assert opened.version("first") == "v0002" and opened.versions("first") == ["v0001", "v0002"]
    np.testing.assert_array_equal(
        opened.part("first")["head.output.bias"], golden_part()["head.output.bias"] + np.float32(1)
    )
    np.testing.assert_array_equal(  # the snapshot from before still reads the version of its time
        bundle.part("first")["head.output.bias"], golden_part()["head.output.bias"]
    )


def test_old_version_is_brought_back(bundle):
    before = (bundle.root / "bundle.json").read_bytes()
    add(bundle, "first", shift=1, replace=True)
    bundle.set_version("first", "v0001")
    after = json.loads((bundle.root / "bundle.json").read_bytes())
    assert after["tasks"]["first"].pop("pinned") is True and after == json.loads(before)
    assert add(bundle, "first", shift=2, replace=True) == "v0003"
    with pytest.raises(BundleError, match="v0007"):
        bundle.set_version("first", "v0007")
    with pytest.raises(UnknownTask):
        bundle.set_version("nobody", "v0001")


def test_one_task_is_read_without_a_look_at_the_others(bundle):
    add(bundle, "second")
    (bundle.root / "tasks" / "second" / "v0001" / "task.json").unlink()
    opened = Bundle.open(bundle.root, verify=False)
    assert opened.record("first").task.name == "first" and opened.answers_digest("first")
    with pytest.raises(CorruptFile, match="second"):
        opened.record("second")


def test_removed_task_leaves_the_others_bytes_alone(bundle):
    before = contents(bundle.root)
    add(bundle, "second")
    bundle.remove_task("second")
    assert contents(bundle.root) == before and not (bundle.root / "tasks/second").exists()
    with pytest.raises(UnknownTask, match="first"):
        bundle.remove_task("second")


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "a..b", "x" * 65, "a\n", "ä"])
def test_name_that_is_no_name_is_refused(bundle, name):
    with pytest.raises(BadName):
        add(bundle, name)


def test_name_that_differs_in_case_alone_is_refused(bundle):
    with pytest.raises(BadName, match="case"):
        add(bundle, "First")


def test_part_of_another_trunk_is_refused_and_both_digests_are_named(bundle):
    foreign = record_named("second", "f" * 64)
    with pytest.raises(WrongTrunk) as caught:
        bundle.add_task(foreign, golden_part(), scores={}, probes=[], card="")
    assert "f" * 64 in str(caught.value) and bundle.digest in str(caught.value)


def test_arrays_that_are_not_the_paths_are_refused(bundle):
    record = record_named("second", bundle.digest)
    for arrays in (
        {},
        golden_part() | {"extra": np.zeros(2, np.float32)},
        golden_part() | {"head.output.bias": np.zeros(3, np.float32)},
    ):
        with pytest.raises(WeightsMismatch):
            bundle.add_task(record, arrays, scores={}, probes=[], card="")
    wide = {name: array.astype(np.float64) for name, array in golden_part().items()}
    with pytest.raises(BundleError, match="float32"):
        bundle.add_task(record, wide, scores={}, probes=[], card="")
    assert not (bundle.root / "tasks/second").exists()


@pytest.mark.parametrize(
    "change", [{"prefix": "0" * 64}, {"arrays": "0" * 64}, {"owner": "task:other"}], ids=["prefix", "arrays", "owner"]
)
def test_digest_or_owner_that_does_not_agree_is_refused(bundle, change):
    record = msgspec.structs.replace(record_named("second", bundle.digest), **change)
    with pytest.raises(BundleError, match=next(iter(change))):
        bundle.add_task(record, golden_part(), scores={}, probes=[], card="")


def test_path_that_cannot_be_the_tasks_is_refused(bundle):
    record = record_named("second", bundle.digest)
    embed, layers, pool, head = record.path.nodes
    paths = {
        "not its own": (embed, layers, pool, msgspec.structs.replace(head, part="task:other")),
        "needs the arrays of family 'scorer'": (
            embed,
            layers,
            pool,
            msgspec.structs.replace(head, part="family:scorer"),
        ),
        "deeper": (embed, msgspec.structs.replace(layers, stop=3), pool, head),
        "does not answer": (embed, layers, pool, msgspec.structs.replace(head, width=5)),
    }
    for words, nodes in paths.items():
        wrong = msgspec.structs.replace(record, path=TaskPath(nodes=nodes))
        with pytest.raises(BundleError, match=words):
            bundle.add_task(wrong, golden_part(), scores={}, probes=[], card="")


@pytest.mark.parametrize("probe", [{"input": ["\ud800"]}, {"input": object()}], ids=["surrogate", "object"])
def test_values_that_are_no_json_are_refused_and_nothing_is_left(bundle, probe):
    before = contents(bundle.root)
    with pytest.raises(BundleError, match="JSON cannot hold"):
        add(bundle, "second", probes=[probe])
    assert contents(bundle.root) == before and not (bundle.root / "tasks/second").exists()


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_scores_that_could_not_be_read_again_are_refused_and_nothing_is_left(bundle, number):
    before = contents(bundle.root)
    for scores in (
        {"splits": {"test": {"accuracy": number}}},
        {"baselines": {"constant": {"test": {"accuracy": number}}}},
        {"scale": number},
    ):
        with pytest.raises(BundleError, match=r"could not be read again.*finite numbers"):
            add(bundle, "second", scores=scores)
    assert contents(bundle.root) == before
    add(bundle, "second", scores={"note": number})  # for people, who read null
    assert Bundle.open(bundle.root).split_scores("second") == {}


def test_folder_with_something_in_it_is_refused_and_a_killed_creation_is_finished(tmp_path):
    (tmp_path / "mine/trunk").mkdir(parents=True)
    (tmp_path / "mine/trunk/config.json").write_text("{}")
    with pytest.raises(BundleError, match="is not empty"):
        write_bundle(tmp_path / "mine", golden_trunk())
    assert (tmp_path / "mine/trunk/config.json").exists()
    made = write_bundle(tmp_path / "new", golden_trunk())
    with pytest.raises(BundleError, match="is not empty"):
        write_bundle(tmp_path / "new", golden_trunk())
    (made.root / "bundle.json").unlink()  # as if killed right before the last step
    assert write_bundle(tmp_path / "new", golden_trunk()).digest == golden_trunk().digest


def add_several(bundle):
    """One task replaced and two added, in one step."""
    drafts = [
        Draft(
            record=record_named(name, bundle.digest),
            arrays={key: array + np.float32(i) for key, array in golden_part().items()},
            scores={},
            probes=[],
            card="",
        )
        for i, name in enumerate(("second", "first", "third"))
    ]
    return add_tasks(bundle.root, drafts, replace=True)


CHANGES = {
    "add": lambda bundle: add(bundle, "second"),
    "several": add_several,
    "replace": lambda bundle: add(bundle, "first", shift=1, replace=True),
    "remove": lambda bundle: bundle.remove_task("first"),
}


@pytest.mark.parametrize("change", first_of(CHANGES))
def test_full_disk_at_any_step_leaves_the_bundle_as_it_was(tmp_path, change):
    """Only the flush after the last rename may fail with the change in place; no reader is misled then."""
    failures = 0
    for failing in range(1, 200):
        bundle = write_bundle(tmp_path / str(failing), golden_trunk())
        add(bundle, "first")
        bundle = Bundle.open(bundle.root)
        before = contents(bundle.root)
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
            assert disk.names[disk.failing - 1 :][0] in ("fsync", "rename")
            assert "replace" in disk.names[: disk.failing]
        else:
            assert list(opened.tasks) == ["first"]
            CHANGES[change](opened)  # and room made, the same call works
            Bundle.open(bundle.root).verify()
    assert failures >= {"add": 20, "several": 40, "replace": 20, "remove": 4}[change]


@pytest.mark.slow
def test_full_disk_while_a_bundle_is_created_leaves_a_folder_in_which_it_works_later(tmp_path):
    failures = 0
    for failing in range(1, 200):
        root = tmp_path / str(failing)
        with pytest.MonkeyPatch.context() as patch:
            disk = FullDisk(patch, failing)
            try:
                write_bundle(root, golden_trunk())
            except BundleError as error:
                assert "No space left" in str(error)
        if disk.calls < failing:
            break
        failures += 1
        if not (root / "bundle.json").exists():
            with pytest.raises(PolyheadError, match="no bundle"):
                Bundle.open(root)
            write_bundle(root, golden_trunk())
        Bundle.open(root).verify()
    assert failures >= 40


# Forks a writer for every n, which dies without any cleaning up right before its n-th step.
KILLED = """
import os, sys
from pathlib import Path
from bundle.test_write import CHANGES
from polyhead.testing import tiny_part, tiny_path, tiny_tasks, tiny_trunk
from support.disk_failures import Kill, exit_code
from polyhead.bundle.read import Bundle

root, change, kills, seen = Path(sys.argv[1]), sys.argv[2], 0, set()
before = (root / "bundle.json").read_bytes()
for deadly in range(1, 200):
    if os.fork() == 0:
        Kill(deadly)
        CHANGES[change](Bundle.open(root))
        os._exit(0)
    code = exit_code()
    bundle = Bundle.open(root)
    bundle.verify()
    seen.add((tuple(bundle.tasks), bundle._content.tasks.get("first")))
    if code == 0 or (root / "bundle.json").read_bytes() != before:
        break
    kills += 1
print(kills, len(seen))
"""


@pytest.mark.parametrize("change", first_of(CHANGES))
def test_writer_killed_at_any_step_leaves_the_state_before_or_after(bundle, change):
    printed = run_forking(KILLED, bundle.root, change)
    kills, states = map(int, printed.split())
    assert kills >= {"add": 15, "several": 30, "replace": 15, "remove": 3}[change] and states == 2
    add(bundle, "last")
    assert not list(bundle.root.rglob(".new-*"))  # the next writer has cleaned up


def test_several_tasks_are_added_or_none(bundle):
    before = contents(bundle.root)
    fine, taken = (
        Draft(record=record_named(name, bundle.digest), arrays=golden_part(), scores={}, probes=[], card="")
        for name in ("second", "first")
    )
    for drafts, replace in (([fine, taken], False), ([fine, fine], False), ([fine, fine], True)):
        with pytest.raises(BadName):
            add_tasks(bundle.root, drafts, replace=replace)
    surrogate = msgspec.structs.replace(taken, card="\ud800")  # fails when the second is written
    with pytest.raises(BundleError, match="first"):
        add_tasks(bundle.root, [fine, surrogate], replace=True)
    assert contents(bundle.root) == before and not (bundle.root / "tasks/second").exists()
    assert add_tasks(bundle.root, [fine, taken], replace=True) == {"second": "v0001", "first": "v0002"}
    assert add_tasks(bundle.root, []) == {}
    Bundle.open(bundle.root).verify()


def test_second_writer_is_told_of_the_first(bundle):
    with (
        files.writing_bundle(bundle.root, "x"),
        pytest.raises(BundleError, match="another process has been writing"),
        files.writing_bundle(bundle.root, "y", patience=0),
    ):
        raise AssertionError("two writers at once")


def test_folder_that_cannot_be_written_is_a_bundle_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BundleError, match="cannot be created"):
        write_bundle(tmp_path / "file", golden_trunk())


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"removed": ["../out"]}, BadName),
        ({"removed": [""]}, BadName),
        ({"removed": "first"}, CorruptFile),
        ({"removed": [1]}, CorruptFile),
        ({"pinned": "yes"}, CorruptFile),
        ({"pinned": 1}, CorruptFile),
    ],
    ids=["path", "empty name", "no list", "number", "word", "one"],
)
def test_decisions_that_cannot_be_meant_are_refused(bundle, change, error):
    path = bundle.root / "bundle.json"
    content = json.loads(path.read_text())
    (content["tasks"]["first"] if "pinned" in change else content).update(change)
    path.write_text(json.dumps(content))
    with pytest.raises(error):
        Bundle.open(bundle.root)


def test_names_of_removed_tasks_are_those_that_training_made(bundle):
    """Of what came otherwise nothing is left; a record that cannot be read may have been training's."""
    made = {"fingerprint": "0" * 16, "task": {"name": "first"}}
    for trained_with, removed in ((made, ("first",)), ({**made, "task": {"name": "other"}}, ()), ({}, ())):
        root = bundle.root.with_name(f"copy-{len(removed)}-{len(trained_with)}")
        shutil.copytree(bundle.root, root)
        folder = root / "tasks" / "first" / "v0001"
        record = json.loads((folder / "task.json").read_text())
        (folder / "task.json").write_text(json.dumps(record | {"trained_with": trained_with}))
        remove_tasks(root, ["first"])
        assert read_bundle_file(root).removed == removed
