"""What a corpus of a billion documents takes, as arithmetic: bytes, machine hours and dollars, from measured rates.

    python -m benchmarks.store_scale                prints the table of docs/project/billion-documents.md

Bytes follow from shapes. Rates are those of `results/store_backfill.json`, medians of its repeats on one machine; where
there is none, the table says so.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from polyhead.codecs import CODECS, HALF, ONE_BIT
from polyhead.plan import Codec
from polyhead.store.corpus.base import FeatureColumn
from polyhead.store.corpus.ids import ID_BYTES
from polyhead.values import Value
from studies.settings import RESULTS

MEASURED = "store_backfill.json"
WIDTH, LENGTH_BYTES, INDEX_BYTES, ANSWER_BYTES = (
    384,
    4,
    12,
    8,
)  # of minilm; of a document: tokens, index, label and score
UNKNOWN = "not measured yet"


class Corpus(Value):
    """Documents to keep, and what a machine costs."""

    documents: int = 10**9
    tokens: float = 25.0  # of a document, on average, special tokens included
    dollars_an_hour: float = 1.0  # of one machine like the one that was measured

    def feature_bytes(self, codec: str) -> float:
        """Bytes of one tap in this codec, with ids, lengths and the index."""
        column = FeatureColumn(digest="x", layers=1, width=WIDTH, codec=Codec(name=codec))
        return self.documents * (self.tokens * column.token_bytes + ID_BYTES + LENGTH_BYTES + INDEX_BYTES)

    def hours(self, documents_a_second: float) -> float:
        """Machine hours of a pass over all documents."""
        return self.documents / documents_a_second / 3600

    def dollars(self, documents_a_second: float) -> float:
        """What a pass costs, on one machine or on many."""
        return self.hours(documents_a_second) * self.dollars_an_hour


def rates(folder: Path = RESULTS) -> dict[str, float]:
    """Documents a second of one machine, by what it does; empty where nothing was measured."""
    path = folder / MEASURED
    if not path.exists():
        return {}
    rows = [row for row in json.loads(path.read_text(encoding="utf-8"))["rows"] if row.get("what") == "real"]
    found = {"encode": [row["encoding"] for row in rows if "encoding" in row]}
    for tasks in (1, 5):
        filled = [row[f"backfill_{tasks}"] for row in rows if f"backfill_{tasks}" in row]
        found[f"backfill {tasks}"] = [each["documents"] / each["seconds"] for each in filled]
    return {name: statistics.median(several) for name, several in found.items() if several}


def table(corpus: Corpus | None = None, folder: Path = RESULTS) -> list[str]:
    """Rows for people: what is kept, and what each pass takes."""
    corpus, known = corpus or Corpus(), rates(folder)
    lines = ["| | |", "|---|---|"]
    for name in (HALF, ONE_BIT):
        lines.append(f"| features of one tap, `{CODECS[name].name}` | {corpus.feature_bytes(name) / 1e12:.2f} TB |")
    lines.append(f"| answers of one task (label and score) | {corpus.documents * ANSWER_BYTES / 1e9:.0f} GB |")
    passes = {
        "encode": "encode all documents once",
        "backfill 1": "backfill one task",
        "backfill 5": "backfill five tasks",
    }
    for name, what in passes.items():
        told = UNKNOWN
        if name in known:
            hours, dollars = corpus.hours(known[name]), corpus.dollars(known[name])
            told = f"{known[name]:,.0f} documents a second: {hours:,.1f} machine hours, {dollars:,.2f} dollars"
        lines.append(f"| {what} | {told} |")
    return lines


if __name__ == "__main__":
    print("\n".join(table()))
