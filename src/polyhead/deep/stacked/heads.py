"""Poolers and heads of the tasks that read the same states, or the same kept value.

Arrays are folded as in compiled graphs (`engine.compile.heads.folded`). What one task gets depends in its last bits on
which others are computed with it, so deterministic mode leaves every task its own products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor

from polyhead.deep.nn.trunk import States
from polyhead.deep.sharing.part import at_one_length
from polyhead.deep.stacked.codecs import DeviceCodecs
from polyhead.deep.stacked.maps import VECTORS, MapsBeside, MapsEach, StackAnswers, StackMember, placed
from polyhead.deep.stacked.reads import BatchPositions, HeadReads, ReadKept, ReadStates, ValueSpan, value_spans
from polyhead.engine.compile.heads import Slot
from polyhead.errors import PlanError
from polyhead.plan import Path, Pool


def is_stacked(path: Path) -> bool:
    """Whether the pooler and the head of a task with this path can be stacked with those of others."""
    is_known = path.pool.positions in (*VECTORS, "attention", "tokens")
    return path.head.decoder is msgspec.UNSET and is_known and DeviceCodecs.can(path.pool)


class StackedEnds:
    """The ends of some tasks' paths that read the same states, or the same kept value."""

    def __init__(self, members: Sequence[StackMember], *, width: int, codecs: DeviceCodecs) -> None:
        self._codecs, self._spans = codecs, value_spans(members, width)
        self._ends: list[_Vectors | _Attention | _Words] = []
        for form in dict.fromkeys(member.form for member in members):
            alike = [member for member in members if member.form == form]
            if form.positions in VECTORS:
                self._ends.append(_Vectors(alike, self._spans, width, codecs.device))
            else:
                kind = _Attention if form.positions == "attention" else _Words
                self._ends.append(kind(alike, codecs.device))

    def over(self, states: States, positions: BatchPositions) -> list[StackAnswers]:
        """The outputs over texts' states; raises PlanError for a pool of more layers than there are."""
        layers = max(value.layers for value in self._spans.values())
        if layers > max(states.depth, 1):
            raise PlanError("a pool reads more layers than its path runs", got=layers, allowed=states.depth)
        last = [states.layer(i) for i in range(states.depth - layers + 1, states.depth + 1)]
        stack = (last[0].unsqueeze(2) if layers == 1 else torch.stack(last, dim=2)).float()
        return self._answers(ReadStates(stack, positions, self._spans, self._codecs))

    def over_kept(self, values: Tensor, mask: Tensor) -> list[StackAnswers]:
        """The outputs over a stored value (rows, positions, layers, width), decoded, that all the tasks read."""
        return self._answers(ReadKept(values, mask))

    def _answers(self, read: HeadReads) -> list[StackAnswers]:
        return [end.answers(read) for end in self._ends]


class _Vectors:
    """Heads over one vector a text: all without a hidden layer, or those with one over one value."""

    def __init__(
        self, members: Sequence[StackMember], values: Mapping[Pool, ValueSpan], width: int, device: torch.device
    ) -> None:
        spans = {value.pool: slice(value.start, value.start + value.kept * width) for value in values.values()}
        member_spans = [spans[member.read] for member in members]
        self._width = width if members[0].form.beside else None
        self._columns = slice(min(span.start for span in member_spans), max(span.stop for span in member_spans))
        spread = [
            member._replace(slot=_spread(member.slot, span, self._columns))
            for member, span in zip(members, member_spans, strict=True)
        ]
        self._maps = MapsBeside(spread, device)

    def answers(self, read: HeadReads) -> StackAnswers:
        vectors = read.vectors[:, self._columns]
        if self._width is not None:
            vectors = at_one_length(
                vectors.reshape(len(vectors), vectors.shape[1] // self._width, self._width)
            ).flatten(1)
        return self._maps(vectors)


def _spread(slot: Slot, span: slice, columns: slice) -> Slot:
    """The slot widened to all columns, with zeros for those of others; each of averaged layers has its share."""
    times = (span.stop - span.start) // len(slot.first)
    first = np.concatenate([slot.first / times] * times)
    more = ((span.start - columns.start, columns.stop - span.stop), (0, 0))
    return msgspec.structs.replace(slot, first=np.pad(first, more))


class _Attention:
    """Attention poolers over one value, and their heads."""

    def __init__(self, members: Sequence[StackMember], device: torch.device) -> None:
        self._read, self._slots = members[0].read, len(members)
        scores = [m.slot.scores for m in members if m.slot.scores is not None]
        values = [m.slot.values for m in members if m.slot.values is not None]
        self._scores = placed(np.concatenate(scores, axis=1), device)  # (inputs, heads of all)
        self._values = placed(np.concatenate(values), device).mT  # (heads of all, width / heads, inputs)
        self._maps = MapsEach(members, device)

    def answers(self, read: HeadReads) -> StackAnswers:
        x, keep = read.tokens(self._read), read.keep()
        scores = torch.baddbmm(keep, x, self._scores.expand(len(x), -1, -1))  # (rows, tokens, heads of all)
        pooled = torch.bmm(torch.softmax(scores, dim=1).mT, x)  # (rows, heads of all, inputs)
        mixed = torch.bmm(self._values, pooled.permute(1, 2, 0))  # (heads of all, width / heads, rows)
        return self._maps(mixed.view(self._slots, mixed.shape[0] * mixed.shape[1] // self._slots, len(x)).mT)


class _Words:
    """Heads over words, with the same number of neighbours on each side."""

    def __init__(self, members: Sequence[StackMember], device: torch.device) -> None:
        self._read, self._window = members[0].read, members[0].path.head.window
        self._maps = MapsBeside(members, device)

    def answers(self, read: HeadReads) -> StackAnswers:
        return self._maps(read.words(self._read, self._window))
