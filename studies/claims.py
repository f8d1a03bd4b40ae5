"""`python -m studies claims`."""

from __future__ import annotations

from pathlib import Path

import click

from polyhead.cli.output import Printer, counted, text_table
from studies.shared.options import json_option


@click.command("claims")
@click.argument("folder", type=click.Path(file_okay=False), default="results")
@json_option
def command(folder: str, json_to: str | None) -> None:
    """Print every claim of the results files in FOLDER, those that do not hold first."""
    from studies.results import in_order, read_results

    printer = Printer(json_to)
    claims = in_order(read_results(Path(folder)))
    rows: list[list[object]] = [["holds", "claim", "target", "value", "unit", "what"]]
    for _, claim in claims:
        numbers = [f"{claim.target:g}", f"{claim.value:.4g}"]
        rows.append(["yes" if claim.holds else "NO", claim.id, *numbers, claim.unit, claim.text])
    printer.lines(_aligned(rows))
    for _, claim in claims:
        if claim.note:
            printer.lines(["", f"{claim.id}: {claim.note}"])
    missed = sum(not claim.holds for _, claim in claims)
    held = f"{counted(len(claims), 'claim')}: {len(claims) - missed} hold, {missed} do not"
    printer.lines(["", held])
    printer.json([{"file": name, "claim": claim} for name, claim in claims])


def _aligned(rows: list[list[object]]) -> list[str]:
    """Numbers to the right; the unit and the sentence, which are words, to the left."""
    numbers = text_table([row[:4] for row in rows], left=2)
    width = max(len(line) for line in numbers)
    unit = max(len(str(row[4])) for row in rows)
    return [f"{line:<{width}}  {row[4]!s:<{unit}}  {row[5]}" for line, row in zip(numbers, rows, strict=True)]
