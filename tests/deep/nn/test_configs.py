import json

import msgspec
import numpy as np
import pytest

from polyhead.encoder.configs import architecture_of, model_types
from polyhead.encoder.shape import Architecture, Relative, Rotary
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


@pytest.mark.parametrize("model_type", ["gpt2", "deberta", None, 7, ["bert"]])
def test_other_model_types_are_refused_with_the_list(config, model_type):
    with pytest.raises(
        TrunkError, match="bart, bert, camembert, deberta-v2, distilbert, electra, eurobert, gte, model2vec"
    ):
        read(config | {"model_type": model_type})
    assert len(model_types()) == len(set(model_types())) == 15


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("position_embedding_type", "relative_key_query"),
        ("hidden_act", "quick_gelu"),
        ("hidden_act", ["gelu"]),
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
        read({"model_type": "distilbert", "activation": "mish"})


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
    ("theirs", "ours"),
    [
        ("gelu_new", "gelu_tanh"),
        ("gelu_pytorch_tanh", "gelu_tanh"),
        ("swish", "silu"),
        ("silu", "silu"),
        ("relu", "relu"),
    ],
)
def test_activations_are_read_by_each_of_their_names(config, theirs, ours):
    assert read(config | {"hidden_act": theirs}).activation == ours


SIZES = {
    "num_hidden_layers": 6,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 9,
    "max_position_embeddings": 64,
}
MODERN = {"model_type": "modernbert", **SIZES}
DEBERTA = {"model_type": "deberta-v2", **SIZES, "relative_attention": True, "pos_att_type": "p2c|c2p"}
EURO = {"model_type": "eurobert", **SIZES}
OLD_NOMIC = {
    "model_type": "nomic_bert",
    "n_layer": 6,
    "n_embd": 16,
    "n_head": 2,
    "n_inner": 24,
    "n_positions": 8192,
    "vocab_size": 9,
    "layer_norm_epsilon": 1e-12,
    "activation_function": "swiglu",
    "rotary_emb_fraction": 1.0,
    "rotary_emb_base": 1000,
    "rotary_emb_scale_base": None,
    "pad_vocab_size_multiple": 8,
}
BART = {"model_type": "bart", "d_model": 16, "encoder_layers": 2, "encoder_attention_heads": 2}


def test_modernbert_is_read_in_its_old_and_its_new_form():
    kinds = ["full_attention", "sliding_attention", "sliding_attention"] * 2
    turns = {"full_attention": {"rope_type": "default", "rope_theta": 160_000.0}}
    turns["sliding_attention"] = {"rope_type": "default", "rope_theta": 10_000.0}
    new = read(MODERN | {"layer_types": kinds, "rope_parameters": turns, "local_attention": 128})
    old = {"global_rope_theta": 160_000.0, "local_rope_theta": 10_000.0, "global_attn_every_n_layers": 3}
    assert read(MODERN | old) == read(MODERN) == new
    assert (new.window, new.whole_every, new.rotary, new.local_rotary) == (64, 3, Rotary(base=16e4), Rotary(base=1e4))
    assert [new.layer(i).window for i in range(6)] == [None, 64, 64] * 2
    assert [new.layer(i).attention_norm for i in range(6)] == [False] + [True] * 5
    every = read(MODERN | {"layer_types": ["full_attention"] * 6})
    assert (every.window, every.local_rotary, every.whole_every) == (None, None, 1)
    assert every == read(MODERN | {"global_attn_every_n_layers": 1})
    one = read(MODERN | {"layer_types": kinds[:1] + kinds[1:2] * 5})
    assert one == read(MODERN | {"global_attn_every_n_layers": 20}) and one.whole_every == 6
    assert read(MODERN | {"local_rope_theta": None}).local_rotary is None


def test_gte_has_fixed_ntk_scaling_under_its_name_on_the_hub():
    """The frequencies of its own code: base times the factor, all of them over the factor to the power 2 / d."""
    given = {"model_type": "new", **SIZES, "rope_theta": 20_000.0, "rope_scaling": {"type": "ntk", "factor": 8.0}}
    rotary = read(given).rotary
    pairs = np.arange(4)
    theirs = 1 / (20_000.0 * 8) ** (2 * pairs / 8) / 8 ** (2 / 8)
    np.testing.assert_allclose(1 / (rotary.factor * rotary.base ** (2 * pairs / 8)), theirs, rtol=1e-12)
    assert read(given | {"rope_scaling": None}).rotary == Rotary(base=20_000.0)
    assert read({"model_type": "gte", **SIZES}).rotary == Rotary(base=160_000.0)


def test_linear_scaling_is_a_factor_in_both_forms():
    old = read(EURO | {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 4.0}})
    new = read(EURO | {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}})
    assert old == new and new.rotary == Rotary(base=500.0, factor=4.0)


def test_nomics_older_config_has_the_keys_of_gpt2():
    new = {"model_type": "nomic_bert", **SIZES, "vocab_size": 16, "max_position_embeddings": 8192, "head_dim": 8}
    assert read(OLD_NOMIC) == read(new)
    scaled = read(OLD_NOMIC | {"rotary_scaling_factor": 2, "max_trained_positions": 2048})
    assert scaled.positions == 2048  # up to which nothing is scaled
    biased = read(OLD_NOMIC | {"qkv_proj_bias": True, "mlp_fc1_bias": True, "activation_function": "geglu"})
    assert (biased.attention_bias, biased.output_bias, biased.inner_bias, biased.outer_bias) == (
        True,
        True,
        True,
        False,
    )
    assert biased.activation == "gelu"


def test_deberta_counts_the_rows_of_its_table():
    v3 = {"position_buckets": 256, "max_relative_positions": -1, "norm_rel_ebd": "layer_norm", "share_att_key": True}
    found = read(DEBERTA | v3 | {"position_biased_input": False})
    assert found.relative == Relative(kind="disentangled", buckets=512, distance=64, norm=True)
    assert (found.position_table, found.segments, found.norm_epsilon) == (False, 0, 1e-7)
    plain = read(DEBERTA | {"pos_att_type": ["c2p"], "max_relative_positions": 20}).relative
    assert (plain.buckets, plain.logarithmic, plain.shared, plain.terms) == (40, False, False, 2)


def test_what_a_config_states_needlessly_does_not_change_the_shape():
    assert read(EURO | {"num_key_value_heads": 2, "head_dim": 8}) == read(EURO)
    assert read(EURO | {"num_key_value_heads": 1}).key_heads == 1


@pytest.mark.parametrize(
    ("config", "key", "value"),
    [
        (MODERN, "layer_types", ["sliding_attention"] * 6),
        (MODERN, "layer_types", ["full_attention", "sliding_attention"] * 2 + ["full_attention"] * 2),
        (MODERN, "layer_types", ["full_attention"] * 5),
        (MODERN, "rope_parameters", {"rope_type": "default", "rope_theta": 1e4}),
        (MODERN, "rope_scaling", {"rope_type": "longrope", "factor": 2.0}),
        (MODERN, "rope_scaling", {"rope_type": "yarn", "factor": 2.0, "truncate": False}),
        (EURO, "rope_parameters", {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0, "rope_theta": 1e4}),
        (EURO, "rope_parameters", {"rope_type": "yarn", "factor": 2.0, "beta_fast": 0.001, "rope_theta": 1e4}),
        (MODERN, "hidden_activation", "quick_gelu"),
        (MODERN, "global_rope_theta", "large"),
        (MODERN, "norm_bias", 1),
        (DEBERTA, "relative_attention", False),
        (DEBERTA, "pos_att_type", ["p2p", "c2p"]),
        (DEBERTA, "pos_att_type", None),
        (DEBERTA, "norm_rel_ebd", "batch_norm"),
        (DEBERTA, "conv_kernel_size", 3),
        (DEBERTA, "embedding_size", 8),
        (DEBERTA, "attention_head_size", 4),
        (EURO, "rope_parameters", {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
        (EURO, "rope_scaling", {"type": "ntk", "factor": 2.0}),
        (EURO, "rope_parameters", {"rope_theta": 1e4, "partial_rotary_factor": 0.5}),
        (OLD_NOMIC, "rotary_emb_fraction", 0.5),
        (OLD_NOMIC, "rotary_emb_fraction", None),
        (OLD_NOMIC, "rotary_emb_interleaved", True),
        (OLD_NOMIC, "rotary_emb_scale_base", 512),
        (OLD_NOMIC, "activation_function", "gelu"),
        (OLD_NOMIC, "prenorm", True),
        (OLD_NOMIC, "moe_every_n_layers", 2),
        (OLD_NOMIC, "num_heads_kv", 1),
        ({"model_type": "mpnet", **SIZES}, "relative_attention_num_buckets", 64),
        ({"model_type": "new", **SIZES}, "position_embedding_type", "absolute"),
        ({"model_type": "new", **SIZES}, "logn_attention_scale", True),
        ({"model_type": "new", **SIZES}, "rope_scaling", {"type": "ntk", "factor": 2.0, "mixed_b": 0.5}),
        (BART, "scale_embedding", True),
        (BART, "normalize_before", True),
    ],
)
def test_settings_that_a_family_cannot_honour_are_refused_by_name(config, key, value):
    if value is not None and key != "relative_attention":
        assert read(config)
    with pytest.raises(TrunkError, match=f"'{key}" if key != "global_rope_theta" else "rope_theta"):
        read(config | {key: value})


STRANGE = [[], {}, [[]], "x", "", -1, 0, 1.5, 10**30, True, {"a": 1}, {"full_attention": 1}, {"rope_type": []}, [None]]
MPNET, GTE = ({"model_type": name, **SIZES} for name in ("mpnet", "new"))


@pytest.mark.parametrize(
    "config", [MODERN, DEBERTA, EURO, OLD_NOMIC, BART, MPNET, GTE], ids=lambda config: config["model_type"]
)
def test_settings_of_any_kind_become_a_shape_or_are_refused(config):
    """Of every key that the family reads, and of those that no config above states."""
    more = ["layer_types", "rope_parameters", "rope_scaling", "rope_theta", "local_attention", "local_rope_theta"]
    more += ["global_attn_every_n_layers", "position_buckets", "max_relative_positions", "norm_rel_ebd", "norm_bias"]
    more += ["num_key_value_heads", "head_dim", "rotary_scaling_factor", "num_heads_kv", "pruned_heads"]
    refused = 0
    for key in [*config, *more]:
        for value in STRANGE:
            try:
                read(config | {key: value})
            except TrunkError as error:
                assert "config.json" in str(error) or "trunk's" in str(error) or "rotary" in str(error), (key, value)
                refused += 1
    assert refused > 50


def test_layer_kinds_are_not_counted_out_for_a_depth_that_is_a_lie():
    with pytest.raises(TrunkError, match="'layer_types'"):
        read(MODERN | {"num_hidden_layers": 10**12, "layer_types": ["full_attention"]})


def test_static_table_has_the_sizes_of_its_arrays():
    raw = json.dumps({"model_type": "model2vec", "normalize": True}).encode()
    found = architecture_of(raw, source="config.json", shape_of={"embeddings": (9, 4)}.get)
    assert (found.layers, found.width, found.vocabulary) == (0, 4, 9)
    mapped = architecture_of(raw, source="config.json", shape_of={"embeddings": (9, 4), "mapping": (20,)}.get)
    assert (mapped.width, mapped.vocabulary) == (4, 20)
    with pytest.raises(TrunkError, match="'embeddings'"):
        read({"model_type": "model2vec"})


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"\xff\xfe", b'"bert"'], ids=["empty", "cut", "list", "bytes", "text"]
)
def test_files_that_are_no_object_are_refused(raw):
    with pytest.raises(TrunkError, match="JSON"):
        architecture_of(raw, source="config.json")


def test_a_trunk_with_windows_and_relative_positions_is_refused():
    shape = read(MODERN)
    with pytest.raises(TrunkError, match="windows, or scores that relative positions add to.*window 64.*'bias'"):
        msgspec.structs.replace(shape, relative=Relative(kind="bias", buckets=32, distance=128))
