"""Tasks that learn together, from single-task micro-batches: with their trunk, or over a frozen one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path as FilePath

import msgspec
import numpy as np
import torch
from torch import Tensor

from polyhead.errors import ConfigError
from polyhead.plan import Path
from polyhead.project.recipes import Joint, Training
from polyhead.sharing.make import arrays_of_part
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.read import Examples
from polyhead.tasks.task import Task
from polyhead.text.tokenize import Tokenizer
from polyhead.train.data.examples import TextExamples, outputs_of, tell_unread
from polyhead.train.data.prepared import Prepared, Split
from polyhead.train.data.windows import reads_windows
from polyhead.train.loop.devices import Place, devices_of, gathered
from polyhead.train.loop.events import Events, Meter
from polyhead.train.loop.feed import Batch, stream
from polyhead.train.loop.fit import EPSILON, Curriculum, Fitted
from polyhead.train.loop.smooth import normalise_heads, settle_heads
from polyhead.train.recipes.paths import with_trunk
from polyhead.train.recipes.sampling import Mixture, batches_in_a_pass, mixture_of
from polyhead.train.recipes.starts import start_parts
from polyhead.train.recipes.together import JointLoss, JointModel, keep_texts
from polyhead.train.recipes.weighting import Objective
from polyhead.trunk.data import TrunkData


class MixedFeed:
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
        self._cursors = {name: [0, 0, 0] for name in examples}  # pass, batches of it that were read, examples in all
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


class JointResult(msgspec.Struct, frozen=True, kw_only=True):
    """What training together leaves: a trunk of its own digest, or the frozen one, and each task's arrays over it."""

    data: TrunkData
    blended: TrunkData  # what is written without heads: part of `data`, the rest as it was before
    paths: dict[str, Path]
    arrays: dict[str, dict[str, np.ndarray]]
    families: dict[str, dict[str, np.ndarray]]  # owner -> arrays that several tasks read
    fitted: Fitted
    validation: dict[str, dict[str, float]]  # task -> metric -> value, of the epoch that was kept


class JointCourse:
    """Trains parts of several tasks, and unless `frozen` the trunk; keeps the best mean of their validation scores.

    Where epochs do not all read the same tasks (scheme `dataset`, a schedule) the last one is kept. `paths` may name
    any trunk; those of what is learned name the new one. `module`, `loss` and `examples` are there to be measured.

    On several devices, every process makes one, inside `devices.joined`, and calls the same of its methods.
    """

    together: type[JointModel] = JointModel  # what learns; a paper's model may stand in its place

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
        frozen: bool = False,
    ) -> None:
        self.prepared = {p.task.name: p for p in prepared}
        self.tasks = {p.task.name: p.task for p in prepared}
        self.paths, self.data, self.recipe, self.training = dict(paths), data, recipe, training
        self.place, self._checkpoint, self.events = place or Place(), checkpoint, events or Events()
        self.precision = precision
        self._epsilon, self.frozen = epsilon, frozen  # Adam's
        self.tokenizer = Tokenizer(data.tokenizer, data.settings)
        self.module = self.together(
            data,
            paths,
            training=training,
            recipe=recipe,
            bfloat16=precision == "bfloat16",
            strategies={p.task.name: p.strategy for p in prepared},
            frozen=frozen,
        )
        if recipe.smoothing is not None and recipe.smoothing.spectral:
            normalise_heads(self.module)
        self.examples = {p.task.name: text_examples(p.train.examples, p.task, self.tokenizer) for p in prepared}
        self._validation = {}
        for p in prepared:
            rows = _some(p.validation, recipe.validation_rows)
            self._validation[p.task.name] = (rows, text_examples(rows, p.task, self.tokenizer))
        sizes = {name: examples.count for name, examples in self.examples.items()}
        in_a_pass = batches_in_a_pass(self.examples, training, recipe.tokens) if recipe.tokens else None
        self.mixture = mixture_of(sizes, recipe, training, in_a_pass)
        self.objective = Objective(
            {p.task.name: (p.task, p.train.examples.targets) for p in prepared},
            recipe.weighting,
            sizes,
            class_weights=_class_weights(prepared) if training.class_weights else None,
        )
        self.loss = JointLoss(self.module, self.objective, self.tasks, recipe)
        self.place.check(self.mixture.micro_batches)
        _check_passes(self.place, recipe, self.tasks)
        _check_sharding(self.place, recipe, prepared)

    def learn(self, label: str = "training together", *, fresh: bool = True) -> JointResult:
        """Trains to the end; unless `fresh`, parts start as the caller left them."""
        for name, p in self.prepared.items():
            tell_unread(p, self.examples[name], self.data.settings.max_tokens, self.events)
        if fresh:
            start_parts(self, checkpoint=self._checkpoint)
        devices = devices_of(self.place, self.loss, parallel=self.recipe.parallel)
        is_text_plain = all(p.strategy.leaves_text_alone for p in self.prepared.values())
        if self.frozen and self.recipe.smoothing is None and is_text_plain:
            read = [*self.examples.values(), *(examples for _, examples in self._validation.values())]
            keep_texts(self.module, read, self.events)
        self._meter = Meter(self.events, {name: path.head.part for name, path in self.paths.items()})
        curriculum = Curriculum(
            devices,
            MixedFeed(self.examples, self.mixture, self.training, tokens=self.recipe.tokens, place=self.place),
            score=self._score,
            training=self.training,
            rate=self.rate,
            checkpoint=self._checkpoint,
            events=self.events,
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

    def over_frozen_trunk(
        self,
        prepared: Sequence[Prepared],
        paths: Mapping[str, Path],
        recipe: Joint,
        *,
        training: Training,
        checkpoint: FilePath | None,
        place: Place,
    ) -> JointCourse:
        """Another course over the same trunk, frozen, in the same precision."""
        return JointCourse(
            prepared,
            paths,
            self.data,
            recipe,
            training=training,
            precision=self.precision,
            checkpoint=checkpoint,
            place=place,
            events=self.events,
            frozen=True,
        )

    def rate(self, name: str) -> float:
        """The multiple of the learning rate at which this parameter of the loss learns."""
        return 1.0 if name.startswith("model.model.trunk.") else self.recipe.head_rate

    def _learned(self, fitted: Fitted) -> JointResult:
        settle_heads(self.module)
        model, data = self.module.model, self.data
        if not self.frozen:
            data = msgspec.structs.replace(data, arrays=model.trunk.to_arrays())
        digest = data.digest
        return JointResult(
            data=data,
            blended=data.blended(self.data, self.recipe.blend),
            paths={name: with_trunk(path, digest) for name, path in self.paths.items()},
            arrays={name: arrays_of_part(model.parts[name]) for name in self.paths},
            families={owner: arrays_of_part(family) for owner, family in model.families.items()},
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
        scores = {name: row for part in gathered(self.place, own) for name, row in part.items()}
        return {name: scores[name] for name in self._validation}

    def _score(self) -> float:
        """The mean over tasks of each one's own metric."""
        scores = self.scores()
        self._meter.scored(scores)
        return float(np.mean([row[self._metric(name)] for name, row in scores.items()]))

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


def _check_sharding(place: Place, recipe: Joint, prepared: Sequence[Prepared]) -> None:
    """Prompts and adapters reach into layers past their own forward pass, which gathers what is sharded."""
    inside = [p.task.name for p in prepared if p.strategy.reaches_inside]
    if place.world > 1 and recipe.parallel == "fsdp" and inside:
        raise ConfigError(
            "prompts and adapters do not learn inside sharded layers",
            got=f"parallel 'fsdp', tasks {inside}",
            do="set recipe.parallel = 'ddp'",
        )


def _class_weights(prepared: Sequence[Prepared]) -> dict[str, Tensor]:
    """Of the tasks whose kind has classes."""
    weights_of = {p.task.name: kind_of(p.task).class_weights(p.task, p.train.examples.targets) for p in prepared}
    return {name: torch.from_numpy(weights) for name, weights in weights_of.items() if weights is not None}


def text_examples(examples: Examples, task: Task, tokenizer: Tokenizer) -> TextExamples:
    """Labelled texts as the trunk reads them, or each window of them where the task is trained on windows."""
    words = examples.words if kind_of(task).per_word else None
    windowed = task if reads_windows(task) else None
    return TextExamples(tokenizer, examples.inputs, examples.targets, words, windowed=windowed)


def _some(split: Split, rows: int | None) -> Examples:
    """At most so many rows, evenly spaced."""
    count = len(split.examples.targets)
    if rows is None or rows >= count:
        return split.examples
    return split.examples.take(sorted({round(i) for i in np.linspace(0, count - 1, rows)}))
