import json

import pytest

from polyhead.encoder.configs import MODEL_TYPES, architecture_of
from polyhead.encoder.shape import Architecture
from polyhead.errors import TrunkError


def read(config):
    return architecture_of(json.dumps(config).encode(), source="config.json")


def test_bert_config_becomes_the_shape(config, shape):
    assert read(config) == shape


def test_roberta_counts_positions_from_after_its_padding_index(config):
    found = read(config | {"model_type": "roberta", "pad_token_id": 1, "type_vocab_size": 1})
    assert (found.family, found.first_position, found.segments) == ("roberta", 2, 1)
    assert found.max_tokens == 22
    assert read(config | {"model_type": "xlm-roberta"}).first_position == 2  # the default padding index is 1


def test_bert_counts_positions_from_zero_whatever_its_padding_index(config):
    assert read(config | {"pad_token_id": 3}).first_position == 0


def test_electra_embeds_narrower_where_its_config_says_so(config):
    assert read(config | {"model_type": "electra", "embedding_size": 8}).embedding_width == 8
    assert read(config | {"model_type": "electra", "embedding_size": 16}) == read(config | {"model_type": "electra"})


def test_distilbert_has_its_own_keys_and_no_segments():
    config = {
        "model_type": "distilbert",
        "dim": 16,
        "n_layers": 2,
        "n_heads": 4,
        "hidden_dim": 24,
        "vocab_size": 9,
        "max_position_embeddings": 12,
        "activation": "gelu",
    }
    expected = Architecture(
        family="distilbert", layers=2, width=16, heads=4, feed_forward=24, vocabulary=9, positions=12, segments=0
    )
    assert read(config) == expected


def test_left_out_settings_have_the_defaults_of_transformers(config):
    for key in ("layer_norm_eps", "type_vocab_size", "max_position_embeddings", "hidden_act"):
        del config[key]
    found = read(config)
    assert (found.norm_epsilon, found.segments, found.positions) == (1e-12, 2, 512)


@pytest.mark.parametrize("model_type", ["gpt2", "deberta-v2", None, 7, ["bert"]])
def test_other_model_types_are_refused_with_the_list(config, model_type):
    with pytest.raises(TrunkError, match="bert, distilbert, electra, roberta, xlm-roberta"):
        read(config | {"model_type": model_type})
    assert len(MODEL_TYPES) == 5


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("position_embedding_type", "relative_key_query"),
        ("hidden_act", "gelu_new"),
        ("hidden_act", "relu"),
        ("is_decoder", True),
        ("add_cross_attention", True),
        ("pruned_heads", {"1": [0]}),
    ],
)
def test_settings_that_would_be_computed_wrongly_are_refused_by_name(config, key, value):
    with pytest.raises(TrunkError, match=f"'{key}'"):
        read(config | {key: value})


def test_distilberts_activation_is_checked_under_its_own_key():
    with pytest.raises(TrunkError, match="'activation'"):
        read({"model_type": "distilbert", "activation": "relu"})


def test_missing_settings_are_named(config):
    del config["hidden_size"], config["num_attention_heads"]
    with pytest.raises(TrunkError, match="hidden_size, num_attention_heads"):
        read(config)


@pytest.mark.parametrize(
    ("key", "value"), [("hidden_size", "16"), ("num_hidden_layers", 2.5), ("vocab_size", -1), ("hidden_size", 15)]
)
def test_impossible_values_are_refused(config, key, value):
    with pytest.raises(TrunkError):
        read(config | {key: value})


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"\xff\xfe", b'"bert"'], ids=["empty", "cut", "list", "bytes", "text"]
)
def test_files_that_are_no_object_are_refused(raw):
    with pytest.raises(TrunkError, match="JSON"):
        architecture_of(raw, source="config.json")
