"""A trunk and the parts of several tasks as one trainable module, the loss of its micro-batches, and kept texts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from polyhead.deep.examples import TextExamples
from polyhead.deep.loop.devices import on
from polyhead.deep.loop.feed import TrainingBatch
from polyhead.deep.loop.smooth import smoothed
from polyhead.deep.model import MultiTaskModel, TextBatch
from polyhead.deep.nn.attention import AttentionKeys, by_head
from polyhead.deep.nn.trunk import Noise, States, Trunk
from polyhead.deep.recipes.weighting import Objective
from polyhead.deep.sharing.make import make_families, make_part, start_decoder, start_pooler
from polyhead.deep.sharing.part import BranchPart, Family, OwnedPart, PooledPart
from polyhead.encoder.data import TrunkData
from polyhead.plan import TRUNK, Path, merge, owners_of
from polyhead.project.recipes import Joint, Training
from polyhead.project.strategies import Strategy
from polyhead.tasks.task import Task
from polyhead.train.events import Events
from polyhead.train.runs import stream


class JointModel(nn.Module):
    """A trunk and the parts of several tasks; tasks whose paths name one owner share its part.

    The trunk optionally computes under bf16 autocast; poolers and heads in float32. A `frozen` trunk has no dropout and
    no gradient, but the prompts and deltas in it have.
    """

    def __init__(
        self,
        data: TrunkData,
        paths: Mapping[str, Path],
        *,
        training: Training,
        recipe: Joint,
        bfloat16: bool,
        strategies: Mapping[str, Strategy] | None = None,
        frozen: bool = False,
    ) -> None:
        super().__init__()
        declared = strategies or {}
        strategies = {task: strategy.under for task, strategy in declared.items()}

        def drawn(owner: str) -> torch.Generator:
            return torch.Generator().manual_seed(stream(training.seed, "init", owner))

        families = make_families(paths, data.architecture, strategies=strategies, generator=drawn)
        parts: dict[str, PooledPart] = {}
        for task, path in paths.items():
            owner = path.head.part
            if owner not in parts:
                parts[owner] = part = make_part(
                    path,
                    data.architecture,
                    strategy=strategies.get(task),
                    families=families,
                    dropouts=training.dropouts,
                    layer_dropout=recipe.layer_dropout,
                    generator=drawn(owner),
                )
                part.checkpointing = recipe.checkpointing
                start_pooler(families.get(path.head.hidden_part or "", part), path, data, strategies.get(task))
                start_decoder(part, data, declared.get(task))
                if isinstance(part, BranchPart):
                    part.start_from(data.arrays)
        trunk = Trunk.from_data(data, dropout=0.0 if frozen else recipe.layer_dropout)
        trunk.checkpointing = recipe.checkpointing
        trunk.requires_grad_(not frozen)
        owned = {task: parts[path.head.part] for task, path in paths.items()}
        self.model = MultiTaskModel(trunk, owned, families, narrow=True)
        # tasks whose steps do not change other tasks' prompts
        self._stops_gradient = {task for task, strategy in strategies.items() if strategy.stop_gradient}
        self.plans = {task: merge({task: path}) for task, path in paths.items()}
        self.depths = {  # number of the trunk's own layers in a task's path
            task: max((node.stop for node in path.layers if node.weights == TRUNK), default=0)
            for task, path in paths.items()
        }
        self._bfloat16 = bfloat16

    def forward(self, task: str, batch: TextBatch, *, noise: Noise | None = None) -> Tensor:
        """Outputs of one task from its part; `noise` changes the word vectors.

        Of a task that writes, logits of the tokens after `written`, (rows, steps, vocabulary); its decoder computes in
        the trunk's precision.
        """
        decoder = self.model.parts[task].decoder
        with torch.autocast(batch.ids.device.type, dtype=torch.bfloat16, enabled=self._bfloat16):
            learns = task if task in self._stops_gradient else None
            value = self.model.stored(self.plans[task], batch, noise=noise, learns=learns)[task]
            if decoder is not None:
                assert batch.written is not None
                return decoder(batch.written, value.values[:, :, 0], value.mask, self.words)  # type: ignore[no-any-return]
        outputs: Tensor = self.model.parts[task](value.values, value.mask)
        return outputs

    def states(self, task: str, batch: TextBatch) -> tuple[np.ndarray, np.ndarray]:
        """The states of texts that a decoder reads, float32 (rows, tokens, width), and their mask."""
        texts = on(batch, str(self.words.device))
        with torch.autocast(texts.ids.device.type, dtype=torch.bfloat16, enabled=self._bfloat16):
            value = self.model.stored(self.plans[task], texts)[task]
        return value.values[:, :, 0].float().cpu().numpy(), value.mask.cpu().numpy()

    @property
    def words(self) -> Tensor:
        """The trunk's word vectors, to which decoders' outputs are tied: (vocabulary, width)."""
        return self.model.trunk.embeddings.word.weight

    @torch.no_grad()
    def keys(self, batch: TextBatch) -> States:
        """Everything that isolated prompts read of a batch of texts, on the processor."""
        texts = on(batch, str(self.model.trunk.embeddings.word.weight.device))
        with torch.autocast(texts.ids.device.type, dtype=torch.bfloat16, enabled=self._bfloat16):
            return self.model.trunk.keys(texts.ids, texts.mask, segments=texts.segments)

    @property
    def key_bytes(self) -> int:
        """Bytes of a token's keys and values in all layers."""
        shape = self.model.trunk.architecture
        return 2 * shape.layers * shape.width * (2 if self._bfloat16 else 4)

    def learned_by(self, task: str) -> list[nn.Module]:
        """Modules in addition to the trunk that a step of this task trains."""
        path = self.plans[task].path(task)
        parts = {part.owner: part for part in self.model.parts.values()}
        owners = dict.fromkeys(owners_of(path))
        others: list[nn.Module] = []
        if task not in self._stops_gradient:
            others = [
                part for owner in owners if isinstance(part := getattr(parts.get(owner), "prompt", None), nn.Module)
            ]
        families = [self.model.families[owner] for owner in owners if owner in self.model.families]
        return [self.model.parts[task], *families, *others]

    def served(self, dtype: torch.dtype) -> JointModel:
        """A copy in the form of a backend: trunk and modules in its layers in `dtype`, poolers and heads in float32."""
        copied = copy.deepcopy(self).eval()
        copied.model.trunk.to(dtype)
        for owned in (*dict.fromkeys(copied.model.parts.values()), *copied.model.families.values()):
            if isinstance(owned, OwnedPart | Family):
                owned.lower(dtype)
        copied._bfloat16 = False
        return copied

    def answers(self, tasks: Sequence[str], batch: TextBatch) -> Tensor:
        """Concatenated outputs of several tasks over whole texts, (rows, labels of all), from one run of their plan."""
        plan = merge({task: self.plans[task].path(task) for task in tasks})
        with torch.autocast(batch.ids.device.type, dtype=torch.bfloat16, enabled=self._bfloat16):
            values = self.model.stored(plan, batch)
        return torch.cat([self.model.parts[t](values[t].values, values[t].mask) for t in tasks], dim=1)

    def bound(self, *tasks: str) -> Callable[[TextBatch], Tensor]:
        """The model for one task, or for several (`answers`), with batches and outputs on the processor."""
        device = str(self.model.trunk.embeddings.word.weight.device)

        def outputs_of_batch(batch: TextBatch) -> Tensor:
            texts = on(batch, device)
            outputs: Tensor = self(*tasks, texts) if len(tasks) == 1 else self.answers(tasks, texts)
            return outputs.cpu()

        return outputs_of_batch


class JointLoss(nn.Module):
    """The modules trained together: the model, and tasks' weights if learned. Returns a micro-batch's loss."""

    def __init__(self, model: JointModel, objective: Objective, tasks: Mapping[str, Task], recipe: Joint) -> None:
        super().__init__()
        self.model, self.objective = model, objective
        self._tasks, self._recipe = dict(tasks), recipe

    def forward(self, task: str, batch: TrainingBatch, *, drawn: Collection[str] = ()) -> Tensor:
        """The loss with its smoothing; `drawn` as in `devices_of`."""
        outputs, added = batch.answered(partial(self.model, task)), None
        if self._recipe.smoothing is not None:
            added = smoothed(
                self._recipe.smoothing,
                self._tasks[task],
                outputs,
                batch,
                run=lambda noise: batch.answered(partial(self.model, task, noise=noise)),
                module=self.model,
                scaled=self._recipe.weighting.scaled,
            )
        value: Tensor = self.objective(task, outputs, batch, added)
        return value + 0.0 * sum(parameter.sum() for parameter in self._left_out(drawn)) if drawn else value

    def shared_layers(self) -> list[nn.Module]:
        """Number of the trunk's layers that every task's path runs."""
        return list(self.model.model.trunk.layers)[: min(self.model.depths.values())]

    def _left_out(self, tasks: Collection[str]) -> list[nn.Parameter]:
        """The parameters that these tasks train, except those that every task does."""
        trunk, places = self.model.model.trunk, list(self._tasks)
        deepest = max(self.model.depths[task] for task in tasks)
        modules = list(trunk.layers)[min(self.model.depths.values()) : deepest]
        modules += [module for task in tasks for module in self.model.learned_by(task)]
        parameters = list(
            dict.fromkeys(parameter for m in modules for parameter in m.parameters() if parameter.requires_grad)
        )
        weights = list(self.objective.log_variances)
        return parameters + ([weights[places.index(task)] for task in tasks] if weights else [])


MOST = 2 << 30  # maximum bytes of memory for the texts of one loop
BATCH = 64


class KeptTexts:
    """Keys and values of every layer for some texts, on the processor; `keys` computes those of a batch."""

    def __init__(self, keys: Callable[[TextBatch], States], examples: TextExamples) -> None:
        self._kept: dict[int, Tensor] = {}  # (tokens, 2 * layers, width) a text
        for piece in examples.in_order(BATCH):
            (texts,) = piece.arguments
            assert isinstance(texts, TextBatch)
            states = keys(texts)
            parts = [part for layer in states.keys.values() for part in (layer.key, layer.value)]
            self._heads = parts[0].shape[1]
            flat = torch.stack([part.transpose(1, 2).flatten(2) for part in parts], dim=2).cpu()
            rows = examples.rows_of(piece.members)
            for row, values, seen in zip(rows.tolist(), flat, texts.mask, strict=True):
                self._kept[row] = values[seen]

    def __call__(self, rows: np.ndarray) -> States:
        """Keys and values of these texts, padded to the longest."""
        rows_kept = [self._kept[row] for row in rows.tolist()]
        lengths = torch.tensor([len(piece) for piece in rows_kept])
        padded = pad_sequence(rows_kept, batch_first=True)  # (rows, tokens, 2 * layers, width)
        parts = [by_head(part, self._heads) for part in padded.unbind(2)]
        layers = zip(parts[::2], parts[1::2], strict=True)
        keys = {index: AttentionKeys(key=key, value=value) for index, (key, value) in enumerate(layers)}
        return States(hidden=(), mask=torch.arange(padded.shape[1]) < lengths[:, None], keys=keys)


def keep_texts(module: JointModel, examples_of_tasks: Sequence[TextExamples], events: Events) -> None:
    """Gives the examples the values that isolated prompts read, unless these take more than `MOST` bytes."""
    taken = sum(examples.tokens for examples in examples_of_tasks) * module.key_bytes
    if taken > MOST:
        events.line(
            f"texts are encoded anew in every epoch: what prompts read of them would take {taken / 2**30:.1f} GiB, "
            f"more than {MOST / 2**30:.0f}"
        )
        return
    module.eval()
    for examples in examples_of_tasks:
        examples.kept = KeptTexts(module.keys, examples)
