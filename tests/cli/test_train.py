"""`polyhead train` and what can go wrong with it: files, names, trunks, kills and disks."""

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from support import tiny_project
from support.cases import cases
from support.commands import environment, interruptible, run, shell, write_project
from support.tiny_project import to_toml


def project_of(work, entry, **changes):
    """polyhead.toml with one task; relative names beside it."""
    whole = tiny_project.project(work, "mood")
    entry = msgspec.structs.replace(tiny_project.ENTRIES["mood"], **entry)
    whole = msgspec.structs.replace(whole, tasks=(entry,), **changes)
    path = work / "polyhead.toml"
    path.write_text(to_toml(whole))
    return path


def files_of(bundle):
    return {p.relative_to(bundle): p.read_bytes() for p in sorted(Path(bundle).rglob("*")) if p.is_file()}


def test_train_prints_its_plan_first_and_its_scores_after(work):
    done = run("train", write_project(work, "mood", "names"), "--json", work / "told.json")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].split()[:3] == ["task", "kind", "train"]
    assert lines.index(next(x for x in lines if x.startswith("mood  "))) < 3
    assert any(line.startswith("mood: validation accuracy") for line in lines)
    assert "2 trained, 0 kept" in lines[-2] and lines[-1].startswith("report: ")
    told = json.loads((work / "told.json").read_text())
    assert set(told["trained"]) == {"mood", "names"}


def test_a_second_run_keeps_what_is_done(work):
    path = write_project(work, "mood")
    run("train", path)
    before = files_of(work / "bundle")
    done = run("train", path)
    assert "trained already, unchanged: mood" in done.out
    assert files_of(work / "bundle") == before


def test_json_to_standard_output_is_json_alone(work):
    done = run("train", write_project(work, "mood"), "--json", "-")
    assert set(json.loads(done.out)["trained"]) == {"mood"}


def test_a_page_of_answers_to_rows_held_out_stands_beside_the_bundle(work):
    """Without a test file nothing but one line told how good a task is."""
    whole = tiny_project.project(work, "mood", "urgency")
    entries = tuple(msgspec.structs.replace(entry, validation=0.2, test=None) for entry in whole.tasks)
    (work / "polyhead.toml").write_text(to_toml(msgspec.structs.replace(whole, tasks=entries)))
    done = run("train", work / "polyhead.toml", "--json", work / "told.json")
    told, page = json.loads((work / "told.json").read_text()), work / "bundle-report.html"
    assert done.code == 0 and done.out.splitlines()[-1] == f"report: {page}" and told["report"] == str(page)
    text = page.read_text()
    for name, metric in (("mood", "accuracy"), ("urgency", "pearson")):
        assert f'id="{name}"' in text and f"<td>{told['trained'][name]['validation'][metric]:.4f}</td>" in text
    scored = json.loads(run("evaluate", work / "polyhead.toml", "--details", "--json", "-").out)
    (error,) = [each["reliability"] for each in scored["details"] if each["reliability"]]
    assert f"<td>{error['calibration_error']:.4f}</td>" in text and "<th>constant</th>" in text
    written = page.stat().st_mtime_ns
    assert run("train", work / "polyhead.toml").code == 0 and page.stat().st_mtime_ns == written
    assert run("tasks", "verify", work / "bundle").code == 0


def test_some_tasks_alone_are_trained(work):
    path = write_project(work, "mood", "topics", "urgency")
    assert run("train", path, "--tasks", "mood,urgency").code == 0
    assert set(json.loads((work / "bundle" / "bundle.json").read_text())["tasks"]) == {"mood", "urgency"}
    run("train", path, "--tasks", "moods").refuses("UnknownTask", "moods", "urgency")


def test_seed_bundle_cache_and_events_go_where_they_are_told(work):
    path = write_project(work, "mood")
    words = ["--bundle", work / "b", "--cache", work / "c", "--events", work / "e.jsonl", "--seed", "7"]
    assert run("train", path, *words).code == 0
    assert (work / "b" / "bundle.json").exists() and (work / "c" / "features").exists()
    assert not (work / "bundle").exists()
    events = [json.loads(line)["event"] for line in (work / "e.jsonl").read_text().splitlines()]
    assert "task" in events
    task = json.loads(next((work / "b" / "tasks" / "mood").glob("v*/task.json")).read_text())
    assert task["trained_with"]["training"]["seed"] == 7


def test_a_trunk_folder_is_found_beside_the_project_file(work, tmp_path_factory):
    path = project_of(work, {}, trunk=msgspec.structs.replace(tiny_project.project(work).trunk, name="trunk"))
    done = run("train", path, cwd=tmp_path_factory.mktemp("elsewhere"))
    assert done.code == 0, done.err
    assert json.loads((work / "bundle" / "trunk" / "trunk.json").read_text())["name"] == "trunk"


@pytest.mark.parametrize("option", ["--json", "--events"])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(work, option):
    path = write_project(work, "mood")
    run("train", path, option, work / "no" / "x").refuses("cannot write", "no folder")
    run("train", path, option, work).refuses("cannot write", "folder")
    assert not (work / "bundle").exists()


@pytest.mark.parametrize(("option", "file"), [("--events", "train"), ("--json", "train"), ("--events", "test")])
def test_files_of_the_data_are_not_written_over(work, option, file):
    rows = '{"text": "a", "mood": "good"}\n'  # which --json would take for a report
    (work / "rows.jsonl").write_text(rows)
    path = project_of(work, {file: "rows.jsonl"})
    run("train", path, option, work / "sub" / ".." / "rows.jsonl").refuses("cannot write", "no folder")
    run("train", path, option, work / "rows.jsonl").refuses("cannot write", f"it is {file} of task 'mood'")
    assert (work / "rows.jsonl").read_text() == rows


def test_kept_features_that_were_damaged_train_nothing_until_they_are_encoded_again(work):
    """One flipped bit in the cache trained another part, and the command ended well."""
    path, cache = write_project(work, "mood"), work / "cache"
    assert run("train", path, "--cache", cache, "--bundle", work / "first").code == 0
    data = min((cache / "features").rglob("*.data.bin"))
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 0x40
    data.write_bytes(bytes(content))
    again = ["train", path, "--cache", cache, "--bundle", work / "second"]
    run(*again).refuses("StoreError", "data.bin is damaged: it was changed", f"delete {data.parents[2]}")
    assert not (work / "second" / "tasks" / "mood").exists()
    shutil.rmtree(data.parents[2])
    assert run(*again, "--tasks", "mood").code == 0
    shutil.rmtree(work / "second")
    shutil.rmtree(cache)  # among other texts in a batch, features are rounded otherwise
    assert run(*again).code == 0
    assert tiny_project.part_bytes(work / "second", "mood") == tiny_project.part_bytes(work / "first", "mood")


ROWS = [{"text": f"lamp {i}", "mood": ("good", "bad")[i % 2]} for i in range(20)]


@cases(
    ("name", "content", "said"),
    [
        ("x.jsonl", "", ["EmptyData", "x.jsonl"]),
        ("x.csv", "", ["EmptyData", "x.csv"]),
        ("x.csv", "text,mood\n", ["EmptyData", "x.csv"]),
        ("x.csv", "text,moods\na,good\n", ["MissingColumn", "did you mean 'moods'?"]),
        ("x.tsv", "text,mood\na,good\n", ["MissingColumn", "',' separated", "with tabs"]),
        ("x.jsonl", '{"txt": "a", "mood": "good"}\n', ["MissingColumn", "did you mean 'txt'?"]),
        ("x.jsonl", '{"text": "a", "mood": "great"}\n', ["UnknownLabel", "'great'", "row 1", "good"]),
        ("x.jsonl", '{"text": "a", "mood": 0.5}\n', ["BadValue", "row 1"]),
        ("x.jsonl", '{"text": "a", "mood": ["good", "bad"]}\n', ["BadValue", "row 1"]),
        ("x.jsonl", '{"text": 5, "mood": "good"}\n', ["BadValue", "row 1", "'text'"]),
        ("x.jsonl", '{"text": " ", "mood": "good"}\n', ["EmptyData", "1 without a text"]),
        ("x.jsonl", '{"text": "a", "mood": null}\n', ["EmptyData", "1 without a label"]),
        ("x.jsonl", '{"text": "a"', ["BadValue", "row 1", "JSON"]),
        ("x.csv", 'text,mood\n"a,good\n', ["BadValue", "CSV"]),
        ("x.csv", "text,mood\na,good,extra\n", ["BadValue", "row 1", "cells"]),
        ("x.parquet", "PAR1", ["DataError", "x.parquet"]),
        ("x.jsonl.gz", "no gzip", ["DataError", "x.jsonl.gz"]),
        ("x.docx", "x", ["format"]),
    ],
)
def test_data_that_cannot_be_used_is_named(work, name, content, said):
    (work / name).write_text(content)
    run("train", project_of(work, {"train": name})).refuses(*said)
    assert not (work / "bundle").exists()


@pytest.mark.parametrize("key", ["train", "validation", "test"])
def test_a_file_without_the_column_is_named_with_its_key(work, key):
    """It was named alone, and a project may name several files of one name."""
    tiny_project.write_jsonl(work / "x.jsonl", ROWS)
    (work / "bare.csv").write_text("text\na\n")
    files = {"train": "x.jsonl", key: "bare.csv"}
    run("train", project_of(work, files)).refuses(f"task 'mood', {key}: bare.csv has no column 'mood'")


def test_bytes_that_are_not_utf8_are_named_with_their_row(work):
    (work / "x.jsonl").write_bytes(json.dumps(ROWS[0]).encode() + b'\n{"text": "\xff"}\n')
    run("train", project_of(work, {"train": "x.jsonl"})).refuses("row 2", "UTF-8")


def test_files_that_are_missing_or_folders_are_named(work):
    run("train", work / "none.toml").refuses("none.toml", "polyhead init")
    run("train", project_of(work, {"train": "none.jsonl"})).refuses("none.jsonl")
    (work / "d.jsonl").mkdir()
    run("train", project_of(work, {"train": "d.jsonl"})).refuses("d.jsonl")
    run("evaluate", work / "none.toml").refuses("none.toml")


def test_skipped_rows_are_counted_in_the_plan(work):
    rows = [*ROWS, {"text": " ", "mood": "bad"}, {"text": "x"}, {"text": "\ud800", "mood": "bad", "other": 1}]
    tiny_project.write_jsonl(work / "x.jsonl", rows)
    done = run("train", project_of(work, {"train": "x.jsonl"}))
    assert done.code == 0, done.err
    said = next(line for line in done.out.splitlines() if line.startswith("mood, train:"))
    assert "of 23 rows" in said and "1 without a label" in said and "1 with an empty text" in said
    assert "1 lone surrogates replaced" in said


@pytest.mark.slow
def test_a_million_characters_are_cut_and_counted(work):
    tiny_project.write_jsonl(work / "x.jsonl", [*ROWS, {"text": "lamp " * 200_000, "mood": "bad"}])
    done = run("train", project_of(work, {"train": "x.jsonl"}))
    assert done.code == 0, done.err
    assert "1 input cut" in done.out


def test_mixed_line_ends_are_the_same_rows(work):
    ends = ["\n", "\r\n", "\r"]
    content = "".join(json.dumps(row) + ends[i % 3] for i, row in enumerate(ROWS))
    (work / "x.jsonl").write_bytes(content.encode())
    done = run("train", project_of(work, {"train": "x.jsonl"}))
    assert done.code == 0, done.err
    assert done.out.splitlines()[1].split()[:3] == ["mood", "single_label", "20"]


@cases("name", ["a/b", "../up", "..", "a..b", ".hidden", "", "a b"])
def test_names_that_are_no_safe_folder_are_refused(work, name):
    run("train", project_of(work, {"name": name})).refuses("BadName")
    assert not (work / "bundle").exists()


def test_two_tasks_of_one_name_are_refused(work):
    path = write_project(work, "mood", "topics")
    for twin in ("mood", "Mood"):  # folders of some systems ignore case
        path.write_text(path.read_text().replace('name = "topics"', f'name = "{twin}"'))
        run("train", path).refuses("BadName", "two tasks", "mood")


@cases(
    ("text", "said"),
    [
        ("[trainig]\nseed = 1\n", ["trainig", "top level", "did you mean 'training'?"]),
        ("[training]\nsede = 1\n", ["sede", "training", "did you mean 'seed'?"]),
        ("[[tasks]]\nname = 'a'\nkin = 'x'\n", ["tasks[0]", "did you mean 'kind'?"]),
        ("[strategy]\nkind = 'pooled'\nlayer = 'last'\n", ["strategy", "did you mean 'layers'?"]),
        ("[training]\nseed = 'one'\n", ["training.seed", "a whole number"]),
        ("[training]\nseed = \n", ["is not TOML", "line"]),
        ("[training]\nepochs = 0\n", ["training.epochs"]),
        ("", ["tasks"]),
        ("tasks = []\n", ["no task"]),
    ],
)
def test_a_wrong_key_is_named_with_its_path_and_the_nearest_one(work, text, said):
    path = work / "polyhead.toml"
    path.write_text(text)
    run("train", path).refuses("ConfigError", "polyhead.toml", *said)


def trunk_copy(work):
    (work / "trunk").unlink()
    shutil.copytree((work / "data").resolve().parent / "trunk", work / "trunk")
    return work / "trunk"


def test_a_tokenizer_that_does_not_fit_the_weights_is_refused(work):
    file = trunk_copy(work) / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"]["vocab"]["overflow"] = 99_999
    file.write_text(json.dumps(content))
    run("train", write_project(work, "mood")).refuses("WeightsMismatch", "does not fit the weights")
    file.write_text("{}")
    run("train", write_project(work, "mood")).refuses("WeightsMismatch")
    file.unlink()
    run("train", write_project(work, "mood")).refuses("tokenizer")
    assert not (work / "bundle").exists()


@pytest.mark.parametrize("content", [b"", b"\x00" * 7, b"\xff" * 64, None])
def test_weights_that_cannot_be_read_are_refused(work, content):
    file = trunk_copy(work) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100] if content is None else content)
    run("train", write_project(work, "mood")).refuses("model.safetensors")


def test_a_trunk_that_is_nowhere_is_named(work):
    path = project_of(work, {}, trunk=msgspec.structs.replace(tiny_project.project(work).trunk, name="no/such"))
    run("train", path).refuses("TrunkNotFound", "no/such")


def test_a_bundle_of_another_trunk_is_refused_and_left_as_it_was(work):
    path = write_project(work, "mood")
    run("train", path)
    before = files_of(work / "bundle")
    run("train", write_project(work, "mood", max_tokens=20)).refuses("WrongTrunk", "another trunk")
    assert files_of(work / "bundle") == before


def test_a_bundle_cannot_stand_where_something_else_is(work):
    path = write_project(work, "mood")
    (work / "bundle").write_text("mine")
    run("train", path).refuses("bundle")
    assert (work / "bundle").read_text() == "mine"
    (work / "bundle").unlink()
    (work / "bundle").mkdir()
    (work / "bundle" / "letter.txt").write_text("mine")
    run("train", path).refuses("letter.txt")
    assert (work / "bundle" / "letter.txt").read_text() == "mine"


@pytest.mark.slow
def test_a_killed_training_goes_on_and_gives_the_same_bytes(work, tmp_path_factory, encodes_by_default):
    training = msgspec.structs.replace(tiny_project.TRAINING, epochs=40, patience=40)
    path = write_project(work, "mood", "topics", training=training)
    whole = tmp_path_factory.mktemp("whole") / "bundle"
    assert run("train", path, "--bundle", whole).code == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "polyhead", "train", str(path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(),
    )
    until = time.monotonic() + 300
    while not (work / "bundle" / "tasks" / "mood" / "v0001").exists() and process.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert run("inspect", work / "bundle", "--verify").code == 0
    done = run("train", path)
    assert done.code == 0, done.err
    for task in ("mood", "topics"):
        assert tiny_project.part_bytes(work / "bundle", task) == tiny_project.part_bytes(whole, task)


@pytest.mark.slow
@pytest.mark.parametrize("room", [2_000, 12_000, 60_000])
def test_a_full_disk_is_said_and_nothing_finished_is_lost(work, room):
    path = write_project(work, "mood")
    assert run("train", path).code == 0
    before = files_of(work / "bundle")
    bigger = msgspec.structs.replace(tiny_project.STRATEGY, hidden=4096)
    path = write_project(work, "mood", "topics", strategy=bigger)

    kept = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, kept[1]))
    try:
        done = run("train", path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, kept)
    done.refuses("File too large")
    assert run("inspect", work / "bundle", "--verify").code == 0
    after = files_of(work / "bundle")
    assert {name: after[name] for name in before if name.name != "bundle.json"} == {
        name: content for name, content in before.items() if name.name != "bundle.json"
    }
    assert not [name for name in after if any(part.startswith(".new-") for part in name.parts)]
    done = run("train", path)
    assert done.code == 0, done.err


@pytest.mark.slow
def test_control_c_ends_with_130_and_the_bundle_is_whole(work):
    training = msgspec.structs.replace(tiny_project.TRAINING, epochs=100_000, patience=100_000)
    path = write_project(work, "mood", "topics", training=training)
    process = interruptible(["train", path], env={"PYTHONUNBUFFERED": "1"})
    for line in process.stdout:
        if line.startswith(b"encoded"):
            break
    for _ in range(5):  # torch swallows one that comes while it imports parts of itself
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
            break
    else:
        process.kill()
    err = process.communicate(timeout=60)[1]
    # A shell shows 130 for both: Python ends itself by the signal where C code that torch calls saw it first.
    assert process.returncode in (130, -signal.SIGINT), err
    said = err.decode().strip().splitlines()[-1]  # a slow machine shows its progress before
    assert said == "polyhead: stopped; what was finished is kept; the same command goes on from there"
    assert run("inspect", work / "bundle", "--verify").code == 0


def test_control_c_inside_a_callback_that_can_raise_nothing_still_stops_the_command():
    """One that came while a module's lock was let go was printed as "Exception ignored in", and the run went on."""
    before = """
import signal, threading, weakref
import polyhead.cli.train as verb

class Lock:
    pass

def freed(reference):
    signal.raise_signal(signal.SIGINT)

def struck(*words, **options):
    lock = Lock()
    reference = weakref.ref(lock, freed)
    del lock
    threading.Event().wait(30)
    print("nobody stopped it")

signal.signal(signal.SIGINT, signal.default_int_handler)
verb.command.callback = struck
"""
    done = shell(["train"], before=before)
    assert done.code == 130 and not done.out
    assert done.err.strip() == "polyhead: stopped; what was finished is kept"


def test_a_cache_that_was_damaged_is_said_and_not_trusted(work):
    path = write_project(work, "mood")
    run("train", path)
    found = [p for p in (work / "bundle-cache" / "features").rglob("*") if p.is_file() and p.stat().st_size]
    assert found
    for file in found:
        os.truncate(file, file.stat().st_size // 2)
    changed = msgspec.structs.replace(tiny_project.TRAINING, seed=9)
    done = run("train", write_project(work, "mood", training=changed))
    if done.code:
        done.refuses("StoreError")
    assert run("inspect", work / "bundle", "--verify").code == 0
