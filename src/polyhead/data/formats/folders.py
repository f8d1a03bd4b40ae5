"""Folders as data: one folder of texts per class, or brat's texts, each with a file of annotations."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from polyhead.data.formats.base import FileFormat, Numbered
from polyhead.data.formats.lines import bad_row
from polyhead.data.formats.offsets import Places
from polyhead.errors import BadValue, DataError
from polyhead.files import open_plain
from polyhead.text.prefix import LONGEST_TEXT

NOTES = ".ann"
SPAN = re.compile(r"T\S*\t(\S+) ([\d; ]+)\t(.*)")
NO_CLASSES = ("unsup", "unlabelled", "unlabeled")  # folders whose name is not a class


class Brat(FileFormat):
    """One row per text, by name; a text without a file of annotations has no label."""

    name = "brat"

    @classmethod
    def knows(cls, path: str, head: bytes) -> bool:
        """True for a folder that holds a file of annotations."""
        return os.path.isdir(path) and any(name.endswith(NOTES) for name in os.listdir(path))

    def rows(self, path: str) -> Numbered:
        """`text`, `spans`, and `file`; relations, events, attributes and folders are left out and counted."""
        names = [name for name in os.listdir(path) if not name.startswith(".")]
        self.counts["folders inside the folder, left out"] += sum(os.path.isdir(os.path.join(path, n)) for n in names)
        without_text = {name.removesuffix(NOTES) for name in names if name.endswith(NOTES)}
        without_text -= {name.removesuffix(".txt") for name in names if name.endswith(".txt")}
        self.counts["files of annotations without a text, left out"] += len(without_text)
        for number, file in enumerate((each for each in _files(Path(path)) if each.suffix == ".txt"), start=1):
            text = _text(file, path, number)
            if isinstance(text, BadValue):
                yield text
                continue
            try:
                notes = file.with_suffix(NOTES)
                spans = self._spans(notes, text) if notes.is_file() else None
                yield number, {"text": text, "spans": spans, "file": file.name}
            except BadValue as error:
                yield error.at(f"{Path(path).name} row {number}", source=path, row=number)

    def _spans(self, notes: Path, text: str) -> list[dict[str, object]]:
        places, spans = Places(text), []
        content = _text(notes, str(notes.parent), 0)
        if isinstance(content, BadValue):
            raise content
        for number, line in enumerate(re.split("\r\n?|\n", content), start=1):
            where = f"{notes.name} line {number}"
            if not line.startswith("T"):
                self.counts["annotations that are no spans of text, left out"] += bool(line.strip())
                continue
            match = SPAN.fullmatch(line)
            if match is None or ";" in match[2]:
                problem = "a span in several pieces" if match else "a span that cannot be read"
                raise BadValue(f"{where}: {problem}", got=line, allowed="T1<tab>LABEL START END<tab>TEXT", do="join it")
            start, end = map(int, match[2].split())
            place = places.of_passage(start, end, match[3])
            if place is None:
                problem = f"{where}: the text from {start} to {end} is not that of the span"
                raise BadValue(problem, got=match[3], do="correct the annotation")
            spans.append({"start": place[0], "end": place[1], "label": match[1]})
        return spans


class ClassFolders(FileFormat):
    """One row per file, by class and name; the label is the name of the folder."""

    name = "folders a class"

    @classmethod
    def knows(cls, path: str, head: bytes) -> bool:
        """True for any other folder."""
        return os.path.isdir(path)

    def rows(self, path: str) -> Numbered:
        """`text`, `label` and `file`. Raises DataError for a folder that does not consist of folders of texts."""
        folders = [Path(path, name) for name in sorted(os.listdir(path)) if os.path.isdir(os.path.join(path, name))]
        folders = [folder for folder in folders if not folder.name.startswith(".")]
        inner = [each for folder in folders for each in folder.iterdir() if each.is_dir()]
        if any(name.endswith(".arrow") for name in os.listdir(path)):
            do = "write it as Parquet: load_from_disk(FOLDER).to_parquet('train.parquet')"
            raise DataError(f"{path} is a set that the `datasets` library saved", allowed="its rows as Parquet", do=do)
        if len(folders) < 2 or inner:
            raise DataError(
                f"cannot read {path} as a folder of texts",
                got=f"folders in it: {', '.join(folder.name for folder in folders) or 'none'}",
                allowed="a folder of .txt files for each of two or more classes, or brat's .txt and .ann files",
                do=f"give one split, such as {folders[0]}" if inner else "give a file, or the folder above the classes",
            )
        number = 0
        for folder in folders:
            is_class = folder.name.lower() not in NO_CLASSES
            for file in _files(folder):
                number += 1
                self.counts[f"texts in '{folder.name}', which is no class, left out"] += not is_class
                text = _text(file, path, number)
                if isinstance(text, BadValue):
                    yield text
                else:
                    label = folder.name if is_class else None
                    yield number, {"text": text, "label": label, "file": f"{folder.name}/{file.name}"}


def _files(folder: Path) -> Iterator[Path]:
    for name in sorted(os.listdir(folder)):
        if not name.startswith(".") and (folder / name).is_file():
            yield folder / name


def _text(file: Path, path: str, number: int) -> str | BadValue:
    """The whole file, with its line ends unchanged."""
    with open_plain(file) as opened:
        raw = opened.read(4 * LONGEST_TEXT + 1)
    try:
        if len(raw) > 4 * LONGEST_TEXT:
            raise ValueError(f"more than {4 * LONGEST_TEXT:,} bytes")
        return raw.decode("utf-8-sig")
    except ValueError as error:
        return bad_row(path, number, f"{file.name} cannot be read", got=error, do="save it as a short text in UTF-8")
