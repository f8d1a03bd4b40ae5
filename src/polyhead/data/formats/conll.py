"""Columns of tagged words: CoNLL, and CoNLL-U."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from polyhead.data.formats.base import FileFormat, Numbered
from polyhead.data.formats.lines import bad_row, text_lines
from polyhead.errors import BadValue, DataError

TAGGED = (".conll", ".conllu", ".iob", ".iob2", ".bio")
BILOU = {"S": "B", "U": "B", "E": "I", "L": "I"}
BREAK = "-DOCSTART-"


class Conll(FileFormat):
    """One row per sentence: `tokens` from the first column, `tags` from the last (CoNLL-U: forms and UPOS tags)."""

    name = "CoNLL"

    @classmethod
    def knows(cls, path: str, head: bytes) -> bool:
        """Recognized by the file name: the content alone is ambiguous."""
        return path.lower().removesuffix(".gz").endswith(TAGGED)

    def rows(self, path: str) -> Numbered:
        """Tags of the schemes BILOU and BIOES are converted to BIO. A sentence with a one-column line is refused."""
        universal = path.lower().removesuffix(".gz").endswith(".conllu")
        sentences = list(_sentences(path, universal=universal))
        if not sentences:
            raise DataError(f"{path} holds no sentence", do="give a file of a word and its tag on each line")
        is_other = not universal and _is_bilou({tag for each in sentences if isinstance(each, list) for _, tag in each})
        note = "sentences whose tags of one-word spans and of last words are read as B- and I-"
        self.counts[note] += len(sentences) if is_other else 0
        for number, words in enumerate(sentences, start=1):
            if isinstance(words, BadValue):
                yield words
                continue
            tags = [BILOU[tag[0]] + tag[1:] if is_other and tag[0] in BILOU else tag for _, tag in words]
            yield number, {"tokens": [word for word, _ in words], "tags": tags}


def _sentences(path: str, *, universal: bool) -> Iterator[list[tuple[str, str]] | BadValue]:
    """The words of each sentence with their tags."""
    words: list[tuple[str, str]] = []
    fault: BadValue | None = None
    count, sure = 0, _first_sure(path)
    for number, line in chain(text_lines(path), [(0, "")]):
        if isinstance(line, BadValue):
            raise DataError(f"cannot read {path}", got=line, do="restore the file, as UTF-8")
        cells = _cells(line)
        if not line.strip() or cells[0] == BREAK:
            if words or fault:
                count += 1
                yield fault or words
            words, fault = [], None
        elif not cells[0].isdigit() if universal else not (words or fault) and _is_comment(line, sure):
            continue
        elif len(cells) < (4 if universal else 2):
            if not line.startswith("#"):
                do = "write the word, and its tag last"
                fault = fault or bad_row(
                    path, count + 1, f"line {number} holds a word without a tag", got=line.strip(), do=do
                )
        else:
            words.append((cells[1], cells[3].strip()) if universal else (cells[0], cells[-1].strip()))


def _cells(line: str) -> list[str]:
    """The columns of a line, between tabs, else spaces, else wide ones; any other blank is part of a word."""
    if "\t" in line:
        return [cell.strip(" ") for cell in line.split("\t")]
    text = line.lstrip(" ").rstrip()
    return [cell for cell in text.split(" " if " " in text else "\u3000") if cell] or [""]


def _first_sure(path: str) -> str:
    """The first line that is surely no comment; empty if there is none."""
    for _, line in text_lines(path):
        if not isinstance(line, BadValue) and line.strip() and not line.startswith("#") and _cells(line)[0] != BREAK:
            return line
    return ""


def _is_comment(line: str, sure: str) -> bool:
    """Whether a line before a sentence's first word is a comment: `# id = 3`, or with other cells than words."""
    if re.match(r"#\s", line) is None:
        return False
    if re.match(r"#\s+([^\s=]+\s*=|new(doc|par)\s*$)", line) is not None or ("\t" in sure and "\t" not in line):
        return True
    return len(_cells(line)) not in (1, len(_cells(sure)) if sure else len(_cells(line)))


def _is_bilou(tags: set[str]) -> bool:
    prefixes = {tag.partition("-")[0] for tag in tags if "-" in tag}
    is_other = bool(prefixes & {"S", "E", "U", "L"}) and prefixes <= {"B", "I", "S", "E", "U", "L"}
    return is_other and all("-" in tag or tag == "O" for tag in tags)
