"""`polyhead tasks certificate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polyhead.cli.command import option, verb
from polyhead.cli.options import Folder
from polyhead.cli.output import Printer, counted, note

if TYPE_CHECKING:
    from polyhead.certify import Certificate
    from polyhead.certify.certificate import Ledger


@verb("certificate")
def certificate(
    bundle: Folder,
    number: int | None = option(ge=1, default=None),
    *,
    every: bool = option("Show all certificates, the newest first.", "--all"),
    printer: Printer,
) -> Any:
    """Say in words what a certificate of BUNDLE proves: who changed what, when, and on how many probes the rest agreed.

    By default it is the newest one; NUMBER is that in a certificate's name. Certificates are made by every change, and
    by `polyhead tasks verify`, which also checks that they were not edited.
    """
    from polyhead.bundle.read import Bundle
    from polyhead.certify.certificate import Ledger

    if every and number is not None:
        raise click.UsageError("--all and NUMBER contradict each other: give one of them")
    Bundle.open(bundle, verify=False)
    ledger = Ledger(Path(bundle))
    chosen = _chosen(ledger, number, every=every)
    for place, found in enumerate(chosen):
        printer.lines(["", found.paragraph] if place else [found.paragraph])
        printer.line(f"(certificates/{found.name})")
    if every and len(chosen) < len(ledger.files):
        note(
            f"{counted(len(ledger.files) - len(chosen), 'certificate')} cannot be trusted; see `polyhead tasks verify`"
        )
    shown = [{"file": found.name, "paragraph": found.paragraph, "certificate": found} for found in chosen]
    return {"bundle": bundle, "certificates": shown}


def _chosen(ledger: Ledger, number: int | None, *, every: bool) -> list[Certificate]:
    """The sound certificates that are asked for, newest first; raises BundleError where there is none."""
    from polyhead.errors import BundleError

    sound = [found for found in ledger.sound() if number in (None, found.number)]
    if not sound:
        what = "the bundle has no certificate" if number is None else f"the bundle has no sound certificate {number}"
        raise BundleError(
            f"{what}: {ledger.root}",
            got=f"{len(ledger.files)} files in certificates/",
            allowed=ledger.files or None,
            do="`polyhead tasks verify` checks them, and writes one if the last change left none",
        )
    return sound if every else sound[:1]
