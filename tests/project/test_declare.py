"""A task as `polyhead init` declares it: it reads back as the same task; data that cannot be the task is named."""

import json

import pytest

from polyhead.data.read import read
from polyhead.project.declare import InitOptions, declare, project_head, task_text
from polyhead.project.init import guessed
from polyhead.project.recipes import Training
from polyhead.project.strategies.base import LIVE_TRAINING
from polyhead.project.strategies.branch import BRANCH_TRAINING
from polyhead.project.tables import JOINT_TRAINING, read_project, training_of
from support.cases import cases, fresh
from support.commands import run
from support.init_rows import FORMATS, KINDS, NAMED, PASSAGES, QUESTIONS, ROWS, SPANS, write


@cases("case,form", [*((case, ".jsonl") for case in KINDS), *(("tagging spans", form) for form in FORMATS[1:])])
def test_what_init_writes_reads_back_as_the_same_task(tmp_path, case, form):
    tmp_path = fresh(tmp_path)
    rows, words = KINDS[case]
    data, test = write(tmp_path / f"data{form}", rows), write(tmp_path / f"held{form}", rows[:8])
    path = tmp_path / "polyhead.toml"
    done = run("init", data, "--kind", case.split()[0], *words, "--test", test, "-o", path)
    assert done.code == 0, done.err
    (entry,) = read_project(path).tasks
    examples = read(entry.source(entry.train, tmp_path), entry.task())
    assert len(examples.targets) == len(rows)
    assert (entry.train, entry.test) == (f"data{form}", f"held{form}")
    for label in set(entry.labels) - {"O"}:
        assert label.removeprefix("B-").removeprefix("I-") in done.out


def test_what_init_writes_leaves_every_strategy_and_recipe_its_own_numbers(work):
    """It wrote a seed, and a table with a seed alone stands in place of all of them."""
    data, path = write(work / "rows.jsonl", ROWS), work / "polyhead.toml"
    assert run("init", data, "--kind", "single_label", "--label", "mood", "-o", path).code == 0
    for table, own in (
        ("[strategy]\nkind = 'branch'\n", BRANCH_TRAINING),
        ("[strategy]\nkind = 'in_layer'\n", LIVE_TRAINING),
        ("[recipe]\nkind = 'joint'\n", JOINT_TRAINING),
        ("", Training()),
    ):
        (work / "other.toml").write_text(path.read_text().replace("[[tasks]]", table + "\n[[tasks]]"))
        project = read_project(work / "other.toml")
        assert training_of(project, project.tasks[0]) == own


def test_columns_and_rows_without_an_answer_are_written_down(tmp_path):
    data = write(tmp_path / "x.jsonl", PASSAGES)
    done = run("init", data, "--kind", "span", "--task", "where", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "some rows have no answer" in done.out
    named = write(tmp_path / "y.jsonl", NAMED)
    words = ["--text", "q", "--text-b", "c", "--answers", "a"]
    done = run("init", named, "--kind", "span", "--task", "named", *words, cwd=tmp_path)
    assert done.code == 0 and "no answer" not in done.out
    chosen = write(tmp_path / "z.jsonl", [{**row, "right": row["choices"][0], "story": "a b"} for row in QUESTIONS])
    words = ["--label", "right", "--choices", "choices", "--text-b", "story"]
    done = run("init", chosen, "--kind", "multiple_choice", "--task", "reply", *words, cwd=tmp_path)
    assert done.code == 0, done.err
    where, other, reply = read_project(tmp_path / "polyhead.toml").tasks
    assert (where.null_answers, where.text, where.text_b, where.answers) == (True, "question", "context", "answers")
    assert (other.null_answers, other.text, other.text_b, other.answers) == (False, "q", "c", "a")
    assert (reply.text, reply.text_b, reply.choices, reply.label) == ("question", "story", "choices", "right")


@cases(
    ("kind", "words", "rows", "said"),
    [
        ("multiple_choice", ["--choices", "choice"], QUESTIONS, "did you mean 'choices'?"),
        ("multiple_choice", [], [{**QUESTIONS[0], "label": 3}], "row 1"),
        ("multiple_choice", ["--answers", "label"], QUESTIONS, "'answers' is for tasks of kind 'span'"),
        ("span", ["--answers", "answer"], PASSAGES, "did you mean 'answers'?"),
        ("span", ["--label", "answers"], PASSAGES, "no 'label'"),
        ("span", [], [{**PASSAGES[0], "answers": [{"text": "nowhere", "start": 0}]}], "row 1"),
        (
            "single_label",
            ["--label", "mood", "--choices", "topics"],
            ROWS,
            "'choices' is for tasks of kind 'multiple_choice'",
        ),
    ],
)
def test_questions_that_cannot_be_read_are_refused(tmp_path, kind, words, rows, said):
    tmp_path = fresh(tmp_path)
    data = write(tmp_path / "x.jsonl", rows)
    run("init", data, "--kind", kind, *words, cwd=tmp_path).refuses(said)
    assert not (tmp_path / "polyhead.toml").exists()


def test_labels_that_only_the_test_file_has_are_said(tmp_path):
    data = write(tmp_path / "x.jsonl", [{"text": f"t{i}", "label": "ab"[i % 2]} for i in range(20)])
    test = write(tmp_path / "y.jsonl", [{"text": "t", "label": "c"}])
    done = run("init", data, "--kind", "single_label", "--test", test, cwd=tmp_path)
    assert "cannot be learned: c" in done.out
    assert read_project(tmp_path / "polyhead.toml").tasks[0].labels == ("a", "b", "c")


@cases("name", ["a/b", "..", "../up", "a..b", ".a", "a ", "", "x" * 65, "a\nb", "ü"])
def test_names_that_are_no_safe_folder_are_refused(tmp_path, name):
    tmp_path = fresh(tmp_path)
    data = write(tmp_path / "x.jsonl", ROWS)
    done = run("init", data, "--kind", "single_label", "--label", "mood", "--task", name, cwd=tmp_path)
    if name:
        done.refuses("BadName")
        assert not (tmp_path / "polyhead.toml").exists()
    else:
        assert read_project(tmp_path / "polyhead.toml").tasks[0].name == "x"


@cases(
    ("kind", "words", "rows", "said"),
    [
        ("single_label", [], [{"text": "a", "mood": "x"}], "at least 2 different labels"),
        ("single_label", ["--label", "moods"], ROWS, "did you mean 'mood'?"),
        ("single_label", [], [{"text": "a", "label": None}], "no row has a value"),
        ("single_label", [], [{"text": "a", "label": 0.5}], "row 1"),
        ("single_label", [], [{"text": "a", "label": "x"}, {"text": "b", "label": "x"}], "labels"),
        ("single_label", ["--label", "mood", "--text", "txt"], ROWS, "did you mean 'text'?"),
        ("single_label", ["--label", "mood", "--text", "text", "--text-b", "text"], ROWS, "name one column"),
        ("single_label", [], [{"text": "a", "label": ["x", "y"]}], "row 1"),
        ("multi_label", ["--label", "mood"], ROWS, "--separator"),
        ("multi_label", ["--label", "topics"], [{"text": "a", "topics": [["x"]]}], "row 1"),
        ("regression", ["--label", "mood"], ROWS, "no number"),
        ("regression", [], [{"text": "a", "label": True}], "no number"),
        ("regression", [], [{"text": str(i), "label": 1} for i in range(9)], "same 'label'"),
        ("regression", [], [{"text": "a", "label": float("nan")}, {"text": "b", "label": 1}], ""),
        ("tagging", ["--tokens", "tokens"], [{"tokens": ["a"], "tags": "O"}], "row 1"),
        ("tagging", ["--tokens", "tokens"], [{"tokens": ["a"], "tags": ["O", "B-x"]}] * 9, "differ in number"),
        ("tagging", ["--spans", "spans"], [{"text": "a", "spans": [3]}], "row 1"),
        ("tagging", ["--label", "mood"], ROWS, "row 1"),
        ("single_label", [], [{"text": "same", "label": "ab"[i % 2]} for i in range(9)], "too few"),
    ],
)
def test_data_that_cannot_be_the_task_is_named(tmp_path, kind, words, rows, said):
    tmp_path = fresh(tmp_path)
    data = write(tmp_path / "x.jsonl", rows)
    run("init", data, "--kind", kind, *words, cwd=tmp_path).refuses(said)
    assert [p.name for p in tmp_path.iterdir()] == ["x.jsonl"]


@cases("content", ["", "\n\n", "{\n", "[1]\n", '{"text": "a", "label": \n', "\x00"])
@cases("form", [".jsonl", ".csv", ".tsv", ".jsonl.gz", ".parquet", ".txt"])
def test_files_that_hold_no_rows_are_named(tmp_path, content, form):
    tmp_path = fresh(tmp_path)
    data = tmp_path / f"x{form}"
    data.write_text(content)
    run("init", data, "--kind", "single_label", cwd=tmp_path).refuses(f"x{form}")


def test_too_many_labels_are_no_labels(tmp_path):
    data = write(tmp_path / "x.jsonl", [{"text": f"t{i}", "label": f"l{i}"} for i in range(1001)])
    run("init", data, "--kind", "single_label", cwd=tmp_path).refuses("1001", "regression")


def test_cells_with_several_labels_need_their_separator(tmp_path):
    data = tmp_path / "x.csv"
    data.write_text("text,label\n" + "".join(f"t{i},a/b\n" if i % 2 else f"t{i},c\n" for i in range(20)))
    run("init", data, "--kind", "multi_label", cwd=tmp_path).refuses("--separator")
    assert run("init", data, "--kind", "multi_label", "--separator", "/", cwd=tmp_path).code == 0
    assert read_project(tmp_path / "polyhead.toml").tasks[0].labels == ("a", "b", "c")


def test_mixed_line_ends_and_extra_columns_do_no_harm(tmp_path):
    data = tmp_path / "x.csv"
    ends = ("\n", "\r\n", "\r")
    rows = "".join(f't{i},"more, of it",{"ab"[i % 2]}{ends[i % 3]}' for i in range(20))
    data.write_bytes(f"text,other,label\r\n{rows}".encode())
    assert run("init", data, "--kind", "single_label", cwd=tmp_path).code == 0
    assert "20 rows, 20 used" in run("init", data, "--kind", "single_label", "--task", "y", cwd=tmp_path).out


def test_rows_without_label_or_text_are_counted(tmp_path):
    rows = [{"text": f"t{i}", "label": "ab"[i % 2]} for i in range(20)]
    rows += [{"text": " ", "label": "a"}, {"text": "a"}, {"text": "\ud800x", "label": "b"}]
    done = run("init", write(tmp_path / "x.jsonl", rows), "--kind", "single_label", cwd=tmp_path)
    assert "23 rows, 21 used, 1 without a label, skipped, 1 with an empty text, skipped" in done.out
    assert "1 lone surrogates replaced" in done.out


def test_labels_and_ranges_are_those_of_rows_that_can_be_used(tmp_path):
    """A label that rows without a text alone have was declared, and its rows counted as training rows."""
    rows = [{"text": f"t{i}", "label": "xy"[i % 2], "stars": i % 5, "a": i % 2, "b": 1} for i in range(20)]
    rows += [{"text": "", "label": "lost", "stars": 99, "a": 1, "b": 1}, {"label": "x", "stars": 4, "a": 0, "b": 1}]
    data, held = write(tmp_path / "x.jsonl", rows), write(tmp_path / "y.jsonl", [*rows, {"text": "z", "label": "lost"}])
    declared = declare(InitOptions(data=str(data), kind="single_label"), tmp_path)
    assert declared.entry["labels"] == ["x", "y"] and declared.counts == {"x": 10, "y": 10}
    declared = declare(InitOptions(data=str(data), test=str(held), kind="single_label"), tmp_path)
    assert declared.counts == {"lost": 0, "x": 10, "y": 10} and declared.unseen == ("lost",)
    declared = declare(InitOptions(data=str(data), kind="regression", label="stars"), tmp_path)
    assert declared.entry["range"] == [0, 4]
    marks = write(tmp_path / "z.jsonl", [{key: row.get(key, "") for key in ("text", "a", "b")} for row in rows])
    declared = declare(InitOptions(data=str(marks), kind="multi_label", soft=("a", "b")), tmp_path)
    assert declared.counts == {"a": 10, "b": 20}


def test_overlapping_spans_are_refused_by_row_unless_it_is_said_what_becomes_of_them(tmp_path):
    nested = {"text": "open every 6 hours", "spans": [{"start": 5, "end": 18, "label": "first"}]}
    nested["spans"].append({"start": 11, "end": 18, "label": "first"})
    write(tmp_path / "offers.jsonl", [*({"text": row["text"], "spans": row["spans"]} for row in SPANS), nested])
    run("init", "offers.jsonl", cwd=tmp_path).refuses("offers.jsonl row 31", "overlap", "--overlaps", "'longest'")
    for way, said in (("longest", "1 of the labelled spans left out"), ("skip", "1 with overlapping spans, skipped")):
        done = run("init", "offers.jsonl", "--overlaps", way, "-o", f"{way}.toml", cwd=tmp_path)
        assert done.code == 0 and said in done.out
        assert read_project(tmp_path / f"{way}.toml").tasks[0].overlaps == way
    assert "--overlaps" in run("evaluate", "--help", cwd=tmp_path).out


def test_what_an_empty_cell_of_several_labels_says_is_written_down_and_counted(tmp_path):
    (tmp_path / "rows.csv").write_text("text,label\nx,a;b\ny,\nz, \nw,a\nv,b\nu,\n")
    words = ["init", "rows.csv", "--kind", "multi_label", "--separator", ";"]
    run(*words, cwd=tmp_path).refuses("empty in 3 of its rows", "--empty none", "--empty skip")
    skip = ["--empty", "skip", "--validation", "rows.csv", "-o", "skipped.toml"]
    skipped = run(*words, *skip, cwd=tmp_path)
    assert read_project(tmp_path / "skipped.toml").tasks[0].empty == "skip"
    assert "6 rows, 3 used, 3 without a label, skipped" in skipped.out
    done = run(*words, "--empty", "none", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "6 rows, 6 used, 3 with an empty label cell, read as none of the labels" in done.out
    (entry,) = read_project(tmp_path / "polyhead.toml").tasks
    assert (entry.empty, entry.labels) == ("none", ("a", "b"))
    path = tmp_path / "other.toml"
    (tmp_path / "one.csv").write_text("text,label\nx,a\ny,\nz,b\nw,a\nv,b\nu,a\n")
    assert run("init", "one.csv", "--kind", "single_label", "-o", path, cwd=tmp_path).code == 0
    assert read_project(path).tasks[0].empty is None


@cases(
    ("given", "name"),
    [
        ("a b.csv", "a-b"),
        (".x.jsonl", "x"),
        ("--.csv", "task"),
        ("dir/..x.csv", "x"),
        ("d/texts//", "texts"),
        ("x" * 80 + ".csv", "x" * 64),
    ]
    + [("datasets:owner/name/config:train", "config"), ("ü.csv", "task")],
)
def test_a_name_is_made_of_the_file(given, name):
    from polyhead.project.declare import _name_of

    assert _name_of(given) == name


def test_a_table_with_a_header_alone_or_other_marks_between_its_columns_is_named(tmp_path):
    table = tmp_path / "rows.tsv"
    words = ("init", table, "--kind", "single_label", "-o", tmp_path / "p.toml")
    table.write_text("text\tlabel\n")
    run(*words).refuses("no rows in")
    table.write_text("text;label\na;b\n")
    run(*words, "--label", "label").refuses("no column 'label'", "';' separated", "tabs")


def test_keys_that_hold_marks_are_no_columns_beside_each_other(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"id|name": "a"}\n')
    done = run("init", tmp_path / "x.jsonl", "--kind", "single_label", "-o", tmp_path / "p.toml")
    done.refuses("looks like the text")
    assert "separated its columns" not in done.err


@cases(
    ("kind", "words", "said"),
    [
        ("span", ["--answers", "question"], "--text and --answers"),
        ("multiple_choice", ["--label", "question"], "--text and --label"),
    ],
)
def test_a_question_that_is_the_answer_is_refused(tmp_path, kind, words, said):
    tmp_path = fresh(tmp_path)
    (tmp_path / "x.jsonl").write_text('{"question": "a"}\n')
    run("init", tmp_path / "x.jsonl", "--kind", kind, *words).refuses("column 'question' for both", said)


def test_a_label_that_is_the_text_is_refused(tmp_path):
    table = tmp_path / "rows.csv"
    table.write_text("text,label\na,b\nc,d\n")
    words = ("--kind", "single_label", "--label", "text", "-o", tmp_path / "p.toml")
    run("init", table, *words).refuses("cannot be the text", "--label")


def test_parquet_with_two_columns_of_one_name_is_declared_by_nobody(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = [pyarrow.array(one) for one in (["a", "b"], ["x", "y"], ["y", "x"])]
    parquet.write_table(pyarrow.table(columns, names=["text", "label", "label"]), tmp_path / "a.parquet")
    run("init", "a.parquet", "--kind", "single_label", cwd=tmp_path).refuses("two columns of one name", "label")
    assert not (tmp_path / "polyhead.toml").exists()


CELLS = [".5", "5.", "-0.5", "+1", "1e-3", "2E+0", "007", "0"]


NO_CELLS = ["1_0", " 1", "1 ", "nan", "inf", "-Infinity", "1e999", "\uff11", "\u0661", "0x1", "1,5", "1e", ".", "--1"]


@cases("cell", CELLS)
def test_cells_of_plain_decimal_numbers_are_numbers(tmp_path, cell):
    tmp_path = fresh(tmp_path)
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"a{i},{i}\n" for i in range(3)) + f"b,{cell}\n")
    done = run("init", "a.csv", "--kind", "regression", "--validation", "a.csv", cwd=tmp_path)
    assert done.code == 0, done.err
    low, high = read_project(tmp_path / "polyhead.toml").tasks[0].range
    assert (low, high) == (min(0.0, float(cell)), 2.0 if float(cell) < 3 else float(cell))


@cases("cell", NO_CELLS)
def test_cells_that_python_alone_takes_for_numbers_are_none(tmp_path, cell):
    """A file that says 1_0 was trained as if it said 10."""
    tmp_path = fresh(tmp_path)
    rows = "text,label\n" + "".join(f"a{i},{i}\n" for i in range(9)) + f'b,"{cell}"\n'
    (tmp_path / "a.csv").write_text(rows)
    run("init", "a.csv", "--kind", "regression", cwd=tmp_path).refuses("row 10", "is no number")
    task = '[[tasks]]\nname = "t"\nkind = "regression"\nrange = [0, 9]\ntrain = "a.csv"\n'
    (tmp_path / "p.toml").write_text(task)
    run("train", "p.toml", cwd=tmp_path).refuses("BadValue", "row 10", "number in the task's range")


@cases("value", ["NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 400, "true", '"5"', "[5]"])
def test_targets_of_json_that_are_no_finite_numbers_are_refused_by_row(tmp_path, value):
    tmp_path = fresh(tmp_path)
    rows = "".join(f'{{"text": "a{i}", "label": {i}}}\n' for i in range(9))
    (tmp_path / "a.jsonl").write_text(rows + f'{{"text": "b", "label": {value}}}\n')
    run("init", "a.jsonl", "--kind", "regression", cwd=tmp_path).refuses("row 10", "is no number")
    task = '[[tasks]]\nname = "t"\nkind = "regression"\nrange = [0, 9]\ntrain = "a.jsonl"\n'
    (tmp_path / "p.toml").write_text(task)
    run("train", "p.toml", cwd=tmp_path).refuses("BadValue", "row 10")


@cases("name", ["..", "t.", "", ".t", "a..b"])
def test_a_name_that_ends_in_a_point_or_is_empty_stands_in_quotes(tmp_path, name):
    """`Got: .` was all that was said of a task called `..`."""
    tmp_path = fresh(tmp_path)
    (tmp_path / "a.csv").write_text("text,label\na,x\nb,y\n")
    entry = f'[[tasks]]\nname = "{name}"\nkind = "single_label"\nlabels = ["x", "y"]\ntrain = "a.csv"\n'
    (tmp_path / "p.toml").write_text(entry)
    quoted = repr(name) if not name or name.endswith(".") else name
    run("train", "p.toml", cwd=tmp_path).refuses("BadName", f"Got: {quoted}.", "Allowed: ")


def test_texts_of_several_columns_are_declared_and_read(tmp_path):
    """A title and a body: the title was called a label, and the body alone was read."""
    rows = [
        {"title": f"the {n % 2 and 'lamp' or 'kettle'}", "body": f"is {n}", "mood": "good" if n % 3 else "bad"}
        for n in range(30)
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = guessed(InitOptions(data=str(path), text=("title", "body")))
    assert (task.text, task.label, task.text_b, task.kind) == (("title", "body"), "mood", None, "single_label")
    text = project_head("minilm") + task_text(declare(task, tmp_path).entry)
    (tmp_path / "polyhead.toml").write_text(text)
    entry = read_project(tmp_path / "polyhead.toml").tasks[0]
    assert entry.text == ("title", "body")
    assert read(entry.source(entry.train, tmp_path), entry.task()).inputs[1] == ("the lamp\nis 1",)
