"""How a batch's texts stand in the rows that a graph reads: one a row and padded, or several to a row."""

from __future__ import annotations

import msgspec
import numpy as np

from polyhead.config import Value
from polyhead.engine.backends.base import TokenBatch
from polyhead.engine.graph.encoder import HIDDEN
from polyhead.errors import BackendError
from polyhead.text.packing import packed

WORTH = 0.9  # texts are packed where that leaves at most this share of the padded positions


class Layout(Value, eq=False):
    """Rows, and where each text's tokens stand in them; a text's prompt rows stand right before it."""

    ids: np.ndarray  # (rows, positions) int64, as the next two
    positions: np.ndarray
    segments: np.ndarray
    text: np.ndarray  # (rows, positions, 1) float32: 1 at tokens of texts
    which: np.ndarray  # (rows, positions) int64: 0, or the number from 1 of a prompt row
    added: np.ndarray  # (rows, 1, 1 or positions, positions) float32: 0 where a position is read
    places: np.ndarray  # (texts, tokens) int64: each text's tokens among all positions, laid end to end
    before: np.ndarray  # (texts,) int64: the place of each text's first prompt row
    keep: np.ndarray  # (texts, tokens) float32: 0, or a low number for padding
    share: np.ndarray  # (texts, 1, tokens) float32: 1 / length, or 0 for padding
    words: np.ndarray  # (texts, words) int64: as `places`; a word that is not there is its text's first token

    @property
    def first(self) -> np.ndarray:
        """(texts, 1): the places of the first tokens."""
        return self.places[:, :1]


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What a layout follows beside the batch."""

    first_position: int  # of a text
    segments: int  # of the trunk
    prompts: tuple[int, ...] = ()  # rows of each prompt
    isolated: bool = False  # texts do not see prompts, and these not each other
    pack: bool = True


def layout(batch: TokenBatch, shape: Shape) -> Layout:
    """The batch as it is, or packed: then attention is block-diagonal and positions restart."""
    texts, tokens = batch.ids.shape
    lengths = batch.mask.sum(axis=1)
    if not np.array_equal(batch.mask, np.arange(tokens) < lengths[:, None]):
        raise BackendError("a text's tokens must stand before its padding", do="pad at the end")
    more = sum(shape.prompts)
    rows, positions = texts, tokens + more
    row, start = np.arange(texts), np.zeros(texts, np.int64)
    found = packed(lengths + more) if shape.pack else None
    if found is not None and found.rows * found.tokens <= WORTH * texts * positions:
        rows, positions, row, start = found.rows, found.tokens, found.row, found.start
    else:
        found = None
    before = row * positions + start
    at = np.arange(tokens)
    places = (before + more)[:, None] + np.minimum(at, lengths[:, None] - 1)  # padding reads the last token
    there = places[batch.mask]
    flat = np.zeros((5, rows * positions), np.int64)  # ids, positions, segments, text, which
    flat[0, there] = batch.ids[batch.mask]
    flat[1] = shape.first_position
    flat[1, there] += np.broadcast_to(at, batch.mask.shape)[batch.mask]
    if shape.segments:
        flat[2, there] = np.minimum(batch.segments[batch.mask], shape.segments - 1)
    flat[3, there] = 1
    if more:
        flat[4, before[:, None] + np.arange(more)] = np.arange(1, more + 1)
    ids, place, segments, text, which = flat.reshape(5, rows, positions)
    keep = np.where(batch.mask, np.float32(0.0), np.float32(HIDDEN))
    if found is None and not (more and shape.isolated):
        added = np.pad(keep, ((0, 0), (more, 0)))[:, None, None]
    else:
        added = _seen(rows, positions, before=before, lengths=lengths, shape=shape)
    return Layout(
        ids=ids,
        positions=place,
        segments=segments,
        text=text.astype(np.float32)[..., None],
        which=which,
        added=added,
        places=places,
        before=before,
        keep=keep,
        share=(batch.mask / lengths[:, None]).astype(np.float32)[:, None],
        words=np.take_along_axis(places, np.maximum(batch.words, 0), axis=1),
    )


def _seen(rows: int, positions: int, *, before: np.ndarray, lengths: np.ndarray, shape: Shape) -> np.ndarray:
    """(rows, 1, positions, positions): what is added to scores, so that a position sees its own text and prompts."""
    more = sum(shape.prompts)
    owner = np.full(rows * positions, -1, np.int64)
    # Each text's block is filled from its first prompt row to its last token.
    sizes = lengths + more
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    owner[np.repeat(before, sizes) + within] = np.repeat(np.arange(len(lengths)), sizes)
    texts = owner.reshape(rows, positions)
    seen = texts[:, :, None] == texts[:, None, :]
    if shape.isolated and more:
        prompt = np.zeros(rows * positions, np.int64)  # 0: the text
        numbers = np.repeat(np.arange(1, len(shape.prompts) + 1), shape.prompts)
        prompt[before[:, None] + np.arange(more)] = numbers
        whose = prompt.reshape(rows, positions)
        seen &= (whose[:, None, :] == 0) | (whose[:, :, None] == whose[:, None, :])
    return np.where(seen, np.float32(0.0), np.float32(HIDDEN))[:, None]
