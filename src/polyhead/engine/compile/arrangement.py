"""The tasks that are loaded at one time: every owner's arrays, the states that pools read, and who shares graphs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

import msgspec
import numpy as np

from polyhead.bundle.files import release
from polyhead.encoder.data import TrunkData, arrays_digest
from polyhead.encoder.shape import Architecture
from polyhead.engine.backends.base import LoadedTask, owned_arrays, same
from polyhead.engine.compile.heads import SlotForm, output_of, token_inputs_of
from polyhead.engine.compile.maps import Arrays
from polyhead.engine.compile.program import Token
from polyhead.engine.compile.slot_groups import GroupSlot as GroupSlot
from polyhead.engine.compile.slot_groups import SlotGroup as SlotGroup
from polyhead.engine.compile.slot_groups import assign_slots, merge_groups
from polyhead.errors import BackendError, PlanError
from polyhead.plan import TRUNK, Delta, Embed, Layers, Node, Path, Plan, Pool, cost, join_layers, merge, split_layers
from polyhead.plan.nodes import owners_of_node
from polyhead.plan.passes import Passes, passes_of

SLOTS = 32  # most tasks whose poolers and heads are one graph
FIXED_SLOTS = 16  # so many, spare ones among them, in deterministic mode
LANES = 8  # most siblings whose layers are one graph: their states stand in memory at once
_CONTENTS = itertools.count(1)
_TOKEN = re.compile(r"\('([\w.:-]+)', (\d+)\)")  # as `repr` says it


class Owner(msgspec.Struct, frozen=True, eq=False):
    """Arrays under one name; the token changes with what they hold."""

    token: Token
    arrays: dict[str, np.ndarray]


class HeadForm(msgspec.Struct, frozen=True):
    """What tasks must have alike to stand in the slots of one graph: what they read, and how."""

    read: Chain
    prompt: str  # owner of the rows that are read, where these are rows of their own; else empty
    form: SlotForm


class LaneForm(msgspec.Struct, frozen=True):
    """What siblings must have alike to run as one: the text, and the layers but for who owns their arrays."""

    root: Embed
    node: Layers


class Arrangement:
    """Tasks that are loaded together; nothing in it changes, another one follows it.

    Layers are cut where any loaded task needs it, so that every call, whatever its tasks, runs the same pieces.
    """

    def __init__(
        self,
        trunk: TrunkData,
        tasks: Mapping[str, LoadedTask],
        *,
        deterministic: bool,
        before: Arrangement | None = None,
    ) -> None:
        self.trunk, self.deterministic = trunk, deterministic
        self._trunk_digest: Callable[[], str] = (
            before._trunk_digest if before else lru_cache(lambda: trunk.known_digest)
        )
        self.tasks: dict[str, LoadedTask] = dict(tasks)
        self.owners: dict[str, Owner] = _owners(self.tasks, before.owners if before else {})
        self.owners[TRUNK] = Owner((TRUNK, 0), dict(trunk.arrays))
        self._mapped = {task.path.head.part: task.arrays for task in self.tasks.values() if task.is_mapped}
        for name, task in self.tasks.items():
            self._check_arrays(name, task.path)
        full = merge({name: self._pieces(task.path) for name, task in self.tasks.items()})
        self.paths = {name: full.path(name) for name in self.tasks}
        self.passes = passes_of(full)
        plan, reads = self.passes.plan, list(reads_of(self.passes))
        self.begins = not deterministic and not self.passes.asides and _begins(plan)
        self.kept = self._kept(plan, reads)
        self.stacks: tuple[SlotGroup[LaneForm, Chain], ...] = assign_slots(
            self._lanes(plan), before.stacks if before else (), most=LANES
        )
        self.stack_of = {member: group.members for group in self.stacks for member in group.members}
        self.groups: tuple[SlotGroup[HeadForm, str], ...] = assign_slots(
            self._slots(plan, reads),
            before.groups if before else (),
            most=FIXED_SLOTS if deterministic else SLOTS,
            spare=deterministic,
        )
        self.group_of = {name: group for group in self.groups for name in group.members}
        # Groups whose poolers and heads are one graph; in deterministic mode none has a part in another's bits.
        self.units: tuple[tuple[SlotGroup[HeadForm, str], ...], ...] = merge_groups(
            self.groups,
            before.units if before else (),
            may_be_one=lambda groups: not deterministic and _are_one(groups),
        )
        self.unit_of = {name: unit for unit in self.units for group in unit for name in group.members}

    @property
    def plan(self) -> Plan:
        """The merged plan of all tasks."""
        return merge(self.paths)

    def passes_for(self, plan: Plan) -> Passes:
        """How a plan of some of the tasks is run; BackendError where it is not made of their paths."""
        for name in plan.tasks:
            if name not in self.tasks:
                raise BackendError(f"task '{name}' is not loaded", allowed=list(self.tasks))
            if join_layers(plan.path(name)) != join_layers(self.tasks[name].path):
                raise BackendError(
                    f"the plan runs other layers or pools for task '{name}' than those it was loaded with",
                    got=plan.path(name).nodes,
                    do="load the task with this path",
                )
        return passes_of(merge({name: self.paths[name] for name in plan.tasks}))

    def arrays(self, owner: str) -> Arrays:
        """All that an owner has."""
        return self.owners[owner].arrays

    def mapped(self) -> Iterator[np.ndarray]:
        """Arrays of the trunk and of tasks of the bundle, which may lie in its files: nobody writes to them."""
        yield from self.trunk.arrays.values()
        for arrays in self._mapped.values():
            yield from arrays.values()

    def tokens(self, *nodes: Node) -> tuple[Token, ...]:
        """The arrays that these nodes read, beside the trunk's."""
        names = dict.fromkeys(owner for node in nodes for owner in owners_of_node(node))
        return tuple(self.owners[name].token for name in names if name != TRUNK)

    def digest_maker(self, key: Hashable) -> Callable[[], str | None]:
        """A function that gives a text of all that a graph of this key is made from; None if an owner is gone.

        The text is the same in any process: digests of arrays replace tokens, which are numbers of one process. The
        function keeps the owners that the key names alone: a graph may outlive tasks that were loaded beside its own.
        """
        text, owners, mapped = repr(key), dict[Token, Owner](), list[Arrays]()
        tokens = dict.fromkeys((match[1], int(match[2])) for match in _TOKEN.finditer(text))
        for name, number in tokens:
            owner = self.owners.get(name)
            if owner is None or owner.token != (name, number):
                return lambda: None
            owners[owner.token] = owner
            mapped += [self._mapped[name]] if name in self._mapped else []
        deterministic, trunk_digest = self.deterministic, self._trunk_digest

        def digest() -> str:
            digests = {token: arrays_digest(owner.arrays) for token, owner in owners.items()}
            release(array for arrays in mapped for array in arrays.values())
            replaced = _TOKEN.sub(lambda match: digests[match[1], int(match[2])], text)
            return f"{replaced} {deterministic} {trunk_digest()}"

        return digest

    def _check_arrays(self, name: str, path: Path) -> None:
        for array in cost.arrays_of_path(path, self.trunk.architecture):
            owner = self.owners.get(array.owner)
            loaded = None if owner is None else owner.arrays.get(array.name)
            if loaded is None or loaded.shape != array.shape:
                raise BackendError(
                    f"task '{name}' reads layers, prompts or heads whose arrays are not loaded as its path has them",
                    got=f"{array.name} of {array.owner}: {'none' if loaded is None else loaded.shape}",
                    allowed=array.shape,
                    do="give every owner's arrays with the tasks that read them",
                )

    def _pieces(self, path: Path) -> Path:
        """The path; in deterministic mode each layer by itself, so that no other task makes a cut."""
        last = path.depth
        return split_layers(path, range(1, last)) if self.deterministic else path

    def _kept(self, plan: Plan, reads: Iterable[Read]) -> dict[Chain, tuple[int, ...]]:
        """Which states are kept of each step's layers: those that a pool of any loaded task or the next layers read."""
        states: dict[int, set[int]] = {}
        for index, step in enumerate(plan.steps):
            if isinstance(step.node, Layers):
                states.setdefault(step.parent, set()).add(depth(plan, step.parent))
                if self.deterministic:
                    states.setdefault(index, set()).add(depth(plan, index))
        for read in reads:
            for at, number in states_read(plan, read, mixed=not self.deterministic):
                states.setdefault(at, set()).add(number)
        return {chain(plan, step): tuple(sorted(numbers)) for step, numbers in states.items()}

    def _lanes(self, plan: Plan) -> dict[Chain, tuple[LaneForm, tuple[Token, ...]]]:
        """Steps that may run beside others: all but those of the plain trunk."""
        if self.deterministic:
            return {}
        lanes = {}
        for index, step in enumerate(plan.steps):
            nodes = chain(plan, index)
            if isinstance(step.node, Layers) and not all(is_plain(node) for node in nodes):
                assert isinstance(nodes[0], Embed)
                lanes[nodes] = LaneForm(nodes[0], _anonymous(step.node)), self.tokens(step.node)
        return lanes

    def _slots(self, plan: Plan, reads: Iterable[Read]) -> dict[str, tuple[HeadForm, tuple[Token, ...]]]:
        slots = {}
        for read in reads:
            prompt = str(read.pool.part) if self.deterministic and read.aside else ""
            for name in read.tasks:
                path = self.tasks[name].path
                form = slot_form(plan, read, path, self.trunk.architecture, shared=not self.deterministic)
                slots[name] = HeadForm(chain(plan, read.at), prompt, form), self.tokens(path.pool, path.head)
        return {name: slots[name] for name in self.tasks}


def _are_one(groups: Sequence[SlotGroup[HeadForm, str]]) -> bool:
    """Whether one graph may hold them: of the same states, no larger than that of one group.

    Rows of prompts, and what a codec says of tokens, are inputs that a group has for itself; states of all positions
    are larger than any answers beside them.
    """
    slots = sum(len(group.slots) for group in groups)
    forms = [group.form.form for group in groups]
    has_own = any(f.pool.positions in ("prompt", "all") or token_inputs_of(f.pool) is not None for f in forms)
    return len({group.form.read for group in groups}) == 1 and slots <= SLOTS and not has_own


def is_plain(node: Node) -> bool:
    """Whether every text has it: an embedding without prompts, layers of the trunk."""
    if isinstance(node, Embed):
        return not node.prompts
    return isinstance(node, Layers) and node.weights == TRUNK and node.delta is None


def _begins(plan: Plan) -> bool:
    """Whether one text without prompts is read, by the trunk's own layers: then these begin with the embedding."""
    roots = [index for index, step in enumerate(plan.steps) if step.parent < 0]
    below = [plan.steps[child].node for root in roots for child in plan.children(root)]
    return len(roots) == len(below) == 1 and is_plain(plan.steps[roots[0]].node) and is_plain(below[0])


def _anonymous(node: Layers) -> Layers:
    """The layers, whoever owns their arrays."""
    delta: Delta | None = node.delta
    if delta is not None:
        delta = msgspec.structs.replace(delta, part="", ends=None)
    weights = node.weights if node.weights == TRUNK else ""
    return msgspec.structs.replace(node, weights=weights, delta=delta)


def _owners(tasks: Mapping[str, LoadedTask], before: Mapping[str, Owner]) -> dict[str, Owner]:
    """The arrays of every owner; those that hold what they held before keep their token."""
    merged = owned_arrays(tasks)
    head_owners = {task.path.head.part for task in tasks.values()}
    owners: dict[str, Owner] = {}
    for owner, arrays in merged.items():
        old = before.get(owner)
        if old is not None and owner in head_owners and old.arrays.keys() != arrays.keys():
            old = None
        # Each task brings only the shared arrays that it reads, so arrays that earlier readers brought are kept.
        if old is not None and all(same(old.arrays.get(leaf, array), array) for leaf, array in arrays.items()):
            owners[owner] = Owner(old.token, {**old.arrays, **arrays})
        else:
            owners[owner] = Owner((owner, next(_CONTENTS)), arrays)
    return owners


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
    return tuple(plan.steps[step].node for step in down_to(plan, index))


def down_to(plan: Plan, index: int) -> list[int]:
    """The steps from the root to this one."""
    steps = [index]
    while plan.steps[steps[0]].parent >= 0:
        steps.insert(0, plan.steps[steps[0]].parent)
    return steps


def depth(plan: Plan, index: int) -> int:
    """How many layers the step runs."""
    node = plan.steps[index].node
    return node.stop - node.start if isinstance(node, Layers) else 0


def states_read(plan: Plan, read: Read, *, mixed: bool) -> list[State]:
    """The states that a pool reads, in order; with `mixed` one, where all are of one step and averaged uncoded."""
    pool, states = read.pool, list[State]()
    at = read.at
    while isinstance(plan.steps[at].node, Layers):
        states = [(at, number) for number in range(1, depth(plan, at) + 1)] + states
        at = plan.steps[at].parent
    wanted = {"last": 1, "learned": len(states), "all": len(states)}.get(pool.layers, pool.of)
    if pool.layers in ("mean", "beside") and wanted > len(states):
        raise PlanError("a pool reads more layers than its path runs", got=pool.of, allowed=len(states))
    if not states:
        return [(read.at, 0)]
    states = states[len(states) - wanted :]
    node = plan.steps[read.at].node
    is_mean = pool.layers == "mean" and not pool.codec.before_mean and len(states) > 1
    is_inside = {step for step, _ in states} == {read.at} and not (isinstance(node, Layers) and node.leave)
    return [(read.at, -len(states))] if mixed and is_mean and is_inside else states


def slot_form(plan: Plan, read: Read, path: Path, shape: Architecture, *, shared: bool) -> SlotForm:
    """The form of a task that reads this; `shared` where its bits may depend on what else is computed with it."""
    pool, head = path.pool, path.head
    owners = [prompt.part for prompt in path.embed.prompts]
    if pool.positions == "prompt" and pool.part not in owners:
        raise PlanError(
            "a pool of prompt rows needs a prompt of its own part before the text", got=pool.part, allowed=owners
        )
    states = states_read(plan, read, mixed=shared)
    widths = {_width(plan.steps[step].node, number, shape) for step, number in states}
    if len(widths) > 1:
        raise PlanError("a pool cannot mix layers of several widths", got=sorted(widths))
    width = widths.pop()
    return SlotForm(
        pool=msgspec.structs.replace(pool, part=None if pool.part is None else ""),
        width=width,
        layers=len(states) if pool.layers in ("learned", "beside") else 1,
        mixed=states[0][1] < 0,
        hidden=0 if head.separate else head.hidden,
        activation=head.activation,
        norm=None if head.separate else head.norm,
        # Features stand apart: what is read for pairs alone needs no other heads.
        output=None if shared and head.hidden and not head.separate else output_of(head),
        window=head.window,
    )


def _width(node: Node, number: int, shape: Architecture) -> int:
    """The width of one of a node's states."""
    if not isinstance(node, Layers) or node.width is None:
        return shape.width
    projected = node.leave and number == node.stop - node.start
    return shape.width if projected else node.width
