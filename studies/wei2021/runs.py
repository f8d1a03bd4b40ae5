"""The runs behind Wei et al. 2021 at our scale: depths, full fine-tuning, students, half-depth models, searches.

Eight tasks; each run is one row of a study, so that it goes on where it stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from polyhead.project.strategies import Branch
from studies.shared.runs import Rows, Say, silent, whole_digest
from studies.wei2021.tasks import TASKS, TRAINING, Size, entries, prepared_for

if TYPE_CHECKING:
    from polyhead.deep.branch.run import Branches, TrainedBranch
    from polyhead.project.recipes import Training
    from polyhead.train.data.extract import Extractor
    from polyhead.train.data.prepared import Prepared, Split

SEEDS = (1, 2, 3)
STUDENTS = (1, 2)
TEACHERS = range(2, 5)  # depths of teachers, of 6 layers; the paper has 4 to 10 of 12. Students stand at their taps
MAX_TOKENS = 128


class Runs:
    """Everything that the runs share: the frozen trunk, its kept states, the tasks' examples, trained parts."""

    def __init__(
        self,
        data: FilePath,
        folder: FilePath,
        study: Rows,
        *,
        size: Size | None = None,
        training: Training = TRAINING,
        say: Say = silent,
    ) -> None:
        from polyhead.deep.nn.runtime import precision_of
        from polyhead.project.pretrained import load_trunk
        from polyhead.train.data.extract import Extractor

        self.data, self.study, self.size, self.training, self.say = data, study, size or Size(), training, say
        self.precision = precision_of(training)
        self.folder = folder / self.settings
        trunk = load_trunk("minilm", max_tokens=MAX_TOKENS)
        self.extractor: Extractor = Extractor(trunk, folder=folder / "features", precision=self.precision)
        self.layers = trunk.architecture.layers
        self.depths: Iterable[int] = range(1, self.layers + 1)
        self._prepared: dict[str, Prepared] = {}

    @property
    def settings(self) -> str:
        """A short digest of what decides every run: rows of other settings are other rows."""
        rows = {task: self.size.rows(task) for task in TASKS}
        content = [self.training, rows, self.size.validation, MAX_TOKENS, self.precision]
        return whole_digest(content)

    def grid(self, tasks: Iterable[str] = TASKS, seeds: Iterable[int] = SEEDS) -> None:
        """Full fine-tuning and every depth, of every task and seed."""
        for seed in seeds:
            for task in tasks:
                self._row(task, seed, "full", self.layers, 0, partial(self._full, task, seed))
                for layers in self.depths:
                    run = partial(self._teacher, task, seed, layers)
                    self._row(task, seed, "branch", layers, self.layers - layers, run)

    def students(self, tasks: Iterable[str] = TASKS, seeds: Iterable[int] = SEEDS) -> None:
        """Students of each task's teacher of the same seed, from both starts."""
        for seed in seeds:
            for task in tasks:
                depth = self.teacher_depth(task)
                for layers in (n for n in STUDENTS if n <= depth):
                    for init in ("teacher", "pretrained"):
                        run = partial(self._student, task, seed, depth, layers, init)
                        self._row(task, seed, "student", layers, self.layers - depth, run, init=init)

    def halves(self, tasks: Iterable[str] = TASKS, seeds: Iterable[int] = SEEDS) -> None:
        """Whole models of half the depth, distilled from the fully fine-tuned ones."""
        for seed in seeds:
            for task in tasks:
                self._row(task, seed, "half", self.layers // 2, 0, partial(self._half, task, seed))

    def searches(self, tasks: Iterable[str] = TASKS, seeds: Iterable[int] = SEEDS) -> None:
        """Successive halving over every depth, measured apart from the grid: states are computed anew for it."""
        for seed in seeds:
            for task in tasks:
                run = partial(self._searched, task, seed)
                self.study.row(run, task=task, seed=seed, method="search", init="", settings=self.settings)

    def teacher_depth(self, task: str) -> int:
        """The depth with the best validation score under the first seed, for all seeds; ties: fewer layers (2.a.6)."""
        scores = {
            int(str(row["layers"])): float(str(row["validation"]))
            for row in self.study.rows
            if (row["task"], row["seed"], row["method"]) == (task, SEEDS[0], "branch") and row["layers"] in TEACHERS
        }
        return min(scores, key=lambda layers: (-scores[layers], layers))

    def prepared(self, task: str) -> Prepared:
        """The task's examples: a part of train for training, another for every choice, and the reported split."""
        if task not in self._prepared:
            self._prepared[task] = prepared_for(entries(str(self.data))[task], self.size)
        return self._prepared[task]

    def _row(
        self,
        task: str,
        seed: int,
        method: str,
        layers: int,
        tap: int,
        run: Callable[[], dict[str, object]],
        *,
        init: str = "",
        **more: object,
    ) -> None:
        before = len(self.study.rows)
        key: dict[str, object] = {"task": task, "seed": seed, "method": method, "init": init, **more}
        row = self.study.row(run, **key, layers=layers, tap=tap, settings=self.settings)
        if len(self.study.rows) > before:
            self.say(
                f"{len(self.study.rows):4d}  {task:10s} seed {seed}  {method:8s} {init:10s} {layers} layers  "
                f"validation {100 * float(str(row['validation'])):.1f}  test {100 * float(str(row['test'])):.1f}  "
                f"{float(str(row['seconds'])):.0f} s"
            )

    def branches(self, task: str, seed: int, *, init: str = "teacher", rate: float | None = None) -> Branches:
        """The task's branches under this seed, their states kept; `rate` None: the study's."""
        from polyhead.deep.branch.run import Branches

        prepared = self.prepared(task)
        rate = self.training.learning_rate if rate is None else rate
        training = msgspec.structs.replace(self.training, seed=seed, learning_rate=rate)
        prepared = msgspec.structs.replace(prepared, training=training)
        strategy = msgspec.structs.replace(Branch(), init=init)
        return Branches(prepared, strategy, self.extractor, precision=self.precision)

    def fill(self, branches: Branches, layers: Iterable[int]) -> None:
        """Keeps the states at the taps of these depths, from one pass over the texts."""
        from polyhead.deep.features import wanted_taps

        paths = [branches.path(n) for n in layers]
        self.extractor.fill([w for p in paths for w in wanted_taps(branches.prepared, p, self.extractor)])

    def _teacher(self, task: str, seed: int, layers: int, rate: float | None = None) -> dict[str, object]:
        branches = self.branches(task, seed, rate=rate)
        self.fill(branches, self.depths)
        clock = _Clock()
        grown = branches.teacher(layers)
        facts = clock.facts()
        self._keep(task, seed, layers, grown, rate)
        return {**self._scores(branches, grown), **facts}

    def _student(self, task: str, seed: int, depth: int, layers: int, init: str) -> dict[str, object]:
        branches = self.branches(task, seed, init=init)
        self.fill(branches, [depth])
        teacher = self._kept(branches, task, seed, depth)
        clock = _Clock()
        grown = branches.student(teacher, layers)
        facts = clock.facts()
        return {"teacher_layers": depth, **self._scores(branches, grown), **facts}

    def _searched(self, task: str, seed: int) -> dict[str, object]:
        """CPU seconds of the whole search: the trunk's pass over train and validation, and every candidate."""
        import shutil

        from polyhead.deep.branch.run import halving
        from polyhead.train.data.extract import Extractor

        branches = self.branches(task, seed)
        folder = self.folder / "search-features"
        shutil.rmtree(folder, ignore_errors=True)
        branches.extractor = Extractor(self.extractor.data, folder=folder, precision=self.precision)
        kept, self.extractor = self.extractor, branches.extractor
        clock = _Clock()
        try:
            # The search needs no reported split; the clock of full fine-tuning leaves it out too.
            whole = branches.prepared
            branches.prepared = msgspec.structs.replace(whole, test=None)
            self.fill(branches, range(1, self.layers + 1))
            halved = halving(branches, range(1, self.layers + 1), [seed])
            facts = clock.facts()
            branches.prepared = whole
            self.fill(branches, [halved.best.layers])
            scores = self._scores(branches, halved.best)
        finally:
            self.extractor = kept
            shutil.rmtree(folder, ignore_errors=True)
        row = {"layers": halved.best.layers, "tap": self.layers - halved.best.layers, **scores, **facts}
        candidates = [{"layers": c.layers, "epochs": c.epochs, "score": c.score} for c in halved.candidates]
        self.say(f"      {task:10s} seed {seed}  search    {halved.best.layers} layers  {facts['cpu_seconds']} s")
        return {**row, "candidates": candidates}

    def _full(self, task: str, seed: int, rate: float | None = None) -> dict[str, object]:
        return self._whole(task, seed, self.layers, teacher=None, rate=rate)

    def _half(self, task: str, seed: int) -> dict[str, object]:
        teacher = self.folder / "parts" / f"{task}-full-{seed}.checkpoint"
        return self._whole(task, seed, self.layers // 2, teacher=teacher)

    def _whole(
        self, task: str, seed: int, layers: int, *, teacher: FilePath | None, rate: float | None = None
    ) -> dict[str, object]:
        from studies.wei2021.whole import train_whole

        branches = self.branches(task, seed, rate=rate)
        clock = _Clock()
        whole = train_whole(
            branches.prepared,
            branches.strategy,
            self.extractor,
            layers=layers,
            precision=self.precision,
            teacher=teacher,
        )
        facts = clock.facts()
        if teacher is None:
            whole.save(self.folder / "parts" / f"{task}-full-{seed}{_at(rate)}.checkpoint")
        return {**self._described(branches.prepared, whole.outputs, whole.fitted.best_epoch), **facts}

    def _scores(self, branches: Branches, grown: TrainedBranch) -> dict[str, object]:
        outputs = partial(branches.outputs, grown)
        return self._described(branches.prepared, outputs, grown.fitted.best_epoch)

    def _described(
        self, prepared: Prepared, outputs: Callable[[Split], list[np.ndarray]], best_epoch: int
    ) -> dict[str, object]:
        """Scores on validation and on the reported split."""
        task, metric = prepared.task, prepared.task.metric or ""
        facts = {}
        for split in prepared.splits[1:]:
            facts[split.name] = split.examples.scores(task, outputs(split))[metric]
        return {
            "metric": metric,
            **facts,
            **{f"{split.name}_rows": len(split.examples.targets) for split in prepared.splits},
            "best_epoch": best_epoch,
        }

    def _keep(self, task: str, seed: int, layers: int, grown: TrainedBranch, rate: float | None) -> None:
        from safetensors.numpy import save_file

        folder = self.folder / "parts"
        folder.mkdir(parents=True, exist_ok=True)
        save_file(grown.arrays, folder / f"{task}-{layers}-{seed}{_at(rate)}.safetensors")

    def _kept(self, branches: Branches, task: str, seed: int, layers: int) -> TrainedBranch:
        """The trained teacher of this depth and seed; raises OSError where its file is gone."""
        from safetensors.numpy import load_file

        file = self.folder / "parts" / f"{task}-{layers}-{seed}.safetensors"
        return branches.restored(branches.path(layers), load_file(file))


def _at(rate: float | None) -> str:
    """The end of a file's name, for a rate that was tried."""
    return "" if rate is None else f"-{rate:g}"


class _Clock:
    """Seconds since it was made: of all threads' processor time, and on the wall."""

    def __init__(self) -> None:
        self._cpu, self._wall = time.process_time(), time.monotonic()

    def facts(self) -> dict[str, object]:
        import torch

        return {
            "threads": torch.get_num_threads(),
            "cpu_seconds": round(time.process_time() - self._cpu, 1),
            "seconds": round(time.monotonic() - self._wall, 1),
        }
