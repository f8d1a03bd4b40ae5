"""The tasks of one `polyhead init`: which files belong together, what is said of each, and what to run next."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from polyhead.check.label import alike
from polyhead.cli.given import looks_like_a_path
from polyhead.cli.guessed import Guessed, as_rows, guessed
from polyhead.cli.output import counted
from polyhead.cli.project_text import with_task
from polyhead.data.columns import Source
from polyhead.data.read import read
from polyhead.data.rows import Rows
from polyhead.data.tables import is_address
from polyhead.errors import ConfigError, EmptyData, PolyheadError, reworded
from polyhead.project.declare import Declared, clean_name, declare
from polyhead.project.recipes import Frozen
from polyhead.project.strategies import Pooled
from polyhead.project.tables import Project, TaskEntry
from polyhead.tasks.kinds import KINDS
from polyhead.tasks.kinds.base import other_spelling
from polyhead.text.question import Question, texts_of
from polyhead.values import Value

SPLITS = {"train": "train", "training": "train", "validation": "validation", "valid": "validation", "val": "validation"}
SPLITS |= {"dev": "validation", "test": "test"}
SPLIT = re.compile(rf"(?:^|[-_. ])({'|'.join(SPLITS)})(?=$|[-_. ])", re.IGNORECASE)
SHARD = re.compile(r"-[0-9]{5}-of-[0-9]{5}")  # part of a split, as data sets of hubs are stored
SHOWN, WIDTH = 3, 72  # rows, and characters of a text
NAMES_OF_NOTHING = ("nan", "null", "<na>", "nat", "na", "n/a", "\\n")  # how programs write a missing value
SHORT = 60  # characters of the text to ask
LOOKED_AT = 100  # rows, of which the first that can be used are shown


class Made(Value):
    """A task, how it was guessed and what was said of its files, and keys of a replaced task that were dropped."""

    guessed: Guessed
    declared: Declared
    notes: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


def declared_tasks(
    data: Sequence[str], options: dict[str, Any], before: str, output: str, *, replace: bool
) -> tuple[str, list[Made]]:
    """The project file's text with every task, and the tasks; of exports the rows are written, unless it fails."""
    written: dict[Path, bool] = {}
    try:
        return _declared(data, options, before, output, written, replace=replace)
    except BaseException:
        for path in (path for path, is_new in written.items() if is_new):
            path.unlink(missing_ok=True)
        raise


@contextmanager
def _named_as_given(sources: dict[str, str]) -> Iterator[None]:
    """Errors name the user's files in place of those that were written for them, which will be gone."""

    def change(words: str) -> str:
        for target, source in sources.items():
            words = words.replace(target, source).replace(Path(target).name, Path(source).name)
        return words

    try:
        yield
    except PolyheadError as error:
        raise reworded(error, change) if sources else error from None


def _declared(
    data: Sequence[str], options: dict[str, Any], before: str, output: str, written: dict[Path, bool], *, replace: bool
) -> tuple[str, list[Made]]:
    folder, made, after = Path(output).resolve().parent, list[Made](), before
    groups = split_groups(data)
    if len(groups) > 1 and (options["name"] or options["validation"] or options["test"]):
        raise click.UsageError("--task, --validation and --test go with one task; run init once for each DATA")
    for files in groups:
        labels = options["labels"] or (None,)
        own_name = task_name_of(files)
        asked = {key: value for key, value in options.items() if key != "labels"} | files
        asked |= {key: options[key] for key in ("validation", "test") if options[key]}
        notes, sources = tuple[str, ...](), dict[str, str]()
        name = asked["name"] or own_name
        for key in ("data", "validation", "test"):
            if asked[key]:
                source = asked[key]
                asked[key], said = as_rows(source, folder, written, replace=replace)
                sources |= {asked[key]: source} if asked[key] != source else {}
                notes += said
        for label in labels:
            own = clean_name(label) if label and len(labels) > 1 else name
            with _named_as_given(sources):
                guess = guessed(asked | {"label": label, "name": own})
                if len(groups) * len(labels) > 1 and not guess.options.known_kind.empty_is_none:
                    guess = msgspec.structs.replace(guess, options=msgspec.structs.replace(guess.options, empty=None))
                declared = declare(guess.options, folder)
            after, dropped = with_task(after, declared.entry, output, replace=replace)
            others = tuple(other for other in guess.others if other not in labels)
            guess = Guessed(options=guess.options, whys=guess.whys, others=others)
            made.append(Made(guessed=guess, declared=declared, notes=notes, dropped=dropped))
    if options["empty"] and all(task.guessed.options.empty is None for task in made):
        raise ConfigError(
            "no task has several labels, so an empty cell cannot say that none of them applies",
            got=f"--empty {options['empty']}",
            do="leave --empty out: rows without a label are skipped",
        )
    return after, made


def split_groups(data: Sequence[str]) -> list[dict[str, Any]]:
    """Each file as a task, with files beside it that are called its validation or test split."""
    groups: dict[tuple[Path, str, str], dict[str, Any]] = {}
    alone: list[dict[str, Any]] = []
    for path in data:
        stem, _, ending = Path(path).name.partition(".")
        stem = SHARD.sub("", stem)
        part = SPLIT.search(stem)
        if len(data) == 1 or is_address(path) or part is None:
            alone.append({"data": path, "validation": None, "test": None})
            continue
        split, rest = SPLITS[part[1].lower()], stem[: part.start()] + stem[part.end() :]
        group = groups.setdefault((Path(path).parent, rest, ending), {})
        if split in group:
            raise click.UsageError(
                f"{group[split]} and {path} are both called the {split} split of one task; join such files to one"
            )
        group[split] = path
    whole = []
    for (_, rest, _), group in groups.items():
        if "train" in group:
            whole.append({"data": group["train"], "validation": group.get("validation"), "test": group.get("test")})
            whole[-1] |= {"stem": rest}
        else:
            alone += [{"data": path, "validation": None, "test": None} for path in group.values()]
    return [*whole, *alone]


def task_name_of(files: dict[str, Any]) -> str | None:
    """The name of splits without the name of the split, or of their folder; None: that of the one file."""
    stem = files.pop("stem", None)
    if stem is None:
        return None
    return clean_name(stem or Path(files["data"]).resolve().parent.name)


def summary(made: Sequence[Made], after: str, output: str) -> list[str]:
    """What was guessed and found, three rows of each task as it reads them, and the next commands."""
    import tomllib

    from polyhead.values import to_value

    project = to_value(tomllib.loads(after), Project, source=output)
    folder, lines, first = Path(output).resolve().parent, list[str](), ""
    for task in made:
        (entry,) = [e for e in project.tasks if e.name == task.declared.entry["name"]]
        shown, example = _rows(entry, folder)
        first = first or example
        lines += [*_lines(task, output), *shown]
    has_test = all(entry.test for entry in project.tasks)
    bundle = shlex.quote(str(Path(output).parent / project.bundle))
    config = shlex.quote(output)
    return [
        *lines,
        *_plan(project),
        "next:",
        f"  polyhead check {config}",
        f"  polyhead train {config}",
        f"  polyhead evaluate {config}" + ("" if has_test else " --split validation"),
        f"  polyhead predict {bundle} {_quoted(first)}",
    ]


def _plan(project: Project) -> list[str]:
    """What training will do, where the file says nothing of its own."""
    shares = [entry for entry in project.tasks if not entry.known_kind.owns_model]
    if not shares or not isinstance(project.recipe, Frozen) or not isinstance(project.strategy, Pooled):
        return []
    return [f"train learns a small head for each task over the encoder '{project.trunk.name}', which stays as it is"]


def _rows(entry: TaskEntry, folder: Path) -> tuple[list[str], str]:
    """The first rows of train as the task reads them, and the first input as an argument that `predict` takes."""
    assert isinstance(entry.train, str)
    source: Source = entry.source(entry.train, folder)
    try:
        examples = read(msgspec.structs.replace(source, limit=LOOKED_AT), entry.task())
    except EmptyData:  # the first usable row comes later
        examples = read(source, entry.task())
    numbers = examples.rows[:SHOWN]
    columns = [entry.label, entry.tags, entry.spans, entry.answers, *_soft(entry)]
    wanted = [name for name in columns if name] + ([entry.known_kind.label_key] if not entry.answers else [])
    values: dict[int, str] = {}
    for row in Rows(source.path, wanted):
        if row.number in numbers:
            values[row.number] = _label(entry, row.values)
        if len(values) == len(numbers):
            break
    lines = ["the first rows, as the task reads them:"]
    for number, item in zip(numbers, examples.inputs, strict=False):
        texts = " | ".join(_short(text) for text in texts_of(item))
        options = f" [{' / '.join(map(_short, item.options))}]" if isinstance(item, Question) else ""
        lines.append(f"  {texts}{options} -> {values.get(number, '')}")
    return lines, _example(entry, examples.inputs)


def _soft(entry: TaskEntry) -> tuple[str, ...]:
    return entry.soft if isinstance(entry.soft, tuple) else ()


def _label(entry: TaskEntry, values: Any) -> str:
    if names := _soft(entry):
        ones = [name for name in names if str(values.get(name)).strip().lower() in ("1", "1.0", "true")]
        return ", ".join(ones) or "(none)"
    column = (
        entry.tags or entry.spans or entry.answers or (entry.known_kind.label_key if not entry.label else entry.label)
    )
    value = values.get(column, values.get(entry.known_kind.label_key))
    if isinstance(value, str) and value not in entry.labels and other_spelling(value) in entry.labels:
        return other_spelling(value)
    if isinstance(value, str) and entry.separator:
        value = [part.strip() for part in value.split(entry.separator) if part.strip()]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return _short(", ".join(value)) or "(none)"
    return _short(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)) or "(none)"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= WIDTH else line[: WIDTH - 3] + "..."


def _example(entry: TaskEntry, inputs: Sequence[Any]) -> str:
    """The first short input, else the beginning of one, as an argument: JSON, or one plain text as it stands.

    A plain text names no file and no option.
    """
    lengths = [sum(map(len, [*texts_of(item), *getattr(item, "options", ())])) for item in inputs]
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


def _lines(task: Made, output: str) -> list[str]:
    declared, entry = task.declared, task.declared.entry
    lines = [*task.notes, f"{output}: task '{entry['name']}' ({entry['kind']})"]
    lines += [f"guessed: {why}" for why in task.guessed.whys]
    for split, report in declared.reports.items():
        counts = [counted(report.rows, "row"), f"{report.used:,} used", *report.notes()]
        lines.append(f"{split}: {', '.join(counts)}")
    if task.dropped:
        lines.append(
            f"the task that was there is replaced; it had keys that this one has not: {', '.join(task.dropped)}"
        )
    if others := task.guessed.others:
        several = " ".join(f"--label {shlex.quote(name)}" for name in others)
        lines.append(
            f"other columns look like labels: {', '.join(others)}; to add a task of each, run init with {several}"
        )
    if declared.lacks:
        lines.append(f"not enough to train on yet: {declared.lacks}")
    elif "validation" not in entry:
        folds = "" if KINDS[entry["kind"]].owns_model else "; below 1,000 rows five folds"
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
        what = "spans (B- and I- tags)" if "spans" in entry else "labels"
        lines.append(f"{what}, and how often train has them; check that none is misspelt, missing or rare:")
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
