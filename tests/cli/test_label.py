"""`polyhead label`: in the terminal and by file; what was labelled is kept and gone on from."""

import csv
import json

import pytest

from polyhead.train.heads import inputs as head_inputs
from support import tiny_project
from support.commands import run
from support.labelled_files import write

WORDS = ("label", "texts.jsonl", "--labels", "good,bad", "--trunk", "trunk", "--count", "4")


@pytest.fixture
def moods(work):
    """Texts of which the mood is known to the test alone."""
    rows = tiny_project.messages(60, seed=5)
    write(work / "texts.jsonl", [{"text": row["text"]} for row in rows])
    return {row["text"]: row["mood"] for row in rows}


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_answers_are_numbers_or_names_and_each_is_written(work, moods):
    done = run(*WORDS, cwd=work, stdin="1\nbad\ns\n7\n²\n2\nq\n")
    assert done.code == 0, done.err
    written = lines(work / "labelled.jsonl")
    assert [row["label"] for row in written] == ["good", "bad", "bad"]
    assert all(row["text"] in moods for row in written)
    assert "give a number from 1 to 2" in done.err
    assert "3 labels: " in done.out


@pytest.mark.slow
def test_the_same_command_goes_on_and_asks_for_no_text_twice(work, moods):
    run(*WORDS, cwd=work, stdin="1\n2\nq\n")
    with (work / "labelled.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"row": 3, "te')  # a kill in the middle of a line
    done = run(*WORDS, "--json", "told.json", cwd=work, stdin="1\n2\nq\n")
    assert done.code == 0, done.err
    written = lines(work / "labelled.jsonl")
    assert len({row["row"] for row in written}) == len(written) == 4
    report = json.loads((work / "told.json").read_text())
    assert report["labelled"] == 4 and [point["labels"] for point in report["curve"]] == [2, 4]


def test_accuracy_stands_beside_that_of_one_answer_for_all_texts(work):
    """Nine texts of ten have one label: nine of ten right is what no head is needed for."""
    rows = [{"text": f"the lamp number {place}", "label": "bad" if place else "good"} for place in range(10)]
    write(work / "texts.jsonl", rows)
    done = run(*WORDS, "--label", "label", "--json", "out.json", cwd=work, stdin="q\n")
    assert "10 labels: 90.0% right (always 'bad': 90.0%)" in done.out
    assert "fewer than two texts: good" in done.out
    assert not (work / "labelled.jsonl").exists()  # it was said of no one where these labels are
    assert "10 labels of texts.jsonl are learned from here, and are not in labelled.jsonl" in done.out
    assert json.loads((work / "out.json").read_text())["curve"][0]["constant"] == 0.9


def test_a_file_without_a_text_is_refused(work):
    for rows in ([{"text": ""}, {"text": " "}], [{"text": None}]):
        write(work / "texts.jsonl", rows)
        run(*WORDS, cwd=work).refuses("texts.jsonl has no text to label", "--text")


def test_texts_are_written_to_a_file_and_labels_are_taken_back(work, moods):
    for _ in range(3):
        done = run(*WORDS[:-1], "8", "--ask", "next.csv", cwd=work)
        assert done.code == 0, done.err
        with (work / "next.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == 8 and all(not row["label"] for row in rows)
        with (work / "next.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["row", "text", "label"])
            writer.writeheader()
            writer.writerows(row | {"label": moods[row["text"]]} for row in rows)
        done = run(*WORDS, "--answers", "next.csv", "--json", "told.json", cwd=work)
        assert done.code == 0, done.err
    assert len(lines(work / "labelled.jsonl")) == 24
    assert all(moods[row["text"]] == row["label"] for row in lines(work / "labelled.jsonl"))
    assert [point["labels"] for point in json.loads((work / "told.json").read_text())["curve"]] == [24]


@pytest.mark.slow
def test_labels_that_are_there_already_are_learned_from(work, moods):
    rows = [{"text": text, "label": mood if i < 20 else ""} for i, (text, mood) in enumerate(moods.items())]
    write(work / "texts.jsonl", rows)
    done = run(*WORDS, "--label", "label", "--ask", "next.jsonl", "--json", "-", cwd=work)
    assert done.code == 0, done.err
    assert json.loads(done.out)["labelled"] == 20
    assert all(row["row"] > 20 for row in lines(work / "next.jsonl"))


def test_what_cannot_be_is_refused(work, moods):
    run("label", "texts.jsonl", "--labels", "good", cwd=work).refuses("two labels or more", code=2)
    run("label", "texts.jsonl", "--labels", "good,1", cwd=work).refuses("would mean something else", code=2)
    run(*WORDS, "--text", "body", cwd=work).refuses("MissingColumn", "body")
    write(work / "filled.jsonl", [{"row": 1, "text": "another text", "label": "good"}])
    run(*WORDS, "--answers", "filled.jsonl", cwd=work).refuses("the texts have no such row")
    write(work / "filled.jsonl", [{"row": 1, "text": next(iter(moods)), "label": "fine"}])
    run(*WORDS, "--answers", "filled.jsonl", cwd=work).refuses("UnknownLabel", "fine")
    run(*WORDS, "--output", "texts.jsonl", cwd=work).refuses("cannot write texts.jsonl")
    write(work / "beside.jsonl", [{"text": "a", "label": "good"}, {"text": "b", "label": "Bad"}])
    run("label", "beside.jsonl", *WORDS[2:], "--label", "label", cwd=work).refuses("UnknownLabel", "row 2", "Got: Bad")
    assert len(lines(work / "texts.jsonl")) == 60
    run(*WORDS, "-o", "labels.csv", cwd=work, stdin="1\nq\n").refuses("it ends in .jsonl", code=2)  # what it writes


def test_half_of_a_character_is_labelled_as_its_replacement(work):
    """The answer for such a text could not be written, and the text came again at every start."""
    tiny_project.write_jsonl(work / "texts.jsonl", [{"text": f"the lamp is late {n} \ud83d"} for n in range(4)])
    done = run(*WORDS, cwd=work, stdin="1\n2\n1\n2\n")
    assert done.code == 0, done.err
    assert sorted(line["text"] for line in lines(work / "labelled.jsonl")) == [
        f"the lamp is late {n} \ufffd" for n in range(4)
    ]
    assert "every text is labelled" in run(*WORDS, cwd=work, stdin="").out


def test_of_more_texts_than_are_read_at_once_it_says_how_many_and_which(work, monkeypatch):
    monkeypatch.setattr(head_inputs, "MOST_NUMBERS", 20 * 16)
    rows = [{"text": f"the lamp number {place}", "label": ("good", "bad", "")[place % 3]} for place in range(30)]
    write(work / "texts.jsonl", rows)
    done = run(*WORDS, "--label", "label", cwd=work, stdin="s\n" * 10)
    assert "20 of 30 texts are read, 10 of 20 labelled ones among them" in done.out
    assert "every text that was read is labelled or skipped" in done.out
