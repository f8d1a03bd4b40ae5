"""`polyhead export`: files are written, run, compared, and told; or nothing is."""

import shutil
import sys

import msgspec
import numpy as np
import pytest

from polyhead.bundle.read import Bundle
from polyhead.bundle.write import add_tasks
from polyhead.engine.session import Session
from polyhead.values import few_digits
from support.commands import run
from support.writing_bundles import tiny_draft

ort = pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def exported(home, tmp_path_factory):
    """The tiny trained bundle as files, and what the command said."""
    out = tmp_path_factory.mktemp("export") / "out"
    return out, run("export", home / "bundle", out)


def test_every_task_gets_a_file_and_a_line(home, exported):
    out, done = exported
    assert done.code == 0, done.err
    names = sorted(Session(home / "bundle").tasks)
    assert sorted(path.stem for path in (out / "tasks").iterdir()) == names
    lines = done.out.splitlines()
    assert lines[0].split() == ["file", "reads", "size", "probes", "largest", "difference"]
    for name in names:
        (line,) = [line for line in lines if line.startswith(f"tasks/{name}.onnx")]
        assert float(line.split()[-1]) < 1e-3 and int(line.split()[-2]) >= 5  # pinned probes too
    worst = max((line.split()[-1] for line in lines if line.startswith("tasks/")), key=float)
    assert lines[-1] == f"written to {out}; the largest difference of a logit from torch float32 is {worst}"
    assert {path.name for path in out.iterdir() if path.is_file()} == {
        "README.md",
        "export.json",
        "tokenizer.json",
        "trunk.onnx",
    }


def test_json_is_what_stands_in_the_folder(home, tmp_path):
    done = run("export", home / "bundle", tmp_path / "out", "--tasks", "mood", "--backend", "reference", "--json", "-")
    assert done.code == 0, done.err
    said = msgspec.json.decode(done.out)
    assert said == few_digits(msgspec.json.decode((tmp_path / "out" / "export.json").read_bytes()))
    assert list(said["tasks"]) == ["mood"] and said["checked_with"]["backend"] == "reference"
    assert said["tasks"]["mood"]["task"]["labels"] == ["bad", "good"]


def test_a_task_answers_by_its_files_as_by_the_command_predict(home, exported):
    out, _ = exported
    text = "the lamp is broken"
    record = msgspec.json.decode((out / "export.json").read_bytes())
    import tokenizers

    read = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json")).encode(text)
    values = {
        "input_ids": np.array([read.ids]),
        "attention_mask": np.array([read.attention_mask]),
        "token_type_ids": np.array([read.type_ids]),
    }
    for model in (record["trunk"], record["tasks"]["mood"]["model"]):
        found = ort.InferenceSession(out / model["file"]).run(None, {n: values[n] for n in model["inputs"]})
        values |= dict(zip(model["outputs"], found, strict=True))
    done = run("predict", home / "bundle", "--tasks", "mood", "--precision", "float32", stdin=text)
    scores = done.rows[0]["answers"]["mood"]["scores"]
    np.testing.assert_allclose(values["scores"][0], list(scores.values()), atol=1e-4)


def test_a_task_that_writes_has_a_file_for_each_step(home, tmp_path):
    shutil.copytree(home / "bundle", tmp_path / "bundle")
    add_tasks(tmp_path / "bundle", [tiny_draft(Bundle.open(tmp_path / "bundle").trunk())])
    done = run("export", tmp_path / "bundle", tmp_path / "out", "--tasks", "mood,brief", "--backend", "reference")
    assert done.code == 0, done.err
    files = {str(file.relative_to(tmp_path / "out")) for file in (tmp_path / "out").rglob("*.onnx")}
    assert files == {"trunk.onnx", "tasks/mood.onnx", "tasks/brief.onnx", "steps/brief.onnx"}


def test_a_folder_that_is_there_is_left_alone(exported, home):
    out, _ = exported
    before = (out / "export.json").read_bytes()
    run("export", home / "bundle", out).refuses("already", str(out))
    assert (out / "export.json").read_bytes() == before
    run("export", home / "bundle", out.parent / "other", "--tasks", "nobody").refuses("nobody")
    assert not (out.parent / "other").exists()


def test_without_onnx_the_line_that_installs_it_is_said(home, tmp_path, monkeypatch):
    for name in [n for n in sys.modules if n.startswith(("polyhead.engine.export", "polyhead.engine.backends.onnx"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx", None)
    run("export", home / "bundle", tmp_path / "out").refuses("pip install onnx")
