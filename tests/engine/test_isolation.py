"""Certified changes: other tasks keep their bits, or the change is undone; certificates, and verifying them again."""

import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bundle.test_write import contents
from polyhead import certify as isolation
from polyhead.bundle import files
from polyhead.bundle.create import write_bundle
from polyhead.bundle.format import LARGEST_JSON
from polyhead.bundle.live_versions import Probe
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.merge import copy_tasks
from polyhead.bundle.read import Bundle
from polyhead.bundle.remove import unlist
from polyhead.certify import Certificate, ProbeRunner, certified, checked, verify
from polyhead.certify import proof as certify
from polyhead.certify.certificate import Ledger, read_certificate
from polyhead.cli.bundle_lines import answers_changed as answers_changed_lines
from polyhead.engine import probes as answers
from polyhead.engine.probes import backend_here, probe_outputs, readable_probes
from polyhead.engine.session import Session
from polyhead.errors import BundleError, CorruptFile, IsolationError, UnknownTask
from polyhead.plan import Embed, Head, Layers, Pool
from polyhead.plan import Path as TaskPath
from polyhead.tasks.agreement import AnswerChange
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.testing import tiny_part, tiny_path, tiny_tasks, tiny_trunk
from polyhead.text.question import Question
from support.disk_failures import FullDisk, run_forking
from support.precisions import HAS_BFLOAT16

TRUNK = tiny_trunk()
TEXTS = ("where is my order 12?", "the lamp was late and broken", "good", "happy ben, sad anna!", "ünïcode ☃")
PAIRS = (("is the lamp good?", "the lamp is bad"), ("anna", "ben is late today"))
QUESTIONS = (
    Question(text="is the lamp good?", options=("not good", "good", "the kettle is late")),
    Question(text="when was it late?", options=("today", "monday"), context="the order was late on monday"),
)
ATTENTION = Pool(layers="mean", of=2, positions="attention", part="task:x", heads=2)
BY_NAME = {task.name: task for task in tiny_tasks()}


def probes_of(task):
    if kind_of(task).per_option:
        return [Probe.of(question).line() for question in QUESTIONS]
    if task.pair != "none":
        return [{"text": list(pair)} for pair in PAIRS]
    probes = [{"text": [text]} for text in TEXTS]
    if kind_of(task).per_word:
        probes[1]["words"] = [[0, 3], [4, 8], [9, 12]]
    return probes


def add(root, task, *, seed=0, path=None, probes=None, trunk=TRUNK, replace=False, precision="float32"):
    """A task with drawn arrays and probes of its own, written without a certificate."""
    path = path or tiny_path(task, trunk, pool=ATTENTION)
    return Bundle.open(root).add_task(
        TaskRecord(task=task, path=path, trunk=trunk.digest, trained_with={"numerics": {"precision": precision}}),
        tiny_part(path, trunk.architecture, f"task:{task.name}", seed=seed),
        scores={"splits": {"test": {"accuracy": 0.5}}},
        probes=probes_of(task) if probes is None else probes,
        card=f"# {task.name}\n",
        replace=replace,
    )


def make(root, *names, seed=0, trunk=TRUNK, **options):
    """A bundle of tiny tasks; `seed` gives other parts."""
    write_bundle(root, trunk)
    for name in names:
        add(root, BY_NAME[name], seed=seed + len(name), trunk=trunk, **options)
    return root


def mood(name, labels=("bad", "good")):
    return Task(name=name, kind="single_label", labels=labels)


def copying(source, *names, root, replace=False):
    """What `polyhead tasks add` and `update` do."""

    def act():
        for name in names:
            copy_tasks(Bundle.open(source), [name], Bundle.open(root), replace=replace)

    return act


def tree(root):
    """Every file and folder but the certificates."""
    folders = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir()}
    kept = {name: raw for name, raw in contents(root).items() if not name.startswith("certificates/")}
    return kept, folders - {"certificates"}


def certificates(root):
    return [json.loads(path.read_text()) for path in sorted((root / "certificates").glob("*.json"))]


def flip(path, place=-1):
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.write_bytes(bytes(raw))


@pytest.fixture
def unflushed(monkeypatch):
    """Flushing is what takes the time where hundreds of versions are written; it decides after a power cut only."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def test_adding_leaves_a_certificate_that_says_what_was_proven(root, other):
    certificate = certified(root, "add", copying(other, "topics", root=root), changing=["topics"])
    assert certificate.changed == {"topics": (None, "v0001")}
    assert certificate.unchanged
    assert certificate.before == {n: a for n, a in certificate.after.items() if n != "topics"}
    assert list(certificate.after) == ["mood", "names", "alike", "topics"]
    lines = Bundle.open(root).lines
    for name, answered in certificate.after.items():
        assert answered.record == lines[name].record
        assert answered.probes == len(probes_of(BY_NAME[name]))
    assert certificate.bundle == hashlib.sha256((root / "bundle.json").read_bytes()).hexdigest()
    file = root / "certificates" / "0001-add.json"
    assert msgspec.json.decode(file.read_bytes(), type=Certificate) == certificate
    for key in ("backend", backend_here(), "threads", "processor", "deterministic", "precision"):
        assert certificate.numerics[key]


def test_digests_are_those_of_the_outputs_that_a_session_gives(root):
    """Computed again here from `Session.outputs`, one task at a time."""
    session, certificate = (
        Session(root, backend=backend_here(), precision="float32", deterministic=True),
        certified(root, "train", lambda: None, changing=[]),
    )
    for name, answered in certificate.after.items():
        probes = session.bundle.probes(name)
        words = [np.array(p["words"], np.int32) if "words" in p else None for p in probes]
        total = hashlib.sha256()
        for output in session.outputs(name, [tuple(p["text"]) for p in probes], words=words):
            total.update(f"{output.dtype.str}\0{output.shape}\0".encode() + output.tobytes())
        assert answered.sha256 == total.hexdigest(), name


def branch_path(task, *, tap):
    """The task's own layers from `tap` on."""
    owner, width = f"task:{task.name}", kind_of(task).width(task)
    shared = [Layers(start=0, stop=tap)] if tap else []
    nodes = [Embed(trunk=TRUNK.digest), *shared, Layers(start=tap, stop=2, weights=owner), Pool()]
    return TaskPath(nodes=(*nodes, Head(kind=task.kind, width=width, part=owner, hidden=8)))


def test_tasks_answered_together_have_the_bits_that_each_has_alone(tmp_path):
    """Shared texts, pairs, given words, windows, private layers; each against `Session.outputs`."""
    root = make(tmp_path / "b", *BY_NAME)
    texts = [*TEXTS, "the kettle is broken and my phone was late . " * 8]
    long = msgspec.structs.replace(BY_NAME["topics"], name="long", long_texts="windows")
    add(root, long, seed=3)
    add(root, msgspec.structs.replace(BY_NAME["alike"], name="near"), seed=4)
    (one, two), (three, four) = PAIRS
    pairs = (*PAIRS, (two, one), (one, three), (four, four), (two, texts[-1]))
    for tap in (0, 1):
        task = mood(f"own{tap}")
        add(root, task, seed=tap, path=branch_path(task, tap=tap))
    session = Session(root, deterministic=True)
    chance, asked = np.random.default_rng(0), {}
    for name, record in session.records.items():
        inputs = pairs if record.task.pair != "none" else [(text,) for text in texts]
        inputs = QUESTIONS if kind_of(record.task).per_option else inputs
        rows = [inputs[i] for i in chance.integers(0, len(inputs), 11)]
        words = [((0, 2), (2, 4)) if name == "names" and len(r[0]) > 4 and i % 2 else None for i, r in enumerate(rows)]
        asked[name] = [Probe.of(row, some) for row, some in zip(rows, words, strict=True)]
    found = probe_outputs(session, asked)
    assert list(found) == list(session.records)
    for name, some in asked.items():
        words = [None if one.words is None else np.array(one.words, np.int32) for one in some]
        alone = session.outputs(name, [one.input for one in some], words=words)
        assert [a.tobytes() for a in found[name]] == [a.tobytes() for a in alone], name


def test_tasks_over_the_same_texts_share_one_pass(tmp_path):
    root = make(tmp_path / "b", "mood", "topics", "urgency")
    session = Session(root, deterministic=True)
    asked = {name: [Probe.of((text,)) for text in TEXTS] for name in session.records}
    probe_outputs(session, asked)
    together = session.backend.layers_run
    probe_outputs(session, {"mood": asked["mood"]})
    assert session.backend.layers_run == 2 * together  # three tasks took as many batches as one


def test_removal_restores_every_byte(root, other):
    before = tree(root)
    certified(root, "add", copying(other, "topics", root=root), changing=["topics"])
    assert tree(root) != before
    certified(root, "remove", lambda: unlist(root, ["topics"]), changing=["topics"])
    assert tree(root) == before


def test_removing_the_only_task_restores_the_empty_bundle(tmp_path, other):
    root = tmp_path / "empty"
    write_bundle(root, TRUNK)
    before = tree(root)
    first = certified(root, "add", copying(other, "mood", root=root), changing=["mood"])
    assert first.before == {} and first.probes == 0
    certified(root, "remove", lambda: unlist(root, ["mood"]), changing=["mood"])
    assert tree(root) == before


@pytest.mark.slow
def test_every_order_of_adding_gives_the_same_files_and_the_same_bits(tmp_path, unflushed):
    names = ("mood", "names", "same", "alike")
    for name in names:
        make(tmp_path / name, name)
    seen = set()
    for number, order in enumerate(itertools.permutations(names)):
        root = tmp_path / f"order{number}"
        write_bundle(root, TRUNK)
        for name in order[:-1]:
            copying(tmp_path / name, name, root=root)()
        last = certified(root, "add", copying(tmp_path / order[-1], order[-1], root=root), changing=order[-1:])
        kept, folders = tree(root)
        lines = json.loads(kept.pop("bundle.json"))
        assert list(lines["tasks"]) == list(order)
        digests = sorted((name, answered.sha256) for name, answered in last.after.items())
        seen.add(json.dumps([sorted(lines["tasks"].items()), digests, sorted(folders)]) + repr(sorted(kept.items())))
        shutil.rmtree(root)
    assert number == 23
    assert len(seen) == 1


def test_names_that_begin_other_names_are_other_tasks(tmp_path):
    root, source = tmp_path / "b", tmp_path / "source"
    for folder, seed in ((root, 0), (source, 40)):
        write_bundle(folder, TRUNK)
        for place, name in enumerate(("sst", "sst2", "sst2.v0001", "s")):
            add(folder, mood(name), seed=seed + place)
    first = certified(root, "update", copying(source, "sst", root=root, replace=True), changing=["sst"])
    assert set(first.before) == {"sst2", "sst2.v0001", "s"}
    second = certified(root, "remove", lambda: unlist(root, ["sst"]), changing=["sst"])
    assert set(second.after) == {"sst2", "sst2.v0001", "s"}
    assert first.before == second.after
    assert sorted(path.name for path in (root / "tasks").iterdir()) == ["s", "sst2", "sst2.v0001"]


def test_update_lists_the_answers_that_changed(root, tmp_path):
    """Against the answers of two sessions over the two bundles, decoded by `predict`."""
    source, renamed = tmp_path / "source", mood("mood", labels=("good", "sour", "bad"))
    write_bundle(source, TRUNK)
    more = [*probes_of(renamed), {"text": ["please refund my card"]}]
    add(source, renamed, seed=9, probes=more)
    old, new = Session(root, deterministic=True), Session(source, deterministic=True)
    texts = [probe["text"][0] for probe in more]
    labels = [
        tuple(session.predict([text], tasks=["mood"])[0].answers["mood"]["label"] for session in (old, new))
        for text in texts
    ]
    certificate = certified(root, "update", copying(source, "mood", root=root, replace=True), changing=["mood"])
    expected = [
        {"texts": (text,), "before": {"label": a}, "after": {"label": b}}
        for text, (a, b) in zip(texts, labels, strict=True)
        if a != b
    ]
    assert expected and len(expected) < len(texts)
    assert [msgspec.to_builtins(one) for one in certificate.answers_changed["mood"]] == expected
    assert certificate.answers_asked == {"mood": len(texts)}
    assert certificate.changed == {"mood": ("v0001", "v0002")}
    assert Bundle.open(root).tasks["mood"].task.labels == ("good", "sour", "bad")


def test_labels_that_a_version_lists_in_another_order_are_no_change_of_a_probe():
    probes = [Probe(text=(text,)) for text in ("a", "b", "c", "d")]
    before = [{"labels": ["bill", "phone"]}, {"labels": ["bill"]}, None, None]
    after = [{"labels": ["phone", "bill"]}, {"labels": ["phone"]}, {"labels": []}, None]
    assert [change.texts for change in answers.changes(probes, before, after)] == [("b",), ("c",)]


def test_an_update_by_itself_changes_no_answer(root, tmp_path):
    source = make(tmp_path / "source", "mood")
    certificate = certified(root, "update", copying(source, "mood", root=root, replace=True), changing=["mood"])
    assert certificate.changed == {"mood": ("v0001", "v0002")} and certificate.answers_changed == {"mood": ()}


def test_a_certificate_keeps_as_many_changed_answers_as_can_be_read_again(root):
    """Every word of long probes gets another label, in one task of two; its exact number is known all the same."""
    words = [{"start": place, "end": place + 4, "label": "N", "text": "lamp"} for place in range(0, 6500, 5)]
    many = tuple(AnswerChange(before={"words": words}, after={"words": words[1:]}, texts=("x",)) for _ in range(120))
    few = (AnswerChange(before={"label": "a"}, after={"label": "b"}, texts=("x",)),) * 3
    written = certified(root, "train", lambda: None, changing=[])
    asked = {"names": 200, "mood": 12}
    large = msgspec.structs.replace(written, answers_changed={"names": many, "mood": few}, answers_asked=asked)
    kept = Ledger(root).write(large)
    assert Ledger(root).chosen() == [kept]
    assert kept.answers_changed["mood"] == few and 0 < len(kept.answers_changed["names"]) < 120
    assert (kept.differing("names"), kept.differing("mood")) == (120, 3)
    assert f"'names' now answers 120 of 200 probes differently ({kept.answers_left_out['names']} answers are" in (
        kept.paragraph
    )
    named = msgspec.structs.replace(kept, changed={"names": ("v0001", "v0002")})
    (said,) = [line for line in answers_changed_lines(named, "names") if "not kept" in line]
    assert f"and {kept.answers_left_out['names']} that are not kept" in said
    assert not checked(root).findings


def test_a_certificate_far_from_full_keeps_every_changed_answer(root):
    """Of a thousand changed tasks all answers that changed are of the first."""
    words = [{"start": place, "end": place + 4, "label": "N"} for place in range(0, 60, 5)]
    changed = (AnswerChange(before={"words": words}, after={"words": words[1:]}, texts=("x",)),) * 30
    written = certified(root, "train", lambda: None, changing=[])
    answers_changed = {"mood": changed, **{f"task-{number}": () for number in range(999)}}
    kept = Ledger(root).write(msgspec.structs.replace(written, answers_changed=answers_changed))
    assert list(kept.answers_changed.items()) == list(answers_changed.items())
    assert kept.answers_left_out is msgspec.UNSET and Ledger(root).chosen() == [kept]


def test_a_certificate_follows_one_that_is_too_large_to_be_read(root):
    certified(root, "train", lambda: None, changing=[])
    (root / "certificates" / "0002-train.json").write_bytes(b" " * (LARGEST_JSON + 1))
    certificate = certified(root, "train", lambda: None, changing=[])
    assert certificate.number == 3 and Ledger(root).chosen() == [certificate]
    assert list(Ledger(root).problems()) == [
        ("0002-train.json", f"{root / 'certificates' / '0002-train.json'} is too large")
    ]


def test_update_to_pairs_says_that_the_old_probes_are_not_read(root, tmp_path):
    source, pairs = tmp_path / "source", msgspec.structs.replace(BY_NAME["same"], name="mood")
    write_bundle(source, TRUNK)
    add(source, pairs)
    certificate = certified(root, "update", copying(source, "mood", root=root, replace=True), changing=["mood"])
    changed = certificate.answers_changed["mood"]
    assert [one.after is None for one in changed] == [True] * len(TEXTS) + [False] * len(PAIRS)
    assert changed[-1].before is None and changed[-1].texts == PAIRS[-1]


def test_rollback_restores_the_old_bits(root, other):
    def back():
        Bundle.open(root).set_version("mood", "v0001")

    before = tree(root)
    first = certified(root, "train", lambda: None, changing=[]).after
    second = certified(root, "update", copying(other, "mood", root=root, replace=True), changing=["mood"]).after
    third = certified(root, "rollback", back, changing=["mood"]).after
    assert first["mood"].sha256 == third["mood"].sha256 != second["mood"].sha256
    assert first == third
    after = json.loads((root / "bundle.json").read_bytes())
    assert after["tasks"]["mood"].pop("pinned") is True and after == json.loads(before[0]["bundle.json"])


def test_what_a_certificate_knows_is_not_asked_again(root, other, monkeypatch):
    """With a certificate of the same numerics an addition needs the bundle after it alone."""
    opened = []

    class Counted(Session):
        def __init__(self, bundle, **options):
            opened.append(set(bundle.lines))
            super().__init__(bundle, **options)

        def follow(self, bundle):
            opened.append(set(bundle.lines))
            super().follow(bundle)

    monkeypatch.setattr(answers, "Session", Counted)
    certified(root, "train", lambda: None, changing=[])
    assert opened == [{"mood", "names", "alike"}] * 2
    opened.clear()
    certified(root, "add", copying(other, "topics", root=root), changing=["topics"])
    assert opened == [{"mood", "names", "alike", "topics"}]
    opened.clear()
    flip(root / "certificates" / "0002-add.json", 200)
    certified(root, "remove", lambda: unlist(root, ["topics"]), changing=["topics"])
    assert len(opened) == 1, "the certificate before the damaged one knows the same answers"
    opened.clear()
    monkeypatch.setattr(certify, "numerics_label", lambda: {"backend": "of another kind"})
    certified(root, "train", lambda: None, changing=[])
    assert len(opened) == 2


def test_task_without_probes_is_not_claimed_as_proven(root, other):
    add(root, mood("silent"), probes=[])
    add(root, mood("old"), probes=[{"text": [" "]}, {"text": ["a", "b"]}])
    certificate = certified(root, "add", copying(other, "topics", root=root), changing=["topics"])
    assert certificate.unproven == ("silent", "old")
    assert certificate.before["silent"].probes == 0 and certificate.before["silent"].sha256 == ""
    assert certificate.probes == sum(len(probes_of(BY_NAME[name])) for name in ("mood", "names", "alike"))
    found = checked(root)
    assert found.unproven == ("silent", "old") and not found.findings


def test_tasks_of_two_precisions_are_each_answered_in_their_own(root, tmp_path):
    before = certified(root, "train", lambda: None, changing=[])
    source = make(tmp_path / "source", "topics", precision="bfloat16")
    after = certified(root, "add", copying(source, "topics", root=root), changing=["topics"])
    assert after.before == before.after
    alone = ProbeRunner(Bundle.open(source)).answered(["topics"])
    assert after.after["topics"] == alone["topics"]
    coarse = Session(Bundle.open(source), deterministic=True)
    assert coarse.backend.precision == ("bfloat16" if HAS_BFLOAT16 else "float32")


# What goes wrong while an operation runs.


def swap(root, name, seed):
    add(root, BY_NAME[name], seed=seed, replace=True)


def edit_part(root):
    flip(root / "tasks/names/v0001/part.safetensors")


def edit_trunk(root):
    flip(root / "trunk/weights.safetensors")


def edit_bundle(root):
    (root / "bundle.json").write_text("{")


def fail(root):
    raise KeyboardInterrupt("by hand")


BREAKING = {
    "another version of another task": (lambda root: swap(root, "names", 77), IsolationError, "names"),
    "another version with equal bits": (lambda root: swap(root, "names", 5), IsolationError, "names"),
    "another task's part edited": (edit_part, IsolationError, "part.safetensors"),
    "the trunk edited": (edit_trunk, IsolationError, "weights.safetensors"),
    "another task's line removed": (lambda root: unlist(root, ["names"]), IsolationError, "names is gone"),
    "bundle.json destroyed": (edit_bundle, IsolationError, "bundle.json"),
    "stopped": (fail, KeyboardInterrupt, "by hand"),
}


@pytest.mark.parametrize("breaking", BREAKING)
@pytest.mark.parametrize("is_known", [False, True], ids=["asked before", "certificate before"])
def test_change_that_breaks_another_task_is_undone_and_named(root, other, breaking, is_known):
    act, error, word = BREAKING[breaking]
    if is_known:
        certified(root, "train", lambda: None, changing=[])
    before = (root / "bundle.json").read_bytes()
    there = {path.name for path in (root / "certificates").glob("*.json")} if is_known else set()

    def broken():
        copying(other, "topics", root=root)()
        copying(other, "mood", root=root, replace=True)()
        act(root)

    with pytest.raises(error, match=word):
        certified(root, "add", broken, changing=["topics", "mood"])
    assert (root / "bundle.json").read_bytes() == before
    assert {path.name for path in (root / "certificates").glob("*.json")} == there
    assert not (root / "tasks/topics").exists()
    assert Bundle.open(root).versions("mood") == ["v0001"]


def test_deleting_what_was_live_cannot_be_undone_and_is_said(root):
    """`remove_task` deletes at once; `unlist` is what a certified operation calls."""

    def act():
        Bundle.open(root).remove_task("names")
        Bundle.open(root).remove_task("mood")

    with pytest.raises(IsolationError, match="cannot be put back") as caught:
        certified(root, "remove", act, changing=["mood"])
    assert set(caught.value.tasks) == {"names", "mood"}
    assert list(Bundle.open(root).tasks) == ["alike"]


def test_disk_that_is_full_when_the_bundle_is_put_back_is_said(root, other):
    """The one way to leave a change without proof: it must be told, and `verify` then finds no certificate."""
    certified(root, "train", lambda: None, changing=[])

    def act():
        copying(other, "topics", root=root)()
        swap(root, "names", 77)
        FullDisk(patch, 1)  # the next step that touches the disk fails, and that is putting back

    with pytest.MonkeyPatch.context() as patch, pytest.raises(IsolationError, match="could not be put back") as caught:
        certified(root, "add", act, changing=["topics"])
    assert caught.value.tasks == ("names", "topics")
    assert checked(root).uncertified and "topics" in Bundle.open(root).tasks


@pytest.fixture
def leaky(monkeypatch):
    """An engine in which one task changes the last bit of another's outputs, once it is in the bundle."""

    def outputs(session, asked):
        found = probe_outputs(session, asked)
        if "topics" in session.records and "names" in found:
            found["names"][0] = np.nextafter(found["names"][0], np.float32(9))
        return found

    monkeypatch.setattr(answers, "probe_outputs", outputs)


@pytest.mark.parametrize("is_known", [False, True], ids=["asked before", "certificate before"])
def test_one_bit_of_another_tasks_answer_is_noticed(root, other, leaky, is_known):
    if is_known:
        certified(root, "train", lambda: None, changing=[])
    before = tree(root)
    with pytest.raises(IsolationError, match="names answers its probes otherwise") as caught:
        certified(root, "add", copying(other, "topics", root=root), changing=["topics"])
    assert caught.value.tasks == ("names",)
    assert tree(root) == before


def test_a_program_that_computes_otherwise_than_on_the_day_of_the_certificate_blames_no_task(root, other, monkeypatch):
    """The bundle of before is asked again; the certificate then holds today's bits."""
    old = certified(root, "train", lambda: None, changing=[])

    def outputs(session, asked):
        return {name: [o + np.float32(1) for o in some] for name, some in probe_outputs(session, asked).items()}

    monkeypatch.setattr(answers, "probe_outputs", outputs)
    certificate = certified(root, "add", copying(other, "topics", root=root), changing=["topics"])
    for name in ("mood", "names", "alike"):
        assert certificate.before[name] == certificate.after[name] != old.after[name]


def test_a_task_that_cannot_be_read_can_be_removed_or_updated_but_not_left_alone(root, other):
    flip(root / "tasks/mood/v0001/part.safetensors")
    with pytest.raises(CorruptFile, match="mood/v0001/part.safetensors"):
        certified(root, "add", copying(other, "topics", root=root), changing=["topics"])
    certificate = certified(root, "update", copying(other, "mood", root=root, replace=True), changing=["mood"])
    assert certificate.answers_changed == {}
    flip(root / "tasks/names/v0001/task.json")
    with pytest.raises(CorruptFile, match="names/v0001/task.json"):
        certified(root, "add", copying(other, "topics", root=root), changing=["topics"])
    certified(root, "remove", lambda: unlist(root, ["names"]), changing=["names"])
    Bundle.open(root).verify()


def test_error_of_the_change_itself_is_raised_as_it_is(root, tmp_path):
    before = tree(root)
    with pytest.raises(UnknownTask, match="nobody"):
        certified(root, "remove", lambda: unlist(root, ["mood", "nobody"]), changing=["mood", "nobody"])
    assert tree(root) == before
    with pytest.raises(BundleError, match="no bundle"):
        certified(tmp_path / "nowhere", "add", lambda: None, changing=[])
    assert not (tmp_path / "nowhere").exists()


OPERATIONS = {
    "add": (lambda root, other: copying(other, "topics", root=root), "topics"),
    "update": (lambda root, other: copying(other, "mood", root=root, replace=True), "mood"),
    "remove": (lambda root, other: lambda: unlist(root, ["mood"]), "mood"),
    "rollback": (lambda root, other: lambda: Bundle.open(root).set_version("alike", "v0001"), "alike"),
}


def prepared(tmp_path):
    root, other = (make(tmp_path / "start", "mood", "alike"), make(tmp_path / "from", "topics", "mood", seed=50))
    add(root, BY_NAME["alike"], seed=8, replace=True)
    certified(root, "train", lambda: None, changing=[])
    return root, other


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
def test_full_disk_at_any_step_leaves_the_bundle_as_it_was(tmp_path, operation, unflushed, monkeypatch):
    """All or nothing: where the certificate cannot be written, the change is undone too."""
    for heavy in ("torch", "openvino", "onnxruntime"):
        monkeypatch.setitem(sys.modules, heavy, None)  # the reference backend begins at once
    start, other = prepared(tmp_path)
    make_act, name = OPERATIONS[operation]
    failures = 0
    for failing in range(1, 200):
        root = tmp_path / f"{operation}{failing}"
        shutil.copytree(start, root)
        before = tree(root)
        with pytest.MonkeyPatch.context() as patch:
            disk = FullDisk(patch, failing, each=2)
            act = make_act(root, other)
            try:
                certified(root, operation, act, changing=[name])
                is_done = True
            except BundleError as error:
                is_done = False
                assert "No space left" in str(error)
            calls = disk.calls
        if calls < failing:
            assert is_done
            break
        failures += 1
        Bundle.open(root).verify()
        if is_done:  # what failed was tidying up: the change stands and is certified
            assert Ledger(root).files[0].endswith(f"{operation}.json")
        else:
            assert (root / "bundle.json").read_bytes() == before[0]["bundle.json"], failing
            assert len(Ledger(root).files) == 1
            assert verify(root) == []
            certified(root, operation, make_act(root, other), changing=[name])  # room made, the same works
        assert verify(root) == []
        shutil.rmtree(root)
    assert failures >= {"add": 20, "update": 20, "remove": 8, "rollback": 8}[operation]


# For every n: a copy of the bundle, an operation whose process dies right before its n-th step, and a look at it.
KILLED = """
import os, shutil, sys
for name in ("torch", "openvino", "onnxruntime"):
    sys.modules[name] = None  # the reference backend: a fork of it is quick
from pathlib import Path
from support.disk_failures import Kill, exit_code
from engine.test_isolation import OPERATIONS, prepared, tree
from polyhead.bundle.read import Bundle
from polyhead.certify import certified, checked
from polyhead.certify.certificate import Ledger

os.fsync = lambda handle: None

def killed(folder, operation):
    start, other = prepared(folder)
    make_act, name = OPERATIONS[operation]
    old = (start / "bundle.json").read_bytes()
    for deadly in range(1, 200):
        root = folder / "killed"
        shutil.copytree(start, root)
        if os.fork() == 0:
            Kill(deadly, each=1)
            certified(root, operation, make_act(root, other), changing=[name])
            os._exit(0)
        code = exit_code()
        Bundle.open(root).verify()
        is_old, known = (root / "bundle.json").read_bytes() == old, len(Ledger(root).files)
        found = checked(root)
        assert found.findings == (), found
        assert found.uncertified == (not is_old and known == 1), (deadly, found)
        assert (found.written is not None) == found.uncertified
        yield ("old" if is_old else "new") + str(known)
        again = checked(root)
        assert not again.uncertified and again.written is None and not again.unseen
        if is_old:
            certified(root, operation, make_act(root, other), changing=[name])
            assert checked(root).findings == ()
        shutil.rmtree(root)
        if code == 0:
            return
        assert code == 9

for operation in OPERATIONS:
    (folder := Path(sys.argv[1]) / operation).mkdir()
    print(operation, *killed(folder, operation))
"""


@pytest.mark.slow
def test_process_killed_at_any_step_leaves_the_old_version_live_or_the_new_one_whole(tmp_path):
    """Old until bundle.json is replaced; then new, and `verify` writes the certificate that is missing."""
    least = {"add": 15, "update": 15, "remove": 3, "rollback": 3}
    for line, operation in zip(run_forking(KILLED, tmp_path).splitlines(), OPERATIONS, strict=True):
        name, *states = line.split()
        assert name == operation and states == sorted(states, key=("old1", "new1", "new2").index)
        assert set(states) == {"old1", "new1", "new2"}
        assert states.count("old1") >= least[operation]


def test_second_operation_waits_for_the_first_and_then_says_so(root, monkeypatch):
    monkeypatch.setattr(certify, "writing_bundle", lambda root, what: files.writing_bundle(root, what, patience=0))
    entered = []

    def act():
        entered.append(1)
        with pytest.raises(BundleError, match="another process has been writing"):
            certified(root, "train", lambda: entered.append(2), changing=[])

    certified(root, "train", act, changing=[])
    assert entered == [1]


WRITER = """
import sys
for name in ("torch", "openvino", "onnxruntime"):
    sys.modules[name] = None
from pathlib import Path
from polyhead.bundle.merge import copy_tasks
from polyhead.bundle.read import Bundle
from polyhead.certify import certified
root, source, names = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
for name in names:
    certified(root, "add", lambda: copy_tasks(Bundle.open(source), [name], Bundle.open(root)), changing=[name])
"""


def test_two_writers_at_once_both_come_through(tmp_path):
    names = [f"task{i}" for i in range(8)]
    source = tmp_path / "source"
    write_bundle(source, TRUNK)
    for place, name in enumerate(names):
        add(source, mood(name), seed=place)
    root = make(tmp_path / "b", "mood")
    command = [sys.executable, "-c", WRITER, str(root), str(source)]
    environment = os.environ | {
        "PYTHONPATH": str(Path(files.__file__).parents[2]),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    running = [
        subprocess.Popen([*command, *some], env=environment, stderr=subprocess.PIPE)
        for some in (names[::2], names[1::2])
    ]
    for process in running:
        assert process.wait(120) == 0, process.stderr.read()
        process.stderr.close()
    assert set(Bundle.open(root).tasks) == {"mood", *names}
    found = certificates(root)
    assert [one["number"] for one in found] == list(range(1, 9))
    for before, after in itertools.pairwise(found):
        assert before["after"] == after["before"] and before["bundle"] == after["bundle_before"]
    assert list(Ledger(root).problems()) == []


# Verifying again.


def live_files(root):
    skipped = (".lock", "README.md", "bundle.json")
    return sorted(p.relative_to(root) for p in root.rglob("*") if p.is_file() and p.name not in skipped)


@pytest.mark.slow
def test_one_changed_bit_in_any_file_is_found_and_the_file_is_named(root, other):
    certified(root, "update", copying(other, "mood", root=root, replace=True), changing=["mood"])
    certified(root, "add", copying(other, "topics", root=root), changing=["topics"])
    assert verify(root) == []
    looked_at = 0
    for name in live_files(root):
        file = root / name
        content = file.read_bytes()
        for place in (0, len(content) // 2, len(content) - 1):
            flip(file, place)
            found = verify(root)
            assert str(name) in [finding.file for finding in found], (name, place, found)
            file.write_bytes(content)
            looked_at += 1
    assert looked_at >= 3 * (3 + 5 * 4 + 2)  # trunk, five versions of four files, two certificates
    assert verify(root) == []


def test_missing_files_are_found_and_named(root):
    certified(root, "train", lambda: None, changing=[])
    certified(root, "train", lambda: None, changing=[])
    for name in live_files(root):
        content = (root / name).read_bytes()
        (root / name).unlink()
        found = verify(root)
        if name.name == "0002-train.json":
            assert found == []  # nobody can tell that there was a last one ...
            assert [path.name for path in sorted((root / "certificates").glob("0*"))][-1] == "0001-train.json"
        elif name.name == "0001-train.json":
            assert found[0].file == "certificates/0002-train.json" and "number 1" in found[0].what
        else:
            assert str(name) in [finding.file for finding in found], (name, found)
        (root / name).write_bytes(content)


def test_certificate_that_was_exchanged_with_its_own_digest_made_right_is_found(root):
    """Whoever edits one and makes its digest right again has the next one against him."""
    for _ in range(3):
        certified(root, "train", lambda: None, changing=[])
    file = root / "certificates" / "0002-train.json"
    forged = read_certificate(file.read_bytes(), file)
    forged = msgspec.structs.replace(forged, operation="train", changed={"mood": (None, "v0001")})
    file.unlink()
    ledger = Ledger(root)
    ledger.files = ["0001-train.json"]
    made = ledger.write(forged)
    assert read_certificate(file.read_bytes(), file) == made
    (finding,) = verify(root)
    assert finding.file == "certificates/0002-train.json" and "0003-train.json" in finding.what
    known = Ledger(root).find(Bundle.open(root).lines, isolation.numerics_label())
    assert {certificate.number for _, certificate in known.values()} == {3}


def test_damaged_task_does_not_stop_the_others_from_being_asked(root):
    certified(root, "train", lambda: None, changing=[])
    flip(root / "tasks/names/v0001/part.safetensors")
    found = checked(root)
    assert {finding.task for finding in found.findings} == {"names"}
    assert set(found.equal) == {"mood", "alike"}
    flip(root / "tasks/names/v0001/part.safetensors")
    flip(root / "trunk/weights.safetensors")
    found = checked(root)
    assert found.equal == {} and {finding.file for finding in found.findings} == {"trunk/weights.safetensors"}


def test_task_that_answers_otherwise_with_files_as_they_were_is_named(root, monkeypatch):
    certified(root, "train", lambda: None, changing=[])

    def outputs(session, asked):
        found = probe_outputs(session, asked)
        found["names"][-1] = -found["names"][-1]
        return found

    monkeypatch.setattr(answers, "probe_outputs", outputs)
    (finding,) = verify(root)
    assert finding.task == "names" and finding.file is None and "0001-train.json" in finding.what


def test_operation_without_certificate_gets_one_when_verified(root):
    """As after a kill, or after a change that was made through `Bundle`."""
    certified(root, "train", lambda: None, changing=[])
    add(root, BY_NAME["topics"], seed=6)
    swap(root, "mood", 30)
    found = checked(root)
    assert found.uncertified and found.written == "0002-verify.json" and found.unseen == ("mood", "topics")
    last = certificates(root)[-1]
    assert last["changed"] == {"mood": ["v0001", "v0002"], "topics": [None, "v0001"]}
    assert set(last["before"]) == {"names", "alike"} and set(last["after"]) == {"mood", "names", "alike", "topics"}
    again = checked(root)
    assert not again.uncertified and again.written is None and len(again.equal) == 4


def test_a_task_that_has_the_name_of_a_removed_one_is_not_compared_with_it(root):
    """It begins with v0001 again: that was said to be damaged, and could not be rolled back to."""
    certified(root, "train", lambda: None, changing=[])
    certified(root, "remove", lambda: unlist(root, ["mood"]), changing=["mood"])
    add(root, mood("mood", labels=("no", "yes")), seed=20)
    add(root, mood("mood", labels=("no", "yes")), seed=21, replace=True)
    assert checked(root).findings == ()
    assert isolation.roll_back(root, ["mood"], by=isolation.Requester()).changed == {"mood": ("v0002", "v0001")}
    record = root / "tasks/mood/v0002/task.json"
    record.write_bytes(record.read_bytes() + b"\n")  # still readable: only a certificate says that it was changed
    assert [finding.task for finding in verify(root)] == ["mood"]


def test_bundle_that_was_never_certified_gets_its_first_certificate(root):
    found = checked(root)
    assert found.certificates == 0 and found.uncertified and found.written == "0001-verify.json"
    assert certificates(root)[0]["before"] == {}
    assert verify(root) == []


def test_bundle_that_cannot_be_written_is_verified_all_the_same(root, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    before = tree(root)
    found = checked(root)
    assert found.uncertified and found.written is None and not found.findings
    assert tree(root) == before and not (root / "certificates").exists()


def test_link_in_place_of_the_certificates_is_refused(root, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (root / "certificates").symlink_to(tmp_path / "elsewhere")
    for call in (lambda: certified(root, "train", lambda: None, changing=[]), lambda: verify(root)):
        with pytest.raises(CorruptFile, match="link"):
            call()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_answers_after_a_change_are_those_of_what_is_on_the_disk_by_then(root):
    """The session that answered before a change goes on after it, and takes no array on trust."""
    before = ProbeRunner(Bundle.open(root))
    first = before.answered(["mood", "alike"])
    add(root, BY_NAME["mood"], seed=90, replace=True)
    after = ProbeRunner(Bundle.open(root), before=before)
    second = after.answered(["mood", "alike"])
    assert second == ProbeRunner(Bundle.open(root)).answered(["mood", "alike"])
    assert second["alike"].sha256 == first["alike"].sha256 and second["mood"].sha256 != first["mood"].sha256


def test_the_bits_of_a_task_are_the_same_whatever_else_is_asked(root):
    bundle = Bundle.open(root)
    together = ProbeRunner(bundle).answered(bundle.lines)
    for name in bundle.lines:
        assert ProbeRunner(bundle).answered([name])[name] == together[name]


def test_a_probe_that_cannot_be_read_is_an_error_not_a_probe_fewer(root):
    """It was left out in silence, so that a certificate claimed less than the task's probes file holds."""
    add(root, mood("worn"), probes=[{"text": ["so glad"]}, {"words": [[0, 2]]}])
    with pytest.raises(CorruptFile, match=r"a probe of task 'worn' cannot be read.*text"):
        readable_probes(Bundle.open(root), "worn")
