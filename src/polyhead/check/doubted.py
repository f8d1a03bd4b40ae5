"""Findings about labels from held-out heads and neighbours: rows whose label is doubted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyhead.check.doubt import doubts, doubts_of_each, neighbours
from polyhead.check.finding import Finding, Place
from polyhead.check.part import Part, counted
from polyhead.config import Value
from polyhead.tasks.kinds.base import softmax
from polyhead.tasks.kinds.multi_label import sigmoid
from polyhead.tasks.read import Examples

ALL_BUT = 1  # neighbours that may have another label than the one that the rest have against the row's own


class Rows(Value, eq=False):
    """The labelled rows of all splits of one task: where each stands, and all as one set of examples."""

    places: list[tuple[Part, int]]
    examples: Examples

    @property
    def labels(self) -> np.ndarray:
        """int64 (rows,)"""
        return np.array([int(target) for target in self.examples.targets], np.int64)


def can_be_doubted(parts: Sequence[Part]) -> bool:
    """Whether held-out heads can check the labels: the task labels whole texts, and labels repeat.

    With one label a row, two labels must occur at least twice. With several labels a row, one label must be present in
    two rows and absent from two.
    """
    first = parts[0]
    if not first.has_classes or first.kind.per_option or not first.is_train:
        return False
    counts = np.sum([part.counts for part in parts], axis=0)
    if first.kind.label_is_list:
        return bool(((counts >= 2) & (sum(map(len, parts)) - counts >= 2)).any())
    return int(np.count_nonzero(counts >= 2)) >= 2


def rows_of(parts: Sequence[Part]) -> Rows:
    """Every labelled row of the parts of one task."""
    places = [(part, index) for part in parts for index in range(len(part))]
    report = next(part.reading.examples.report for part in parts if part.reading.examples is not None)
    examples = Examples(
        inputs=[part.inputs[index] for part, index in places],
        targets=[part.targets[index] for part, index in places],
        words=None,
        rows=[part.rows[index] for part, index in places],
        report=report,
    )
    return Rows(places=places, examples=examples)


def doubted(rows: Rows, chosen: np.ndarray, outputs: np.ndarray, vectors: np.ndarray) -> list[Finding]:
    """Labels that held-out heads doubt, and labels that nearly all of the nearest neighbours speak against.

    Neighbours are asked where a row has one label. `outputs` (rows, labels) and `vectors` (rows, width) are those of
    the `chosen` rows.
    """
    part = rows.places[0][0]
    if part.kind.label_is_list:
        return _doubted_lists(rows, chosen, outputs)
    labels = rows.labels[chosen]
    names, probabilities = part.task.labels, softmax(outputs)
    by_heads = doubts(probabilities, labels)
    told, places = set(by_heads.doubted.tolist()), list[Place]()
    for row in by_heads.doubted.tolist():
        label = int(by_heads.suggested[row])
        places.append(_place(rows, chosen[row], f"{names[label]} ({probabilities[row, label]:.2f})"))
    findings = []
    if places:
        what = f"{counted(len(places), 'label')} that heads doubt which did not learn from the row, most doubtful first"
        findings.append(_found(part, "doubted_label", what, places, len(chosen)))
    near = neighbours(vectors, labels)
    against = np.flatnonzero((near.label != labels) & (near.count >= max(2, near.of - ALL_BUT)) & (near.agreeing == 0))
    places = [
        _place(rows, chosen[row], f"{names[near.label[row]]} ({near.count[row]} of {near.of} neighbours)")
        for row in against[np.argsort(by_heads.quality[against], kind="stable")].tolist()
        if row not in told
    ]
    if places:
        what = f"{counted(len(places), 'row')} more whose nearest neighbours all have another label"
        findings.append(_found(part, "neighbour_label", what, places, len(chosen)))
    return findings


def _doubted_lists(rows: Rows, chosen: np.ndarray, outputs: np.ndarray) -> list[Finding]:
    """Rows with labels that held-out heads would add or take away, the most doubtful first."""
    part = rows.places[0][0]
    has_label = np.stack([rows.examples.targets[row] for row in chosen.tolist()]) >= 0.5
    said: dict[int, list[str]] = {}
    for doubted_label in doubts_of_each(sigmoid(outputs), has_label):
        name = part.task.labels[doubted_label.label]
        told = f"{'without' if doubted_label.is_given else 'with'} {name} ({1 - doubted_label.quality:.2f})"
        said.setdefault(doubted_label.row, []).append(told)
    if not said:
        return []
    places = [_place(rows, chosen[row], ", ".join(told)) for row, told in said.items()]
    what = f"{counted(len(places), 'row')} whose labels are doubted by heads that did not learn from it, worst first"
    return [_found(part, "doubted_label", what, places, len(chosen))]


def _place(rows: Rows, row: int, other: str) -> Place:
    part, index = rows.places[row]
    return part.place(index, other=other)


def _found(part: Part, kind: str, what: str, places: Sequence[Place], of: int) -> Finding:
    do = "read these rows again, from the first on"
    return Finding(
        kind=kind, level="hint", what=what, do=do, task=part.task.name, rows=len(places), of=of, places=tuple(places)
    )
