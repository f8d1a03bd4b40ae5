"""`polyhead agree`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from polyhead.cli.options import backend_option, open_session, precision_option
from polyhead.cli.output import Printer, json_option, number, text_table

if TYPE_CHECKING:
    from polyhead.tasks.agreement import Agreement


@click.command("agree")
@click.argument("bundle", type=click.Path(file_okay=False))
@backend_option()
@precision_option
@json_option
def command(bundle: str, backend: str | None, precision: str | None, json_to: str | None) -> None:
    """Compare the answers of a backend with those that BUNDLE's tasks gave when they were trained.

    Every task answers its pinned probes twice: in deterministic mode with torch (or the backend that is installed) in
    the precision of training, and with --backend and --precision. The result is stored in the bundle's
    agreements.json, which no digest covers; `polyhead inspect` shows it.
    """
    from polyhead.certify import ProbeRunner
    from polyhead.engine.pinned import keep_agreements, numerics_of, on_probes, training_backend_here

    printer = Printer(json_to)
    session = open_session(bundle, (), backend=backend, precision=precision, deterministic=False)
    trained = ProbeRunner(session.bundle, backend=training_backend_here())
    agreements: dict[str, Agreement] = {}
    for name in session.bundle.tasks:
        printer.show(f"answering the probes of {name}")
        agreement = on_probes(trained, session, name)
        if agreement is not None:
            agreements[name] = agreement
    numerics = numerics_of(session)
    keep_agreements(session.bundle, numerics, agreements)
    printer.show("")
    printer.line(f"{numerics.backend} in {numerics.precision}, against answers as trained")
    printer.lines(agreement_lines(agreements))
    printer.json({"numerics": numerics, "tasks": agreements})


def agreement_lines(agreements: Mapping[str, Agreement]) -> list[str]:
    """A table of tasks."""
    rows: list[list[object]] = [["task", "probes", "equal answers", "difference"]]
    for name, agreement in agreements.items():
        equal = f"{100 * agreement.share:.1f} %" if agreement.difference is None else "-"
        rows.append([name, agreement.rows, equal, number(agreement.difference)])
    return text_table(rows)
