"""Words, the token that stands for each, and the window that reads it best."""

import random
import unicodedata
from itertools import pairwise

import numpy as np
import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from polyhead.encoder.data import TextSettings
from polyhead.text import words
from polyhead.text.characters import word_pattern
from polyhead.text.tokenize import Tokenizer, Windows
from polyhead.text.words import (
    GOES_ON,
    best_windows,
    boundary_places,
    first_subtokens,
    read_words,
    words_in,
    words_in_each,
    words_of,
)
from support.cases import cases


def tokenizer(max_tokens=32):
    letters = "abcdefghijklmnopqrstuvwxyz"
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{c}" for c in letters), "!", "cat"]
    raw = tokenizers.Tokenizer(models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    raw.normalizer = normalizers.BertNormalizer(lowercase=True)
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return Tokenizer(raw.to_str().encode(), TextSettings(max_tokens=max_tokens))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hello, world!", ["Hello", ",", "world", "!"]),
        ("don't", ["don", "'", "t"]),
        ("order_12 é日本 😀", ["order_12", "é", "日", "本", "😀"]),
        ("10mg, USD10, x² 4x4", ["10", "mg", ",", "USD10", ",", "x²", "4", "x4"]),
        (" \t\n", []),
        ("", []),
        ("a\u2028b", ["a", "b"]),
    ],
)
def test_words_are_runs_of_letters_or_single_marks(text, words):
    offsets = words_of(text)
    assert (offsets.dtype, offsets.shape) == (np.int32, (len(words), 2))
    assert [text[start:stop] for start, stop in offsets] == words


@cases(
    "text, words",
    [
        ("हिन्दी में दिल्ली १२", ["हिन्दी", "में", "दिल्ली", "१२"]),
        ("مُحَمَّد في القَاهِرَة", ["مُحَمَّد", "في", "القَاهِرَة"]),
        ("שָׁלוֹם עוֹלָם", ["שָׁלוֹם", "עוֹלָם"]),
        ("cafe\u0301 Zu\u0308rich", ["cafe\u0301", "Zu\u0308rich"]),
        ("กรุงเทพฯ ๑๒", ["ก", "รุ", "ง", "เ", "ท", "พ", "ฯ", "๑๒"]),
        ("ເຈົ້າ", ["ເ", "ຈົ້", "າ"]),
        ("ភ្នំពេញ", ["ភ្នំ", "ពេ", "ញ"]),
        ("သတ္တ", ["သ", "တ္တ"]),
        ("请把0号iPhone15寄", ["请", "把", "0", "号", "iPhone15", "寄"]),
        ("が\u3099スーパー ｶﾞ", ["が\u3099", "ス", "ー", "パ", "ー", "ｶﾞ"]),
        ("서울에서 \u1109\u1165\u110b\u116e\u11af", ["서", "울", "에", "서", "\u1109\u1165", "\u110b\u116e\u11af"]),
        ("བོད་ཡིག", ["བོད", "་", "ཡིག"]),
        ("می\u200cخواهم کتاب\u200c", ["می\u200cخواهم", "کتاب"]),
        ("Donau\u00addampf a\u200bb \u200fx", ["Donau\u00addampf", "a", "b", "x"]),
        ("👩\u200d👧 👍🏽 1\ufe0f\u20e3", ["👩\u200d👧", "👍🏽", "1\ufe0f\u20e3"]),
        ("\u0301a", ["\u0301", "a"]),
    ],
)
def test_a_mark_belongs_to_its_letter_and_letters_without_spaces_between_words_are_alone(text, words):
    assert [text[start:stop] for start, stop in words_of(text)] == words
    assert [text[start:stop] for start, stop in words_in_each([(text,)])[0]] == words


@cases("seed", range(30))
def test_no_letter_digit_or_mark_is_outside_the_words_and_none_is_in_two(seed):
    chance = random.Random(seed)
    text = "".join(
        chr(chance.choice([chance.randrange(32, 0x3000), chance.randrange(0x3000, 0xD800)])) for _ in range(300)
    )
    words = words_of(text).tolist()
    assert all(stop <= start for (_, stop), (start, _) in pairwise(words))
    inside = {place for start, stop in words for place in range(start, stop)}
    for place, character in enumerate(text):
        if unicodedata.category(character)[0] in "LNMPS":
            assert place in inside, (place, hex(ord(character)))
    marked = [start for start, _ in words if unicodedata.category(text[start]) in ("Mn", "Me", "Mc")]
    assert all(start == 0 or not text[start - 1].isalpha() for start in marked)


def test_marks_and_joiners_are_read_as_words_once():
    size = 10_000
    for text in ("a" + "\u200d" * size + "b", "a\u200d\u0301" * size, "e\u0301" * size):
        assert words_of(text).tolist() == [[0, len(text)]]
    size = 200_000
    assert len(words_of("漢\u0301" * size)) == size and len(words_of("\u200d" * size)) == 0


@pytest.mark.parametrize("size", [3, 8, 21])
def test_a_text_that_is_read_in_parts_has_the_words_of_the_whole(monkeypatch, size):
    monkeypatch.setattr(words, "AT_ONCE", size)
    chance = random.Random(size)
    pieces = ["e", "e\u0301", "\u200d", "\u0301", " ", "   ", "12", "mg", "漢", "\u0e01\u0e33", "☺", "☺\ufe0f\u200d"]
    pieces += ["\u1780\u17d2", "\u1161", "#", "\u00ad", "\ufeff", "_", "\n"]
    for _ in range(300):
        text = "".join(chance.choices(pieces, k=chance.randrange(1, 60)))
        whole = [list(match.span()) for match in word_pattern(text).finditer(text)]
        assert words_of(text).tolist() == whole, ascii(text)


@pytest.mark.parametrize("unit", ["e\u0301", "a\u200d", "☺\u200d", "\u1780\u17d2", "x", "\u2003", "\u200d"])
def test_no_search_for_words_keeps_other_threads_for_longer_than_that_of_the_longest_word(monkeypatch, unit):
    searched, pattern = [], word_pattern(unit)

    class Watched:
        def finditer(self, text, start=0, stop=10**9):
            searched.append(min(stop, len(text)) - start)
            return pattern.finditer(text, start, stop)

    monkeypatch.setattr(words, "word_pattern", lambda text: Watched())
    text = unit * (300_000 // len(unit))
    spans = words_of(text).tolist()
    assert max(searched) <= words.LONGEST_WORD and sum(searched) < 4 * len(text)
    inside = {place for start, stop in spans for place in range(start, stop)}
    assert all(place in inside or not char.isprintable() for place, char in enumerate(text))


def test_each_word_has_its_first_subtoken():
    text = "abc cat  de!"
    one = tokenizer().encode([(text,)])[0]  # [CLS] a ##b ##c cat d ##e ! [SEP]
    assert first_subtokens(one, words_of(text)).tolist() == [1, 4, 5, 7]


@pytest.mark.parametrize("text", ["cat a!", "", "  ", "don't", "ab\u0301c cats 5 a", "a" * 60])
def test_words_of_one_text_are_those_that_it_has_among_others(text):
    both = [(text,), ("cat",)]
    (alone, among), own = (
        (tokenizer().encodings(inputs, offsets=True) for inputs in (both[:1], both)),
        words_in_each(both),
    )
    one, several = read_words(alone, own[:1]), read_words(among, own)
    assert one.of(0).tolist() == several.of(0).tolist()
    count = int(several.starts[1])
    assert one.starts.tolist() == [0, count]
    assert one.places.tolist() == several.places[:count].tolist()
    assert one.tokens.tolist() == several.tokens[:count].tolist()
    assert one.going_on(np.array([0])).tolist() == several.going_on(np.array([0])).tolist()


def test_words_that_are_cut_away_or_vanish_have_none():
    text = "abc cat \u200b de"
    words = np.array([[0, 3], [4, 7], [8, 9], [10, 12]], np.int32)
    assert first_subtokens(tokenizer(6).encode([(text,)])[0], words).tolist() == [1, 4, -1, -1]
    assert first_subtokens(tokenizer().encode([(text,)])[0], words).tolist() == [1, 4, -1, 5]
    empty = tokenizer().encode([("",)])[0]
    assert first_subtokens(empty, words).tolist() == [-1] * 4
    assert first_subtokens(empty, words[:0]).tolist() == []


def test_a_token_wider_than_a_word_stands_for_its_first_word_and_the_others_go_on():
    one = tokenizer().encode([("cat",)])[0]
    assert first_subtokens(one, np.array([[0, 1], [1, 3]], np.int32)).tolist() == [1, GOES_ON]
    pair = tokenizer().encode([("a", "cat")])[0]
    assert first_subtokens(pair, np.array([[0, 1], [1, 3]], np.int32)).tolist() == [3, 3]


def test_only_the_second_text_of_a_pair_has_words():
    one = tokenizer().encode([("a b", "c d")])[0]  # [CLS] a b [SEP] c d [SEP]
    assert first_subtokens(one, words_of("c d")).tolist() == [4, 5]
    blank = tokenizer().encode([("a b", "\u200b")])[0]  # no token is left of the second text
    assert first_subtokens(blank, np.array([[0, 1]], np.int32)).tolist() == [-1]


def test_no_answer_is_read_at_the_first_token_of_every_window():
    places = boundary_places("cat de")
    assert places.tolist() == [[-1, -1], [0, 3], [4, 6]] and places.dtype == np.int32
    assert boundary_places("").tolist() == [[-1, -1]]
    one = tokenizer().encode([("a", "cat de")])[0]
    assert first_subtokens(one, places).tolist() == [0, 3, 4]
    assert first_subtokens(tokenizer().encode([("a", "")])[0], places).tolist() == [0, -1, -1]
    windows = tokenizer().encode([("a", "b c d e f g h i j")], windows=Windows(size=8, stride=2))
    assert len(windows) == 4
    assert [first_subtokens(w, boundary_places("b"))[0] for w in windows] == [0, 0, 0, 0]
    assert best_windows(windows, boundary_places("b c d e f g h i j"))[0].tolist() == [0, 0]


def test_the_windows_of_a_pair_read_each_word_of_the_second_text():
    text = "b c d e f g h i j"
    windows = tokenizer().encode([("a", text)], windows=Windows(size=8, stride=2))
    for (window, token), (start, stop) in zip(best_windows(windows, words_of(text)), words_of(text), strict=True):
        assert windows[window].sequence[token] == 1
        assert windows[window].offsets[token].tolist() == [start, stop]


def test_each_word_is_read_where_it_sits_farthest_from_a_cut():
    text = "a b c d e f g h i j"
    windows = tokenizer().encode([(text,)], windows=Windows(size=8, stride=4))  # abcdef cdefgh efghij
    assert len(windows) == 3
    best = best_windows(windows, words_of(text))
    # a-d lie farthest from the cut after f, e is as far from a cut in the second window; the ends are no cuts
    assert best[:, 0].tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 2, 2]
    for (window, token), letter in zip(best.tolist(), "abcdefghij", strict=True):
        start, stop = windows[window].offsets[token]
        assert text[start:stop] == letter


def test_one_window_reads_every_word():
    text = "abc cat de"
    windows = tokenizer().encode([(text,)], windows=Windows(size=16, stride=2))
    best = best_windows(windows, words_of(text))
    assert best[:, 0].tolist() == [0, 0, 0]
    assert best[:, 1].tolist() == first_subtokens(windows[0], words_of(text)).tolist()


@cases("seed", range(20))
def test_no_word_that_begins_in_a_window_is_lost(seed):
    rng = np.random.default_rng(seed)
    text = " ".join("".join(rng.choice(list("abcde"), rng.integers(1, 7))) for _ in range(30))
    words = words_of(text)
    windows = tokenizer().encode([(text,)], windows=Windows(size=12, stride=int(rng.integers(0, 9))))
    best = best_windows(windows, words)
    assert np.all(best >= 0)
    for (window, token), (start, _) in zip(best.tolist(), words.tolist(), strict=True):
        assert windows[window].offsets[token][0] == start  # the very first sub-token, not a later piece


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("texts", [1, 2], ids=["text", "pair"])
def test_words_of_many_texts_are_read_where_each_alone_reads_them(seed, texts):
    """Short texts and long ones in windows or cut, blank ones, words of one's own in any order."""
    rng = np.random.default_rng(seed)
    letters = ["a", "bc", "def", "cat", "!", " ", "  ", "\u200b", "É", "กขค"]
    inputs = [
        tuple("".join(rng.choice(letters, rng.integers(0, size))) for size in rng.choice([5, 9, 90], texts))
        for _ in range(12)
    ]
    words = words_in_each(inputs)
    assert [one.tolist() for one in words] == [words_in(given).tolist() for given in inputs]
    words[3] = rng.permutation(np.concatenate([words[3], [[0, 2], [1, 1], [0, 40]]]).astype(np.int32))
    for windows in (None, Windows(size=16, stride=4)):
        encoded = tokenizer(20).encode(inputs, windows=windows)
        reads = read_words(tokenizer(20).encodings(inputs, windows=windows, offsets=True), words)
        assert len(reads.starts) == len(encoded) + 1
        going_on = [np.zeros(len(each), bool) for each in words]
        for entry, one in enumerate(encoded):
            every = first_subtokens(one, words[one.row])
            going_on[one.row] |= every == GOES_ON
            here = slice(reads.starts[entry], reads.starts[entry + 1])
            assert reads.places[here].tolist() == np.flatnonzero(every >= 0).tolist()
            assert reads.tokens[here].tolist() == every[every >= 0].tolist()
            assert reads.of(one.row).tolist() == words[one.row].tolist()
        assert reads.going_on(np.arange(12)).tolist() == np.concatenate(going_on).tolist()
        both = read_words(tokenizer(20).encodings(inputs, windows=windows, offsets=True), words, ends=True)
        assert both.tokens.tolist() == reads.tokens.tolist()
        ends = [
            max([first, *np.flatnonzero(_overlaps(encoded[entry], both.of(encoded[entry].row)[place]))])
            for entry in range(len(encoded))
            for place, first in zip(*_read_in(both, entry), strict=True)
        ]
        assert both.ends.tolist() == ends
        assert any(each.any() for each in going_on) == (texts == 1)


def _read_in(reads, entry):
    here = slice(reads.starts[entry], reads.starts[entry + 1])
    return reads.places[here].tolist(), reads.tokens[here].tolist()


def _overlaps(one, word):
    """Which tokens of an encoding hold a character of the word."""
    holds = (one.offsets[:, 0] < word[1]) & (one.offsets[:, 1] > word[0]) & (one.offsets[:, 1] > one.offsets[:, 0])
    return holds & (one.sequence == one.texts - 1)


def test_words_of_a_text_do_not_depend_on_a_letter_beyond_ascii_elsewhere():
    """A text of ASCII alone is read by a pattern of its own."""
    for character in map(chr, range(128)):
        for text in (f"the{character}lamp", f"a1{character}2b", f"{character} x{character}"):
            assert words_of(text).tolist() == words_of(f"{text} \u00e9")[:-1].tolist(), text
