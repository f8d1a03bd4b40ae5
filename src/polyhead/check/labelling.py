"""Labels that a person gives, one text after the other: a file of JSON lines that grows with each answer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from polyhead.data.rows import Rows
from polyhead.errors import BadValue, MissingColumn, UnknownLabel
from polyhead.values import Value


class Text(Value):
    """One text of a file, and the label that stands beside it there."""

    row: int
    text: str
    label: str | None = None


def rows_with_text(path: str, text: str, label: str | None) -> list[Text]:
    """The rows of a file that have a text; raises MissingColumn, and what `Rows` raises."""
    rows, several = Rows(path, [text] + ([label] if label else [])), list[Text]()
    for row in rows:
        value, given = row.values.get(text), row.values.get(label) if label else None
        if isinstance(value, str) and value.strip():
            name = str(given).strip() if given is not None else ""
            several.append(Text(row=row.number, text=value, label=name or None))
    for column in (text, label):
        if column and column not in rows.columns:
            raise MissingColumn(f"{path} has no column '{column}'", allowed=list(rows.columns), do="name another one")
    return several


def answers_in(path: str, texts: Mapping[int, str], labels: Iterable[str]) -> Iterator[tuple[int, str]]:
    """(row, label) of a file with columns row, text and label; rows without a label are passed over.

    Raises UnknownLabel for a label that is none of these, BadValue for a row that the texts do not have.
    """
    known = set(labels)
    for row in Rows(path, ("row", "text", "label")):
        number, label = row.values.get("row"), row.values.get("label")
        if label is None or not str(label).strip():
            continue
        where = f"{path} row {row.number}"
        if not str(number).isdigit() or texts.get(int(str(number))) != row.values.get("text"):
            what = f"{where}: the texts have no such row"
            raise BadValue(what, got=number, do="label the file that --ask wrote of the same texts")
        name = str(label).strip()
        if name not in known:
            raise UnknownLabel(
                f"{where}: the label is not one of --labels", got=name, allowed=sorted(known), label=name
            )
        yield int(str(number)), name


class LabelFile:
    """A file of {row, text, label} that is there after each answer; an answer of a row replaces an earlier one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, texts: Mapping[int, str], labels: Iterable[str]) -> dict[int, str]:
        """The labels so far, by row; a line that a kill cut short is passed over and removed."""
        if not self.path.exists():
            return {}
        raw = self.path.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]
        if len(whole) < len(raw):
            with self.path.open("rb+") as file:
                file.truncate(len(whole))
        return dict(answers_in(str(self.path), texts, labels))

    def add(self, row: int, text: str, label: str) -> None:
        """Writes one answer through to the disk."""
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode({"row": row, "text": text, "label": label}) + b"\n")
            file.flush()
            os.fsync(file.fileno())
