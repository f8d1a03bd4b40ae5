"""From files to answers without encoding twice: features extract, train --features, backfill."""

import json

import msgspec
import pytest

from polyhead.bundle.read import Bundle
from polyhead.project.strategies import Pooled
from support import tiny_project
from support.commands import run

UNNAMED = Pooled(layers="mean", of=2, positions="attention", heads=2, hidden=8)


@pytest.fixture(params=["store", "store.lance"])
def work(request, tmp_path):
    """A folder with trunk, data, project, and a store of every message."""
    if request.param.endswith(".lance"):
        pytest.importorskip("lance")
    project = tiny_project.project(tmp_path, "mood", "names", strategy=UNNAMED)
    (tmp_path / "polyhead.toml").write_text(tiny_project.to_toml(project))
    for split in ("train", "validation", "test"):
        extract(tmp_path, f"data/messages-{split}.jsonl", request.param)
    return tmp_path, request.param, project


def extract(folder, file, store):
    taps = ("--tap", "mean2:sign", "--backend", "reference")
    done = run("features", "extract", "trunk", file, store, *taps, cwd=folder)
    assert done.code == 0, done.err
    return done


def test_a_corpus_is_encoded_once_trained_on_and_answered(work):
    folder, store, _ = work
    done = run("train", "polyhead.toml", "--features", store, "--json", "told.json", cwd=folder)
    assert done.code == 0, done.err
    assert f"values from {store} and encoded nothing" in done.out
    told = json.loads((folder / "told.json").read_text())
    assert set(told["trained"]) == {"mood", "names"} and told["extraction"]["passes"] == 0
    assert Bundle.open(folder / "bundle").tasks["mood"].path.pool.codec.name == "sign"
    filled = run("backfill", "bundle", "mood", "--features", store, "--scores", cwd=folder)
    assert filled.code == 0, filled.err
    assert "mood" in run("features", "info", store, cwd=folder).out


@pytest.mark.slow
def test_scores_of_a_file_and_of_a_store_teach_another_task(work):
    """What `score --scores` and `backfill --scores` write is read as it stands."""
    folder, store, project = work
    assert run("train", "polyhead.toml", "--tasks", "mood", "--features", store, cwd=folder).code == 0
    assert run("backfill", "bundle", "mood", "--features", store, "--scores", cwd=folder).code == 0
    for split in ("train", "validation", "test"):
        for ending in ("jsonl", "csv", "parquet"):
            out = f"data/scored-{split}.{ending}"
            words = (f"data/messages-{split}.jsonl", out, "--scores", "--keep", "text", "--tasks", "mood")
            done = run("score", "bundle", *words, "--backend", "reference", cwd=folder)
            assert done.code == 0, done.err
    (mood, _) = project.tasks
    files = {ending: {s: f"data/scored-{s}.{ending}" for s in ("train", "validation", "test")} for ending in ENDINGS}
    entries = [
        msgspec.structs.replace(mood, name=ending, soft="mood.scores", label="label", **files[ending])
        for ending in ENDINGS
    ]
    entries.append(msgspec.structs.replace(mood, name="stored", soft="store:mood", label="label", **files["jsonl"]))
    other = msgspec.structs.replace(project, tasks=tuple(entries), bundle="students")
    (folder / "students.toml").write_text(tiny_project.to_toml(other))
    done = run("train", "students.toml", "--features", store, cwd=folder)
    assert done.code == 0, done.err
    assert set(Bundle.open(folder / "students").tasks) == {*ENDINGS, "stored"}


ENDINGS = ("jsonl", "csv", "parquet")


def test_texts_that_are_not_in_the_store_and_places_without_one_are_refused(work):
    folder, store, _ = work
    with open(folder / "data" / "messages-train.jsonl", "a") as file:
        file.write('{"text": "the lamp is new", "mood": "good"}\n')
    done = run("train", "polyhead.toml", "--tasks", "mood", "--features", store, cwd=folder)
    done.refuses("lacks 1 of the texts", "task 'mood', train: row 33", "polyhead features extract")
    extract(folder, "data/messages-train.jsonl", store)
    assert run("train", "polyhead.toml", "--tasks", "mood", "--features", store, cwd=folder).code == 0
    run("train", "polyhead.toml", "--features", "nowhere", cwd=folder).refuses("nowhere")
    (folder / "file").write_text("no store")
    run("train", "polyhead.toml", "--features", "file", cwd=folder).refuses("file")


def test_a_store_that_was_changed_is_refused(tmp_path):
    tiny_project.project(tmp_path)
    project = tiny_project.project(tmp_path, "mood", strategy=UNNAMED)
    (tmp_path / "polyhead.toml").write_text(tiny_project.to_toml(project))
    for split in ("train", "validation", "test"):
        extract(tmp_path, f"data/messages-{split}.jsonl", "store")
    data = next((tmp_path / "store").rglob("*.data.bin"))
    whole = data.read_bytes()
    for content in (whole[:-7], bytes([whole[0] ^ 1]) + whole[1:]):
        data.write_bytes(content)
        run("train", "polyhead.toml", "--features", "store", cwd=tmp_path).refuses(data.name)
        assert not Bundle.open(tmp_path / "bundle").tasks
    data.write_bytes(whole)
    assert run("train", "polyhead.toml", "--features", "store", cwd=tmp_path).code == 0
