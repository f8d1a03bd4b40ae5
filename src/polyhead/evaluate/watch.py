"""Drift of a bundle's tasks over the rows of a file, and the summaries that it is measured against."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated

import numpy as np
from msgspec import Meta

from polyhead.bundle.seen import MOST as KEPT
from polyhead.bundle.seen import Seen, seen_of
from polyhead.certify.beside import TITLES, Beside
from polyhead.engine.session import Session
from polyhead.errors import BundleError
from polyhead.evaluate.asked import ModelView, asked, seen_rows
from polyhead.evaluate.drift import (
    ALPHA,
    ASPECTS,
    LEAST,
    MOST,
    TaskDrift,
    UnlikeRow,
    compare_profiles,
    drift_verdict,
    has_sureness,
    sureness,
    unlike_rows,
)
from polyhead.evaluate.measures import label_scores_of
from polyhead.evaluate.rows import FileRows
from polyhead.tasks.task import Task
from polyhead.values import Value

if TYPE_CHECKING:
    from polyhead.evaluate.samples import SampleDistance


class DriftRequest(Value):
    """How rows are compared."""

    alpha: Annotated[
        float, Meta(description="Chance of a false alarm, for all tasks of a run together.", gt=0, le=0.5)
    ] = ALPHA
    examples: Annotated[int, Meta(description="Unlike rows to show a task.", ge=0)] = 5
    seed: Annotated[int, Meta(description="Seed of the rows that are drawn of a long file.")] = 0


class Summarized(Value, eq=False):
    """Rows of a task: what it gave for them, and what they look like."""

    rows: FileRows
    answers: ModelView
    seen: Seen


def summarized(session: Session, name: str, rows: FileRows, *, show: Callable[[str], None]) -> Summarized:
    """What a task sees in these rows."""
    answers = asked(session, name, rows.inputs, rows.words, show=show)
    return Summarized(rows=rows, answers=answers, seen=seen_rows(session.tasks[name], rows.inputs, answers))


def drifts(
    session: Session, rows: Mapping[str, Summarized], known: Mapping[str, Seen], wish: DriftRequest
) -> list[TaskDrift]:
    """What each task sees beside what it knows; the chance that any of them is named wrongly is at most `alpha`."""
    rng = np.random.default_rng(wish.seed)
    level = wish.alpha / (len(ASPECTS) * max(len(rows), 1))
    differences: dict[str, dict[str, SampleDistance]] = {
        name: compare_profiles(name, known[name], each.seen, level=level, rng=rng) for name, each in rows.items()
    }
    aspects = drift_verdict(differences, wish.alpha)
    made = []
    for name, each in rows.items():
        share, distances, order = unlike_rows(known[name], each.seen)
        task, record = session.tasks[name], session.records[name]
        sure = None
        if each.rows.targets is not None and has_sureness(task):
            labelled = label_scores_of(task, each.answers.outputs, each.rows.targets)
            sure = sureness(labelled, record.calibration, rng=rng)
        examples = tuple(
            UnlikeRow(row=each.rows.rows[place], text=each.rows.text(place), distance=float(distances[place]))
            for place in order[: wish.examples].tolist()
        )
        made.append(
            TaskDrift(
                task=name,
                rows=len(each.seen.lengths),
                known=len(known[name].lengths),
                aspects=aspects[name],
                unlike=share,
                examples=examples,
                sureness=sure,
                notes=_notes(each.rows),
            )
        )
    return made


def known_of(session: Session, names: list[str]) -> dict[str, Seen]:
    """The summaries that the bundle keeps; raises BundleError for tasks without one."""
    summaries = {name: seen_of(session.bundle, name) for name in names}
    if lacking := [name for name, seen in summaries.items() if seen is None]:
        raise BundleError(
            "what the rows of these tasks looked like is not kept: training keeps it where it holds out "
            f"{LEAST} rows or more",
            got=lacking,
            do="keep it from rows that they did not learn from: `polyhead drift BUNDLE VALIDATION --keep`, or "
            "`polyhead calibrate`; or compare two files with --known FILE",
        )
    return {name: seen for name, seen in summaries.items() if seen is not None}


def profile_of(task: Task, seen: Seen, *, seed: int = 0) -> Beside:
    """The summary of these rows, to be kept with the task."""
    seen = seen.sample(seed, KEPT)
    lengths = np.quantile(seen.lengths, (0.1, 0.5, 0.9)).astype(int).tolist()
    lines = [
        f"- {len(seen.lengths):,} rows are kept as directions of mean vectors, lengths and scores; no text is",
        f"- characters a row: {lengths[1]:,}; of ten rows one has {lengths[0]:,} or fewer, one {lengths[2]:,} or more",
    ]
    if task.labels and seen.scores.shape[1] == len(task.labels):
        means = zip(task.labels, seen.scores.mean(axis=0).tolist(), strict=True)
        frequent = sorted(means, key=lambda pair: -pair[1])[:10]
        lines.append("- mean scores: " + ", ".join(f"{label} {mean:.3f}" for label, mean in frequent))
    return Beside(seen=seen, card={TITLES[1]: "\n".join(lines)})


def _notes(rows: FileRows) -> tuple[str, ...]:
    count = len(rows.inputs)
    return (f"{count:,} of {rows.whole:,} rows, drawn",) if count < rows.whole else ()


__all__ = ["MOST", "DriftRequest", "Summarized", "profile_of", "drifts", "known_of", "summarized"]
