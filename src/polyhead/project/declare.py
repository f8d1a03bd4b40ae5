"""The declaration of a task from its data: labels and ranges are fixed here, never inferred later."""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from polyhead.data.columns import Columns, no_column
from polyhead.data.guess_kind import is_numeric
from polyhead.data.read import read
from polyhead.data.read_report import ReadReport
from polyhead.data.rows import Rows, no_rows
from polyhead.data.shares import parsed
from polyhead.data.split import hold_out
from polyhead.data.tables import is_address
from polyhead.errors import BadValue, ConfigError, EmptyData
from polyhead.project.tables import TaskEntry
from polyhead.tasks.kinds import KINDS
from polyhead.tasks.kinds.base import as_float, other_spelling, single, spelled
from polyhead.tasks.task import Kind
from polyhead.values import Value, to_value

MOST_LABELS = 1000
_Labelled = tuple[int, object]  # a row's number and one of its labels
POINT_ZERO = re.compile(r"-?[0-9]+\.0")  # an integer as data frames write it in a column of floats


class InitOptions(Columns, kw_only=True):
    """Files, and the known facts about their task; None: to be guessed."""

    data: str
    kind: str | None = None
    name: str | None = None
    pair: str | None = None  # None: the default of a project file
    validation: str | None = None
    test: str | None = None

    @property
    def known_kind(self) -> Kind:
        """The task's kind."""
        return KINDS.named(self.kind or "")

    @property
    def column(self) -> str:
        """The column of the labels."""
        key = self.known_kind.label_key
        if key != "label":
            return getattr(self, key) or key
        return self.spans or self.label or ("tags" if self.tokens else "label")

    @property
    def question(self) -> str | tuple[str, ...]:
        """The column of the texts or questions, or the columns that are joined."""
        return self.text or self.known_kind.text_column

    @property
    def files(self) -> list[str]:
        """All files, train first."""
        return [name for name in (self.data, self.validation, self.test) if name]


class Declared(Value):
    """A `[[tasks]]` table, and counts of its files."""

    entry: dict[str, Any]
    counts: dict[str, int]  # train rows by label (for spans: by name), in label order
    unseen: tuple[str, ...]  # labels of validation or test that train lacks
    reports: dict[str, ReadReport]  # by split


def declare(options: InitOptions, folder: Path) -> Declared:
    """The table, with paths relative to `folder` if they are inside it; reads the files as `train` does."""
    kind = options.known_kind
    if options.column in (*options.text_columns, options.question, options.text_b) and not options.tokens:
        option = "spans" if options.spans else kind.label_key
        raise ConfigError(
            "the label is what the answer is, so it cannot be the text",
            got=f"column '{options.column}' for both",
            do=f"name two columns with --text and --{option}",
        )
    facts: dict[str, Any] = {}
    parts = list[list[_Labelled]]()
    if "null_answers" in kind.uses and any(_has_unanswered(options, name) for name in options.files):
        facts["null_answers"] = True
    elif options.one_hot:
        parts = [ones_of(options.data, options.one_hot)]
        facts["labels"] = list(options.one_hot)
    elif _is_declared(kind):
        parts = [_without_points(list(_labels_in(options, name))) for name in options.files]
        if "range" not in kind.uses:
            before = {str(value) for _, value in parts[0]}
            parts[1:] = [[(row, _as_before(str(value), before)) for row, value in part] for part in parts[1:]]
        facts = _facts(options, [value for part in parts for _, value in part])
    reports, used = _checked(to_value(_table(options, folder, facts), TaskEntry, source="the task"), folder)
    # only now is it known which rows have a text too
    values = [[value for row, value in part if row in rows] for part, rows in zip(parts, used, strict=False)]
    if values and not options.one_hot:
        facts = _facts(options, [value for part in values for value in part])
    counts: dict[str, int] = {}
    unseen: tuple[str, ...] = ()
    if "labels" in facts:
        seen = Counter(map(str, values[0]))
        counts = {label: seen[label] for label in (sorted(seen) if options.spans else facts["labels"])}
        unseen = tuple(sorted({str(value) for part in values[1:] for value in part} - set(seen)))
    return Declared(entry=_table(options, folder, facts), counts=counts, unseen=unseen, reports=reports)


def outlined(options: InitOptions, folder: Path) -> TaskEntry:
    """The table of `declare`, with labels and ranges only from rows whose label is readable.

    Raises EmptyData if no row has a readable label.
    """
    kind, facts = options.known_kind, dict[str, Any]()
    if options.one_hot:
        facts["labels"] = list(options.one_hot)
    elif _is_declared(kind):
        values = [value for name in options.files for value in _readable_labels(options, name)]
        if not values:
            raise no_label(options.data, options.column)
        facts = _facts(options, values)
    if "null_answers" in kind.uses:
        facts["null_answers"] = True
    return to_value(_table(options, folder, facts), TaskEntry, source="the task")


def _is_declared(kind: Kind) -> bool:
    """Whether the kind declares labels or a range; answers of other kinds depend on the input."""
    return "labels" in kind.uses or "range" in kind.uses


def _facts(options: InitOptions, values: Sequence[object]) -> dict[str, Any]:
    """The range or the labels of a task with these values."""
    if "range" in options.known_kind.uses:
        return {"range": _range(options, [float(str(value)) for value in values])}
    labels = _ordered(options, set(map(str, values)))
    if len(labels) < options.known_kind.least_labels:
        raise _all_alike(options, next(iter(labels), "no label"))
    return {"labels": labels}


def _table(options: InitOptions, folder: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The `[[tasks]]` table, with its keys in file order."""
    entry: dict[str, Any] = {"name": options.name or _name_of(options.data), "kind": options.kind, **facts}
    if options.empty or (options.known_kind.empty_is_none and not options.one_hot):
        entry["empty"] = options.empty or "none"
    if options.overlaps and options.spans:
        entry["overlaps"] = options.overlaps
    files = {"train": options.data, "validation": options.validation, "test": options.test}
    return entry | {key: place_from(name, folder) for key, name in files.items() if name} | _columns(options)


def _readable_labels(options: InitOptions, path: str) -> Iterator[object]:
    rows = Rows(path, (options.column,))
    for row in rows.each():
        value = None if isinstance(row, BadValue) else row.values.get(options.column)
        value = single(value) if options.known_kind.takes_single else value
        if value is None or (isinstance(value, str) and not value.strip()):
            continue
        with contextlib.suppress(BadValue):
            yield from _labels_of(options, value, from_cells=rows.has_cells, where=path)


def project_head(trunk: str) -> str:
    """The beginning of a project file, before its tasks."""
    import tomli_w

    return (
        "# A Polyhead project: `polyhead train` reads this file. Every key: docs/reference/project-file.md\n"
        f'bundle = "bundle"\n\n[trunk]\n{tomli_w.dumps({"name": trunk})}\n'
    )


def task_text(entry: dict[str, Any]) -> str:
    """TOML for a task."""
    import tomli_w

    # A list of short tables would be written on one line, after which no second task could follow.
    keys = {key: value for key, value in entry.items() if not isinstance(value, dict)}
    tables = [f"\n[tasks.{key}]\n{tomli_w.dumps(entry[key])}" for key in entry if key not in keys]
    return "".join(["[[tasks]]\n", tomli_w.dumps(keys), *tables])


def _columns(options: InitOptions) -> dict[str, Any]:
    separator = {"separator": options.separator} if options.separator else {}
    named = {key: name for key in ("choices", "answers") if (name := getattr(options, key))}
    kind = options.known_kind
    if kind.context_column is not None:
        columns: dict[str, Any] = {"text": options.question, **_defaults_of(options), **named, **separator}
        more = {key: getattr(options, key) for key in ("text_b", "label", "tokens", "spans")}
        return columns | {key: name for key, name in more.items() if name}
    if options.tokens:
        columns = {"tokens": options.tokens, "tags": options.column}
    elif options.one_hot:
        columns = {"text": options.question, "soft": list(options.one_hot)}
    else:
        columns = {"text": options.question, "spans" if options.spans else "label": options.column}
    if options.text_b:
        default = "separate" if kind.separate_pairs else "joined"
        columns |= {"text_b": options.text_b, "pair": options.pair or default}
    return columns | named | separator


def _defaults_of(options: InitOptions) -> dict[str, str]:
    kind = options.known_kind
    context = {} if kind.per_option or kind.context_column is None else {"text_b": kind.context_column}
    return context | {key: key for key in (*kind.column_keys, kind.label_key)}


def _has_unanswered(options: InitOptions, path: str) -> bool:
    """Whether a row of the file has a context without an answer."""
    rows, kind = Rows(path, (options.column,)), options.known_kind
    for row in rows:
        value = row.values.get(options.column)
        if isinstance(value, str):
            value = kind.parse(value, options.separator)
        if value == [] or (isinstance(value, dict) and value.get("text") == []):
            return True
    return False


def _checked(entry: TaskEntry, folder: Path) -> tuple[dict[str, ReadReport], list[set[int]]]:
    """Reads every split, and holds out a share of train if training will do so; gives the numbers of used rows too."""
    task, reports, used = entry.task(), dict[str, ReadReport](), list[set[int]]()
    for name, file in (("train", entry.train), ("validation", entry.validation), ("test", entry.test)):
        if isinstance(file, str):
            examples = read(entry.source(file, folder), task)
            reports[name] = examples.report
            used.append(set(examples.rows))
            if name == "train" and isinstance(entry.validation, float):
                hold_out(examples, entry.validation, 1, task, even_single=True)
    return reports, used


def _without_points(rows: list[_Labelled]) -> list[_Labelled]:
    """The labels without None; 1 instead of 1.0 if an empty cell made a data frame write integers as floats."""
    labels = [(row, value) for row, value in rows if value is not None]
    are_floats = len(labels) < len(rows) and all(isinstance(v, str) and POINT_ZERO.fullmatch(v) for _, v in labels)
    return [(row, str(value).removesuffix(".0")) for row, value in labels] if are_floats else labels


def _as_before(label: str, before: Collection[str]) -> str:
    """The label in the spelling of earlier files."""
    return other if label not in before and (other := other_spelling(label, before)) in before else label


def _labels_in(options: InitOptions, path: str) -> Iterator[_Labelled]:
    """Every label of the file, with repeats, and None for a row without one, each after the row's number."""
    rows, has_label, has_row, empty = Rows(path, (options.column,)), False, False, 0
    for row in rows:
        has_row = True
        value = row.values.get(options.column)
        value = single(value) if options.known_kind.takes_single else value
        # A cell without visible text may mean that no label applies.
        is_none = options.known_kind.empty_is_none and isinstance(value, str) and not value.strip()
        empty += is_none
        if value is not None and value != "" and not is_none:
            has_label = True
            labels = _labels_of(options, value, from_cells=rows.has_cells, where=f"{path} row {row.number}")
            yield from ((row.number, label) for label in labels)
        else:
            yield row.number, None
    if empty and options.empty is None:
        raise ConfigError(
            f"{path}: '{options.column}' is empty in {empty:,} of its rows, which may say two things",
            allowed="--empty none (none of the labels applies) or --empty skip (nobody labelled the row)",
            do="choose one of them",
        )
    if has_label:
        return
    if not has_row:
        raise no_rows(path)
    if options.column in rows.columns:
        raise no_label(path, options.column)
    raise no_column(path, options.column, list(rows.columns), by="name it with --label, or --spans or --tokens")


def no_label(path: str, column: str) -> EmptyData:
    """The error for a file whose column of labels is empty."""
    return EmptyData(f"{path}: no row has a value in column '{column}'", do="name another column")


def _labels_of(options: InitOptions, value: object, *, from_cells: bool, where: str) -> list[object]:
    kind = options.known_kind
    if isinstance(value, str) and (from_cells or options.separator):
        value = parsed(value) if options.spans else kind.parse(value, options.separator)
    if "range" in kind.uses:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(as_float(value)):
            raise BadValue(
                f"{where}: '{options.column}' is no number",
                got=repr(value),
                allowed="finite decimal numbers, such as 0.5 or 1e-3",
                do="write it as a number, with a point, such as 4.5"
                if is_numeric([value])
                else "fix the row, or name another --kind",
            )
        return [value]
    if not kind.label_is_list:
        return [_spelled(value, where, "name another --label, or --kind regression for numbers")]
    if not isinstance(value, list):
        raise BadValue(
            f"{where}: '{options.column}' holds no list",
            got=value,
            do="say with --separator what stands between the labels of a cell, or name another --kind",
        )
    if options.spans and (wrong := [item for item in value if not isinstance(item, dict)]):
        do = "write spans so; tags are for lists of words"
        raise BadValue(f"{where}: this is no span", got=wrong[0], allowed='{"start", "end", "label"}', do=do)
    items = [item.get("label") for item in value] if options.spans else value
    return [_spelled(item, where, "give labels as strings") for item in items]


def _spelled(value: object, where: str, do: str) -> str:
    name = spelled(value)
    if name is None:
        raise BadValue(f"{where}: this cannot be a label", got=repr(value), do=do)
    return name


def _range(options: InitOptions, numbers: list[float]) -> list[float]:
    low, high = min(numbers), max(numbers)
    if not low < high:
        raise _all_alike(options, low)
    return [low, high]


def _all_alike(options: InitOptions, value: object) -> ConfigError:
    message = f"every row of {options.data} has the same '{options.column}'"
    allowed = f"at least {max(2, options.known_kind.least_labels)} different labels"
    do = f"add rows with another '{options.column}', or name another column"
    return ConfigError(message, got=value, allowed=allowed, do=do, fault="constant_label")


def _ordered(options: InitOptions, names: set[str]) -> list[str]:
    if len(names) > MOST_LABELS:
        raise ConfigError(
            f"'{options.column}' has {len(names)} different values, too many to be labels",
            allowed=f"at most {MOST_LABELS}",
            do="name another column, or use --kind regression",
        )
    if options.spans:
        return ["O", *_begun_and_inside(names)]
    bare = {name[2:] for name in names if name[:2] in ("B-", "I-")}
    if options.known_kind.labels_words and bare and all(n == "O" or n[:2] in ("B-", "I-") for n in names):
        return ["O", *_begun_and_inside(bare)]
    if all(re.fullmatch(r"-?\d{1,18}", name) for name in names):
        return sorted(names, key=int)
    return sorted(names)


def _begun_and_inside(names: set[str]) -> list[str]:
    return [f"{prefix}-{name}" for name in sorted(names) for prefix in ("B", "I")]


def _name_of(data: str) -> str:
    path = data.split(":")[1 if is_address(data) else 0]
    last = re.split(r"[/\\]", path.rstrip("/\\"))[-1]
    return clean_name(last.lstrip(".").split(".")[0])


def clean_name(text: str) -> str:
    """A valid task name derived from a text."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_")[:64] or "task"


def ones_of(path: str, columns: tuple[str, ...]) -> list[_Labelled]:
    """The columns with 1 in each row, each after the row's number; raises MissingColumn and BadValue."""
    rows, ones = Rows(path, columns), list[_Labelled]()
    for row in rows:
        for name in columns:
            mark = str(row.values.get(name, "")).strip().lower()
            if mark not in ("0", "1", "0.0", "1.0", "false", "true", ""):
                message = f"{path} row {row.number}: '{name}' is neither 0 nor 1"
                raise BadValue(message, got=mark, do="fix the row, or leave the column out of --one-hot")
            ones += [(row.number, name)] * (mark in ("1", "1.0", "true"))
    for name in (*columns, "label"):
        if name not in rows.columns and name != "label":
            raise no_column(path, name, list(rows.columns), by="name others with --one-hot")
        if name == "label" and name in rows.columns:
            do = "rename that column, or name it with --label"
            raise ConfigError(f"{path} has a column 'label' beside those of --one-hot", do=do)
    return ones


def place_from(path: str, folder: Path) -> str:
    """A path from here as a project file in the folder names it: relative where it lies inside; an address stays."""
    if is_address(path):
        return path
    resolved = Path(path).resolve()
    inside = resolved.is_relative_to(folder)
    return (resolved.relative_to(folder) if inside else resolved).as_posix()
