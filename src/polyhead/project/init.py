"""Project files from data: files are grouped into splits, and missing settings are guessed, each with a reason."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from polyhead.data import foreign
from polyhead.data.columns import Columns, no_column
from polyhead.data.guess_columns import Layout, Table, layout_of, table_of
from polyhead.data.guess_kind import SINGLE_LABEL, Guess, kind_of_labels, separator_of
from polyhead.data.rows import Rows, no_rows
from polyhead.data.tables import is_address
from polyhead.errors import BadName, ConfigError, EmptyData, PolyheadError, reworded
from polyhead.files import replace_file
from polyhead.project.declare import Declared, InitOptions, clean_name, declare, no_label
from polyhead.project.file_text import with_task
from polyhead.tasks.kinds import KINDS

DELIMITED = (".csv", ".tsv")
SPLITS = {"train": "train", "training": "train", "validation": "validation", "valid": "validation", "val": "validation"}
SPLITS |= {"dev": "validation", "test": "test"}
SPLIT = re.compile(rf"(?:^|[-_. ])({'|'.join(SPLITS)})(?=$|[-_. ])", re.IGNORECASE)
SHARD = re.compile(r"-[0-9]{5}-of-[0-9]{5}")  # part of a split, as in data sets of hubs
GZIP = re.compile(r"\.gz$", re.IGNORECASE)


class InitTask(InitOptions, kw_only=True):
    """A task of a project file: its options with the guesses, and the facts found in its files."""

    whys: tuple[str, ...] = ()  # the reasons of the guesses
    others: tuple[str, ...] = ()  # other columns that look like labels
    notes: tuple[str, ...] = ()  # about the files
    declared: Declared | None = None
    dropped: tuple[str, ...] = ()  # keys of a replaced task


def guessed(options: InitOptions, table: Table | None = None) -> InitTask:
    """The options with a kind, and columns if none are named; without `table` the data file is read.

    Raises ConfigError if two guesses are equally good, EmptyData if nothing can be guessed.
    """
    named = msgspec.structs.asdict(options)
    if options.kind is not None and options.known_kind.generates:
        return InitTask(**named)
    table = table or table_of(options.data)
    if not table.rows:
        raise no_rows(options.data)
    if options.kind is None and options.label and options.label not in table.values:
        raise no_column(options.data, options.label, list(table.values), by="name it with --label")
    if options.label and options.label in table.values and not table.values[options.label]:
        raise no_label(options.data, options.label)
    layout = layout_of(table, _by_default(options, table), options.kind)
    guess = None if layout.kind else _kind(layout, table, options.data)
    kind = layout.kind or (guess.kind if guess else None)
    if kind is None:
        raise ConfigError(
            f"no column of {options.data} looks like a label",
            got=list(table.values),
            do="name it with --label, and the text with --text; for summaries also --kind",
        )
    question = layout.text or KINDS.named(kind).text_column
    if not (options.text or layout.tokens) and layout.whys and question not in table.values:
        do = "name it with --text, and the label with --label"
        raise ConfigError(f"no column of {options.data} looks like the text", got=list(table.values), do=do)
    whys = [*layout.whys, *([guess.why] if guess else [])]
    separator = layout.separator or (guess.separator if guess else _separator(layout, kind, table))
    if separator and separator != options.separator and not guess:
        whys.append(f"cells hold several labels with '{separator}' between them")
    columns = {name: getattr(layout, name) for name in Columns.__struct_fields__}
    guesses = {"kind": kind, "separator": separator, "whys": tuple(dict.fromkeys(whys)), "others": layout.others}
    return InitTask(**(named | columns | guesses))


def _by_default(options: InitOptions, table: Table) -> InitOptions:
    """For a named kind, the columns that have its default names."""
    if options.kind is None:
        return options
    kind, chosen = options.known_kind, options
    is_free = not options.one_hot and not options.spans and not options.answers and not options.label
    if is_free and options.column in table.values and not kind.labels_words:
        chosen = msgspec.structs.replace(chosen, **{kind.label_key: options.column})
    if not options.tokens and not options.text and options.question in table.values and kind.column_keys == ():
        has_second = options.question == "text" and "text_b" in table.values
        second = options.text_b or ("text_b" if has_second else None)
        chosen = msgspec.structs.replace(chosen, text=options.question, text_b=second)
    return chosen


def _kind(layout: Layout, table: Table, path: str) -> Guess | None:
    if layout.label is None or not table.values.get(layout.label):
        return None
    labels = table.values[layout.label]
    if all(isinstance(label, list) and len(label) == 1 for label in labels):
        return Guess(kind=SINGLE_LABEL, why="each label is a list of one label, which is read as the label")
    if layout.separator:
        kind_of_labels([part.strip() for cell in labels for part in str(cell).split(layout.separator)])
        multi_label = next(kind.name for kind in KINDS.values() if kind.label_is_list and kind.empty_is_none)
        why = f"cells hold labels with '{layout.separator}' between them, as given"
        return Guess(kind=multi_label, why=why, separator=layout.separator)
    try:
        guess = kind_of_labels([row.get(layout.label) for row in table.rows], name=layout.label)
    except (ConfigError, EmptyData) as error:
        raise error.at(f"'{layout.label}' of {path}") from None
    if guess.rivals:
        kinds = [guess.kind, *guess.rivals]
        raise ConfigError(
            f"'{layout.label}' of {path} can be read in {len(kinds)} ways: {guess.why}",
            allowed=" or ".join(f"--kind {kind}" for kind in kinds),
            do="choose one of them",
        )
    return guess


def _separator(layout: Layout, kind: str, table: Table) -> str | None:
    known = KINDS.named(kind)
    if not (known.label_is_list and known.empty_is_none) or layout.one_hot:
        return None
    cells = [value for value in table.values.get(layout.label or "label", ()) if isinstance(value, str)]
    chosen = separator_of(cells) if cells else None
    return chosen[0] if chosen else None


class ProjectDraft:
    """The text of a project file to which tasks are added, and the files of rows written for it."""

    def __init__(self, output: str, text: str, *, replace: bool) -> None:
        self.output, self.text, self.replace = output, text, replace
        self.folder = Path(output).resolve().parent
        self._written: dict[Path, bool] = {}  # whether the file is new

    def add(
        self, groups: Sequence[Mapping[str, Any]], options: Mapping[str, Any], labels: Sequence[str] = ()
    ) -> list[InitTask]:
        """Adds a task for each group of files and each label; rows of exports are written, unless it fails."""
        try:
            return self._added(groups, options, labels)
        except BaseException:
            for path in (path for path, is_new in self._written.items() if is_new):
                path.unlink(missing_ok=True)
            raise

    def _added(
        self, groups: Sequence[Mapping[str, Any]], options: Mapping[str, Any], labels: Sequence[str]
    ) -> list[InitTask]:
        added, places = list[InitTask](), dict[str, str]()
        for group in groups:
            task_options = {
                **group,
                **options,
                **{key: options.get(key) or group[key] for key in ("validation", "test", "name")},
            }
            name, notes, sources = task_options["name"], tuple[str, ...](), dict[str, str]()
            for key in ("data", "validation", "test"):
                if task_options[key]:
                    source = task_options[key]
                    task_options[key], file_notes = self._as_rows(source)
                    sources |= {task_options[key]: source} if task_options[key] != source else {}
                    notes += file_notes
            for label in labels or (None,):
                task_name = clean_name(label) if label and len(labels) > 1 else name
                with _named_as_given(sources):
                    task = guessed(InitOptions(**(task_options | {"label": label, "name": task_name})))
                    is_alone = len(groups) * max(1, len(labels)) == 1
                    if not task.known_kind.empty_is_none and not (is_alone and task.empty == "none"):
                        task = msgspec.structs.replace(task, empty=None)
                    declared = declare(task, self.folder)
                place = f"column '{label}' of {group['data']}" if len(labels) > 1 else group["data"]
                _check_new(declared.entry["name"], place, places)
                self.text, dropped = with_task(self.text, declared.entry, self.output, replace=self.replace)
                others = tuple(other for other in task.others if other not in labels)
                facts = {"declared": declared, "dropped": dropped, "others": others, "notes": notes}
                added.append(msgspec.structs.replace(task, **facts))
        _check_used(options, [task.declared.entry for task in added if task.declared])
        if options.get("empty") and all(task.empty is None for task in added):
            raise ConfigError(
                "no task has several labels, so an empty cell cannot say that none of them applies",
                got=f"--empty {options['empty']}",
                do="leave --empty out: rows without a label are skipped",
            )
        return added

    def _as_rows(self, path: str) -> tuple[str, tuple[str, ...]]:
        """The file to read instead of `path`, and notes about it.

        A table without a header is rewritten as JSON Lines next to the project file, one in another encoding as UTF-8.
        Raises ConfigError if another file of that name exists and `replace` is not given.
        """
        if is_address(path):
            return path, ()
        if path.lower().endswith(DELIMITED) and (table := foreign.recoded(path)) is not None:
            target = self.folder / f"{Path(path).stem}.utf8{Path(path).suffix}"
            self._write_rows(table.content, target, path)
            letters = f"; check its letters: {' '.join(table.letters)}" if table.letters else ""
            return str(target), (f"{path} is Windows-1252: training reads {target.name}, in UTF-8{letters}",)
        is_table = path.lower().removesuffix(".gz").endswith((*DELIMITED, ".xlsx"))
        rows = foreign.without_header(path) if is_table else None
        if rows is None:
            return path, _notes_of(path)
        target = self.folder / f"{Path(path).name.split('.')[0]}.rows.jsonl"
        self._write_rows(foreign.as_lines(rows), target, path)
        note = f"{path} is a headerless table: its rows are in {target.name}, which training reads"
        return str(target), (note, f"its columns are called {', '.join(rows[0])}")

    def _write_rows(self, raw: bytes, target: Path, path: str) -> None:
        was_there = target.exists()
        is_other = was_there and target.read_bytes() != raw
        is_kept = target in self._written or (was_there and target.samefile(path))
        if is_other and (is_kept or not self.replace):
            do = "give that file another name" if is_kept else "move that file away, or add --replace"
            raise ConfigError(f"cannot write the rows of {path}", got=f"{target.name} is there already", do=do)
        self._written.setdefault(target, not was_there)
        if is_other or not was_there:
            replace_file(target, raw)


def _check_used(options: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> None:
    """Raises ConfigError for an option about pairs or labelled spans where no task has them."""
    needs = (("pair", "is over pairs of texts", "--text-b"), ("overlaps", "has labelled spans", "--spans"))
    for key, what, option in needs:
        if options.get(key) and not any(key in entry for entry in entries):
            raise ConfigError(
                f"no task {what}, so --{key} would change nothing",
                got=f"--{key} {options[key]}",
                do=f"name their column with {option}, or leave --{key} out",
            )


def _check_new(name: str, place: str, places: dict[str, str]) -> None:
    """Records where a task comes from; raises BadName where one from another place got the same name in this call."""
    other = places.get(name.casefold())
    places[name.casefold()] = place
    if other == place:
        raise BadName(f"{place} is given twice", got=name, do="give each file and each --label once")
    if other is not None:
        raise BadName(
            f"{other} and {place} would be tasks of one name",
            got=name,
            do="run init once for each, with --task; name the rows of a test split with --test",
        )


def _notes_of(path: str) -> tuple[str, ...]:
    """Decisions of a format of annotated texts about the file's records; empty for plain rows."""
    rows = Rows(path)
    records = rows.each()
    if next(records, None) is None or rows.form is None:
        return ()
    for _ in records:
        pass
    counts = {decision: count for decision, count in rows.form.counts.items() if count}
    return (f"{path} is read as {rows.form.name}", *(f"{decision}: {count:,}" for decision, count in counts.items()))


@contextmanager
def _named_as_given(sources: Mapping[str, str]) -> Iterator[None]:
    """A context in which errors name the user's files, not the temporary ones written for them."""

    def change(words: str) -> str:
        for target, source in sources.items():
            words = words.replace(target, source).replace(Path(target).name, Path(source).name)
        return words

    try:
        yield
    except PolyheadError as error:
        raise reworded(error, change) if sources else error from None


def split_groups(data: Sequence[str]) -> list[dict[str, Any]]:
    """Each file as a task, with the files named as its validation or test split.

    A task with splits is named after its files, without the name of the split, or after their folder. Raises
    ConfigError for two files of the same split.
    """
    groups: dict[tuple[Path, str], dict[str, Any]] = {}
    single_files: list[str] = []
    for path in data:
        file_name = SHARD.sub("", Path(path).name)
        part = SPLIT.search(file_name)
        if len(data) == 1 or is_address(path) or part is None:
            single_files.append(path)
            continue
        split, rest = SPLITS[part[1].lower()], file_name[: part.start()] + file_name[part.end() :]
        group = groups.setdefault((Path(path).parent, rest), {})
        if split in group:
            message = f"{group[split]} and {path} are both called the {split} split of one task"
            raise ConfigError(message, do="join such files to one")
        group[split] = path
    whole = []
    for (_, rest), group in groups.items():
        if "train" in group:
            parts = GZIP.sub("", rest).split(".")
            first = next(filter(None, parts[:-1] or parts), Path(group["train"]).resolve().parent.name)
            splits = {"validation": group.get("validation"), "test": group.get("test")}
            whole.append({"name": clean_name(first), "data": group["train"], **splits})
        else:
            single_files += group.values()
    return whole + [{"name": None, "data": path, "validation": None, "test": None} for path in single_files]
