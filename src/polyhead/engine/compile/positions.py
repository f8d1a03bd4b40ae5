"""What layers read of the places of tokens, as graphs: rotations, windows, and scores by distance."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from polyhead.encoder.relative import frequencies
from polyhead.encoder.shape import RELATIVE, Architecture, LayerForm, Rotary
from polyhead.engine.compile.maps import Arrays, split_heads
from polyhead.engine.compile.ops import InputKind, Ops, Tensor

Mixed = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # attention of queries, keys, values, and what is added
END = 2**31 - 1  # past the end of any axis
PLACED = ("turns", "buckets", "reads", "near", "asks", "asked", "back", "placed")  # what a layout gives


def place_inputs(forms: Sequence[LayerForm], *, by_row: bool) -> tuple[str, ...]:
    """Which of `PLACED` layers of these forms read; `by_row`, where prompt rows stand among the tokens."""
    relative = any(form.relative is not None for form in forms)
    window = any(form.window is not None for form in forms)
    names = {
        "turns": any(form.rotary is not None for form in forms),
        "buckets": relative,
        **dict.fromkeys(("reads", "near"), window),
        **dict.fromkeys(("asks", "asked", "back"), window and by_row),
        "placed": relative and by_row,
    }
    return tuple(name for name, is_read in names.items() if is_read)


class PlaceGraphs:
    """Places of one span's rows; every tensor is made once.

    Inputs, where a form reads them: `turns` (rows, tokens), positions in the text from 0, 0 for prompt rows; `buckets`
    (2, 2 tokens - 1), rows of the table for distances i - j from tokens - 1 down, and from -(tokens - 1) up; `placed`
    (rows, 1, tokens, tokens), 1 where neither is a prompt row. For windows `reads` (rows * blocks, heads, keys), the
    vectors of rows by head, laid end to end, that a block of a row reads, and `near` (rows * blocks, 1, tokens of a
    block, keys), as `added` where a token is in the window, else a low number. Prompt rows, which read all, ask apart:
    `asks` (rows, prompt rows), their places, `asked`, what is added to their scores, and `back` (rows, tokens), where
    each token stands among its row's tokens and, behind them, prompt rows. Rows are `lanes` times those of the inputs.
    """

    def __init__(
        self, ops: Ops, added: Tensor, shape: Architecture, arrays: Arrays, *, lanes: int = 1, by_row: bool = False
    ) -> None:
        self._ops, self._added, self._shape, self._arrays = ops, added, shape, arrays
        self._lanes, self._by_row = lanes, by_row
        self._known: dict[object, Tensor] = {}

    def added(self, form: LayerForm) -> Tensor:
        """What is added to scores of all pairs: 0 or a low number, and what a head gains by distance."""
        if form.relative is None or form.relative.kind != "bias":
            return self._added
        return self._once("biased", lambda: self._ops.add(self._added, self._once("bias", self._bias)))

    def near(self, form: LayerForm, query: Tensor, key: Tensor, value: Tensor, mixed: Mixed) -> Tensor:
        """What tokens read in a window, (rows, tokens, width); keys and values are split by head, queries are not."""
        ops, width, head_width = self._ops, form.query_width, form.query_width // form.heads
        near = self._each_lane("near", "float", (-1, 1, -1, -1))
        blocks = split_heads(ops, ops.reshape(query, (-1, ops.size(near, 2), width)), form.heads, head_width)
        blocks = self.turned(blocks, form.rotary, cut=True)
        out = mixed(blocks, self._at("reads", key, head_width), self._at("reads", value, head_width), near)
        out = ops.reshape(out, (-1, ops.size(query, 1), width))
        if not self._by_row:
            return out
        added = self._each_lane("asked", "float", (-1, 1, -1, -1))
        prompts = split_heads(ops, self._at("asks", query, width), form.heads, head_width)
        if form.rotary is not None:  # by an angle of 0
            prompts = ops.multiply(prompts, ops.constant(np.array(form.rotary.scale, np.float32)))
        return self._at("back", ops.concat([out, mixed(prompts, key, value, added)], 1), width)

    def _at(self, name: str, x: Tensor, width: int) -> Tensor:
        """Vectors of this width, of all laid end to end, at the places of an input."""
        flat = self._ops.reshape(x, (-1, width))
        return self._ops.gather(flat, self._once(("places", name), lambda: self._places(name, flat)))

    def _places(self, name: str, x: Tensor) -> Tensor:
        """The input once for each lane; vectors of a lane follow those of the one before."""
        ops, shape = self._ops, (-1, -1, -1) if name == "reads" else (-1, -1)
        read = ops.input(name, "int", shape)
        if self._lanes == 1:
            return read
        lane = ops.size(ops.reshape(ops.slice(x, 1, 0, 1), (self._lanes, -1, 1)), 1)
        return ops.concat(
            [ops.add(read, ops.multiply(lane, ops.constant(np.array(number)))) for number in range(self._lanes)], 0
        )

    def turned(self, x: Tensor, rotary: Rotary | None, *, cut: bool = False) -> Tensor:
        """Queries or keys (rows, heads, tokens, width) turned by their position (Su et al. 2021); `cut`: in blocks."""
        if rotary is None:
            return x
        ops, half = self._ops, (self._shape.head_width or self._shape.width // self._shape.heads) // 2
        cosine = self._once((rotary, "cosine", cut), lambda: self._angles(rotary, half, np.cos, cut=cut))
        sine = self._once((rotary, "sine", cut), lambda: self._angles(rotary, half, np.sin, cut=cut))
        first, second = ops.slice(x, 3, 0, half), ops.slice(x, 3, half, 2 * half)
        minus = self._once("minus", lambda: ops.constant(np.array(-1.0, np.float32)))
        other = ops.concat([ops.multiply(second, minus), first], 3)
        return ops.add(ops.multiply(x, cosine), ops.multiply(other, sine))

    def disentangled(
        self, form: LayerForm, query: Tensor, key: Tensor, mapped: Callable[[Tensor, str], Tensor], groups: int
    ) -> Tensor:
        """What scores gain by distance, (rows, heads, tokens, tokens), from queries and keys by head (He et al. 2021).

        `mapped` gives the table's vectors (groups, buckets, width) as the layer's "key" or "query" vectors.
        """
        ops, relative, total = self._ops, form.relative, None
        assert relative is not None
        if relative.content_to_position:
            total = self._skewed(self._products(form, query, mapped(self._table(groups), "key"), 0, groups), form.heads)
        if relative.position_to_content:
            products = self._products(form, key, mapped(self._table(groups), "query"), 1, groups)
            turned = ops.transpose(self._skewed(products, form.heads), (0, 1, 3, 2))
            total = turned if total is None else ops.add(total, turned)
        scale = (form.query_width // form.heads * relative.terms) ** -0.5
        total = ops.multiply(total, ops.constant(np.array(scale, np.float32)))
        return ops.multiply(total, self._placed()) if self._by_row else total

    def _products(self, form: LayerForm, x: Tensor, vectors: Tensor, order: int, groups: int) -> Tensor:
        """Each position's products with the vectors of all distances, (rows, heads, tokens, 2 tokens - 1)."""
        ops, width = self._ops, form.query_width // form.heads
        table = ops.gather(ops.transpose(vectors, (1, 0, 2)), self._buckets(order))  # (distances, groups, width)
        table = ops.transpose(ops.reshape(table, (-1, groups, form.heads, width)), (1, 2, 3, 0))
        if groups == 1:
            return ops.matmul(x, table)
        tokens = ops.size(x, 2)
        rows = ops.reshape(x, (groups, -1, form.heads, tokens, width))
        table = ops.reshape(table, (groups, 1, form.heads, width, -1))
        return ops.reshape(ops.matmul(rows, table), (ops.size(x, 0), form.heads, tokens, -1))

    def _skewed(self, products: Tensor, heads: int) -> Tensor:
        """Of (rows, heads, i, c) those of c = j - i + tokens - 1: (rows, heads, i, j); Dai et al. 2019, appendix B."""
        ops = self._ops
        rows, tokens = ops.size(products, 0), ops.size(products, 2)
        nothing = ops.multiply(ops.slice(products, 3, 0, 1), ops.constant(np.zeros((1, 1, 1, 1), np.float32)))
        padded = ops.reshape(ops.concat([nothing, products], 3), (rows, heads, -1, tokens))
        moved = ops.reshape(ops.slice(padded, 2, 1, END), (rows, heads, tokens, -1))
        return ops.slice(moved, 3, 0, tokens)

    def _bias(self) -> Tensor:
        """(1 or rows, heads, tokens, tokens): a number for each head and distance."""
        ops, heads = self._ops, self._shape.heads
        numbers = ops.gather(
            self._once("numbers", lambda: ops.constant(self._arrays[f"{RELATIVE}.weight"])), self._buckets(0)
        )
        numbers = ops.reshape(ops.transpose(numbers, (1, 0)), (1, heads, 1, -1))
        row = ops.slice(ops.slice(self._added, 0, 0, 1), 2, 0, 1)  # (1, 1, 1, tokens)
        zeros = ops.multiply(ops.transpose(row, (0, 1, 3, 2)), ops.constant(np.zeros((1, 1, 1, 1), np.float32)))
        bias = self._skewed(ops.add(numbers, zeros), heads)
        return ops.multiply(bias, self._placed()) if self._by_row else bias

    def _table(self, groups: int) -> Tensor:
        """The vectors of all buckets, (groups, buckets, width)."""
        return self._once(("table", groups), lambda: self._made_table(groups))

    def _made_table(self, groups: int) -> Tensor:
        relative, rows = self._shape.relative, self._arrays[f"{RELATIVE}.weight"]
        assert relative is not None
        if relative.norm:
            gain, bias = (self._arrays[f"{RELATIVE}.norm.{leaf}"] for leaf in ("weight", "bias"))
            centred = rows - rows.mean(axis=1, keepdims=True)
            spread = np.sqrt(np.mean(centred * centred, axis=1, keepdims=True) + self._shape.norm_epsilon)
            rows = (centred / spread * gain + bias).astype(np.float32)
        return self._ops.constant(np.stack([rows] * groups))

    def _buckets(self, order: int) -> Tensor:
        """(distances,): of i - j from tokens - 1 down, or from -(tokens - 1) up."""
        ops = self._ops
        buckets = ops.input("buckets", "int", (2, -1))
        return self._once(("buckets", order), lambda: ops.reshape(ops.slice(buckets, 0, order, order + 1), (-1,)))

    def _placed(self) -> Tensor:
        return self._each_lane("placed", "float", (-1, 1, -1, -1))

    def _angles(self, rotary: Rotary, half: int, of: Callable[[np.ndarray], np.ndarray], *, cut: bool) -> Tensor:
        """(rows, 1, tokens, 2 half), of each position's cosines or sines; `cut`: of rows of a block each."""
        ops = self._ops
        read = self._once((rotary, of), lambda: self._all_angles(rotary, half, of))
        tokens = ops.size(ops.input("near", "float", (-1, 1, -1, -1)), 2) if cut else ops.size(read, 1)
        return ops.reshape(read, (-1, 1, tokens, 2 * half))

    def _all_angles(self, rotary: Rotary, half: int, of: Callable[[np.ndarray], np.ndarray]) -> Tensor:
        angles = np.arange(self._shape.positions, dtype=np.float32)[:, None] * frequencies(rotary, half)
        table = (rotary.scale * of(np.concatenate([angles, angles], axis=1))).astype(np.float32)
        return self._ops.gather(self._ops.constant(table), self._each_lane("turns", "int", (-1, -1)))

    def _each_lane(self, name: str, kind: InputKind, shape: Sequence[int]) -> Tensor:
        """An input, its rows once for each lane."""
        ops = self._ops
        read = ops.input(name, kind, shape)
        if self._lanes == 1:
            return read
        return self._once((name, "lanes"), lambda: ops.concat([read] * self._lanes, 0))

    def _once(self, key: object, make: Callable[[], Tensor]) -> Tensor:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]
