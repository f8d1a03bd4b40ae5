"""Any number of tasks as copies of trained ones, so that one trained set shows the cost of 1 to 32 tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.owners import TASK_OF, owner_named
from polyhead.encoder.shape import Architecture
from polyhead.engine.backends.base import LoadedTask
from polyhead.plan import TRUNK, Embed, Path, Prompt, cost, owners_of
from polyhead.values import Value


class Copied(Value, eq=False):
    """A copy of a task: the number of the original, its record and its path."""

    base: int
    record: TaskRecord


def copy_name(number: int) -> str:
    """The name of the copy of this number."""
    return f"copy-{number}"


def copies(records: Sequence[TaskRecord], count: int) -> dict[str, Copied]:
    """This many tasks by name, which copy the given ones in turn; each owns its arrays.

    Prompts of a group share one input: so do those of all copies.
    """
    made = {}
    for number in range(count):
        base = number % len(records)
        record, name = records[base], copy_name(number)
        path = _path_of(records, base, number, count)
        task = msgspec.structs.replace(record.task, name=name)
        made[name] = Copied(
            base=base, record=msgspec.structs.replace(record, task=task, path=path, owner=owner_named(name))
        )
    return made


def copied_arrays(
    made: Mapping[str, Copied],
    arrays: Sequence[Mapping[str, np.ndarray]],
    others: Sequence[Mapping[str, Mapping[str, np.ndarray]]],
    shape: Architecture,
) -> dict[str, LoadedTask]:
    """The copies with their arrays; `arrays` and `others` are those of the copied tasks, in order."""
    loaded = {}
    for name, copied in made.items():
        path, read = copied.record.path, dict[str, dict[str, np.ndarray]]()
        for owner in set(owners_of(path)) - {TRUNK, path.head.part}:
            if owner.startswith(TASK_OF):
                base = made[owner.removeprefix(TASK_OF)].base
                names = cost.part_arrays(path, shape, owner)
                read[owner] = {leaf: arrays[base][leaf] for leaf in names}
            else:
                read[owner] = dict(others[copied.base][owner])
        loaded[name] = LoadedTask(path=path, arrays=dict(arrays[copied.base]), others=read)
    return loaded


def _path_of(records: Sequence[TaskRecord], base: int, number: int, count: int) -> Path:
    path = records[base].path
    own = owner_named(records[base].task.name)
    embed = path.embed
    if len(embed.prompts) > 1 or (embed.prompts and not embed.isolated):
        shared = [prompt for prompt in embed.prompts if not prompt.part.startswith(TASK_OF)]
        rows = next(prompt.rows for prompt in embed.prompts if prompt.part == own)
        prompts = [Prompt(part=owner_named(copy_name(copy)), rows=rows) for copy in range(count)]
        embed = msgspec.structs.replace(embed, prompts=(*shared, *prompts))
        path = Path(nodes=(embed, *path.nodes[1:]))
    renamed = _renamed(msgspec.to_builtins(path), own, owner_named(copy_name(number)))
    return msgspec.convert(renamed, Path)


def _renamed(value: Any, old: str, new: str) -> Any:
    if isinstance(value, dict):
        return {key: _renamed(item, old, new) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_renamed(item, old, new) for item in value]
    return new if value == old else value


def is_group(path: Path) -> bool:
    """Whether the path's prompts share an input with others that the text sees."""
    node = path.nodes[0]
    return isinstance(node, Embed) and bool(node.prompts) and not node.isolated
