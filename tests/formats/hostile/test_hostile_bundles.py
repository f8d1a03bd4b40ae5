"""Bundles made with bad intent: refused with an error of ours, and nothing read or written outside."""

import hashlib
import json
import os

import pytest

from formats.write_v1 import golden_part, golden_record, write
from polyhead.bundle import manifest
from polyhead.bundle.read import Bundle
from polyhead.errors import BadName, BundleError, CorruptFile, UnknownFormat, WrongTrunk


@pytest.fixture
def root(tmp_path):
    return write(tmp_path / "bundle").root


def edit(path, change):
    content = json.loads(path.read_bytes())
    change(content)
    path.write_text(json.dumps(content))


def forge_task(root, change):
    """Edits task.json and puts its new hash into bundle.json, as one who knows the format would."""
    path = root / "tasks/mood/v0001/task.json"
    edit(path, change)
    hashed = hashlib.sha256(path.read_bytes()).hexdigest()
    edit(root / "bundle.json", lambda bundle: bundle["tasks"]["mood"].update(record=hashed))


@pytest.mark.parametrize("name", ["../../etc", "a/b", "/etc", "..", ".", "", "nul\0", "x" * 300])
def test_task_name_that_leaves_the_bundle_is_refused(root, name):
    edit(root / "bundle.json", lambda b: b["tasks"].update({name: b["tasks"]["mood"]}))
    with pytest.raises(BadName):
        Bundle.open(root, verify=False)


@pytest.mark.parametrize("version", ["../mood", "v1", "", "v0001/..", "v" + "9" * 50, "/tmp"])
def test_version_that_leaves_the_bundle_is_refused(root, version):
    edit(root / "bundle.json", lambda b: b["tasks"]["mood"].update(version=version))
    with pytest.raises(CorruptFile, match="version"):
        Bundle.open(root, verify=False)


@pytest.mark.parametrize(
    "place",
    ["bundle.json", "trunk", "trunk/trunk.json", "trunk/weights.safetensors", "trunk/tokenizer.json", "tasks"]
    + ["tasks/mood", "tasks/mood/v0001", "tasks/mood/v0001/task.json", "tasks/mood/v0001/part.safetensors"],
)
def test_link_is_refused_even_to_the_very_same_content(root, place):
    outside = root.parent / "outside"
    (root / place).rename(outside)
    (root / place).symlink_to(outside)
    with pytest.raises(CorruptFile, match="is a link"):
        Bundle.open(root).verify()


def test_task_is_not_written_through_a_link(root):
    bundle = Bundle.open(root)
    outside = root.parent / "outside"
    (root / "tasks").rename(outside)
    (root / "tasks").symlink_to(outside)
    with pytest.raises(CorruptFile, match="is a link"):
        bundle.add_task(golden_record(bundle.digest), golden_part(), scores={}, probes=[], card="", replace=True)
    with pytest.raises(CorruptFile, match="is a link"):
        bundle.remove_task("mood")
    assert [path.name for path in outside.iterdir()] == ["mood"]
    assert [path.name for path in (outside / "mood").iterdir()] == ["v0001"]


@pytest.mark.parametrize("place", ["bundle.json", "trunk/trunk.json", "tasks/mood/v0001/task.json"])
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
def test_pipe_does_not_hang_the_reader(root, place):
    (root / place).unlink()
    os.mkfifo(root / place)
    with pytest.raises(BundleError):
        Bundle.open(root)


def test_folder_in_the_place_of_a_file_is_refused(root):
    (root / "trunk/tokenizer.json").unlink()
    (root / "trunk/tokenizer.json").mkdir()
    with pytest.raises(CorruptFile, match=r"tokenizer\.json"):
        Bundle.open(root)


@pytest.mark.parametrize("number", [0, 2, 999, -1])
def test_unknown_format_number_is_refused_before_anything_else_is_read(root, number):
    (root / "bundle.json").write_text(json.dumps({"format": number, "whatever": "new"}))
    with pytest.raises(UnknownFormat, match=f"format {number}"):
        Bundle.open(root)


BAD_JSON = {
    "empty": b"",
    "not utf-8": b'{"format": 1, "trunk": "\xff\xfe"}',
    "utf-16": '{"format": 1}'.encode("utf-16"),
    "deep list": b"[" * 1_000_000,
    "deep value": b'{"format": 1, "tasks": ' + b'{"a":' * 200_000,
    "a number": b"7",
    "format is text": b'{"format": "1"}',
    "format is huge": b'{"format": 1' + b"0" * 5000 + b"}",
    "no trunk": b'{"format": 1, "tasks": {}}',
    "trunk is no digest": b'{"format": 1, "trunk": "../..", "tasks": {}}',
    "unknown key": b'{"format": 1, "trunk": "' + b"0" * 64 + b'", "tasks": {}, "run": "rm"}',
    "lone surrogate": b'{"format": 1, "trunk": "\\ud800", "tasks": {}}',
}


@pytest.mark.parametrize("name", BAD_JSON)
def test_json_that_makes_no_sense_is_refused(root, name):
    (root / "bundle.json").write_bytes(BAD_JSON[name])
    with pytest.raises(BundleError, match=r"bundle\.json"):
        Bundle.open(root)


def test_json_that_is_huge_is_refused_without_being_read(root, monkeypatch):
    monkeypatch.setattr(manifest, "LARGEST_JSON", 100)
    with pytest.raises(CorruptFile, match="too large"):
        Bundle.open(root)


HOSTILE_TASKS = {
    "another name": lambda t: t["task"].update(name="other"),
    "name that leaves": lambda t: t["task"].update(name="../x"),
    "a billion layers": lambda t: t["path"]["nodes"][1].update(stop=10**9),
    "a billion own layers": lambda t: t["path"]["nodes"][1].update(stop=10**9, weights="task:mood"),
    "no head": lambda t: t["path"]["nodes"].pop(),
    "no nodes": lambda t: t["path"].update(nodes=[]),
    "nodes out of order": lambda t: t["path"]["nodes"].reverse(),
    "unknown node": lambda t: t["path"]["nodes"][1].update(type="custom", code="import os"),
    "another owner": lambda t: t.update(owner="task:other"),
    "another kind of head": lambda t: t["path"]["nodes"][-1].update(kind="tagging"),
    "wider head": lambda t: t["path"]["nodes"][-1].update(width=3),
    "needs that the path has not": lambda t: t.update(needs={"family:x": "0" * 64}),
    "arrays of a family that it does not need": lambda t: t["path"]["nodes"][-1].update(part="family:x"),
    "the head of another task": lambda t: (
        t["path"]["nodes"][-1].update(part="task:other"),
        t.update(needs={"task:other": "0" * 64}),
    ),
    "a family that leaves": lambda t: (
        t["path"]["nodes"][-1].update(part="family:../x"),
        t.update(needs={"family:../x": "0" * 64}),
    ),
    "needs of a family that is not there": lambda t: (
        t["path"]["nodes"][-1].update(part="family:x"),
        t.update(needs={"family:x": "0" * 64}),
    ),
    "unknown kind": lambda t: t["task"].update(kind="pickle"),
    "same label twice": lambda t: t["task"].update(labels=["up", "up"]),
    "labels are numbers": lambda t: t["task"].update(labels=[1, 2]),
}


@pytest.mark.parametrize("name", HOSTILE_TASKS)
def test_forged_task_is_refused(root, name):
    forge_task(root, HOSTILE_TASKS[name])
    with pytest.raises(BundleError):
        Bundle.open(root)


def test_forged_task_of_another_trunk_names_both(root):
    forge_task(root, lambda t: t.update(trunk="f" * 64))
    with pytest.raises(WrongTrunk) as caught:
        Bundle.open(root)
    assert "f" * 64 in str(caught.value) and Bundle.open(root, verify=False).digest in str(caught.value)


def test_forged_path_that_the_part_does_not_fit_is_refused_when_the_part_is_read(root):
    forge_task(root, lambda t: t["path"]["nodes"][-1].update(hidden=8))
    bundle = Bundle.open(root)
    with pytest.raises(CorruptFile, match="does not fit"):
        bundle.part("mood")


def test_task_that_names_files_outside_is_refused(root):
    forge_task(root, lambda t: t["files"].update({"../../../secret": "0" * 64}))
    with pytest.raises(CorruptFile, match="foreign file"):
        Bundle.open(root).verify()


def test_trunk_of_a_billion_layers_is_refused_at_once(root):
    edit(root / "trunk/trunk.json", lambda t: t["architecture"].update(layers=10**9))
    with pytest.raises(CorruptFile, match="layers"):
        Bundle.open(root)


@pytest.mark.parametrize("change", [{"width": 0}, {"heads": 3}, {"layers": -1}, {"family": "gpt"}])
def test_trunk_of_no_shape_is_refused(root, change):
    edit(root / "trunk/trunk.json", lambda t: t["architecture"].update(change))
    with pytest.raises(CorruptFile, match=r"trunk\.json"):
        Bundle.open(root)


def test_trunk_whose_arrays_do_not_fit_its_own_digests_is_refused(root):
    """The shape is forged together with the digest in bundle.json; the arrays still tell."""
    edit(root / "trunk/trunk.json", lambda t: t["architecture"].update(layers=1))
    record = manifest.read_trunk_record(root)
    tokenizer = manifest.read_tokenizer(root, record)
    forged = manifest.trunk_digest(record.architecture, record.arrays, tokenizer, record.settings)
    edit(root / "bundle.json", lambda b: b.update(trunk=forged, tasks={}))
    with pytest.raises(CorruptFile, match="contradicts itself"):
        Bundle.open(root).trunk()
