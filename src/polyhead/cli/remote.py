"""Lines that a server answers in place of a bundle on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec

from polyhead.cli.command import option
from polyhead.client.client import Client, row_of
from polyhead.engine.inputs import task_input
from polyhead.errors import DataError, PolyheadError
from polyhead.store.jobs.lines import InputLine
from polyhead.text.question import texts_of
from polyhead.text.tokenize import lone_surrogates
from polyhead.values import Value

SECONDS, RETRIES = 600.0, 1000  # a file that is answered waits for a busy server
KEY = "POLYHEAD_API_KEY"
TOO_LARGE = 413
LATE_ALONE = 3  # lines in turn, each asked alone and late: then no more are asked


class ServerOptions(Value):
    """The server that answers in place of a bundle."""

    server: Annotated[
        str | None,
        option(
            "Ask a server in place of BUNDLE, which is then left out; tasks that write texts answer where --tasks "
            "names them.",
            metavar="URL",
        ),
    ] = None
    key_file: Annotated[
        str | None,
        option(
            "File with the server's key; without it, the environment's POLYHEAD_API_KEY.",
            type=click.Path(exists=True, dir_okay=False),
        ),
    ] = None


class Remote:
    """Asks a server for the answers of lines."""

    def __init__(
        self,
        url: str,
        *,
        key_file: str | None,
        tasks: tuple[str, ...] | None,
        familiar: bool = False,
        none_below: float | None = None,
    ) -> None:
        self._client = Client(url, key=_key(key_file), timeout=SECONDS, retries=RETRIES)
        self._wish: dict[str, Any] = {"tasks": tasks, "familiar": familiar, "none_below": none_below}

    def close(self) -> None:
        """Closes its connection."""
        self._client.close()

    def answers(self, lines: list[InputLine]) -> list[dict[str, Any]]:
        """The fields of each line's result, or its `error`.

        Lines for which the server was late are asked again, fewer at a time, until several in turn are late alone or
        the server refuses. A line's result is replaced by one that holds more.
        """
        fields = self._asked(lines)
        waiting, most, late_alone = _late(range(len(lines)), fields), max(1, len(lines) // 2), 0
        while waiting and late_alone < LATE_ALONE:
            asked, waiting = waiting[:most], waiting[most:]
            try:
                repeated = self._asked([lines[number] for number in asked])
            except PolyheadError:
                break
            for number, line_fields in zip(asked, repeated, strict=True):
                if _holds_more(line_fields, fields[number]):
                    fields[number] = line_fields
            late, is_alone = _late(asked, fields), len(asked) == 1
            late_alone = late_alone + 1 if late and is_alone else 0
            if not late:
                most *= 2
            elif 2 * len(late) > len(asked):
                most = max(1, len(asked) // 2)
            waiting = waiting if is_alone else late + waiting
        return fields

    def _asked(self, lines: list[InputLine]) -> list[dict[str, Any]]:
        """The same, asked once: a line that is refused does not take others with it."""
        if not lines:
            return []
        try:
            rows = [_row(line) for line in lines]
            prediction = self._client.predict(rows, **self._wish)
        except PolyheadError as error:
            if not isinstance(error, DataError) and getattr(error, "status", None) != TOO_LARGE:
                raise
            if len(lines) == 1:
                return [{"error": str(error)}]
            half = len(lines) // 2
            return self._asked(lines[:half]) + self._asked(lines[half:])
        fields: list[dict[str, Any]] = [msgspec.to_builtins(result) for result in prediction.results]
        for line, result_fields in zip(lines, fields, strict=True):
            if result_fields["receipt"] and (repaired := _repaired(line)):
                result_fields["receipt"]["repaired"] = repaired
        return fields


def _late(numbers: Iterable[int], fields: Sequence[Mapping[str, Any]]) -> list[int]:
    """The lines with tasks for which the server was late."""
    return [number for number in numbers if fields[number].get("late")]


def _holds_more(repeated: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Whether a repeated result has every answer of the earlier one, and fewer late tasks."""
    is_kept = before["answers"].keys() <= repeated.get("answers", {}).keys()
    return is_kept and len(repeated.get("late", ())) < len(before["late"])


def _key(path: str | None) -> str | None:
    if path is None:
        return os.environ.get(KEY) or None
    return Path(path).read_text(encoding="utf-8").strip() or None


def _row(line: InputLine) -> object:
    """The line as `/v1/predict` takes it."""
    if line.words is None:
        return row_of(line.input, 0)
    text = line.input[-1]
    return {"tokens": [text[start:end] for start, end in line.words.tolist()]}


def _repaired(line: InputLine) -> int:
    """Lone surrogates of its texts, which were replaced before they were sent."""
    return sum(map(lone_surrogates, texts_of(task_input(line.input))))
