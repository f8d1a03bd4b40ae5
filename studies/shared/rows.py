"""Rows of a study, from a results file or from JSON lines that a run is still writing."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from polyhead.errors import DataError


class _File(msgspec.Struct):
    rows: list[dict[str, Any]]


def rows_in(path: Path | str, *, make: str) -> list[dict[str, Any]]:
    """The rows of a results file ("rows") or of JSON lines, whose last one may be cut short.

    `make` is the command that writes such a file. Raises DataError for a file that is neither.
    """
    path = Path(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}", got=error.strerror) from None
    try:
        return msgspec.json.decode(raw, type=_File).rows
    except msgspec.MsgspecError:
        lines = [line for line in raw.splitlines() if line.strip()]
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(msgspec.json.decode(line, type=dict[str, Any]))
        except msgspec.MsgspecError as error:
            if found and number == len(lines):  # a line that a kill cut short, or that is being written
                break
            raise DataError(
                f"{path} is neither a results file nor JSON lines", got=error, do=f"write it again with `{make}`"
            ) from None
    return found


def seeds_with_all(points: Iterable[Mapping[int, float]]) -> dict[int, float]:
    """The mean over these columns (tasks) by seed, of each seed that has them all."""
    several = list(points)
    common = set.intersection(*(set(one) for one in several)) if several else set()
    return {seed: statistics.mean(one[seed] for one in several) for seed in sorted(common)}
