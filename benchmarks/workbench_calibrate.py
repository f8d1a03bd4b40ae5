"""Calibration on four sets, three draws each: what `polyhead calibrate` promises, measured on whole test splits.

    python -m benchmarks.workbench_calibrate [--report]

A task of the default recipe learns from 1,500 rows, is calibrated on 1,500 others (half fit, half check) with the goal
of precision 0.9 and sets of coverage 0.9, and is measured on the whole test split, which neither saw. Goes on where it
stopped: rows are in runs/workbench_calibrate.jsonl.
"""

from __future__ import annotations

import shutil
import statistics

import numpy as np

from benchmarks.workbench_rows import HOME, rows_of, shuffled, trained, write_rows
from polyhead.bundle.read import Bundle
from polyhead.certify.beside import keep_beside
from polyhead.engine.session import Session
from polyhead.quality.calibrate import CalibrateRequest, measures
from polyhead.quality.measures import answered, error_of, of_truth
from polyhead.quality.run import calibrated_task
from polyhead.tasks.calibration import KEY, Calibration
from polyhead.tasks.columns import Source
from polyhead.tasks.read import read
from studies.results import Claim, Study
from studies.settings import command, parsed, report, say, study_arguments

SETS = {"banking77": "banking77", "clinc150": "clinc150_domain", "emotion": "tweeteval_emotion", "ag_news": "ag_news"}
DRAWS = (1, 2, 3)
ROWS, CALIBRATING = 1500, 1500
PRECISION, COVERAGE = 0.9, 0.9
EXCEEDS = 0.05  # calibration errors that must be halved


def main() -> None:
    options = parsed(study_arguments(__doc__, "workbench_calibrate.jsonl"))
    study = Study(options.rows[0])
    for name in () if options.report else SETS:
        for draw in DRAWS:
            say(str(study.row(lambda a=(name, draw): run(*a), set=name, draw=draw)))
    lacking = [
        f"{n}, draw {d}" for n in SETS for d in DRAWS if not any((r["set"], r["draw"]) == (n, d) for r in study.rows)
    ]
    report("workbench_calibrate", command=command(), rows=study.rows, claims=claims(study.rows), lacking=lacking)


def run(name: str, draw: int) -> dict[str, object]:
    """One task, calibrated and measured."""
    folder = SETS[name]
    rows = shuffled(rows_of(folder, ("train", "validation")), draw)
    learned, held = rows[:ROWS], rows[ROWS : ROWS + CALIBRATING]
    bundle = HOME / f"{name}-{draw}-calibrated"
    shutil.rmtree(bundle, ignore_errors=True)
    shutil.copytree(trained(name, folder, learned, draw), bundle)
    files = {
        "held": write_rows(HOME / f"{name}-{draw}-held.jsonl", held),
        "test": write_rows(HOME / f"{name}-test.jsonl", rows_of(folder, ("test",))),
    }
    session = Session(bundle)
    task, source = session.tasks["task"], Source(path=files["held"], label="label")
    made = calibrated_task(session, "task", source, CalibrateRequest(goal=f"precision={PRECISION}", coverage=COVERAGE))
    before = Bundle.open(bundle).part("task")
    examples = read(Source(path=files["test"], label="label"), task)
    raw_outputs = outputs_of(session, examples.inputs)
    keep_beside(bundle, {"task": made.beside}, read=session.bundle)
    again = Session(bundle)
    same_outputs = outputs_of(again, examples.inputs)
    is_same = all(a.tobytes() == b.tobytes() for a, b in zip(raw_outputs, same_outputs, strict=True))
    is_same = is_same and all(
        np.array_equal(before[key], value) for key, value in Bundle.open(bundle).part("task").items()
    )
    calibration = again.records["task"].calibration
    assert calibration is not None
    few = again.predict(examples.inputs[:256], tasks=["task"])
    shown = [result.answers["task"] for result in few]
    test = answered(task, raw_outputs, examples.targets)
    scores = measures(calibration, test)
    (rule,) = [rule for rule in calibration.sets if rule.coverage == COVERAGE]
    probabilities = calibration.probabilities(task, test.logarithms)
    inside = probabilities >= rule.limit
    return {
        "rows": len(examples.targets),
        "error_before": error_of(test, Calibration().probabilities(task, test.logarithms)),
        "error_after": error_of(test, probabilities),
        "temperature": calibration.measured.get("temperature"),
        "accuracy": scores["accuracy"],
        "outputs_are_the_same": is_same,
        "labels_are_the_same": bool((probabilities.argmax(axis=1) == test.logarithms.argmax(axis=1)).all()),
        "answers_say_so": all(KEY in answer for answer in shown),
        "sure": scores["sure"],
        "precision_of_sure": scores["accuracy_of_sure"],
        "coverage": float((of_truth(test, probabilities) >= rule.limit).mean()),
        "labels_a_set": float(inside.sum(axis=1).mean()),
    }


def outputs_of(session: Session, inputs: list) -> list[np.ndarray]:
    """Raw outputs, some inputs at a time."""
    return [row for start in range(0, len(inputs), 512) for row in session.outputs("task", inputs[start : start + 512])]


def claims(rows: list[dict]) -> list[Claim]:
    """The targets of the issue."""
    by_set = {name: [row for row in rows if row["set"] == name] for name in SETS}
    by_set = {name: several for name, several in by_set.items() if several}
    over = [row for row in rows if row["error_before"] > EXCEEDS]
    ratio = statistics.mean(row["error_after"] / row["error_before"] for row in over) if over else float("nan")
    means = {n: statistics.mean(r["coverage"] for r in several) for n, several in by_set.items()}
    far = max(abs(mean - COVERAGE) for mean in means.values())
    short = {n: PRECISION - statistics.mean(r["precision_of_sure"] for r in several) for n, several in by_set.items()}
    worst = max(PRECISION - row["precision_of_sure"] for row in rows)
    unchanged = sum(row["outputs_are_the_same"] and row["labels_are_the_same"] for row in rows)
    each = "; ".join(
        f"{name}: " + ", ".join(f"{r['error_before']:.3f} -> {r['error_after']:.3f}" for r in several)
        for name, several in by_set.items()
    )
    return [
        Claim(
            id="workbench.calibration_error",
            text="expected calibration error after calibration, of what it was where it exceeded 0.05, mean of runs",
            target=0.5,
            value=ratio,
            unit="times",
            holds=bool(over) and ratio <= 0.5,
            note=f"{len(over)} of {len(rows)} runs exceeded 0.05. {each}.",
        ),
        Claim(
            id="workbench.calibration_scores",
            text="runs in which calibration changed no bit of a raw output, and no label, on the whole test split",
            target=len(rows),
            value=unchanged,
            unit="runs",
            holds=unchanged == len(rows),
        ),
        Claim(
            id="workbench.calibration_precision",
            text="how far the precision of sure answers on test is below the asked 0.9, worst set, mean of draws",
            target=0.02,
            value=max(short.values()),
            unit="share",
            holds=max(short.values()) <= 0.02,
            note=f"Worst single run {worst:.4f} below. Sure of: "
            + ", ".join(f"{n} {statistics.mean(r['sure'] for r in several):.3f}" for n, several in by_set.items())
            + ".",
        ),
        Claim(
            id="workbench.calibration_coverage",
            text="how far the coverage of sets on test is from the 0.9 that was asked, worst set, mean of draws",
            target=0.015,
            value=far,
            unit="share",
            holds=far <= 0.015,
            note=", ".join(f"{n} {mean:.4f}" for n, mean in means.items()) + ".",
        ),
    ]


if __name__ == "__main__":
    main()
