"""Checks of a call before it is queued, and of its answers before they are sent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec
import numpy as np

from polyhead.engine.batch import readings_of
from polyhead.engine.inputs import AnyInput, task_input, types_of_inputs
from polyhead.engine.loaded import FactOfTasks, LoadedTasks
from polyhead.engine.tickets import Ticket
from polyhead.errors import BadValue
from polyhead.serve.http import without_files
from polyhead.tasks.kinds import kind_of
from polyhead.text.question import Question, texts_of
from polyhead.text.words import words_in_each

log = logging.getLogger(__name__)
AN_INPUT = 8  # tokens that an input has beside its characters, at most
REMEMBERED = 1000  # failures that are not logged again


def check_options(inputs: Sequence[AnyInput], most: int) -> None:
    """Raises BadValue for a question with more options than this."""
    for number, entry in enumerate(inputs):
        if isinstance(entry, Question) and len(entry.options) > most:
            raise BadValue(
                f"input {number} has too many options",
                got=f"{len(entry.options):,}",
                allowed=f"{most:,}",
                do="leave the least likely ones out",
                row=number,
            )


def check_characters(inputs: Sequence[AnyInput], most: int) -> None:
    """Raises BadValue for more characters in all: a question's text and context are read with each option."""
    characters = sum(map(_bound, inputs))
    if characters > most + AN_INPUT * len(inputs):
        raise too_many_characters(f"{characters:,}, a question's once for each of its options", most)


def too_many_characters(got: str, most: int) -> BadValue:
    """The error for a request with texts that are too long in all."""
    problem, do = "the request holds too many characters", "shorten the texts, or send several requests"
    return BadValue(problem, got=got, allowed=f"{most:,}", do=do)


def check_deadline(seconds: float | None) -> None:
    """Raises BadValue for a deadline that has passed before the request is read."""
    if seconds is not None and not seconds > 0:
        problem, do = "a deadline is the seconds that the request may take", "leave it out for the server's own"
        raise BadValue(problem, got=seconds, allowed="more than 0", do=do)


def characters_of(inputs: Sequence[AnyInput]) -> int:
    """Characters of all texts."""
    return sum(len(text) for entry in inputs for text in texts_of(task_input(entry)))


def size_of(ticket: Ticket) -> int:
    """Approximate number of values in a ticket's answers: a score per label, and the labels of words."""
    return _VALUES(ticket.loaded, ticket.tasks) * len(ticket.inputs) + characters_of(ticket.inputs)


_VALUES = FactOfTasks(lambda loaded, names: sum(1 + len(loaded.tasks[name].labels) for name in names))
_TAGGING = FactOfTasks(lambda loaded, names: tuple(name for name in names if kind_of(loaded.tasks[name]).labels_words))


def forget_results(ticket: Ticket) -> None:
    """Releases sent results one by one; releasing all at once would block other threads."""
    for number in range(len(ticket.results)):
        ticket.results[number] = None


async def check_tokens(
    loaded: LoadedTasks,
    inputs: Sequence[AnyInput],
    tasks: Sequence[str],
    words: Sequence[np.ndarray | None] | None,
    *,
    tokens: int,
    answers: int,
) -> None:
    """Raises BadValue if the encoder would read more than `tokens`, or tasks would label more than `answers` words.

    Texts with too few characters to exceed the limits are not counted.
    """
    characters = sum(map(_bound, inputs))
    tagging = _TAGGING(loaded, tasks)
    if characters > tokens or characters * len(tagging) > answers:
        await asyncio.to_thread(_check_read, loaded, inputs, tasks, tagging, words, tokens=tokens, answers=answers)


def _check_read(
    loaded: LoadedTasks,
    inputs: Sequence[AnyInput],
    tasks: Sequence[str],
    tagging: Sequence[str],
    words: Sequence[np.ndarray | None] | None,
    *,
    tokens: int,
    answers: int,
) -> None:
    count = _words_in(inputs, words) if tagging else 0
    if count > tokens:  # a word has a token at least, so that there is nothing to look up
        raise _too_many_words(f"{count:,} words", tokens)
    if count * len(tagging) <= answers and sum(map(_bound, inputs)) <= tokens:
        return
    readings = readings_of(inputs, loaded.readers(tasks), loaded.tokenizer, words)
    read = sum(int(each.lengths.sum()) for each in readings)
    if read > tokens:
        raise BadValue(
            "the request holds too many tokens",
            got=f"{read:,} that the encoder would read",
            allowed=f"{tokens:,}",
            do="send several requests",
        )
    labelled = sum(
        int(each.texts.word_counts(each.entries).sum()) * len(set(tagging).intersection(each.tasks))
        for each in readings
    )
    if labelled > answers:
        raise _too_many_words(f"{labelled:,} labels", answers)


def _too_many_words(got: str, most: int) -> BadValue:
    problem, do = (
        "the request holds too many words for tasks that label each",
        "send several requests, or name other tasks",
    )
    return BadValue(problem, got=got, allowed=f"{most:,}", do=do)


def _words_in(inputs: Sequence[AnyInput], words: Sequence[np.ndarray | None] | None) -> int:
    """The number of words of all single texts: the caller's words if given, else those found."""
    singles = [number for number, its_type in enumerate(types_of_inputs(inputs)) if its_type == "text"]
    own_words = {} if words is None else {n: places for n in singles if (places := words[n]) is not None}
    read = words_in_each([texts_of(task_input(inputs[number])) for number in singles if number not in own_words])
    return sum(map(len, read)) + sum(map(len, own_words.values()))


def check_cut(ticket: Ticket) -> None:
    """Raises BadValue if a task did not read all of an input."""
    for error in cut_inputs(ticket).values():
        raise error


def cut_inputs(ticket: Ticket) -> dict[int, BadValue]:
    """By number, the error for each input of which a task did not read all."""
    loaded, asked, errors = ticket.loaded, [name for name in ticket.tasks if name not in ticket.unseen], {}
    for number, result in enumerate(ticket.results):
        if result is not None and result.receipt.cut:
            cutting = [n for n in asked if n not in result.skipped and loaded.tasks[n].long_texts == "cut"] or asked
            allowed = min(home.limits.get(n, home.tokenizer.max_tokens) for n in cutting for home in loaded.homes(n))
            errors[number] = BadValue(
                f"input {number} is longer than the encoder reads",
                got=f"{result.receipt.cut:,} tokens more",
                allowed=f"{allowed:,} tokens in all; this server does not cut texts",
                do="shorten it, or ask for tasks that read windows",
                row=number,
            )
    return errors


class Failures:
    """Reasons of failed tasks: without internals for callers, and once each in the log."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()

    def tell(self, ticket: Ticket) -> None:
        """Removes paths and source positions from the reasons in the results."""
        for number, result in enumerate(ticket.results):
            if result is not None and result.failed:
                for failure in result.failed.items():
                    if failure not in self._known and len(self._known) < REMEMBERED:
                        self._known.add(failure)
                        log.warning("task %s failed: %s", *failure)
                failed = {name: without_files(words.partition("\n")[0][:300]) for name, words in result.failed.items()}
                ticket.results[number] = msgspec.structs.replace(result, failed=failed)


def _bound(entry: AnyInput) -> int:
    """An upper bound of the input's tokens: its characters plus AN_INPUT."""
    if isinstance(entry, Question):
        around = len(entry.text) + len(entry.context) + AN_INPUT
        return around * len(entry.options) + sum(map(len, entry.options))
    return sum(map(len, texts_of(task_input(entry)))) + AN_INPUT
