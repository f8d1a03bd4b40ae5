"""`polyhead evaluate` of tasks without a file to be scored on: by what they answered rows held out in training."""

import csv
import json
import shutil

import msgspec
import numpy as np
import pytest

from polyhead.bundle.read import Bundle
from polyhead.data.read import Examples, ReadReport
from polyhead.evaluate.held_out import encode_held_out, held_out_file, read_held_out
from polyhead.project.recipes import FineTune, Frozen, Joint, SearchGrid
from polyhead.project.strategies import Branch, Prompted
from polyhead.tasks.task import Task
from support import head_search, tiny_project
from support.commands import run
from support.shared import made_once
from support.tiny_project import to_toml

KINDS = ("mood", "topics", "urgency", "names", "same", "alike")


def held_project(folder, *names, validation=0.25, recipe=None, **changes):
    """A project whose tasks hold a share of train out, and have no test file."""
    whole = tiny_project.project(folder, *(names or KINDS), **changes)
    bare = [msgspec.structs.replace(entry, validation=validation, test=None) for entry in whole.tasks]
    path = folder / "polyhead.toml"
    path.write_text(to_toml(msgspec.structs.replace(whole, tasks=tuple(bare), recipe=recipe or Frozen())))
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with all kinds trained in folds; tests leave it as it is."""

    def make(folder):
        with pytest.MonkeyPatch.context() as patch:
            head_search.shorten(patch)
            done = run("train", held_project(folder))
        assert done.code == 0, done.err

    return made_once(tmp_path_factory, "held", make)


def copied(trained, folder):
    """A copy that a test may change."""
    root = shutil.copytree(trained, folder / "copy")
    return root, root / "polyhead.toml"


def told(*words):
    done = run(*words, "--json", "-")
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_every_kind_is_scored_out_of_fold_as_training_scored_it(trained):
    found = told("evaluate", trained / "polyhead.toml", "--details")
    assert [score["task"] for score in found["scores"]] == [*KINDS]
    for score in found["scores"]:
        kept = json.loads((trained / "bundle" / "tasks" / score["task"] / "v0001" / "scores.json").read_text())
        numerics = Bundle.open(trained / "bundle").record(score["task"]).trained_with["numerics"]
        computed = {name: numerics[name] for name in ("backend", "precision")}
        assert score["split"] == "out of fold" and score["rows"] == 32 and kept["folds"] > 1
        assert score["scores"] == pytest.approx(kept["splits"]["validation"], rel=1e-5)
        assert found["held"][score["task"]] == {"folds": kept["folds"], "lacking": 0, **computed}
    assert not found["from_training"] and len(found["details"]) == len(KINDS)


def test_wrong_rows_are_those_of_the_file_with_their_texts(trained, tmp_path):
    file, page = tmp_path / "wrong.jsonl", tmp_path / "report.html"
    done = run("evaluate", trained / "polyhead.toml", "--task", "mood", "--errors", file, "--report", page, "--labels")
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    data = [json.loads(line) for line in (trained / "data" / "messages-train.jsonl").read_text().splitlines()]
    (score,) = told("evaluate", trained / "polyhead.toml", "--task", "mood")["scores"]
    assert len(rows) == score["wrong"] > 0 and f"{score['wrong']} wrong answer" in done.out
    for row in rows:
        assert (row["text"], row["truth"]) == (data[row["row"] - 1]["text"], data[row["row"] - 1]["mood"])
        assert row["answer"] != row["truth"]
    assert "mood: each label" in done.out and "32 rows, out of fold" in page.read_text()


def test_answers_of_folds_are_not_those_of_the_part_that_learned_from_all_rows(trained):
    """A fold's head has not seen the row, so its outputs are not what the bundle answers."""
    from polyhead import Session

    held = read_held_out(
        held_out_file(trained / "bundle-cache", "mood", Bundle.open(trained / "bundle").record("mood").arrays)
    )
    data = [json.loads(line) for line in (trained / "data" / "messages-train.jsonl").read_text().splitlines()]
    texts = [(data[row - 1]["text"],) for row in held.rows]
    fresh = Session(trained / "bundle", backend="torch").outputs("mood", texts)
    assert sorted(held.rows) == [*range(1, 33)]
    assert not np.allclose(np.stack(held.outputs), np.stack(fresh), atol=1e-3)


def test_rows_like_those_that_a_version_learned_from_are_known_by_their_texts_and_groups():
    """Of a person that it learned from no row is new; a row that it answered before it learned from it counts."""

    def examples(*rows):
        texts, groups = zip(*rows, strict=True)
        inputs, targets = [(text,) for text in texts], [np.int64(0)] * len(rows)
        numbers, report = list(range(1, len(rows) + 1)), ReadReport()
        return Examples(inputs=inputs, targets=targets, words=None, rows=numbers, report=report, groups=[*groups])

    task = Task(name="t", kind="single_label", labels=("a", "b"))
    learned, outputs = examples(("One", "ann"), ("two", None), ("three", "bob")), [np.zeros(2)]
    kept = encode_held_out(learned.take([1]), outputs, task=task, folds=0, computed={}, learned=learned)
    now = examples(("one ", None), ("two", None), ("four", "ann"), ("four", None), ("three", "eve"), ("five", "eve"))
    assert kept.unlearned(task, now) == [1, 3, 5]
    unknown = encode_held_out(learned.take([1]), outputs, task=task, folds=0, computed={})
    assert unknown.unlearned(task, now) is None


def test_a_question_over_a_context_that_a_version_learned_from_is_not_new():
    """It counted as held out: only the pair of question and context was looked up."""

    def examples(*inputs):
        report, targets = ReadReport(), [np.int64(0)] * len(inputs)
        return Examples(inputs=[*inputs], targets=targets, words=None, rows=[*range(len(inputs))], report=report)

    task, learned = Task(name="where", kind="span"), examples(("where?", "Here  it is."), ("when?", "Today."))
    kept = encode_held_out(learned.take([]), [], task=task, folds=0, computed={}, learned=learned)
    now = examples(("who?", "here it IS."), ("where?", "Not here."), ("when?", "Today."))
    assert kept.unlearned(task, now) == [1]


def test_kept_answers_hold_no_text(trained):
    raw = b"".join(file.read_bytes() for file in (trained / "bundle-cache" / "held").rglob("*.msgpack"))
    words = {word for row in tiny_project.messages(40, seed=0) for word in row["tokens"] if len(word) > 3}
    assert raw and words and not any(word.encode() in raw for word in words)


def test_rows_that_moved_are_known_and_rows_that_went_are_said(trained, tmp_path):
    root, path = copied(trained, tmp_path)
    file = root / "data" / "messages-train.jsonl"
    lines = file.read_text().splitlines()
    new = json.dumps(tiny_project.messages(1, seed=77)[0] | {"text": "a new row about nothing"})
    file.write_text("\n".join([new, *lines[::-1]]) + "\n")  # one more, and all others elsewhere
    words = ("evaluate", path, "--tasks", "mood,names,topics")
    before = told("evaluate", trained / "polyhead.toml", "--tasks", "mood,names,topics")["scores"]
    for then, now in zip(before, told(*words)["scores"], strict=True):
        assert now["rows"] == then["rows"] and now["scores"] == pytest.approx(then["scores"], rel=1e-5)
    file.write_text("\n".join(lines[3:]) + "\n")
    found = told(*words)
    assert {score["rows"] for score in found["scores"]} == {29}
    assert {facts["lacking"] for facts in found["held"].values()} == {3}
    done = run(*words)
    assert "mood: without 3 rows that training held out: the file does not have them as before" in done.out
    assert "its out of fold rows are others than in training" in done.err


def test_labels_count_as_the_file_has_them_now(trained, tmp_path):
    root, path = copied(trained, tmp_path)
    file = root / "data" / "messages-train.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    (before,) = told("evaluate", path, "--task", "mood")["scores"]
    other = {"good": "bad", "bad": "good"}
    file.write_text("".join(json.dumps({**row, "mood": other[row["mood"]]}) + "\n" for row in rows))
    (after,) = told("evaluate", path, "--task", "mood")["scores"]
    assert after["scores"]["accuracy"] == pytest.approx(1 - before["scores"]["accuracy"], rel=1e-5)


def test_where_nothing_can_be_scored_no_file_is_written_and_the_command_fails(trained, tmp_path):
    """It said `0 wrong answers`, wrote an empty report, and ended well."""
    root, path = copied(trained, tmp_path)
    shutil.rmtree(root / "bundle-cache")
    written = [tmp_path / name for name in ("wrong.csv", "report.html", "scores.json")]
    words = ("--errors", written[0], "--report", written[1], "--json", written[2], "--labels", "--details")
    done = run("evaluate", path, *words).refuses("nothing was scored", "no answers to rows held out", "--data FILE")
    assert not any(file.exists() for file in written)
    assert "wrong answer" not in done.out and "from training" in done.out


def test_a_file_with_none_of_the_rows_scores_nothing(trained, tmp_path):
    root, path = copied(trained, tmp_path)
    (root / "data" / "messages-train.jsonl").write_text(
        "".join(json.dumps({**row, "text": f"other {row['text']}"}) + "\n" for row in tiny_project.messages(9, seed=5))
    )
    done = run("evaluate", path, "--task", "mood")
    done.refuses("nothing was scored", "none of 32 rows held out", "messages-train.jsonl")


@pytest.mark.parametrize("cut", [0, 7, 200, -1])
def test_damaged_answers_are_named(trained, tmp_path, cut):
    root, path = copied(trained, tmp_path)
    (file,) = (root / "bundle-cache" / "held" / "mood").iterdir()
    file.write_bytes(file.read_bytes()[:cut])
    run("evaluate", path, "--task", "mood").refuses("nothing was scored", file.name, "cannot be read")


@pytest.mark.slow
def test_two_versions_are_compared_on_rows_that_neither_learned_from(trained, tmp_path):
    """It said that v0001 does not exist, and listed it."""
    root, path = copied(trained, tmp_path)
    assert run("train", path, "--seed", "5").code == 0
    found = told("evaluate", path, "--task", "mood", "--against", "v0001", "--bundle", root / "bundle")
    (comparison,), (score,) = found["comparisons"], found["scores"]
    scores = [
        json.loads((root / "bundle" / "tasks" / "mood" / version / "scores.json").read_text())["splits"]["validation"]
        for version in ("v0001", "v0002")
    ]
    assert comparison["rows"] == 32 and score["scores"] == pytest.approx(scores[1], rel=1e-5)
    assert [comparison["before"], comparison["after"]] == pytest.approx([each["accuracy"] for each in scores], rel=1e-5)
    assert comparison["got_right"] - comparison["got_wrong"] == round(32 * comparison["difference"])
    other = shutil.copytree(trained, tmp_path / "other")
    beside = told("evaluate", path, "--task", "mood", "--against", other / "bundle")["comparisons"][0]
    assert {key: beside[key] for key in ("before", "after", "changed")} == {
        key: comparison[key] for key in ("before", "after", "changed")
    }
    shutil.rmtree(other / "bundle-cache")
    run("evaluate", path, "--task", "mood", "--against", other / "bundle").refuses(
        "no task is compared", "no answers to rows held out", "--data FILE"
    )


def test_a_share_held_out_is_scored_by_the_part_that_did_not_learn_from_it(work, monkeypatch):
    """With rows enough a share chooses, and the kept part may then learn from it too."""
    from polyhead.train.data import prepared

    monkeypatch.setattr(prepared, "FOLDED_BELOW", 10)
    path = held_project(work, "mood", "names")
    assert run("train", path).code == 0
    for score in told("evaluate", path)["scores"]:
        kept = json.loads((work / "bundle" / "tasks" / score["task"] / "v0001" / "scores.json").read_text())
        assert "folds" not in kept
        assert (score["split"], score["rows"]) == ("held out", 8)
        assert score["scores"] == pytest.approx(kept["splits"]["validation"], rel=1e-5)


def test_validation_is_scored_on_the_share_where_a_test_file_is_there_too(work):
    whole = tiny_project.project(work, "mood")
    entry = msgspec.structs.replace(whole.tasks[0], validation=0.25)
    path = work / "polyhead.toml"
    path.write_text(to_toml(msgspec.structs.replace(whole, tasks=(entry,))))
    assert run("train", path).code == 0
    splits = [told("evaluate", path, "--split", split)["scores"][0]["split"] for split in ("test", "validation")]
    assert splits == ["test", "out of fold"]


def test_answers_are_found_where_training_kept_them(work, tmp_path):
    path, cache = held_project(work, "mood"), tmp_path / "elsewhere"
    assert run("train", path, "--cache", cache).code == 0
    run("evaluate", path).refuses("nothing was scored", "--cache")
    assert told("evaluate", path, "--cache", cache)["scores"][0]["rows"] == 32


def test_wrong_rows_as_a_table_have_the_words_of_pairs(trained, tmp_path):
    file = tmp_path / "wrong.csv"
    assert run("evaluate", trained / "polyhead.toml", "--task", "same", "--errors", file).code == 0
    with file.open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    (score,) = told("evaluate", trained / "polyhead.toml", "--task", "same")["scores"]
    assert len(rows) == score["wrong"] and all(row["text"] and row["text_b"] for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": Branch(layers=1, hidden=8)},
        {"strategy": Prompted(rows=2, hidden=8)},
        {"recipe": Joint(micro_batches=2, steps=2)},
        {"recipe": FineTune(search=SearchGrid(learning_rates=(1e-3,), epsilons=(1e-8,), dropouts=(0.0,)))},
    ],
    ids=["branch", "prompted", "joint", "fine-tuned"],
)
def test_every_way_of_training_keeps_what_it_answered_rows_held_out(work, changes):
    several = isinstance(changes.get("recipe"), FineTune)
    training = tiny_project.SEARCHED if several else tiny_project.TRAINING
    path = held_project(work, "mood", "urgency", training=training, **changes)
    done = run("train", path)
    assert done.code == 0, done.err
    found = told("evaluate", path)
    assert [(score["task"], score["split"], score["rows"]) for score in found["scores"]] == [
        ("mood", "held out", 8),
        ("urgency", "held out", 8),
    ]
    for score in found["scores"]:
        bundle = Bundle.open(work / "bundle" / score["task"] if several else work / "bundle")
        assert score["scores"] == pytest.approx(bundle.split_scores(score["task"])["validation"], rel=1e-5)


@pytest.mark.slow
def test_summaries_that_training_wrote_are_scored(work):
    pytest.importorskip("rouge_score")
    from support import writing

    made = writing.project(work, count=20, training=writing.QUICK)
    brief = msgspec.structs.replace(made.tasks[0], validation=0.25, test=None)
    path = work / "polyhead.toml"
    path.write_text(to_toml(msgspec.structs.replace(made, tasks=(brief,))))
    done = run("train", path)
    assert done.code == 0, done.err
    (score,) = told("evaluate", path)["scores"]
    kept = json.loads(next((work / "bundle" / "tasks").glob("brief/*/scores.json")).read_text())["splits"]["validation"]
    assert (score["split"], score["rows"]) == ("held out", 5) and score["scores"] == pytest.approx(kept, rel=1e-5)
    run("evaluate", path, "--errors", work / "wrong.csv").refuses("kind summarization", "leave out --errors")
    assert not (work / "wrong.csv").exists()
