"""The runs of the study: every method and sampling on the same tasks, one task a step, one checkpoint for all of them.

Each run is some rows of a study, so that it goes on where it stopped.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import msgspec

from polyhead.project.recipes import Joint, Training, Weighting
from polyhead.tasks.kinds import kind_of
from polyhead.values import Value
from studies.huang2022.counts import BERT_BASE
from studies.shared import runs
from studies.shared.data import Set, entry_of
from studies.shared.glue import GLUE, prepared_sets
from studies.shared.runs import Facts, Rows, Say, short_digest, silent
from studies.shared.steps import learn
from studies.stickland2019.counts import costs, paths_of, strategy_of
from studies.stickland2019.methods import LEARNED, SAMPLINGS, SHARED, Method

if TYPE_CHECKING:
    from polyhead.encoder.data import TrunkData
    from polyhead.plan import Path
    from polyhead.train.data.prepared import Prepared

# SWAG is not here; its place has another set of everyday situations with answers to choose from
QUESTIONS = (Set(folder="squad_v1", name="squad", test="validation"), Set(folder="socialiqa", test="validation"))
FROZEN_RATE = 1e-3  # learning rate of parts where the trunk does not learn


class Scale(Value):
    """How much is trained: 992 updates of 16 rows, which read the sets once where sampling is proportional.

    The paper reads them twice, in 25 epochs of 2,400 updates of 32 rows at a learning rate of 2e-5. Twice the updates
    of half the rows cost the same; with 496 of 32 rows validation still rose at the end.
    """

    sets: tuple[Set, ...] = GLUE
    rows: int = 2000  # training rows, the mean of the sets
    natural: bool = True  # each has its share by the size of its train file; else all have as many
    validation: int = 100  # rows of each train file that are set aside for the choice of the epoch
    test: int | None = None  # rows of the reported split at most, evenly spaced; None: all
    max_tokens: int = 128
    steps: int = 124  # an epoch
    training: Training = Training(epochs=8, patience=8, batch=16, learning_rate=2e-4, warmup=0.1)


ON_QUESTIONS = Scale(
    sets=QUESTIONS,
    natural=False,
    max_tokens=256,
    steps=50,
    training=Training(epochs=5, patience=5, batch=16, learning_rate=2e-4, warmup=0.1),
)


class Runs(runs.Runs):
    """Every method and sampling on the same tasks."""

    def __init__(
        self,
        data: FilePath,
        folder: FilePath,
        study: Rows,
        *,
        scale: Scale | None = None,
        trunk: TrunkData | None = None,
        device: str = "cpu",
        say: Say = silent,
    ) -> None:
        """`trunk` stands in for minilm; `device` is where it learns."""
        from polyhead.deep.nn.runtime import precision_of

        super().__init__(data, folder, study, trunk=trunk, say=say)
        self.scale, self.device = scale or Scale(), device
        self.max_tokens = self.scale.max_tokens
        self.precision = precision_of(self.scale.training, device)

    def run(self, method: Method, sampling: str, seed: int) -> None:
        """A row of the run with all scores and its curve, and a row a task."""
        key: Facts = {"method": method.name, "sampling": sampling, "seed": seed}
        settings = self.settings(method, sampling)
        names = [dataset.task for dataset in self.scale.sets]
        run = self.study.row(
            partial(self._learn, method, sampling, seed), stage="run", **key, tasks=names, settings=settings
        )
        known = {"scale": self._scale, "device": self.device, **self._costs(method)}
        own, metrics = run["own"], run["metrics"]
        assert isinstance(own, dict) and isinstance(metrics, dict)
        for dataset in self.scale.sets:
            task = entry_of(self.data, dataset).task()
            facts: Facts = {
                "metric": kind_of(task).default_metric(task),
                **own[dataset.task],
                "metrics": metrics[dataset.task],
                **known,
            }
            row = self.study.row(partial(dict, facts), stage="task", **key, task=dataset.task, settings=settings)
            self.say(
                f"{method.name:20s} {sampling:12s} seed {seed}  {dataset.task:9s} "
                f"validation {100 * float(str(row['validation'])):.1f}  test {100 * float(str(row['test'])):.1f}"
            )

    def prepared(self, method: Method, seed: int) -> list[Prepared]:
        """The tasks, each with its share of the rows."""
        training = msgspec.structs.replace(self.scale.training, seed=seed)
        if method.base == "frozen":
            training = msgspec.structs.replace(training, learning_rate=FROZEN_RATE)
        return prepared_sets(
            self.data,
            self.scale.sets,
            rows=self.scale.rows,
            natural=self.scale.natural,
            validation=self.scale.validation,
            test=self.scale.test,
            strategy=strategy_of(method, self.plain.architecture),
            training=training,
        )

    def paths(self, method: Method) -> dict[str, Path]:
        """Every task's path over the pre-trained trunk."""
        tasks = [entry_of(self.data, dataset).task() for dataset in self.scale.sets]
        return paths_of(method, self.plain.architecture, tasks, trunk=self.plain.digest)

    def recipe(self, sampling: str, *, share: float = 1.0) -> Joint:
        """One task a step, losses as they are, heads a task's own; of the updates this share."""
        return Joint(
            families=(),
            sampling=SAMPLINGS[sampling],
            weighting=Weighting(scaled=False),
            micro_batches=1,
            steps=max(1, round(share * self.scale.steps)),
        )

    def settings(self, method: Method, sampling: str) -> str:
        """A short digest of what decides the method's runs; rows of other settings or data are other rows."""
        decides = (method, self.recipe(sampling), self.scale, FROZEN_RATE, self.precision)
        return short_digest(*decides, self.plain.digest, self._rows)

    @cached_property
    def _scale(self) -> str:
        """A short digest of what all methods have in common."""
        return short_digest(self.scale, FROZEN_RATE, self.plain.digest, self._rows)

    @cached_property
    def _rows(self) -> list[str]:
        """Digests of what is trained on and evaluated."""
        return [split.digest for prepared in self.prepared(SHARED, 1) for split in prepared.splits]

    def _learn(self, method: Method, sampling: str, seed: int) -> Facts:
        """One trunk of all tasks; or one of each, with the updates that its rows are of all rows."""
        prepared, paths = self.prepared(method, seed), self.paths(method)
        name = f"{method.name}-{sampling}-{seed}-{self.settings(method, sampling)}"
        if method.base != "single":
            return self._trained(method, seed, name, prepared, [], self.recipe(sampling), paths)
        rows = [len(alone.train.examples.targets) for alone in prepared]
        runs: list[Facts] = []
        for alone, size in zip(prepared, rows, strict=True):
            task, recipe = alone.task.name, self.recipe(sampling, share=size / sum(rows))
            others = [other for other in prepared if other is not alone]
            own = {task: paths[task]}
            runs.append(self._trained(method, seed, f"{name}-{task}", [alone], others, recipe, own))
        return _together(runs)

    def _trained(
        self,
        method: Method,
        seed: int,
        name: str,
        prepared: Sequence[Prepared],
        held: Sequence[Prepared],
        recipe: Joint,
        paths: Mapping[str, Path],
    ) -> Facts:
        from polyhead.train.runs import ProcessRank

        folder = self.folder / "trunks" / name
        log = folder.with_name(f"{name}.jsonl")
        facts = learn(
            prepared,
            self._start(seed) if method.base == "scratch" else self.plain,
            recipe,
            held=held,
            folder=folder,
            label=name,
            precision=self.precision,
            own_heads=True,
            paths=paths,
            frozen=method.base == "frozen",
            place=ProcessRank(device=self.device),
        )
        facts["curve"] = curve_of(log)
        log.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        return facts

    def _start(self, seed: int) -> TrunkData:
        """The trunk with random weights."""
        import torch

        from polyhead.deep.nn.trunk import Trunk
        from polyhead.train.runs import stream

        generator = torch.Generator().manual_seed(stream(seed, "scratch"))
        arrays = Trunk(self.plain.architecture, generator=generator).to_arrays()
        return msgspec.structs.replace(self.plain, arrays=arrays)

    def _costs(self, method: Method) -> Facts:
        """What serves the study's tasks, by our trunk; the parameters by BERT-base too."""
        tasks = len(self.scale.sets)
        counted = costs(method, self.plain.architecture, tasks=tasks)
        return {
            "ratio": round(counted.ratio, 4),
            "ratio_bert_base": round(costs(method, BERT_BASE, tasks=tasks).ratio, 4),
            "layers": counted.layers,
            "share": round(counted.share, 4),
            "new_layers": counted.new_layers,
            "learned": LEARNED[method.base],
        }


def curve_of(log: FilePath) -> list[dict[str, object]]:
    """The epochs in a training's log: step, mean of the tasks' validation scores, and all metrics by task."""
    events = [msgspec.json.decode(line) for line in log.read_bytes().splitlines()]
    epochs = {event["step"]: event for event in events if event["event"] == "epoch"}  # a run that went on repeats some
    return [
        {"step": step, "score": round(event["score"], 4), "validation": event["validation"]}
        for step, event in sorted(epochs.items())
    ]


def _together(runs: Sequence[Mapping[str, Any]]) -> Facts:
    """The facts of runs of one task each as those of one run; it has no curve, since their updates are not the same."""
    facts: Facts = {name: sum(run[name] for run in runs) for name in ("sets", "dropped", "steps")}
    facts["seconds"] = round(sum(run["seconds"] for run in runs), 1)
    facts["score"] = round(statistics.mean(run["score"] for run in runs), 4)
    for name in ("examples", "validation", "own", "metrics"):
        facts[name] = {task: value for run in runs for task, value in run[name].items()}
    facts["best_epoch"] = {task: run["best_epoch"] for run in runs for task in run["own"]}
    return {**facts, "curve": []}
