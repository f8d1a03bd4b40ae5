"""Inputs of an export's graphs, computed inside the file from token ids, a mask, segments and words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import TensorProto

from polyhead.encoder.relative import buckets_of
from polyhead.encoder.shape import Architecture
from polyhead.engine.backends.onnx.ops import OnnxOps
from polyhead.engine.compile.encoder import HIDDEN
from polyhead.engine.compile.ops import InputKind, Tensor
from polyhead.plan import PLACE_OF, Positions

IDS, MASK, SEGMENTS, WORDS = "input_ids", "attention_mask", "token_type_ids", "words"
COLUMNS, VALUES = "word_columns", "word_values"  # of hashed words (rows, features); a value of 0 where there is none


class TextOps(OnnxOps):
    """Asks a user for these four, int64 (rows, tokens) and (rows, words), each only where something needs it.

    Texts may be padded at either end. `prompts` rows stand before the text, whose positions count from `first`; where
    they are `isolated` the text does not see them. What builders call by a name in `bound` is that tensor.
    """

    def __init__(self, shape: Architecture, *, first: int, prompts: int = 0, isolated: bool = False) -> None:
        super().__init__()
        self.bound: dict[str, Tensor] = {}
        self._shape, self._first, self._prompts, self._isolated = shape, first, prompts, isolated
        self._builders: Mapping[str, Callable[[], Tensor]] = {
            "ids": self._ids,
            "positions": self._positions,
            "segments": self._segments,
            "text": self._text,
            "which": self._which,
            "added": self._added,
            "turns": self._turns,
            "buckets": self._buckets,
            "reads": self._reads,
            "near": self._near,
            "asks": self._asks,
            "asked": self._prompt_added,
            "back": self._back,
            "placed": self._placed,
            "keep": self._keep,
            "share": self._share,
        }

    def input(self, name: str, kind: InputKind, shape: Sequence[int | str]) -> Tensor:
        """The tensor that is bound under this name or can be computed, else an input of the file."""
        if name not in self.bound and name in self._builders:
            self.bound[name] = self._builders[name]()
        return self.bound[name] if name in self.bound else super().input(name, kind, shape)

    def read(self, positions: Positions, prompt_rows: tuple[int, int], *, window: int = 0) -> None:
        """Binds what a pooler over these positions reads; `prompt_rows` are those of its own prompt."""
        words = self._near_words(window) if positions == "tokens" else None
        self.bound["places"] = self._places(positions, prompt_rows, words, window)
        if window:
            is_read = self.minimum(self.maximum(self.add(words, self._number(1)), self._number(0)), self._number(1))
            self.bound["near"] = self.node("Cast", is_read, to=TensorProto.FLOAT)
        if positions == "prompt":
            rows = prompt_rows[1] - prompt_rows[0]
            self.bound["share"] = self.constant(np.full((1, 1, rows), 1 / rows, np.float32))

    def bind_tokens(self, table: np.ndarray) -> None:
        """Binds what a codec says of the tokens that are read, of a table (1 + vocabulary, any), of no token first."""
        tokens = self.gather(self.reshape(self.input("ids", "int", (-1, -1)), (-1,)), self.bound["places"])
        self.bound["token_inputs"] = self.gather(self.constant(table), self.add(tokens, self._number(1)))

    def _places(self, positions: Positions, prompt_rows: tuple[int, int], words: Tensor, window: int) -> Tensor:
        """Which of all rows' positions, laid end to end, are read: (rows, places), with a window as `words` are."""
        length = self.add(self._tokens(), self._number(self._prompts))
        rows = self.multiply(self._up_to(self.size(self._mask(), 0), (-1, 1, 1) if window else (-1, 1)), length)
        if positions == "prompt":
            return self.add(rows, self.constant(np.arange(*prompt_rows)))
        if positions == "tokens":
            places = self.maximum(words, self._number(0))
        elif positions in ("attention", "mean", "all"):
            places = self._up_to(self._tokens(), (1, -1))
        else:
            places = self.node("ArgMax", self._mask(), axis=1, keepdims=1)
            if place := PLACE_OF[positions]:
                of_text = self.node("ReduceSum", self._mask(), self.whole(1), keepdims=1)
                behind = self.minimum(self.add(of_text, self._number(-1)), self._number(place))
                places = self.add(places, behind)
        return self.add(self.add(rows, self._number(self._prompts)), places)

    def words(self) -> Tensor:
        """The first token of each word that has one of its own, then -1: (rows, words)."""
        return self.input(WORDS, "int", ("rows", "words"))

    def _near_words(self, window: int) -> Tensor:
        """The words, or with a window those of each word's neighbours, (rows, 2 window + 1, words); -1 beyond ends."""
        if not window:
            return self.words()
        padded = self.node("Pad", self.words(), self.whole(0, window, 0, window), self._number(-1))
        ends = [*range(-2 * window, 0), np.iinfo(np.int32).max]
        shifted = [self.slice(padded, 1, start, end) for start, end in enumerate(ends)]
        return self.concat([self.node("Unsqueeze", words, self.whole(1)) for words in shifted], 1)

    def _ids(self) -> Tensor:
        return self._behind(self.input(IDS, "int", ("rows", "tokens")))

    def _positions(self) -> Tensor:
        """Positions count up from the first token; padding before the text has the first position."""
        counted = self.node("CumSum", self._mask(), self._number(1))
        return self._behind(self.add(self.maximum(counted, self._number(1)), self._number(self._first - 1)))

    def _segments(self) -> Tensor:
        if self._shape.segments == 1:
            return self.multiply(self._ids(), self._number(0))
        return self._behind(self.input(SEGMENTS, "int", ("rows", "tokens")))

    def _text(self) -> Tensor:
        """1 at a text's positions, 0 at prompt rows: (1, positions, 1)."""
        ones = self.reshape(self.node("Expand", self._number(1.0), self._tokens()), (1, -1))
        return self.node("Unsqueeze", self._behind(ones), self.whole(2))

    def _which(self) -> Tensor:
        """The numbers from 1 of the prompt rows, 0 at a text's positions: (1, positions)."""
        rows = self.constant(np.arange(1, self._prompts + 1)[None])
        zeros = self.reshape(self.node("Expand", self._number(0), self._tokens()), (1, -1))
        return self.concat([rows, zeros], 1)

    def _behind(self, x: Tensor) -> Tensor:
        """The values (rows, tokens) behind as many zeros as there are prompt rows."""
        return self.node("Pad", x, self.whole(0, self._prompts, 0, 0)) if self._prompts else x

    def _added(self) -> Tensor:
        """0 where a position is read, (rows, 1, 1 or positions, positions)."""
        added = self.node("Unsqueeze", self._behind(self.input("keep", "float", (-1, -1))), self.whole(1, 2))
        if not self._isolated:
            return added
        text = self.input("text", "float", (1, -1, 1))
        prompt = self.transpose(self.subtract(self._number(1.0), text), (0, 2, 1))
        hidden = self.multiply(self.node("Unsqueeze", self.multiply(text, prompt), self.whole(1)), self._number(HIDDEN))
        return self.add(added, hidden)

    def _turns(self) -> Tensor:
        """Positions from 0 at the first token; 0 for prompt rows and padding before the text."""
        counted = self.node("CumSum", self._mask(), self._number(1))
        return self._behind(self.subtract(self.maximum(counted, self._number(1)), self._number(1)))

    def _places_in_row(self) -> Tensor:
        """0, 1, ... for prompt rows and tokens, (positions,)."""
        return self._up_to(self.add(self._tokens(), self._number(self._prompts)), (-1,))

    def _buckets(self) -> Tensor:
        """Rows of the table for distances from positions - 1 down, and up, (2, 2 positions - 1)."""
        relative, most = self._shape.relative, self._shape.positions + self._prompts
        assert relative is not None
        table = self.constant(buckets_of(relative, np.arange(-most, most + 1)))
        last = self.subtract(self.add(self._tokens(), self._number(self._prompts)), self._number(1))
        count = self.add(self.multiply(last, self._number(2)), self._number(1))
        up = self.subtract(self._up_to(count, (1, -1)), last)
        distances = self.concat([self.multiply(up, self._number(-1)), up], 0)
        return self.gather(table, self.add(distances, self._number(most)))

    def _reads(self) -> Tensor:
        """All of each row, which is one block, by head: (rows, heads, positions)."""
        rows, positions = self.size(self._mask(), 0), self.size(self._places_in_row(), 0)
        heads = self.whole(self._shape.key_heads or self._shape.heads)
        every = self._up_to(self.multiply(self.multiply(rows, heads), positions), (-1,))
        return self.reshape(every, (rows, heads, positions))

    def _asks(self) -> Tensor:
        """The prompt rows' places, (rows, prompt rows)."""
        rows, positions = self.size(self._mask(), 0), self.size(self._places_in_row(), 0)
        starts = self.multiply(self._up_to(rows, (-1, 1)), positions)
        return self.add(starts, self._up_to(self._number(self._prompts), (1, -1)))

    def _prompt_added(self) -> Tensor:
        """What is added to the prompt rows' scores."""
        added = self.input("added", "float", (-1, 1, -1, -1))
        return self.slice(added, 2, 0, self._prompts) if self._isolated else added

    def _back(self) -> Tensor:
        """Prompt rows stand behind their row's positions, (rows, positions)."""
        rows, positions = self.size(self._mask(), 0), self.size(self._places_in_row(), 0)
        row_size = self.add(positions, self._number(self._prompts))
        starts = self.multiply(self._up_to(rows, (-1, 1)), row_size)
        prompt_places = self.add(self._up_to(self._number(self._prompts), (1, -1)), positions)
        tokens = self.add(self._up_to(self._tokens(), (1, -1)), self._number(self._prompts))
        return self.add(starts, self.concat([prompt_places, tokens], 1))

    def _near(self) -> Tensor:
        """`added` in the window and at prompt rows, else a low number, (rows, 1, positions, positions)."""
        assert self._shape.window is not None
        at = self._places_in_row()
        apart = self.absolute(self.subtract(self.reshape(at, (-1, 1)), self.reshape(at, (1, -1))))
        beyond = self.subtract(apart, self._number(self._shape.window))
        is_far = self.minimum(self.maximum(beyond, self._number(0)), self._number(1))
        far = self.reshape(self.node("Cast", is_far, to=TensorProto.FLOAT), (1, 1, *(self.size(at, 0),) * 2))
        if self._prompts:
            far = self.multiply(far, self._placed())
        return self.add(self.input("added", "float", (-1, 1, -1, -1)), self.multiply(far, self._number(HIDDEN)))

    def _placed(self) -> Tensor:
        """1 where neither is a prompt row, (1, 1, positions, positions)."""
        text = self.input("text", "float", (1, -1, 1))
        return self.node("Unsqueeze", self.multiply(text, self.transpose(text, (0, 2, 1))), self.whole(1))

    def _keep(self) -> Tensor:
        return self.multiply(self.subtract(self._number(1.0), self._float_mask()), self._number(HIDDEN))

    def _share(self) -> Tensor:
        mask = self._float_mask()
        return self.node("Unsqueeze", self.divide(mask, self.total(mask, 1)), self.whole(1))

    def _mask(self) -> Tensor:
        return self.input(MASK, "int", ("rows", "tokens"))

    def _float_mask(self) -> Tensor:
        return self.node("Cast", self._mask(), to=TensorProto.FLOAT)

    def _tokens(self) -> Tensor:
        return self.size(self._mask(), 1)

    def _up_to(self, count: Tensor, shape: tuple[int, ...]) -> Tensor:
        stop = self.node("Squeeze", count)
        return self.reshape(self.node("Range", self._number(0), stop, self._number(1)), shape)

    def _number(self, number: float) -> Tensor:
        return self.constant(np.array(number))
