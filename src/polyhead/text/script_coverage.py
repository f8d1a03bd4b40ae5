"""Whether a tokenizer knows the script of a text, or gives the encoder single letters and unknown ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyhead.text.characters import stands_alone
from polyhead.text.encodings import ranges
from polyhead.text.tokenize import Tokenizer

BEGINNING = 500  # characters of a text that are looked at
LETTERS = 4  # in a text, at least
UNKNOWN = 0.1  # of a text's letters, that no token stands for
ALONE = 0.5  # of a text's letters, these and those that fall into bytes, or are a token each where letters form words


def unread_texts(texts: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    """The indices of texts whose letters the tokenizer mostly does not know.

    A tenth of such a text's letters are unknown, or half of them become bytes or one-letter tokens, in a script whose
    words have several letters. A tokenizer of single characters, as that of BERT for Chinese, knows its own script.
    """
    candidates = [index for index, text in enumerate(texts) if not text.isascii()]
    beginnings = [texts[index][:BEGINNING] for index in candidates]
    encodings = tokenizer.encodings([(text,) for text in beginnings], offsets=True)
    assert encodings.offsets is not None and encodings.sequence is not None
    unknown = np.isin(encodings.ids, list(tokenizer.unknown_ids))
    bounds = zip(encodings.starts[:-1].tolist(), encodings.starts[1:].tolist(), strict=True)
    unread = []
    for index, text, (start, stop) in zip(candidates, beginnings, bounds, strict=True):
        text_tokens = np.flatnonzero(encodings.sequence[start:stop] >= 0) + start
        if _is_unread(text, encodings.offsets[text_tokens], unknown[text_tokens]):
            unread.append(index)
    return unread


def _is_unread(text: str, offsets: np.ndarray, unknown: np.ndarray) -> bool:
    """Whether a text is unread, by its tokens' offsets (tokens, 2) and which of them are unknown (tokens,)."""
    is_letter = np.array([character.isalpha() for character in text], bool)
    before = np.concatenate([[0], np.cumsum(is_letter)])
    lengths = offsets[:, 1] - offsets[:, 0]
    letters = before[offsets[:, 1]] - before[offsets[:, 0]]  # of each token
    places, tokens = ranges(offsets[:, 0], lengths), np.repeat(np.arange(len(lengths)), lengths)
    tokens_of = np.bincount(places, minlength=len(text))  # each character
    is_unknown = np.bincount(places, unknown[tokens], minlength=len(text)) > 0
    is_alone = np.bincount(places, (letters == 1)[tokens], minlength=len(text)) > 0
    is_alone &= ~np.array([stands_alone(character) for character in text], bool)
    is_read = is_letter & (tokens_of > 0)
    if is_read.sum() < LETTERS:
        return False
    shares = [each[is_read].mean() for each in (is_unknown, is_unknown | is_alone | (tokens_of > 1))]
    return bool(shares[0] >= UNKNOWN or shares[1] >= ALONE)
