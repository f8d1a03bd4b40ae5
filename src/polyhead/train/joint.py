"""The joint recipe: a trunk and the parts of several tasks learn together, from single-task micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path as FilePath

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from polyhead.errors import ConfigError, TrainError
from polyhead.model import Model, TextBatch
from polyhead.nn.trunk import Noise, Trunk
from polyhead.plan import TRUNK, Path, merge
from polyhead.project import Training
from polyhead.recipe import Joint
from polyhead.sharing.branch import BranchPart, arrays_of_part, make_part
from polyhead.sharing.pooled import PooledPart
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.read import Examples
from polyhead.tasks.task import Task
from polyhead.text.tokenise import Tokeniser
from polyhead.train.devices import Place, devices_of, gathered, on
from polyhead.train.events import Events, Meter
from polyhead.train.examples import outputs_of, tell_unread
from polyhead.train.fine_tune import TextExamples
from polyhead.train.fit import EPSILON, Batch, Curriculum, Fitted, stream
from polyhead.train.joint_paths import with_trunk
from polyhead.train.prepare import Prepared, Split
from polyhead.train.sampling import Mixture
from polyhead.train.smooth import normalise_heads, settle_heads, smoothed
from polyhead.train.weighting import Objective
from polyhead.trunk_data import TrunkData


class Together(nn.Module):
    """A trunk and the parts of several tasks; tasks whose paths name one owner share its part.

    The trunk computes under bf16 autocast where asked; poolers and heads in float32.
    """

    def __init__(
        self, data: TrunkData, paths: Mapping[str, Path], *, training: Training, recipe: Joint, bfloat16: bool
    ) -> None:
        super().__init__()
        parts: dict[str, PooledPart] = {}
        for path in paths.values():
            owner = path.head.part
            if owner not in parts:
                parts[owner] = make_part(
                    path,
                    data.architecture,
                    dropout=training.dropout,
                    layer_dropout=recipe.layer_dropout,
                    generator=torch.Generator().manual_seed(stream(training.seed, "init", owner)),
                )
                if isinstance(part := parts[owner], BranchPart):
                    part.start_from(data.arrays)
                    part.checkpointing = recipe.checkpointing
        trunk = Trunk.from_data(data, dropout=recipe.layer_dropout)
        trunk.checkpointing = recipe.checkpointing
        self.model = Model(trunk, {task: parts[path.head.part] for task, path in paths.items()}, narrow=True)
        self.plans = {task: merge({task: path}) for task, path in paths.items()}
        self.depths = {  # of the trunk's own layers that a task's path runs
            task: max((node.stop for node in path.layers if node.weights == TRUNK), default=0)
            for task, path in paths.items()
        }
        self._bfloat16 = bfloat16

    def forward(self, task: str, batch: TextBatch, *, noise: Noise | None = None) -> Tensor:
        """Outputs of one task, as its part gives them; `noise` changes the word vectors."""
        with torch.autocast(batch.ids.device.type, dtype=torch.bfloat16, enabled=self._bfloat16):
            value = self.model.stored(self.plans[task], batch, noise=noise)[task]
        outputs: Tensor = self.model.parts[task](value.values, value.mask)
        return outputs

    def bound(self, task: str) -> Callable[[TextBatch], Tensor]:
        """The model as one task's, for batches on the processor and with outputs there."""
        device = str(self.model.trunk.embeddings.word.weight.device)

        def outputs_of_batch(batch: TextBatch) -> Tensor:
            found: Tensor = self(task, on(batch, device)).cpu()
            return found

        return outputs_of_batch


class Learning(nn.Module):
    """What learns together: the model and, where tasks' weights are learned, those. It gives a micro-batch's loss."""

    def __init__(
        self, model: Together, objective: Objective, tasks: Mapping[str, Task], recipe: Joint
    ) -> None:
        super().__init__()
        self.model, self.objective = model, objective
        self._tasks, self._recipe = dict(tasks), recipe

    def forward(self, task: str, batch: Batch, *, drawn: Collection[str] = ()) -> Tensor:
        """The loss with its smoothing; `drawn` as `devices.Learner` has it."""
        (texts,) = batch.arguments
        assert isinstance(texts, TextBatch)
        outputs, added = self.model(task, texts), None
        if self._recipe.smoothing is not None:
            added = smoothed(
                self._recipe.smoothing,
                self._tasks[task],
                outputs,
                batch,
                run=lambda noise: self.model(task, texts, noise=noise),
                module=self.model,
                scaled=self._recipe.weighting.scaled,
            )
        value: Tensor = self.objective(task, outputs, batch, added)
        return value + 0.0 * sum(one.sum() for one in self._left_out(drawn)) if drawn else value

    def shared_layers(self) -> list[nn.Module]:
        """Layers of the trunk that every task's path runs."""
        return list(self.model.model.trunk.layers)[: min(self.model.depths.values())]

    def _left_out(self, tasks: Collection[str]) -> list[nn.Parameter]:
        """The parameters that these tasks learn, but for those that every task does."""
        trunk, places = self.model.model.trunk, list(self._tasks)
        deepest = max(self.model.depths[task] for task in tasks)
        modules = list(trunk.layers)[min(self.model.depths.values()) : deepest]
        modules += dict.fromkeys(self.model.model.parts[task] for task in tasks)
        found = [parameter for module in modules for parameter in module.parameters()]
        weights = list(self.objective.log_variances)
        return found + ([weights[places.index(task)] for task in tasks] if weights else [])


class Mixed:
    """Micro-batches of several tasks: each task's examples in passes of its own, which outlast the epochs.

    Each process of several reads on in every task's pass, and makes the batches that it is to compute. A micro-batch
    has at most `tokens` tokens, padding included, where they are given.
    """

    def __init__(
        self,
        examples: Mapping[str, TextExamples],
        mixture: Mixture,
        training: Training,
        *,
        tokens: int | None = None,
        place: Place | None = None,
    ) -> None:
        self._examples, self._mixture, self._training = examples, mixture, training
        self._tokens, self._place = tokens, place or Place()
        self.steps = mixture.steps
        self._cursors = {
            name: [0, 0, 0] for name in examples
        }  # pass, batches of it that were read, examples in all
        self._open: dict[str, Iterator[np.ndarray]] = {}

    def updates(self, epoch: int) -> Iterator[Sequence[tuple[str, Batch | None]]]:
        """One epoch."""
        for names in self._mixture.updates(epoch):
            members = [self._next(name) for name in names]
            yield [
                (name, self._examples[name].batch(several) if self._place.owns(index) else None)
                for index, (name, several) in enumerate(zip(names, members, strict=True))
            ]

    def seen(self, epochs: int) -> int:
        """Examples that were read so far."""
        return sum(cursor[2] for cursor in self._cursors.values())

    def state(self) -> dict[str, list[int]]:
        """How far each task's examples were read."""
        return {name: list(cursor) for name, cursor in self._cursors.items()}

    def restore(self, state: dict[str, list[int]]) -> None:
        """Goes on from there."""
        self._cursors = {name: list(cursor) for name, cursor in state.items()}
        self._open = {}

    def _next(self, name: str) -> np.ndarray:
        cursor = self._cursors[name]
        if name not in self._open:
            self._open[name] = self._pass(name, cursor[0])
            for _ in range(cursor[1]):
                next(self._open[name])
        members = next(self._open[name], None)
        if members is None:
            cursor[:2] = [cursor[0] + 1, 0]
            self._open[name] = self._pass(name, cursor[0])
            members = next(self._open[name])
        cursor[1] += 1
        cursor[2] += len(members)
        return members

    def _pass(self, name: str, number: int) -> Iterator[np.ndarray]:
        generator = np.random.default_rng(stream(self._training.seed, "order", name, number))
        return self._examples[name].drawn(self._training.batch, generator, tokens=self._tokens)


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """What joint training leaves: a trunk of its own digest, and each task's arrays over it."""

    data: TrunkData
    paths: dict[str, Path]
    arrays: dict[str, dict[str, np.ndarray]]
    fitted: Fitted
    validation: dict[str, dict[str, float]]  # task -> metric -> value, of the epoch that was kept


class JointCourse:
    """Trains trunk and parts of all tasks, and keeps the epoch with the best mean of the tasks' validation scores.

    Where epochs do not all read the same tasks (scheme `dataset`, a schedule) the last one is kept. `paths` may name
    any trunk; those of what is learned name the new one. `module`, `loss` and `examples` are there to be measured.

    On several devices, every process makes one, inside `devices.joined`, and calls the same of its methods.
    """

    def __init__(
        self,
        prepared: Sequence[Prepared],
        paths: Mapping[str, Path],
        data: TrunkData,
        recipe: Joint,
        *,
        training: Training,
        precision: str,
        checkpoint: FilePath | None = None,
        events: Events | None = None,
        place: Place | None = None,
        epsilon: float = EPSILON,
    ) -> None:
        self.prepared = {p.task.name: p for p in prepared}
        self.tasks = {p.task.name: p.task for p in prepared}
        self.paths, self.data, self.recipe, self.training = dict(paths), data, recipe, training
        self.place, self._checkpoint, self._events = place or Place(), checkpoint, events or Events()
        self._epsilon = epsilon  # Adam's
        self.tokeniser = Tokeniser(data.tokenizer, data.settings)
        self.module = Together(
            data, paths, training=training, recipe=recipe, bfloat16=precision == "bfloat16"
        )
        if recipe.smoothing is not None and recipe.smoothing.spectral:
            normalise_heads(self.module)
        self.examples = {
            p.task.name: text_examples(p.train.examples, p.task, self.tokeniser) for p in prepared
        }
        self._validation = {}
        for p in prepared:
            rows = _some(p.validation, recipe.validation_rows)
            self._validation[p.task.name] = (rows, text_examples(rows, p.task, self.tokeniser))
        sizes = {name: examples.count for name, examples in self.examples.items()}
        self.mixture = Mixture(
            sizes, recipe, batch=training.batch, epochs=training.epochs, seed=training.seed
        )
        self.objective = Objective(
            {p.task.name: (p.task, p.train.examples.targets) for p in prepared},
            recipe.weighting,
            sizes,
            class_weights=_class_weights(prepared) if training.class_weights else None,
        )
        self.loss = Learning(self.module, self.objective, self.tasks, recipe)
        self.place.check(self.mixture.micro_batches)
        _check_passes(self.place, recipe, self.tasks)

    def learn(self, label: str = "training together") -> Learned:
        """Trains to the end."""
        for name, p in self.prepared.items():
            tell_unread(p, self.examples[name], self.data.settings.max_tokens, self._events)
        devices = devices_of(self.place, self.loss, parallel=self.recipe.parallel)
        self._meter = Meter(self._events, {name: path.head.part for name, path in self.paths.items()})
        curriculum = Curriculum(
            devices,
            Mixed(self.examples, self.mixture, self.training, tokens=self.recipe.tokens, place=self.place),
            score=self._score,
            training=self.training,
            rate=lambda name: 1.0 if name.startswith("model.model.trunk.") else self.recipe.head_rate,
            checkpoint=self._checkpoint,
            events=self._events,
            meter=self._meter,
            label=label,
            epsilon=self._epsilon,
            last=self.recipe.scheme == "dataset" or self.recipe.sampling.kind == "schedule",
        )
        for names in (n for epoch in range(curriculum.done) for n in self.mixture.updates(epoch)):
            self._meter.read(names)
        fitted = curriculum.train()
        with devices.published():
            return self._learned(fitted)

    def _learned(self, fitted: Fitted) -> Learned:
        settle_heads(self.module)
        trunk = self.module.model.trunk.to_arrays()
        data = msgspec.structs.replace(self.data, arrays=trunk)
        digest = data.digest
        parts = self.module.model.parts
        return Learned(
            data=data,
            paths={name: with_trunk(path, digest) for name, path in self.paths.items()},
            arrays={name: arrays_of_part(parts[name]) for name in self.paths},
            fitted=fitted,
            validation=self.scores(),
        )

    def scores(self) -> dict[str, dict[str, float]]:
        """Every task's metrics on (some of) its validation split, as the module stands; each process scores some."""
        own = {}
        self.module.eval()
        for index, (name, (rows, examples)) in enumerate(self._validation.items()):
            if self.place.owns(index):
                outputs = outputs_of(self.module.bound(name), examples)
                own[name] = rows.scores(self.tasks[name], outputs)
        found = {name: row for some in gathered(self.place, own) for name, row in some.items()}
        return {name: found[name] for name in self._validation}

    def _score(self) -> float:
        """The mean over tasks of each one's own metric."""
        found = self.scores()
        self._meter.scored(found)
        return float(np.mean([row[self._metric(name)] for name, row in found.items()]))

    def _metric(self, name: str) -> str:
        return kind_of(self.tasks[name]).default_metric(self.tasks[name])


def _check_passes(place: Place, recipe: Joint, tasks: Mapping[str, Task]) -> None:
    """Layers that are sharded run equally often in every process, but a regression has no smoothing's pass."""
    plain = [name for name, task in tasks.items() if kind_of(task).loss == "squared_error"]
    if place.world > 1 and recipe.parallel == "fsdp" and recipe.smoothing is not None and plain:
        raise ConfigError(
            "smoothing is not computed over sharded layers where a regression learns too",
            got=f"parallel 'fsdp', regressions {plain}",
            do="set recipe.parallel = 'ddp', or train without smoothing or without regressions",
        )


def _class_weights(prepared: Sequence[Prepared]) -> dict[str, Tensor]:
    """Of the tasks whose kind has classes."""
    found = {p.task.name: kind_of(p.task).class_weights(p.task, p.train.examples.targets) for p in prepared}
    return {name: torch.from_numpy(weights) for name, weights in found.items() if weights is not None}


def text_examples(examples: Examples, task: Task, tokeniser: Tokeniser) -> TextExamples:
    """Labelled texts as the trunk reads them; raises TrainError for pairs that are read separately."""
    if task.pair == "separate":
        raise TrainError(
            "pairs that are read separately are not trained together with other tasks",
            got=f"task '{task.name}'",
            allowed="pair = 'joined' or 'none'",
            do="read the pair joined, or train the task over the frozen trunk afterwards",
        )
    words = examples.words if kind_of(task).per_word else None
    return TextExamples(tokeniser, examples.inputs, examples.targets, words)


def _some(split: Split, rows: int | None) -> Examples:
    """At most so many rows, evenly spaced."""
    count = len(split.examples.targets)
    if rows is None or rows >= count:
        return split.examples
    return split.examples.take(sorted({round(i) for i in np.linspace(0, count - 1, rows)}))
