"""`polyhead evaluate BUNDLE --data FILE`: no project file, scores of each label, and the rows that are wrong."""

import csv
import json
import shutil

import pytest

from polyhead import Session
from polyhead.bundle.read import Bundle
from polyhead.evaluate.cascade import POINTS_LOST
from support import tiny_project
from support.commands import run

CHOSEN = ("--backend", "reference")


def told(*words, **options):
    done = run(*words, *CHOSEN, "--json", "-", **options)
    assert done.code == 0, done.err
    return json.loads(done.out)


@pytest.fixture
def bare(home, tmp_path):
    """A bundle alone: nothing of the project that made it is there."""
    return shutil.copytree(home / "bundle", tmp_path / "alone" / "bundle")


@pytest.fixture
def file(tmp_path):
    return tiny_project.write_jsonl(tmp_path / "new.jsonl", tiny_project.messages(40, seed=9)) or tmp_path / "new.jsonl"


def test_a_bundle_is_scored_on_a_file_as_its_project_scores_it(home, bare, work):
    """The tasks are those with a column of their name, or one that is named; tokens and tags are those of the kind."""
    test = home / "data" / "messages-test.jsonl"
    found = told("evaluate", bare, "--data", test, "--label", "names=tags")["scores"]
    wanted = {row["task"]: row for row in told("evaluate", home / "polyhead.toml")["scores"]}
    assert [row["task"] for row in found] == ["mood", "topics", "urgency", "names"]
    for row in found:
        assert row["split"] == "data" and row["scores"] == pytest.approx(wanted[row["task"]]["scores"], abs=1e-6)
        assert row["labels"] == wanted[row["task"]]["labels"]
    table = run("evaluate", bare, "--data", test, "--tasks", "mood", *CHOSEN).out.splitlines()
    metric, before = Bundle.open(bare).headline("mood")
    assert table[0].split()[:6] == ["task", "split", "rows", "metric", "score", "in"]
    assert table[1].split()[:3] == ["mood", "data", "12"] and f"{before:.4f}" in table[1] and metric in table[1]
    assert any(line.split()[:4] == ["label", "precision", "recall", "f1"] for line in table)


@pytest.mark.slow
def test_scores_of_labels_are_those_of_scikit_learn(bare, file):
    metrics = pytest.importorskip("sklearn.metrics")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    results = Session(bare, backend="reference").predict([row["text"] for row in rows], tasks=["mood", "topics"])
    found = {row["task"]: row["labels"] for row in told("evaluate", bare, "--data", file)["scores"]}
    sides = {
        "mood": ([row["mood"] for row in rows], [result.answers["mood"]["label"] for result in results]),
        "topics": tuple(
            [[int(topic in labels) for topic in tiny_project.TOPICS] for labels in side]
            for side in ([row["topics"] for row in rows], [result.answers["topics"]["labels"] for result in results])
        ),
    }
    for task, (truth, answers) in sides.items():
        names = [label["label"] for label in found[task]]
        wanted = metrics.precision_recall_fscore_support(
            truth, answers, labels=names if task == "mood" else None, zero_division=0
        )
        for key, column in zip(("precision", "recall", "f1", "support"), wanted, strict=True):
            assert [label[key] for label in found[task]] == pytest.approx(column.tolist(), abs=5e-7), (task, key)


def test_wrong_rows_are_written_with_truth_answer_and_score_surest_first(bare, file, tmp_path):
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[3]["mood"] = "bad" if rows[3]["mood"] == "good" else "good"  # at least one is wrong, or another one is
    tiny_project.write_jsonl(file, rows)
    answers = [
        result.answers["mood"]
        for result in Session(bare, backend="reference").predict([row["text"] for row in rows], tasks=["mood"])
    ]
    wanted = {
        number: (row["text"], row["mood"], answer["label"], answer["scores"][answer["label"]])
        for number, (row, answer) in enumerate(zip(rows, answers, strict=True), 1)
        if answer["label"] != row["mood"]
    }
    assert wanted
    out = tmp_path / "wrong.csv"
    (score,) = told("evaluate", bare, "--data", file, "--task", "mood", "--errors", out)["scores"]
    with out.open(newline="") as opened:
        found = list(csv.DictReader(opened))
    assert score["wrong"] == len(found) == len(wanted)
    for row in found:
        text, truth, answer, sure = wanted[int(row["row"])]
        assert (row["task"], row["text"], row["truth"], row["answer"]) == ("mood", text, truth, answer)
        assert float(row["score"]) == pytest.approx(sure, abs=1e-6)
    assert [float(row["score"]) for row in found] == sorted((float(row["score"]) for row in found), reverse=True)
    as_json = tmp_path / "wrong.jsonl"
    told("evaluate", bare, "--data", file, "--task", "mood", "--errors", as_json)
    lines = [json.loads(line) for line in as_json.read_text().splitlines()]
    assert [str(line["row"]) for line in lines] == [row["row"] for row in found]


def test_right_answers_are_no_errors_whatever_the_kind(bare, file, tmp_path):
    """The bundle's own answers as labels: every task is right everywhere, and its scores are the best there are."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    results = Session(bare, backend="reference").predict(
        [row["text"] for row in rows], tasks=["mood", "topics", "urgency"]
    )
    labelled = [
        {
            "text": row["text"],
            "mood": result.answers["mood"]["label"],
            "topics": result.answers["topics"]["labels"],
            "urgency": result.answers["urgency"]["value"],
        }
        for row, result in zip(rows, results, strict=True)
    ]
    tiny_project.write_jsonl(file, labelled)
    out = tmp_path / "wrong.jsonl"
    for score in told("evaluate", bare, "--data", file, "--errors", out)["scores"]:
        assert score["wrong"] == 0 and score["scores"][score["metric"]] == pytest.approx(1.0)
        given = [label for label in score["labels"] if label["support"]]
        assert all(label["precision"] == label["recall"] == label["f1"] == 1 for label in given)
    assert out.read_text() == ""


def test_the_one_task_that_is_named_reads_the_column_that_is_named(bare, tmp_path):
    file = tmp_path / "new.tsv"
    file.write_text(
        "message\tlabel\tthe mood\nthe lamp is good\tgood\tgood\nthe box is bad\tgood\tbad\nso late\t\tbad\n"
    )
    words = ("evaluate", bare, "--data", file, "--task", "mood", "--text", "message")
    assert told(*words)["scores"][0]["rows"] == 2  # of column `label`, which one row lacks
    assert told(*words, "--label", "the mood")["scores"][0]["rows"] == 3
    assert told(*words, "--label", "mood=the mood")["scores"][0]["rows"] == 3
    run(*words, "--label", "the moood").refuses("MissingColumn", "did you mean 'the mood'?")


def test_columns_of_one_task_are_guessed_and_said(bare, tmp_path):
    """Where the file has none that is called as expected: it had to be told with --text and --label."""
    rows = tiny_project.messages(40, seed=9)
    cells = [{"remark": row["text"], "how": row["mood"], "by": "web"} for row in rows]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in cells))
    words = ("evaluate", bare, "--data", tmp_path / "new.jsonl", "--task", "mood")
    assert told(*words) == told(*words, "--text", "remark", "--label", "how")
    assert "mood: texts from 'remark' and labels from 'how'" in run(*words, *CHOSEN).err
    assert "mood" not in run(*words, "--text", "remark", "--label", "how", *CHOSEN).err
    twice = [row | {"also": row["how"]} for row in cells]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in twice))
    run(*words).refuses("ConfigError", "--label how or --label also")
    none = [{"remark": row["remark"], "by": row["by"]} for row in cells]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in none))
    run(*words).refuses("MissingColumn", "--label")


def test_what_is_missing_or_means_nothing_is_told(bare, home, file, tmp_path):
    run("evaluate", bare).refuses("add --data FILE", "polyhead tasks list", code=2)
    run("evaluate", bare, "--data", tmp_path / "gone.csv").refuses("DataError", "no file at")
    run("evaluate", bare, "--data", file, "--task", "moods").refuses("UnknownTask", "did you mean 'mood'?")
    run("evaluate", bare, "--data", file, "--label", "mood").refuses("--label TASK=COLUMN", code=2)
    run("evaluate", bare, "--data", file, "--errors", tmp_path / "x.txt").refuses(".csv or .jsonl", code=2)
    run("evaluate", bare, "--data", file, "--errors", file).refuses("cannot write")
    run("evaluate", tmp_path, "--data", file).refuses("no bundle")
    run("evaluate", home / "polyhead.toml", "--label", "mood").refuses("a project file names its own", code=2)
    run("evaluate", home / "absent", "--data", file, "--label", "mood=mood").refuses("no bundle at", "absent")
    plain = tmp_path / "plain.csv"
    plain.write_text("text,sentiment\ngood,good\n")
    run("evaluate", bare, "--data", plain).refuses("ConfigError", "sentiment", "--task NAME --label COLUMN")


def test_options_that_would_change_nothing_are_told(bare, home, file):
    """They were ignored, so that who gave them read the scores of something else."""
    for scored in (bare, home / "polyhead.toml"):
        for split in ("validation", "test"):
            run("evaluate", scored, "--data", file, "--split", split).refuses("--split", "--data", code=2)
    for points in ("5", str(POINTS_LOST)):
        run("evaluate", home / "polyhead.toml", "--points-lost", points).refuses("--cascade", "--points-lost", code=2)


def test_ways_to_read_cells_are_for_the_tasks_that_read_them(bare, tmp_path):
    """A separator and rules for empty cells and spans were taken for a task with one label per row."""
    rows = [{"text": "a good lamp", "mood": "good", "topics": "order/bill"}, {"text": "so bad", "mood": "bad"}]
    tiny_project.write_jsonl(tmp_path / "x.jsonl", rows * 10)
    for said in (("--separator", "/"), ("--empty", "none"), ("--overlaps", "skip"), ("--tokens", "words")):
        words = ("evaluate", bare, "--data", tmp_path / "x.jsonl", "--tasks", "mood", *said, *CHOSEN)
        run(*words).refuses(f"'{said[0][2:]}' would change nothing", "leave it out")
    found = told("evaluate", bare, "--data", tmp_path / "x.jsonl", "--separator", "/", "--empty", "none")["scores"]
    assert [row["task"] for row in found] == ["mood", "topics"]


def test_the_score_of_training_that_the_table_shows_is_in_the_json(bare, file):
    """It was in the table alone: the field of the JSON was empty."""
    written = told("evaluate", bare, "--data", file, "--tasks", "mood,topics")
    before = {name: Bundle.open(bare).headline(name) for name in ("mood", "topics")}
    assert written["from_training"] == {
        name: {metric: pytest.approx(score)} for name, (metric, score) in before.items()
    }


def test_a_project_is_scored_on_another_file_by_its_own_columns(home, file):
    found = told("evaluate", home / "polyhead.toml", "--tasks", "mood,names", "--data", file)["scores"]
    alone = told("evaluate", home / "bundle", "--data", file, "--label", "names=tags", "--tasks", "mood,names")[
        "scores"
    ]
    assert found == alone and {row["rows"] for row in found} == {40}


def test_wrong_spans_are_shown_beside_the_right_ones(bare, file, tmp_path):
    out = tmp_path / "wrong.jsonl"
    (score,) = told("evaluate", bare, "--data", file, "--task", "names", "--errors", out)["scores"]
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert score["wrong"] == len(lines)
    support = {label["label"]: label["support"] for label in score["labels"]}
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    tags = [tag for row in rows for tag in row["tags"]]
    assert support == {name: tags.count(f"B-{name}") for name in ("product", "person")}
    for line in lines:
        for span in (*line["truth"], *line["answer"]):
            assert line["text"][span["start"] : span["end"]] == span["text"] and "score" not in span
        assert line["truth"] != line["answer"]
