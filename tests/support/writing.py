"""Projects with a task that writes, over the encoder of a tiny BART that plain `transformers` made."""

import msgspec

from polyhead.project.generation import DecoderChoice
from polyhead.project.recipes import Training
from polyhead.project.tables import Project, TaskEntry, TrunkChoice
from support import summarizers, tiny_project

LEARNS = Training(epochs=30, patience=30, batch=10, learning_rate=5e-3, dropout=0.0, warmup=0.1, precision="float32")
QUICK = msgspec.structs.replace(LEARNS, epochs=1)


def rows_of(count, *, seed=0):
    """Documents with a summary and a mood."""
    made = summarizers.documents(count, seed=seed)
    return [
        {"text": text, "label": label, "mood": "good" if "happy" in text or "new" in text else "bad"}
        for text, label in made
    ]


def entry(folder, *, count=50, name="brief", training=LEARNS, strategy=None, **generation):
    """A task that learns `count` documents by heart: they are its validation and its test too."""
    if not (folder / "news.jsonl").exists():
        tiny_project.write_jsonl(folder / "news.jsonl", rows_of(count))
    return TaskEntry(
        name=name,
        kind="summarization",
        train="news.jsonl",
        validation="news.jsonl",
        test="news.jsonl",
        generation=DecoderChoice(**({"tokens": 16, "smoothing": 0.0} | generation)),
        strategy=strategy,
        training=training,
    )


def mood(folder, *, training=QUICK, **changes):
    """A classification of the same documents."""
    rows = {"train": "news.jsonl", "validation": "news.jsonl"}
    given = {"name": "mood", "kind": "single_label", "labels": ("good", "bad"), "label": "mood", **rows}
    return TaskEntry(**{**given, "training": training, **changes})


def project(folder, *others, trunk=None, **changes):
    """The task that writes, and others, over the encoder of its checkpoint."""
    given = {name: changes.pop(name) for name in ("recipe",) if name in changes}
    most = changes.pop("max_tokens", 40)
    tasks = (*others, entry(folder, **changes))
    return Project(tasks=tasks, trunk=TrunkChoice(name=str(trunk or summarizers.folder()), max_tokens=most), **given)
