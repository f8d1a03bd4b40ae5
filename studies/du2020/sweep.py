"""Two text claims of Du et al. 2020 at our scale: how many layers to average, and whether to shrink before or after it.

On the plain frozen trunk, attention over the mean of the last m layers: m from one to all of them in float16; then,
at one m, uint8 and one bit a dimension, each layer on its own before the mean, or the mean itself. A codec that acts
before the mean keeps m values for each that one behind it keeps.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from polyhead.errors import DataError
from polyhead.project.strategies import Pooled
from polyhead.values import Value
from studies.du2020.leave_out import LeaveOut, Settings
from studies.shared import runs
from studies.shared.drawing import sheet
from studies.shared.rows import deviation_of, rows_of_files, typed_rows
from studies.shared.runs import Facts, Rows, Say, silent, whole_digest
from studies.shared.steps import head, read_once

if TYPE_CHECKING:
    from polyhead.encoder.data import TrunkData
    from studies.shared.data import Set

MAKE = "python -m studies du2020 run-sweep"
LAYERS = (1, 2, 3, 4, 5, 6)  # of a trunk that has six
AT = 4  # layers of the mean around which codecs stand
CODECS: tuple[str, ...] = ("uint8", "sign")


def _pooled(of: int, codec: str = "float16", *, before: bool = False) -> Pooled:
    return Pooled(layers="mean", of=of, positions="attention", codec=codec, codec_before_mean=before)


def _name(codec: str, *, before: bool) -> str:
    return f"{codec} {'before' if before else 'after'}"


VARIANTS: dict[str, Pooled] = {f"m = {of}": _pooled(of) for of in LAYERS} | {
    _name(codec, before=before): _pooled(AT, codec, before=before) for codec in CODECS for before in (True, False)
}


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """One variant on one task; other keys of its row are of no use to the table."""

    name: str
    task: str
    rows: int  # training rows
    seed: int
    validation: float  # accuracy, 0 to 1
    test: float
    digest: str = ""  # of the study's settings


class SweepLine(Value):
    """One variant: accuracy of each task in percent, means over seeds; their average, and its spread over seeds."""

    name: str
    scores: dict[str, float]
    average: float
    deviation: float | None
    seeds: int


class Sweep(runs.Runs):
    """The runs: each task's texts are read once a seed for all variants; every row is one head."""

    def __init__(
        self,
        data: Path,
        folder: Path,
        study: Rows,
        settings: Settings | None = None,
        *,
        trunk: TrunkData | None = None,
        say: Say = silent,
    ) -> None:
        self.settings = settings or Settings()
        self.max_tokens = self.settings.max_tokens
        super().__init__(data, folder, study, trunk=trunk, say=say)

    @property
    def digest(self) -> str:
        """Rows of other settings are other rows."""
        return whole_digest([msgspec.structs.replace(self.settings, seed=0), VARIANTS])

    def run(self, dataset: Set, seed: int) -> None:
        """All variants on one task; what is there already is not run again."""
        from polyhead.deep.nn.runtime import precision_of
        from polyhead.train.data.extract import Extractor

        keys = {name: self._key(name, dataset, seed) for name in VARIANTS}
        lacking = [name for name, key in keys.items() if not self.rows_of(key)]
        folder = self.folder / "features" / f"{dataset.task}-{seed}"
        if not lacking:
            shutil.rmtree(folder, ignore_errors=True)  # of a run that was stopped after its last row
            return
        seeded = msgspec.structs.replace(self.settings, seed=seed)
        tasks, heads = LeaveOut(self.data, self.folder, self.study, seeded, trunk=self.plain), seeded.heads
        extractor = Extractor(self.plain, folder=folder, precision=precision_of(heads))
        prepared = {name: tasks.prepared(dataset, VARIANTS[name], heads) for name in lacking}
        read_once(list(prepared.values()), extractor)
        for name in lacking:
            row = self.study.row(partial(head, prepared[name], extractor), **keys[name])
            self.say(f"{name:14s} {dataset.task:8s} seed {seed}  {row['test']:.4f}")
        shutil.rmtree(folder, ignore_errors=True)

    def _key(self, name: str, dataset: Set, seed: int) -> Facts:
        run = {"name": name, "task": dataset.task, "rows": self.settings.rows, "seed": seed}
        return {"stage": "sweep", **run, "digest": self.digest}


def read_sweep(paths: Iterable[Path | str]) -> tuple[Swept, ...]:
    """All runs of these files; raises DataError where they hold none."""
    raw, source = rows_of_files(paths, make=MAKE)
    runs = swept_of(raw)
    if not runs:
        raise DataError(f"{source} holds no run", allowed="rows of stage sweep")
    return runs


def swept_of(raw: Iterable[Mapping[str, Any]]) -> tuple[Swept, ...]:
    """Each run once; where rows have several settings, those that came last count."""
    runs = typed_rows(raw, Swept, ("sweep",))
    last = runs[-1].digest if runs else ""
    return tuple({(run.name, run.task, run.seed): run for run in runs if run.digest == last}.values())


def missing(runs: Sequence[Swept], tasks: Iterable[str] = (), seeds: Iterable[int] = ()) -> tuple[str, ...]:
    """Variants that lack a task under some seed, of those that any run has and of these."""
    tasks = dict.fromkeys([*tasks, *(run.task for run in runs)])
    seeds = sorted({*seeds, *(run.seed for run in runs)})
    there = {(run.name, run.task, run.seed) for run in runs}
    lacking = {
        name: [task for task in tasks if any((name, task, seed) not in there for seed in seeds)] for name in VARIANTS
    }
    return tuple(f"{name}: {', '.join(missed)}" for name, missed in lacking.items() if missed)


def compared(runs: Sequence[Swept]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Tasks and seeds that can be compared: every variant has each task under each seed. As many runs as there are.

    Raises DataError where there are none.
    """
    there = {(run.name, run.task, run.seed) for run in runs}
    tasks, seeds = dict.fromkeys(run.task for run in runs), sorted({run.seed for run in runs})
    whole = {(t, s) for t in tasks for s in seeds if all((name, t, s) in there for name in VARIANTS)}
    choices = [
        (tuple(t for t in tasks if all((t, s) in whole for s in chosen)), chosen)
        for count in range(len(seeds), 0, -1)
        for chosen in itertools.combinations(seeds, count)
    ]
    best = max(choices, key=lambda choice: len(choice[0]) * len(choice[1]), default=((), ()))
    if not best[0]:
        raise DataError("no task has runs of every variant under one seed", do="run the study further")
    return best


def sweep_lines(runs: Sequence[Swept], *, split: str = "test") -> tuple[SweepLine, ...]:
    """Variant by variant, over the tasks and seeds that `compared` has."""
    tasks, seeds = compared(runs)
    scores = {(run.name, run.task, run.seed): 100 * float(getattr(run, split)) for run in runs}
    lines = []
    for name in VARIANTS:
        averages = [statistics.mean(scores[name, task, seed] for task in tasks) for seed in seeds]
        lines.append(
            SweepLine(
                name=name,
                scores={task: statistics.mean(scores[name, task, seed] for seed in seeds) for task in tasks},
                average=statistics.mean(averages),
                deviation=deviation_of(averages),
                seeds=len(seeds),
            )
        )
    return tuple(lines)


def order(runs: Sequence[Swept], codec: str, *, split: str = "test") -> list[float]:
    """What shrinking before the mean gains over shrinking it, by seed, in points of the average over tasks."""
    return gains_over(runs, _name(codec, before=True), _name(codec, before=False), split=split)


def gains_over(runs: Sequence[Swept], name: str, other: str, *, split: str = "test") -> list[float]:
    """How much higher one variant's average over tasks is than another's, by seed, in points."""
    tasks, seeds = compared(runs)
    scores = {(run.name, run.task, run.seed): 100 * float(getattr(run, split)) for run in runs}
    return [statistics.mean(scores[name, t, seed] - scores[other, t, seed] for t in tasks) for seed in seeds]


def plot_sweep(lines: Sequence[SweepLine], path: Path | str, *, split: str = "test") -> None:
    """The average by m with its spread, and the codecs' as lines across (.svg, .png or .pdf)."""
    of = {line.name: line for line in lines}
    known = [m for m in LAYERS if f"m = {m}" in of]
    figure, axes = sheet(6.4, 4.2)
    means = [of[f"m = {m}"] for m in known]
    spreads = [line.deviation or 0.0 for line in means]
    axes.errorbar(known, [line.average for line in means], yerr=spreads, marker="o", capsize=3, label="float16")
    for number, name in enumerate(name for name in of if not name.startswith("m =")):
        line = of[name]
        axes.errorbar(
            [AT + 0.12 * (number + 1)],
            [line.average],
            yerr=[line.deviation or 0.0],
            marker="s",
            capsize=3,
            linestyle="none",
            label=f"{name} the mean",
        )
    axes.set_xticks(known)
    axes.set(
        xlabel="m, last layers of the mean",
        ylabel=f"{split} accuracy in %, mean of {len(lines[0].scores)} tasks",
        title=f"plain frozen trunk, attention over the mean of m layers ({lines[0].seeds} seeds)",
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)
