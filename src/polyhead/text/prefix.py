"""As much of a very long text as is read of it, so that memory does not grow with what is cut away.

Of such a text a beginning is encoded that has more tokens than are kept; its first tokens are those of the whole text,
since what follows can change a token or two before it and not SPARE of them. It ends before a space where there is
one, where tokenizers divide words anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tokenizers

Encode = Callable[[list[str]], list[tokenizers.Encoding]]

LONGEST_TEXT = 10_000_000  # characters of one text; a longer one is no input
WHOLE = 2**20  # characters of a text that is encoded whole, and of what is read in windows
SPARE = 64  # tokens beyond those that are kept
_BACK = 1000  # characters in which a space is looked for
_PIECE = 100_000  # characters whose tokens are counted at a time


def encoded_beginnings(texts: Sequence[str], encode: Encode, least: int) -> tuple[list[tokenizers.Encoding], list[int]]:
    """Each text, or a beginning of it with at least so many tokens; and the characters of each."""
    begun = [beginning(text, WHOLE) for text in texts]
    found = encode(begun)
    for index, text in enumerate(texts):
        size = WHOLE
        while len(begun[index]) < len(text) and len(found[index]) < least:
            size *= 2
            begun[index] = beginning(text, size)
            found[index] = encode([begun[index]])[0]
    return found, [len(text) for text in begun]


def beginning(text: str, size: int) -> str:
    """At most so many characters of a text, up to a space between words where there is one near."""
    if len(text) <= size:
        return text
    for place in range(size, max(0, size - _BACK), -1):
        if text[place] == " " and text[place - 1] != " ":
            return text[:place]
    return text[:size]


def tokens_beyond(text: str, start: int, encode: Encode) -> int:
    """Tokens of a text from this character on, counted piece by piece.

    A word that a piece divides may count a token more, so that of two very long texts of one input the odd token that
    is left can go to the other one.
    """
    found = 0
    while start < len(text):
        piece = beginning(text[start : start + _PIECE + 1], _PIECE)
        found += len(encode([piece])[0])
        start += len(piece)
    return found
