"""A backfill gives every document of a store the answers that a session gives to its text."""

import multiprocessing
import re

import msgspec
import numpy as np
import pytest

from polyhead.bundle.read import Bundle
from polyhead.certify.annotations import Annotations, keep_annotations
from polyhead.engine.session import Session
from polyhead.errors import ConfigError, StoreError, UnknownTask
from polyhead.plan import Codec, digest
from polyhead.store.corpus import create_corpus, open_corpus
from polyhead.store.corpus.base import PackedRows
from polyhead.store.corpus.ids import document_id
from polyhead.store.corpus.lance import LanceStore
from polyhead.store.corpus.plain import PlainStore
from polyhead.store.jobs import backfill as backfills_of
from polyhead.store.jobs import workers as answering
from polyhead.store.jobs.answers import answer_columns, column_arrays
from polyhead.store.jobs.backfill import Backfill, BackfillRequest, backfill
from polyhead.tasks.calibration import Calibration, SetRule
from support.backfills import ANSWERED, POOL, TASKS, TRUNK, add, append, make_bundle, schema, texts
from support.stores import make_store


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
    mood, moods, topics, _, urgency = (column(location, each.name) for each in done.columns)
    np.testing.assert_array_equal(mood["label"], answers["mood"].label)
    np.testing.assert_allclose(mood["score"], answers["mood"].scores.max(axis=1), atol=1e-4)
    np.testing.assert_allclose(moods["scores"], answers["mood"].scores, atol=1e-3)
    np.testing.assert_array_equal(topics["labels"], answers["topics"].labels)
    np.testing.assert_allclose(urgency["value"], answers["urgency"].value, atol=1e-4)
    assert moods["scores"].dtype == np.float16 and mood["label"].dtype == np.int32


def test_calibrated_answers_are_columns_of_their_own_where_they_are_asked_for(location, tmp_path):
    bundle = make_bundle(tmp_path / "b")
    filled(location, bundle, range(20))
    with pytest.raises(ConfigError, match="polyhead calibrate"):
        backfill(location, bundle, BackfillRequest(calibrated=True))
    outputs = np.stack(Session(bundle, backend="reference").outputs("mood", texts(range(20)))) / 2
    middle = float(np.median((np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)).max(axis=1)))
    sets = (SetRule(coverage=0.9, limit=0.4),)
    calibration = Calibration(scale=(0.5,), unsure_below=middle, sets=sets, coverage=0.9)
    keep_annotations(bundle, {"mood": Annotations(calibration=calibration)}, read=Bundle.open(bundle))
    plain = backfill(location, bundle, BackfillRequest(tasks=("mood",)))
    assert len(plain.columns) == 1
    answers, own = backfill(location, bundle, BackfillRequest(tasks=("mood",), calibrated=True)).columns
    assert answers == plain.columns[0] and own.name == answers.name + "_calibrated"
    made = column(location, own.name)
    results = Session(bundle, backend="reference").predict(texts(range(20)), tasks=["mood"])
    said = [result.answers["mood"]["calibrated"] for result in results]
    assert made["unsure"].tolist() == [each["unsure"] for each in said] and 0 < made["unsure"].sum() < 20
    labels = TASKS["mood"].labels
    assert [None if place < 0 else labels[place] for place in made["label"]] == [each["label"] for each in said]
    np.testing.assert_allclose(made["probability"], [max(each["scores"].values()) for each in said], atol=1e-4)
    assert [[labels[at] for at in np.flatnonzero(row)] for row in made["set"]] == [each["set"] for each in said]
    facts = open_corpus(location).described()[own.name]
    assert facts.arrays == {"label": "int32", "probability": "float32", "unsure": "bool", "set": "bool"}


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


def test_the_store_says_what_its_columns_hold(location, bundle):
    filled(location, bundle, range(3))
    done = backfill(location, bundle, BackfillRequest(tasks=("mood", "urgency")))
    facts = open_corpus(location).described()
    assert set(facts) == {column.name for column in done.columns}
    mood = facts[done.columns[0].name]
    assert (mood.task, mood.labels, mood.trunk) == ("mood", ("bad", "good"), TRUNK.digest)
    assert mood.record == Bundle.open(bundle).lines["mood"].record
    assert mood.arrays == {"label": "int32", "score": "float32"}
    assert facts[done.columns[1].name].arrays == {"value": "float32"}


def during(monkeypatch, change):
    """Makes a change right before the first column is put."""
    put, changes = Backfill._put, [change]

    def changed(self, *filled):
        while changes:
            changes.pop()()
        put(self, *filled)

    monkeypatch.setattr(Backfill, "_put", changed)


def test_fragments_joined_meanwhile_are_done_again(location, bundle, monkeypatch):
    filled(location, bundle, range(10), range(10, 30), range(30, 35))
    during(monkeypatch, lambda: open_corpus(location).compact(rows=100))
    done = backfill(location, bundle, BackfillRequest(tasks=("mood",)))
    assert (done.documents, done.filled, done.fragments) == (35, 35, 1)
    answers = Session(bundle, backend="reference").columns(texts(range(35)), tasks=["mood"])
    np.testing.assert_array_equal(column(location, done.columns[0].name)["label"], answers["mood"].label)


def test_documents_appended_meanwhile_are_answered_too(location, bundle, monkeypatch):
    store = filled(location, bundle, range(10))
    path = Bundle.open(bundle).tasks["mood"].path
    during(monkeypatch, lambda: append(store, path, texts(range(10, 30))))
    done = backfill(location, bundle, BackfillRequest(tasks=("mood",)))
    assert (done.documents, done.filled) == (30, 30)


def test_units_are_small_and_answers_of_all_sizes_equal(location, bundle, monkeypatch):
    filled(location, bundle, range(50), range(50, 53))
    whole = backfill(location, bundle, BackfillRequest()).columns
    wanted = [column(location, each.name) for each in whole]
    for each in whole:
        open_corpus(location).drop_results(each.name)
    monkeypatch.setattr(backfills_of, "UNIT_ROWS", 7)
    monkeypatch.setattr(answering, "SLICE_BYTES", 100)
    done = backfill(location, bundle, BackfillRequest())
    assert (done.filled, done.fragments) == (53, 2)
    for each, before in zip(whole, wanted, strict=True):
        for name, array in column(location, each.name).items():
            np.testing.assert_allclose(array, before[name], rtol=1e-5)


@pytest.mark.slow
def test_processes_give_the_answers_of_this_process(location, bundle, monkeypatch):
    filled(location, bundle, range(40), range(40, 45))
    here = backfill(location, bundle, BackfillRequest(executor="inline")).columns
    wanted = [column(location, each.name) for each in here]
    for each in here:
        open_corpus(location).drop_results(each.name)
    monkeypatch.setattr(backfills_of, "UNIT_ROWS", 16)
    done = backfill(location, bundle, BackfillRequest(executor="processes", workers=2, dollars_an_hour=3.0))
    assert (done.executor, done.workers, done.filled) == ("processes", 2, 45)
    for each, before in zip(here, wanted, strict=True):
        for name, array in column(location, each.name).items():
            np.testing.assert_allclose(array, before[name], rtol=1e-5)


def test_a_store_of_another_trunk_is_refused_with_both_digests(location, bundle, tmp_path):
    other = msgspec.structs.replace(
        TRUNK, name="other", settings=msgspec.structs.replace(TRUNK.settings, max_tokens=40)
    )
    theirs = make_bundle(tmp_path / "theirs", ["mood"], trunk=other)
    filled(location, bundle, range(3))
    with pytest.raises(StoreError, match="another trunk") as error:
        backfill(location, theirs, BackfillRequest())
    assert TRUNK.digest in str(error.value) and other.digest in str(error.value)


def test_a_store_that_names_no_trunk_is_refused(location, bundle):
    """It was answered as if its features were the bundle's own trunk's."""
    path = next(iter(Bundle.open(bundle).tasks.values())).path
    store = create_corpus(location, msgspec.structs.replace(schema(path), source={"tokenizer": "t"}))
    append(store, path, texts(range(3)))
    with pytest.raises(StoreError, match="another trunk .*that it does not name.* extract"):
        backfill(location, bundle, BackfillRequest())


def test_a_store_of_another_codec_is_refused_with_both_digests(location, bundle, tmp_path):
    halves = msgspec.structs.replace(POOL, codec=Codec(name="float16"))
    theirs = make_bundle(tmp_path / "theirs", ["mood"], pool=halves)
    filled(location, bundle, range(3))
    with pytest.raises(StoreError, match="other features than") as error:
        backfill(location, theirs, BackfillRequest())
    for one, codec in ((bundle, "sign"), (theirs, "float16")):
        assert f"{digest(Bundle.open(one).tasks['mood'].path.stored())} ({codec})" in str(error.value)


def test_without_names_all_that_the_store_can_answer_are_answered(location, tmp_path):
    bundle = make_bundle(tmp_path / "b", ["mood", "names", "alike"])
    filled(location, bundle, range(3))
    assert [each.task for each in backfill(location, bundle, BackfillRequest()).columns] == ["mood"]


@pytest.mark.parametrize(("name", "why"), [("names", "needs the text"), ("alike", "two texts"), ("reply", "the text")])
def test_a_task_that_needs_more_than_features_is_refused_with_the_reason(name, why, location, tmp_path):
    bundle = make_bundle(tmp_path / "b", ["mood", name])
    filled(location, bundle, range(3))
    with pytest.raises(StoreError, match=why) as error:
        backfill(location, bundle, BackfillRequest(tasks=(name,)))
    assert "polyhead predict" in error.value.do


def test_workers_and_an_address_choose_the_executor_however_few_documents_there_are(monkeypatch):
    """Below 100,000 documents both were ignored."""
    monkeypatch.setattr(backfills_of, "processors", lambda: 3)
    cases = {
        (BackfillRequest(), 10): ("inline", 1),
        (BackfillRequest(), backfills_of.MANY): ("processes", 3),
        (BackfillRequest(workers=1), backfills_of.MANY): ("inline", 1),
        (BackfillRequest(workers=4), 10): ("processes", 4),
        (BackfillRequest(address="ray://head:10001"), 10): ("ray", 3),
        (BackfillRequest(address="ray://head:10001", workers=64), backfills_of.MANY): ("ray", 64),
        (BackfillRequest(executor="ray"), 10): ("ray", 3),
        (BackfillRequest(executor="processes", workers=1), 10): ("processes", 1),
    }
    for (wish, documents), who in cases.items():
        assert backfills_of.executor_for(wish, documents) == who


def test_what_is_asked_wrongly_is_refused(location, bundle):
    filled(location, bundle, range(3))
    with pytest.raises(UnknownTask, match="moods"):
        backfill(location, bundle, BackfillRequest(tasks=("moods",)))
    with pytest.raises(ConfigError, match="at least one worker"):
        BackfillRequest(workers=0)
    with pytest.raises(ConfigError, match="number of dollars"):
        BackfillRequest(dollars_an_hour=-1.0)
    with pytest.raises(ConfigError, match="no executor 'thread'"):
        BackfillRequest(executor="thread")
    with pytest.raises(ConfigError, match="'inline' is one worker.*Got: 2"):
        BackfillRequest(executor="inline", workers=2)
    for executor in ("inline", "processes"):
        with pytest.raises(ConfigError, match=f"'{executor}' has no address.*'ray'"):
            BackfillRequest(executor=executor, address="ray://head:10001")
    with pytest.raises(StoreError, match="no store"):
        backfill(location + "x", bundle, BackfillRequest())


def test_documents_whose_tasks_read_two_columns_count_once_and_get_their_answers_at_once(tmp_path):
    """They counted for each column, and each task's answers were another version of the store."""
    root = make_bundle(tmp_path / "bundle", ["mood", "urgency"])
    add(Bundle.open(root), "topics", pool=msgspec.structs.replace(POOL, codec=Codec(name="float32")))
    paths = [Bundle.open(root).tasks[name].path.stored() for name in ("mood", "topics")]
    store = make_store(tmp_path / "store", texts(range(20)), *paths, trunk=TRUNK)
    before = store.version
    done = backfill(tmp_path / "store", root, BackfillRequest())
    assert len({digest(path) for path in paths}) == 2 and len(done.columns) == 3
    assert (done.documents, done.filled, done.fragments, done.price.documents) == (20, 20, 1, 20)
    assert open_corpus(tmp_path / "store").version == before + 1
    answers = Session(root, backend="reference").columns(texts(range(20)), tasks=ANSWERED)
    for each in done.columns:
        name = {"mood": "label", "topics": "labels", "urgency": "value"}[each.task]
        values = column(tmp_path / "store", each.name)[name]
        np.testing.assert_allclose(values, getattr(answers[each.task], name), rtol=1e-3)


def test_documents_without_a_token_have_no_answer(location, bundle):
    path = Bundle.open(bundle).tasks["mood"].path
    store = filled(location, bundle, range(4))
    (kept,) = schema(path).features
    store.append([bytes(16)], {kept.digest: PackedRows.of([0], np.empty((0, kept.token_bytes), np.uint8))})
    done = backfill(location, bundle, BackfillRequest(all_scores=True))
    by_name = {each.name: column(location, each.name) for each in done.columns}
    mood, moods, topics, _, urgency = by_name.values()
    assert mood["label"][:4].min() >= 0 and mood["label"][4] == -1
    assert not topics["labels"][4].any()
    for lacking in (mood["score"], moods["scores"][:, 0], topics["score"], urgency["value"]):
        assert np.isfinite(lacking[:4]).all() and np.isnan(lacking[4])


def appending(location, bundle, start):
    store, path = open_corpus(location), Bundle.open(bundle).tasks["mood"].path
    for number in range(start, start + 40, 8):
        append(store, path, texts(range(number, number + 10)))


@pytest.mark.slow
def test_two_writers_and_a_backfill_at_once_lose_nothing(location, bundle):
    filled(location, bundle)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=appending, args=(location, bundle, start)) for start in (0, 24)]
    for writer in writers:
        writer.start()
    wish = BackfillRequest(tasks=("mood",))
    while any(writer.is_alive() for writer in writers):
        backfill(location, bundle, wish)
    done = backfill(location, bundle, wish)
    assert [writer.exitcode for writer in writers] == [0, 0]
    store = open_corpus(location)
    ids = [bytes(one) for fragment in store.fragments for one in store.ids(fragment.name)]
    assert len(set(ids)) == len(ids) == done.documents == 66
    store.verify()
    label = dict(zip(ids, column(location, done.columns[0].name)["label"].tolist(), strict=True))
    answers = Session(bundle, backend="reference").columns(texts(range(66)), tasks=["mood"])["mood"].label
    assert [label[document_id(text)] for text in texts(range(66))] == answers.tolist()


def test_columns_are_told_apart_by_version_and_have_names_that_every_store_takes(bundle):
    line = Bundle.open(bundle).lines["mood"]
    (one,) = answer_columns("a.b", line, all_scores=False)
    (_, scores) = answer_columns("a.b", line, all_scores=True)
    assert re.fullmatch(r"a-b_v0001_[0-9a-f]{12}", one.name) and scores.name == one.name + "_scores"
    outputs = np.float32([[0.0, 2.0], [np.nan, 1.0]])
    kept = column_arrays(one, TASKS["mood"], outputs)
    assert kept["label"].tolist() == [1, -1]
    np.testing.assert_allclose(kept["score"], [1 / (1 + np.exp(-2.0)), np.nan], rtol=1e-6)


def test_what_a_store_does_not_know_of_inputs_is_told(tmp_path, monkeypatch):
    """A store does not know which documents are pairs, what follows the first window, and if any label fits."""
    monkeypatch.setitem(TASKS, "mood", msgspec.structs.replace(TASKS["mood"], none_below=0.02))
    windowed = msgspec.structs.replace(TASKS["topics"], long_texts="windows")
    monkeypatch.setitem(TASKS, "topics", windowed)
    bundle = make_bundle(tmp_path / "b", ["mood", "same", "topics"])
    filled(str(tmp_path / "store"), bundle, range(4))
    told = []
    backfill(tmp_path / "store", bundle, BackfillRequest(), tell=told.append)
    assert told[:3] == [
        "every document is answered as a pair, single texts too, by same",
        "of a long text the first window alone is read by topics",
        "no answer says none_of_these by mood: --familiar keeps the share that `none_below` compares",
    ]
    backfill(tmp_path / "store", bundle, BackfillRequest(tasks=("mood",)), tell=(alone := []).append)
    assert not any("read by" in line or "as a pair" in line for line in alone)
