"""`polyhead evaluate`: whole splits, live answers, and tasks that have no file."""

import json
import shutil

import msgspec
import pytest

from polyhead.bundle.create import write_bundle
from polyhead.bundle.read import Bundle
from polyhead.bundle.write import Draft, add_tasks
from polyhead.project.recipes import FineTune, LeaveOut, SearchGrid, TrunkOnly
from polyhead.project.strategies import Branch
from polyhead.project.tables import TaskEntry
from support import tiny_project
from support.commands import run, write_project
from support.tiny_project import to_toml

REFERENCE = ("--backend", "reference")


def told(*words):
    done = run(*words, "--json", "-")
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_live_scores_are_those_that_training_measured(home):
    found = told("evaluate", home / "polyhead.toml", "--backend", "torch")
    assert [score["task"] for score in found["scores"]] == ["mood", "topics", "urgency", "names", "same", "alike"]
    for score in found["scores"]:
        file = home / "bundle" / "tasks" / score["task"] / "v0001" / "scores.json"
        kept = json.loads(file.read_text())["splits"]["test"]
        assert score["split"] == "test"
        assert score["rows"] == 12
        assert score["scores"] == pytest.approx(kept, abs=1e-6)


def questions(count, seed):
    """Which thing a message is about, as words of it or as one of two options."""
    rows = []
    for row in tiny_project.messages(count, seed):
        thing = next(word for word in row["tokens"] if word in tiny_project.THINGS)
        options = [thing, *(other for other in tiny_project.THINGS if other != thing)][:2]
        rows.append(
            {
                "question": "what is it?",
                "context": row["text"],
                "answers": [{"text": thing, "start": row["text"].index(thing)}] if len(rows) % 4 else [],
                "choices": sorted(options),
                "label": thing,
            }
        )
    return rows


def test_questions_are_scored_as_training_measured_them_proven_and_answered(work):
    """From rows to answers with the commands alone; two tasks of one kind share nothing but the trunk."""
    for seed, name in enumerate(("train", "held")):
        tiny_project.write_jsonl(work / f"{name}.jsonl", questions(24, seed))
    whole, files = tiny_project.project(work, "mood"), {"train": "train.jsonl", "validation": "held.jsonl"}
    entries = (
        TaskEntry(name="reply", kind="multiple_choice", test="held.jsonl", **files),
        TaskEntry(name="where", kind="span", null_answers=True, test="held.jsonl", **files),
        TaskEntry(name="there", kind="span", null_answers=True, strategy=Branch(layers=1), **files),
    )
    path = work / "polyhead.toml"
    path.write_text(to_toml(msgspec.structs.replace(whole, tasks=entries)))
    done = run("train", path)
    assert done.code == 0, done.err
    found = told("evaluate", path)["scores"]
    assert [(score["task"], score["metric"], score["rows"]) for score in found] == [
        ("reply", "accuracy", 24),
        ("where", "f1", 24),
        ("there", "f1", 24),
    ]
    for score in found:
        kept = json.loads((work / "bundle" / "tasks" / score["task"] / "v0001" / "scores.json").read_text())
        assert score["scores"] == pytest.approx(kept["splits"][score["split"]], abs=1e-6)
    told("tasks", "verify", work / "bundle")  # writes the first certificate
    proven = told("tasks", "verify", work / "bundle")
    assert not proven["findings"] and set(proven["equal"]) == {"reply", "where", "there"}
    given = {"question": "what is it?", "context": "the lamp is late"}
    answers = run("predict", work / "bundle", stdin=json.dumps(given)).rows[0]["answers"]
    assert set(answers) == {"where", "there"}
    given["options"] = ["lamp", "box"]
    (reply,) = run("predict", work / "bundle", stdin=json.dumps(given)).rows[0]["answers"].values()
    assert reply["option"] in given["options"]
    assert "one such text for each of them" in run("inspect", work / "bundle").out


def test_backends_agree(home):
    torch = told("evaluate", home / "polyhead.toml", "--tasks", "mood,names", "--backend", "torch")
    reference = told("evaluate", home / "polyhead.toml", "--tasks", "mood,names", "--backend", "reference")
    assert (torch["backend"], reference["backend"]) == ("torch", "reference")
    for a, b in zip(torch["scores"], reference["scores"], strict=True):
        assert a["scores"] == pytest.approx(b["scores"], abs=1e-6)


def test_another_backend_than_that_of_training_is_said(home):
    """Scores differed from those of training, and nothing said why."""
    said = "train scored with torch float32, this with reference float32: scores may differ a little"
    assert f"mood, names: {said}" in run("evaluate", home / "polyhead.toml", "--tasks", "mood,names", *REFERENCE).out
    same = run("evaluate", home / "polyhead.toml", "--tasks", "mood", "--backend", "torch").out
    assert "train scored with" not in same
    found = told("evaluate", home / "polyhead.toml", "--tasks", "mood", *REFERENCE)
    assert (found["backend"], found["trained_with"]["mood"]["backend"]) == ("reference", "torch")


def test_the_table_names_split_rows_and_metric(home):
    done = run("evaluate", home / "polyhead.toml", "--split", "validation")
    rows = [line.split() for line in done.out.splitlines()]
    assert rows[0] == ["task", "split", "rows", "metric", "score", "tf-idf", "linear", "constant", "other", "metrics"]
    assert rows[1][:4] == ["mood", "validation", "12", "accuracy"]
    assert done.err == ""


def trained_without_files(work):
    """A trained project in which `mood` has no file to be scored on."""
    whole = tiny_project.project(work, "mood", "topics")
    bare = msgspec.structs.replace(whole.tasks[0], validation=0.2, test=None)
    path = work / "polyhead.toml"
    path.write_text(to_toml(msgspec.structs.replace(whole, tasks=(bare, whole.tasks[1]))))
    assert run("train", path).code == 0
    return path


def test_a_task_without_a_file_is_scored_on_rows_that_it_did_not_learn_from(work):
    """It was shown the score of its training alone, and every report of it was empty."""
    path = trained_without_files(work)
    found = told("evaluate", path)
    splits = {score["task"]: score["split"] for score in found["scores"]}
    assert splits == {"mood": "out of fold", "topics": "test"}
    kept = json.loads((work / "bundle" / "tasks" / "mood" / "v0001" / "scores.json").read_text())["splits"]
    assert found["scores"][0]["scores"] == pytest.approx(kept["validation"], abs=5e-7)  # six digits are told
    assert "out of fold" in run("evaluate", path, "--tasks", "mood").out


def test_a_task_whose_kept_answers_are_gone_shows_the_score_of_its_training(work):
    path = trained_without_files(work)
    shutil.rmtree(work / "bundle-cache")
    done = run("evaluate", path)
    assert done.code == 0 and "mood is not scored: no answers to rows held out are kept in" in done.err
    assert "from training" in done.out
    found = told("evaluate", path)
    assert [score["task"] for score in found["scores"]] == ["topics"]
    assert "accuracy" in found["from_training"]["mood"]


def test_a_score_of_training_that_was_no_number_is_shown_as_missing(work, monkeypatch):
    """It is left out of the stored scores, and the command ended with a KeyError."""
    path = trained_without_files(work)
    shutil.rmtree(work / "bundle-cache")
    whole = {row[0]: row for row in map(str.split, run("evaluate", path).out.splitlines()) if row}
    stored = Bundle.split_scores

    def without_number(bundle, name):
        splits = stored(bundle, name)
        return {split: {key: value for key, value in of.items() if key != "accuracy"} for split, of in splits.items()}

    monkeypatch.setattr(Bundle, "split_scores", without_number)
    done = run("evaluate", path)
    assert done.code == 0, done.err
    rows = {row[0]: row for row in map(str.split, done.out.splitlines()) if row}
    place = whole["mood"].index("accuracy") + 1
    assert float(whole["mood"][place]) <= 1 and rows["mood"][place] == "-"
    assert rows["mood"][:place] == whole["mood"][:place] and rows["topics"] == whole["topics"]


def test_a_task_with_neither_kept_answers_nor_a_score_of_training_is_told(work):
    """An imported one; the whole table was a KeyError."""
    path = trained_without_files(work)
    bundle = Bundle.open(work / "bundle")
    shutil.rmtree(work / "bundle-cache")
    draft = Draft(record=bundle.tasks["mood"], arrays=bundle.part("mood"), scores={"splits": {}}, probes=[], card="")
    add_tasks(work / "bundle", [draft], replace=True)
    done = run("evaluate", path)
    assert done.code == 0 and "mood is not scored: no answers" in done.err
    assert [line.split()[0] for line in done.out.split("\n\n")[0].splitlines()] == ["task", "topics"]


def test_tasks_that_project_or_bundle_do_not_have_are_named(home, work):
    run("evaluate", home / "polyhead.toml", "--tasks", "moo").refuses(
        "UnknownTask", "Got: moo.", "did you mean 'mood'?"
    )
    path = write_project(work, "mood")
    run("evaluate", path).refuses("no bundle", "`polyhead train`")
    text = path.read_text()
    assert run("train", path).code == 0
    path.write_text(text.replace('name = "mood"', 'name = "other"'))
    run("evaluate", path).refuses("holds no task of the project", "other", "mood")


def test_a_missing_test_file_is_named(work):
    path = write_project(work, "mood")
    assert run("train", path).code == 0
    path.write_text(path.read_text().replace("messages-test", "messages-gone"))
    run("evaluate", path).refuses("messages-gone.jsonl")


@pytest.mark.slow
def test_each_bundle_of_a_recipe_that_makes_several_is_scored(work):
    recipe = FineTune(search=SearchGrid(learning_rates=(1e-3,), epsilons=(1e-8,), dropouts=(0.0,)))
    whole = tiny_project.project(work, "mood", "names", "urgency", training=tiny_project.SEARCHED)
    path = work / "polyhead.toml"
    path.write_text(to_toml(msgspec.structs.replace(whole, recipe=recipe, bundle="tuned")))
    run("evaluate", path).refuses("BundleError", "tuned")
    trained = told("train", path, "--tasks", "mood,names")["bundles"]
    scored = told("evaluate", path)["scores"]
    assert [row["task"] for row in scored] == ["mood", "names"]
    for row in scored:
        assert row["scores"] == pytest.approx(trained[row["task"]]["scores"][row["task"]]["test"], abs=1e-6)
    run("evaluate", path, "--tasks", "urgency").refuses("BundleError", "urgency")
    assert [one["task"] for one in told("evaluate", path, "--bundle", work / "tuned" / "names")["scores"]] == ["names"]


@pytest.mark.slow
def test_a_round_that_was_stopped_between_its_stages_is_left_out(work):
    learn = TrunkOnly(micro_batches=1, steps=1)
    whole = tiny_project.project(work, "mood", "names", "urgency")
    made = msgspec.structs.replace(whole, recipe=LeaveOut(learn=learn), bundle="without")
    path = work / "polyhead.toml"
    path.write_text(to_toml(made))
    trained = told("train", path, "--tasks", "mood,names")["bundles"]
    for name in ("names", "urgency"):  # the trunk stands, its task does not
        shutil.rmtree(work / "without" / name, ignore_errors=True)
        write_bundle(work / "without" / name, Bundle.open(work / "without" / "mood").trunk())
    (found,) = told("evaluate", path)["scores"]
    assert found["task"] == "mood"
    assert found["scores"] == pytest.approx(trained["mood"]["scores"]["mood"]["test"], abs=1e-6)
    run("evaluate", path, "--tasks", "moods").refuses("UnknownTask", "moods", "urgency")
    shutil.rmtree(work / "without")
    run("evaluate", path).refuses("BundleError", "without", "polyhead train")
