"""A person labels the texts that teach most: what is known so far, the head that learned from it, and what to ask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np

from polyhead.check.active_learning import LabelFile, Text, answers_in, first_texts, known_label, next_texts
from polyhead.data.guess_kind import SINGLE_LABEL
from polyhead.data.read import Examples
from polyhead.data.read_report import ReadReport
from polyhead.project.tables import Project, TaskEntry, TrunkChoice
from polyhead.train.events import Events
from polyhead.train.heads.held_out import FewLabels, FewLabelsFit, features_for, linear_inputs, whole_of, words_prior
from polyhead.values import Value


class LearningPoint(Value):
    """One point of the learning curve."""

    labels: int
    accuracy: float | None  # of five folds
    constant: float  # of always answering the label that most texts have


class Labelling:
    """Texts of which some are labelled; each label is written to `file` at once.

    `texts` bring the labels that stand beside them, `file` those of earlier runs, `answers` is a file that was filled
    in. All texts are encoded once, with features kept in `cache`. Raises UnknownLabel for a label beside a text, or an
    answer, that is not in `names`.
    """

    def __init__(
        self, texts: Sequence[Text], names: Sequence[str], file: LabelFile, *, answers: str | None = None
    ) -> None:
        self.texts, self.names, self.file = texts, names, file
        self.skipped, self.curve = set[int](), list[LearningPoint]()
        self.unread = 0  # texts that are too many
        self._head: FewLabels | None = None
        self._fit: FewLabelsFit | None = None
        by_row = {text.row: text.text for text in texts}
        beside = [text for text in texts if text.label is not None]
        self.known = {text.row: known_label(text.label or "", names, f"row {text.row}") for text in beside}
        self.unwritten = set(self.known)  # rows whose label stands in the texts' file alone
        written = file.read(by_row, names)
        self.known |= written
        self.unwritten -= written.keys()
        for row, name in answers_in(answers, by_row, names) if answers else ():
            if self.known.get(row) != name:
                self.add(Text(row=row, text=by_row[row]), name)

    def encode(self, trunk: TrunkChoice, cache: Path, show: Callable[[str], None]) -> None:
        """Reads every text as a linear head does; `texts` are then those whose vectors are within `MOST_NUMBERS`."""
        entry = TaskEntry(name="label", kind=SINGLE_LABEL, labels=tuple(self.names), train="")
        project = Project(tasks=(entry,), trunk=trunk)
        prepared = whole_of(project, entry, entry.task(), _examples(self.texts))
        show(f"opening {trunk.name}")
        source = features_for(project, Path.cwd(), cache=cache.resolve())
        values = linear_inputs(prepared, source, Events(show=show)).values
        if (most := len(values)) < len(self.texts):
            del values
            self.unread = len(self.texts) - most
            self.texts = _fitting(self.texts, self.known, most)
            prepared = whole_of(project, entry, entry.task(), _examples(self.texts))
            values = linear_inputs(prepared, source, Events(show=show)).values
        prior = words_prior(prepared, source) if all(any(map(str.isalpha, name)) for name in self.names) else None
        self._head = FewLabels(values, len(self.names), prior)

    def add(self, text: Text, label: str) -> None:
        """Keeps a label."""
        self.file.add(text.row, text.text, label)
        self.known[text.row] = label
        self.unwritten.discard(text.row)

    def counts(self) -> Counter[str]:
        """How many texts have each label."""
        return Counter(label for text in self.texts if (label := self.known.get(text.row)) is not None)

    def learn(self, *, seed: int) -> LearningPoint | None:
        """Learns from all labels; the next point of the curve, None while there are fewer than two different labels."""
        counts = self.counts()
        if len(counts) < 2:
            return None
        assert self._head is not None
        rows = [index for index, each in enumerate(self.texts) if each.row in self.known]
        labels = [self.names.index(self.known[self.texts[index].row]) for index in rows]
        self._fit = self._head.learn(rows, labels, seed=seed)
        constant = max(counts.values()) / len(rows)
        self.curve.append(LearningPoint(labels=len(rows), accuracy=self._fit.accuracy, constant=constant))
        return self.curve[-1]

    def chosen(self, count: int, *, seed: int) -> list[Text]:
        """The next texts to label."""
        assert self._head is not None
        done = np.array([text.row in self.known or text.row in self.skipped for text in self.texts])
        generator, values = np.random.default_rng([seed, len(self.known)]), self._head.values
        if self._fit is None:
            todo = np.flatnonzero(~done)
            picked = [int(todo[i]) for i in first_texts(values[todo], count, generator)] if len(todo) else []
        else:
            picked = next_texts(values, self._fit.probabilities, done, count, generator)
        return [self.texts[index] for index in picked]


def _examples(texts: Sequence[Text]) -> Examples:
    """The texts as rows whose labels are not known."""
    return Examples(
        inputs=[(text.text,) for text in texts],
        targets=[np.zeros((), np.int64)] * len(texts),
        words=None,
        rows=[text.row for text in texts],
        report=ReadReport(rows=len(texts), used=len(texts)),
    )


def _fitting(texts: Sequence[Text], known: Collection[int], most: int) -> list[Text]:
    """So many of the texts, evenly spaced: the labelled ones, but no more than half if others are left, and others."""
    labelled = [place for place, text in enumerate(texts) if text.row in known]
    others = [place for place, text in enumerate(texts) if text.row not in known]
    learned = min(len(labelled), max(most // 2, most - len(others)))
    return [texts[place] for place in sorted([*_spaced(labelled, learned), *_spaced(others, most - learned)])]


def _spaced(places: Sequence[int], count: int) -> list[int]:
    return [places[index] for index in np.linspace(0, len(places) - 1, count).round().astype(int).tolist()]
