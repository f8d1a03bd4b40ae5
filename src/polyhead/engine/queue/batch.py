"""Inputs of several calls, asked as one call for the tasks of all; each call gets its own answers and receipt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from polyhead.engine.answers import AnswerTable, Result
from polyhead.engine.inputs import AnyInput
from polyhead.engine.loaded import LoadedTasks
from polyhead.engine.queue.ticket import Ticket, TicketPart
from polyhead.engine.request import Request, TaskResults


class SharedBatch:
    """The inputs of several calls, asked as one call for the tasks of all."""

    def __init__(self, pieces: Sequence[TicketPart]) -> None:
        self.loaded = pieces[0].ticket.loaded
        self.tickets = list(dict.fromkeys(piece.ticket for piece in pieces))
        wanted = {name for ticket in self.tickets for name in ticket.tasks}
        self.tasks = tuple(name for name in self.loaded.tasks if name in wanted)
        self.places, self.inputs, words = list[tuple[Ticket, int, int]](), list[AnyInput](), list[Any]()
        for piece in pieces:
            for number in piece.numbers:
                self.places.append((piece.ticket, number, len(self.inputs)))
                self.inputs.append(piece.ticket.inputs[number])
                words.append(None if piece.ticket.words is None else piece.ticket.words[number])
        self._words = words if any(own is not None for own in words) else None
        self.characters = sum(sum(piece.characters) for piece in pieces)

    def run(self, deliver: Callable[[list[Callable[[], None]]], None]) -> AnswerTable:
        """The answers of all; callers that want stages get them meanwhile."""
        request = Request(self.loaded, self.inputs, self.tasks, words=self._words)
        if all(ticket.stage is None for ticket in self.tickets):
            try:
                return request.run(self.loaded)
            except Exception:
                columns = request.columns()
                if any(column.late for column in columns.tasks.values()):  # it stopped before its end
                    raise
                return columns  # every task failed, and each says so
        for stage in request.results(self.loaded):
            deliver(list(self._stages(stage)))
        return request.columns()

    def _stages(self, stage: TaskResults) -> Iterator[Callable[[], None]]:
        for ticket in self.tickets:
            if ticket.stage is None or stage.task not in ticket.tasks or ticket.is_cancelled:
                continue
            own = {
                number: stage.answers[row]
                for other, number, row in self.places
                if other is ticket and row in stage.answers
            }
            if own:
                results = TaskResults(task=stage.task, answers=own, layers_left=stage.layers_left)
                yield partial(ticket.stage, results)

    def spread(self, columns: AnswerTable) -> list[Ticket]:
        """Gives each ticket its results; those that have all of theirs now."""
        by_task = {name: _OfTask(columns, name, is_raw=name in self.loaded.hidden) for name in self.tasks}
        flops = _OwnFlops(self.loaded)
        ended, versions = list[Ticket](), dict[tuple[str, ...], dict[str, str]]()
        for ticket, number, row in self.places:
            if (live := versions.get(ticket.tasks)) is None:
                live = versions[ticket.tasks] = self.loaded.versions_of(ticket.tasks)
            answers, skipped, failed, late = dict[str, Any](), dict[str, str](), dict[str, str](), list[str]()
            for name in ticket.tasks:
                own = by_task[name]
                if (place := own.places.get(row)) is not None:
                    if own.answers is None:
                        ticket.outputs[number][name] = own.column.outputs[place]
                    else:
                        answers[name] = own.answers[place]
                elif row in own.column.failed:
                    failed[name] = own.column.failed[row]
                elif row in own.column.skipped:
                    skipped[name] = own.column.skipped[row]
                else:
                    late.append(name)
            receipt = columns.receipts.at(row, flops.of(ticket.tasks))
            result = Result(
                answers=answers, receipt=receipt, skipped=skipped, failed=failed, late=tuple(late), versions=live
            )
            if ticket.give(number, result):
                ended.append(ticket)
        return ended


class _OfTask:
    """One task's column, and where each input's answer stands in it; raw outputs of hidden tasks are not decoded."""

    def __init__(self, columns: AnswerTable, name: str, *, is_raw: bool) -> None:
        self.column = columns[name]
        self.places: Mapping[int, int] = {row: place for place, row in enumerate(self.column.rows.tolist())}
        self.answers = None if is_raw else self.column.answers


class _OwnFlops:
    """FLOPs of a pass as if only some of its tasks had been asked; hidden tasks are not counted."""

    def __init__(self, loaded: LoadedTasks) -> None:
        self._loaded = loaded
        self._known: dict[tuple[str, ...], Callable[[tuple[str, ...], int], Mapping[str, int]]] = {}

    def of(self, tasks: tuple[str, ...]) -> Callable[[tuple[str, ...], int], Mapping[str, int]]:
        """What these tasks add to a pass."""
        if tasks not in self._known:
            own = frozenset(tasks) - self._loaded.hidden
            # No method of this object: what it keeps of itself would keep tasks that are long replaced.
            self._known[tasks] = partial(_flops, self._loaded, own)
        return self._known[tasks]


def _flops(loaded: LoadedTasks, own: frozenset[str], tasks: tuple[str, ...], tokens: int) -> Mapping[str, int]:
    kept = tuple(name for name in tasks if name in own)
    return loaded.flops(kept, tokens)
