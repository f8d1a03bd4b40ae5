"""Edits of a project file as text: a task is added or replaced, and every other line is unchanged."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from typing import Any

from polyhead.errors import BadName, ConfigError
from polyhead.project.declare import task_text
from polyhead.project.tables import Project
from polyhead.values import to_value

HEADER = re.compile(r"\s*\[")
TASKS = re.compile(r"\s*\[\[\s*tasks\s*\]\]")
# Keys that are never guessed: a replacement of the same kind keeps them.
KEPT = ("metric", "threshold", "none_below", "positive", "long_texts", "decoder", "generation", "team")


def with_task(before: str, entry: dict[str, Any], output: str, *, replace: bool) -> tuple[str, tuple[str, ...]]:
    """The text with the task, and the dropped keys of a replaced task.

    Raises BadName if a task of that name exists and `replace` is not given, ConfigError for a file whose tasks are not
    [[tasks]] tables.
    """
    tasks, ends = tomllib.loads(before).get("tasks", []), "\r\n" if "\r\n" in before else "\n"
    same = [task for task in tasks if str(task.get("name")).casefold() == entry["name"].casefold()]
    if same and not replace:
        do = "give another name with --task, or replace the task with --replace"
        raise BadName(f"{output} has a task of this name", got=entry["name"], do=do)
    after, lines = before, before.splitlines(keepends=True)
    if not same:
        after = before.rstrip() + ("\n\n" + task_text(entry)).replace("\n", ends)
    elif place := _place_of(lines, same[0]["name"]):
        start, end, old = place
        kept = {key: old[key] for key in KEPT if key in old} if same[0].get("kind") == entry["kind"] else {}
        if kept.get("positive") not in entry.get("labels", ()):
            kept.pop("positive", None)
        entry = entry | kept
        comments = [line for line in lines[start + 1 : end] if line.lstrip().startswith("#")]
        head, _, keys_text = task_text(entry).replace("\n", ends).partition("\n")
        after = "".join([*lines[:start], head + "\n", *comments, keys_text, *lines[end:]])
    _check(before, after, entry, output, is_new=not same)
    written = {key for task in tomllib.loads(after)["tasks"] if task["name"] == entry["name"] for key in task}
    return after, tuple(key for task in same for key in task if key not in written)


def _place_of(lines: Sequence[str], name: str) -> tuple[int, int, dict[str, Any]] | None:
    """The lines of one [[tasks]] table and its keys, without its tables below and comments after it, if it is there."""
    starts = [number for number, line in enumerate(lines) if TASKS.match(line)]
    for start in starts:
        end = next((n for n in range(start + 1, len(lines)) if HEADER.match(lines[n]) and _is_header(lines[n])), None)
        end = len(lines) if end is None else end
        while end > start + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
            end -= 1
        try:
            table = tomllib.loads("".join(lines[start:end]))["tasks"][0]
        except (tomllib.TOMLDecodeError, KeyError, IndexError):
            continue
        if table.get("name") == name:
            return start, end, table
    return None


def _is_header(line: str) -> bool:
    return re.match(r"\s*\[\[?[^\[\]]+\]\]?\s*(#.*)?$", line) is not None and "," not in line


def _check(before: str, after: str, entry: dict[str, Any], output: str, *, is_new: bool) -> None:
    do = "write the tasks of that file as [[tasks]] tables, each with its name as the first key"
    try:
        content, earlier = tomllib.loads(after), tomllib.loads(before)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"cannot add a task to {output}", got=error, do=do) from None
    name = entry["name"].casefold()
    others = [[task for task in c.pop("tasks", []) if task["name"].casefold() != name] for c in (content, earlier)]
    written = [task for task in tomllib.loads(after)["tasks"] if task["name"].casefold() == name]
    is_whole = len(written) == 1 and all(written[0].get(key) == _plain(value) for key, value in entry.items())
    if others[0] != others[1] or content != earlier or not is_whole:
        raise ConfigError(f"cannot {'add' if is_new else 'replace'} a task of {output}", got=entry["name"], do=do)
    to_value(tomllib.loads(after), Project, source=output)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
