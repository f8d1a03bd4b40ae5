"""`polyhead tasks pack`, which makes what a server takes as a task; and what the server runs to change its bundle."""

from __future__ import annotations

import sys
from typing import Any

import click

from polyhead.cli.command import option, verb
from polyhead.cli.options import Folder, RequiredFile
from polyhead.cli.output import Printer, counted
from polyhead.cli.serve_changes import place_of_worker


@verb("pack")
def pack(
    bundle: Folder,
    name: str,
    *,
    output: RequiredFile = option("The tar to write; an old one is replaced.", "-o", "--output", required=True),
    printer: Printer,
) -> Any:
    """Write the live version of NAME in BUNDLE to one file, which a server takes as an upload.

    Send it with PUT /v1/tasks/NAME to a server that allows changes, or with PUT /v1/tasks/NAME/shadow to try it first.
    """
    from pathlib import Path

    from polyhead.bundle.packed import upload_bytes
    from polyhead.bundle.read import Bundle
    from polyhead.files import replacing

    opened = Bundle.open(bundle, verify=False)
    opened.part(name)  # hashed: a damaged one is not sent
    size = 0
    with replacing(Path(output)) as file:
        for chunk in upload_bytes(opened, name):
            size += file.write(chunk)
    version = opened.version(name)
    printer.line(f"packed {name} ({version}) into {output}: {counted(size, 'byte')}")
    return {"bundle": bundle, "task": name, "version": version, "file": output, "bytes": size}


@click.command("apply", hidden=True)
@click.option("--alive", type=int, hidden=True, help="The pipe that ends with the process that ordered these changes.")
def apply(alive: int | None) -> None:
    """Make the changes of standard input, a line of JSON each, and print what became of each; a server runs this."""
    from polyhead.certify import Prover
    from polyhead.machine import trim
    from polyhead.serve.change_process import Parent
    from polyhead.serve.orders import change_reply, lower_priority

    parent = None if alive is None else Parent(alive)
    if parent is not None:
        parent.end_with()
    place = place_of_worker()
    if place is not None:
        place.leave()  # a server's worker keeps to some processors, and this need not
    lower_priority()
    prover = Prover()
    for order in sys.stdin.buffer:
        sys.stdout.buffer.write(change_reply(order, prover, *(() if parent is None else (parent.check,))) + b"\n")
        sys.stdout.buffer.flush()
        trim()
