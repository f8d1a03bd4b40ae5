import numpy as np
import pytest

from polyhead.encoder.families import FAMILIES
from polyhead.encoder.names import check_names, trunk_names
from polyhead.encoder.shape import trunk_arrays
from polyhead.errors import WeightsMismatch
from polyhead.testing import tiny_trunk
from support.hugging_face import from_hugging_face, to_hugging_face


@pytest.fixture(params=[name for name in FAMILIES if name != "static"])
def family(request):
    return request.param


@pytest.fixture
def shape(family):
    return tiny_trunk(family=family, layers=12, width=8).architecture


@pytest.fixture
def ours(shape):
    """An array of one row for each row of the trunk's, all of them different."""
    found, count = {}, 0
    for name, (rows, *_) in trunk_arrays(shape):
        found[name] = np.arange(count, count + rows)
        count += rows
    return found


def same(found, expected):
    return found.keys() == expected.keys() and all(np.array_equal(found[name], expected[name]) for name in found)


def test_tables_cover_every_array_of_the_trunk_and_read_both_ways(family, ours):
    theirs = to_hugging_face(ours, family)
    assert sum(map(len, theirs.values())) == sum(map(len, ours.values()))
    assert len(np.unique(np.concatenate([*theirs.values()]))) == sum(map(len, ours.values()))
    assert same(from_hugging_face(theirs, family), ours)
    assert same(to_hugging_face(from_hugging_face(theirs, family), family), theirs)


def test_no_two_names_of_a_table_are_equal(family):
    theirs = [name for name, _ in FAMILIES[family].table]
    assert len(set(theirs)) == len(theirs)


@pytest.mark.parametrize("prefix", ["bert.", "roberta.", "module.electra.", "0.auto_model."])
def test_prefix_is_found_and_heads_beside_it_are_left_out(family, ours, prefix):
    theirs = {prefix + name: value for name, value in to_hugging_face(ours, family).items()}
    heads = {
        "cls.predictions.bias": 0,
        "lm_head.dense.weight": 0,
        "classifier.weight": 0,
        f"{prefix}pooler.dense.bias": 0,
    }
    assert same(from_hugging_face(theirs | heads, family), ours)


def test_poolers_and_index_buffers_are_left_out(family, ours):
    extra = dict.fromkeys(["pooler.dense.weight", "embeddings.position_ids", "embeddings.token_type_ids"], 0)
    assert same(from_hugging_face(to_hugging_face(ours, family) | extra, family), ours)


def test_old_layer_norm_names_are_understood(ours, family):
    theirs = to_hugging_face(ours, family)
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in theirs.items()
    }
    assert (old.keys() != theirs.keys()) == any("LayerNorm" in name for name in theirs)
    assert same(from_hugging_face(old, family), ours)


@pytest.mark.parametrize(
    "name",
    [
        "encoder.layer.0.attention.self.distance_embedding.weight",
        "encoder.layer.00.output.dense.weight",
        "encoder.layer.0.crossattention.self.query.weight",
        "adapters.weight",
    ],
)
def test_unknown_array_in_the_encoder_is_refused(family, ours, name):
    with pytest.raises(WeightsMismatch, match=name.replace(".", r"\.")):
        from_hugging_face(to_hugging_face(ours, family) | {name: 0}, family)


def test_one_array_under_its_old_and_its_new_name_is_refused(ours, family):
    theirs = to_hugging_face(ours, family)
    with pytest.raises(WeightsMismatch, match="gamma"):
        from_hugging_face(theirs | {"embeddings.LayerNorm.gamma": 0}, family)


@pytest.mark.parametrize("prefixes", [[], ["generator.", "discriminator."]], ids=["none", "two"])
def test_checkpoint_must_hold_one_encoder(family, ours, prefixes):
    theirs = {p + name: value for p in prefixes for name, value in to_hugging_face(ours, family).items()}
    with pytest.raises(WeightsMismatch, match="one"):
        from_hugging_face(theirs, family)


def test_missing_and_surplus_arrays_are_named_as_the_checkpoint_names_them(ours, family, shape):
    theirs = {f"x.{name}": value for name, value in to_hugging_face(ours, family).items()}
    removed = next(name for name in theirs if ".3." in name)
    theirs[removed.replace(".3.", ".12.")] = theirs.pop(removed)
    with pytest.raises(WeightsMismatch) as raised:
        check_names(trunk_names(theirs, family), shape)
    assert removed.removeprefix("x.") in str(raised.value)
    assert removed.replace(".3.", ".12.") in str(raised.value)


def test_unknown_own_name_is_refused(family):
    with pytest.raises(WeightsMismatch, match="pool.query"):
        to_hugging_face({"pool.query": 0}, family)
