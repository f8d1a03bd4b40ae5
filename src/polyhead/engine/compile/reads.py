"""What pools read of a plan's states, and what heads must have alike to be computed together."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from polyhead.engine.compile.heads import SlotForm, output_of
from polyhead.errors import PlanError
from polyhead.plan import Embed, Layers, Node, Path, Plan, Pool
from polyhead.plan.passes import Passes
from polyhead.trunk.shape import Architecture

Chain = tuple[Node, ...]  # nodes from the root to a step: what its states are
State = tuple[int, int]  # a step and which of its states: n, after so many of its layers; -n, the mean of its last n


class Read(msgspec.Struct, frozen=True):
    """A pool of some tasks, and the step whose states, and those above it, it reads."""

    at: int
    pool: Pool
    tasks: tuple[str, ...]
    aside: bool = False  # it reads the rows of an isolated prompt


def reads_of(passes: Passes) -> Iterator[Read]:
    """Every pool of the plan, those beside its texts too."""
    for step in passes.plan.steps:
        if isinstance(step.node, Pool):
            yield Read(step.parent, step.node, step.tasks)
    for task, aside in passes.asides.items():
        yield Read(aside.step, aside.pool, (task,), aside=True)


def chain(plan: Plan, index: int) -> Chain:
    """The nodes from the root to this step."""
    nodes: list[Node] = []
    while index >= 0:
        nodes.append(plan.steps[index].node)
        index = plan.steps[index].parent
    return tuple(reversed(nodes))


def root_of(plan: Plan, index: int) -> int:
    """The step above all that this one rests on."""
    while plan.steps[index].parent >= 0:
        index = plan.steps[index].parent
    return index


def depth(plan: Plan, index: int) -> int:
    """How many layers the step runs."""
    node = plan.steps[index].node
    return node.stop - node.start if isinstance(node, Layers) else 0


def states_read(plan: Plan, read: Read, *, mixed: bool) -> list[State]:
    """The states that a pool mixes, in order; with `mixed` one, where all are of one step and averaged uncoded."""
    pool, states = read.pool, list[State]()
    at = read.at
    while isinstance(plan.steps[at].node, Layers):
        states = [(at, number) for number in range(1, depth(plan, at) + 1)] + states
        at = plan.steps[at].parent
    wanted = {"last": 1, "mean": pool.of, "learned": len(states), "all": len(states)}[pool.layers]
    if pool.layers == "mean" and wanted > len(states):
        raise PlanError("a pool averages more layers than its path runs", got=pool.of, allowed=len(states))
    if not states:
        return [(read.at, 0)]
    states = states[len(states) - wanted :]
    node = plan.steps[read.at].node
    one = len(states) > 1 and {step for step, _ in states} == {read.at} and not node.leave  # type: ignore[union-attr]
    return [(read.at, -len(states))] if mixed and one and is_mean(pool) else states


def is_mean(pool: Pool) -> bool:
    """Whether what the pool mixes may be averaged before anything else."""
    return pool.layers == "mean" and not pool.codec.before_mean


def form_of(plan: Plan, read: Read, path: Path, shape: Architecture, *, shared: bool) -> SlotForm:
    """The form of a task that reads this; `shared` where its bits may depend on what else is computed with it."""
    pool, head = path.pool, path.head
    owners = [prompt.part for prompt in path.embed.prompts]
    if pool.positions == "prompt" and pool.part not in owners:
        raise PlanError(
            "a pool of prompt rows needs a prompt of its own part before the text", got=pool.part, allowed=owners
        )
    states = states_read(plan, read, mixed=shared)
    widths = {width_after(plan, step, number, shape) for step, number in states}
    if len(widths) > 1:
        raise PlanError("a pool cannot mix layers of several widths", got=sorted(widths))
    width = widths.pop()
    return SlotForm(
        pool=msgspec.structs.replace(pool, part=None if pool.part is None else ""),
        width=width,
        layers=len(states) if pool.layers == "learned" else 1,
        mixed=states[0][1] < 0,
        hidden=0 if head.separate else head.hidden,
        activation=head.activation,
        # Features stand apart: what is read for pairs alone needs no other heads.
        output=None if shared and head.hidden and not head.separate else output_of(head),
    )


def width_after(plan: Plan, index: int, number: int, shape: Architecture) -> int:
    """The width of one of a step's states."""
    node = plan.steps[index].node
    if not isinstance(node, Layers) or node.width is None:
        return shape.width
    projected = node.leave and number == node.stop - node.start
    return shape.width if projected else node.width


def first_of(plan: Plan, index: int) -> Embed:
    """The root's node."""
    node = plan.steps[root_of(plan, index)].node
    assert isinstance(node, Embed)
    return node
