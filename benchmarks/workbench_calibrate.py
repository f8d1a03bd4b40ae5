"""Calibration on four sets, three draws each: what `polyhead calibrate` promises, measured on whole test splits.

    python -m benchmarks.workbench_calibrate [--report] [--choose]

A task with the attention head learns from 1,000 rows, is calibrated on 2,000 others (half fit, half check) with the
goal of precision 0.9 and sets of coverage 0.9, and is measured on the whole test split, which neither saw. Goes on
where it stopped: rows are in runs/workbench_calibrate.jsonl.

The first run had clinc150 among its four sets and missed three targets: calibration promises something of rows like
those that it was made on, and that test split is of others. huffpost_news took its place, the first of `candidates`,
which looks at splits and at no result (`--choose` prints it). clinc150 is still run, and the claims' notes tell it.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter

import numpy as np

from benchmarks.workbench_rows import HOME, rows_of, shuffled, trained, write_rows
from polyhead.bundle.merge import merge_bundles
from polyhead.bundle.read import Bundle
from polyhead.certify.annotations import keep_annotations
from polyhead.data.columns import Source
from polyhead.data.read import read
from polyhead.engine.answers import AnswerTable
from polyhead.engine.session import Session
from polyhead.evaluate.calibrate import CalibrateRequest, measures
from polyhead.evaluate.calibrate_task import calibrated_task, measure_lines
from polyhead.evaluate.probabilities import error_of, label_scores_of, of_truth
from polyhead.project.strategies import Pooled
from polyhead.tasks.calibration import KEY, Calibration
from polyhead.values import Value
from studies.evidence import Estimate, distance, estimate, judged, most
from studies.results import Claim, Study
from studies.settings import DATA, command, parsed, report, say, study_arguments

SETS = {"emotion": "tweeteval_emotion", "banking77": "banking77", "huffpost": "huffpost_news", "ag_news": "ag_news"}
SHIFTED = {"clinc150": "clinc150_domain"}  # a set whose test split differs: reported, in no claim's value
DRAWS = (1, 2, 3)
ROWS, CALIBRATING = 1000, 2000
PRECISION, COVERAGE = 0.9, 0.9
LEAST_TEST = 2000  # rows: the standard error of a share of 0.9 is then half of what coverage may be off
WHY = (
    "Beside it clinc150, a set whose test split differs (18 % of its rows are out of scope, 1 % of those that the task "
    "learned from and was calibrated on), which was one of the four sets of the first run and missed the target"
)
ALL = SETS | SHIFTED
EXCEEDS = 0.05  # calibration errors that must be halved


def main() -> None:
    parser = study_arguments(__doc__, "workbench_calibrate.jsonl")
    parser.add_argument("--choose", action="store_true", help="print how far splits of sets are apart, and run nothing")
    options = parsed(parser)
    if options.choose:
        for folder, apart in candidates().items():
            say(f"{folder}: label shares {apart.shares:.4f}, lengths {apart.lengths:.4f}")
        return
    study = Study(options.rows[0])
    for name in () if options.report else ALL:
        if lacking(study.rows, name):
            for draw, row in run(name).items():
                say(str(study.row(row.copy, set=name, draw=draw)))
    missing = [f"{name}, draw {draw}" for name in ALL for draw in lacking(study.rows, name)]
    report("workbench_calibrate", command=command(), rows=study.rows, claims=claims(study.rows), lacking=missing)


class Apart(Value):
    """How far a set's test rows are from the others: 0 where they are alike, 1 where they have nothing in common."""

    shares: float  # half of the sum of the differences of the labels' shares
    lengths: float  # the largest difference of the distribution functions of characters

    @property
    def most(self) -> float:
        return max(self.shares, self.lengths)


def candidates() -> dict[str, Apart]:
    """Sets that may be among the four, those with the most alike splits first.

    They have one text and one of more than two labels a row, rows enough to learn and calibrate on, and LEAST_TEST test
    rows or more.
    """
    by_folder = {}
    for folder in sorted(path.parent.name for path in DATA.glob("*/meta.json")):
        meta = json.loads((DATA / folder / "meta.json").read_text(encoding="utf-8"))
        if meta["kind"] != "single_text" or len(meta["labels"]) < 3:
            continue
        learned, test = rows_of(folder, ("train", "validation")), rows_of(folder, ("test",))
        if len(learned) >= ROWS + CALIBRATING and len(test) >= LEAST_TEST:
            by_folder[folder] = apart(learned, test)
    return dict(sorted(by_folder.items(), key=lambda item: item[1].most))


def apart(rows: list[dict], others: list[dict]) -> Apart:
    """How far two lists of rows are apart."""
    labels = sorted({str(row["label"]) for row in (*rows, *others)})
    counts = [Counter(str(row["label"]) for row in side) for side in (rows, others)]
    shares = [np.array([count[label] for label in labels]) / count.total() for count in counts]
    lengths = [np.sort([len(row["text"]) for row in side]) for side in (rows, others)]
    at = np.union1d(*lengths)
    below = [np.searchsorted(side, at, side="right") / len(side) for side in lengths]
    return Apart(
        shares=float(np.abs(shares[0] - shares[1]).sum() / 2), lengths=float(np.abs(below[0] - below[1]).max())
    )


def lacking(rows: list[dict], name: str) -> list[int]:
    return [draw for draw in DRAWS if not any((row["set"], row["draw"]) == (name, draw) for row in rows)]


def run(name: str) -> dict[int, dict]:
    """Three tasks of one bundle, each learned and calibrated on rows of its own draw; one pass over the test split."""
    folder = ALL[name]
    rows = rows_of(folder, ("train", "validation"))
    drawn = {f"draw{draw}": shuffled(rows, draw) for draw in DRAWS}
    made = [
        trained(task, folder, several[:ROWS], number, Pooled(positions="attention"))
        for number, (task, several) in enumerate(drawn.items(), 1)
    ]
    root = HOME / f"{name}-calibrated"
    shutil.rmtree(root, ignore_errors=True)
    merge_bundles(root, [Bundle.open(bundle) for bundle in made])
    session = Session(root)
    inputs = read(
        Source(path=write_rows(HOME / f"{name}-test.jsonl", rows_of(folder, ("test",)))), session.tasks["draw1"]
    )
    before = {task: list(column.outputs) for task, column in session.columns(inputs.inputs).tasks.items()}
    wish = CalibrateRequest(goal=f"precision={PRECISION}", coverage=COVERAGE)
    kept = {}
    for task, several in drawn.items():
        source = Source(path=write_rows(HOME / f"{name}-{task}.jsonl", several[ROWS : ROWS + CALIBRATING]))
        kept[task] = calibrated_task(session, task, source, wish)
        calibration = kept[task].calibration
        assert calibration is not None
        say(f"{name} {task}: {measure_lines(session.tasks[task], calibration)}")
    keep_annotations(root, kept, read=session.bundle)
    again = Session(root)
    columns = again.columns(inputs.inputs)
    return {draw: measured(again, columns, f"draw{draw}", before[f"draw{draw}"], inputs.targets) for draw in DRAWS}


def measured(
    session: Session, columns: AnswerTable, name: str, before: list[np.ndarray], targets: list[np.ndarray]
) -> dict[str, object]:
    """What one calibrated task gives for the test split."""
    task, calibration, column = session.tasks[name], session.records[name].calibration, columns[name]
    assert calibration is not None
    outputs = list(column.outputs)
    test = label_scores_of(task, outputs, targets)
    probabilities, scores = calibration.probabilities(task, test.logarithms), measures(calibration, test)
    (rule,) = [rule for rule in calibration.sets if rule.coverage == COVERAGE]
    return {
        "rows": len(targets),
        "error_before": error_of(test, Calibration().probabilities(task, test.logarithms)),
        "error_after": error_of(test, probabilities),
        "temperature": calibration.measured.get("temperature"),
        "accuracy": scores["accuracy"],
        "outputs_are_the_same": all(a.tobytes() == b.tobytes() for a, b in zip(before, outputs, strict=True)),
        "labels_are_the_same": bool((probabilities.argmax(axis=1) == test.logarithms.argmax(axis=1)).all()),
        "answers_say_so": all(KEY in answer for answer in column.answers),
        "sure": scores["sure"],
        "precision_of_sure": scores["accuracy_of_sure"],
        "coverage": float((of_truth(test, probabilities) >= rule.limit).mean()),
        "labels_a_set": float((probabilities >= rule.limit).sum(axis=1).mean()),
    }


def claims(rows: list[dict]) -> list[Claim]:
    """The targets of the issue over the four sets; notes say what clinc150 gives."""
    shifted, rows = ([row for row in rows if (row["set"] in SHIFTED) == is_shifted] for is_shifted in (True, False))
    unchanged = sum(row["outputs_are_the_same"] and row["labels_are_the_same"] for row in rows)
    over = sum(row["error_before"] > EXCEEDS for row in rows)
    errors = "; ".join(
        f"{name}: " + ", ".join(f"{r['error_before']:.3f} -> {r['error_after']:.3f}" for r in rows if r["set"] == name)
        for name in SETS
    )
    worst = max(PRECISION - row["precision_of_sure"] for row in rows)
    return [
        judged(
            "workbench.calibration_error",
            "expected calibration error after calibration, of what it was where it exceeded 0.05, mean of runs on "
            "four sets whose splits are alike",
            error_ratio(rows),
            target=0.5,
            side="most",
            unit="times",
            digits=3,
            note=f"{over} of {len(rows)} runs exceeded 0.05. {errors}. {WHY}: {error_ratio(shifted).mean:.3f}",
        ),
        Claim(
            id="workbench.calibration_scores",
            text="runs in which calibration changed no bit of a raw output, and no label, on the whole test split",
            target=len(rows),
            value=unchanged,
            unit="runs",
            holds=unchanged == len(rows),
        ),
        judged(
            "workbench.calibration_precision",
            "how far the precision of sure answers on test is below the asked 0.9, worst of four sets "
            "whose splits are alike, mean of draws (clinc150, whose test rows are others: docs/project/log.md)",
            shortfall(rows),
            target=0.02,
            side="most",
            unit="share",
            digits=4,
            note=f"Worst single run {worst:.4f}. Precision {listed(rows, 'precision_of_sure')}; sure of "
            f"{listed(rows, 'sure')}. Below 0 is above what was asked. {WHY}: "
            f"{shortfall(shifted).mean:.4f}",
        ),
        judged(
            "workbench.calibration_coverage",
            "how far the coverage of sets on test is from the 0.9 that was asked, worst of these four "
            "sets, mean of draws",
            off(rows),
            target=0.015,
            side="most",
            unit="share",
            digits=4,
            note=f"{listed(rows, 'coverage')}. {WHY}: {off(shifted).mean:.4f}",
        ),
    ]


def error_ratio(rows: list[dict]) -> Estimate:
    return estimate(row["error_after"] / row["error_before"] for row in rows if row["error_before"] > EXCEEDS)


def of_sets(rows: list[dict], key: str, less: float = 0.0) -> dict[str, Estimate]:
    """By set, how far a number is below another; with 0, the number with its sign turned."""
    sets = [name for name in ALL if any(row["set"] == name for row in rows)]
    return {name: estimate(less - row[key] for row in rows if row["set"] == name) for name in sets}


def shortfall(rows: list[dict]) -> Estimate:
    return most(of_sets(rows, "precision_of_sure", PRECISION).values())


def off(rows: list[dict]) -> Estimate:
    return most(distance(one) for one in of_sets(rows, "coverage", COVERAGE).values())


def listed(rows: list[dict], key: str) -> str:
    return ", ".join(f"{name} {-one.mean:.4f}" for name, one in of_sets(rows, key).items())


if __name__ == "__main__":
    main()
