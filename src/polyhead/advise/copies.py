"""Any number of tasks as copies of trained ones, so that one trained set shows the cost of 1 to 32 tasks."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.owners import TASK_OF, owner_named
from polyhead.encoder.shape import Architecture
from polyhead.engine.backends.base import LoadedTask
from polyhead.plan import TRUNK, Path, Prompt, cost, owners_of


def copy_name(number: int) -> str:
    """The name of the copy of this number."""
    return f"copy-{number}"


def copies(records: Sequence[TaskRecord], count: int) -> dict[str, TaskRecord]:
    """`count` tasks by name, which copy `records` in turn; each owns its arrays.

    Prompts of a group share one input, and so do the prompts of all copies.
    """
    copied = {}
    for number in range(count):
        base = number % len(records)
        record, name = records[base], copy_name(number)
        path = _path_of(records, base, number, count)
        task = msgspec.structs.replace(record.task, name=name)
        copied[name] = msgspec.structs.replace(record, task=task, path=path, owner=owner_named(name))
    return copied


def copied_arrays(
    records: Mapping[str, TaskRecord], tasks: Sequence[LoadedTask], shape: Architecture
) -> dict[str, LoadedTask]:
    """The copies, `records`, with their arrays; `tasks` are those that were copied, in order."""
    copied, arrays = dict(zip(records, itertools.cycle(tasks), strict=False)), dict[str, LoadedTask]()
    for name, record in records.items():
        path, read = record.path, dict[str, dict[str, np.ndarray]]()
        for owner in set(owners_of(path)) - {TRUNK, path.head.part}:
            if owner.startswith(TASK_OF):
                owner_arrays = copied[owner.removeprefix(TASK_OF)].arrays
                read[owner] = {leaf: owner_arrays[leaf] for leaf in cost.part_arrays(path, shape, owner)}
            else:
                read[owner] = dict(copied[name].others[owner])
        arrays[name] = LoadedTask(path=path, arrays=dict(copied[name].arrays), others=read)
    return arrays


def _path_of(records: Sequence[TaskRecord], base: int, number: int, count: int) -> Path:
    path = records[base].path
    owner = owner_named(records[base].task.name)
    embed = path.embed
    if len(embed.prompts) > 1 or is_group(path):
        shared = [prompt for prompt in embed.prompts if not prompt.part.startswith(TASK_OF)]
        rows = next(prompt.rows for prompt in embed.prompts if prompt.part == owner)
        prompts = [Prompt(part=owner_named(copy_name(copy)), rows=rows) for copy in range(count)]
        embed = msgspec.structs.replace(embed, prompts=(*shared, *prompts))
        path = Path(nodes=(embed, *path.nodes[1:]))
    renamed = _renamed(msgspec.to_builtins(path), owner, owner_named(copy_name(number)))
    return msgspec.convert(renamed, Path)


def _renamed(value: Any, old: str, new: str) -> Any:
    if isinstance(value, dict):
        return {key: _renamed(item, old, new) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_renamed(item, old, new) for item in value]
    return new if value == old else value


def is_group(path: Path) -> bool:
    """Whether the path's prompts share an input with others that the text sees."""
    return bool(path.embed.prompts) and not path.embed.isolated
