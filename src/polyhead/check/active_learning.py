"""The texts to label next: those with uncertain answers, one per cluster (Zhdanov 2019)."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np

from polyhead.data.rows import Rows
from polyhead.errors import BadValue, MissingColumn, UnknownLabel
from polyhead.tasks.kinds.base import other_spelling, spelled
from polyhead.text.tokenize import repair
from polyhead.values import Value

UNSURE = 10  # factor of preselection: the most uncertain texts, of which one per cluster is taken
ROUNDS = 8  # iterations of k-means


def first_texts(vectors: np.ndarray, count: int, generator: np.random.Generator) -> list[int]:
    """Typical texts, if none is labelled: the nearest to each centre of `count` clusters."""
    return _of_clusters(_unit(vectors), np.ones(len(vectors)), count, generator)


def next_texts(
    vectors: np.ndarray, probabilities: np.ndarray, labelled: np.ndarray, count: int, generator: np.random.Generator
) -> list[int]:
    """Up to `count` texts that are not `labelled`, bool (texts,), the most uncertain first.

    `vectors` are (texts, width), `probabilities` (texts, labels) those of a head trained on the labelled texts.
    """
    two = -np.partition(-probabilities, 1, axis=1)[:, :2]
    unsure = 1.0 - (two[:, 0] - two[:, 1])
    open_texts = np.flatnonzero(~labelled)
    kept = open_texts[np.argsort(-unsure[open_texts], kind="stable")][: UNSURE * count]
    chosen = kept[_of_clusters(_unit(vectors[kept]), unsure[kept], count, generator)]
    return [int(index) for index in chosen[np.argsort(-unsure[chosen], kind="stable")]]


def _unit(vectors: np.ndarray) -> np.ndarray:
    apart = np.asarray(vectors, np.float64)
    return np.asarray(apart / np.maximum(np.linalg.norm(apart, axis=1, keepdims=True), 1e-12))


def _of_clusters(vectors: np.ndarray, weights: np.ndarray, count: int, generator: np.random.Generator) -> list[int]:
    """The row nearest to each centre of a weighted k-means, initialized by k-means++."""
    if len(vectors) <= count:
        return list(range(len(vectors)))
    centres = _far_apart(vectors, weights, count, generator)
    for _ in range(ROUNDS):
        nearest = _distances(vectors, centres).argmin(axis=1)
        sums = np.zeros_like(centres)
        np.add.at(sums, nearest, vectors * weights[:, None])
        totals = np.bincount(nearest, weights=weights, minlength=count)
        centres = np.where(totals[:, None] > 0, sums / np.maximum(totals[:, None], 1e-12), centres)
    distances, chosen = _distances(vectors, centres), list[int]()
    for centre in range(count):
        distances[chosen, centre] = np.inf
        chosen.append(int(distances[:, centre].argmin()))
    return chosen


def _far_apart(vectors: np.ndarray, weights: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    chosen = [int(generator.choice(len(vectors), p=weights / weights.sum()))] if weights.sum() > 0 else [0]
    nearest = _distances(vectors, vectors[chosen])[:, 0]
    while len(chosen) < count:
        shares = nearest * weights
        shares = shares if shares.sum() > 0 else np.ones(len(vectors))
        chosen.append(int(generator.choice(len(vectors), p=shares / shares.sum())))
        nearest = np.minimum(nearest, _distances(vectors, vectors[chosen[-1:]])[:, 0])
    return np.asarray(vectors[chosen])


def _distances(vectors: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Squared distances, (rows, centres)."""
    squares = (vectors**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1)[None]
    return np.asarray(np.maximum(squares - 2 * vectors @ centres.T, 0.0))


class Text(Value):
    """One text of a file, and its label there."""

    row: int
    text: str
    label: str | None = None


def rows_with_text(path: str, text: str, label: str | None) -> list[Text]:
    """The rows of a file that have a text; raises MissingColumn, and the errors of `Rows`."""
    rows, texts = Rows(path, [text] + ([label] if label else [])), list[Text]()
    for row in rows:
        value, cell = row.values.get(text), row.values.get(label) if label else None
        if isinstance(value, str) and value.strip():
            name = spelled(cell) or str(cell) if cell is not None else ""
            texts.append(Text(row=row.number, text=repair(value), label=name.strip() or None))
    for column in (text, label):
        if column and column not in rows.columns:
            raise MissingColumn(f"{path} has no column '{column}'", allowed=list(rows.columns), do="name another one")
    return texts


def known_label(name: str, labels: Collection[str], where: str) -> str:
    """The label as `labels` spell it; raises UnknownLabel with this place for one that they do not have."""
    name = name.strip()
    spelling = name if name in labels else other_spelling(name, labels)
    if spelling not in labels:
        problem, do = f"{where}: the label is not one of --labels", "add it to --labels, or fix the row"
        raise UnknownLabel(problem, got=name, allowed=sorted(labels), do=do, label=name)
    return spelling


def answers_in(path: str, texts: Mapping[int, str], labels: Iterable[str]) -> Iterator[tuple[int, str]]:
    """(row, label) of a file with columns row, text and label; rows without a label are skipped.

    Raises UnknownLabel for an undeclared label, BadValue for a row that the texts do not have.
    """
    known = set(labels)
    for row in Rows(path, ("row", "text", "label")):
        number, label = row.values.get("row"), row.values.get("label")
        if label is None or not str(label).strip():
            continue
        where = f"{path} row {row.number}"
        if not str(number).isdecimal() or texts.get(int(str(number))) != row.values.get("text"):
            problem = f"{where}: the texts have no such row"
            raise BadValue(problem, got=number, do="label the file that --ask wrote of the same texts")
        yield int(str(number)), known_label(spelled(label) or str(label), known, where)


class LabelFile:
    """A file of {row, text, label}, complete after each answer; a new answer for a row replaces the earlier one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, texts: Mapping[int, str], labels: Iterable[str]) -> dict[int, str]:
        """The labels so far, by row; a last line that a crash left incomplete is removed, one without an end ended."""
        if not self.path.exists():
            return {}
        raw = self.path.read_bytes()
        last = raw[raw.rfind(b"\n") + 1 :]
        if last:
            with self.path.open("rb+") as file:
                try:
                    msgspec.json.decode(last)
                    file.seek(len(raw))
                    file.write(b"\n")
                except ValueError:
                    file.truncate(len(raw) - len(last))
        return dict(answers_in(str(self.path), texts, labels))

    def add(self, row: int, text: str, label: str) -> None:
        """Appends one answer and syncs it to the disk."""
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode({"row": row, "text": text, "label": label}) + b"\n")
            file.flush()
            os.fsync(file.fileno())
