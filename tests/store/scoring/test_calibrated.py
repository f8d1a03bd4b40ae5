"""Columns of calibrated answers: those of a session's answers, where they were asked for and nowhere else."""

import json

import msgspec
import numpy as np
import pytest

from polyhead.bundle.read import Bundle
from polyhead.certify.annotations import Annotations, keep_annotations
from polyhead.engine.session import Session
from polyhead.errors import ConfigError
from polyhead.store.jobs.answers import calibrated_arrays, probability_of
from polyhead.tasks.calibration import Calibration, SetRule, with_calibrated
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from support.scoring_files import make_bundle, read, run, texts, write

SETS = (SetRule(coverage=0.9, limit=0.3),)
WIDE = (SetRule(coverage=0.9, limit=0.1),)
CALIBRATIONS = {
    "mood": Calibration(scale=(1.0,), sets=SETS, coverage=0.9),  # unsure of half of the texts
    "topics": Calibration(scale=(2.0,), thresholds=(0.2, 0.5, 0.8), sets=SETS, coverage=0.9),
    "urgency": Calibration(sets=WIDE, coverage=0.9),
}
ADDED = {
    "mood": ["mood.calibrated", "mood.probability", "mood.unsure", "mood.set"],
    "topics": ["topics.calibrated", "topics.set"],
    "urgency": ["urgency.interval"],
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("calibrated") / "b"
    make_bundle(root)
    wanted = {name: Annotations(calibration=calibration) for name, calibration in CALIBRATIONS.items()}
    sure = [
        max(r.answers["mood"]["scores"].values()) for r in session(root).predict([row["text"] for row in texts(12)])
    ]
    half = msgspec.structs.replace(CALIBRATIONS["mood"], unsure_below=float(np.median(sure)))
    wanted["mood"] = Annotations(calibration=half)
    keep_annotations(root, wanted, read=Bundle.open(root))
    return root


def session(root):
    return Session(root, backend="reference", precision="float32")


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".parquet"])
def test_columns_are_what_a_session_answers(root, tmp_path, ending):
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
    opened, rows = session(root), texts(12)
    names = (*CALIBRATIONS, "names")
    done = run(opened, write(tmp_path / "in.jsonl", rows), tmp_path / f"out{ending}", tasks=names, calibrated=True)
    assert list(done.columns) == [
        each for name in names for each in (name, *ADDED.get(name, ()))
    ] + ["error"]  # fmt: skip
    answers = [result.answers for result in opened.predict([row["text"] for row in rows], tasks=names)]
    written = read(tmp_path / f"out{ending}")
    is_text = ending == ".csv"

    def plain(cell):
        return json.loads(cell) if is_text and cell else cell

    for row, given in zip(written, answers, strict=True):
        mood, topics, urgency = (given[name]["calibrated"] for name in CALIBRATIONS)
        assert row["mood.calibrated"] == (("" if is_text else None) if mood["unsure"] else mood["label"])
        assert plain(row["mood.unsure"]) is mood["unsure"]
        assert plain(row["mood.probability"]) == pytest.approx(max(mood["scores"].values()))
        assert plain(row["mood.set"]) == mood["set"]
        assert plain(row["topics.calibrated"]) == topics["labels"] and plain(row["topics.set"]) == topics["set"]
        assert plain(row["urgency.interval"]) == pytest.approx(urgency["interval"])
    assert {given["mood"]["calibrated"]["unsure"] for given in answers} == {True, False}


def test_nothing_of_it_is_written_unasked(root, tmp_path):
    opened, source = session(root), write(tmp_path / "in.jsonl", texts(5))
    bare = run(opened, source, tmp_path / "out.jsonl", tasks=("mood",))
    assert list(bare.columns) == ["mood", "error"]
    done = run(opened, source, tmp_path / "more.jsonl", tasks=("mood",), calibrated=True, scores=True)
    assert list(done.columns) == ["mood", "mood.scores", *ADDED["mood"], "mood.calibrated.scores", "error"]
    rows = zip(read(tmp_path / "out.jsonl"), read(tmp_path / "more.jsonl"), strict=True)
    assert all(row.items() <= more.items() for row, more in rows)


def test_a_table_of_tasks_that_are_not_calibrated_is_refused(root, tmp_path):
    source = write(tmp_path / "in.jsonl", texts(2))
    with pytest.raises(ConfigError, match="polyhead calibrate") as caught:
        run(session(root), source, tmp_path / "out.jsonl", tasks=("names",), calibrated=True)
    assert caught.value.got == ["names"]
    assert not (tmp_path / "out.jsonl").exists()


def test_a_row_without_an_answer_has_none_of_it(root, tmp_path):
    source = write(tmp_path / "in.jsonl", [{"text": "the lamp"}, {"text": " "}])
    run(session(root), source, tmp_path / "out.jsonl", tasks=tuple(CALIBRATIONS), calibrated=True)
    row = read(tmp_path / "out.jsonl")[1]
    assert row["error"] and all(row[name] is None for names in ADDED.values() for name in names)


MANY = {
    "single": (Task(name="t", kind="single_label", labels=("a", "b", "c")), Calibration(
        scale=(0.7,), thresholds=(0.5, 0.6, 0.4), unsure_below=0.45, sets=SETS, coverage=0.9)),
    "positive": (Task(name="t", kind="single_label", labels=("a", "b", "c")), Calibration(
        thresholds=(0.0, 0.3, 0.0), positive="b", unsure_below=0.35)),
    "several": (Task(name="t", kind="multi_label", labels=("a", "b", "c")), Calibration(
        scale=(0.5, 1.0, 2.0), shift=(0.1, 0.0, -0.2), thresholds=(0.5, 0.6, 0.4), sets=SETS, coverage=0.9)),
    "number": (Task(name="t", kind="regression", range=(-1.0, 3.0)), Calibration(sets=WIDE, coverage=0.9)),
}  # fmt: skip


@pytest.mark.parametrize("form", MANY)
def test_a_store_keeps_what_answers_say(form):
    """Beside `with_calibrated`, which makes the answers one by one."""
    task, calibration = MANY[form]
    outputs = np.random.default_rng(0).normal(size=(60, max(1, len(task.labels)))).astype(np.float32)
    kind = kind_of(task)
    answers = with_calibrated(task, calibration, kind.answers(task, kind.decode_rows(task, outputs)))
    arrays = calibrated_arrays(task, calibration, outputs)
    for place, answer in enumerate(each["calibrated"] for each in answers):
        row = {name: array[place] for name, array in arrays.items()}
        if "interval" in answer:
            np.testing.assert_allclose(row["interval"], answer["interval"], atol=1e-6)
            continue
        named = {"set": answer.get("set"), "labels": answer.get("labels")}
        for name, given in named.items():
            assert (name in row) == (given is not None)
            assert given is None or [label for label, held in zip(task.labels, row[name], strict=True) if held] == given
        if "label" in row:
            assert (task.labels[row["label"]] if row["label"] >= 0 else None) == answer["label"]
            assert row["unsure"] == answer["unsure"]
            assert row["probability"] == pytest.approx(probability_of(answer), abs=1e-6)
    if "unsure" in arrays:
        assert 0 < arrays["unsure"].sum() < 60


def test_the_probability_is_that_of_the_label_or_the_highest():
    assert probability_of({"label": "b", "scores": {"a": 0.6, "b": 0.4}}) == 0.4
    assert probability_of({"label": None, "scores": {"a": 0.6, "b": 0.4}}) == 0.6
    assert probability_of({"index": 1, "scores": [0.3, 0.7]}) == 0.7
