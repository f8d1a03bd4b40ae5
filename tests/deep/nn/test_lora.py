"""Folders that PEFT wrote, read: the matrices by layer, and everything that is refused, by name."""

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from polyhead.convert.hugging_face import read_adapted_head
from polyhead.convert.peft import base_named, is_adapter, read_lora
from polyhead.errors import TrunkError, TrunkNotFound, WeightsMismatch
from polyhead.plan import Layers
from polyhead.project.pretrained import load_trunk
from support import adapters, checkpoints, encoder_families

QUERY = "bert.encoder.layer.1.attention.self.query"


def read(folder, family="Bert"):
    """The adapter and its head, over the family's base."""
    base = checkpoints.base(family)
    lora = read_lora(folder, base, load_trunk(str(base)).architecture)
    return lora, read_adapted_head(folder, lora)


def pair(name, rank=2, *, inputs=32, outputs=32):
    """The two matrices of one map."""
    return {f"{name}.lora_A.weight": torch.ones(rank, inputs), f"{name}.lora_B.weight": torch.ones(outputs, rank)}


HEAD = {"classifier.weight": torch.zeros(3, 32), "classifier.bias": torch.zeros(3)}


@pytest.fixture
def written(tmp_path):
    """A folder with matrices on one map and a head; `arrays` are more, `settings` change the config."""

    def write(arrays=None, **settings):
        adapters.write(tmp_path / "mood", HEAD | (arrays or pair(QUERY)), base=checkpoints.base(), **settings)
        return tmp_path / "mood"

    return write


def test_matrices_stand_in_their_layers_under_our_names(written):
    folder = written(pair(QUERY) | pair("bert.encoder.layer.3.output.dense", inputs=64), target_modules="all-linear")
    lora, _ = read(folder)
    assert [list(maps) for maps in lora.layers] == [[], ["attention.query"], [], ["feed_forward.outer"]]
    first, second, third, fourth = lora.nodes("task:x")
    assert (first, third) == (Layers(start=0, stop=1), Layers(start=2, stop=3))
    assert (second.delta.size, second.delta.alpha, second.delta.part) == (2, 8.0, "task:x")
    assert fourth.delta.targets == ("feed_forward.outer",)
    shapes = {name: array.shape for name, array in lora.arrays().items()}
    assert shapes == {
        "delta.1.attention.query.encoder.weight": (2, 32),
        "delta.1.attention.query.decoder.weight": (32, 2),
        "delta.3.feed_forward.outer.encoder.weight": (2, 64),
        "delta.3.feed_forward.outer.decoder.weight": (32, 2),
    }


@pytest.mark.parametrize(
    ("case", "module", "targets"),
    [
        ("modernbert", "model.layers.1.attn.Wqkv", ["attention.query", "attention.key", "attention.value"]),
        ("modernbert", "model.layers.1.mlp.Wi", ["feed_forward.inner", "feed_forward.gate"]),
        ("gte", "gte.layers.1.self_attn.q_proj", ["attention.query"]),
        ("gte", "gte.layers.1.mlp.up_proj", ["feed_forward.gate"]),
        ("deberta-v3", "deberta.encoder.layer.1.attention.self.key_proj", ["attention.key"]),
    ],
)
def test_matrices_of_a_fused_map_are_those_of_its_parts(tmp_path, case, module, targets):
    """W + alpha / rank B A, part for part, is the same of the fused map."""
    encoder_families.saved_model(case, tmp_path / "base")
    base = load_trunk(str(tmp_path / "base"))
    wholes = [base.arrays[f"layers.1.{target}.weight"] for target in targets]
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(size).astype(np.float32) for size in ((2, 32), (sum(map(len, wholes)), 2)))
    given = {f"{module}.lora_A.weight": torch.from_numpy(a), f"{module}.lora_B.weight": torch.from_numpy(b)}
    folder = tmp_path / "mood"
    adapters.write(folder, given, base=tmp_path / "base", maps=(module.rpartition(".")[2],))
    lora = read_lora(folder, tmp_path / "base", base.architecture)
    assert list(lora.layers[1]) == targets and lora.modules == (module,)
    merged = [low.merged(whole) for low, whole in zip(lora.layers[1].values(), wholes, strict=True)]
    np.testing.assert_allclose(np.concatenate(merged), np.concatenate(wholes) + 8 / 2 * b @ a, rtol=1e-5, atol=1e-5)


def test_a_merged_map_is_the_formula_in_float64():
    low = read_low_rank()
    weight = np.full((32, 32), 0.5, np.float32)
    exact = 0.5 + 8 / 2 * 2  # W + alpha / rank * B A, of ones and rank 2
    assert low.merged(weight).dtype == np.float32
    np.testing.assert_array_equal(low.merged(weight), np.full((32, 32), exact, np.float32))


def read_low_rank():
    from polyhead.convert.peft import LowRank

    return LowRank(a=np.ones((2, 32), np.float32), b=np.ones((32, 2), np.float32), alpha=8.0)


def test_half_precision_is_read_as_float32(written):
    folder = written({name: value.bfloat16() for name, value in pair(QUERY).items()})
    assert all(array.dtype == np.float32 for array in read(folder)[0].arrays().values())


def test_only_folders_with_an_adapter_config_are_adapters(written):
    assert is_adapter(written()) and is_adapter(str(written()))
    assert not is_adapter(checkpoints.base())
    assert base_named(written()) == str(checkpoints.base())
    assert base_named(written(base_model_name_or_path=None)) is None


SETTINGS = {
    "another kind": ({"peft_type": "IA3"}, "peft_type IA3.*LORA"),
    "another task": ({"task_type": "CAUSAL_LM"}, "CAUSAL_LM.*SEQ_CLS, TOKEN_CLS"),
    "no task": ({"task_type": None}, "task_type"),
    "another class": ({"task_type": None, "auto_mapping": {"base_model_class": "BertForMaskedLM"}}, "BertForMaskedLM"),
    "weight decomposition": ({"use_dora": True}, "use_dora.*true.*merge_and_unload"),
    "trained biases": ({"bias": "all"}, 'bias.*"all".*none'),
    "biases of adapted maps": ({"bias": "lora_only"}, "bias.*lora_only"),
    "a bias of B": ({"lora_bias": True}, "lora_bias"),
    "trained tokens": ({"trainable_token_indices": [1, 2]}, r"trainable_token_indices.*\[1,2\]"),
    "turned matrices": ({"fan_in_fan_out": True}, "fan_in_fan_out"),
    "a base that was changed": ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights.*pissa.*gaussian"),
    "repeated layers": ({"layer_replication": [[0, 2], [1, 3]]}, "layer_replication"),
    "matrices on arrays": ({"target_parameters": ["weight"]}, "target_parameters"),
    "a setting of tomorrow": ({"twisted": {"by": 3}}, 'twisted.*"by":3'),
    "no rank": ({"r": "many"}, r"adapter_config\.json cannot be understood.*r"),
    "no regular expression": ({"rank_pattern": {"(": 2}}, "regular expression"),
    "no positive scale": ({"lora_alpha": 0}, "alpha.*positive"),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings_that_mean_more_are_refused_with_the_folder_named(written, case):
    settings, words = SETTINGS[case]
    folder = written(**settings)
    with pytest.raises(TrunkError, match=f"(?s){words}") as raised:
        read(folder)
    assert str(folder) in str(raised.value)


@pytest.mark.parametrize("settings", [{"init_lora_weights": "gaussian"}, {"lora_dropout": 0.5}, {"revision": "x"}])
def test_settings_of_training_are_let_be(written, settings):
    assert read(written(**settings))[0].modules == (QUERY,)


ARRAYS = {
    "embeddings": (
        {
            "bert.embeddings.word_embeddings.lora_embedding_A": torch.ones(2, 110),
            "bert.embeddings.word_embeddings.lora_embedding_B": torch.ones(32, 2),
        },
        TrunkError,
        "lora_embedding_A.*dense maps in layers",
    ),
    "a norm": ({"bert.encoder.layer.0.output.LayerNorm.weight": torch.ones(32)}, TrunkError, r"LayerNorm\.weight"),
    "a magnitude": ({f"{QUERY}.lora_magnitude_vector": torch.ones(32)}, TrunkError, "lora_magnitude_vector"),
    "A alone": ({f"{QUERY.replace('query', 'key')}.lora_A.weight": torch.ones(2, 32)}, TrunkError, "lora_A"),
    "another rank": (pair(QUERY, 3), WeightsMismatch, r"A \(3, 32\).*rank 2"),
    "another width": (pair(QUERY, inputs=31), WeightsMismatch, "32 inputs and 32 outputs"),
    "a layer that is not there": (pair(QUERY.replace("1", "7")), TrunkError, "layer.7"),
    "numbers that are none": ({f"{QUERY}.lora_A.weight": torch.full((2, 32), float("nan"))}, WeightsMismatch, "lora_A"),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_arrays_that_are_no_matrices_of_layers_are_refused(written, case):
    arrays, error, words = ARRAYS[case]
    folder = written(pair(QUERY) | arrays)
    with pytest.raises(error, match=f"(?s){words}") as raised:
        read(folder)
    assert str(folder) in str(raised.value)


def test_the_projection_of_embeddings_is_no_map_of_a_layer(tmp_path):
    """`all-linear` of ELECTRA-small targets it too."""
    name = "electra.embeddings_project"
    adapters.adapter(
        tmp_path, family="Electra", beside=pair(name, inputs=16), target_modules="all-linear", layers=range(4)
    )
    with pytest.raises(TrunkError, match=f"{tmp_path}.*{name}.*merge_and_unload"):
        read(tmp_path, "Electra")


TARGETS = {
    "another name": {"target_modules": ["key", "value"]},
    "part of a name": {"target_modules": ["uery"]},
    "another expression": {"target_modules": r".*layer\.2\..*"},
    "another layer": {"layers_to_transform": [0, 2]},
    "another list of layers": {"layers_to_transform": [1], "layers_pattern": "blocks"},
    "left out": {"exclude_modules": ["query"]},
}


@pytest.mark.parametrize("case", TARGETS)
def test_matrices_that_the_config_does_not_target_are_refused(written, case):
    """PEFT would leave them out."""
    folder = written(**TARGETS[case])
    with pytest.raises(WeightsMismatch, match=f"{folder}.*{QUERY}.*does not target"):
        read(folder)


def test_maps_of_one_layer_with_several_ranks_or_scales_are_refused(written):
    value = QUERY.replace("query", "value")
    for arrays, settings in (
        (pair(value, 4), {"rank_pattern": {"value": 4}}),
        (pair(value), {"alpha_pattern": {"value": 2}}),
    ):
        folder = written(pair(QUERY) | arrays, **settings)
        with pytest.raises(TrunkError, match="layer 2 have several.*attention.query: rank 2, scale 4.*one rank"):
            read(folder)


def test_a_pickle_is_refused_and_not_read(written):
    folder = written()
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_model.bin").write_bytes(b"not even a pickle")
    with pytest.raises(TrunkNotFound, match=r"adapter_model\.bin, a pickle.*safe_serialization=True"):
        read(folder)


def test_files_that_cannot_be_read_are_named(written):
    folder = written()
    (folder / "adapter_model.safetensors").write_bytes(b"\x08")
    with pytest.raises(WeightsMismatch, match=r"adapter_model\.safetensors cannot be read"):
        read(folder)
    (folder / "adapter_config.json").write_bytes(b"\xff{")
    for reader in (read, base_named):
        with pytest.raises(TrunkError, match=f"{folder}.*adapter_config.json cannot be understood"):
            reader(folder)


def test_maps_without_matrices_that_the_config_targets_are_told(tmp_path, caplog):
    adapters.adapter(tmp_path / "some", layers=[1])
    read(tmp_path / "some")
    assert "no matrices for 6 maps" in caplog.text and "layer.0.attention.self.query" in caplog.text
