"""Very long texts: their first tokens are those of the whole text, and memory does not grow with the rest."""

import resource
import subprocess
import sys

import pytest
import tokenizers
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from polyhead.encoder.data import TextSettings
from polyhead.text import prefix
from polyhead.text.prefix import beginning, tokens_beyond
from polyhead.text.tokenize import Tokenizer, Windows

CORPUS = ["the cat sat on the mat and was not happy about it", "zwölf Boxkämpfer jagen Viktor quer", "日本語 テスト"]
SPECIAL = ["<s>", "</s>", "<pad>", "<unk>"]
KEPT = (12, 13)  # tokens; a pair has an odd and an even number of them left


def _word_piece():
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>", max_input_chars_per_word=20))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    return made, trainers.WordPieceTrainer(vocab_size=120, special_tokens=SPECIAL, show_progress=False)


def _bpe():
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return made, trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )


def _unigram():
    made = tokenizers.Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    return made, trainers.UnigramTrainer(vocab_size=90, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)


def _whole_unigram():
    """Of one that does not divide words first: the best pieces of all the text are looked for."""
    made, trainer = _unigram()
    made.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    return made, trainer


MADE = {"wordpiece": _word_piece, "bpe": _bpe, "unigram": _unigram, "unigram of whole texts": _whole_unigram}


@pytest.fixture(params=MADE, scope="module")
def content(request):
    made, trainer = MADE[request.param]()
    made.train_from_iterator(CORPUS * 20, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return made.to_str().encode()


WORDS = ["the", "cat", "mat", "Boxkämpfer", "日本", "x" * 30, "x" * 150, "  ", "\n", ".", "<s>", "e\u0301", "don't"]
TEXTS = st.builds(
    lambda words, times, between: between.join(words * times),
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=12),
    st.integers(1, 30),
    st.sampled_from([" ", " ", "", "  ", "\t"]),
)
INPUTS = st.one_of(st.tuples(TEXTS), st.tuples(TEXTS, TEXTS))


@settings(max_examples=60, deadline=None)
@given(inputs=st.lists(INPUTS, min_size=1, max_size=4), size=st.integers(150, 400), kept=st.sampled_from(KEPT))
def _compare(content, inputs, size, kept):
    tokenizer = Tokenizer(content, TextSettings(max_tokens=kept))
    whole = tokenizer.encode(inputs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix, "WHOLE", size)
        patch.setattr(prefix, "_PIECE", 60)
        begun = tokenizer.encode(inputs)
    for given_, one, other in zip(inputs, whole, begun, strict=True):
        if len(given_) == 2 and min(map(len, given_)) > size:
            _same_but_for_the_odd_token(one, other)
            continue
        assert one.ids.tolist() == other.ids.tolist()
        assert one.offsets.tolist() == other.offsets.tolist()
        assert (one.cut > 0) == (other.cut > 0)
        assert len(given_) == 2 or other.cut <= one.cut


def _same_but_for_the_odd_token(whole, begun):
    """Of two very long texts the tokens are counted piece by piece, so that the wrong one may be taken for longer."""
    for sequence in (0, 1):
        one, other = (each.ids[each.sequence == sequence].tolist() for each in (whole, begun))
        assert abs(len(one) - len(other)) <= 1
        assert one[: len(other)] == other[: len(one)]
    assert len(whole.ids) == len(begun.ids)


@pytest.mark.slow
def test_the_tokens_that_are_kept_are_those_of_the_whole_text(content):
    """The beginning is made so short that nearly every text is longer; tokens that are spare stay as many."""
    _compare(content)


@settings(max_examples=40, deadline=None)
@given(texts=st.lists(st.tuples(TEXTS), min_size=1, max_size=3))
def _compare_windows(content, texts):
    # A word that is cut in two, as no space is near, is other tokens, of a very long one many in place of one.
    assume(all(len(text) <= 300 or len(prefix.beginning(text, 300)) < 300 for (text,) in texts))
    tokenizer, windows = Tokenizer(content, TextSettings(max_tokens=12)), Windows(size=12, stride=3)
    whole = tokenizer.encode(texts, windows=windows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix, "WHOLE", 300)
        begun = tokenizer.encode(texts, windows=windows)
    firsts = {one.row: one for one in begun if one.window == 0}
    for one in (one for one in whole if one.window == 0):
        other = firsts[one.row].ids.tolist()
        assert one.ids.tolist()[: len(other) - 1] == other[:-1]
        assert len(other) == 12 or len(other) == len(one.ids) or firsts[one.row].cut > 0
        assert len(texts[one.row][0]) > 300 or firsts[one.row].cut == one.cut == 0
    assert len(begun) <= len(whole)


@pytest.mark.slow
def test_windows_of_the_beginning_are_those_of_the_whole_text(content):
    _compare_windows(content)


def test_a_text_begins_before_a_space_where_there_is_one():
    assert beginning("one two three", 9) == "one two"
    assert beginning("one two three", 7) == "one two"
    assert beginning("one  two", 5) == "one"
    assert beginning("onetwothree", 5) == "onetw"
    assert beginning("one", 5) == "one"


def test_tokens_beyond_are_counted_piece_by_piece(monkeypatch):
    monkeypatch.setattr(prefix, "_PIECE", 7)
    asked = []

    def encode(texts):
        asked.extend(texts)
        return [texts[0].split()]

    assert tokens_beyond("a bb ccc dddd eeeee", 4, encode) == 3
    assert "".join(asked) == " ccc dddd eeeee"


MEMORY = """
import resource, sys
from polyhead.testing import tiny_trunk
from polyhead.text.tokenize import Tokenizer, windows_of
trunk = tiny_trunk()
tokenizer = Tokenizer(trunk.tokenizer, trunk.settings)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = tokenizer.encodings([("x " * 5_000_000,)])
assert found.cut[0] >= 400_000 and found.lengths[0] == 48, found.cut
found = tokenizer.encodings([("x " * 1_000_000,)], windows=windows_of(48))
assert found.cut[0] == 1_000_000 - 2**19, found.cut
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.slow
def test_ten_million_characters_take_less_than_a_gigabyte():
    """They took three."""
    assert resource.getpagesize()
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1024
