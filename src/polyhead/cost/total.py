"""The whole cost of a plan, and what one task adds to it."""

from __future__ import annotations

from polyhead.architecture import Architecture
from polyhead.arguments import typed
from polyhead.config import Value
from polyhead.cost.arrays import OwnedArray, arrays_of_path, arrays_of_plan
from polyhead.cost.place import Place, places
from polyhead.cost.stored import stored_bytes
from polyhead.cost.work import Work, work_of
from polyhead.plan import TRUNK, Embed, Plan, Pool, Step, owners_of_node

FLOAT_BYTES = 4  # arrays are kept in float32


class OwnerCost(Value):
    """What one owner's arrays cost: how many numbers they hold, and the work done with them on one text."""

    owner: str
    flops: int
    parameters: int
    layer_evaluations: int


class Cost(Value):
    """What a plan, or one task of it, costs on one text."""

    flops: int
    parameters: int
    bytes: int  # of the arrays, in float32
    stored_bytes: int  # what a store keeps for one text of that length
    layer_evaluations: int  # layers run on the text, shared ones counted once
    owners: tuple[OwnerCost, ...]


@typed
def cost_of(plan: Plan, shape: Architecture, tokens: int, *, folded: bool = False) -> Cost:
    """All of the plan on one text of `tokens` tokens, special ones included; `folded` as `flops` says."""
    return _cost(
        work_of(plan, shape, tokens, folded=folded),
        list(arrays_of_plan(plan, shape)),
        _stored(plan, None, shape, tokens),
    )


def added(plan: Plan, task: str, shape: Architecture, tokens: int, *, folded: bool = False) -> Cost:
    """What `task` adds to a pass of the plain trunk that is run anyway, shared with no other task.

    FLOPs and layer evaluations are those of the steps that no other task passes, from where the path leaves
    the plain trunk (the trunk's own layers without prompts and deltas): a branch, a pooler, a head; for an
    in-layer delta also the trunk's layers, run anew. Parameters and bytes are those of owners that no other
    task reads. Raises PlanError when the plan has no such task.
    """
    path = plan.path(task)
    own = _own(plan, task)
    # The rows of a text under isolated prompts are shared by steps of other paths, so all must be seen.
    near = plan if any(_is_isolated(step) for step in plan.steps) else _along(plan, task)
    return _cost(
        [w for w in work_of(near, shape, tokens, folded=folded) if w.tasks == (task,) and not w.is_plain],
        [array for array in arrays_of_path(path, shape) if array.owner in own],
        _stored(plan, task, shape, tokens),
    )


def flops_by_sharers(
    plan: Plan, shape: Architecture, tokens: int, *, folded: bool = False
) -> dict[tuple[str, ...], int]:
    """FLOPs beyond the plain trunk's pass, by the tasks that share the work; with that pass they are the plan's.

    A single task's are what `added` says of it. What several tasks pass together, such as the input of a joint prompt
    group or layers with an adapter that they share, stands under all of them.
    """
    found: dict[tuple[str, ...], int] = {}
    for work in work_of(plan, shape, tokens, folded=folded):
        if work.flops and not work.is_plain:
            found[work.tasks] = found.get(work.tasks, 0) + work.flops
    return found


def _cost(work: list[Work], arrays: list[OwnedArray], stored: int) -> Cost:
    names = dict.fromkeys([*(a.owner for a in arrays), *(w.owner for w in work)])
    flops, sizes, layers = (dict.fromkeys(names, 0) for _ in range(3))
    for array in arrays:
        sizes[array.owner] += array.size
    for item in work:
        flops[item.owner] += item.flops
        layers[item.owner] += item.layers
    return Cost(
        flops=sum(flops.values()),
        parameters=sum(sizes.values()),
        bytes=FLOAT_BYTES * sum(sizes.values()),
        stored_bytes=stored,
        layer_evaluations=sum(layers.values()),
        owners=tuple(
            OwnerCost(owner=n, flops=flops[n], parameters=sizes[n], layer_evaluations=layers[n])
            for n in names
        ),
    )


def _stored(plan: Plan, task: str | None, shape: Architecture, tokens: int) -> int:
    """Bytes a store keeps for one text: each distinct value once, or those that `task` alone reads."""
    kept: dict[tuple[int, Pool], tuple[Place, set[str]]] = {}
    for step, at in zip(plan.steps, places(plan, shape), strict=True):
        if isinstance(step.node, Pool):
            kept.setdefault((step.parent, step.node.stored()), (at, set()))[1].update(step.tasks)
    return sum(
        stored_bytes(
            pool,
            shape,
            tokens + (at.prompt_rows if pool.positions == "all" else 0),
            layers=at.depth,
            width=at.width,
        )
        for (_, pool), (at, tasks) in kept.items()
        if task is None or tasks == {task}
    )


def _own(plan: Plan, task: str) -> set[str]:
    """Owners that the task reads and no other does, the trunk left out."""
    mine: set[str] = set()
    others: set[str] = set()
    for step in plan.steps:
        names = set(owners_of_node(step.node)) - {TRUNK}
        if step.tasks == (task,):
            mine |= names
        elif not (task in step.tasks and isinstance(step.node, Embed)):
            # A prompt of a joint group stands in every task's input; it belongs to the task that pools it.
            others |= names
    return mine - others


def _is_isolated(step: Step) -> bool:
    return isinstance(step.node, Embed) and step.node.isolated


def _along(plan: Plan, task: str) -> Plan:
    """The steps on the task's path alone, still knowing which other tasks pass them."""
    steps = [step for step in plan.steps if task in step.tasks]
    return Plan(
        steps=tuple(Step(node=s.node, parent=index - 1, tasks=s.tasks) for index, s in enumerate(steps))
    )
