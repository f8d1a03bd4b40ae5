"""Four small task sets of public data as project files: single texts, pairs, tagging, mixed. Made for `compare`.

Of each set a draw of its training rows learns and chooses; test splits are whole but for those that are cut to `TEST`
evenly spaced rows. Files are written under runs/, which git ignores.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tomli_w

from studies.settings import DATA, RUNS

TRAIN, HELD, TEST = 400, 150, 500
MAX_TOKENS = 64
FOLDER = RUNS / "workbench"


@dataclass(frozen=True)
class Source:
    """A data set as a task."""

    folder: str
    kind: str = "single_label"
    pair: bool = False
    range: tuple[float, float] | None = None
    test: str = "test"


SETS: dict[str, tuple[Source, ...]] = {
    "single": (Source("trec6"), Source("tweeteval_emotion")),
    "pairs": (Source("sick_nli", pair=True), Source("glue_stsb", "regression", pair=True, range=(0.0, 5.0))),
    "tagging": (Source("snips_slots", "tagging"), Source("restaurant8k_slots", "tagging")),
    "mixed": (
        Source("cr"),
        Source("sick_relatedness", "regression", pair=True, range=(1.0, 5.0)),
        Source("wnut17", "tagging"),
    ),
}


def written(name: str) -> Path:
    """The set's project file, with its data beside it; made if it is not there."""
    folder = FOLDER / name
    file = folder / "polyhead.toml"
    if file.exists():
        return file
    folder.mkdir(parents=True, exist_ok=True)
    tables = []
    for source in SETS[name]:
        labels = json.loads((DATA / source.folder / "meta.json").read_text(encoding="utf-8")).get("labels")
        rows, test = _read(source.folder, "train"), _read(source.folder, source.test)
        order = np.random.default_rng(0).permutation(len(rows))
        splits = {
            "train": [rows[i] for i in order[HELD : HELD + TRAIN]],
            "validation": [rows[i] for i in order[:HELD]],
            "test": [test[i] for i in sorted({round(i) for i in np.linspace(0, len(test) - 1, min(TEST, len(test)))})],
        }
        table: dict[str, object] = {"name": source.folder, "kind": source.kind}
        for split, several in splits.items():
            path = folder / f"{source.folder}-{split}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in several), encoding="utf-8")
            table[split] = path.name
        if source.range is not None:
            table["range"] = list(source.range)
        else:
            table["labels"] = [str(label) for label in labels or ()]
        if source.pair:
            table |= {"text": "text_a", "text_b": "text_b"}
        if source.kind == "tagging":
            table |= {"tokens": "tokens", "tags": "tags"}
        tables.append(table)
    head = tomli_w.dumps({"bundle": "bundle", "trunk": {"name": "minilm", "max_tokens": MAX_TOKENS}})
    file.write_text(head + "".join(f"\n[[tasks]]\n{tomli_w.dumps(table)}" for table in tables), encoding="utf-8")
    return file


def sizes(name: str) -> dict[str, dict[str, int]]:
    """Rows of each split of each task, as written, and of the whole test split."""
    folder = written(name).parent
    return {
        source.folder: {
            **{split: _count(folder / f"{source.folder}-{split}.jsonl") for split in ("train", "validation", "test")},
            "whole_test": len(_read(source.folder, source.test)),
        }
        for source in SETS[name]
    }


def _read(folder: str, split: str) -> Sequence[dict]:
    with gzip.open(DATA / folder / f"{split}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _count(file: Path) -> int:
    return sum(1 for _ in file.open(encoding="utf-8"))
