"""Answers in a text: how they are read, found among all spans, over windows, and scored."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from polyhead.data.read import Source, read
from polyhead.errors import BadValue, ConfigError, DataError, MissingColumn
from polyhead.project.tables import TaskEntry
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.kinds.span import LONGEST, answered, best_span
from polyhead.tasks.task import Example, Task
from polyhead.text.words import boundary_places
from support.cases import cases

TASK = Task(name="where", kind="span")
NULL = Task(name="where", kind="span", null_answers=True)
KIND = kind_of(TASK)
CONTEXT = "The kettle is in the box, not on it."
ROW = {"question": "where?", "context": CONTEXT, "answers": [{"text": "in the box", "start": 14}]}


def source(folder, content, name="rows.jsonl", **columns):
    path = folder / name
    if isinstance(content, list):
        content = "".join(json.dumps(row) + "\n" for row in content)
    path.write_text(content, encoding="utf-8", errors="surrogatepass")
    return Source(path=str(path), **columns)


def test_answers_become_places_of_words_and_keep_their_characters(tmp_path):
    several = ROW | {"answers": [*ROW["answers"], {"text": "box", "start": 21}]}
    found = read(source(tmp_path, [ROW, several]), TASK)
    assert found.inputs == [("where?", CONTEXT)] * 2
    assert [target.tolist() for target in found.targets] == [[[4, 6, 14, 24]], [[4, 6, 14, 24], [6, 6, 21, 24]]]
    for target, places in zip(found.targets, found.words, strict=True):
        assert target.dtype == np.int64
        np.testing.assert_array_equal(places, boundary_places(CONTEXT))
        for first, last, start, end in target:
            assert (places[first, 0], places[last, 1]) == (start, end)
    assert found.report.widened == 0


def test_an_answer_inside_words_takes_them_whole_and_is_counted(tmp_path):
    rows = [
        ROW | {"answers": [{"text": "ttle i", "start": 6}]},
        ROW | {"answers": [{"text": " kettle ", "start": 3}, {"text": "kett", "start": 4}]},
    ]
    found = read(source(tmp_path, rows), TASK)
    assert [target.tolist() for target in found.targets] == [[[2, 3, 6, 12]], [[2, 2, 3, 11], [2, 2, 4, 8]]]
    assert found.report.widened == 2
    # scores are those of the answer as it stands in the data, not of the whole words
    outputs = [np.eye(len(found.words[0]))[:, target[0, :2]] for target in found.targets]
    scores = found.scores(TASK, outputs)
    assert scores["exact_match"] == 0.5 and scores["f1"] == pytest.approx(0.5)


def test_no_answer_needs_to_be_allowed(tmp_path):
    rows = [ROW, ROW | {"answers": []}, ROW | {"answers": None}]
    with pytest.raises(BadValue, match=r"rows\.jsonl row 2: there is no answer.*null_answers = true") as caught:
        read(source(tmp_path, rows), TASK)
    assert caught.value.row == 2
    found = read(source(tmp_path, rows), NULL)
    assert found.targets[1].tolist() == [[0, 0, 0, 0]]
    assert (found.report.used, found.report.unlabelled) == (2, 1)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([{"text": "in the box", "start": 13}], "the answer does not stand at 13.*there stands ' in the bo'"),
        ([{"text": "box", "start": 99}], "does not stand at 99"),
        ([{"text": ".", "start": -1}], "does not stand at -1"),
        ([{"text": " ", "start": 3}], "holds no word"),
        ([{"text": "", "start": 3}], "cannot be read"),
        ([{"text": "box"}], "cannot be read"),
        ([{"text": "box", "start": "21"}], "cannot be read"),
        ([{"start": 21, "end": 24}], "cannot be read"),
        ({"text": "box", "start": 21}, "cannot be read"),
        ({"text": ["box"], "start": []}, "cannot be read"),
        ({}, "cannot be read"),
        ("box", "cannot be read"),
    ],
    ids=str,
)
def test_answers_that_mean_nothing_are_refused_by_row(tmp_path, answers, said):
    with pytest.raises(BadValue, match=rf"task 'where', rows\.jsonl row 2: .*{said}") as caught:
        read(source(tmp_path, [ROW, ROW | {"answers": answers}]), TASK)
    assert caught.value.row == 2


def test_answers_have_the_form_of_hub_data_sets_too(tmp_path):
    rows = [
        ROW | {"answers": {"text": ["in the box", "box"], "answer_start": [14, 21]}},
        ROW | {"answers": {"text": [], "answer_start": []}},
        ROW | {"answers": [{"text": "box", "answer_start": 21}]},
    ]
    found = read(source(tmp_path, rows), NULL)
    assert [len(target) for target in found.targets] == [2, 1, 1]
    assert found.targets[1].tolist() == [[0, 0, 0, 0]] and found.targets[2].tolist() == [[6, 6, 21, 24]]


def test_cells_hold_a_json_list_of_answers(tmp_path):
    table = 'question,context,answers\nwhere?,"in, out","[{""text"": ""out"", ""start"": 4}]"\nb?,c,[]\nd?,e,\n'
    found = read(source(tmp_path, table, "a.csv"), NULL)
    assert [target.tolist() for target in found.targets] == [[[3, 3, 4, 7]], [[0, 0, 0, 0]]]
    assert found.report.unlabelled == 1


def test_broken_surrogates_keep_every_answer_in_its_place(tmp_path):
    rows = [{"question": "q", "context": "a\ud800 b\udc00 c", "answers": [{"text": "b\udc00", "start": 3}]}]
    found = read(source(tmp_path, rows), TASK)
    assert found.inputs == [("q", "a\ufffd b\ufffd c")] and found.report.repaired == 2
    start, end = found.targets[0][0, 2:]
    assert found.inputs[0][1][start:end] == "b\ufffd"


def test_columns_go_by_other_names_and_others_are_refused(tmp_path):
    rows = [{"ask": "where?", "passage": "here", "gold": [{"text": "here", "start": 0}]}]
    entry = TaskEntry(
        name="where", kind="span", train="rows.jsonl", text="ask", text_b="passage", answers="gold", null_answers=True
    )
    assert entry.task() == NULL
    assert read(source(tmp_path, rows, text="ask", text_b="passage", answers="gold"), TASK).rows == [1]
    assert read(entry.source("rows.jsonl", tmp_path), TASK).inputs == [("where?", "here")]
    with pytest.raises(MissingColumn, match="no column 'context'"):
        read(source(tmp_path, rows, text="ask", answers="gold"), TASK)
    for columns in ({"spans": "x"}, {"choices": "x"}, {"label": "x"}):
        with pytest.raises(ConfigError, match="task 'where'"):
            read(source(tmp_path, rows, **columns), TASK)


def drawn(seed, words=None):
    """Outputs of some places; a third of them have rows that were not read."""
    rng = np.random.default_rng(seed)
    size = 1 + (int(rng.integers(1, 80)) if words is None else words)
    outputs = rng.normal(size=(size, 2)).astype(np.float32)
    if seed % 3 == 0:
        outputs[1:][rng.random(size - 1) < 0.4] = np.nan
    return outputs


def every_span(outputs):
    """(score, first, last) of every span that there is, one after the other."""
    for first in range(1, len(outputs)):
        for last in range(first, min(first + LONGEST, len(outputs))):
            score = float(outputs[first, 0]) + float(outputs[last, 1])
            if not math.isnan(score):
                yield score, first, last


@cases("seed", range(30))
def test_the_best_span_is_the_best_of_all(seed):
    outputs = drawn(seed)
    found, best = best_span(outputs), max(every_span(outputs), default=None)
    if best is None:
        assert found is None
        return
    assert (found.score, found.first, found.last) == pytest.approx(best)
    null = float(outputs[0].sum())
    assert answered(TASK, outputs) == found
    assert (answered(NULL, outputs) is None) == (null > found.score)


def test_spans_are_not_longer_than_the_limit_and_equals_take_the_first_and_shortest():
    outputs = np.full((LONGEST + 3, 2), -9.0, np.float32)
    outputs[1, 0], outputs[LONGEST + 1, 1], outputs[LONGEST, 1] = 5.0, 5.0, 4.0
    assert (best_span(outputs).first, best_span(outputs).last) == (1, LONGEST)  # not the place after it, at 5
    even = np.zeros((4, 2), np.float32)
    assert (best_span(even).first, best_span(even).last) == (1, 1)
    assert answered(NULL, even) is not None  # null must score more
    assert best_span(even[:1]) is None and best_span(np.full((3, 2), np.nan)) is None


@cases("seed", range(20))
def test_windows_give_the_best_span_of_any_and_the_least_null(seed):
    """Each window reads a stretch of the words; a span may not reach from one into another."""
    rng = np.random.default_rng(seed)
    words = int(rng.integers(6, 40))
    windows, start = [], 0
    while True:
        stop = min(start + 8, words)
        one = np.full((1 + words, 2), np.nan, np.float32)
        one[0] = rng.normal(size=2)
        one[1 + start : 1 + stop] = rng.normal(size=(stop - start, 2))
        windows.append(one)
        if stop == words:
            break
        start += 5
    merged = KIND.merge_windows(NULL, windows)
    best = max(span for one in windows for span in every_span(one))
    found = best_span(merged)
    assert (found.score, found.first, found.last) == pytest.approx(best)
    least = min(windows, key=lambda one: one[0].sum())[0]
    np.testing.assert_array_equal(merged[0], least)
    chosen = [i for i, one in enumerate(windows) if np.array_equal(merged[1:], one[1:], equal_nan=True)]
    assert len(chosen) == 1  # no row of another window
    # no answer only where none of the windows has one
    alone = [one[0].sum() > max(every_span(one))[0] for one in windows]
    if answered(NULL, merged) is None:
        assert all(alone)


def test_windows_without_a_word_do_not_hide_an_answer():
    empty, full = np.full((3, 2), np.nan, np.float32), np.zeros((3, 2), np.float32)
    empty[0] = 9.0
    assert best_span(KIND.merge_windows(TASK, [empty, full])) == best_span(full)
    assert KIND.decode(TASK, KIND.merge_windows(TASK, [empty]), Example(input=("", "a b")))["text"] is None


def test_an_answer_has_its_text_its_characters_and_the_chance_of_both_ends():
    outputs = np.zeros((12, 2), np.float32)
    outputs[4, 0], outputs[6, 1] = math.log(10), math.log(30)
    about = Example(input=("where?", CONTEXT))
    answer = KIND.decode(TASK, outputs, about)
    assert {k: answer[k] for k in ("text", "start", "end")} == {"text": "in the box", "start": 14, "end": 24}
    assert answer["score"] == pytest.approx(10 / 21 * 30 / 41)
    outputs[9:] = np.nan  # places that were not read take no share
    assert KIND.decode(TASK, outputs, about)["score"] == pytest.approx(10 / 18 * 30 / 38)
    outputs[0] = 9.0
    assert KIND.decode(TASK, outputs, about)["text"] == "in the box"
    none = KIND.decode(NULL, outputs, about)
    assert (none["text"], none["start"], none["end"]) == (None, None, None) and 0.9 < none["score"] < 1
    with pytest.raises(DataError, match="one output a place"):
        KIND.decode(TASK, outputs[1:], about)


def test_scores_are_over_texts_and_every_right_answer(tmp_path):
    rows = [
        ROW | {"answers": [{"text": "box", "start": 21}, {"text": "in the box", "start": 14}]},  # said: in the box,
        ROW | {"answers": [{"text": "in the box", "start": 14}]},  # said: box
        ROW | {"answers": []},  # said: nothing
        ROW | {"answers": []},  # said: box
        ROW | {"answers": [{"text": "box", "start": 21}]},  # said: nothing
    ]
    found = read(source(tmp_path, rows), NULL)
    said = [(4, 7), (6, 6), (0, 0), (6, 6), (0, 0)]
    outputs = [np.float32(np.eye(12)[:, list(places)]) for places in said]
    # articles and punctuation do not count: "in box" is all right, "box" is one of the two words
    scores = found.scores(NULL, outputs)
    assert scores["exact_match"] == pytest.approx(2 / 5)
    assert scores["f1"] == pytest.approx((1 + 2 / 3 + 1 + 0 + 0) / 5)
    with pytest.raises(DataError, match=r"score with Examples\.scores"):
        KIND.evaluate(NULL, outputs, found.targets, [])


DATA = Path(os.environ.get("POLYHEAD_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.mark.data
@pytest.mark.parametrize(("name", "task"), [("squad_v1", TASK), ("subjqa_grocery", NULL)])
def test_real_sets_are_read_whole_and_right_answers_score_almost_one(name, task):
    if not (DATA / name).is_dir():
        pytest.skip(f"no data set in {DATA / name}; set POLYHEAD_DATA to where they are")
    part, limit = ("validation", 1000) if name == "squad_v1" else ("train", None)
    found = read(Source(path=str(DATA / name / f"{part}.jsonl.gz"), limit=limit), task)
    assert found.report.used == found.report.rows >= 900
    if name == "squad_v1":
        assert sum(len(target) > 1 for target in found.targets) > 300
    kept = [i for i, t in enumerate(found.targets) if t[0, 1] - t[0, 0] < LONGEST]
    assert len(kept) > 0.9 * len(found.rows)
    some = found.take(kept)
    outputs = [np.eye(len(w))[:, t[0, :2]] for w, t in zip(some.words, some.targets, strict=True)]
    scores = some.scores(task, outputs)
    # what is missing are answers that end inside a word
    assert scores["f1"] > 0.99 and scores["exact_match"] > 1 - 0.01 - some.report.widened / len(kept)


def test_an_answer_that_ends_in_a_token_of_several_words_has_all_of_them():
    """Words of one token have its outputs, so no end among them is better than another."""
    context = "寄到東京去"
    places = boundary_places(context)
    outputs = np.array([[0, 0], [1, 0], [1, 0], [9, 9], [9, 9], [0, 1]], np.float32)
    example = Example(input=("どこ?", context))
    answer = KIND.decode(NULL, outputs, example)
    assert (answer["text"], answer["start"], answer["end"]) == ("東京", 2, 4)
    target = KIND.encode(NULL, [{"text": "東京", "start": 2}], example)
    assert KIND.evaluate(NULL, [outputs], [target], [example])["exact_match"] == 1.0
    apart = outputs.copy()
    apart[4] = 8
    assert KIND.decode(NULL, apart, example)["text"] == "東" and len(places) == 6
