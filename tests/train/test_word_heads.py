"""Linear heads that read hashed words too: what no vector shows is learned, and the span of texts loses nothing."""

import json

import msgspec
import numpy as np
import pytest

from polyhead.bundle.read import Bundle
from polyhead.engine.session import Session
from polyhead.plan.cost import WORD_WEIGHTS
from polyhead.project.strategies import Pooled
from polyhead.project.tables import Project, TaskEntry, TrunkChoice
from polyhead.text.hashing import hashed_text
from polyhead.train.candidates import word_columns
from polyhead.train.heads.hashed_basis import HashedBasis
from polyhead.train.run import train_project
from support.tiny_project import TRAINING, write_jsonl, write_trunk

COLUMNS = 512
TEXTS = ("where is my order", "the lamp is late", "the lamp is good", "my bill, my card", "zebra", "a zebra is late")
UNKNOWN = ("жук", "щит")  # one token to the tiny tokenizer, [UNK]


def rows_of(texts):
    """The texts as dense rows (texts, columns), float64."""
    rows = np.zeros((len(texts), COLUMNS))
    for row, text in enumerate(texts):
        columns, values = hashed_text(text, COLUMNS)
        rows[row, columns] = values
    return rows


def test_a_ridge_in_the_span_of_the_texts_is_that_of_all_columns():
    hashed = [hashed_text(text, COLUMNS) for text in TEXTS]
    rows, targets, penalty = rows_of(TEXTS), np.arange(len(TEXTS))[:, None] - 2.5, 0.3
    found = np.bincount(np.concatenate([columns for columns, _ in hashed]), minlength=COLUMNS)
    idf = np.log((1 + len(TEXTS)) / (1 + found)) + 1
    weighted = rows * idf
    expected = idf[:, None] * np.linalg.solve(weighted.T @ weighted + penalty * np.eye(COLUMNS), weighted.T @ targets)
    span = HashedBasis(hashed, COLUMNS)
    coordinates = span.coordinates(hashed).astype(np.float64)
    inner = np.linalg.solve(
        coordinates.T @ coordinates + penalty * np.eye(coordinates.shape[1]), coordinates.T @ targets
    )
    weights = span.weights(inner.T.astype(np.float32))
    np.testing.assert_allclose(weights, expected, atol=1e-4)
    unseen = ("the zebra is good", "what else?")
    np.testing.assert_allclose(
        span.coordinates([hashed_text(text, COLUMNS) for text in unseen]) @ inner, rows_of(unseen) @ expected, atol=1e-4
    )


def test_columns_grow_with_rows_and_shrink_with_outputs():
    assert word_columns(10, 2) == 2**12 and word_columns(200, 2) == 2**13 and word_columns(10**6, 2) == 2**16
    assert word_columns(10**6, 100) == 2**14 and word_columns(10**6, 10**4) == 2**12


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Labels that follow from a word that the trunk cannot tell from others."""
    folder = tmp_path_factory.mktemp("words")
    write_trunk(folder / "trunk")
    chance = np.random.default_rng(0)
    known = ("my", "order", "the", "lamp", "is", "late", "today", "please")
    for split, count in (("train", 80), ("test", 40)):
        rows = []
        for number in range(count):
            words = [*chance.choice(known, 3), UNKNOWN[number % 2], *chance.choice(known, 2)]
            rows.append(
                {
                    "text": " ".join(words),
                    "label": "ab"[number % 2],
                    "labels": ["ab"[number % 2]],
                    "number": float(number % 2),
                }
            )
        write_jsonl(folder / f"{split}.jsonl", rows)
    return folder


def trained(home, root, *, train="train.jsonl", **changes):
    files = {"train": train, "test": "test.jsonl", "validation": 0.3}
    entries = (
        TaskEntry(name="which", kind="single_label", labels=("a", "b"), **files),
        TaskEntry(name="several", kind="multi_label", labels=("a", "b"), label="labels", **files),
        TaskEntry(name="number", kind="regression", range=(0.0, 1.0), label="number", **files),
    )
    project = Project(
        tasks=entries,
        trunk=TrunkChoice(name=str(home / "trunk")),
        training=msgspec.structs.replace(TRAINING, epochs=1),
        strategy=Pooled(heads=2, hidden=4, **changes),
        bundle=str(root),
    )
    train_project(project, folder=home, cache=home / "cache")
    return Bundle.open(root)


def test_words_that_no_vector_shows_are_learned_and_kept(home, tmp_path):
    bundle = trained(home, tmp_path / "b")
    for name in ("which", "several", "number"):
        notes, head = bundle.scores(name), bundle.record(name).path.head
        assert (notes["chosen"], head.words) == ("linear, last 2 layers, words", 2**12)
        assert bundle.part(name)[WORD_WEIGHTS].shape == (2**12, head.width)
        bare = max(score for tried, score in notes["tried"].items() if not tried.endswith("words"))
        assert notes["tried"][notes["chosen"]] > bare + 0.1
    rows = [json.loads(line) for line in (home / "test.jsonl").read_text().splitlines()]
    results = Session(tmp_path / "b", precision="float32").predict([row["text"] for row in rows], tasks=["which"])
    right = [result.answers["which"]["label"] == row["label"] for result, row in zip(results, rows, strict=True)]
    assert np.mean(right) == bundle.scores("which")["splits"]["test"]["accuracy"] > 0.7


def test_words_may_be_declined(home, tmp_path):
    bundle = trained(home, tmp_path / "b", words=False)
    for name in ("which", "several", "number"):
        assert not any("words" in tried for tried in bundle.scores(name)["tried"])
        assert not bundle.record(name).path.head.words


def test_a_word_beyond_the_first_window_is_learned(home, tmp_path):
    rows = [json.loads(line) for line in (home / "train.jsonl").read_text().splitlines()]
    long = [{"text": f"{'the lamp is late please ' * 5}{row['text']}", "label": row["label"]} for row in rows]
    write_jsonl(tmp_path / "long.jsonl", long)
    files = {"train": "long.jsonl", "validation": 0.3, "long_texts": "windows"}
    project = Project(
        tasks=(TaskEntry(name="which", kind="single_label", labels=("a", "b"), **files),),
        trunk=TrunkChoice(name=str(home / "trunk"), max_tokens=16),
        training=msgspec.structs.replace(TRAINING, epochs=1),
        strategy=Pooled(heads=2, hidden=4),
        bundle="b",
    )
    train_project(project, folder=tmp_path, cache=tmp_path / "cache")
    assert Bundle.open(tmp_path / "b").record("which").path.head.words
    results = Session(tmp_path / "b").predict([row["text"] for row in long])
    assert results[0].receipt.windows > 2
    right = [result.answers["which"]["label"] == row["label"] for result, row in zip(results, rows, strict=True)]
    assert np.mean(right) > 0.9


def test_few_rows_try_no_words(home, tmp_path):
    bundle = trained(home, tmp_path / "b", train="test.jsonl")
    assert not any("words" in tried for tried in bundle.scores("which")["tried"])


def test_what_two_texts_share_is_learned_though_no_vector_shows_it(tmp_path):
    """The second text, or the right option, has the same word of many that are one token to the trunk."""
    write_trunk(tmp_path / "trunk")
    chance = np.random.default_rng(1)
    for split, count in (("train", 90), ("test", 30)):
        rows = []
        for number in range(count):
            one, other, third = ("".join(chance.choice(list("жукщит"), 5)) for _ in range(3))
            second = (one, other)[number % 2]
            options, right = [f"the {other}", f"the {third}"], int(chance.integers(3))
            options.insert(right, f"the {one}")
            said, more = chance.choice(["my", "order", "lamp", "today", "please"], 2)
            rows.append({"text_a": f"{said} {one} is late", "text_b": f"{more} {second}", "label": "ab"[number % 2]})
            rows[-1] |= {"question": f"is the {one} late?", "choices": options, "right": right}
        write_jsonl(tmp_path / f"{split}.jsonl", rows)
    files = {"train": "train.jsonl", "test": "test.jsonl", "validation": 0.3}
    pair = {"kind": "single_label", "labels": ("a", "b"), "text": "text_a", "text_b": "text_b"}
    entries = (
        TaskEntry(name="same", pair="separate", **pair, **files),
        TaskEntry(name="joined", pair="joined", **pair, **files),
        TaskEntry(name="which", kind="multiple_choice", label="right", **files),
    )
    project = Project(
        tasks=entries,
        trunk=TrunkChoice(name=str(tmp_path / "trunk")),
        training=msgspec.structs.replace(TRAINING, epochs=1),
        strategy=Pooled(heads=2, hidden=4),
        bundle=str(tmp_path / "b"),
    )
    train_project(project, folder=tmp_path, cache=tmp_path / "cache")
    bundle = Bundle.open(tmp_path / "b")
    for entry in entries:
        notes = bundle.scores(entry.name)
        assert notes["chosen"].endswith(", words") and notes["splits"]["test"]["accuracy"] >= 0.9
    rows = [json.loads(line) for line in (tmp_path / "test.jsonl").read_text().splitlines()]
    session = Session(tmp_path / "b", precision="float32")
    answers = session.predict([(row["text_a"], row["text_b"]) for row in rows], tasks=["same"])
    right = [answer.answers["same"]["label"] == row["label"] for answer, row in zip(answers, rows, strict=True)]
    assert np.mean(right) == bundle.scores("same")["splits"]["test"]["accuracy"]
