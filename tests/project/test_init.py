"""`polyhead init` with files alone: what it guesses, where it asks, and that what it prints can be run."""

import csv
import itertools
import json
import os
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

from polyhead.cli.sources import given_in
from polyhead.data.guess_kind import kind_of_labels
from polyhead.data.read import read, read_each
from polyhead.errors import ConfigError
from polyhead.project.declare import task_text
from polyhead.project.file_text import with_task
from polyhead.project.init import split_groups
from polyhead.project.tables import read_project
from polyhead.store.jobs.lines import line_of
from support import tiny_project
from support.cases import cases, fresh
from support.commands import run

REAL = Path(os.environ.get("POLYHEAD_DATA", Path(__file__).parents[3] / "shared" / "data"))
ROWS = tiny_project.messages(40)
WORDS = [row["text"] for row in ROWS]
QUESTIONS = [{"question": text, "choices": [text, "no", "yes"], "label": i % 3} for i, text in enumerate(WORDS)]
ANSWERS = [
    {"question": f"what {i}?", "context": text, "answers": [{"text": text[:3], "start": 0}]}
    for i, text in enumerate(WORDS)
]
SPANS = [{"text": text, "spans": [{"start": 0, "end": 3, "label": "x"}]} for text in WORDS]
SEVERAL = [("a;b", "b", "a", "c")[i % 4] for i in range(40)]


def rows_of(**columns):
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def write(path, rows):
    """Rows as CSV with semicolons, or as JSON Lines."""
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter=";")
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


MARKS = ["yes", "no"] * 20
GUESSED = {
    "a label": (rows_of(text=WORDS, label=MARKS), {"kind": "single_label", "text": "text", "label": "label"}),
    "other names": (
        rows_of(id=range(40), body=WORDS, mood=MARKS),
        {"kind": "single_label", "text": "body", "label": "mood"},
    ),
    "unknown names": (rows_of(aa=WORDS, bb=MARKS), {"kind": "single_label", "text": "aa", "label": "bb"}),
    "a better name": (rows_of(text=WORDS, x=MARKS, label=MARKS), {"kind": "single_label", "label": "label"}),
    "several labels": (rows_of(text=WORDS, label=SEVERAL), {"kind": "multi_label", "separator": ";"}),
    "numbers": (rows_of(text=WORDS, score=[i / 7 for i in range(40)]), {"kind": "regression", "label": "score"}),
    "classes": (rows_of(text=WORDS, label=[i % 3 for i in range(40)]), {"kind": "single_label"}),
    "a pair": (
        rows_of(sentence1=WORDS, sentence2=WORDS[::-1], label=MARKS),
        {"kind": "single_label", "text": "sentence1", "text_b": "sentence2"},
    ),
    "a pair by name": (
        rows_of(premise=WORDS, hypothesis=WORDS[::-1], gold=MARKS),
        {"text": "premise", "text_b": "hypothesis", "label": "gold"},
    ),
    "one-hot": (
        rows_of(text=WORDS, late=[i % 2 for i in range(40)], broken=[int(i % 3 > 0) for i in range(40)]),
        {"kind": "multi_label", "soft": ["late", "broken"], "labels": ["late", "broken"]},
    ),
    "one-hot of one": (
        rows_of(text=WORDS, late=[i % 2 for i in range(40)], fine=[1 - i % 2 for i in range(40)]),
        {"kind": "single_label", "soft": ["late", "fine"]},
    ),
    "tagging": (
        rows_of(tokens=[row["tokens"] for row in ROWS], tags=[row["tags"] for row in ROWS]),
        {"kind": "tagging", "tokens": "tokens", "tags": "tags"},
    ),
    "spans": (SPANS, {"kind": "tagging", "text": "text", "spans": "spans"}),
    "a choice": (QUESTIONS, {"kind": "multiple_choice", "text": "question", "choices": "choices"}),
    "answers": (ANSWERS, {"kind": "span", "text": "question", "text_b": "context", "answers": "answers"}),
    "lists": (rows_of(text=WORDS, topics=[["a"], ["a", "b"]] * 20), {"kind": "multi_label", "label": "topics"}),
}


@cases("ending", ["jsonl", "csv"])
@cases("case", GUESSED)
def test_a_file_alone_makes_a_task(tmp_path, case, ending):
    tmp_path = fresh(tmp_path)
    rows, wanted = GUESSED[case]
    if ending == "csv":
        rows = [{k: json.dumps(v) if isinstance(v, list) else v for k, v in row.items()} for row in rows]
    write(tmp_path / f"x.{ending}", rows)
    done = run("init", f"x.{ending}", cwd=tmp_path)
    assert done.code == 0, done.err
    (table,) = tomllib.loads((tmp_path / "polyhead.toml").read_text())["tasks"]
    assert {key: table.get(key) for key in wanted} == wanted
    assert ("text_b" in table) == ("text_b" in wanted)
    (entry,) = read_project(tmp_path / "polyhead.toml").tasks
    assert read(entry.source(entry.train, tmp_path), entry.task()).report.used == 40
    assert "guessed: " in done.out and "the first rows, as the task reads them:" in done.out


@cases(
    ("rows", "said"),
    [
        (rows_of(text=WORDS, mood=MARKS, kind=MARKS), ["mood, kind", "--label mood", "--label kind"]),
        (rows_of(text=WORDS, stars=[i % 5 + 1 for i in range(40)]), ["--kind single_label", "--kind regression"]),
        (rows_of(text=WORDS, label=["a;b", "c"] * 20), ["--kind multi_label", "--kind single_label"]),
        (rows_of(text=WORDS, score=["0,5", "1,25"] * 20), ["'score'", "decimal comma", "multi_label", "a point"]),
        (rows_of(aa=WORDS, bb=WORDS[::-1], label=MARKS), ["--text aa", "--text bb", "--text-b bb"]),
        (rows_of(text=WORDS, other=WORDS[::-1]), ["looks like a label", "--label"]),
        (rows_of(n=range(40), label=MARKS), ["looks like the text", "--text"]),
        (rows_of(text=WORDS, label=["a;b", "b", "a", ""] * 10), ["--empty none", "--empty skip"]),
    ],
)
def test_two_good_guesses_or_none_are_refused_with_the_options_that_choose(tmp_path, rows, said):
    tmp_path = fresh(tmp_path)
    write(tmp_path / "x.csv", rows)
    run("init", "x.csv", cwd=tmp_path).refuses("x.csv", *said)
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]


@cases(
    ("rows", "wanted"),
    [
        # 2 is no mark: no one-hot columns
        (rows_of(text=WORDS, late=[i % 2 for i in range(40)], id=[2] * 40), {"label": "late", "soft": None}),
        # a title beside a long text is no second text
        (rows_of(title=[f"n {i}" for i in range(40)], story=[w * 9 for w in WORDS], label=MARKS), {"text": "story"}),
        # as many tags as tokens make tagging, another number does not
        (
            rows_of(text=WORDS, tokens=[["a", "b"]] * 40, tags=[["x"], ["y", "x", "y"]] * 20),
            {"kind": "multi_label", "label": "tags", "tokens": None},
        ),
        # a label with a name beside the choices is none of them
        (rows_of(text=WORDS, choices=[["a", "b"]] * 40, label=MARKS), {"kind": "single_label", "choices": None}),
        # dictionaries without places are no spans and no answers
        (rows_of(text=WORDS, spans=[[{"label": "x"}]] * 40, label=MARKS), {"label": "label", "spans": None}),
        (rows_of(text=WORDS, answers=[[{"text": "x"}]] * 40, label=MARKS), {"label": "label", "answers": None}),
        # a text that is a number does not make its column one of numbers
        (rows_of(aa=["12", *WORDS[1:]], label=MARKS), {"text": "aa"}),
        # numbers that are all different, in order, are no label
        (rows_of(text=WORDS, row=range(40), x=MARKS), {"label": "x"}),
    ],
)
def test_what_only_looks_so_is_not_guessed(tmp_path, rows, wanted):
    tmp_path = fresh(tmp_path)
    write(tmp_path / "x.jsonl", rows)
    done = run("init", "x.jsonl", cwd=tmp_path)
    assert done.code == 0, done.err
    (table,) = tomllib.loads((tmp_path / "polyhead.toml").read_text())["tasks"]
    assert {key: table.get(key) for key in wanted} == wanted


@cases(
    ("words", "wanted"),
    [
        (["--label", "kind"], {"label": "kind", "kind": "single_label"}),
        (["--label", "stars", "--kind", "regression"], {"label": "stars", "range": [1, 5]}),
        (["--label", "stars", "--kind", "single_label"], {"labels": ["1", "2", "3", "4", "5"]}),
        (["--one-hot", "p,q"], {"soft": ["p", "q"], "kind": "multi_label"}),
        (["--label", "p"], {"label": "p", "labels": ["0", "1"]}),
        (["--label", "kind", "--text", "other"], {"text": "other"}),
        (["--label", "kind", "--text", "text", "--text-b", "other"], {"text": "text", "text_b": "other"}),
        (["--label", "slashes", "--separator", "/"], {"kind": "multi_label", "labels": ["a", "b", "c"]}),
    ],
)
def test_options_replace_guesses(tmp_path, words, wanted):
    tmp_path = fresh(tmp_path)
    rows = rows_of(
        text=WORDS,
        other=WORDS[::-1],
        kind=MARKS,
        mood=MARKS,
        stars=[i % 5 + 1 for i in range(40)],
        p=[i % 2 for i in range(40)],
        q=[int(i % 3 > 0) for i in range(40)],
        slashes=["a/b", "c"] * 20,
    )
    write(tmp_path / "x.csv", rows)
    done = run("init", "x.csv", *words, cwd=tmp_path)
    assert done.code == 0, done.err
    (table,) = tomllib.loads((tmp_path / "polyhead.toml").read_text())["tasks"]
    assert {key: table.get(key) for key in wanted} == wanted


def test_several_label_columns_are_several_tasks_and_others_are_said(tmp_path):
    write(tmp_path / "x.csv", rows_of(text=WORDS, mood=MARKS, kind=MARKS, size=["s", "m"] * 20))
    done = run("init", "x.csv", "--label", "mood", "--label", "kind", cwd=tmp_path)
    assert done.code == 0, done.err
    tasks = read_project(tmp_path / "polyhead.toml").tasks
    assert [(task.name, task.label) for task in tasks] == [("mood", "mood"), ("kind", "kind")]
    assert "other columns look like labels: size; to add a task of each, run init with --label size" in done.out
    run("init", "x.csv", "--label", "mood", "--label", "kind", "--task", "a", cwd=tmp_path).refuses("--task", code=2)


def test_files_are_tasks_and_splits_of_one_go_together(tmp_path):
    rows = rows_of(text=WORDS, label=MARKS)
    for name in ("mood-train.csv", "mood-dev.csv", "mood_test.csv", "other.csv"):
        write(tmp_path / name, rows)
    os.rename(tmp_path / "mood_test.csv", tmp_path / "mood-test.csv")
    names = ["mood-test.csv", "other.csv", "mood-train.csv", "mood-dev.csv"]
    done = run("init", *names, cwd=tmp_path)
    assert done.code == 0, done.err
    tasks = read_project(tmp_path / "polyhead.toml").tasks
    splits = [(task.name, task.train, task.validation, task.test) for task in tasks]
    assert splits == [("mood", "mood-train.csv", "mood-dev.csv", "mood-test.csv"), ("other", "other.csv", 0.1, None)]
    run("init", *names, "--task", "x", "-o", "y.toml", cwd=tmp_path).refuses("one task", code=2)


def test_shards_of_a_split_are_no_tasks_of_their_own(tmp_path):
    """As data sets of hubs are stored; a task of a test file would learn from it."""
    train, test = "train-00000-of-00002.csv", "test-00000-of-00001.csv"
    for name in (train, test, "train-00001-of-00002.csv"):
        write(tmp_path / name, rows_of(text=WORDS, label=MARKS))
    done = run("init", train, "train-00001-of-00002.csv", test, cwd=tmp_path)
    done.refuses("both called the train split", "join such files", code=2)
    assert run("init", test, train, cwd=tmp_path).code == 0
    (task,) = read_project(tmp_path / "polyhead.toml").tasks
    assert (task.train, task.test) == (train, test)


def test_a_split_may_stand_anywhere_in_a_name_with_points(tmp_path):
    for train, test, name in (
        ("mood.train.csv", "mood.test.csv", "mood"),
        ("mood_v1.2_train.csv", "mood_v1.2_test.csv", "mood_v1"),
        ("mood.v1.train.csv.gz", "mood.v1.test.csv.gz", "mood"),
        ("ner.train", "ner.test", "ner"),
        ("train.mood.csv", "test.mood.csv", "mood"),
        ("train.mood.csv.GZ", "test.mood.csv.GZ", "mood"),
        ("a.b/train.csv", "a.b/test.csv", "a-b"),
        ("a.b/train.csv.gz", "a.b/test.csv.gz", "a-b"),
        ("a.b/train", "a.b/test", "a-b"),
    ):
        folder = tmp_path / "data"
        assert split_groups([str(folder / train), str(folder / test)]) == [
            {"name": name, "data": str(folder / train), "validation": None, "test": str(folder / test)}
        ]
    several = ["mood.train.csv", "mood.test.jsonl", "train.md", "mood.csv"]
    assert [group["data"] for group in split_groups(several)] == ["mood.train.csv", "train.md", "mood.csv", several[1]]


def test_files_of_one_call_that_would_be_tasks_of_one_name_are_named(tmp_path):
    """Neither replaces the other: a task of a test file would learn from it."""
    for folder in ("train", "test"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "mood.csv", rows_of(text=WORDS, label=MARKS))
    for words in ((), ("--replace",)):
        done = run("init", "train/mood.csv", "test/mood.csv", *words, cwd=tmp_path)
        done.refuses("BadName: train/mood.csv and test/mood.csv would be tasks of one name", "--task", "--test")
        assert "--replace" not in done.err and not (tmp_path / "polyhead.toml").exists()
    write(tmp_path / "x.csv", rows_of(text=WORDS, **{"a b": MARKS, "a-b": MARKS}))
    done = run("init", "x.csv", "--label", "a b", "--label", "a-b", "--replace", cwd=tmp_path)
    done.refuses("BadName: column 'a b' of x.csv and column 'a-b' of x.csv")


PROJECT = """# the head
bundle = "bundle"  # kept

[[tasks]] # first
name = "first"
kind = "regression"
range = [0, 1]
train = "x.csv"

# about x
[[tasks]]
# of the table
name = "x"
kind = "single_label"
labels = ["old", "[[tasks]]"]
train = "old.csv"
metric = "macro_f1"
positive = "old"

[tasks.training]
epochs = 3 # few

# about last
[[tasks]]
name = "last"
kind = "regression"
range = [0, 1]
train = "x.csv"
"""


def test_a_task_is_replaced_and_every_other_line_stays(tmp_path):
    write(tmp_path / "x.csv", rows_of(text=WORDS, label=MARKS))
    (tmp_path / "polyhead.toml").write_text(PROJECT)
    run("init", "x.csv", cwd=tmp_path).refuses("BadName", "--replace")
    assert (tmp_path / "polyhead.toml").read_text() == PROJECT
    done = run("init", "x.csv", "--replace", cwd=tmp_path)
    assert done.code == 0, done.err
    text = (tmp_path / "polyhead.toml").read_text()
    before, rest = PROJECT.split("# of the table\n")
    assert text.startswith(before + "# of the table\n") and text.endswith(rest[rest.index("\n[tasks.training]") :])
    first, task, last = read_project(tmp_path / "polyhead.toml").tasks
    assert (task.labels, task.train, task.metric, task.training.epochs) == (("no", "yes"), "x.csv", "macro_f1", 3)
    assert (first.name, last.name) == ("first", "last")
    assert run("init", "x.csv", "--replace", cwd=tmp_path).code == 0
    assert (tmp_path / "polyhead.toml").read_text() == text


def test_lines_of_a_project_file_keep_their_ends_and_its_mark_stays(tmp_path):
    """Every other line is that of before, byte for byte; new ones end as the file's do."""
    write(tmp_path / "x.csv", rows_of(text=WORDS, label=MARKS))
    before = "\ufeff" + PROJECT.replace("\n", "\r\n").replace("about x\r\n", "about x\n")
    file = tmp_path / "polyhead.toml"
    for words in (("--task", "new"), ("--replace",)):
        file.write_bytes(before.encode())
        done = run("init", "x.csv", *words, cwd=tmp_path)
        assert done.code == 0, done.err
        after = file.read_bytes().decode()
        assert after.startswith(before[: before.index("# of the table")])
        assert after.count("\n") - after.count("\r\n") == 1
        assert "[tasks.training]\r\nepochs = 3 # few\r\n\r\n# about last\r\n" in after
        assert "x" in [task.name for task in read_project(file).tasks]


def test_a_replaced_task_keeps_how_it_generates_however_that_is_written():
    entry = {"name": "brief", "kind": "summarization", "text": "text", "label": "summary", "train": "a.jsonl"}
    rest = '\n[[tasks]]\nname = "last"\nkind = "regression"\nrange = [0, 1]\ntrain = "x.csv"\n'
    table = "\n[tasks.generation]\nbeams = 4\ntokens = 60\n"
    for written in (table, "generation = { beams = 4, tokens = 60 }\n"):
        before = task_text(entry) + written + rest
        after, dropped = with_task(before, entry | {"train": "b.jsonl"}, "polyhead.toml", replace=True)
        assert (after, dropped) == (task_text(entry | {"train": "b.jsonl"}) + table + rest, ())


def test_a_task_that_is_no_table_of_its_own_is_not_replaced():
    entry = {"name": "mood", "kind": "single_label", "labels": ["no", "yes"], "train": "a.csv"}
    before = 'tasks = [{ name = "mood", kind = "single_label", labels = ["no", "yes"], train = "b.csv" }]\n'
    with pytest.raises(ConfigError, match="cannot replace a task of polyhead.toml") as caught:
        with_task(before, entry, "polyhead.toml", replace=True)
    assert (caught.value.got, "as [[tasks]] tables" in caught.value.do) == ("mood", True)


def test_keys_that_a_replaced_task_loses_are_said(tmp_path):
    write(tmp_path / "x.csv", rows_of(text=WORDS, score=[i / 7 for i in range(40)]))
    (tmp_path / "polyhead.toml").write_text(PROJECT)
    done = run("init", "x.csv", "--replace", cwd=tmp_path)
    assert done.code == 0 and "keys that this one has not: labels, metric, positive" in done.out, done.err
    assert run("init", "x.csv", "--replace", "--task", "new", cwd=tmp_path).code == 0
    assert [task.name for task in read_project(tmp_path / "polyhead.toml").tasks] == ["first", "x", "last", "new"]


EXPORTS = {
    "x.conll": ("".join(f"{w} O\n" for w in WORDS[0].split()) + "\nAnna B-per\n\n", "tagging"),
    "x.jsonl": ("".join(json.dumps({"text": f"Anna {w}", "label": [[0, 4, "per"]]}) + "\n" for w in WORDS), "tagging"),
    "x.json": (
        json.dumps(
            [
                {
                    "data": {"text": text},
                    "annotations": [{"result": [{"from_name": "m", "type": "choices", "value": {"choices": [mark]}}]}],
                }
                for text, mark in zip(WORDS, MARKS, strict=True)
            ]
        ),
        "single_label",
    ),
}


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_is_read_where_it_lies(tmp_path, name):
    content, kind = EXPORTS[name]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_text(content * (20 if name == "x.conll" else 1))
    done = run("init", f"in/{name}", "--validation", f"in/{name}", cwd=tmp_path)
    assert done.code == 0, done.err
    (entry,) = read_project(tmp_path / "polyhead.toml").tasks
    assert (entry.name, entry.kind, entry.train) == ("x", kind, f"in/{name}")
    assert f"in/{name} is read as" in done.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "polyhead.toml"]


MARKED = [(f"{text} é", mark) for text, mark in zip(WORDS, MARKS, strict=True)]
FOREIGN = {
    "Windows-1252": ("x.csv", "x.utf8.csv", [("text", "mood"), *MARKED]),
    "headerless": ("x.tsv", "x.rows.jsonl", MARKED),
}


@pytest.mark.parametrize("form", FOREIGN)
def test_a_table_that_is_no_plain_one_is_written_as_one(tmp_path, form):
    """The first line of one without a header was taken for names, and its row was lost."""
    name, written, rows = FOREIGN[form]
    encoding = "cp1252" if form == "Windows-1252" else "utf-8"
    mark = "\t" if name == "x.tsv" else ";"
    (tmp_path / name).write_text("".join(f"{mark.join(row)}\n" for row in rows), encoding=encoding)
    done = run("init", name, cwd=tmp_path)
    assert done.code == 0, done.err
    said = done.out.splitlines()[0]
    assert form in said and written in said and ("letters: é" in said) == ("utf8" in written)
    (entry,) = read_project(tmp_path / "polyhead.toml").tasks
    assert (entry.kind, entry.train, entry.labels) == ("single_label", written, ("no", "yes"))
    rows_read = read(entry.source(entry.train, tmp_path), entry.task())
    assert [given[0] for given in rows_read.inputs] == [text for text, _ in MARKED]


def test_a_table_in_utf_16_is_read_as_it_is(tmp_path):
    (tmp_path / "x.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in [("text", "mood"), *MARKED]), encoding="utf-16")
    done = run("init", "x.tsv", cwd=tmp_path)
    assert done.code == 0, done.err
    (entry,) = read_project(tmp_path / "polyhead.toml").tasks
    assert (entry.kind, entry.train, entry.labels) == ("single_label", "x.tsv", ("no", "yes"))
    rows_read = read(entry.source(entry.train, tmp_path), entry.task())
    assert [given[0] for given in rows_read.inputs] == [text for text, _ in MARKED]


def test_a_header_alone_holds_no_row(tmp_path):
    (tmp_path / "x.csv").write_text("text,label\n")
    run("init", "x.csv", cwd=tmp_path).refuses("EmptyData", "no rows in x.csv")


def test_rows_of_a_headerless_table_never_replace_each_other(tmp_path):
    (tmp_path / "other").mkdir()
    write(tmp_path / "x.csv", [dict(zip(MARKED[0], row, strict=True)) for row in MARKED[1:]])
    write(tmp_path / "other" / "x.csv", [dict(zip(MARKED[0], row, strict=True)) for row in MARKED[2:]])
    words = ["init", "x.csv", "--test", "other/x.csv", "--replace"]
    run(*words, cwd=tmp_path).refuses("x.rows.jsonl is there already", "another name")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "x.csv"]


def test_rows_of_a_headerless_table_are_not_left_behind_by_a_refusal(tmp_path):
    write(tmp_path / "x.csv", [dict(zip(MARKED[0], row, strict=True)) for row in MARKED[1:]])
    run("init", "x.csv", "--label", "labels", cwd=tmp_path).refuses("did you mean 'label'?")
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]


def test_an_error_in_an_export_names_the_file_and_the_record_that_a_person_has(tmp_path):
    """A file was named that does not exist, with the number of a row of that file."""
    good = [{"text": text, "label": [[0, 2, "x"]]} for text in WORDS]
    bad = {"text": "ab", "label": [[0, 9, "x"]]}
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (*good[:4], bad, *good[4:])))
    done = run("init", "x.jsonl", cwd=tmp_path)
    done.refuses("x.jsonl row 5")
    assert "rows.jsonl" not in done.err
    done = run("check", "x.jsonl", cwd=tmp_path)
    assert done.code == 1 and "row 5" in done.out and "rows.jsonl" not in done.out


def test_a_list_of_one_label_in_every_row_is_the_label_and_in_python_it_is_a_list(tmp_path):
    labels = [["x"], ["y"]] * 20
    write(tmp_path / "x.jsonl", rows_of(text=WORDS, label=labels))
    assert run("init", "x.jsonl", cwd=tmp_path).code == 0
    (entry,) = read_project(tmp_path / "polyhead.toml").tasks
    assert (entry.kind, entry.labels) == ("single_label", ("x", "y"))
    assert [int(target) for target in read(entry.source(entry.train, tmp_path), entry.task()).targets] == [0, 1] * 20
    assert kind_of_labels(labels).kind == "multi_label"
    write(tmp_path / "x.jsonl", rows_of(text=[*WORDS, "more", "none"], label=[*labels, ["x", "y"], []]))
    rows = read_each(entry.source(entry.train, tmp_path), entry.task())
    assert [error.row for error in rows.wrong] == [41] and rows.unlabelled == (42,)


def test_folders_of_texts_are_data(tmp_path):
    for number, (text, mark) in enumerate(zip(WORDS, MARKS, strict=True)):
        (tmp_path / "reviews" / mark).mkdir(parents=True, exist_ok=True)
        (tmp_path / "reviews" / mark / f"{number}.txt").write_text(text)
    done = run("init", "reviews", cwd=tmp_path)
    assert done.code == 0, done.err
    (entry,) = read_project(tmp_path / "polyhead.toml").tasks
    assert (entry.train, entry.text, entry.labels) == ("reviews", "text", ("no", "yes"))
    rows = read(entry.source(entry.train, tmp_path), entry.task())
    assert sorted(text for (text,) in rows.inputs) == sorted(WORDS)
    run("init", ".", cwd=tmp_path / "reviews" / "no").refuses("cannot read . as a folder of texts")


def test_of_several_tasks_empty_is_said_to_those_that_have_several_labels(tmp_path):
    """A single label cannot be none of the labels: alone such a task refuses it, beside others it is left out."""
    write(tmp_path / "x.csv", rows_of(text=WORDS, parts=["a;b", "", "a", "b"] * 10, mood=MARKS))
    run("init", "x.csv", "--label", "mood", "--empty", "none", cwd=tmp_path).refuses("empty = 'none'")
    skip = run("init", "x.csv", "--label", "mood", "--empty", "skip", cwd=tmp_path)  # which changed nothing
    skip.refuses("--empty skip", "no task has several labels")
    assert not (tmp_path / "polyhead.toml").exists()
    done = run("init", "x.csv", "--label", "parts", "--label", "mood", "--empty", "none", cwd=tmp_path)
    assert done.code == 0, done.err
    assert [entry.empty for entry in read_project(tmp_path / "polyhead.toml").tasks] == ["none", None]


def test_what_an_empty_cell_says_is_for_those_of_several_files_that_may_have_several_labels(tmp_path):
    """`--empty none` was refused for the others, and without it the file with several labels was."""
    write(tmp_path / "headlines.csv", rows_of(text=WORDS, section=MARKS))
    write(tmp_path / "movies.csv", rows_of(text=WORDS, genres=["a;b", "", "a", "b"] * 10))
    write(tmp_path / "bookings.jsonl", SPANS)
    write(tmp_path / "pairs.csv", rows_of(text_a=WORDS, text_b=WORDS[::-1], same=MARKS))
    files = ["headlines.csv", "movies.csv", "bookings.jsonl", "pairs.csv"]
    run("init", *files, cwd=tmp_path).refuses("movies.csv", "--empty none", "--empty skip")
    for said, used in (("none", 40), ("skip", 30)):
        done = run("init", *files, "--empty", said, "-o", f"{said}.toml", cwd=tmp_path)
        assert done.code == 0, done.err
        tasks = {task.name: task for task in read_project(tmp_path / f"{said}.toml").tasks}
        wanted = {"headlines": None, "movies": said, "bookings": None, "pairs": None}
        assert {name: task.empty for name, task in tasks.items()} == wanted
        movies = tasks["movies"]
        assert read(movies.source(movies.train, tmp_path), movies.task()).report.used == used
    left = run("init", "headlines.csv", "pairs.csv", "--empty", "none", "-o", "x.toml", cwd=tmp_path)
    left.refuses("--empty none", "no task has several labels")
    assert not (tmp_path / "x.toml").exists()


def test_roles_of_columns_are_named_and_labels_alike_are_warned_of(tmp_path):
    """`bad` and `bad ` were two lines that looked the same."""
    write(tmp_path / "x.csv", rows_of(text=WORDS, mood=["good", "bad", "Bad ", "new-york"] * 10))
    done = run("init", "x.csv", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "label: 'mood', 4 values" in done.out and "text: 'text'" in done.out
    assert "labels that differ in case or spaces alone: 'Bad ' and 'bad'" in done.out
    assert "  'Bad '" in done.out and "polyhead check polyhead.toml" in done.out
    write(tmp_path / "y.csv", rows_of(text=WORDS, mood=["good", "bad"] * 20))
    assert "differ in case" not in run("init", "y.csv", "-o", "y.toml", cwd=tmp_path).out


def test_labels_that_are_missing_values_of_other_programs_are_warned_of(tmp_path):
    write(tmp_path / "x.csv", rows_of(text=WORDS, mood=["good", "bad", "nan", "NULL"] * 10))
    done = run("init", "x.csv", cwd=tmp_path)
    assert done.code == 0 and "that may say that a row has none: 'NULL' and 'nan'" in done.out, done.err


def test_whole_numbers_beside_empty_cells_are_one_label_in_every_file(tmp_path):
    """A frame writes 1.0 in the file with an empty cell, and 1 in the one without."""
    write(tmp_path / "x.csv", rows_of(text=WORDS, spam=["0.0", "1.0", "", "1.0"] * 10))
    write(tmp_path / "y.csv", rows_of(text=WORDS, spam=["0", "1"] * 20))
    write(tmp_path / "z.jsonl", rows_of(text=WORDS, spam=[0.0, 1.0, None, 1.0] * 10))
    for train, test in (("x.csv", "y.csv"), ("y.csv", "x.csv"), ("z.jsonl", "x.csv"), ("x.csv", "z.jsonl")):
        done = run("init", train, "--test", test, "-o", "p.toml", "--replace", cwd=tmp_path)
        assert done.code == 0 and "cannot be learned" not in done.out, done.err
        (entry,) = [task for task in read_project(tmp_path / "p.toml").tasks if task.name == train[0]]
        assert (entry.kind, entry.labels) == ("single_label", ("0", "1"))
        parts = [read(entry.source(file, tmp_path), entry.task()) for file in (train, test)]
        assert [part.report.used for part in parts] == [40 if file == "y.csv" else 30 for file in (train, test)]
        assert [int(target) for target in parts[0].targets[:2]] == [0, 1]
    assert f"{WORDS[0]} -> 0\n" in run("init", "x.csv", "-o", "q.toml", cwd=tmp_path).out


def test_booleans_are_one_label_in_every_file(tmp_path):
    """Programs write True, TRUE or true: the other file's were labels of their own."""
    write(tmp_path / "x.csv", rows_of(text=WORDS, spam=["False", "True"] * 20))
    write(tmp_path / "y.csv", rows_of(text=WORDS, spam=["FALSE", "TRUE"] * 20))
    write(tmp_path / "z.jsonl", rows_of(text=WORDS, spam=[False, True] * 20))
    for train, test in itertools.permutations(("x.csv", "y.csv", "z.jsonl"), 2):
        done = run("init", train, "--test", test, "-o", "p.toml", "--replace", cwd=tmp_path)
        assert done.code == 0 and "cannot be learned" not in done.out, done.err
        (entry,) = [task for task in read_project(tmp_path / "p.toml").tasks if task.name == train[0]]
        assert entry.labels == {"x": ("False", "True"), "y": ("FALSE", "TRUE"), "z": ("false", "true")}[train[0]]
        parts = [read(entry.source(file, tmp_path), entry.task()) for file in (train, test)]
        assert [int(target) for part in parts for target in part.targets] == [0, 1] * 40


def test_columns_of_true_and_false_are_a_label_each(tmp_path):
    """They were recognised, and then refused as neither 0 nor 1."""
    marks = {"spam": [i % 2 == 0 for i in range(40)], "late": [i % 3 == 0 for i in range(40)]}
    capitals = {name: [str(mark).upper() for mark in cells] for name, cells in marks.items()}
    write(tmp_path / "x.csv", rows_of(text=WORDS, **capitals))
    write(tmp_path / "y.jsonl", rows_of(text=WORDS, **marks))
    write(tmp_path / "z.jsonl", rows_of(text=WORDS, **capitals))
    for data in ("x.csv", "y.jsonl", "z.jsonl"):
        done = run("init", data, "-o", "p.toml", "--replace", cwd=tmp_path)
        assert done.code == 0, done.err
        (entry,) = [task for task in read_project(tmp_path / "p.toml").tasks if task.name == data[0]]
        assert (entry.kind, entry.soft) == ("multi_label", ("spam", "late"))
        targets = [target.tolist() for target in read(entry.source(entry.train, tmp_path), entry.task()).targets]
        assert targets == [list(pair) for pair in zip(*marks.values(), strict=True)]


@pytest.mark.parametrize("dtype", ["float64", "Int64", "boolean", "category", "object"])
def test_labels_that_a_frame_saved_are_labels_in_every_format(tmp_path, dtype):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    marks = pandas.Series([None if i % 5 == 0 else i % 2 for i in range(40)]).astype("Int64").astype(dtype)
    frame = pandas.DataFrame({"text": WORDS, "late": marks})
    frame.to_parquet(tmp_path / "x.parquet")
    frame.to_csv(tmp_path / "x.csv", index=False)
    frame.to_json(tmp_path / "x.jsonl", orient="records", lines=True)
    for ending in ("parquet", "csv", "jsonl"):
        done = run("init", f"x.{ending}", "-o", f"{ending}.toml", cwd=tmp_path)
        assert done.code == 0, done.err
        (entry,) = read_project(tmp_path / f"{ending}.toml").tasks
        names = {"boolean": ("False", "True") if ending == "csv" else ("false", "true")}.get(dtype, ("0", "1"))
        assert (entry.kind, entry.labels) == ("single_label", names), ending
        examples = read(entry.source(entry.train, tmp_path), entry.task())
        assert (examples.report.used, examples.report.unlabelled) == (32, 8)
        assert [int(target) for target in examples.targets] == [i % 2 for i in range(40) if i % 5]


def test_a_file_to_score_may_write_whole_numbers_as_frames_do(tmp_path):
    from polyhead.cli.options import LabelledColumns, labelled_sources
    from polyhead.tasks.task import Task

    write(tmp_path / "x.csv", rows_of(words=WORDS, gold=["0.0", "1.0"] * 20))
    task = Task(name="spam", kind="single_label", labels=("0", "1"))
    source = labelled_sources({"spam": task}, ["spam"], str(tmp_path / "x.csv"), LabelledColumns())["spam"]
    assert (source.text, source.label) == ("words", "gold")
    assert [int(target) for target in read(source, task).targets] == [0, 1] * 20


def test_a_column_with_a_separator_at_the_end_of_cells_is_found(tmp_path):
    from polyhead.cli.options import LabelledColumns, labelled_sources
    from polyhead.tasks.task import Task

    write(tmp_path / "x.csv", rows_of(words=WORDS, gold=["a|b|", "b|"] * 20))
    task, columns = Task(name="asks", kind="multi_label", labels=("a", "b")), LabelledColumns(separator="|")
    source = labelled_sources({"asks": task}, ["asks"], str(tmp_path / "x.csv"), columns)["asks"]
    assert source.label == "gold"
    assert [target.tolist() for target in read(source, task).targets] == [[1, 1], [0, 1]] * 20


def test_cells_of_separators_alone_are_no_labels(tmp_path):
    """A column of them rivalled the right one, as one did of single labels with a separator after them."""
    from polyhead.cli.options import LabelledColumns, labelled_sources
    from polyhead.tasks.task import Task

    for kind, others in (("single_label", ["no,", "yes,"]), ("multi_label", [";", "|"])):
        write(tmp_path / "x.csv", rows_of(words=WORDS, others=others * 20, gold=["no", "yes"] * 20))
        task = Task(name="asks", kind=kind, labels=("no", "yes"))
        source = labelled_sources({"asks": task}, ["asks"], str(tmp_path / "x.csv"), LabelledColumns())["asks"]
        assert source.label == "gold"


def test_the_text_to_ask_is_a_short_one(tmp_path):
    """A whole document of 1,700 characters was printed."""
    long = [f"number {i} " + "and a long story goes on " * 70 for i in range(40)]
    for name, texts in (("short", [*long[:7], "a short one", *long[8:]]), ("long", long)):
        write(tmp_path / f"{name}.csv", rows_of(text=texts, mood=MARKS))
        done = run("init", f"{name}.csv", "-o", f"{name}.toml", cwd=tmp_path)
        *_, text = shlex.split(done.out.splitlines()[-1])
        assert text == "a short one" if name == "short" else long[0].startswith(text) and 40 < len(text) <= 60
    write(tmp_path / "pair.csv", rows_of(text=long, text_b=long[::-1], mood=MARKS))
    done = run("init", "pair.csv", "-o", "pair.toml", cwd=tmp_path)
    given = json.loads(shlex.split(done.out.splitlines()[-1])[-1])
    assert long[0].startswith(given["text"]) and long[-1].startswith(given["text_b"])
    assert all(40 < len(text) <= 60 for text in given.values())


@pytest.mark.parametrize("form", ["cp1252", "headerless"])
def test_a_row_that_cannot_be_read_is_one_of_the_users_file(tmp_path, form):
    """The file that was written for training was named, and it was gone."""
    lines = [f"{text} é{';'}{mark}" for text, mark in zip(WORDS, MARKS, strict=True)]
    head = ["text;mood"] if form == "cp1252" else []
    content = "\n".join([*head, *lines, "a;b;c", ""])
    (tmp_path / "x.csv").write_text(content, encoding=form if form == "cp1252" else "utf-8")
    done = run("init", "x.csv", cwd=tmp_path).refuses("x.csv row", "3 cells, where the header has 2")
    assert "utf8" not in done.err and "rows.jsonl" not in done.err
    (tmp_path / "y.csv").write_text("\n".join(["text;mood", *lines, ""]), encoding="cp1252")
    done = run("init", "y.csv", "--label", "moot", cwd=tmp_path).refuses("y.csv has no column 'moot'", "'mood'")
    assert "utf8" not in done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.csv", "y.csv"]


@pytest.mark.parametrize("ending", ["json", "xlsx", "csv"])
def test_tables_of_every_format_are_trained_evaluated_and_scored(work, ending):
    """Only commands that `init` prints are run, and `predict` over the same file."""
    rows = rows_of(
        text=WORDS, mood=[row["mood"] for row in ROWS], late=[i % 2 for i in range(40)], odd=[1, 0, 0, 1] * 10
    )
    path = work / f"x.{ending}"
    if ending == "xlsx":
        openpyxl = pytest.importorskip("openpyxl")
        book = openpyxl.Workbook()
        for cells in [list(rows[0]), *(list(row.values()) for row in rows)]:
            book.active.append(cells)
        book.save(path)
    elif ending == "json":
        path.write_text(json.dumps(rows))
    else:
        write(path, rows)
    assert run("init", path.name, "--label", "mood", cwd=work).code == 0
    done = run("init", path.name, "--one-hot", "late,odd", "--task", "marks", cwd=work)
    assert done.code == 0, done.err
    project = work / "polyhead.toml"
    text = project.read_text().replace('name = "minilm"', 'name = "trunk"')
    project.write_text(text.replace("[[tasks]]", "[training]\nepochs = 1\nprecision = 'float32'\n\n[[tasks]]", 1))
    lines = done.out[done.out.index("next:\n") + 6 :].splitlines()
    check, train, evaluate, predict = (shlex.split(line) for line in lines)
    assert check == ["polyhead", "check", "polyhead.toml"]
    assert "label_in_text" in run(*check[1:], cwd=work).out  # "good" stands in texts with that label
    for words in (train, evaluate):
        assert words[0] == "polyhead"
        ended = run(*words[1:], cwd=work)
        assert ended.code == 0, ended.err
    assert predict == ["polyhead", "predict", "bundle", WORDS[0]]
    ended = run(*predict[1:], cwd=work)
    assert ended.code == 0, ended.err
    assert set(ended.rows[0]["answers"]) == {"x", "marks"}
    ended = run("predict", "bundle", path.name, "-o", "out.jsonl", cwd=work)
    assert ended.code == 0, ended.err
    assert len((work / "out.jsonl").read_text().splitlines()) == 40


@pytest.mark.parametrize(
    "text",
    ["it's fine", 'a "lamp"', "$HOME `id` \\n!", "-o out", '{"text": 1}', "two\nlines", "gone.csv", "x.csv", " good"],
)
def test_the_text_to_ask_is_one_word_of_a_shell_that_predict_reads_as_the_text(tmp_path, text):
    write(tmp_path / "x.csv", rows_of(text=[text, *WORDS[1:]], mood=MARKS))
    done = run("init", "x.csv", "--label", "mood", cwd=tmp_path)
    assert done.code == 0, done.err
    command = done.out.splitlines()[-1].strip()
    assert command.startswith("polyhead predict bundle ")
    words = subprocess.check_output(["sh", "-c", command.replace("polyhead", r"printf '%s\0'", 1)], text=True)
    (_, _, asked), left = words.split("\0")[:-1], words.split("\0")[-1]
    given = given_in([asked])
    assert not left and given.texts == (asked,)
    assert line_of(1, asked.encode(), "auto").input == (text,)


KINDS = {"single_text": "single_label", "pair": "single_label"}


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("name", ["trec6", "glue_rte", "copa", "snips_slots", "subjqa_grocery", "sick_relatedness"])
def test_real_sets_are_what_they_are(tmp_path, name):
    folder = REAL / name
    if not folder.is_dir():
        pytest.skip(f"the set is not at {folder}")
    kind = json.loads((folder / "meta.json").read_text())["kind"]
    done = run("init", folder / "train.jsonl.gz", "-o", tmp_path / "p.toml")
    assert done.code == 0, done.err
    (entry,) = read_project(tmp_path / "p.toml").tasks
    assert entry.kind == KINDS.get(kind, kind)
    assert (entry.text_b is not None) == (kind in ("pair", "regression", "span"))


def test_a_column_of_labels_without_a_value_is_named(tmp_path):
    """The error said that no column looks like a label, and to name one with --label, which had been done."""
    write(tmp_path / "x.csv", rows_of(text=WORDS, mood=[""] * 40))
    run("init", "x.csv", "--label", "mood", cwd=tmp_path).refuses("no row has a value in column 'mood'")


def test_labels_that_nearly_all_differ_are_refused_with_their_column_and_file(tmp_path):
    write(tmp_path / "x.csv", rows_of(text=WORDS, note=[f"note {i}" for i in range(40)]))
    run("init", "x.csv", "--label", "note", cwd=tmp_path).refuses("'note' of x.csv", "40 different values")


def test_a_file_or_label_that_is_given_twice_is_named(tmp_path):
    """The error said that the project file has such a task, although there was no project file."""
    write(tmp_path / "x.csv", rows_of(text=WORDS, mood=MARKS))
    run("init", "x.csv", "x.csv", cwd=tmp_path).refuses("x.csv is given twice")
    run("init", "x.csv", "--label", "mood", "--label", "mood", cwd=tmp_path).refuses("'mood' of x.csv is given twice")
    assert not (tmp_path / "polyhead.toml").exists()


@cases("words", [("--pair", "joined"), ("--overlaps", "skip")], ids=["pair", "overlaps"])
def test_an_option_for_other_tasks_is_refused(tmp_path, words):
    """Both were left out of the project file in silence."""
    tmp_path = fresh(tmp_path)
    write(tmp_path / "x.csv", rows_of(text=WORDS, mood=MARKS))
    run("init", "x.csv", "--label", "mood", *words, cwd=tmp_path).refuses(" ".join(words), "would change nothing")
    write(tmp_path / "pairs.csv", rows_of(text=WORDS, text_b=WORDS[::-1], same=MARKS))
    write(tmp_path / "spans.jsonl", SPANS)
    used = {"--pair": ("pairs.csv", "--label", "same"), "--overlaps": ("spans.jsonl",)}[words[0]]
    done = run("init", *used, *words, cwd=tmp_path)
    assert done.code == 0 and words[1] in (tmp_path / "polyhead.toml").read_text(), done.err
