"""Which neighbouring fragments of a store become one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from polyhead.errors import StoreError


def fragment_groups(
    fragments: Sequence[Any], rows: int, *, size: Callable[[str], int], largest: int
) -> Iterator[tuple[Any, ...]]:
    """Groups of two or more neighbouring fragments with the same columns of results.

    Each has up to so many rows, and up to `largest` bytes; `size` is that of the fragment with this name.
    """
    group: list[Any] = []
    for fragment in (*fragments, None):
        fits = fragment is not None and (
            not group
            or (
                set(group[0].results) == set(fragment.results)
                and sum(each.rows for each in (*group, fragment)) <= rows
                and sum(size(each.name) for each in (*group, fragment)) <= largest
            )
        )
        if not fits:
            if len(group) > 1:
                yield tuple(group)
            group = []
        if fragment is not None:
            group.append(fragment)


def with_joined(items: Sequence[Any], *, before: Sequence[Any], joined: Any) -> tuple[list[Any], None] | None:
    """The items with `joined` in place of the neighbours `before`, as a change of no facts; None if these changed."""
    at = next((number for number, each in enumerate(items) if each == before[0]), None)
    if at is None or list(items[at : at + len(before)]) != list(before):
        return None
    return [*items[:at], joined, *items[at + len(before) :]], None


def gone_since(location: str, fragment: str) -> StoreError:
    """The error for files of an older version of the store that were removed, as the newest does without them."""
    problem = f"{location} was changed since it was opened, and what it held of this fragment is gone"
    return StoreError(problem, got=fragment, do="open it again, or refresh() it, and read again")
