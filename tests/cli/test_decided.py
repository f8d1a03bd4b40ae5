"""Decisions as the commands show and keep them: pinned versions, removed tasks, versions that lost."""

import json

import msgspec
import pytest

from polyhead.bundle.read import Bundle
from polyhead.project.recipes import Joint
from support import tiny_project
from support.commands import run, write_project
from support.tiny_project import to_toml

POOR = msgspec.structs.replace(tiny_project.TRAINING, epochs=1, learning_rate=1e-5)
OTHER = msgspec.structs.replace(POOR, seed=5)


def told(done):
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_a_rollback_and_a_removal_outlive_the_next_run_and_are_shown(work):
    """Both were undone by the next `polyhead train`."""
    names, bundle = ("mood", "urgency", "topics"), work / "bundle"
    assert run("train", write_project(work, *names, training=POOR)).code == 0
    path = write_project(work, *names, training=OTHER)
    done = run("train", path)
    assert "mood: accuracy 0." in done.out and " -> 0." in done.out and "answers changed" in done.out
    assert run("tasks", "rollback", bundle, "mood").code == 0
    assert run("tasks", "remove", bundle, "urgency").code == 0
    done = run("train", path, "--json", work / "told.json")
    assert done.code == 0, done.err
    why = "it was rolled back to, or calibrated after that; left as it is (--retrain mood"
    assert f"mood: its live version v0001 is pinned: {why}" in done.out
    assert "urgency: it was removed from the bundle, and its table is still in the project file" in done.out
    assert "0 trained, 1 kept, 2 left as they are" in done.out
    assert set(json.loads((work / "told.json").read_text())["left"]) == {"mood", "urgency"}
    listed, shown = run("tasks", "list", bundle), run("inspect", bundle)
    for text in (listed.out, shown.out):
        assert "v0001 (pinned)" in text and text.count("(pinned)") == 1
        assert "removed, so that `train` leaves them: urgency" in text
    found = told(run("tasks", "list", bundle, "--json", "-"))
    assert {name: row["pinned"] for name, row in found["tasks"].items()} == {"mood": True, "topics": False}
    assert found["removed"] == ["urgency"]
    assert told(run("inspect", bundle, "--json", "-"))["tasks"]["mood"]["pinned"] is True
    assert told(run("inspect", bundle, "--task", "mood", "--json", "-"))["pinned"] is True
    done = run("train", path, "--retrain", "mood,urgency")
    assert "2 trained, 1 kept" in done.out and "left" not in done.out.splitlines()[-1]
    assert "pinned" not in run("tasks", "list", bundle).out + run("inspect", bundle).out
    assert run("tasks", "verify", bundle).code == 0


def test_a_task_that_is_added_again_is_removed_no_longer(work):
    path = write_project(work, "mood", "urgency", training=POOR)
    run("train", path)
    run("train", path, "--bundle", work / "other")
    run("tasks", "remove", work / "bundle", "mood")
    assert Bundle.open(work / "bundle").removed == ("mood",)
    assert run("tasks", "add", work / "bundle", work / "other", "mood").code == 0
    assert Bundle.open(work / "bundle").removed == ()
    assert "trained already, unchanged: mood, urgency" in run("train", path).out


@pytest.mark.slow
def test_a_change_that_fails_leaves_what_was_decided_as_it_was(work, monkeypatch):
    """Of a rollback, a removal and a training that cannot be proven: bundle.json is the bytes that it was."""
    from polyhead.certify import proof as certify

    run("train", write_project(work, "mood", "urgency", "topics", training=POOR))
    path = write_project(work, "mood", "urgency", "topics", training=OTHER)
    run("train", path)
    run("tasks", "rollback", work / "bundle", "mood")
    run("tasks", "remove", work / "bundle", "urgency")
    before = (work / "bundle" / "bundle.json").read_bytes()
    monkeypatch.setattr(certify, "_proven", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    for words in (
        ["tasks", "rollback", work / "bundle", "mood", "v0002"],
        ["tasks", "remove", work / "bundle", "mood"],
        ["train", path, "--retrain", "mood"],
        ["train", path, "--retrain", "urgency"],
    ):
        assert run(*words).code != 0
        assert (work / "bundle" / "bundle.json").read_bytes() == before, words


def test_a_live_version_stays_unless_the_new_one_is_better(work):
    good = msgspec.structs.replace(tiny_project.TRAINING, epochs=20, patience=20, learning_rate=2e-2)
    run("train", write_project(work, "mood", training=good))
    path = write_project(work, "mood", training=POOR)
    done = run("train", path, "--if-better")
    assert done.code == 0 and "not better, so v0001 stays live" in done.out
    assert Bundle.open(work / "bundle").versions("mood") == ["v0001"]
    assert "it lost to its live version v0001" in run("train", path).out
    assert "1 trained" in run("train", path, "--retrain", "mood").out


@pytest.mark.parametrize("words", [["--retrain", "mood"], ["--if-better"]])
def test_recipes_that_train_a_bundle_once_have_no_use_for_it(work, words):
    project = msgspec.structs.replace(tiny_project.project(work, "mood"), recipe=Joint())
    (work / "polyhead.toml").write_text(to_toml(project))
    run("train", work / "polyhead.toml", *words).refuses("ConfigError", "recipe 'joint'", "another bundle name")


def test_names_to_train_again_are_checked(work):
    path = write_project(work, "mood", "urgency")
    run("train", path, "--retrain", "moods").refuses("UnknownTask", "moods", "urgency")
    run("train", path, "--tasks", "mood", "--retrain", "urgency").refuses("ConfigError", "leaves out")
    run("train", path, "--retrain", " ").refuses("--retrain", code=2)
    assert not (work / "bundle").exists()


def test_rows_of_new_classes_alone_are_refused_and_old_texts_are_not_encoded_again(work):
    """They replaced a task in silence; rows of both together encode the new texts alone."""

    def project(*moods):
        rows = [{"text": f"the {mood} text {n}", "mood": mood} for mood in moods for n in range(12)]
        (work / "moods.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (work / "moods.toml").write_text(
            f'bundle = "moods"\n\n[trunk]\nname = "trunk"\n\n[[tasks]]\nname = "mood"\nkind = "single_label"\n'
            f'train = "moods.jsonl"\nlabel = "mood"\nlabels = {json.dumps(moods)}\n\n[training]\nepochs = 1\n'
        )
        return work / "moods.toml"

    assert run("train", project("good", "bad", "fine")).code == 0
    run("train", project("new", "odd")).refuses(
        "3 of the 3 labels of its live version v0001", "bad", "--allow-lost-labels"
    )
    assert Bundle.open(work / "moods").tasks["mood"].task.labels == ("good", "bad", "fine")
    both = run("train", project("good", "bad", "fine", "new", "odd"))
    assert both.code == 0 and "encoded 24 inputs" in both.out
    assert run("train", project("new", "odd"), "--allow-lost-labels").code == 0
    assert Bundle.open(work / "moods").version("mood") == "v0003"
