"""A corpus moves to an encoder that a joint run learned: extraction is killed, tasks learn from stored labels alone."""

import json

import msgspec
import numpy as np
import pytest

from polyhead.bundle.read import Bundle
from polyhead.engine.session import Session
from polyhead.project.recipes import Joint
from polyhead.project.strategies import Pooled
from polyhead.project.tables import TrunkChoice
from polyhead.store.corpus import open_corpus
from polyhead.store.jobs.migrate import open_current
from support import tiny_project
from support.commands import run, shell
from support.tiny_project import to_toml

TASKS = ("mood", "topics", "urgency")
KEPT = Pooled(layers="mean", of=2, positions="attention", heads=2, hidden=8, codec="sign")
REFERENCE = ("--backend", "reference")
# Extracts in pieces of a few texts, each appended at once, and dies without any cleaning up at the third append.
DIES = """
import os
from polyhead.store.jobs import extract
from polyhead.store.corpus.plain import PlainStore
extract.PIECE_ROWS, extract.APPEND_BYTES = 8, 1
append, calls = PlainStore.append, []
def dying(self, ids, features):
    calls.append(len(ids))
    if len(calls) == 3:
        os._exit(9)
    return append(self, ids, features)
PlainStore.append = dying
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A corpus in a store over a frozen encoder, answered; and a bundle over the encoder of a joint run."""
    folder = tmp_path_factory.mktemp("moved")
    project = tiny_project.project(folder, *TASKS, strategy=KEPT)
    write(folder / "old.toml", msgspec.structs.replace(project, bundle="old"))
    training = msgspec.structs.replace(tiny_project.TRAINING, epochs=1, learning_rate=1e-3, dropout=0.0)
    learned = tiny_project.project(folder, "mood", training=training)
    write(folder / "joint.toml", msgspec.structs.replace(learned, bundle="joint", recipe=Joint(layer_dropout=0.0)))
    tiny_project.write_jsonl(folder / "corpus.jsonl", tiny_project.messages(60, seed=3))
    for words in (
        ("train", "old.toml"),
        ("features", "extract", "old", "corpus.jsonl", "old-store", "--tasks", "mood", *REFERENCE),
        ("backfill", "old", *TASKS, "--features", "old-store"),
        ("migrate", "switch", "current.json", "--store", "old-store", "--bundle", "old"),
        ("train", "joint.toml"),
    ):
        done = run(*words, cwd=folder)
        assert done.code == 0, (words, done.err)
    assert Bundle.open(folder / "old").digest != Bundle.open(folder / "joint").digest
    return folder


def write(path, project):
    path.write_text(to_toml(project))


@pytest.mark.slow
def test_a_corpus_moves_to_a_learned_encoder(folder):
    extract = ("features", "extract", "joint", "corpus.jsonl", "new-store", "--tap", "mean2:sign", *REFERENCE)
    killed = shell(extract, before=f"import os\nos.chdir({str(folder)!r})\n{DIES}")
    assert killed.code == 9, killed.err
    done = open_corpus(folder / "new-store")
    done.verify()
    there = sum(fragment.rows for fragment in done.fragments)
    assert there == 16
    mixed = ("migrate", "compare", "old-store", "new-store", "--old", "joint", "--new", "joint")
    run(*mixed, cwd=folder).refuses("another trunk", *(Bundle.open(folder / name).digest for name in ("old", "joint")))

    again = run(*extract, "--json", "-", cwd=folder)
    summary = json.loads(again.out)
    assert (summary["documents"], summary["before"], summary["total"]) == (60 - there, there, 60), again.err
    ids = [one.tobytes() for f in open_corpus(folder / "new-store").fragments for one in done_ids(folder, f)]
    assert len(ids) == len(set(ids)) == 60

    labels = ("migrate", "labels", "old-store", "old", *TASKS, "--texts", "corpus.jsonl", "--output", "labels.jsonl")
    assert "60 rows of 60 documents" in run(*labels, cwd=folder).out
    write(folder / "new.toml", retrained(folder))
    trained = run("train", "new.toml", "--features", "new-store", cwd=folder)
    assert trained.code == 0, trained.err
    assert Bundle.open(folder / "new").digest == Bundle.open(folder / "joint").digest

    switch = ("migrate", "switch", "current.json", "--store", "new-store", "--bundle", "new")
    run(*switch, cwd=folder).refuses("answers of 'mood' for 60 documents, answers of 'topics' for 60 documents")
    assert run("backfill", "new", "mood", "topics", "--features", "new-store", cwd=folder).code == 0
    run(*switch, cwd=folder).refuses("lacking are answers of 'urgency' for 60 documents")
    assert run("backfill", "new", "urgency", "--features", "new-store", cwd=folder).code == 0

    compared = flips_are_what_differs(folder)
    lowest = min(task["low"] for task in compared["tasks"])
    run(*switch, "--at-least", min(1.0, lowest + 0.01), cwd=folder).refuses("agree less than asked")
    assert open_current(folder / "current.json").location.endswith("old-store")
    assert run(*switch, "--at-least", lowest, cwd=folder).code == 0
    assert open_current(folder / "current.json").trunk == Bundle.open(folder / "joint").digest


def done_ids(folder, fragment):
    return open_corpus(folder / "new-store").ids(fragment.name)


def retrained(folder):
    """The same tasks over the learned encoder, with no label but the stored ones, and no codec but the store's."""
    entries = [
        msgspec.structs.replace(
            tiny_project.ENTRIES[name], train="labels.jsonl", validation=0.2, test=None, label=name, strategy=None
        )
        for name in TASKS
    ]
    project = tiny_project.project(folder, *TASKS, strategy=msgspec.structs.replace(KEPT, codec="sign"))
    return msgspec.structs.replace(
        project, tasks=tuple(entries), trunk=TrunkChoice(name=str(folder / "joint")), bundle="new"
    )


def flips_are_what_differs(folder):
    """The naive way: both encoders read every text again."""
    words = ("old-store", "new-store", "--old", "old", "--new", "new")
    flips = ("--flips", "flips.jsonl", "--texts", "corpus.jsonl")
    done = run("features", "compare", *words, *flips, "--json", "-", cwd=folder)
    assert done.code == 0, done.err
    inputs = [(row["text"],) for row in tiny_project.messages(60, seed=3)]
    old, new = (Session(folder / name, backend="reference").columns(inputs, tasks=TASKS) for name in ("old", "new"))
    far = abs(old["urgency"].value - new["urgency"].value)
    differing = {
        "mood": old["mood"].label != new["mood"].label,
        "topics": (old["topics"].labels != new["topics"].labels).any(axis=1),
        "urgency": far > 0.01,
    }
    written = [json.loads(line) for line in (folder / "flips.jsonl").read_text().splitlines()]
    compared = json.loads(done.out)
    for task in compared["tasks"]:
        name = task["new"]["task"]
        texts = [tuple(flip["texts"]) for flip in written if flip["task"] == name]
        assert (task["compared"], task["equal"]) == (60, 60 - len(texts)) and len(texts) == len(set(texts))
        clear = abs(far - 0.01) > 1e-3 if name == "urgency" else np.ones(60, bool)  # a store's arithmetic rounds
        known = {inputs[row] for row in np.flatnonzero(clear).tolist()}
        assert {*texts} & known == {inputs[row] for row in np.flatnonzero(differing[name] & clear).tolist()}
    assert len(written) > 0
    return compared
