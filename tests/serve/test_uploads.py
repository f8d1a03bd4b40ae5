"""Uploads are checked while they stream: what is no task's file never reaches the disk, nor anything the bundle."""

import io
import json
import tarfile

import msgspec
import numpy as np
import pytest

from polyhead.bundle.create import write_bundle
from polyhead.bundle.read import Bundle
from polyhead.bundle.task_archive import tar_header, upload_bytes
from polyhead.errors import BundleError, CorruptFile, PolyheadError, WrongTrunk
from polyhead.serve.http import HttpError
from polyhead.serve.uploads import BLOCK, Receiver, Staging, staged, sweep_uploads
from polyhead.testing import tiny_trunk
from support.admin_server import TRUNK, add, draft, labelled, make, sha, upload
from support.commands import run
from support.prompt_groups import ADAPTERS, adapters, group
from support.prompt_groups import add as add_group

MOST = 10**6


def read(folder, content, *, name="mood", most=MOST, step=1000):
    folder.mkdir(exist_ok=True)
    receiver = Receiver(folder, name, most=most)
    try:
        for start in range(0, len(content), step):
            receiver.feed(content[start : start + step])
        receiver.end()
    finally:
        receiver.close()
    return receiver


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def members(content):
    """Name -> bytes, as Python's own tarfile reads it."""
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar.getmembers()}


def archive(contents):
    """A tar of these members, by Python's own tarfile."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in contents.items():
            facts = tarfile.TarInfo(name)
            facts.size = len(content)
            tar.addfile(facts, io.BytesIO(content))
    return raw.getvalue()


@pytest.fixture
def content(tmp_path):
    return upload(tmp_path, "mood", 3)


@pytest.fixture
def target(tmp_path):
    return make(tmp_path / "b", "topics")


@pytest.mark.parametrize("step", [1, 511, 512, 100_000])
def test_a_packed_task_is_read_back_byte_for_byte_however_it_is_cut(tmp_path, content, step):
    read(tmp_path / "in", content, step=step)
    root = next(tmp_path.glob("mood-3-*"))
    version = root / "tasks" / "mood" / "v0001"
    theirs = {f"tasks/mood/v0001/{path.name}": path.read_bytes() for path in version.iterdir()}
    trunk = {"trunk/trunk.json": (root / "trunk" / "trunk.json").read_bytes()}  # which says of what trunk the task is
    assert files(tmp_path / "in") == theirs | trunk


def test_other_programs_read_and_write_the_same(tmp_path, content):
    theirs = members(content)
    assert set(theirs) == {"task.json", "part.safetensors", "scores.json", "probes.jsonl", "README.md", "trunk.json"}
    read(tmp_path / "in", archive(theirs))
    assert {name.rpartition("/")[2]: raw for name, raw in files(tmp_path / "in").items()} == theirs


def test_families_travel_along_and_a_group_does_not(tmp_path):
    root = tmp_path / "groups"
    write_bundle(root, TRUNK)
    add_group(root, adapters(TRUNK.digest, shape=TRUNK.architecture))
    add_group(root, group(TRUNK.digest, shape=TRUNK.architecture))
    content = b"".join(upload_bytes(Bundle.open(root), "short"))
    folder = f"families/{ADAPTERS.partition(':')[2]}"
    assert {f"{folder}/family.json", f"{folder}/part.safetensors"} < set(members(content))
    read(tmp_path / "in", content, name="short")
    upload = staged(tmp_path / "in", "short", root)
    assert upload.record == Bundle.open(root).record("short")
    with pytest.raises(BundleError, match="prompts of other tasks"):
        b"".join(upload_bytes(Bundle.open(root), "sad"))


def link(name, target="/etc/passwd", kind=tarfile.SYMTYPE):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        facts = tarfile.TarInfo(name)
        facts.type, facts.linkname = kind, target
        tar.addfile(facts)
    return raw.getvalue()


HOSTILE = {
    "symbolic link": (link("part.safetensors"), "no plain file"),
    "hard link": (link("part.safetensors", "task.json", tarfile.LNKTYPE), "no plain file"),
    "device": (link("task.json", kind=tarfile.CHRTYPE), "no plain file"),
    "pipe": (link("task.json", kind=tarfile.FIFOTYPE), "no plain file"),
    "folder": (link("families", kind=tarfile.DIRTYPE), "no plain file"),
    "absolute": (archive({"/etc/passwd": b"x"}), "none of a task's"),
    "above": (archive({"../task.json": b"x"}), "none of a task's"),
    "dotted": (archive({"./task.json": b"x"}), "none of a task's"),
    "family above": (archive({"families/../task.json": b"x"}), "none of a task's"),
    "family dotted": (archive({"families/a..b/family.json": b"x"}), "cannot have this name"),
    "foreign": (archive({"task.py": b"x"}), "none of a task's"),
    "other line end": (archive({"task.json\n": b"x"}), "none of a task's"),
    "twice": (archive({"task.json": b"x"})[: 2 * BLOCK] * 2, "twice"),
    "long name": (tar_header("task.json", 0)[:345] + b"a" + tar_header("task.json", 0)[346:], "no tar"),
    "no tar": (b"{" * 2 * BLOCK, "no tar"),
    "negative size": (tar_header("task.json", 0)[:124] + b"-0000000001\0" + tar_header("task.json", 0)[136:], "no tar"),
    "wrong sum": (tar_header("task.json", 0)[:100] + b"9" + tar_header("task.json", 0)[101:], "no tar"),
    "gzip": (b"\x1f\x8b" + bytes(BLOCK), "compressed"),
    "after its end": (bytes(2 * BLOCK) + tar_header("task.json", 0), "goes on after its end"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_tar_is_refused_and_nothing_of_it_is_written(tmp_path, name):
    raw, why = HOSTILE[name]
    with pytest.raises(PolyheadError, match=why):
        read(tmp_path / "in", raw)
    kept = files(tmp_path / "in")
    assert kept == ({"tasks/mood/v0001/task.json": b"x"} if name == "twice" else {})
    assert {path.name for path in tmp_path.iterdir()} == {"in"}


def test_a_member_that_says_it_is_huge_is_refused_by_its_header(tmp_path):
    for size in (8**11 - 1, MOST + 1):
        with pytest.raises(HttpError, match="too large") as caught:
            read(tmp_path / "in", tar_header("part.safetensors", size) + bytes(BLOCK))
        assert caught.value.status == 413
    with pytest.raises(HttpError, match="README.md is too large"):
        read(tmp_path / "in", tar_header("README.md", 2**20 + 1), most=2**30)
    assert files(tmp_path / "in") == {}


def test_an_upload_that_goes_on_and_on_is_cut_off(tmp_path, content):
    with pytest.raises(HttpError, match="too large") as caught:
        read(tmp_path / "in", content + bytes(MOST))
    assert caught.value.status == 413


@pytest.mark.parametrize("lost", ["task.json", "part.safetensors", "scores.json", "probes.jsonl", "README.md", "end"])
def test_an_upload_that_is_not_whole_is_refused(tmp_path, content, lost):
    raw = content[: -3 * BLOCK] if lost == "end" else archive({n: c for n, c in members(content).items() if n != lost})
    with pytest.raises(HttpError, match="cut short" if lost == "end" else f"lacks {lost}") as caught:
        read(tmp_path / "in", raw)
    assert caught.value.status == 422


def changed_record(contents, **fields):
    record = json.loads(contents["task.json"])
    return {**contents, "task.json": json.dumps({**record, **fields}).encode()}


def test_what_does_not_fit_is_refused_by_its_reason(tmp_path, content, target):
    whole = members(content)
    record = json.loads(whole["task.json"])
    part = whole["part.safetensors"]
    cases = {
        "flipped bit": ({**whole, "part.safetensors": part[:-1] + bytes([part[-1] ^ 1])}, "changed since"),
        "no arrays": ({**whole, "part.safetensors": b"\xff" * 64}, "changed since|safetensors"),
        "other scores": ({**whole, "scores.json": b'{"splits": {}}'}, "changed since"),
        "no json": ({**whole, "task.json": b"{"}, "cannot be understood"),
        "foreign key": (changed_record(whole, auto_map="x"), "auto_map"),
        "other labels": (
            changed_record(whole, task={**record["task"], "labels": ["a", "b", "c"]}),
            "does not answer it",
        ),
        "other name": (changed_record(whole, task={**record["task"], "name": "moods"}), "another task"),
        "scores that are none": (hashed(whole, "scores.json", b'{"splits": [1]}'), "cannot be read as JSON"),
        "probes that are none": (hashed(whole, "probes.jsonl", b'{"texts": 1}\n'), "no probe"),
        "family that nobody reads": ({**whole, **a_family(tmp_path)}, "does not read"),
    }
    for number, (contents, why) in enumerate(cases.values()):
        folder = tmp_path / f"in{number}"
        with pytest.raises(PolyheadError, match=why):
            read(folder, archive(contents))
            staged(folder, "mood", target)
    assert list(Bundle.open(target).tasks) == ["topics"]


def hashed(contents, name, raw):
    """The contents with another file, as if it had been written with the task."""
    record = json.loads(contents["task.json"])
    record["files"][name] = sha(raw)
    return {**contents, name: raw, "task.json": json.dumps(record).encode()}


def a_family(tmp_path):
    root = tmp_path / "of families"
    write_bundle(root, TRUNK)
    add_group(root, adapters(TRUNK.digest, shape=TRUNK.architecture))
    return {n: raw for n, raw in members(b"".join(upload_bytes(Bundle.open(root), "short"))).items() if "/" in n}


def test_a_task_of_another_trunk_is_refused_and_both_are_named(tmp_path, target):
    other = tiny_trunk(seed=9)
    read(tmp_path / "in", upload(tmp_path, "mood", 1, trunk=other))
    with pytest.raises(WrongTrunk, match="trunk") as caught:
        staged(tmp_path / "in", "mood", target)
    assert (caught.value.got, caught.value.allowed) == (f"trunk {other.digest}", f"trunk {TRUNK.digest}")


def test_arrays_that_are_no_numbers_are_refused(tmp_path, target):
    own = draft("mood", 3)
    arrays = {name: np.full_like(array, np.nan) for name, array in own.arrays.items()}
    with pytest.raises((PolyheadError, CorruptFile), match="finite|not finite|NaN"):
        read(tmp_path / "in", upload(tmp_path, "mood", 4, arrays=arrays))
        staged(tmp_path / "in", "mood", target)


def test_a_staged_folder_is_private_unguessable_and_swept_once_its_server_is_gone(target):
    first, second = Staging(target), Staging(target)
    assert first.root.parent == target.parent and first.root.name != second.root.name
    assert first.root.stat().st_mode & 0o077 == 0
    second._held.close()  # as if its process had been killed
    foreign = target.parent / f".upload-{'0' * 32}"
    foreign.mkdir()
    (foreign / "mine.txt").write_text("not a server's")
    sweep_uploads(target)
    assert first.root.is_dir() and not second.root.exists() and foreign.is_dir()
    first.close()
    assert not first.root.exists()


def test_pack_writes_what_is_uploaded_and_refuses_what_is_damaged(tmp_path, target):
    out = tmp_path / "topics.tar"
    done = run("tasks", "pack", target, "topics", "-o", out)
    assert out.read_bytes() == b"".join(upload_bytes(Bundle.open(target), "topics"))
    assert done.code == 0 and "topics (v0001)" in done.out
    part = target / "tasks" / "topics" / "v0001" / "part.safetensors"
    part.write_bytes(part.read_bytes()[:-1] + b"\7")
    run("tasks", "pack", target, "topics", "-o", tmp_path / "no.tar").refuses("changed since")
    assert not (tmp_path / "no.tar").exists()
    run("tasks", "pack", target, "nobody", "-o", tmp_path / "no.tar").refuses("nobody")


def test_a_task_of_other_labels_is_another_task_of_that_name(tmp_path, target):
    add(target, "mood", 1)
    content = upload(tmp_path, "mood", 5, task=labelled("mood", "down", "up", "flat"))
    read(tmp_path / "in", content)
    assert msgspec.structs.asdict(staged(tmp_path / "in", "mood", target))["record"].task.labels == (
        "down",
        "up",
        "flat",
    )
