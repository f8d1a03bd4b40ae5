"""`polyhead calibrate` and `polyhead drift`: what they say, keep and refuse."""

import json
import re
import shutil

import pytest

from polyhead.bundle.read import Bundle
from polyhead.bundle.row_profile import stored_profile
from polyhead.engine.session import Session
from polyhead.evaluate import calibrate_task
from support import tiny_project
from support.commands import run


@pytest.fixture
def bundle(home, tmp_path):
    return shutil.copytree(home / "bundle", tmp_path / "bundle")


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    return {
        "held": tiny_project.write_jsonl(folder / "held.jsonl", tiny_project.messages(160, seed=11)),
        "other": tiny_project.write_jsonl(folder / "other.jsonl", tiny_project.messages(60, seed=12)),
        "pairs": tiny_project.write_jsonl(folder / "pairs.jsonl", tiny_project.pairs(60, seed=13)),
        "few": tiny_project.write_jsonl(folder / "few.jsonl", tiny_project.messages(10, seed=14)),
        "texts": tiny_project.write_jsonl(folder / "texts.jsonl", [{"text": "good " * 40} for _ in range(50)]),
    }


def told(*words):
    done = run(*words, "--json", "-")
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_calibrate_keeps_what_it_measured_and_answers_show_it(bundle, rows):
    done = run("calibrate", bundle, rows["held"], "--tasks", "mood,topics,urgency", "--goal", "f1").refuses(
        "--positive"
    )
    assert Bundle.open(bundle).version("mood") == "v0001"  # nothing was kept of any
    done = run("calibrate", bundle, rows["held"], "--task", "mood", "--goal", "f1", "--positive", "good", "--dry-run")
    assert "f1 of 'good': precision" in done.out
    done = run("calibrate", bundle, rows["held"], "--task", "mood", "--goal", "accuracy=0.3", "--actor", "ann")
    assert done.code == 0, done.err
    assert "expected calibration error" in done.out
    assert "calibrated mood: v0001 -> v0002; its raw outputs are the same bits" in done.out
    assert "the same bits on" in done.out
    calibration = Bundle.open(bundle).tasks["mood"].calibration
    assert calibration.measured["data"]["rows"] == 160
    card = Bundle.open(bundle).card("mood")
    assert "## Calibration" in card
    # The summary is of the file's rows, and the card went on describing those of training.
    kept = len(stored_profile(Bundle.open(bundle), "mood").lengths)
    assert card.count("## What its rows looked like") == 1 and f"like\n\n- {kept:,} rows are kept" in card
    answers = json.loads(run("predict", bundle, "the lamp is good").out)["answers"]
    assert set(answers["mood"]["calibrated"]) == {"label", "unsure", "scores", "set", "coverage"}
    assert "calibrated" not in answers["topics"]
    assert run("tasks", "rollback", bundle, "mood").code == 0
    assert "calibrated" not in json.loads(run("predict", bundle, "the lamp is good").out)["answers"]["mood"]


def test_calibrate_reads_every_task_that_the_file_labels(bundle, rows):
    made = told("calibrate", bundle, rows["held"], "--tasks", "topics,urgency", "--coverage", "0.85")
    assert set(made["calibrations"]) == {"topics", "urgency"}
    assert set(made["certificate"]["changed"]) == {"topics", "urgency"}
    assert made["calibrations"]["urgency"]["coverage"] == 0.85
    answers = json.loads(run("predict", bundle, "the lamp is good").out)["answers"]
    low, high = answers["urgency"]["calibrated"]["interval"]
    assert low <= answers["urgency"]["value"] <= high


def test_calibrate_checks_on_a_file_of_its_own_and_changes_nothing_when_dry(bundle, rows):
    made = told("calibrate", bundle, rows["held"], "--task", "mood", "--check", rows["other"], "--dry-run")
    assert made["calibrations"]["mood"]["measured"]["rows"] == {"fit": 160, "check": 60}
    assert made["certificate"] is None
    assert Bundle.open(bundle).version("mood") == "v0001"


def test_calibrate_refuses_what_it_cannot_use(bundle, rows):
    run("calibrate", bundle, rows["few"], "--task", "mood").refuses("too few labelled rows", "40 or more")
    run("calibrate", bundle, rows["held"], "--task", "names").refuses("cannot be calibrated", "single_label")
    run("calibrate", bundle, rows["held"], "--task", "nobody").refuses("nobody")
    run("calibrate", bundle, rows["held"].with_name("none.jsonl"), "--task", "mood").refuses("no file at")
    run("calibrate", bundle, rows["held"], "--task", "mood", "--goal", "best").refuses("precision=0.9")
    run("calibrate", bundle, rows["held"], "--task", "mood", "--coverage", "0.999").refuses("999 or more")


def test_calibrate_refuses_the_rows_that_were_learned_and_doubts_others_like_them(
    bundle, rows, home, tmp_path, monkeypatch
):
    """It gave a temperature of 0.02 and said nothing."""
    monkeypatch.setattr(calibrate_task, "FAR", 1)  # of the twelve rows that training held out here
    run("calibrate", bundle, home / "data" / "messages-train.jsonl", "--task", "mood").refuses(
        "learned from these rows", "32 training rows", "did not learn from"
    )
    doubt = "they look like rows that the task learned from"
    done = run("calibrate", bundle, rows["held"], "--task", "mood", "--dry-run")
    assert done.code == 0 and doubt not in done.out
    several = tiny_project.messages(300, seed=21)
    results = Session(bundle).predict([row["text"] for row in several], tasks=["mood"])
    pairs = zip(several, results, strict=True)
    known = [row for row, result in pairs if row["mood"] == result.answers["mood"]["label"]]
    done = run("calibrate", bundle, tiny_project.write_jsonl(tmp_path / "known.jsonl", known), "--task", "mood")
    assert done.code == 0 and doubt in done.out


def test_calibrate_keeps_a_group_in_one_half(bundle, tmp_path):
    grouped = [row | {"person": f"p{place // 40}"} for place, row in enumerate(tiny_project.messages(160, seed=11))]
    file = tiny_project.write_jsonl(tmp_path / "grouped.jsonl", grouped)
    made = told("calibrate", bundle, file, "--task", "mood", "--group", "person", "--dry-run")
    assert made["calibrations"]["mood"]["measured"]["rows"]["fit"] % 40 == 0
    run("calibrate", bundle, file, "--task", "mood", "--group", "nobody").refuses("nobody")


@pytest.mark.slow
def test_training_anew_says_that_the_calibration_is_left_behind(bundle, rows, home):
    assert run("calibrate", bundle, rows["held"], "--task", "mood").code == 0
    folder = bundle.parent
    for name in ("trunk", "data"):
        (folder / name).symlink_to(home / name)
    shutil.copy(home / "polyhead.toml", folder / "polyhead.toml")
    done = run("train", folder / "polyhead.toml", "--tasks", "mood", "--retrain", "mood")
    assert done.code == 0, done.err
    assert "mood: the calibration of v0002 does not fit other weights" in done.out + done.err
    assert Bundle.open(bundle).tasks["mood"].calibration is None


def test_drift_says_what_to_do_where_no_summary_is_kept(bundle, rows):
    run("drift", bundle, rows["other"], "--task", "mood").refuses("--keep", "--known FILE")


def test_drift_finds_other_texts_and_none_in_rows_like_those_that_it_knows(bundle, rows):
    done = run("drift", bundle, rows["held"], "--tasks", "mood,topics", "--keep")
    assert done.code == 0, done.err
    assert "kept what 160 rows of mood look like: v0001 -> v0002" in done.out
    assert len(stored_profile(Bundle.open(bundle), "mood").lengths) == 160
    same = told("drift", bundle, rows["other"], "--tasks", "mood,topics")
    assert [task["differs"] for task in same["tasks"]] == [False, False]
    assert all(task["sureness"]["rows"] == 60 for task in same["tasks"])
    every = run("drift", bundle, rows["other"])
    assert every.code == 0, every.err
    assert "no summary is kept of urgency, names, same, alike" in every.err
    other = run("drift", bundle, rows["texts"], "--task", "mood", "--fail")
    assert other.code == 1
    assert "other texts" in other.out
    assert "most unlike:" in other.out
    assert "good good" in other.out


@pytest.mark.slow
def test_drift_compares_two_files_for_tasks_of_every_form(bundle, rows):
    found = told("drift", bundle, rows["other"], "--known", rows["held"], "--tasks", "mood,names,urgency")
    assert [set(task["aspects"]) for task in found["tasks"]] == [{"texts", "lengths", "answers"}] * 3
    found = told("drift", bundle, rows["pairs"], "--known", rows["pairs"], "--tasks", "same,alike")
    assert [task["differs"] for task in found["tasks"]] == [False, False]
    assert [task["unlike"] for task in found["tasks"]] == [0.0, 0.0]


def test_drift_leaves_out_tasks_that_cannot_read_the_file(bundle, rows):
    done = run("drift", bundle, rows["texts"], "--known", rows["texts"])
    assert done.code == 0, done.err
    assert "same, alike" in done.err
    run("drift", bundle, rows["texts"], "--known", rows["texts"], "--keep").refuses("--known", code=2)
    run("drift", bundle, rows["few"], "--known", rows["held"], "--task", "mood").refuses("too few rows")


def test_drift_looks_at_rows_without_a_label_too(bundle, rows, tmp_path):
    """Of a file with a column of the task's name, rows without a label were left out, and a new label ended the run."""
    labelled = tiny_project.messages(60, seed=12)
    others = [{"text": "good " * 40 + str(number), "mood": None} for number in range(100)]
    odd = [row | {"mood": "furious"} for row in tiny_project.messages(2, seed=15)]
    file = tiny_project.write_jsonl(tmp_path / "week.jsonl", labelled + odd + others)
    (task,) = told("drift", bundle, file, "--known", rows["held"], "--task", "mood")["tasks"]
    assert (task["rows"], task["sureness"]["rows"], task["differs"]) == (162, 60, True)
    assert {row["row"] for row in task["examples"]} <= set(range(63, 163))
    assert task["notes"][0] == "100 rows without a label"
    assert task["notes"][1].startswith("2 rows with what the task cannot read")
    assert "'furious'" in task["notes"][1]
    bare = tiny_project.write_jsonl(tmp_path / "bare.jsonl", [row | {"mood": ""} for row in labelled])
    (task,) = told("drift", bundle, bare, "--known", rows["held"], "--task", "mood")["tasks"]
    assert (task["rows"], task["sureness"], task["differs"]) == (60, None, False)


def test_a_label_named_for_one_task_leaves_the_others_their_own(bundle, rows, tmp_path):
    """All tasks were read as labelled, so that those without a column were left out, and the file was blamed."""
    renamed = [
        {"feeling" if key == "mood" else key: cell for key, cell in row.items() if key != "urgency"}
        for row in tiny_project.messages(60, seed=12)
    ]
    file = tiny_project.write_jsonl(tmp_path / "renamed.jsonl", renamed)
    run("drift", bundle, rows["held"], "--tasks", "mood,topics,urgency", "--keep")
    done = told("drift", bundle, file, "--label", "mood=feeling")
    sure = {task["task"]: task["sureness"] and task["sureness"]["rows"] for task in done["tasks"]}
    assert sure == {"mood": 60, "topics": 60, "urgency": None}
    alone = told("drift", bundle, file, "--task", "mood", "--label", "feeling")
    assert alone["tasks"][0]["sureness"]["rows"] == 60
    run("drift", bundle, file, "--label", "feeling").refuses("--label TASK=COLUMN", code=2)


def test_a_column_named_as_another_task_is_read_and_a_label_of_another_task_refused(bundle, rows, tmp_path):
    """Both were dropped, and no labels were read."""
    renamed = [
        {"topics" if key == "mood" else key: cell for key, cell in row.items() if key not in ("topics", "urgency")}
        for row in tiny_project.messages(60, seed=12)
    ]
    file = tiny_project.write_jsonl(tmp_path / "renamed.jsonl", renamed)
    run("drift", bundle, rows["held"], "--tasks", "mood,topics", "--keep")
    done = told("drift", bundle, file, "--task", "mood", "--label", "topics")
    assert done["tasks"][0]["sureness"]["rows"] == 60
    run("drift", bundle, file, "--task", "mood", "--label", "topics=gold").refuses("no column 'topics=gold'")


def test_drift_says_whether_answers_are_surer_or_less_sure_than_right(bundle, rows, tmp_path):
    """Answers that were too sure were "not as sure as they are right", which says the opposite."""
    given = [{key: row[key] for key in ("text", "mood")} for row in tiny_project.messages(60, seed=12)]
    words = ("--known", rows["held"], "--task", "mood")
    asked = tiny_project.write_jsonl(tmp_path / "asked.jsonl", given)
    assert (
        run(
            "predict",
            bundle,
            asked,
            "--text",
            "text",
            "-o",
            tmp_path / "answered.jsonl",
            "--task",
            "mood",
            "--only-answers",
        ).code
        == 0
    )
    answered = [json.loads(line)["mood"] for line in (tmp_path / "answered.jsonl").read_text().splitlines()]
    other = {"good": "bad", "bad": "good"}
    for labels, said in (([other[mood] for mood in answered], "surer than"), (answered, "as sure as")):
        cells = [row | {"mood": mood} for row, mood in zip(given, labels, strict=True)]
        done = run("drift", bundle, tiny_project.write_jsonl(tmp_path / "x.jsonl", cells), *words)
        assert re.search(rf"answers are (less sure than|{said}) they are right", done.out), done.out + done.err
        assert ("surer" in done.out) == (said == "surer than")
