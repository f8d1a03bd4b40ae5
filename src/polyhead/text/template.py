"""The special tokens that a tokenizer puts around one text or a pair."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tokenizers

from polyhead.config import Value
from polyhead.errors import WeightsMismatch


class Template(Value):
    """Special tokens before, between and after the texts, with segments of these tokens and of the texts."""

    ids: tuple[list[int], ...]
    segments: tuple[list[int], ...]
    text_segments: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many special tokens there are."""
        return sum(map(len, self.ids))

    def repeated(self, special: Sequence[Sequence[int]], texts: Sequence[int], sizes: np.ndarray) -> np.ndarray:
        """A number for each token, end to end: its own for each special token, one for all tokens of a text.

        `sizes` (entries, texts) are the texts' tokens.
        """
        values = list(special[0])
        places = []  # of the texts among the values
        for text, after in zip(texts, special[1:], strict=True):
            places.append(len(values))
            values += [text, *after]
        if len(set(values)) == 1:  # segments of single texts
            return np.full(int(sizes.sum()) + len(sizes) * self.size, values[0])
        counts = np.ones((len(sizes), len(values)), np.int64)
        counts[:, places] = sizes
        return np.repeat(np.tile(values, len(sizes)), counts.ravel())


def find_template(tokenizer: tokenizers.Tokenizer, texts: int) -> Template:
    """The template for `texts` texts, found by encoding a probe; raises WeightsMismatch where there is none."""
    probe = _probe(tokenizer)
    plain = tokenizer.encode(probe, add_special_tokens=False).ids
    whole = tokenizer.encode(probe, probe if texts == 2 else None)
    # Each of these is copied by the library whenever it is asked for.
    ids, segments, sequences = whole.ids, whole.type_ids, whole.sequence_ids
    runs: list[tuple[list[int], list[int]]] = [([], [])]
    text_segments, index = [], 0
    while index < len(ids):
        if sequences[index] is None:
            runs[-1][0].append(ids[index])
            runs[-1][1].append(segments[index])
            index += 1
            continue
        text_segments.append(segments[index])
        if (sequences[index], ids[index : index + len(plain)]) != (len(runs) - 1, plain):
            raise WeightsMismatch("the tokenizer places texts in an order of its own", got=whole.tokens)
        runs.append(([], []))
        index += len(plain)
    if len(text_segments) != texts:
        raise WeightsMismatch("the tokenizer repeats or drops a text", got=whole.tokens, do="use another trunk")
    return Template(
        ids=tuple(run[0] for run in runs), segments=tuple(run[1] for run in runs), text_segments=tuple(text_segments)
    )


def _probe(tokenizer: tokenizers.Tokenizer) -> str:
    """A short text that has at least one token."""
    candidates = ["a", "the", "0", ".", *sorted(tokenizer.get_vocab(with_added_tokens=False))[:1000]]
    for text in candidates:
        if len(tokenizer.encode(text, add_special_tokens=False)):
            return text
    raise WeightsMismatch("the tokenizer finds no token in any text", do="use the tokenizer that belongs to the trunk")
