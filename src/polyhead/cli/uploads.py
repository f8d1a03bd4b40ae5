"""`polyhead tasks pack`, which makes what a server takes as a task; and what the server runs to change its bundle."""

from __future__ import annotations

import sys

import click

from polyhead.cli.output import Printer, counted, json_option
from polyhead.cli.serve_changes import place_of_worker


@click.command("pack")
@click.argument("bundle", type=click.Path(file_okay=False))
@click.argument("name")
@click.option("-o", "--output", metavar="FILE", required=True, help="The tar to write; an old one is replaced.")
@json_option
def pack(bundle: str, name: str, output: str, json_to: str | None) -> None:
    """Write the live version of NAME in BUNDLE to one file, which a server takes as an upload.

    Send it with PUT /v1/tasks/NAME to a server that allows changes, or with PUT /v1/tasks/NAME/shadow to try it first.
    """
    from pathlib import Path

    from polyhead.bundle.packed import upload_bytes
    from polyhead.bundle.read import Bundle
    from polyhead.files import replacing

    printer, opened = Printer(json_to), Bundle.open(bundle, verify=False)
    opened.part(name)  # hashed: a damaged one is not sent
    size = 0
    with replacing(Path(output)) as file:
        for chunk in upload_bytes(opened, name):
            size += file.write(chunk)
    version = opened.version(name)
    printer.line(f"packed {name} ({version}) into {output}: {counted(size, 'byte')}")
    printer.json({"bundle": bundle, "task": name, "version": version, "file": output, "bytes": size})


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
