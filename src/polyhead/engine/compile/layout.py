"""How a batch's texts stand in the rows that a graph reads: one a row and padded, or several to a row."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from polyhead.encoder.relative import buckets_of
from polyhead.encoder.shape import Relative
from polyhead.encoder.window_blocks import block_of
from polyhead.engine.backends.base import TokenBatch
from polyhead.engine.compile.encoder import HIDDEN
from polyhead.errors import BackendError
from polyhead.lazy import lazy
from polyhead.text.batch import LINE, few, pack_texts, work
from polyhead.values import Value


class Shape(Value):
    """The facts besides the batch that decide a layout."""

    first_position: int  # of a text
    segments: int  # of the trunk
    width: int
    prompts: tuple[int, ...] = ()  # rows of each prompt
    isolated: bool = False  # texts do not see prompts, and these not each other
    pack: bool = True
    fill: bool = True  # where texts may be packed: rows and positions up to one of few numbers
    relative: Relative | None = None  # of the trunk
    window: int | None = None  # of the trunk's layers with one
    heads: int = 1  # of their keys


class RowLayout:
    """Rows, and where each text's tokens stand in them; a text's prompt rows stand right before it.

    The batch as it is, or packed: then attention is block-diagonal and positions restart. Where texts may be packed the
    rows are filled up to one of few shapes (`few`), unless `Shape.fill` says otherwise. Arrays are made when they are
    first asked for; `size` is (rows, positions); "places" count the positions of all rows, laid end to end.
    """

    def __init__(self, batch: TokenBatch, shape: Shape) -> None:
        self._batch, self._shape, self._more = batch, shape, sum(shape.prompts)
        texts, tokens = batch.ids.shape
        self._lengths = batch.mask.sum(axis=1)
        if not (batch.mask == (np.arange(tokens) < self._lengths[:, None])).all():
            raise BackendError("a text's tokens must stand before its padding", do="pad at the end")
        self.size, self._is_packed = (texts, tokens + self._more), False
        row, start = np.arange(texts), np.zeros(texts, np.int64)
        if shape.pack and texts > 1:
            line = LINE if shape.fill else 0
            packing = pack_texts(self._lengths + self._more, width=shape.width, line=line)
            filled = few if shape.fill else lambda *size: size
            padded, beside = filled(*self.size), filled(packing.rows, packing.tokens)
            is_line = packing.rows == 1 and packing.tokens <= line
            if is_line or work(*beside, width=shape.width) < work(*padded, width=shape.width):
                self.size, self._is_packed = (packing.rows, packing.tokens), True
                row, start = packing.row, packing.start
        if shape.pack and shape.fill:
            self.size = few(*self.size)
        rows, positions = self.size
        self._block = positions if shape.window is None else block_of(positions, shape.window)
        self.size = rows, -(-positions // self._block) * self._block
        self._start: np.ndarray = row * self.size[1] + start

    @property
    def before(self) -> np.ndarray:
        """(texts,) int64: the place of each text's first prompt row."""
        return self._start

    @lazy
    def places(self) -> np.ndarray:
        """(texts, tokens) int64: of each text's tokens; padding reads its text's last."""
        steps = np.minimum(np.arange(self._batch.ids.shape[1]), self._lengths[:, None] - 1)
        return np.asarray((self._start + self._more)[:, None] + steps)

    @property
    def first(self) -> np.ndarray:
        """(texts, 1) int64: of each text's first token."""
        return np.asarray(self.places[:, :1])

    @property
    def second(self) -> np.ndarray:
        """(texts, 1) int64: of each text's second token; of a text of one token that."""
        return np.asarray(self.places[:, :2][:, -1:])

    @property
    def words(self) -> np.ndarray:
        """(texts, words) int64: of each word's first token; of a word that is not there the text's."""
        return np.take_along_axis(self.places, np.maximum(self._batch.words, 0), axis=1)

    @lazy
    def keep(self) -> np.ndarray:
        """(texts, tokens) float32: 0, or a low number for padding."""
        return np.where(self._batch.mask, np.float32(0.0), np.float32(HIDDEN))

    @property
    def share(self) -> np.ndarray:
        """(texts, 1, tokens) float32: 1 / length, or 0 for padding."""
        return np.asarray(self._batch.mask / self._lengths[:, None], np.float32)[:, None]

    @property
    def ids(self) -> np.ndarray:
        """(rows, positions) int64, as the next three."""
        return self._batch.ids if self._is_plain else self._spread(self._batch.ids)

    @property
    def positions(self) -> np.ndarray:
        """The position of each token in its text, as the trunk counts them."""
        first, (texts, tokens) = self._shape.first_position, self._batch.ids.shape
        numbers = np.arange(first, first + tokens)[None]
        if texts != 1:
            numbers = np.ascontiguousarray(np.broadcast_to(numbers, self._batch.ids.shape))
        return numbers if self._is_plain else self._spread(numbers, fill=first)

    @property
    def turns(self) -> np.ndarray:
        """The position of each token in its text from 0; 0 for prompt rows."""
        numbers = np.ascontiguousarray(np.broadcast_to(np.arange(self._batch.ids.shape[1]), self._batch.ids.shape))
        return numbers if self._is_plain else self._spread(numbers)

    @property
    def buckets(self) -> np.ndarray:
        """(2, 2 positions - 1) int64: of distances from positions - 1 down to its negative, and up again."""
        assert self._shape.relative is not None
        distances = np.arange(self.size[1] - 1, -self.size[1], -1)
        return np.stack([buckets_of(self._shape.relative, steps) for steps in (distances, -distances)])

    @property
    def reads(self) -> np.ndarray:
        """(rows * blocks, heads, keys) int64: of (rows, heads, positions) what a block reads within its window."""
        (places, _), positions, heads = self._read, self.size[1], self._shape.heads
        offsets = places + (heads - 1) * (places - places % positions)
        return np.asarray(offsets[:, None] + positions * np.arange(heads)[:, None])

    @property
    def near(self) -> np.ndarray:
        """(rows * blocks, 1, positions of a block, keys) float32: as `added` in the window, else a low number.

        Prompt rows are in every window. Of a row cut into blocks they ask apart, and what they ask here is not used.
        """
        assert self._shape.window is not None
        asking = self._every.reshape(-1, self._block)
        reading, is_there = self._read
        is_near = np.abs(asking[:, :, None] - reading[:, None]) <= self._shape.window
        if self._more:
            is_near = is_near | (self.which.ravel()[reading] > 0)[:, None]
        return _hidden(is_near & is_there[:, None] & self._sees(asking, reading))

    @lazy
    def asks(self) -> np.ndarray:
        """(rows, prompt rows) int64: places of each row's prompt rows, filled up with its first position."""
        is_prompt = self.which > 0
        order = np.argsort(~is_prompt, axis=1, kind="stable")[:, : is_prompt.sum(axis=1).max(initial=0)]
        return np.take_along_axis(self._every, np.where(np.take_along_axis(is_prompt, order, 1), order, 0), axis=1)

    @property
    def asked(self) -> np.ndarray:
        """(rows, 1, prompt rows, positions) float32: what is added to their scores, as `added`."""
        return _hidden(self._sees(self.asks, self._every))

    @property
    def back(self) -> np.ndarray:
        """(rows, positions) int64: each position among its row's positions and, behind these, its row's `asks`."""
        rows, positions = self.size
        is_prompt = self.which > 0
        within = np.where(is_prompt, positions + np.cumsum(is_prompt, axis=1) - 1, np.arange(positions))
        return np.asarray(within + (positions + self.asks.shape[1]) * np.arange(rows)[:, None])

    @lazy
    def _read(self) -> tuple[np.ndarray, np.ndarray]:
        """The places that each block reads (rows * blocks, keys), and whether they are there."""
        assert self._shape.window is not None
        starts, window, positions = self._every.reshape(-1, self._block)[:, :1], self._shape.window, self.size[1]
        if self._block == positions:
            return self._every, np.ones(self.size, bool)
        begins = starts - starts % positions  # of the row
        places = starts + np.arange(-window, self._block + window)
        is_there = (places >= begins) & (places < begins + positions)
        if self._more:  # of the one text that begins before what a block reads
            first = np.maximum(starts - window, begins)
            owner = self._owner.ravel()[first]
            prompts = np.where(owner < 0, first, self._start[np.maximum(owner, 0)]) + np.arange(self._more)
            places, is_there = (np.concatenate(p, axis=1) for p in ((prompts, places), (prompts < first, is_there)))
        return np.where(is_there, places, starts), is_there

    @lazy
    def placed(self) -> np.ndarray:
        """(rows, 1, positions, positions) float32: 1 where neither is a prompt row."""
        is_token = self.which == 0
        return np.asarray(is_token[:, None, :, None] & is_token[:, None, None], np.float32)

    @property
    def segments(self) -> np.ndarray:
        """The segment of each token."""
        known = np.minimum(self._batch.segments, self._shape.segments - 1)
        return np.asarray(known if self._is_plain else self._spread(known))

    @property
    def text(self) -> np.ndarray:
        """(rows, positions, 1) float32: 1 at tokens of texts."""
        return self._spread(self._batch.mask).astype(np.float32)[..., None]

    @lazy
    def which(self) -> np.ndarray:
        """(rows, positions) int64: 0, or the number from 1 of a prompt row."""
        places = np.zeros(self.size, np.int64)
        places.ravel()[self._start[:, None] + np.arange(self._more)] = np.arange(1, self._more + 1)
        return places

    @lazy
    def added(self) -> np.ndarray:
        """(rows, 1, 1 or positions, positions) float32: 0 where a position is read, else a low number."""
        # A row that several texts may share has one shape of mask, however many texts share it.
        is_line = self._shape.pack and self._shape.fill and self.size[0] == 1 and self.size[1] <= LINE
        if is_line and not self._more and len(self._lengths) == 1:  # one text: it, and what is behind it
            is_text = np.arange(self.size[1]) < self._lengths[0]
            return _hidden((is_text[:, None] == is_text)[None])
        if self._is_packed or is_line or (self._more and self._shape.isolated):
            return _hidden(self._sees(self._every, self._every))
        texts, stop = len(self.keep), self._more + self.keep.shape[1]
        added = np.full(self.size, np.float32(HIDDEN))
        added[:texts, : self._more], added[:texts, self._more : stop] = 0.0, self.keep
        return added[:, None, None]

    @property
    def _is_plain(self) -> bool:
        return self.size == self._batch.ids.shape and not self._is_packed

    @lazy
    def _token_places(self) -> np.ndarray:
        return np.asarray(self.places[self._batch.mask])

    def _spread(self, values: np.ndarray, *, fill: int = 0) -> np.ndarray:
        spread = np.full(self.size, fill, np.int64)
        if len(values) == 1:
            size, start = self._lengths[0], int(self._start[0]) + self._more
            spread.ravel()[start : start + size] = values[0, :size]
            return spread
        spread.ravel()[self._token_places] = values[self._batch.mask]
        return spread

    def _sees(self, asking: np.ndarray, reading: np.ndarray) -> np.ndarray:
        """(rows, asking, reading) bool, of places in each row: one of a text, unless isolated prompts are between."""
        mine, theirs = (self._owner.ravel()[places] for places in (asking, reading))
        seen = mine[:, :, None] == theirs[:, None]
        if self._more and self._shape.isolated:
            mine, theirs = (self._prompt.ravel()[places] for places in (asking, reading))
            seen &= (theirs[:, None] == 0) | (mine[:, :, None] == theirs[:, None])
        return np.asarray(seen)

    @property
    def _every(self) -> np.ndarray:
        """(rows, positions) int64: all places."""
        return np.arange(self.size[0] * self.size[1]).reshape(self.size)

    @lazy
    def _owner(self) -> np.ndarray:
        """(rows, positions) int64: the text of each position, prompt rows with it; -1 for padding."""
        sizes = self._lengths + self._more
        owner = np.full(self.size, -1, np.int64)
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        owner.ravel()[np.repeat(self._start, sizes) + within] = np.repeat(np.arange(len(sizes)), sizes)
        return owner

    @lazy
    def _prompt(self) -> np.ndarray:
        """(rows, positions) int64: the prompt, from 1, that each prompt row is of; 0 for tokens."""
        numbers = np.repeat(np.arange(len(self._shape.prompts) + 1), (1, *self._shape.prompts))
        return np.asarray(numbers[self.which])


def _hidden(seen: np.ndarray) -> np.ndarray:
    """0 where a position is seen, else a low number, with an axis for heads."""
    return np.where(seen, np.float32(0.0), np.float32(HIDDEN))[:, None]


def neighbour_inputs(inputs: Mapping[str, np.ndarray], is_word: np.ndarray, window: int) -> Mapping[str, np.ndarray]:
    """`places` and `tokens` (texts, words) as those of each word's neighbours, (texts, 2 window + 1, words).

    `near` of the same shape, float32, is 1 where such a word was read; others have the place of a word of their text.
    """
    if not window:
        return inputs
    words = is_word.shape[1]
    places = np.arange(-window, window + 1)[:, None] + np.arange(words)
    inside = np.clip(places, 0, words - 1)
    by_neighbour = {name: inputs[name][:, inside] for name in ("places", "tokens") if name in inputs}
    return {**inputs, **by_neighbour, "near": (is_word[:, inside] & (places == inside)).astype(np.float32)}
