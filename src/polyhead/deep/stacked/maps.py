"""The dense maps of several heads as one product each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from msgspec import UNSET
from torch import Tensor
from torch.nn.functional import layer_norm

from polyhead.deep.nn.heads import ACTIVATIONS
from polyhead.engine.backends.base import LoadedTask
from polyhead.engine.compile.heads import Slot, folded_task
from polyhead.plan import PLACE_OF, Path, Pool

VECTORS = tuple(sorted((*PLACE_OF, "mean")))  # positions of which a text has one vector, in the order of `value_spans`


class StackMember(NamedTuple):
    """A task and its folded arrays."""

    name: str
    path: Path
    slot: Slot

    @classmethod
    def of(cls, name: str, task: LoadedTask, *, width: int) -> StackMember:
        """The task with states `width` wide."""
        return cls(name, task.path, folded_task(task, width=width))

    @property
    def form(self) -> StackForm:
        """The properties that it shares with the members of its stack."""
        pool, head = self.path.pool, self.path.head
        hidden = 0 if head.separate else head.hidden
        is_plain = pool.positions in VECTORS and not hidden
        return StackForm(
            positions=VECTORS[0] if is_plain else pool.positions,
            read=None if is_plain else self.read,
            heads=pool.heads,
            hidden=hidden,
            activation=head.activation,
            norm=None if head.norm_epsilon is UNSET else head.norm_epsilon,
            window=head.window,
            inputs=0 if is_plain else len(self.slot.first),
            beside=pool.layers == "beside",
        )

    @property
    def read(self) -> Pool:
        """The stored value that it reads."""
        return self.path.pool.stored()


class StackForm(NamedTuple):
    """The properties that members must share for their heads to be one product."""

    positions: str
    read: Pool | None  # None: whatever is read of a text's vectors, for heads without a hidden layer
    heads: int
    hidden: int
    activation: str
    norm: float | None  # the epsilon of a norm behind the activation, whose gain and bias are in the second map
    window: int
    inputs: int
    beside: bool  # each vector is scaled before the first map


class StackAnswers(NamedTuple):
    """Outputs of several tasks: (rows, outputs of all) or (slots, rows, outputs); of words (..., rows, words, outputs).

    `tasks` has each one's slot, None where outputs stand side by side, and its columns.
    """

    values: Tensor
    tasks: Mapping[str, tuple[int | None, slice]]

    def of(self, task: str, values: np.ndarray) -> np.ndarray:
        """The task's outputs, from those of all in the host's memory."""
        slot, columns = self.tasks[task]
        return np.ascontiguousarray((values if slot is None else values[slot])[..., columns])


class _Heads:
    """The parts after the first maps of several slots: none, or an activation and the second maps."""

    def __init__(self, members: Sequence[StackMember], device: torch.device) -> None:
        self._names, self.labels = [member.name for member in members], [member.slot.width for member in members]
        self._activation, self._norm = ACTIVATIONS[members[0].path.head.activation], members[0].form.norm
        second = [(m.slot.second, m.slot.second_bias) for m in members]
        self._second = _stacked(second, device) if second[0][0] is not None else None

    @property
    def is_first(self) -> bool:
        """Whether the first maps are all."""
        return self._second is None

    def answers(self, first: Tensor, size: Sequence[int]) -> StackAnswers:
        """From the first maps' outputs (slots, rows, outputs), where `size` are the sizes that rows stand for."""
        if self._second is not None:
            matrices, biases = self._second
            hidden = self._activation(first)
            if self._norm is not None:
                hidden = layer_norm(hidden, hidden.shape[-1:], eps=self._norm)
            first = torch.baddbmm(biases, hidden, matrices)
        columns = {name: (slot, slice(0, self.labels[slot])) for slot, name in enumerate(self._names)}
        return StackAnswers(first.view(len(self.labels), *size, first.shape[-1]), columns)

    def side_by_side(self, first: Tensor, size: Sequence[int]) -> StackAnswers:
        """The same without second maps, from (rows, outputs of all)."""
        stops = np.cumsum(self.labels)
        spans = {
            name: (None, slice(int(s - n), int(s))) for name, n, s in zip(self._names, self.labels, stops, strict=True)
        }
        return StackAnswers(first.view(*size, first.shape[-1]), spans)


class MapsBeside:
    """First maps of slots that all read the same: one product."""

    def __init__(self, members: Sequence[StackMember], device: torch.device) -> None:
        self._heads = _Heads(members, device)
        self._matrix = placed(np.concatenate([member.slot.first for member in members], axis=1), device)
        self._bias = placed(np.concatenate([member.slot.first_bias for member in members]), device)

    def __call__(self, x: Tensor) -> StackAnswers:
        """Outputs from (..., inputs)."""
        first = torch.addmm(self._bias, x.reshape(-1, x.shape[-1]), self._matrix)
        if self._heads.is_first:
            return self._heads.side_by_side(first, x.shape[:-1])
        by_slot = first.view(len(first), len(self._heads.labels), first.shape[1] // len(self._heads.labels)).transpose(
            0, 1
        )
        return self._heads.answers(by_slot, x.shape[:-1])


class MapsEach:
    """First maps of slots that each read their own."""

    def __init__(self, members: Sequence[StackMember], device: torch.device) -> None:
        self._heads = _Heads(members, device)
        self._first = _stacked([(member.slot.first, member.slot.first_bias) for member in members], device)

    def __call__(self, x: Tensor) -> StackAnswers:
        """Outputs from (slots, rows, inputs)."""
        matrices, biases = self._first
        return self._heads.answers(torch.baddbmm(biases, x, matrices), x.shape[1:2])


def _stacked(
    maps: Sequence[tuple[np.ndarray | None, np.ndarray | None]], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Matrices (slots, inputs, outputs) and biases (slots, 1, outputs), with zeros up to the most outputs."""
    known = [(matrix, bias) for matrix, bias in maps if matrix is not None and bias is not None]
    most = max(len(bias) for _, bias in known)
    matrices = [np.pad(matrix, ((0, 0), (0, most - matrix.shape[1]))) for matrix, _ in known]
    biases = [np.pad(bias, (0, most - len(bias)))[None] for _, bias in known]
    return placed(np.stack(matrices), device), placed(np.stack(biases), device)


def placed(array: np.ndarray, device: torch.device) -> Tensor:
    """Float32 on the device."""
    return torch.from_numpy(np.ascontiguousarray(array, np.float32)).to(device)
