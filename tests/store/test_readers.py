"""Stores as Arrow: results with names in place of numbers, features on demand, and DuckDB and Polars over them."""

import numpy as np
import pytest

from polyhead.errors import StoreError
from polyhead.plan import Codec
from polyhead.plan.coding import decode
from polyhead.store.corpus.base import FeatureColumn, PackedRows, ResultFacts, Schema
from polyhead.store.corpus.ids import document_id
from polyhead.store.corpus.lance import LanceStore
from polyhead.store.corpus.plain import PlainStore
from polyhead.store.corpus.readers import features_of, packed_of, results_reader

pa = pytest.importorskip("pyarrow")

ONE = FeatureColumn(digest="one", layers=1, width=8, codec=Codec(name="sign"))
TWO = FeatureColumn(digest="two", layers=2, width=4, codec=Codec(name="float16"))
SIZES = (5, 3, 4)
LABELS = ("good", "bad", "no, 'not' \"so\"")


def facts(labels=LABELS, **arrays):
    return ResultFacts(task="t", kind="k", labels=labels, version="1", record="r", trunk="t", arrays=arrays)


def ids_of(number):
    return [document_id((f"{number} {row}",)) for row in range(SIZES[number])]


def rows_of(column, number):
    rng = np.random.default_rng(number)
    lengths = rng.integers(0, 5, SIZES[number])
    lengths[:2] = 0  # a batch of two documents without a token
    raw = rng.integers(0, 60, (int(lengths.sum()), column.token_bytes), np.uint8)
    return PackedRows.of(lengths, raw)


@pytest.fixture(params=[PlainStore, LanceStore], ids=["plain", "lance"])
def store(request, tmp_path):
    if request.param is LanceStore:
        pytest.importorskip("lance")
    made = request.param.create(str(tmp_path / "store.lance"), Schema(features=(ONE, TWO), source={"trunk": "t"}))
    for number in range(3):
        made.append(ids_of(number), {column.digest: rows_of(column, number) for column in (ONE, TWO)})
    return made


def put(store, column, results, *, fragments=(0, 2)):
    """Puts results by fragment; fragment 1 is not done yet."""
    for number in fragments:
        fragment = store.fragments[number]
        store.put_results(fragment.name, column, {name: array[: fragment.rows] for name, array in results.items()})


LABEL = np.array([2, 0, -1, 1, 0], np.int32)
SCORE = np.array([0.5, 0.25, np.nan, 1, 0.75], np.float32)
SEVERAL = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [0, 0, 1]], bool)
SHARES = np.array([[0.5, 0.25, 0.25], [1, 0, 0], [np.nan] * 3, [0, 1, 0], [0, 0.5, 0.5]], np.float16)


def test_answers_have_names_and_what_is_not_done_is_null(store):
    put(store, "mood", {"label": LABEL, "score": SCORE})
    put(store, "topics", {"labels": SEVERAL, "score": SCORE})
    put(store, "all", {"scores": SHARES})
    put(store, "urgency", {"value": SCORE})
    for column in ("mood", "topics", "all", "urgency"):
        store.describe(column, facts())
    table = results_reader(store).read_all()
    rows = {each.pop("id"): each for each in table.to_pylist()}
    assert list(rows) == [each for number in range(3) for each in ids_of(number)]
    for number in range(3):
        for row, document in enumerate(ids_of(number)):
            found = rows[document]
            if number == 1:
                assert set(found.values()) == {None}
                continue
            score = None if np.isnan(SCORE[row]) else SCORE[row]
            assert found["mood__label"] == (None if LABEL[row] < 0 else LABELS[LABEL[row]])
            assert found["mood__score"] == found["topics__score"] == found["urgency__value"] == score
            assert found["topics__labels"] == [name for name, is_so in zip(LABELS, SEVERAL[row], strict=True) if is_so]
            shares = [None if np.isnan(share) else share for share in SHARES[row]]
            assert found["all__scores"] == dict(zip(LABELS, shares, strict=True))


def test_what_nobody_described_is_given_as_numbers(store):
    put(store, "mine", {"label": LABEL, "scores": SHARES.astype(np.float32), "flag": LABEL > 0})
    table = results_reader(store).read_all()
    assert table.column("mine__label").to_pylist() == [*LABEL, *[None] * 3, *LABEL[:4]]
    assert table.column("mine__flag").to_pylist() == [*(LABEL > 0), *[None] * 3, *(LABEL[:4] > 0)]
    assert table.column("mine__scores")[0].as_py() == [0.5, 0.25, 0.25]


def test_columns_are_chosen_and_strangers_refused(store):
    put(store, "mood", {"label": LABEL})
    put(store, "urgency", {"value": SCORE})
    assert results_reader(store, ["urgency"]).schema.names == ["id", "urgency__value"]
    assert results_reader(store, []).read_all().column_names == ["id"]
    with pytest.raises(StoreError, match="no results") as raised:
        results_reader(store, ["urgency", "moood"])
    assert "Got: moood" in str(raised.value) and "mood, urgency" in str(raised.value)


def test_a_store_without_documents_or_results_gives_tables_without_rows(tmp_path):
    store = PlainStore.create(str(tmp_path / "store"), Schema(features=(ONE,)))
    assert results_reader(store).read_all().num_rows == 0
    assert features_of(store, "one").read_all().num_rows == packed_of(store, "one").read_all().num_rows == 0
    with pytest.raises(StoreError, match="keeps no features"):
        features_of(store, "two")


def test_arrays_that_differ_from_fragment_to_fragment_are_refused(tmp_path):
    store = PlainStore.create(str(tmp_path / "store"), Schema(features=(ONE,)))
    for number in range(2):
        store.append(ids_of(number), {"one": rows_of(ONE, number)})
    put(store, "mood", {"label": LABEL}, fragments=(0,))
    put(store, "mood", {"label": LABEL, "score": SCORE}, fragments=(1,))
    with pytest.raises(StoreError, match="other arrays"):
        results_reader(store).read_all()


@pytest.mark.parametrize("column", [ONE, TWO], ids=["sign", "two layers"])
@pytest.mark.parametrize("rows", [2, 1024])
def test_features_decode_to_what_the_codec_says(store, column, rows):
    reader, seen = features_of(store, column.digest, rows=rows), 0
    batches = list(reader)
    assert all(0 < batch.num_rows <= rows for batch in batches)
    found = {row["id"]: row for batch in batches for row in batch.to_pylist()}
    for number in range(3):
        packed = rows_of(column, number)
        for row, document in enumerate(ids_of(number)):
            raw = packed.data[packed.offsets[row] : packed.offsets[row + 1]]
            raw = raw.reshape(len(raw), column.layers, column.token_bytes // column.layers)
            values = decode(raw, column.codec, column.width)
            assert found[document]["tokens"] == len(raw)
            assert found[document]["features"] == values.reshape(len(raw), column.layers * column.width).tolist()
            seen += 1
    assert seen == sum(SIZES) == len(found)


def test_packed_features_are_those_of_the_store(store):
    for column in (ONE, TWO):
        table = packed_of(store, column.digest).read_all()
        assert table.column_names == ["id", f"tokens_{column.digest}", f"features_{column.digest}"]
        whole = [row for number in range(3) for row in rows_of(column, number).lengths.tolist()]
        assert table.column(1).to_pylist() == whole
        packed = b"".join(rows_of(column, number).data.tobytes() for number in range(3))
        assert b"".join(table.column(2).to_pylist()) == packed


def test_ids_and_packed_features_of_plain_files_are_not_copied(tmp_path):
    """The buffers of Arrow are the memory of the mapped files."""
    store = PlainStore.create(str(tmp_path / "store"), Schema(features=(ONE,)))
    store.append(ids_of(0), {"one": rows_of(ONE, 0)})
    (batch,) = list(packed_of(store, "one"))
    mapped = store.rows(store.fragments[0].name, "one").data
    assert batch.column(2).buffers()[2].address == mapped.ctypes.data
    name = store.fragments[0].name
    store.put_results(name, "mood", {"score": SCORE})
    (batch,) = list(results_reader(store))
    assert batch.column(0).buffers()[1].size == 16 * SIZES[0]


def described(store):
    put(store, "mood", {"label": LABEL, "score": SCORE})
    put(store, "topics", {"labels": SEVERAL, "score": SCORE})
    put(store, "all", {"scores": SHARES})
    for column in ("mood", "topics", "all"):
        store.describe(column, facts())


def test_duckdb_counts_labels_and_joins_by_id(store, tmp_path):
    duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed")
    import pyarrow.parquet

    described(store)
    database = duckdb.connect()
    database.register("results", results_reader(store).read_all())
    counts = database.sql("SELECT mood__label, count(*) FROM results GROUP BY 1").fetchall()
    assert dict(counts) == {"good": 3, "bad": 2, LABELS[2]: 2, None: 5}
    topics = database.sql("SELECT unnest(topics__labels) AS topic, count(*) FROM results GROUP BY 1").fetchall()
    assert dict(topics) == {name: 2 * SEVERAL[:4].sum(axis=0)[i] + SEVERAL[4][i] for i, name in enumerate(LABELS)}
    ((share,),) = database.sql("SELECT sum(all__scores.bad) FROM results").fetchall()
    assert share == pytest.approx(2 * 1.25 + 0.5)
    texts = pa.table({"id": ids_of(2) + [b"x" * 16], "text": [f"2 {row}" for row in range(SIZES[2])] + ["none"]})
    pyarrow.parquet.write_table(texts, tmp_path / "texts.parquet")
    joined = f"SELECT text FROM results JOIN '{tmp_path}/texts.parquet' USING (id) WHERE mood__label = 'good'"
    assert database.sql(joined).fetchall() == [("2 1",)]
    database.register("features", features_of(store, "two", rows=2))
    ((tokens,),) = database.sql("SELECT sum(len(features)) FROM features").fetchall()
    assert tokens == sum(len(rows_of(TWO, number).data) for number in range(3))


def test_polars_reads_results_and_features(store):
    polars = pytest.importorskip("polars", reason="Polars is not installed")
    described(store)
    frame = polars.from_arrow(results_reader(store).read_all())
    counts = dict(frame.group_by("mood__label").len().iter_rows())
    assert counts == {"good": 3, "bad": 2, LABELS[2]: 2, None: 5}
    assert frame["topics__labels"].explode().drop_nulls().len() == 2 * SEVERAL[:4].sum() + SEVERAL[4].sum()
    features = polars.concat(polars.from_arrow(batch) for batch in features_of(store, "one", rows=2))
    assert features["tokens"].sum() == sum(len(rows_of(ONE, number).data) for number in range(3))


def test_a_lance_store_is_read_in_place(tmp_path):
    lance = pytest.importorskip("lance", reason="Lance is not installed")
    duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed")
    polars = pytest.importorskip("polars", reason="Polars is not installed")
    location = str(tmp_path / "store.lance")
    store = LanceStore.create(location, Schema(features=(ONE,)))
    for number in range(3):
        store.append(ids_of(number), {"one": rows_of(ONE, number)})
    put(store, "mood", {"label": LABEL})
    data = lance.dataset(location)
    counts = dict(duckdb.sql("SELECT mood__label, count(*) FROM data GROUP BY 1").fetchall())
    assert counts == {-1: 2, 0: 3, 1: 2, 2: 2, None: 3}
    frame = polars.scan_pyarrow_dataset(data).select("mood__label").collect()
    assert frame["mood__label"].null_count() == 3 and len(frame) == sum(SIZES)
