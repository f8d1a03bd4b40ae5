"""Changing only `test` in a project file: nothing is trained again, and `evaluate` scores the new rows."""

import hashlib
import json

import msgspec
import pytest

from polyhead.project.strategies import Branch, Prompted
from support import head_search, tiny_project
from support.commands import run
from support.tiny_project import to_toml


def arrays(root):
    """SHA-256 of every file of arrays, by its place."""
    files = sorted((root / "bundle").rglob("*.safetensors"))
    assert len(files) >= 4
    return {str(file.relative_to(root)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def told(*words):
    done = run(*words, "--json", "-")
    assert done.code == 0, done.err
    return json.loads(done.out)


@pytest.fixture
def trained(work, monkeypatch):
    """A folder with a project of three strategies that is trained, and the same project with other test rows."""
    head_search.shorten(monkeypatch)
    whole = tiny_project.project(work, "mood", "topics", "names", "urgency")
    strategies = {"topics": Branch(layers=1), "urgency": Prompted()}
    entries = tuple(msgspec.structs.replace(e, strategy=strategies.get(e.name)) for e in whole.tasks)
    path = work / "polyhead.toml"
    path.write_text(to_toml(msgspec.structs.replace(whole, tasks=entries)))
    told("train", path)
    tiny_project.write_jsonl(work / "other.jsonl", tiny_project.messages(30, seed=77))
    changed = tuple(msgspec.structs.replace(e, test="other.jsonl") for e in entries)
    return path, to_toml(msgspec.structs.replace(whole, tasks=changed))


def test_nothing_is_trained_again_and_arrays_keep_their_bytes(trained):
    path, changed = trained
    before = arrays(path.parent)
    path.write_text(changed)
    outcome = told("train", path)
    assert outcome["trained"] == {} and set(outcome["kept"]) == {"mood", "topics", "names", "urgency"}
    assert arrays(path.parent) == before
    said = run("train", path).out
    assert said.count("its test rows are others than those of its scores") == 4 and "0 trained, 4 kept" in said


@pytest.mark.slow
def test_the_new_rows_are_scored_and_no_baseline_of_other_rows_stands_beside(trained):
    path, changed = trained
    first = run("evaluate", path)
    assert first.err == "" and first.out.splitlines()[1].split()[2] == "12"
    path.write_text(changed)
    done = run("evaluate", path)
    assert done.code == 0
    for line in done.out.split("\n\n")[0].splitlines()[1:]:
        task, split, rows, _, _, *baselines = line.split()[:8]
        assert (split, rows, baselines) == ("test", "30", ["-", "-", "-"]), task
    assert "mood: its test rows are others than in training, so no baseline is shown" in done.err
    scores = {row["task"]: row["scores"] for row in told("evaluate", path)["scores"]}
    on_file = told("evaluate", path.parent / "bundle", "--data", path.parent / "other.jsonl", "--label", "names=tags")
    assert {row["task"]: row["scores"] for row in on_file["scores"]} == scores
