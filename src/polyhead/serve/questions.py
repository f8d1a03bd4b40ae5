"""A question of a decisions API, the task that answers it, and the probabilities that the task's answer gives it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from polyhead.errors import BadValue
from polyhead.serve.settings import Renamed, why_no_answers
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Answer, Task
from polyhead.values import Value

Form = Literal["predicate", "choice", "score"]
TRUE_FALSE = (("true", "false"), ("yes", "no"), ("1", "0"), ("y", "n"), ("t", "f"))
"""Pairs of labels of which the first says that a statement holds; case does not count."""
NEGATIONS = tuple(f"{word}{mark}" for word in ("not", "non", "no") for mark in "-_ ")
"""Beginnings of the label that says that the other label, which follows, does not hold."""

DEEPEST = 32  # lists and objects in each other


class Option(Value):
    """One answer that a question allows; a string and a boolean of equal text differ."""

    value: str | bool
    words: str = ""  # what describes it


class DecisionQuestion(Value):
    """A question about a text."""

    name: str  # the one that chooses the task; "" of a question without a name
    form: Form
    instructions: str
    options: tuple[Option, ...]  # in order; of a predicate True, then False


class AnswerReading(Value, eq=False):
    """The conversion of a task's answer to the answer of a question."""

    task: str
    probabilities: Callable[[Answer], tuple[float, ...]]  # one for each option, which sum to 1


def _shares_of_labels(labels: Sequence[str], answer: Answer) -> tuple[float, ...]:
    """Each option is a label."""
    return tuple(float(answer["scores"][label]) for label in labels)


def _share_of_label(label: str, answer: Answer, *, negated: bool = False) -> tuple[float, ...]:
    """A predicate holds where a label does, or, `negated`, where it does not."""
    share = float(answer["scores"][label])
    return (1.0 - share, share) if negated else (share, 1.0 - share)


def _share_of_number(answer: Answer) -> tuple[float, ...]:
    """A predicate holds by a number of 0 to 1."""
    share = float(answer["value"])
    return (share, 1.0 - share)


def _shares_of_levels(levels: int, low: float, step: float, answer: Answer) -> tuple[float, ...]:
    """A number lies at a level, or between two that share it as their distances say; `step` is between two levels."""
    place = min(max((float(answer["value"]) - low) / step, 0.0), levels - 1.0)
    below = min(int(place), levels - 2)
    shares = [0.0] * levels
    shares[below], shares[below + 1] = below + 1 - place, place - below
    return tuple(shares)


def reading_of(question: DecisionQuestion, tasks: Mapping[str, Task], renamed: Mapping[str, Renamed]) -> AnswerReading:
    """The reading of the task that answers this question; raises BadValue where none does, with the reason.

    The task is that of the mapping file, else the one of the question's name; a predicate may be named TASK.LABEL.
    """
    entry = renamed.get(question.name)
    if entry is None:
        name, label = _named(question, tasks)
        labels: Mapping[str, str] = {} if label is None else {"true": label}
    else:
        name, labels = entry.task, entry.labels
        if name not in tasks:
            raise BadValue(
                f"the task of question '{question.name}' is no longer in the bundle", got=name, allowed=sorted(tasks)
            )
    task = tasks[name]
    if (why := why_no_answers(task)) is not None:
        raise BadValue(f"task '{name}' answers no question", got=why)
    return _FORMS[question.form](question, task, labels)


def _named(question: DecisionQuestion, tasks: Mapping[str, Task]) -> tuple[str, str | None]:
    """The task of a question's name, and the label where the name is TASK.LABEL."""
    if question.name in tasks:
        return question.name, None
    if question.form == "predicate":
        for at in (place for place, sign in enumerate(question.name) if sign == "."):
            task, label = tasks.get(question.name[:at]), question.name[at + 1 :]
            if task is not None and label in task.labels:
                return task.name, label
    raise BadValue(
        "no task answers this question" if question.name else "a question without a name is answered by no task",
        got=question.name or None,
        allowed=sorted(tasks),
        do="give it the name of a task, or start the server with --unknown similarity",
    )


def _predicate(question: DecisionQuestion, task: Task, labels: Mapping[str, str]) -> AnswerReading:
    scores, told = kind_of(task).scores, labels.get("true", labels.get("false"))
    if told is not None and told not in task.labels:
        raise BadValue(
            f"the label of question '{question.name}' is no longer one of task '{task.name}'",
            got=told,
            allowed=task.labels or "no labels: the task answers with a number",
            do="name one of its labels in the mapping file",
        )
    if scores == "range":
        low, high = task.range or (0.0, 0.0)
        if low < 0 or high > 1:
            raise BadValue(
                f"the numbers of task '{task.name}' are no probabilities",
                got=f"{low:g} to {high:g}",
                allowed="a range within 0 to 1",
                do="ask it as a score",
            )
        return AnswerReading(task=task.name, probabilities=_share_of_number)
    if "true" in labels:
        return AnswerReading(task=task.name, probabilities=partial(_share_of_label, labels["true"]))
    if "false" in labels:
        fails = partial(_share_of_label, labels["false"], negated=True)
        return AnswerReading(task=task.name, probabilities=fails)
    label = true_label(task) if scores == "softmax" else task.labels[0] if len(task.labels) == 1 else None
    if label is None:
        raise BadValue(
            f"it is not known which label of task '{task.name}' says that a statement holds",
            got=task.labels,
            do=f"ask for '{task.name}.{task.labels[0]}', or name the label in the mapping file",
        )
    return AnswerReading(task=task.name, probabilities=partial(_share_of_label, label))


def true_label(task: Task) -> str | None:
    """Which of a task's two labels says that its statement holds; None where their words do not tell."""
    if len(task.labels) != 2:
        return None
    if task.positive is not None:
        return task.positive
    for first, second in (task.labels, task.labels[::-1]):
        pair = first.lower(), second.lower()
        if pair in TRUE_FALSE or any(pair[1] == start + pair[0] for start in NEGATIONS):
            return first
    return None


def _choice(question: DecisionQuestion, task: Task, labels: Mapping[str, str]) -> AnswerReading:
    if kind_of(task).scores != "softmax":
        raise BadValue(
            f"task '{task.name}' does not choose one of several",
            got=f"kind '{task.kind}'",
            allowed="a task of kind 'single_label'",
            do="ask it as a score" if task.range else f"ask for '{task.name}.{task.labels[0]}' as a predicate",
        )
    shares = partial(_shares_of_labels, _as_labels(question, task, labels))
    return AnswerReading(task=task.name, probabilities=shares)


def _score(question: DecisionQuestion, task: Task, labels: Mapping[str, str]) -> AnswerReading:
    if kind_of(task).scores != "range":
        return _choice(question, task, labels)
    low, high = task.range or (0.0, 0.0)
    steps = len(question.options) - 1
    if (low, high) != (0.0, 1.0) and not math.isclose(high - low, steps):
        raise BadValue(
            f"the range of task '{task.name}' does not fit the levels",
            got=f"{low:g} to {high:g}, and {steps + 1} levels",
            allowed=f"levels that are 1 apart ({round(high - low) + 1} of them), or a range of 0 to 1",
            do="ask for as many levels as the range has",
        )
    shares = partial(_shares_of_levels, steps + 1, low, (high - low) / steps)
    return AnswerReading(task=task.name, probabilities=shares)


def _as_labels(question: DecisionQuestion, task: Task, labels: Mapping[str, str]) -> tuple[str, ...]:
    """The label of each option; raises BadValue unless these are the task's, each once."""
    texts = [json_text(option.value) for option in question.options]
    has_booleans = any(isinstance(option.value, bool) for option in question.options)
    if has_booleans and len(set(texts)) < len(texts) and labels:
        raise BadValue(
            f"the mapping file cannot tell the options of question '{question.name}' apart",
            got=[option.value for option in question.options],
            do="leave out the boolean, or the string of the same text",
        )
    wanted: list[str | bool] = []
    for number, option in enumerate(question.options):
        key = str(number) if question.form == "score" and texts[number] not in labels else texts[number]
        wanted.append(labels.get(key, option.value))
    if set(wanted) == {True, False} and (truth := true_label(task)) is not None:
        false = next(label for label in task.labels if label != truth)
        wanted = [truth if value else false for value in wanted]
    if len(wanted) != len(task.labels) or {*map(_typed, wanted)} != {*map(_typed, task.labels)}:
        known = {*map(_typed, task.labels)}
        raise BadValue(
            f"the options of question '{question.name}' are not the labels of task '{task.name}'",
            got=[value for value in wanted if _typed(value) not in known] or f"{len(wanted)} options",
            allowed=task.labels,
            do="give these labels, or name the label of each option in the mapping file",
        )
    return tuple(str(value) for value in wanted)


def _typed(value: str | bool) -> tuple[bool, str | bool]:
    """A key by which True and "true" differ, and True and 1 too."""
    return isinstance(value, bool), value


_FORMS = {"predicate": _predicate, "choice": _choice, "score": _score}


def most_probable(probabilities: Sequence[float]) -> int:
    """The number of the most probable option, the first of equals."""
    return max(range(len(probabilities)), key=probabilities.__getitem__)


def choice_confidence(probabilities: Sequence[float]) -> float:
    """(max p - 1/n) / (1 - 1/n): 0 where all options are equal, 1 where one is certain."""
    share = 1.0 / len(probabilities)
    return min(max((max(probabilities) - share) / (1.0 - share), 0.0), 1.0)


def score_confidence(probabilities: Sequence[float]) -> float:
    """1 - (mean distance from the most probable level) / (that of equal levels from their middle), at least 0."""
    size, mode = len(probabilities), most_probable(probabilities)
    spread = math.fsum(share * abs(level - mode) for level, share in enumerate(probabilities))
    uniform = math.fsum(abs(level - (size - 1) / 2) for level in range(size)) / size
    return min(max(1.0 - spread / uniform, 0.0), 1.0)


def expectation(probabilities: Sequence[float]) -> float:
    """The mean level, by number from 0."""
    return math.fsum(level * share for level, share in enumerate(probabilities))


def json_text(value: Any, levels: int = DEEPEST) -> str:
    """A JSON value as text: strings as they are, a line for each entry of a list, `key: words` for that of an object.

    Entries that are null are left out; numbers and booleans are written as in JSON. Raises BadValue for a value in more
    than DEEPEST lists and objects, of which `levels` are left.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, (dict, list)) and not levels:
        raise BadValue("a JSON value is nested too deeply", allowed=f"{DEEPEST} levels", do="give it as a string")
    if isinstance(value, dict):
        entries = ((key, entry) for key, entry in value.items() if entry is not None)
        return "\n".join(f"{key}: {json_text(entry, levels - 1)}" for key, entry in entries)
    if isinstance(value, list):
        return "\n".join(json_text(entry, levels - 1) for entry in value if entry is not None)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
