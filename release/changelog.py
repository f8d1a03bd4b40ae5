"""Fragments of `changes/` become a version's part of CHANGELOG.md."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

KINDS = ("added", "changed", "fixed", "removed")
FRAGMENT = re.compile(r"(?P<issue>\d+)(?:-(?P<topic>[\w.-]+))?\.(?P<kind>added|changed|fixed|removed)\.md")
HEADING = re.compile(r"^## \[(?P<version>[^\]]+)\].*$", re.MULTILINE)
KIND_HEADING = re.compile(r"^### (?P<kind>\w+)$", re.MULTILINE)


def fragments(folder: Path) -> list[Path]:
    """The fragments there, by issue and topic.

    Raises ValueError for a file whose name is no fragment's; README.md is none and stays.
    """
    files = sorted(path for path in folder.iterdir() if path.name != "README.md")
    for path in files:
        if not FRAGMENT.fullmatch(path.name):
            raise ValueError(f"{path} is no fragment: call it <issue>-<topic>.<{'|'.join(KINDS)}>.md")
    return sorted(files, key=lambda path: (int(path.name.split(".")[0].split("-")[0]), path.name))


def lines_of(files: Sequence[Path]) -> dict[str, list[str]]:
    """For each kind of change the list items of these fragments."""
    items = {kind: list[str]() for kind in KINDS}
    for path in files:
        sentences = " ".join(path.read_text(encoding="utf-8").split())
        if not sentences:
            raise ValueError(f"{path} is empty: write what is different for users, or delete it")
        match = FRAGMENT.fullmatch(path.name)
        assert match is not None
        items[match["kind"]].append(f"- {sentences}")
    return items


def released(changelog: str, version: str, items: Mapping[str, Sequence[str]], *, day: date) -> str:
    """The changelog with these items in the part of this version, and its date.

    An "unreleased" part of the version keeps its text, and the items follow in it. Raises ValueError for a version
    that has been released already.
    """
    parts = list(HEADING.finditer(changelog))
    own = next((part for part in parts if part["version"] == version), None)
    if own is None:
        start = end = parts[0].start() if parts else len(changelog)
        text = ""
    else:
        if "unreleased" not in own[0]:
            raise ValueError(f"{version} is released already: {own[0]}; choose a higher version")
        start = own.start()
        end = next((part.start() for part in parts if part.start() > start), len(changelog))
        text = changelog[own.end() : end].strip("\n")
    whole = f"## [{version}] - {day.isoformat()}\n\n{_with(text, items)}\n"
    return changelog[:start] + whole + ("\n" + changelog[end:] if changelog[end:].strip() else "")


def part_of(changelog: str, version: str) -> str:
    """The text of this version, without its heading: that of the release."""
    parts = list(HEADING.finditer(changelog))
    own = next(part for part in parts if part["version"] == version)
    end = next((part.start() for part in parts if part.start() > own.start()), len(changelog))
    return changelog[own.end() : end].strip("\n") + "\n"


def _with(text: str, items: Mapping[str, Sequence[str]]) -> str:
    """A version's text with further items under their kinds, in the order of KINDS."""
    headings = list(KIND_HEADING.finditer(text))
    before = text[: headings[0].start()].strip("\n") if headings else text.strip("\n")
    written = dict[str, str]()
    for number, heading in enumerate(headings):
        end = headings[number + 1].start() if number + 1 < len(headings) else len(text)
        written[heading["kind"].lower()] = text[heading.end() : end].strip("\n")
    parts = [before] if before else []
    for kind in (*KINDS, *(kind for kind in written if kind not in KINDS)):
        lines = [*([written[kind]] if written.get(kind) else []), *items.get(kind, ())]
        if lines:
            parts.append(f"### {kind.capitalize()}\n\n" + "\n".join(lines))
    return "\n\n".join(parts)
