"""Updates and rollbacks of tasks that own their models, and lines about tasks of both sorts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from polyhead.cli.bundle_lines import end
from polyhead.cli.output import Printer

if TYPE_CHECKING:
    from polyhead.bundle.manifest import Live
    from polyhead.bundle.models import Models
    from polyhead.bundle.read import Bundle


def update_models(printer: Printer, ours: Bundle, theirs: Bundle, called: Mapping[str, str]) -> None:
    """Copies models of another bundle as new versions; `called`: the tasks' names here by those there."""
    from polyhead.bundle.format import MODELS
    from polyhead.bundle.merge import copy_models
    from polyhead.bundle.models import Models
    from polyhead.bundle.versions import next_version

    if reading := [other for other in called if other in theirs.lines]:
        raise other_sort(ours, theirs, reading)
    source = Models(theirs.root)
    chosen = {other: (name, source.lines[other]) for other, name in called.items() if other in source.lines}
    _change_models(
        printer,
        ours,
        "update",
        arguments=update_keys(theirs.root, chosen),
        wanted=lambda: {name: next_version(ours.root / MODELS / name) for name in called.values()},
        act=lambda wanted: copy_models(source, called, ours.root, replace=True),
        line=lambda name, old, new: f"updated {name}: {old} -> {new}",
    )


def roll_back_models(printer: Printer, ours: Bundle, names: Sequence[str], version: str | None) -> None:
    """Makes `version` of the first task live, by default the one before its live one; of the others always that one."""
    from polyhead.bundle.models import Models, set_models

    _change_models(
        printer,
        ours,
        "rollback",
        arguments=[*names, version or ""],
        wanted=lambda: _earlier(Models(ours.root), names, version),
        act=lambda wanted: set_models(ours.root, wanted),
        line=rolled_back,
    )


def _change_models(
    printer: Printer,
    ours: Bundle,
    operation: str,
    *,
    arguments: Sequence[str],
    wanted: Callable[[], dict[str, str]],
    act: Callable[[Mapping[str, str]], object],
    line: Callable[[str, str, str], str],
) -> None:
    """Changes tasks that own their models once, also if the command is run again after a kill, and prints it."""
    from polyhead.bundle.journal import finish, forgotten_if_it_fails, start_operation
    from polyhead.bundle.models import Models

    tried = start_operation(ours.root, operation, arguments, lines=Models(ours.root).lines, wanted=wanted)
    if not tried.is_done:
        with forgotten_if_it_fails(ours.root, tried.begun):
            act(tried.begun.wanted)
    changed = {name: (tried.begun.before[name].version, new) for name, new in tried.begun.wanted.items()}
    printer.lines([line(name, old, new) for name, (old, new) in changed.items()])
    tell_repeated(printer, is_repeated=tried.is_done)
    end(printer, str(ours.root), None, models=changed)
    finish(ours.root, tried.begun)


def rolled_back(name: str, old: str | None, new: str | None) -> str:
    """The line of a rollback about one task."""
    return f"rolled back {name}: {old} -> {new}" if old != new else f"{new} of {name} is live already"


def tell_repeated(printer: Printer, *, is_repeated: bool) -> None:
    """Prints that the command had done its work before it was stopped."""
    if is_repeated:
        printer.line("this command had done that when it was stopped, so it was not done again")


def update_keys(source: Path, called: Mapping[str, tuple[str, Live]]) -> list[str]:
    """What identifies an update: the source bundle, and for each task its name there, its name here and its record."""
    return [str(source.resolve()), *(f"{other} {name} {line.record}" for other, (name, line) in called.items())]


def other_sort(owner: Bundle, reader: Bundle, names: Sequence[str]) -> Exception:
    """The error for tasks of which one owns its model and one reads the trunk."""
    from polyhead.errors import BundleError

    return BundleError(
        f"a task of {owner.root} owns its model, and one of {reader.root} reads the trunk, so neither is a version of "
        "the other",
        got=names,
        do="add it under another name with `polyhead tasks add --as`, or remove the old one first",
    )


def _earlier(models: Models, names: Sequence[str], version: str | None) -> dict[str, str]:
    from polyhead.errors import BundleError

    wanted = dict[str, str]()
    for name in names:
        versions, live = models.versions(name), models.version(name)
        earlier = versions[: versions.index(live)] if live in versions else []
        chosen = version if name == names[0] else None
        if chosen is None and not earlier:
            raise BundleError(f"task '{name}' has no version before {live}, the live one", allowed=versions)
        wanted[name] = chosen or earlier[-1]
    return wanted
