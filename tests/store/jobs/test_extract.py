"""An extraction keeps the features of every text once, whatever was interrupted, repeated or asked for later."""

import hashlib
import json
import os
import sys
import types

import numpy as np
import pytest

from polyhead.bundle.read import Bundle
from polyhead.engine.backends.base import TokenBatch
from polyhead.engine.backends.reference import ReferenceBackend
from polyhead.engine.session import Session
from polyhead.errors import ConfigError, DataError, EmptyData, MissingColumn, StoreError, UnknownTask
from polyhead.plan.coding import decode
from polyhead.store.corpus import open_corpus
from polyhead.store.corpus.ids import document_id
from polyhead.store.jobs import extract as extractions
from polyhead.store.jobs.backfill import BackfillRequest, backfill
from polyhead.store.jobs.extract import ExtractRequest, extract
from polyhead.store.jobs.store_summary import store_info
from polyhead.store.taps import Tap, tapped_paths
from polyhead.testing import tiny_trunk
from polyhead.text.tokenize import Tokenizer, windows_of
from support.backfills import TRUNK, make_bundle, texts
from support.disk_failures import FullDisk
from support.tiers import first_of

EXACT = Tap(layers="mean", of=2, codec="float32")


@pytest.fixture(params=["store", "store.lance"])
def location(request, tmp_path):
    return str(tmp_path / request.param)


def write(folder, inputs, name="texts.jsonl"):
    """A file of these texts and pairs, a row each."""
    names = ("text", "text_b")
    rows = [dict(zip(names, text, strict=False)) for text in inputs]
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / name


def run(location, source, *taps, trunk=TRUNK, backend=None, show=lambda text: None, **wish):
    runs = backend or ReferenceBackend(trunk, {})
    return extract(location, source, taps or [EXACT], ExtractRequest(**wish), trunk=trunk, backend=runs, show=show)


def kept(location, number=0):
    """The decoded features of every document, by id."""
    store = open_corpus(location)
    column, documents = store.schema.features[number], {}
    for fragment in store.fragments:
        rows = store.rows(fragment.name, column.digest)
        for row, one in enumerate(store.ids(fragment.name)):
            raw = rows.data[rows.offsets[row] : rows.offsets[row + 1]]
            assert one.tobytes() not in documents
            documents[one.tobytes()] = decode(raw.reshape(len(raw), column.layers, -1), column.codec, column.width)
    return documents


def naive(text, *, layers=2):
    """The mean of the last layers of one text, by itself, from the session's own tokens."""
    tokenizer = Tokenizer(TRUNK.tokenizer, TRUNK.settings)
    encodings = tokenizer.encodings([text])
    ids = encodings.ids[None].astype(np.int64)
    batch = TokenBatch(
        ids=ids,
        mask=np.ones_like(ids, bool),
        segments=encodings.segments[None].astype(np.int64),
        words=np.full((1, 1), -1),
    )
    states = [
        ReferenceBackend(TRUNK, {}).features([Tap(layers="all", codec="float32").path(TRUNK)], batch)[0][:, -number]
        for number in range(1, layers + 1)
    ]
    return np.mean(states, axis=0)[:, None]


def test_every_text_is_kept_once_with_the_values_of_its_own_pass(location, tmp_path):
    inputs = [*texts(range(20)), *texts(range(5)), ("a", "b"), ("a",), ("b", "a")]
    done = run(location, write(tmp_path, inputs))
    documents = kept(location)
    assert (done.rows, done.documents, done.repeated, done.before, done.total) == (28, 23, 5, 0, 23)
    assert set(documents) == {document_id(text) for text in inputs}
    for text in inputs:
        np.testing.assert_allclose(documents[document_id(text)], naive(text), atol=1e-5)
    assert done.tokens == sum(len(value) for value in documents.values())


def test_texts_are_added_later_and_those_that_are_there_are_not_encoded_again(location, tmp_path, monkeypatch):
    monkeypatch.setattr(extractions, "PIECE_ROWS", 7)
    run(location, write(tmp_path, texts(range(20))))
    before = kept(location)
    backend = ReferenceBackend(TRUNK, {})
    done = run(location, write(tmp_path, texts(range(10, 30))), backend=backend)
    assert (done.documents, done.before, done.total) == (10, 10, 30)
    after = kept(location)
    assert all(after[key].tobytes() == value.tobytes() for key, value in before.items())
    again = run(location, write(tmp_path, texts(range(30))), backend=(idle := ReferenceBackend(TRUNK, {})))
    assert (again.documents, again.before, idle.layers_run) == (0, 30, 0) and backend.layers_run > 0


def test_what_was_interrupted_goes_on(location, tmp_path, monkeypatch):
    monkeypatch.setattr(extractions, "PIECE_ROWS", 5)
    monkeypatch.setattr(extractions, "APPEND_SECONDS", 0.0)
    source, whole = write(tmp_path, texts(range(40))), str(tmp_path / "whole")
    run(whole, source)
    backend, rounds = ReferenceBackend(TRUNK, {}), 0
    features, calls = backend.features, 0

    def breaking(paths, batch):
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise KeyboardInterrupt
        return features(paths, batch)

    backend.features = breaking
    while rounds < 20:
        rounds += 1
        try:
            done = run(location, source, backend=backend)
            break
        except KeyboardInterrupt:
            open_corpus(location).verify()
    assert rounds > 2 and done.total == 40 and done.before > 0
    expected = kept(whole)
    for key, value in kept(location).items():
        np.testing.assert_allclose(value, expected.pop(key), atol=1e-6)
    assert not expected


def slow(monkeypatch, *, texts_a_second, stops_at):
    """A backend of this speed by a clock of its own, which the user stops after so many seconds."""
    clock, backend = [0.0], ReferenceBackend(TRUNK, {})
    monkeypatch.setattr(extractions, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
    features = backend.features

    def timed(paths, batch):
        clock[0] += len(batch.ids) / texts_a_second
        if clock[0] > stops_at:
            raise KeyboardInterrupt
        return features(paths, batch)

    backend.features = timed
    return backend


@pytest.mark.parametrize("rate", first_of([5, 14, 100]))
def test_a_stop_loses_half_a_minute_at_most_however_slow_the_machine_is(location, tmp_path, monkeypatch, rate):
    """At 100 texts a second, a stop after 80 seconds of a corpus of 8,000 texts kept nothing."""
    seconds = 100 if rate < 50 else 40
    source = write(tmp_path, [(f"text {number}",) for number in range(rate * seconds + 300)])
    with pytest.raises(KeyboardInterrupt) as stopped:
        run(location, source, backend=slow(monkeypatch, texts_a_second=rate, stops_at=seconds))
    there = len(kept(location))
    assert there >= rate * (seconds - 33)
    assert str(stopped.value) == f"new documents kept: {there:,}"
    monkeypatch.undo()
    done = run(location, source)
    assert (done.before, done.total) == (there, rate * seconds + 300)


def test_a_stop_before_anything_is_encoded_says_that_nothing_is_kept(location, tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt, match="^nothing was finished yet$"):
        run(location, write(tmp_path, texts(range(9))), backend=slow(monkeypatch, texts_a_second=1, stops_at=0))
    assert not open_corpus(location).fragments


def test_repeats_across_pieces_and_appends_are_counted_and_encoded_once(location, tmp_path, monkeypatch):
    monkeypatch.setattr(extractions, "PIECE_ROWS", 5)
    monkeypatch.setattr(extractions, "APPEND_SECONDS", 0.0)
    monkeypatch.setattr("polyhead.store.jobs.documents.PIECE_ROWS", 5)
    inputs = [*texts(range(30)), *texts(range(20, 30)), *texts(range(30, 35)), *texts(range(25, 35))]
    done = run(location, write(tmp_path, inputs))
    assert (done.documents, done.before, done.repeated, done.total) == (35, 0, 20, 35)
    again = run(location, write(tmp_path, inputs))  # its repeats were counted as documents that were there
    assert (again.documents, again.before, again.repeated, again.total) == (0, 35, 20, 35)
    assert done.tokens == sum(len(value) for value in kept(location).values())


def test_several_taps_come_from_one_pass_and_each_is_what_it_would_be_alone(tmp_path):
    source, several = write(tmp_path, texts(range(12))), str(tmp_path / "several")
    taps = [EXACT, Tap(layers="last", codec="sign"), Tap(layers="all", codec="float16")]
    backend, alone = ReferenceBackend(TRUNK, {}), ReferenceBackend(TRUNK, {})
    run(several, source, *taps, backend=backend)
    for number, tap in enumerate(taps):
        run(str(tmp_path / tap.layers), source, tap, backend=alone)
        expected = kept(str(tmp_path / tap.layers))
        for key, value in kept(several, number).items():
            np.testing.assert_array_equal(value, expected[key])
    assert alone.layers_run == 3 * backend.layers_run
    assert kept(several, 2)[document_id(texts([0])[0])].shape[1] == TRUNK.architecture.layers


@pytest.mark.parametrize("codec", ["uint8", "pca1", "token1"])
def test_constants_fixed_when_the_store_was_made_are_its_own_from_then_on(location, tmp_path, codec):
    tap = Tap(of=2, codec=codec)
    run(location, write(tmp_path, texts(range(30))), tap)
    first = open_corpus(location).schema.features[0]
    run(location, write(tmp_path, texts(range(100, 160))), tap)
    assert open_corpus(location).schema.features[0] == first
    assert len(kept(location)) == 90
    exact = str(tmp_path / "exact")
    run(exact, write(tmp_path, texts(range(30))), EXACT)
    expected = kept(exact)
    cosines = [
        np.sum(value * expected[key]) / np.sqrt(np.sum(value**2) * np.sum(expected[key] ** 2))
        for key, value in kept(location).items()
        if key in expected
    ]
    assert np.mean(cosines) > (0.99 if codec == "uint8" else 0.8)


def test_what_other_settings_made_is_refused_and_both_are_named(location, tmp_path):
    source = write(tmp_path, texts(range(8)))
    run(location, source, Tap(of=2, codec="sign"))
    before = kept(location)
    with pytest.raises(StoreError, match="mean of layers 1 to 2, every token, float16.*mean of layers 1 to 2.*sign"):
        run(location, source, Tap(of=2, codec="float16"))
    with pytest.raises(StoreError, match="layer 2, every token, sign.*mean of layers 1 to 2"):
        run(location, source, Tap(layers="last", codec="sign"))
    other = tiny_trunk(seed=7)
    with pytest.raises(StoreError, match=f"another trunk.*{other.digest}.*{TRUNK.digest}"):
        run(location, source, Tap(of=2, codec="sign"), trunk=other)
    with pytest.raises(StoreError, match="another long texts.*windows.*cut"):
        run(location, source, Tap(of=2, codec="sign"), long_texts="windows")
    half = ReferenceBackend(TRUNK, {})
    half.precision = "bfloat16"
    with pytest.raises(StoreError, match="another precision.*bfloat16.*float32"):
        run(location, source, Tap(of=2, codec="sign"), backend=half)
    assert kept(location).keys() == before.keys()


def test_long_texts_are_cut_and_counted_or_read_in_windows(location, tmp_path):
    long = (" ".join(["a", "b", "c"] * 40),)
    inputs = [long, *texts(range(3))]
    done = run(location, write(tmp_path, inputs))
    tokenizer = Tokenizer(TRUNK.tokenizer, TRUNK.settings)
    assert (done.cut, done.cut_tokens) == (1, int(tokenizer.encodings([long]).cut[0])) and done.max_tokens == 48
    assert len(kept(location)[document_id(long)]) == 48
    windowed = str(tmp_path / "windowed")
    done = run(windowed, write(tmp_path, inputs), long_texts="windows")
    encodings = tokenizer.encodings([long], windows=windows_of(48))
    documents = kept(windowed)
    assert (done.cut, done.cut_tokens, len(documents)) == (0, 0, len(encodings.row) + 3)
    assert len(encodings.row) > 2
    for window, length in enumerate(encodings.lengths.tolist()):
        assert len(documents[document_id(long, f"window:{window}" if window else "")]) == length


def test_pairs_are_read_together_or_are_two_documents(location, tmp_path):
    source = write(tmp_path, [("a", "b"), ("b", "c")])
    assert set(run(location, source) and kept(location)) == {document_id(("a", "b")), document_id(("b", "c"))}
    apart = str(tmp_path / "apart")
    done = run(apart, source, separate=True)
    assert set(kept(apart)) == {document_id((text,)) for text in "abc"} and (done.documents, done.repeated) == (3, 1)


def test_rows_that_cannot_be_read_are_counted_and_cost_nothing_else(location, tmp_path):
    source = tmp_path / "rows.jsonl"
    source.write_text('{"text": "a"}\nnonsense\n{"text": ""}\n{"text": null}\n{"other": 1}\n{"text": "b"}\n')
    done = run(location, source)
    assert (done.rows, done.documents, done.unread) == (6, 2, 4)
    assert "row 2" in done.first_unread
    with pytest.raises(DataError, match="no row"):
        (tmp_path / "bad.jsonl").write_text("nonsense\n")
        run(location, tmp_path / "bad.jsonl")


def test_the_first_row_that_cannot_be_read_is_that_of_the_file_and_not_of_a_sample(location, tmp_path, monkeypatch):
    """Where texts were sampled for a codec, a later row was called the first."""
    source = tmp_path / "rows.jsonl"
    source.write_text("nonsense\n" + "".join(f'{{"text": "text {n}"}}\n' for n in range(20)) + "rubbish\n")
    draw = extractions.drawn_rows
    monkeypatch.setattr(extractions, "drawn_rows", lambda *drawn: [*draw(*drawn)][1:])
    done = run(location, source, Tap(layers="mean", of=2, codec="uint8"))
    assert done.unread == 2 and "row 1:" in done.first_unread


def test_a_blank_text_is_no_document_as_no_task_answers_it(location, tmp_path):
    """It was kept, and backfills gave it labels where a prediction gives none."""
    source = write(tmp_path, [("a",), ("",), (" \n",), ("a", "b"), ("c", " ")])
    done = run(location, source)
    assert set(kept(location)) == {document_id(("a",)), document_id(("a", "b"))}
    assert (done.documents, done.unread, done.first_unread) == (2, 3, "texts.jsonl row 2: the text is empty")
    apart = str(tmp_path / "apart")
    done = run(apart, source, separate=True)
    assert set(kept(apart)) == {document_id((text,)) for text in "abc"} and done.unread == 2


def test_files_without_rows_or_texts_are_refused(location, tmp_path):
    empty, other = tmp_path / "empty.jsonl", tmp_path / "other.jsonl"
    empty.write_text("")
    other.write_text('{"label": "x"}\n')
    with pytest.raises(EmptyData, match="no row"):
        run(location, empty)
    with pytest.raises(MissingColumn, match="--text COLUMN"):
        run(location, other)
    with pytest.raises(MissingColumn, match="'body'|body"):
        run(location, write(tmp_path, texts(range(2))), columns={"text": "body"})
    with pytest.raises(DataError, match="no file"):
        run(location, tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match="label"):
        ExtractRequest(columns={"label": "x"})
    with pytest.raises(ConfigError):
        ExtractRequest(processes=-1)


def test_of_two_first_extractions_the_slower_goes_on_with_the_store_of_the_other(location, tmp_path, monkeypatch):
    """It was told to use another place, or to delete the store, whose codec has constants from other texts."""
    sources = [write(tmp_path, texts(range(n, n + 40)), f"texts{n}.jsonl") for n in (0, 40)]
    tap, create = Tap(layers="mean", of=2, codec="uint8"), extractions.create_corpus
    made = []

    def create_second(place, schema):
        if not made:
            made.append(place)
            assert run(location, sources[1], tap).documents == 40
        return create(place, schema)

    monkeypatch.setattr(extractions, "create_corpus", create_second)
    done = run(location, sources[0], tap)
    assert made and (done.documents, done.total) == (40, 80)
    source = open_corpus(location).schema.source
    assert source["texts"] == str(sources[1])


def test_a_file_whose_name_is_no_text_is_read_and_not_named(location, tmp_path):
    """A name with a byte that is no UTF-8 ended in an error of encoding."""
    source = write(tmp_path, texts(range(3)), os.fsdecode(b"t\xff.jsonl"))
    assert run(location, source).documents == 3 and "texts" not in open_corpus(location).schema.source


def test_a_data_set_of_the_hub_is_a_file_of_rows(location, monkeypatch):
    rows = [{"text": text} for (text,) in texts(range(6))]

    class Dataset(list):
        features = {"text": None}

    loaded = []
    monkeypatch.setitem(
        sys.modules,
        "datasets",
        types.SimpleNamespace(load_dataset=lambda *words, **named: loaded.append((words, named)) or Dataset(rows)),
    )
    done = run(location, "datasets:owner/name:train")
    assert done.documents == 6 and loaded[0] == (("owner/name", None), {"split": "train"})


def test_what_tasks_read_is_kept_and_answers_them(location, tmp_path):
    bundle = Bundle.open(make_bundle(tmp_path / "bundle"))
    paths = tapped_paths(bundle.tasks, ("mood", "topics", "urgency"))
    assert len(paths) == 1
    run(location, write(tmp_path, texts(range(25))), *paths)
    done = backfill(location, bundle.root, BackfillRequest(tasks=("mood", "urgency")))
    assert done.filled == 25
    store = open_corpus(location)
    answers = Session(bundle, backend="reference").columns(texts(range(25)), tasks=["mood"])["mood"].label
    by_id = dict(zip(map(document_id, texts(range(25))), answers.tolist(), strict=True))
    (fragment,) = store.fragments
    labels = store.results(fragment.name, done.columns[0].name)["label"]
    ids = [one.tobytes() for one in store.ids(fragment.name)]
    assert dict(zip(ids, labels.tolist(), strict=True)) == by_id
    with pytest.raises(UnknownTask, match="moods"):
        tapped_paths(bundle.tasks, ("moods",))


def test_a_full_disk_is_said_and_the_store_stays_readable(tmp_path, monkeypatch):
    location, source = str(tmp_path / "store"), write(tmp_path, texts(range(30)))
    run(location, write(tmp_path, texts(range(5)), "few.jsonl"))
    before = kept(location)
    with monkeypatch.context() as patch:
        disk = FullDisk(patch, 3)
        with pytest.raises(StoreError, match="No space left on device|full"):
            run(location, source)
    assert disk.calls >= 3
    store = open_corpus(location)
    store.verify()
    assert kept(location).keys() == before.keys()
    assert run(location, source).total == 30


def test_a_store_says_what_it_keeps(location, tmp_path):
    run(location, write(tmp_path, texts(range(9))), EXACT, Tap(layers="last", codec="sign"))
    info = store_info(location, open_corpus(location))
    assert (info.documents, info.fragments, info.id_bytes) == (9, 1, 144)
    assert [each.keeps for each in info.features] == [
        "mean of layers 1 to 2, every token, float32",
        "layer 2, every token, sign",
    ]
    assert info.features[1].token_bytes == 2 and info.features[1].bytes == 2 * info.features[1].tokens
    assert info.source["trunk"] == TRUNK.digest and len(info.source["tokenizer"]) == 64
    assert info.disk_bytes > info.features[0].bytes


def test_progress_counts_rows_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(extractions, "PIECE_ROWS", 5)
    shown = []
    run(str(tmp_path / "store"), write(tmp_path, texts(range(20))), show=shown.append)
    done = [int(line.split(": ")[1].split(" of")[0]) for line in shown if " of 20 rows" in line]
    assert done == sorted(done) and done[-1] == 20 and done[0] <= 5


@pytest.mark.parametrize("text", ["first", "mean0", "last2", "mean4:", "mean4:nothing", "", "mean4:pca1:x"])
def test_a_tap_of_another_form_is_refused(text):
    with pytest.raises(ConfigError):
        Tap.parsed(text)


def test_taps_say_layers_and_codec():
    assert Tap.parsed("mean3:sign") == Tap(layers="mean", of=3, codec="sign")
    assert Tap.parsed("last").layers == "last" and Tap.parsed("all:uint8").codec == "uint8"
    assert (
        hashlib.sha256(TRUNK.tokenizer).hexdigest()
        != extractions.feature_origin(TRUNK, precision="float32", long_texts="cut")["tokenizer"]
    )
