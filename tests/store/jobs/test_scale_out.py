"""The recipes of docs/guides/scale-out.md, and its arithmetic."""

import importlib.util
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from benchmarks.store_scale import ANSWER_BYTES, MEASURED, UNKNOWN, Corpus, rates, table
from polyhead.bundle.read import Bundle
from polyhead.store.corpus import create_corpus, open_corpus
from polyhead.store.corpus.base import PackedRows
from polyhead.store.corpus.ids import document_id
from polyhead.store.jobs.backfill import BackfillRequest, backfill
from polyhead.store.jobs.executors import EXECUTORS
from support.backfills import append, make_bundle, schema, texts

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "guides" / "scale-out.md").read_text(encoding="utf-8")
RECIPES = {file.name: file.read_text(encoding="utf-8") for file in (ROOT / "examples" / "spark").glob("*.py")}


def two_stores(folder):
    """A bundle, and twice the same store."""
    bundle = make_bundle(folder / "bundle")
    path = Bundle.open(bundle).tasks["mood"].path
    for name in ("one", "other"):
        store = create_corpus(folder / name, schema(path))
        for start in range(0, 60, 20):
            append(store, path, texts(range(start, start + 20)))
    return bundle


def assert_same_answers(folder):
    """Also which fragments have which columns."""
    one, other = open_corpus(folder / "one"), open_corpus(folder / "other")
    assert len(one.fragments) == len(other.fragments) == 3
    for a, b in zip(one.fragments, other.fragments, strict=True):
        assert set(a.results) == set(b.results) and len(a.results) == 3
        for column in a.results:
            for name, array in one.results(a.name, column).items():
                np.testing.assert_array_equal(array, other.results(b.name, column)[name])


class StandIn:
    """What the recipe asks of Spark, in this process."""

    def getOrCreate(self):
        return types.SimpleNamespace(sparkContext=self)

    def broadcast(self, value):
        return types.SimpleNamespace(value=value)

    def parallelize(self, values, partitions):
        assert 0 < partitions == len(values) <= 16  # waves of 8 units a worker
        return types.SimpleNamespace(map=lambda do: types.SimpleNamespace(collect=lambda: list(map(do, values))))


def test_recipes_are_there_and_whole():
    assert set(RECIPES) == {"spark_executor.py", "spark_backfill.py", "spark_extract.py"}
    for name, code in RECIPES.items():
        compile(code, name, "exec")


def test_the_executor_of_the_page_does_a_backfill_with_a_stand_in_for_spark(tmp_path, monkeypatch):
    stand_in = types.SimpleNamespace(SparkSession=types.SimpleNamespace(builder=StandIn()))
    monkeypatch.setitem(sys.modules, "pyspark", types.SimpleNamespace(sql=stand_in))
    monkeypatch.setitem(sys.modules, "pyspark.sql", stand_in)
    bundle = two_stores(tmp_path)
    with EXECUTORS.temporary():
        exec(compile(RECIPES["spark_executor.py"], "spark_executor.py", "exec"), {"__name__": "spark_executor"})
        done = backfill(tmp_path / "one", bundle, BackfillRequest(executor="spark", workers=2))
    assert (done.executor, done.filled) == ("spark", 60)
    backfill(tmp_path / "other", bundle, BackfillRequest(executor="inline"))
    assert_same_answers(tmp_path)


def test_a_partition_adds_its_texts_once(tmp_path):
    """The recipe of extraction, called as Spark calls it; the store is made by the first call."""
    bundle = make_bundle(tmp_path / "bundle")
    names = {"__name__": "spark_extract"}
    code = RECIPES["spark_extract.py"].replace("open_backend(None,", "open_backend('reference',")
    exec(compile(code, "spark_extract.py", "exec"), names)
    names |= {"BUNDLE": str(bundle), "STORE": str(tmp_path / "store")}
    rows = [types.SimpleNamespace(text=text) for (text,) in texts(range(40))]
    assert names["add_partition"](rows[:20]) == [20]
    assert names["add_partition"](rows[10:]) == [20] and names["add_partition"]([]) == []
    store = open_corpus(tmp_path / "store")
    assert (store.find([document_id((row.text,)) for row in rows])[:, 0] >= 0).all()


WITH_SPARK = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
import spark_executor, spark_extract
from polyhead.store.jobs.backfill import BackfillRequest, backfill
folder = sys.argv[1]
assert backfill(f"{folder}/one", f"{folder}/bundle", BackfillRequest(executor="spark", workers=2)).filled == 60
frame = spark.createDataFrame([(f"text {n}",) for n in range(30)], ["text"]).repartition(3)
spark_extract.add([f"text {n}" for n in range(10)])
assert frame.rdd.mapPartitions(spark_extract.add_partition).sum() == 20
"""


@pytest.mark.slow
def test_the_recipes_with_spark_itself(tmp_path):
    if importlib.util.find_spec("pyspark") is None:
        pytest.skip("pyspark, which nothing else here needs, is not installed")
    bundle = two_stores(tmp_path)
    places = {'"bundle"': repr(str(bundle)), '"s3://bucket/corpus"': repr(str(tmp_path / "made"))}
    for name in ("spark_executor.py", "spark_extract.py"):
        code = RECIPES[name].replace("open_backend(None,", "open_backend('reference',")
        for there, here in places.items():
            code = code.replace(there, here)
        (tmp_path / name).write_text(code)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    environment = os.environ | {"PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", WITH_SPARK, str(tmp_path)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    backfill(tmp_path / "other", bundle, BackfillRequest(executor="inline"))
    assert_same_answers(tmp_path)
    assert sum(fragment.rows for fragment in open_corpus(tmp_path / "made").fragments) == 30


def test_bytes_are_those_of_a_store_on_disk(tmp_path):
    """Of 1,000 documents of 25 tokens: all files but those of versions and the schema."""
    from polyhead.plan import Codec
    from polyhead.store.corpus.base import FeatureColumn, Schema

    column = FeatureColumn(digest="x", layers=1, width=384, codec=Codec(name="float16"))
    store = create_corpus(tmp_path / "store", Schema(features=(column,)))
    data = np.zeros((25_000, column.token_bytes), np.uint8)
    store.append([document_id((str(n),)) for n in range(1000)], {"x": PackedRows.of([25] * 1000, data)})
    whole = sum(file.stat().st_size for file in (tmp_path / "store" / "fragments").rglob("*.bin"))
    assert Corpus(documents=1000, tokens=25).feature_bytes("float16") == whole


def test_hours_and_dollars_by_hand():
    """A billion documents at 100,000 a second are 10,000 seconds."""
    corpus = Corpus(documents=10**9, dollars_an_hour=3.6)
    assert corpus.hours(1e5) == pytest.approx(10_000 / 3600) and corpus.dollars(1e5) == pytest.approx(10)


def test_rates_are_those_that_were_measured_and_nothing_is_made_up(tmp_path):
    assert rates(tmp_path) == {}
    assert sum(UNKNOWN in line for line in table(folder=tmp_path)) == 3
    rows = [
        {"what": "real", "encoding": speed, "backfill_1": {"documents": 1000, "seconds": 1000 / (100 * speed)}}
        for speed in (10.0, 30.0, 20.0)
    ]
    (tmp_path / MEASURED).write_text(json.dumps({"rows": [*rows, {"what": "open", "seconds": 1.0}]}))
    assert rates(tmp_path) == pytest.approx({"encode": 20, "backfill 1": 2000})
    lines = table(Corpus(documents=7_200_000, dollars_an_hour=2.0), tmp_path)
    assert "| encode all documents once | 20 documents a second: 100.0 machine hours, 200.00 dollars |" in lines
    assert "| backfill one task | 2,000 documents a second: 1.0 machine hours, 2.00 dollars |" in lines
    assert f"| backfill five tasks | {UNKNOWN} |" in lines


def test_bytes_of_an_answer_are_those_that_are_kept(tmp_path):
    from polyhead.store.jobs.answers import answer_columns, row_bytes

    bundle = Bundle.open(make_bundle(tmp_path / "bundle"))
    (column,) = answer_columns("mood", bundle.lines["mood"], all_scores=False)
    assert row_bytes(column, bundle.tasks["mood"].task) == ANSWER_BYTES
