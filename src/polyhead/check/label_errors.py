"""Probable label errors: labels contradicted by held-out heads and by the nearest rows (Northcutt et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from polyhead.check.split_rows import Finding, RowRef, SplitRows, counted
from polyhead.data.read import Examples
from polyhead.tasks.kinds.base import sigmoid, softmax
from polyhead.values import Value

NEIGHBOURS = 10
AT_ONCE = 2**24  # cosines computed at a time
# On eleven sets (500 to 1,688 rows, 5 % wrong labels, two draws) lists with this end had an average precision of 0.39
# instead of 0.19, and contained 0.55 instead of 0.68 of the wrong labels.
TIMES = 2
HITS, ERRORS = 8, 4


class Doubts(Value, eq=False):
    """The evidence of held-out probabilities about each row's label."""

    quality: np.ndarray  # float64 (rows,): the probability of the given label
    suggested: np.ndarray  # int64 (rows,): another label, or -1 if the given one is not doubted
    thresholds: np.ndarray  # float64 (labels,); above 1 for a label without rows

    @property
    def order(self) -> np.ndarray:
        """All rows, the most doubtful first."""
        return np.argsort(self.quality, kind="stable")

    @property
    def doubted(self) -> np.ndarray:
        """The rows with doubted labels, the most doubtful first."""
        order = self.order
        return np.asarray(order[self.suggested[order] >= 0])


def doubts(probabilities: np.ndarray, labels: np.ndarray) -> Doubts:
    """The doubts about labels (rows,), from probabilities (rows, labels) by a head not trained on these rows."""
    rows = np.arange(len(labels))
    quality = probabilities[rows, labels]
    counts = np.bincount(labels, minlength=probabilities.shape[1])
    sums = np.bincount(labels, weights=quality, minlength=probabilities.shape[1])
    thresholds = np.where(counts > 0, sums / np.maximum(counts, 1), np.inf)
    sure = np.where(probabilities >= thresholds, probabilities, -1.0)
    best = sure.argmax(axis=1)
    is_sure = sure[rows, best] >= 0
    return Doubts(quality=quality, suggested=np.where(is_sure & (best != labels), best, -1), thresholds=thresholds)


def trusted(quality: np.ndarray, is_planted: np.ndarray, chance: float) -> float:
    """The quality up to which doubts find deliberately changed labels far more often than chance; 0 if nowhere.

    `quality` (items,) belongs to the doubted labels, the most doubtful first, `is_planted` says which of them were
    changed, and `chance` is the share of changed ones among all labels, doubted or not. The list ends where it contains
    the most hits above `TIMES` that share. Hits within `ERRORS` standard errors of chance do not count.
    """
    if not len(quality):
        return 0.0
    gains = np.cumsum(is_planted - TIMES * chance)
    end = len(gains) - int(gains[::-1].argmax())
    hits, expected = int(is_planted[:end].sum()), chance * end
    return float(quality[end - 1]) if hits >= max(HITS, expected + ERRORS * np.sqrt(expected)) else 0.0


class DoubtedLabel(Value):
    """A label that a row has, or lacks, contrary to held-out probabilities."""

    row: int
    label: int
    is_given: bool
    probability: float  # the label's index

    @property
    def quality(self) -> float:
        """The probability of the row's own statement: that it has the label, or lacks it."""
        return self.probability if self.is_given else 1 - self.probability


def doubts_of_each(probabilities: np.ndarray, has_label: np.ndarray) -> list[DoubtedLabel]:
    """Doubted labels of rows that may have several, the most doubtful first.

    Each label is a separate question, present or absent. It is doubted if `doubts` says so and the other answer is also
    more probable, since the threshold of a rare label may be far below a half. `probabilities` and `has_label` are
    (rows, labels); the heads that gave the probabilities were not trained on the row.
    """
    doubted = list[DoubtedLabel]()
    for label in range(has_label.shape[1]):
        present = probabilities[:, label]
        column = has_label[:, label].astype(np.int64)
        answers = doubts(np.stack([1 - present, present], axis=1), column)
        for row in answers.doubted[answers.quality[answers.doubted] < 0.5].tolist():
            is_given = bool(column[row])
            doubted.append(DoubtedLabel(row=row, label=label, is_given=is_given, probability=float(present[row])))
    return sorted(doubted, key=lambda each: each.quality)


class Neighbours(Value, eq=False):
    """The labels of the nearest other rows of each row."""

    agreeing: np.ndarray  # int64 (rows,): number with the row's label
    label: np.ndarray  # int64 (rows,): the most frequent label among them
    count: np.ndarray  # int64 (rows,): number with that label
    of: int  # number of neighbours per row


def neighbours(vectors: np.ndarray, labels: np.ndarray, *, of: int = NEIGHBOURS) -> Neighbours:
    """Neighbours by the cosine of vectors (rows, width); of few rows there are fewer neighbours."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = np.asarray(vectors / np.maximum(lengths, np.finfo(np.float32).tiny), np.float32)
    of = min(of, len(labels) - 1)
    classes = int(labels.max(initial=0)) + 1
    agreeing, label, count = (np.zeros(len(labels), np.int64) for _ in range(3))
    step = max(1, AT_ONCE // max(1, len(labels)))
    for start in range(0, len(labels) if of > 0 else 0, step):
        stop = min(start + step, len(labels))
        cosines = unit[start:stop] @ unit.T
        cosines[np.arange(stop - start), np.arange(start, stop)] = -np.inf
        nearest = labels[np.argpartition(-cosines, of - 1, axis=1)[:, :of]]
        votes = np.zeros((stop - start, classes), np.int64)
        np.add.at(votes, (np.repeat(np.arange(stop - start), of), nearest.ravel()), 1)
        agreeing[start:stop] = votes[np.arange(stop - start), labels[start:stop]]
        label[start:stop], count[start:stop] = votes.argmax(axis=1), votes.max(axis=1)
    return Neighbours(agreeing=agreeing, label=label, count=count, of=max(of, 0))


PLANTED, LEAST_PLANTED = 0.05, 10  # share and minimum number of labels changed in a trial
DRAWS, MOST_PLANTED = 5, 60  # trials, and total labels changed in them
ALL_BUT = 1  # neighbours that may have a third label while the others contradict the row's own


class LabelledRows(Value, eq=False):
    """The labelled rows of all splits of one task: the place of each, and all as one set of examples."""

    places: list[tuple[SplitRows, int]]
    examples: Examples

    @property
    def is_list(self) -> bool:
        """Whether a row may have several labels."""
        return self.places[0][0].kind.label_is_list

    @property
    def labels(self) -> np.ndarray:
        """int64 (rows,)"""
        return np.array([int(target) for target in self.examples.targets], np.int64)


def can_be_doubted(splits: Sequence[SplitRows]) -> bool:
    """Whether held-out heads can check the labels: the task labels whole texts, and labels repeat.

    With one label per row, two labels must occur at least twice. With several labels per row, one label must be present
    in two rows and absent from two.
    """
    first = splits[0]
    if not first.has_classes or first.kind.per_option or not first.is_train:
        return False
    counts = np.sum([split.counts for split in splits], axis=0)
    if first.kind.label_is_list:
        return bool(((counts >= 2) & (sum(map(len, splits)) - counts >= 2)).any())
    return int(np.count_nonzero(counts >= 2)) >= 2


def all_labelled_rows(splits: Sequence[SplitRows]) -> LabelledRows:
    """Every labelled row of the splits of one task."""
    places = [(split, index) for split in splits for index in range(len(split))]
    report = next(split.reading.examples.report for split in splits if split.reading.examples is not None)
    groups = [split.groups[index] for split, index in places]
    examples = Examples(
        inputs=[split.inputs[index] for split, index in places],
        targets=[split.targets[index] for split, index in places],
        words=None,
        rows=[split.rows[index] for split, index in places],
        report=report,
        groups=groups if any(groups) else None,
    )
    return LabelledRows(places=places, examples=examples)


class Planted(Value, eq=False):
    """Examples with some labels changed at random, and which these are: bool (rows,), or (rows, labels) for lists."""

    examples: Examples
    is_planted: np.ndarray


def planted(rows: LabelledRows) -> list[Planted]:
    """Copies of the rows with changed labels, until `MOST_PLANTED` labels are changed or `DRAWS` copies are made."""
    share = PLANTED * (np.stack(rows.examples.targets) >= 0.5).sum() if rows.is_list else PLANTED * len(rows.places)
    each = int(min(max(share, LEAST_PLANTED), len(rows.places) // 4))
    draws = min(DRAWS, -(-MOST_PLANTED // max(each, 1)))
    return [_planted(rows, each, np.random.default_rng(seed)) for seed in range(draws)]


def _planted(rows: LabelledRows, count: int, generator: np.random.Generator) -> Planted:
    targets = np.stack(rows.examples.targets)
    is_planted = np.zeros(targets.shape, bool)
    flat = is_planted.reshape(-1)
    if rows.is_list:  # as many labels are added as removed
        for cells in (np.flatnonzero(targets.reshape(-1) >= 0.5), np.flatnonzero(targets.reshape(-1) < 0.5)):
            flat[generator.choice(cells, min(-(-count // 2), len(cells)), replace=False)] = True
        changed = np.where(is_planted, 1 - targets, targets).astype(np.float32)
    else:
        flat[generator.choice(len(flat), count, replace=False)] = True
        labels = len(rows.places[0][0].task.labels)
        changed = np.where(is_planted, (targets + generator.integers(1, labels, len(flat))) % labels, targets)
    return Planted(examples=msgspec.structs.replace(rows.examples, targets=list(changed)), is_planted=is_planted)


def trusted_up_to(rows: LabelledRows, chosen: np.ndarray, trials: Sequence[tuple[Planted, np.ndarray]]) -> float:
    """The quality up to which doubts can be trusted, judged by heads that were trained on changed labels.

    The outputs (rows, labels) of each trial are those for the held-out rows, `chosen`.
    """
    qualities, hits = list[np.ndarray](), list[np.ndarray]()
    for trial, outputs in trials:
        targets, is_planted = np.stack(trial.examples.targets)[chosen], trial.is_planted[chosen]
        if rows.is_list:
            row_doubts = doubts_of_each(sigmoid(outputs), targets >= 0.5)
            qualities.append(np.array([each.quality for each in row_doubts]))
            hits.append(np.array([is_planted[each.row, each.label] for each in row_doubts], bool))
        else:
            by_heads = doubts(softmax(outputs), targets.astype(np.int64))
            qualities.append(by_heads.quality[by_heads.doubted])
            hits.append(is_planted[by_heads.doubted])
    quality = np.concatenate(qualities)
    order = np.argsort(quality, kind="stable")
    chance = np.mean([trial.is_planted[chosen].mean() for trial, _ in trials])
    return trusted(quality[order], np.concatenate(hits)[order], float(chance))


def doubted(
    rows: LabelledRows, chosen: np.ndarray, outputs: np.ndarray, vectors: np.ndarray, *, up_to: float = 1.0
) -> list[Finding]:
    """Labels that held-out heads doubt, and labels that nearly all of the nearest neighbours contradict.

    Neighbours are used if a row has one label. `outputs` (rows, labels) and `vectors` (rows, width) belong to the
    `chosen` rows. Doubts of a quality above `up_to` are omitted.
    """
    split = rows.places[0][0]
    if split.kind.label_is_list:
        return _doubted_lists(rows, chosen, outputs, up_to)
    labels = rows.labels[chosen]
    names, probabilities = split.task.labels, softmax(outputs)
    by_heads = doubts(probabilities, labels)
    believed = by_heads.doubted[by_heads.quality[by_heads.doubted] <= up_to]
    doubted_rows, places = set(believed.tolist()), list[RowRef]()
    for row in believed.tolist():
        label = int(by_heads.suggested[row])
        places.append(_place(rows, chosen[row], f"{names[label]} ({probabilities[row, label]:.2f})"))
    findings = []
    if places:
        count = counted(len(places), "label")
        message = f"{count} that heads doubt which did not learn from the row, most doubtful first"
        findings.append(_finding(split, "doubted_label", message, places, len(chosen)))
    near = neighbours(vectors, labels)
    against = np.flatnonzero((near.label != labels) & (near.count >= max(2, near.of - ALL_BUT)) & (near.agreeing == 0))
    places = [
        _place(rows, chosen[row], f"{names[near.label[row]]} ({near.count[row]} of {near.of} neighbours)")
        for row in against[np.argsort(by_heads.quality[against], kind="stable")].tolist()
        if row not in doubted_rows
    ]
    if places:
        message = f"{counted(len(places), 'row')} more whose nearest neighbours all have another label"
        findings.append(_finding(split, "neighbour_label", message, places, len(chosen)))
    return findings


def _doubted_lists(rows: LabelledRows, chosen: np.ndarray, outputs: np.ndarray, up_to: float) -> list[Finding]:
    """Rows with labels that held-out heads would add or remove, the most doubtful first."""
    split = rows.places[0][0]
    has_label = np.stack([rows.examples.targets[row] for row in chosen.tolist()]) >= 0.5
    changes: dict[int, list[str]] = {}
    for doubted_label in doubts_of_each(sigmoid(outputs), has_label):
        if doubted_label.quality > up_to:
            break
        name = split.task.labels[doubted_label.label]
        change = f"{'without' if doubted_label.is_given else 'with'} {name} ({1 - doubted_label.quality:.2f})"
        changes.setdefault(doubted_label.row, []).append(change)
    if not changes:
        return []
    places = [_place(rows, chosen[row], ", ".join(change)) for row, change in changes.items()]
    message = f"{counted(len(places), 'row')} whose labels are doubted by heads that did not learn from it, worst first"
    return [_finding(split, "doubted_label", message, places, len(chosen))]


def _place(rows: LabelledRows, row: int, other: str) -> RowRef:
    split, index = rows.places[row]
    return split.place(index, other=other)


def _finding(split: SplitRows, kind: str, message: str, places: Sequence[RowRef], of: int) -> Finding:
    do = "read these rows again, from the first on"
    task, shown = split.task.name, tuple(places)
    return Finding(kind=kind, level="hint", what=message, do=do, task=task, rows=len(shown), of=of, places=shown)
