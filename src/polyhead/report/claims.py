"""Claims of results files (design: results that can be checked)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from polyhead.config import Value
from polyhead.errors import DataError


class Claim(Value):
    """A target, the value measured, and whether it holds; a claim that is missed stays, with a note."""

    id: str
    text: str
    target: float
    value: float
    unit: str
    holds: bool
    note: str = ""


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """One results file."""

    name: str
    date: str
    hardware: str
    versions: dict[str, str]
    command: str
    rows: list[dict[str, object]]
    claims: list[Claim]
    notes: list[str] = []


def read_results(folder: Path) -> list[Results]:
    """Every results file of a folder, by name; a file that is not one is an error that names it."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=Results))
        except msgspec.MsgspecError as error:
            raise DataError(f"{path} is not a results file", got=error, do="write it again with its benchmark") from None
    if not found:
        raise DataError(f"no results files in {folder}", do="run `make bench`")
    return found


def in_order(results: Iterable[Results]) -> list[tuple[str, Claim]]:
    """All claims with the name of their file, those that do not hold first."""
    claims = [(file.name, claim) for file in results for claim in file.claims]
    return sorted(claims, key=lambda pair: (pair[1].holds, pair[1].id))
