"""A backfill gives every document of a store the answers that a session gives to its text."""

import numpy as np
import pytest

from backfills import ANSWERED, add, append, make_bundle, schema, texts
from polyhead.bundle.read import Bundle
from polyhead.engine.session import Session
from polyhead.jobs.backfill import BackfillRequest, backfill
from polyhead.store.corpus.lance import LanceStore
from polyhead.store.corpus.open import open_corpus
from polyhead.store.corpus.plain import PlainStore


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return make_bundle(tmp_path_factory.mktemp("bundle") / "b")


@pytest.fixture(params=["store", "store.lance"])
def location(request, tmp_path):
    return str(tmp_path / request.param)


def filled(location, bundle, *ranges):
    """A store of the texts of these ranges, a fragment each."""
    path = next(iter(Bundle.open(bundle).tasks.values())).path
    kind = LanceStore if location.endswith(".lance") else PlainStore
    store = kind.create(location, schema(path))
    for numbers in ranges:
        append(store, path, texts(numbers))
    return store


def column(location, name):
    """All rows of a column, and the ids that they are of."""
    store = open_corpus(location)
    parts = [store.results(fragment.name, name) for fragment in store.fragments]
    assert all(part is not None for part in parts)
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def test_every_document_has_the_answers_of_a_session_over_its_text(location, bundle):
    filled(location, bundle, range(40), range(40, 55), range(55, 60))
    done = backfill(location, bundle, BackfillRequest(all_scores=True))
    assert (done.documents, done.filled, done.fragments) == (60, 60, 3)
    answers = Session(bundle, backend="reference").columns(texts(range(60)), tasks=ANSWERED)
    mood, moods, topics, _, urgency, _ = (column(location, each.name) for each in done.columns)
    np.testing.assert_array_equal(mood["label"], answers["mood"].label)
    np.testing.assert_allclose(mood["score"], answers["mood"].scores.max(axis=1), atol=1e-4)
    np.testing.assert_allclose(moods["scores"], answers["mood"].scores, atol=1e-3)
    np.testing.assert_array_equal(topics["labels"], answers["topics"].labels)
    np.testing.assert_allclose(urgency["value"], answers["urgency"].value, atol=1e-4)
    assert moods["scores"].dtype == np.float16 and mood["label"].dtype == np.int32


def test_what_is_done_is_not_done_again_and_what_was_appended_since_is(location, bundle):
    store = filled(location, bundle, range(20))
    wish = BackfillRequest(tasks=("mood",))
    assert backfill(location, bundle, wish).filled == 20
    append(store, Bundle.open(bundle).tasks["mood"].path, texts(range(15, 30)))
    again = backfill(location, bundle, wish)
    assert (again.documents, again.filled, again.fragments) == (30, 10, 1)
    assert backfill(location, bundle, wish).filled == 0


def test_another_version_of_a_task_is_another_column(location, tmp_path):
    bundle = make_bundle(tmp_path / "b", ["mood"])
    filled(location, bundle, range(12))
    first = backfill(location, bundle, BackfillRequest()).columns
    add(Bundle.open(bundle), "mood", seed=7, replace=True)
    second = backfill(location, bundle, BackfillRequest()).columns
    assert first[0].name != second[0].name and second[0].version == "v0002"
    assert first[0].record[:12] in first[0].name
    scores = [column(location, each.name)["score"] for each in (*first, *second)]
    assert not np.allclose(*scores)
