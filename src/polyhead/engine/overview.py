"""A bundle at a glance: its tasks with their scores, and what each costs on one text, counted from shapes."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType

from polyhead.bundle.read import Bundle
from polyhead.encoder.shape import Architecture
from polyhead.plan import Plan, cost, merge
from polyhead.plan.cost import Cost
from polyhead.plan.cost.total import FLOAT_BYTES
from polyhead.values import Value


class TrunkOverview(Value):
    """A bundle's encoder."""

    name: str
    digest: str
    architecture: Architecture


class TaskOverview(Value):
    """A task that reads the trunk."""

    kind: str
    labels: tuple[str, ...]
    version: str
    pinned: bool
    metric: str
    score: float | None
    split: str | None  # on which it was scored: test, else validation
    added: Cost  # what it adds to the others


class FamilyOverview(Value):
    """Arrays that tasks share."""

    version: str
    tasks: tuple[str, ...]  # that read them
    parameters: int
    bytes: int


class SharedWork(Value):
    """FLOPs that some tasks take together beyond the shared pass."""

    tasks: tuple[str, ...]
    flops: int


class BundleOverview(Value):
    """A bundle's tasks and costs on one text of `tokens` tokens; without a task there is no plan and no cost."""

    bundle: str
    trunk: TrunkOverview
    verified: bool
    tokens: int
    tasks: dict[str, TaskOverview]
    families: dict[str, FamilyOverview] | UnsetType = UNSET
    together: tuple[SharedWork, ...] | UnsetType = UNSET
    plan: Plan | UnsetType = UNSET
    total: Cost | UnsetType = UNSET


def overview(bundle: Bundle, tokens: int, *, verified: bool = False) -> BundleOverview:
    """The overview of a bundle; `verified`: every file was hashed. Poolers are counted folded, as served."""
    shape = bundle.architecture
    trunk = TrunkOverview(name=bundle.trunk_name, digest=bundle.digest, architecture=shape)
    facts: dict[str, Any] = {"bundle": str(bundle.root), "trunk": trunk, "verified": verified, "tokens": tokens}
    if not bundle.tasks:
        return BundleOverview(**facts, tasks={})
    plan = merge({name: record.path for name, record in bundle.tasks.items()})
    added = cost.added_each(plan, list(bundle.tasks), shape, tokens, folded=True)
    together = cost.shared_flops(plan, shape, tokens).items()
    total = cost.cost_of(plan, shape, tokens, folded=True)
    return BundleOverview(
        **facts,
        tasks={name: _task(bundle, name, added[name]) for name in bundle.tasks},
        families=_families(bundle, total),
        together=tuple(SharedWork(tasks=names, flops=flops) for names, flops in together),
        plan=plan,
        total=total,
    )


def _task(bundle: Bundle, name: str, added: Cost) -> TaskOverview:
    task, (metric, score) = bundle.tasks[name].task, bundle.headline(name)
    measured = [split for split, scores in bundle.split_scores(name).items() if metric in scores]
    return TaskOverview(
        kind=task.kind,
        labels=task.labels,
        version=bundle.version(name),
        pinned=bundle.lines[name].pinned,
        metric=metric,
        score=score,
        split="test" if "test" in measured else measured[-1] if measured else None,
        added=added,
    )


def _families(bundle: Bundle, total: Cost) -> dict[str, FamilyOverview]:
    sizes = dict.fromkeys(bundle.families, 0) | {cost.owner: cost.parameters for cost in total.owners}
    return {
        owner: FamilyOverview(
            version=live.version,
            tasks=tuple(name for name, record in bundle.tasks.items() if owner in record.needs),
            parameters=sizes[owner],
            bytes=FLOAT_BYTES * sizes[owner],
        )
        for owner, live in bundle.families.items()
    }
