"""Tasks that own their models, beside those that read the trunk: whole or not there, and found where damaged."""

import hashlib
import json
import shutil

import msgspec
import numpy as np
import pytest

from polyhead.bundle.create import write_bundle
from polyhead.bundle.format import BUNDLE, MODEL_FILES, TASKS
from polyhead.bundle.merge import copy_tasks
from polyhead.bundle.models import ModelDraft, read_model
from polyhead.bundle.packed import upload_bytes
from polyhead.bundle.read import Bundle
from polyhead.bundle.remove import sweep_bundle
from polyhead.bundle.write import add_tasks, set_versions
from polyhead.certify import verify
from polyhead.encoder.summarizer import Seq2SeqData, SummarySettings
from polyhead.errors import BadName, BundleError, CorruptFile, UnknownTask
from polyhead.evaluate.compare import version_view
from polyhead.plan import Pool
from polyhead.tasks.task import Task
from polyhead.testing import tiny_trunk
from polyhead.testing.strategies import add_tiny
from polyhead.testing.tiny import tiny_path
from support.disk_failures import FullDisk

DATA = Seq2SeqData(
    name="by hand",
    config=b'{"model_type": "bart"}',
    generation=b"{}",
    tokenizer=b'{"version": "1.0"}',
    arrays={"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, np.float32)},
    settings=SummarySettings(max_tokens=16, summary_tokens=8),
)


def draft(name="brief", **changes):
    return ModelDraft(
        task=Task(name=name, kind="summarization"),
        data=msgspec.structs.replace(DATA, **changes),
        trained_with={"seed": 1},
        scores={"splits": {"validation": {"rouge_l": 0.25}, "test": {"rouge_l": 0.5}}},
        probes=[{"text": ["a document"]}],
        card="# brief\n",
    )


def add_model(root, draft, *, replace=False):
    """The name of the version that is live now."""
    return add_tasks(root, [draft], replace=replace)[draft.task.name]


def add_mood(root):
    """A task that reads the trunk."""
    task, trunk = Task(name="mood", kind="single_label", labels=("a", "b")), Bundle.open(root).trunk()
    add_tiny(root, trunk, task, tiny_path(task, trunk, pool=Pool(positions="mean")), seed=0)


def model(root, name="brief"):
    return read_model(Bundle.open(root, verify=False), name)


@pytest.fixture
def root(tmp_path):
    """A bundle without tasks."""
    return write_bundle(tmp_path / "bundle", tiny_trunk()).root


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_model_comes_back_as_it_was_written(root):
    assert add_model(root, draft()) == "v0001"
    found, data = Bundle.open(root), model(root)
    assert data.digest == DATA.digest and data.files == DATA.files and data.settings == DATA.settings
    assert found.record("brief").task == Task(name="brief", kind="summarization")
    assert found.headline("brief") == ("rouge_l", 0.5)
    assert found.probes("brief") == [{"text": ["a document"]}] and found.card("brief") == "# brief\n"
    assert found.record("brief").trained_with == {"seed": 1}
    assert set(found.record("brief").files) == set(MODEL_FILES)
    assert list(found.tasks) == ["brief"] and not found.readers and list(found.touched()) == []
    assert {name: array.tobytes() for name, array in found.part("brief").items()} == {
        name: array.tobytes() for name, array in DATA.arrays.items()
    }
    assert json.loads((root / BUNDLE).read_text())["tasks"]["brief"]["owns_model"] is True
    found.verify()
    with pytest.raises(BundleError, match="owns its model"):
        next(upload_bytes(found, "brief"))


def test_a_new_version_takes_the_place_of_the_old(root):
    add_model(root, draft())
    old = Bundle.open(root)
    with pytest.raises(BadName, match="already"):
        add_model(root, draft())
    assert add_model(root, draft(generation=b'{"a": 1}'), replace=True) == "v0002"
    assert model(root).generation == b'{"a": 1}'
    assert read_model(old, "brief").generation == b"{}"  # an open one goes on reading what was live
    Bundle.open(root).remove_task("brief")
    assert not Bundle.open(root).tasks and not (root / TASKS / "brief").exists()
    with pytest.raises(UnknownTask):
        model(root)


def test_no_version_of_a_task_is_of_the_other_sort(root):
    add_model(root, draft())
    add_mood(root)
    before = files_of(root)
    with pytest.raises(BadName, match="reads the trunk"):
        add_model(root, draft("mood"), replace=True)
    with pytest.raises(BadName, match="alone"):
        add_model(root, draft("Mood"))
    assert files_of(root) == before


def test_a_full_disk_leaves_the_state_before(root, tmp_path, monkeypatch):
    add_model(root, draft())
    whole = files_of(root)
    failing = 0
    while True:
        failing += 1
        copy = tmp_path / f"copy-{failing}"
        shutil.copytree(root, copy)
        with monkeypatch.context() as patch:
            FullDisk(patch, failing)
            try:
                add_model(copy, draft(generation=b'{"a": 1}'), replace=True)
                break
            except BundleError as error:
                assert "disk is full" in str(error)
        if Bundle.open(copy).version("brief") == "v0001":  # else its last flush alone failed
            assert files_of(copy) == whole, failing
        model(copy)
    assert failing > 12
    assert model(copy).generation == b'{"a": 1}'


def test_an_older_version_is_brought_back_and_the_newer_one_again(root):
    add_model(root, draft())
    add_model(root, draft(generation=b'{"a": 1}'), replace=True)
    newer = (root / BUNDLE).read_bytes()
    for version, generation in (("v0001", b"{}"), ("v0002", b'{"a": 1}')):
        set_versions(root, {"brief": version})
        assert model(root).generation == generation
        assert Bundle.open(root).versions("brief") == ["v0001", "v0002"]
        assert Bundle.open(root).lines["brief"].pinned == (version == "v0001")
        assert model(root).digest == read_model(version_view(Bundle.open(root), "brief", version), "brief").digest
    assert (root / BUNDLE).read_bytes() == newer
    with pytest.raises(BundleError, match="v0007"):
        set_versions(root, {"brief": "v0007"})


def test_an_older_version_that_was_touched_is_found_and_not_brought_back(root):
    add_model(root, draft())
    add_model(root, draft(), replace=True)
    assert verify(root) == []
    file = root / TASKS / "brief" / "v0001" / "config.json"
    file.write_bytes(b"{}")
    assert [(found.task, found.file) for found in verify(root)] == [("brief", "tasks/brief/v0001/config.json")]
    assert list(Bundle.open(root).touched()) == []
    with pytest.raises(CorruptFile, match=r"config\.json"):
        set_versions(root, {"brief": "v0001"})
    assert Bundle.open(root).version("brief") == "v0002"


def test_models_are_copied_byte_for_byte_or_under_another_name(root, tmp_path):
    """The trunks differ: a model reads none."""
    other = write_bundle(tmp_path / "other", tiny_trunk(seed=3))
    add_model(root, draft())
    add_model(root, draft(generation=b'{"a": 1}'), replace=True)
    source = Bundle.open(root)
    assert copy_tasks(source, ["brief"], other) == {"brief": "v0001"}
    assert files_of(other.root / TASKS / "brief" / "v0001") == files_of(root / TASKS / "brief" / "v0002")
    assert copy_tasks(source, ["brief"], other, called={"brief": "Short"}) == {"Short": "v0001"}
    copied = Bundle.open(other.root)
    assert copied.record("Short").task.name == "Short"
    assert model(other.root, "Short").digest == model(other.root).digest
    assert list(copied.touched()) == []
    with pytest.raises(BadName, match="alone"):
        copy_tasks(source, ["brief"], other, called={"brief": "short"})
    assert copy_tasks(source, ["brief"], other, replace=True) == {"brief": "v0002"}
    with pytest.raises(BundleError, match="itself"):
        copy_tasks(source, ["brief"], source, replace=True)
    with pytest.raises(UnknownTask):
        copy_tasks(source, ["nobody"], other)


@pytest.mark.parametrize("file", [*MODEL_FILES, "task.json"])
def test_a_model_that_was_touched_is_named_and_not_copied(root, tmp_path, file):
    other = write_bundle(tmp_path / "other", tiny_trunk())
    add_model(root, draft())
    source, path = Bundle.open(root), root / TASKS / "brief" / "v0001" / file
    path.write_bytes(path.read_bytes() + b" ")
    before = files_of(other.root)
    with pytest.raises(CorruptFile, match=file):
        copy_tasks(Bundle.open(root, verify=False), ["brief"], other)
    assert files_of(other.root) == before and not (other.root / TASKS / "brief").exists()
    assert any(error.facts["path"] == path for error in Bundle.open(root, verify=False).touched())
    with pytest.raises(CorruptFile, match=file):
        source.view(source.lines).verify()


def test_several_models_are_copied_or_none(root, tmp_path, monkeypatch):
    add_tasks(root, [draft(), draft("other")])
    failing, source = 0, Bundle.open(root)
    while True:
        failing += 1
        target = write_bundle(tmp_path / str(failing), tiny_trunk())
        before = files_of(target.root)
        with monkeypatch.context() as patch:
            FullDisk(patch, failing)
            try:
                copy_tasks(source, ["brief", "other"], target)
                break
            except BundleError as error:
                assert "disk is full" in str(error)
        if not Bundle.open(target.root).tasks:  # else the last flush alone failed
            assert files_of(target.root) == before, failing
    assert failing > 30 and list(Bundle.open(target.root).touched()) == []


def test_what_a_killed_removal_left_is_swept(root, tmp_path):
    """Killed after bundle.json was replaced, before the folder was gone: its next version would not be the first."""
    add_model(root, draft())
    left = shutil.copytree(root / TASKS / "brief", tmp_path / "left")
    Bundle.open(root).remove_task("brief")
    shutil.copytree(left, root / TASKS / "brief")
    sweep_bundle(root)
    assert not (root / TASKS).exists()
    assert add_model(root, draft()) == "v0001"


def test_arrays_that_were_exchanged_are_refused_when_read(root):
    add_model(root, draft())
    other = {name: array + 1 for name, array in DATA.arrays.items()}
    add_model(root, draft("other", arrays=other))
    folder = root / TASKS / "brief" / "v0001"
    shutil.copy(root / TASKS / "other" / "v0001" / "model.safetensors", folder / "model.safetensors")
    with pytest.raises(CorruptFile, match=r"model\.safetensors"):
        model(root)


def test_a_line_that_says_the_other_sort_is_refused(root):
    """task.json of a model under a line that says it reads the trunk, and the other way round."""
    add_model(root, draft())
    add_mood(root)
    written = json.loads((root / BUNDLE).read_text())
    for name in written["tasks"]:
        line = written["tasks"][name]
        lied = {**line, "owns_model": not line.get("owns_model", False)}
        (root / BUNDLE).write_text(json.dumps({**written, "tasks": {name: lied}}))
        with pytest.raises(CorruptFile, match=r"task\.json"):
            Bundle.open(root)


def test_a_record_without_one_of_its_files_is_refused(root):
    add_model(root, draft())
    path = root / TASKS / "brief" / "v0001" / "task.json"
    record = json.loads(path.read_text())
    del record["files"]["config.json"]
    path.write_text(json.dumps(record))
    written = json.loads((root / BUNDLE).read_text())
    written["tasks"]["brief"]["record"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (root / BUNDLE).write_text(json.dumps(written))
    with pytest.raises(CorruptFile, match="contradicts"):
        Bundle.open(root)


def test_links_are_refused(root, tmp_path):
    add_model(root, draft())
    folder = root / TASKS / "brief" / "v0001"
    shutil.move(folder / "tokenizer.json", tmp_path / "elsewhere")
    (folder / "tokenizer.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptFile, match="link"):
        model(root)
