"""`polyhead init`: whatever it writes, `train` accepts unchanged; what it cannot use, it names."""

import json
import shutil
import tomllib

import pytest

from polyhead.project.tables import read_project
from support.commands import run
from support.init_rows import KINDS, ROWS, write
from support.tiers import first_of


@pytest.mark.parametrize("case", first_of(KINDS))
def test_train_accepts_what_init_writes(work, case):
    rows, words = KINDS[case]
    path = work / "polyhead.toml"
    data = write(work / "some data.csv", rows)
    done = run("init", data, "--kind", case.split()[0], *words, "-o", path)
    assert done.code == 0, done.err
    text = path.read_text().replace('name = "minilm"', 'name = "trunk"')
    path.write_text(text.replace("[[tasks]]", "[training]\nepochs = 1\nprecision = 'float32'\n\n[[tasks]]", 1))
    assert 'name = "some-data"' in text
    done = run("train", path)
    assert done.code == 0, done.err
    assert run("evaluate", path).code == 0


@pytest.mark.slow
def test_a_summarization_task_is_declared_beside_others_and_trained(work):
    """The tiny model reads 40 tokens, so the project says how long its summaries are."""
    from support import summarizers

    shutil.copytree(summarizers.folder(), work / "writer")
    rows = [{"document": text, "summary": summary} for text, summary in summarizers.documents(20)]
    path, data = work / "polyhead.toml", write(work / "news.jsonl", rows)
    words = ["--trunk", work / "writer", "--text", "document", "--label", "summary"]
    done = run("init", data, "--kind", "summarization", *words, "-o", path)
    assert done.code == 0 and "train: 20 rows, 20 used" in done.out, done.err
    moods = write(work / "moods.jsonl", ROWS)
    assert run("init", moods, "--kind", "single_label", "--label", "mood", "-o", path).code == 0
    project = read_project(path)
    news, _ = project.tasks
    assert (news.name, news.kind, news.text, news.label) == ("news", "summarization", "document", "summary")
    assert project.trunk.name == "writer"
    text = path.read_text().replace('label = "summary"', 'label = "summary"\ngeneration = { tokens = 16 }')
    path.write_text(text.replace("[[tasks]]", "[training]\nepochs = 1\nprecision = 'float32'\n\n[[tasks]]", 1))
    done = run("train", path)
    assert done.code == 0, done.err
    assert run("tasks", "list", work / "bundle").out.count("v0001") == 2


def test_a_summarization_task_needs_an_encoder_with_a_decoder_in_a_new_file(tmp_path):
    rows = [{"text": f"a long text {i}", "summary": "short"} for i in range(12)]
    data = write(tmp_path / "x.jsonl", rows)
    summary = ["init", data, "--kind", "summarization"]
    run(*summary, "--label", "summary", cwd=tmp_path).refuses("--trunk", "facebook/bart-base", code=2)
    run(*summary, "--trunk", "owner/hub", "--label", "sumary", cwd=tmp_path).refuses("did you mean 'summary'?")
    run(*summary, "--trunk", "owner/hub", "--spans", "summary", cwd=tmp_path).refuses("spans")
    pair = ["--trunk", "owner/hub", "--label", "summary", "--text-b", "text"]
    run(*summary, *pair, cwd=tmp_path).refuses("pair")
    assert not (tmp_path / "polyhead.toml").exists()
    assert run(*summary, "--trunk", "owner/hub", "--label", "summary", cwd=tmp_path).code == 0
    assert read_project(tmp_path / "polyhead.toml").trunk.name == "owner/hub"
    again = [*summary, "--task", "other", "--label", "summary"]
    run(*again, "--trunk", "minilm", cwd=tmp_path).refuses("has an encoder, which all its tasks share", "owner/hub")
    assert run(*again, cwd=tmp_path).code == 0


def test_labels_are_listed_with_their_counts(tmp_path):
    data = tmp_path / "x.jsonl"
    data.write_text("".join(json.dumps({"text": f"t{i}", "label": i % 12}) + "\n" for i in range(48)))
    done = run("init", data, "--kind", "single_label", "--json", tmp_path / "told.json", cwd=tmp_path)
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["task"]["labels"] == [str(n) for n in range(12)]
    assert told["counts"]["11"] == 4
    assert told["rows"]["train"]["used"] == 48
    assert "48 rows, 48 used" in done.out


def test_a_second_task_is_added_and_the_first_is_left_alone(tmp_path):
    data = write(tmp_path / "x.jsonl", ROWS)
    run("init", data, "--kind", "single_label", "--label", "mood", "--task", "mood", cwd=tmp_path)
    before = (tmp_path / "polyhead.toml").read_text()
    run("init", data, "--kind", "regression", "--label", "urgency", "--task", "urgency", cwd=tmp_path)
    after = (tmp_path / "polyhead.toml").read_text()
    assert after.startswith(before.rstrip())
    assert [entry.name for entry in read_project(tmp_path / "polyhead.toml").tasks] == ["mood", "urgency"]


def test_two_tasks_of_one_name_are_refused_and_the_file_stays(tmp_path):
    data = write(tmp_path / "x.jsonl", ROWS)
    words = ["init", data, "--kind", "single_label", "--label", "mood"]
    run(*words, "--task", "mood", cwd=tmp_path)
    before = (tmp_path / "polyhead.toml").read_text()
    for name in ("mood", "Mood"):
        run(*words, "--task", name, cwd=tmp_path).refuses("BadName")
        assert (tmp_path / "polyhead.toml").read_text() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["polyhead.toml", "x.jsonl"]


def test_a_project_file_that_cannot_be_read_is_left_alone(tmp_path):
    data, path = write(tmp_path / "x.jsonl", ROWS), tmp_path / "polyhead.toml"
    for content, said in [
        (b"a = ", "is not TOML"),
        (b"\xff\xfe", "is not TOML"),
        (b"tusks = []\n", "tasks"),
        (b'tasks = [{ name = "a", kind = "regression", range = [0, 1], train = "x" }]\n', "[[tasks]]"),
    ]:
        path.write_bytes(content)
        done = run("init", data, "--kind", "single_label", "--label", "mood", cwd=tmp_path)
        done.refuses(said)
        assert path.read_bytes() == content


def test_an_output_that_cannot_be_written_is_refused(tmp_path):
    data = write(tmp_path / "x.jsonl", ROWS)
    words = ["init", data, "--kind", "single_label", "--label", "mood"]
    run(*words, "-o", tmp_path / "no" / "x.toml").refuses("cannot write")
    run(*words, "-o", tmp_path).refuses(str(tmp_path))
    run(*words, "-o", tmp_path / "x.toml", "--json", tmp_path / "no" / "x").refuses("cannot write")
    assert not (tmp_path / "x.toml").exists()


def test_the_file_is_plain_toml_with_paths_beside_it(tmp_path):
    (tmp_path / "data").mkdir()
    data = write(tmp_path / "data" / "moods.jsonl", ROWS)
    run("init", data, "--kind", "single_label", "--label", "mood", cwd=tmp_path)
    content = tomllib.loads((tmp_path / "polyhead.toml").read_text())
    assert content["tasks"][0]["train"] == "data/moods.jsonl"
    assert content["tasks"][0]["name"] == "moods"


def test_a_project_file_with_a_byte_order_mark_takes_another_task(tmp_path):
    rows = tmp_path / "x.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    words = ("init", rows, "--kind", "single_label", "--label", "mood", "-o", tmp_path / "p.toml", "--task")
    assert run(*words, "first").code == 0
    (tmp_path / "p.toml").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "p.toml").read_bytes())
    done = run(*words, "second")
    assert done.code == 0, done.err
    assert [entry.name for entry in read_project(tmp_path / "p.toml").tasks] == ["first", "second"]


def test_a_file_of_few_rows_is_declared(tmp_path):
    """Four rows, two of each label."""
    rows = [{"text": f"the lamp number {place}", "label": "ab"[place % 2]} for place in range(4)]
    (tmp_path / "four.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    done = run("init", "four.jsonl", cwd=tmp_path)
    assert done.code == 0, done.err
    entry = tomllib.loads((tmp_path / "polyhead.toml").read_text(encoding="utf-8"))["tasks"][0]
    assert (entry["labels"], entry["train"]) == (["a", "b"], "four.jsonl")
