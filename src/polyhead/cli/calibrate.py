"""`polyhead calibrate`."""

from __future__ import annotations

from typing import Any

import msgspec

from polyhead.certify.annotations import keep_annotations
from polyhead.cli.bundle_lines import end
from polyhead.cli.command import option, verb
from polyhead.cli.options import (
    Actor,
    BackendOptions,
    Column,
    DataFile,
    Folder,
    LabelledColumns,
    Tasks,
    labelled_sources,
)
from polyhead.cli.output import Printer, section, text_table
from polyhead.evaluate.calibrate import CalibrateRequest
from polyhead.evaluate.calibrate_task import calibrated_task, measure_lines
from polyhead.tasks.calibration import Calibration
from polyhead.tasks.task import Task

HEAD = ("label", "threshold", "precision", "recall", "f1", "given", "rows")
LONG = 40  # labels that are shown; JSON holds all


@verb("calibrate")
def command(
    bundle: Folder,
    data: DataFile,
    *,
    tasks: Tasks = option("Calibrate these tasks only, with commas between them."),
    columns: LabelledColumns,
    group: Column | None = option("Rows with one value in this column, such as a person, are in one half."),
    check: DataFile | None = option("Check on the labelled rows of this file, and fit on all of FILE."),
    request: CalibrateRequest,
    dry_run: bool = option("Show what would be kept; change nothing."),
    how: BackendOptions,
    actor: Actor,
    printer: Printer,
) -> Any:
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
    session = how.session(bundle)
    known = {name: session.tasks[name] for name in session.task_names(tasks or None)}
    sources = {
        name: msgspec.structs.replace(source, group=group)
        for name, source in labelled_sources(known, tasks, data, columns).items()
    }
    checks = labelled_sources(known, list(sources), check, columns) if check is not None else {}
    calibrated = {
        name: calibrated_task(session, name, source, request, check=checks.get(name), show=printer.show)
        for name, source in sources.items()
    }
    calibrations = {name: each.calibration for name, each in calibrated.items() if each.calibration is not None}
    for name, calibration in calibrations.items():
        printer.lines(section(name, _lines(known[name], calibration)))
    facts = {"calibrations": calibrations}
    if dry_run:
        printer.line("nothing was changed: --dry-run")
        return {"bundle": bundle, "certificate": None, **facts}
    certificate = keep_annotations(bundle, calibrated, read=session.bundle, actor=actor)
    for name, (old, new) in certificate.changed.items():
        printer.line(f"calibrated {name}: {old} -> {new}; its raw outputs are the same bits")
    return end(printer, bundle, certificate, **facts)


def _lines(task: Task, calibration: Calibration) -> list[str]:
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
