"""Owners of arrays in a bundle, and the arrays of others that each needs: which tasks can only change together.

A task owns its part, a family owns arrays that several tasks read, and a task may read the prompt of another. Each
version says in `needs` which arrays of others it was made with. A bundle is whole while every live need is met.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence

from polyhead.bundle.format import FAMILIES, FAMILY, TASK, TASKS
from polyhead.errors import BadName, BundleError
from polyhead.values import Value

TASK_OF, FAMILY_OF = "task:", "family:"
_SECTIONS = {"task": TASKS, "family": FAMILIES}
_FAMILY = re.compile(r"family(:[A-Za-z0-9][A-Za-z0-9._-]{0,63}){1,4}")


class Owned(Value):
    """The arrays that a version gives and those it needs of others."""

    arrays: str  # digest of its arrays, `trunk.data.arrays_digest`
    needs: dict[str, str] = {}  # owner -> digest of that owner's arrays


def owner_named(task: str) -> str:
    """The owner of the arrays of the task of this name."""
    return f"{TASK_OF}{task}"


def is_family(owner: str) -> bool:
    """True if the owner's name is that of a family."""
    return owner.startswith(FAMILY_OF)


def check_family(owner: str) -> None:
    """Raises BadName unless the owner is a family whose name is safe as that of a folder on every system."""
    if not _FAMILY.fullmatch(owner) or ".." in owner or ".:" in owner or owner.endswith("."):
        raise BadName(
            "a family cannot have this name",
            got=owner,
            allowed="'family:' and up to four names as tasks have them, with ':' between",
        )


def place_of(owner: str) -> tuple[str, str]:
    """The folder of an owner's versions, as steps: tasks/<name>, families/<name> with '+' for ':'."""
    kind, _, name = owner.partition(":")
    return _SECTIONS[kind], name.replace(":", "+")


def record_file(owner: str) -> str:
    """The name of the file that says what a version of the owner is."""
    return FAMILY if is_family(owner) else TASK


def owner_at(section: str, folder: str) -> str:
    """The owner whose versions are in this folder: the inverse of `place_of`."""
    return FAMILY_OF + folder.replace("+", ":") if section == FAMILIES else owner_named(folder)


def titled(owner: str) -> str:
    """An owner as an error names it: task 'mood', family 'pooler'."""
    kind, _, name = owner.partition(":")
    return f"{kind} '{name}'"


def tasks_text(names: Sequence[str]) -> str:
    """Tasks, as an error names them."""
    return f"task '{names[0]}'" if len(names) == 1 else f"tasks {', '.join(names)}"


def task_names(owners: Iterable[str]) -> list[str]:
    """The names of the owners that are tasks."""
    return [owner.removeprefix(TASK_OF) for owner in owners if owner.startswith(TASK_OF)]


def connected(edges: Iterable[tuple[str, str]]) -> list[set[str]]:
    """The connected components of the graph with these edges."""
    group_of: dict[str, set[str]] = {}
    for edge in edges:
        larger, smaller = sorted((group_of.setdefault(owner, {owner}) for owner in edge), key=len, reverse=True)
        if larger is not smaller:
            larger |= smaller
            group_of |= dict.fromkeys(smaller, larger)
    return list({id(group): group for group in group_of.values()}.values())


def check_whole_owners(
    before: Mapping[str, Owned | None], after: Mapping[str, Owned | None], changed: Collection[str]
) -> None:
    """Raises BundleError, with the group's members, unless `after` meets all needs that a change of `changed` touches.

    Both hold the arrays that each owner gives and needs, None if its record cannot be read. Untouched needs that were
    unmet before are no error.
    """
    unmet = [
        (owner, need)
        for owner, owned in after.items()
        if owned is not None
        for need, digest in owned.needs.items()
        if (owner in changed or need in changed) and not _gives(after.get(need), digest)
    ]
    if not unmet:
        return
    needing, needed = {owner for owner, _ in unmet}, {need for _, need in unmet}
    edges = [
        (owner, need)
        for state in (before, after)
        for owner, owned in state.items()
        if owned is not None
        for need in owned.needs
        if not is_family(need) or (need in needed and (owner in changed or owner in needing))
    ]
    bound = set[str]().union(*(group for group in connected(edges) if not group.isdisjoint(needing)))
    members, acting = task_names(sorted(bound)), task_names(sorted(set(changed) & bound))
    missing = [name for name in members if name not in acting]
    if missing and acting:
        raise BundleError(
            f"tasks {', '.join(members)} can only change together, since they share arrays",
            got=f"a change of {', '.join(acting)} alone",
            allowed="all of them in one step",
            do=f"name all of them in one call: {' '.join(members)}",
            tasks=tuple(members),
        )
    raise BundleError(
        "a task needs arrays of others that the bundle would not hold",
        got=[f"{titled(owner)} needs {_needed(after, owner, need)}" for owner, need in unmet],
        do="give the family with its tasks, and versions of tasks that were made together",
        tasks=tuple(members),
    )


def unread(owned: Mapping[str, Owned | None]) -> list[str]:
    """Families that no task needs; none if a task's record cannot be read, since it might need one."""
    if any(facts is None and not is_family(owner) for owner, facts in owned.items()):
        return []
    needed = {need for facts in owned.values() if facts is not None for need in facts.needs}
    return [owner for owner in owned if is_family(owner) and owner not in needed]


def new_names(families: Mapping[str, str], known: Mapping[str, str], *, free: Collection[str] = ()) -> dict[str, str]:
    """The names that families get in a bundle; both arguments give the digest of each family's arrays.

    A family whose arrays are in the bundle already gets their name. One whose name other arrays have, and which is not
    in `free`, gets another: family:pooler becomes family:pooler-2. No two get the same name.
    """
    chosen, used = dict[str, str](), set[str]()
    taken = {other.casefold() for other in set(known) - set(free)}
    alike: dict[str, deque[str]] = {}
    for other, digest in known.items():
        alike.setdefault(digest, deque()).append(other)
    next_number: dict[str, int] = {}
    for owner, digest in families.items():
        candidates = alike.get(digest, deque[str]())
        while candidates and candidates[0] in used:
            candidates.popleft()
        name = owner if known.get(owner) == digest and owner not in used else next(iter(candidates), "")
        if not name:
            name = owner if owner.casefold() not in taken else ""
            while not name or name.casefold() in taken:
                next_number[owner] = next_number.get(owner, 1) + 1
                name = f"{owner}-{next_number[owner]}"
        chosen[owner] = name
        used.add(name)
        taken.add(name.casefold())
    return chosen


def _gives(owned: Owned | None, digest: str) -> bool:
    return owned is not None and owned.arrays == digest


def _needed(after: Mapping[str, Owned | None], owner: str, need: str) -> str:
    """The need and what would be there instead."""
    owned, other = after[owner], after.get(need)
    wanted = owned.needs[need][:16] if owned is not None else ""
    return f"'{need}' with arrays {wanted}, not {other.arrays[:16] if other is not None else 'none'}"
