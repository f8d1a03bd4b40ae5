"""Which neighbouring fragments of a store are joined into one, and the fragments after that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from polyhead.store.corpus.base import Fragment

_Item = TypeVar("_Item")


def fragment_groups(fragments: Sequence[Fragment], rows: int) -> Iterator[tuple[Fragment, ...]]:
    """Neighbouring fragments, two or more, of up to so many rows together and with the same columns of results."""
    group: list[Fragment] = []
    for fragment in (*fragments, None):
        fits = fragment is not None and (
            not group
            or (
                sum(each.rows for each in group) + fragment.rows <= rows
                and set(group[0].results) == set(fragment.results)
            )
        )
        if not fits:
            if len(group) > 1:
                yield tuple(group)
            group = []
        if fragment is not None:
            group.append(fragment)


def with_joined(there: Sequence[_Item], before: Sequence[_Item], joined: _Item) -> list[_Item] | None:
    """The items with one in the place of some neighbours; None where these are not there any more as they were."""
    at = next((number for number, each in enumerate(there) if each == before[0]), None)
    if at is None or list(there[at : at + len(before)]) != list(before):
        return None
    return [*there[:at], joined, *there[at + len(before) :]]
