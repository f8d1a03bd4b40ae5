"""`polyhead claims`."""

from __future__ import annotations

from pathlib import Path

import click

from polyhead.cli.output import Printer, json_option, table


@click.command("claims")
@click.argument("folder", type=click.Path(file_okay=False), default="results")
@json_option
def command(folder: str, json_to: str | None) -> None:
    """Print every claim of the results files in FOLDER, those that do not hold first."""
    from polyhead.report.results import in_order, read_results

    printer = Printer(json_to)
    claims = in_order(read_results(Path(folder)))
    rows: list[list[object]] = [["holds", "claim", "target", "value", "unit", "what"]]
    for _, claim in claims:
        rows.append(
            [
                "yes" if claim.holds else "NO",
                claim.id,
                f"{claim.target:g}",
                f"{claim.value:.4g}",
                claim.unit,
                claim.text,
            ]
        )
    printer.lines(table(rows, left=2))
    for _, claim in claims:
        if claim.note:
            printer.line(f"\n{claim.id}: {claim.note}")
    missed = sum(not claim.holds for _, claim in claims)
    printer.line(f"\n{len(claims)} claims, {len(claims) - missed} hold, {missed} do not")
    printer.json([claim for _, claim in claims])
