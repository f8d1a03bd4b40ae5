"""Merging: nothing is lost in any order, the common prefix is run once, and what cannot be merged is refused."""

import hashlib
import itertools
import json
import shutil

import msgspec
import numpy as np
import pytest

from bundle.test_write import contents
from polyhead import files
from polyhead.bundle.atomic import BUILDING
from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.merge import copy_tasks, merge_bundles
from polyhead.bundle.read import Bundle
from polyhead.bundle.remove import sweep_bundle
from polyhead.bundle.write import add_tasks
from polyhead.engine.session import Session
from polyhead.errors import BadName, BundleError, CorruptFile, UnknownTask, WrongTrunk
from polyhead.folders import MARKER, claim
from polyhead.plan import LEAST_READ, Embed, Head, Layers, Pool, Prompt
from polyhead.plan import Path as TaskPath
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.testing import tiny_trunk
from polyhead.testing.tiny import tiny_part
from support.disk_failures import FullDisk, run_forking
from support.writing_bundles import tiny_draft

DEPTH = 4
TRUNK = tiny_trunk(layers=DEPTH)
TEXTS = [("where is my order 12?",), ("thank you anna",), ("the lamp was late and broken " * 4,), ("sad",)]
# Names of which each is the beginning of the next; tap and private layers of each.
TASKS = {
    "a": (Task(name="a", kind="single_label", labels=("bad", "good")), 1, 2),
    "a-b": (Task(name="a-b", kind="regression", range=(0.0, 1.0)), 3, 1),
    "a-b.c": (Task(name="a-b.c", kind="tagging", labels=("O", "x")), 0, 2),
    "a-b.cd": (Task(name="a-b.cd", kind="multi_label", labels=("p", "q", "r")), DEPTH, 0),
}
LAYERS_APART = sum(tap + own for _, tap, own in TASKS.values())
LAYERS_MERGED = DEPTH + sum(own for _, _, own in TASKS.values())


def path_of(task, tap, own, trunk):
    """The trunk up to the tap, layers of the task's own, a pooler and a head."""
    owner = f"task:{task.name}"
    shared = [Layers(start=0, stop=tap)] if tap else []
    private = [Layers(start=tap, stop=tap + own, weights=owner)] if own else []
    pool = Pool(positions="tokens" if kind_of(task).per_word else "first")
    head = Head(kind=task.kind, width=kind_of(task).width(task), part=owner, hidden=8)
    return TaskPath(nodes=(Embed(trunk=trunk), *shared, *private, pool, head))


def add(bundle, task, tap, own, *, shift=0, replace=False):
    """A task with arrays of a seed that its name gives."""
    path = path_of(task, tap, own, bundle.digest)
    seed = int.from_bytes(hashlib.sha256(task.name.encode()).digest()[:4]) + shift
    return bundle.add_task(
        TaskRecord(task=task, path=path, trunk=bundle.digest, trained_with={"seed": seed}),
        tiny_part(path, bundle.architecture, f"task:{task.name}", seed=seed),
        scores={"splits": {"test": {"accuracy": 0.5}}},
        probes=[{"text": list(text)} for text in TEXTS],
        card=f"# {task.name}\n",
        replace=replace,
    )


def single(root, name, *, trunk=TRUNK, called=None):
    """A bundle of one of the tasks, under its own name or another."""
    task, tap, own = TASKS[name]
    add(write_bundle(root, trunk), msgspec.structs.replace(task, name=called or name), tap, own)
    return Bundle.open(root)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A bundle for each task; tests leave them as they are."""
    folder = tmp_path_factory.mktemp("alone")
    return {name: single(folder / name, name) for name in TASKS}


@pytest.fixture
def two(alone):
    return [alone["a"], alone["a-b"]]


def files_of(bundle):
    """Every file but the lock, and bundle.json without the order of its tasks."""
    found = contents(bundle.root)
    found.pop(".lock", None)
    return found | {"bundle.json": json.loads(found["bundle.json"])}


def answers(bundle, backend):
    """The bits of each task's outputs on the texts, answered together with all others."""
    session = Session(bundle, backend=backend, deterministic=True)
    together = session.predict(TEXTS)
    return {
        name: ([array.tobytes() for array in session.outputs(name, TEXTS)], [one.answers[name] for one in together])
        for name in session.records
    }


def by_twos(folder, bundles):
    """Merged two at a time, each time the merged one with the next."""
    merged = bundles[0]
    for place, other in enumerate(bundles[1:]):
        merged = merge_bundles(folder / str(place), [merged, other])
    return merged


def one_by_one(folder, bundles):
    """Copied one after the other into a bundle that had none of them."""
    target = write_bundle(folder / "made", TRUNK)
    for bundle in bundles:
        (name,) = bundle.tasks
        assert copy_tasks(bundle, [name], target) == {name: "v0001"}
    return Bundle.open(target.root)


ORDERS = {
    "at once": (4, lambda folder, bundles: merge_bundles(folder / "made", bundles)),
    "by twos": (3, by_twos),
    "one by one": (3, one_by_one),
}


@pytest.mark.slow
@pytest.mark.parametrize(("count", "way"), ORDERS.values(), ids=ORDERS)
def test_nothing_is_lost_in_any_order(alone, tmp_path, count, way):
    """24 or 6 orders: the same files but for the order of names, and each task's bits those of its own bundle."""
    chosen = {name: alone[name] for name in list(alone)[-count:]}
    before = {name: contents(bundle.root) for name, bundle in chosen.items()}
    expected = {name: answers(bundle, "torch")[name] for name, bundle in chosen.items()}
    trees = []
    for place, order in enumerate(itertools.permutations(chosen)):
        merged = way(tmp_path / str(place), [chosen[name] for name in order])
        merged.verify()
        assert list(merged.tasks) == list(order)
        trees.append(files_of(merged))
        assert answers(merged, "torch") == expected
    assert len(trees) == {4: 24, 3: 6}[count] and all(tree == trees[0] for tree in trees)
    assert {name: contents(bundle.root) for name, bundle in chosen.items()} == before
    for name, bundle in chosen.items():
        for file, raw in files_of(bundle).items():
            assert file == "bundle.json" or trees[0][file] == raw, (name, file)


def test_the_reference_backend_too_gives_the_bits_of_the_bundles_apart(alone, tmp_path):
    merged = merge_bundles(tmp_path / "made", list(alone.values()))
    expected = {name: answers(bundle, "reference")[name] for name, bundle in alone.items()}
    assert answers(merged, "reference") == expected


def test_the_common_prefix_is_run_once(alone, tmp_path):
    """Wei et al. (2021): D + sum l_i layers in place of sum (k_i + l_i)."""
    merged = merge_bundles(tmp_path / "made", list(alone.values()))

    def layers(bundle):
        return Session(bundle, backend="reference").predict(TEXTS[:1])[0].receipt.layers

    assert LAYERS_MERGED == 9 and LAYERS_APART == 13
    assert layers(merged) == LAYERS_MERGED
    assert sum(map(layers, alone.values())) == LAYERS_APART


def test_chosen_tasks_alone_are_merged(alone, tmp_path):
    all_of_them = merge_bundles(tmp_path / "all", list(alone.values()))
    extra = single(tmp_path / "extra", "a", called="z")
    made = merge_bundles(tmp_path / "some", [all_of_them, extra], tasks={0: ["a-b.c", "a", "a"]})
    assert list(made.tasks) == ["a-b.c", "a", "z"]
    assert sorted(path.name for path in (made.root / "tasks").iterdir()) == ["a", "a-b.c", "z"]
    made.verify()
    with pytest.raises(UnknownTask, match="a-b.cx") as caught:
        merge_bundles(tmp_path / "none", [all_of_them], tasks={0: ["a-b.cx"]})
    assert str(all_of_them.root) in str(caught.value)
    with pytest.raises(BundleError, match="not there"):
        merge_bundles(tmp_path / "none", [all_of_them], tasks={1: ["a"]})


@pytest.mark.parametrize("learned", [0, 1])
def test_the_lineage_of_the_trunk_is_kept_whichever_bundle_has_it(tmp_path, learned):
    """A merged bundle did not say any more that its trunk was learned, and from what."""
    sources = [single(tmp_path / name, name) for name in ("a", "a-b")]
    (sources[learned].root / "trunk/lineage.json").write_bytes(b'{"trunk": "..."}\n')
    made = merge_bundles(tmp_path / "made", sources)
    assert (made.root / "trunk/lineage.json").read_bytes() == b'{"trunk": "..."}\n'
    plain = merge_bundles(tmp_path / "plain", [sources[1 - learned]])
    assert not (plain.root / "trunk/lineage.json").exists()


def test_the_live_version_is_merged_and_counted_from_one(tmp_path):
    source = single(tmp_path / "source", "a")
    task, tap, own = TASKS["a"]
    for shift in (1, 2):
        add(source, task, tap, own, shift=shift, replace=True)
    source.set_version("a", "v0002")
    source = Bundle.open(source.root)
    (source.root / "tasks/a/v0002/README.md").write_text("edited by hand\n")
    made = merge_bundles(tmp_path / "made", [source])
    assert made.versions("a") == ["v0001"] and made.card("a") == "edited by hand\n"
    assert contents(made.root / "tasks/a/v0001") == contents(source.root / "tasks/a/v0002")
    (source.root / "tasks/a/v0002/README.md").unlink()  # nobody vouches for a card
    assert merge_bundles(tmp_path / "again", [source]).verify() is None


def test_an_open_bundle_is_merged_as_it_was_opened(tmp_path):
    source = single(tmp_path / "source", "a")
    task, tap, own = TASKS["a"]
    add(source, task, tap, own, shift=1, replace=True)
    made = merge_bundles(tmp_path / "made", [source])
    assert contents(made.root / "tasks/a/v0001") == contents(source.root / "tasks/a/v0001")


def test_different_trunks_are_refused_and_both_are_named(two, tmp_path):
    others = {
        "their weights differ": tiny_trunk(layers=DEPTH, seed=1),
        "max_tokens is 48 and 32": msgspec.structs.replace(
            TRUNK, settings=msgspec.structs.replace(TRUNK.settings, max_tokens=32)
        ),
        "their shapes differ": tiny_trunk(layers=DEPTH + 1),
        "their tokenizers differ": msgspec.structs.replace(
            TRUNK, tokenizer=TRUNK.tokenizer.replace(b"kettle", b"kettlf")
        ),
    }
    for place, (words, trunk) in enumerate(others.items()):
        other = single(tmp_path / str(place), "a-b", trunk=trunk)
        for act in (
            lambda other=other: merge_bundles(tmp_path / "made", [two[0], other]),
            lambda other=other: copy_tasks(two[0], ["a"], other),
        ):
            with pytest.raises(WrongTrunk, match=words.replace("48 and 32", "(48 and 32|32 and 48)")) as caught:
                act()
            for word in (two[0].root, two[0].digest, other.root, other.digest, f"{DEPTH} layers"):
                assert str(word) in str(caught.value), word
        assert list(Bundle.open(other.root).tasks) == ["a-b"]
    assert not (tmp_path / "made").exists()


def rewritten(root, change):
    """The bundle with the task.json of 'a-b' changed by hand, and its digest written down."""
    file = root / "tasks/a-b/v0001/task.json"
    record = json.loads(file.read_text())
    change(record)
    file.write_text(json.dumps(record))
    content = json.loads((root / "bundle.json").read_text())
    content["tasks"]["a-b"]["record"] = hashlib.sha256(file.read_bytes()).hexdigest()
    (root / "bundle.json").write_text(json.dumps(content))
    return Bundle.open(root, verify=False)


def deepened(root):
    """A source by hand whose task reads a layer that its trunk does not have."""

    def deepen(record):
        record["path"]["nodes"][1]["stop"] = DEPTH + 1
        record["path"]["nodes"][2] |= {"start": DEPTH + 1, "stop": DEPTH + 2}

    return rewritten(single(root, "a-b").root, deepen)


def test_a_tap_deeper_than_the_trunk_is_refused_and_both_sides_are_named(two, tmp_path):
    deep = deepened(tmp_path / "deep")
    for act in (lambda: merge_bundles(tmp_path / "made", [two[0], deep]), lambda: copy_tasks(deep, ["a-b"], two[0])):
        with pytest.raises(BundleError, match="deeper than its trunk") as caught:
            act()
        said = str(caught.value)
        assert all(str(word) in said for word in (two[0].root, deep.root, "a-b", "layer 5", "Allowed: 4"))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", ["a", "A"], ids=["equal", "in case alone"])
def test_clashing_names_are_refused_and_both_bundles_are_named(two, tmp_path, name):
    other = single(tmp_path / "other", "a-b", called=name)
    for act in (
        lambda: merge_bundles(tmp_path / "made", [two[0], other]),
        lambda: copy_tasks(other, [name], two[0], replace=name == "A"),
    ):
        with pytest.raises(BadName, match="tasks add --as") as caught:
            act()
        assert str(two[0].root) in str(caught.value) and str(other.root) in str(caught.value)
        assert ("case" in str(caught.value)) == (name == "A")
    assert not (tmp_path / "made").exists()


def test_a_task_that_writes_is_merged_like_any_other(two, tmp_path):
    write_bundle(tmp_path / "writing", TRUNK)
    add_tasks(tmp_path / "writing", [tiny_draft(TRUNK)])
    other = Bundle.open(tmp_path / "writing")
    made = merge_bundles(tmp_path / "made", [*two, other])
    made.verify()
    assert set(made.tasks) == {"a", "a-b", "brief"}
    assert contents(made.root / "tasks/brief/v0001") == contents(other.root / "tasks/brief/v0001")
    write_bundle(tmp_path / "far", far := tiny_trunk(seed=9))
    add_tasks(tmp_path / "far", [tiny_draft(far)])
    with pytest.raises(WrongTrunk):
        merge_bundles(tmp_path / "none", [two[0], Bundle.open(tmp_path / "far")])


def test_nothing_to_merge_is_refused(two, tmp_path):
    empty = write_bundle(tmp_path / "empty", TRUNK)
    for sources, tasks in (([], None), ([empty], None), ([two[0]], {0: []})):
        with pytest.raises(BundleError, match="nothing to merge"):
            merge_bundles(tmp_path / "made", sources, tasks=tasks)
    assert list(merge_bundles(tmp_path / "made", [empty, two[0]]).tasks) == ["a"]


def test_a_target_that_is_a_source_or_inside_one_or_taken_is_refused(two, tmp_path, monkeypatch):
    before = [contents(bundle.root) for bundle in two]
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("")
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(two[0].root)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    cases = {
        two[0].root: "to be merged",
        two[1].root / "inside": "to be merged",
        tmp_path / "link": "to be merged",
        tmp_path / "full": "mine.txt",
        tmp_path / "file": "is a file",
        here: "works in",
    }
    for root, words in cases.items():
        with pytest.raises(BundleError, match=words):
            merge_bundles(root, two)
    with pytest.raises(BundleError, match="twice"):
        merge_bundles(tmp_path / "made", [two[0], Bundle.open(tmp_path / "link")])
    with pytest.raises(BundleError, match="itself"):
        copy_tasks(two[0], ["a"], Bundle.open(tmp_path / "link"), replace=True)
    assert [contents(bundle.root) for bundle in two] == before
    assert not list(tmp_path.glob(".new-*"))


def test_an_empty_folder_is_taken(two, tmp_path):
    (tmp_path / "made").mkdir()
    assert list(merge_bundles(tmp_path / "made", two).tasks) == ["a", "a-b"]


def test_one_changed_bit_of_any_source_file_is_found_and_the_file_is_named(two, tmp_path):
    source, looked_at = single(tmp_path / "source", "a-b.c"), 0
    for file in sorted(path for path in source.root.rglob("*") if path.is_file()):
        if file.name in (".lock", "README.md"):
            continue
        raw = file.read_bytes()
        file.write_bytes(raw[:-3] + bytes([raw[-3] ^ 1]) + raw[-2:])
        with pytest.raises(BundleError) as caught:
            merge_bundles(tmp_path / "made", [Bundle.open(source.root, verify=False), two[0]])
        assert file.name == "bundle.json" or str(file) in str(caught.value)
        target = merge_bundles(tmp_path / f"target{looked_at}", [two[0]])
        if "tasks" in file.parts:
            with pytest.raises(CorruptFile, match=file.name):
                copy_tasks(Bundle.open(source.root, verify=False), ["a-b.c"], target)
        assert list(Bundle.open(target.root).tasks) == ["a"]
        assert not (target.root / "tasks/a-b.c").exists() and not (tmp_path / "made").exists()
        file.write_bytes(raw)
        looked_at += 1
    assert looked_at == 8
    merge_bundles(tmp_path / "made", [source, two[0]]).verify()


def test_weights_that_their_own_record_vouches_for_but_not_the_digest_are_refused(two, tmp_path):
    """trunk.json's SHA-256 of the weights file is in no digest: someone can change both."""
    source = single(tmp_path / "source", "a-b.c")
    weights, record = source.root / "trunk/weights.safetensors", source.root / "trunk/trunk.json"
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)
    changed = json.loads(record.read_text()) | {"weights": hashlib.sha256(raw).hexdigest()}
    record.write_text(json.dumps(changed))
    with pytest.raises(CorruptFile, match=r"weights\.safetensors"):
        merge_bundles(tmp_path / "made", [Bundle.open(source.root), two[0]])
    assert not (tmp_path / "made").exists()


def test_a_part_that_is_not_its_own_records_is_refused(two, tmp_path):
    """Every file has its hash, but task.json speaks of other arrays."""
    source = rewritten(single(tmp_path / "source", "a-b").root, lambda record: record.update(arrays="0" * 64))
    for act in (
        lambda: merge_bundles(tmp_path / "made", [two[0], source]),
        lambda: copy_tasks(source, ["a-b"], merge_bundles(tmp_path / "target", [two[0]])),
    ):
        with pytest.raises(CorruptFile, match="source/tasks/a-b/v0001/part"):
            act()
    assert not (tmp_path / "made").exists() and list(Bundle.open(tmp_path / "target").tasks) == ["a"]


def test_a_linked_file_is_not_followed(two, tmp_path):
    source = single(tmp_path / "source", "a-b.c")
    card = source.root / "tasks/a-b.c/v0001/README.md"
    card.unlink()
    card.symlink_to("/etc/hostname")
    with pytest.raises(CorruptFile, match="link"):
        merge_bundles(tmp_path / "made", [two[0], source])
    assert not (tmp_path / "made").exists()


def test_a_copied_task_can_replace_one_and_be_rolled_back(two, tmp_path):
    target = merge_bundles(tmp_path / "target", two)
    task, tap, own = TASKS["a"]
    other = write_bundle(tmp_path / "other", TRUNK)
    add(other, task, tap, own, shift=5)
    other = Bundle.open(other.root)
    with pytest.raises(BadName):
        copy_tasks(other, ["a"], target)
    before = contents(target.root)
    assert copy_tasks(other, ["a"], target, replace=True) == {"a": "v0002"}
    opened = Bundle.open(target.root)
    opened.verify()
    assert contents(target.root / "tasks/a/v0002") == contents(other.root / "tasks/a/v0001")
    assert opened.version("a") == "v0002" and opened.version("a-b") == "v0001"
    after = contents(target.root)
    assert {name for name in before if before[name] != after[name]} == {"bundle.json"}
    opened.set_version("a", "v0001")
    assert answers(Bundle.open(target.root), "reference")["a"] == answers(two[0], "reference")["a"]
    with pytest.raises(UnknownTask, match="nobody"):
        copy_tasks(other, ["nobody"], target)


def test_copied_tasks_become_live_all_in_one_step(alone, two, tmp_path, monkeypatch):
    source = merge_bundles(tmp_path / "source", list(alone.values()))
    target = write_bundle(tmp_path / "b", TRUNK)
    states = []

    def seen(path, content):
        states.append(list(json.loads(content)["tasks"]))
        files.replace_file(path, content)

    monkeypatch.setattr("polyhead.bundle.versions.replace_file", seen)
    assert copy_tasks(source, ["a-b.c", "a"], target) == {"a-b.c": "v0001", "a": "v0001"}
    assert copy_tasks(source, [], target) == {} and states == [["a-b.c", "a"]]
    before = contents(target.root)
    with pytest.raises(BadName, match="'a'"):
        copy_tasks(source, ["a-b", "a"], target)
    assert contents(target.root) == before and not (target.root / "tasks/a-b").exists()
    assert copy_tasks(source, ["a-b", "a"], target, replace=True) == {"a-b": "v0001", "a": "v0002"}
    made = Bundle.open(target.root)
    made.verify()
    assert answers(made, "reference") == {n: answers(source, "reference")[n] for n in made.tasks}


def test_a_bundle_that_is_refused_when_proven_never_gets_its_name(two, tmp_path):
    seen = []

    def refuse(bundle):
        bundle.verify()
        seen.append(sorted(bundle.tasks))
        raise BundleError("not proven")

    with pytest.raises(BundleError, match="not proven"):
        merge_bundles(tmp_path / "made", two, prove=refuse)
    assert seen == [["a", "a-b"]] and not list(tmp_path.iterdir())
    made = merge_bundles(tmp_path / "made", two, prove=lambda bundle: seen.append(bundle.root))
    assert not seen[1].exists() and [path.name for path in tmp_path.iterdir()] == ["made"]
    made.verify()


def test_leftovers_of_a_killed_merge_are_removed_and_nothing_else_is(two, tmp_path):
    claim(tmp_path / ".new-made", BUILDING)
    shutil.copytree(two[0].root, tmp_path / ".new-made/bundle")
    (tmp_path / ".new-made/.lock").touch()
    merge_bundles(tmp_path / "made", two).verify()
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    (tmp_path / ".new-other").mkdir()
    (tmp_path / ".new-other/mine.txt").write_text("")
    with pytest.raises(BundleError, match="mine.txt"):
        merge_bundles(tmp_path / "other", two)
    assert (tmp_path / ".new-other/mine.txt").exists() and not (tmp_path / "other").exists()


def test_two_merges_into_one_folder_do_not_meet(two, tmp_path, monkeypatch):
    monkeypatch.setattr("polyhead.bundle.atomic.PATIENCE", 0.0)

    def at_the_same_time(bundle):
        with pytest.raises(BundleError, match="another process"):
            merge_bundles(tmp_path / "made", two)

    merge_bundles(tmp_path / "made", two, prove=at_the_same_time).verify()


def test_folder_that_cannot_be_written_is_a_bundle_error(two, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BundleError, match="cannot be written"):
        merge_bundles(tmp_path / "file/made", two)


@pytest.mark.slow
def test_full_disk_at_any_step_of_a_merge_leaves_nothing_or_the_whole_bundle(two, tmp_path):
    failures = 0
    for failing in range(1, 300):
        folder = tmp_path / str(failing)
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            disk = FullDisk(patch, failing, each=2)
            try:
                merge_bundles(folder / "made", two)
            except BundleError as error:
                failures += 1
                assert "disk is full" in str(error) or "No space left" in str(error)
        names = [path.name for path in folder.iterdir()]
        if names:
            assert names == ["made"]
            Bundle.open(folder / "made").verify()
        if disk.calls < failing:
            break
    assert failures >= 30 and names == ["made"]


@pytest.mark.slow
def test_full_disk_at_any_step_of_a_copy_leaves_the_target_as_it_was(alone, two, tmp_path):
    """Of two tasks: both are live, or neither, and of neither anything is left."""
    failures, source = 0, merge_bundles(tmp_path / "source", [two[1], alone["a-b.c"]])
    for failing in range(1, 300):
        target = merge_bundles(tmp_path / str(failing), [two[0]])
        before = files_of(target)
        with pytest.MonkeyPatch.context() as patch:
            disk = FullDisk(patch, failing, each=2)
            try:
                copy_tasks(source, ["a-b", "a-b.c"], target)
            except BundleError as error:
                failures += 1
                assert "disk is full" in str(error)
        Bundle.open(target.root).verify()
        if files_of(target) != before:
            assert list(Bundle.open(target.root).tasks) == ["a", "a-b", "a-b.c"]
            assert "replace" in disk.names[: disk.failing]
        if disk.calls < failing:
            break
    assert failures >= 30


# Forks a merge for every n, which dies without any cleaning up right before its n-th step on the disk.
KILLED = """
import os, sys
from pathlib import Path
from support.disk_failures import Kill, exit_code
from polyhead.bundle.merge import merge_bundles
from polyhead.bundle.read import Bundle

made, kills, sources = Path(sys.argv[1]) / "made", 0, [Bundle.open(root) for root in sys.argv[2:]]
for deadly in range(1, 300):
    if os.fork() == 0:
        Kill(deadly, each=1)
        merge_bundles(made, sources)
        os._exit(0)
    code = exit_code()
    if made.exists():
        Bundle.open(made).verify()
        break
    kills += 1
print(kills, code)
"""


@pytest.mark.slow
def test_a_merge_killed_at_any_step_leaves_nothing_or_the_whole_bundle(two, tmp_path):
    """Each try finds what the one before left; the kill after the rename leaves an empty lock beside the bundle."""
    printed = run_forking(KILLED, tmp_path, *(bundle.root for bundle in two))
    kills, code = map(int, printed.split())
    assert kills >= 25 and code == 9
    assert sorted(path.name for path in tmp_path.rglob("*.new-*")) == [".new-made"]
    assert {path.name for path in (tmp_path / ".new-made").iterdir()} == {".lock", MARKER}
    assert list(Bundle.open(tmp_path / "made").tasks) == ["a", "a-b"]
    sweep_bundle(tmp_path / "made")  # as every operation with a certificate does
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


@pytest.mark.parametrize("name", [".new-made", ".importing-made"])
def test_what_is_swept_beside_a_bundle_is_nobodys(two, tmp_path, name):
    made = merge_bundles(tmp_path / "made", two).root
    beside = tmp_path / name

    def left(*files):
        for file in files:
            (beside / file).parent.mkdir(parents=True, exist_ok=True)
            (beside / file).touch()
        sweep_bundle(made)
        return beside.exists()

    assert left(".lock", "bundle/bundle.json")  # no marker: somebody else's, whatever its files are called
    shutil.rmtree(beside)
    claim(beside, BUILDING)
    assert not left(".lock", "bundle/bundle.json")
    claim(beside, BUILDING)
    with files.held(beside / ".lock", patience=0.0, busy=BundleError("x")):
        assert left("bundle/bundle.json")  # somebody works there
    assert left("mine.txt") and (beside / "mine.txt").exists()
    shutil.rmtree(beside)
    (tmp_path / "elsewhere" / "bundle").mkdir(parents=True)
    beside.symlink_to(tmp_path / "elsewhere")
    assert left() and (tmp_path / "elsewhere" / "bundle").exists()
    assert list(Bundle.open(made).tasks) == ["a", "a-b"]


def test_arrays_of_a_merged_task_are_those_of_its_own_bundle(alone, tmp_path):
    merged = merge_bundles(tmp_path / "made", list(alone.values()))
    for name, bundle in alone.items():
        mine, found = bundle.part(name), merged.part(name)
        assert set(mine) == set(found) and any(key.startswith(("layers", "head")) for key in mine)
        for key in mine:
            np.testing.assert_array_equal(mine[key], found[key])


def test_a_task_whose_prompts_leave_little_room_is_copied_and_merged_as_it_answers(tmp_path, monkeypatch):
    """An earlier bundle may have one, which answers short texts; written anew it is refused."""
    task, owner = TASKS["a"][0], "task:a"
    rows = TRUNK.architecture.max_tokens - (LEAST_READ - 1)
    embed = Embed(trunk=TRUNK.digest, prompts=(Prompt(part=owner, rows=rows),), shift=True)
    path = path_of(task, DEPTH, 0, TRUNK.digest)
    path = TaskPath(nodes=(embed, path.nodes[1], Pool(positions="mean"), path.nodes[-1]))
    draft = {"scores": {"splits": {}}, "probes": [], "card": "# a\n"}
    record = TaskRecord(task=task, path=path, trunk=TRUNK.digest)
    arrays = tiny_part(path, TRUNK.architecture, owner, seed=0)
    earlier, target = (write_bundle(tmp_path / name, TRUNK) for name in ("earlier", "target"))
    with monkeypatch.context() as patched:
        patched.setattr("polyhead.bundle.write.check_room", lambda record, trunk: None)
        earlier.add_task(record, arrays, **draft)
    with pytest.raises(BundleError, match="too little room"):
        target.add_task(record, arrays, **draft)
    earlier = Bundle.open(earlier.root)
    copy_tasks(earlier, ["a"], target)
    merge_bundles(tmp_path / "merged", [earlier])
    answers = [
        Session(tmp_path / name, backend="reference").predict(["sad"])[0].answers["a"]
        for name in ("earlier", "target", "merged")
    ]
    assert answers[0]["label"] in task.labels and answers[0] == answers[1] == answers[2]
