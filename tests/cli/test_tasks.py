"""`polyhead tasks`: what each verb says and writes, and every way to call it wrongly."""

import json
import os
import shutil

import pytest

from engine.test_isolation import BY_NAME, add, certificates, flip, make, mood, tree
from polyhead.bundle.create import write_bundle
from polyhead.bundle.read import Bundle
from polyhead.bundle.write import add_tasks
from polyhead.engine.probes import backend_here, has_bfloat16
from polyhead.engine.session import Session
from polyhead.testing import tiny_path, tiny_trunk
from polyhead.testing.tiny import Pool
from support.commands import SOURCE, run, shell
from support.tiers import first_of
from support.writing_bundles import tiny_draft

NAMES = ("mood", "topics", "urgency", "names", "same", "alike")


@pytest.fixture
def bundle(home, tmp_path):
    """A copy of the trained bundle."""
    return shutil.copytree(home / "bundle", tmp_path / "bundle", ignore=shutil.ignore_patterns("certificates"))


@pytest.fixture
def other(bundle, tmp_path):
    """A bundle of the same trunk with a new task, and a `mood` with other labels."""
    trunk = Bundle.open(bundle).trunk()
    made = tmp_path / "other"
    write_bundle(made, trunk)
    for task in (mood("extra"), mood("mood", labels=("fine", "bad", "good"))):
        add(made, task, seed=4, trunk=trunk)
    return made


def told(done):
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_list_shows_every_task_in_columns(bundle):
    done = run("tasks", "list", bundle)
    heading, *rows = done.out.splitlines()
    assert done.code == 0
    assert heading.split() == [
        "task",
        "kind",
        "metric",
        "live",
        "versions",
        "labels",
        "score",
        "tap",
        "own",
        "layers",
        "size",
    ]
    assert [row.split()[0] for row in rows] == list(NAMES)
    assert len({len(line) for line in (heading, *rows)}) == 1
    found = told(run("tasks", "list", bundle, "--json", "-"))["tasks"]
    scores = json.loads((bundle / "tasks/mood/v0001/scores.json").read_text())
    assert found["mood"]["score"] == pytest.approx(scores["splits"]["test"]["accuracy"], rel=1e-5)
    folder = bundle / "tasks/mood/v0001"
    assert found["mood"] | {"score": 0} == {
        "kind": "single_label",
        "labels": ["bad", "good"],
        "version": "v0001",
        "pinned": False,
        "versions": ["v0001"],
        "metric": "accuracy",
        "score": 0,
        "tap": 2,
        "own_layers": 0,
        "bytes": sum(file.stat().st_size for file in folder.iterdir()),
        "probes": 12,
        "team": None,
    }


def test_list_shows_tap_own_layers_and_team_where_they_are_known(tmp_path):
    from engine.test_isolation import TRUNK, branch_path
    from polyhead.bundle.manifest import TaskRecord
    from polyhead.testing import tiny_part

    write_bundle(tmp_path / "b", TRUNK)
    task = mood("branch")
    path = branch_path(task, tap=1)
    record = TaskRecord(task=task, path=path, trunk=TRUNK.digest, trained_with={"team": "support"})
    Bundle.open(tmp_path / "b").add_task(
        record, tiny_part(path, TRUNK.architecture, "task:branch"), scores={}, probes=[], card=""
    )
    row = told(run("tasks", "list", tmp_path / "b", "--json", "-"))["tasks"]["branch"]
    assert (row["tap"], row["own_layers"], row["team"], row["score"]) == (1, 1, "support", None)
    assert run("tasks", "list", tmp_path / "b").out.splitlines()[1].split()[-1] == "support"


def test_bundle_without_tasks_is_listed_and_verified(tmp_path):
    write_bundle(tmp_path / "b", tiny_trunk())
    assert "no task yet" in run("tasks", "list", tmp_path / "b").out
    assert told(run("tasks", "list", tmp_path / "b", "--json", "-"))["tasks"] == {}
    done = run("tasks", "verify", tmp_path / "b")
    assert done.code == 0 and "every file is as it was written" in done.out


def test_added_tasks_come_byte_for_byte_and_go_without_a_trace(bundle, other):
    before = tree(bundle)
    done = run("tasks", "add", bundle, other, "extra")
    assert done.code == 0
    for words in ("added extra (v0001)", "6 other tasks: the same bits on 72 probes", "certificates/0001-add.json"):
        assert words in done.out
    for file in ("task.json", "part.safetensors", "probes.jsonl", "scores.json", "README.md"):
        copied = (bundle / "tasks/extra/v0001" / file).read_bytes()
        assert copied == (other / "tasks/extra/v0001" / file).read_bytes()
    found = told(run("tasks", "remove", bundle, "extra", "--json", "-"))
    assert found["certificate"]["changed"] == {"extra": ["v0001", None]}
    assert tree(bundle) == before
    assert "--json" not in found and certificates(bundle)[-1] == found["certificate"]


def test_all_tasks_of_the_other_bundle_are_added_or_none(bundle, other):
    before = (bundle / "bundle.json").read_bytes()
    run("tasks", "add", bundle, other).refuses("BadName", "mood", str(bundle), str(other))
    assert (bundle / "bundle.json").read_bytes() == before and not (bundle / "tasks/extra").exists()
    assert run("tasks", "remove", bundle, "mood", "alike").code == 0
    assert run("tasks", "add", bundle, other).code == 0
    assert list(Bundle.open(bundle).tasks) == ["topics", "urgency", "names", "same", "extra", "mood"]


def test_task_is_added_under_another_name(bundle, other):
    assert run("tasks", "add", bundle, other, "mood", "--as", "mood-2").code == 0
    opened = Bundle.open(bundle)
    assert opened.tasks["mood-2"].owner == "task:mood-2"
    texts = [("the lamp is late",), ("good",)]
    theirs = Session(other, deterministic=True).outputs("mood", texts)
    ours = Session(opened, deterministic=True).outputs("mood-2", texts)
    assert [a.tobytes() for a in ours] == [a.tobytes() for a in theirs]
    # also within one bundle: a second task to start from
    assert run("tasks", "add", bundle, bundle, "urgency", "--as", "urgency-2").code == 0
    run("tasks", "add", bundle, other, "--as", "x").refuses("one task", code=2)
    run("tasks", "add", bundle, other, "extra", "--as", "../x").refuses("BadName")
    run("tasks", "add", bundle, other, "extra", "--as", "mood").refuses("BadName", "mood")


def test_update_says_which_labels_and_which_answers_changed(bundle, other, tmp_path):
    to = tmp_path / "told.json"
    done = run("tasks", "update", bundle, other, "mood", "--json", to)
    assert done.code == 0
    assert "updated mood: v0001 -> v0002" in done.out
    assert "labels were bad, good; they are fine, bad, good" in done.out
    found = json.loads(to.read_text())
    changed = found["certificate"]["answers_changed"]["mood"]
    assert found["labels"] == {"before": ["bad", "good"], "after": ["fine", "bad", "good"]}
    assert f"{len(changed)} answers changed" in done.out
    first = changed[0]
    assert f"{first['before']['label']} -> {first['after']['label']}  {first['texts'][0]}" in done.out
    assert certificates(bundle)[-1]["answers_changed"]["mood"] == changed


def test_update_says_that_a_task_is_of_another_kind(bundle, other, tmp_path):
    """Its answers have another form for whoever reads them, and nothing said so."""
    to = tmp_path / "told.json"
    done = run("tasks", "update", bundle, other, "urgency", "--from-name", "mood", "--json", to)
    assert done.code == 0, done.err
    assert "kind was regression; it is single_label" in done.out
    assert "labels were none; they are fine, bad, good" in done.out
    assert json.loads(to.read_text())["kind"] == {"before": "regression", "after": "single_label"}
    done = run("tasks", "rollback", bundle, "urgency", "--json", to)  # which said nothing of them
    assert "kind was single_label; it is regression" in done.out
    assert "labels were fine, bad, good; they are none" in done.out
    told = json.loads(to.read_text())
    assert told["kind"] == {"before": "single_label", "after": "regression"}
    assert told["tasks"]["urgency"]["labels"] == {"before": ["fine", "bad", "good"], "after": []}
    again = run("tasks", "rollback", bundle, "urgency", "v0001")
    assert "live already" in again.out and "kind was" not in again.out


def test_ten_changed_answers_are_printed_and_all_are_kept(bundle, other):
    """Another number for each of 12 old probes and 5 new ones."""
    add(other, BY_NAME["urgency"], seed=8, trunk=Bundle.open(bundle).trunk())
    done = run("tasks", "update", bundle, other, "urgency")
    changed = certificates(bundle)[-1]["answers_changed"]["urgency"]
    assert len(changed) > 10
    assert f"{len(changed)} answers changed, of 17 probes of both versions" in done.out
    assert f"and {len(changed) - 10} more: see answers_changed" in done.out
    assert sum(" -> " in line and line.startswith("    ") for line in done.out.splitlines()) == 10


@pytest.mark.slow
@pytest.mark.parametrize("name", first_of(NAMES))
def test_update_from_a_task_of_another_name_and_rollback_restore_the_old_files(bundle, home, name):
    """Every kind: the same arrays under another name give the same answers, so none has changed."""
    before = tree(bundle)
    assert run("tasks", "add", bundle, home / "bundle", name, "--as", "again").code == 0
    done = run("tasks", "update", bundle, bundle, name, "--from-name", "again")
    assert done.code == 0 and "0 answers changed, of 12 probes" in done.out
    done = run("tasks", "rollback", bundle, name)
    assert f"rolled back {name}: v0002 -> v0001" in done.out
    assert run("tasks", "remove", bundle, "again").code == 0
    assert run("tasks", "verify", bundle).code == 0
    kept, _ = tree(bundle)
    pin = b',\n      "pinned": true'  # that somebody went back is what is left of it
    assert kept["bundle.json"].count(pin) == 1
    kept["bundle.json"] = kept["bundle.json"].replace(pin, b"")
    assert {key: raw for key, raw in kept.items() if "v0002" not in key} == before[0]


def test_rollback_goes_back_and_forward(bundle, other):
    for source, name in ((other, "mood"), (other, "extra")):
        update = ("tasks", "update", bundle, source, "mood", "--from-name", name)
        assert run(*update, "--allow-lost-labels").code == 0
    assert "v0003 -> v0002" in run("tasks", "rollback", bundle, "mood").out
    assert "v0002 -> v0001" in run("tasks", "rollback", bundle, "mood").out
    run("tasks", "rollback", bundle, "mood").refuses("no version before v0001")
    assert "v0001 -> v0003" in run("tasks", "rollback", bundle, "mood", "v0003").out
    assert "live already" in run("tasks", "rollback", bundle, "mood", "v0003").out
    run("tasks", "rollback", bundle, "mood", "v0009").refuses("v0009", "v0001, v0002, v0003")
    run("tasks", "rollback", bundle, "mood", "../x").refuses("v0001, v0002, v0003")
    run("tasks", "rollback", bundle, "mod").refuses("UnknownTask", "mood")
    assert Bundle.open(bundle).version("mood") == "v0003"


def test_old_version_that_was_edited_is_found_and_not_rolled_back_to(bundle, other):
    run("tasks", "verify", bundle)
    run("tasks", "update", bundle, other, "mood")
    file = bundle / "tasks/mood/v0001/task.json"
    file.write_bytes(file.read_bytes().replace(b'"bad"', b'"sad"'))
    done = run("tasks", "verify", bundle)
    assert done.code == 1 and "tasks/mood/v0001/task.json" in done.out
    run("tasks", "rollback", bundle, "mood").refuses("CorruptFile", "v0001/task.json")
    assert Bundle.open(bundle).version("mood") == "v0002"


def test_bundle_of_another_trunk_is_refused_with_both_digests(bundle, tmp_path):
    trunk = tiny_trunk(seed=5)
    foreign = tmp_path / "foreign"
    write_bundle(foreign, trunk)
    add(foreign, mood("extra"), trunk=trunk)
    add(foreign, mood("mood"), trunk=trunk)
    digests = Bundle.open(bundle).digest, Bundle.open(foreign).digest
    before = tree(bundle)
    run("tasks", "add", bundle, foreign, "extra").refuses("WrongTrunk", *digests)
    run("tasks", "add", bundle, foreign, "extra", "--as", "new").refuses("WrongTrunk", *digests)
    run("tasks", "update", bundle, foreign, "mood").refuses("WrongTrunk", *digests)
    assert tree(bundle) == before


def test_unknown_names_and_folders_are_refused(bundle, other, tmp_path):
    before = tree(bundle)
    run("tasks", "add", bundle, other, "exta").refuses("UnknownTask", "exta", "extra")
    run("tasks", "add", bundle, other, "exta", "--as", "x").refuses("UnknownTask", "exta", "extra")
    run("tasks", "update", bundle, other, "extra").refuses("UnknownTask", "extra", "mood")
    run("tasks", "update", bundle, other, "topics").refuses("UnknownTask", "topics", "extra")
    run("tasks", "update", bundle, other, "mood", "--from-name", "x").refuses("UnknownTask", "Got: x", "extra")
    run("tasks", "remove", bundle, "mood", "moood").refuses("UnknownTask", "moood", "mood")
    run("tasks", "remove", bundle).refuses(code=2)
    for words in (["list"], ["verify"], ["remove"], ["rollback"]):
        names = ["mood"] if words[0] in ("remove", "rollback") else []
        run("tasks", *words, tmp_path, *names).refuses("no bundle")
    run("tasks", "add", bundle, tmp_path).refuses("no bundle")
    run("tasks", "add", tmp_path, other).refuses("no bundle")
    write_bundle(tmp_path / "empty", Bundle.open(bundle).trunk())
    run("tasks", "add", bundle, tmp_path / "empty").refuses("has no task", code=2)
    assert tree(bundle) == before and not (tmp_path / "certificates").exists()


def test_a_packed_task_and_tasks_after_a_colon_are_answered_with_the_command_to_run(bundle, other, tmp_path):
    packed = tmp_path / "mood.tar"
    assert run("tasks", "pack", bundle, "mood", "-o", packed).code == 0
    before = tree(bundle)
    for verb in ("add", "update"):
        refused = run("tasks", verb, bundle, packed, "mood")
        refused.refuses(f"curl -T {packed} URL/v1/tasks/NAME", "the folder of a bundle", code=2)
        for names, meant in ((":extra", "extra"), (":extra,mood", "extra mood"), (":", "NAMES")):
            refused = run("tasks", verb, bundle, f"{other}{names}")
            refused.refuses(f"polyhead tasks {verb} {bundle} {other} {meant}", code=2)
    assert tree(bundle) == before
    (tmp_path / "a:b").symlink_to(other)
    assert run("tasks", "add", bundle, tmp_path / "a:b", "extra").code == 0


@pytest.fixture
def writers(tmp_path):
    """A bundle with a classification and a task that writes, and another with two tasks that write."""
    write_bundle(tmp_path / "one", tiny_trunk())
    add(tmp_path / "one", mood("mood"), seed=4, trunk=tiny_trunk())
    add_tasks(tmp_path / "one", [tiny_draft(tiny_trunk(), "brief", probes=["a good lamp"])])
    write_bundle(tmp_path / "two", tiny_trunk())
    drafts = [tiny_draft(tiny_trunk(), name, seed=seed, probes=["late"]) for name, seed in (("brief", 2), ("short", 3))]
    add_tasks(tmp_path / "two", drafts)
    return tmp_path / "one", tmp_path / "two"


def arrays(root, name):
    return {leaf: array.tobytes() for leaf, array in Bundle.open(root).part(name).items()}


def test_tasks_that_write_are_added_updated_and_rolled_back_with_others(writers, tmp_path):
    one, two = writers
    done = run("tasks", "add", one, two, "short")
    assert done.code == 0 and "added short (v0001)" in done.out and "2 other tasks: the same bits on" in done.out
    assert arrays(one, "short") == arrays(two, "short")
    run("tasks", "add", one, two).refuses("BadName", "brief")
    before = arrays(one, "brief")
    done = run("tasks", "update", one, two, "brief", "--from-name", "short")
    assert done.code == 0 and "updated brief: v0001 -> v0002" in done.out and arrays(one, "brief") != before
    other = shutil.copytree(one, tmp_path / "other")
    add(other, mood("mood"), seed=5, trunk=tiny_trunk(), replace=True)
    done = run("tasks", "update", one, other, "brief", "mood")
    assert "updated brief: v0002 -> v0003" in done.out and "updated mood: v0001 -> v0002" in done.out
    assert "v0003 -> v0001" in run("tasks", "rollback", one, "brief", "v0001").out and arrays(one, "brief") == before
    found = told(run("tasks", "remove", one, "brief", "mood", "--json", "-"))
    assert found["certificate"]["changed"] == {"mood": ["v0002", None], "brief": ["v0001", None]}
    assert set(told(run("tasks", "list", one, "--json", "-"))["tasks"]) == {"short"}


def test_an_old_version_of_a_decoder_that_was_touched_is_found(writers):
    one, two = writers
    run("tasks", "update", one, two, "brief")
    assert run("tasks", "verify", one).code == 0
    flip(one / "tasks/brief/v0001/part.safetensors", 3000)
    done = run("tasks", "verify", one)
    assert done.code == 1 and "DIFFERS  tasks/brief/v0001/part.safetensors" in done.out


def test_verify_names_what_was_touched_and_ends_with_1(bundle, tmp_path):
    assert run("tasks", "verify", bundle).code == 0
    for name in ("trunk/weights.safetensors", "tasks/names/v0001/probes.jsonl", "certificates/0001-verify.json"):
        flip(bundle / name, 40)
        to = tmp_path / "told.json"
        done = run("tasks", "verify", bundle, "--json", to)
        assert done.code == 1 and f"DIFFERS  {name}" in done.out, done.out
        assert name in [finding["file"] for finding in json.loads(to.read_text())["findings"]]
        assert "restore what is named above from a copy of the bundle" in done.out
        flip(bundle / name, 40)
    done = run("tasks", "verify", bundle)
    assert done.code == 0 and "6 tasks: the bits of the certificates on 72 probes" in done.out


@pytest.mark.slow
def test_verify_says_when_the_last_change_left_no_certificate(bundle):
    assert "had no certificate yet" in run("tasks", "verify", bundle).out
    add(bundle, mood("extra"), trunk=Bundle.open(bundle).trunk(), probes=[])
    done = run("tasks", "verify", bundle)
    assert done.code == 0 and "certificates/0002-verify.json" in done.out
    for words in ("the last change had left no certificate", "not asked, so by their files alone: extra"):
        assert words in done.out
    assert "certificate" not in run("tasks", "verify", bundle).out.replace("the bits of the certificates", "")


def test_tasks_without_probes_are_named_and_not_claimed(bundle, other, tmp_path):
    trunk = Bundle.open(bundle).trunk()
    add(bundle, mood("silent"), trunk=trunk, probes=[])
    done = run("tasks", "add", bundle, other, "extra")
    assert "6 other tasks: the same bits on 72 probes" in done.out
    assert "not asked, so by their files alone: silent" in done.out
    write_bundle(tmp_path / "new", trunk)
    assert "nothing to prove" in run("tasks", "add", tmp_path / "new", other, "extra").out


def test_long_texts_are_shortened_and_tags_are_shown(bundle):
    """A tagging task with other arrays: spans are printed with the words that they cover."""
    from polyhead.tasks.task import Task

    trunk = Bundle.open(bundle).trunk()
    record = Bundle.open(bundle).tasks["names"]
    assert isinstance(record.task, Task)
    probes = [{"text": ["the lamp is broken " * 30]}, *Bundle.open(bundle).probes("names")]
    path = tiny_path(record.task, trunk, pool=Pool())
    add(bundle, record.task, seed=77, path=path, trunk=trunk, probes=probes, replace=True)
    done = run("tasks", "rollback", bundle, "names")
    assert "->" in done.out and ("product '" in done.out or "person '" in done.out)
    changed = certificates(bundle)[-1]["answers_changed"]["names"]
    assert max(len(one["texts"][0]) for one in changed) == 80
    assert all("score" not in span for one in changed for span in one["after"]["spans"])


def test_commands_work_where_torch_is_missing(bundle, other):
    """And every other fast backend: the reference answers; its certificates are of other numerics."""
    without = "import sys\nfor name in ('torch', 'openvino', 'onnxruntime'):\n    sys.modules[name] = None"
    run("tasks", "verify", bundle)
    done = shell(["tasks", "add", bundle, other, "extra"], before=without)
    assert done.code == 0, done.err
    first, second = certificates(bundle)
    assert first["numerics"]["backend"] == backend_here() != second["numerics"]["backend"] == "reference"
    assert second["numerics"]["precision"] == "float32"
    assert first["after"]["mood"]["sha256"] != second["after"]["mood"]["sha256"]
    assert shell(["tasks", "verify", bundle], before=without).code == 0
    done = run("tasks", "verify", bundle)
    assert done.code == 0 and "not seen by a certificate made under these numerics: extra" in done.out


@pytest.mark.slow
@pytest.mark.parametrize("backend", first_of(["openvino", "reference"]))
def test_tasks_trained_in_bfloat16_are_proven_where_torch_is_missing(tmp_path, backend):
    """In float32 where that is all there is; the certificate says so."""
    missing = ["torch", "onnxruntime", *(["openvino"] if backend == "reference" else [])]
    if backend == "openvino":
        pytest.importorskip("openvino")
    root = make(tmp_path / "b", "mood", "names", precision="bfloat16")
    done = shell(
        ["tasks", "remove", root, "names"], before=f"import sys\nfor name in {missing}:\n    sys.modules[name] = None"
    )
    assert done.code == 0, done.err
    (certificate,) = certificates(root)
    assert certificate["numerics"]["backend"] == backend
    precision = "as trained" if has_bfloat16(backend) else "float32"
    assert certificate["numerics"]["precision"] == precision
    assert not has_bfloat16("reference")


def test_bundle_in_a_folder_that_cannot_be_written_is_refused(bundle, other):
    if os.geteuid() == 0:
        (bundle / "certificates").write_text("a file in the way")
        run("tasks", "add", bundle, other, "extra").refuses("no place for its certificate")
        return
    bundle.chmod(0o500)
    try:
        run("tasks", "add", bundle, other, "extra").refuses("no place for its certificate")
    finally:
        bundle.chmod(0o700)


def test_listing_does_not_load_torch(bundle):
    said = "import atexit, sys\natexit.register(lambda: print('torch' in sys.modules, file=sys.stderr))"
    done = shell(["tasks", "list", bundle], before=said)
    assert done.code == 0 and done.err.strip() == "False", SOURCE


def test_an_update_does_not_lose_labels_unless_that_is_said(bundle, other):
    """Three labels became two with a line after the fact."""
    assert run("tasks", "update", bundle, other, "mood").code == 0
    update = ("tasks", "update", bundle, other, "mood", "--from-name", "extra")
    run(*update).refuses("1 of the 3 labels of its live version v0002", "fine", "--allow-lost-labels")
    assert Bundle.open(bundle).version("mood") == "v0002"
    assert "v0002 -> v0003" in run(*update, "--allow-lost-labels").out
