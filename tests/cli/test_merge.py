"""`polyhead tasks merge`: the proof, the plan, what is saved, and bundles that cannot be merged."""

import hashlib
import json
import re
import shutil

import msgspec
import pytest

from bundle.test_merge import LAYERS_APART, LAYERS_MERGED, TASKS, TEXTS, TRUNK, deepened, path_of, single
from bundle.test_write import contents
from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.certify import checked
from polyhead.engine.probes import backend_here, precision_here
from polyhead.engine.session import Session
from polyhead.tasks.task import Task
from polyhead.testing import tiny_trunk
from polyhead.testing.tiny import tiny_part
from support.commands import run


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A folder with a bundle for each task, named like it; tests leave them as they are."""
    folder = tmp_path_factory.mktemp("alone")
    for name in TASKS:
        single(folder / name, name)
    return folder


def cells(line):
    return re.split(r"\s{2,}", line.strip())


def rows_after(done, title):
    """The rows of the table below a title, without its heading."""
    lines = done.out.splitlines()
    start = lines.index(next(line for line in lines if line.startswith(title))) + 2
    rows = []
    for line in lines[start:]:
        if not line:
            break
        rows.append(cells(line))
    return rows[1:]


def test_merging_proves_every_task_and_says_what_it_saves(alone, tmp_path):
    done = run("tasks", "merge", tmp_path / "made", *(alone / name for name in TASKS), "--json", tmp_path / "told.json")
    assert done.code == 0, done.err
    proofs = rows_after(done, "Proof")
    assert [row[0] for row in proofs] == list(TASKS)
    for (name, source, *rest), (_, tap, own) in zip(proofs, TASKS.values(), strict=True):
        assert source == str(alone / name)
        assert rest == [str(tap), str(own), "float32", str(len(TEXTS)), "every bit"]
    layers, flops, arrays = rows_after(done, "All tasks on one text of 32 tokens")
    saved = 100 * (1 - LAYERS_MERGED / LAYERS_APART)
    assert layers == ["layers run", str(LAYERS_APART), str(LAYERS_MERGED), f"{saved:.1f} %"]
    assert flops[0] == "MFLOP" and arrays[0] == "arrays"
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["separate"]["layer_evaluations"] == LAYERS_APART
    assert told["merged"]["layer_evaluations"] == LAYERS_MERGED
    assert [task["task"] for task in told["tasks"]] == list(TASKS)
    Bundle.open(tmp_path / "made").verify()


@pytest.mark.slow
def test_the_certificate_holds_the_bits_of_the_bundles_apart(alone, tmp_path):
    """Against digests computed here from each bundle's own outputs; and the bundle can be verified by it."""
    done = run("tasks", "merge", tmp_path / "made", alone / "a", alone / "a-b", "--json", tmp_path / "told.json")
    file = tmp_path / "made/certificates/0001-merge.json"
    assert done.out.endswith(f"certificate: {file}\n")
    found = json.loads(file.read_text())
    assert found == json.loads((tmp_path / "told.json").read_text())["certificate"]
    assert found["operation"] == "merge" and found["unchanged"]
    assert found["changed"] == {"a": [None, "v0001"], "a-b": [None, "v0001"]}
    for name in ("a", "a-b"):
        total = hashlib.sha256()
        for output in Session(alone / name, backend=backend_here(), precision="float32", deterministic=True).outputs(
            name, TEXTS
        ):
            total.update(f"<f4\0{output.shape}\0".encode() + output.tobytes())
        for side in ("before", "after"):
            assert found[side][name]["sha256"] == total.hexdigest()
            assert found[side][name]["probes"] == len(TEXTS)
    verified = checked(tmp_path / "made")
    assert not verified.findings and set(verified.equal) == {"a", "a-b"} and not verified.uncertified


def test_the_plan_is_the_one_that_inspect_draws(alone, tmp_path):
    merged = run("tasks", "merge", tmp_path / "made", alone / "a", alone / "a-b").out.splitlines()
    inspected = run("inspect", tmp_path / "made").out.splitlines()
    start = next(i for i, line in enumerate(merged) if line.startswith("Plan"))
    drawn = merged[start : merged.index("", start + 2)]
    assert len(drawn) >= 5
    assert drawn == inspected[inspected.index(drawn[0]) :][: len(drawn)]


@pytest.mark.slow
def test_bytes_saved_are_the_trunks_that_are_no_longer_there(alone, tmp_path):
    """By hand: two tasks that read all four layers of one trunk."""
    write_bundle(tmp_path / "x", TRUNK)
    single(tmp_path / "y", "a-b.cd", called="y")
    run("tasks", "merge", tmp_path / "made", alone / "a-b.cd", tmp_path / "y", "--json", tmp_path / "told.json")
    told = json.loads((tmp_path / "told.json").read_text())
    trunk = 4 * sum(array.size for array in TRUNK.arrays.values())
    assert told["separate"]["bytes"] - told["merged"]["bytes"] == trunk


def test_chosen_tasks_of_a_trained_bundle_are_taken_apart_and_put_together_again(home, tmp_path):
    whole = home / "bundle"
    assert run("tasks", "merge", tmp_path / "one", f"{whole}:names,mood,same").code == 0
    assert run("tasks", "merge", tmp_path / "two", f"{whole}:topics, urgency").code == 0
    done = run("tasks", "merge", tmp_path / "all", tmp_path / "one", tmp_path / "two", f"{whole}:alike")
    assert done.code == 0, done.err
    for name, raw in contents(tmp_path / "all").items():
        if name.startswith("certificates/"):
            continue
        if name == "bundle.json":
            assert json.loads(raw) == json.loads((whole / name).read_text())
        else:
            assert raw == (whole / name).read_bytes(), name
    assert {row[5] for row in rows_after(done, "Proof")} == {"12"}  # the whole of a small validation split
    assert list(Bundle.open(tmp_path / "all").tasks) == ["names", "mood", "same", "topics", "urgency", "alike"]


@pytest.mark.slow
def test_a_folder_may_have_a_colon_in_its_name(alone, tmp_path):
    odd = tmp_path / "odd:one"
    shutil.copytree(alone / "a", odd)
    assert run("tasks", "merge", tmp_path / "made", odd, f"{alone / 'a-b'}:a-b").code == 0
    assert run("tasks", "merge", tmp_path / "again", f"{odd}:a").code == 0
    assert list(Bundle.open(tmp_path / "again").tasks) == ["a"]


def test_an_empty_bundle_adds_nothing(alone, tmp_path):
    write_bundle(tmp_path / "empty", TRUNK)
    done = run("tasks", "merge", tmp_path / "made", tmp_path / "empty", alone / "a")
    assert done.code == 0, done.err
    assert [row[0] for row in rows_after(done, "Proof")] == ["a"]


def added(root, name, *, trained_with, probes):
    """A bundle of task 'a' under another name, with these notes and probes."""
    task = Task(name=name, kind="single_label", labels=("bad", "good"))
    bundle = write_bundle(root, TRUNK)
    path = path_of(task, 1, 2, bundle.digest)
    record = TaskRecord(task=task, path=path, trunk=bundle.digest, trained_with=trained_with)
    arrays = tiny_part(path, bundle.architecture, f"task:{name}", seed=3)
    bundle.add_task(record, arrays, scores={}, probes=probes, card="")
    return root


@pytest.mark.slow
def test_tasks_of_different_precisions_are_each_proven_in_their_own(alone, tmp_path):
    probes = [{"text": list(text)} for text in TEXTS]
    one, other = (
        added(tmp_path / name, name, trained_with={"numerics": {"precision": precision}}, probes=probes)
        for name, precision in (("f32", "float32"), ("b16", "bfloat16"))
    )
    done = run("tasks", "merge", tmp_path / "made", one, other, "--json", tmp_path / "told.json")
    assert done.code == 0, done.err
    proven = precision_here(Bundle.open(other).tasks["b16"], backend_here())  # bfloat16, where the processor has it
    assert [row[4] for row in rows_after(done, "Proof")] == ["float32", proven]
    assert "--precision" in done.out and "bfloat16, float32" in done.out
    after = json.loads((tmp_path / "told.json").read_text())["certificate"]["after"]
    total = hashlib.sha256()
    for output in Session(other, backend=backend_here(), precision=proven, deterministic=True).outputs("b16", TEXTS):
        total.update(f"<f4\0{output.shape}\0".encode() + output.tobytes())
    assert after["b16"]["sha256"] == total.hexdigest()
    run("predict", tmp_path / "made", stdin="sad").refuses("different precisions")
    assert run("predict", tmp_path / "made", "--precision", "float32", stdin="sad").code == 0


def test_a_task_without_probes_is_not_said_to_be_proven(alone, tmp_path):
    silent = added(tmp_path / "silent", "quiet", trained_with={}, probes=[])
    done = run("tasks", "merge", tmp_path / "made", alone / "a", silent)
    assert done.code == 0, done.err
    assert [row[6] for row in rows_after(done, "Proof")] == ["every bit", "not asked"]
    assert "without probes" in done.out


def test_one_bit_that_differs_in_the_merged_bundle_is_found_and_nothing_is_written(alone, tmp_path, monkeypatch):
    """The merged bundle alone gives out a bias with one bit turned."""
    part = Bundle.part

    def turned(self, name):
        arrays = part(self, name)
        if ".new-" in str(self.root) and name == "a-b":
            arrays["head.output.bias"] = arrays["head.output.bias"].copy()
            arrays["head.output.bias"].view("u4")[0] ^= 1 << 12
        return arrays

    monkeypatch.setattr(Bundle, "part", turned)
    done = run("tasks", "merge", tmp_path / "made", alone / "a", alone / "a-b")
    done.refuses("IsolationError", "Got: a-b.", "bits")
    assert not list(tmp_path.iterdir())


def test_answers_that_change_beside_other_tasks_are_found(alone, tmp_path, monkeypatch):
    """The outputs of a task asked alone are right, those of all tasks together are not."""
    predict = Session.predict

    def shifted(self, inputs, *, tasks=None, words=None):
        found = predict(self, inputs, tasks=tasks, words=words)
        if len(tasks) > 1:
            answers = {**found[0].answers, "a-b": {"value": 0.25}}
            found[0] = msgspec.structs.replace(found[0], answers=answers)
        return found

    monkeypatch.setattr(Session, "predict", shifted)
    run("tasks", "merge", tmp_path / "made", alone / "a", alone / "a-b").refuses("IsolationError", "Got: a-b.")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_merged_is_refused_and_both_sides_are_named(alone, tmp_path):
    other = single(tmp_path / "other", "a-b", trunk=tiny_trunk(layers=4, seed=7)).root
    clash = single(tmp_path / "clash", "a-b", called="A").root
    deep = deepened(tmp_path / "deep").root
    one = alone / "a"
    cases = [
        ([one, other], ["WrongTrunk", str(one), str(other), Bundle.open(one).digest, Bundle.open(other).digest]),
        ([one, f"{clash}:A"], ["BadName", str(one), str(clash), "case", "tasks add --as"]),
        ([one, deep], ["deeper than its trunk", str(one), str(deep), "a-b"]),
        ([one, f"{alone / 'a-b'}:x"], ["UnknownTask", str(alone / "a-b"), "Got: x", "a-b"]),
        ([one, one], ["twice", str(one)]),
        ([one, tmp_path / "nowhere"], ["no bundle", "nowhere"]),
        ([one, f"{tmp_path / 'nowhere'}:a"], ["no bundle", "nowhere"]),
    ]
    for sources, words in cases:
        run("tasks", "merge", tmp_path / "made", *sources).refuses(*words)
        assert not (tmp_path / "made").exists()
    run("tasks", "merge", one, alone / "a-b").refuses("is not empty", str(one))
    run("tasks", "merge", alone / "a-b", one, alone / "a-b").refuses("to be merged", str(alone / "a-b"))
    for wrong in (f"{one}:", f"{one}:,", ":a"):
        run("tasks", "merge", tmp_path / "made", wrong).refuses("names no task or no folder", code=2)
    run("tasks", "merge", tmp_path / "made").refuses("BUNDLE", code=2)
    assert Bundle.open(one).verify() is None
