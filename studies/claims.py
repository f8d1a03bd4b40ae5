"""`python -m studies claims`."""

from __future__ import annotations

from pathlib import Path

import click

from polyhead.cli.output import Printer, text_table
from studies.shared.options import json_option


@click.command("claims")
@click.argument("folder", type=click.Path(file_okay=False), default="results")
@json_option
def command(folder: str, json_to: str | None) -> None:
    """Print every claim of the results files in FOLDER: those that do not hold first, then those that are not shown.

    A claim about quality is shown or refuted by three seeds or draws whose 95 % interval excludes the other side of its
    target, and against nothing that had not learned; its interval and seeds are printed.
    """
    from studies.results import in_order, read_results, tally

    printer = Printer(json_to)
    claims = in_order(read_results(Path(folder)))
    rows: list[list[object]] = [["holds", "claim", "target", "value", "interval", "seeds", "unit", "what"]]
    for _, claim in claims:
        low, high = claim.interval or (None, None)
        interval = "" if low is None else f"{low:.4g} to {high:.4g}"
        numbers = [f"{claim.target:g}", f"{claim.value:.4g}", interval, "" if claim.seeds is None else claim.seeds]
        outcome = claim.outcome.upper() if claim.holds is False else claim.outcome
        rows.append([outcome, claim.id, *numbers, claim.unit, claim.text])
    printer.lines(_aligned(rows))
    for _, claim in claims:
        against = f"contradicts {', '.join(claim.contradicts)}" if claim.contradicts else ""
        if words := "; ".join(filter(None, (claim.note, against))):
            printer.lines(["", f"{claim.id}: {words}"])
    printer.lines(["", tally(claim for _, claim in claims)])
    printer.json([{"file": name, "claim": claim} for name, claim in claims])


def _aligned(rows: list[list[object]]) -> list[str]:
    """Numbers to the right; the unit and the sentence, which are words, to the left."""
    numbers = text_table([row[:6] for row in rows], left=2)
    width = max(len(line) for line in numbers)
    unit = max(len(str(row[6])) for row in rows)
    return [f"{line:<{width}}  {row[6]!s:<{unit}}  {row[7]}" for line, row in zip(numbers, rows, strict=True)]
