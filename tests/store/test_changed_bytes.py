"""A store whose files changed: each change is seen by whoever reads, or alters nothing that is read."""

import numpy as np
import pytest

from polyhead.codecs import tables
from polyhead.errors import NoStore, StoreError
from polyhead.plan import Codec
from polyhead.store.corpus.base import FeatureColumn, PackedRows, ResultFacts, Schema
from polyhead.store.corpus.ids import document_id
from polyhead.store.corpus.lance import LanceStore
from polyhead.store.corpus.plain import PlainStore
from support.tiers import first_of

CHANGES = {PlainStore: 24, LanceStore: 8}  # of bytes of each file


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """No arrays of codecs are known, so a store has to bring its own."""
    monkeypatch.setattr(tables, "_TABLES", {})


def made(kind, location):
    """A store of two fragments: two columns of features, one of them with arrays of its codec, answers, and facts."""
    digest = tables.keep_table({"rows": np.arange(40, dtype=np.float32).reshape(5, 8)})
    columns = (
        FeatureColumn(digest="one", layers=1, width=8, codec=Codec(name="sign")),
        FeatureColumn(digest="two", layers=1, width=8, codec=Codec(name="pca1", arrays=digest)),
    )
    store, rng = kind.create(location, Schema(features=columns, source={"trunk": "t"})), np.random.default_rng(0)
    for start in (0, 20):
        ids = [document_id((f"text {number}",)) for number in range(start, start + 20)]
        lengths = rng.integers(1, 9, 20)
        store.append(
            ids,
            {
                column.digest: PackedRows.of(
                    lengths, rng.integers(0, 256, (int(lengths.sum()), column.token_bytes), np.uint8)
                )
                for column in columns
            },
        )
        results = {"label": rng.integers(0, 2, 20).astype(np.int32), "scores": rng.random((20, 2), np.float32)}
        store.put_results(store.fragments[-1].name, "mood", results)
    facts = ResultFacts(
        task="mood", kind="single_label", labels=("böse", "gut"), version="v1", record="r", trunk="t", arrays={}
    )
    store.describe("mood", facts)


def content(store):
    """All that a reader can read of a store, except the number of its version."""
    everything = [store.schema, store.described(), store.fragments]
    for fragment in store.fragments:
        everything.append(store.ids(fragment.name).tobytes())
        everything.append(store.find(store.ids(fragment.name)).tobytes())
        for column in store.schema.features:
            rows = store.rows(fragment.name, column.digest)
            everything += [rows.offsets.tobytes(), rows.data.tobytes()]
            table = column.codec.arrays and tables.table_named(column.codec.arrays)
            everything.append({name: array.tobytes() for name, array in (table or {}).items()})
        for name in fragment.results:
            results = store.results(fragment.name, name) or {}
            everything.append({key: (array.dtype, array.tobytes()) for key, array in results.items()})
    return everything


def changes(raw, count, rng):
    """Contents of a file as a disk or a copy may damage it: one byte changed, or the end missing."""
    for place in rng.choice(len(raw), min(count, len(raw)), replace=False):
        yield f"byte {place}", raw[:place] + bytes([raw[place] ^ (1 << int(rng.integers(8)))]) + raw[place + 1 :]
    for place in rng.choice(len(raw), min(4, len(raw)), replace=False):
        yield f"cut at {place}", raw[:place]
    yield "no text", b"\xff\xfe" + raw[2:]


@pytest.mark.slow
@pytest.mark.parametrize("kind", first_of([PlainStore, LanceStore]), ids=["plain", "lance"])
def test_a_changed_byte_of_any_file_is_seen_or_changes_nothing_that_is_read(kind, tmp_path, capfd):
    """Sixteen of sixteen flipped bits of a Lance store, and 42 of 90 of facts about columns, went by in silence."""
    location, rng = tmp_path / "store", np.random.default_rng(1)
    made(kind, str(location))
    before, wrong, seen, tried = content(kind.open(str(location))), [], 0, 0
    files = [path for path in sorted(location.rglob("*")) if path.is_file()]
    assert {"data", "versions", "_versions"} & {path.parent.name for path in files} and len(files) > 8
    for path in files:
        raw = path.read_bytes()
        for what, changed in changes(raw, CHANGES[kind], rng):
            path.write_bytes(changed)
            tried += 1
            tables._TABLES.clear()
            try:
                store = kind.open(str(location))
                try:
                    is_same = content(store) == before
                finally:
                    store.verify()  # sees what a reader sees
            except StoreError as error:
                seen += 1
                if isinstance(error, NoStore):
                    wrong.append((path.name, what, "it says that there is no store"))
            except BaseException as error:
                wrong.append((path.name, what, repr(error)))
            else:
                if not is_same:
                    wrong.append((path.name, what, "other content"))
        path.write_bytes(raw)
    assert not wrong, wrong[:10]
    assert seen > tried / 5 and content(kind.open(str(location))) == before
