"""Tokenized texts to stored values, batch by batch: what training and corpora fill their stores with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import msgspec
import numpy as np

from polyhead.engine.backends.base import TokenBatch
from polyhead.engine.backends.prefix import stored_layers
from polyhead.plan import Codec, Path
from polyhead.plan.coding import calibrate, tokens_of
from polyhead.text.batch import Cut, batch_indices, cuts, pad_cut
from polyhead.text.encodings import Encodings, starts_of
from polyhead.text.tokenize import Input, Tokenizer

MOST_VECTORS = 2**17  # that a codec is fixed from: 200 MB at width 384
EncodeFeatures = Callable[[Sequence[Path], TokenBatch], list[np.ndarray]]
"""`Backend.features`."""


class BatchValues(msgspec.Struct, frozen=True, kw_only=True):
    """The stored values of one batch: `values` are float32 (positions, layers, width), text after text."""

    starts: np.ndarray  # int64 (texts + 1,): where each text's positions begin
    values: np.ndarray
    tokens: np.ndarray  # int64 (positions,): whose token each is, as `store.codec.tokens_of` says

    def of(self, text: int) -> np.ndarray:
        """The value of one text, (positions, layers, width), not copied."""
        return self.values[self.starts[text] : self.starts[text + 1]]

    def tokens_of(self, text: int) -> np.ndarray:
        """Those of one text, (positions,), not copied."""
        return self.tokens[self.starts[text] : self.starts[text + 1]]


def entry_batches(
    encodings: Encodings, *, pad_id: int, budget: int, width: int | None = None
) -> Iterator[tuple[np.ndarray, TokenBatch]]:
    """The entries of each batch, int64 (texts,), and their tokens: every entry once, the longest first.

    With the `width` of a trunk whose backend reads no padding, texts stand together that fill rows together. `budget`
    is of tokens, with their padding where it is read.
    """
    lengths = encodings.lengths
    if width is None:
        several = cuts(lengths, token_budget=budget)
    else:
        groups = batch_indices(lengths, budget=budget, width=width)
        several = (Cut(members=group, rows=len(group), tokens=int(lengths[group[0]])) for group in groups)
    for cut in several:
        rows = pad_cut(encodings, cut, pad_id=pad_id)
        words = np.full((len(rows.ids), 1), -1, np.int64)
        yield cut.members, TokenBatch(ids=rows.ids, mask=rows.mask, segments=rows.segments, words=words)


def batch_values(encode: EncodeFeatures, paths: Sequence[Path], batch: TokenBatch) -> list[BatchValues]:
    """The value of each path for the texts of a batch, from one pass."""
    every, single = starts_of(batch.mask.sum(axis=1)), np.arange(len(batch.ids) + 1)
    several = []
    for path, values in zip(paths, encode(paths, batch), strict=True):
        tokens = tokens_of(path.pool, ids=batch.ids, mask=batch.mask, words=None)
        is_every = path.pool.positions == "all"
        several.append(
            BatchValues(
                starts=every if is_every else single,
                values=values,
                tokens=tokens[batch.mask] if is_every else tokens[:, 0],
            )
        )
    return several


def sample_values(
    encode: EncodeFeatures,
    path: Path,
    inputs: Sequence[Input],
    tokenizer: Tokenizer,
    *,
    budget: int,
    width: int | None = None,
) -> Iterator[BatchValues]:
    """The stored value of a path for some texts, batch by batch, to fix a codec from.

    Where long texts would make more than about MOST_VECTORS, only every so many-th is taken. `budget` and `width` are
    those of `entry_batches`.
    """
    if path.pool.positions == "all":
        vectors = stored_layers(path) * sum(len(each.ids) for each in _by_size(inputs, tokenizer))
        inputs = inputs[:: -(-vectors // MOST_VECTORS) or 1]
    for encodings in _by_size(inputs, tokenizer):
        for _, batch in entry_batches(encodings, pad_id=tokenizer.pad_id, budget=budget, width=width):
            yield from batch_values(encode, [path], batch)


def _by_size(inputs: Sequence[Input], tokenizer: Tokenizer) -> Iterator[Encodings]:
    """Single texts and pairs apart."""
    for size in sorted({len(texts) for texts in inputs}):
        yield tokenizer.encodings([texts for texts in inputs if len(texts) == size])


def fixed_codec(
    codec: Codec, pieces: Iterable[BatchValues], *, per: Literal["tensor", "dimension"], words: np.ndarray
) -> Codec:
    """The codec with its constants fixed from these values; `words` are the word vectors of the trunk they are of."""
    several = list(pieces)
    return calibrate(
        np.concatenate([piece.values for piece in several]),
        name=codec.name,
        per=per,
        before_mean=codec.before_mean,
        tokens=np.concatenate([piece.tokens for piece in several])[:, None],
        words=words,
    )
