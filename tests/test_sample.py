"""The packaged sample keeps what docs/project/sample.md says: labels, offsets, splits and no near-duplicates."""

import importlib.resources
import itertools
import json
import re
from collections import Counter

import pytest

from polyhead.project.tables import read_project
from studies.sample.texts import near_duplicates
from support.commands import run

SAMPLE = importlib.resources.files("polyhead.sample")
SPLITS = ("train", "validation", "test")
TOPICS = ("delivery", "refund", "defect", "billing", "account", "product_info", "praise")
SENTIMENTS = ("negative", "neutral", "positive")
ANSWERS = ("yes", "no")
STEPS = ("escalate", "return_or_refund", "replace_or_repair", "investigate", "update", "answer", "acknowledge")
SPAN_LABELS = ("product", "order_number", "date", "person")
KINDS = ("multi_label", "regression", "single_label", "tagging")


def rows_of(name):
    return [json.loads(line) for line in (SAMPLE / name).read_text(encoding="utf-8").splitlines()]


MESSAGES = rows_of("messages.jsonl")
PAIRS = rows_of("pairs.jsonl")


def words_of(text):
    return re.findall(r"\w+", text.lower())


def overlap(one, other):
    return len(one & other) / len(one | other)


def values_of(row):
    """Every label a message carries, as (task, label)."""
    yield from (("topics", topic) for topic in row["topics"])
    yield from (("spans", span["label"]) for span in row["spans"])
    yield ("sentiment", row["sentiment"])
    yield from ((task, row[task]) for task in ("question", "next_step", "repeat_contact"))


def spans_of(rows):
    return [(row["text"], span) for row in rows for span in row["spans"]]


def test_sample_holds_at_least_600_messages_and_250_pairs():
    assert len(MESSAGES) >= 600
    assert len(PAIRS) >= 250


def test_sample_has_seven_tasks_of_four_kinds_over_messages_and_one_over_pairs():
    with importlib.resources.as_file(SAMPLE / "polyhead.toml") as file:
        tasks = read_project(file).tasks
    assert [entry.train.path for entry in tasks] == 7 * ["messages.jsonl"] + ["pairs.jsonl"]
    assert sorted({entry.kind for entry in tasks[:7]}) == list(KINDS)


def test_sample_project_declares_the_labels_that_the_rows_have():
    with importlib.resources.as_file(SAMPLE / "polyhead.toml") as file:
        declared = {entry.name: set(entry.labels) for entry in read_project(file).tasks}
    for task in ("topics", "sentiment", "question", "next_step", "repeat_contact"):
        assert declared[task] == {label for row in MESSAGES for name, label in values_of(row) if name == task}, task
    assert declared["details"] == {"O", *(f"{side}-{label}" for side in "BI" for label in SPAN_LABELS)}
    assert declared["same_request"] == {pair["same_request"] for pair in PAIRS}


def test_sample_rows_have_exactly_the_documented_fields():
    labels = ["topics", "sentiment", "urgency", "question", "next_step", "repeat_contact", "spans"]
    fields = ["id", "text", *labels, "split"]
    assert all(list(row) == fields for row in MESSAGES)
    assert all(list(row) == ["id", "text_a", "text_b", "same_request", "split"] for row in PAIRS)
    assert all(list(span) == ["start", "end", "label"] for _, span in spans_of(MESSAGES))


def test_sample_ids_are_unique():
    for rows in (MESSAGES, PAIRS):
        assert len({row["id"] for row in rows}) == len(rows)


def test_sample_uses_only_the_allowed_labels():
    for row in MESSAGES:
        assert set(row["topics"]) <= set(TOPICS), row["id"]
        assert len(set(row["topics"])) == len(row["topics"]), row["id"]
        assert row["sentiment"] in SENTIMENTS, row["id"]
        assert row["question"] in ANSWERS, row["id"]
        assert row["next_step"] in STEPS, row["id"]
        assert row["repeat_contact"] in ANSWERS, row["id"]
        assert row["split"] in SPLITS, row["id"]
        assert all(span["label"] in SPAN_LABELS for span in row["spans"]), row["id"]
    for pair in PAIRS:
        assert pair["same_request"] in ANSWERS, pair["id"]
        assert pair["split"] in SPLITS, pair["id"]


def test_sample_urgency_lies_between_0_and_1_in_steps_of_a_tenth():
    for row in MESSAGES:
        assert isinstance(row["urgency"], float), row["id"]
        assert row["urgency"] in [tenth / 10 for tenth in range(11)], row["id"]


def test_sample_messages_have_3_to_90_words_and_no_outer_whitespace():
    lengths = {row["id"]: len(words_of(row["text"])) for row in MESSAGES}
    assert all(row["text"] == row["text"].strip() for row in MESSAGES)
    assert all(3 <= length <= 90 for length in lengths.values())
    assert sum(length <= 8 for length in lengths.values()) >= 30
    assert sum(length >= 50 for length in lengths.values()) >= 30


def test_sample_spans_lie_inside_the_text_in_order_and_do_not_overlap():
    for row in MESSAGES:
        for span in row["spans"]:
            assert 0 <= span["start"] < span["end"] <= len(row["text"]), row["id"]
        for before, after in itertools.pairwise(row["spans"]):
            assert before["end"] <= after["start"], row["id"]


def test_sample_spans_start_and_end_at_word_boundaries():
    for text, span in spans_of(MESSAGES):
        start, end = span["start"], span["end"]
        assert start == 0 or not text[start - 1].isalnum(), text
        assert end == len(text) or not text[end].isalnum(), text


def test_sample_spans_carry_no_outer_whitespace_or_punctuation():
    for text, span in spans_of(MESSAGES):
        piece = text[span["start"] : span["end"]]
        assert piece.strip() == piece
        assert piece[-1].isalnum(), piece
        assert piece[0].isalnum() or (span["label"] == "order_number" and piece[0] == "#"), piece


def test_sample_order_numbers_contain_a_digit_and_names_do_not():
    for text, span in spans_of(MESSAGES):
        piece = text[span["start"] : span["end"]]
        if span["label"] == "order_number":
            assert any(character.isdigit() for character in piece), piece
        if span["label"] == "person":
            assert not any(character.isdigit() for character in piece), piece


def test_sample_splits_have_the_documented_shares():
    for rows in (MESSAGES, PAIRS):
        share = {split: sum(row["split"] == split for row in rows) / len(rows) for split in SPLITS}
        assert 0.57 <= share["train"] <= 0.66
        assert 0.12 <= share["validation"] <= 0.18
        assert 0.20 <= share["test"] <= 0.28


def test_sample_splits_are_mixed_over_the_file():
    for rows in (MESSAGES, PAIRS):
        for part in range(4):
            quarter = rows[part * len(rows) // 4 : (part + 1) * len(rows) // 4]
            assert {row["split"] for row in quarter} == set(SPLITS)


def test_sample_has_every_label_in_every_split():
    for split in SPLITS:
        found = Counter(value for row in MESSAGES if row["split"] == split for value in values_of(row))
        for topic in TOPICS:
            assert found["topics", topic] >= 5, (split, topic)
        for label in SPAN_LABELS:
            assert found["spans", label] >= 10, (split, label)
        for sentiment in SENTIMENTS:
            assert found["sentiment", sentiment] >= 10, (split, sentiment)
        for step in STEPS:
            assert found["next_step", step] >= 5, (split, step)
        for answer in ANSWERS:
            assert found["question", answer] >= 10, (split, answer)
            assert found["repeat_contact", answer] >= 10, (split, answer)
            assert sum(p["same_request"] == answer and p["split"] == split for p in PAIRS) >= 10


def test_sample_has_enough_examples_of_every_label():
    found = Counter(value for row in MESSAGES for value in values_of(row))
    assert all(found["spans", label] >= 100 for label in SPAN_LABELS)
    assert all(found["topics", topic] >= 90 for topic in TOPICS)
    assert all(found["next_step", step] >= 50 for step in STEPS)
    assert found["repeat_contact", "yes"] >= 100
    urgency = Counter(row["urgency"] for row in MESSAGES)
    assert all(urgency[tenth / 10] >= 20 for tenth in range(11))


def test_sample_proportions_stay_in_the_documented_ranges():
    total = len(MESSAGES)
    assert 0.25 <= sum(len(row["topics"]) > 1 for row in MESSAGES) / total <= 0.35
    assert 30 <= sum(not row["topics"] for row in MESSAGES) <= 40
    assert 0.80 <= sum(bool(row["spans"]) for row in MESSAGES) / total <= 0.95
    assert 0.40 <= sum(pair["same_request"] == "yes" for pair in PAIRS) / len(PAIRS) <= 0.50


@pytest.mark.slow
def test_sample_has_no_near_duplicates():
    """No two rows share many words or a run of them, nor does one repeat another with its details exchanged."""
    assert near_duplicates(MESSAGES, PAIRS) == []


def test_sample_has_no_test_message_in_another_split():
    texts = {split: {" ".join(words_of(r["text"])) for r in MESSAGES if r["split"] == split} for split in SPLITS}
    assert not texts["test"] & (texts["train"] | texts["validation"])
    assert not texts["train"] & texts["validation"]


def test_sample_has_no_pair_text_in_two_splits_or_among_the_messages():
    home = {" ".join(words_of(row["text"])): "messages" for row in MESSAGES}
    for pair in PAIRS:
        for text in (pair["text_a"], pair["text_b"]):
            assert text == text.strip()
            assert home.setdefault(" ".join(words_of(text)), pair["split"]) == pair["split"], text


def test_sample_pairs_are_not_repeated_and_not_a_text_with_itself():
    keys = [frozenset(" ".join(words_of(pair[side])) for side in ("text_a", "text_b")) for pair in PAIRS]
    assert all(len(key) == 2 for key in keys)
    assert len(set(keys)) == len(keys)


def test_sample_pairs_cannot_be_told_apart_by_shared_words_alone():
    def shared(answer):
        scores = [
            overlap(set(words_of(pair["text_a"])), set(words_of(pair["text_b"])))
            for pair in PAIRS
            if pair["same_request"] == answer
        ]
        return sum(scores) / len(scores)

    assert abs(shared("yes") - shared("no")) < 0.15


def test_a_task_that_init_declares_joins_the_bundle_of_the_sample(tmp_path):
    """The sample cut texts at 128 tokens, and no trunk of a newcomer's task did."""
    (tmp_path / "mood.csv").write_text("text,mood\n" + "".join(f"text {n},{'ab'[n % 2]}\n" for n in range(40)))
    done = run("init", tmp_path / "mood.csv", "-o", tmp_path / "polyhead.toml")
    assert done.code == 0, done.err
    assert read_project(SAMPLE / "polyhead.toml").trunk == read_project(tmp_path / "polyhead.toml").trunk
