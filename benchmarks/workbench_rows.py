"""Sets, tasks and bundles of the workbench's benchmarks: a task over `minilm` that learns once."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import msgspec
import numpy as np

from polyhead.project.recipes import Training
from polyhead.project.strategies import Pooled
from polyhead.project.tables import Project, TaskEntry, TrunkChoice
from polyhead.train.events import Events
from polyhead.train.run import train_project
from studies.settings import DATA, RUNS, say

MAX_TOKENS = 128
HOME = RUNS / "workbench"


def rows_of(folder: str, splits: tuple[str, ...]) -> list[dict]:
    """The rows of these splits, those that exist, end to end."""
    rows: list[dict] = []
    for split in splits:
        path = DATA / folder / f"{split}.jsonl.gz"
        if path.exists():
            with gzip.open(path, "rt", encoding="utf-8") as file:
                rows += [json.loads(line) for line in file]
    return rows


def labels_of(folder: str) -> tuple[str, ...]:
    """The labels in their order."""
    return tuple(map(str, json.loads((DATA / folder / "meta.json").read_text(encoding="utf-8"))["labels"]))


def shuffled(rows: list[dict], seed: int) -> list[dict]:
    """The rows in an order that is drawn."""
    return [rows[place] for place in np.random.default_rng(seed).permutation(len(rows)).tolist()]


def write_rows(path: Path, rows: list[dict]) -> str:
    """The path of a new file of these rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    return str(path)


def trained(task: str, folder: str, rows: list[dict], seed: int, strategy: Pooled) -> Path:
    """A bundle with this task, trained on these rows."""
    home = HOME / f"{folder}-{task}-{len(rows)}-{seed}-{strategy.positions}"
    if (home / "bundle" / "bundle.json").exists() and (home / "done").exists():
        return home / "bundle"
    shutil.rmtree(home, ignore_errors=True)
    write_rows(home / "train.jsonl", rows)
    entry = TaskEntry(name=task, kind="single_label", labels=labels_of(folder), label="label", train="train.jsonl")
    trunk, training = TrunkChoice(max_tokens=MAX_TOKENS), Training(seed=seed)
    project = Project(tasks=(entry,), trunk=trunk, strategy=strategy, training=training)
    train_project(project, folder=home, cache=HOME / "cache", events=Events(say=say))
    (home / "done").touch()
    return home / "bundle"
