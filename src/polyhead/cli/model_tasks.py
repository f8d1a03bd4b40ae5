"""New versions, and older ones, of tasks that own their models; and what such commands say of tasks of both sorts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from polyhead.cli.bundle_lines import end
from polyhead.cli.output import Printer

if TYPE_CHECKING:
    from polyhead.bundle.manifest import Live
    from polyhead.bundle.models import Models
    from polyhead.bundle.read import Bundle


def update_models(printer: Printer, ours: Bundle, theirs: Bundle, called: Mapping[str, str]) -> None:
    """`called` are the tasks' names in the other bundle and here."""
    from polyhead.bundle.begun import attempt, finish, forgotten_if_it_fails
    from polyhead.bundle.format import MODELS
    from polyhead.bundle.merge import copy_models
    from polyhead.bundle.models import Models
    from polyhead.bundle.versions import next_version

    if reading := [other for other in called if other in theirs.lines]:
        raise other_sort(ours, theirs, reading)
    source, lines = Models(theirs.root), Models(ours.root).lines
    chosen = {other: (name, source.lines[other]) for other, name in called.items() if other in source.lines}
    tried = attempt(
        ours.root,
        "update",
        asked_of(theirs.root, chosen),
        lines=lines,
        wanted=lambda: {name: next_version(ours.root / MODELS / name) for name in called.values()},
    )
    begun = tried.begun
    if not tried.is_done:
        with forgotten_if_it_fails(ours.root, begun):
            copy_models(source, called, ours.root, replace=True)
    for name, version in begun.wanted.items():
        printer.line(f"updated {name}: {begun.before[name].version} -> {version}")
    tell_repeated(printer, is_repeated=tried.is_done)
    changed = {name: (begun.before[name].version, version) for name, version in begun.wanted.items()}
    end(printer, str(ours.root), None, models=changed)
    finish(ours.root, begun)


def roll_back_models(printer: Printer, ours: Bundle, names: Sequence[str], version: str | None) -> None:
    """Makes `version` of the first one live, or the one before its live one; of others that one."""
    from polyhead.bundle.begun import attempt, finish, forgotten_if_it_fails
    from polyhead.bundle.model_write import set_models
    from polyhead.bundle.models import Models

    models = Models(ours.root)
    tried = attempt(
        ours.root,
        "rollback",
        [*names, version or ""],
        lines=models.lines,
        wanted=lambda: _earlier(models, names, version),
    )
    begun = tried.begun
    if not tried.is_done:
        with forgotten_if_it_fails(ours.root, begun):
            set_models(ours.root, begun.wanted)
    changed = {name: (begun.before[name].version, new) for name, new in begun.wanted.items()}
    for name, (old, new) in changed.items():
        printer.line(rolled_back(name, old, new))
    tell_repeated(printer, is_repeated=tried.is_done)
    end(printer, str(ours.root), None, models=changed)
    finish(ours.root, begun)


def rolled_back(name: str, old: str | None, new: str | None) -> str:
    """What a rollback says of one task."""
    return f"rolled back {name}: {old} -> {new}" if old != new else f"{new} of {name} is live already"


def tell_repeated(printer: Printer, *, is_repeated: bool) -> None:
    """Says that the command that was stopped had done it."""
    if is_repeated:
        printer.line("this command had done that when it was stopped, so it was not done again")


def asked_of(source: Path, called: Mapping[str, tuple[str, Live]]) -> list[str]:
    """What tells one update from others: the bundle that gives, and by name there the name here and what is live."""
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
