"""Labels that held-out heads and neighbours doubt, of every task of a project that can be looked at so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from polyhead.check.label_errors import all_labelled_rows, can_be_doubted, doubted, planted, trusted_up_to
from polyhead.check.split_rows import Finding, SplitRows, by_task
from polyhead.progress import counted
from polyhead.project.tables import Project
from polyhead.train.events import Events
from polyhead.train.heads.held_out import features_for, held_out, whole_of


def doubts_in(
    splits: Sequence[SplitRows],
    project: Project,
    folder: Path,
    *,
    store: str | None,
    cache: Path | None,
    say: Callable[[str], None],
    show: Callable[[str], None],
) -> list[Finding]:
    """Doubted labels of every task that labels whole texts; `say` gets the reason for each task that is left out.

    Features are those of a store, or of the folder `cache`, as `features_for` takes them.
    """
    findings: list[Finding] = []
    source = None
    entries = {entry.name: entry for entry in project.tasks}
    for task in by_task(splits):
        name = task[0].task.name
        if not can_be_doubted(task):
            say(f"task '{name}': heads cannot check its labels; whole texts need labels that occur at least twice")
            continue
        source = source or features_for(project, folder, store=store, cache=cache)
        show(f"holding out rows of task '{name}'")
        rows = all_labelled_rows(task)
        prepared = whole_of(project, entries[name], task[0].task, rows.examples)
        answered = held_out(prepared, source, Events(show=show))
        trials, outputs = planted(rows), list[np.ndarray]()
        for trial in trials:
            changed = whole_of(project, entries[name], task[0].task, trial.examples)
            outputs.append(held_out(changed, source, Events()).outputs)
        up_to = trusted_up_to(rows, answered.rows, list(zip(trials, outputs, strict=True)))
        if not up_to:
            count = counted(sum(int(trial.is_planted.sum()) for trial in trials), "label")
            reason = f"of {count} changed on purpose they found no more than chance, so no label is named as doubtful"
            say(f"task '{name}': heads cannot tell wrong labels from right ones: {reason}")
        findings += doubted(rows, answered.rows, answered.outputs, answered.vectors, up_to=up_to)
    return findings
