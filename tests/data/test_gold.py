"""Gold spans are scored as the file has them, by characters, whatever words there are."""

import json
import random
import warnings

import numpy as np
import pytest
import seqeval.metrics

from benchmarks.silent_scripts_made import every_row
from polyhead.data.columns import Source
from polyhead.data.read import read
from polyhead.errors import BadValue, ConfigError, EmptyData
from polyhead.tasks.gold import TaggedSpan, cut_words, longest_disjoint, overlapping_pair, widened
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.kinds.tagged import parts_marked
from polyhead.tasks.task import Example, Task
from polyhead.text.words import words_of
from support.cases import cases

NAMES = ("LOC", "AMOUNT", "UNIT")
BIO = Task(name="t", kind="tagging", labels=("O", *(f"{head}-{name}" for name in NAMES for head in ("B", "I"))))
TAGS = ["O", "B-a", "I-a", "B-b", "I-b", "B-a-c", "I-a-c"]


def span(text, part, label, nth=0):
    start = -1
    for _ in range(nth + 1):
        start = text.index(part, start + 1)
    return {"start": start, "end": start + len(part), "label": label}


def examples_of(tmp_path, rows, **columns):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": t, "spans": s}) + "\n" for t, s in rows), encoding="utf-8")
    return read(Source(path=str(path), spans="spans", **columns), BIO)


def outputs_for(examples, spans_of_each):
    """Outputs as an engine gives them: of a text's own words, B at a span's first and I at its others; the words that
    gold cut get what the token of their first letter gets, as tokens know nothing of gold."""
    outputs = []
    for example, spans in zip(examples.each(), spans_of_each, strict=True):
        own, row = words_of(example.text), []
        for start, _ in example.places.tolist():
            word = own[np.searchsorted(own[:, 0], start, side="right") - 1]
            label = 0
            for each in spans:
                if each["start"] <= word[0] < each["end"]:
                    head = "B" if word[0] == each["start"] else "I"
                    label = BIO.labels.index(f"{head}-{each['label']}")
            row.append(np.eye(len(BIO.labels), dtype=np.float32)[label] * 9)
        outputs.append(np.array(row, np.float32).reshape(-1, len(BIO.labels)))
    return outputs


def test_a_gold_span_inside_a_word_is_missed_by_an_answer_that_takes_the_whole_word(tmp_path):
    text = "the Donaudampf ships from Linz"
    gold = [span(text, "Donau", "LOC"), span(text, "Linz", "LOC")]
    examples = examples_of(tmp_path, [(text, gold)])
    kind, outputs = kind_of(BIO), outputs_for(examples, [[span(text, "Donaudampf", "LOC"), gold[1]]])
    scores = kind.evaluate(BIO, outputs, examples.targets, examples.each())
    # One of two gold spans is right, one of two answers; widened to words, both are.
    assert scores["span_f1"] == pytest.approx(0.5) and scores["widened_span_f1"] == 1.0
    (label,) = [each for each in kind.label_scores(BIO, outputs, examples.targets, examples.each()) if each.support]
    assert (label.label, label.support, label.predicted, label.recall) == ("LOC", 2, 2, 0.5)
    (answer,) = kind.decode_all(BIO, outputs, examples.each())
    assert [each["text"] for each in answer["spans"]] == ["Donaudampf", "Linz"]
    mistake = kind.mistake(BIO, answer, examples.targets[0], examples.each()[0])
    assert [each["text"] for each in mistake.truth] == ["Donau", "Linz"]
    assert [each["text"] for each in mistake.answer] == ["Donaudampf", "Linz"]
    recount = kind.judged(BIO, outputs, examples.targets, examples.each()).recount(np.ones((1, 1)))
    assert {name: float(value[0]) for name, value in recount.items()} == pytest.approx(scores)
    assert (examples.report.lost, examples.report.used) == (1, 1)


def test_words_are_cut_where_gold_begins_or_ends_inside_one_so_that_both_sides_teach(tmp_path):
    text = "Haupt-Donaudampfweg 10mg"
    gold = [span(text, "dampf", "UNIT"), span(text, "weg", "LOC"), span(text, "10", "AMOUNT"), span(text, "mg", "UNIT")]
    examples = examples_of(tmp_path, [(text, gold)])
    assert [text[a:b] for a, b in examples.words[0]] == ["Haupt", "-", "Donau", "dampf", "weg", "10", "mg"]
    labels = [BIO.labels[index] for index in examples.targets[0]]
    assert labels == ["O", "O", "O", "B-UNIT", "B-LOC", "B-AMOUNT", "B-UNIT"]
    assert examples.report.lost == 2  # "10" and "mg" are words of every text


def test_an_answer_with_the_characters_of_gold_is_right_in_every_script(tmp_path):
    rows = [
        ("请把3号包裹寄到北京去", "北京"),
        ("साड़ी दिल्ली में मिली", "दिल्ली"),
        ("ฉันไปกรุงเทพเมื่อวาน", "กรุงเทพ"),
        ("서울에서 왔어요", "서울"),
        ("vom Cafe\u0301 nach Zu\u0308rich", "Zu\u0308rich"),
    ]
    given = [(text, [span(text, place, "LOC")]) for text, place in rows]
    examples = examples_of(tmp_path, given)
    outputs = outputs_for(examples, [spans for _, spans in given])
    scores = kind_of(BIO).evaluate(BIO, outputs, examples.targets, examples.each())
    assert scores == {"span_f1": 1.0, "accuracy": 1.0}
    assert examples.report.lost == 0


def test_gold_with_a_space_at_its_end_is_kept_as_it_is_and_missed(tmp_path):
    examples = examples_of(tmp_path, [("to Oslo now", [{"start": 3, "end": 8, "label": "LOC"}])])
    outputs = outputs_for(examples, [[{"start": 3, "end": 7, "label": "LOC"}]])
    scores = kind_of(BIO).evaluate(BIO, outputs, examples.targets, examples.each())
    assert (scores["span_f1"], scores["widened_span_f1"], examples.report.lost) == (0.0, 1.0, 1)


def apart(rng, size):
    """Random spans of [0, size), which may overlap."""
    starts = rng.integers(0, size - 1, rng.integers(0, 9))
    return [
        TaggedSpan(start=int(start), end=int(rng.integers(start + 1, size + 1)), label=str(rng.integers(2)))
        for start in starts
    ]


@cases("seed", range(60))
def test_of_overlapping_spans_the_longest_stay_and_every_other_meets_one_as_long(seed):
    spans = list(dict.fromkeys(apart(np.random.default_rng(seed), 12)))
    kept = longest_disjoint(spans)
    meet = lambda a, b: a.start < b.end and b.start < a.end  # noqa: E731
    assert (overlapping_pair(spans) is None) == (not any(meet(a, b) for a in spans for b in spans if a is not b))
    assert not any(meet(a, b) for a in kept for b in kept if a is not b)
    for left in (each for each in spans if each not in kept):
        assert any(meet(left, each) and each.end - each.start >= left.end - left.start for each in kept)
    assert overlapping_pair(kept) is None and len(longest_disjoint(kept)) == len(kept)


@cases("seed", range(60))
def test_cut_words_are_the_words_and_begin_and_end_wherever_gold_does(seed):
    rng = np.random.default_rng(seed)
    text = "".join(rng.choice(list("ab  "), 14))
    words, spans = words_of(text), longest_disjoint(apart(rng, 14))
    cut = cut_words(words, spans)
    covered = [sorted({place for a, b in each.tolist() for place in range(a, b)}) for each in (words, cut)]
    assert covered[0] == covered[1] and (cut[1:, 0] >= cut[:-1, 1]).all() and (cut[:, 1] > cut[:, 0]).all()
    bounds = {place for each in spans for place in (each.start, each.end)}
    assert not any(a < place < b for a, b in cut.tolist() for place in bounds)
    assert set(map(tuple, words.tolist())) >= {(a, b) for a, b in cut.tolist() if (a, b) not in words.tolist()} or spans


NESTED = ("open every 6 hours", [{"start": 5, "end": 18, "label": "LOC"}, {"start": 11, "end": 18, "label": "UNIT"}])
PLAIN = ("in Oslo", [{"start": 3, "end": 7, "label": "LOC"}, {"start": 3, "end": 7, "label": "LOC"}])


def test_overlapping_gold_is_refused_with_the_users_row_unless_the_task_says_what_to_do(tmp_path):
    with pytest.raises(BadValue, match=r"rows\.jsonl row 2: two labelled spans overlap.*'longest'") as caught:
        examples_of(tmp_path, [PLAIN, NESTED])
    assert caught.value.row == 2 and "'6 hours' at 11" in str(caught.value)
    longest = examples_of(tmp_path, [PLAIN, NESTED], overlaps="longest")
    assert [len(spans) for spans in longest.gold] == [1, 1] and longest.gold[1][0].end == 18
    assert (longest.report.used, longest.report.shorter, longest.report.overlapping) == (2, 1, 0)
    skipped = examples_of(tmp_path, [PLAIN, NESTED], overlaps="skip")
    assert (skipped.rows, skipped.report.used, skipped.report.overlapping) == ([1], 1, 1)
    assert any("overlapping spans, skipped" in note for note in skipped.report.notes())
    with pytest.raises(EmptyData):
        examples_of(tmp_path, [NESTED], overlaps="skip")
    with pytest.raises(ConfigError, match="'overlaps' is for labelled spans"):
        read(Source(path="x.jsonl", tokens="tokens", tags="tags", overlaps="skip"), BIO)


def scored(targets, found):
    """`span_f1` of rows of tags as our kind computes it, for tasks without gold spans."""
    task = Task(name="t", kind="tagging", labels=tuple(TAGS))
    eye = np.eye(len(TAGS), dtype=np.float32)
    rows = [np.array([TAGS.index(tag) for tag in row], np.int64) for row in targets]
    outputs = [eye[[TAGS.index(tag) for tag in row]].reshape(-1, len(TAGS)) for row in found]
    return kind_of(task).evaluate(task, outputs, rows, [Example()] * len(rows))["span_f1"]


@cases("seed", range(40))
def test_span_f1_equals_seqeval_on_random_tags(seed):
    chance = random.Random(seed)
    targets = [chance.choices(TAGS, k=chance.randint(1, 12)) for _ in range(chance.randint(1, 12))]
    share = chance.random()
    found = [[chance.choice(TAGS) if chance.random() < share else tag for tag in row] for row in targets]
    with warnings.catch_warnings(action="ignore"):  # it warns when there is no span
        assert scored(targets, found) == pytest.approx(seqeval.metrics.f1_score(targets, found))


def test_spans_do_not_run_across_rows():
    assert scored([["B-a"], ["I-a"]], [["B-a"], ["I-a"]]) == 1.0
    assert scored([["B-a"], ["I-a"]], [["B-a"], ["O"]]) == pytest.approx(2 / 3)
    assert scored([["O", "O"], []], [["O", "O"], []]) == 0.0


LABELS = ("O", "B-a", "I-a", "B-b", "I-b")


@cases("decoder", ["greedy", "constrained"])
def test_words_in_one_token_are_answered_as_that_token_is(decoder):
    """A span that begins at the token goes on over its words; words that were not read stay outside."""
    task = Task(name="t", kind="tagging", labels=LABELS, decoder=decoder)
    tokens = np.log(np.array([[6, 1, 1, 1, 1], [1, 6, 1, 1, 1], [1, 1, 6, 1, 1], [1, 1, 1, 6, 1]], np.float32) / 10)
    outputs = parts_marked(tokens[[0, 0, 1, 1, 1, 2, 3, 3, 3]], np.array([0, 1, 0, 1, 1, 0, 0, 1, 0], bool))
    outputs[8] = np.nan
    example = Example(input=("กขคงจฉชซฌ",))
    (answer,) = kind_of(task).decode_all(task, [outputs], [example])
    assert [(span["text"], span["label"]) for span in answer["spans"]] == [("คงจฉ", "a"), ("ชซ", "b")]
    assert [span["score"] for span in answer["spans"]] == pytest.approx([0.6, 0.6])
    target = np.array([0, 0, 1, 2, 2, 2, 3, 4, 0])
    assert kind_of(task).evaluate(task, [outputs], [target], [example])["span_f1"] == 1.0
    decisions = kind_of(task).judged(task, [outputs], [target], [example]).decisions
    assert decisions.is_right.tolist() == [True] * 4  # a decision a token


def test_plain_labels_of_words_in_one_token_are_the_tokens():
    task = Task(name="t", kind="tagging", labels=("x", "y"))
    outputs = parts_marked(np.array([[0, 3], [0, 3], [2, 0]], np.float32), np.array([False, True, False]))
    (answer,) = kind_of(task).decode_all(task, [outputs], [Example(input=("กขค",))])
    assert [word["label"] for word in answer["words"]] == ["y", "y", "x"]
    assert answer["words"][0]["score"] == answer["words"][1]["score"]


def test_words_of_every_script_give_the_gold_of_the_made_sentences_but_for_prefixes_written_on():
    made = list(every_row())
    lost = [
        (script, text)
        for script, (text, spans) in made
        for each in spans
        if widened(TaggedSpan(**each), words_of(text)) != TaggedSpan(**each)
    ]
    assert {script for script, _ in lost} == {"Hebrew, prefixes written on names"}
    assert len({script for script, _ in made}) == 17 and len(lost) == 84  # 7 of 14 spans of 12 pairs of names
