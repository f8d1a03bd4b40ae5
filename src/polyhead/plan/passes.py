"""The execution of a plan: isolated prompts with one shared pass of the text, and the order of joined layers."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import msgspec

from polyhead.errors import PlanError
from polyhead.plan.nodes import TRUNK, Delta, Embed, Layers, Node, Pool, Prompt
from polyhead.plan.tree import Path, Plan, merge
from polyhead.values import Value


class Aside(Value):
    """A task's isolated prompts, which run next to the text of one step."""

    step: int  # of the plan in `Passes`: the text's last layers
    prompts: tuple[Prompt, ...]
    pool: Pool


class Passes(Value):
    """A plan without isolated prompts, and these prompts by task."""

    plan: Plan
    asides: dict[str, Aside]  # by task

    def is_seen(self, index: int) -> bool:
        """True if isolated prompts see the text of this step."""
        return bool(self.asides.keys() & set(self.plan.steps[index].tasks))


def passes_of(plan: Plan) -> Passes:
    """The plan without isolated prompts; a text that only they read is run once for all of them.

    Raises PlanError for isolated prompts in layers other than the trunk's plain ones, or if other rows are read.
    """
    roots = (step.node for step in plan.steps if isinstance(step.node, Embed))
    if any(node.isolated and node.prompts for node in roots):
        return _apart(plan)
    return Passes(plan=plan, asides={})


@functools.lru_cache(maxsize=256)
def _apart(plan: Plan) -> Passes:
    paths = {task: plan.path(task) for task in plan.tasks}
    apart = {task for task, path in paths.items() if path.embed.isolated and path.embed.prompts}
    texts = merge({task: _text(path) if task in apart else path for task, path in paths.items()})
    last = {task: i for i, step in enumerate(texts.steps) for task in step.tasks}
    return Passes(
        plan=texts,
        asides={
            task: Aside(step=last[task], prompts=paths[task].embed.prompts, pool=paths[task].pool)
            for task in paths
            if task in apart
        },
    )


def _text(path: Path) -> Path:
    plain = all(node.weights == TRUNK and node.delta is None for node in path.layers)
    if not plain or path.pool.positions != "prompt" or path.embed.shift:
        raise PlanError(
            "isolated prompts stand beside the trunk's plain layers, and their own rows alone are read",
            got=[*path.layers, path.pool],
            do="use joint prompts, or leave the deltas, private layers and shift out",
        )
    return Path(nodes=(Embed(trunk=path.embed.trunk), *path.layers))


def stages(plan: Plan, *, together: bool) -> Iterator[list[int]]:
    """The plan's Embed and Layers steps, parents first; with `together`, the trunk's over the same layers at once."""
    steps = [i for i, step in enumerate(plan.steps) if isinstance(step.node, (Embed, Layers))]
    if not together:
        yield from ([index] for index in steps)
        return
    groups: dict[tuple[int, int], list[int]] = {}
    for index in steps:
        node = plan.steps[index].node
        start = node.start if isinstance(node, Layers) else -1
        shared = isinstance(node, Layers) and node.weights == TRUNK
        groups.setdefault((start, -1 if shared else index), []).append(index)
    yield from (groups[key] for key in sorted(groups))


class Stage(Value):
    """Some of a plan's layers, and the tasks that can be answered after them."""

    groups: tuple[tuple[int, ...], ...]  # groups of steps, in order; a group runs at once
    tasks: tuple[str, ...]
    layers: int


@functools.lru_cache(maxsize=256)
def legs(plan: Plan, *, together: bool) -> tuple[Stage, ...]:
    """The groups of `stages`, ordered so that the task that needs the fewest further layers comes next."""
    passes = passes_of(plan)
    steps, groups = passes.plan.steps, list(stages(passes.plan, together=together))
    number = {index: i for i, group in enumerate(groups) for index in group}
    rests = list[frozenset[int]]()  # for each group the groups that it needs, itself included: parents come first
    for i, group in enumerate(groups):
        below = {number[steps[index].parent] for index in group if steps[index].parent >= 0}
        rests.append(frozenset({i}).union(*(rests[i] for i in below)))
    readers: dict[int, list[str]] = {}  # tasks by the group whose states their pools read
    for step in steps:
        if isinstance(step.node, Pool):
            readers.setdefault(number[step.parent], []).extend(step.tasks)
    for task, aside in passes.asides.items():
        readers.setdefault(number[aside.step], []).append(task)
    layers = [sum(_layers(steps[index].node) for index in group) for group in groups]
    result, run = list[Stage](), set[int]()
    while readers:
        more = {reader: sorted(rests[reader] - run) for reader in readers}
        soonest = min(readers, key=lambda reader: sum(layers[i] for i in more[reader]))
        run.update(more[soonest])
        known = [reader for reader in readers if reader in run]
        result.append(
            Stage(
                groups=tuple(tuple(groups[i]) for i in more[soonest]),
                tasks=tuple(task for reader in known for task in readers.pop(reader)),
                layers=sum(layers[i] for i in more[soonest]),
            )
        )
    return tuple(result)


def _layers(node: Node) -> int:
    return node.stop - node.start if isinstance(node, Layers) else 0


def read_first(plan: Plan, index: int) -> int:
    """The number of leading positions of the last state that are read: 1, or the prompt rows; 0 if others are too."""
    prompts = prompt_rows(plan, index)
    wanted = ("last", "prompt" if prompts else "first")
    readers = [plan.steps[child].node for child in plan.children(index)]
    is_wanted_only = all(isinstance(n, Pool) and (n.layers, n.positions) == wanted for n in readers)
    return (prompts or 1) if is_wanted_only else 0


def prompt_rows(plan: Plan, index: int) -> int:
    """The number of prompt rows before the text at this step."""
    while plan.steps[index].parent >= 0:
        index = plan.steps[index].parent
    root = plan.steps[index].node
    return sum(prompt.rows for prompt in root.prompts) if isinstance(root, Embed) else 0


def layers_at(plan: Plan, index: int) -> Layers:
    """The step's node, which must be a Layers node."""
    node = plan.steps[index].node
    assert isinstance(node, Layers)
    return node


def delta_key(delta: Delta | None) -> str:
    """A sort key that groups deltas which differ only in their arrays."""
    return "" if delta is None else str(msgspec.structs.replace(delta, part="", ends=None, tied=False))
