"""What bfloat16 and int8 change of each task of the eight-task example, paired with float32 on whole test splits.

    python -m benchmarks.precision_change                      three seeds; trains bundles that are not there
    python -m benchmarks.precision_change --try BUNDLE         a few rows of one bundle, printed and kept nowhere

Every precision answers the same rows with the same bundle on the same backend, so that a difference is the precision's
alone. The scales of int8 are found on texts of the training splits, as many of each task, which are not scored. Goes on
where it stopped: one row a seed, precision and task in runs/precision_change.jsonl.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable
from functools import lru_cache, partial
from pathlib import Path

import msgspec

from benchmarks.first_light_eight_tasks import PROJECT, SEEDS, polyhead
from polyhead.bundle.read import Bundle
from polyhead.data.read import read
from polyhead.engine.backends import open_runtime
from polyhead.engine.session import Session
from polyhead.evaluate.int8 import calibrated_scales
from polyhead.evaluate.scores import evaluations
from polyhead.project.tables import DataFile, Project, read_project
from polyhead.store.jobs.columns import RowInput
from studies.evidence import distance, estimate, judged
from studies.results import Claim, Study
from studies.settings import ROOT, RUNS, parsed, report, say, study_arguments

NAME = "precision_change"
BACKEND, EXACT = "openvino", "float32"
PRECISIONS = (EXACT, "bfloat16", "int8")
TEXTS = 320  # to calibrate on
FEW = 24  # rows, and texts to calibrate on, of a trial
FOLDER = (ROOT / PROJECT).parent


def main() -> None:
    parser = study_arguments(__doc__, f"{NAME}.jsonl")
    parser.add_argument("--try", dest="trial", type=Path, metavar="BUNDLE", help="a few rows of this bundle")
    options = parsed(parser)
    project = read_project(ROOT / PROJECT)
    if options.trial:
        trial(options.trial, project)
        return
    study = Study(options.rows[0])
    for seed in () if options.report else SEEDS:
        for precision in PRECISIONS:
            for entry in project.tasks:
                run_once = partial(run, seed, precision, entry.name, project)
                say(str(study.row(run_once, seed=seed, precision=precision, task=entry.name)))
    command, lacking = f"python -m benchmarks.{NAME}", list(missing(study.rows, project))
    report(NAME, command=command, rows=[*study.rows, *changes(study.rows)], claims=claims(study.rows), lacking=lacking)


def run(seed: int, precision: str, task: str, project: Project) -> dict[str, object]:
    return scored(opened(bundle_of(seed), precision, TEXTS), project, task)


def scored(session: Session, project: Project, task: str) -> dict[str, object]:
    result = evaluations(session, project, folder=FOLDER, only=[task])[0].score
    return {"metric": result.metric, "score": result.scores[result.metric], "test_rows": result.rows}


@lru_cache(maxsize=1)
def opened(root: Path, precision: str, texts: int) -> Session:
    bundle, runtimes = Bundle.open(root), partial(open_runtime, BACKEND)
    if precision != "int8":
        return Session(bundle, backend=runtimes(precision=precision))
    scales = calibrated_scales(bundle, calibration(texts), runtimes, show=lambda text: None)
    return Session(bundle, backend=runtimes(precision="int8", scales=scales))


def bundle_of(seed: int) -> Path:
    """The bundle of the example at this seed, trained now if it is not there, or not whole."""
    bundle, wanted = RUNS / f"tweets-{seed}", [entry.name for entry in read_project(ROOT / PROJECT).tasks]
    if not (bundle / "bundle.json").exists() or not {*wanted} <= Bundle.open(bundle).tasks.keys():
        kept = str(RUNS / "tweets-cache")
        polyhead("train", PROJECT, "--bundle", str(bundle), "--cache", kept, "--seed", str(seed))
    return bundle


def calibration(texts: int) -> list[RowInput]:
    """Inputs of the training splits, as many of each task."""
    project, rows = read_project(ROOT / PROJECT), []
    for entry in project.tasks:
        examples = read(entry.source(entry.train, FOLDER), entry.task())
        chosen = random.Random(entry.name).sample(range(len(examples.inputs)), texts // len(project.tasks))
        words = examples.words
        rows += [RowInput(input=examples.inputs[i], words=None if words is None else words[i]) for i in chosen]
    return rows


def trial(root: Path, project: Project) -> None:
    """Proves that it runs, on the tasks of the example that this bundle has."""
    there = Bundle.open(root).tasks
    few = [
        msgspec.structs.replace(entry, test=DataFile(path=str(entry.test), limit=FEW))
        for entry in project.tasks
        if entry.name in there and there[entry.name].task.labels == entry.labels
    ]
    project = msgspec.structs.replace(project, tasks=tuple(few))
    for precision in PRECISIONS:
        for entry in few:
            say(f"{precision}  {entry.name}  {scored(opened(root, precision, FEW), project, entry.name)}")


def changes(rows: list[dict]) -> list[dict]:
    """By precision and task the change against float32 in points: of each seed, and their mean."""
    scores = {(row["seed"], row["precision"], row["task"]): row["score"] for row in rows}
    values: dict[tuple[str, str], list[float]] = {}
    for (seed, precision, task), score in scores.items():
        if precision != EXACT and (seed, EXACT, task) in scores:
            change = 100 * (score - scores[seed, EXACT, task])
            values.setdefault((precision, task), []).append(change)
    return [
        {"precision": precision, "task": task, "changes": each, "mean_change": statistics.mean(each)}
        for (precision, task), each in values.items()
    ]


def missing(rows: list[dict], project: Project) -> Iterable[str]:
    there = {(row["seed"], row["precision"], row["task"]) for row in rows}
    for seed in SEEDS:
        for precision in PRECISIONS:
            for entry in project.tasks:
                if (seed, precision, entry.name) not in there:
                    yield f"seed {seed}, {precision}, {entry.name}"


def claims(rows: list[dict]) -> list[Claim]:
    """What both precisions change."""
    scores = [row for row in rows if "score" in row]
    possible = [claim(scores, "bfloat16", 0.2), claim(scores, "int8", 0.5)]
    return [known for known in possible if known is not None]


def claim(rows: list[dict], precision: str, target: float) -> Claim | None:
    changed = [row for row in changes(rows) if row["precision"] == precision]
    if not changed:
        return None
    means = {row["task"]: row["mean_change"] for row in changed}
    seeds = max(len(row["changes"]) for row in changed)
    found = estimate(
        statistics.mean(row["changes"][seed] for row in changed)
        for seed in range(seeds)
        if all(len(row["changes"]) > seed for row in changed)
    )
    size = statistics.mean(abs(change) for change in means.values())
    worst = min(means, key=lambda task: means[task])
    short = {"bfloat16": "bf16"}.get(precision, precision)
    return judged(
        f"engine.{short}-change",
        f"{precision} minus float32 in each task's metric, average of {len(means)} tasks of the tweets example on "
        f"whole test splits, {seeds} seeds, paired, {BACKEND}; mean size of a task's change {size:.2f}, largest loss "
        f"{worst} {means[worst]:+.2f}; scales found on {TEXTS} training texts",
        distance(found),
        target=target,
        side="most",
        digits=4,
        note=f"the average change is {found.mean:+.3f}",
    )


if __name__ == "__main__":
    main()
