"""The encoder of a model whose folder has a bundle already."""

import html
import json
import pickle
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save_file

from polyhead import Model
from polyhead.bundle.create import write_bundle
from polyhead.bundle.read import Bundle
from polyhead.errors import BundleError, TrunkNotFound, WrongTrunk
from polyhead.project.encoders import ENCODERS
from polyhead.project.pretrained import load_trunk, stated_shape
from polyhead.testing import tiny_trunk
from support.tiny_project import change_array, write_trunk


@pytest.fixture(scope="module")
def trunk(tmp_path_factory):
    return write_trunk(tmp_path_factory.mktemp("encoder") / "trunk")


def bundle_over(trunk, root, **settings):
    """A bundle without tasks, and the digest of its trunk."""
    return write_bundle(root, load_trunk(str(trunk), **settings)).digest


@pytest.fixture
def folder(trunk, tmp_path):
    bundle_over(trunk, tmp_path / "bundle")
    return tmp_path / "bundle"


def rename(root, name):
    """The bundle's trunk as it is recorded under another name, as if that had been asked for."""
    trunk = Bundle.open(root).trunk()
    shutil.rmtree(root)
    write_bundle(
        root, type(trunk)(**{field: getattr(trunk, field) for field in trunk.__struct_fields__} | {"name": name})
    )


def test_a_folder_with_a_bundle_over_another_encoder_is_refused(trunk, folder, tmp_path):
    """It was kept without a word, and tasks were trained over it."""
    other = shutil.copytree(trunk, tmp_path / "other")
    change_array(other / "model.safetensors", "embeddings.word_embeddings.weight", lambda array: array + np.float32(1))
    bundle_over(other, tmp_path / "over")
    for name in (other, tmp_path / "over", "minilm", ENCODERS["minilm"].hub):
        with pytest.raises(WrongTrunk, match="another encoder") as raised:
            Model(str(name), folder=folder)
        assert str(name) in str(raised.value.got) and str(trunk) in str(raised.value.allowed)
        assert "leave `trunk` out" in raised.value.do
    assert not (tmp_path / "new").exists()
    Model(str(other), folder=tmp_path / "new")  # a folder without a bundle takes any encoder


def test_the_same_encoder_under_another_name_is_accepted(trunk, folder, tmp_path):
    copy = shutil.copytree(trunk, tmp_path / "copy")
    bundle_over(copy, tmp_path / "twin")
    for name in (trunk, copy, folder, tmp_path / "twin"):
        assert Model(str(name), folder=folder).trunk == str(name)
    shorter = tmp_path / "shorter"
    assert bundle_over(trunk, shorter, max_tokens=16) != Bundle.open(folder).digest
    for name in (copy, folder, tmp_path / "twin"):
        Model(str(name), folder=shorter)  # its bundle reads less of a text, with the same weights


def test_a_changed_checkpoint_under_the_same_path_is_another_encoder(trunk, tmp_path):
    copy = shutil.copytree(trunk, tmp_path / "copy")
    bundle_over(copy, tmp_path / "bundle")
    Model(str(copy), folder=tmp_path / "bundle")
    change_array(copy / "model.safetensors", "embeddings.word_embeddings.weight", lambda array: array * np.float32(2))
    with pytest.raises(WrongTrunk):
        Model(str(copy), folder=tmp_path / "bundle")


def test_a_name_that_the_bundle_records_needs_no_encoder_on_this_machine(folder):
    for recorded, names in (
        ("a-team/their-encoder", ["a-team/their-encoder"]),
        ("/on/another/machine", ["/on/another/machine"]),
        ("mpnet", ["mpnet", ENCODERS["mpnet"].hub]),
        (ENCODERS["mpnet"].hub, ["mpnet", ENCODERS["mpnet"].hub]),
    ):
        rename(folder, recorded)
        for name in names:
            Model(name, folder=folder)


def test_an_encoder_that_cannot_be_found_is_not_taken_for_that_of_the_bundle(trunk, folder):
    with pytest.raises(TrunkNotFound, match="cannot be compared with the encoder of the bundle") as raised:
        Model("/not/there", folder=folder)
    assert str(trunk) in str(raised.value.allowed) and "leave `trunk` out" in raised.value.do


@pytest.mark.parametrize(
    ("name", "do"),
    [
        ("bert", "a hub id names its owner: owner/name"),
        ("minilmm", "did you mean 'minilm'?"),
        ("all-MiniLM-L6-v2", "give 'minilm', which is sentence-transformers/all-MiniLM-L6-v2"),
    ],
)
def test_a_name_of_no_encoder_is_refused_at_once(name, do, tmp_path, monkeypatch):
    """It was refused in `fit`, after the rows were read."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TrunkNotFound, match="no encoder has this name") as raised:
        Model(name)
    assert raised.value.got == name and do in str(raised.value.do)
    assert all(encoder in str(raised.value.allowed) for encoder in ENCODERS)


def test_an_encoder_that_may_be_found_later_is_not_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("owner/name", "bert-base-uncased", "./later", str(tmp_path / "later"), "~/not/yet", *ENCODERS):
        assert Model(name).trunk == name
    (tmp_path / "bert").mkdir()
    assert Model("bert").trunk == "bert"


def test_a_pickled_model_needs_no_folder_of_its_encoder(trunk, tmp_path, monkeypatch):
    monkeypatch.chdir(trunk.parent)
    bundle_over(trunk.name, tmp_path / "bundle")
    sent = pickle.dumps(Model(trunk.name, folder=tmp_path / "bundle"))
    monkeypatch.chdir(tmp_path)
    assert pickle.loads(sent).trunk == trunk.name


def test_of_a_hub_id_with_another_shape_no_weights_are_downloaded(trunk, folder, tmp_path, monkeypatch):
    """They were, before they were refused: gigabytes, or an error of the network or of a missing package."""
    asked, hub = [], pytest.importorskip("huggingface_hub")
    same, other, repository = tmp_path / "same", tmp_path / "other", tmp_path / "hub"
    shutil.copytree(trunk, same)
    shutil.copytree(trunk, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"num_hidden_layers": config["num_hidden_layers"] + 1}))

    def downloaded(name, *, allow_patterns):
        """A folder with the files that are asked for alone."""
        asked.append((name, allow_patterns))
        for file in (tmp_path / name.rpartition("/")[2]).iterdir():
            if file.name in allow_patterns:
                (repository / name).mkdir(parents=True, exist_ok=True)
                shutil.copy(file, repository / name)
        return str(repository / name)

    monkeypatch.setattr(hub, "snapshot_download", downloaded)
    with pytest.raises(WrongTrunk, match="another encoder"):
        Model("a-team/other", folder=folder)
    assert asked == [("a-team/other", ["config.json"])]
    assert Model("a-team/same", folder=folder).trunk == "a-team/same"  # its weights are compared
    assert asked[1:][0] == ("a-team/same", ["config.json"]) and "model.safetensors" in asked[2][1]


def test_an_encoder_whose_arrays_alone_tell_its_shape_is_compared_by_them(folder, tmp_path):
    words, first, second = tiny_trunk(family="static"), tmp_path / "first", tmp_path / "second"
    first.mkdir()
    (first / "tokenizer.json").write_bytes(words.tokenizer)
    (first / "config.json").write_text(json.dumps({"model_type": "model2vec"}))
    save_file({"embeddings": words.arrays["embeddings.word.weight"]}, first / "model.safetensors")
    shutil.copytree(first, second)
    bundle_over(first, tmp_path / "words")
    assert stated_shape(str(first)) is None
    Model(str(second), folder=tmp_path / "words")
    with pytest.raises(WrongTrunk):
        Model(str(second), folder=folder)


@pytest.mark.parametrize("made", [lambda folder: Model(folder=folder, verbose=False), Model.load], ids=["new", "load"])
def test_without_a_name_the_bundle_keeps_its_encoder_and_no_path_is_shown(trunk, folder, made):
    """The folder's path stood for the encoder in the model's text, its notebook heading and its pickles."""
    model = made(folder)
    assert str(folder) not in repr(model.__reduce__()[1][0])
    assert str(pickle.loads(pickle.dumps(model)).folder) != str(folder)
    for recorded, shown in (
        ("mpnet", "mpnet"),
        ("a-team/their-encoder", "a-team/their-encoder"),
        (str(trunk), trunk.name),
        ("C:\\models\\theirs", "theirs"),
    ):
        rename(folder, recorded)
        for again in (made(folder), Model(recorded, folder=folder), pickle.loads(pickle.dumps(made(folder)))):
            heading = repr(again).splitlines()[0].removesuffix(f", folder={str(again.folder)!r})")
            assert heading == f"Model({shown!r}"
            assert f"Model({shown!r})" in html.unescape(again._repr_html_())
            assert str(folder) not in again._repr_html_() and str(trunk) not in again._repr_html_()


@pytest.mark.parametrize("made", [lambda folder: Model(folder=folder, verbose=False), Model.load], ids=["new", "load"])
def test_another_model_in_a_folder_that_is_removed_begins_anew(trunk, folder, tmp_path, monkeypatch, made):
    """The open model refuses to fit, since its tasks are gone; a new one takes the encoder that is named."""
    begun = []

    def trained(project, **_):
        begun.append(project.trunk.name)
        if not folder.exists():
            bundle_over(trunk, folder)
        return SimpleNamespace(trained=(), versions={})

    monkeypatch.setattr("polyhead.train_project", trained)
    model = made(folder)
    model.fit("mood", ["a", "b"] * 6, ["x", "y"] * 6)
    shutil.rmtree(folder)
    with pytest.raises(BundleError, match="there is no bundle at"):
        model.fit("mood", ["a", "b"] * 6, ["x", "y"] * 6)
    Model(str(trunk), folder=folder, verbose=False).fit("mood", ["a", "b"] * 6, ["x", "y"] * 6)
    assert begun == [str(folder), str(trunk)]
    for recorded in ("minilm", ENCODERS["minilm"].hub):
        rename(folder, recorded)
        assert made(folder).trunk == "minilm"
    assert Model().trunk == Model(folder=tmp_path / "new").trunk == "minilm"
