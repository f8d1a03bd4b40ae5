"""`polyhead import`: a new bundle, an existing one, the texts of the proof, and wrong words."""

import json
import shlex
import shutil

import pytest

pytest.importorskip("transformers")

from polyhead.bundle.read import Bundle
from polyhead.convert.run import SAMPLE_TEXTS
from polyhead.project.tables import LEAST_TOKENS
from support import checkpoints
from support.commands import run


@pytest.fixture(scope="module")
def folders():
    return [checkpoints.trained("mood", frozen=2), checkpoints.trained("names", frozen=3)]


@pytest.fixture(scope="module")
def made(folders, tmp_path_factory):
    """A bundle of two checkpoints, and what the command said."""
    out = tmp_path_factory.mktemp("import") / "bundle"
    done = run("import", out, *folders, "--name", f"{folders[0]}=mood", "--name", f"{folders[1]}=people")
    assert done.code == 0, done.err
    return out, done


def test_tasks_taps_and_differences_are_told(made, folders):
    out, done = made
    assert f"bundle {out} (new): trunk first 2 layers of {folders[0]} (2 layers)" in done.out
    (row,) = [line for line in done.out.splitlines() if line.split()[:1] == ["mood"]]
    assert row.split()[1:6] == ["single_label", "v0001", str(folders[0]), "2", "2"]
    assert float(row.split()[-2]) < 1e-5
    assert "on 128 texts" in done.out
    assert all("of 128 texts" in line for line in done.err.splitlines())  # progress, on a slow machine


def test_the_bundle_answers(made):
    done = run("predict", made[0], stdin="anna wants a refund\n")
    (row,) = done.rows
    assert set(row["answers"]) == {"mood", "people"}
    assert set(row["answers"]["mood"]["scores"]) == set(checkpoints.LABELS["mood"])
    assert row["receipt"]["passes"] == 1
    assert row["receipt"]["layers"] == 2 + 2 + 2
    assert run("inspect", made[0], "--verify").code == 0


def test_by_default_the_proof_rests_on_the_packaged_sample(made):
    kept = Bundle.open(made[0]).tasks["mood"].trained_with["imported"]["parity"]
    assert kept["texts"] == SAMPLE_TEXTS == 128
    texts = [probe["text"][0] for probe in Bundle.open(made[0]).probes("mood")]
    assert any(not text.isascii() for text in texts)


def test_a_bundle_grows_and_its_certificate_is_there(made, tmp_path):
    out = tmp_path / "bundle"
    shutil.copytree(made[0], out)
    folder = checkpoints.trained("score", frozen=4)
    done = run("import", out, folder, "--range", 0, 5, "--json", tmp_path / "told.json")
    assert done.code == 0, done.err
    assert "added to" in done.out and "no other task's answers changed" in done.out
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["is_new"] is False
    assert told["tasks"][0]["tap"] == 2
    assert set(told["certificate"]["before"]) == {"mood", "people"}
    names = sorted(file.name for file in (out / "certificates").glob("*.json"))
    assert names == ["0001-import.json", "0002-import.json"]


def test_the_next_command_names_a_folder_with_a_space_as_one_word(tmp_path):
    done = run("import", tmp_path / "my bundle", checkpoints.trained("mood"))
    assert done.code == 0, done.err
    assert shlex.split(done.out.splitlines()[-1])[1:] == ["polyhead", "inspect", str(tmp_path / "my bundle")]


def test_pairs_are_proven_on_pairs_of_the_sample(tmp_path):
    done = run("import", tmp_path / "b", checkpoints.trained("mood"), "--pair", "joined")
    assert done.code == 0, done.err
    (row,) = run("predict", tmp_path / "b", stdin='{"text": "a lamp", "text_b": "a box"}\n').rows
    assert row["receipt"]["passes"] == 1
    assert row["answers"]


@pytest.mark.parametrize("form", ["txt", "jsonl"])
def test_texts_of_a_file_are_the_proof(tmp_path, form):
    lines = [f"order {i} is late" for i in range(20)]
    rows = [json.dumps({"text": line, "id": i}) for i, line in enumerate(lines)] if form == "jsonl" else lines
    file = tmp_path / f"texts.{form}"
    file.write_text("\n\n".join(rows))
    folder = checkpoints.trained("mood")
    done = run("import", tmp_path / "b", folder, "--name", f"{folder}=mood", "--texts", file)
    assert done.code == 0, done.err
    assert [probe["text"] for probe in Bundle.open(tmp_path / "b").probes("mood")] == [[t] for t in lines]


def test_questions_are_no_texts_of_a_proof(tmp_path):
    file = tmp_path / "texts.jsonl"
    file.write_text('{"question": "who?", "context": "anna is here"}\n' * 20)
    refused = run("import", tmp_path / "b", checkpoints.trained("mood"), "--texts", file)
    refused.refuses("a question about a context", "Allowed: one text")


def test_questions_are_the_proof_of_models_that_answer_them(tmp_path):
    """One file for both: each is proven on the lines that it reads."""
    file = tmp_path / "texts.jsonl"
    lines = [json.dumps({"question": "who?", "context": f"anna has {i} lamps"}) for i in range(20)]
    lines += [json.dumps({"question": "who?", "options": [f"anna {i}", "ben"]}) for i in range(16)]
    file.write_text("\n".join(lines))
    folders = [checkpoints.headed(form) for form in ("QuestionAnswering", "MultipleChoice")]
    names = [
        word for folder, name in zip(folders, ("who", "which"), strict=True) for word in ("--name", f"{folder}={name}")
    ]
    done = run("import", tmp_path / "b", *folders, *names, "--texts", file, "--null-answers")
    assert done.code == 0, done.err
    tasks = Bundle.open(tmp_path / "b").tasks
    assert [tasks[name].trained_with["imported"]["parity"]["texts"] for name in ("who", "which")] == [20, 16]
    agreement = tasks["who"].trained_with["imported"]["parity"]["agreement"]
    assert (f"who: {100 * agreement:.1f} % of its answers" in done.out) == (agreement < 1)
    assert tasks["who"].task.null_answers
    rows = run("predict", tmp_path / "b", stdin="\n".join(lines)).rows
    assert rows[0]["answers"].keys() == {"who"} and rows[-1]["answers"].keys() == {"which"}


def test_texts_that_cannot_be_read_are_refused(tmp_path):
    folder = checkpoints.trained("mood")
    run("import", tmp_path / "b", folder, "--texts", tmp_path / "none").refuses("no file at")
    file = tmp_path / "texts"
    file.write_text("one\ntwo\n")
    run("import", tmp_path / "b", folder, "--texts", file).refuses("too few", "16 or more")
    file.write_text('{"text": 7}\n' * 20)
    run("import", tmp_path / "b", folder, "--texts", file).refuses("line 1")
    file.write_bytes(b"\xff\n" * 20)
    run("import", tmp_path / "b", folder, "--texts", file).refuses("UTF-8")
    assert not (tmp_path / "b").exists()


def test_wrong_words_are_refused(tmp_path):
    folder = checkpoints.trained("score", frozen=4)
    run("import", tmp_path / "b", folder).refuses("ConfigError", "--range 0 5")
    run("import", tmp_path / "b", folder, "--range", 5, 0).refuses("range", str(folder))
    run("import", tmp_path / "b", folder, "--range", 0, 5, "--name", "x").refuses("FOLDER=TASK", code=2)
    run("import", tmp_path / "b", folder, "--range", 0, 5, "--name", f"{folder}=a b").refuses("BadName")
    for words, told in (
        (["--null-answers"], "null_answers would change nothing"),
        (["--text", "t"], "--text goes with"),
    ):
        run("import", tmp_path / "b", folder, "--range", 0, 5, *words).refuses(told, code=2 if "t" in words else 1)
    run("import", tmp_path / "b").refuses("Missing argument", code=2)
    run("import", tmp_path / "b", tmp_path / "absent").refuses("TrunkNotFound", "absent")
    run("import", tmp_path / "b", folder, "--range", 0, 5, "--max-tokens", 65).refuses("3 to 64")
    twice = ["--name", f"{folder}=a", "--name", f"{folder}=b"]
    run("import", tmp_path / "b", folder, "--range", 0, 5, *twice).refuses("named twice", "'a' and 'b'", code=2)
    run("import", tmp_path / "b", folder, "--range", 0, 5, "--max-tokens", LEAST_TOKENS - 1).refuses(
        f"x>={LEAST_TOKENS}", code=2
    )
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
def test_a_task_of_another_precision_is_told(made, tmp_path):
    """A bundle with a task that was trained in bfloat16, as `train` may do."""
    out = tmp_path / "bundle"
    shutil.copytree(made[0], out)
    bundle = Bundle.open(out)
    record = bundle.tasks["mood"]
    import msgspec

    trained = record.trained_with | {"numerics": {"precision": "bfloat16"}}
    bundle.add_task(
        msgspec.structs.replace(record, trained_with=trained),
        bundle.part("mood"),
        scores={},
        probes=bundle.probes("mood"),
        card="",
        replace=True,
    )
    done = run("import", out, checkpoints.trained("topics", frozen=2))
    assert done.code == 0, done.err
    assert "bfloat16 and float32" in done.out and "--precision" in done.out
