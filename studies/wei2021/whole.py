"""Fine-tuning of a whole trunk, embeddings too: what branches are compared with. It shares nothing.

With a teacher, the whole-model distillation of Sanh et al. 2019 and Turc et al. 2019 in its plain form: the bottommost
layers of the fine-tuned model, taught by its outputs.
"""

from __future__ import annotations

from pathlib import Path as FilePath

import msgspec
import numpy as np
from torch import nn

from polyhead.deep.examples import TextExamples, module_outputs
from polyhead.deep.loop.checkpoint import read_checkpoint, write_checkpoint
from polyhead.deep.loop.fit import TaskLoop
from polyhead.deep.loop.loss import LOSSES, distilled
from polyhead.deep.recipes.joint_model import JointModel
from polyhead.encoder.data import TrunkData
from polyhead.encoder.shape import trunk_arrays
from polyhead.errors import TrainError
from polyhead.plan import Embed, Head, Layers, Path, Pool
from polyhead.project.recipes import Joint
from polyhead.project.strategies import Branch
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import owner_of
from polyhead.train.data.extract import Extractor
from polyhead.train.data.prepared import Prepared, Split
from polyhead.train.runs import Fitted


class FullFineTuning(msgspec.Struct, frozen=True, kw_only=True):
    """A fine-tuned model of one task."""

    prepared: Prepared
    extractor: Extractor
    module: JointModel
    fitted: Fitted

    @property
    def weights(self) -> nn.ModuleDict:
        """The model's own modules, under names that do not change: `trunk`, `part`."""
        model = self.module.model
        return nn.ModuleDict({"trunk": model.trunk, "part": model.parts[self.prepared.task.name]})

    def evaluate(self, split: Split) -> dict[str, float]:
        """All metrics of the task's kind on the whole split."""
        return split.examples.scores(self.prepared.task, self.outputs(split))

    def outputs(self, split: Split) -> list[np.ndarray]:
        """The model's outputs for every example of the split."""
        examples = _examples(self.prepared, split, self.extractor)
        return module_outputs(self.module.bound(self.prepared.task.name), examples)

    def save(self, file: FilePath) -> None:
        """Keeps the weights, for students of this model."""
        write_checkpoint(file, self.weights.state_dict())


def train_whole(
    prepared: Prepared,
    strategy: Branch,
    extractor: Extractor,
    *,
    layers: int,
    precision: str,
    teacher: FilePath | None = None,
) -> FullFineTuning:
    """The trunk's lowest `layers` layers with a head, all trained; `teacher` is a file of `FullFineTuning.save`.

    A student starts from the teacher's own embeddings, bottommost layers and head.
    """
    task, kind, training = prepared.task, kind_of(prepared.task), prepared.training
    depth = extractor.data.architecture.layers
    whole, soft = _untrained(prepared, strategy, extractor, layers, precision), None
    if teacher is not None:
        master = restore_whole(prepared, strategy, extractor, layers=depth, precision=precision, file=teacher)
        soft, known = master.outputs(prepared.train), master.weights.state_dict()
        whole.weights.load_state_dict({name: known[name] for name in whole.weights.state_dict()})
    answer, validation = whole.module.bound(task.name), _examples(prepared, prepared.validation, extractor)

    def score() -> float:
        outputs = module_outputs(answer, validation)
        return prepared.validation.examples.scores(task, outputs)[kind.default_metric(task)]

    fitted = TaskLoop(
        whole.module,
        _examples(prepared, prepared.train, extractor, soft=soft),
        loss=LOSSES[kind.loss] if soft is None else distilled(kind.loss, strategy.temperature),
        score=score,
        training=training,
        run=answer,
        label=f"{task.name} (whole, {layers} layers)",
    ).train()
    return msgspec.structs.replace(whole, fitted=fitted)


def restore_whole(
    prepared: Prepared, strategy: Branch, extractor: Extractor, *, layers: int, precision: str, file: FilePath
) -> FullFineTuning:
    """A model that `FullFineTuning.save` kept; how training went is not kept."""
    whole = _untrained(prepared, strategy, extractor, layers, precision)
    whole.weights.load_state_dict(read_checkpoint(file))
    whole.module.eval()
    return whole


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


def lowest(data: TrunkData, layers: int) -> TrunkData:
    """A trunk of the lowest layers alone."""
    shape = msgspec.structs.replace(data.architecture, layers=layers)
    arrays = {name: data.arrays[name] for name, _ in trunk_arrays(shape)}
    return msgspec.structs.replace(data, architecture=shape, arrays=arrays)


def _untrained(
    prepared: Prepared, strategy: Branch, extractor: Extractor, layers: int, precision: str
) -> FullFineTuning:
    data = lowest(extractor.data, layers)
    module = JointModel(
        data,
        {prepared.task.name: whole_path(prepared, layers, data.architecture.width)},
        training=prepared.training,
        recipe=Joint(layer_dropout=strategy.dropout),
        bfloat16=precision == "bfloat16",
    )
    return FullFineTuning(prepared=prepared, extractor=extractor, module=module, fitted=Fitted())


def _examples(
    prepared: Prepared, split: Split, extractor: Extractor, *, soft: list[np.ndarray] | None = None
) -> TextExamples:
    examples = split.examples
    return TextExamples(extractor.tokenizer, examples.inputs, examples.targets, soft=soft)
