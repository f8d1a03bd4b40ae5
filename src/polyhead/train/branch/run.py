"""One task's branches, from states kept at their taps: teachers of some depth, and students distilled from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path as FilePath

import msgspec
import numpy as np
import torch
from torch import Tensor

from polyhead.errors import TrainError
from polyhead.plan import Path
from polyhead.sharing.branch import BranchPart
from polyhead.sharing.make import arrays_of_part
from polyhead.strategies.branch import Branch, branch_path, tap_of
from polyhead.tasks.kinds import kind_of
from polyhead.train.branch.distil import distilled
from polyhead.train.data.examples import outputs_of, outputs_of_each, tell_unread
from polyhead.train.data.extract import Extractor
from polyhead.train.data.prepared import Prepared, Split
from polyhead.train.data.taps import OnTap, TapExamples, tap_examples
from polyhead.train.loop.checkpoint import SUFFIX
from polyhead.train.loop.events import Events
from polyhead.train.loop.feed import stream
from polyhead.train.loop.fit import Course, Fitted
from polyhead.train.loop.loss import LOSSES


class TrainedBranch(msgspec.Struct, frozen=True, kw_only=True):
    """A trained branch: where it sits, its module, its arrays, and how training went."""

    path: Path
    module: OnTap
    arrays: dict[str, np.ndarray]
    fitted: Fitted

    @property
    def layers(self) -> int:
        """Private layers."""
        return self.path.layers[-1].stop - tap_of(self.path)


class Branches:
    """The branches of one task: candidates of any depth, trained and compared on validation."""

    def __init__(
        self,
        prepared: Prepared,
        strategy: Branch,
        extractor: Extractor,
        *,
        precision: str,
        checkpoints: FilePath | None = None,
        events: Events | None = None,
    ) -> None:
        self.prepared, self.strategy, self.extractor = prepared, strategy, extractor
        self.precision, self.checkpoints, self.events = precision, checkpoints, events or Events()
        self._told = False  # what of the training answers is not read

    def path(self, layers: int, tap: int | None = None) -> Path:
        """The path of a branch of so many layers; `tap` None: the strategy's, else it ends where the trunk ends."""
        shape = self.extractor.data.architecture
        tap = self.strategy.tap if tap is None else tap
        tap = shape.layers - layers if tap is None else tap
        return branch_path(
            self.prepared.task, self.strategy, trunk=self.extractor.digest, shape=shape, tap=tap, layers=layers
        )

    def teacher(self, layers: int, *, seed: int | None = None) -> TrainedBranch:
        """A branch that starts from the trunk's own layers, trained on the labels."""
        path = self.path(layers)
        module, course = self.course(path, seed=seed)
        course.advance()
        return self.grown(path, module, course)

    def course(self, path: Path, *, seed: int | None = None) -> tuple[OnTap, Course]:
        """A branch on this path at its start, and its training run."""
        module = self._module(path, seed, self.extractor.data.arrays)
        return module, self._course(path, module, seed, LOSSES[kind_of(self.prepared.task).loss], "teacher")

    def student(self, teacher: TrainedBranch, layers: int, *, seed: int | None = None) -> TrainedBranch:
        """A shorter branch above the teacher's tap, taught by the labels and by the teacher's outputs.

        It starts from the teacher's bottommost layers, pooler and head (Wei et al. 2021, 3.2), or, for `init`
        'pretrained', from the trunk's layers and a new head.
        """
        if layers > teacher.layers:
            raise TrainError("a student is no deeper than its teacher", got=layers, allowed=teacher.layers)
        path = self.path(layers, tap=tap_of(teacher.path))
        own = self.strategy.init == "teacher"
        module = self._module(path, seed, teacher.arrays if own else self.extractor.data.arrays, head=own)
        noisy = self.strategy.noisy_teacher
        served = teacher.module.served(self._dtype)
        soft = None if noisy else outputs_of_each(served, self._examples("train", path))
        loss = distilled(kind_of(self.prepared.task).loss, self.strategy.temperature)
        name = f"student-{self.strategy.init}"
        course = self._course(path, module, seed, loss, name, soft=soft, noisy=teacher if noisy else None)
        course.advance()
        return self.grown(path, module, course)

    def restored(self, path: Path, arrays: Mapping[str, np.ndarray]) -> TrainedBranch:
        """A branch that was trained before, from its arrays; how training went is not kept."""
        module = self._module(path, None, arrays, head=True)
        module.eval()
        untrained = Fitted(best_epoch=0, score=0.0, history=(), examples_seen=0, seconds=0.0)
        return TrainedBranch(path=path, module=module, arrays=dict(arrays), fitted=untrained)

    def grown(self, path: Path, module: OnTap, course: Course) -> TrainedBranch:
        """The course's end: the module with its best weights."""
        fitted = course.finish()
        return TrainedBranch(path=path, module=module, arrays=arrays_of_part(module.part), fitted=fitted)

    def evaluate(self, grown: TrainedBranch, split: Split) -> dict[str, float]:
        """All metrics of the task's kind on the whole split, as the branch will be served."""
        return split.examples.scores(self.prepared.task, self.outputs(grown, split))

    def outputs(self, grown: TrainedBranch, split: Split) -> list[np.ndarray]:
        """The branch's outputs for every example of the split, as it will be served."""
        examples = tap_examples(self.prepared, split, grown.path, self.extractor, precision=self.precision)
        return outputs_of(grown.module.served(self._dtype), examples)

    @property
    def _dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.precision)
        return dtype

    def _module(self, path: Path, seed: int | None, start: Mapping[str, np.ndarray], *, head: bool = False) -> OnTap:
        training = self.prepared.training
        generator = torch.Generator().manual_seed(
            stream(training.seed if seed is None else seed, "init", self.prepared.task.name)
        )
        part = BranchPart(
            path,
            self.extractor.data.architecture,
            dropout=training.dropout,
            layer_dropout=self.strategy.dropout,
            generator=generator,
        )
        part.start_from(start, head=head)
        return OnTap(part, path, bfloat16=self.precision == "bfloat16")

    def _course(
        self,
        path: Path,
        module: OnTap,
        seed: int | None,
        loss: Callable[..., Tensor],
        name: str,
        *,
        soft: list[np.ndarray] | None = None,
        noisy: TrainedBranch | None = None,
    ) -> Course:
        task, kind, training = self.prepared.task, kind_of(self.prepared.task), self.prepared.training
        if seed is not None:
            training = msgspec.structs.replace(training, seed=seed)
        validation = self._examples("validation", path)
        right = self.prepared.validation.examples

        def score() -> float:
            outputs = outputs_of(module.served(self._dtype), validation)
            return right.scores(task, outputs)[kind.default_metric(task)]

        train = self._examples("train", path, soft=soft, noisy=noisy)
        if not self._told:
            tell_unread(self.prepared, train, self.extractor.data.settings.max_tokens, self.events)
            self._told = True
        balanced = kind.class_weights(task, self.prepared.train.examples.targets) if training.class_weights else None
        label = f"{task.name} ({name}, {len(module.part.layers)} layers)"
        file = f"{task.name}-{name}-{tap_of(path)}-{len(module.part.layers)}-{training.seed}{SUFFIX}"

        return Course(
            module,
            train,
            loss=loss,
            score=score,
            training=training,
            weights=None if balanced is None else torch.from_numpy(balanced),
            checkpoint=self.checkpoints / file if self.checkpoints else None,
            events=self.events,
            label=label,
        )

    def _examples(
        self, split: str, path: Path, *, soft: list[np.ndarray] | None = None, noisy: TrainedBranch | None = None
    ) -> TapExamples:
        rows = next(s for s in self.prepared.splits if s.name == split)
        teacher = None if noisy is None else _noisy(noisy.module)
        return tap_examples(
            self.prepared, rows, path, self.extractor, precision=self.precision, soft=soft, teacher=teacher
        )


def _noisy(module: OnTap) -> Callable[..., Tensor]:
    """The teacher with its dropout on, as the paper's code has it; its weights stay as they are."""

    def answer(*arguments: object) -> Tensor:
        module.train()
        with torch.no_grad():
            outputs: Tensor = module(*arguments).float()
        module.eval()
        return outputs

    return answer
