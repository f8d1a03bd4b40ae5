"""Mean vectors of sets of single texts by the default trunk, encoded once and kept under runs/."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from polyhead.check.run import read_splits
from polyhead.check.split_rows import SplitRows
from polyhead.codecs import HALF
from polyhead.deep.nn.runtime import precision_of
from polyhead.plan import Codec
from polyhead.project.pretrained import load_trunk
from polyhead.project.recipes import Training
from polyhead.project.strategies import Pooled
from polyhead.project.tables import Project, TaskEntry, TrunkChoice
from polyhead.train.data.extract import Extractor
from polyhead.train.data.kept_examples import examples_of
from polyhead.train.data.prepare import wanted_of
from polyhead.train.heads.held_out import whole_of
from polyhead.train.heads.inputs import inputs_of
from studies.settings import DATA, RUNS, say

MAX_TOKENS = 128
LAYERS = (1, 2, 4)  # whose mean is read
KEPT = RUNS / "workbench-vectors"


def read(name: str, split: str) -> list[dict]:
    with gzip.open(DATA / name / f"{split}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [{"text": row["text"], "label": str(row["label"])} for row in map(json.loads, file)]


def labels_of(name: str) -> tuple[str, ...]:
    return tuple(map(str, json.loads((DATA / name / "meta.json").read_text(encoding="utf-8"))["labels"]))


def encoded(name: str, texts: list[str]) -> dict[int, np.ndarray]:
    """Vectors (texts, width) by the number of last layers whose mean they are; kept under this name."""
    file = KEPT / f"{name}.npz"
    if file.exists():
        with np.load(file) as kept:
            if len(kept["1"]) == len(texts):
                return {of: kept[str(of)].astype(np.float32) for of in LAYERS}
    say(f"encoding {len(texts):,} texts of {name}")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        rows = ({"text": text, "label": "ab"[i % 2]} for i, text in enumerate(texts))
        (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        entry = TaskEntry(name="task", kind="single_label", labels=("a", "b"), train="train.jsonl")
        project = Project(tasks=(entry,), trunk=TrunkChoice(max_tokens=MAX_TOKENS))
        (part,) = read_splits(project.tasks, folder)[0]
        trunk, precision = load_trunk("minilm", max_tokens=MAX_TOKENS), precision_of(Training())
        source = Extractor(trunk, folder=folder / "f", precision=precision)
        vectors = dict(zip(LAYERS, _means(project, entry, part, source), strict=True))
    KEPT.mkdir(parents=True, exist_ok=True)
    halves: dict[str, Any] = {str(of): values.astype(np.float16) for of, values in vectors.items()}
    np.savez(file, **halves)
    return vectors


def _means(project: Project, entry: TaskEntry, part: SplitRows, source: Extractor) -> list[np.ndarray]:
    assert part.reading.examples is not None
    prepared = whole_of(project, entry, part.task, part.reading.examples)
    shape, digest = source.facts.architecture, source.facts.digest
    paths = [Pooled()._mean_of(of).path(part.task, trunk=digest, shape=shape, codec=Codec(name=HALF)) for of in LAYERS]
    source.fill([request for path in paths for request in wanted_of(prepared, prepared.train, path, source)])
    several = []
    for path in paths:
        examples = examples_of(prepared, prepared.train, path, source)
        several.append(inputs_of(path, examples, loss="cross_entropy", outputs=2).values)
    return several
