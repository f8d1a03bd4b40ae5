import numpy as np
import pytest

from polyhead.errors import StoreError
from polyhead.plan import Codec
from polyhead.plan.coding import calibrate, through
from polyhead.store.corpus.ids import document_id
from polyhead.store.features import FeatureStore

LAYERS, WIDTH = 2, 16
NAMES = ["float32", "float16", "uint8", "sign", "pca1"]


def rows_of(count, *, layers=LAYERS, width=WIDTH, first=0):
    return [
        np.sin(np.arange(first + i, first + i + (1 + i % 5) * layers * width, dtype=np.float32)).reshape(
            -1, layers, width
        )
        for i in range(count)
    ]


def keys_of(count, *, first=0):
    return [document_id((f"text {i}",)) for i in range(first, first + count)]


def codec_named(name):
    return calibrate(np.concatenate(rows_of(20)), name=name)


def open_store(root, codec, **changes):
    return FeatureStore.open(root, **{"digest": "d1", "layers": LAYERS, "width": WIDTH, "codec": codec} | changes)


@pytest.mark.parametrize("name", NAMES)
def test_taken_rows_equal_the_codec_applied_to_each_row_alone(tmp_path, name):
    codec, values, keys = codec_named(name), rows_of(20), keys_of(20)
    store = open_store(tmp_path, codec)
    for start in (0, 7, 14):  # three fragments
        store.append(keys[start : start + 7], values[start : start + 7])
    features = store.features(keys[::-1])
    taken = features.take([3, 0, 19, 3])
    assert taken.values.dtype == np.float32 and taken.mask.dtype == bool
    for row, index in enumerate([16, 19, 0, 16]):
        length = len(values[index])
        assert taken.mask[row].sum() == length == features.lengths[19 - index]
        np.testing.assert_array_equal(taken.values[row, :length], through(values[index], codec))
        assert not taken.values[row, length:].any() and not taken.mask[row, length:].any()


def test_rows_of_equal_length_and_rows_without_tokens_and_no_rows_are_taken(tmp_path):
    store = open_store(tmp_path, Codec(name="float16"))
    empty = np.zeros((0, LAYERS, WIDTH), np.float32)
    store.append(keys_of(3), [empty, np.ones((2, LAYERS, WIDTH)), np.ones((2, LAYERS, WIDTH))])
    features = store.features(keys_of(3))
    assert features.take([1, 2]).mask.all() and (features.take([1, 2]).values == 1).all()
    assert features.take([0]).values.shape == (1, 0, LAYERS, WIDTH)
    assert features.take([0, 1]).mask.tolist() == [[False, False], [True, True]]
    assert features.take([]).values.shape == (0, 0, LAYERS, WIDTH)
    assert len(features) == 3


@pytest.mark.parametrize(("name", "expected"), [("float16", 102_400), ("uint8", 51_200), ("sign", 6_400)])
def test_fifty_tokens_of_width_1024_take_the_published_bytes_on_disk(tmp_path, name, expected):
    """Du et al. 2020, the storage table: 100K, 50K and 6.25K for one layer and all positions."""
    values = np.sin(np.arange(50 * 1024, dtype=np.float32)).reshape(50, 1, 1024)
    store = open_store(tmp_path, calibrate(values, name=name), layers=1, width=1024)
    store.append(keys_of(1), [values])
    (data,) = (tmp_path / "d1/fragments").glob("*/d1.data.bin")
    assert data.stat().st_size == expected
    assert store.nbytes == store.features(keys_of(1)).nbytes == expected


def test_missing_lists_the_indices_the_store_lacks_also_after_another_writer(tmp_path):
    first, second = open_store(tmp_path, Codec()), open_store(tmp_path, Codec())
    assert first.missing(keys_of(4)) == [0, 1, 2, 3]
    second.append(keys_of(2, first=1), rows_of(2))
    assert first.missing(keys_of(4)) == [0, 3] and len(first) == 2
    with pytest.raises(StoreError, match="lacks 2 of 4"):
        first.features(keys_of(4))


def test_repeated_keys_are_kept_once_and_the_first_value_stays(tmp_path):
    store, keys = open_store(tmp_path, Codec(name="float32")), keys_of(2)
    values = rows_of(6)
    store.append([keys[0], keys[1], keys[0]], values[:3])
    store.append(keys, values[3:5])  # nothing new: no fragment
    assert len(store) == 2 and len(list((tmp_path / "d1/fragments").iterdir())) == 1
    taken = store.features([keys[0], keys[0]]).take([0, 1])
    np.testing.assert_array_equal(taken.values, np.stack([values[0], values[0]]))


def test_reopened_store_gives_the_same_bytes(tmp_path):
    codec, keys, values = codec_named("uint8"), keys_of(9), rows_of(9)
    store = open_store(tmp_path, codec)
    store.append(keys, values)
    before, after = (store.features(keys).take(range(9)), open_store(tmp_path, codec).features(keys).take(range(9)))
    np.testing.assert_array_equal(before.values, after.values)
    open_store(tmp_path, codec).verify()


@pytest.mark.parametrize(
    "change", [{"layers": 3}, {"width": 8}, {"codec": Codec(name="sign")}], ids=["layers", "width", "codec"]
)
def test_features_of_another_kind_are_refused(tmp_path, change):
    open_store(tmp_path, Codec())
    with pytest.raises(StoreError, match="its features differ"):
        open_store(tmp_path, **{"codec": Codec()} | change)


def test_folder_moved_under_another_digest_is_refused(tmp_path):
    open_store(tmp_path, Codec()).append(keys_of(1), rows_of(1))
    (tmp_path / "d1").rename(tmp_path / "d2")
    with pytest.raises(StoreError, match="its features differ"):
        open_store(tmp_path, Codec(), digest="d2")


@pytest.mark.parametrize("digest", ["", "../d", "a/b", "a" * 200])
def test_digest_that_is_no_name_is_refused(tmp_path, digest):
    with pytest.raises(StoreError, match="cannot have this name"):
        open_store(tmp_path, Codec(), digest=digest)


def test_values_of_another_shape_or_count_are_refused_and_nothing_is_kept(tmp_path):
    store = open_store(tmp_path, Codec())
    with pytest.raises(StoreError, match=r"\(tokens, 2, 16\)"):
        store.append(keys_of(1), [np.zeros((3, WIDTH), np.float32)])
    with pytest.raises(StoreError, match="2 keys and 1 values"):
        store.append(keys_of(2), rows_of(1))
    with pytest.raises(StoreError, match="16 bytes"):
        store.append([b"short"], rows_of(1))
    with pytest.raises(StoreError, match="not numbers"):
        store.append(keys_of(2), [rows_of(1)[0], np.full((1, LAYERS, WIDTH), np.nan)])
    assert not list((tmp_path / "d1/fragments").iterdir()) and len(store) == 0


def test_keys_tell_pairs_extras_and_lone_surrogates_apart():
    inputs = [("ab", "c"), ("a", "bc"), ("abc",), ("", "abc"), ("abc", ""), ("\ud800",), ("\ufffd",)]
    keys = {document_id(texts) for texts in inputs} | {
        document_id(("abc",), "window 1"),
        document_id(("window 1", "abc")),
    }
    assert len(keys) == len(inputs) + 2 and all(len(key) == 16 for key in keys)
    assert document_id(("abc",)) == document_id(("abc",))
