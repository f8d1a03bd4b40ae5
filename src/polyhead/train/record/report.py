"""The page that `train` writes next to a bundle: each task's answers to rows that its part was not trained on."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path as FilePath

from polyhead._version import __version__
from polyhead.bundle.read import Bundle
from polyhead.errors import BundleError, DataError, TrainError
from polyhead.evaluate.details import details_of
from polyhead.evaluate.held_out import held_out_file, match_rows, read_held_out
from polyhead.evaluate.on_project import homes
from polyhead.evaluate.report.evaluation import Reported, page_of
from polyhead.evaluate.scores import evaluation_from
from polyhead.files import replace_file
from polyhead.train.training import TrainingRun

CHOSEN_BY = (
    "The answers are those of training, each by a copy of the task that did not learn from the row. Training chose "
    "heads by these scores, so they are a little too good: `polyhead evaluate` with a test file says more."
)


def report_file(root: FilePath) -> FilePath:
    """The page's path for a bundle, or a folder of bundles: next to it, since a bundle holds no other files."""
    return root.with_name(f"{root.name}-report.html")


def write_report(run: TrainingRun) -> FilePath | None:
    """Writes the page of the project's tasks that the bundles hold; None where no answer to rows held out is kept.

    Nothing is answered anew. Raises TrainError if the disk refuses.
    """
    details, baselines = [], {}
    entries = {entry.name: entry for entry in run.project.tasks}
    for root, names in homes(run.project, run.folder, None, ()).items():
        bundle = Bundle.open(root, verify=False)
        for p in run.prepared:
            name = p.task.name
            if name not in bundle.tasks or (names and name not in names):
                continue
            record, rows = bundle.record(name), p.validation.examples if p.whole is None else p.whole
            try:
                held = read_held_out(held_out_file(run.cache, name, record.arrays))
                restored = match_rows(record.task, entries[name].source(entries[name].train, run.folder), held, rows)
            except (BundleError, DataError):  # of a version that was trained elsewhere, or on other rows
                continue
            details.append(details_of(evaluation_from(restored.answered, split=restored.facts.split)))
            baselines[name] = bundle.baselines(name, "validation") if restored.is_same else {}
    if not details:
        return None
    file = report_file(run.root)
    when = f"{datetime.now(UTC):%Y-%m-%d %H:%M UTC}, polyhead {__version__}"
    page = page_of(
        Reported(
            title=f"Training of {run.root.name}", facts=(when, CHOSEN_BY), details=tuple(details), baselines=baselines
        )
    )
    try:
        replace_file(file, page.encode())
    except OSError as error:
        raise TrainError(
            f"the report cannot be written to {file}",
            got=error.strerror or error,
            do="make room; what was trained is kept",
        ) from None
    return file
