"""Tokenizer files made with bad intent, or by mistake: an error of ours within seconds, and this process goes on."""

import copy
import json
import os

import pytest

from formats.write_v1 import TOKENIZER, write
from polyhead.bundle.read import Bundle
from polyhead.encoder.data import TextSettings
from polyhead.errors import BundleError, CorruptFile, WeightsMismatch
from polyhead.testing import tiny_trunk
from polyhead.text import tokenizer_file
from polyhead.text.tokenize import Tokenizer
from polyhead.text.tokenizer_file import check_ids, tokenizer_facts

TINY = json.loads(tiny_trunk().tokenizer)
BPE = {
    "type": "BPE",
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
    "vocab": {"a": 0, "b": 1, "ab": 2},
    "merges": [["a", "b"]],
}
UNIGRAM = {"type": "Unigram", "unk_id": 0, "vocab": [["a", -1.0], ["b", -2.0]], "byte_fallback": False}


def changed(**parts):
    """The tiny tokenizer with other parts, as bytes."""
    return json.dumps(copy.deepcopy(TINY) | parts).encode()


def replace(pattern, content, times=40):
    """Normalisers that replace this so many times, one after the other."""
    one = {"type": "Replace", "pattern": pattern, "content": content}
    return {"type": "Sequence", "normalizers": [one] * times}


def template(count):
    """A post-processor that puts so many special tokens before a text."""
    special = {"id": "[CLS]", "ids": [2] * count, "tokens": ["[CLS]"] * count}
    places = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    first = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [first, places[0]],
        "pair": [first, *places],
        "special_tokens": {"[CLS]": special},
    }


def split(pattern):
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


RANDOM = {f"dropout {share}": changed(model=BPE | {"dropout": share}) for share in (1e-6, 0.1, 0.5, 0.99, 1.0)} | {
    "dropout true": changed(model=BPE | {"dropout": True}),
    "samples of a unigram": changed(model=UNIGRAM | {"alpha": 0.1}),
    "one of the best of a unigram": changed(model=UNIGRAM | {"nbest_size": 4}),
}
BROKEN = {
    "nothing": b"",
    "a number": b"7",
    "null": b"null",
    "a list": b"[]",
    "no model": b"{}",
    "model is a list": b'{"model": []}',
    "model is a number": b'{"model": 3}',
    "deep": b"[" * 100_000,
    "deep model": b'{"model": ' + b'{"a":' * 50_000,
    "not utf-8": b'{"model": "\xff"}',
    "cut": changed()[:-40],
    "numbers without end": b'{"model": {"vocab": ' + b"1" * 5000 + b"}}",
    "another type": changed(model={"type": "Pickle"}),
    "unigram without unknown token": changed(model=UNIGRAM | {"unk_id": None}),
    "unigram whose unknown token is not there": changed(model=UNIGRAM | {"unk_id": 7}),
    "unigram without pieces": changed(model=UNIGRAM | {"unk_id": None, "vocab": []}),
    "words without unknown token": changed(model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}),
    "pieces without unknown token": changed(model=TINY["model"] | {"unk_token": "nowhere"}),
    "pieces that are a list": changed(model=TINY["model"] | {"vocab": ["a", "b"]}),
    "merges of pieces that are not there": changed(model=BPE | {"merges": [["x", "y"]]}),
    "a prefix longer than the pieces (panics)": changed(model=BPE | {"continuing_subword_prefix": "éé"}),
    "pieces of no length (panics)": changed(pre_tokenizer={"type": "FixedLength", "length": 0}),
    "a template of nothing (panics)": changed(post_processor=template(1) | {"special_tokens": {}}),
    "a map of characters that is none": changed(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    "a map of characters that is too short (aborts)": changed(
        normalizer={"type": "Precompiled", "precompiled_charsmap": "/////wAAAAA="}
    ),
    "an expression that is none": changed(pre_tokenizer=split({"Regex": "("})),
} | {
    f"id {number}": changed(model=TINY["model"] | {"vocab": {"[UNK]": 0, "a": number}})
    for number in (-1, 1.5, "7", None, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64, 10**30)
}
LARGE = {
    "x becomes xx": changed(normalizer=replace({"String": "x"}, "xx")),
    "a rare letter becomes two": changed(normalizer=replace({"String": "\u4e00"}, "\u4e00\u4e00")),
    "two letters that become each other": changed(
        normalizer={
            "type": "Sequence",
            "normalizers": [
                one
                for _ in range(30)
                for one in replace({"String": "\ue000"}, "\ue001\ue001", 1)["normalizers"]
                + replace({"String": "\ue001"}, "\ue000", 1)["normalizers"]
            ],
        }
    ),
    "an expression that doubles": changed(normalizer=replace({"Regex": "x"}, "xx")),
    "an expression that is everywhere": changed(normalizer=replace({"Regex": ""}, "x")),
    "a long text in the place of a letter": changed(normalizer=replace({"String": "a"}, "b" * 5000, 1)),
    "a long text in the place of an expression": changed(normalizer=replace({"Regex": "."}, "b" * 5000, 1)),
    "a long text before each": changed(normalizer={"type": "Prepend", "prepend": "x" * 10**6}),
    "nested": changed(normalizer={"type": "Sequence", "normalizers": [replace({"String": "q"}, "qq", 9)] * 9}),
    "100,000 special tokens": changed(post_processor=template(100_000)),
    "5,000 special tokens": changed(post_processor=template(5000)),
}


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """No file is known from before, and a trial may take one second of the processor."""
    monkeypatch.setattr(tokenizer_file, "_KNOWN", {})
    monkeypatch.setattr(tokenizer_file, "SECONDS", 1)


def seconds():
    """Of the processor, of this process and of those that it started."""
    there = os.times()
    return there.user + there.system + there.children_user + there.children_system


def refused(content):
    """The error for this file, which comes within 10 seconds."""
    begun = seconds()
    with pytest.raises(WeightsMismatch, match="tokenizer") as caught:
        Tokenizer(content, TextSettings(max_tokens=8))
    assert seconds() - begun < 10
    error = caught.value
    assert error.got is not None and error.allowed and error.do and "Traceback" not in str(error)
    return error


@pytest.mark.parametrize("name", RANDOM)
def test_a_tokenizer_that_is_random_is_refused(name):
    assert "random" in str(refused(RANDOM[name]))


@pytest.mark.parametrize("nothing", [None, 0, 0.0])
def test_dropout_that_is_switched_off_is_none(nothing):
    # Ids of three pieces from 0, and of [SEP] in the template, which is 3.
    assert tokenizer_facts(changed(model=BPE | {"dropout": nothing})).vocabulary == 4


@pytest.mark.parametrize("name", BROKEN)
def test_a_tokenizer_that_cannot_read_every_text_is_refused(name):
    refused(BROKEN[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_a_tokenizer_that_makes_far_more_of_a_text_is_refused(name):
    refused(LARGE[name])


@pytest.mark.slow
def test_a_tokenizer_that_takes_too_long_is_refused():
    """Of a word that may be of any length, every part of it is looked up."""
    assert "1 s" in str(refused(changed(model=TINY["model"] | {"max_input_chars_per_word": 10**18})))


def test_a_tokenizer_that_takes_too_much_memory_is_refused(monkeypatch):
    pieces = {f"piece {number} " + "x" * 100: number for number in range(100_000)}
    content = changed(model=TINY["model"] | {"vocab": {"[UNK]": 100_000, **pieces}})
    monkeypatch.setattr(tokenizer_file, "MEMORY", 2**26 - 12 * len(content))
    refused(content)


def test_a_file_that_is_too_large_is_refused_untried(monkeypatch):
    monkeypatch.setattr(tokenizer_file, "LARGEST", 100)
    monkeypatch.setattr(tokenizer_file.subprocess, "run", None)
    assert "100" in str(refused(changed()))


def test_a_file_is_tried_once(monkeypatch):
    first = tokenizer_facts(changed())
    monkeypatch.setattr(tokenizer_file.subprocess, "run", None)
    assert tokenizer_facts(changed()) == first


def test_ids_of_pieces_padding_and_special_tokens_need_word_vectors():
    padding = {
        "strategy": "BatchLongest",
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 5000,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    largest = max(TINY["model"]["vocab"].values())
    check_ids(changed(), largest + 1, owner="it")
    for content, highest in (
        (changed(), largest),
        (changed(padding=padding), 5000),
        (changed(post_processor=_special(7000)), 7000),
        (changed(model=TINY["model"] | {"vocab": {"[UNK]": 0, "a": 900}}), 900),
    ):
        with pytest.raises(WeightsMismatch, match=f"ids up to {highest}"):
            check_ids(content, highest, owner="it")


def _special(number):
    made = template(1)
    made["special_tokens"]["[CLS]"]["ids"] = [number]
    return made


# --- trunks of a bundle whose digests somebody who knows the format computed anew


def resealed(root, architecture=None, tokenizer=None):
    """The bundle without its tasks, its trunk changed and every digest in agreement."""
    import hashlib

    from polyhead.bundle import manifest
    from polyhead.encoder.shape import Architecture
    from polyhead.values import digested

    path, bundle = root / "trunk/trunk.json", json.loads((root / "bundle.json").read_bytes())
    said = json.loads(path.read_bytes())
    said["architecture"] |= architecture or {}
    if tokenizer is not None:
        (root / "trunk/tokenizer.json").write_bytes(tokenizer)
        said["tokenizer"] = hashlib.sha256(tokenizer).hexdigest()
    path.write_text(json.dumps(said))
    content = (root / "trunk/tokenizer.json").read_bytes()
    try:
        record = manifest.read_trunk_record(root)
    except BundleError:
        return root  # which is what opening it must say
    assert isinstance(record.architecture, Architecture) and digested(record.architecture) is not None
    trunk = manifest.trunk_digest(record.architecture, record.arrays, content, record.settings)
    (root / "bundle.json").write_text(json.dumps(bundle | {"trunk": trunk, "tasks": {}}))
    return root


IMPOSSIBLE = (
    [{key: -1} for key in ("layers", "width", "heads", "feed_forward", "vocabulary", "positions", "segments")]
    + [{key: 0} for key in ("layers", "width", "heads", "feed_forward", "vocabulary", "positions")]
    + [{"first_position": number} for number in (-1, -5, -(2**31), 6, 7, 8, 9, 10**9, 2**70)]
    + [{"embedding_width": number} for number in (0, -1, 8, 17, 10**9, "16", 1.5)]
    + [{"norm_epsilon": number} for number in (-1, 0, -1e-12, 1e999, "1e-12", None)]
    + [{"segments": number} for number in (1, 3, 10**9)]
    + [{"positions": number} for number in (1, 2, 7, 9, 10**12)]
    + [{"vocabulary": number} for number in (1, 23, 25, 10**12)]
    + [{"heads": 3}, {"width": 32}, {"feed_forward": 15}, {"family": 7}, {"activation": "mish"}]
)


@pytest.mark.slow
@pytest.mark.parametrize("change", IMPOSSIBLE, ids=str)
def test_an_impossible_trunk_is_refused_for_all_backends(tmp_path, change):
    root = resealed(write(tmp_path / "bundle").root, architecture=change)
    with pytest.raises(CorruptFile):
        Bundle.open(root).trunk()


TOKENIZERS = {
    "ids beyond the word vectors": changed(),
    "one id beyond": TOKENIZER.replace(b'"[UNK]": 0', b'"[UNK]": 24'),
    **{name: RANDOM[name] for name in ("dropout 0.1", "samples of a unigram")},
    **{name: BROKEN[name] for name in ("no model", "pieces of no length (panics)", "id 2147483648")},
    **{name: LARGE[name] for name in ("x becomes xx", "100,000 special tokens")},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_trunk_with_a_hostile_tokenizer_is_refused_for_all_backends(tmp_path, name):
    root = resealed(write(tmp_path / "bundle").root, tokenizer=TOKENIZERS[name])
    with pytest.raises(CorruptFile, match="tokenizer"):
        Bundle.open(root).trunk()
    assert list(Bundle.open(root, verify=False).touched())


def test_the_same_trunk_resealed_unchanged_is_read(tmp_path):
    """So the tests above fail for what they change."""
    assert Bundle.open(resealed(write(tmp_path / "bundle").root)).trunk().architecture.width == 16
