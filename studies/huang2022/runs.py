"""The runs of the study: every method on the same seven tasks, one checkpoint a run where tasks learn together.

Each run is some rows of a study, so that it goes on where it stopped; the tasks' files lie beside them.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from polyhead.project.recipes import Joint, Training, Weighting
from polyhead.project.strategies import Pooled, Prompted
from polyhead.project.tables import DataFile, TaskEntry
from polyhead.values import Value
from studies.huang2022.methods import SINGLE, Method
from studies.huang2022.nhc import LABELS, TASKS, Nhc, build
from studies.huang2022.nhc_files import digest_of, source_in, write
from studies.shared import runs
from studies.shared.runs import Facts, Rows, Say, short_digest, silent

if TYPE_CHECKING:
    from polyhead.deep.recipes.joint_loop import JointLoop
    from polyhead.encoder.data import TrunkData
    from polyhead.plan import Path
    from polyhead.train.data.prepared import Prepared

MAX_TOKENS = 64  # the longest headline has fewer
TOKENS = 15  # a headline's mean length, special tokens included
# One task a step, drawn by size; losses as they are
RECIPE = Joint(families=(), weighting=Weighting(scaled=False), micro_batches=1)


class Scale(Value):
    """How much is trained: all methods with a trunk that learns alike, and what stands over a frozen one."""

    tasks: tuple[str, ...] = TASKS
    size: int | None = None  # headlines of a category; None: as many as there are
    test_rows: int | None = None  # None: all
    trunk: Training = Training(epochs=5, patience=5, batch=16, learning_rate=2e-4, warmup=0.1)
    prompts: Training = Training(epochs=30, patience=6, learning_rate=3e-3)  # isolated ones, with pooler and head
    heads: Training = Training(epochs=30, patience=6)  # pooled attention


class Runs(runs.Runs):
    """Every method on the same tasks, made from the headlines as they are now: other headlines give other rows."""

    max_tokens, tokens = MAX_TOKENS, TOKENS

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
        """`trunk` stands in for minilm; `device` is where trunks learn."""
        super().__init__(data, folder, study, trunk=trunk, say=say)
        self.scale, self.device = scale or Scale(), device

    def run(self, method: Method, seed: int) -> None:
        """The rows of one method and seed."""
        if method.way in ("together", "conditioned"):
            self._together(method, seed)
            return
        train = self._pooled if _pools(method) else self._alone
        for task in self.scale.tasks:
            self._row(method, task, seed, partial(train, method, task, seed))

    def paths(self, method: Method) -> dict[str, Path]:
        """Every task's path over the pre-trained trunk."""
        from polyhead.project.strategies import prompt_groups
        from polyhead.project.strategies.base import with_shared_pooler

        both = [(self._entry(task).task(), method.strategy_of(task)) for task in self.scale.tasks]
        groups, paths = prompt_groups(both), {}
        for task, strategy in both:
            path = strategy.path(task, trunk=self.plain.digest, shape=self.plain.architecture, group=groups[task.name])
            paths[task.name] = with_shared_pooler(path) if method.shared_pooler else path
        return paths

    def costs(self, method: Method) -> Facts:
        """Serving all tasks: passes, layers and FLOPs (in plain passes) for one text of mean length, and parameters."""
        from polyhead.plan import merge
        from polyhead.plan.cost import flops, flops_by_sharers, layer_evaluations, parameters

        paths, shape = self.paths(method), self.plain.architecture
        if method.way == "alone":
            paths = {task: _over(path, f"{self.plain.digest} of {task}") for task, path in paths.items()}
        plan, added, times = merge(paths), 0, 1
        single = merge(dict(list(self.paths(SINGLE).items())[:1]))
        plain = flops(single, shape, self.tokens) - sum(flops_by_sharers(single, shape, self.tokens).values())
        spent = flops(plan, shape, self.tokens, folded=True)
        if method.way == "conditioned":
            from studies.huang2022.ca_mtl import count_of, flops_of

            added, times = count_of(list(paths), shape, tokens=self.max_tokens), len(paths)
            spent += (times - 1) * plain + times * flops_of(shape, self.tokens)
        layers = times * layer_evaluations(plan)
        return {
            "passes": layers // shape.layers,
            "layers": layers,
            "over_plain": round(spent / plain, 3),
            "parameters": parameters(plan, shape) + added,
            "learned": method.learned,
        }

    def prepared(self, method: Method, task: str, seed: int) -> Prepared:
        """The task's rows, under the method's strategy and numbers."""
        from polyhead.data.read import read
        from polyhead.train.data.prepared import Prepared, Split

        entry = self._entry(task)

        def split(name: str, file: object) -> Split:
            assert isinstance(file, str | DataFile)
            return Split(name=name, examples=read(entry.source(file, FilePath()), entry.task()))

        return Prepared(
            task=entry.task(),
            strategy=method.strategy_of(task),
            training=msgspec.structs.replace(self._training(method), seed=seed),
            team=None,
            train=split("train", entry.train),
            validation=split("validation", entry.validation),
            test=split("test", entry.test),
        )

    def size(self, task: str) -> int:
        """The task's training rows."""
        return len(self._nhc.tasks[0].train)

    def recipe(self, tasks: Sequence[str]) -> Joint:
        """How a trunk that learns with these tasks draws their rows; an epoch reads all of them once."""
        return RECIPE

    def measured(self, task: str, scores: Mapping[str, Mapping[str, float]]) -> Facts:
        """The scores of a task, as a row holds them."""
        test = scores["test"]
        return {
            "validation": scores["validation"]["accuracy"],
            "test": test["accuracy"],
            "recall": test["macro_recall"],
        }

    def settings(self, method: Method) -> str:
        """A short digest of what decides the method's runs; rows of other settings or data are other rows."""
        decides = (method, self.scale, RECIPE, self.max_tokens, self.precision(method))
        drawn = ("by uncertainty, over a frozen lower half",) if method.way == "conditioned" else ()
        return short_digest(*decides, self.plain.digest, self._rows, *drawn)

    def precision(self, method: Method) -> str:
        """The precision of the method's trunk on its device."""
        from polyhead.deep.nn.runtime import precision_of

        return precision_of(self._training(method), "cpu" if _pools(method) else self.device)

    def _training(self, method: Method) -> Training:
        frozen = self.scale.heads if _pools(method) else self.scale.prompts
        training = frozen if method.way == "frozen" else self.scale.trunk
        if method.learning_rate is None:
            return training
        return msgspec.structs.replace(training, learning_rate=method.learning_rate)

    def _entry(self, task: str) -> TaskEntry:
        folder = self._files / task
        return TaskEntry(
            name=task,
            kind="single_label",
            labels=LABELS,
            metric="accuracy",
            train=str(folder / "train.jsonl"),
            validation=str(folder / "validation.jsonl"),
            test=DataFile(path=str(folder / "test.jsonl"), limit=self.scale.test_rows),
        )

    @cached_property
    def _nhc(self) -> Nhc:
        return build(source_in(self.data), size=self.scale.size)

    @cached_property
    def _rows(self) -> str:
        return digest_of(self._nhc)

    @cached_property
    def _files(self) -> FilePath:
        """The folder of the tasks, written now if it is not whole."""
        folder = self.folder / f"nhc-{self._rows[:12]}"
        if not (folder / "card.json").exists():
            shutil.rmtree(folder, ignore_errors=True)
            write(self._nhc, folder)
        return folder

    def _together(self, method: Method, seed: int) -> None:
        """One training for all tasks: a row of its own with every score, then a row a task."""
        run = partial(self._learn, method, self.scale.tasks, seed)
        key: Facts = {"stage": "run", "method": method.name, "seed": seed}
        own = self.study.row(run, **key, settings=self.settings(method))["own"]
        assert isinstance(own, dict)
        for task in self.scale.tasks:
            self._row(method, task, seed, partial(dict, own[task]))

    def _alone(self, method: Method, task: str, seed: int) -> Facts:
        facts = self._learn(method, [task], seed)
        own = facts.pop("own")
        assert isinstance(own, dict)
        return {**own[task], **facts}

    def _learn(self, method: Method, tasks: Sequence[str], seed: int) -> Facts:
        """Trains the trunk with these tasks; the epoch with their best mean on validation counts for all of them."""
        prepared = [_from_random(self.prepared(method, task, seed)) for task in tasks]
        name = "-".join([method.name, *(tasks if len(tasks) == 1 else ()), str(seed), self.settings(method)])
        checkpoint = self.folder / "checkpoints" / f"{name}.checkpoint"
        clock = time.monotonic()
        loop = self._loop(method, prepared, checkpoint)
        self._start(loop, method)
        fitted = loop.learn(name).fitted
        seconds = round(time.monotonic() - clock, 1)
        own = {task: self.measured(task, scores) for task, scores in _scores(loop, prepared).items()}
        checkpoint.unlink(missing_ok=True)
        return {
            "own": own,
            "steps": loop.mixture.steps * len(fitted.history),
            "best_epoch": fitted.best_epoch,
            "score": round(fitted.score, 4),
            "seconds": seconds,
        }

    def _loop(self, method: Method, prepared: Sequence[Prepared], checkpoint: FilePath) -> JointLoop:
        from polyhead.deep.recipes.joint_loop import JointLoop
        from polyhead.train.runs import ProcessRank

        kind: Callable[..., JointLoop] = JointLoop
        if method.way == "conditioned":
            from studies.huang2022.ca_mtl import ConditionedCourse

            kind = ConditionedCourse
        elif method.prefix_rate is not None:
            from studies.huang2022.prefixes import PrefixCourse

            kind = partial(PrefixCourse, prefix_rate=method.prefix_rate)
        paths = self.paths(method)
        return kind(
            prepared,
            {p.task.name: paths[p.task.name] for p in prepared},
            self.plain,
            self.recipe([p.task.name for p in prepared]),
            training=prepared[0].training,
            precision=self.precision(method),
            checkpoint=checkpoint,
            place=ProcessRank(device=self.device),
            frozen=method.way == "frozen",
        )

    def _start(self, loop: JointLoop, method: Method) -> None:
        """Takes prompts and poolers from donors, as `train.starts` does, but each is trained once for all methods."""
        from polyhead.deep.recipes.joint_loop import take

        strategy = method.strategy
        if not isinstance(strategy, Prompted) or not strategy.donor_arrays():
            return
        for task, prepared in loop.prepared.items():
            take(loop.module.model.parts[task], strategy, self._donor(loop, prepared, strategy))

    def _donor(self, loop: JointLoop, prepared: Prepared, strategy: Prompted) -> Mapping[str, np.ndarray]:
        from safetensors.numpy import load_file, save_file

        from polyhead.deep.recipes.joint_loop import donor
        from polyhead.train.data.prepare import donor_task

        asking = msgspec.structs.replace(prepared, strategy=strategy)
        trained_alone = donor_task(asking)
        decides = (trained_alone.strategy, trained_alone.training, loop.precision, self.plain.digest, self._rows)
        digest = short_digest(*decides, size=12)
        file = self.folder / "donors" / f"{prepared.task.name}-{digest}.safetensors"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            temporary = file.with_suffix(".tmp")
            save_file(donor(loop, asking, None), temporary)
            temporary.replace(file)
        arrays: Mapping[str, np.ndarray] = load_file(file)
        return arrays

    def _pooled(self, method: Method, task: str, seed: int) -> Facts:
        """A pooler and a head over kept states of the frozen trunk."""
        from polyhead.train.data.extract import Extractor
        from polyhead.train.events import Events
        from polyhead.train.heads.run import train_task
        from studies.shared.steps import frozen_path, read_once

        prepared, clock = self.prepared(method, task, seed), time.monotonic()
        extractor = Extractor(self.plain, folder=self.folder / "features", precision=self.precision(method))
        read_once([prepared], extractor)
        path = frozen_path(prepared, extractor)
        trained = train_task(prepared, [path], extractor, checkpoints=None, events=Events())
        return {
            **self.measured(task, trained.scores),
            "best_epoch": trained.fitted.best_epoch,
            "seconds": round(time.monotonic() - clock, 1),
        }

    def _row(self, method: Method, task: str, seed: int, run: Callable[[], Facts]) -> None:
        def whole() -> Facts:
            common = short_digest(self.scale, RECIPE, self.max_tokens, self.plain.digest, self._rows)
            facts: Facts = {"rows": self.size(task), "device": self.device, "scale": common}
            return {**run(), **facts, **self.costs(method)}

        before = len(self.study.rows)
        key: Facts = {"stage": "task", "method": method.name, "seed": seed, "task": task}
        row = self.study.row(whole, **key, settings=self.settings(method))
        if len(self.study.rows) > before:
            measured = (name for name in ("validation", "test", "recall") if name in row)
            told = "  ".join(f"{name} {100 * float(str(row[name])):.1f}" for name in measured)
            self.say(f"{method.name:20s} seed {seed}  {task:15s} {told}")


def _pools(method: Method) -> bool:
    """Whether it reads kept states of the frozen trunk."""
    return method.way == "frozen" and isinstance(method.strategy, Pooled)


def _from_random(prepared: Prepared) -> Prepared:
    """Donors come from here (`Runs._start`), so that training must not train its own."""
    strategy = prepared.strategy
    if not isinstance(strategy, Prompted):
        return prepared
    return msgspec.structs.replace(prepared, strategy=strategy.without_donors())


def _scores(loop: JointLoop, prepared: Sequence[Prepared]) -> dict[str, dict[str, dict[str, float]]]:
    """Each task's metrics by split; texts that all tasks are tested on are read once for all of them."""
    from polyhead.deep.examples import module_outputs
    from polyhead.deep.recipes.joint_loop import joint_scores, text_examples

    tests = {p.task.name: p.test.examples for p in prepared if p.test is not None}
    first = next(iter(tests.values()))
    if any(test.inputs != first.inputs for test in tests.values()):
        return {p.task.name: joint_scores(loop, p) for p in prepared}
    scores = {p.task.name: joint_scores(loop, msgspec.structs.replace(p, test=None)) for p in prepared}
    texts = text_examples(first, prepared[0].task, loop.tokenizer)
    outputs = np.stack(module_outputs(loop.module.bound(*tests), texts))
    for p, own in zip(prepared, np.split(outputs, len(tests), axis=1), strict=True):
        scores[p.task.name]["test"] = tests[p.task.name].scores(p.task, list(own))
    return scores


def _over(path: Path, trunk: str) -> Path:
    from polyhead.deep.recipes.paths import with_trunk

    return with_trunk(path, trunk)
