"""What every store of a corpus does, checked on each kind of store (`make_store`)."""

import errno
import hashlib
import json
import multiprocessing
import os
import shutil
import threading
import weakref

import msgspec
import numpy as np
import pytest

from polyhead.errors import StoreError
from polyhead.plan import Codec
from polyhead.store.corpus import plain
from polyhead.store.corpus import plain_files as versions
from polyhead.store.corpus.base import FeatureColumn, PackedRows, ResultFacts, Schema
from polyhead.store.corpus.ids import IdIndex, document_id
from polyhead.store.corpus.lance import LanceStore
from polyhead.store.corpus.plain import PlainStore
from polyhead.store.jobs.store_summary import store_info
from support.disk_failures import FullDisk, run_forking
from support.tiers import first_of

ONE = FeatureColumn(digest="one", layers=1, width=8, codec=Codec(name="sign"))
TWO = FeatureColumn(digest="two", layers=2, width=4, codec=Codec(name="float16"))
SCHEMA = Schema(features=(ONE, TWO), words=True, source={"trunk": "t"})

# Forks a writer for every n, which dies, without any cleaning up, right before its n-th step at the disk.
KILLED = """
import os, sys
from support.disk_failures import Kill, exit_code
from store.test_corpus import KILLED_STEPS, SCHEMA, documents, same
from polyhead.store.corpus.plain import PlainStore

location, step = sys.argv[1:]
before, work, check = KILLED_STEPS[step]
before(PlainStore.create(location, SCHEMA))
deadly = kills = 0
while True:
    deadly += 1
    if os.fork() == 0:
        store = PlainStore.open(location)
        Kill(deadly)
        work(store)
        os._exit(0)
    code = exit_code()
    kills += code == 9
    store = PlainStore.open(location)
    store.verify()
    check(store, code == 0)
    if code == 0:
        break
print(kills)
"""


def documents(numbers):
    """Ids and features of some documents; each number always gives the same ones."""
    ids = [document_id((f"text {number}",)) for number in numbers]
    features = {}
    for name in SCHEMA.names:
        parts = [value(number, name) for number in numbers]
        data = np.concatenate(parts) if parts else np.empty((0, SCHEMA.item_bytes(name)), np.uint8)
        features[name] = PackedRows.of([len(part) for part in parts], data)
    return ids, features


def value(number, name):
    tokens = (number * 7 + len(name)) % 6  # some documents have no tokens
    return np.random.default_rng(number).integers(0, 256, (tokens, SCHEMA.item_bytes(name)), np.uint8)


def same(store, numbers):
    """Whether the store gives back these documents as they were appended."""
    ids, features = documents(numbers)
    for name in SCHEMA.names:
        rows = store.take(ids, name)
        np.testing.assert_array_equal(rows.offsets, features[name].offsets)
        np.testing.assert_array_equal(rows.data, features[name].data)
    return True


def held(store):
    """Ids of all rows, fragment by fragment."""
    return [bytes(id) for fragment in store.fragments for id in store.ids(fragment.name)]


def labels(store, name="topics"):
    return [store.results(fragment.name, name) for fragment in store.fragments]


@pytest.fixture(params=[PlainStore, LanceStore])
def kind(request):
    return request.param


@pytest.fixture
def store(kind, tmp_path):
    return kind.create(str(tmp_path / "store"), SCHEMA)


def test_documents_come_back_by_id_in_any_order_and_by_fragment_in_theirs(kind, store, tmp_path):
    for numbers in (range(10), range(10, 13), range(13, 40)):
        assert store.append(*documents(numbers)) == len(numbers)
    for reader in (store, kind.open(str(tmp_path / "store"))):
        assert same(reader, [39, 0, 12, 0, 25, 11]) and same(reader, [])
        assert [fragment.rows for fragment in reader.fragments] == [10, 3, 27]
        ids, features = documents(range(10, 13))
        fragment = reader.fragments[1]
        assert [bytes(id) for id in reader.ids(fragment.name)] == ids
        for name in SCHEMA.names:
            rows = reader.rows(fragment.name, name)
            np.testing.assert_array_equal(rows.data, features[name].data)
            np.testing.assert_array_equal(rows.lengths, features[name].lengths)


def test_tokens_are_counted_without_reading_features(kind, store, tmp_path, monkeypatch):
    """`polyhead features info` read and hashed every feature."""
    for numbers in (range(10), range(10, 13)):
        store.append(*documents(numbers))
    counts = {(each.name, n): len(store.rows(each.name, n).data) for each in store.fragments for n in SCHEMA.names}
    reader = kind.open(str(tmp_path / "store"))
    for name in ("rows", "_mapped", "_read"):
        monkeypatch.setattr(reader, name, None, raising=False)
    assert {(each.name, n): reader.tokens(each.name, n) for each in reader.fragments for n in SCHEMA.names} == counts
    info = store_info(str(tmp_path / "store"), reader)
    for column in info.features:
        assert column.tokens == sum(count for (_, digest), count in counts.items() if digest == column.digest)
    assert info.words_bytes == sum(store.rows(each.name, "words").data.nbytes for each in store.fragments)


def test_documents_are_found_where_they_are_and_strangers_are_not(store):
    store.append(*documents(range(5)))
    store.append(*documents(range(5, 8)))
    ids = documents([6, 2, 99])[0]
    assert store.find(ids).tolist() == [[1, 1], [0, 2], [-1, -1]]
    with pytest.raises(StoreError, match="lacks 1 of 3") as error:
        store.take(ids, "one")
    assert error.value.rows == [2]


def test_a_document_is_kept_once_however_often_it_is_appended(store):
    assert store.append(*documents([1, 2, 1, 3])) == 3
    assert store.append(*documents([3, 2])) == 0
    assert store.append(*documents([3, 4])) == 1
    assert len(held(store)) == 4 and same(store, [1, 2, 3, 4])


def test_ids_that_share_their_first_bytes_are_told_apart():
    ids = np.zeros((5, 16), np.uint8)
    ids[:, 15] = [4, 2, 9, 1, 7]
    ids[4, 0] = 1
    wanted = np.zeros((4, 16), np.uint8)
    wanted[:, 15] = [9, 1, 3, 7]
    wanted[3, 0] = 1
    assert IdIndex.of(ids).find(wanted).tolist() == [2, 3, -1, 4]
    assert IdIndex.of(ids[:0]).find(wanted).tolist() == [-1] * 4


def test_facts_about_columns_are_kept_and_replaced(kind, store, tmp_path):
    facts = ResultFacts(
        task="mood", kind="k", labels=("böse", "gut"), version="v1", record="r", trunk="t", arrays={"label": "int32"}
    )
    other = msgspec.structs.replace(facts, version="v2")
    assert store.described() == {}
    store.describe("mood_v1", facts)
    store.describe("mood_v2", facts)
    store.append(*documents(range(3)))
    store.put_results(store.fragments[0].name, "mood_v1", {"label": np.arange(3)})
    store.describe("mood_v2", other)
    store.sweep(age=0)
    assert kind.open(str(tmp_path / "store")).described() == {"mood_v1": facts, "mood_v2": other}
    with pytest.raises(StoreError, match="cannot have this name"):
        store.describe("../escaped", facts)


def test_no_documents_make_no_fragment(store):
    assert store.append(*documents([])) == 0 and store.fragments == ()


def test_a_column_of_results_is_null_until_its_fragment_is_done(kind, store, tmp_path):
    store.append(*documents(range(3)))
    first = store.fragments[0].name
    store.put_results(first, "topics", {"label": np.array([2, 0, 1]), "score": np.float32([0.5, 0.25, 1])})
    store.append(*documents(range(3, 5)))
    reader = kind.open(str(tmp_path / "store"))
    done, lacking = labels(reader)
    assert lacking is None and done["label"].tolist() == [2, 0, 1] and done["score"].dtype == np.float32
    assert [fragment.results for fragment in reader.fragments] == [("topics",), ()]
    store.put_results(first, "topics", {"label": np.array([1, 1, 1])})  # another version of the task
    reader.refresh()
    assert list(labels(reader)[0]) == ["label"] and labels(reader)[0]["label"].tolist() == [1, 1, 1]
    store.drop_results("topics")
    assert labels(store) == [None, None]


def test_columns_of_a_fragment_are_put_together_or_not_at_all(kind, store, tmp_path):
    store.append(*documents(range(3)))
    name, before = store.fragments[0].name, store.version
    columns = {"topics": {"label": np.arange(3)}, "mood": {"label": np.ones(3), "score": np.zeros(3)}}
    store.put_columns(name, columns)
    reader = kind.open(str(tmp_path / "store"))
    assert reader.version == before + 1 and set(reader.fragments[0].results) == set(columns)
    for column, arrays in columns.items():
        assert {key: array.tolist() for key, array in reader.results(name, column).items()} == {
            key: array.tolist() for key, array in arrays.items()
        }
    with pytest.raises(StoreError, match="another number of rows"):
        store.put_columns(name, {"other": {"label": np.arange(3)}, "short": {"label": np.arange(2)}})
    assert set(kind.open(str(tmp_path / "store")).fragments[0].results) == set(columns)


def test_a_version_that_could_not_be_read_again_is_refused_until_fragments_are_joined(tmp_path, monkeypatch):
    store = PlainStore.create(str(tmp_path / "store"), SCHEMA)
    for start in range(0, 8, 2):
        store.append(*documents(range(start, start + 2)))
    monkeypatch.setattr(plain, "LARGEST_CONFIG", len(versions.sealed(store._records)) + 100)
    for change in (
        lambda: store.append(*documents(range(8, 10))),
        lambda: store.put_results(store.fragments[0].name, "topics", {"label": np.arange(2)}),
    ):
        with pytest.raises(StoreError, match="too many fragments and columns.*polyhead features compact"):
            change()
    assert same(PlainStore.open(str(tmp_path / "store")), range(8))
    assert store.compact(rows=100) == 3
    assert store.append(*documents(range(8, 10))) == 2 and same(PlainStore.open(str(tmp_path / "store")), range(10))


def test_a_store_that_others_write_to_without_end_says_so(kind, store, tmp_path, monkeypatch):
    """Every attempt is lost to another writer; none is made here."""
    store.append(*documents(range(3)))
    name = store.fragments[0].name
    store.put_results(name, "topics", {"label": np.zeros(3)})
    monkeypatch.setattr("polyhead.store.corpus.base.ATTEMPTS", 0)
    for change in (
        lambda: store.append(*documents(range(3, 5))),
        lambda: store.put_results(name, "topics", {"label": np.ones(3)}),
        lambda: store.drop_results("topics"),
    ):
        with pytest.raises(StoreError, match="too many processes|faster than it can be read"):
            change()
    monkeypatch.undo()
    assert (
        labels(kind.open(str(tmp_path / "store")))[0]["label"].tolist() == [0, 0, 0]
        and store.append(*documents([3])) == 1
    )


def test_results_for_a_fragment_that_another_process_joined_are_refused(kind, store, tmp_path):
    for start in (0, 3):
        store.append(*documents(range(start, start + 3)))
    name, other = store.fragments[0].name, kind.open(str(tmp_path / "store"))
    assert other.compact(rows=100) == 1
    with pytest.raises(StoreError, match="joined with others"):
        store.put_results(name, "topics", {"label": np.zeros(3)})
    other.refresh()
    assert labels(other) == [None]


def test_results_of_several_numbers_a_row_come_back_and_stay_when_fragments_are_joined(store):
    shares = np.random.default_rng(0).random((6, 3), np.float32)
    for start in (0, 3):
        store.append(*documents(range(start, start + 3)))
        store.put_results(store.fragments[-1].name, "topics", {"shares": shares[start : start + 3]})
    assert store.compact(rows=100) == 1
    np.testing.assert_array_equal(labels(store)[0]["shares"], shares)


def test_ids_and_schemas_that_mean_nothing_are_refused(kind, store, tmp_path):
    with pytest.raises(StoreError, match="ids have another shape"):
        store.find(np.zeros((2, 8), np.uint8))
    for change in ({"layers": 0}, {"width": 0}):
        column = FeatureColumn(**{"digest": "d", "layers": 1, "width": 8, "codec": Codec(name="sign")} | change)
        with pytest.raises(StoreError, match="at least one layer"):
            kind.create(str(tmp_path / "other"), Schema(features=(column,)))


def test_results_of_other_rows_or_a_fragment_that_is_not_there_are_refused(store):
    store.append(*documents(range(3)))
    name = store.fragments[0].name
    with pytest.raises(StoreError, match="another number of rows"):
        store.put_results(name, "topics", {"label": np.zeros(2)})
    with pytest.raises(StoreError, match="no fragment"):
        store.put_results("0" * 16, "topics", {"label": np.zeros(3)})
    with pytest.raises(StoreError, match="no results"):
        store.put_results(name, "topics", {})
    for column in ("../topics", "", ".hidden", "a/b"):
        with pytest.raises(StoreError, match="cannot have this name"):
            store.put_results(name, column, {"label": np.zeros(3)})
    assert labels(store) == [None]


def test_compaction_joins_small_fragments_and_keeps_rows_ids_and_results(kind, store, tmp_path):
    for start in range(0, 30, 5):
        store.append(*documents(range(start, start + 5)))
    for fragment in store.fragments[:4]:
        store.put_results(fragment.name, "topics", {"label": np.arange(5) + fragment.rows})
    before, version = held(store), store.version
    assert store.compact(rows=10) == 3
    assert [fragment.rows for fragment in store.fragments] == [10, 10, 10]
    assert store.version > version and sorted(held(store)) == sorted(before) and same(store, range(30))
    done = [results["label"].tolist() for results in labels(store) if results is not None]
    assert done == [[5, 6, 7, 8, 9] * 2] * 2
    assert store.compact(rows=10) == 0
    assert sorted(held(kind.open(str(tmp_path / "store")))) == sorted(before)


@pytest.mark.parametrize("filled", [2, 3])
def test_answers_put_while_others_are_joined_are_kept(kind, store, tmp_path, monkeypatch, filled):
    """The groups of the version before still named both fragments, of which one had answers by now."""
    for start in range(0, 20, 5):
        store.append(*documents(range(start, start + 5)))
    name, other, join = store.fragments[filled].name, kind.open(str(tmp_path / "store")), store._join

    def joined(group):
        if not any(fragment.results for fragment in other.fragments):
            other.put_results(name, "topics", {"label": np.arange(5)})
        return join(group)

    monkeypatch.setattr(store, "_join", joined)
    assert store.compact(rows=10) == 1
    reader = kind.open(str(tmp_path / "store"))
    assert [fragment.rows for fragment in reader.fragments] == [10, 5, 5] and same(reader, range(20))
    assert [results["label"].tolist() for results in labels(reader) if results] == [[0, 1, 2, 3, 4]]


def test_of_two_compactions_at_once_neither_fails_where_the_other_was_first(kind, store, tmp_path, monkeypatch):
    """The slower one was told to open the store again: its fragments were joined, and swept with `--days 0`."""
    for start in (0, 3, 6):
        store.append(*documents(range(start, start + 3)))
    other, join = kind.open(str(tmp_path / "store")), store._join

    def late(group):
        other.compact(rows=6)
        other.sweep(age=0)
        return join(group)

    monkeypatch.setattr(store, "_join", late)
    store.compact(rows=100)
    store.sweep(age=0)
    reader = kind.open(str(tmp_path / "store"))
    reader.verify()
    assert [fragment.rows for fragment in reader.fragments] == [9] and same(reader, range(9))


class Listed(list):
    """The entries of a folder, as `os.scandir` gives them."""

    def __enter__(self):
        return iter(self)

    def __exit__(self, *raised):
        pass


def test_of_two_sweeps_at_once_neither_fails_where_the_other_was_first(tmp_path, monkeypatch):
    """Files that were gone since they were listed ended the slower one."""
    store = PlainStore.create(str(tmp_path / "store"), SCHEMA)
    for start in (0, 3):
        store.append(*documents(range(start, start + 3)))
        store.put_results(store.fragments[-1].name, "topics", {"label": np.arange(3)})
    other, scan = PlainStore.open(str(tmp_path / "store")), os.scandir
    store.compact(rows=100)
    with monkeypatch.context() as patched:
        folders = []

        def listed(path):
            entries = Listed(scan(path))
            folders.append(path)
            if len(folders) == 1:
                other.sweep(age=0)
            return entries

        patched.setattr(plain.os, "scandir", listed)
        store.sweep(age=0)
    reader = PlainStore.open(str(tmp_path / "store"))
    reader.verify()
    assert same(reader, range(6)) and labels(reader)[0]["label"].tolist() == [0, 1, 2, 0, 1, 2]


def test_fragments_are_joined_up_to_so_many_bytes(kind, store, tmp_path, monkeypatch):
    """Only rows were limited, and all features of a joined fragment are in memory."""
    for start in range(0, 20, 5):
        store.append(*documents(range(start, start + 5)))
    sizes = [sum(store.rows(each.name, n).data.nbytes for n in SCHEMA.names) for each in store.fragments]
    monkeypatch.setattr("polyhead.store.corpus.base.JOINED_BYTES", sum(sizes[:3]))
    assert store.compact(rows=100) == 2 and [fragment.rows for fragment in store.fragments] == [15, 5]
    monkeypatch.setattr("polyhead.store.corpus.base.JOINED_BYTES", sum(sizes) - 1)
    assert store.compact(rows=100) == 0
    monkeypatch.setattr("polyhead.store.corpus.base.JOINED_BYTES", sum(sizes))
    assert store.compact(rows=100) == 1 and same(kind.open(str(tmp_path / "store")), range(20))


def test_fragments_of_unlike_results_are_not_joined(store):
    store.append(*documents(range(3)))
    store.append(*documents(range(3, 6)))
    store.put_results(store.fragments[1].name, "topics", {"label": np.zeros(3)})
    assert store.compact(rows=100) == 0 and len(store.fragments) == 2


def test_a_reader_goes_on_with_its_version_while_others_append_and_compact(kind, store, tmp_path):
    store.append(*documents(range(3)))
    reader = kind.open(str(tmp_path / "store"))
    store.append(*documents(range(3, 6)))
    store.compact(rows=100)
    assert len(held(reader)) == 3 and same(reader, range(3))
    reader.refresh()
    assert len(held(reader)) == 6 and same(reader, range(6))


def test_sweeping_removes_what_no_version_needs_and_nothing_young(store):
    for start in range(0, 30, 3):
        store.append(*documents(range(start, start + 3)))
    store.put_results(store.fragments[0].name, "topics", {"label": np.zeros(3)})
    store.compact(rows=100)
    for _ in range(10):  # newer versions, so that none names the small fragments any more
        store.put_results(store.fragments[0].name, "lengths", {"label": np.zeros(store.fragments[0].rows)})
    assert store.sweep(age=3600) == 0
    assert store.sweep(age=0) > 0 and store.sweep(age=0) == 0
    store.verify()
    assert same(store, range(30))


@pytest.mark.parametrize("change", ["append", "put_results", "compact"])
def test_sweeping_beside_a_writer_removes_nothing_that_it_is_about_to_name(kind, store, tmp_path, monkeypatch, change):
    for start in (0, 3):
        store.append(*documents(range(start, start + 3)))
    name, other, commit = store.fragments[0].name, kind.open(str(tmp_path / "store")), store._commit
    changes = {
        "append": lambda: store.append(*documents(range(6, 9))),
        "put_results": lambda: store.put_results(name, "topics", {"label": np.arange(3)}),
        "compact": lambda: store.compact(rows=100),
    }
    monkeypatch.setattr(store, "_commit", lambda *written: [other.sweep(age=0), commit(*written)][1])
    changes[change]()
    reader = kind.open(str(tmp_path / "store"))
    reader.verify()
    assert same(reader, range(9 if change == "append" else 6))


def test_a_reader_whose_fragments_were_joined_and_swept_is_told_to_refresh(kind, store, tmp_path):
    """It was told that the store is damaged, and to delete it."""
    for start in (0, 3):
        store.append(*documents(range(start, start + 3)))
        store.put_results(store.fragments[-1].name, "topics", {"label": np.arange(3)})
    reader = kind.open(str(tmp_path / "store"))
    store.compact(rows=100)
    store.sweep(age=0)
    readings = [lambda: held(reader), lambda: same(reader, range(6)), lambda: labels(reader)]
    if kind is PlainStore:  # which verifies what it has open, and counts tokens without a file
        readings.append(reader.verify)
    else:
        readings.append(lambda: reader.tokens(reader.fragments[0].name, "one"))
    for reading in readings:
        with pytest.raises(StoreError, match="changed since it was opened.*refresh") as error:
            reading()
        assert "damaged" not in str(error.value) and "delete" not in str(error.value)
    reader.refresh()
    assert same(reader, range(6)) and labels(reader)[0]["label"].tolist() == [0, 1, 2, 0, 1, 2]


def test_versions_that_another_empties_while_their_files_are_listed_name_none(tmp_path, monkeypatch):
    """Of two sweeps at once the slower called the store damaged."""
    store = PlainStore.create(str(tmp_path / "store"), SCHEMA)
    for start in (0, 3):
        store.append(*documents(range(start, start + 3)))
    paths, read = sorted((tmp_path / "store/versions").iterdir()), versions.read_version

    def emptied(path):
        versions.forget(paths, 0)
        return read(path)

    monkeypatch.setattr(versions, "read_version", emptied)
    assert versions.named_files(paths) == {("", fragment.name) for fragment in store.fragments}


@pytest.mark.parametrize(
    "change",
    [
        {"features": (ONE,)},
        {"features": (ONE, FeatureColumn(digest="two", layers=2, width=4, codec=Codec(name="float32")))},
        {"words": False},
        {"source": {"trunk": "other"}},
    ],
)
def test_a_store_of_other_features_codec_or_trunk_is_refused_by_name(kind, store, tmp_path, change):
    other = Schema(**{"features": SCHEMA.features, "words": True, "source": SCHEMA.source} | change)
    with pytest.raises(StoreError, match="keeps other features") as error:
        kind.create(str(tmp_path / "store"), other)
    assert str(next(iter(change))) in str(error.value)


def test_features_that_do_not_fit_are_refused_and_nothing_is_kept(store):
    ids, features = documents(range(3))
    with pytest.raises(StoreError, match="other features"):
        store.append(ids, {"one": features["one"]})
    with pytest.raises(StoreError, match="one row"):
        store.append(ids[:2], features)
    with pytest.raises(StoreError, match="another shape"):
        store.append(ids, features | {"one": features["two"]})
    with pytest.raises(StoreError, match="wrong length"):
        store.append([b"short"] * 3, features)
    assert store.fragments == () and store.append(ids, features) == 3
    with pytest.raises(StoreError, match="keeps no features 'three'"):
        store.take(ids, "three")


def test_a_folder_without_a_store_says_how_to_make_one(kind, tmp_path):
    with pytest.raises(StoreError, match="there is no store"):
        kind.open(str(tmp_path / "nothing"))


def run_all(jobs):
    """Starts processes, and waits until each has ended well."""
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(120)
        assert job.exitcode == 0


def appending(kind, location, start):
    store = kind.open(location)
    for number in range(start, start + 40, 4):
        store.append(*documents(range(number, number + 6)))  # two of six are the next append's too


def filling(kind, location, wanted):
    """Puts results wherever they lack, until there are so many rows with them."""
    store = kind.open(location)
    while True:
        store.refresh()
        done = 0
        for fragment in store.fragments:
            if "sum" in fragment.results:
                done += fragment.rows
                continue
            rows = store.rows(fragment.name, "one")
            sums = np.array([rows.data[a:b].sum() for a, b in zip(rows.offsets, rows.offsets[1:], strict=False)])
            store.put_results(fragment.name, "sum", {"value": sums})
        if done >= wanted:
            return


@pytest.mark.slow
def test_two_writers_and_one_that_fills_a_column_at_once_lose_nothing_and_keep_nothing_twice(kind, tmp_path):
    location = str(tmp_path / "store")
    context = multiprocessing.get_context("fork" if kind is PlainStore else "spawn")  # Lance does not survive a fork
    kind.create(location, SCHEMA)
    wanted = 62  # 0 to 41, and 20 to 61
    jobs = [context.Process(target=appending, args=(kind, location, start)) for start in (0, 20)]
    jobs.append(context.Process(target=filling, args=(kind, location, wanted)))
    run_all(jobs)
    store = kind.open(location)
    ids = held(store)
    assert len(ids) == len(set(ids)) == wanted and same(store, range(wanted))
    for fragment, results in zip(store.fragments, labels(store, "sum"), strict=True):
        rows = store.rows(fragment.name, "one")
        sums = [rows.data[a:b].sum() for a, b in zip(rows.offsets, rows.offsets[1:], strict=False)]
        assert results["value"].tolist() == sums
    store.verify()


def test_compaction_beside_writers_loses_nothing(kind, store, tmp_path):
    stop = threading.Event()

    def compacting():
        other = kind.open(str(tmp_path / "store"))
        while not stop.is_set():
            other.compact(rows=20)

    thread = threading.Thread(target=compacting)
    thread.start()
    for start in range(0, 60, 3):
        store.append(*documents(range(start, start + 3)))
    stop.set()
    thread.join()
    store.refresh()
    ids = held(store)
    assert len(ids) == len(set(ids)) == 60 and same(store, range(60))


def _first(store):
    store.append(*documents(range(3)))
    store.append(*documents(range(3, 6)))


def _whole_or_none(store, ended):
    ids = held(store)
    assert len(ids) == len(set(ids)) and len(ids) in ((9,) if ended else (6, 9))
    same(store, range(len(ids)))


def _results_whole_or_none(store, ended):
    done = [result for result in labels(store) if result is not None]
    assert len(done) == 1 or not ended and not done
    assert all(result["label"].tolist() == [0, 1, 2] for result in done)
    same(store, range(6))


def _joined_or_not(store, ended):
    assert len(store.fragments) in ((1,) if ended else (1, 2)) and len(held(store)) == 6
    same(store, range(6))


KILLED_STEPS = {
    "append": (_first, lambda store: store.append(*documents(range(6, 9))), _whole_or_none),
    "put_results": (
        _first,
        lambda store: store.put_results(store.fragments[0].name, "topics", {"label": np.arange(3)}),
        _results_whole_or_none,
    ),
    "compact": (_first, lambda store: store.compact(rows=100), _joined_or_not),
}


@pytest.mark.parametrize("step", first_of(KILLED_STEPS))
def test_a_kill_at_any_step_loses_nothing_that_was_committed(tmp_path, step):
    assert int(run_forking(KILLED, tmp_path / "store", step)) >= 5
    store = PlainStore.open(str(tmp_path / "store"))
    store.sweep(age=0)
    named = {fragment.name for fragment in store.fragments}
    store.verify()
    left = {path.name for path in (tmp_path / "store/fragments").iterdir()}
    assert named <= left and same(store, range(6))


def test_a_full_disk_at_any_step_names_the_bytes_and_leaves_the_store_as_it_was(tmp_path):
    location, failures = str(tmp_path / "store"), 0
    PlainStore.create(location, SCHEMA).append(*documents(range(3)))
    for failing in range(1, 200):
        store = PlainStore.open(location)
        with pytest.MonkeyPatch.context() as patch:
            disk = FullDisk(patch, failing)
            try:
                store.append(*documents(range(3, 6)))
            except StoreError as error:
                failures += 1
                assert "No space left" in str(error) and "bytes were needed" in str(error)
            else:
                assert disk.calls < failing
                break
        store = PlainStore.open(location)
        if len(held(store)) == 6:  # the flush after the version was put
            break
        assert len(held(store)) == 3 and same(store, range(3))
    assert failures >= 5


DAMAGE = {
    "truncated": lambda content: content[:-2],
    "longer": lambda content: content + b"\0",
    "one bit": lambda content: bytes([content[0] ^ 1]) + content[1:],
}


@pytest.mark.parametrize("damage", [*DAMAGE, "missing"])
@pytest.mark.parametrize("name", ["ids.bin", "index.bin", "one.lengths.bin", "one.data.bin", "results", "version"])
def test_damage_is_named_before_anything_wrong_is_read(tmp_path, name, damage):
    whole = PlainStore.create(str(tmp_path / "whole"), SCHEMA)
    whole.append(*documents(range(4)))
    whole.put_results(whole.fragments[0].name, "topics", {"label": np.arange(4)})
    shutil.copytree(tmp_path / "whole", tmp_path / "store")
    pattern = {"results": "results/topics/*", "version": "versions/00000002.json"}.get(name, f"fragments/*/{name}")
    (path,) = (tmp_path / "store").glob(pattern)
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(DAMAGE[damage](path.read_bytes()))
    if (name, damage) == ("version", "missing"):  # the version before is whole
        assert labels(PlainStore.open(str(tmp_path / "store"))) == [None]
        return
    with pytest.raises(StoreError, match=rf"{path.name}.* is damaged"):
        store = PlainStore.open(str(tmp_path / "store"))
        same(store, range(4))
        labels(store)


def test_fragments_keep_no_file_open_and_joined_ones_no_memory(tmp_path, monkeypatch):
    """A store of some hundred fragments used up the files that a process may have open."""
    monkeypatch.setattr(versions, "MAPPED", 0)
    store = PlainStore.create(str(tmp_path / "store"), SCHEMA)
    for start in range(0, 20, 2):
        store.append(*documents(range(start, start + 2)))
    before = len(os.listdir("/dev/fd"))
    reader = PlainStore.open(str(tmp_path / "store"))
    mapped = [reader.rows(fragment.name, name) for fragment in reader.fragments for name in SCHEMA.names]
    assert same(reader, range(20)) and len(os.listdir("/dev/fd")) <= before
    with pytest.raises(ValueError, match="read-only"):
        mapped[0].data[:] = 0
    first = weakref.ref(mapped[0].data)
    del mapped
    assert first() is not None and reader.compact(rows=100) == 9
    assert first() is None and same(reader, range(20))


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES])
def test_what_the_system_denies_is_no_damage_and_nothing_is_to_be_deleted(tmp_path, monkeypatch, code):
    location, opened = str(tmp_path / "store"), os.open
    store = PlainStore.create(location, SCHEMA)
    store.append(*documents(range(2)))
    store.put_results(store.fragments[0].name, "topics", {"label": np.arange(2)})

    def denied(path, *arguments, **options):
        if str(path).startswith(location):
            raise OSError(code, os.strerror(code), str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", denied)
    for reading in (lambda: held(store), lambda: labels(store), store.verify, lambda: PlainStore.open(location)):
        with pytest.raises(StoreError, match=os.strerror(code)) as error:
            reading()
        assert "cannot be read" in str(error.value) and "delete" not in str(error.value)


@pytest.mark.parametrize("name", ["../../outside", "/etc", "..", ""])
def test_a_version_that_names_files_outside_the_store_is_refused(tmp_path, name):
    store = PlainStore.create(str(tmp_path / "store"), SCHEMA)
    store.append(*documents(range(2)))
    path = tmp_path / "store/versions/00000001.json"
    content = json.loads(path.read_text().replace(store.fragments[0].name, name))["content"]
    path.write_bytes(versions.sealed(content))
    with pytest.raises(StoreError, match="outside the store"):
        PlainStore.open(str(tmp_path / "store"))


def test_links_are_not_followed_out_of_the_store(tmp_path):
    store = PlainStore.create(str(tmp_path / "store"), SCHEMA)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine.txt").write_text("mine")
    (tmp_path / "store/fragments").rmdir()
    (tmp_path / "store/fragments").symlink_to(outside)
    with pytest.raises((StoreError, OSError)):
        store.append(*documents(range(2)))
    assert [path.name for path in outside.iterdir()] == ["mine.txt"]


def test_bytes_on_disk_of_one_bit_features_are_at_most_five_percent_over_the_bits(tmp_path):
    """25 tokens a document of 384 dimensions, with ids; the index is counted apart."""
    column = FeatureColumn(digest="bits", layers=1, width=384, codec=Codec(name="sign"))
    store = PlainStore.create(str(tmp_path / "store"), Schema(features=(column,)))
    rows, tokens = 2000, 25
    data = np.random.default_rng(0).integers(0, 256, (rows * tokens, 48), np.uint8)
    store.append([document_id((str(i),)) for i in range(rows)], {"bits": PackedRows.of([tokens] * rows, data)})
    files = [path for path in (tmp_path / "store").rglob("*") if path.is_file() and path.name != "index.bin"]
    assert sum(path.stat().st_size for path in files) <= 1.05 * rows * tokens * 384 / 8


def test_a_writer_that_slept_through_many_versions_loses_nothing(tmp_path, monkeypatch):
    """The number that it wanted was free again, and what it wrote there lay below the newest version."""
    sleeper = PlainStore.create(str(tmp_path / "store"), SCHEMA)
    sleeper.append(*documents(range(2)))
    monkeypatch.setattr(plain, "FORGETTING", 1)
    monkeypatch.setattr(plain, "PATIENCE", 0.0)
    put, slept = plain.put_if_absent, []

    def sleep_once(path, content):
        if not slept:
            slept.append(path)
            other = PlainStore.open(str(tmp_path / "store"))
            for number in range(10, 30):
                other.append(*documents([number]))
        put(path, content)

    monkeypatch.setattr(plain, "put_if_absent", sleep_once)
    assert sleeper.append(*documents([5])) == 1 and slept
    assert same(PlainStore.open(str(tmp_path / "store")), [0, 1, 5, *range(10, 30)])
    assert not slept[0].stat().st_size  # forgotten, and its number is taken


def test_old_versions_that_cannot_be_emptied_fail_no_append(tmp_path, monkeypatch):
    """Every 64th append failed on a full disk, and said that nothing was kept of documents that were there."""
    store = PlainStore.create(str(tmp_path / "store"), SCHEMA)
    store.append(*documents(range(2)))
    store.append(*documents(range(2, 4)))
    monkeypatch.setattr(plain, "FORGETTING", 1)
    monkeypatch.setattr(plain, "PATIENCE", 0.0)

    def full(path, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(versions, "replace_file", full)
    assert store.append(*documents([4])) == 1
    assert same(PlainStore.open(str(tmp_path / "store")), range(5))


def test_results_whose_version_was_put_but_not_flushed_stay_whole(tmp_path):
    """The disk failed after the version had its name, and the file that it names was removed."""
    location = str(tmp_path / "store")
    PlainStore.create(location, SCHEMA).append(*documents(range(3)))
    for failing in range(1, 60):
        store = PlainStore.open(location)
        with pytest.MonkeyPatch.context() as patch:
            disk = FullDisk(patch, failing)
            try:
                store.put_results(store.fragments[0].name, "topics", {"label": np.arange(3)})
            except StoreError:
                pass
            else:
                assert disk.calls < failing
                break
        PlainStore.open(location).verify()
    assert failing > 5 and labels(PlainStore.open(location))[0]["label"].tolist() == [0, 1, 2]


def test_each_file_is_hashed_once_by_a_process_and_again_when_it_is_another(tmp_path, monkeypatch):
    location, hashed, check = str(tmp_path / "store"), [], versions.check_content
    monkeypatch.setattr(versions, "check_content", lambda path, digest: hashed.append(path.name) or check(path, digest))
    PlainStore.create(location, SCHEMA).append(*documents(range(4)))
    for _ in range(3):
        same(PlainStore.open(location), range(4))
    names = ["ids.bin", "index.bin", *(f"{each}.{end}.bin" for each in SCHEMA.names for end in ("data", "lengths"))]
    assert sorted(hashed) == names
    (path,) = (tmp_path / "store").glob("fragments/*/one.data.bin")
    again = path.with_name("again")
    again.write_bytes(path.read_bytes())  # another file under the same name
    again.replace(path)
    same(PlainStore.open(location), range(4))
    assert sorted(hashed) == sorted([*names, "one.data.bin"])


@pytest.mark.parametrize("content", [b"\xff\xfe", b"{}", b"[" * 100_000, b'{"format": 7, "x": 1}'])
@pytest.mark.parametrize("name", ["store.json", "versions/00000001.json"])
def test_json_that_is_none_of_ours_is_named(tmp_path, name, content):
    PlainStore.create(str(tmp_path / "store"), SCHEMA).append(*documents(range(2)))
    (tmp_path / "store" / name).write_bytes(content)
    with pytest.raises(StoreError, match=name):
        PlainStore.open(str(tmp_path / "store"))


def test_a_store_of_a_newer_format_is_refused(tmp_path):
    PlainStore.create(str(tmp_path / "store"), SCHEMA)
    path = tmp_path / "store/store.json"
    content = json.loads(path.read_bytes())["content"]
    path.write_bytes(versions.sealed({**content, "format": 2}))
    with pytest.raises(StoreError, match="format 2"):
        PlainStore.open(str(tmp_path / "store"))


@pytest.mark.parametrize("name", ["one.lengths.bin", "index.bin"])
def test_numbers_that_lead_nowhere_are_refused_though_every_digest_fits(tmp_path, name):
    store = PlainStore.create(str(tmp_path / "store"), SCHEMA)
    store.append(*documents(range(4)))
    (path,) = (tmp_path / "store").glob(f"fragments/*/{name}")
    content = path.read_bytes()[:-4] + b"\xff\xff\xff\x7f"
    path.write_bytes(content)
    version = tmp_path / "store/versions/00000001.json"
    stored = json.loads(version.read_bytes())["content"]
    stored[0]["files"][name] = hashlib.sha256(content).hexdigest()
    version.write_bytes(versions.sealed(stored))
    with pytest.raises(StoreError, match=name):
        same(PlainStore.open(str(tmp_path / "store")), range(4))


def test_a_folder_that_cannot_be_written_is_a_store_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be made"):
        PlainStore.create(str(tmp_path / "file"), SCHEMA)


def test_a_full_disk_while_a_store_is_made_leaves_a_folder_that_can_be_opened_later(tmp_path, monkeypatch):
    for failing in range(1, 6):
        location = str(tmp_path / str(failing))
        with monkeypatch.context() as patch:
            FullDisk(patch, failing)
            with pytest.raises(StoreError, match="No space left"):
                PlainStore.create(location, SCHEMA)
        assert PlainStore.create(location, SCHEMA).append(*documents(range(2))) == 2
