"""`polyhead drift`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from polyhead.bundle.format import SEEN
from polyhead.bundle.row_profile import RowProfile, stored_centres
from polyhead.certify.annotations import keep_annotations
from polyhead.cli.bundle_lines import end
from polyhead.cli.command import option, verb
from polyhead.cli.options import Actor, BackendOptions, DataFile, Folder, LabelledColumns, Tasks, labelled_sources
from polyhead.cli.output import Printer, counted, indented, note, section, text_table
from polyhead.data.columns import Source
from polyhead.data.rows import first_columns
from polyhead.engine.session import Session
from polyhead.evaluate.drift import ASPECTS, Summarized, TaskDrift, drift_facts, drifts, known_of, profile_of, summaries
from polyhead.progress import short

WIDTH = 100  # characters of an example


@verb("drift")
def command(
    bundle: Folder,
    data: DataFile,
    *,
    tasks: Tasks = option("Look at these tasks only, with commas between them; by default all that can read FILE."),
    columns: LabelledColumns,
    known: DataFile | None = option("Compare with the rows of this file, not with what the bundle keeps."),
    keep: bool = option("Keep what FILE looks like with each task, for later; compare nothing."),
    alpha: float = option("Chance of a false alarm, for all tasks of a run together.", 0.01, gt=0, le=0.5),
    examples: int = option("Unlike rows to show a task.", 5, ge=0),
    seed: int = option("Seed of the rows that are drawn of a long file.", 0),
    fail: bool = option("End with exit code 1 if a task sees other rows than it knows."),
    how: BackendOptions,
    actor: Actor,
    printer: Printer,
) -> Any:
    """Show which tasks of BUNDLE see other texts in FILE than those that they were validated on.

    \b
    polyhead drift bundle this-week.csv                       every task, beside what the bundle keeps
    polyhead drift bundle this-week.csv --known last-week.csv two files, with no summary in the bundle
    polyhead drift bundle validation.csv --keep               keep the summary: a new, certified version of each task

    Three things are compared: texts (by the encoder's mean vectors), their lengths, and the answers' scores. Each
    gets a distance from 0 to 1 and a permutation test; the tests of all tasks together are wrong with a chance of
    --alpha at most. "unlike" is the share of rows that lie farther from the known ones than 99 of 100 known rows lie
    from each other; of rows like these it is near 0.01. At most 1,000 rows are compared; of a longer file they are
    drawn.

    If FILE has the labels of a task, in the column of its name or --label, it is also said whether its answers are
    still as sure as they are right. `polyhead train` and `polyhead calibrate` keep the summary too. It holds no text.
    """
    if keep and known is not None:
        raise click.UsageError("--keep compares nothing, so --known has no use beside it.")
    session = how.session(bundle)
    names = [name for name in session.task_names(tasks or None) if name in session.records]
    standing = _standing(session, names, tasks) if known is None and not keep else {}
    options: dict[str, Any] = {"seed": seed, "say": note, "show": printer.show}
    read = list(standing) or names
    rows = summaries(
        session, data, read, _labelled(session, read, data, columns), columns.roles, needed=tasks, **options
    )
    if keep:
        return _keep(printer, bundle, session, rows, actor)
    if known is not None:
        read = list(rows)
        sources = _labelled(session, read, known, columns)
        others = summaries(session, known, read, sources, columns.roles, needed=read, **options)
        standing = {name: summary.seen for name, summary in others.items()}
    task_drifts = drifts(session, rows, standing, alpha=alpha, examples=examples, seed=seed)
    printer.json(_print(printer, data, task_drifts))
    if fail and any(drift.differs for drift in task_drifts):
        sys.exit(1)
    return None


def _standing(session: Session, names: Sequence[str], only: Sequence[str]) -> dict[str, RowProfile]:
    """The summaries of the tasks that have one; an error where a named task or every task lacks it."""
    lacking = [name for name in names if SEEN not in session.records[name].files]
    if only or len(lacking) == len(names):
        return known_of(session, list(names))
    if lacking:
        note(f"no summary is kept of {', '.join(lacking)}: train them on more rows, or keep it with --keep")
    return known_of(session, [name for name in names if name not in lacking])


def _labelled(session: Session, names: Sequence[str], data: str, columns: LabelledColumns) -> dict[str, Source]:
    """The sources of the tasks whose labels the file has: in the columns that `--label` names, or of a task's name."""
    named = {*columns.labels_of(names), *first_columns(data)}
    labelled = [name for name in names if None in named or name in named]
    return labelled_sources({name: session.tasks[name] for name in names}, labelled, data, columns) if labelled else {}


def _keep(printer: Printer, bundle: str, session: Session, rows: dict[str, Summarized], actor: str) -> None:
    seen = {name: summary.seen.with_centres(stored_centres(session.bundle, name)) for name, summary in rows.items()}
    wanted = {name: profile_of(session.tasks[name], profile_rows) for name, profile_rows in seen.items()}
    certificate = keep_annotations(bundle, wanted, read=session.bundle, actor=actor)
    for name, (old, new) in certificate.changed.items():
        printer.line(f"kept what {counted(rows[name].rows.whole, 'row')} of {name} look like: {old} -> {new}")
    end(printer, bundle, certificate)


def _print(printer: Printer, data: str, task_drifts: Sequence[TaskDrift]) -> dict[str, Any]:
    rows: list[list[object]] = [["task", "rows", "known", "verdict", *ASPECTS, "unlike"]]
    for drift in task_drifts:
        aspects = [drift.aspects.get(name) for name in ASPECTS]
        differing = [words for each, words in zip(aspects, ASPECTS.values(), strict=True) if each and each.differs]
        distances = [f"{each.distance:.3f} (p {each.p:.2g})" if each else "-" for each in aspects]
        verdict = ", ".join(differing) or "as known"
        rows.append([drift.task, f"{drift.rows:,}", f"{drift.known:,}", verdict, *distances, f"{drift.unlike:.3f}"])
    printer.lines(text_table(rows))
    for drift in task_drifts:
        printer.lines(section(drift.task, lines) if (lines := _lines(drift)) else [])
    return {"data": data, "tasks": [drift_facts(drift) for drift in task_drifts]}


def _lines(drift: TaskDrift) -> list[str]:
    lines = list(drift.notes)
    if drift.sureness is not None:
        sure = drift.sureness
        verdict = "as sure as they are right"
        if sure.differs:
            verdict = ("surer" if sure.confidence > sure.accuracy else "less sure") + " than they are right"
        lines.append(
            f"answers are {verdict}: {sure.accuracy:.4f} right, {sure.confidence:.4f} sure, calibration error "
            f"{sure.error:.4f} (up to {sure.usual:.4f} by chance) on {counted(sure.rows, 'labelled row')}"
        )
    if drift.differs and drift.examples:
        lines.append("most unlike:")
        lines += indented(
            f"row {each.row:,}  {each.distance:.3f}  {short(each.text, WIDTH, '…')}" for each in drift.examples
        )
    return lines
