"""`polyhead calibrate`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from polyhead.cli.actor import actor_option
from polyhead.cli.bundle_lines import end
from polyhead.cli.labelled import LabelledColumns, labelled_options, labelled_sources
from polyhead.cli.options import backend_option, names_in, precision_option, tasks_option
from polyhead.cli.output import Printer, json_option, section, text_table
from polyhead.errors import DataError

if TYPE_CHECKING:
    from polyhead.tasks.calibration import Calibration
    from polyhead.tasks.task import Task

HEAD = ("label", "threshold", "precision", "recall", "f1", "given", "rows")
LONG = 40  # labels that are shown; JSON holds all


@click.command("calibrate")
@click.argument("bundle", type=click.Path(file_okay=False))
@click.argument("data", metavar="FILE")
@tasks_option("Calibrate these tasks only, with commas between them.")
@labelled_options
@click.option("--check", metavar="FILE", help="Check on the labelled rows of this file, and fit on all of FILE.")
@click.option(
    "--method",
    type=click.Choice(["temperature", "vector", "none"]),
    default="temperature",
    show_default=True,
    help="How scores are scaled. temperature: one number, so that no answer changes; vector: two numbers a label.",
)
@click.option(
    "--goal",
    metavar="GOAL",
    help="Choose thresholds for f1, precision=0.9, recall=0.9 or accuracy=0.9 (of the answers that are sure).",
)
@click.option("--positive", metavar="LABEL", help="Label that f1, precision or recall is of, in a single_label task.")
@click.option("--unsure-below", type=click.FloatRange(0, 1), help="Call an answer unsure below this probability.")
@click.option(
    "--coverage",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.9,
    show_default=True,
    help="Chance that an answer's set of labels, or its interval, holds the truth.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed by which the rows of FILE are halved.")
@click.option("--dry-run", is_flag=True, help="Show what would be kept; change nothing.")
@backend_option()
@precision_option
@actor_option
@json_option
def command(
    bundle: str,
    data: str,
    tasks: tuple[str, ...],
    check: str | None,
    backend: str | None,
    precision: str | None,
    actor: str,
    json_to: str | None,
    dry_run: bool,
    **options: Any,
) -> None:
    """Make tasks of BUNDLE say how sure they are, from the labelled rows of FILE, which they did not learn from.

    \b
    polyhead calibrate bundle held-out.csv --task mood                         probabilities that mean what they say
    polyhead calibrate bundle held-out.csv --task mood --goal precision=0.95   and "unsure" where 0.95 is not reached
    polyhead calibrate bundle held-out.csv --task topics --goal f1             a threshold for each label

    Half of the rows fit, the other half checks: what is printed was measured on rows that it was not fitted on. The
    result is kept with the task, as a new version with a certificate. Labels, scores and raw outputs of all tasks stay
    bit for bit as they are. Answers get a field "calibrated" beside them, with "label" (null where "unsure"), "scores",
    and "set": the labels that hold the truth with a chance of at least --coverage. A request may leave it out, or set
    other thresholds.

    Regression has no probabilities, so it gets intervals alone. Other kinds are single_label, multi_label and
    multiple_choice. `polyhead tasks rollback` takes the calibration away again; training a task anew leaves it behind.
    """
    from polyhead.certify.beside import keep_beside
    from polyhead.engine.session import Session
    from polyhead.evaluate.calibrate import CalibrateRequest
    from polyhead.evaluate.calibrate_task import calibrated_task

    printer, only = Printer(json_to), names_in(tasks)
    named = LabelledColumns(**{f: options.pop(f) for f in LabelledColumns.__struct_fields__ if f in options})
    wish = CalibrateRequest(**options)
    for path in filter(None, (data, check)):
        if not os.path.isfile(path):
            raise DataError(f"no file at {path}", do="give the path of a file that exists")
    session = Session(bundle, backend=backend, precision=precision)
    known = {name: session.tasks[name] for name in session.task_names(only or None)}
    sources = labelled_sources(known, only, data, named)
    checks = labelled_sources(known, list(sources), check, named) if check is not None else {}
    made = {
        name: calibrated_task(session, name, source, wish, check=checks.get(name), show=printer.show)
        for name, source in sources.items()
    }
    printer.show("")
    calibrations = {name: each.calibration for name, each in made.items() if each.calibration is not None}
    for name, calibration in calibrations.items():
        printer.lines(section(name, _lines(known[name], calibration)))
    facts = {"calibrations": calibrations}
    if dry_run:
        printer.line("nothing was changed: --dry-run")
        return printer.json({"bundle": bundle, "certificate": None, **facts})
    certificate = keep_beside(bundle, made, read=session.bundle, actor=actor)
    for name, (old, new) in certificate.changed.items():
        printer.line(f"calibrated {name}: {old} -> {new}; its raw outputs are the same bits")
    return end(printer, bundle, certificate, **facts)


def _lines(task: Task, calibration: Calibration) -> list[str]:
    from polyhead.evaluate.calibrate_task import measure_lines

    lines = measure_lines(task, calibration)
    if not calibration.thresholds:
        return lines
    scores = calibration.measured["check"]["labels"]
    rows = [
        [label, f"{needed:.4f}", *(_cell(scores[label][name]) for name in HEAD[2:])]
        for label, needed in zip(task.labels, calibration.thresholds, strict=True)
    ]
    more = [f"and {len(rows) - LONG:,} labels more"] if len(rows) > LONG else []
    return [*lines, *text_table([HEAD, *rows[:LONG]]), *more]


def _cell(value: Any) -> object:
    return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else value
