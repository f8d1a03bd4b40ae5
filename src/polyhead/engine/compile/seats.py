"""Who shares graphs: members that are alike but for their arrays sit in groups, and stay there as others leave."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from polyhead.engine.compile.program import Token

Form = TypeVar("Form", bound=Hashable)
Member = TypeVar("Member", bound=Hashable)


class Seat(msgspec.Struct, Generic[Member], frozen=True):
    """A member and its arrays. Without a member it is free, and the arrays are those of who left it."""

    member: Member | None = None  # None: free
    tokens: tuple[Token, ...] = ()


class SeatGroup(msgspec.Struct, Generic[Form, Member], frozen=True):
    """Members that are alike but for their arrays."""

    form: Form
    seats: tuple[Seat[Member], ...]

    @property
    def members(self) -> tuple[Member, ...]:
        """The members in the seats that are taken, in order."""
        return tuple(seat.member for seat in self.seats if seat.member is not None)

    @property
    def key(self) -> tuple[Form, tuple[tuple[Token, ...], ...]]:
        """Equal for groups whose graphs are one: whoever sits there, or has left."""
        return self.form, tuple(seat.tokens for seat in self.seats)

    def emptied(self) -> SeatGroup[Form, Member]:
        """The same without members."""
        return SeatGroup(self.form, tuple(Seat(None, seat.tokens) for seat in self.seats))


def seated(
    members: Mapping[Member, tuple[Form, tuple[Token, ...]]],
    before: tuple[SeatGroup[Form, Member], ...],
    *,
    most: int,
    spare: bool = False,
) -> tuple[SeatGroup[Form, Member], ...]:
    """Members (their forms and arrays) in groups of at most `most` seats; with `spare` each group has that many.

    A group that only lost members keeps their arrays in the free seats, so that its graph stays as it is.
    """
    waiting = dict(members)
    groups: list[tuple[Form, list[Seat[Member]], set[Seat[Member]]]] = []  # form, seats, and the seats of before
    for group in before:
        seats: list[Seat[Member]] = []
        for seat in group.seats:
            if seat.member is not None and seat.member in waiting and waiting[seat.member][0] == group.form:
                seats.append(Seat(seat.member, waiting.pop(seat.member)[1]))
            else:
                seats.append(Seat(None, seat.tokens))
        groups.append((group.form, seats, set(group.seats)))
    for member, (form, tokens) in waiting.items():
        alike = (seats for group_form, seats, _ in groups if group_form == form)
        seats = next((seats for seats in alike if _free(seats) < most), [])
        if not seats:
            seats += (Seat(),) * (most if spare else 0)
            groups.append((form, seats, set()))
        place = _free(seats)
        seats[place : place + 1] = [Seat(member, tokens)]
    kept = []
    for form, seats, old in groups:
        if not old.issuperset(seat for seat in seats if seat.member is not None):
            # A member arrived or changed: arrays of former members are dropped.
            seats = [seat if seat.member is not None else Seat() for seat in seats]
        kept.append(SeatGroup(form, tuple(seats)))
    return tuple(group for group in kept if group.members)


def united(
    groups: Sequence[SeatGroup[Form, Member]],
    before: Sequence[Sequence[SeatGroup[Form, Member]]],
    *,
    may_be_one: Callable[[Sequence[SeatGroup[Form, Member]]], bool],
) -> tuple[tuple[SeatGroup[Form, Member], ...], ...]:
    """The groups in units; those that may be one graph are a unit.

    A unit that only lost members keeps its empty groups, so that its graph stays as it is.
    """
    waiting = {group.key: group for group in groups}
    known = {group.key for unit in before for group in unit}
    arrived = {group.form for key, group in waiting.items() if key not in known}
    units: list[list[SeatGroup[Form, Member]]] = []
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


def _free(seats: Sequence[Seat[Member]]) -> int:
    """The first free place, or the one after all."""
    return next((place for place, seat in enumerate(seats) if seat.member is None), len(seats))
