"""Joint training of tasks from single-task micro-batches: with their trunk, or over a frozen one.

Parts may start from heads that were probed first, since random heads would distort the trunk (Kumar et al. 2022);
prompts may start from frequent tokens or donors (MTOP).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from polyhead.codecs.base import evenly_spaced
from polyhead.data.read import Examples
from polyhead.deep.examples import TextExamples
from polyhead.deep.loop.devices import check_same, devices_of, gathered
from polyhead.deep.loop.fit import TrainingLoop
from polyhead.deep.loop.smooth import normalise_heads, settle_heads
from polyhead.deep.recipes.joint_model import JointLoss, JointModel, keep_texts
from polyhead.deep.recipes.limits import check_joint_settings
from polyhead.deep.recipes.paths import joint_paths, with_trunk
from polyhead.deep.recipes.sampling import MixedFeed, batches_in_a_pass, mixture_of
from polyhead.deep.recipes.weighting import Objective
from polyhead.deep.recipes.writing import task_outputs
from polyhead.deep.sharing.make import arrays_of_part
from polyhead.encoder.data import TrunkData
from polyhead.plan import Path
from polyhead.progress import counted
from polyhead.project.recipes import ONE_TASK, Joint, Sampling, SearchPoint, Training
from polyhead.project.strategies import Strategy
from polyhead.project.strategies.generating import Generating
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.text.question import read_alone
from polyhead.text.tokenize import Tokenizer
from polyhead.train.data.kept_examples import tell_unread
from polyhead.train.data.prepare import arrays_from_donor, donor_task
from polyhead.train.data.prepared import Prepared, Split
from polyhead.train.data.windows import reads_windows
from polyhead.train.events import Events, Meter
from polyhead.train.heads.selection_rule import selection_score
from polyhead.train.runs import SUFFIX, Fitted, ProcessRank, stream
from polyhead.train.training import CandidateResult

FREQUENT = 5000  # tokens of a data set that may initialize a prompt


class JointResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of joint training: a trunk with a new digest, or the frozen one, and each task's arrays."""

    data: TrunkData
    blended: TrunkData  # trunk saved without heads: part of `data`, the rest as it was before
    paths: dict[str, Path]
    arrays: dict[str, dict[str, np.ndarray]]
    families: dict[str, dict[str, np.ndarray]]  # owner -> arrays that several tasks read
    fitted: Fitted
    validation: dict[str, dict[str, float]]  # task -> metric -> value, of the kept epoch


class RecipeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a recipe: trunk and parts, the training settings used, and the search that chose them."""

    learned: JointResult
    training: Training
    chosen: SearchPoint | None = None
    tried: tuple[CandidateResult, ...] = ()
    scores: dict[str, dict[str, float]] = {}  # for a search: split -> metric -> value, on whole splits


class JointLoop:
    """Trains parts of several tasks, and unless `frozen` the trunk; keeps the best mean of their validation scores.

    If epochs do not all read the same tasks (scheme `dataset`, a schedule) the last one is kept. `paths` may name any
    trunk; the resulting ones name the new one. `module`, `loss` and `examples` are public for measurements.

    On several devices, every process makes one, inside `process_group`, and calls the same methods.
    """

    together: type[JointModel] = JointModel  # the trained model; a paper's model may replace it

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
        place: ProcessRank | None = None,
        frozen: bool = False,
    ) -> None:
        self.prepared = {p.task.name: p for p in prepared}
        self.tasks = {p.task.name: p.task for p in prepared}
        self.paths, self.data, self.recipe, self.training = dict(paths), data, recipe, training
        self.place, self._checkpoint, self.events = place or ProcessRank(), checkpoint, events or Events()
        self.precision = precision
        self.frozen = frozen
        check_joint_settings(self.place, recipe, prepared)
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
            rows = _evenly_spaced(p.validation, recipe.validation_rows)
            self._validation[p.task.name] = (rows, text_examples(rows, p.task, self.tokenizer))
        sizes = {name: examples.count for name, examples in self.examples.items()}
        in_a_pass = batches_in_a_pass(self.examples, training, recipe.tokens) if recipe.tokens else None
        self.mixture = mixture_of(sizes, recipe, training, in_a_pass)
        self.objective = Objective(
            {p.task.name: (p.task, p.train.examples.targets) for p in prepared},
            recipe.weighting,
            sizes,
            class_weights=_class_weights(prepared) if training.class_weights else None,
            label_smoothing={
                p.task.name: p.strategy.choice.smoothing for p in prepared if isinstance(p.strategy, Generating)
            },
        )
        self.loss = JointLoss(self.module, self.objective, self.tasks, recipe)
        self.place.check(self.mixture.micro_batches)

    def learn(self, label: str = "training together", *, fresh: bool = True) -> JointResult:
        """Trains to the end; unless `fresh`, parts start as the caller left them."""
        for name, p in self.prepared.items():
            tell_unread(p, self.examples[name], self.data.settings.max_tokens, self.events)
            tell_cut(p.task, self.examples[name], self.events)
        if fresh:
            start_parts(self, checkpoint=self._checkpoint)
        devices = devices_of(self.place, self.loss, parallel=self.recipe.parallel)
        is_text_plain = all(p.strategy.isolated for p in self.prepared.values())
        if self.frozen and self.recipe.smoothing is None and is_text_plain:
            read = [*self.examples.values(), *(examples for _, examples in self._validation.values())]
            keep_texts(self.module, read, self.events)
        self._meter = Meter(self.events, {name: path.head.part for name, path in self.paths.items()})
        loop = TrainingLoop(
            devices,
            self.feed(),
            score=self._score,
            training=self.training,
            rate=self.rate,
            checkpoint=self._checkpoint,
            events=self.events,
            meter=self._meter,
            label=label,
            last=self.recipe.scheme == "dataset" or self.recipe.sampling.kind == "schedule",
        )
        for names in (n for epoch in range(loop.done) for n in self.mixture.updates(epoch)):
            self._meter.read(names)
        fitted = loop.train()
        with devices.published():
            return self._learned(fitted)

    def feed(self) -> MixedFeed:
        """The feed that updates read."""
        return MixedFeed(self.examples, self.mixture, self.training, tokens=self.recipe.tokens, place=self.place)

    def rate(self, name: str) -> float:
        """This parameter's factor of the learning rate."""
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
        """Every task's metrics on (some of) its validation split, with current weights; each process scores some."""
        local_scores = {}
        self.module.eval()
        for index, (name, (rows, examples)) in enumerate(self._validation.items()):
            if self.place.owns(index):
                outputs = task_outputs(self.module, self.tasks[name], examples, self.data.tokenizer)
                local_scores[name] = rows.scores(self.tasks[name], outputs)
        scores = {name: row for part in gathered(self.place, local_scores) for name, row in part.items()}
        return {name: scores[name] for name in self._validation}

    def _score(self) -> float:
        """The mean over tasks of each task's own metric."""
        scores = self.scores()
        self._meter.scored(scores)
        tasks = self.tasks
        return float(np.mean([selection_score(tasks[name], row) for name, row in scores.items()]))


def _class_weights(prepared: Sequence[Prepared]) -> dict[str, Tensor]:
    """Class weights of the tasks whose kind has classes."""
    weights_of = {p.task.name: kind_of(p.task).class_weights(p.task, p.train.examples.taught) for p in prepared}
    return {name: torch.from_numpy(weights) for name, weights in weights_of.items() if weights is not None}


def text_examples(examples: Examples, task: Task, tokenizer: Tokenizer) -> TextExamples:
    """Labelled texts as the trunk reads them, or each window of them if the task is trained on windows."""
    words = examples.words if kind_of(task).per_word else None
    windowed = task if reads_windows(task) else None
    rules = None if task.generation is msgspec.UNSET else task.generation
    return TextExamples(tokenizer, examples.inputs, examples.taught, words, windowed=windowed, rules=rules)


def tell_cut(task: Task, examples: TextExamples, events: Events) -> None:
    """Reports how many training texts of a task that writes are not read, or not learned, in full."""
    if task.generation is msgspec.UNSET:
        return
    for count, noun in ((examples.cut, "text"), (examples.cut_written, "text to write")):
        if count:
            events.line(
                f"{task.name}: {counted(count, noun, several=noun.replace('text', 'texts', 1))} cut in training"
            )


def _evenly_spaced(split: Split, rows: int | None) -> Examples:
    """At most so many rows, evenly spaced."""
    count = len(split.examples.targets)
    if rows is None or rows >= count:
        return split.examples
    return split.examples.take(evenly_spaced(count, rows).tolist())


def start_parts(loop: JointLoop, *, checkpoint: FilePath | None = None) -> None:
    """Initializes parts as recipe and strategies require; random ones are initialized already.

    Training for this happens now, over the loop's trunk, frozen; if interrupted it resumes next to `checkpoint`. A
    loop that resumes from a checkpoint skips it.
    """
    resumes = checkpoint is not None and checkpoint.exists()
    check_same(loop.place, "one" if resumes else "none")  # else some would train heads, the others all
    if resumes:
        return
    _start_prompts(loop, checkpoint)
    if loop.recipe.head_epochs and not loop.frozen:
        _probe(loop, checkpoint)


def _probe(loop: JointLoop, checkpoint: FilePath | None) -> None:
    """All parts are trained together for the recipe's `head_epochs`; the best of these epochs is kept.

    A schedule counts the epochs that follow, and its first ones may leave tasks out: here tasks are drawn by size.
    """
    recipe = msgspec.structs.replace(loop.recipe, head_epochs=0, head_rate=1.0)
    if recipe.sampling.kind == "schedule":
        recipe = msgspec.structs.replace(recipe, sampling=Sampling(cap=recipe.sampling.cap))
    epochs, rate = loop.recipe.head_epochs, loop.recipe.head_learning_rate
    training = msgspec.structs.replace(
        loop.training, epochs=epochs, patience=epochs, least_updates=0, learning_rate=rate
    )
    probing = _over_frozen_trunk(
        loop,
        list(loop.prepared.values()),
        loop.paths,
        recipe,
        training=training,
        checkpoint=_beside(checkpoint, "heads"),
        place=loop.place,
    )
    for name, part in loop.module.model.parts.items():
        _fill(probing.module.model.parts[name], arrays_of_part(part))
    probed = probing.learn("heads over the frozen trunk", fresh=False)
    settle_heads(loop.module)  # like those that were probed
    for name, arrays in probed.arrays.items():
        _fill(loop.module.model.parts[name], arrays)
    for owner, arrays in probed.families.items():
        _fill(loop.module.model.families[owner], arrays)
    if recipe.smoothing is not None and recipe.smoothing.spectral:
        normalise_heads(loop.module)


def _beside(checkpoint: FilePath | None, ending: str) -> FilePath | None:
    return checkpoint.with_name(f"{checkpoint.stem}-{ending}{SUFFIX}") if checkpoint is not None else None


def _start_prompts(loop: JointLoop, checkpoint: FilePath | None) -> None:
    kept = [name for name, prepared in loop.prepared.items() if prepared.donor is not None]
    if kept:
        loop.events.line(f"{', '.join(kept)}: what starts from donors is taken from the bundle of donors")
    for name, prepared in loop.prepared.items():
        strategy, part = prepared.strategy.under, loop.module.model.parts[name]
        if strategy.frequent_rows:
            rows = frequent_tokens(prepared, loop.tokenizer, strategy.frequent_rows)
            words = loop.data.arrays["embeddings.word.weight"][rows]
            _fill(part, {"prompt.weight": np.asarray(words)})
        if strategy.donor_arrays():
            take(part, strategy, donor(loop, prepared, checkpoint))


def frequent_tokens(prepared: Prepared, tokenizer: Tokenizer, rows: int) -> np.ndarray:
    """Ids of `rows` random tokens among the most frequent of the task's training texts, without special tokens."""
    counts: Counter[int] = Counter()
    special = {token for e in tokenizer.encode([("",)]) for token in e.ids}
    for encoded in tokenizer.encode(read_alone(prepared.train.examples.inputs)):
        counts.update(int(token) for token in encoded.ids if token not in special)
    known = [token for token, _ in sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:FREQUENT]]
    generator = np.random.default_rng(stream(prepared.training.seed, "prompt", prepared.task.name))
    return generator.choice(np.array(known), size=rows, replace=len(known) < rows)


def donor(loop: JointLoop, prepared: Prepared, checkpoint: FilePath | None) -> dict[str, np.ndarray]:
    """Prompt, pooler and head of the task alone over the frozen trunk: from an earlier run, or trained now."""
    if prepared.donor is not None:
        return prepared.donor.arrays
    name, donor_wanted = prepared.task.name, donor_task(prepared)
    file = _beside(checkpoint, f"donor-{name}")
    trained = _over_frozen_trunk(
        loop,
        [donor_wanted],
        joint_paths([donor_wanted], loop.data, ONE_TASK),
        ONE_TASK,
        training=donor_wanted.training,
        checkpoint=file if loop.place.is_first else None,
        place=ProcessRank(device=loop.place.device),
    )
    return trained.learn(f"{name} (donor)").arrays[name]


def take(part: nn.Module, strategy: Strategy, arrays: Mapping[str, np.ndarray]) -> None:
    """Copies the arrays that the strategy requires from the donor into a part."""
    _fill(part, arrays_from_donor(strategy, arrays))


def _fill(part: nn.Module, arrays: Mapping[str, np.ndarray]) -> None:
    state = part.state_dict()
    part.load_state_dict({**state, **{name: torch.tensor(np.asarray(value)) for name, value in arrays.items()}})


def _over_frozen_trunk(
    loop: JointLoop, prepared: Sequence[Prepared], paths: Mapping[str, Path], recipe: Joint, **named: Any
) -> JointLoop:
    """Another loop over the same trunk, frozen, in the same precision."""
    settings: dict[str, Any] = {"precision": loop.precision, "events": loop.events}
    return JointLoop(prepared, paths, loop.data, recipe, **settings, **named, frozen=True)


def joint_scores(loop: JointLoop, prepared: Prepared) -> dict[str, dict[str, float]]:
    """One task's metrics on its whole validation and test splits, with the loop's module now."""
    return prepared.scores(split_outputs(loop, prepared, loop.module))


def split_outputs(loop: JointLoop, prepared: Prepared, module: JointModel) -> dict[str, list[np.ndarray]]:
    """The outputs of a loop's module for a task's whole validation and test splits."""
    task, outputs = prepared.task, dict[str, list[np.ndarray]]()
    for split in prepared.splits[1:]:
        texts = text_examples(split.examples, task, loop.tokenizer)
        outputs[split.name] = task_outputs(module, task, texts, loop.data.tokenizer)
    return outputs
