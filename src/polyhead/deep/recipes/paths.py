"""Tasks that are trained with their trunk: their paths of live states, and what determines the trained trunk."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from polyhead.deep.sharing.make import check_shapes, delta_starts
from polyhead.encoder.data import TrunkData
from polyhead.errors import TrainError, WrongTrunk
from polyhead.plan import TRUNK, Head, Layers, Path, Pool
from polyhead.project.recipes import Joint
from polyhead.project.strategies import prompt_groups
from polyhead.project.tables import LEAST_TOKENS
from polyhead.train.data.prepared import Prepared


def joint_paths(prepared: Sequence[Prepared], data: TrunkData, recipe: Joint) -> dict[str, Path]:
    """Each task's path in training: live states, no codec; kinds of a family share one owner.

    The prompts of a group are in task order. Raises TrainError if two tasks of a family have different strategies,
    since they share their arrays; ConfigError if shared arrays have two shapes or two initializations; WrongTrunk for a
    donor of another one.
    """
    groups = prompt_groups([(p.task, p.strategy) for p in prepared])
    shape = data.architecture
    paths = {}
    for p in prepared:
        _check(p)
        _check_donor(p, data)
        path = p.strategy.path(p.task, trunk=data.digest, shape=shape, group=groups[p.task.name])
        _check_room(path, p, data)
        paths[p.task.name] = _owned(path, p, recipe)
    delta_starts(paths, {p.task.name: p.strategy for p in prepared})
    first: dict[str, str] = {}
    for name, path in paths.items():
        other = first.setdefault(path.head.part, name)
        if paths[other] != path:
            raise TrainError(
                "tasks that share one head while they learn have one strategy",
                got=f"tasks '{other}' and '{name}' with different ones",
                do="give both the same strategy, or set recipe.families = []",
            )
    check_shapes(paths, shape)
    return paths


def _check_donor(p: Prepared, data: TrunkData) -> None:
    """Raises WrongTrunk for a donor over another trunk."""
    if p.donor is not None and p.donor.trunk != data.digest:
        raise WrongTrunk(
            f"task '{p.task.name}' cannot start from a donor over another trunk",
            got=f"trunk {data.digest[:16]}, the donors' {p.donor.trunk[:16]}",
            do="train the donors over this trunk, with the same max_tokens, or leave 'donors' out",
        )


def _check(p: Prepared) -> None:
    """Raises TrainError for settings that need kept states of a frozen trunk: separate pairs, choices by search."""
    strategy, task = p.strategy, p.task
    if task.pair == "separate":
        raise TrainError(
            "pairs that are read separately are trained on kept states of a frozen trunk alone",
            got=f"task '{task.name}'",
            allowed="pair = 'joined' or 'none'",
            do="set pair = 'joined', or train it over a frozen trunk with strategy 'pooled' or 'branch'",
        )
    if strategy.is_undecided:
        raise TrainError(
            "a branch that is trained together has its depth given, and no students",
            got=f"task '{p.task.name}'",
            do="set strategy.layers",
        )


def _check_room(path: Path, p: Prepared, data: TrunkData) -> None:
    """Raises TrainError if the longest text, shifted by the prompts, would exceed the position table."""
    rows = path.embed.shifted
    longest, room = data.settings.max_tokens, data.architecture.max_tokens
    shorter = f"set trunk.max_tokens to {room - rows} or fewer"
    if rows and longest + rows > room:
        raise TrainError(
            f"task '{p.task.name}': shifted positions of long texts would lie beyond the trunk's table",
            got=f"texts of up to {longest} tokens behind {rows} prompt rows",
            allowed=f"{room} together",
            do=f"{shorter if room - rows >= LEAST_TOKENS else 'give it fewer prompt rows'}, or strategy.shift = false",
        )


def _owned(path: Path, p: Prepared, recipe: Joint) -> Path:
    """The path with its part owned by the family if its kind has one; prompts and adapters are a task's own."""
    shares = p.task.kind in recipe.families and p.strategy.shares_head
    return with_owner(path, f"family:{p.task.kind}") if shares else path


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


def fingerprint_of(prepared: Sequence[Prepared], recipe: Joint, data: TrunkData) -> str:
    """A short digest of what determines the trained trunk, independent of device and memory use."""
    recipe = msgspec.structs.replace(recipe, checkpointing=False, parallel="ddp")
    settings = msgspec.to_builtins(recipe)
    if not recipe.head_epochs:  # as before there were any
        del settings["head_epochs"], settings["head_learning_rate"]
    if recipe.blend == 1:
        del settings["blend"]
    if recipe.tokens is not None and (recipe.steps is None or recipe.sampling.kind == "shuffled"):
        settings["passes"] = "by tokens"  # at first they were counted by `batch`
    if recipe.head_epochs and recipe.sampling.kind == "schedule":
        settings["probes"] = "by size"  # at first by the schedule's first epochs
    content = [data.digest, settings, [p.fingerprint() for p in prepared]]
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:16]
