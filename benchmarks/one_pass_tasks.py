"""The tasks that the engine's speed is measured with, trained from real data, and bundles of 1 to 100 of them.

    python -m benchmarks.one_pass_tasks            train, print every task's score, make the bundles

Twenty tasks read one text: four kinds, 2 to 150 labels, two of them word by word. The twenty-first compares two texts
that are read separately. All learn from at most 1,500 rows each: the answers are to be real, not the best. A bundle of
more than 21 holds copies of the twenty under other names, good for timing alone: their numbers are changed a little, as
a runtime computes equal products once. Scales for 8 bits are found on tweets of the train splits. What is made stays in
runs/one_pass, and a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import renamed
from polyhead.bundle.owners import owner_named
from polyhead.bundle.read import Bundle
from polyhead.bundle.write import Draft, add_tasks
from polyhead.cli.output import text_table
from polyhead.engine.scale_files import CACHE, RECORD, read_calibration, read_scales
from polyhead.project.tables import Project, TaskEntry, TrunkChoice
from polyhead.train.events import Events
from polyhead.train.run import train_project
from polyhead.values import Value
from studies.settings import DATA, RUNS, parsed, say

FOLDER = RUNS / "one_pass"
ROWS = {"train": 1500, "validation": 300, "test": 500}
SIZES = (1, 5, 21, 50, 100)
TWEETS = tuple(f"tweeteval_{name}" for name in ("emotion", "hate", "irony", "offensive", "sentiment"))
Row = dict[str, Any]


def filled(row: Row) -> Row:
    """Which slots are filled in a request, as any number of labels."""
    return {"text": " ".join(row["tokens"]), "label": sorted({tag[2:] for tag in row["tags"]} - {""})}


def placed(row: Row) -> Row:
    """The label as the number of its place among five."""
    places = ("very negative", "negative", "neutral", "positive", "very positive")
    return {"text": row["text"], "label": float(places.index(row["label"]))}


class Derived(Value, eq=False):
    """How a task's rows and labels are made from a data set's; a row of None and a label of "" are left out."""

    row: Callable[[Row], Row | None] = lambda row: row
    label: Callable[[str], str] = lambda label: label


AS_IT_IS = Derived()
IN_SCOPE = Derived(  # CLINC150's 150 intents, without what is out of scope
    row=lambda row: None if row["label"] == "oos" else row, label=lambda label: label.replace("oos", "")
)
SLOTS = Derived(row=filled, label=lambda label: label[2:])
RATING = Derived(row=placed, label=lambda label: "")


class Chosen(Value, eq=False):
    """A task: the data set that it learns from, its metric, and the rest of its declaration."""

    name: str
    folder: str
    metric: str = "accuracy"
    derived: Derived = AS_IT_IS
    kind: str = "single_label"
    fields: dict[str, Any] = {}

    def entry(self) -> TaskEntry:
        """The declared task, its files written where they are not there yet."""
        facts = msgspec.json.decode((DATA / self.folder / "meta.json").read_bytes())
        labels = dict.fromkeys(made for label in facts.get("labels") or () if (made := self.derived.label(label)))
        files: dict[str, Any] = {"validation": 0.2}
        files |= {split: str(file) for split in ROWS if (file := self.file(split)) is not None}
        return TaskEntry(
            name=self.name, kind=self.kind, metric=self.metric, labels=tuple(labels), **self.fields, **files
        )

    def file(self, split: str) -> Path | None:
        """Some rows of the split, drawn once; None where the set has no such split."""
        source = DATA / self.folder / f"{split}.jsonl.gz"
        file = FOLDER / "data" / self.name / f"{split}.jsonl"
        if source.exists() and not file.exists():
            rows = [made for row in lines_of(source) if (made := self.derived.row(row)) is not None]
            random.Random(f"{self.name} {split}").shuffle(rows)
            file.parent.mkdir(parents=True, exist_ok=True)
            temporary = file.with_suffix(".tmp")
            temporary.write_text("".join(json.dumps(row) + "\n" for row in rows[: ROWS[split]]))
            temporary.replace(file)
        return file if file.exists() else None


TAGS = {"tokens": "tokens", "tags": "tags"}
# The first five are what the bundle of five holds: each of the four kinds, and the most labels.
TASKS = (
    Chosen(name="emotion", folder="tweeteval_emotion", metric="macro_f1"),
    Chosen(name="intent", folder="clinc150", derived=IN_SCOPE),
    Chosen(name="entities", folder="wnut17", metric="span_f1", kind="tagging", fields=TAGS),
    Chosen(
        name="rating", folder="sst5", metric="pearson", derived=RATING, kind="regression", fields={"range": (0.0, 4.0)}
    ),
    Chosen(name="slots", folder="snips_slots", metric="micro_f1", derived=SLOTS, kind="multi_label"),
    Chosen(name="hate", folder="tweeteval_hate", metric="macro_f1"),
    Chosen(name="irony", folder="tweeteval_irony"),
    Chosen(name="offensive", folder="tweeteval_offensive", metric="macro_f1"),
    Chosen(name="sentiment", folder="tweeteval_sentiment", metric="macro_recall"),
    Chosen(name="stance", folder="tweeteval_stance_abortion", metric="macro_f1"),
    Chosen(name="banking", folder="banking77"),
    Chosen(name="question", folder="trec50"),
    Chosen(name="headline", folder="huffpost41"),
    Chosen(name="news", folder="ag_news"),
    Chosen(name="encyclopedia", folder="dbpedia14"),
    Chosen(name="subjective", folder="subj"),
    Chosen(name="review", folder="cr"),
    Chosen(name="movie", folder="mr_rotten_tomatoes"),
    Chosen(name="assistant", folder="snips_intent"),
    Chosen(name="words", folder="ud_ewt_upos", kind="tagging", fields=TAGS),
)
PAIRED = Chosen(  # the twenty-first
    name="similarity",
    folder="glue_stsb",
    metric="pearson",
    kind="regression",
    fields={"range": (0.0, 5.0), "pair": "separate", "text": "text_a", "text_b": "text_b"},
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, help="of torch; by default as many as it finds")
    parsed(parser)
    trained = Bundle.open(train())
    rows = [["task", "kind", "labels", "metric", "test"]]
    for name, record in trained.tasks.items():
        metric, value = trained.headline(name)
        rows.append([name, record.task.kind, f"{len(record.task.labels)}", metric, f"{value:.3f}"])
    for line in text_table(rows, left=2):
        say(line)
    for size in SIZES:
        say(f"{size:4d} tasks: {bundle_of(size)}")


def train() -> Path:
    """The bundle of all that is trained, with scales for 8 bits; what it holds already is kept."""
    root = FOLDER / "trained"
    project = Project(
        tasks=tuple(task.entry() for task in (*TASKS, PAIRED)), bundle=str(root), trunk=TrunkChoice(max_tokens=128)
    )
    train_project(project, folder=FOLDER, cache=FOLDER / "cache", events=Events(say=say))
    bundle = Bundle.open(root)
    known = read_calibration(bundle)
    if known is None or not read_scales(bundle)[1].has_slots:  # none, or of before poolers and heads had some
        texts = FOLDER / "calibration.txt"
        files = [task.file("train") for task in TASKS if task.folder in TWEETS]
        rows = [row for file in files if file is not None for row in lines_of(file)]
        random.Random(0).shuffle(rows)
        texts.write_text("".join(" ".join(row["text"].split()) + "\n" for row in rows))
        command = [sys.executable, "-m", "polyhead", "quantize", str(root), "--texts", str(texts)]
        command += ["--agreement", "0", "--unmeasured"]  # whatever changes: these tasks are for timing
        subprocess.run(command, check=True)
    return root


def bundle_of(size: int) -> Path:
    """A bundle of so many tasks, the first ones and then copies; made again where it is another."""
    root, trained = FOLDER / f"tasks-{size}", Bundle.open(FOLDER / "trained")
    wanted = dict(itertools.islice(names(), size))
    if not is_made(root, trained, wanted):
        shutil.rmtree(root, ignore_errors=True)
        write_bundle(root, trained.trunk())
        add_tasks(root, [copied(trained, old, new) for new, old in wanted.items()])
        shutil.copytree(trained.root / CACHE, root / CACHE)
    return root


def is_made(root: Path, trained: Bundle, wanted: Mapping[str, str]) -> bool:
    """Whether the bundle there holds these tasks and no others, with the arrays that they have now."""
    records = [folder / CACHE / RECORD for folder in (root, trained.root)]
    if not records[0].exists() or records[0].read_bytes() != records[1].read_bytes():
        return False
    there = Bundle.open(root)
    same = {
        name: name in wanted and record.arrays == trained.tasks[wanted[name]].arrays
        for name, record in there.tasks.items()
    }
    return there.digest == trained.digest and same == {new: new == old for new, old in wanted.items()}


def names() -> Iterator[tuple[str, str]]:
    """Names without end, each with that of the trained task that it is or copies."""
    yield from ((task.name, task.name) for task in (*TASKS, PAIRED))
    for turn in itertools.count(2):
        yield from ((f"{task.name}-{turn}", task.name) for task in TASKS)


def copied(trained: Bundle, old: str, new: str) -> Draft:
    """A trained task under a name; under another than its own, with numbers a thousandth off."""
    arrays, record = trained.part(old), renamed(trained.tasks[old], {owner_named(old): owner_named(new)})
    if new != old:
        record = msgspec.structs.replace(record, arrays="")
        drawn = np.random.default_rng(sum(new.encode()))
        arrays = {
            name: (array * (1 + 0.001 * drawn.standard_normal(array.shape))).astype(np.float32)
            for name, array in sorted(arrays.items())
        }
    return Draft(
        record=record, arrays=arrays, scores=trained.scores(old), probes=trained.probes(old), card=trained.card(old)
    )


def tweets(count: int) -> list[str]:
    """Different tweets of mixed length in a fixed random order, from the test splits."""
    texts = [row["text"] for folder in TWEETS for row in lines_of(DATA / folder / "test.jsonl.gz")]
    unlike = sorted({text.strip() for text in texts} - {""})
    random.Random(0).shuffle(unlike)
    return unlike[:count]


def lines_of(file: Path) -> Iterator[Row]:
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


if __name__ == "__main__":
    main()
