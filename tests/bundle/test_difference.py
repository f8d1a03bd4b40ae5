"""Differences from a base: which arrays, and whether they are of low rank in the precision that was stored."""

import msgspec
import numpy as np
import pytest

from polyhead.convert.folders import encoder_difference, low_rank, rank_of, spacing
from polyhead.testing import tiny_trunk

BASE = tiny_trunk(layers=2, width=32)
MATRICES = [n for n, a in BASE.arrays.items() if a.ndim == 2 and n.startswith("layers.")]
ATTENTION = [f"layers.{i}.attention.{name}.weight" for i in (0, 1) for name in ("query", "value")]


def changed(change, names):
    arrays = {name: change(name, array) if name in names else array for name, array in BASE.arrays.items()}
    return msgspec.structs.replace(BASE, arrays=arrays)


def low(rank, seed=0, scale=0.01):
    """Adds scale * B A, computed in float32 as adapters are merged."""
    rng = np.random.default_rng(seed)

    def change(name, array):
        b, a = (rng.standard_normal(size) for size in ((len(array), rank), (rank, array.shape[1])))
        return (array + np.float32(scale) * (b.astype(np.float32) @ a.astype(np.float32))).astype(np.float32)

    return change


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_a_merged_low_rank_delta_is_found_with_its_rank(rank):
    found = encoder_difference(changed(low(rank), ATTENTION), BASE)
    assert found.is_low_rank
    assert found.rank == rank
    assert found.largest in ATTENTION
    assert set(found.matrices) == set(ATTENTION)
    assert found.vectors == ()


def test_a_rank_beyond_an_eighth_is_not_low():
    found = encoder_difference(changed(low(5), ATTENTION), BASE)
    assert (found.is_low_rank, found.rank, found.allowed) == (False, 5, 4)


def test_one_matrix_of_full_rank_is_enough_to_say_no():
    data = changed(low(2), ATTENTION)
    rng = np.random.default_rng(1)
    arrays = dict(data.arrays)
    name = "layers.1.feed_forward.outer.weight"
    arrays[name] = arrays[name] + 1e-4 * rng.standard_normal(arrays[name].shape).astype(np.float32)
    found = encoder_difference(msgspec.structs.replace(data, arrays=arrays), BASE)
    assert not found.is_low_rank
    assert found.largest == name


def test_full_fine_tuning_by_small_steps_is_not_low():
    rng = np.random.default_rng(2)

    def small(name, array):
        return (array + 1e-5 * np.sign(rng.standard_normal(array.shape))).astype(np.float32)

    found = encoder_difference(changed(small, BASE.arrays), BASE)
    assert not found.is_low_rank
    assert len(found.matrices) + len(found.vectors) == len(BASE.arrays)


def test_equal_encoders_differ_nowhere():
    found = encoder_difference(BASE, BASE)
    assert (found.matrices, found.vectors, found.is_low_rank) == ((), (), False)


def test_vectors_are_told_apart_and_are_no_low_rank_delta():
    found = encoder_difference(changed(lambda name, array: array + 1, ["layers.0.attention.norm.bias"]), BASE)
    assert (found.matrices, found.vectors) == ((), ("layers.0.attention.norm.bias",))
    assert not found.is_low_rank


def half(array):
    return array.astype(np.float16).astype(np.float32)


def brain(array):
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0x8000) & np.uint32(0xFFFF0000)).view(np.float32)


@pytest.mark.parametrize("stored", [half, brain])
def test_rounding_of_a_stored_precision_is_no_rank(stored):
    """The same delta of rank 2 read from files of 16 bits, whose rounding is of full rank."""
    name = "layers.0.attention.query.weight"
    base = stored(BASE.arrays[name])
    moved = stored(low(2, scale=0.3)(name, base))
    assert np.linalg.matrix_rank(moved.astype(np.float64) - base) > 4
    assert rank_of(moved, base) == 2


def test_spacing_is_told_by_bits_that_are_never_set():
    array = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    assert [spacing(a) for a in (array, half(array), brain(array))] == [2.0**-23, 2.0**-10, 2.0**-7]


@pytest.mark.parametrize("shape", [(300, 8), (8, 300), (20, 17)])
def test_rank_does_not_depend_on_the_longer_side(shape):
    rng = np.random.default_rng(3)
    base = rng.standard_normal(shape).astype(np.float32)
    for rank in (0, 1, 3):
        delta = rng.standard_normal((shape[0], rank)) @ rng.standard_normal((rank, shape[1]))
        assert rank_of((base + 0.1 * delta).astype(np.float32), base) == rank


def test_low_is_an_eighth_of_the_smaller_side_and_at_least_one():
    assert [low_rank(shape) for shape in [(768, 768), (30522, 384), (5, 900)]] == [96, 48, 1]
