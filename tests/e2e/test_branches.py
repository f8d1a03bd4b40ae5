"""A project of pooled tasks and branches, by the commands: trained, killed, resumed, evaluated, answered, added to."""

import itertools
import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from polyhead import Session
from polyhead.bundle.read import Bundle
from polyhead.deep.loop import fit
from polyhead.engine.inputs import input_of
from polyhead.plan import TRUNK, Layers, cost
from polyhead.project.strategies.branch import private_layers, tap_of
from polyhead.testing import tiny_trunk
from support import tiny_project
from support.commands import SOURCE, run, shell

DEPTH, TESTS = 3, Path(__file__).parents[1]
HEAD = """
bundle = "bundle"

[trunk]
name = "trunk"

[strategy]
kind = "branch"
hidden = 8

[allocation]
rule = "greedy"
c = 0.0

[training]
seed = 5
epochs = 3
batch = 8
learning_rate = 0.002
precision = "float32"
"""
MESSAGES = """train = "data/messages-train.jsonl"
validation = "data/messages-validation.jsonl"
test = "data/messages-test.jsonl"
"""
TASKS = {
    "topics": f"""
[[tasks]]
name = "topics"
kind = "multi_label"
labels = ["order", "bill", "card"]
label = "topics"
{MESSAGES}
[tasks.strategy]
kind = "pooled"
of = 2
heads = 2
hidden = 8
""",
    "mood": f"""
[[tasks]]
name = "mood"
kind = "single_label"
labels = ["bad", "good"]
label = "mood"
{MESSAGES}
""",
    "urgency": f"""
[[tasks]]
name = "urgency"
kind = "regression"
range = [0.0, 1.0]
label = "urgency"
{MESSAGES}
[tasks.strategy]
kind = "branch"
layers = 1
tap = 0
positions = "mean"
""",
    "names": f"""
[[tasks]]
name = "names"
kind = "tagging"
labels = ["O", "B-product", "B-person"]
tokens = "tokens"
tags = "tags"
{MESSAGES}
[tasks.strategy]
kind = "branch"
layers = 2
students = [1]
""",
    "alike": """
[[tasks]]
name = "alike"
kind = "regression"
range = [0.0, 3.0]
label = "alike"
pair = "separate"
text_b = "text_b"
train = "data/pairs-train.jsonl"
validation = "data/pairs-validation.jsonl"

[tasks.strategy]
kind = "branch"
layers = 1
""",
}
TEXTS = ("the lamp is bad", "ben is happy today", "please refund the broken kettle, anna")
PAIR = ("good lamp", "the lamp is bad and late")


def home_in(folder):
    """A trunk of three layers and the data, to be linked into folders of projects."""
    tiny_project.write_trunk(folder / "trunk", tiny_trunk(layers=DEPTH))
    tiny_project.write_data(folder / "data")
    return folder


def written(home, folder, *names, head=HEAD):
    """polyhead.toml over these tasks, beside the trunk and the data."""
    folder.mkdir(exist_ok=True)
    for name in ("trunk", "data"):
        if not (folder / name).exists():
            (folder / name).symlink_to(home / name)
    path = folder / "polyhead.toml"
    path.write_text(head + "".join(TASKS[name] for name in names or TASKS))
    return path


def contents(bundle):
    """Every file of a bundle by its place, but locks, and certificates, which say how it came about."""
    return {
        str(file.relative_to(bundle)): file.read_bytes()
        for file in sorted(bundle.rglob("*"))
        if file.is_file() and "lock" not in file.name and "certificates" not in file.parts
    }


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return home_in(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def trained(home, tmp_path_factory):
    """The project trained by one command: its folder, and what was printed."""
    folder = tmp_path_factory.mktemp("trained")
    done = run("train", written(home, folder))
    assert done.code == 0, done.err
    return folder, done


@pytest.fixture(scope="module")
def bundle(trained):
    return trained[0] / "bundle"


def rows(folder, kind, split):
    return map(json.loads, (folder / f"data/{kind}-{split}.jsonl").read_text().splitlines())


def depths(session, names):
    """D and the sum of private layers of these tasks, read off their paths."""
    paths = [session.records[name].path for name in names]
    return max(map(tap_of, paths)), sum(len(private_layers(path)) for path in paths)


@pytest.mark.slow
def test_one_command_trains_pooled_tasks_and_branches_into_one_bundle(trained, bundle):
    opened = Bundle.open(bundle)
    opened.verify()
    assert tuple(sorted(opened.tasks)) == tuple(sorted(TASKS))
    shapes = {name: (tap_of(r.path), len(private_layers(r.path))) for name, r in opened.tasks.items()}
    assert shapes["topics"] == (DEPTH, 0) and shapes["urgency"] == (0, 1) and shapes["alike"] == (2, 1)
    assert shapes["names"] in [(1, 1), (1, 2)] and sum(shapes["mood"]) == DEPTH
    said = trained[1].out + trained[1].err
    folder = trained[0]
    texts = {row["text"] for split in ("train", "validation", "test") for row in rows(folder, "messages", split)}
    sides = {
        row[side]
        for split in ("train", "validation")
        for row in rows(folder, "pairs", split)
        for side in ("text", "text_b")
    }
    assert f"encoded {len(texts | sides)} inputs once" in said
    tap, private = shapes["mood"]
    assert f"; {private} private {'layer' if private == 1 else 'layers'} above tap {tap}" in said


def test_evaluate_prints_the_scores_that_training_wrote(trained, bundle):
    folder = trained[0]
    done = run("evaluate", folder / "polyhead.toml", "--json", folder / "scores.json")
    assert done.code == 0, done.err
    rows = {row["task"]: row for row in json.loads((folder / "scores.json").read_text())["scores"]}
    assert set(rows) == set(TASKS)
    for name, row in rows.items():
        wrote = Bundle.open(bundle).scores(name)["splits"]
        assert row["split"] == ("validation" if name == "alike" else "test")
        assert row["scores"] == pytest.approx(wrote[row["split"]], abs=1e-4), name


def test_predict_answers_every_kind_with_receipts(bundle):
    lines = [json.dumps({"text": text}) for text in TEXTS] + [json.dumps({"text": PAIR[0], "text_b": PAIR[1]})]
    done = run("predict", bundle, stdin="\n".join(lines) + "\n")
    assert done.code == 0, done.err
    *texts, pair = done.rows
    session = Session(bundle)
    single = ("topics", "mood", "urgency", "names")
    tap, own = depths(session, single)
    assert tap == DEPTH  # the pooled task reads the trunk's end
    for row in texts:
        assert set(row["answers"]) == set(single)
        assert (row["receipt"]["passes"], row["receipt"]["layers"]) == (1, tap + own)
    assert set(pair["answers"]) == {"alike"}
    assert (pair["receipt"]["passes"], pair["receipt"]["layers"]) == (2, 2 * (2 + 1))
    assert {span["label"] for row in texts for span in row["answers"]["names"]["spans"]} <= {
        "product", "person"
    }  # fmt: skip


SINGLE = ("topics", "mood", "urgency", "names")


@pytest.fixture(scope="module")
def opened(bundle):
    """One session for all subsets of tasks: what it is asked before adds nothing to what it runs."""
    return Session(bundle)


@pytest.mark.parametrize(
    "names", [n for size in range(1, 5) for n in itertools.combinations(SINGLE, size)], ids=",".join
)
def test_only_the_layers_of_asked_tasks_run_and_the_receipt_counts_them(opened, names):
    """D + sum(l) of the asked tasks, by three counts: paths, `polyhead.plan.cost`, and layers run by the backend."""
    session, before = opened, opened.backend.layers_run
    results = session.predict([TEXTS[0]], tasks=names)
    tap, own = depths(session, names)
    counted = cost.layer_evaluations(session.plan(names))
    assert results[0].receipt.layers == tap + own == counted == session.backend.layers_run - before
    assert set(results[0].answers) == set(names)
    owners = {step.node.weights for step in session.plan(names).steps if isinstance(step.node, Layers)}
    assert owners <= {TRUNK, *(f"task:{name}" for name in names)}


def test_asked_alone_or_together_a_task_answers_the_same_bits(bundle):
    session = Session(bundle, deterministic=True)
    together = session.predict([*TEXTS, PAIR])
    for name in TASKS:
        alone = session.predict([*TEXTS, PAIR], tasks=[name])
        assert any(name in result.answers for result in alone)
        for one, other in zip(alone, together, strict=True):
            assert one.answers.get(name) == other.answers.get(name)


def test_the_reference_backend_agrees(bundle):
    torch, reference = Session(bundle), Session(bundle, backend="reference")
    for name in TASKS:
        inputs = [PAIR] if name == "alike" else [(text,) for text in TEXTS]
        for one, other in zip(torch.outputs(name, inputs), reference.outputs(name, inputs), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4)


def test_training_again_trains_nothing(trained, bundle):
    before = contents(bundle)
    done = run("train", trained[0] / "polyhead.toml")
    assert done.code == 0 and "nothing to train" in done.out + done.err
    assert contents(bundle) == before


@pytest.mark.slow
def test_same_seed_same_bytes_of_the_whole_bundle_and_another_seed_others(home, bundle, tmp_path):
    for place, seed in (("same", 5), ("other", 6)):
        done = run("train", written(home, tmp_path / place), "--seed", seed)
        assert done.code == 0, done.err
    assert contents(tmp_path / "same" / "bundle") == contents(bundle)
    for name in TASKS:
        assert tiny_project.part_bytes(tmp_path / "other" / "bundle", name) != tiny_project.part_bytes(bundle, name), (
            name
        )


KILL = """
import os, signal
import conftest, pytest, torch
from support import head_search
from support.encoding import encode_by_torch
head_search.shorten(pytest.MonkeyPatch())
encode_by_torch(pytest.MonkeyPatch())
torch.set_num_threads(1)
from polyhead.deep.loop import fit
fit.SAVE_SECONDS = 0.0
saved, count = fit.TrainingLoop.save, [0]
def save(run):
    saved(run)
    count[0] += 1
    if count[0] == 5:
        os.kill(os.getpid(), signal.SIGKILL)
fit.TrainingLoop.save = save
"""


@pytest.mark.slow
def test_training_killed_and_interrupted_ends_in_the_bundle_of_the_uninterrupted_run(
    home, bundle, tmp_path, monkeypatch
):
    """Killed outright in the depth search, then interrupted in a student: each run goes on after the last epoch."""
    path, root = written(home, tmp_path / "killed"), tmp_path / "killed" / "bundle"
    done = shell(["train", path], before=KILL, env={"PYTHONPATH": os.pathsep.join((str(SOURCE), str(TESTS)))})
    assert done.code == -signal.SIGKILL, done.err
    assert tuple(Bundle.open(root).tasks) == ("topics",)  # three epochs; two more in the search
    saved, trained = fit.TrainingLoop.save, []

    def save(this):
        saved(this)
        trained.append(this.checkpoint.name)
        if "student" in this.checkpoint.name:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(fit, "SAVE_SECONDS", 0.0)
        patched.setattr(fit.TrainingLoop, "save", save)
        assert run("train", path).code != 0
    # Of the search 3 + 2 x 2 epochs are 2 done; urgency and the teacher of names have 3 each; then a student begins.
    assert len(trained) == 5 + 3 + 3 + 1 and tuple(Bundle.open(root).tasks) == ("topics",)
    last = run("train", path)
    assert last.code == 0, last.err
    assert "encoded 0 inputs once" in last.out + last.err
    assert contents(root) == contents(bundle)


@pytest.mark.slow
def test_a_branch_added_to_a_bundle_of_another_team_proves_that_the_others_answer_as_before(home, bundle, tmp_path):
    """The project file knows nothing of the tasks that are there; their answers are asked for before and after."""
    shutil.copytree(bundle, tmp_path / "bundle")
    for name in ("mood", "urgency"):
        done = run("tasks", "remove", tmp_path / "bundle", name)
        assert done.code == 0, done.err
    before = {file.name for file in (tmp_path / "bundle" / "certificates").glob("*.json")}
    bits = answers(tmp_path / "bundle", ("topics", "names", "alike"))
    done = run("train", written(home, tmp_path, "urgency"), "--retrain", "urgency")
    assert done.code == 0, done.err
    assert "urgency: 3 other tasks answer their probes as before" in done.out + done.err
    (new,) = {f.name for f in (tmp_path / "bundle" / "certificates").glob("*.json")} - before
    said = json.loads((tmp_path / "bundle" / "certificates" / new).read_text())
    assert new.endswith("-train.json") and said["unchanged"] is True
    assert set(said["changed"]) == {"urgency"} and said["changed"]["urgency"][0] is None
    assert set(said["before"]) == {"topics", "names", "alike"}
    assert all(said["after"][name]["sha256"] == one["sha256"] for name, one in said["before"].items())
    assert all(one["probes"] > 0 for one in said["before"].values())
    assert answers(tmp_path / "bundle", ("topics", "names", "alike")) == bits
    assert tiny_project.part_bytes(tmp_path / "bundle", "urgency") == tiny_project.part_bytes(bundle, "urgency")
    done = run("tasks", "verify", tmp_path / "bundle")
    assert done.code == 0, done.out + done.err


def test_a_branch_added_to_its_own_project_proves_that_the_trained_ones_answer_as_before(home, tmp_path):
    done = run("train", written(home, tmp_path, "urgency"), "--retrain", "urgency")
    assert done.code == 0 and not list((tmp_path / "bundle").glob("certificates/*.json"))
    done = run("train", written(home, tmp_path, "urgency", "alike"))
    assert done.code == 0, done.err
    assert "alike: one other task of the bundle answers its probes as before" in done.out + done.err
    (file,) = (tmp_path / "bundle").glob("certificates/*.json")
    said = json.loads(file.read_text())
    assert set(said["before"]) == {"urgency"} and set(said["changed"]) == {"alike"}


def answers(root, names):
    """The bits of these tasks' outputs, in deterministic mode."""
    session = Session(root, deterministic=True)
    return {
        name: [o.tobytes() for o in session.outputs(name, [PAIR] if name == "alike" else [(t,) for t in TEXTS])]
        for name in names
    }


def test_a_task_removed_takes_its_layers_with_it(bundle, tmp_path):
    """The deepest tap is what the tasks that are left need: a bundle never runs layers for tasks that are gone."""
    shutil.copytree(bundle, tmp_path / "bundle")
    done = run("tasks", "remove", tmp_path / "bundle", "topics")
    assert done.code == 0, done.err
    session = Session(tmp_path / "bundle")
    text, _ = input_of("the lamp is bad", where="")
    (result,) = session.predict([text])
    tap, own = depths(session, ("mood", "urgency", "names"))
    assert tap < DEPTH and result.receipt.layers == tap + own == session.backend.layers_run


def test_a_branch_that_the_trunk_has_no_room_for_is_refused_before_anything_is_read(home, tmp_path):
    path = written(home, tmp_path, "urgency")
    path.write_text(path.read_text().replace("tap = 0", "tap = 3"))
    run("train", path).refuses("urgency", "deeper than the trunk", "together at most 3")
    assert not list(tmp_path.rglob("*.bin"))


def test_the_options_of_a_run_are_a_file_that_allocate_reads(trained):
    done = run("allocate", trained[0] / "bundle-cache" / "options.json", "--c", "1000")
    assert done.code == 0, done.err
    for name in ("mood", "urgency", "names", "alike"):
        assert name in done.out
