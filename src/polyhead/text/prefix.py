"""Prefixes of very long texts, so that memory does not grow with the part that is cut off.

A prefix has more tokens than are kept. Its first tokens are those of the whole text: later text can change one or two
tokens before it, not SPARE. It ends before a space if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tokenizers

Encode = Callable[[list[str]], list[tokenizers.Encoding]]

LONGEST_TEXT = 10_000_000  # characters; a longer text is refused
WHOLE = 2**20  # characters; longer texts are encoded in part
SPARE = 64  # tokens beyond the kept ones
_BACK = 1000  # characters searched for a space
_PIECE = 100_000  # characters tokenized at a time to count tokens


def encoded_beginnings(texts: Sequence[str], encode: Encode, least: int) -> tuple[list[tokenizers.Encoding], list[int]]:
    """Encodings of each text, or of a prefix with at least `least` tokens, and the number of characters encoded."""
    begun = [beginning(text, WHOLE) for text in texts]
    encodings = encode(begun)
    for index, text in enumerate(texts):
        size = WHOLE
        while len(begun[index]) < len(text) and len(encodings[index]) < least:
            size *= 2
            begun[index] = beginning(text, size)
            encodings[index] = encode([begun[index]])[0]
    return encodings, [len(text) for text in begun]


def beginning(text: str, size: int) -> str:
    """At most `size` characters of a text, up to a space if one is near."""
    if len(text) <= size:
        return text
    for place in range(size, max(0, size - _BACK), -1):
        if text[place] == " " and text[place - 1] != " ":
            return text[:place]
    return text[:size]


def tokens_beyond(text: str, start: int, encode: Encode) -> int:
    """Number of tokens from character `start` on, counted chunk by chunk; a divided word may count one more."""
    tokens = 0
    while start < len(text):
        piece = beginning(text[start : start + _PIECE + 1], _PIECE)
        tokens += len(encode([piece])[0])
        start += len(piece)
    return tokens
