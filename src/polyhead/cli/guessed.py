"""What `polyhead init` takes a file to be: options that were not given are guessed, and each guess has its reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from polyhead.cli.output import writing
from polyhead.data import foreign
from polyhead.data.columns import no_column
from polyhead.data.guess import SINGLE_LABEL, Guess, kind_of_labels, separator_of
from polyhead.data.guess_table import Given, Layout, Table, labels_in, layout_of, table_of
from polyhead.data.rows import Rows, no_rows
from polyhead.data.tables import is_address
from polyhead.errors import ConfigError
from polyhead.project.declare import InitOptions
from polyhead.tasks.kinds import KINDS
from polyhead.values import Value

TABLES = (".csv", ".tsv")
KEYS = ("text", "text_b", "label", "tokens", "spans", "choices", "answers")


class Guessed(Value):
    """The options of a task, each guess with its reason, and other columns that look like labels."""

    options: InitOptions
    whys: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def guessed(asked: dict[str, Any], table: Table | None = None) -> Guessed:
    """Options with a kind and columns from the first of `asked` that are None; `table` is read where there is none.

    Raises ConfigError where two guesses are equally good, EmptyData where nothing can be guessed.
    """
    kind = asked["kind"]
    if kind is not None and KINDS.named(kind).owns_model:
        return Guessed(options=InitOptions(**asked))
    table = table or table_of(asked["data"])
    if not table.rows:
        raise no_rows(asked["data"])
    if kind is None and asked["label"] and asked["label"] not in table.values:
        raise no_column(asked["data"], asked["label"], list(table.values), by="Name it with --label")
    given = Given(**{key: asked[key] for key in (*KEYS, "kind", "one_hot")})
    layout = layout_of(table, _by_default(given, table, asked))
    guess = None if layout.kind else _kind(layout, table, asked)
    values = asked | {key: getattr(layout, key) for key in (*KEYS, "one_hot")}
    values["kind"] = layout.kind or (guess.kind if guess else None)
    if values["kind"] is None:
        raise ConfigError(
            f"no column of {asked['data']} looks like a label",
            got=list(table.values),
            do="name it with --label, and the text with --text; for summaries also --kind and --model",
        )
    question = asked["text"] or layout.text or KINDS.named(values["kind"]).text_column
    if not (asked["text"] or layout.tokens) and layout.whys and question not in table.values:
        do = "name it with --text, and the label with --label"
        raise ConfigError(f"no column of {asked['data']} looks like the text", got=list(table.values), do=do)
    whys = [*layout.whys, *([guess.why] if guess else [])]
    if values["separator"] is None:
        values["separator"] = guess.separator if guess else _separator(values, table)
    if values["separator"] and values["separator"] != asked["separator"] and not guess:
        whys.append(f"cells hold several labels with '{values['separator']}' between them")
    return Guessed(options=InitOptions(**values), whys=tuple(dict.fromkeys(whys)), others=layout.others)


def _by_default(given: Given, table: Table, asked: dict[str, Any]) -> Given:
    """Of a kind that was named, the columns that have the names it looks for."""
    if given.kind is None:
        return given
    plain = InitOptions(**{**asked, "one_hot": ()})
    is_free = not given.one_hot and not given.spans and not given.answers and not given.label
    if is_free and plain.column in table.values and not plain.known_kind.labels_words:
        given = msgspec.structs.replace(given, **{plain.known_kind.label_key: plain.column})
    if not given.tokens and not given.text and plain.question in table.values and plain.known_kind.column_keys == ():
        has_second = plain.question == "text" and "text_b" in table.values
        second = given.text_b or ("text_b" if has_second else None)
        given = msgspec.structs.replace(given, text=plain.question, text_b=second)
    return given


def _kind(layout: Layout, table: Table, asked: dict[str, Any]) -> Guess | None:
    if layout.label is None or not table.values.get(layout.label):
        return None
    labels = labels_in(table, layout.label)
    if all(isinstance(label, list) and len(label) == 1 for label in labels):
        return Guess(kind=SINGLE_LABEL, why="each label is a list of one label, which is read as the label")
    if asked["separator"]:
        guess = kind_of_labels([part.strip() for cell in labels for part in str(cell).split(asked["separator"])])
        why = f"cells hold labels with '{asked['separator']}' between them, as given"
        return msgspec.structs.replace(guess, kind=_several(), why=why, separator=asked["separator"], rivals=())
    try:
        guess = kind_of_labels([row.get(layout.label) for row in table.rows], name=layout.label)
    except ConfigError as error:
        raise error.at(f"'{layout.label}' of {asked['data']}") from None
    if guess.rivals:
        kinds = [guess.kind, *guess.rivals]
        raise ConfigError(
            f"'{layout.label}' of {asked['data']} can be read in {len(kinds)} ways: {guess.why}",
            allowed=" or ".join(f"--kind {kind}" for kind in kinds),
            do="choose one of them",
        )
    return guess


def _several() -> str:
    """The kind whose labels are lists in one cell."""
    return next(kind.name for kind in KINDS.values() if kind.label_is_list and kind.empty_is_none)


def _separator(values: dict[str, Any], table: Table) -> str | None:
    kind = KINDS.named(values["kind"])
    if not (kind.label_is_list and kind.empty_is_none) or values["one_hot"]:
        return None
    cells = [value for value in labels_in(table, values["label"] or "label") if isinstance(value, str)]
    chosen = separator_of(cells) if cells else None
    return chosen[0] if chosen else None


def as_rows(path: str, folder: Path, written: dict[Path, bool], *, replace: bool) -> tuple[str, tuple[str, ...]]:
    """The file to read in place of `path`, and what to say of it.

    A table without a header is written as JSON Lines into `folder`, one that is not UTF-8 as one that is. `written`
    gets the file, and whether it was not there before; what is in it already is not written over.

    Raises ConfigError if another file of that name is there and `replace` is not given.
    """
    if is_address(path):
        return path, ()
    if path.lower().endswith(TABLES) and (table := foreign.recoded(path)) is not None:
        target = folder / f"{Path(path).stem}.utf8{Path(path).suffix}"
        _write(table.content, target, path, written, replace=replace)
        letters = f"; check its letters: {' '.join(table.letters)}" if table.letters else ""
        return str(target), (f"{path} is {table.encoding}: training reads {target.name}, in UTF-8{letters}",)
    is_table = path.lower().removesuffix(".gz").endswith((*TABLES, ".xlsx"))
    rows = foreign.without_header(path) if is_table else None
    if rows is None:
        return path, _said_of(path)
    target = folder / f"{Path(path).name.split('.')[0]}.rows.jsonl"
    _write(foreign.as_lines(rows), target, path, written, replace=replace)
    said = f"{path} is a headerless table: its rows are in {target.name}, which training reads"
    return str(target), (said, f"its columns are called {', '.join(rows[0])}")


def _said_of(path: str) -> tuple[str, ...]:
    """What a format of annotated texts decided about the file's records; nothing of plain rows."""
    rows = Rows(path, ())
    if next(rows.each(), None) is None or rows.form is None:
        return ()
    rows = Rows(path, ())
    for _ in rows.each():
        pass
    assert rows.form is not None
    counts = {what: count for what, count in rows.form.counts.items() if count}
    return (f"{path} is read as {rows.form.name}", *(f"{what}: {count:,}" for what, count in counts.items()))


def _write(raw: bytes, target: Path, path: str, written: dict[Path, bool], *, replace: bool) -> None:
    was_there = target.exists()
    is_other = was_there and target.read_bytes() != raw
    is_kept = target in written or (was_there and target.samefile(path))
    if is_other and (is_kept or not replace):
        do = "give that file another name" if is_kept else "move that file away, or add --replace"
        raise ConfigError(f"cannot write the rows of {path}", got=f"{target.name} is there already", do=do)
    written.setdefault(target, not was_there)
    if is_other or not was_there:
        with writing(str(target)) as file:
            file.write(raw)
