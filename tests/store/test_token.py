"""The codec that is told tokens: what it keeps, at how many bytes, and what it refuses."""

import zlib

import numpy as np
import pytest

from polyhead.codecs import tables, token
from polyhead.engine.backends import open_runtime
from polyhead.engine.compile.heads import token_inputs_of
from polyhead.errors import StoreError
from polyhead.plan import Codec, Pool
from polyhead.plan.coding import calibrate, decode, encode, through, tokens_of
from polyhead.store.corpus.base import FeatureColumn, PackedRows, Schema
from polyhead.store.corpus.lance import LanceStore
from polyhead.store.corpus.plain import PlainStore
from polyhead.store.packed import means

WIDTH, VOCABULARY = 64, 300
SEEN = 200  # tokens below are seen when the codec is fixed
_RNG = np.random.default_rng(9)
WORDS = _RNG.standard_normal((VOCABULARY, 20)).astype(np.float32)
OWN = (WORDS @ _RNG.standard_normal((20, WIDTH)) + 0.5 * _RNG.standard_normal((VOCABULARY, WIDTH))).astype(np.float32)
TURN = np.linalg.qr(_RNG.standard_normal((WIDTH, WIDTH)))[0] * np.geomspace(3, 0.1, WIDTH)[:, None]


def drawn(rows, seed=0, *, tokens=SEEN):
    """Vectors of tokens, most of which follows from the token, and the tokens."""
    rng = np.random.default_rng(seed)
    own = rng.integers(0, tokens, rows)
    return (OWN[own] + rng.standard_normal((rows, WIDTH)) @ TURN + 1).astype(np.float32), own


def fixed(rows=6000, name="token1"):
    values, tokens = drawn(rows)
    return calibrate(values, name=name, tokens=tokens, words=WORDS)


def lost(values, decoded):
    return float(((decoded - values) ** 2).sum() / ((values - values.mean(axis=0)) ** 2).sum())


def rows_of(table):
    """The rows of the tokens, inflated."""
    return np.frombuffer(zlib.decompress(table["means"].tobytes()), np.uint8).reshape(-1, len(table["basis"]))


def changed(table, change):
    """Other rows of the tokens."""
    rows = np.ascontiguousarray(change(rows_of(table)), np.uint8)
    table["means"] = np.frombuffer(zlib.compress(rows.tobytes()), np.uint8)


@pytest.fixture
def forget(monkeypatch):
    """Makes this process one that knows no tables yet."""

    def forget():
        monkeypatch.setattr(tables, "_TABLES", {})
        token._code_of.cache_clear()

    forget()
    return forget


def test_what_is_told_is_not_lost_again():
    codec, (values, tokens) = fixed(), drawn(2000, seed=1)
    told = lost(values, through(values, codec, tokens))
    assert told < 0.5 * lost(values, through(values, fixed(name="pca1")))
    assert told < 0.1 * lost(values, through(values, codec, np.roll(tokens, 1)))
    assert encode(values, codec, tokens).shape[1] == WIDTH // 8


def test_a_token_that_was_never_seen_is_told_by_its_word_vector():
    codec, values = fixed(), (OWN + np.random.default_rng(3).standard_normal((VOCABULARY, WIDTH)) @ TURN + 1)[SEEN:]
    values, unseen = values.astype(np.float32), np.arange(SEEN, VOCABULARY)
    untold = lost(values, through(values, codec, np.full(len(unseen), -1)))
    assert lost(values, through(values, codec, unseen)) < 0.3 * untold


def test_a_vector_is_its_table_worked_out_by_hand():
    codec, (values, tokens) = fixed(), drawn(50, seed=2)
    table = dict(tables.table_named(codec.arrays))
    told = (rows_of(table)[tokens + 1] - 64.0) / 2  # every token has a row, after that of none
    turned = (values - table["mean"]) @ table["basis"].T / table["step"]
    levels = np.clip(np.rint(turned - told + table["zero"]), 0, 2 ** table["bits"] - 1)
    expected = table["mean"] + (told + levels - table["zero"]) * table["step"] @ table["basis"]
    # Steps are 0.05 and more; decoding adds numbers up to 200, each times a matrix that was rounded to a grid.
    assert table["step"][table["bits"] > 0].min() > 0.05
    np.testing.assert_allclose(through(values, codec, tokens), expected, atol=1e-2)
    raw = encode(values, codec, tokens)
    assert (raw[:, :2].copy().view("<u2")[:, 0] == tokens + 1).all()
    assert int(table["bits"].sum()) == WIDTH - 16


def test_a_token_tells_its_mean_drawn_to_what_the_map_from_word_vectors_says():
    """Of tokens seen 1,000 times it is their mean, whatever the map says; rounded to a part of a step."""
    values, tokens = drawn(1000 * 5, seed=4, tokens=5)
    table = tables.table_named(calibrate(values, name="token1", tokens=tokens, words=WORDS[:5]).arrays)
    told = (rows_of(table)[1:] - 64.0) * (table["step"] / 2) @ table["basis"]
    true = np.stack([values[tokens == t].mean(axis=0) for t in range(5)])
    worst = np.abs((told - (true - table["mean"])) @ table["basis"].T)
    assert (worst <= 0.51 * table["step"] / 2 + 0.02).all()


def test_what_stands_beside_a_vector_moves_none_of_its_bits():
    codec, (values, tokens) = fixed(), drawn(300, seed=3)
    raw = encode(values, codec, tokens)
    for rows in (1, 7, 64):
        starts = range(0, 300, rows)
        alone = np.concatenate([encode(values[i : i + rows], codec, tokens[i : i + rows]) for i in starts])
        assert alone.tobytes() == raw.tobytes()
        back = np.concatenate([decode(raw[i : i + rows], codec, WIDTH) for i in starts])
        assert back.tobytes() == decode(raw, codec, WIDTH).tobytes()


def test_sums_of_decoding_are_exact_in_float32():
    """In any order, so that every backend decodes the same numbers."""
    codec = fixed()
    code, (values, tokens) = token._code_of(codec.arrays), drawn(50, seed=4)
    raw = encode(values, codec, tokens)
    numbers = np.empty((50, len(code.back)), np.float32)
    codec.format.numbers(raw, codec, numbers)
    assert (numbers == np.rint(numbers)).all()
    wanted = numbers.astype(np.float64) @ code.back.astype(np.float64) + code.shift.astype(np.float64)
    np.testing.assert_array_equal(decode(raw, codec, WIDTH), wanted)
    for order in (np.arange(len(code.back)), np.random.default_rng(0).permutation(len(code.back))):
        total = np.broadcast_to(code.shift, (50, WIDTH)).copy()
        for place in order:
            total += numbers[:, place, None] * code.back[place]
        np.testing.assert_array_equal(total, wanted)


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_a_compiled_graph_decodes_the_same_bits(runtime):
    pytest.importorskip(runtime)
    codec, (values, tokens) = fixed(), drawn(2000, seed=5)
    move = np.float32(1e-4) * np.random.default_rng(0).choice([-1, 1], (8, WIDTH)).astype(np.float32)
    inside = np.ones(len(values), bool)  # of no level does rounding decide
    for step in move:
        inside &= (encode(values - step, codec, tokens) == encode(values + step, codec, tokens)).all(axis=1)
    of_tokens = token_inputs_of(Pool(positions="all", codec=codec))
    inputs = [("x", "float", (-1, -1, WIDTH)), ("token_inputs", "float", (-1, -1, of_tokens(tokens).shape[1]))]

    def build(ops):
        x, token_inputs = (ops.input(*each) for each in inputs)
        return {"out": codec.format.graph_with_tokens(ops, x, token_inputs, codec)}

    compiled = open_runtime(runtime, precision="float32").compile(build, label="codec", layers=False)
    found = compiled({"x": values[inside][:, None], "token_inputs": of_tokens(tokens[inside])[:, None]})["out"][:, 0]
    assert inside.sum() > 500
    np.testing.assert_array_equal(found, through(values, codec, tokens)[inside])


def test_a_mean_over_tokens_is_read_as_no_token():
    codec, (values, _) = fixed(), drawn(20, seed=6)
    pool = Pool(positions="mean", codec=codec)
    ids, mask = np.full((20, 3), 7), np.ones((20, 3), bool)
    none = tokens_of(pool, ids=ids, mask=mask, words=None)
    assert none.shape == (20, 1) and (none == -1).all() and token_inputs_of(pool) is None
    raw = encode(values, codec, none[:, 0])
    assert not raw[:, :2].any()
    assert raw.tobytes() == codec.format.encode(values, codec).tobytes()


def test_positions_say_whose_token_they_are():
    ids, mask = np.array([[5, 6, 7], [8, 9, 0]]), np.array([[True, True, True], [True, True, False]])
    words, codec = np.array([[2, -1], [0, 1]]), Codec(name="token1")
    found = {
        at: tokens_of(Pool(positions=at, codec=codec), ids=ids, mask=mask, words=words).tolist()
        for at in ("all", "first", "tokens", "mean")
    }
    assert found == {
        "all": [[5, 6, 7], [8, 9, -1]],
        "first": [[5], [8]],
        "tokens": [[7, -1], [8, 9]],
        "mean": [[-1], [-1]],
    }


def test_values_far_out_and_infinite_come_back_finite():
    codec = fixed()
    values = np.zeros((3, WIDTH), np.float32)
    values[0, 0], values[1, :2], values[2] = np.inf, (-np.inf, np.inf), 1e30
    assert np.isfinite(through(values, codec, np.array([0, -1, 299]))).all()


def test_vectors_that_are_all_the_same_come_back():
    values = np.tile(np.linspace(-1, 2, WIDTH, dtype=np.float32), (30, 1))
    codec = calibrate(values, name="token1", tokens=np.arange(30), words=WORDS)
    np.testing.assert_allclose(through(values, codec, np.arange(30)), values, atol=5e-3)


def test_equal_features_give_equal_arrays_and_other_tokens_others():
    values, tokens = drawn(400)
    assert fixed(400) == fixed(400)
    assert fixed(400).arrays != calibrate(values, name="token1", tokens=np.roll(tokens, 1), words=WORDS).arrays


def test_of_a_large_vocabulary_the_tokens_seen_most_have_a_row(monkeypatch):
    """As if two bytes could name 100 rows: the others are read as no token, and nothing fails."""
    monkeypatch.setattr(token, "MOST_ROWS", 100)
    values, tokens = drawn(3000, tokens=150)
    often = np.concatenate([np.flatnonzero(tokens < 60), np.arange(200)])
    codec = calibrate(values[often], name="token1", tokens=tokens[often], words=WORDS)
    table = tables.table_named(codec.arrays)
    assert len(rows_of(table)) == 100 and set(range(60)) <= set(table["tokens"].astype(int))
    without = np.setdiff1d(np.arange(VOCABULARY), table["tokens"].astype(int))
    new, own = drawn(500, seed=7, tokens=60)
    assert lost(new, through(new, codec, own)) < 0.3 * lost(new, through(new, codec, np.full(500, -1)))
    assert not encode(new[:1], codec, without[:1])[:, :2].any()


# What is refused.


def test_a_codec_that_is_told_nothing_says_so():
    codec, (values, tokens) = fixed(), drawn(4)
    with pytest.raises(StoreError, match="has to be told whose token.*no tokens"):
        encode(values, codec)
    with pytest.raises(StoreError, match=r"tokens of shape \(3,\)"):
        encode(values, codec, tokens[:3])
    with pytest.raises(StoreError, match="has to be told"):
        calibrate(values, name="token1", words=WORDS)
    with pytest.raises(StoreError, match="without a word vector.*token 9.*below 5"):
        calibrate(values, name="token1", tokens=np.full(4, 9), words=WORDS[:5])


@pytest.mark.parametrize("own", [VOCABULARY, -2])
def test_tokens_of_another_vocabulary_are_refused(own):
    with pytest.raises(StoreError, match="vocabulary does not have.*0 to 299"):
        encode(drawn(1)[0], fixed(), np.array([own]))


def test_bytes_that_name_no_row_are_refused_decoded_and_packed():
    codec, (values, tokens) = fixed(), drawn(4)
    raw = encode(values, codec, tokens)
    raw[2, :2] = 255
    with pytest.raises(StoreError, match="a row that the codec's table does not have.*65535"):
        decode(raw, codec, WIDTH)
    with pytest.raises(StoreError, match="a row that the codec's table does not have"):
        means(FeatureColumn(digest="d", layers=1, width=WIDTH, codec=codec), PackedRows.of([2, 2], raw))


def test_vectors_of_another_width_are_refused():
    with pytest.raises(StoreError, match="width 8"):
        encode(np.zeros((2, 8), np.float32), fixed(), np.zeros(2, int))


def _set(name, place, value):
    def change(table):
        table[name][place] = value

    return change


HOSTILE = {
    "not a number": _set("mean", 0, np.nan),
    "an infinite step": _set("step", 1, np.inf),
    "a negative step": _set("step", 0, -1),
    "too many bits": _set("bits", 0, 6),
    "numbers beyond a byte": lambda table: changed(table, lambda rows: rows | np.uint8(128)),
    "tokens beyond the vocabulary": _set("tokens", -1, VOCABULARY),
    "tokens twice": _set("tokens", 1, 0),
    "a token below none": _set("tokens", 0, -1),
    "a huge vocabulary": _set("vocabulary", 0, 2.0**40),
    "no vocabulary": lambda table: table.pop("vocabulary"),
    "more": lambda table: table.update(other=np.zeros(1, np.float32)),
    "fewer rows": lambda table: changed(table, lambda rows: rows[:-1]),
    "more rows": lambda table: changed(table, lambda rows: np.repeat(rows, 1000, axis=0)),
    "rows cut off": lambda table: table.update(means=table["means"][:-9]),
    "rows that are no deflated bytes": lambda table: table.update(means=table["means"] ^ np.uint8(1)),
    "another width": lambda table: table.update(basis=table["basis"][:, :-1]),
    "rows of floats": lambda table: table.update(means=table["means"].astype(np.float32)),
    "no components": lambda table: table.update(basis=table["basis"][:0]),
}


@pytest.mark.parametrize("change", HOSTILE)
def test_a_table_of_something_else_is_refused(change):
    table = {name: array.copy() for name, array in tables.table_named(fixed(400).arrays).items()}
    HOSTILE[change](table)
    with pytest.raises(StoreError, match="not one of tokens and components"):
        encode(drawn(2)[0], Codec(name="token1", arrays=tables.keep_table(table)), np.zeros(2, int))


def test_the_tables_of_the_two_kinds_of_components_are_not_taken_for_each_other():
    values, tokens = drawn(2)
    with pytest.raises(StoreError, match="not one of tokens and components"):
        encode(values, Codec(name="token1", arrays=fixed(name="pca1").arrays), tokens)
    with pytest.raises(StoreError, match="not one of components"):
        encode(values, Codec(name="pca1", arrays=fixed().arrays))


@pytest.mark.parametrize("kind", [PlainStore, LanceStore])
def test_a_store_brings_the_table(tmp_path, forget, kind):
    if kind is LanceStore:
        pytest.importorskip("lance")
    codec, (values, tokens) = fixed(400), drawn(10, seed=6)
    raw, wanted = encode(values, codec, tokens), through(values, codec, tokens)
    schema = Schema(features=(FeatureColumn(digest="d", layers=1, width=WIDTH, codec=codec),))
    store = kind.create(str(tmp_path / "s"), schema)
    store.append([bytes([i]) * 16 for i in range(5)], {"d": PackedRows.of([2] * 5, raw)})
    forget()
    opened = kind.open(str(tmp_path / "s"))
    opened.verify()
    found = opened.rows(opened.fragments[0].name, "d").data
    np.testing.assert_array_equal(decode(np.asarray(found), opened.schema.column("d").codec, WIDTH), wanted)


def test_a_table_whose_bytes_were_taken_for_floats_has_another_digest():
    table = tables.table_named(fixed(400).arrays)
    floats = {**table, "means": table["means"].astype(np.float32)}
    assert tables.table_digest(floats) != tables.table_digest(table)
