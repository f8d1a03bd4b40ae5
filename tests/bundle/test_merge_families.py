"""Copying and merging what belongs together: groups whole, families with their readers, names made free."""

import json

import numpy as np
import pytest

from bundle.test_write import contents
from formats.write_v1 import golden_trunk
from polyhead import plan
from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import read_bundle_file
from polyhead.bundle.merge import copy_tasks, merge_bundles
from polyhead.bundle.read import Bundle
from polyhead.bundle.write import add_tasks, set_versions
from polyhead.errors import BadName, BundleError, CorruptFile
from polyhead.values import to_json
from support.prompt_groups import ADAPTED, ADAPTERS, GROUP, ROWS, adapters, add, draft, group, make, plain


def one(root, made):
    """A bundle of these drafts and families alone."""
    write_bundle(root, golden_trunk())
    add(root, made)
    return Bundle.open(root)


@pytest.fixture
def trunk():
    return golden_trunk().digest


@pytest.fixture
def bundle(tmp_path):
    return make(tmp_path / "bundle")


@pytest.fixture
def empty(tmp_path):
    return write_bundle(tmp_path / "empty", golden_trunk())


def same_arrays(one, other, names=None):
    """That tasks (name here -> name there) read the same arrays in both bundles."""
    names = names or {name: name for name in one.tasks}
    for here, there in names.items():
        pairs = ([one.part(here), *one.others(here).values()], [other.part(there), *other.others(there).values()])
        digests = [sorted((n, a.tobytes()) for arrays in some for n, a in arrays.items()) for some in pairs]
        assert digests[0] == digests[1]


def prefix_is_right(bundle):
    """Every task's prefix digest is that of its path and of the arrays that are on it."""
    digests = {f"task:{name}": record.arrays for name, record in bundle.tasks.items()}
    digests |= {owner: bundle.family(owner).arrays for owner in bundle.families}
    for record in bundle.tasks.values():
        stored = record.path.stored()
        parts = {owner: digests[owner] for owner in plan.owners_of(stored) if owner != plan.TRUNK}
        assert record.prefix == plan.digest(stored, parts)
        assert all(digests[owner] == digest for owner, digest in record.needs.items())


def test_a_merged_bundle_is_its_sources_byte_for_byte(bundle, trunk, tmp_path):
    other = one(tmp_path / "other", ([draft("else", plain("else", trunk))], []))
    merged = merge_bundles(tmp_path / "made", [bundle, other])
    merged.verify()
    files = contents(merged.root)
    for source in (bundle, other):
        for name, raw in contents(source.root).items():
            if name not in ("bundle.json", ".lock"):
                assert files[name] == raw, name
    lines = json.loads(files["bundle.json"])
    assert set(lines["families"]) == {ROWS, ADAPTERS} and len(lines["tasks"]) == 7


def test_some_of_a_group_are_not_merged_or_copied_without_the_others(bundle, empty, tmp_path):
    before = contents(empty.root)
    for act in (
        lambda: merge_bundles(tmp_path / "made", [bundle], tasks={0: ["sad", "calm", "alone"]}),
        lambda: copy_tasks(bundle, ["sad", "calm"], empty),
    ):
        with pytest.raises(BundleError, match="can only change together") as caught:
            act()
        assert caught.value.tasks == tuple(sorted(GROUP))
        assert "name all of them in one call: calm glad sad" in str(caught.value)
    assert not (tmp_path / "made").exists() and contents(empty.root) == before
    made = merge_bundles(tmp_path / "made", [bundle], tasks={0: [*GROUP, "short"]})
    assert set(made.families) == {ROWS, ADAPTERS} and made.groups() == [frozenset(GROUP)]
    assert set(merge_bundles(tmp_path / "less", [bundle], tasks={0: ["short"]}).families) == {ADAPTERS}


def test_families_with_the_same_arrays_meet_and_others_get_another_name(trunk, tmp_path):
    """One adapter for three tasks of two bundles; another one of the same name in a third."""
    first = one(tmp_path / "first", adapters(trunk))
    second = one(tmp_path / "second", adapters(trunk, names=("third",)))
    third = one(tmp_path / "third", adapters(trunk, seed=1, names=("fourth",)))
    merged = merge_bundles(tmp_path / "made", [first, second, third])
    merged.verify()
    prefix_is_right(merged)
    assert set(merged.families) == {ADAPTERS, f"{ADAPTERS}-2"}
    owners = {name: next(iter(record.needs)) for name, record in merged.tasks.items()}
    assert owners == dict.fromkeys((*ADAPTED, "third"), ADAPTERS) | {"fourth": f"{ADAPTERS}-2"}
    for source in (first, second, third):
        same_arrays(source, merged)
    # but for task.json and family.json of what got another name, files are copied
    for folder in ("tasks/fourth/v0001", "families/adapters/v0001"):
        raw = contents(third.root / folder)
        made = contents(merged.root / folder.replace("adapters", "adapters-2"))
        assert {n for n in raw if raw[n] != made[n]} == {"task.json" if "tasks" in folder else "family.json"}
    again = merge_bundles(tmp_path / "again", [merged, one(tmp_path / "b", adapters(trunk, 1, ("fifth",)))])
    assert set(again.families) == set(merged.families)  # it meets the one under the other name
    assert again.tasks["fifth"].needs == again.tasks["fourth"].needs


def test_a_group_is_copied_under_other_names(bundle, empty):
    called = {"sad": "down", "glad": "up"}
    made = copy_tasks(bundle, GROUP, empty, called=called)
    assert made == {"down": "v0001", "up": "v0001", "calm": "v0001"}
    copied = Bundle.open(empty.root)
    copied.verify()
    prefix_is_right(copied)
    assert copied.groups() == [frozenset(made)]
    names = {name: called.get(name, name) for name in GROUP}
    same_arrays(bundle, copied, names)
    for old, new in names.items():
        prompts = [prompt.part for prompt in copied.tasks[new].path.embed.prompts]
        assert prompts == [ROWS, "task:down", "task:up", "task:calm"]
        assert copied.tasks[new].prefix != bundle.tasks[old].prefix
        assert copied.tasks[new].owner == f"task:{new}" == copied.tasks[new].path.head.part
        kept = contents(bundle.root / "tasks" / old / "v0001"), contents(empty.root / "tasks" / new / "v0001")
        assert {n for n in kept[0] if kept[0][n] != kept[1][n]} == {"task.json"}
    # and back again it is what it was, to the byte
    again = copy_tasks(copied, list(made), bundle, replace=True, called={v: k for k, v in called.items()})
    assert set(again.values()) == {"v0002"}
    for name in GROUP:
        assert to_json(Bundle.open(bundle.root).tasks[name]) == to_json(bundle.tasks[name])


def test_a_group_is_doubled_within_a_bundle(bundle):
    twice = {name: f"{name}-2" for name in GROUP}
    copy_tasks(bundle, GROUP, bundle, called=twice)
    opened = Bundle.open(bundle.root)
    opened.verify()
    assert set(opened.groups()) == {frozenset(GROUP), frozenset(twice.values())}
    assert set(opened.families) == {ROWS, ADAPTERS}  # the shared rows are the same arrays
    same_arrays(bundle, opened, twice)
    with pytest.raises(BundleError, match="itself"):
        copy_tasks(bundle, GROUP, bundle, called={"sad": "sad-3"}, replace=True)


@pytest.mark.parametrize("called", [{"sad": "alone"}, {"sad": "ALONE"}, {"sad": "calm"}, {"sad": "../x"}])
def test_a_name_that_is_taken_is_refused(bundle, empty, trunk, called):
    add_tasks(empty.root, [draft("alone", plain("alone", trunk))])
    before = contents(empty.root)
    with pytest.raises(BadName):
        copy_tasks(bundle, GROUP, empty, called=called)
    assert contents(empty.root) == before


def test_a_group_is_updated_as_one_and_its_family_with_it(bundle, trunk, tmp_path):
    theirs = one(tmp_path / "theirs", group(trunk, seed=5))
    with pytest.raises(BundleError, match="can only change together"):
        copy_tasks(theirs, ["sad"], bundle, replace=True)
    assert set(copy_tasks(theirs, GROUP, bundle, replace=True).values()) == {"v0002"}
    opened = Bundle.open(bundle.root)
    opened.verify()
    same_arrays(theirs, opened)
    assert set(opened.families) == {ROWS, ADAPTERS}  # all its readers were replaced, so the name was free
    assert opened.families[ROWS].version == "v0002"
    set_versions(bundle.root, dict.fromkeys(GROUP, "v0001"))
    found = read_bundle_file(bundle.root)
    assert {name for name, line in found.tasks.items() if line.pinned} == set(GROUP)
    before = bundle._content.lines
    assert {o: (x.version, x.record) for o, x in found.lines.items()} == {
        o: (x.version, x.record) for o, x in before.items()
    }


def test_a_reader_of_a_family_is_updated_alone_by_a_family_of_another_name(bundle, trunk, tmp_path):
    theirs = one(tmp_path / "theirs", adapters(trunk, seed=5))
    copy_tasks(theirs, ["long"], bundle, replace=True)
    opened = Bundle.open(bundle.root)
    opened.verify()
    assert opened.tasks["long"].needs == {f"{ADAPTERS}-2": theirs.family(ADAPTERS).arrays}
    assert opened.tasks["short"].needs == bundle.tasks["short"].needs
    copy_tasks(theirs, ["short"], opened, replace=True)  # now nobody reads the old one
    assert set(Bundle.open(bundle.root).families) == {ROWS, f"{ADAPTERS}-2"}
    prefix_is_right(Bundle.open(bundle.root))


def test_a_changed_bit_of_a_source_family_is_found_and_the_file_is_named(bundle, empty, tmp_path):
    for file in ("part.safetensors", "family.json"):
        path = bundle.root / "families/adapters/v0001" / file
        raw = path.read_bytes()
        path.write_bytes(raw[:-3] + bytes([raw[-3] ^ 1]) + raw[-2:])
        for act in (
            lambda: merge_bundles(tmp_path / "made", [Bundle.open(bundle.root, verify=False)]),
            lambda: copy_tasks(Bundle.open(bundle.root, verify=False), ["long"], empty),
        ):
            with pytest.raises(CorruptFile, match=file):
                act()
        path.write_bytes(raw)
    assert not (tmp_path / "made").exists() and list(Bundle.open(empty.root).tasks) == []


def test_merging_costs_what_the_plan_says(bundle, tmp_path):
    """A family counts once, however many read it."""
    from polyhead.plan.cost import parameters

    merged = merge_bundles(tmp_path / "made", [bundle])
    together = plan.merge({name: record.path for name, record in merged.tasks.items()})
    owned = [merged.part(name) for name in merged.tasks]
    owned += [merged._arrays_of(owner) for owner in merged.families]
    real = sum(int(np.prod(a.shape)) for arrays in owned for a in arrays.values())
    trunk = sum(int(np.prod(a.shape)) for a in merged.trunk().arrays.values())
    assert parameters(together, merged.architecture) == real + trunk
