"""Nearest documents: against the naive formula for every codec, and against texts that are in the store."""

import json

import numpy as np
import pytest

from polyhead.bundle.read import Bundle
from polyhead.errors import BadValue, DataError, StoreError
from polyhead.plan import Codec, Pool
from polyhead.plan.coding import decode, encode
from polyhead.store.corpus import create_corpus
from polyhead.store.corpus.base import FeatureColumn, PackedRows, Schema
from polyhead.store.corpus.ids import document_id
from polyhead.store.corpus.lance import LanceStore
from polyhead.store.corpus.plain import PlainStore
from polyhead.store.jobs import nearest as module
from polyhead.store.jobs.nearest import NearRequest, nearest_documents, neighbours_with_texts, top_cosines
from polyhead.testing import tiny_trunk
from polyhead.testing.tiny import CODECS
from support.backfills import POOL, TRUNK, append, make_bundle, schema, texts

WIDTH = 16
KINDS = pytest.mark.parametrize("kind", [PlainStore, LanceStore], ids=["plain", "lance"])


def drawn(column, lengths, seed):
    """Encoded random features of documents of these lengths."""
    rng = np.random.default_rng(seed)
    shape = (sum(lengths), column.layers, WIDTH)
    centre = rng.standard_normal(WIDTH)  # else the cosines of long documents are all near 0
    tokens = rng.integers(-1, 60, shape[:2])
    raw = encode((rng.standard_normal(shape) + centre).astype(np.float32), column.codec, tokens)
    return PackedRows.of(lengths, raw.reshape(-1, column.token_bytes))


def naive(store, column, vector):
    """Ids and cosines of all documents that have tokens, nearest first: everything decoded, one after another."""
    found = []
    for fragment in store.fragments:
        rows, ids = store.rows(fragment.name, column.digest), store.ids(fragment.name)
        for row in range(fragment.rows):
            raw = rows.data[rows.offsets[row] : rows.offsets[row + 1]]
            if len(raw):
                values = decode(raw.reshape(len(raw), column.layers, -1), column.codec, WIDTH).astype(np.float64)
                mean = values.mean(axis=(0, 1))
                found.append((bytes(ids[row]), mean @ vector / np.linalg.norm(mean) / np.linalg.norm(vector)))
    return sorted(found, key=lambda each: -each[1])


def filled(kind, place, codec, *, layers=1, fragments=3):
    """A store of random features, some documents without a token."""
    column = FeatureColumn(digest="x", layers=layers, width=WIDTH, codec=codec)
    store = kind.create(str(place), Schema(features=(column,)))
    for number in range(fragments):
        lengths = np.random.default_rng(number).integers(0, 7, 50).tolist()
        store.append([document_id((f"{number} {row}",)) for row in range(50)], {"x": drawn(column, lengths, number)})
    return store, column


@KINDS
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("layers", [1, 3])
def test_nearest_are_those_of_the_naive_formula(kind, codec, layers, tmp_path, monkeypatch):
    """Also where parts end inside of a fragment."""
    monkeypatch.setattr(module, "AT_ONCE", 17)
    store, column = filled(kind, tmp_path / "store", CODECS[codec], layers=layers)
    vector = np.random.default_rng(9).standard_normal(WIDTH).astype(np.float32)
    expected = dict(naive(store, column, vector.astype(np.float64)))
    for top in (1, 20, 1000):
        ids, cosines = top_cosines(store, column, vector, top=top)
        assert len(ids) == len(cosines) == min(top, len(expected)) and len(set(map(bytes, ids))) == len(ids)
        np.testing.assert_allclose(cosines, sorted(expected.values(), reverse=True)[:top], atol=1e-5)
        np.testing.assert_allclose(cosines, [expected[bytes(each)] for each in ids], atol=1e-5)


def test_of_equally_near_documents_the_first_appended_come_first(tmp_path):
    column = FeatureColumn(digest="x", layers=1, width=WIDTH, codec=Codec(name="sign"))
    store = PlainStore.create(str(tmp_path / "store"), Schema(features=(column,)))
    same = drawn(column, [3], 0).data
    for number in range(3):
        ids = [document_id((f"{number} {row}",)) for row in range(4)]
        store.append(ids, {"x": PackedRows.of([3] * 4, np.concatenate([same] * 4))})
    ids, cosines = top_cosines(store, column, np.ones(WIDTH, np.float32), top=6)
    held = [bytes(each) for fragment in store.fragments for each in store.ids(fragment.name)]
    assert list(map(bytes, ids)) == held[:6] and len(set(cosines.tolist())) == 1


def test_a_document_that_decodes_to_zeros_is_at_a_right_angle_to_all(tmp_path):
    column = FeatureColumn(digest="x", layers=1, width=WIDTH, codec=Codec(name="float32"))
    store = PlainStore.create(str(tmp_path / "store"), Schema(features=(column,)))
    raw = encode(np.stack([np.zeros((2, WIDTH)), -np.ones((2, WIDTH))]), column.codec).reshape(4, -1)
    store.append([document_id((word,)) for word in "ab"], {"x": PackedRows.of([2, 2], raw)})
    _, cosines = top_cosines(store, column, np.ones(WIDTH, np.float32), top=2)
    np.testing.assert_allclose(cosines, [0, -1], atol=1e-6)


POOLS = {
    "attention": POOL,
    "mean of layers": Pool(
        layers="mean", of=2, positions="attention", part="task:x", codec=Codec(name="sign", before_mean=True)
    ),
    "first": Pool(positions="first", codec=Codec(name="float16")),
    "learned": Pool(layers="learned", positions="mean", part="task:x", codec=Codec(name="float32")),
}


def made(tmp_path, pool=POOL, name="store", numbers=range(60)):
    """A bundle and a store of texts over its trunk."""
    bundle = make_bundle(tmp_path / "bundle", ("mood",), pool=pool)
    path = Bundle.open(bundle).tasks["mood"].path
    store = create_corpus(tmp_path / name, schema(path))
    for start in range(0, len(numbers), 25):
        append(store, path, texts(numbers[start : start + 25]))
    return str(tmp_path / name), bundle


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("name", ["store", "store.lance"])
def test_a_text_of_the_store_is_its_own_nearest(tmp_path, pool, name):
    """The cosine is 1 but for rounding: the text is encoded alone, documents were encoded among others."""
    location, bundle = made(tmp_path, POOLS[pool], name)
    for text in texts([3, 31, 59]):
        found = nearest_documents(location, bundle, text, NearRequest(top=3, backend="reference"))
        assert found.documents == 60 and len(found.found) == 3 and not found.cut
        cosines = [each.cosine for each in found.found]
        assert cosines == sorted(cosines, reverse=True) and cosines[0] == pytest.approx(1, abs=1e-5)
        # A tokenizer may read two texts as one, and a short text's first token may be as that of another.
        best = {each.id for each in found.found if each.cosine > cosines[0] - 1e-6}
        assert document_id(text).hex() in best


@pytest.mark.parametrize("backend", ["openvino", "onnxruntime", "torch", "reference"])
def test_every_backend_finds_the_same_nearest(tmp_path, backend):
    pytest.importorskip({"reference": "numpy"}.get(backend, backend))
    location, bundle = made(tmp_path)
    (text,) = texts([17])
    found = nearest_documents(location, bundle, text, NearRequest(top=1, backend=backend, precision="float32"))
    assert found.found[0].id == document_id(text).hex()


def test_texts_of_a_file_stand_beside_what_was_found(tmp_path):
    location, bundle = made(tmp_path)
    (text,) = texts([7])
    found = nearest_documents(location, bundle, text, NearRequest(top=4, backend="reference"))
    file = tmp_path / "texts.jsonl"
    first = found.found[0].id
    lines = [{"text": each} for (each,) in texts(range(200)) if document_id((each,)).hex() != found.found[2].id]
    file.write_text("{broken\n" + "".join(json.dumps(line) + "\n" for line in lines))
    named = neighbours_with_texts(found, file, {})
    assert [each.id for each in named.found] == [each.id for each in found.found]
    assert named.found[0].text == text and first == document_id(text).hex()
    assert named.found[2].text is None
    for each in named.found[1], named.found[3]:
        assert document_id(each.text).hex() == each.id
    with pytest.raises(DataError, match="no file"):
        neighbours_with_texts(found, tmp_path / "none.jsonl", {})


def test_a_pair_is_near_to_itself_and_told_as_a_pair(tmp_path):
    bundle = make_bundle(tmp_path / "bundle", ("mood",))
    path = Bundle.open(bundle).tasks["mood"].path
    store = create_corpus(tmp_path / "store", schema(path))
    pairs = [(one[0], other[0]) for one, other in zip(texts(range(10)), texts(range(10, 20)), strict=True)]
    append(store, path, pairs)
    found = nearest_documents(tmp_path / "store", bundle, pairs[4], NearRequest(top=1, backend="reference"))
    (tmp_path / "pairs.csv").write_text("text,text_b\n" + "".join(f"{a},{b}\n" for a, b in pairs))
    assert neighbours_with_texts(found, tmp_path / "pairs.csv", {}).found[0].text == pairs[4]


def test_a_long_text_is_cut_and_that_is_told(tmp_path):
    location, bundle = made(tmp_path)
    found = nearest_documents(location, bundle, ("good " * 100,), NearRequest(top=1, backend="reference"))
    assert found.cut == 100 + 2 - TRUNK.settings.max_tokens


def test_a_store_of_another_trunk_is_refused_and_both_are_named(tmp_path):
    location, _ = made(tmp_path)
    other = tiny_trunk(seed=5)
    bundle = make_bundle(tmp_path / "other", ("mood",), trunk=other)
    with pytest.raises(StoreError, match=other.digest) as raised:
        nearest_documents(location, bundle, ("good",), NearRequest(backend="reference"))
    assert TRUNK.digest in str(raised.value)


def test_what_cannot_be_looked_for_is_refused(tmp_path):
    location, bundle = made(tmp_path)
    kept = PlainStore.open(location).schema.features[0].digest
    for text in (("",), (" \n",), ("", " ")):
        with pytest.raises(BadValue, match="empty"):
            nearest_documents(location, bundle, text)
    with pytest.raises(StoreError, match="keeps no features") as raised:
        nearest_documents(location, bundle, ("good",), NearRequest(features="zz"))
    assert kept in str(raised.value)
    found = nearest_documents(location, bundle, ("good",), NearRequest(features=kept[:8], backend="reference", top=1))
    assert found.features == kept
    with pytest.raises(StoreError, match="no store"):
        nearest_documents(tmp_path / "none", bundle, ("good",))
    store = create_corpus(tmp_path / "empty", PlainStore.open(location).schema)
    assert not store.fragments
    with pytest.raises(StoreError, match="no document"):
        nearest_documents(tmp_path / "empty", bundle, ("good",), NearRequest(backend="reference"))


def test_features_that_no_task_reads_are_refused(tmp_path):
    location, _ = made(tmp_path)
    bundle = make_bundle(tmp_path / "other", ("mood",), pool=POOLS["first"])
    with pytest.raises(StoreError, match="which layers"):
        nearest_documents(location, bundle, ("good",), NearRequest(backend="reference"))
