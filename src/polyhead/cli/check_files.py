"""The file of rows that `polyhead check` writes: one line for each row that shows a finding."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from polyhead.cli.output import writing_file

if TYPE_CHECKING:
    from polyhead.check.part import Finding

WRITTEN = (".csv", ".jsonl")
NAMES = ("task", "kind", "level", "split", "file", "row", "label", "other", "text")


def write_places(path: str, findings: Sequence[Finding]) -> int:
    """Writes every row of every finding as CSV or JSON Lines, as the file's name says; how many they are."""
    rows = [
        {"task": finding.task, "kind": finding.kind, "level": finding.level} | msgspec.structs.asdict(place)
        for finding in findings
        for place in finding.places
    ]
    with writing_file(path) as file:
        if path.lower().endswith(".jsonl"):
            file.writelines(msgspec.json.encode({name: row[name] for name in NAMES}) + b"\n" for row in rows)
        else:
            text = io.StringIO(newline="")
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(NAMES)
            writer.writerows([row[name] for name in NAMES] for row in rows)
            file.write(text.getvalue().encode("utf-8", "replace"))
    return len(rows)
