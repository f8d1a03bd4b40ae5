"""Lines in fastText's training format: `__label__a __label__b the text`."""

from __future__ import annotations

import re

from polyhead.data.formats.base import FileFormat, Numbered
from polyhead.data.formats.lines import text_lines
from polyhead.errors import BadValue

MARK = "__label__"
TABLES_AND_JSON = (".csv", ".tsv", ".xlsx", ".parquet", ".jsonl", ".json")
LABEL = re.compile(rf"(?:(?<=\s)|^){MARK}(\S+)\s*")


class FastText(FileFormat):
    """One row per line; words that begin with the mark are its labels, wherever they are in the line."""

    name = "fastText"

    @classmethod
    def knows(cls, path: str, head: bytes) -> bool:
        """True if the first line begins with the mark of a label, and the name is not that of a table or of JSON."""
        is_other = path.lower().removesuffix(".gz").endswith(TABLES_AND_JSON)
        return not is_other and head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(MARK.encode())

    def rows(self, path: str) -> Numbered:
        """`text` and `label`, a list of labels; None for a line without labels."""
        for number, line in text_lines(path):
            if isinstance(line, BadValue):
                yield line
            elif line.strip():
                labels = list(dict.fromkeys(LABEL.findall(line)))
                self.counts["lines without a label, left out"] += not labels
                yield number, {"text": LABEL.sub("", line).strip(), "label": labels or None}
