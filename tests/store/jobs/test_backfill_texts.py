"""Texts that a task writes for documents of a store: from the states that it keeps, without the encoder."""

import msgspec
import numpy as np
import pytest

from polyhead.bundle.create import write_bundle
from polyhead.bundle.read import Bundle
from polyhead.bundle.write import add_tasks
from polyhead.engine.session import Session
from polyhead.plan import Codec, Pool
from polyhead.store.corpus import open_corpus
from polyhead.store.corpus.lance import LanceStore
from polyhead.store.corpus.plain import PlainStore
from polyhead.store.jobs import backfill as backfills_of
from polyhead.store.jobs.answers import is_answer
from polyhead.store.jobs.backfill import Backfill, BackfillRequest, backfill
from polyhead.testing import tiny_writing
from support.backfills import TRUNK, append, schema, texts
from support.writing_bundles import draft

EXACT = Codec(name="float32")
EIGHT = Codec(name="uint8", scale=(0.04,), zero=(128.0,))


def make(root, *names, codec=EXACT):
    write_bundle(root, TRUNK)
    for seed, name in enumerate(names):
        task, loaded = tiny_writing(TRUNK, name, seed=seed)
        nodes = (*loaded.path.nodes[:-2], Pool(positions="all", codec=codec), loaded.path.nodes[-1])
        path = msgspec.structs.replace(loaded.path, nodes=nodes)
        add_tasks(root, [draft(task, path, TRUNK, loaded.arrays, ())])
    return root


def filled(location, root, *ranges):
    path = next(iter(Bundle.open(root).tasks.values())).path
    store = (LanceStore if location.endswith(".lance") else PlainStore).create(location, schema(path))
    for numbers in ranges:
        append(store, path, texts(numbers))


def columns_of(location, done):
    store = open_corpus(location)
    return {
        each.task: np.concatenate([store.results(fragment.name, each.name)["text"] for fragment in store.fragments])
        for each in done.columns
    }


@pytest.mark.parametrize("codec", [EXACT, EIGHT], ids=["exact", "8 bits"])
@pytest.mark.parametrize("kind", ["store", "store.lance"])
def test_every_document_has_the_text_of_a_session(tmp_path, kind, codec):
    root, location = make(tmp_path / "b", "brief", "short", codec=codec), str(tmp_path / kind)
    filled(location, root, range(12), range(12, 20))
    done = backfill(location, root, BackfillRequest())
    assert (done.documents, done.filled, done.fragments, len(done.columns)) == (20, 20, 2, 2)
    found = columns_of(location, done)
    for name in ("brief", "short"):
        answers = Session(root, backend="reference").predict(texts(range(20)), tasks=[name])
        expected = [result.answers[name]["summary"] for result in answers]
        assert found[name].tolist() == expected and len(set(expected)) > 1
    facts = open_corpus(location).described()[done.columns[0].name]
    assert facts.kind == "summarization" and facts.arrays == {"text": "str"}
    assert is_answer({"text": found["brief"]}).sum() == np.count_nonzero(found["brief"] != "")
    again = backfill(location, root, BackfillRequest())
    assert again.filled == 0


def test_units_of_a_task_that_writes_are_small(tmp_path, monkeypatch):
    """They had as many documents as those of other tasks, and a line of progress comes after a unit."""
    root, location = make(tmp_path / "b", "brief"), str(tmp_path / "store")
    filled(location, root, range(12), range(12, 20))
    monkeypatch.setattr(backfills_of, "WRITTEN_ROWS", 8)
    job = Backfill(location, Bundle.open(root), BackfillRequest())
    assert [unit.stop - unit.start for unit in job.units(job.store.fragments)] == [8, 4, 8]


def test_texts_of_8_bits_are_mostly_those_of_whole_numbers(tmp_path):
    """Measured: how many of 40 texts by a random decoder stay the same."""
    written = []
    for name, codec in (("exact", EXACT), ("eight", EIGHT)):
        root, location = make(tmp_path / name, "brief", codec=codec), str(tmp_path / f"{name}-store")
        filled(location, root, range(40))
        written.append(columns_of(location, backfill(location, root, BackfillRequest()))["brief"])
    assert np.mean(written[0] == written[1]) > 0.5


def test_fragments_are_joined_with_their_texts(tmp_path):
    root, location = make(tmp_path / "b", "brief"), str(tmp_path / "store")
    filled(location, root, range(5), range(5, 9))
    done = backfill(location, root, BackfillRequest())
    before = columns_of(location, done)["brief"].tolist()
    store = open_corpus(location)
    store.compact(rows=100)
    assert len(open_corpus(location).fragments) == 1
    assert columns_of(location, done)["brief"].tolist() == before
    store.verify()
