"""The decoder that a checkpoint has beside its encoder: read from any folder of `save_pretrained`, or refused."""

import json
import shutil

import msgspec
import numpy as np
import pytest
import safetensors.numpy

from polyhead.encoder.decoder import decoder_arrays
from polyhead.errors import ConfigError, TrunkError, WeightsMismatch
from polyhead.project.generation import LAYERS, DecoderChoice, decoder_for
from polyhead.project.pretrained import load_trunk
from polyhead.testing import tiny_trunk
from support import summarizers, tiny_project

WHOLE = "model.safetensors"


def copied(tmp_path, *, without=(), **settings):
    """A copy of the tiny BART with other settings in its config.json, and without some arrays or files."""
    place = tmp_path / "model"
    shutil.copytree(summarizers.folder(), place)
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(config | settings))
    for name in without:
        (place / name).unlink()
    return place


def with_arrays(place, change):
    """The folder with its arrays changed in place by the function."""
    arrays = dict(safetensors.numpy.load_file(place / WHOLE))
    change(arrays)
    safetensors.numpy.save_file(arrays, place / WHOLE, metadata={"format": "pt"})
    return load_trunk(str(place))


def same(one, other):
    return set(one) == set(other) and all(np.array_equal(one[name], other[name]) for name in one)


def test_shape_and_arrays_are_those_of_the_checkpoint():
    data = load_trunk(str(summarizers.folder()))
    known, theirs = data.decoder(), summarizers.theirs(summarizers.folder())[0]
    shape = known.shape
    assert (shape.layers, shape.heads, shape.feed_forward, shape.positions, shape.first_position) == (1, 2, 48, 42, 2)
    wanted = dict(decoder_arrays(shape, data.architecture.width, data.architecture.vocabulary))
    assert {name: array.shape for name, array in known.arrays.items()} == wanted
    weight = theirs.model.decoder.layers[0].encoder_attn.k_proj.weight.detach().numpy()
    assert np.array_equal(known.arrays["decoder.layers.0.cross.key.weight"], weight)


def test_shards_and_a_checkpoint_without_a_head_hold_the_same_decoder(tmp_path):
    whole = load_trunk(str(summarizers.folder())).decoder().arrays
    model, library = summarizers.theirs(summarizers.folder())
    for name, saved, shard in (("shards", model, "40KB"), ("bare", model.model, "5GB")):
        saved.save_pretrained(tmp_path / name, max_shard_size=shard)
        library.save_pretrained(tmp_path / name)
        assert same(load_trunk(str(tmp_path / name)).decoder().arrays, whole), name
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2


def test_the_bias_of_the_output_is_read_where_it_is_there(tmp_path):
    def gains(arrays):
        vocabulary = arrays["model.shared.weight"].shape[0]
        arrays["final_logits_bias"] = np.linspace(-1, 1, vocabulary, dtype=np.float32)[None]

    bias = with_arrays(copied(tmp_path), gains).decoder().arrays["decoder.output.bias"]
    assert bias[0] == -1 and bias[-1] == 1
    without = with_arrays(copied(tmp_path / "b"), lambda arrays: arrays.pop("final_logits_bias", None)).decoder()
    assert not without.arrays["decoder.output.bias"].any()


def test_it_is_no_part_of_the_trunk(tmp_path):
    """Neither read with the trunk nor in its digest."""
    data = load_trunk(str(summarizers.folder()))
    assert msgspec.structs.replace(data, decoder=None).digest == data.digest

    def broken(arrays):
        arrays["model.decoder.layers.0.fc1.weight"] = np.zeros((3, 3), np.float32)

    other = with_arrays(copied(tmp_path), broken)
    assert other.digest == data.digest
    with pytest.raises(WeightsMismatch, match="decoder"):
        other.decoder()


def test_an_encoder_alone_has_none(tmp_path):
    assert load_trunk(str(tiny_project.write_trunk(tmp_path))).decoder is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"decoder_layers": 2}, "decoder"),
        ({"decoder_ffn_dim": 40}, "decoder"),
        ({"activation_function": "tanh"}, "activation_function"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
    ],
)
def test_another_decoder_than_the_config_says_is_refused(tmp_path, settings, words):
    with pytest.raises((WeightsMismatch, TrunkError), match=words):
        load_trunk(str(copied(tmp_path, **settings))).decoder()


def test_a_decoder_with_norms_first_is_refused_by_the_name_of_its_last_norm(tmp_path):
    def last_norm(arrays):
        arrays["model.decoder.layer_norm.weight"] = np.ones(32, np.float32)

    with pytest.raises(WeightsMismatch, match="layer_norm"):
        with_arrays(copied(tmp_path), last_norm).decoder()


@pytest.mark.parametrize("name", ["lm_head.weight", "model.decoder.embed_tokens.weight"])
def test_word_vectors_of_its_own_are_refused(tmp_path, name):
    def again(arrays):
        arrays[name] = arrays["model.shared.weight"].copy()

    def other(arrays):
        arrays[name] = arrays["model.shared.weight"] + 1

    assert with_arrays(copied(tmp_path), again).decoder().shape.layers == 1
    data = with_arrays(copied(tmp_path / "b"), other)
    with pytest.raises(WeightsMismatch, match="word vectors of its own"):
        data.decoder()


def test_rules_are_those_of_the_checkpoint_and_then_of_the_project():
    data = load_trunk(str(summarizers.folder(no_repeat_ngram_size=2, length_penalty=2.0, num_beams=5, max_length=20)))
    _, rules, _ = decoder_for(DecoderChoice(), data, task="brief")
    assert (rules.start, rules.ends, rules.pad, rules.no_repeat, rules.length_penalty, rules.beams) == (
        2,
        (2,),
        1,
        2,
        2.0,
        5,
    )
    assert rules.tokens == 19  # without the token that the decoder starts with
    _, rules, _ = decoder_for(DecoderChoice(beams=1, tokens=12), data, task="brief")
    assert (rules.beams, rules.tokens, rules.no_repeat) == (1, 12, 2)


def test_more_tokens_than_positions_are_refused():
    data = load_trunk(str(summarizers.folder()))
    with pytest.raises(ConfigError, match="positions"):
        decoder_for(DecoderChoice(tokens=41), data, task="brief")


def test_a_random_decoder_is_shaped_after_the_trunk():
    data = tiny_trunk()
    decoder, rules, start = decoder_for(DecoderChoice(start="random", tokens=9), data, task="brief")
    shape = data.architecture
    assert (decoder.layers, decoder.heads, decoder.feed_forward) == (LAYERS, shape.heads, shape.feed_forward)
    assert (decoder.most_tokens, rules.tokens, start) == (9, 9, "")


def test_a_trunk_without_a_decoder_is_told_what_to_do():
    with pytest.raises(ConfigError, match="no decoder to start from") as caught:
        decoder_for(DecoderChoice(), tiny_trunk(), task="brief")
    assert "start = 'random'" in str(caught.value)


def test_numbers_of_a_decoder_that_has_its_own_are_refused():
    with pytest.raises(ConfigError, match="layers"):
        DecoderChoice(layers=2)
    assert DecoderChoice(start="random", layers=2).layers == 2
