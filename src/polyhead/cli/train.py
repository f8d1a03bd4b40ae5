"""`polyhead train`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import click

from polyhead.cli.command import option, verb
from polyhead.cli.options import Actor, OptionalFolder, Output, Store, Tasks
from polyhead.cli.output import Printer, check_apart
from polyhead.errors import ConfigError
from polyhead.project.recipes import Effort
from polyhead.project.tables import data_files, read_project, with_effort, with_seed
from polyhead.train.events import Events, Listener
from polyhead.train.run import REPLACING, train_project
from polyhead.train.runs import ProcessRank, deep, rank_in
from polyhead.values import Value


class RetrainOptions(Value):
    """Which tasks are trained again, and when their new version is kept."""

    retrain: Annotated[
        Tasks,
        option(
            "Train these tasks, with commas between them, even if they are trained already, were rolled back or "
            "removed, or lost under --if-better.",
            "--retrain",
        ),
    ] = ()
    if_better: Annotated[
        bool, option("Keep a task's live version unless the new one scores higher on held-out rows.")
    ] = False
    allow_lost_labels: Annotated[
        bool, option("Train a new version also where labels of the live one have no row now: it does not answer them.")
    ] = False


EFFORT = (
    "Heads to try: linear ones (quick), with torch also one that learns in steps (default), or several of these and "
    "branches (best)."
)


@verb("train", again="the same command goes on from there")
def command(
    project: str = option(default="polyhead.toml", type=click.Path(dir_okay=False)),
    *,
    tasks: Tasks = option("Train these tasks only, with commas between them."),
    kept: RetrainOptions,
    features: Store | None = option(
        "Take features from this store, and encode no text: for a frozen encoder. See `polyhead features`.",
        metavar="STORE",
    ),
    bundle: OptionalFolder = option("Write to this bundle instead of the project's."),
    seed: int | None = option("Use this seed instead of the project's."),
    effort: Effort | None = option(EFFORT),
    minutes: float | None = option("Minutes a task for --effort best: what would end later is not begun."),
    cache: OptionalFolder = option("Folder for features and checkpoints; by default BUNDLE-cache, next to the bundle."),
    events: Output = option("Append one JSON line for each event to FILE."),
    tensorboard: OptionalFolder = option(
        "Write losses, rates and scores to FOLDER for TensorBoard. Refused for a frozen encoder.", metavar="FOLDER"
    ),
    device: Literal["auto", "cpu", "cuda"] | None = option(
        "Device for training an encoder; by default CUDA if available. Refused for a frozen encoder."
    ),
    actor: Actor,
    printer: Printer,
) -> Any:
    """Train every task of PROJECT (polyhead.toml) over its frozen encoder, into a bundle.

    First prints what it is going to do. The encoder reads each text once. An interrupted run continues where it
    stopped, and tasks that the bundle already has, trained the same way, are kept. Tasks that a person rolled back or
    removed are not trained, with a message. A task that had a live version is shown with its old and its new score. At
    the end BUNDLE-report.html, beside the bundle, holds scores, baselines, confusion, calibration and the surest
    mistakes, from answers to rows that were held out.

    With recipe "joint" the encoder is trained together with the tasks, and gets a bundle of its own. Another project
    may use that bundle's folder as its encoder. Started by torchrun, several processes share the training. With recipe
    "leave_out" each task, or group, gets a bundle whose encoder was trained on the others. With recipe "fine_tune" each
    task gets a bundle whose encoder was trained on it, the best of a search. With recipe "donors" each prompted task is
    trained alone over the frozen encoder; another project can name that bundle in `donors` to start from its prompts
    and poolers.
    """
    import msgspec

    plan = read_project(project)
    check_apart((events, printer.json_to), data_files(plan, Path(project).resolve().parent))
    plan = plan if seed is None else with_seed(plan, seed)
    plan = with_effort(plan, effort, minutes)
    plan = plan if bundle is None else msgspec.structs.replace(plan, bundle=str(Path(bundle).resolve()))
    place = _place(str(plan.recipe.__struct_config__.tag), device, is_watched=tensorboard is not None)
    outcome = train_project(
        plan,
        folder=Path(project).resolve().parent,
        cache=Path(cache).resolve() if cache else None,
        events=_events(printer, events, tensorboard) if place.is_first else Events(),
        place=place,
        only=tasks,
        **msgspec.structs.asdict(kept),
        features=features,
        actor=actor,
        report=True,
    )
    return outcome if place.is_first else None


def _place(kind: str, device: str | None, *, is_watched: bool) -> ProcessRank:
    """The process and device for a recipe of this kind; a frozen encoder is read on the processor."""
    if (device or is_watched) and kind in REPLACING:
        raise ConfigError(
            "--device and --tensorboard are for recipes by which an encoder learns",
            got=f"recipe '{kind}'",
            do="leave them out, or set another recipe.kind",
        )
    if kind in REPLACING:
        return rank_in(os.environ, "cpu")
    rank: ProcessRank = deep("loop.devices:place_in", f"recipe '{kind}'")(os.environ, device or "auto")
    return rank


def _events(printer: Printer, file: str | None, tensorboard: str | None) -> Events:
    listeners = list[Listener]()
    if tensorboard:
        from polyhead.deep.loop.tensorboard import tensorboard as listener

        listeners.append(listener(Path(tensorboard)))
    return Events(say=printer.line, show=printer.show, file=Path(file) if file else None, listeners=listeners)
