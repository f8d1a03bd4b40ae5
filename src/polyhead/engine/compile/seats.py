"""Which members share a graph: each keeps its seat for as long as it is there, whoever comes or goes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

import msgspec

from polyhead.engine.compile.kept import Token

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
