"""Parameters, layers and FLOPs of every method, counted from plans and shapes alone; and table 1 of the paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from polyhead.encoder.shape import Architecture
from polyhead.plan import TRUNK, Path, Plan, Pool, merge
from polyhead.plan.cost import arrays_of_plan, flops, layer_evaluations, parameters
from polyhead.project.strategies import InLayer, Pooled, Strategy
from polyhead.tasks.task import Task
from polyhead.values import Value
from studies.huang2022.counts import BERT_BASE
from studies.stickland2019.methods import METHODS, TASKS, WIDTH, Method, in_proportion

TOKENS = 128
NUMBERS = (1, 8, 21)

# Table 1 and sections 3.1 to 3.3: matrices of T tasks' functions; d the width, n the layers of BERT
_Formula = tuple[str, Callable[[int, int, int], int]]
FORMULAS: dict[str, _Formula] = {
    "pals": ("T (2 d 204 + 3 n 204²)", lambda d, n, t: t * (2 * d * 204 + 3 * n * 204**2)),
    "pals-untied": ("T n (2 d 84 + 3 84²)", lambda d, n, t: t * n * (2 * d * 84 + 3 * 84**2)),
    "low-rank": ("T n 2 d 100", lambda d, n, t: t * n * 2 * d * 100),
    "pals-top": ("T (2 d 276 + 3 n/2 276²)", lambda d, n, t: t * (2 * d * 276 + 3 * n // 2 * 276**2)),
    "pals-bottom": ("T (2 d 276 + 3 n/2 276²)", lambda d, n, t: t * (2 * d * 276 + 3 * n // 2 * 276**2)),
    "ffn": ("T (2 d 204 + n 2 204 306)", lambda d, n, t: t * (2 * d * 204 + n * 2 * 204 * 306)),
    "on-top": ("T (2 d 204 + 6 4 204²)", lambda d, n, t: t * (2 * d * 204 + 6 * 4 * 204**2)),
    "ffn-on-top": ("T (2 d 204 + 6 2 204 408)", lambda d, n, t: t * (2 * d * 204 + 6 * 2 * 204 * 408)),
    "layer-on-top": ("T 12 d²", lambda d, n, t: t * 12 * d**2),
    "scale": ("T n d", lambda d, n, t: t * n * d),
    "low-rank-10": ("T n 2 d 10", lambda d, n, t: t * n * 2 * d * 10),
    "pals-60": ("T (2 d 60 + 3 n 60²)", lambda d, n, t: t * (2 * d * 60 + 3 * n * 60**2)),
}


class Costs(Value):
    """What a method costs for so many tasks, output layers left out."""

    parameters: int  # of all that serves the tasks
    ratio: float  # over one encoder with its pooler
    layer_ratio: float  # embeddings left out: over the layers of one encoder
    own: int  # in matrices of the tasks' functions, poolers left out: what the paper's formulas give
    new_layers: int  # of the tasks' own on the way of one: functions in layers, or layers on top
    layers: int  # evaluated for one text and all tasks
    flops: int  # of these, poolers and heads left out
    share: float  # of the FLOPs of an encoder a task


class Formula(Value):
    """A row of table 1: what the formula gives for BERT-base and eight tasks, and what our arrays hold."""

    method: str
    formula: str
    value: int
    counted: Costs


def strategy_of(method: Method, shape: Architecture) -> Strategy:
    """The method's strategy on a trunk of this shape."""
    strategy = in_proportion(method.strategy, shape)
    if not method.within:
        return strategy
    assert isinstance(strategy, InLayer)
    most = parameters(_plan(METHODS[method.within], shape, TASKS), shape)
    (adapter,) = strategy.adapters
    assert adapter.size is not None
    for size in range(adapter.size, 0, -adapter.heads):
        strategy = msgspec.structs.replace(strategy, adapters=(msgspec.structs.replace(adapter, size=size),))
        if parameters(merge(_paths(strategy, shape, _tasks(TASKS), "")), shape) <= most:
            break
    return strategy


def paths_of(method: Method, shape: Architecture, tasks: Sequence[Task], *, trunk: str) -> dict[str, Path]:
    """Every task's path; `trunk` is the trunk's digest."""
    return _paths(strategy_of(method, shape), shape, tasks, trunk)


def costs(method: Method, shape: Architecture, *, tasks: int = TASKS, tokens: int = TOKENS) -> Costs:
    """For `tasks` tasks and one text of `tokens` tokens."""
    if method.base == "single" and tasks > 1:
        return _times(costs(method, shape, tasks=1, tokens=tokens), tasks)
    plan, single = _plan(method, shape, tasks), _plan(METHODS["shared"], shape, 1)
    held, base = _without_outputs(plan, shape), _without_outputs(single, shape)
    layers = sum(a.size for a in arrays_of_plan(single, shape) if a.name.startswith("layers."))
    own = [a for a in arrays_of_plan(plan, shape) if a.owner != TRUNK and not a.name.startswith("head.")]
    spent = flops(_encoder(plan), shape, tokens)
    path = plan.path(plan.tasks[0])
    return Costs(
        parameters=held,
        ratio=held / base,
        layer_ratio=1 + (held - base) / layers,
        own=sum(a.size for a in own if a.is_matrix),
        new_layers=sum(n.stop - n.start for n in path.layers if n.delta is not None or n.weights != TRUNK),
        layers=layer_evaluations(plan),
        flops=spent,
        share=spent / (tasks * flops(_encoder(single), shape, tokens)),
    )


def _times(costs: Costs, tasks: int) -> Costs:
    """Of so many encoders that have nothing in common."""
    return msgspec.structs.replace(
        costs,
        parameters=tasks * costs.parameters,
        ratio=tasks * costs.ratio,
        layer_ratio=tasks * costs.layer_ratio,
        own=tasks * costs.own,
        layers=tasks * costs.layers,
        flops=tasks * costs.flops,
    )


def size_notes(shape: Architecture) -> tuple[str, ...]:
    """What to know of methods whose width in the paper's proportion their heads do not divide on this trunk."""
    notes, pals = [], costs(METHODS["pals"], shape).own
    for method in METHODS.values():
        before, after = method.strategy, strategy_of(method, shape)
        if not (isinstance(before, InLayer) and isinstance(after, InLayer)) or method.within:
            continue
        for paper, ours in zip(before.adapters, after.adapters, strict=True):
            exact = (paper.size or 0) * shape.width / WIDTH
            if paper.delta == "projected_attention" and ours.size != exact:
                notes.append(
                    f"{method.title}: {ours.size} wide where {exact:g} would be in proportion, which {ours.heads} "
                    f"heads do not divide; {costs(method, shape).own:,} parameters in matrices, PALs {pals:,}"
                )
    return tuple(notes)


def table1() -> tuple[Formula, ...]:
    """Every formula, for BERT-base."""
    return tuple(
        Formula(
            method=name,
            formula=formula,
            value=value(BERT_BASE.width, BERT_BASE.layers, TASKS),
            counted=costs(METHODS[name], BERT_BASE),
        )
        for name, (formula, value) in FORMULAS.items()
    )


def _plan(method: Method, shape: Architecture, tasks: int) -> Plan:
    return merge(paths_of(method, shape, _tasks(tasks), trunk=""))


def _paths(strategy: Strategy, shape: Architecture, tasks: Sequence[Task], trunk: str) -> dict[str, Path]:
    from polyhead.project.strategies.base import with_shared_pooler

    paths = {task.name: strategy.path(task, trunk=trunk, shape=shape) for task in tasks}
    if isinstance(strategy, Pooled):
        return {name: with_shared_pooler(path) for name, path in paths.items()}
    return paths


def _tasks(count: int) -> list[Task]:
    return [Task(name=f"t{index}", kind="single_label", labels=("no", "yes")) for index in range(count)]


def _without_outputs(plan: Plan, shape: Architecture) -> int:
    return sum(a.size for a in arrays_of_plan(plan, shape) if not a.name.startswith("head.output"))


def _encoder(plan: Plan) -> Plan:
    """Embeddings and layers alone."""
    paths = {}
    for task in plan.tasks:
        nodes = plan.path(task).nodes
        end = next(index for index, node in enumerate(nodes) if isinstance(node, Pool))
        paths[task] = Path(nodes=nodes[:end])
    return merge(paths)
