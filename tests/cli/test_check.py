"""`polyhead check`: a project or files, what is printed and written, and the exit code."""

import csv
import json

import numpy as np
import pytest

from support import tiny_project
from support.commands import run
from support.labelled_files import clean, text, write


def told(*words, **options):
    """What a check wrote as JSON, and its exit code."""
    done = run("check", *words, "--json", "-", **options)
    assert done.out, done.err
    return json.loads(done.out), done.code


def kinds(*words, **options):
    return {finding["kind"] for finding in told(*words, **options)[0]["findings"]}


def project(folder, **task):
    """A project over `train.jsonl` and `test.jsonl` there."""
    settings = {"name": "mood", "kind": "single_label", "labels": ["good", "bad", "odd"], "train": "train.jsonl"} | task
    path = folder / "polyhead.toml"
    path.write_text(tiny_project.to_toml({"trunk": {"name": "trunk"}, "tasks": [settings]}), encoding="utf-8")
    return path


def test_clean_files_end_with_0_and_say_so(tmp_path):
    write(tmp_path / "train.jsonl", clean())
    done = run("check", "train.jsonl", cwd=tmp_path)
    assert done.code == 0 and "nothing found in 120 rows of 1 task" in done.out


def test_a_fault_ends_with_1_and_a_hint_only_where_it_is_asked(tmp_path):
    write(tmp_path / "train.jsonl", [*clean(), clean()[3]])
    report, code = told("train.jsonl", cwd=tmp_path)
    assert (report["faults"], report["hints"], code) == (0, 1, 0)
    assert told("train.jsonl", "--strict", cwd=tmp_path)[1] == 1
    write(tmp_path / "train.jsonl", [*clean(), clean()[3] | {"label": "odd"}])
    report, code = told("train.jsonl", cwd=tmp_path)
    assert (report["faults"], code) == (1, 1)


@pytest.mark.parametrize("row", [{"text": None, "label": "good"}, {"text": "a lamp", "label": ""}])
def test_a_split_of_which_no_row_can_be_used_is_a_fault(tmp_path, row):
    """It was a hint that training skips the rows, and training stopped."""
    write(tmp_path / "train.jsonl", [row] * 3)
    project(tmp_path)
    report, code = told("polyhead.toml", cwd=tmp_path)
    assert code == 1 and [each["kind"] for each in report["findings"] if each["level"] == "fault"] == ["unusable"]
    write(tmp_path / "train.jsonl", [row, *clean()])
    assert told("polyhead.toml", cwd=tmp_path)[1] == 0


def test_a_project_is_checked_with_its_columns_and_labels(tmp_path):
    write(tmp_path / "train.jsonl", [{"body": r["text"], "mood": r["label"]} for r in clean()])
    write(
        tmp_path / "test.jsonl", [{"body": r["text"], "mood": r["label"]} for r in [*clean(60, start=4000), clean()[2]]]
    )
    project(tmp_path, text="body", label="mood", test="test.jsonl")
    assert kinds(cwd=tmp_path) == {"leak"}
    project(tmp_path, text="body", label="mood", labels=["good", "bad"])
    report, _ = told("polyhead.toml", cwd=tmp_path)
    (finding,) = report["findings"]
    assert finding["kind"] == "unknown_label" and finding["rows"] == 40 and len(finding["places"]) == 20


def test_every_row_is_written_to_the_file_that_is_named(tmp_path):
    rows = [*clean(), *(row | {"label": "odd"} for row in clean()[:6:3])]
    write(tmp_path / "train.jsonl", rows)
    run("check", "train.jsonl", "-o", "rows.csv", cwd=tmp_path)
    run("check", "train.jsonl", "-o", "rows.jsonl", cwd=tmp_path)
    with (tmp_path / "rows.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(row["kind"], row["row"], row["label"]) for row in table] == [
        ("conflict", "121", "odd"),
        ("conflict", "122", "odd"),
    ]
    assert [{k: str(v) for k, v in line.items()} for line in lines] == table
    assert table[0]["text"] == rows[0]["text"] and table[0]["other"] == "train row 1: good"


def test_files_with_rows_that_cannot_be_read_are_checked_all_the_same(tmp_path):
    write(
        tmp_path / "train.jsonl", [*clean(60), '{"text": "broken', *clean(60, start=60), clean()[1] | {"label": "odd"}]
    )
    assert kinds("train.jsonl", cwd=tmp_path) == {"unreadable", "conflict"}


@pytest.mark.parametrize(
    "rows, kind",
    [([{"text": text(i), "label": "same"} for i in range(30)], "constant_label"), ([], "unusable")],
    ids=["one label", "no row"],
)
def test_files_that_make_no_task_are_a_fault(tmp_path, rows, kind):
    write(tmp_path / "train.jsonl", rows)
    report, code = told("train.jsonl", cwd=tmp_path)
    assert [finding["kind"] for finding in report["findings"]] == [kind] and code == 1


def test_tables_and_files_of_tagged_words_are_read_too(tmp_path):
    table = "text;label\n" + "".join(f"{row['text']};{row['label']}\n" for row in [*clean(), clean()[0]])
    (tmp_path / "rows.csv").write_text(table, encoding="utf-8")
    assert kinds("rows.csv", cwd=tmp_path) == {"duplicate"}
    words = "".join(
        "".join(f"{w} {'B-x' if j == 1 else 'O'}\n" for j, w in enumerate(text(i).split())) + "\n" for i in range(60)
    )
    (tmp_path / "words.conll").write_text(words + words[: words.index("\n\n") + 2], encoding="utf-8")
    assert kinds("words.conll", cwd=tmp_path) == {"duplicate"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.csv", "words.conll"]


def test_wrong_command_lines_are_refused(tmp_path):
    write(tmp_path / "train.jsonl", clean())
    project(tmp_path)
    run("check", "polyhead.toml", "train.jsonl", cwd=tmp_path).refuses("give it alone", code=2)
    run("check", "polyhead.toml", "--text", "body", cwd=tmp_path).refuses("names its files and columns", code=2)
    run("check", "train.jsonl", "--tasks", "mood", cwd=tmp_path).refuses("--tasks is for the tasks of PROJECT", code=2)
    run("check", "train.jsonl", "--cache", "kept", cwd=tmp_path).refuses("--cache goes with --encode", code=2)
    run("check", "--tasks", "moot", cwd=tmp_path).refuses("UnknownTask", "mood")
    run("check", "train.jsonl", "-o", "rows.txt", cwd=tmp_path).refuses(".csv or .jsonl", code=2)


def test_flipped_labels_are_doubted_by_held_out_heads(work):
    """Two of three rows of the tiny set whose label was exchanged are told, or all, with the true label beside."""
    rows = tiny_project.messages(160, seed=3)
    flipped = {12: None, 40: None, 77: None}
    names = sorted({row["mood"] for row in rows})
    for number in flipped:
        flipped[number] = rows[number - 1]["mood"]
        rows[number - 1] |= {"mood": next(name for name in names if name != flipped[number])}
    write(work / "train.jsonl", [{"text": row["text"], "label": row["mood"]} for row in rows])
    project(work, labels=names)
    report, code = told("--encode", "--cache", "kept", cwd=work)
    doubted = {f["kind"]: f for f in report["findings"]}["doubted_label"]
    assert code == 0 or report["faults"]
    places = {place["row"]: place["other"].split(" (")[0] for place in doubted["places"]}
    assert sum(places.get(row) == true for row, true in flipped.items()) >= 2
    assert len(places) < 40
    assert (work / "kept" / "features").is_dir()


def test_labels_that_no_text_explains_are_not_doubted_one_by_one(work):
    """Heads that learned nothing doubted nearly half of all rows."""
    generator = np.random.default_rng(0)
    rows = [{"text": row["text"], "label": "ab"[generator.integers(2)]} for row in tiny_project.messages(240, seed=3)]
    write(work / "train.jsonl", rows)
    project(work, labels=["a", "b"])
    done = run("check", "--encode", "--json", "report.json", cwd=work)
    assert "no more than chance" in done.err, done.err
    assert "doubted_label" not in {f["kind"] for f in json.loads((work / "report.json").read_text())["findings"]}


def test_labels_of_several_at_once_are_doubted_one_by_one(work):
    """What is to be added is not there, what is to be taken away is."""
    rows = [{"text": row["text"], "label": [row["mood"], *row["topics"]]} for row in tiny_project.messages(240, seed=3)]
    names = sorted({label for row in rows for label in row["label"]})
    write(work / "train.jsonl", rows)
    file = project(work, kind="multi_label", labels=names)
    file.write_text(file.read_text() + '\n[training]\nprecision = "float32"\n')  # alike on every processor
    run("check", "--encode", "--cache", "kept", "-o", "rows.jsonl", cwd=work)
    written = [json.loads(line) for line in (work / "rows.jsonl").read_text().splitlines()]
    places = [place for place in written if place["kind"] == "doubted_label"]
    assert places
    for place in places:
        has = rows[place["row"] - 1]["label"]
        for change in place["other"].split(", "):
            how, label = change.split(" (")[0].split(" ", 1)
            assert (label in has) is (how == "without"), place
