"""What is Lance's own in a store of a corpus: its errors, types of results, and datasets that are no stores."""

import shutil
import sys

import numpy as np
import pytest

from polyhead.errors import MissingExtra, StoreError
from polyhead.store.corpus.arrow import ABOUT, arrow_schema, rows_table
from polyhead.store.corpus.base import PackedRows
from polyhead.store.corpus.lance import LanceStore, modules
from polyhead.store.jobs.store_summary import store_info
from store.test_corpus import SCHEMA, documents, labels, same


@pytest.fixture
def store(tmp_path):
    store = LanceStore.create(str(tmp_path / "store"), SCHEMA)
    store.append(*documents(range(3)))
    return store


def test_results_of_another_type_are_refused_until_the_column_is_dropped(store):
    name = store.fragments[0].name
    store.drop_results("topics")  # nothing to drop
    store.put_results(name, "topics", {"label": np.arange(3)})
    with pytest.raises(StoreError, match="another type than before.*drop the results"):
        store.put_results(name, "topics", {"label": np.array([0.5, 1, 2])})
    assert labels(store)[0]["label"].tolist() == [0, 1, 2]
    store.drop_results("topics")
    store.put_results(name, "topics", {"label": np.array([0.5, 1, 2])})
    assert labels(store)[0]["label"].tolist() == [0.5, 1, 2]


def test_a_column_that_is_dropped_leaves_the_others_as_they_are(store):
    name = store.fragments[0].name
    for column in ("topics", "mood", "urgency"):
        store.put_results(name, column, {"label": np.arange(3) + len(column)})
    store.drop_results("topics")
    store.append(*documents(range(3, 6)))
    store.put_results(store.fragments[1].name, "topics", {"score": np.zeros(3, np.float32)})
    store.verify()
    assert [sorted(fragment.results) for fragment in store.fragments] == [["mood", "urgency"], ["topics"]]
    assert [store.results(name, column)["label"].tolist() for column in ("mood", "urgency")] == [[4, 5, 6], [7, 8, 9]]


def counting(patched, owner, name):
    """The calls of a method from here on."""
    calls, method = [], getattr(owner, name)
    patched.setattr(owner, name, lambda *given: calls.append(name) or method(*given))
    return calls


def test_fragments_are_not_listed_again_for_each_of_them(tmp_path, monkeypatch):
    """All were listed for each whose tokens were counted or rows read: `info`, `compact`, `take` took the square."""
    dataset, lists = type(modules()[0].dataset(LanceStore.create(str(tmp_path / "any"), SCHEMA)._location)), set()
    for count in (3, 9):
        store = LanceStore.create(str(tmp_path / str(count)), SCHEMA)
        for start in range(count):
            store.append(*documents([start]))
        with monkeypatch.context() as patched:
            read, listed = counting(patched, LanceStore, "_columns"), counting(patched, dataset, "get_fragments")
            assert same(store, range(count))
            assert len(read) == len(SCHEMA.names)  # each looks once where the documents are
            store_info(store._location, store)
            assert store.compact(rows=100) == count - 1
        lists.add(len(listed))
    assert len(lists) == 1


def test_a_dataset_of_somebody_elses_is_no_store(tmp_path):
    lance, pa = modules()
    lance.write_dataset(pa.table({"x": [1]}), str(tmp_path / "theirs"))
    with pytest.raises(StoreError, match="no store of features"):
        LanceStore.open(str(tmp_path / "theirs"))
    with pytest.raises(StoreError, match="cannot be made|no store of features"):
        LanceStore.create(str(tmp_path / "theirs"), SCHEMA)
    schema = pa.schema([pa.field("x", pa.int64())], metadata={ABOUT: b"{}"})
    lance.write_dataset(pa.table({"x": [1]}, schema=schema), str(tmp_path / "damaged"))
    with pytest.raises(StoreError, match="is damaged"):
        LanceStore.open(str(tmp_path / "damaged"))


def test_lengths_that_do_not_fit_are_named(store, monkeypatch):
    def longer(pa, schema, ids, features):
        field, wrong = arrow_schema(pa, SCHEMA).field(1), pa.array(np.array([9] * len(ids), np.uint32))
        return rows_table(pa, schema, ids, features).set_column(1, field, wrong)

    monkeypatch.setattr("polyhead.store.corpus.lance.rows_table", longer)
    store.append(*documents(range(3, 6)))
    with pytest.raises(StoreError, match="lengths do not fit"):
        store.rows(store.fragments[1].name, "one")


def test_a_dataset_that_another_program_changed_is_refused(store, tmp_path):
    lance, pa = modules()
    lance.dataset(str(tmp_path / "store")).add_columns(pa.field("x", pa.int64()))
    with pytest.raises(StoreError, match="version 3 says of its fragments and columns was changed"):
        store.refresh()


@pytest.mark.slow
def test_a_place_that_cannot_be_written_is_a_store_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        LanceStore.create(str(tmp_path / "file"), SCHEMA)


def test_a_store_that_was_removed_meanwhile_is_a_store_error(store, tmp_path):
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(StoreError):
        store.append(*documents(range(3, 5)))


def test_without_the_package_the_line_that_installs_it_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(MissingExtra, match=r"polyhead\[lance\]"):
        LanceStore.open(str(tmp_path))


def test_rows_without_tokens_alone_are_kept(tmp_path):
    store = LanceStore.create(str(tmp_path / "store"), SCHEMA)
    ids, features = documents([1])
    empty = {
        digest: PackedRows.of([0], np.empty((0, rows.data.shape[1]), np.uint8)) for digest, rows in features.items()
    }
    assert store.append(ids, empty) == 1
    assert store.take(ids, "one").lengths.tolist() == [0]
