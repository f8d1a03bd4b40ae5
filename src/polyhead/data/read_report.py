"""Counts of the rows that a reading used, changed and skipped."""

from __future__ import annotations

from polyhead.values import Value


class ReadReport(Value):
    """Counts of the rows read: `used + unlabelled + empty + overlapping + weightless == rows`."""

    rows: int = 0  # rows that `where` and `limit` select
    used: int = 0
    unlabelled: int = 0  # skipped: the label is missing or null, or the cell is empty and `empty` is not "none"
    empty: int = 0  # skipped: a text is missing or blank
    repaired: int = 0  # lone surrogates replaced by U+FFFD in rows used
    none: int = 0  # used rows whose empty cell says that no label applies
    overlapping: int = 0  # skipped: labelled spans overlap, and `overlaps` is "skip"
    shorter: int = 0  # labelled spans left out of rows used: they overlap a longer one, and `overlaps` is "longest"
    widened: int = 0  # answers to questions that began or ended inside a word, widened to the whole word
    weightless: int = 0  # skipped: their weight in training is 0
    lost: int = 0  # labelled spans that no answer can equal: they do not begin and end at words

    def notes(self) -> list[str]:
        """How many rows were skipped or changed, one note per reason."""
        counts = {
            "without a label, skipped": self.unlabelled,
            "with an empty text, skipped": self.empty,
            "with an empty label cell, read as none of the labels": self.none,
            "lone surrogates replaced": self.repaired,
            "with overlapping spans, skipped": self.overlapping,
            "of the labelled spans left out, each inside or across a longer one": self.shorter,
            "with weight 0, skipped": self.weightless,
            "answers widened to whole words": self.widened,
            "of the labelled spans not made of whole words: learned in part, missed in scores": self.lost,
        }
        return [f"{count:,} {reason}" for reason, count in counts.items() if count]
