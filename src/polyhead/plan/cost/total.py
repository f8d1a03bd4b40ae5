"""The total cost of a plan, the cost that one task adds, and the bytes that a store keeps for one text."""

from __future__ import annotations

from collections.abc import Sequence

from polyhead.arguments import typed
from polyhead.encoder.shape import Architecture
from polyhead.errors import PlanError
from polyhead.plan import TRUNK, Codec, Embed, Path, Plan, Pool, Step, owners_of_node
from polyhead.plan.cost.arrays import Offset, OwnedArray, arrays_of_path, arrays_of_plan, places
from polyhead.plan.cost.work import Work, work_of
from polyhead.values import Value

FLOAT_BYTES = 4  # arrays are kept in float32


class OwnerCost(Value):
    """The cost of one owner's arrays: their parameters, and the work done with them on one text."""

    owner: str
    flops: int
    parameters: int
    layer_evaluations: int


class Cost(Value):
    """The cost of a plan, or of one of its tasks, on one text."""

    flops: int
    parameters: int
    bytes: int  # of the arrays, in float32
    stored_bytes: int  # bytes in a store for one text of that length
    layer_evaluations: int  # layers run on the text; shared layers count once
    owners: tuple[OwnerCost, ...]


@typed
def cost_of(plan: Plan, shape: Architecture, tokens: int, *, folded: bool = False) -> Cost:
    """The cost of the plan on one text of `tokens` tokens, special tokens included; `folded` as for `flops`."""
    return _cost(
        work_of(plan, shape, tokens, folded=folded),
        list(arrays_of_plan(plan, shape)),
        sum(_stored_by_tasks(plan, shape, tokens).values()),
    )


def added(plan: Plan, task: str, shape: Architecture, tokens: int, *, folded: bool = False) -> Cost:
    """The cost that `task` alone adds to a pass of the plain trunk that is run anyway.

    FLOPs and layer evaluations count the steps that only this task uses, from where its path leaves the plain trunk
    (the trunk's own layers without prompts and deltas): a branch, a pooler, a head; for an in-layer delta also the
    trunk's layers, which are run again. Parameters and bytes are those of owners whose arrays no other task reads.
    Raises PlanError if the plan has no such task.
    """
    plan.path(task)
    return added_each(plan, [task], shape, tokens, folded=folded)[task]


def added_each(
    plan: Plan, tasks: Sequence[str], shape: Architecture, tokens: int, *, folded: bool = False
) -> dict[str, Cost]:
    """The result of `added` for many tasks, with one pass over the plan's steps."""
    # Steps of other paths share a text's rows under isolated prompts, so all steps must be considered.
    is_near = len(tasks) == 1 and not any(isinstance(step.node, Embed) and step.node.isolated for step in plan.steps)
    near, steps = _along(plan, tasks[0]) if is_near else plan, _steps_of(plan)
    work: dict[tuple[str, ...], list[Work]] = {}
    for done in work_of(near, shape, tokens, folded=folded):
        if not done.is_plain:
            work.setdefault(done.tasks, []).append(done)
    kept, owners = _stored_by_tasks(plan, shape, tokens), _unshared_owners(plan)
    return {
        task: _cost(
            work.get((task,), []),
            [
                array
                for array in arrays_of_path(Path(nodes=tuple(step.node for step in steps[task])), shape)
                if array.owner in owners.get(task, ())
            ],
            kept.get(frozenset([task]), 0),
        )
        for task in tasks
    }


def flops_by_sharers(
    plan: Plan, shape: Architecture, tokens: int, *, folded: bool = False
) -> dict[tuple[str, ...], int]:
    """FLOPs beyond the plain trunk's pass, by the tasks that share the work; with that pass they add up to the plan's.

    A single task's are those of `added`. Work that several tasks share, such as the input of a joint prompt group or
    layers with a shared adapter, is listed under all of them.
    """
    flops: dict[tuple[str, ...], int] = {}
    for work in work_of(plan, shape, tokens, folded=folded):
        if work.flops and not work.is_plain:
            flops[work.tasks] = flops.get(work.tasks, 0) + work.flops
    return flops


TELLING = 0.01  # of the whole: smaller shared work is not listed separately


def shared_flops(plan: Plan, shape: Architecture, tokens: int) -> dict[tuple[str, ...], int]:
    """FLOPs that these tasks share beyond the plain trunk's pass, such as those of joint prompts, by the tasks.

    They are saved only if all of these tasks are removed. Shares below TELLING of the total are omitted.
    """
    flops = flops_by_sharers(plan, shape, tokens, folded=True)
    least = TELLING * cost_of(plan, shape, tokens, folded=True).flops
    return {tasks: shared for tasks, shared in flops.items() if len(tasks) > 1 and shared >= least}


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
            OwnerCost(owner=n, flops=flops[n], parameters=sizes[n], layer_evaluations=layers[n]) for n in names
        ),
    )


def _stored_by_tasks(plan: Plan, shape: Architecture, tokens: int) -> dict[frozenset[str], int]:
    """Bytes in a store for one text, each distinct value once, by the tasks that read it."""
    kept: dict[tuple[int, Pool], tuple[Offset, set[str]]] = {}
    for step, at in zip(plan.steps, places(plan, shape), strict=True):
        if isinstance(step.node, Pool):
            kept.setdefault((step.parent, step.node.stored()), (at, set()))[1].update(step.tasks)
    sizes: dict[frozenset[str], int] = {}
    for (_, pool), (at, tasks) in kept.items():
        rows = tokens + (at.prompt_rows if pool.positions == "all" else 0)
        size = stored_bytes(pool, shape, rows, layers=at.depth, width=at.width)
        sizes[frozenset(tasks)] = sizes.get(frozenset(tasks), 0) + size
    return sizes


def _unshared_owners(plan: Plan) -> dict[str, set[str]]:
    """For each task, the owners that only it reads, without the trunk."""
    readers: dict[str, list[Step]] = {}
    for step in plan.steps:
        for owner in set(owners_of_node(step.node)) - {TRUNK}:
            readers.setdefault(owner, []).append(step)
    owned: dict[str, set[str]] = {}
    for owner, steps in readers.items():
        for task in dict.fromkeys(step.tasks[0] for step in steps if len(step.tasks) == 1):
            if not any(_is_of_others(step, task) for step in steps):
                owned.setdefault(task, set()).add(owner)
    return owned


def _is_of_others(step: Step, task: str) -> bool:
    """True if another task reads arrays that the step owns.

    A prompt of a joint group is in every task's input; it belongs to the task that pools it.
    """
    return step.tasks != (task,) and not (task in step.tasks and isinstance(step.node, Embed))


def _steps_of(plan: Plan) -> dict[str, list[Step]]:
    """The steps of each task's path."""
    by_task: dict[str, list[Step]] = {}
    for step in plan.steps:
        for task in step.tasks:
            by_task.setdefault(task, []).append(step)
    return by_task


def _along(plan: Plan, task: str) -> Plan:
    """The steps of the task's path, each with all tasks that use it."""
    steps = [step for step in plan.steps if task in step.tasks]
    return Plan(steps=tuple(Step(node=s.node, parent=index - 1, tasks=s.tasks) for index, s in enumerate(steps)))


def vector_bytes(codec: Codec, width: int) -> int:
    """Bytes of one encoded vector."""
    return codec.format.row_bytes(width)


def stored_bytes(
    pool: Pool, shape: Architecture, tokens: int, *, layers: int | None = None, width: int | None = None
) -> int:
    """Bytes kept for one text of `tokens` tokens so that `pool` can be computed from them (Du et al. 2020, Table 2).

    A pool that learns over positions needs all tokens, one that learns over layers all `layers` (default: the trunk's,
    without the embedding's output). With a codec before the mean, each of the averaged layers is kept.
    """
    if tokens < 1:
        raise PlanError("a text has at least one token", got=tokens, allowed="1 or more")
    kept = pool.stored()
    depth = 1
    if kept.layers == "all":
        depth = shape.layers if layers is None else layers
    elif kept.layers == "mean" and kept.codec.before_mean:
        depth = kept.of
    rows = tokens if kept.positions in ("all", "tokens") else 1
    return rows * depth * vector_bytes(kept.codec, width or shape.width)
