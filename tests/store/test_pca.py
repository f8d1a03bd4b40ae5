"""Codecs of principal components: what they keep, at how many bytes, and where their arrays come from."""

import itertools
import shutil

import numpy as np
import pytest

from polyhead.codecs import tables
from polyhead.codecs.pca import ERRORS, STEPS, _code_of, allocated
from polyhead.errors import CorruptFile, PlanError, StoreError
from polyhead.plan import Codec
from polyhead.plan.coding import calibrate, decode, encode, through
from polyhead.store.corpus.base import FeatureColumn, PackedRows, Schema
from polyhead.store.corpus.lance import LanceStore
from polyhead.store.corpus.plain import PlainStore
from support.cases import cases

NAMES = ("pca1", "pca2", "pca4")
WIDTH = 24


def drawn(rows, seed=0):
    """Gaussian vectors whose dimensions depend on each other; their components have variances from 4 down to 0.01."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(np.random.default_rng(9).standard_normal((WIDTH, WIDTH)))[0]
    spread = np.geomspace(2, 0.1, WIDTH)
    return (rng.standard_normal((rows, WIDTH)) * spread @ turn + np.linspace(-3, 3, WIDTH)).astype(np.float32)


@pytest.fixture
def forget(monkeypatch):
    """Makes this process one that knows no tables yet."""

    def forget():
        monkeypatch.setattr(tables, "_TABLES", {})
        _code_of.cache_clear()

    forget()
    return forget


def lost(values, codec):
    return float(((through(values, codec) - values) ** 2).sum(axis=1).mean())


@pytest.mark.parametrize(("name", "bits"), [("pca1", 1), ("pca2", 2), ("pca4", 4)])
def test_a_gaussian_loses_what_the_published_quantizers_lose(name, bits):
    """The sum over components of variance times the error of Max's (1960) uniform quantizer of its bits."""
    codec, values = calibrate(drawn(20_000), name=name), drawn(20_000, seed=1)
    variance = np.linalg.eigvalsh(np.cov(values.T))[::-1]
    expected = sum(v * ERRORS[b] for v, b in zip(variance, allocated(variance, bits * WIDTH), strict=True))
    assert lost(values, codec) == pytest.approx(expected, rel=0.05)
    assert encode(values, codec).shape[1] == bits * WIDTH // 8


@cases("bits", range(1, 9))
def test_the_table_of_quantizers_is_the_best_that_a_gaussian_allows(bits):
    """Integrated numerically around each step, levels equally far apart and symmetric."""
    x = np.linspace(-8, 8, 200_001)
    weight = np.exp(-(x**2) / 2)
    weight /= weight.sum()

    def error(step):
        top = 2**bits - 1
        levels = np.clip(np.rint(x / step + top / 2), 0, top)
        return float((weight * (x - step * (levels - top / 2)) ** 2).sum())

    assert error(STEPS[bits]) == pytest.approx(ERRORS[bits], rel=0.01)
    assert min(error(STEPS[bits] * f) for f in (0.97, 1.03)) >= error(STEPS[bits]) * (1 - 1e-3)


@cases("total", range(1, 9))
def test_no_other_allocation_of_so_many_bits_loses_less(total):
    variance = np.array([3.0, 1.0, 0.4, 0.05])
    losses = {
        bits: sum(v * ERRORS[b] for v, b in zip(variance, bits, strict=True))
        for bits in itertools.product(range(7), repeat=4)
        if sum(bits) == total
    }
    assert len(losses) >= 4
    assert sum(v * ERRORS[b] for v, b in zip(variance, allocated(variance, total), strict=True)) == min(losses.values())


def test_one_bit_loses_far_less_than_a_sign_with_the_best_scale():
    values = drawn(5000)
    centred = values - values.mean(axis=0)
    signs = np.where(centred >= 0, 1, -1) * np.abs(centred).mean(axis=0)
    assert lost(values, calibrate(values, name="pca1")) < 0.7 * ((signs - centred) ** 2).sum(axis=1).mean()


@pytest.mark.parametrize("name", NAMES)
def test_a_vector_is_its_table_worked_out_by_hand(name):
    codec = calibrate(drawn(2000), name=name)
    table = {key: array.astype(np.float64) for key, array in tables.table_named(codec.arrays).items()}
    values = drawn(50, seed=2)
    turned = (values - table["mean"]) @ table["basis"].T
    levels = np.clip(np.rint(turned / table["step"] + table["zero"]), 0, 2 ** table["bits"] - 1)
    expected = table["mean"] + (levels - table["zero"]) * table["step"] @ table["basis"]
    # A component's steps are 0.02 and more; decoding rounds to a grid that is far finer.
    assert table["step"].min() > 0.02
    np.testing.assert_allclose(through(values, codec), expected, atol=1e-3)
    np.testing.assert_allclose(table["basis"] @ table["basis"].T, np.eye(len(table["basis"])), atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_what_stands_beside_a_vector_moves_none_of_its_bits(name):
    codec, values = calibrate(drawn(2000), name=name), drawn(300, seed=3)
    raw = encode(values, codec)
    for rows in (1, 7, 64):
        alone = np.concatenate([encode(values[i : i + rows], codec) for i in range(0, 300, rows)])
        assert alone.tobytes() == raw.tobytes()
        back = np.concatenate([decode(raw[i : i + rows], codec, WIDTH) for i in range(0, 300, rows)])
        assert back.tobytes() == decode(raw, codec, WIDTH).tobytes()


def test_sums_of_decoding_are_exact_in_float32():
    """In any order, so that every backend decodes the same numbers."""
    codec, values = calibrate(drawn(2000), name="pca4"), drawn(100, seed=4)
    raw = encode(values, codec)
    code = codec.format._code(codec, WIDTH)
    exact = decode(raw, codec, WIDTH).astype(np.float64)
    assert (exact.astype(np.float32) == exact).all()
    rng, top = np.random.default_rng(0), code.top.astype(np.int64)
    levels = rng.integers(0, top + 1, (50, len(top)))
    wanted = levels.astype(np.float64) @ code.back.astype(np.float64) + code.shift.astype(np.float64)
    for order in (np.arange(len(top)), rng.permutation(len(top))):
        total = np.broadcast_to(code.shift, (50, WIDTH)).copy()
        for place in order:
            total += levels[:, place, None].astype(np.float32) * code.back[place]
        np.testing.assert_array_equal(total, wanted)


@pytest.mark.parametrize("name", NAMES)
def test_values_far_out_and_infinite_come_back_finite(name):
    codec = calibrate(drawn(500), name=name)
    values = np.zeros((3, WIDTH), np.float32)
    values[0, 0], values[1, :2], values[2] = np.inf, (-np.inf, np.inf), 1e30
    assert np.isfinite(through(values, codec)).all()


def test_vectors_that_are_all_the_same_come_back():
    values = np.tile(np.linspace(-1, 2, WIDTH, dtype=np.float32), (30, 1))
    np.testing.assert_allclose(through(values, calibrate(values, name="pca1")), values, atol=1e-4)


def test_equal_features_give_equal_arrays_and_others_another_digest():
    assert calibrate(drawn(400), name="pca1") == calibrate(drawn(400), name="pca1")
    assert calibrate(drawn(400), name="pca1").arrays != calibrate(drawn(400, seed=5), name="pca1").arrays


def test_arrays_that_nothing_brought_are_asked_for(forget):
    with pytest.raises(StoreError, match="not known here"):
        encode(drawn(2), Codec(name="pca1", arrays="0" * 64))
    with pytest.raises(StoreError, match="calibrate"):
        encode(drawn(2), Codec(name="pca1"))


def test_vectors_of_another_width_or_more_bits_are_refused():
    codec = calibrate(drawn(400), name="pca4")
    with pytest.raises(StoreError, match="width 8"):
        encode(np.zeros((2, 8), np.float32), codec)
    with pytest.raises(StoreError, match="other arrays"):
        encode(drawn(2), Codec(name="pca1", arrays=codec.arrays))


@pytest.mark.parametrize("fields", [{"name": "sign", "arrays": "0" * 64}, {"name": "pca1", "arrays": "../x"}])
def test_a_path_names_arrays_by_their_digest_where_the_codec_has_some(fields):
    with pytest.raises(PlanError, match="cannot have these arrays"):
        Codec(**fields)


@pytest.mark.parametrize("change", ["bits", "basis", "step", "more"])
def test_a_table_of_something_else_is_refused(change):
    table = dict(tables.table_named(calibrate(drawn(400), name="pca1").arrays))
    if change == "more":
        table["other"] = np.zeros(1, np.float32)
    elif change == "bits":
        table["bits"] = table["bits"] * 100
    elif change == "basis":
        table["basis"] = table["basis"][:, :-1]
    else:
        table["step"] = -table["step"]
    with pytest.raises(StoreError, match="not one of components"):
        encode(drawn(2), Codec(name="pca1", arrays=tables.keep_table(table)))


def schema_of(codec):
    return Schema(features=(FeatureColumn(digest="d", layers=1, width=WIDTH, codec=codec),))


@pytest.mark.parametrize("kind", [PlainStore, LanceStore])
def test_a_store_brings_the_arrays_of_its_codec(tmp_path, forget, kind):
    if kind is LanceStore:
        pytest.importorskip("lance")
    codec, values = calibrate(drawn(400), name="pca1"), drawn(10, seed=6)
    raw, wanted = encode(values, codec), through(values, codec)
    store = kind.create(str(tmp_path / "s"), schema_of(codec))
    store.append([bytes([i]) * 16 for i in range(5)], {"d": PackedRows.of([2] * 5, raw)})
    forget()
    opened = kind.open(str(tmp_path / "s"))
    opened.verify()
    found = opened.rows(opened.fragments[0].name, "d").data
    np.testing.assert_array_equal(decode(np.asarray(found), opened.schema.column("d").codec, WIDTH), wanted)


def test_a_dataset_without_the_arrays_that_it_names_is_refused(tmp_path, forget):
    pytest.importorskip("lance")
    codec = calibrate(drawn(400), name="pca1")
    LanceStore.create(str(tmp_path / "s"), schema_of(codec))
    shutil.rmtree(tmp_path / "s" / "_codecs")
    forget()
    with pytest.raises(StoreError, match=codec.arrays):
        LanceStore.open(str(tmp_path / "s"))


@pytest.mark.parametrize("damage", ["absent", "changed", "foreign"])
def test_a_store_without_the_arrays_that_it_names_is_refused(tmp_path, forget, damage):
    codec = calibrate(drawn(400), name="pca1")
    PlainStore.create(str(tmp_path / "s"), schema_of(codec))
    file = tmp_path / "s" / "codecs" / f"{codec.arrays}.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.unlink() if damage == "absent" else file.write_bytes(bytes(raw) if damage == "changed" else b"x" * 40)
    forget()
    with pytest.raises(StoreError, match=codec.arrays):
        PlainStore.open(str(tmp_path / "s"))


def test_a_file_of_other_arrays_is_not_taken(tmp_path):
    content = tables.table_bytes(calibrate(drawn(400), name="pca1").arrays)
    with pytest.raises(CorruptFile, match="does not hold the arrays"):
        tables.take_table(content, "1" * 64, tmp_path / "codec.safetensors")
