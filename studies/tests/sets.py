"""Small data sets in folders like those beside the project: meta.json and gzipped JSON lines by split."""

import gzip
import json
from contextlib import contextmanager

import pytest

from polyhead.deep.recipes.joint_loop import JointLoop
from studies.shared.data import Set
from support import tiny_project

SETS = (
    Set(folder="moods", group="SA", metric="accuracy"),
    Set(folder="things", group="SA", metric="accuracy"),
    Set(folder="same", test="validation", group="PP", metric="accuracy"),
)


def write(folder, kind, labels, splits):
    folder.mkdir(parents=True)
    for name, rows in splits.items():
        with gzip.open(folder / f"{name}.jsonl.gz", "wt") as out:
            out.writelines(json.dumps(row) + "\n" for row in rows)
    sizes = {name: len(rows) for name, rows in splits.items()}
    (folder / "meta.json").write_text(json.dumps({"kind": kind, "labels": labels, "sizes": sizes}))


def write_sets(root, *, train=60, other=16, leaking=False):
    """The folders of SETS; `leaking`: every third training row has a text on which another set is evaluated."""
    count = train + other
    messages = [tiny_project.messages(count, seed) for seed in (1, 2, 3)]  # the last: first texts of the pairs
    evaluated = [several[train:] for several in messages]

    def rows(number):
        """A set's messages, some training ones taken from the rows on which the others are evaluated."""
        own = list(messages[number])
        others = [row for other in (number - 1, number - 2) for row in evaluated[other]]
        for place in range(0, train, 3) if leaking else ():
            own[place] = others[place // 3 % len(others)]
        return own

    def cut(rows, name):
        return {"train": rows[:train], name: rows[train:]}

    moods = [{"text": m["text"], "label": m["mood"]} for m in rows(0)]
    write(root / "moods", "single_text", ["bad", "good"], cut(moods, "test"))
    things = [{"text": m["text"], "label": next(w for w in m["tokens"] if w in tiny_project.THINGS)} for m in rows(1)]
    write(root / "things", "single_text", list(tiny_project.THINGS), cut(things, "test"))
    same = [
        {"text_a": m["text"], "text_b": p["text_b"], "label": p["same"]}
        for m, p in zip(rows(2), tiny_project.pairs(count, seed=3), strict=True)
    ]
    write(root / "same", "pair", ["no", "yes"], cut(same, "validation"))
    return root


def letters(text):
    """Letters and digits in small letters, "" where there are too few of them to be told from chance."""
    found = "".join(sign for sign in text.lower() if sign.isalnum())
    return found if len(found) >= 25 else ""


def texts_of_splits(splits):
    """The texts of these splits that are looked for."""
    given = (text for split in splits for one in split.examples.inputs for text in one)
    return {letters(text) for text in given} - {""}


@contextmanager
def learning():
    """Inside, {label: prepared tasks} of every loop that learns: what it trains on."""
    seen, learn = {}, JointLoop.learn

    def noted(self, label):
        seen[label] = list(self.prepared.values())
        return learn(self, label)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JointLoop, "learn", noted)
        yield seen
