"""Tries a tokenizer file in a separate process with limited memory and time.

`text.tokenizer_file` runs this as a script, with the file on standard input; the result is one line of JSON on
standard output. Nothing of Polyhead is imported, so that a trial takes 0.04 s and not 0.3.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterator
from typing import Any

GROWTH = 1000  # characters that normalization may make of one
LARGEST_ID = 2**31 - 1  # ids are kept as int32
LARGEST_TEMPLATE = 4096  # special tokens around one text or a pair; no trunk has more positions to spare
WORDS = (
    "The quick brown fox, don't stop! 3.14159 e-mail@example.org (naïve) zwölf Boxkämpfer",
    "日本語 テスト 한국어 ไทย हिन्दी العربية עברית Ελληνικά Русский",
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea e\u0301 \ufb01 \ufdfa \u0130 \u00a0",
    "\u202e \x00 \x7f \ufffd \ufeff \ue000 \U0010ffff",
    "\t\n\r\x0b\x0c\u2028 <s> </s> [CLS] [SEP] <unk> [UNK] <pad>",
)
MOST_CHANGES = 128  # replacements of a normaliser; real ones have fewer than 20
MOST_LITERALS = 1000  # texts tried per normalizer
RUNS = (*"aAx0 _-.!\n\t'\"(</\u00e9\u65e5", "ab", "a ", "0,", "a1", "\r\n")


def read_file() -> None:
    """Reads the file and writes its `facts`, or what is `wrong` with it."""
    memory, seconds = int(sys.argv[1]), int(sys.argv[2])
    _limit(memory, seconds)
    try:
        report: dict[str, Any] = {"facts": _tried(sys.stdin.buffer.read())}
    except BaseException as error:  # the library's panics are not an `Exception`
        report = {"wrong": f"{error}" or type(error).__name__}
    sys.stdout.write(json.dumps(report))


def _limit(memory: int, seconds: int) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread: processor time equals elapsed time
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    try:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    except (ValueError, OSError):
        return  # not every system has this limit


def _tried(content: bytes) -> dict[str, int]:
    import tokenizers

    ids, literals = _checked(content)
    tokenizer = tokenizers.Tokenizer.from_buffer(content)
    tokenizer.no_truncation()
    padding = 0 if tokenizer.padding is None else int(tokenizer.padding["pad_id"])
    tokenizer.no_padding()
    ids |= {padding, *tokenizer.get_added_tokens_decoder()}
    ids |= _encoded(tokenizer, [*WORDS, *(run * (2000 // len(run)) for run in RUNS), *literals])
    special = max(len(tokenizer.encode("")), len(tokenizer.encode("", "")))
    largest = max(ids)
    if largest >= LARGEST_ID:
        raise ValueError(f"it has the id {largest}, and {LARGEST_ID - 1} is the largest that can be kept")
    if special > LARGEST_TEMPLATE:
        raise ValueError(f"it puts {special} special tokens around a text, and {LARGEST_TEMPLATE} are allowed")
    return {"vocabulary": largest + 1}


def _encoded(tokenizer: Any, texts: list[str]) -> set[int]:
    """Every id of the texts, alone and as pairs; raises ValueError if normalization lengthens a text too much."""
    ids: set[int] = set()
    for text in texts:
        normal = text if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(text)
        if len(normal) > GROWTH * max(1, len(text)):
            raise ValueError(f"its normaliser makes {len(normal):,} characters of {len(text):,}")
        for encoded in (tokenizer.encode(text), tokenizer.encode(text, text)):
            ids.update(encoded.ids)
    return ids


def _checked(content: bytes) -> tuple[set[int], list[str]]:
    """The largest id of its pieces, and the texts that its normalizer and splitters look for.

    Raises ValueError for forbidden content.
    """
    declared = json.loads(content)
    if not isinstance(declared, dict) or not isinstance(declared.get("model"), dict):
        raise ValueError("it has no model")
    model: dict[str, Any] = declared["model"]
    for key in ("dropout", "alpha", "nbest_size"):
        if model.get(key):
            raise ValueError(f'its model has "{key}": {model[key]}, which makes ids random; set it to null')
    literals: list[str] = []
    growth, changes = 1, list[tuple[str, str]]()
    for part in _parts([declared.get("normalizer"), declared.get("pre_tokenizer")]):
        pattern, new = part.get("pattern"), part.get("content")
        of_string = pattern.get("String") if isinstance(pattern, dict) else None
        for text in (of_string, new):
            if isinstance(text, str) and text and len(literals) < MOST_LITERALS:
                literals.append(text[:100] * 8)
        if part.get("type") == "Replace" and isinstance(new, str):
            if isinstance(of_string, str) and of_string:
                changes.append((of_string, new))
            else:  # an expression may match one character, or what comes before each
                growth *= len(new) + 1
    if len(changes) > MOST_CHANGES:  # each is tried on each of their texts
        raise ValueError(f"its normaliser replaces {len(changes):,} texts, and {MOST_CHANGES} are allowed")
    if growth > GROWTH:
        raise ValueError(f"its normaliser may make {growth:,} characters of one, and {GROWTH} are allowed")
    for literal in literals:
        _check_growth(literal, changes)
    pieces: Any = model.get("vocab") or ()
    return {max(pieces.values(), default=0) if isinstance(pieces, dict) else len(pieces) - 1}, literals


def _check_growth(text: str, changes: list[tuple[str, str]]) -> None:
    """Raises ValueError if successive replacements lengthen the text too much."""
    size = len(text)
    for old, new in changes:
        text = text.replace(old, new)
        if len(text) > GROWTH * size:
            raise ValueError(f"its normaliser makes {len(text):,} characters and more of {size:,}")


def _parts(parts: list[Any]) -> Iterator[dict[str, Any]]:
    """Every JSON object in these values, at any depth."""
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            yield part
            parts.extend(reversed(part.values()))
        elif isinstance(part, list):
            parts.extend(reversed(part))


if __name__ == "__main__":
    read_file()
