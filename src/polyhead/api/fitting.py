"""One call of `Model.fit`: the tasks that it names, and their project entries over rows held in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from decimal import Decimal
from numbers import Real
from os import PathLike
from pathlib import Path as FilePath
from typing import Any, ClassVar, TypeGuard

import msgspec

from polyhead.api.containers import Frame, frame_of
from polyhead.api.rows import (
    PAIR,
    SPANS,
    TOKENS,
    LabelledTexts,
    Record,
    check_different_labels,
    check_inputs,
    check_one_type,
    columns_of_training,
    entry_of,
    in_python,
    kind_of_rows,
    records_of,
    with_lists,
)
from polyhead.bundle.read import Bundle
from polyhead.data.columns import Columns, unread_by
from polyhead.data.tables.memory import in_memory
from polyhead.data.tables.written import json_bytes
from polyhead.errors import BadValue, ConfigError, suggestion
from polyhead.files import replace_file
from polyhead.project.declare import clean_name, place_from
from polyhead.project.generation import DecoderChoice
from polyhead.project.names import MEANT, other_name
from polyhead.project.recipes import Training
from polyhead.project.strategies import Strategy
from polyhead.project.tables import DataFile, TaskEntry
from polyhead.tasks.kinds import KINDS
from polyhead.tasks.kinds.multi_label import MultiLabel
from polyhead.tasks.task import Kind, Task, check_name
from polyhead.values import Value, changed_fields, to_value

FORMS = {PAIR, SPANS, TOKENS}  # columns that not all rows have
OTHERWISE = ("name", "kind", "labels", "train", "validation", "test")  # separate arguments
COLUMNS = set(Columns.__struct_fields__) - {"empty", "overlaps", "separator"}
SETTINGS = tuple(name for name in TaskEntry.__struct_fields__ if name not in {*OTHERWISE, *COLUMNS})


def labels_by_task(task: object, texts: object, labels: object, *by_task: object) -> tuple[Any, dict[str, Any]]:
    """The texts of a call of `fit`, and the labels or the name of their column by task.

    The first argument is a task's name; or a data frame, in which `labels` names a column for each task; or texts,
    followed by a series that has a name. Raises BadValue if no task is named, or if a mapping among the arguments
    `by_task` names others; BadName for an invalid name.
    """
    named: dict[str, Any]
    rows: object
    table, column = None if isinstance(task, str) else frame_of(task), labels if texts is None else texts
    if table is not None and texts is not None and labels is not None:
        raise BadValue(
            "a frame needs the names of the columns that hold labels, and one column too many is given",
            got=[name if isinstance(name, str) else type(name).__name__ for name in (texts, labels)],
            allowed=list(table.names),
            do='name them: fit(frame, text="message", labels=["topics", "mood"])',
        )
    if texts is not None and labels is not None:
        column = None  # one of them would be ignored
    if isinstance(task, str):
        named, rows = {task: labels}, texts
    elif table is not None and not isinstance(getattr(column, "name", None), str):
        named, rows = _columns_by_task(table, column), task
    elif isinstance(name := getattr(column, "name", None), str) and name:
        named, rows = {clean_name(name): column}, task
    else:
        raise BadValue(
            "the first argument is the name of the task",
            got=type(task).__name__,
            allowed="fit(name, texts, labels), or fit(frame, text=COLUMN, labels=[COLUMN, ...])",
            do="name the task, such as model.fit('mood', texts, labels)",
        )
    for name in named:
        check_name(name)  # it is the name of a file
    for name in (name for values in by_task if isinstance(values, Mapping) for name in values):
        if name not in named:
            do = suggestion(str(name), named) or "name the tasks of this call"
            raise BadValue("kind and classes name a task that is not learned here", got=name, allowed=[*named], do=do)
    return rows, named


def _columns_by_task(table: Frame, labels: object) -> dict[str, str]:
    columns = [labels] if isinstance(labels, str) else labels
    if isinstance(columns, Mapping):
        return dict(columns)
    if not isinstance(columns, list | tuple) or not columns or not all(isinstance(name, str) for name in columns):
        raise BadValue(
            "a frame needs the names of the columns that hold labels",
            got=labels,
            allowed=list(table.names),
            do='name them: fit(frame, text="message", labels=["topics", "mood"])',
        )
    named = {clean_name(name): name for name in columns}
    if len(named) < len(columns):
        raise BadValue("two columns of labels give one name of a task", got=columns, do="give {task: column, ...}")
    return named


def of_task(value: Any, task: str) -> Any:
    """The value for a task, if a mapping gives each task its own."""
    return value.get(task) if isinstance(value, Mapping) else value


class GivenRows(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a call, and how their inputs are read: the same for all of its tasks."""

    texts: Any
    text: str | Sequence[str]
    text_b: str | None
    groups: Any
    weights: Any
    splits: Mapping[str, Any]  # validation and test, as they are given
    is_of_several: bool  # whether the call names several tasks

    def labelled(self, labels: object, subject: str) -> LabelledTexts:
        """Its rows with these labels."""
        is_of_splits = frame_of(self.texts) is None and any(map(_is_table, self.splits.values()))
        named = {"text": "text", "text_b": None} if is_of_splits else {"text": self.text, "text_b": self.text_b}
        columns = {**named, "groups": self.groups, "weights": self.weights}
        return LabelledTexts.of(self.texts, labels, subject=subject, **columns)

    def others(self, split: Any, labels: object, subject: str) -> LabelledTexts:
        """Rows of another split: (texts, labels) of the only task, or a data frame with the same columns."""
        if _is_labelled(split) and self.is_of_several:
            do = "give a data frame, with a column for each task"
            raise BadValue(f"{subject} has the labels of every task of the call", got="(texts, labels)", do=do)
        column = labels if isinstance(labels, str) else None  # a list of labels belongs to the training rows alone
        texts, answers = split if _is_labelled(split) else (split, column)
        text, text_b = ("text", None) if frame_of(texts) is None else (self.text, self.text_b)
        return LabelledTexts.of(texts, answers, text=text, text_b=text_b, subject=subject)


def _is_labelled(split: object) -> TypeGuard[tuple[Any, Any]]:
    return isinstance(split, tuple) and len(split) == 2


def _is_table(split: object) -> bool:
    """True if the texts of a split are a data frame, whose columns `text` and `text_b` name."""
    return frame_of(split[0] if _is_labelled(split) else split) is not None


class NewRows(msgspec.Struct, frozen=True, kw_only=True):
    """The rows that a task is to learn from, and its settings."""

    task: str
    kind: Kind
    rows: LabelledTexts
    labels: Any
    settings: dict[str, Any]
    separator: str | None
    records: list[Record]

    @classmethod
    def of(
        cls,
        task: str,
        call_rows: GivenRows,
        labels: Any,
        *,
        kind: str | Mapping[str, str] | None,
        live: Task | None,
        settings: Mapping[str, Any],
        say: Callable[[str], None],
    ) -> NewRows:
        """The rows as the task's kind reads them: the kind of the call, that of the live version, or a guess."""
        chosen = settings_of(task, settings)
        separator, empty = chosen.pop("separator", None), chosen.get("empty")
        rows = call_rows.labelled(labels, f"task '{task}'")
        chosen_kind = of_task(kind, task)
        if chosen_kind is None and separator is not None:
            chosen_kind = MultiLabel.name
        chosen_kind = chosen_kind or (None if live is None else live.kind)
        known = KINDS.named(chosen_kind or kind_of_rows(rows, say=say, task=task))
        unread = unread_by(known)  # it may be meant for other tasks of the call
        separator = None if "separator" in unread else separator
        chosen = {name: value for name, value in chosen.items() if name != "empty" or name not in unread}
        rows = with_lists(rows, known, separator=separator, empty=empty)
        check_inputs(known, rows.inputs)
        check_one_type(known, rows.labels, subject=f"task '{task}'")
        facts: dict[str, Any] = {"labels": labels, "settings": chosen, "separator": separator}
        return cls(task=task, kind=known, rows=rows, records=records_of(known, rows), **facts)

    def held(
        self,
        held: ExitStack,
        call_rows: GivenRows,
        *,
        earlier: list[Record],
        live: Task | None,
        classes: Sequence[str] | Mapping[str, Sequence[str]] | None,
    ) -> TaskEntry:
        """The project entry over these rows after `earlier` ones, and over other splits, held in memory."""
        others = self._splits(held, call_rows)
        if not earlier:
            check_different_labels(self.kind, self.rows.labels, subject=f"task '{self.task}'")
        address = held.enter_context(in_memory([*earlier, *self.records], before=len(earlier)))
        overlaps = self.settings.get("overlaps")
        with in_python({address: len(earlier)}):
            labels = of_task(classes, self.task)
            entry = entry_of(self.task, self.kind, self.rows, address, live=live, classes=labels, overlaps=overlaps)
            return TaskEntry(**(entry | columns_of_training(earlier) | self.settings | others))

    def _splits(self, held: ExitStack, call_rows: GivenRows) -> dict[str, Any]:
        """The other splits as an entry names them. A path is one from the current folder."""
        named: dict[str, Any] = {}
        lists = (names for names in self.rows.labels if isinstance(names, list))
        known = {name for names in lists for name in names if isinstance(name, str)}
        for split, rows_of_split in call_rows.splits.items():
            if isinstance(rows_of_split, Real | Decimal):
                named[split] = float(rows_of_split)
            elif isinstance(rows_of_split, str | PathLike | DataFile):
                file = rows_of_split if isinstance(rows_of_split, DataFile) else DataFile(path=str(rows_of_split))
                named[split] = msgspec.structs.replace(file, path=place_from(file.path, FilePath()))
                named["separator"] = self.separator
            elif rows_of_split is not None:
                rows = call_rows.others(rows_of_split, self.labels, f"the {split} of task '{self.task}'")
                check_inputs(self.kind, [self.rows.inputs[0], *rows.inputs])
                cells = {"separator": self.separator, "empty": self.settings.get("empty")}
                records = records_of(self.kind, with_lists(rows, self.kind, known=known, **cells))
                named[split] = held.enter_context(in_memory(records))
        return named


def keep_records(
    records: Mapping[str, Sequence[Record]],
    versions: Mapping[str, str],
    bundle: Bundle,
    place_of: Callable[[str, Bundle], FilePath],
) -> None:
    """Writes records by task for later fits that add to them, readable by their owner only.

    `versions` learned from them. Where another one is live by now they are not kept: they would be taken for its rows.
    """
    for name, version in versions.items():
        if name in bundle.lines and bundle.version(name) == version:
            place = place_of(name, bundle)
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(place, b"".join(json_bytes(record) + b"\n" for record in records[name]))


def earlier_records(place: FilePath, new: NewRows, live: Task) -> list[Record]:
    """The training rows of the live version.

    Raises ConfigError if they were not kept, or are of another kind, BadValue if they have other columns than the new.
    """
    if not place.exists() or live.kind != new.kind.name:
        raise ConfigError(
            f"the rows that the live version of task '{live.name}' learned from are not kept here, or of another kind",
            got="add=True",
            allowed="a version that this model learned, or one with the same cache=",
            do="give the earlier rows together with the new ones",
        )
    earlier: list[Record] = [json.loads(line) for line in place.read_bytes().splitlines()]
    forms = [{*each[0]} & FORMS for each in (earlier, new.records)]
    if forms[0] != forms[1]:
        raise BadValue(
            f"task '{live.name}' has rows of another form than those that it learned from before",
            got=f"rows with {sorted(forms[1]) or 'one text'}",
            allowed=f"rows with {sorted(forms[0]) or 'one text'}",
            do="give rows of that form, or fit all rows anew",
        )
    return earlier


class Tables(Value):
    """The settings that are tables themselves, as in a project file."""

    strategy: Strategy | None = None
    training: Training | None = None
    generation: DecoderChoice | None = None

    meant: ClassVar[Mapping[str, str]] = MEANT


def settings_of(task: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, with dicts and a strategy's name converted to values; `effort` and `minutes` are of training.

    Raises ConfigError for an unknown setting, with the name that was probably intended.
    """
    if tried := {name: settings[name] for name in ("effort", "minutes") if name in settings}:
        others = {name: value for name, value in settings.items() if name not in tried}
        training = others.pop("training", None) or {}
        table = msgspec.structs.asdict(training) if isinstance(training, Training) else dict(training)
        said = {name: table[name] for name in changed_fields(training)} if isinstance(training, Training) else table
        if twice := [name for name, value in tried.items() if said.get(name, value) != value]:
            raise ConfigError(
                f"task '{task}' is given '{twice[0]}' twice, and only one can count",
                got=f"{twice[0]}={tried[twice[0]]!r} and training={{'{twice[0]}': {said[twice[0]]!r}}}",
                do="give one of them",
            )
        return settings_of(task, others | {"training": table | tried})
    for name in settings:
        if name not in SETTINGS:
            problem, do = f"task '{task}' has no setting '{name}'", _meant(name) or suggestion(name, SETTINGS)
            raise ConfigError(problem, got=settings[name], allowed=SETTINGS, do=do)
    spelled = {name: value for name, value in settings.items() if name in Tables.__struct_fields__}
    if isinstance(spelled.get("strategy"), str):
        spelled["strategy"] = {"kind": spelled["strategy"]}
    spelled = {name: dict(value) for name, value in spelled.items() if isinstance(value, Mapping)}
    if not spelled:
        return dict(settings)
    read = to_value(spelled, Tables, source=f"task '{task}'")
    return {**settings, **{name: getattr(read, name) for name in spelled}}


def _meant(name: str) -> str | None:
    """Advice for a name by which other libraries know a setting; None for an unknown name."""
    key = "training." + name if name in Training.__struct_fields__ else MEANT.get(other_name(name), "")
    table, _, setting = key.rpartition(".")
    if table == "training":
        return f"give training={{'{setting}': ...}}" + ("" if setting == name else f": {setting} is meant by {name}")
    if key == "tasks.labels":
        return f"give classes=: it is meant by {name}"
    if table == "tasks" and setting in (*SETTINGS, "kind", "text", "text_b", "test", "validation"):
        return f"give {setting}=: it is meant by {name}"
    return None
