"""Fine-tuning of a whole trunk, embeddings too: what branches are compared with. It shares nothing.

With a teacher, the whole-model distillation of Sanh et al. 2019 and Turc et al. 2019 in its plain form: the bottommost
layers of the fine-tuned model, taught by its outputs.
"""

from __future__ import annotations

from pathlib import Path as FilePath

import msgspec
import numpy as np
import torch

from polyhead.errors import TrainError
from polyhead.plan import Embed, Head, Layers, Path, Pool
from polyhead.project import Branch
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import owner_of
from polyhead.train.distil import distilled
from polyhead.train.examples import outputs_of
from polyhead.train.extract import Extractor
from polyhead.train.fine_tune import FineTuned, TextExamples
from polyhead.train.fit import Course, Fitted, stream
from polyhead.train.loss import LOSSES
from polyhead.train.prepare import Prepared, Split


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """A fine-tuned model of one task."""

    prepared: Prepared
    extractor: Extractor
    module: FineTuned
    fitted: Fitted

    def evaluate(self, split: Split) -> dict[str, float]:
        """All metrics of the task's kind on the whole split."""
        outputs = self.outputs(split)
        return kind_of(self.prepared.task).evaluate(self.prepared.task, outputs, split.examples.targets)

    def outputs(self, split: Split) -> list[np.ndarray]:
        """The model's outputs for every example of the split."""
        return outputs_of(self.module, _examples(self.prepared, split, self.extractor))

    def save(self, file: FilePath) -> None:
        """Keeps the weights, for students of this model."""
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save(self.module.state_dict(), file)


def train_whole(
    prepared: Prepared,
    strategy: Branch,
    extractor: Extractor,
    *,
    layers: int,
    precision: str,
    teacher: FilePath | None = None,
) -> Whole:
    """The trunk's lowest `layers` layers with a head, all trained; `teacher` is a file of `Whole.save`.

    A student starts from the teacher's own embeddings, bottommost layers and head.
    """
    task, kind, training = prepared.task, kind_of(prepared.task), prepared.training
    depth = extractor.data.architecture.layers
    module = _module(prepared, strategy, extractor, layers, precision)
    soft = None
    if teacher is not None:
        master = restore_whole(prepared, strategy, extractor, layers=depth, precision=precision, file=teacher)
        soft = master.outputs(prepared.train)
        known = master.module.state_dict()
        module.load_state_dict({name: known[name] for name in module.state_dict()})
    validation = _examples(prepared, prepared.validation, extractor)

    def score() -> float:
        outputs = outputs_of(module, validation)
        return kind.evaluate(task, outputs, prepared.validation.examples.targets)[kind.default_metric(task)]

    fitted = Course(
        module,
        _examples(prepared, prepared.train, extractor, soft=soft),
        loss=LOSSES[kind.loss] if soft is None else distilled(kind.loss, strategy.temperature),
        score=score,
        training=training,
        label=f"{task.name} (whole, {layers} layers)",
    ).train()
    return Whole(prepared=prepared, extractor=extractor, module=module, fitted=fitted)


def restore_whole(
    prepared: Prepared, strategy: Branch, extractor: Extractor, *, layers: int, precision: str, file: FilePath
) -> Whole:
    """A model that `Whole.save` kept; how training went is not kept."""
    module = _module(prepared, strategy, extractor, layers, precision)
    module.load_state_dict(torch.load(file, weights_only=True))
    untrained = Fitted(best_epoch=0, score=0.0, history=(), examples_seen=0, seconds=0.0)
    return Whole(prepared=prepared, extractor=extractor, module=module.eval(), fitted=untrained)


def whole_path(prepared: Prepared, layers: int, width: int) -> Path:
    """First position, tanh layer, output: the head of Devlin et al. 2019."""
    task, owner = prepared.task, owner_of(prepared.task)
    if kind_of(task).per_word or task.pair == "separate":
        raise TrainError(
            "whole models are trained for tasks over whole texts and joined pairs only",
            got=f"task '{task.name}', kind '{task.kind}', pair '{task.pair}'",
        )
    head = Head(kind=task.kind, width=kind_of(task).width(task), part=owner, hidden=width)
    embed = Embed(trunk=f"fine-tuned on {task.name}")
    return Path(nodes=(embed, Layers(start=0, stop=layers), Pool(), head))


def _module(
    prepared: Prepared, strategy: Branch, extractor: Extractor, layers: int, precision: str
) -> FineTuned:
    training = prepared.training
    return FineTuned(
        extractor.data,
        whole_path(prepared, layers, extractor.data.architecture.width),
        dropout=training.dropout,
        layer_dropout=strategy.dropout,
        bfloat16=precision == "bfloat16",
        generator=torch.Generator().manual_seed(stream(training.seed, "init", prepared.task.name)),
    )


def _examples(
    prepared: Prepared, split: Split, extractor: Extractor, *, soft: list[np.ndarray] | None = None
) -> TextExamples:
    examples = split.examples
    return TextExamples(extractor.tokeniser, examples.inputs, examples.targets, soft=soft)
