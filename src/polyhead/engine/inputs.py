"""The types of inputs: a text, a pair, a question about a context, a question with options; and each from JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, Literal, TypeVar

import numpy as np

from polyhead.errors import BadValue
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.limits import too_long
from polyhead.tasks.task import Kind, Task
from polyhead.text.characters import has_visible
from polyhead.text.prefix import LONGEST_TEXT
from polyhead.text.question import Question, TaskInput, texts_of, unmarked
from polyhead.text.tokenize import Input
from polyhead.text.words import NOWHERE, join_tokens
from polyhead.values import Value

Element = TypeVar("Element")
FORMS = (
    'a string, {"text": ...}, {"text": ..., "text_b": ...}, {"tokens": [...]}, '
    '{"question": ..., "context": ...} or {"question": ..., "options": [...]}, which may have a "context" too'
)

_KEYS_OF_FORMS = tuple(
    frozenset(names.split())
    for names in ("text text_b", "text_a text_b", "tokens", "question context options", "question context choices")
)


class Passage(Value):
    """A question and the context that may hold its answer: for span tasks alone, where a pair is for all over pairs."""

    question: str
    context: str


AnyInput = Input | Question | Passage
"""An input of a session: a text, a pair of texts, a question with options, or a question about a context."""
Inputs = Sequence[AnyInput | str]
Words = Sequence[np.ndarray | None] | None
"""Each input's own words (words, 2), None where they are to be found in it."""
InputType = Literal["text", "pair", "passage", "question"]
IN_WORDS: Mapping[InputType, str] = {
    "text": "one text",
    "pair": "a pair",
    "passage": "a question about a context",
    "question": "a question with options",
}
_READS = {
    ("text",): "one text",
    ("pair",): "a pair of texts",
    ("pair", "passage"): "a question and its context",
    ("question",): "a question with options",
}


def checked_inputs(inputs: Iterable[AnyInput | str]) -> list[AnyInput]:
    """The inputs, each string as one text; raises BadValue with the number of an invalid one."""
    listed = _listed(inputs, "inputs")
    checked = [(entry,) if type(entry) is str else _checked(entry, number) for number, entry in enumerate(listed)]
    for number, entry in enumerate(checked):
        if longest := too_long(texts_of(task_input(entry))):
            raise BadValue(
                f"a text of input {number} is too long",
                got=f"{longest:,} characters",
                allowed=LONGEST_TEXT,
                do="shorten it, or give it as several inputs",
                row=number,
            )
    return checked


def checked_words(
    words: Iterable[np.ndarray | None] | None, inputs: Sequence[AnyInput]
) -> Sequence[np.ndarray | None] | None:
    """The words of each input, an array for each that has some; raises BadValue for any other form.

    Words lie in the text, or in a pair's second text. An empty span is a word: tokens may be empty.
    """
    if words is None:
        return None
    own_words = _listed(words, "words")
    if len(own_words) != len(inputs):
        raise BadValue(
            "words are given for all inputs or for none",
            got=f"those of {len(own_words)}",
            allowed=f"those of {len(inputs)}, None for an input whose words are to be found",
            do="give an array, or None, for each input",
        )
    pairs = zip(own_words, inputs, strict=True)
    return [None if spans is None else _words(spans, entry, number) for number, (spans, entry) in enumerate(pairs)]


def checked_deadline(deadline: float | None) -> float | None:
    """The seconds, or None; raises BadValue for a value that is not a finite number."""
    if deadline is None:
        return None
    try:
        seconds = float(deadline) if isinstance(deadline, Real) else math.nan
    except OverflowError:  # of a whole number
        seconds = math.inf
    if not math.isfinite(seconds):
        raise BadValue(
            "a deadline is a number of seconds",
            got=repr(deadline),
            allowed="a finite number, or None for no deadline",
            do="give the seconds that the call may take",
        )
    return seconds


def input_type_of(entry: AnyInput) -> InputType:
    """The type of an input."""
    if isinstance(entry, Question):
        return "question"
    if isinstance(entry, Passage):
        return "passage"
    return "text" if len(entry) == 1 else "pair"


def types_of_inputs(inputs: Sequence[AnyInput]) -> list[InputType | None]:
    """The type of each input; None where a text of it is empty."""
    return [None if is_blank_input(entry) else input_type_of(entry) for entry in inputs]


def input_types_of(task: Task) -> tuple[InputType, ...]:
    """The types of input that the task reads."""
    return types_read(kind_of(task), over_pairs=task.pair != "none")


def types_read(kind: Kind, *, over_pairs: bool) -> tuple[InputType, ...]:
    """The types of input that tasks of the kind read, those over pairs or those over texts."""
    if kind.per_option:
        return ("question",)
    if not over_pairs:
        return ("text",)
    return ("pair", "passage") if kind.per_word else ("pair",)


def why_not(task: Task, entry: AnyInput) -> str:
    """Why a task has no answer to an input."""
    if is_blank_input(entry):
        return "the text is empty"
    return f"this task reads {reads_in_words(input_types_of(task))}, {IN_WORDS[input_type_of(entry)]} was given"


def reads_in_words(types: tuple[InputType, ...]) -> str:
    """The types of input, in words for a message."""
    return _READS[types]


def is_blank_input(entry: AnyInput) -> bool:
    """Whether a text that has to be there holds nothing: then no task reads the input."""
    texts = (entry.text, *entry.options) if isinstance(entry, Question) else texts_of(task_input(entry))
    return not all(map(has_visible, texts))


def task_input(entry: AnyInput) -> TaskInput:
    """The input in the form that tasks are trained on: a passage as a pair, any other as it is."""
    return (entry.question, entry.context) if isinstance(entry, Passage) else entry


def input_of(row: object, *, where: str) -> tuple[AnyInput, np.ndarray | None]:
    """An input from a JSON value, and its words if the value holds tokens; raises BadValue for any other form."""
    if isinstance(row, str):
        return (row,), None
    if isinstance(row, dict):
        if (text := _text(row)) is not None:
            return text, None
        if isinstance(row.get("question"), str):
            return _question(row, where), None
        if (tokens := _tokens(row)) is not None:
            return tokens
    raise _bad(f"{where}: this is not an input", "null" if row is None else row, FORMS)


def requested_input_of(row: object, *, where: str) -> tuple[AnyInput, np.ndarray | None]:
    """The same of a request, which holds nothing else: raises BadValue also for a key that is not read."""
    requested = input_of(row, where=where)
    if isinstance(row, dict) and not any(row.keys() <= keys for keys in _KEYS_OF_FORMS):
        present = {name for name, value in row.items() if value is not None}
        form = max(_KEYS_OF_FORMS, key=lambda keys: len(keys & present))
        if unread := sorted(present - form):
            do = "correct its name, or leave it out"
            raise BadValue(f"{where}: a key is not read", got=unread, allowed=FORMS, do=do)
    return requested


def _listed(values: Iterable[Element], subject: str) -> list[Element]:
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise BadValue(f"{subject} come in a list, and one value was given", got=repr(values), do="give [...]")
    return list(values)


def _checked(entry: object, number: int) -> AnyInput:
    if isinstance(entry, str):
        return (entry,)
    if isinstance(entry, (tuple, list)) and len(entry) in (1, 2) and _are_texts(entry):
        return (entry[0], entry[1]) if len(entry) == 2 else (entry[0],)
    if isinstance(entry, Passage) and _are_texts(texts_of(task_input(entry))):
        return entry
    if (
        isinstance(entry, Question)
        and isinstance(entry.options, (tuple, list))
        and _are_texts((entry.text, entry.context, *entry.options))
    ):
        return entry
    raise BadValue(
        f"input {number} is none that can be read",
        got=repr(entry),
        allowed="a string, a pair of strings, a Passage or a Question, each text a string",
        do="give one of these, or leave it out",
        row=number,
    )


def _words(words: np.ndarray, entry: AnyInput, number: int) -> np.ndarray:
    try:
        spans = np.asarray(words)
    except ValueError:  # rows of several lengths
        raise _no_words(number, repr(words), "whole numbers (words, 2)") from None
    is_pair = not isinstance(entry, Question) and len(texts_of(task_input(entry))) > 1
    if not spans.size:  # of two texts the place of no answer is always there
        return np.array([NOWHERE] if is_pair else np.zeros((0, 2)), np.int32)
    if spans.ndim != 2 or spans.shape[1] != 2 or spans.dtype.kind not in "iu":
        raise _no_words(number, f"{spans.dtype} {spans.shape}", "whole numbers (words, 2)")
    if isinstance(entry, Question):  # no task reads its words
        return spans
    texts, begin, end = texts_of(task_input(entry)), spans[:, 0], spans[:, 1]
    is_place = (begin >= 0) & (begin <= end) & (end <= len(texts[-1]))
    if len(texts) > 1:
        is_place |= (spans == NOWHERE).all(axis=1)
    if not is_place.all():
        wrong = spans[~is_place][0].tolist()
        raise _no_words(number, wrong, f"0 <= beginning <= end <= {len(texts[-1])}, the length of its text")
    spans = spans.astype(np.int32, copy=False)
    if is_pair and not (spans[0] == NOWHERE).all():
        spans = np.concatenate([np.array([NOWHERE], np.int32), spans])
    return spans


def _no_words(number: int, got: object, allowed: str) -> BadValue:
    return BadValue(
        f"input {number}: invalid word positions",
        got=got,
        allowed=allowed,
        do="give where each word begins and ends, in characters",
        row=number,
    )


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(text, str) for text in values)


def _text(row: Mapping[str, Any]) -> Input | None:
    for first, second in (("text", "text_b"), ("text_a", "text_b")):
        texts = [row[name] for name in (first, second) if row.get(name) is not None]
        if row.get(first) is not None and _are_texts(texts):
            return (texts[0], texts[1]) if len(texts) == 2 else (texts[0],)
    return None


def _question(row: Mapping[str, Any], where: str) -> Question | Passage:
    question, context = row["question"], row.get("context")
    options = unmarked(row["options"] if row.get("options") is not None else row.get("choices"))
    if context is not None and not isinstance(context, str):
        raise _bad(f"{where}: the context of a question is a text", context, "a string")
    if options is None:
        if context is None:
            raise _bad(f"{where}: a question has a context to be answered from, or options", row, FORMS)
        return Passage(question=question, context=context)
    if not isinstance(options, list) or len(options) < 2 or not _are_texts(options):
        raise _bad(f"{where}: these are no options to choose from", options, "a list of two strings or more")
    return Question(text=question, options=tuple(options), context=context or "")


def _tokens(row: Mapping[str, Any]) -> tuple[Input, np.ndarray] | None:
    tokens = row.get("tokens")
    if not isinstance(tokens, list) or not _are_texts(tokens):
        return None
    text, words = join_tokens(tokens)
    return (text,), words


def _bad(subject: str, got: object, allowed: str) -> BadValue:
    return BadValue(subject, got=got, allowed=allowed, do="give one of these, each text a string")
