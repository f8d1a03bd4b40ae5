"""Hashed words: the formula in plain Python, the same bits in other processes, and what makes no difference."""

import math
import subprocess
import sys
from collections import Counter
from zlib import crc32

import numpy as np
import pytest

from polyhead.text.hashing import (
    LONGEST,
    OVERLAP,
    HashedRows,
    _forms,
    _grams,
    hashed_in_context,
    hashed_in_contexts,
    hashed_pair,
    hashed_pairs,
    hashed_text,
    hashed_texts,
    overlap,
)

TEXT = "the cat sat on the mat and a dog sat down"
COLUMNS = 2**10


def hash_of(feature: str, begins: int) -> int:
    """The checksum with the finalizer of MurmurHash3, as its author wrote it."""
    return mixed(crc32(feature.encode(), begins))


def mixed(value: int) -> int:
    for factor in (0x85EBCA6B, 0xC2B2AE35):
        value ^= value >> (16 if factor == 0x85EBCA6B else 13)
        value = value * factor % 2**32
    return value ^ (value >> 16)


def group_of(counts: Counter[str], begins: dict[str, int]) -> np.ndarray:
    row = np.zeros(COLUMNS)
    length = math.sqrt(sum((1 + math.log(count)) ** 2 for count in counts.values()))
    for feature, count in counts.items():
        code = hash_of(feature, begins[feature])
        row[code % COLUMNS] += (1 + math.log(count)) / length * (-1 if code >= 2**31 else 1)
    return row


def dense(text: str, columns: int = COLUMNS) -> np.ndarray:
    row, (places, values) = np.zeros(columns, np.float32), hashed_text(text, columns)
    assert (np.diff(places) > 0).all() and places.dtype == np.int32 and values.dtype == np.float32
    row[places] = values
    return row


def test_features_are_those_of_scikit_learn_hashed_by_the_formula() -> None:
    text = pytest.importorskip("sklearn.feature_extraction.text")
    words = Counter(text.CountVectorizer(ngram_range=(1, 2), token_pattern=r"\w+").build_analyzer()(TEXT))
    grams = Counter(text.CountVectorizer(analyzer="char_wb", ngram_range=(3, 5)).build_analyzer()(TEXT))
    expected = group_of(words, {feature: int(" " in feature) for feature in words})
    expected = expected + group_of(grams, dict.fromkeys(grams, 2))
    np.testing.assert_allclose(dense(TEXT), expected, atol=1e-6)


def test_another_process_computes_the_same_bits() -> None:
    program = (
        "from polyhead.text.hashing import hashed_text as h;"
        f"r = h({TEXT!r}, {COLUMNS}); print(r.columns.tobytes().hex(), r.values.tobytes().hex())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    here = hashed_text(TEXT, COLUMNS)
    assert done.stdout.split() == [here.columns.tobytes().hex(), here.values.tobytes().hex()]


def test_case_and_unicode_form_make_no_difference_and_order_of_words_does() -> None:
    np.testing.assert_array_equal(dense("Élan VITAL"), dense("e\u0301lan vital"))
    assert (dense("dog bites man") != dense("man bites dog")).any()


@pytest.mark.parametrize("text", ["", " \n", "\u200b"])
def test_a_text_without_words_has_no_features(text: str) -> None:
    assert len(hashed_text(text, COLUMNS).columns) == 0


def test_any_string_is_hashed_into_the_columns() -> None:
    for text in ("\ud800 lone", "x" * 1000, "東京タワー 😀", "?!", "a"):
        columns, values = hashed_text(text, 64)
        assert len(columns) and columns.min() >= 0 and columns.max() < 64 and np.isfinite(values).all()


def test_a_word_is_hashed_with_its_neighbours_by_the_formula() -> None:
    words = ["The", "B-52s", "\u00e9t\u00e9", "ok"]
    shapes = {"": "", "The": "Xx", "B-52s": "X-9x", "\u00e9t\u00e9": "x", "ok": "x"}
    rows = hashed_in_context(words, COLUMNS)
    assert len(rows) == 4 and not hashed_in_context([], COLUMNS)
    spaced = ["", *words, ""]
    for place, (columns, values) in enumerate(rows):
        expected = np.zeros(COLUMNS)
        for offset, word in enumerate(spaced[place : place + 3]):
            lower = word.lower()
            features = [lower, shapes[word], *(lower[:n] for n in range(1, 5)), *(lower[-n:] for n in range(1, 5))]
            for begins, feature in enumerate(features):
                code = mixed((crc32(feature.encode(), begins) + offset) % 2**32)
                expected[code % COLUMNS] += (-1 if code >= 2**31 else 1) / math.sqrt(30)
        row = np.zeros(COLUMNS)
        row[columns] = values
        assert (np.diff(columns) > 0).all() and columns.dtype == np.int32 and values.dtype == np.float32
        np.testing.assert_allclose(row, expected, atol=1e-6)
    alone = hashed_in_context(words[:3], COLUMNS)
    np.testing.assert_array_equal(alone[1].values, rows[1].values)  # what stands further on makes no difference


@pytest.mark.parametrize(("known", "read"), [(_forms, hashed_in_context), (_grams, hashed_text)])
def test_hashes_of_long_words_are_not_remembered(known, read) -> None:
    """Tokens of a request may be of any length, and so many words are remembered."""
    read("a" if read is hashed_text else ["a"], COLUMNS)
    before = known.cache_info()
    word = "a" * (LONGEST + 1)
    read(word if read is hashed_text else [word], COLUMNS)
    assert known.cache_info().misses == before.misses


def test_a_pair_has_the_words_of_one_alone_and_what_is_shared() -> None:
    """Of what both have no word is left; a fact is a feature like any other, OVERLAP times its value."""
    row = np.zeros(COLUMNS)
    for name, value in overlap(["the", "cat", "sat"], ["the", "cat", "sat", "down", "3"]).items():
        code = hash_of(name, 3)
        row[code % COLUMNS] += OVERLAP * value * (-1 if code >= 2**31 else 1)
    alone = dense("down 3")
    found = np.zeros(COLUMNS)
    columns, values = hashed_pair("The cat sat", "the cat sat down 3", COLUMNS)
    found[columns] = values
    np.testing.assert_allclose(found, row + alone, atol=1e-5)


def test_what_is_shared_by_hand() -> None:
    facts = overlap(["not", "the", "cat", "cat"], ["the", "2", "cats"])
    assert (facts["word, first"], facts["word, second"], facts["word, both"]) == (1 / 3, 1 / 3, 1 / 5)
    assert facts["pair, both"] == 0 and facts["letters, second"] == 3 / 5  # " the", "the ", " cat"; "cats", "ats "
    assert facts["length, more"] == pytest.approx(math.log(5 / 4)) == facts["length, apart"]
    assert (facts["number, first"], facts["number, second"]) == (False, True)
    assert (facts["not, first"], facts["not, second"], facts["not, one"]) == (True, False, True)


@pytest.mark.parametrize("columns", [2**12, 2**13, 2**16])
def test_facts_have_columns_of_their_own(columns: int) -> None:
    names = list(overlap([], []))
    assert len({hash_of(name, 3) % columns for name in names}) == len(names)


@pytest.mark.parametrize("pair", [("", ""), ("a", ""), ("", "b c"), ("\ud800", "x" * 1000), ("東京", "東京タワー")])
def test_any_pair_is_hashed_and_order_changes_only_what_is_shared(pair: tuple[str, str]) -> None:
    for first, second in (pair, pair[::-1]):
        columns, values = hashed_pair(first, second, 64)
        assert (np.diff(columns) > 0).all() and np.isfinite(values).all()
    one, two = (overlap([text] if text else [], []) for text in pair)
    assert one["word, both"] == two["word, both"] == 0


WEIGHTS = np.random.default_rng(3).normal(size=(64, 40)).astype(np.float32)


@pytest.mark.parametrize("outputs", [1, 5, 40])
@pytest.mark.parametrize("text", ["", "a", TEXT, "a " * 300, "\ud800 lone 東京タワー"])
def test_sums_are_those_of_the_dense_row_and_company_changes_no_bit(text, outputs):
    others = ["the dog", "", TEXT * 40]
    weights = np.ascontiguousarray(WEIGHTS[:, :outputs])
    alone = hashed_texts([text]).sums(weights)
    np.testing.assert_allclose(alone[0], dense(text, 64) @ weights, atol=2e-6)
    for place in range(4):
        together = hashed_texts([*others[:place], text, *others[place:]]).sums(weights)
        np.testing.assert_array_equal(together[place], alone[0])


def test_more_texts_than_are_hashed_together_are_those_of_each(monkeypatch):
    texts = [f"{TEXT} {number}" for number in range(7)] + [""]
    monkeypatch.setattr("polyhead.text.hashing.TEXTS_AT_ONCE", 3)
    alone = np.concatenate([hashed_texts([text]).sums(WEIGHTS) for text in texts])
    np.testing.assert_array_equal(hashed_texts(texts).sums(WEIGHTS), alone)
    assert len(np.unique(alone, axis=0)) == len(texts)


def test_sums_of_known_vectors_and_of_none():
    rows = [hashed_text(text, 64) for text in (TEXT, "", "dog")]
    expected = np.stack([dense(text, 64) for text in (TEXT, "", "dog")]) @ WEIGHTS
    np.testing.assert_allclose(HashedRows.of(rows).sums(WEIGHTS), expected, atol=1e-6)
    assert HashedRows.of([]).sums(WEIGHTS).shape == hashed_texts([]).sums(WEIGHTS).shape == (0, 40)


@pytest.mark.parametrize("outputs", [1, 5, 40])
def test_sums_of_several_pairs_are_those_of_each_vector_and_company_changes_no_bit(outputs):
    weights = np.ascontiguousarray(WEIGHTS[:, :outputs])
    pairs = [(TEXT, "the dog"), ("", ""), ("not 5 dogs", "5 dogs, no more"), ("same", "same"), ("a " * 300, TEXT * 20)]
    together = hashed_pairs(pairs).sums(weights)
    vectors = HashedRows.of([hashed_pair(*pair, 64) for pair in pairs])
    np.testing.assert_allclose(together, vectors.sums(weights), rtol=1e-5, atol=1e-5)
    for pair, sums in zip(pairs, together, strict=True):
        np.testing.assert_array_equal(hashed_pairs([pair]).sums(weights)[0], sums)
    assert len(np.unique(together, axis=0)) == len(pairs)
    assert hashed_pairs([]).sums(weights).shape == (0, outputs)


def test_sums_of_words_of_several_texts_are_those_of_each_word():
    texts = [["Ab12-", "is", "here"], [], ["is", "is", "is"], ["x"]]
    each = [word for words in texts for word in hashed_in_context(words, 64)]
    together = hashed_in_contexts(texts).sums(WEIGHTS)
    np.testing.assert_allclose(together, HashedRows.of(each).sums(WEIGHTS), atol=1e-6)
    start = 0
    for words in texts:
        alone = hashed_in_contexts([words]).sums(WEIGHTS)
        np.testing.assert_array_equal(together[start : start + len(words)], alone)
        start += len(words)
    assert start == len(together) == 7
