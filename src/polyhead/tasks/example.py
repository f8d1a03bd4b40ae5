"""What labels and answers are about: an input, its words, its options."""

from __future__ import annotations

import numpy as np

from polyhead.config import Value
from polyhead.text.question import Given, Question, texts_of
from polyhead.text.tokenize import repair
from polyhead.text.words import words_in


class Example(Value, eq=False):
    """An input as its kind reads it, lone surrogates replaced, and the place that errors about it name."""

    given: Given = ("",)
    words: np.ndarray | None = None  # its own (words, 2), in characters; None: those of `words_in`
    source: str = ""  # the file that it is from
    row: int | None = None  # its number there

    @property
    def text(self) -> str:
        """The only or the last text: the one that words are of, and answers are found in."""
        return repair(texts_of(self.given)[-1])

    @property
    def places(self) -> np.ndarray:
        """Where in `text` a kind that reads words has its outputs, int (words, 2)."""
        return words_in(texts_of(self.given)) if self.words is None else np.asarray(self.words)

    @property
    def options(self) -> tuple[str, ...]:
        """The options of a question; none of any other input."""
        return tuple(map(repair, self.given.options)) if isinstance(self.given, Question) else ()
