"""What is loaded at one time: tasks, the arrays of every owner, and which tasks and layers share graphs."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, TypeVar

import msgspec
import numpy as np

from polyhead import cost
from polyhead.engine.backends.base import LoadedTask, owned_arrays, same
from polyhead.engine.compile.encoder import Arrays
from polyhead.engine.compile.heads import SlotForm
from polyhead.engine.compile.program import Token
from polyhead.engine.compile.reads import Chain, Read, chain, depth, first_of, form_of, reads_of, states_read
from polyhead.errors import BackendError
from polyhead.plan import TRUNK, Delta, Embed, Layers, Node, Path, Plan, joined, merge, split
from polyhead.plan.nodes import owners_of_node
from polyhead.plan.passes import Passes, passes_of
from polyhead.trunk.data import TrunkData

SLOTS = 32  # most tasks whose poolers and heads are one graph
FIXED_SLOTS = 16  # so many, spare ones among them, in deterministic mode
LANES = 8  # most siblings whose layers are one graph: their states stand in memory at once
_CONTENTS = itertools.count(1)


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
        self.tasks: dict[str, LoadedTask] = dict(tasks)
        self.owners: dict[str, Owner] = _owners(self.tasks, before.owners if before else {})
        self.owners[TRUNK] = Owner((TRUNK, 0), dict(trunk.arrays))
        for name, task in self.tasks.items():
            self._check_arrays(name, task.path)
        full = merge({name: self._pieces(task.path) for name, task in self.tasks.items()})
        self.paths = {name: full.path(name) for name in self.tasks}
        self.passes = passes_of(full)
        plan, reads = self.passes.plan, list(reads_of(self.passes))
        self.begins = not deterministic and not self.passes.asides and _begins(plan)
        self.kept = self._kept(plan, reads)
        self.stacks: tuple[Group[LaneForm, Chain], ...] = seated(
            self._lanes(plan), before.stacks if before else (), most=LANES
        )
        self.stack_of = {member: group.members for group in self.stacks for member in group.members}
        self.groups: tuple[Group[HeadForm, str], ...] = seated(
            self._slots(plan, reads),
            before.groups if before else (),
            most=FIXED_SLOTS if deterministic else SLOTS,
            spare=deterministic,
        )
        self.group_of = {name: group for group in self.groups for name in group.members}

    @property
    def plan(self) -> Plan:
        """Of all tasks."""
        return merge(self.paths)

    def passes_for(self, plan: Plan) -> Passes:
        """How a plan of some of the tasks is run; BackendError where it is not made of their paths."""
        for name in plan.tasks:
            if name not in self.tasks:
                raise BackendError(f"task '{name}' is not loaded", allowed=list(self.tasks))
            if joined(plan.path(name)) != joined(self.tasks[name].path):
                raise BackendError(
                    f"the plan runs other layers or pools for task '{name}' than those it was loaded with",
                    got=plan.path(name).nodes,
                    do="load the task with this path",
                )
        return passes_of(merge({name: self.paths[name] for name in plan.tasks}))

    def arrays(self, owner: str) -> Arrays:
        """All that an owner has."""
        return self.owners[owner].arrays

    def tokens(self, *nodes: Node) -> tuple[Token, ...]:
        """The arrays that these nodes read, beside the trunk's."""
        names = dict.fromkeys(owner for node in nodes for owner in owners_of_node(node))
        return tuple(self.owners[name].token for name in names if name != TRUNK)

    def _check_arrays(self, name: str, path: Path) -> None:
        for array in cost.arrays_of_path(path, self.trunk.architecture):
            owner = self.owners.get(array.owner)
            array_found = None if owner is None else owner.arrays.get(array.name)
            if array_found is None or array_found.shape != array.shape:
                raise BackendError(
                    f"task '{name}' reads layers, prompts or heads whose arrays are not loaded as its path has them",
                    got=f"{array.name} of {array.owner}: {'none' if array_found is None else array_found.shape}",
                    allowed=array.shape,
                    do="give every owner's arrays with the tasks that read them",
                )

    def _pieces(self, path: Path) -> Path:
        """The path; in deterministic mode each layer by itself, so that no other task makes a cut."""
        last = path.layers[-1].stop if path.layers else 0
        return split(path, range(1, last)) if self.deterministic else path

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
            own = chain(plan, index)
            if isinstance(step.node, Layers) and not all(is_plain(node) for node in own):
                form = LaneForm(first_of(plan, index), _anonymous(step.node))
                lanes[own] = form, self.tokens(step.node)
        return lanes

    def _slots(self, plan: Plan, reads: Iterable[Read]) -> dict[str, tuple[HeadForm, tuple[Token, ...]]]:
        slots = {}
        for read in reads:
            prompt = str(read.pool.part) if self.deterministic and read.aside else ""
            for name in read.tasks:
                path = self.tasks[name].path
                form = form_of(plan, read, path, self.trunk.architecture, shared=not self.deterministic)
                slots[name] = HeadForm(chain(plan, read.at), prompt, form), self.tokens(path.pool, path.head)
        return {name: slots[name] for name in self.tasks}


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
    own = {task.path.head.part for task in tasks.values()}
    owners: dict[str, Owner] = {}
    for owner, arrays in merged.items():
        old = before.get(owner)
        if old is not None and owner in own and old.arrays.keys() != arrays.keys():
            old = None
        # Of what tasks share each brings what it reads: what the last reader of an array left is kept for the next.
        if old is not None and all(same(old.arrays.get(leaf, array), array) for leaf, array in arrays.items()):
            owners[owner] = Owner(old.token, {**old.arrays, **arrays})
        else:
            owners[owner] = Owner((owner, next(_CONTENTS)), arrays)
    return owners


Form = TypeVar("Form", bound=Hashable)
Member = TypeVar("Member", bound=Hashable)


class Seat(msgspec.Struct, Generic[Member], frozen=True):
    """A member and its arrays. Without a member it is free, and the arrays are those of who left it."""

    member: Member | None = None  # None: free
    tokens: tuple[Token, ...] = ()


class Group(msgspec.Struct, Generic[Form, Member], frozen=True):
    """Members that are alike but for their arrays."""

    form: Form
    seats: tuple[Seat[Member], ...]

    @property
    def members(self) -> tuple[Member, ...]:
        """Those that are there, in order."""
        return tuple(seat.member for seat in self.seats if seat.member is not None)


def seated(
    members: Mapping[Member, tuple[Form, tuple[Token, ...]]],
    before: tuple[Group[Form, Member], ...],
    *,
    most: int,
    spare: bool = False,
) -> tuple[Group[Form, Member], ...]:
    """Members (their forms and arrays) in groups of at most `most` seats; with `spare` each group has that many.

    A group which members only left keeps their arrays in the free seats, so that its graph stays as it is.
    """
    left = dict(members)
    groups: list[Group[Form, Member]] = []
    for group in before:
        seats: list[Seat[Member]] = []
        for seat in group.seats:
            if seat.member is not None and seat.member in left and left[seat.member][0] == group.form:
                seats.append(Seat(seat.member, left.pop(seat.member)[1]))
            else:
                seats.append(Seat(None, seat.tokens))
        groups.append(Group(group.form, tuple(seats)))
    for member, (form, tokens) in left.items():
        number = next((i for i, one in enumerate(groups) if one.form == form and _has_room(one, most)), None)
        if number is None:
            number = len(groups)
            groups.append(Group(form, (Seat(),) * (most if spare else 0)))
        groups[number] = _joined(groups[number], Seat(member, tokens))
    olds: list[set[Seat[Member]]] = [set(group.seats) for group in before]
    olds += [set() for _ in groups[len(olds) :]]
    kept = (_cleared(group, old) for group, old in zip(groups, olds, strict=True))
    return tuple(group for group in kept if group.members)


def _has_room(group: Group[Form, Member], most: int) -> bool:
    return len(group.seats) < most or any(seat.member is None for seat in group.seats)


def _joined(group: Group[Form, Member], seat: Seat[Member]) -> Group[Form, Member]:
    """The group with the seat in its first free place, or at its end."""
    seats = list(group.seats)
    place = next((i for i, one in enumerate(seats) if one.member is None), len(seats))
    return Group(group.form, (*seats[:place], seat, *seats[place + 1 :]))


def _cleared(group: Group[Form, Member], old: set[Seat[Member]]) -> Group[Form, Member]:
    """Without the arrays of those who left, where another arrived or changed."""
    if all(seat in old for seat in group.seats if seat.member is not None):
        return group
    return Group(group.form, tuple(seat if seat.member is not None else Seat() for seat in group.seats))
