"""Models that tasks own whole, beside the trunk and its tasks: whole or not there, found damaged, never in the way."""

import json
import shutil

import msgspec
import numpy as np
import pytest

from polyhead.bundle.create import write_bundle
from polyhead.bundle.merge import copy_models, models_added
from polyhead.bundle.models import (
    HASHED,
    LIST,
    MODELS,
    ModelDraft,
    Models,
    add_model,
    model_names,
    old_models_touched,
    remove_models,
    set_models,
)
from polyhead.bundle.read import Bundle
from polyhead.encoder.summarizer import Seq2SeqData, SummarySettings
from polyhead.errors import BadName, BundleError, CorruptFile, UnknownFormat, UnknownTask
from polyhead.tasks.task import Task
from polyhead.testing import tiny_trunk
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


@pytest.fixture
def root(tmp_path):
    """A bundle without tasks."""
    return write_bundle(tmp_path / "bundle", tiny_trunk()).root


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_model_comes_back_as_it_was_written(root):
    before = (root / "bundle.json").read_bytes()
    assert add_model(root, draft()) == "v0001"
    found = Models(root)
    data = found.data("brief")
    assert data.digest == DATA.digest and data.files == DATA.files and data.settings == DATA.settings
    assert found.tasks == {"brief": Task(name="brief", kind="summarization")}
    assert found.headline("brief") == ("rouge_l", 0.5)
    assert found.probes("brief") == [{"text": ["a document"]}] and found.card("brief") == "# brief\n"
    assert found.record("brief").trained_with == {"seed": 1}
    assert set(found.record("brief").files) == set(HASHED)
    assert found.size("brief") > 0 and list(found.touched()) == []
    assert (root / "bundle.json").read_bytes() == before
    Bundle.open(root).verify()


def test_a_bundle_without_models_has_none(root):
    assert Models(root).tasks == {} and model_names(root) == []
    with pytest.raises(UnknownTask):
        Models(root).data("brief")
    with pytest.raises(UnknownTask):
        remove_models(root, ["brief"])


def test_a_new_version_takes_the_place_of_the_old(root):
    add_model(root, draft())
    old = Models(root)
    with pytest.raises(BadName, match="already"):
        add_model(root, draft())
    assert add_model(root, draft(generation=b'{"a": 1}'), replace=True) == "v0002"
    assert Models(root).data("brief").generation == b'{"a": 1}'
    assert old.data("brief").generation == b"{}"  # an open one goes on reading what was live
    remove_models(root, ["brief"])
    assert model_names(root) == [] and not (root / MODELS / "brief").exists()


@pytest.mark.slow
def test_names_are_shared_with_the_tasks_of_the_trunk(root, tmp_path):
    from polyhead.train.run import train_project
    from support import tiny_project

    project = tiny_project.project(tmp_path, "mood")
    train_project(msgspec.structs.replace(project, bundle="both"), folder=tmp_path)
    both = tmp_path / "both"
    for name in ("mood", "Mood"):
        with pytest.raises(BadName, match="'mood' already"):
            add_model(both, draft(name))
    add_model(both, draft("names"))
    more = msgspec.structs.replace(tiny_project.project(tmp_path, "mood", "names"), bundle="both")
    with pytest.raises(BadName, match="model of its own"):
        train_project(more, folder=tmp_path)
    assert list(Bundle.open(both).tasks) == ["mood"] and model_names(both) == ["names"]


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
        if Models(copy).lines["brief"].version == "v0001":  # else its last flush alone failed
            assert files_of(copy) == whole, failing
        Models(copy).data("brief")
    assert failing > 12
    assert Models(copy).data("brief").generation == b'{"a": 1}'


def test_an_older_version_is_brought_back_and_the_newer_one_again(root):
    add_model(root, draft())
    add_model(root, draft(generation=b'{"a": 1}'), replace=True)
    newer = (root / LIST).read_bytes()
    for version, generation in (("v0001", b"{}"), ("v0002", b'{"a": 1}')):
        set_models(root, {"brief": version})
        assert Models(root).data("brief").generation == generation
        assert Models(root).versions("brief") == ["v0001", "v0002"]
    assert (root / LIST).read_bytes() == newer
    with pytest.raises(BundleError, match="v0007"):
        set_models(root, {"brief": "v0007"})
    with pytest.raises(UnknownTask):
        set_models(root, {"nobody": "v0001"})


def test_an_older_version_that_was_touched_is_found_and_not_brought_back(root):
    add_model(root, draft())
    add_model(root, draft(), replace=True)
    assert list(old_models_touched(root)) == []
    file = root / MODELS / "brief" / "v0001" / "config.json"
    file.write_bytes(b"{}")
    assert [error.path for error in old_models_touched(root)] == [file]
    assert list(Models(root).touched()) == []
    with pytest.raises(CorruptFile, match=r"config\.json"):
        set_models(root, {"brief": "v0001"})
    assert Models(root).version("brief") == "v0002"


def test_models_are_copied_byte_for_byte_or_under_another_name(root, tmp_path):
    """The trunks differ: a model reads none."""
    other = write_bundle(tmp_path / "other", tiny_trunk(seed=3)).root
    add_model(root, draft())
    add_model(root, draft(generation=b'{"a": 1}'), replace=True)
    assert copy_models(Models(root), {"brief": "brief"}, other) == {"brief": "v0001"}
    assert files_of(other / MODELS / "brief" / "v0001") == files_of(root / MODELS / "brief" / "v0002")
    assert copy_models(Models(root), {"brief": "Short"}, other) == {"Short": "v0001"}
    copied = Models(other)
    assert copied.tasks["Short"].name == "Short" and copied.data("Short").digest == copied.data("brief").digest
    assert list(copied.touched()) == []
    with pytest.raises(BadName, match="already"):
        copy_models(Models(root), {"brief": "short"}, other)
    assert copy_models(Models(root), {"brief": "brief"}, other, replace=True) == {"brief": "v0002"}
    with pytest.raises(BundleError, match="itself"):
        copy_models(Models(root), {"brief": "brief"}, root, replace=True)
    with pytest.raises(UnknownTask):
        copy_models(Models(root), {"nobody": "nobody"}, other)


@pytest.mark.parametrize("file", [*HASHED, "task.json"])
def test_a_model_that_was_touched_is_not_copied(root, tmp_path, file):
    other = write_bundle(tmp_path / "other", tiny_trunk()).root
    add_model(root, draft())
    path = root / MODELS / "brief" / "v0001" / file
    path.write_bytes(path.read_bytes() + b" ")
    before = files_of(other)
    with pytest.raises(CorruptFile, match=file):
        copy_models(Models(root), {"brief": "brief"}, other)
    assert files_of(other) == before and not (other / MODELS / "brief").exists()


def test_several_models_are_copied_or_none(root, tmp_path, monkeypatch):
    add_model(root, draft())
    add_model(root, draft("other"))
    failing, both = 0, {"brief": "brief", "other": "other"}
    while True:
        failing += 1
        target = write_bundle(tmp_path / str(failing), tiny_trunk()).root
        before = files_of(target)
        with monkeypatch.context() as patch:
            FullDisk(patch, failing)
            try:
                copy_models(Models(root), both, target)
                break
            except BundleError as error:
                assert "disk is full" in str(error)
        if set(model_names(target)) != {"brief", "other"}:  # else the last flush alone failed
            assert files_of(target) == before, failing
    assert failing > 30 and list(Models(target).touched()) == []


def test_models_that_were_added_go_again_when_what_follows_fails(root, tmp_path):
    other = write_bundle(tmp_path / "other", tiny_trunk()).root
    add_model(root, draft())
    before = files_of(other)
    with pytest.raises(RuntimeError), models_added(Models(root), {"brief": "brief"}, other) as added:
        assert added == {"brief": "v0001"} == {"brief": Models(other).version("brief")}
        raise RuntimeError
    assert model_names(other) == [] and not (other / MODELS).exists()
    assert set(files_of(other)) == {*before, LIST}


def test_what_a_killed_removal_left_is_removed_with_the_next_change(root, tmp_path):
    """Killed after models.json was replaced, before the folder was gone: its next version would not be the first."""
    add_model(root, draft())
    left = shutil.copytree(root / MODELS / "brief", tmp_path / "left")
    remove_models(root, ["brief"])
    assert not (root / MODELS).exists()
    shutil.copytree(left, root / MODELS / "brief")
    add_model(root, draft("other"))
    assert {entry.name for entry in (root / MODELS).iterdir()} == {"other"}
    shutil.copytree(left, root / MODELS / "brief")
    assert add_model(root, draft()) == "v0001"


@pytest.mark.parametrize("file", [*HASHED, "task.json"])
def test_a_file_that_was_touched_is_named(root, file):
    add_model(root, draft())
    path = root / MODELS / "brief" / "v0001" / file
    path.write_bytes(path.read_bytes() + b" ")
    assert any(error.facts["path"] == path for error in Models(root).touched())
    with pytest.raises(CorruptFile, match=file):
        Bundle.open(root).verify()


def test_arrays_that_were_exchanged_are_refused_when_read(root):
    add_model(root, draft())
    other = {name: array + 1 for name, array in DATA.arrays.items()}
    add_model(root, draft("other", arrays=other))
    folder = root / MODELS / "brief" / "v0001"
    shutil.copy(root / MODELS / "other" / "v0001" / "model.safetensors", folder / "model.safetensors")
    with pytest.raises(CorruptFile, match=r"model\.safetensors"):
        Models(root).data("brief")


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ({"format": 2, "models": {}}, UnknownFormat),
        ({"format": 1, "models": {"../out": {"version": "v0001", "record": "0" * 64}}}, BadName),
        ({"format": 1, "models": {"brief": {"version": "../v1", "record": "0" * 64}}}, CorruptFile),
        ({"format": 1, "models": {"brief": {"version": "v0001", "record": "x"}}}, CorruptFile),
        ({"format": 1, "models": {}, "more": 1}, CorruptFile),
        ([], CorruptFile),
    ],
)
def test_a_hostile_list_is_refused(root, content, error):
    (root / LIST).write_text(json.dumps(content))
    with pytest.raises(error):
        Models(root)


def test_links_are_refused(root, tmp_path):
    add_model(root, draft())
    folder = root / MODELS / "brief" / "v0001"
    shutil.move(folder / "tokenizer.json", tmp_path / "elsewhere")
    (folder / "tokenizer.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptFile, match="link"):
        Models(root).data("brief")
