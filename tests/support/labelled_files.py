"""Labelled files with faults, and what a check finds in them."""

import json
from pathlib import Path

from polyhead.check.run import findings_in, read_splits
from polyhead.project.tables import TaskEntry

SUBJECTS = [
    "river",
    "engine",
    "market",
    "doctor",
    "garden",
    "letter",
    "window",
    "captain",
    "planet",
    "harbour",
    "teacher",
    "bridge",
]
VERBS = ["meets", "carries", "finds", "repairs", "follows", "paints", "moves", "answers", "builds", "forgets"]
OBJECTS = ["the old horse", "a broken clock", "two green apples", "our neighbour", "some loud music", "his last train"]
PLACES = [
    "in spring",
    "by the sea",
    "after lunch",
    "without a word",
    "near the mill",
    "at noon",
    "on monday",
    "for money",
    "again",
]


def text(number):
    """A sentence of its own for each number below 6,480, near numbers far apart."""
    parts, number = [], number * 1009
    for words in (SUBJECTS, VERBS, OBJECTS, PLACES):
        number, index = divmod(number, len(words))
        parts.append(words[index])
    return f"The {parts[0]} {parts[1]} {parts[2]} {parts[3]}."


def clean(count=120, *, start=0, labels=("good", "bad", "odd")):
    """Rows without a fault, labels in turn."""
    return [{"text": text(start + i), "label": labels[i % len(labels)]} for i in range(count)]


def write(path: Path, rows):
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path.name


def entry(folder: Path, train, *, name="mood", **task):
    """A task over rows; of `validation` and `test` too."""
    settings = {"kind": "single_label", "labels": ("good", "bad", "odd")} | task
    for split in ("validation", "test"):
        if isinstance(settings.get(split), list):
            settings[split] = write(folder / f"{name}-{split}.jsonl", settings[split])
    if settings["kind"] == "regression":
        del settings["labels"]
    return TaskEntry(name=name, train=write(folder / f"{name}-train.jsonl", train), **settings)


def findings(folder: Path, *entries, limit=512):
    """The findings by kind; of several of a kind the first."""
    parts, unread = read_splits(entries, folder)
    several = [*unread, *findings_in(parts, limit=limit)]
    return {finding.kind: finding for finding in reversed(several)}


def rows_of(finding):
    """(split, row) of every place."""
    return [(place.split, place.row) for place in finding.places]
