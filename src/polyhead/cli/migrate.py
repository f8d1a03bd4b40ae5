"""`polyhead features compare`, `labels` and `switch`."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from polyhead.cli.command import OutputFile, VerbGroup, option, verb
from polyhead.cli.options import File, Folder, OptionalFolder, Output, RequiredFile, TaskArguments, Tasks, TextColumns
from polyhead.cli.output import Printer, check_writable, counted, indented, note, number, text_table, writing_file
from polyhead.store.jobs.compare import StoreComparison, TaskComparison, check_agreement, compare, comparison_with_texts
from polyhead.store.jobs.labels import LabelRequest, label_rows
from polyhead.store.jobs.migrate import StoreBundle, read_pointer, switch, switch_back
from polyhead.store.jobs.stored_answers import StoredAnswers
from polyhead.values import to_json

FLIPS, CHANGES = 1000, 5  # flips of a task that are written; changes of a task that are printed


@click.group("migrate", cls=VerbGroup)
def command() -> None:
    """Move a corpus to another encoder: the part of `polyhead features` that compares two stores and switches."""


@verb("compare", group=command)
def compare_command(
    old: str,
    new: str,
    *,
    old_bundle: str = option("The bundle that answers from OLD.", "--old", metavar="BUNDLE", required=True),
    new_bundle: str = option("The bundle that answers from NEW.", "--new", metavar="BUNDLE", required=True),
    tasks: Tasks = option("Compare these tasks only [default: all that are answered in OLD]."),
    at_least: float | None = option(
        "Fail if a task may agree less often, by its 95 % interval.", ge=0, le=1, metavar="SHARE"
    ),
    flips: Output = option("Write documents whose answer differs, a JSON object a line."),
    most: int = option("How many of each task, those of which both are surest first.", FLIPS, ge=1),
    texts: File = option("Write the texts too: the file that was extracted."),
    columns: TextColumns,
    printer: Printer,
) -> Any:
    """Compare the answers in the stores OLD and NEW, task by task, and say what NEW lacks yet.

    Compared are documents for which both stores have answers, so this may run while NEW is still being filled. A flip
    is a document whose answer differs; for values, one whose values differ by more than a hundredth of the range.
    """
    sides = StoredAnswers(old, old_bundle), StoredAnswers(new, new_bundle)
    comparison = compare(*sides, tasks, flips=most if flips else 0, show=printer.show)
    if texts is not None:
        named = comparison_with_texts(comparison.flips, texts, columns.roles, show=printer.show)
        comparison = msgspec.structs.replace(comparison, flips=tuple(named))
    printer.lines(_lines(comparison))
    if flips is not None:
        with writing_file(flips) as file:
            file.writelines(to_json(flip, indent=0) for flip in comparison.flips)
        more = sum(task.compared - task.equal for task in comparison.tasks) - len(comparison.flips)
        printer.line(f"{flips}: {counted(len(comparison.flips), 'flip')}" + (f", and {more:,} more" if more else ""))
    printer.json(comparison)
    if at_least is not None:
        check_agreement(comparison, at_least)


@verb("labels", group=command)
def labels_command(
    store: str,
    bundle: Folder,
    tasks: TaskArguments = option(metavar="TASK..."),
    *,
    texts: RequiredFile = option("The file that was extracted into STORE.", required=True),
    output: str = option("Where labelled rows go (.jsonl).", required=True, type=OutputFile(".jsonl"), metavar="FILE"),
    at_least: float | None = option("Leave out answers that are less sure.", ge=0, le=1, metavar="SCORE"),
    rows: int | None = option("About so many documents, drawn by id [default: all].", ge=1),
    columns: TextColumns,
) -> Any:
    """Write the answers of TASKs in STORE as labelled rows, to train tasks whose human labels are gone.

    A row has the columns id, text (for a pair also text_b), and for each task its label, labels or value under the
    task's name, and the score. A task learns from it with `label = "TASK"` in the project file. What STORE got wrong,
    the new task learns too.
    """
    request = LabelRequest(tasks=tasks, columns=columns.roles, at_least=at_least, rows=rows)
    answers, written, printer = StoredAnswers(store, bundle), 0, Printer()
    with writing_file(output) as file:
        for row in label_rows(answers, texts, request, show=printer.show):
            file.write(to_json(row, indent=0))
            written += 1
    printer.line(f"{output}: {counted(written, 'row')} of {counted(answers.documents, 'document')}")


@verb("switch", group=command)
def switch_command(
    pointer: RequiredFile,
    *,
    store: str | None = option("The store that readers open from now on.", metavar="STORE"),
    bundle: OptionalFolder = option("The bundle over its encoder.", metavar="BUNDLE"),
    back: bool = option("Name again what FILE named before the last switch."),
    at_least: float | None = option(
        "Stay if a task may agree less often, by its 95 % interval.", ge=0, le=1, metavar="SHARE"
    ),
    incomplete: bool = option("Switch also if documents, tasks or answers are lacking."),
    printer: Printer,
) -> Any:
    """Let FILE name another store and bundle: readers that open what it names change in one step.

    Without a FILE it is written. Otherwise the two sides are compared first, and FILE stays as it is where the new side
    lacks documents, tasks or answers that the old one has. Without --store and --bundle it shows what FILE names.
    """
    if back + (store is not None and bundle is not None) > 1 or (store is None) != (bundle is None):
        raise click.UsageError("give --store and --bundle, or --back")
    comparison = None
    if back:
        check_writable(pointer)
        switch_back(pointer)
    elif store is not None and bundle is not None:
        check_writable(pointer)
        comparison = switch(pointer, store, bundle, at_least=at_least, incomplete=incomplete, show=printer.show)
        if comparison is not None:
            printer.lines(_lines(comparison))
    named = read_pointer(pointer)
    printer.line(f"{pointer}: {_place(named.current)}")
    if named.previous is not None:
        printer.line(f"before: {_place(named.previous)}")
    return {"pointer": named, "comparison": comparison}


def _place(place: StoreBundle) -> str:
    return f"{place.store}, answered by {place.bundle}, encoder {place.trunk[:12]}"


def _lines(comparison: StoreComparison) -> list[str]:
    common = comparison.documents - comparison.lacking
    lines = [
        f"{comparison.old}: {counted(comparison.documents, 'document')}, encoder {comparison.old_trunk[:12]}",
        f"{comparison.new}: {common:,} of these, {comparison.lacking:,} are lacking, {comparison.added:,} more, "
        f"encoder {comparison.new_trunk[:12]}",
    ]
    rows: list[list[object]] = [["task", "compared", "lacking", "equal", "share", "95 % interval", "mean difference"]]
    for task in comparison.tasks:
        share = "-" if task.share is None else f"{100 * task.share:.2f} %"
        interval = "-" if task.share is None else f"{100 * task.low:.2f} to {100 * task.high:.2f}"
        named = f"{task.new.task} {task.old.version} {task.new.version}"
        difference = number(task.mean_difference)
        rows.append([named, f"{task.compared:,}", f"{task.lacking:,}", f"{task.equal:,}", share, interval, difference])
    lines += (
        text_table(rows)
        if comparison.tasks
        else [f"no live version of a task of the old bundle is answered in {comparison.old}"]
    )
    for name in comparison.missing:
        note(f"task '{name}' is answered in {comparison.old}, and is not in the bundle of {comparison.new}")
    for task in comparison.tasks:
        lines += _changes(task)
    return lines


def _changes(task: TaskComparison) -> list[str]:
    if not task.changes:
        return []
    shown = [f"{_label(c.old)} -> {_label(c.new)}: {c.documents:,}" for c in task.changes[:CHANGES]]
    more = len(task.changes) - len(shown)
    return [f"changes of {task.new.task}", *indented([*shown, *([f"and {more:,} more"] if more else [])])]


def _label(label: str | None) -> str:
    return "none" if label is None else f"'{label}'"
