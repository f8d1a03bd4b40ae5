"""Multiple-choice questions: the trunk reads one pair of texts for each option."""

from __future__ import annotations

from collections.abc import Sequence, Sized

from polyhead.errors import BadValue
from polyhead.text.characters import has_visible
from polyhead.text.tokenize import Input
from polyhead.values import Value


class Question(Value):
    """A question, its options in order, and its context, if any."""

    text: str
    options: tuple[str, ...]  # two or more; questions may differ in their number of options
    context: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.options, Sized) or len(self.options) < 2:
            raise BadValue(
                "a question needs options to choose from",
                got=repr(self.options),
                allowed="two or more",
                do="give every option that may be right",
            )

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The pair to read for each option: (context, question and option), or (question, option) without a context."""
        if has_visible(self.context):
            return tuple((self.context, f"{self.text} {option}") for option in self.options)
        return tuple((self.text, option) for option in self.options)

    @property
    def texts(self) -> tuple[str, ...]:
        """All its texts: the question, the options and the context."""
        return (self.text, *self.options, *((self.context,) if self.context else ()))


TaskInput = Input | Question
"""An example's input: a text, a pair of texts, or a question with options."""


def unmarked(cell: object) -> object:
    """The options of a cell: of {"text": [...], "label": ["A", "B", ...]}, as hub data sets write them, the texts."""
    return cell["text"] if isinstance(cell, dict) and isinstance(cell.get("text"), list) else cell


def by_mark(label: object, cell: object) -> object:
    """The index of the option whose mark the label is, if the cell has marks; an option's text stays a text.

    A label that is neither becomes words that say so: as an index it could be another option.
    """
    marks = cell.get("label") if isinstance(cell, dict) else None
    if not isinstance(marks, list) or label is None or not str(label).strip():
        return label
    places = [place for place, mark in enumerate(marks) if str(mark) == str(label)]
    if len(places) == 1:
        return places[0]
    options = unmarked(cell)
    is_option = isinstance(options, list) and label in options
    return label if is_option else f"{label}, of the marks {', '.join(map(str, marks))}"


def texts_of(example: TaskInput) -> tuple[str, ...]:
    """All texts of an input."""
    return example.texts if isinstance(example, Question) else example


def read_alone(inputs: Sequence[TaskInput]) -> list[Input]:
    """The trunk's inputs: texts and pairs unchanged, and one pair for every option of a question."""
    return [texts for example in inputs for texts in (example.pairs if isinstance(example, Question) else (example,))]
