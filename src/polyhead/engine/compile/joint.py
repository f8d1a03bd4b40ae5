"""Poolers and heads of unlike forms as one graph, where all read the same states: one call in place of many.

To begin a call of a small graph takes as long as its products do (docs/project/log.md, 2026-11-25).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from polyhead.engine.compile.arrangement import HeadForm, SlotGroup
from polyhead.engine.compile.ops import Build, InputKind, Ops, Tensor

Unit = Sequence[SlotGroup[HeadForm, str]]


def joint_graph(builds: Sequence[Build], names: Sequence[Mapping[str, str]]) -> Build:
    """All groups' answers, under the names of `output_in`; `names` are what each group's inputs are called."""

    def build(ops: Ops) -> dict[str, Tensor]:
        outputs: dict[str, Tensor] = {}
        for number, (group_build, group_names) in enumerate(zip(builds, names, strict=True)):
            parts = group_build(cast(Ops, _Renamed(ops, group_names)))
            outputs |= {output_in(number, name): tensor for name, tensor in parts.items()}
        return outputs

    return build


def output_in(number: int, name: str) -> str:
    """The name of an output of the group of this number."""
    return f"{number}.{name}"


class _Renamed:
    """The same operators, for a graph within a graph: its inputs have other names."""

    def __init__(self, ops: Ops, names: Mapping[str, str]) -> None:
        self._ops, self._names = ops, names

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def input(self, name: str, kind: InputKind, shape: Sequence[int]) -> Tensor:
        return self._ops.input(self._names[name], kind, shape)
