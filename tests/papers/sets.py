"""Small data sets in folders like those beside the project: meta.json and gzipped JSON lines by split."""

import gzip
import json

import tiny
from polyhead.papers.data import Set

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


def write_sets(root, *, train=60, other=16):
    """The folders of SETS."""

    def cut(rows, name):
        return {"train": rows[:train], name: rows[train:]}

    moods = [{"text": m["text"], "label": m["mood"]} for m in tiny.messages(train + other, seed=1)]
    write(root / "moods", "single_text", ["bad", "good"], cut(moods, "test"))
    things = [
        {"text": m["text"], "label": next(w for w in m["tokens"] if w in tiny.THINGS)}
        for m in tiny.messages(train + other, seed=2)
    ]
    write(root / "things", "single_text", list(tiny.THINGS), cut(things, "test"))
    same = [
        {"text_a": p["text"], "text_b": p["text_b"], "label": p["same"]}
        for p in tiny.pairs(train + other, seed=3)
    ]
    write(root / "same", "pair", ["no", "yes"], cut(same, "validation"))
    return root
