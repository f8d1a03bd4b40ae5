"""Long texts in windows: the same answers as with every word in every window, and work that grows with the text."""

import msgspec
import numpy as np
import pytest

from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.engine.batch import batched, readings_of
from polyhead.engine.readers import readers_by_type
from polyhead.engine.session import Session
from polyhead.plan import Pool
from polyhead.tasks.kinds import kind_of, span
from polyhead.testing import tiny_part, tiny_path, tiny_tasks, tiny_trunk
from polyhead.text.tokenize import Tokenizer, Windows
from polyhead.text.words import WordFinder, best_windows, boundary_places, first_subtokens, words_of
from support.cases import cases

TRUNK = tiny_trunk()
TASKS = {
    task.name: msgspec.structs.replace(task, long_texts="windows") for task in tiny_tasks() if kind_of(task).per_word
}
TOKENISER = Tokenizer(TRUNK.tokenizer, TRUNK.settings)
QUESTION = "what is late?"


def context(sentences):
    return "the kettle was late, and my phone bill is not good. " * sentences


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    root = tmp_path_factory.mktemp("long") / "bundle"
    write_bundle(root, TRUNK)
    for seed, task in enumerate(TASKS.values()):
        path = tiny_path(task, TRUNK, pool=Pool())
        arrays = tiny_part(path, TRUNK.architecture, f"task:{task.name}", seed=seed)
        record = TaskRecord(task=task, path=path, trunk=TRUNK.digest)
        Bundle.open(root).add_task(record, arrays, scores={}, probes=[], card="")
    return Session(root)


@cases("seed", range(10))
def test_a_search_finds_in_each_window_what_looking_at_every_word_finds(seed):
    """Words in order, and in any order, that overlap, hold each other, or are empty."""
    rng = np.random.default_rng(seed)
    text = context(8)
    words = boundary_places(text)
    if seed:
        starts = rng.integers(0, len(text), 60)
        drawn = np.stack([starts, np.minimum(starts + rng.integers(0, 40, 60), len(text))], axis=1)
        words = rng.permutation(np.concatenate([words, drawn.astype(np.int32)]))
    search = WordFinder(words)
    for window in TOKENISER.encode([(QUESTION, text), ("a", "")], windows=Windows(size=32, stride=8)):
        every = first_subtokens(window, words)
        which, tokens = search.read_in(window)
        assert which.tolist() == np.flatnonzero(every >= 0).tolist()
        assert tokens.tolist() == every[every >= 0].tolist()


def outputs_in_order(session, name, readings):
    """What the backend gives for these readings, (readings, words, width), which fit one batch."""
    ((batch, tokens),) = batched(
        readings, session.tokenizer, deterministic=session.deterministic, width=session.loaded.width
    )
    outputs = session.backend.run(session.plan([name]), tokens)[name]
    return outputs[np.argsort(batch.entries)]


def every_word_of_every_window(name, session, given):
    """The output of a text as if each window gave all words: NaN where it does not read them."""
    task, text = session.records[name].task, given[-1]
    words = boundary_places(text) if kind_of(task).name == "span" else words_of(text)
    size = session.tokenizer.max_tokens
    encoded = session.tokenizer.encode([given], windows=Windows(size=size, stride=size // 4))
    several = readings_of([given], readers_by_type({name: task}), session.tokenizer, None)
    reads, wide = several[0].texts.reads, []
    outputs = np.concatenate([outputs_in_order(session, name, readings) for readings in several])
    for entry, window in enumerate(encoded):
        tokens = first_subtokens(window, words)
        read = slice(reads.starts[entry], reads.starts[entry + 1])
        assert reads.tokens[read].tolist() == tokens[tokens >= 0].tolist()
        rows = np.full((len(words), kind_of(task).width(task)), np.nan, np.float32)
        rows[tokens >= 0] = outputs[entry, : len(reads.tokens[read])]
        wide.append(rows)
    if kind_of(task).name == "span":
        return kind_of(task).merge_windows(task, wide)
    best = best_windows(encoded, words)[:, 0]
    return np.stack([wide[max(window, 0)][word] for word, window in enumerate(best)])


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("sentences", [1, 9])
def test_outputs_are_those_of_every_word_in_every_window(session, name, sentences):
    given = (QUESTION, context(sentences)) if TASKS[name].pair == "joined" else (context(sentences),)
    (outputs,) = session.outputs(name, [given])
    np.testing.assert_allclose(outputs, every_word_of_every_window(name, session, given), atol=1e-5)
    if sentences == 9 and TASKS[name].pair == "joined":
        assert np.isnan(outputs[1:]).any()


@pytest.mark.parametrize("seed", range(20))
def test_a_window_that_skips_words_has_the_spans_that_it_has_among_all_words(seed):
    rng = np.random.default_rng(seed)
    task, words = next(t for t in TASKS.values() if t.kind == "span"), 90
    wide, read = [], []
    for start in range(0, words - 40, 10):
        stretch = np.arange(1 + start, 41 + start)
        read.append(np.concatenate([[0], np.sort(rng.choice(stretch, 8 + seed % 2 * 20, replace=False))]))
        wide.append(np.full((words, 2), np.nan, np.float32))
        wide[-1][read[-1]] = rng.normal(size=(len(read[-1]), 2))
    narrow = [one[which] for one, which in zip(wide, read, strict=True)]
    merged = kind_of(task).merge_words(task, narrow, read, np.zeros(words, np.int32))
    best = [span.best_span(one) for one in wide]
    chosen = int(np.argmax([one.score for one in best]))
    np.testing.assert_array_equal(merged[1:], wide[chosen][1:])
    np.testing.assert_array_equal(merged[0], min((one[0] for one in wide), key=lambda row: row.sum()))
    assert span.best_span(merged) == best[chosen]


def test_words_kept_and_compared_grow_with_the_text_and_not_with_its_square(session, monkeypatch):
    compared, inner = [], span.best_span

    def counted(outputs):
        compared.append(len(outputs))
        return inner(outputs)

    monkeypatch.setattr(span, "best_span", counted)
    longest = session.tokenizer.max_tokens
    for sentences in (40, 160):
        text = context(sentences)
        words = len(words_of(text))
        for name, given, rows in (("who", (QUESTION, text), 1 + words), ("names", (text,), words)):
            tasks = {name: TASKS[name]}
            readings = readings_of([given], readers_by_type(tasks), session.tokenizer, None)
            reads = readings[0].texts.reads
            assert len(reads.words) == rows  # once, whatever the number of windows
            # windows share a quarter of their tokens or more; two numbers for each word that one reads
            assert reads.places.size + reads.tokens.size < 4 * words
            compared.clear()
            assert len(session.outputs(name, [given])[0]) == rows
            assert sum(compared) < 2 * words and max(compared, default=0) <= longest
            assert bool(compared) == (name == "who")
