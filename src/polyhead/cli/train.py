"""`polyhead train`."""

from __future__ import annotations

from pathlib import Path

import click

from polyhead.cli.options import names_in, tasks_option
from polyhead.cli.output import Printer, check_writable, json_option


@click.command("train")
@click.argument("project", type=click.Path(dir_okay=False), default="polyhead.toml")
@tasks_option("Train these tasks only, with commas between them.")
@click.option(
    "--bundle", type=click.Path(file_okay=False), help="Write to this bundle instead of the project's."
)
@click.option("--seed", type=int, help="Train under this seed instead of the project's.")
@click.option(
    "--cache",
    type=click.Path(file_okay=False),
    help="Keep features and checkpoints here; by default beside the bundle, in BUNDLE-cache.",
)
@click.option("--events", metavar="FILE", help="Append one JSON line for each event to FILE.")
@json_option
def command(
    project: str,
    tasks: tuple[str, ...],
    bundle: str | None,
    seed: int | None,
    cache: str | None,
    events: str | None,
    json_to: str | None,
) -> None:
    """Train every task of PROJECT (polyhead.toml) over its frozen trunk, into a bundle.

    Prints what it is going to do first. The trunk reads each text once; a run that was stopped goes on where it
    stopped, and tasks that are in the bundle already, trained the same way, are kept.
    """
    import msgspec

    from polyhead.errors import UnknownTask
    from polyhead.project import read_project, with_seed
    from polyhead.train.events import Events
    from polyhead.train.run import train_project

    printer, only = Printer(json_to), names_in(tasks)
    if events is not None:
        check_writable(events)
    plan = read_project(project)
    if seed is not None:
        plan = with_seed(plan, seed)
    if bundle is not None:
        plan = msgspec.structs.replace(plan, bundle=str(Path(bundle).resolve()))
    names = [entry.name for entry in plan.tasks]
    unknown = sorted(set(only) - set(names))
    if unknown:
        raise UnknownTask(f"{project} declares no such task", got=unknown, allowed=names)
    told = Events(say=printer.line, show=printer.show, file=Path(events) if events else None)
    outcome = train_project(
        plan,
        folder=Path(project).resolve().parent,
        cache=Path(cache).resolve() if cache else None,
        events=told,
        only=only,
    )
    printer.json(outcome)
