"""A task's declaration from a look at its data: what is found is written down, never assumed later."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from polyhead.config import Value, to_value
from polyhead.errors import BadValue, ConfigError, EmptyData
from polyhead.project.tables import TaskEntry
from polyhead.tasks.columns import no_column
from polyhead.tasks.kinds import KINDS
from polyhead.tasks.kinds.base import as_float, spelled
from polyhead.tasks.read import ReadReport, read
from polyhead.tasks.rows import DATASETS, Rows
from polyhead.tasks.split import split
from polyhead.tasks.task import Kind

MOST_LABELS = 1000


class InitOptions(Value):
    """What `polyhead init` was told: files and columns."""

    data: str
    kind: str
    name: str | None = None
    text: str | None = None
    text_b: str | None = None
    pair: str | None = None  # None: as a project file that does not say it reads a pair
    label: str | None = None
    tokens: str | None = None
    spans: str | None = None
    choices: str | None = None
    answers: str | None = None
    separator: str | None = None
    model: str | None = None
    validation: str | None = None
    test: str | None = None

    @property
    def known_kind(self) -> Kind:
        """The task's kind."""
        return KINDS[self.kind]

    @property
    def column(self) -> str:
        """Where the labels are."""
        key = self.known_kind.label_key
        if key != "label":
            return getattr(self, key) or key
        return self.spans or self.label or ("tags" if self.tokens else "label")

    @property
    def question(self) -> str:
        """Where the texts are, or the questions."""
        return self.text or self.known_kind.text_column

    @property
    def files(self) -> list[str]:
        """Every file, train first."""
        return [name for name in (self.data, self.validation, self.test) if name]


class Declared(Value):
    """A `[[tasks]]` table, and what its files hold."""

    entry: dict[str, Any]
    counts: dict[str, int]  # how often train has each label (of spans: each name), in their order
    unseen: tuple[str, ...]  # labels of validation or test that train does not have
    reports: dict[str, ReadReport]  # by split


def declare(asked: InitOptions, folder: Path) -> Declared:
    """The table, with paths relative to `folder` where they can be; the files were read as `train` reads them."""
    kind = asked.known_kind
    if asked.column in (asked.question, asked.text_b) and not asked.tokens:
        option = "spans" if asked.spans else kind.label_key
        raise ConfigError(
            "the label is what the answer is, so it cannot be the text",
            got=f"column '{asked.column}' for both",
            do=f"name two columns with --text and --{option}",
        )
    is_declared = "labels" in kind.uses or "range" in kind.uses  # others answer by the input
    found = [list(_labels_in(asked, name)) for name in asked.files] if is_declared else []
    entry: dict[str, Any] = {"name": asked.name or _name_of(asked.data), "kind": asked.kind}
    counts: dict[str, int] = {}
    unseen: tuple[str, ...] = ()
    if "range" in kind.uses:
        entry["range"] = _range(asked, [float(str(v)) for values in found for v in values])
    elif "null_answers" in kind.uses and any(_has_unanswered(asked, name) for name in asked.files):
        entry["null_answers"] = True
    elif is_declared:
        labels = _ordered(asked, {str(v) for values in found for v in values})
        seen = Counter(str(v) for v in found[0])
        counts = {label: seen[label] for label in (sorted(seen) if asked.spans else labels)}
        unseen = tuple(v for v in sorted({str(v) for values in found[1:] for v in values}) if not seen[v])
        entry["labels"] = labels
    if kind.empty_is_none:
        entry["empty"] = "none"
    if asked.model is not None:
        entry["model"] = _place(asked.model, folder) if Path(asked.model).is_dir() else asked.model
    entry |= {key: _place(name, folder) for key, name in _splits(asked).items()} | _columns(asked)
    reports = _checked(to_value(entry, TaskEntry, source="the task"), folder)
    return Declared(entry=entry, counts=counts, unseen=unseen, reports=reports)


def project_text(entry: dict[str, Any], *, is_first: bool) -> str:
    """TOML for the entry, after a commented head where it is the first of its file."""
    import tomli_w

    head = (
        "# A Polyhead project: `polyhead train` reads this file. Every key: docs/tasks-and-data.md\n"
        'bundle = "bundle"\n\n[trunk]\nname = "minilm"\n\n'
    )
    # A list of short tables would be written as one line, which no second task could follow.
    body = f"[[tasks]]\n{tomli_w.dumps(entry)}"
    return head + body if is_first else body


def _splits(asked: InitOptions) -> dict[str, str]:
    files = {"train": asked.data, "validation": asked.validation, "test": asked.test}
    return {key: name for key, name in files.items() if name}


def _columns(asked: InitOptions) -> dict[str, str]:
    separator = {"separator": asked.separator} if asked.separator else {}
    given = {key: name for key in ("choices", "answers") if (name := getattr(asked, key))}
    kind = asked.known_kind
    if kind.context_column is not None:
        columns = {"text": asked.question, **_defaults_of(asked), **given, **separator}
        given = {"text_b": asked.text_b, "label": asked.label, "tokens": asked.tokens, "spans": asked.spans}
        return columns | {key: name for key, name in given.items() if name}
    if asked.tokens:
        columns = {"tokens": asked.tokens, "tags": asked.column}
    else:
        columns = {"text": asked.question, "spans" if asked.spans else "label": asked.column}
    if asked.text_b:
        default = "separate" if kind.separate_pairs else "joined"
        columns |= {"text_b": asked.text_b, "pair": asked.pair or default}
    return columns | given | separator


def _defaults_of(asked: InitOptions) -> dict[str, str]:
    kind = asked.known_kind
    context = {} if kind.per_option or kind.context_column is None else {"text_b": kind.context_column}
    return context | {key: key for key in (*kind.column_keys, kind.label_key)}


def _has_unanswered(asked: InitOptions, path: str) -> bool:
    """Whether a row of the file says that its context holds no answer."""
    rows, kind = Rows(path, (asked.column,)), asked.known_kind
    for row in rows:
        value = row.values.get(asked.column)
        if isinstance(value, str):
            value = kind.parse(value, asked.separator)
        if value == [] or (isinstance(value, dict) and value.get("text") == []):
            return True
    return False


def _checked(entry: TaskEntry, folder: Path) -> dict[str, ReadReport]:
    """Reads every split, and tries to hold some of train out where training will."""
    task, reports = entry.task(), {}
    for name, file in (("train", entry.train), ("validation", entry.validation), ("test", entry.test)):
        if isinstance(file, str):
            examples = read(entry.source(file, folder), task)
            reports[name] = examples.report
            if name == "train" and isinstance(entry.validation, float):
                split(examples, entry.validation, 1, task)
    return reports


def _labels_in(asked: InitOptions, path: str) -> Iterator[object]:
    """Every label of the file, once for each time it is there."""
    rows, found, any_row = Rows(path, (asked.column,)), False, False
    for row in rows:
        any_row = True
        value = row.values.get(asked.column)
        if value is not None and value != "" and not _says_none(asked, value):
            found = True
            yield from _labels_of(asked, value, from_cells=rows.has_cells, where=f"{path} row {row.number}")
    if found:
        return
    there = list(rows.columns)
    if not any_row:
        raise EmptyData(f"no rows in {path}", do="give a file with rows, and with a header if it is CSV")
    if asked.column in there:
        raise EmptyData(f"{path}: no row has a value in column '{asked.column}'", do="name another column")
    raise no_column(path, asked.column, there, by="Name it with --label, or --spans or --tokens")


def _says_none(asked: InitOptions, value: object) -> bool:
    """Whether a cell without visible text says that no label applies."""
    return asked.known_kind.empty_is_none and isinstance(value, str) and not value.strip()


def _labels_of(asked: InitOptions, value: object, *, from_cells: bool, where: str) -> list[object]:
    kind = asked.known_kind
    if isinstance(value, str) and (from_cells or asked.separator):
        value = _listed(value) if asked.spans else kind.parse(value, asked.separator)
    if "range" in kind.uses:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(as_float(value)):
            raise BadValue(
                f"{where}: '{asked.column}' is no number",
                got=repr(value),
                allowed="finite decimal numbers, such as 0.5 or 1e-3",
                do="fix the row, or name another --kind",
            )
        return [value]
    if not kind.label_is_list:
        return [_spelled(value, where, "name another --label, or --kind regression for numbers")]
    if not isinstance(value, list):
        raise BadValue(
            f"{where}: '{asked.column}' holds no list",
            got=value,
            do="say with --separator what stands between the labels of a cell, or name another --kind",
        )
    several = [one.get("label") if isinstance(one, dict) else None for one in value] if asked.spans else value
    return [_spelled(one, where, "give labels as strings") for one in several]


def _listed(cell: str) -> object:
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        return cell


def _spelled(value: object, where: str, do: str) -> str:
    name = spelled(value)
    if name is None:
        raise BadValue(f"{where}: this cannot be a label", got=repr(value), do=do)
    return name


def _range(asked: InitOptions, numbers: list[float]) -> list[float]:
    low, high = min(numbers), max(numbers)
    if not low < high:
        raise ConfigError(f"every row of {asked.data} has the same '{asked.column}'", got=low, do="name another column")
    return [low, high]


def _ordered(asked: InitOptions, names: set[str]) -> list[str]:
    if len(names) > MOST_LABELS:
        raise ConfigError(
            f"'{asked.column}' has {len(names)} different values, too many to be labels",
            allowed=f"at most {MOST_LABELS}",
            do="name another column, or use --kind regression",
        )
    if asked.spans:
        return ["O", *_begun_and_inside(names)]
    bare = {name[2:] for name in names if name[:2] in ("B-", "I-")}
    if asked.known_kind.labels_words and bare and all(n == "O" or n[:2] in ("B-", "I-") for n in names):
        return ["O", *_begun_and_inside(bare)]
    if all(re.fullmatch(r"-?\d{1,18}", name) for name in names):
        return sorted(names, key=int)
    return sorted(names)


def _begun_and_inside(names: set[str]) -> list[str]:
    return [f"{prefix}-{name}" for name in sorted(names) for prefix in ("B", "I")]


def _name_of(data: str) -> str:
    last = re.split(r"[/\\]", data.removeprefix(DATASETS).partition(":")[0])[-1]
    clean = re.sub(r"[^A-Za-z0-9_-]+", "-", last.lstrip(".").split(".")[0]).strip("-_")
    return clean[:64] or "task"


def _place(path: str, folder: Path) -> str:
    if path.startswith(DATASETS):
        return path
    resolved = Path(path).resolve()
    inside = resolved.is_relative_to(folder)
    return (resolved.relative_to(folder) if inside else resolved).as_posix()
