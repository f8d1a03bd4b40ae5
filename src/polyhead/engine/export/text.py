"""What builders ask for, computed inside a file from what a user has: token ids, a mask, segments, places of words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import TensorProto

from polyhead.engine.backends.onnx.ops import OnnxOps
from polyhead.engine.compile.encoder import HIDDEN
from polyhead.engine.compile.ops import InputKind, Tensor
from polyhead.plan import Positions
from polyhead.trunk.shape import Architecture

IDS, MASK, SEGMENTS, WORDS = "input_ids", "attention_mask", "token_type_ids", "words"


class TextOps(OnnxOps):
    """Asks a user for these four, int64 (rows, tokens) and (rows, words), each only where something needs it.

    Texts may be padded at either end. `prompts` rows stand before the text, whose positions count from `first`; where
    they are `isolated` the text does not see them. What builders call by a name in `bound` is that tensor.
    """

    def __init__(self, shape: Architecture, *, first: int, prompts: int = 0, isolated: bool = False) -> None:
        super().__init__()
        self.bound: dict[str, Tensor] = {}
        self._shape, self._first, self._prompts, self._isolated = shape, first, prompts, isolated
        self._made: Mapping[str, Callable[[], Tensor]] = {
            "ids": self._ids,
            "positions": self._positions,
            "segments": self._segments,
            "text": self._text,
            "which": self._which,
            "added": self._added,
            "keep": self._keep,
            "share": self._share,
        }

    def input(self, name: str, kind: InputKind, shape: Sequence[int | str]) -> Tensor:
        """What is bound or can be computed, else an input of the file."""
        if name not in self.bound and name in self._made:
            self.bound[name] = self._made[name]()
        return self.bound[name] if name in self.bound else super().input(name, kind, shape)

    def read(self, positions: Positions, own: tuple[int, int]) -> None:
        """Binds what a pooler over these positions reads; `own` are the rows of its own prompt."""
        self.bound["places"] = self._places(positions, own)
        if positions == "prompt":
            rows = own[1] - own[0]
            self.bound["share"] = self.constant(np.full((1, 1, rows), 1 / rows, np.float32))

    def _places(self, positions: Positions, own: tuple[int, int]) -> Tensor:
        """Which of all rows' positions, laid end to end, are read: (rows, places)."""
        length = self.add(self._tokens(), self._number(self._prompts))
        rows = self.multiply(self._up_to(self.size(self._mask(), 0), (-1, 1)), length)
        if positions == "prompt":
            return self.add(rows, self.constant(np.arange(*own)))
        if positions == "tokens":
            places = self.maximum(self.words(), self._number(0))
        elif positions in ("attention", "mean"):
            places = self._up_to(self._tokens(), (1, -1))
        else:
            places = self.node("ArgMax", self._mask(), axis=1, keepdims=1)
        return self.add(self.add(rows, self._number(self._prompts)), places)

    def words(self) -> Tensor:
        """The first token of each word, -1 for none: (rows, words)."""
        return self.input(WORDS, "int", ("rows", "words"))

    # -- of the embedding, each with the prompt rows before the text ---------------------------------------------------

    def _ids(self) -> Tensor:
        return self._behind(self.input(IDS, "int", ("rows", "tokens")))

    def _positions(self) -> Tensor:
        """Those of tokens count up; padding before the text has the first."""
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

    # -- what is read ------------------------------------------------------------------------------------------------

    def _added(self) -> Tensor:
        """0 where a position is read, (rows, 1, 1 or positions, positions)."""
        added = self.node("Unsqueeze", self._behind(self.input("keep", "float", (-1, -1))), self.whole(1, 2))
        if not self._isolated:
            return added
        text = self.input("text", "float", (1, -1, 1))
        prompt = self.transpose(self.subtract(self._number(1.0), text), (0, 2, 1))
        hidden = self.multiply(self.node("Unsqueeze", self.multiply(text, prompt), self.whole(1)), self._number(HIDDEN))
        return self.add(added, hidden)

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

    def _up_to(self, count: Tensor, shape: tuple[int, int]) -> Tensor:
        stop = self.node("Squeeze", count)
        return self.reshape(self.node("Range", self._number(0), stop, self._number(1)), shape)

    def _number(self, number: float) -> Tensor:
        return self.constant(np.array(number))
