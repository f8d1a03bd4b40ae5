"""Deltas inside a layer: the function and the arrays of each kind, and several combined.

V_E and V_D are an encoder and a decoder, dense maps width -> size -> width. A kind receives its maps ready-made, so
that the same code runs one task's maps, or those of several as one batched product.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from polyhead import plan
from polyhead.deep.nn.attention import AttentionKeys, attend, by_head, visible
from polyhead.deep.nn.dropout import dropped
from polyhead.deep.nn.layer import Dense, Half, LayerDelta, Prefix
from polyhead.encoder.shape import Architecture
from polyhead.errors import PlanError

Map = Callable[[Tensor], Tensor]


class DeltaModule(LayerDelta, ABC):
    """A delta of one kind in one layer."""

    def __init__(self, node: plan.Delta) -> None:
        super().__init__()
        # Shapes and function without the arrays' owners: equal forms can be computed together.
        self.form = msgspec.structs.replace(node, part="", ends=None, tied=False)

    @classmethod
    @abstractmethod
    def made(cls, node: plan.Delta, shape: Architecture, tied: Mapping[str, Dense], dropout: float) -> Self:
        """A delta with its own arrays, except the `tied` maps."""

    @classmethod
    @abstractmethod
    def together(cls, group: Sequence[Self]) -> Self:
        """A delta that computes the whole group, of one form, on as many equal groups of rows."""


class _Mapped(DeltaModule):
    """A kind whose arrays are dense maps, by their names in the state dict, and possibly a norm."""

    bias = True

    def __init__(self, node: plan.Delta, maps: Mapping[str, Map], dropout: float) -> None:
        super().__init__(node)
        self.maps, self.dropout = dict(maps), dropout

    @classmethod
    @abstractmethod
    def shapes(cls, node: plan.Delta, shape: Architecture) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of the maps, by name."""

    @classmethod
    def made(cls, node: plan.Delta, shape: Architecture, tied: Mapping[str, Dense], dropout: float) -> Self:
        new_parts: dict[str, nn.Module] = {
            name: Dense(*shape, bias=cls.bias) for name, shape in cls.shapes(node, shape).items() if name not in tied
        }
        if node.serial:
            new_parts["norm"] = nn.LayerNorm(shape.width, eps=shape.norm_epsilon)
        delta = cls(node, {**new_parts, **tied}, dropout)
        for name, part in new_parts.items():
            *above, leaf = name.split(".")
            place: nn.Module = delta
            for step in above:
                if not hasattr(place, step):
                    place.add_module(step, nn.Module())
                place = place.get_submodule(step)
            place.add_module(leaf, part)
        return delta

    @classmethod
    def together(cls, group: Sequence[Self]) -> Self:
        first = group[0]
        maps = {name: _together([delta.maps[name] for delta in group]) for name in first.maps}
        return cls(first.form, maps, first.dropout)


class _TaskFunction(_Mapped):
    """`TS(h) = V_D g(V_E h)` (Stickland and Murray 2019), g the identity: low rank.

    Parallel, `LN2(a + FFN(a) + TS(h))`, h the layer's input; serial, `LN3(h' + TS(h'))`, h' its output, or in a layer
    with norms first `h' + TS(LN3 h')`. In the
    released code a GELU follows V_D of projected attention and g of the low-rank kind; the paper has none. Scaled, TS
    is multiplied by `2 sigmoid(r)`.
    """

    scale: Tensor | None  # (width,), or (groups, width)

    def __init__(self, node: plan.Delta, maps: Mapping[str, Map], dropout: float) -> None:
        super().__init__(node, maps, dropout)
        self.serial, self.norm_first, self.scale = node.serial, False, None

    @classmethod
    def made(cls, node: plan.Delta, shape: Architecture, tied: Mapping[str, Dense], dropout: float) -> Self:
        delta = super().made(node, shape, tied, dropout)
        delta.norm_first = shape.norm_first
        if node.scaled:
            delta.scale = nn.Parameter(torch.zeros(shape.width))
        return delta

    @classmethod
    def together(cls, group: Sequence[Self]) -> Self:
        joined, scales = super().together(group), [delta.scale for delta in group if delta.scale is not None]
        joined.norm_first = group[0].norm_first
        if scales:
            joined.scale = torch.stack(scales)
        return joined

    @classmethod
    def shapes(cls, node: plan.Delta, shape: Architecture) -> dict[str, tuple[int, int]]:
        return {"encoder": (shape.width, node.size), "decoder": (node.size, shape.width)}

    def between(self, inner: Tensor, mask: Tensor) -> Tensor:
        """g, (rows, tokens, size) to the same shape."""
        return inner

    def function(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """TS, (rows, tokens, width) to the same shape."""
        inner = self.between(self.maps["encoder"](hidden), mask)
        out = self.maps["decoder"](functional.gelu(inner) if self.form.gelu == "inside" else inner)
        out = functional.gelu(out) if self.form.gelu == "after" else out
        return out if self.scale is None else _scaled(out, self.scale)

    def term(self, hidden: Tensor, mask: Tensor) -> Tensor | None:
        return None if self.serial else self.function(hidden, mask)

    def after(self, out: Tensor, mask: Tensor) -> Tensor:
        if not self.serial:
            return out
        if self.norm_first:
            return out + self.function(self.maps["norm"](out), mask)
        return self.maps["norm"](out + self.function(out, mask))


class _ProjectedAttention(_TaskFunction):
    """g is attention of width `size` without an output map; padding is not seen."""

    @classmethod
    def shapes(cls, node: plan.Delta, shape: Architecture) -> dict[str, tuple[int, int]]:
        inner = (node.size, node.size)
        return {**super().shapes(node, shape), "query": inner, "key": inner, "value": inner}

    def between(self, inner: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (by_head(self.maps[name](inner), self.form.heads) for name in ("query", "key", "value"))
        dropout = self.dropout if self.training else 0.0
        return attend(query, AttentionKeys(key=key, value=value), visible(mask), dropout=dropout, learns=self.training)


class _FeedForwardFunction(_TaskFunction):
    """g has one hidden layer of 3/2 `size` with the exact GELU: as many weights as projected attention."""

    @classmethod
    def shapes(cls, node: plan.Delta, shape: Architecture) -> dict[str, tuple[int, int]]:
        hidden = 3 * node.size // 2
        return {**super().shapes(node, shape), "inner": (node.size, hidden), "outer": (hidden, node.size)}

    def between(self, inner: Tensor, mask: Tensor) -> Tensor:
        return self.maps["outer"](functional.gelu(self.maps["inner"](inner)))


class _Bottleneck(_Mapped):
    """`x + V_D gelu(V_E x)` on the output of each half, before it is added (Houlsby et al. 2019)."""

    @classmethod
    def shapes(cls, node: plan.Delta, shape: Architecture) -> dict[str, tuple[int, int]]:
        ends = {"encoder": (shape.width, node.size), "decoder": (node.size, shape.width)}
        return {f"{half}.{end}": shape for half in ("attention", "feed_forward") for end, shape in ends.items()}

    def within(self, half: Half, out: Tensor) -> Tensor:
        return out + self.maps[f"{half}.decoder"](functional.gelu(self.maps[f"{half}.encoder"](out)))


class _LowRankUpdate(_Mapped):
    """`W x + (alpha / size) V_D V_E x` for each dense map among the targets, without biases (Hu et al. 2022)."""

    bias = False

    @classmethod
    def shapes(cls, node: plan.Delta, shape: Architecture) -> dict[str, tuple[int, int]]:
        shapes: dict[str, tuple[int, int]] = {}
        for target in node.targets:
            inputs, outputs = shape.layer(0).ends(target)
            shapes |= {f"{target}.encoder": (inputs, node.size), f"{target}.decoder": (node.size, outputs)}
        return shapes

    def dense(self, name: plan.Dense, inputs: Tensor) -> Tensor | None:
        if name not in self.form.targets:
            return None
        low = self.maps[f"{name}.decoder"](self.maps[f"{name}.encoder"](inputs))
        return low * (self.form.alpha / self.form.size)


class _Scale(DeltaModule):
    """The layer's output times `2 sigmoid(r)`, r at 0 (Swietojanski and Renals 2014, LHUC)."""

    def __init__(self, node: plan.Delta, scale: Tensor) -> None:
        super().__init__(node)
        self.scale = scale  # (width,), or (groups, width)

    @classmethod
    def made(cls, node: plan.Delta, shape: Architecture, tied: Mapping[str, Dense], dropout: float) -> Self:
        return cls(node, nn.Parameter(torch.zeros(shape.width)))

    @classmethod
    def together(cls, group: Sequence[Self]) -> Self:
        return cls(group[0].form, torch.stack([delta.scale for delta in group]))

    def after(self, out: Tensor, mask: Tensor) -> Tensor:
        return _scaled(out, self.scale)


class _Prefixes(DeltaModule):
    """Learned keys and values that every position sees (Liu et al. 2022, P-Tuning v2)."""

    def __init__(self, node: plan.Delta, key: Tensor, value: Tensor, heads: int, dropout: float) -> None:
        super().__init__(node)
        self.key, self.value = key, value  # (size, width), or (groups, size, width)
        self.heads, self.dropout = heads, dropout

    @classmethod
    def made(cls, node: plan.Delta, shape: Architecture, tied: Mapping[str, Dense], dropout: float) -> Self:
        key, value = (nn.Parameter(torch.zeros(node.size, shape.layer(0).key_width)) for _ in range(2))
        return cls(node, key, value, shape.key_heads or shape.heads, dropout)

    @classmethod
    def together(cls, group: Sequence[Self]) -> Self:
        key, value = (torch.stack([getattr(delta, name) for delta in group]) for name in ("key", "value"))
        return cls(group[0].form, key, value, group[0].heads, group[0].dropout)

    def prefix(self, rows: int) -> Prefix | None:
        key, value = (
            dropped(_over_rows(by_head(part.view(-1, *part.shape[-2:]), self.heads), rows), self.dropout, self.training)
            for part in (self.key, self.value)
        )
        seen = torch.ones(rows, key.shape[2], dtype=torch.bool, device=key.device)
        return Prefix(keys=AttentionKeys(key=key, value=value), seen=seen)


class SideBySide(LayerDelta):
    """Several deltas of one layer: the rows are as many equal groups, each with its own; None leaves a group unchanged.

    Neighbours of one form (kind, size, heads and so on) are computed as one batched product. Arrays and mode are copied
    at construction, so an instance serves a pass or two and not a training.
    """

    def __init__(self, deltas: Sequence[LayerDelta | None]) -> None:
        super().__init__()
        layer_deltas = [delta or LayerDelta() for delta in deltas]
        self._runs: list[tuple[LayerDelta, int]] = []
        for _, run in itertools.groupby(layer_deltas, key=_form):
            group = list(run)
            self._runs.append((_joined_deltas(group), len(group)))
        self.serial = any(delta.serial for delta in layer_deltas)
        self.training = any(delta.training for delta in layer_deltas)

    def dense(self, name: plan.Dense, inputs: Tensor) -> Tensor | None:
        """Zeros for a group whose delta adds nothing to this map."""
        return self._joined([run.dense(name, part) for run, part in self._cut(inputs)], len(inputs))

    def prefix(self, rows: int) -> Prefix | None:
        """All prefixes, shorter ones padded with rows that are not seen."""
        sizes = self._sizes(rows)
        prefixes = [run.prefix(size) for (run, _), size in zip(self._runs, sizes, strict=True)]
        longest = max((prefix.seen.shape[1] for prefix in prefixes if prefix is not None), default=0)
        filled = [None if prefix is None else prefix.padded(longest) for prefix in prefixes]
        key = self._joined([None if prefix is None else prefix.keys.key for prefix in filled], rows)
        value = self._joined([None if prefix is None else prefix.keys.value for prefix in filled], rows)
        seen = self._joined([None if prefix is None else prefix.seen for prefix in filled], rows)
        if key is None or value is None or seen is None:
            return None
        return Prefix(keys=AttentionKeys(key=key, value=value), seen=seen)

    def within(self, half: Half, out: Tensor) -> Tensor:
        """Each group through its own delta."""
        return torch.cat([run.within(half, part) for run, part in self._cut(out)])

    def term(self, hidden: Tensor, mask: Tensor) -> Tensor | None:
        """Zeros for a group whose delta has no term."""
        terms = [run.term(part, seen) for run, part, seen in self._cut(hidden, mask)]
        return self._joined(terms, len(hidden))

    def after(self, out: Tensor, mask: Tensor) -> Tensor:
        """Each group through its own delta."""
        return torch.cat([run.after(part, seen) for run, part, seen in self._cut(out, mask)])

    def _sizes(self, rows: int) -> list[int]:
        total = sum(groups for _, groups in self._runs)
        if rows % total:
            raise PlanError("rows side by side must be in equal groups", got=f"{rows} rows, {total} groups")
        return [groups * (rows // total) for _, groups in self._runs]

    def _cut(self, *values: Tensor) -> Iterator[tuple[Any, ...]]:
        """Each run and its rows of the values."""
        sizes = self._sizes(len(values[0]))
        runs = [run for run, _ in self._runs]
        return zip(runs, *(torch.split(value, sizes) for value in values), strict=True)

    def _joined(self, parts: Sequence[Tensor | None], rows: int) -> Tensor | None:
        """The runs' values concatenated, zeros where a run has none; None where no run has a value."""
        known = next((part for part in parts if part is not None), None)
        if known is None:
            return None
        sized = zip(parts, self._sizes(rows), strict=True)
        return torch.cat([known.new_zeros(n, *known.shape[1:]) if part is None else part for part, n in sized])


def _form(delta: LayerDelta) -> object:
    """The key of deltas that can be computed together: equal forms, or the same object."""
    return delta.form if isinstance(delta, DeltaModule) else id(delta)


def _joined_deltas(group: Sequence[LayerDelta]) -> LayerDelta:
    first = group[0]
    kinds = [delta for delta in group if isinstance(delta, DeltaModule)]
    if len(kinds) < 2:
        return first
    return type(kinds[0]).together(kinds).train(first.training)


def _scaled(out: Tensor, scale: Tensor) -> Tensor:
    """`out * 2 sigmoid(r)`, r (width,), or (groups, width) for as many equal groups of rows."""
    gain = (2 * torch.sigmoid(scale)).to(out.dtype)
    return out * _over_rows(gain.view(-1, gain.shape[-1]), len(out))[:, None]


def _over_rows(groups: Tensor, rows: int) -> Tensor:
    """Repeats each group's entry for its rows: (groups, ...) to (rows, ...)."""
    return groups.repeat_interleave(rows // len(groups), dim=0)


def _together(maps: Sequence[Map]) -> Map:
    """One map that applies each of the maps to its own equal group of rows."""
    first = maps[0]
    if all(dense_map is first for dense_map in maps):
        return first
    if isinstance(first, nn.LayerNorm):
        return _norms([norm for norm in maps if isinstance(norm, nn.LayerNorm)])
    return _products([dense for dense in maps if isinstance(dense, Dense)])


def _products(maps: Sequence[Dense]) -> Map:
    """Dense maps of equal shapes as one batched product: (groups * rows, positions, inputs) to outputs."""
    weight = torch.stack([dense.weight for dense in maps]).mT  # (groups, inputs, outputs)
    biases: list[Tensor] = [dense.bias for dense in maps if dense.bias is not None]
    bias = torch.stack(biases)[:, None] if biases else None  # (groups, 1, outputs)

    def product(inputs: Tensor) -> Tensor:
        grouped = inputs.reshape(len(weight), -1, inputs.shape[-1])
        out = grouped @ weight if bias is None else grouped @ weight + bias
        return out.view(*inputs.shape[:-1], out.shape[-1])

    return product


def _norms(norms: Sequence[nn.LayerNorm]) -> Map:
    """Layer norms of one width, each for its group of rows."""
    gains, biases = (torch.stack([getattr(norm, name) for norm in norms]) for name in ("weight", "bias"))

    def norm(inputs: Tensor) -> Tensor:
        normed = functional.layer_norm(inputs, inputs.shape[-1:], eps=norms[0].eps)
        return normed * _over_rows(gains, len(inputs))[:, None] + _over_rows(biases, len(inputs))[:, None]

    return norm


KINDS: Mapping[plan.DeltaKind, type[DeltaModule]] = {
    "projected_attention": _ProjectedAttention,
    "low_rank": _TaskFunction,
    "feed_forward": _FeedForwardFunction,
    "scale": _Scale,
    "bottleneck": _Bottleneck,
    "prefix": _Prefixes,
    "lora": _LowRankUpdate,
}
"""Every kind by its name in a plan."""
