"""Deltas inside the trunk's layers: those of one task, and those of several tasks side by side."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from polyhead import plan
from polyhead.errors import PlanError
from polyhead.nn.delta_kinds import KINDS, Kind, Sizes
from polyhead.nn.layer import Dense, Half, Keys, LayerDelta, Prefix

__all__ = ["Deltas", "LayerDelta", "SideBySide"]


class Deltas(nn.Module):
    """The deltas of one node, by layer; array names below `delta.` are those of `polyhead.cost`.

    With a generator, encoders and all between them start as N(0, 0.02), biases at 0, and decoders at 0 (`init` "zero":
    a layer gives what it gives without the delta, bit for bit; a prefix and a serial norm change it at once) or as
    N(0, 0.02) too ("normal", as in the code of Stickland and Murray 2019); norms at 1 and 0, or wholly as N(0, 0.02)
    (`norm_init` "legacy", as their code has it by mistake). Without a generator matrices start at zero, to be filled.

    A tied encoder and decoder are one module for all layers. `ends` gives those of a layer that are another owner's:
    they replace this one's. With `ends_alone` the module holds only encoders and decoders for the deltas of others.
    """

    encoder: Dense
    decoder: Dense

    def __init__(
        self,
        node: plan.Delta,
        layers: Iterable[int],
        *,
        width: int,
        heads: int,
        feed_forward: int = 0,
        norm_epsilon: float = 1e-12,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
        init: Literal["zero", "normal"] = "zero",
        norm_init: Literal["one", "legacy"] = "one",
        ends: Callable[[int], Mapping[str, Dense]] | None = None,
        ends_alone: bool = False,
    ) -> None:
        super().__init__()
        tied: Mapping[str, Dense] = {}
        if node.tied and ends is None:
            self.encoder, self.decoder = Dense(width, node.size), Dense(node.size, width)
            tied = ends_of(self)
        sizes = Sizes(width=width, heads=heads, feed_forward=feed_forward, norm_epsilon=norm_epsilon)
        for index in () if ends_alone and node.tied else layers:
            delta = (
                nn.ModuleDict({"encoder": Dense(width, node.size), "decoder": Dense(node.size, width)})
                if ends_alone
                else KINDS[node.kind].made(node, sizes, tied if ends is None else ends(index), dropout)
            )
            self.add_module(str(index), delta)
        if generator is not None:
            _fill(self, generator, init=init, norm_init=norm_init)

    def at(self, index: int) -> LayerDelta:
        """The delta of layer `index`; raises PlanError where there is none."""
        delta = self._modules.get(str(index))
        if not isinstance(delta, LayerDelta):
            raise PlanError("no delta in that layer", got=index, allowed=sorted(self.layers))
        return delta

    @property
    def layers(self) -> list[int]:
        """Indices of the layers that have a delta."""
        return [int(name) for name, module in self._modules.items() if isinstance(module, LayerDelta)]


def ends_of(owner: nn.Module) -> dict[str, Dense]:
    """The encoder and decoder that are this module's."""
    modules = {name: owner.get_submodule(name) for name in ("encoder", "decoder")}
    return {name: part for name, part in modules.items() if isinstance(part, Dense)}


def _fill(deltas: Deltas, generator: torch.Generator, *, init: str, norm_init: str) -> None:
    for name, value in deltas.named_parameters():
        zero = name.endswith("decoder.weight") and init == "zero"
        if (value.dim() > 1 and not zero) or (".norm." in name and norm_init == "legacy"):
            nn.init.normal_(value, std=0.02, generator=generator)


def _form(delta: LayerDelta) -> object:
    """The key of deltas that can be computed together: equal forms, or the same object."""
    return delta.form if isinstance(delta, Kind) else id(delta)


def _together(group: Sequence[LayerDelta]) -> LayerDelta:
    first = group[0]
    kinds = [delta for delta in group if isinstance(delta, Kind)]
    if len(kinds) < 2:
        return first
    return type(kinds[0]).together(kinds).train(first.training)


class SideBySide(LayerDelta):
    """Several deltas of one layer: the rows are that many equal groups, each with its own; None leaves a group alone.

    Neighbours of one form (kind, size, heads and so on) are computed as one batched product. The arrays are read and
    the mode is taken over when this is made, which therefore serves a pass or two and not a training.
    """

    def __init__(self, deltas: Sequence[LayerDelta | None]) -> None:
        super().__init__()
        alone = [delta or LayerDelta() for delta in deltas]
        self._runs: list[tuple[LayerDelta, int]] = []
        for _, run in itertools.groupby(alone, key=_form):
            group = list(run)
            self._runs.append((_together(group), len(group)))
        self.serial = any(delta.serial for delta in alone)
        self.training = any(delta.training for delta in alone)

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
        return Prefix(keys=Keys(key=key, value=value), seen=seen)

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
