"""Many tasks, each with inputs of its own, answered in common batches: fewer are half empty, no text is read twice.

In deterministic mode a row's bits do not depend on its batch mates, so they are those of `Session.outputs`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from polyhead.engine.rows import Readings, readings_of
from polyhead.engine.session import Session
from polyhead.plan import TRUNK, Embed
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.text.question import Given


class PinnedInput(msgspec.Struct, frozen=True):
    """An input as a task is asked it; `words` are given to tasks that answer each word, and to no other."""

    given: Given
    words: tuple[tuple[int, int], ...] | None = None


def outputs_of(session: Session, asked: Mapping[str, Sequence[PinnedInput]]) -> dict[str, list[np.ndarray]]:
    """Each task's outputs for its own inputs, in their order; the session must be deterministic."""
    assert session.deterministic
    found: dict[str, list[np.ndarray]] = {}
    for names in _groups(session, asked):
        found |= _outputs(session, {name: asked[name] for name in names})
    return {name: found[name] for name in asked}


def _groups(session: Session, names: Mapping[str, object]) -> Iterator[list[str]]:
    """Tasks to be run together: all that read the trunk's layers alone, and the tasks of one prompt group.

    One with layers of its own is run by itself. A batch runs the suffix of every task in it over all its rows: that is
    nothing for a pooler, but not for layers, nor for prompts.
    """
    alike: dict[Embed | str | None, list[str]] = {}
    for name in names:
        path = session.records[name].path
        own = any(node.weights != TRUNK or node.delta for node in path.layers)
        alike.setdefault(name if own else path.embed if path.embed.prompts else None, []).append(name)
    yield from alike.values()


def _outputs(session: Session, asked: Mapping[str, Sequence[PinnedInput]]) -> dict[str, list[np.ndarray]]:
    readings: list[Readings] = []
    rows: dict[str, list[int]] = {}
    start = 0
    for names in _read_alike(session, asked).values():
        inputs = list(dict.fromkeys(one for name in names for one in asked[name]))
        place = {one: i for i, one in enumerate(inputs)}
        wanted: dict[int, set[str]] = {}
        for name in names:
            rows[name] = [start + place[one] for one in asked[name]]
            for one in asked[name]:
                wanted.setdefault(place[one], set()).add(name)
        tasks = {name: session.records[name].task for name in names}
        for some in _readings(session, inputs, tasks):
            readings += _asked_for(some, wanted, start)
        start += len(inputs)
    found = session.outputs_together(readings)
    values = {name: dict(zip(one.rows.tolist(), one.values, strict=True)) for name, one in found.items()}
    return {name: [values[name][row] for row in rows[name]] for name in asked}


def _asked_for(readings: Readings, wanted: Mapping[int, Collection[str]], start: int) -> Iterator[Readings]:
    """The readings of each set of tasks that wants the same inputs, whose numbers begin with `start`."""
    texts, halves = readings.texts, readings.texts.halves
    if halves is not None:
        halves = msgspec.structs.replace(halves, rows=halves.rows + start)
    texts = msgspec.structs.replace(texts, row=texts.row + start, halves=halves)
    alike: dict[tuple[str, ...], list[int]] = {}
    for entry, wanting in zip(readings.entries.tolist(), _wanting(readings, wanted), strict=True):
        alike.setdefault(tuple(n for n in readings.tasks if n in wanting), []).append(entry)
    for tasks, entries in alike.items():
        if tasks:
            yield Readings(texts=texts, entries=np.array(entries, np.int64), tasks=tasks)


def _wanting(readings: Readings, wanted: Mapping[int, Collection[str]]) -> list[Collection[str]]:
    """For each reading the tasks that want it: of a text of pairs those that want any pair that holds it."""
    texts = readings.texts
    if texts.halves is None:
        return [wanted[row] for row in readings.row.tolist()]
    found: dict[int, set[str]] = {}
    for numbers in (texts.halves.first, texts.halves.second):
        for row, text in zip(texts.halves.rows.tolist(), numbers.tolist(), strict=True):
            found.setdefault(text, set()).update(wanted[row])
    return [found[text] for text in texts.encodings.row[readings.entries].tolist()]


def _read_alike(session: Session, names: Mapping[str, object]) -> dict[tuple[object, ...], list[str]]:
    """Tasks for which the same input becomes the same encodings."""
    alike: dict[tuple[object, ...], list[str]] = {}
    for name in names:
        task, kind = session.records[name].task, kind_of(session.records[name].task)
        way = (task.pair, task.long_texts, kind.per_word, kind.per_option)
        alike.setdefault(way, []).append(name)
    return alike


def _readings(session: Session, inputs: Sequence[PinnedInput], tasks: Mapping[str, Task]) -> list[Readings]:
    words = [None if one.words is None else np.array(one.words, np.int32).reshape(-1, 2) for one in inputs]
    return readings_of([one.given for one in inputs], tasks, session.tokenizer, session.settings, words)
