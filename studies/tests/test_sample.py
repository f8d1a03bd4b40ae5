"""The study of the packaged sample: near-duplicates, folds, and the tables of its page."""

import importlib
import json

import pytest

from studies.sample import table, texts
from studies.tests.commands import run


def message(name, text, **spans):
    """A message whose spans are these texts, by label, in order."""
    marked = [
        {"start": text.index(piece), "end": text.index(piece) + len(piece), "label": label}
        for label, piece in spans.items()
    ]
    return {"id": name, "text": text, "spans": sorted(marked, key=lambda span: span["start"])}


def pair(name, text_a, text_b, same_request="yes"):
    return {"id": name, "text_a": text_a, "text_b": text_b, "same_request": same_request}


KETTLE = message("m1", "Where on earth is my kettle, ordered on Monday?", product="kettle", date="Monday")


def test_a_message_with_one_word_changed_is_a_near_duplicate():
    other = message("m2", "Where on earth is my toaster, ordered on Monday?", product="toaster", date="Monday")
    whys = [why for one, two, why in texts.near_duplicates([KETTLE, other], []) if (one, two) == ("m1", "m2")]
    assert any(why.startswith("share 78% of their words") for why in whys)
    assert any("5 words in a row: where on earth is my" in why for why in whys)


def test_a_frame_with_other_details_is_a_near_duplicate():
    """Neither many words nor five in a row are shared as written."""
    first = message(
        "m1",
        "Since Monday Ada's kettle PH-1 is late",
        date="Monday",
        person="Ada",
        product="kettle",
        order_number="PH-1",
    )
    second = message(
        "m2",
        "Since last week Mr Obi's noise cancelling headphones PH-2 is late",
        date="last week",
        person="Obi",
        product="noise cancelling headphones",
        order_number="PH-2",
    )
    assert len(set(texts.words_of(first["text"])) & set(texts.words_of(second["text"]))) == 5
    whys = [why for _, _, why in texts.near_duplicates([first, second], [])]
    assert whys and all("frame" in why for why in whys)


def test_messages_of_their_own_words_are_no_near_duplicates():
    other = message("m2", "My kettle drips on the table whenever I pour.", product="kettle")
    assert texts.near_duplicates([KETTLE, other], []) == []


def test_pairs_are_compared_with_messages_and_with_pairs_written_apart():
    together = [
        pair("p1", "Is the fan loud?", "how noisy is it"),
        pair("p2", "Is the fan loud?", "My fan broke.", "no"),
    ]
    apart = [pair("p3", "Is the big fan loud?", "does that make noise at night")]
    asked = [message("m1", "Is the fan loud??")]
    assert texts.near_duplicates([], together) == []
    assert {(one, two) for one, two, _ in texts.near_duplicates([], together + apart)} == {("p1", "p3"), ("p2", "p3")}
    assert {(one, two) for one, two, _ in texts.near_duplicates(asked, together)} == {("p1", "m1"), ("p2", "m1")}


def test_a_frame_names_the_labels_in_place_of_the_details():
    assert texts.frame_of(KETTLE) == ("where", "on", "earth", "is", "my", "<product>", "ordered", "on", "<date>")


def test_folds_hold_every_row_once_and_tear_nothing_apart():
    pairs = texts.sample_rows("pairs")
    groups = texts.written_together(pairs)
    assert sorted(number for group in groups for number in group) == list(range(len(pairs)))
    assert sum(len(group) == 2 for group in groups) > 80
    tests = []
    for fold in range(texts.FOLDS):
        rows = texts.refolded(pairs, groups, fold)
        assert [row["id"] for row in rows] == [pair["id"] for pair in pairs]
        splits = [row["split"] for row in rows]
        assert 0.18 <= splits.count("test") / len(rows) <= 0.22
        assert 0.18 <= splits.count("validation") / len(rows) <= 0.22
        assert all(len({splits[number] for number in group}) == 1 for group in groups)
        tests += [row["id"] for row in rows if row["split"] == "test"]
    assert sorted(tests) == sorted(pair["id"] for pair in pairs)


def facts(score, linear=0.5):
    return {"kind": "single_label", "metric": "accuracy", "score": score, "linear": linear, "constant": 0.25}


ROWS = [
    {"what": "packaged splits", "tasks": {"tone": facts(0.7)}},
    {"what": "fold 2", "tasks": {"tone": facts(0.8, 0.6)}},
    {"what": "fold 1", "tasks": {"tone": facts(0.6)}},
    {"what": "demo", "processor_seconds": 70.0},
]


def test_scores_are_means_over_folds_with_their_spread():
    """0.6 and 0.8: mean 0.7, deviation sqrt(0.02)."""
    line = table.score_table(ROWS)[-1]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:3] == ["`tone`", "`single_label`", "`accuracy`"]
    assert cells[3:] == ["0.700 ± 0.141", "0.550 ± 0.071", "0.250 ± 0.000", "0.700", "0.500", "0.250"]


def test_gain_over_linear_is_paired_by_fold():
    assert table.over_linear(ROWS) == {"tone": pytest.approx(15)}


def test_counts_are_those_of_the_rows():
    messages, pairs = texts.sample_rows("messages"), texts.sample_rows("pairs")
    lines = table.count_table(messages, pairs)
    counted = {line.split("|")[1].strip(): line.split("|")[-2].strip() for line in lines[2:]}
    assert counted["messages"] == str(len(messages)) and counted["pairs"] == str(len(pairs))
    assert counted["question `yes`"] == str(sum(row["question"] == "yes" for row in messages))
    assert counted["span `date`"] == str(sum(span["label"] == "date" for row in messages for span in row["spans"]))
    assert sum(int(value) for name, value in counted.items() if name.startswith("urgency")) == len(messages)
    assert sum(int(value) for name, value in counted.items() if name.startswith("next_step")) == len(messages)


def test_study_reports_from_its_rows_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.import_module("studies.settings"), "RESULTS", tmp_path)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    done = run("sample", "run", "--report", "--rows", str(tmp_path / "rows.jsonl"))
    assert done.code == 0, done.err
    written = json.loads((tmp_path / "sample_scores.json").read_text())
    claims = {claim["id"]: claim for claim in written["claims"]}
    assert claims["front-door.sample-over-linear"]["value"] == 15
    assert claims["front-door.sample-demo"]["holds"]
    assert claims["front-door.sample-near-duplicates"]["value"] == 0
    assert "lacking: fold 3" in done.out
