"""The paths of tasks whose trunk learns with them: live states, and heads that a family may share."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from polyhead.errors import TrainError
from polyhead.plan import TRUNK, Codec, Head, Layers, Path, Pool
from polyhead.project import Branch
from polyhead.recipe import Joint
from polyhead.sharing.branch import branch_path
from polyhead.sharing.pooled import pooled_path
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.train.prepare import Prepared
from polyhead.trunk_data import TrunkData


def joint_paths(prepared: Sequence[Prepared], data: TrunkData, recipe: Joint) -> dict[str, Path]:
    """Each task's path while it learns: live states, no codec; kinds of a family share one owner.

    Raises TrainError where two tasks of a family have different strategies, since they share what they own.
    """
    found = {p.task.name: _owned(_path(p, data), p.task, recipe) for p in prepared}
    first: dict[str, str] = {}
    for name, path in found.items():
        other = first.setdefault(path.head.part, name)
        if found[other] != path:
            raise TrainError(
                "tasks that share one head while they learn have one strategy",
                got=f"tasks '{other}' and '{name}' with different ones",
                do="give both the same strategy, or set recipe.families = []",
            )
    return found


def _path(p: Prepared, data: TrunkData) -> Path:
    shape, strategy = data.architecture, p.strategy
    if isinstance(strategy, Branch):
        if strategy.layers is None or strategy.students:
            raise TrainError(
                "a branch that is trained together has its depth given, and no students",
                got=f"task '{p.task.name}'",
                do="set strategy.layers",
            )
        tap = shape.layers - strategy.layers if strategy.tap is None else strategy.tap
        return branch_path(p.task, strategy, trunk=data.digest, shape=shape, tap=tap, layers=strategy.layers)
    if strategy.positions == "auto" and not kind_of(p.task).per_word:
        raise TrainError(
            "which pooler is best is found over a frozen trunk; a trunk that learns needs it given",
            got=f"task '{p.task.name}', positions 'auto'",
            allowed="first, mean, attention",
        )
    return pooled_path(p.task, strategy, trunk=data.digest, shape=shape, codec=Codec(name="float32"))


def _owned(path: Path, task: Task, recipe: Joint) -> Path:
    """The path with its part owned by the family where its kind has one."""
    return with_owner(path, f"family:{task.kind}") if task.kind in recipe.families else path


def with_owner(path: Path, owner: str) -> Path:
    """The same path whose part belongs to another owner."""
    nodes = []
    for node in path.nodes:
        match node:
            case Head():
                node = msgspec.structs.replace(node, part=owner)
            case Pool() if node.part is not None:
                node = msgspec.structs.replace(node, part=owner)
            case Layers() if node.weights != TRUNK:
                node = msgspec.structs.replace(node, weights=owner)
        nodes.append(node)
    return Path(nodes=tuple(nodes))


def with_trunk(path: Path, digest: str) -> Path:
    """The same path over another trunk."""
    embed = msgspec.structs.replace(path.embed, trunk=digest)
    return Path(nodes=(embed, *path.nodes[1:]))
