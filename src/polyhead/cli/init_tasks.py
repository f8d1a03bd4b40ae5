"""What `polyhead init` prints of the tasks that it wrote: what was guessed and found, and what to run next."""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from polyhead.check.label import alike
from polyhead.cli.output import counted
from polyhead.cli.sources import looks_like_a_path
from polyhead.data.read import read
from polyhead.data.rows import Rows
from polyhead.errors import EmptyData, PolyheadError
from polyhead.progress import short
from polyhead.project.encoders import ENCODERS, LARGER, MINILM, OTHER_LANGUAGES, unread_line
from polyhead.project.init import InitTask, ProjectDraft
from polyhead.project.pretrained import tokenizer_at_hand
from polyhead.project.recipes import Frozen
from polyhead.project.strategies import Pooled
from polyhead.project.tables import Project, TaskEntry
from polyhead.tasks.kinds import KINDS
from polyhead.tasks.kinds.base import other_spelling
from polyhead.text.question import Question, TaskInput, texts_of
from polyhead.values import to_value

SHOWN, WIDTH = 3, 72  # rows, and characters of a text
NAMES_OF_NOTHING = ("nan", "null", "<na>", "nat", "na", "n/a", "\\n")  # how programs write a missing value
SHORT = 60  # characters of the text to ask
LOOKED_AT = 100  # rows, of which the first that can be used are shown


def summary(tasks: Sequence[InitTask], draft: ProjectDraft) -> list[str]:
    """What was guessed and found, three rows of each task as it reads them, and the next commands."""
    output, lines, first, inputs = draft.output, list[str](), "", dict[str, Sequence[TaskInput]]()
    project = to_value(tomllib.loads(draft.text), Project, source=output)
    for task in tasks:
        assert task.declared is not None
        (entry,) = [e for e in project.tasks if e.name == task.declared.entry["name"]]
        shown, read_inputs = _rows(entry, draft.folder)
        first = first or _example(entry, read_inputs)
        inputs[entry.name] = read_inputs
        lines += [*_lines(task, output), *shown]
    has_test = all(entry.test for entry in project.tasks)
    bundle = shlex.quote(str(Path(output).parent / project.bundle))
    config = shlex.quote(output)
    return [
        *lines,
        *_plan(project, inputs, draft.folder),
        "next:",
        f"  polyhead check {config}",
        f"  polyhead train {config}",
        f"  polyhead evaluate {config}" + ("" if has_test else " --split validation"),
        f"  polyhead predict {bundle} {_quoted(first)}",
    ]


def _plan(project: Project, inputs: Mapping[str, Sequence[TaskInput]], folder: Path) -> list[str]:
    """What training will do where the file says nothing of its own, and what other encoders cost and bring."""
    heads = [entry for entry in project.tasks if not entry.known_kind.generates]
    if not (heads and inputs) or not isinstance(project.recipe, Frozen) or not isinstance(project.strategy, Pooled):
        return []
    name, place = project.trunk.name, project.trunk.place(folder)
    lines = [f"train learns a small head for each task over the encoder '{name}', which stays as it is"]
    with suppress(PolyheadError):  # of a broken file, which training refuses
        content = tokenizer_at_hand(place)
        if content is not None and (unread := unread_line(inputs, content, name)):
            return [*lines, unread, f"--trunk {ENCODERS[OTHER_LANGUAGES].line}"]
    if name == MINILM:
        return [*lines, f"instead of it, --trunk {ENCODERS[LARGER].line}"]
    return [*lines, *(f"beside {MINILM}, {each.line}" for each in ENCODERS.values() if each.name == name)]


def _rows(entry: TaskEntry, folder: Path) -> tuple[list[str], Sequence[TaskInput]]:
    """Lines with the first rows of train as the task reads them, and its first inputs."""
    assert isinstance(entry.train, str)
    source = entry.source(entry.train, folder)
    try:
        examples = read(msgspec.structs.replace(source, limit=LOOKED_AT), entry.task())
    except EmptyData:  # the first usable row comes later
        examples = read(source, entry.task())
    values: dict[int, str] = dict.fromkeys(examples.rows[:SHOWN], "")
    column = entry.tags or entry.spans or entry.answers or entry.label or entry.known_kind.label_key
    for row in Rows(source.path, [column, entry.known_kind.label_key, *entry.one_hot]):
        if row.number in values:
            values[row.number] = _label(entry, row.values, column)
        if all(values.values()):
            break
    lines = ["the first rows, as the task reads them:"]
    for label, item in zip(values.values(), examples.inputs, strict=False):
        shown = filter(None, (item.text, item.context)) if isinstance(item, Question) else texts_of(item)
        texts = " | ".join(short(text, WIDTH) for text in shown)
        options = (
            f" [{' / '.join(short(option, WIDTH) for option in item.options)}]" if isinstance(item, Question) else ""
        )
        lines.append(f"  {texts}{options} -> {label}")
    return lines, examples.inputs


def _label(entry: TaskEntry, values: Mapping[str, object], column: str) -> str:
    if entry.one_hot:
        ones = [name for name in entry.one_hot if str(values.get(name)).strip().lower() in ("1", "1.0", "true")]
        return ", ".join(ones) or "(none)"
    value = values.get(column, values.get(entry.known_kind.label_key))
    if isinstance(value, str) and value not in entry.labels and other_spelling(value, entry.labels) in entry.labels:
        return other_spelling(value, entry.labels)
    if isinstance(value, str) and entry.separator:
        value = [part.strip() for part in value.split(entry.separator) if part.strip()]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return short(", ".join(value), WIDTH) or "(none)"
    plain = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return short(plain, WIDTH) or "(none)"


def _example(entry: TaskEntry, inputs: Sequence[Any]) -> str:
    """The first short input, else the beginning of one, as an argument: JSON, or one plain text as it stands.

    A plain text names no file and no option.
    """
    lengths = [sum(map(len, texts_of(item))) for item in inputs]
    item = next((item for item, length in zip(inputs, lengths, strict=True) if length <= SHORT), inputs[0])
    if isinstance(item, Question):
        options = list(map(_beginning, item.options))
        fields: dict[str, object] = {"question": _beginning(item.text), "options": options}
        return json.dumps(fields | ({"context": _beginning(item.context)} if item.context else {}), ensure_ascii=False)
    first, *second = map(_beginning, texts_of(item))
    if second:
        keys = ("question", "context") if entry.known_kind.context_column else ("text", "text_b")
        return json.dumps(dict(zip(keys, (first, second[0]), strict=True)), ensure_ascii=False)
    is_plain = first.isprintable() and first.lstrip()[:1] not in ("{", '"', "-")
    is_file = looks_like_a_path(first) or os.path.exists(first)
    return first if is_plain and not is_file else json.dumps({"text": first})


def _beginning(text: str) -> str:
    """The text, cut at a space where it is long."""
    return text if len(text) <= SHORT else text[:SHORT].rpartition(" ")[0] or text[:SHORT]


def _quoted(text: str) -> str:
    """As one word of a shell: between double quotes where nothing in it means something there."""
    return shlex.quote(text) if re.search(r'["$`\\!]', text) else f'"{text}"'


def _lines(task: InitTask, output: str) -> list[str]:
    assert task.declared is not None
    declared, entry = task.declared, task.declared.entry
    lines = [*task.notes, f"{output}: task '{entry['name']}' ({entry['kind']})"]
    lines += [f"guessed: {why}" for why in task.whys]
    for split, report in declared.reports.items():
        counts = [counted(report.rows, "row"), f"{report.used:,} used", *report.notes()]
        lines.append(f"{split}: {', '.join(counts)}")
    if task.dropped:
        lines.append(
            f"the task that was there is replaced; it had keys that this one has not: {', '.join(task.dropped)}"
        )
    if others := task.others:
        options = " ".join(f"--label {shlex.quote(name)}" for name in others)
        lines.append(
            f"other columns look like labels: {', '.join(others)}; to add a task of each, run init with {options}"
        )
    elif "validation" not in entry:
        folds = "" if KINDS[entry["kind"]].generates else "; below 1,000 rows five folds"
        lines.append(f"validation: a tenth of train is held out{folds}")
    if entry.get("empty") == "none":
        lines.append(
            'empty: a cell without text says that none of the labels applies; write empty = "skip" if it says that '
            "nobody labelled the row"
        )
    if entry.get("null_answers"):
        lines.append("null_answers: some rows have no answer, so the task may answer that there is none")
    if "range" in entry:
        lines.append(f"range: {entry['range'][0]:g} to {entry['range'][1]:g}, as found; widen it if more can occur")
    if declared.counts:
        subject = "spans (B- and I- tags)" if "spans" in entry else "labels"
        lines.append(f"{subject}, and how often train has them; check that none is misspelt, missing or rare:")
        shown = {label if label == label.strip() else repr(label): n for label, n in declared.counts.items()}
        width = max(map(len, shown))
        lines += [f"  {label:<{width}}  {count:>7,}" for label, count in shown.items()]
        if empty := [label for label in declared.counts if label.strip().lower() in NAMES_OF_NOTHING]:
            names = " and ".join(map(repr, empty))
            lines.append(f"labels that may say that a row has none: {names}; if they do, clear those cells")
        labels = list(declared.counts)
        for group in alike(labels):
            names = " and ".join(repr(labels[index]) for index in group)
            lines.append(f"labels that differ in case or spaces alone: {names}; write each label in one way")
    if declared.unseen:
        lines.append(f"not in train, so it cannot be learned: {', '.join(declared.unseen)}")
    return lines
