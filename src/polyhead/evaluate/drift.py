"""Drift: whether rows look like those that a task was validated on, in their texts, lengths and answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any

import msgspec
import numpy as np

from polyhead.bundle.row_profile import MOST as KEPT
from polyhead.bundle.row_profile import RowProfile, stored_profile
from polyhead.certify.annotations import TITLES, Annotations
from polyhead.data.columns import Source
from polyhead.engine.familiar import LEAST, farness, pairwise
from polyhead.engine.session import Session
from polyhead.errors import BundleError, EmptyData, MissingColumn
from polyhead.evaluate.probabilities import LabelledOutputs, error_of, label_scores_of
from polyhead.evaluate.profile import FileRows, asked, labelled_rows, plain_rows, profile_rows
from polyhead.tasks.calibration import Calibration
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.metrics import calibration_error
from polyhead.tasks.task import Task
from polyhead.values import Value

BATCH = 250  # permutations computed at a time
ENOUGH = 20  # permutations at least as extreme as the samples: more would not change the result


class Aspect(Value):
    """One aspect in which rows may differ from the known ones: the distance of two samples."""

    distance: float  # from 0, the same distribution, to 1, no values in common
    p: float  # of a permutation test: the maximum frequency if both have one distribution
    differs: bool = False  # whether it holds for all tests of a run together


def sample_distance(first: np.ndarray, second: np.ndarray, *, level: float, rng: np.random.Generator) -> Aspect:
    """The energy distance of two samples (rows, width), with its permutation test (Székely and Rizzo 2004).

    It is 2 E|X - Y| - E|X - X'| - E|Y - Y'|, means over pairs of distinct rows, divided by 2 E|X - Y|. Rows are
    exchanged between the samples until permutations have been as extreme often enough, or so seldom that `p` can be
    below `level` (Besag and Clifford 1991).
    """
    pooled = np.concatenate([first, second]).astype(np.float32)
    distances = pairwise(pooled, pooled)
    np.fill_diagonal(distances, 0)
    count, n = len(pooled), len(first)
    total, sums = float(distances.sum(dtype=np.float64)), distances.sum(axis=1, dtype=np.float64)

    def energies(members: np.ndarray) -> np.ndarray:
        """The energy distances of permutations (rows, permutations), 1 for a row of the first sample."""
        within = np.einsum("ij,ij->j", members, distances @ members, dtype=np.float64)
        touching = sums @ members
        across, outside = touching - within, total - 2 * touching + within
        m = count - n
        return np.asarray(2 * across / (n * m) - within / (n * (n - 1)) - outside / (m * (m - 1)))

    first_members = np.zeros((count, 1), np.float32)
    first_members[:n] = 1
    measured = float(energies(first_members)[0])
    between = float((sums[:n].sum() - (first_members.T @ distances @ first_members)[0, 0]) / (n * (count - n)))
    most, tried, beyond = ceil(4 / level), 0, 0
    while tried < most and beyond < ENOUGH:
        members = np.zeros((count, BATCH), np.float32)
        np.put_along_axis(members, rng.random((count, BATCH)).argsort(axis=0)[:n], 1, axis=0)
        beyond += int((energies(members) >= measured - 1e-9).sum())
        tried += BATCH
    return Aspect(distance=_share(measured, between), p=(beyond + 1) / (tried + 1))


def distance(first: np.ndarray, second: np.ndarray) -> float:
    """The distance of `sample_distance` without the test, at a small part of its cost."""
    first, second = np.asarray(first, np.float32), np.asarray(second, np.float32)
    between = float(pairwise(first, second).mean(dtype=np.float64))
    return _share(2 * between - _spread(first) - _spread(second), between)


def _spread(rows: np.ndarray) -> float:
    """The mean distance of two distinct rows."""
    distances, count = pairwise(rows, rows), len(rows)
    np.fill_diagonal(distances, 0)
    return float(distances.sum(dtype=np.float64) / (count * (count - 1)))


def _share(energy: float, between: float) -> float:
    return 0.0 if between <= 0 else min(1.0, max(0.0, energy) / (2 * between))


def holm(values: dict[str, float], alpha: float) -> set[str]:
    """The names whose p-values are significant at `alpha` for all of them together (Holm 1979)."""
    held = set[str]()
    for place, name in enumerate(sorted(values, key=lambda name: values[name])):
        if values[name] > alpha / (len(values) - place):
            break
        held.add(name)
    return held


ALPHA = 0.01  # how often a run may report drift, in any of its tasks, if there is none
MOST = 1000  # rows compared; of more, this many are sampled
FAR = 0.99  # share of the known rows that must be closer to the others than a row that counts as unlike
DRAWS = 200  # samples of labels, drawn as if confidences were exact
ASPECTS = {"texts": "other texts", "lengths": "other lengths", "answers": "other answers"}


class UnlikeRow(Value):
    """A row that is unlike the known ones."""

    row: int
    text: str
    distance: float  # from the nearest known rows


class Sureness(Value):
    """The confidence of answers, and their accuracy, on rows with labels."""

    rows: int
    accuracy: float
    confidence: float
    error: float  # expected calibration error
    usual: float  # exceeded one time in a hundred if confidences are exact
    differs: bool


class TaskDrift(Value):
    """The drift of one task."""

    task: str
    rows: int
    known: int  # rows of the summary
    aspects: dict[str, Aspect]
    unlike: float  # share of the rows that are farther from the known ones than nearly all known ones are
    examples: tuple[UnlikeRow, ...] = ()
    sureness: Sureness | None = None  # if the rows have labels
    notes: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        """Whether its rows differ from the known ones."""
        return any(aspect.differs for aspect in self.aspects.values())


def compare_profiles(
    task: str, known: RowProfile, rows: RowProfile, *, level: float, rng: np.random.Generator
) -> dict[str, Aspect]:
    """The differences of rows from the known ones, by aspect. Raises EmptyData for too few of either."""
    for subject, seen in (("the summary of the task", known), ("the file", rows)):
        if len(seen.lengths) < LEAST:
            raise EmptyData(
                f"task '{task}': {subject} holds too few rows to compare",
                got=len(seen.lengths),
                allowed=f"{LEAST} or more",
                do="take more rows",
            )
    sides = _sides(known, rows)
    return {aspect: sample_distance(first, second, level=level, rng=rng) for aspect, (first, second) in sides.items()}


def distances(known: RowProfile, rows: RowProfile) -> dict[str, float]:
    """The distances of rows from the known ones, by aspect, without tests; both have two rows or more."""
    return {aspect: distance(first, second) for aspect, (first, second) in _sides(known, rows).items()}


def _sides(known: RowProfile, rows: RowProfile) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The compared values of both sides, by aspect; answers only if both sides have scores."""
    sides = {"texts": (known.vectors, rows.vectors), "lengths": (_scaled(known.lengths), _scaled(rows.lengths))}
    if known.scores.shape[1] == rows.scores.shape[1] > 0:
        sides["answers"] = (np.sqrt(np.maximum(known.scores, 0)), np.sqrt(np.maximum(rows.scores, 0)))
    return sides


def _scaled(lengths: np.ndarray) -> np.ndarray:
    return np.asarray(np.log1p(lengths)[:, None])


def unlike_rows(known: RowProfile, rows: RowProfile) -> tuple[float, np.ndarray, np.ndarray]:
    """The share of unlike rows, the distance of each row, and rows in order, the most unlike first."""
    usual = float(np.quantile(farness(known.vectors, known.vectors, among=True), FAR))
    distances = farness(rows.vectors, known.vectors)
    return float((distances > usual).mean()), distances, np.argsort(-distances, kind="stable")


def drift_verdict(differences: dict[str, dict[str, Aspect]], alpha: float) -> dict[str, dict[str, Aspect]]:
    """The differences, by task and aspect: the chance of any false one in the run is at most `alpha`."""
    values = {f"{task}\0{name}": d.p for task, aspects in differences.items() for name, d in aspects.items()}
    held = holm(values, alpha)
    return {
        task: {name: msgspec.structs.replace(d, differs=f"{task}\0{name}" in held) for name, d in aspects.items()}
        for task, aspects in differences.items()
    }


def sureness(rows: LabelledOutputs, calibration: Calibration | None, *, rng: np.random.Generator) -> Sureness:
    """The confidence of answers on labelled rows, with the task's calibration.

    If confidences were exact, labels would be drawn with their probabilities: `usual` is seldom exceeded by the error
    of such labels.
    """
    calibration = calibration or Calibration()
    probabilities = calibration.probabilities(rows.task, rows.logarithms)
    if rows.is_sigmoid:
        confidence, right = probabilities.ravel(), rows.targets.ravel().astype(np.float64)
        is_given = calibration.given(rows.task, rows.logarithms)
        accuracy = float((is_given == rows.targets).mean())
        shown = float(np.where(is_given, probabilities, 1 - probabilities).mean())
    else:
        confidence = probabilities.max(axis=-1)
        right = (probabilities.argmax(axis=-1) == rows.targets).astype(np.float64)
        accuracy, shown = float(right.mean()), float(confidence.mean())
    drawn = [calibration_error(confidence, (rng.random(len(confidence)) < confidence) * 1.0) for _ in range(DRAWS)]
    usual, error = float(np.quantile(drawn, 0.99)), error_of(rows, probabilities)
    return Sureness(
        rows=len(rows.targets), accuracy=accuracy, confidence=shown, error=error, usual=usual, differs=error > usual
    )


def has_sureness(task: Task) -> bool:
    """Whether the task's answers have probabilities that can be compared with labels."""
    kind = kind_of(task)
    return kind.per_option or (kind.scores in ("softmax", "sigmoid") and not kind.per_word)


def drift_facts(drift: TaskDrift) -> dict[str, Any]:
    """The facts about it that a report shows."""
    return {"differs": drift.differs, **{name: getattr(drift, name) for name in drift.__struct_fields__}}


class Summarized(Value, eq=False):
    """Rows of a task: their profile, and its outputs for those with labels."""

    rows: FileRows
    seen: RowProfile
    labelled: LabelledOutputs | None  # None where no row has a label, or an answer no probability


def summarized(
    session: Session, name: str, rows: FileRows, labelled: FileRows | None, *, show: Callable[[str], None]
) -> Summarized:
    """A task's view of these rows, and of those of the same file that have labels."""
    answers, task = asked(session, name, rows.inputs, rows.words, show=show), session.tasks[name]
    seen = profile_rows(task, rows.inputs, answers)
    if labelled is None or labelled.targets is None or not has_sureness(task):
        return Summarized(rows=rows, seen=seen, labelled=None)
    outputs = dict(zip(rows.rows, answers.outputs, strict=True))
    others = [place for place, row in enumerate(labelled.rows) if row not in outputs]
    if others:
        more = asked(session, name, [labelled.inputs[place] for place in others], show=show).outputs
        outputs |= zip([labelled.rows[place] for place in others], more, strict=True)
    known = label_scores_of(task, [outputs[row] for row in labelled.rows], labelled.targets)
    return Summarized(rows=rows, seen=seen, labelled=known)


def summaries(
    session: Session,
    data: str,
    names: Sequence[str],
    sources: Mapping[str, Source],
    roles: Mapping[str, str],
    *,
    needed: Sequence[str],
    seed: int,
    say: Callable[[str], None],
    show: Callable[[str], None],
) -> dict[str, Summarized]:
    """What each task sees in a file's texts, and in its labels where `sources` say how they are read.

    A task that cannot read the file is left out, which is said. Raises EmptyData or MissingColumn where it is `needed`
    or no task can.
    """
    seen, unread = dict[str, Summarized](), list[str]()
    for name in names:
        task = session.tasks[name]
        try:
            labelled = None
            if name in sources:
                rows, labelled = labelled_rows(sources[name], task, most=MOST, seed=seed)
            else:
                rows = plain_rows(data, task, roles, most=MOST, seed=seed, show=show)
        except (EmptyData, MissingColumn):
            if name in needed or len(names) == 1:
                raise
            unread.append(name)
            continue
        seen[name] = summarized(session, name, rows, labelled, show=show)
    if unread:
        say(f"{data} has nothing that these tasks read: {', '.join(unread)}")
    if not seen:
        raise EmptyData(f"{data} has nothing that a task of the bundle reads", do="name the columns: --text COLUMN")
    return seen


def drifts(
    session: Session,
    rows: Mapping[str, Summarized],
    known: Mapping[str, RowProfile],
    *,
    alpha: float = ALPHA,
    examples: int = 5,
    seed: int = 0,
) -> list[TaskDrift]:
    """Each task's rows compared with its known ones; the chance of any false report is at most `alpha`."""
    rng = np.random.default_rng(seed)
    level = alpha / (len(ASPECTS) * max(len(rows), 1))
    differences: dict[str, dict[str, Aspect]] = {
        name: compare_profiles(name, known[name], each.seen, level=level, rng=rng) for name, each in rows.items()
    }
    aspects = drift_verdict(differences, alpha)
    task_drifts = []
    for name, each in rows.items():
        share, distances, order = unlike_rows(known[name], each.seen)
        sure = None
        if each.labelled is not None:
            sure = sureness(each.labelled, session.records[name].calibration, rng=rng)
        unlike = tuple(
            UnlikeRow(row=each.rows.rows[place], text=each.rows.text(place), distance=float(distances[place]))
            for place in order[:examples].tolist()
        )
        task_drifts.append(
            TaskDrift(
                task=name,
                rows=len(each.seen.lengths),
                known=len(known[name].lengths),
                aspects=aspects[name],
                unlike=share,
                examples=unlike,
                sureness=sure,
                notes=_notes(each.rows),
            )
        )
    return task_drifts


def known_of(session: Session, names: list[str]) -> dict[str, RowProfile]:
    """The summaries stored in the bundle; raises BundleError for tasks without one."""
    summaries = {name: stored_profile(session.bundle, name) for name in names}
    if lacking := [name for name, seen in summaries.items() if seen is None]:
        raise BundleError(
            "what the rows of these tasks looked like is not kept: training keeps it where it holds out "
            f"{LEAST} rows or more",
            got=lacking,
            do="keep it from rows that they did not learn from: `polyhead drift BUNDLE VALIDATION --keep`, or "
            "`polyhead calibrate`; or compare two files with --known FILE",
        )
    return {name: seen for name, seen in summaries.items() if seen is not None}


def profile_of(task: Task, seen: RowProfile, *, seed: int = 0) -> Annotations:
    """The summary of these rows, to be stored with the task."""
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
    return Annotations(seen=seen, card={TITLES[1]: "\n".join(lines)})


def _notes(rows: FileRows) -> tuple[str, ...]:
    count = len(rows.inputs)
    return (f"{count:,} of {rows.whole:,} rows, drawn", *rows.notes) if count < rows.whole else rows.notes
