"""A store that keeps hashed words answers tasks that read them as a session over the texts does."""

import json

import numpy as np
import pytest

from polyhead.bundle.read import Bundle
from polyhead.engine.backends.reference import ReferenceBackend
from polyhead.engine.session import Session
from polyhead.errors import ConfigError, StoreError
from polyhead.plan import Codec, Pool
from polyhead.store.corpus import open_corpus
from polyhead.store.corpus.base import WORDS, PackedRows
from polyhead.store.corpus.ids import document_id
from polyhead.store.jobs import extract as extractions
from polyhead.store.jobs.backfill import BackfillRequest, backfill
from polyhead.store.jobs.extract import ExtractRequest, extract
from polyhead.store.jobs.store_summary import store_info
from polyhead.store.taps import tapped_paths
from polyhead.store.words import MOST_COLUMNS, packed_words, word_outputs
from polyhead.text.hashing import hashed_text
from polyhead.train.candidates import COLUMNS
from support.backfills import TRUNK, add, make_bundle, texts

COUNTED = [*[f"{'z ' * times}end" for times in (1, 14, 15, 16, 17, 40)], "no " * 300, "e" * 2000]
TEXTS = [*[text for (text,) in texts(range(20))], "", "?!", "東京タワー, e\u0301lan: 10mg 😀", *COUNTED]


def rows_of(inputs):
    several = packed_words(inputs)
    return PackedRows.of([len(each) for each in several], np.concatenate(several))


def naive(text, weights):
    """The sum, feature after feature, in numbers of twice the length."""
    columns, values = hashed_text(text, len(weights))
    return sum((float(v) * weights[c].astype(np.float64) for c, v in zip(columns, values, strict=True)), np.zeros(1))


@pytest.mark.parametrize("columns", [2, 256, COLUMNS[1], MOST_COLUMNS])
@pytest.mark.parametrize("outputs", [1, 3, 2**19])
def test_what_is_kept_gives_the_sums_of_any_number_of_columns(columns, outputs, monkeypatch):
    if outputs == 2**19:  # a text at a time
        monkeypatch.setattr("polyhead.store.words.BLOCK", 1)
        outputs = 2
    weights = np.random.default_rng(0).standard_normal((columns, outputs)).astype(np.float32)
    found = word_outputs(rows_of([(text,) for text in TEXTS]), {"some": weights, "half": weights[: columns // 2]})
    for name, matrix in (("some", weights), ("half", weights[: columns // 2])):
        wanted = np.stack([np.broadcast_to(naive(text, matrix), outputs) for text in TEXTS])
        np.testing.assert_allclose(found[name], wanted, rtol=0, atol=1e-5)


def test_a_pair_keeps_none_and_an_entry_has_three_bytes():
    packed = packed_words([("one text", "another"), ("ab",), ("",), ("ab " * 16,)])
    assert packed[0].shape == packed[2].shape == (0, 3)
    assert len(packed[1]) == 1 + 3  # the word; " ab", "ab " and " ab "
    assert len(packed[3]) == 2 * (1 + 3) + 1  # those 16 times each, and the pair "ab ab" 15 times
    assert COLUMNS[1] <= MOST_COLUMNS


@pytest.fixture(params=["store", "store.lance"])
def location(request, tmp_path):
    return str(tmp_path / request.param)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """A bundle with a task that reads 256 columns of words and one that reads none."""
    root = make_bundle(tmp_path_factory.mktemp("words") / "bundle", ["topics"])
    add(Bundle.open(root), "mood", pool=Pool(positions="mean", codec=Codec(name="float32")), words=256)
    return root


def run(location, bundle, inputs, folder, *, words=True, backend=None, **wish):
    session = Session(bundle, backend="reference")
    source = folder / "texts.jsonl"
    source.write_text("".join(json.dumps(dict(zip(("text", "text_b"), each, strict=False))) + "\n" for each in inputs))
    paths = tapped_paths(session.records, ["mood"])
    wish = ExtractRequest(words=words, **wish)
    return extract(location, source, paths, wish, trunk=TRUNK, backend=backend or ReferenceBackend(TRUNK, {}))


def check_answers(location, bundle, inputs):
    """Scores of a backfill are those of a session over the texts."""
    done = backfill(location, bundle, BackfillRequest(tasks=("mood",), all_scores=True))
    (name,) = [column.name for column in done.columns if column.all_scores]
    store, outputs = open_corpus(location), Session(bundle, backend="reference").columns(inputs, tasks=["mood"])
    found = {}
    for fragment in store.fragments:
        scores = store.results(fragment.name, name)["scores"]
        found |= {one.tobytes(): row for one, row in zip(store.ids(fragment.name), scores, strict=True)}
    assert set(found) == {document_id(each) for each in inputs}
    answers = np.stack([found[document_id(each)] for each in inputs])
    np.testing.assert_allclose(answers, outputs["mood"].scores, rtol=0, atol=5e-4)  # of float16
    return answers


def test_a_backfill_answers_from_words_as_a_session_does(location, bundle, tmp_path):
    inputs = [(text,) for text in TEXTS if text]
    run(location, bundle, inputs, tmp_path)
    answers = check_answers(location, bundle, inputs)
    assert len(np.unique(answers, axis=0)) > len(inputs) // 2
    info = store_info(location, open_corpus(location))
    assert info.words_bytes == 3 * sum(map(len, packed_words(inputs)))
    open_corpus(location).verify()


def test_words_are_kept_whatever_was_interrupted_added_and_joined(location, bundle, tmp_path, monkeypatch):
    monkeypatch.setattr(extractions, "PIECE_ROWS", 5)
    monkeypatch.setattr(extractions, "APPEND_SECONDS", 0.0)
    inputs, calls = texts(range(40)), 0
    backend = ReferenceBackend(TRUNK, {})
    features = backend.features

    def breaking(paths, batch):
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise KeyboardInterrupt
        return features(paths, batch)

    backend.features = breaking
    for words in (True, False) * 20:  # what is asked for is what the store keeps, once it is there
        try:
            run(location, bundle, inputs, tmp_path, words=words, backend=backend)
            break
        except KeyboardInterrupt:
            continue
    store = open_corpus(location)
    assert len(store.fragments) > 2 and store.compact(rows=20) > 0
    store.refresh()
    for fragment in store.fragments:
        rows = store.rows(fragment.name, WORDS)
        for row, one in enumerate(store.ids(fragment.name)):
            (text,) = [each for each in inputs if document_id(each) == one.tobytes()]
            np.testing.assert_array_equal(rows.between(row, row + 1).data, packed_words([text])[0])
    check_answers(location, bundle, inputs)


def test_a_store_without_words_says_how_they_are_kept(location, bundle, tmp_path):
    run(location, bundle, texts(range(5)), tmp_path, words=False)
    assert store_info(location, open_corpus(location)).words_bytes is None
    with pytest.raises(StoreError, match="extract the texts into another store with --words"):
        backfill(location, bundle, BackfillRequest(tasks=("mood",)))
    with pytest.raises(StoreError, match="does not keep the words of its texts"):
        run(location, bundle, texts(range(9)), tmp_path)
    with pytest.raises(StoreError, match="keeps no features 'words'"):
        store = open_corpus(location)
        store.rows(store.fragments[0].name, WORDS)
    with pytest.raises(ConfigError, match="keeps the words of whole texts"):
        ExtractRequest(words=True, long_texts="windows")
