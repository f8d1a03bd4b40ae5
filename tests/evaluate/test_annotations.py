"""What stands beside a task's answers: kept as a new version, proven, shown, overridden, copied, never silent."""

import asyncio
import errno
import json

import msgspec
import numpy as np
import pytest

from polyhead.bundle.journal import FILE, Attempt, keep_attempts, read_attempts
from polyhead.bundle.merge import merge_bundles
from polyhead.bundle.read import Bundle
from polyhead.bundle.row_profile import RowProfile, stored_profile
from polyhead.bundle.task_archive import upload_bytes
from polyhead.certify import Requester, checked, roll_back
from polyhead.certify import annotations as module
from polyhead.certify.annotations import Annotations, keep_annotations, with_sections
from polyhead.certify.certificate import Ledger
from polyhead.engine.probes import ProbeRunner
from polyhead.engine.session import Session
from polyhead.errors import BadValue, BundleError, ConfigError, CorruptFile, IsolationError, UnknownTask
from polyhead.tasks.calibration import (
    KEY,
    Calibration,
    CalibrationChoice,
    SetRule,
    decided,
    with_calibrated,
    with_choice,
)
from polyhead.tasks.task import Task
from support.admin_server import TASKS, TEXTS, add, make

MOOD, TOPICS = TASKS["mood"], TASKS["topics"]
SETS = (SetRule(coverage=0.8, limit=0.5), SetRule(coverage=0.9, limit=0.1))
SURE = Calibration(scale=(0.5,), thresholds=(0.6, 0.9), sets=SETS, coverage=0.9, measured={"rows": {"fit": 20}})


def seen(rows=40, width=None, seed=0):
    width = width or 16
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(rows, width))
    return RowProfile(
        vectors=(vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32),
        lengths=rng.integers(5, 90, rows).astype(np.float32),
        scores=rng.random((rows, 2)).astype(np.float32),
    )


@pytest.fixture
def root(tmp_path):
    return make(tmp_path / "b", "mood", "topics", "urgency")


def kept(root, name="mood", calibration=SURE, **more):
    return keep_annotations(
        root, {name: Annotations(calibration=calibration, **more)}, read=Bundle.open(root), actor="ann"
    )


def session(root, **more):
    return Session(root, backend="reference", precision="float32", **more)


def test_a_calibration_is_a_new_version_that_changes_no_output(root):
    before = {name: ProbeRunner(Bundle.open(root), backend="reference").answered([name]) for name in ("mood", "topics")}
    plain = session(root).predict(TEXTS)
    certificate = kept(root, seen=seen(), card={"## Calibration": "- fitted"})
    after = {name: ProbeRunner(Bundle.open(root), backend="reference").answered([name]) for name in ("mood", "topics")}
    assert certificate.changed == {"mood": ("v0001", "v0002")}
    assert certificate.actor == "ann"
    assert certificate.answers_changed["mood"] == ()
    assert before["mood"]["mood"].sha256 == after["mood"]["mood"].sha256
    assert before["topics"] == after["topics"]
    bundle = Bundle.open(root)
    assert bundle.tasks["mood"].calibration == SURE
    assert bundle.tasks["mood"].trained_with == {"seed": 0}
    assert bundle.card("mood").endswith("## Calibration\n\n- fitted\n")
    for old, new in zip(plain, session(root).predict(TEXTS), strict=True):
        bare = {key: value for key, value in new.answers["mood"].items() if key != KEY}
        assert bare == old.answers["mood"]
        assert new.answers["topics"] == old.answers["topics"]
    assert not checked(root).findings


def test_what_is_kept_of_rows_is_read_again(root):
    rows = seen()
    kept(root, seen=rows)
    again = stored_profile(Bundle.open(root), "mood")
    assert again.vectors == pytest.approx(rows.vectors, abs=1e-3)
    assert again.scores == pytest.approx(rows.scores, abs=1e-3)
    assert (again.lengths == rows.lengths).all()
    assert stored_profile(Bundle.open(root), "topics") is None
    kept(root, calibration=Calibration(scale=(2.0,)))
    assert (stored_profile(Bundle.open(root), "mood").vectors == again.vectors).all()  # it stays with the next version


def test_a_summary_that_was_touched_is_found(root):
    kept(root, seen=seen())
    file = root / "tasks" / "mood" / "v0002" / "seen.safetensors"
    file.write_bytes(file.read_bytes()[:-2] + b"xx")
    with pytest.raises(CorruptFile, match="seen"):
        stored_profile(Bundle.open(root), "mood")
    assert any("seen" in str(error) for error in Bundle.open(root).touched())


def test_a_summary_of_another_width_is_refused(root):
    kept(root, seen=seen(width=8))
    with pytest.raises(CorruptFile, match="contradicts itself"):
        stored_profile(Bundle.open(root), "mood")


def test_the_summary_travels_with_the_task(root, tmp_path):
    kept(root, seen=seen())
    merged = merge_bundles(tmp_path / "merged", [Bundle.open(root)])
    assert (stored_profile(merged, "mood").vectors == stored_profile(Bundle.open(root), "mood").vectors).all()
    assert merged.tasks["mood"].calibration == SURE
    assert b"seen.safetensors" in b"".join(upload_bytes(Bundle.open(root), "mood"))


def test_a_task_that_was_rolled_back_to_stays_pinned(root):
    for name in ("mood", "topics"):
        add(root, name, 7, replace=True)
    Bundle.open(root).set_version("mood", "v0001")
    keep_annotations(root, dict.fromkeys(("mood", "topics"), Annotations(seen=seen())), read=Bundle.open(root))
    lines = Bundle.open(root).lines
    assert {name: (line.version, line.pinned) for name, line in lines.items()} == {
        "mood": ("v0003", True),
        "topics": ("v0003", False),
        "urgency": ("v0001", False),
    }
    roll_back(root, ["mood"], "v0003", by=Requester())  # the newest, by a person's choice
    assert not Bundle.open(root).lines["mood"].pinned


def test_what_lost_to_the_version_before_stays_lost(root):
    lines = Bundle.open(root).lines
    lost = {
        name: Attempt(fingerprint=name, record=lines[name].record, metric="accuracy", live=0.9, tried=0.8)
        for name in ("mood", "topics")
    }
    keep_attempts(root, lost)
    kept(root)
    again = read_attempts(root)
    assert again["topics"] == lost["topics"]
    assert again["mood"] == msgspec.structs.replace(lost["mood"], record=Bundle.open(root).lines["mood"].record)


def test_what_lost_stays_lost_where_a_calibration_fails(root, monkeypatch):
    lost = Attempt(fingerprint="f", record=Bundle.open(root).lines["mood"].record, metric="accuracy", live=1, tried=0)
    keep_attempts(root, {"mood": lost})

    def full(*_):
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(Ledger, "write", full)
    with pytest.raises(BundleError, match="the disk is full"):
        kept(root)
    assert Bundle.open(root).version("mood") == "v0001"
    assert read_attempts(root) == {"mood": lost}


def test_a_damaged_list_of_attempts_stops_no_calibration(root):
    """It may be deleted at any time."""
    (root / FILE).write_text("[")
    assert kept(root).changed == {"mood": ("v0001", "v0002")}


def test_a_list_of_attempts_that_cannot_be_written_stops_no_calibration(root, monkeypatch):
    lost = Attempt(fingerprint="f", record=Bundle.open(root).lines["mood"].record, metric="accuracy", live=1, tried=0)
    keep_attempts(root, {"mood": lost})

    def full(*_):
        raise BundleError("attempts.json cannot be written")

    monkeypatch.setattr(module, "keep_attempts", full)
    assert kept(root).changed == {"mood": ("v0001", "v0002")}
    assert not checked(root).findings


def test_a_task_that_changed_meanwhile_is_not_calibrated(root):
    read = Bundle.open(root)
    add(root, "mood", 7, replace=True)
    with pytest.raises(BundleError, match="changed meanwhile"):
        keep_annotations(root, {"mood": Annotations(calibration=SURE)}, read=read)
    assert Bundle.open(root).version("mood") == "v0002"


def test_outputs_that_change_put_the_bundle_back(root, monkeypatch):
    """A writer that loses an array's last bits."""
    inner = module._draft

    def broken(bundle, name, value):
        draft = inner(bundle, name, value)
        arrays = {key: array * np.float32(1.01) for key, array in draft.arrays.items()}
        record = msgspec.structs.replace(draft.record, arrays="")
        return msgspec.structs.replace(draft, arrays=arrays, record=record)

    monkeypatch.setattr(module, "_draft", broken)
    with pytest.raises(IsolationError, match="changed the answers themselves"):
        kept(root)
    assert Bundle.open(root).version("mood") == "v0001"
    assert Bundle.open(root).versions("mood") == ["v0001"]


def test_a_calibration_of_another_task_is_refused(root):
    for calibration in (Calibration(thresholds=(0.5,) * 3), Calibration(positive="great"), Calibration(shift=(1.0,))):
        with pytest.raises((ConfigError, BundleError), match="calibration of another task"):
            kept(root, calibration=calibration)
    for wrong in ({"scale": (0.0,)}, {"scale": (float("nan"),)}, {"thresholds": (1.5,)}, {"unsure_below": -0.1}):
        with pytest.raises(ConfigError, match="cannot use"):
            Calibration(**wrong)
    with pytest.raises(BadValue, match="no sets of this coverage"):
        Calibration(sets=SETS, coverage=0.5)


def test_an_answer_says_that_it_is_calibrated_and_what_by():
    """Scores of 0.9 and 0.1 are 3 to 1 at temperature 2."""
    answer = {"label": "good", "scores": {"bad": 0.1, "good": 0.9}}
    (made,) = with_calibrated(MOOD, SURE, [answer])
    assert made["label"] == "good"
    assert made[KEY]["scores"] == pytest.approx({"bad": 0.25, "good": 0.75})
    assert made[KEY]["label"] is None  # 0.75 is below 0.9
    assert made[KEY]["unsure"] is True
    assert made[KEY]["set"] == ["bad", "good"]
    assert made[KEY]["coverage"] == 0.9


def test_a_request_may_choose_otherwise():
    answer = {"label": "good", "scores": {"bad": 0.1, "good": 0.9}}
    several = with_calibrated(MOOD, SURE, [answer])
    assert with_calibrated(MOOD, SURE, several, wish=False) == [answer]
    assert with_calibrated(MOOD, None, [answer]) == [answer]
    choice = CalibrationChoice(thresholds={"good": 0.7}, coverage=0.8)
    (made,) = with_calibrated(MOOD, SURE, several, choice)
    assert made[KEY]["label"] == "good"
    assert made[KEY]["set"] == ["good"]
    (made,) = with_calibrated(MOOD, Calibration(), [answer], CalibrationChoice(unsure_below=0.95))
    assert made[KEY]["unsure"] is True
    for wrong in ({"thresholds": {"great": 0.5}}, {"coverage": 0.5}, {"unsure_below": 2.0}):
        with pytest.raises(BadValue):
            with_calibrated(MOOD, SURE, [answer], CalibrationChoice(**wrong))


@pytest.mark.parametrize("task", [TOPICS, TASKS["urgency"]], ids=["several labels", "a number"])
def test_a_request_cannot_call_answers_unsure_that_have_no_single_label(task):
    """It was answered as if nothing had been asked."""
    with pytest.raises(BadValue, match="unsure_below"):
        with_choice(task, Calibration(), CalibrationChoice(unsure_below=0.5))


def test_each_kind_has_an_answer_of_its_own():
    """Several labels, numbers and options."""
    topics = {"labels": [], "scores": {"order": 0.4, "bill": 0.2, "person": 0.01}}
    (made,) = with_calibrated(TOPICS, Calibration(thresholds=(0.3, 0.3, 0.3), sets=SETS, coverage=0.9), [topics])
    assert made[KEY]["labels"] == ["order"]
    assert made[KEY]["scores"] == pytest.approx(topics["scores"])
    assert made[KEY]["set"] == ["order", "bill"]
    (made,) = with_calibrated(TASKS["alike"], Calibration(sets=SETS, coverage=0.9), [{"value": 0.2}])
    assert made[KEY] == {"interval": [0.0, pytest.approx(0.7)], "coverage": 0.9}
    answer = {"index": 1, "option": "b", "scores": [0.2, 0.8], "ranked": [1, 0]}
    (made,) = with_calibrated(TASKS["reply"], Calibration(unsure_below=0.9, sets=SETS, coverage=0.8), [answer])
    assert made[KEY]["index"] is None
    assert made[KEY]["set"] == [1]


def test_a_positive_label_is_given_from_its_threshold_on():
    task = Task(name="t", kind="single_label", labels=("a", "b", "c"))
    calibration = Calibration(thresholds=(0.0, 0.2, 0.0), positive="b")
    chosen, is_sure = decided(task, calibration, np.array([[0.5, 0.3, 0.2], [0.5, 0.1, 0.4], [0.1, 0.1, 0.8]]))
    assert chosen.tolist() == [1, 0, 2]
    assert is_sure.all()


def test_scores_of_0_and_1_stay_finite():
    answers = [{"label": "good", "scores": {"bad": 0.0, "good": 1.0}}]
    assert with_calibrated(MOOD, SURE, answers)[0][KEY]["scores"] == pytest.approx({"bad": 0.0, "good": 1.0}, abs=1e-99)
    several = [{"labels": [], "scores": {"order": 0.0, "bill": 1.0, "person": 0.5}}]
    scores = with_calibrated(TOPICS, Calibration(scale=(0.5,)), several)[0][KEY]["scores"]
    assert 0 <= scores["order"] < 1e-9
    assert 1 - 1e-7 < scores["bill"] <= 1


def test_a_session_takes_wishes_by_task(root):
    kept(root)
    asked = session(root)
    assert KEY in asked.predict(TEXTS)[0].answers["mood"]
    assert KEY not in asked.predict(TEXTS, calibrated=False)[0].answers["mood"]
    assert KEY in asked.predict(TEXTS, calibrated={"topics": False})[0].answers["mood"]
    choice = {"mood": CalibrationChoice(coverage=0.8)}
    assert asked.predict(TEXTS, calibrated=choice)[0].answers["mood"][KEY]["coverage"] == 0.8
    for wrong, error in (({"mod": False}, UnknownTask), ({"mood": {"coverage": 0.8}}, BadValue)):
        with pytest.raises(error, match="calibrated"):  # both were ignored
            asked.predict(TEXTS, calibrated=wrong)
    with pytest.raises(BadValue, match="no calibration"):  # it was ignored
        asked.predict(TEXTS, calibrated={"topics": CalibrationChoice(coverage=0.8)})
    streamed = {task.task: task.answers for task in asked.stream(TEXTS)}
    assert streamed["mood"][0] == asked.predict(TEXTS)[0].answers["mood"]
    calm = asked.refresh()
    assert not calm.replaced


def test_a_session_that_is_open_takes_the_calibration_when_it_reads_the_bundle_again(root):
    asked = session(root)
    assert KEY not in asked.predict(TEXTS)[0].answers["mood"]
    kept(root)
    assert asked.refresh().replaced == ("mood",)
    assert KEY in asked.predict(TEXTS)[0].answers["mood"]


@pytest.mark.slow
def test_the_server_shows_and_overrides_it(root):
    pytest.importorskip("starlette", reason="the server's packages are not installed: pip install polyhead")
    from support.admin_server import served

    kept(root)

    async def ask(wish, *, path="/v1/predict"):
        async with served(root) as (client, _):
            body = {"inputs": TEXTS[:1], "tasks": ["mood", "topics"], "options": {"calibrated": wish}}
            return await client.post(path, json=body)

    shown = asyncio.run(ask(True)).json()["results"][0]["answers"]
    assert shown["mood"][KEY]["coverage"] == 0.9
    assert KEY not in shown["topics"]
    assert KEY not in asyncio.run(ask(False)).json()["results"][0]["answers"]["mood"]
    chosen = asyncio.run(ask({"mood": {"coverage": 0.8}})).json()["results"][0]["answers"]
    assert chosen["mood"][KEY]["coverage"] == 0.8
    refused = asyncio.run(ask({"mood": {"coverage": 0.7}}))
    assert 400 <= refused.status_code < 500
    assert "coverage" in refused.text
    lines = asyncio.run(ask(False, path="/v1/predict/stream")).text.splitlines()
    stages = [json.loads(line) for line in lines if "answers" in json.loads(line)]
    assert {stage["task"] for stage in stages} == {"mood", "topics"}
    assert all(KEY not in answer for stage in stages for answer in stage["answers"].values())


def test_sections_of_a_card_are_replaced_and_others_stay():
    card = "# mood\n\nOurs.\n\n## Calibration\n\n- old\n\n## Limits\n\nFew.\n"
    new = with_sections(card, {"## Calibration": "- new"})
    assert new == "# mood\n\nOurs.\n\n## Limits\n\nFew.\n\n## Calibration\n\n- new\n"
    assert with_sections(new, {"## Calibration": "- new"}) == new
    assert with_sections(new, {}) == new
