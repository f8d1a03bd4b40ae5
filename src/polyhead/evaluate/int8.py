"""Scales from texts, and the changes of answers in int8: nothing is kept if a task changes too much."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Annotated

import numpy as np
from msgspec import Meta

from polyhead.bundle.read import Bundle
from polyhead.data.columns import Source
from polyhead.engine.compile.ops import Runtime
from polyhead.engine.inputs import InputType, input_type_of
from polyhead.engine.scale_files import Int8Change
from polyhead.engine.scales import ObservingRuntime, Scales
from polyhead.engine.session import Session
from polyhead.errors import BackendError, EmptyData
from polyhead.evaluate.scores import evaluation_of, file_of
from polyhead.project.tables import Project
from polyhead.store.jobs.columns import RowInput
from polyhead.tasks.agreement import Agreement, agreement_of
from polyhead.values import Value

SAMPLE = 256  # tokens of each value that decide between scales
PIECE = 64  # texts answered at a time in the comparison


class Limits(Value):
    """Limits above which a task's change is refused."""

    points: Annotated[
        float,
        Meta(description="Points that a task's metric may lose on labelled data.", ge=0, extra={"option": "--bound"}),
    ] = 1.0
    agreement: Annotated[
        float,
        Meta(
            description="Least agreement in percent without labelled data: equal answers, or F1 of spans.", ge=0, le=100
        ),
    ] = 95.0
    unmeasured: Annotated[
        bool, Meta(description="Accept tasks that none of the texts fits: the effect of int8 on them is then unknown.")
    ] = False


def project_sources(project: Project, folder: FilePath) -> dict[str, Source]:
    """The rows of tasks for scoring: the test or validation files; `folder` is that of the project's paths."""
    return {
        entry.name: entry.source(file_of(entry, "test")[0], folder)
        for entry in project.tasks
        if entry.test is not None or not isinstance(entry.validation, float)
    }


Runtimes = Callable[..., Runtime]
"""A runtime of a library in `precision`, "float32" or "int8"; the second takes `scales`."""


def halves(rows: Sequence[RowInput], most: int) -> tuple[list[RowInput], list[RowInput]]:
    """About `most` rows for calibration and as many for measurement: alternating rows of each form of input."""
    if len(rows) < 2:
        raise EmptyData(
            "scales need texts to be found on, and others to be measured on",
            got=f"{len(rows)} in the file of texts",
            allowed="two or more",
            do="give a file of more texts, one a line: --texts",
        )
    forms: dict[InputType, list[int]] = {}
    for place, row in enumerate(rows):
        forms.setdefault(input_type_of(row.input), []).append(place)
    share, first, second = min(1.0, 2 * most / len(rows)), list[int](), list[int]()
    for places in forms.values():
        count = max(min(len(places), 2), round(share * len(places)))
        chosen = np.unique(np.linspace(0, len(places) - 1, count).astype(int)).tolist()
        first += [places[i] for i in chosen[::2]]
        second += [places[i] for i in chosen[1::2]]
    return [rows[i] for i in sorted(first)], [rows[i] for i in sorted(second)]


def calibrated_scales(
    bundle: Bundle, rows: Sequence[RowInput], runtimes: Runtimes, *, show: Callable[[str], None]
) -> Scales:
    """The scales of all products of a bundle's tasks, from their float32 values on these texts.

    Raises BackendError where no task runs layers, as over a table of word vectors.
    """
    if not any(record.path.layers for record in bundle.tasks.values()):
        raise BackendError(
            "8 bits are for products of layers, and the bundle's tasks run no layers",
            got=f"an encoder of {bundle.architecture.layers} layers",
            do="serve it as it is",
        )
    watching = ObservingRuntime(runtimes(precision="float32"), rows=-(-SAMPLE // len(rows)))
    session, names = Session(bundle, backend=watching), tuple(bundle.tasks)
    for number, row in enumerate(rows):  # one at a time, to avoid padding
        session.predict([row.input], tasks=names, words=[row.words])
        show(f"calibrating: {number + 1:,} of {len(rows):,} texts")
    scales = watching.scales()
    if not scales.known:
        raise EmptyData(
            "none of the texts is one that a task of the bundle reads",
            got=f"{len(rows)} texts",
            do="give texts, pairs or questions as the tasks read them",
        )
    return scales


def measured(
    bundle: Bundle,
    rows: Sequence[RowInput],
    runtimes: Runtimes,
    scales: Scales,
    *,
    labelled: Mapping[str, Source] | None,
    show: Callable[[str], None],
) -> dict[str, Int8Change]:
    """The change of each task in int8 relative to float32."""
    before = Session(bundle, backend=runtimes(precision="float32"))
    after = Session(bundle, backend=runtimes(precision="int8", scales=scales))
    agreements = dict(_agreements(bundle, before, after, rows, show))
    first, second = (_scores(session, labelled, show) for session in (before, after))
    return {name: _change(agreements[name], first.get(name), second.get(name)) for name in bundle.tasks}


def is_past(change: Int8Change, limits: Limits) -> bool:
    """Whether a change is refused: by the metric if known, else by the agreement, or as unknown."""
    if change.points is not None:
        return not -change.points <= limits.points  # NaN exceeds any limit
    if change.agreement is not None:
        return not 100 * change.agreement.share >= limits.agreement
    return not limits.unmeasured


def check(changes: Mapping[str, Int8Change], limits: Limits) -> None:
    """Raises BackendError that names the tasks whose change exceeds the limits."""
    past = {name: change for name, change in changes.items() if is_past(change, limits)}
    if past:
        raise BackendError(
            "int8 changes these tasks too much, or nobody knows how much; nothing was written",
            got=[f"{name} {_change_in_words(change)}" for name, change in past.items()],
            allowed=f"a loss of {limits.points:g} points; without labelled data an agreement of {limits.agreement:g} %",
            do="give more texts, or more like those that will be asked, pairs and questions too (--texts, --rows); "
            "allow more (--bound, --agreement, --unmeasured); or stay with bfloat16 or float32",
        )


def _change(
    agreement: Agreement | None, before: tuple[str, float] | None, after: tuple[str, float] | None
) -> Int8Change:
    if before is None or after is None:
        return Int8Change(agreement=agreement)
    return Int8Change(agreement=agreement, metric=before[0], before=before[1], after=after[1])


def _change_in_words(change: Int8Change) -> str:
    if change.points is not None:
        return f"{change.points:+.2f} points"
    return f"{100 * change.agreement.share:.1f} %" if change.agreement else "(no text to measure on fits it)"


def _agreements(
    bundle: Bundle, before: Session, after: Session, rows: Sequence[RowInput], show: Callable[[str], None]
) -> Iterator[tuple[str, Agreement | None]]:
    names, pairs = tuple(bundle.tasks), []
    for start in range(0, len(rows), PIECE):
        chunk = rows[start : start + PIECE]
        inputs, words = [row.input for row in chunk], [row.words for row in chunk]
        answered = (session.predict(inputs, tasks=names, words=words) for session in (before, after))
        pairs += list(zip(*answered, strict=True))
        show(f"measuring: {len(pairs):,} of {len(rows):,} texts")
    for name, record in bundle.tasks.items():
        lost = [new.failed[name] for old, new in pairs if name in old.answers and name in new.failed]
        if lost:
            raise BackendError(
                f"int8 cannot answer task '{name}'; nothing was written",
                got=f"{len(lost)} of {len(pairs)} texts failed: {lost[0]}",
                do="stay with bfloat16 or float32, or report this",
            )
        answers = [(old.answers[name], new.answers[name]) for old, new in pairs if name in old.answers]
        yield name, agreement_of(record.task, answers)


def _scores(
    session: Session, labelled: Mapping[str, Source] | None, show: Callable[[str], None]
) -> dict[str, tuple[str, float]]:
    """By task its metric and score, for tasks with a file to score on."""
    scored = {}
    for name, source in (labelled or {}).items():
        if name in session.bundle.tasks:
            score = evaluation_of(session, name, source, show=show).score
            scored[name] = (score.metric, score.scores[score.metric])
    return scored
