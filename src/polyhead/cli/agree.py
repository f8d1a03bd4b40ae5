"""`polyhead tasks agree`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polyhead.certify import ProbeRunner
from polyhead.cli.command import verb
from polyhead.cli.options import BackendOptions, Folder
from polyhead.cli.output import Printer, number, text_table
from polyhead.engine.backends import training_backend
from polyhead.engine.probes import keep_agreements, numerics_of, on_probes
from polyhead.tasks.agreement import Agreement


@verb("agree")
def command(bundle: Folder, *, how: BackendOptions, printer: Printer) -> Any:
    """Compare the answers of a backend with those that BUNDLE's tasks gave when they were trained.

    Every task answers its pinned probes twice: in deterministic mode with torch (or the backend that is installed) in
    the precision of training, and with --backend and --precision. The result is stored in the bundle's
    agreements.json, which no digest covers; `polyhead inspect` shows it.
    """
    session = how.open(bundle)
    trained = ProbeRunner(session.bundle, backend=training_backend())
    agreements: dict[str, Agreement] = {}
    for name in session.bundle.tasks:
        printer.show(f"answering the probes of {name}")
        agreement = on_probes(trained, session, name)
        if agreement is not None:
            agreements[name] = agreement
    numerics = numerics_of(session)
    keep_agreements(session.bundle, numerics, agreements)
    printer.line(f"{numerics.backend} in {numerics.precision}, against answers as trained")
    printer.lines(agreement_lines(agreements))
    return {"numerics": numerics, "tasks": agreements}


def agreement_lines(agreements: Mapping[str, Agreement]) -> list[str]:
    """A table of tasks."""
    rows = [[name, *agreement_cells(agreement)] for name, agreement in agreements.items()]
    return text_table([["task", "probes", "equal answers", "difference"], *rows])


def agreement_cells(agreement: Agreement) -> list[str]:
    """How many were compared, how many are equal, and how far values are apart."""
    equal = f"{100 * agreement.share:.1f} %" if agreement.difference is None else "-"
    return [f"{agreement.rows:,}", equal, number(agreement.difference)]
