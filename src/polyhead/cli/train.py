"""`polyhead train`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polyhead.cli.options import names_in, tasks_option
from polyhead.cli.output import Printer, check_apart, check_writable, json_option, stoppable

if TYPE_CHECKING:
    from polyhead.project.tables import Project
    from polyhead.train.loop.devices import Place
    from polyhead.train.loop.events import Events


FROZEN = ("frozen", "donors")  # recipes by which no trunk learns, and tasks of a bundle get new versions


@click.command("train")
@click.argument("project", type=click.Path(dir_okay=False), default="polyhead.toml")
@tasks_option("Train these tasks only, with commas between them.")
@click.option(
    "--retrain",
    multiple=True,
    metavar="NAMES",
    help="Train these tasks, with commas between them, even if they are trained already, were rolled back or removed, "
    "or lost under --if-better.",
)
@click.option(
    "--if-better", is_flag=True, help="Keep a task's live version unless the new one scores higher on held-out rows."
)
@click.option("--bundle", type=click.Path(file_okay=False), help="Write to this bundle instead of the project's.")
@click.option("--seed", type=int, help="Use this seed instead of the project's.")
@click.option(
    "--cache",
    type=click.Path(file_okay=False),
    help="Folder for features and checkpoints; by default BUNDLE-cache, next to the bundle.",
)
@click.option("--events", metavar="FILE", help="Append one JSON line for each event to FILE.")
@click.option(
    "--tensorboard",
    metavar="FOLDER",
    type=click.Path(file_okay=False),
    help="Write losses, rates and scores to FOLDER for TensorBoard. Refused for a frozen trunk.",
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    help="Device for training a trunk; by default CUDA if available. Refused for a frozen trunk.",
)
@json_option
def command(
    project: str,
    tasks: tuple[str, ...],
    retrain: tuple[str, ...],
    if_better: bool,
    bundle: str | None,
    seed: int | None,
    cache: str | None,
    events: str | None,
    tensorboard: str | None,
    device: str | None,
    json_to: str | None,
) -> None:
    """Train every task of PROJECT (polyhead.toml) over its frozen trunk, into a bundle.

    First prints what it is going to do. The trunk reads each text once. An interrupted run continues where it stopped,
    and tasks that the bundle already has, trained the same way, are kept. Tasks that a person rolled back or removed
    are not trained, with a message. A task that had a live version is shown with its old and its new score.

    With recipe "joint" the trunk is trained together with the tasks, and gets a bundle of its own. Another project may
    use that bundle's folder as its trunk. Started by torchrun, several processes share the training. With recipe
    "leave_out" each task, or group, gets a bundle whose trunk was trained on the others. With recipe "fine_tune" each
    task gets a bundle whose trunk was trained on it, the best of a search. With recipe "donors" each prompted task is
    trained alone over the frozen trunk; another project can name that bundle in `donors` to start from its prompts and
    poolers.
    """
    import msgspec

    from polyhead.errors import UnknownTask
    from polyhead.project.tables import data_files, read_project, with_seed
    from polyhead.train.loop.devices import place_in
    from polyhead.train.loop.events import Events

    printer, only = Printer(json_to), names_in(tasks)
    if events is not None:
        check_writable(events)
    plan = read_project(project)
    check_apart((events, json_to), data_files(plan, Path(project).resolve().parent))
    if seed is not None:
        plan = with_seed(plan, seed)
    if bundle is not None:
        plan = msgspec.structs.replace(plan, bundle=str(Path(bundle).resolve()))
    names = [entry.name for entry in plan.tasks]
    unknown = sorted(set(only) - set(names))
    if unknown:
        raise UnknownTask(f"{project} declares no such task", got=unknown, allowed=names)
    kind = str(plan.recipe.__struct_config__.tag)
    place = place_in(os.environ, "cpu" if kind in FROZEN else device or "auto")
    again = names_in(retrain, "--retrain")
    _check(kind, several=place.world > 1, chosen=bool(device or tensorboard), only=only)
    _check_decided(kind, again, if_better)
    events_to = _told(printer, events, tensorboard) if place.is_first else Events()
    folder, kept = Path(project).resolve().parent, Path(cache).resolve() if cache else None
    with stoppable("the same command goes on from there"):
        wish = {"retrain": again, "if_better": if_better} if kind in FROZEN else {}
        outcome = _trained(plan, folder, kept, events_to, place, only, wish)
    if place.is_first:
        printer.json(outcome)


def _trained(
    project: Project,
    folder: Path,
    cache: Path | None,
    events: Events,
    place: Place,
    only: tuple[str, ...],
    wish: dict[str, Any],
) -> object:
    """What the project's recipe does; `wish` are the arguments of recipes that put several versions in one bundle."""
    from polyhead.project.recipes import Donors, FineTune, Joint, LeaveOut
    from polyhead.train.recipes.donors import train_donors
    from polyhead.train.recipes.fine_tune import fine_tune_project
    from polyhead.train.recipes.joint import train_together
    from polyhead.train.recipes.leave_out import train_leave_out
    from polyhead.train.run import train_project

    if isinstance(project.recipe, Donors):
        return train_donors(project, folder=folder, cache=cache, events=events, only=only, **wish)
    if isinstance(project.recipe, Joint):
        return train_together(project, folder=folder, cache=cache, events=events, place=place)
    if isinstance(project.recipe, LeaveOut):
        return train_leave_out(project, folder=folder, cache=cache, events=events, place=place, only=only)
    if isinstance(project.recipe, FineTune):
        return fine_tune_project(project, folder=folder, cache=cache, events=events, place=place, only=only)
    return train_project(project, folder=folder, cache=cache, events=events, only=only, **wish)


def _check(kind: str, *, several: bool, chosen: bool, only: tuple[str, ...]) -> None:
    """Raises ConfigError for what the project's recipe has no use for."""
    from polyhead.errors import ConfigError

    if several and kind != "joint":
        raise ConfigError(
            "several processes are for the joint recipe",
            got=f"recipe '{kind}'",
            do="start `polyhead train` by itself, or set recipe.kind = 'joint'",
        )
    if chosen and kind in FROZEN:
        raise ConfigError(
            "--device and --tensorboard are for recipes by which a trunk learns",
            got=f"recipe '{kind}'",
            do="leave them out, or set another recipe.kind",
        )
    if kind == "joint" and only:
        raise ConfigError(
            "a joint recipe trains all tasks of its project together",
            got=f"--tasks {','.join(only)}",
            do="leave --tasks out, or give those tasks a project file of their own",
        )


def _check_decided(kind: str, retrain: tuple[str, ...], if_better: bool) -> None:
    from polyhead.errors import ConfigError

    if (retrain or if_better) and kind not in FROZEN:
        raise ConfigError(
            "--retrain and --if-better are for recipes that replace tasks of a bundle one by one",
            got=f"recipe '{kind}', by which a bundle is trained once",
            allowed=list(FROZEN),
            do="leave them out; another bundle name trains anew",
        )


def _told(printer: Printer, events: str | None, tensorboard: str | None) -> Events:
    from polyhead.train.loop import events as telling

    heard = [telling.tensorboard(Path(tensorboard))] if tensorboard else []
    file = Path(events) if events else None
    return telling.Events(say=printer.line, show=printer.show, file=file, listeners=heard)
