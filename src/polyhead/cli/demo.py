"""`polyhead demo`."""

from __future__ import annotations

import contextlib
import importlib.resources
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from polyhead.bundle.read import Bundle
from polyhead.certify import Requester, remove_from
from polyhead.cli.answer_lines import answered_lines
from polyhead.cli.command import option, verb
from polyhead.cli.evaluate_lines import computed_by, fact_lines
from polyhead.cli.options import Folder
from polyhead.cli.output import Printer, counted, indented, number, text_table
from polyhead.engine.session import Session
from polyhead.evaluate.on_project import EvaluatedTask
from polyhead.evaluate.report.evaluation import BASELINES
from polyhead.evaluate.scores import SplitScore, evaluations
from polyhead.progress import duration
from polyhead.project.tables import DataFile, Project, read_project
from polyhead.text.tokenize import Input
from polyhead.train.events import Events
from polyhead.train.run import train_project

MESSAGES = (
    "You charged my card twice for order #48213!! Refund me today or I call my bank",
    "just wanted to say the desk lamp is lovely, thank you!",
    "Hi, my AeroBrew kettle from order PH-20931 arrived yesterday with a cracked lid. Can Maria send me a new one?",
)
PAIR = ("My kettle arrived broken, I want my money back.", "The kettle came damaged. Please refund me.")

REPEATS = 10  # of a timed call, the quickest of which counts
LARGE = 2**20  # bytes of files that a copy of a bundle links to: they never change
REMOVED = "repeat_contact"


@verb("demo")
def command(*, folder: Folder = option("Where to write the bundle.", "demo-bundle"), printer: Printer) -> Any:
    """Train, evaluate and answer eight tasks on the packaged sample, over one encoder.

    Needs no network, and takes about a minute on two cores. Features are stored next to the bundle, so a second
    run is quick. At the end it measures many tasks beside one, and removes a task from a copy of the bundle.
    """
    began = time.monotonic()
    with sample_project(folder) as (project, sample):
        texts = " and ".join(_counts(project, sample))
        tasks = counted(len(project.tasks), "task")
        printer.lines([f"1. Train {tasks} on {texts}, over one frozen encoder", ""])
        events = Events(say=printer.line, show=printer.show)
        outcome = train_project(project, folder=sample, events=events, report=True)
        printer.lines(["", "2. Score the bundle on the whole test split, with fresh answers", ""])
        session = Session(project.bundle)
        scored = [
            EvaluatedTask(evaluation=evaluation, session=session)
            for evaluation in evaluations(session, project, folder=sample, show=printer.show)
        ]
        scores = [each.evaluation.score for each in scored]
        printer.show("")
        printer.lines(text_table(_scores(scores, session.bundle)))
        printer.lines([line for fact in fact_lines(scored, computed_by(session)) for line in ("", fact)])
    heading = "3. Answer every task that fits an input, with one encoder pass a text (a small sample: some are wrong)"
    printer.lines(["", heading, ""])
    inputs: list[Input] = [*((message,) for message in MESSAGES), PAIR]
    results = session.predict(inputs)
    for text, result in zip(inputs, results, strict=True):
        printer.lines([*indented(answered_lines(text, result.to_dict())), ""])
    printer.lines(["4. What many tasks cost beside one, and a task that is removed", ""])
    printer.lines(indented([_times(session, inputs[0], list(results[0].answers)), *_removal(Path(folder)), ""]))
    printer.line(f"done in {duration(time.monotonic() - began)}; the bundle is {folder}. Next:")
    printer.lines(
        [f"  polyhead predict {folder} 'your own text'", f"  polyhead serve {folder}", f"  polyhead inspect {folder}"]
    )
    return {"training": outcome, "scores": scores, "answers": results}


@contextlib.contextmanager
def sample_project(folder: str) -> Iterator[tuple[Project, Path]]:
    """The packaged sample's project with its bundle in `folder`, and where its files are."""
    import msgspec

    with importlib.resources.as_file(importlib.resources.files("polyhead.sample")) as sample:
        project = read_project(sample / "polyhead.toml")
        yield msgspec.structs.replace(project, bundle=str(Path(folder).resolve())), sample


def _times(session: Session, text: Input, names: Sequence[str]) -> str:
    """How long the first message takes with one task and with all that answer it."""

    def quickest(tasks: Sequence[str]) -> float:
        times = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            session.predict([text], tasks=tasks)
            times.append(time.perf_counter() - began)
        return 1000 * min(times)

    single, every = quickest(names[:1]), quickest(names)
    count = len(names)
    return (
        f"the first text: {single:.1f} ms with 1 task, {every:.1f} ms with {count}; {count} models of their own: "
        f"about {count * single:.1f} ms"
    )


def _removal(bundle: Path) -> list[str]:
    """What a removal proves, tried on a copy: the demo's bundle keeps its tasks."""
    with tempfile.TemporaryDirectory(dir=bundle.resolve().parent, prefix=".demo-") as folder:
        copy = Path(folder) / bundle.name
        shutil.copytree(bundle, copy, copy_function=_linked)
        certificate = remove_from(copy, [REMOVED], by=Requester()).certificate
    proven = len(certificate.before) - len(certificate.unproven)
    return [
        f"removed '{REMOVED}' from a copy: the {proven} other tasks gave the same bits as before on "
        f"{certificate.probes:,} stored inputs,",
        "which a certificate in the bundle records (polyhead tasks certificate)",
    ]


def _linked(source: str, target: str) -> None:
    """Copies a file, or links to it where it is large and the disk can."""
    if os.path.getsize(source) >= LARGE:
        with contextlib.suppress(OSError):
            os.link(source, target)
            return
    shutil.copy2(source, target)


def _counts(project: Project, sample: Path) -> list[str]:
    """`680 customer-support messages`, `266 pairs of them`: counted in the files that the tasks read."""
    files = {e.train.path: e.pair for e in project.tasks if isinstance(e.train, DataFile)}
    counts = []
    for name, pair in files.items():
        rows = sum(bool(line.strip()) for line in (sample / name).read_bytes().splitlines())
        counts.append(f"{rows:,} customer-support messages" if pair == "none" else f"{rows:,} pairs of them")
    return counts


def _scores(scores: Sequence[SplitScore], bundle: Bundle) -> list[list[object]]:
    """Scores beside those of the baselines, which training measured on the same rows."""
    rows: list[list[object]] = [["task", "test rows", "metric", "score", *BASELINES]]
    for score in scores:
        simple = bundle.baselines(score.task, score.split)
        values = [score.scores, *(simple.get(name, {}) for name in BASELINES)]
        beside = [number(metrics.get(score.metric), ".3f") for metrics in values]
        rows.append([score.task, f"{score.rows:,}", score.metric, *beside])
    return rows
