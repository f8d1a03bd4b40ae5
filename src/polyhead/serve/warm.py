"""Batches of built-in texts that prepare what callers' batches run, so that no caller waits for that."""

from __future__ import annotations

from collections.abc import Iterator

from polyhead.text.batch import LINES
from polyhead.text.tokenize import Tokenizer

WORD = "a"  # one token of most vocabularies
BESIDE = 5  # texts of a row: more than poolers and heads take as few
LARGER = ((8, 16), (8, 64), (16, 24), (16, 64), (32, 24), (64, 24))  # batches of several rows: texts, tokens of each


def every_shape(tokenizer: Tokenizer) -> Iterator[list[str]]:
    """One row of every size, of one text or a few; then batches of several rows, of shorter and longer texts."""
    for size in LINES:
        yield [_text(tokenizer, size)] if size <= tokenizer.max_tokens else [_text(tokenizer, size // 2)] * 2
        if size >= 8 * BESIDE:
            yield [_text(tokenizer, size // BESIDE)] * BESIDE
    for texts, tokens in LARGER:
        yield [_text(tokenizer, tokens)] * texts


def every_head(tokenizer: Tokenizer) -> Iterator[list[str]]:
    """The same for what poolers and heads run alone: fewer, since layers are prepared already, and none is large."""
    for size in (8, 12, 16, 24, 32, 48, 64):
        yield [_text(tokenizer, size)]
    yield [_text(tokenizer, 16)] * BESIDE


def _text(tokenizer: Tokenizer, tokens: int) -> str:
    """The longest text of this word that has at most so many tokens, special ones among them; one word at least."""
    least, most = 1, tokens
    while least < most:
        middle = (least + most + 1) // 2
        length = tokenizer.encodings([(" ".join([WORD] * middle),)]).lengths[0]
        least, most = (middle, most) if length <= tokens else (least, middle - 1)
    return " ".join([WORD] * least)
