"""How a plan is run: isolated prompts beside one pass of the text, and the order in which layers can run together."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

import msgspec

from polyhead.config import Value
from polyhead.errors import PlanError
from polyhead.plan.nodes import TRUNK, Delta, Embed, Layers, Pool, Prompt
from polyhead.plan.tree import Path, Plan, merge


class Aside(Value):
    """A task's isolated prompts, which stand beside the text of one step."""

    step: int  # of the passes' plan: the text's last layers
    prompts: tuple[Prompt, ...]
    pool: Pool


class Passes(Value):
    """A plan whose texts see no isolated prompt, and what stands beside them."""

    plan: Plan
    asides: dict[str, Aside]  # by task

    def is_seen(self, index: int) -> bool:
        """Whether isolated prompts see the text of this step."""
        return bool(self.asides.keys() & set(self.plan.steps[index].tasks))


def passes_of(plan: Plan) -> Passes:
    """The plan with isolated prompts taken out; a text that only they see is run once for all of them.

    Raises PlanError for isolated prompts in other layers than the trunk's plain ones, or where other rows are read.
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
    """The plan's Embed and Layers steps, parents first; with `together` the trunk's over the same layers at once."""
    steps = [i for i, step in enumerate(plan.steps) if isinstance(step.node, (Embed, Layers))]
    if not together:
        yield from ([index] for index in steps)
        return
    found: dict[tuple[int, int], list[int]] = {}
    for index in steps:
        node = plan.steps[index].node
        start = node.start if isinstance(node, Layers) else -1
        shared = isinstance(node, Layers) and node.weights == TRUNK
        found.setdefault((start, -1 if shared else index), []).append(index)
    yield from (found[key] for key in sorted(found))


class Leg(Value):
    """Some of a plan's layers, and what is known once they have run."""

    groups: tuple[tuple[int, ...], ...]  # steps that run at once, one group after another
    tasks: tuple[str, ...]
    layers: int


def legs(passes: Passes, *, together: bool) -> Iterator[Leg]:
    """The groups of `stages` in another order: again and again those tasks that need the fewest layers more."""
    plan, left = passes.plan, [tuple(group) for group in stages(passes.plan, together=together)]
    group_of = {index: group for group in left for index in group}
    readers: dict[int, list[str]] = {}  # tasks by the step that their pools read
    for step in plan.steps:
        if isinstance(step.node, Pool):
            readers.setdefault(step.parent, []).extend(step.tasks)
    for task, aside in passes.asides.items():
        readers.setdefault(aside.step, []).append(task)

    def needed(index: int) -> dict[tuple[int, ...], None]:
        """The groups that have not run and that this step rests on, its own the last."""
        group = group_of[index]
        if group not in left:
            return {}
        parents = (plan.steps[member].parent for member in group)
        below = {one: None for parent in parents if parent >= 0 for one in needed(parent)}
        return below | {group: None}

    while readers:
        ways = {index: tuple(needed(index)) for index in readers}
        index = min(ways, key=lambda one: _layers_of(plan, ways[one]))
        left = [group for group in left if group not in ways[index]]
        known = [one for one in readers if group_of[one] not in left]
        tasks = tuple(task for one in known for task in readers.pop(one))
        yield Leg(groups=ways[index], tasks=tasks, layers=_layers_of(plan, ways[index]))


def _layers_of(plan: Plan, groups: Iterable[Iterable[int]]) -> int:
    nodes = (plan.steps[index].node for group in groups for index in group)
    return sum(node.stop - node.start for node in nodes if isinstance(node, Layers))


def read_first(plan: Plan, index: int) -> int:
    """How many of the step's first positions are all that is read of its last state; 0: others are read too.

    The first alone, where the text begins, or the prompt rows that stand before it.
    """
    prompts = prompt_rows(plan, index)
    wanted = ("last", "prompt" if prompts else "first")
    readers = [plan.steps[child].node for child in plan.children(index)]
    alone = all(isinstance(n, Pool) and (n.layers, n.positions) == wanted for n in readers)
    return (prompts or 1) if alone else 0


def prompt_rows(plan: Plan, index: int) -> int:
    """How many prompt rows stand before the text at this step."""
    while plan.steps[index].parent >= 0:
        index = plan.steps[index].parent
    root = plan.steps[index].node
    return sum(prompt.rows for prompt in root.prompts) if isinstance(root, Embed) else 0


def layers_at(plan: Plan, index: int) -> Layers:
    """The step's node, which runs layers."""
    node = plan.steps[index].node
    assert isinstance(node, Layers)
    return node


def form_of(delta: Delta | None) -> str:
    """Sorts deltas so that those which differ in their arrays alone are neighbours."""
    return "" if delta is None else str(msgspec.structs.replace(delta, part="", ends=None, tied=False))
