"""A sample that is encoded anew agrees with what a backfill answered, as far as it does, within an interval."""

import json

import numpy as np
import pytest
from scipy.stats import binomtest

from polyhead.bundle.read import Bundle
from polyhead.engine.session import Session
from polyhead.errors import DataError
from polyhead.store.corpus.plain import PlainStore
from polyhead.store.jobs.backfill import BackfillRequest, backfill
from polyhead.store.jobs.resample import resampled
from polyhead.tasks.agreement import wilson
from support.backfills import ANSWERED, append, make_bundle, schema, texts


@pytest.mark.parametrize(("equal", "of"), [(0, 5), (5, 5), (7, 9), (190, 200), (1, 1)])
def test_the_interval_is_that_of_wilson(equal, of):
    interval = binomtest(equal, of).proportion_ci(method="wilson")
    np.testing.assert_allclose(wilson(equal, of), (interval.low, interval.high), atol=1e-9)


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resample")
    bundle = make_bundle(folder / "bundle")
    path = Bundle.open(bundle).tasks["mood"].path
    store = PlainStore.create(str(folder / "store"), schema(path))
    append(store, path, texts(range(30)))
    append(store, path, texts(range(30, 50)))
    columns = backfill(folder / "store", bundle, BackfillRequest(all_scores=True)).columns
    file = folder / "texts.jsonl"
    file.write_text("".join(json.dumps({"body": text}) + "\n" for (text,) in texts(range(10, 70))))
    return store, Session(bundle, backend="reference"), columns, file


def test_documents_encoded_anew_have_the_stored_answers(filled):
    store, session, columns, file = filled
    found = resampled(store, session, columns, file, roles={"text": "body"}, rng=np.random.default_rng(0))
    assert [one.task for one in found] == ["mood", "topics", "urgency"]
    assert all(one.equal == one.documents == 40 and one.high == 1 and 0.9 < one.low < 1 for one in found)
    assert found[0].line() == "mood: 40 of 40 encoded anew have the same answer (91.2 to 100.0 %)"


def test_answers_that_differ_are_counted(filled):
    store, session, columns, file = filled
    for fragment in store.fragments:
        arrays = store.results(fragment.name, columns[0].name)
        arrays["label"][::2] = 1 - arrays["label"][::2]
        store.put_results(fragment.name, columns[0].name, arrays)
    (mood, *_) = resampled(store, session, columns[:1], file, roles={"text": "body"}, rng=np.random.default_rng(0))
    assert (mood.documents, mood.equal) == (40, 20)
    few = resampled(store, session, columns[:1], file, roles={"text": "body"}, rows=12, rng=np.random.default_rng(0))
    assert few[0].documents <= 12


def test_of_pairs_whose_texts_are_documents_each_the_texts_are_encoded_anew(filled, tmp_path):
    """Of a store made with --separate no pair was found, and the comparison failed."""
    store, session, columns, _ = filled
    file, singles = tmp_path / "pairs.jsonl", [text for (text,) in texts(range(20))]
    pairs = [*zip(singles[:10], singles[10:], strict=True), (singles[0], "nobody kept this")]
    file.write_text("".join(json.dumps({"text": a, "text_b": b}) + "\n" for a, b in pairs))
    topics = [column for column in columns if column.task == "topics"]
    (agreement,) = resampled(store, session, topics, file, roles={}, rng=np.random.default_rng(0))
    assert (agreement.documents, agreement.equal) == (20, 20)


def test_documents_that_a_task_does_not_read_are_not_compared(tmp_path):
    """A pair beside single texts counted as a wrong answer of tasks with one label, and as a right one of others."""
    bundle = make_bundle(tmp_path / "bundle")
    path = Bundle.open(bundle).tasks["mood"].path
    store = PlainStore.create(str(tmp_path / "store"), schema(path))
    singles, pairs = (
        texts(range(20)),
        [(first, second) for (first,), (second,) in zip(texts(range(6)), texts(range(30, 36)), strict=True)],
    )
    append(store, path, singles)
    append(store, path, pairs)
    columns = backfill(tmp_path / "store", bundle, BackfillRequest()).columns
    file = tmp_path / "texts.jsonl"
    file.write_text(
        "".join(json.dumps(dict(zip(("text", "text_b"), row, strict=False))) + "\n" for row in singles + pairs)
    )
    session = Session(bundle, backend="reference")
    assert all(row >= len(singles) for task in session.columns(singles + pairs).tasks.values() for row in task.skipped)
    agreements = resampled(store, session, columns, file, roles={}, rng=np.random.default_rng(0))
    assert [(each.task, each.equal, each.documents) for each in agreements] == [(name, 20, 20) for name in ANSWERED]
    file.write_text(json.dumps(dict(zip(("text", "text_b"), pairs[0], strict=True))) + "\n")
    (mood, *_) = resampled(store, session, columns, file, roles={}, rng=np.random.default_rng(0))
    assert "nothing was compared" in mood.line()


def test_texts_that_the_store_does_not_hold_are_no_sample(filled, tmp_path):
    store, session, columns, _ = filled
    file = tmp_path / "other.jsonl"
    file.write_text('{"text": "nobody kept this"}\n')
    with pytest.raises(DataError, match="none of 200 texts"):
        resampled(store, session, columns, file, roles={}, rng=np.random.default_rng(0))
