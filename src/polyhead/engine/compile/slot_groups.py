"""Groups of tasks, or of layers, that share a graph since they differ only in their arrays; each keeps its slot."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from polyhead.engine.compile.program import Token

Form = TypeVar("Form", bound=Hashable)
Member = TypeVar("Member", bound=Hashable)


class GroupSlot(msgspec.Struct, Generic[Member], frozen=True):
    """A member of a group and its arrays; a free slot keeps the arrays of its former member."""

    member: Member | None = None  # None: free
    tokens: tuple[Token, ...] = ()


class SlotGroup(msgspec.Struct, Generic[Form, Member], frozen=True):
    """Members that differ only in their arrays."""

    form: Form
    slots: tuple[GroupSlot[Member], ...]

    @property
    def members(self) -> tuple[Member, ...]:
        """The members, in the order of their slots."""
        return tuple(slot.member for slot in self.slots if slot.member is not None)

    @property
    def key(self) -> tuple[Form, tuple[tuple[Token, ...], ...]]:
        """Equal for groups with the same graph: it depends on the arrays, not on the names of the members."""
        return self.form, tuple(slot.tokens for slot in self.slots)

    def emptied(self) -> SlotGroup[Form, Member]:
        """The same group with all slots free."""
        return SlotGroup(self.form, tuple(GroupSlot(None, slot.tokens) for slot in self.slots))


def assign_slots(
    members: Mapping[Member, tuple[Form, tuple[Token, ...]]],
    before: tuple[SlotGroup[Form, Member], ...],
    *,
    most: int,
    spare: bool = False,
) -> tuple[SlotGroup[Form, Member], ...]:
    """Groups of members (given with their forms and arrays), `most` slots each at most, or exactly with `spare`.

    A group that only lost members keeps their arrays in the free slots, so that its graph need not be compiled again.
    """
    waiting = dict(members)
    groups: list[tuple[Form, list[GroupSlot[Member]], set[GroupSlot[Member]]]] = []  # form, slots, former slots
    for group in before:
        slots: list[GroupSlot[Member]] = []
        for slot in group.slots:
            if slot.member is not None and slot.member in waiting and waiting[slot.member][0] == group.form:
                slots.append(GroupSlot(slot.member, waiting.pop(slot.member)[1]))
            else:
                slots.append(GroupSlot(None, slot.tokens))
        groups.append((group.form, slots, set(group.slots)))
    for member, (form, tokens) in waiting.items():
        same_form = (slots for group_form, slots, _ in groups if group_form == form)
        slots = next((slots for slots in same_form if _first_free(slots) < most), [])
        if not slots:
            slots += (GroupSlot(),) * (most if spare else 0)
            groups.append((form, slots, set()))
        place = _first_free(slots)
        slots[place : place + 1] = [GroupSlot(member, tokens)]
    kept = []
    for form, slots, old in groups:
        if not old.issuperset(slot for slot in slots if slot.member is not None):
            # A member arrived or changed: arrays of former members are dropped.
            slots = [slot if slot.member is not None else GroupSlot() for slot in slots]
        kept.append(SlotGroup(form, tuple(slots)))
    return tuple(group for group in kept if group.members)


def merge_groups(
    groups: Sequence[SlotGroup[Form, Member]],
    before: Sequence[Sequence[SlotGroup[Form, Member]]],
    *,
    may_be_one: Callable[[Sequence[SlotGroup[Form, Member]]], bool],
) -> tuple[tuple[SlotGroup[Form, Member], ...], ...]:
    """The groups in units; the groups of a unit are one graph (`may_be_one`).

    A unit that only lost members keeps its empty groups, so that its graph need not be compiled again.
    """
    waiting = {group.key: group for group in groups}
    known = {group.key for unit in before for group in unit}
    arrived = {group.form for key, group in waiting.items() if key not in known}
    units: list[list[SlotGroup[Form, Member]]] = []
    for old_unit in before:
        pairs = [(old, waiting.pop(old.key, None)) for old in old_unit]
        if any(group is None and old.form in arrived for old, group in pairs):  # it becomes another graph
            units.append([group for _, group in pairs if group is not None])
        else:
            units.append([group or old.emptied() for old, group in pairs])
    for group in waiting.values():
        for unit in units:
            alive = [other for other in unit if other.members]
            if may_be_one([*alive, group]):
                unit[:] = [*alive, group]
                break
        else:
            units.append([group])
    return tuple(tuple(unit) for unit in units if any(group.members for group in unit))


def _first_free(slots: Sequence[GroupSlot[Member]]) -> int:
    """The index of the first free slot, or their number if none is free."""
    return next((place for place, slot in enumerate(slots) if slot.member is None), len(slots))
