"""Arrays that tasks share: written, read, checked, and bundles without them as they always were."""

import hashlib
import json

import msgspec
import numpy as np
import pytest

from bundle.test_write import contents
from formats.write_v1 import golden_trunk
from polyhead import plan
from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.owners import check_family, new_names, owner_at, place_of
from polyhead.bundle.read import Bundle
from polyhead.bundle.write import add_tasks
from polyhead.encoder.data import arrays_digest
from polyhead.encoder.decoder import Decoder
from polyhead.errors import BadName, BundleError, CorruptFile, PolyheadError, WeightsMismatch
from polyhead.values import from_json, to_json
from support.prompt_groups import (
    ADAPTED,
    ADAPTERS,
    GROUP,
    ROWS,
    adapted,
    adapters,
    add,
    draft,
    drawn,
    family,
    group,
    make,
    plain,
    prompted,
)


@pytest.fixture
def bundle(tmp_path):
    return make(tmp_path / "bundle")


def edit(path, change):
    content = json.loads(path.read_bytes())
    change(content)
    path.write_text(json.dumps(content))


def test_a_task_is_given_the_arrays_of_others_that_its_path_reads(bundle):
    for name in GROUP:
        found = bundle.others(name)
        others = [f"task:{other}" for other in GROUP if other != name]
        assert set(found) == {ROWS, *others}
        for owner in others:
            expected = drawn(prompted(owner[5:], bundle.digest), owner)["prompt.weight"]
            np.testing.assert_array_equal(found[owner]["prompt.weight"], expected)
            assert set(found[owner]) == {"prompt.weight"}  # not the other's head
        expected = group(bundle.digest)[1][0].arrays
        assert {n: a.tolist() for n, a in found[ROWS].items()} == {n: a.tolist() for n, a in expected.items()}
    assert set(bundle.others("short")) == {ADAPTERS} and bundle.others("alone") == {}
    assert {len(a) for a in bundle.others("short").values()} == {4 + 2 * 6}
    bundle.verify()


def test_a_record_says_which_arrays_it_was_made_with(bundle):
    record = bundle.tasks["sad"]
    parts = {f"task:{name}": arrays_digest(bundle.part(name)) for name in GROUP}
    parts[ROWS] = bundle.family(ROWS).arrays
    assert record.needs == {owner: digest for owner, digest in parts.items() if owner != "task:sad"}
    assert record.prefix == plan.digest(record.path.stored(), parts)
    # so features kept for one group are not taken for those of another, though the paths are equal
    other = plan.digest(record.path.stored(), {**parts, "task:glad": "0" * 64})
    assert record.prefix != other
    assert bundle.tasks["alone"].needs == {}


def test_groups_are_the_tasks_that_read_each_others_prompts(bundle):
    assert bundle.groups() == [frozenset(GROUP)]
    trunk = bundle.digest
    add(bundle.root, group(trunk, names=("one", "two"), rows=None))
    assert set(Bundle.open(bundle.root).groups()) == {frozenset(GROUP), frozenset({"one", "two"})}
    isolated = msgspec.structs.replace(prompted("own", trunk, ("own",), None).embed, isolated=True)
    path = plan.Path(nodes=(isolated, *prompted("own", trunk).nodes[1:]))
    add_tasks(bundle.root, [draft("own", path)])
    assert "own" not in set().union(*Bundle.open(bundle.root).groups())


def test_families_lie_in_folders_of_their_own_with_a_line_each(bundle):
    content = json.loads((bundle.root / "bundle.json").read_text())
    assert set(content["families"]) == {ROWS, ADAPTERS} == set(bundle.families)
    folder = bundle.root / "families/prompts+moods/v0001"
    assert {path.name for path in folder.iterdir()} == {"family.json", "part.safetensors"}
    assert json.loads((folder / "family.json").read_text())["family"] == ROWS
    for owner in (ROWS, ADAPTERS, "task:a-b.c"):
        assert owner_at(*place_of(owner)) == owner


def test_a_family_that_came_and_went_leaves_no_trace(tmp_path):
    root = tmp_path / "b"
    trunk = write_bundle(root, golden_trunk()).digest
    add_tasks(root, [draft("alone", plain("alone", trunk))])
    assert set(json.loads((root / "bundle.json").read_text())) == {"format", "trunk", "tasks"}
    written = json.loads((root / "tasks/alone/v0001/task.json").read_text())
    assert set(written) == set(TaskRecord.__struct_fields__)
    before = contents(root)
    add(root, group(trunk))
    add(root, adapters(trunk))
    bundle = Bundle.open(root)
    for names in (GROUP, ADAPTED):
        from polyhead.bundle.remove import remove_tasks

        remove_tasks(bundle.root, names)
    assert contents(root) == before  # and what came has gone without a trace
    assert sorted(path.name for path in root.iterdir() if path.is_dir()) == ["tasks", "trunk"]


LATER = {
    "delta": plan.Delta(kind="low_rank", part="task:x", size=2, tied=True, ends="family:adapters", gelu="inside"),
    "serial": plan.Delta(kind="low_rank", part="task:x", size=2, serial=True),
    "lora": plan.Delta(kind="lora", part="task:x", size=2, alpha=16.0, targets=("attention.query",)),
    "prefix": plan.Delta(kind="prefix", part="task:x", size=2),
    "embed": plan.Embed(trunk="0" * 64, prompts=(plan.Prompt(part="task:x", rows=2),), shift=True),
    "layers": plan.Layers(start=0, stop=2, attention=False, residual=False),
    "closed": plan.Layers(start=0, stop=2, weights="task:x", closed=True),
    "head": plan.Head(kind="single_label", width=2, part="task:x", hidden=4, hidden_part="family:pooler"),
    "normed": plan.Head(kind="single_label", width=2, part="task:x", hidden=4, norm_epsilon=1e-5),
    "decoder": Decoder(layers=1, heads=2, feed_forward=4, positions=8),
}


@pytest.mark.parametrize("name", LATER)
def test_every_field_of_a_node_is_written_and_read_back(name):
    value, path = LATER[name], plain("x", "0" * 64)
    embed, layers, pool, head = path.nodes
    if isinstance(value, plan.Delta):
        layers = msgspec.structs.replace(layers, delta=value)
    if isinstance(value, Decoder):
        head = plan.Head(kind="summarization", width=5, part="task:x", decoder=value)
        pool = plan.Pool(positions="all")
    nodes = {plan.Embed: embed, plan.Layers: layers, plan.Pool: pool, plan.Head: head}
    if type(value) in nodes:
        nodes[type(value)] = value
    record = msgspec.structs.replace(
        draft("x", path).record, path=plan.Path(nodes=tuple(nodes.values())), needs={"family:adapters": "0" * 64}
    )
    raw = to_json(record)
    assert from_json(raw, TaskRecord, source="task.json") == record
    written = json.loads(raw)["path"]["nodes"]
    sort = {"embed": "embed", "head": "head", "normed": "head", "decoder": "head"}.get(name, "layers")
    found = next(node for node in written if node["type"] == sort)
    found = found["delta"] if isinstance(value, plan.Delta) else found["decoder"] if name == "decoder" else found
    # older versions read a head without a decoder or a norm, and layers without one, so these do not name one
    unset = {field for field in type(value).__struct_fields__ if getattr(value, field) is msgspec.UNSET}
    expected = {"head": {"decoder", "norm_epsilon"}, "normed": {"decoder"}, "layers": {"closed"}}
    assert unset == expected.get(name, set())
    assert set(found) - {"type"} == set(type(value).__struct_fields__) - unset


BROKEN = {
    "family changed": (ADAPTERS, lambda bundle: add(bundle.root, adapters(bundle.digest, seed=1), replace=True)),
    "task changed": ("task:glad", lambda bundle: add(bundle.root, group(bundle.digest, seed=1), replace=True)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_bundle_whose_needs_are_not_met_is_refused_with_task_owner_and_digests(bundle, name):
    """By hand one line alone is set to another version, as a careless restore of a backup does."""
    owner, change = BROKEN[name]
    wanted = bundle.family(owner).arrays if owner == ADAPTERS else bundle.tasks["glad"].arrays
    old = json.loads((bundle.root / "bundle.json").read_text())
    change(bundle)
    new = Bundle.open(bundle.root)
    found = new.family(owner).arrays if owner == ADAPTERS else new.tasks["glad"].arrays
    lines = json.loads((bundle.root / "bundle.json").read_text())
    if owner == ADAPTERS:
        old["families"][owner] = lines["families"][owner]
    else:
        old["tasks"]["glad"] = lines["tasks"]["glad"]
    (bundle.root / "bundle.json").write_text(json.dumps(old))
    with pytest.raises(CorruptFile) as caught:
        Bundle.open(bundle.root)
    said = str(caught.value)
    name = "short" if owner == ADAPTERS else "sad"
    assert f"task '{name}'" in said and owner.split(":", 1)[1] in said and wanted in said and found in said
    unchecked = Bundle.open(bundle.root, verify=False)
    with pytest.raises(CorruptFile, match="needs other arrays"):
        unchecked.others(name)
    # each task that is hit is named by itself, and only they
    hit = {error.path.parent.parent.name for error in unchecked.touched()}
    assert hit == (set(ADAPTED) if owner == ADAPTERS else set(GROUP))


def test_a_forged_path_that_the_family_does_not_fit_is_refused_when_it_is_read(bundle):
    path = bundle.root / "tasks/sad/v0001/task.json"
    edit(path, lambda t: t["path"]["nodes"][0]["prompts"][0].update(rows=4))
    record = hashlib.sha256(path.read_bytes()).hexdigest()
    edit(bundle.root / "bundle.json", lambda b: b["tasks"]["sad"].update(record=record))
    forged = Bundle.open(bundle.root)
    with pytest.raises(CorruptFile, match="does not fit the arrays that it needs"):
        forged.others("sad")
    assert set(forged.others("glad")) == set(bundle.others("glad"))


def test_a_family_or_task_that_is_gone_is_told(bundle):
    edit(bundle.root / "bundle.json", lambda b: b["families"].pop(ADAPTERS))
    with pytest.raises(CorruptFile, match="arrays of nobody"):
        Bundle.open(bundle.root)


@pytest.mark.parametrize("file", ["family.json", "part.safetensors"])
@pytest.mark.parametrize("damage", ["bit", "missing"])
def test_a_touched_file_of_a_family_is_named(bundle, file, damage):
    path = bundle.root / "families/adapters/v0001" / file
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1
    path.unlink()
    if damage == "bit":
        path.write_bytes(bytes(raw))
    unchecked = Bundle.open(bundle.root, verify=False)
    with pytest.raises(CorruptFile, match=file.replace(".", r"\.")):
        unchecked.others("long")
    named = {str(error.path.relative_to(bundle.root)) for error in unchecked.touched()}
    assert named == {f"families/adapters/v0001/{file}"}


@pytest.mark.parametrize(
    "name", ["family:../up", "family:a/b", "family:", "family", "family:.x", "family:a:..:b", "family:a.", "task:a"]
)
def test_a_family_name_that_leaves_the_bundle_is_refused(bundle, name):
    edit(bundle.root / "bundle.json", lambda b: b["families"].update({name: b["families"][ADAPTERS]}))
    with pytest.raises(BadName):
        Bundle.open(bundle.root, verify=False)
    with pytest.raises(BadName):
        check_family(name)


def test_a_link_in_the_place_of_a_family_is_refused(bundle):
    outside = bundle.root.parent / "outside"
    (bundle.root / "families/adapters").rename(outside)
    (bundle.root / "families/adapters").symlink_to(outside)
    with pytest.raises(CorruptFile, match="is a link"):
        Bundle.open(bundle.root)
    with pytest.raises(CorruptFile, match="is a link"):
        add(bundle.root, adapters(bundle.digest, seed=1), replace=True)
    assert [path.name for path in outside.iterdir()] == ["v0001"]


def refused_adds(trunk):
    drafts, families = adapters(trunk, seed=1, names=("new",), called="family:new")
    (one,), (shared,) = drafts, families
    wrong = {name: array[..., :1] for name, array in shared.arrays.items()}
    more = {**shared.arrays, "extra": np.ones(2, np.float32)}
    foreign = msgspec.structs.replace(one.record.path.head, part="task:alone")
    path = plan.Path(nodes=(*one.record.path.nodes[:-1], foreign))
    stolen = msgspec.structs.replace(one, record=msgspec.structs.replace(one.record, path=path))
    named = msgspec.structs.replace(one, record=msgspec.structs.replace(one.record, needs={"family:new": "0" * 64}))
    return {
        "needs the arrays of family 'new'": ([one], [], BundleError),
        "as task 'new' reads them": ([one], [msgspec.structs.replace(shared, arrays=wrong)], WeightsMismatch),
        "extra": ([one], [msgspec.structs.replace(shared, arrays=more)], WeightsMismatch),
        "no task that is added reads family 'other'": (
            [one],
            [shared, family("family:other", adapted("x", trunk, "family:other"))],
            BundleError,
        ),
        "a family 'adapters' already": adapters(trunk, seed=1, names=("new",)) + (BadName,),
        "differs from another in case alone": adapters(trunk, names=("new",), called="family:Adapters") + (BadName,),
        "not its own": ([stolen], [shared], BundleError),
        "another digest of its needs": ([named], [shared], BundleError),
        "cannot have this name": adapters(trunk, names=("new",), called="family:a/b") + (BadName,),
    }


def test_what_does_not_belong_together_is_refused_and_nothing_is_left(bundle):
    before = contents(bundle.root)
    cases = refused_adds(bundle.digest)
    for words, (drafts, families, error) in cases.items():
        with pytest.raises(error, match=words):
            add_tasks(bundle.root, drafts, families=families)
        assert contents(bundle.root) == before, words
    assert len(cases) == 9 and not (bundle.root / "families/new").exists()


def test_a_task_joins_a_family_that_is_there(bundle):
    family_files = contents(bundle.root / "families")
    drafts, families = adapters(bundle.digest, names=("third",))
    add_tasks(bundle.root, drafts)  # reads the live one
    joined = Bundle.open(bundle.root)
    assert joined.tasks["third"].needs == joined.tasks["short"].needs
    add_tasks(bundle.root, adapters(bundle.digest, names=("fourth",))[0], families=families)  # the same arrays
    assert contents(bundle.root / "families") == family_files
    assert Bundle.open(bundle.root).tasks["fourth"].needs == joined.tasks["short"].needs


def test_a_view_of_some_tasks_still_reads_what_they_need(bundle):
    view = bundle.view({"sad": bundle.lines["sad"]})
    assert list(view.tasks) == ["sad"] and set(view.others("sad")) == set(bundle.others("sad"))
    add(bundle.root, group(bundle.digest, seed=1), replace=True)
    new = Bundle.open(bundle.root)
    old = new.view({name: bundle.lines[name] for name in ("sad", "glad", "calm")})
    assert old.tasks["sad"].needs["task:glad"] == old.tasks["glad"].arrays
    with pytest.raises(CorruptFile, match="prompts:moods"):  # of which the new version is live
        old.others("sad")
    assert bundle.others("sad").keys() == new.others("sad").keys()  # a snapshot reads on


def test_names_of_families_that_come_to_a_bundle():
    there = {"family:a": "1", "family:a-2": "2", "family:b": "3"}
    assert new_names({"family:a": "1"}, there) == {"family:a": "family:a"}
    assert new_names({"family:a": "2"}, there) == {"family:a": "family:a-2"}
    assert new_names({"family:a": "9"}, there) == {"family:a": "family:a-3"}
    assert new_names({"family:A": "9"}, there) == {"family:A": "family:A-3"}  # folders that ignore case
    assert new_names({"family:a": "9"}, there, free=["family:a"]) == {"family:a": "family:a"}
    assert new_names({"family:c": "3"}, there) == {"family:c": "family:b"}
    assert new_names({"family:c": "3", "family:d": "3"}, there) == {"family:c": "family:b", "family:d": "family:d"}


def test_an_old_reader_names_the_key_that_it_does_not_know(bundle):
    """Keys of the first day alone, read strictly, as the readers of before have it."""

    class Old(msgspec.Struct, forbid_unknown_fields=True):
        format: int
        trunk: str
        tasks: dict[str, object]

    with pytest.raises(PolyheadError, match="unknown key 'families'"):
        from_json((bundle.root / "bundle.json").read_bytes(), Old, source="bundle.json")
