"""One task's branches, from states kept at their taps: teachers, depth searches, and students."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path as FilePath

import msgspec
import numpy as np
import torch
from torch import Tensor

from polyhead.deep.examples import FeatureExamples, module_outputs, module_outputs_of_each
from polyhead.deep.features import OnTap, tap_examples
from polyhead.deep.loop.fit import TaskLoop
from polyhead.deep.loop.loss import LOSSES, distilled
from polyhead.deep.sharing.make import arrays_of_part, start_pooler
from polyhead.deep.sharing.part import BranchPart
from polyhead.errors import TrainError
from polyhead.files import replace_file
from polyhead.plan import Path
from polyhead.progress import counted
from polyhead.project.strategies.branch import Branch, branch_path, private_layers, tap_of
from polyhead.tasks.kinds import kind_of
from polyhead.train.data.extract import Extractor
from polyhead.train.data.kept_examples import tell_unread
from polyhead.train.data.prepared import Prepared, Split
from polyhead.train.events import Events
from polyhead.train.heads.selection_rule import selection_score
from polyhead.train.runs import SUFFIX, Fitted, stream


class TrainedBranch(msgspec.Struct, frozen=True, kw_only=True):
    """A trained branch: its path, its module, its arrays, and the history of its training."""

    path: Path
    module: OnTap
    arrays: dict[str, np.ndarray]
    fitted: Fitted

    @property
    def layers(self) -> int:
        """The number of private layers."""
        return self.path.depth - tap_of(self.path)


class Branches:
    """The branches of one task: candidates of several depths, trained and compared on validation."""

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
        self._reported = False  # training answers that are not read in full are reported

    def path(self, layers: int, tap: int | None = None) -> Path:
        """The path of a branch of this many layers; `tap` None: the strategy's, else it ends at the trunk's end."""
        shape = self.extractor.data.architecture
        tap = self.strategy.tap if tap is None else tap
        tap = shape.layers - layers if tap is None else tap
        return branch_path(
            self.prepared.task, self.strategy, trunk=self.extractor.facts.digest, shape=shape, tap=tap, layers=layers
        )

    def teacher(self, layers: int, *, seed: int | None = None) -> TrainedBranch:
        """A branch initialized with the trunk's own layers, trained on the labels."""
        path = self.path(layers)
        module, loop = self.loop(path, seed=seed)
        loop.advance()
        return self.grown(path, module, loop)

    def loop(self, path: Path, *, seed: int | None = None) -> tuple[OnTap, TaskLoop]:
        """A branch on this path in its initial state, and its training run."""
        module = self._module(path, seed, self.extractor.data.arrays)
        return module, self._loop(path, module, seed, LOSSES[kind_of(self.prepared.task).loss], "teacher")

    def checkpoint(self, path: Path, seed: int, name: str = "teacher") -> FilePath:
        """The file of the checkpoint of one branch."""
        assert self.checkpoints is not None
        layers = len(private_layers(path))
        return self.checkpoints / f"{self.prepared.task.name}-{name}-{tap_of(path)}-{layers}-{seed}{SUFFIX}"

    def student(self, teacher: TrainedBranch, layers: int, *, seed: int | None = None) -> TrainedBranch:
        """A shorter branch above the teacher's tap, trained on the labels and the teacher's outputs.

        It starts with the teacher's bottommost layers, pooler and head (Wei et al. 2021, 3.2), or, for `init`
        'pretrained', with the trunk's layers and a new head.
        """
        if layers > teacher.layers:
            raise TrainError("a student is no deeper than its teacher", got=layers, allowed=teacher.layers)
        path = self.path(layers, tap=tap_of(teacher.path))
        inherits = self.strategy.init == "teacher"
        module = self._module(path, seed, teacher.arrays if inherits else self.extractor.data.arrays, head=inherits)
        noisy = self.strategy.noisy_teacher
        served = teacher.module.served(self._dtype)
        soft = None if noisy else module_outputs_of_each(served, self._examples("train", path))
        loss = distilled(kind_of(self.prepared.task).loss, self.strategy.temperature)
        name = f"student-{self.strategy.init}"
        loop = self._loop(path, module, seed, loss, name, soft=soft, noisy=teacher if noisy else None)
        loop.advance()
        return self.grown(path, module, loop)

    def restored(self, path: Path, arrays: Mapping[str, np.ndarray]) -> TrainedBranch:
        """A previously trained branch, from its arrays, without the history of training."""
        module = self._module(path, None, arrays, head=True)
        module.eval()
        return TrainedBranch(path=path, module=module, arrays=dict(arrays), fitted=Fitted())

    def grown(self, path: Path, module: OnTap, loop: TaskLoop) -> TrainedBranch:
        """The result of the loop: the module with its best weights."""
        fitted = loop.finish()
        return TrainedBranch(path=path, module=module, arrays=arrays_of_part(module.part), fitted=fitted)

    def outputs(self, grown: TrainedBranch, split: Split) -> list[np.ndarray]:
        """The branch's outputs for every example of the split, as in serving."""
        examples = tap_examples(self.prepared, split, grown.path, self.extractor, precision=self.precision)
        return module_outputs(grown.module.served(self._dtype), examples)

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
            dropouts=training.dropouts,
            layer_dropout=self.strategy.dropout,
            generator=generator,
        )
        if not head:
            start_pooler(part, path, self.extractor.data, self.strategy)
        part.start_from(start, head=head)
        return OnTap(part, path, bfloat16=self.precision == "bfloat16")

    def _loop(
        self,
        path: Path,
        module: OnTap,
        seed: int | None,
        loss: Callable[..., Tensor],
        name: str,
        *,
        soft: list[np.ndarray] | None = None,
        noisy: TrainedBranch | None = None,
    ) -> TaskLoop:
        task, kind, training = self.prepared.task, kind_of(self.prepared.task), self.prepared.training
        if seed is not None:
            training = msgspec.structs.replace(training, seed=seed)
        validation = self._examples("validation", path)
        right = self.prepared.validation.examples

        def score() -> float:
            outputs = module_outputs(module.served(self._dtype), validation)
            return selection_score(task, right.scores(task, outputs))

        train = self._examples("train", path, soft=soft, noisy=noisy)
        if not self._reported:
            tell_unread(self.prepared, train, self.extractor.data.settings.max_tokens, self.events)
            self._reported = True
        balanced = kind.class_weights(task, self.prepared.train.examples.taught) if training.class_weights else None
        label = f"{task.name} ({name}, {counted(len(module.part.layers), 'layer')})"
        return TaskLoop(
            module,
            train,
            loss=loss,
            score=score,
            training=training,
            weights=None if balanced is None else torch.from_numpy(balanced),
            checkpoint=self.checkpoint(path, training.seed, name) if self.checkpoints else None,
            events=self.events,
            label=label,
        )

    def _examples(
        self, split: str, path: Path, *, soft: list[np.ndarray] | None = None, noisy: TrainedBranch | None = None
    ) -> FeatureExamples:
        rows = next(s for s in self.prepared.splits if s.name == split)
        teacher = None if noisy is None else _noisy(noisy.module)
        return tap_examples(
            self.prepared, rows, path, self.extractor, precision=self.precision, soft=soft, teacher=teacher
        )


def _noisy(module: OnTap) -> Callable[..., Tensor]:
    """The teacher with active dropout, as in the paper's code; its weights are fixed."""

    def answer(*arguments: object) -> Tensor:
        module.train()
        with torch.no_grad():
            outputs: Tensor = module(*arguments).float()
        module.eval()
        return outputs

    return answer


LEAST_LEFT = 2  # candidates that are trained to the end


class DepthCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """One depth at one seed: the length of its training and its best validation score."""

    layers: int
    seed: int
    epochs: int
    score: float


class _FallenFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file of a search's candidates that are out of the race, with the depths and seeds that raced."""

    depths: tuple[int, ...]
    seeds: tuple[int, ...]
    candidates: tuple[DepthCandidate, ...]


class FallenBranches:
    """The candidates of a search that are out of the race: a file has their scores, and their checkpoints are gone.

    A search that was interrupted reads them there, and trains none of them again. One of other depths or seeds does
    not: who falls depends on who races.
    """

    def __init__(self, branches: Branches, depths: Sequence[int], seeds: Sequence[int]) -> None:
        self._branches, self._depths, self._seeds = branches, tuple(sorted(depths)), tuple(sorted(seeds))
        self._file = None if branches.checkpoints is None else branches.checkpoints / f"fallen{SUFFIX}"
        self.candidates: dict[Key, DepthCandidate] = {}
        if self._file is not None and self._file.exists():
            with suppress(msgspec.MsgspecError):  # of a damaged file they are trained again
                known = msgspec.json.decode(self._file.read_bytes(), type=_FallenFile)
                if (known.depths, known.seeds) == (self._depths, self._seeds):
                    self.candidates = {(candidate.layers, candidate.seed): candidate for candidate in known.candidates}

    def add(self, candidates: Sequence[DepthCandidate]) -> None:
        """Writes their scores, and then removes their checkpoints. Raises TrainError if the disk refuses."""
        self.candidates |= {(candidate.layers, candidate.seed): candidate for candidate in candidates}
        if self._file is None or not candidates:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            content = _FallenFile(depths=self._depths, seeds=self._seeds, candidates=tuple(self.candidates.values()))
            replace_file(self._file, msgspec.json.encode(content))
            for candidate in candidates:
                path = self._branches.path(candidate.layers)
                self._branches.checkpoint(path, candidate.seed).unlink(missing_ok=True)
        except OSError as error:
            raise TrainError(
                f"cannot write {self._file}",
                got=error.strerror or error,
                do="free some disk space and run the same command again; finished tasks and epochs are kept",
            ) from None


class DepthSearch(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a search: the best branch, the best of every depth trained to the end, and all candidates."""

    best: TrainedBranch
    ended: tuple[TrainedBranch, ...]
    candidates: tuple[DepthCandidate, ...]


def seed_spread(candidates: Sequence[DepthCandidate]) -> dict[int, dict[str, float]]:
    """For each depth the maximum, mean, median and spread (standard deviation) of its seeds' validation scores.

    After halving these are each candidate's best scores up to its stop.
    """
    spreads: dict[int, dict[str, float]] = {}
    for layers in sorted({candidate.layers for candidate in candidates}):
        scores = [c.score for c in candidates if c.layers == layers]
        spreads[layers] = {
            "max": max(scores),
            "mean": statistics.mean(scores),
            "median": statistics.median(scores),
            "spread": statistics.stdev(scores) if len(scores) > 1 else 0.0,
        }
    return spreads


def halving(branches: Branches, depths: Sequence[int], seeds: Sequence[int]) -> DepthSearch:
    """The best of all depths and seeds, most of which are trained for only an epoch or two."""
    running: dict[Key, tuple[OnTap, TaskLoop] | None] = {(layers, seed): None for layers in depths for seed in seeds}
    ended: dict[Key, tuple[TrainedBranch, DepthCandidate]] = {}
    fallen, done = FallenBranches(branches, depths, seeds), 0
    while running:
        # The last rung runs to the end, so that no candidate is judged on an unfinished schedule.
        is_last, done, judged = len(running) <= LEAST_LEFT, done + 1, dict[Key, DepthCandidate]()
        for key, in_memory in list(running.items()):
            if key in fallen.candidates:  # in an interrupted search: it falls in the same rung again
                judged[key] = fallen.candidates[key]
                if is_last:
                    del running[key]
                continue
            module, loop = in_memory or branches.loop(branches.path(key[0]), seed=key[1])
            loop.advance(loop.most if is_last else done)
            if is_last or done >= loop.most:
                ended[key] = _ended(branches, key, module, loop)
                del running[key]
            else:
                judged[key] = _candidate(key, loop)
                # Weights and optimizers of all depths would take several times the memory of the encoder.
                running[key] = None if loop.set_aside() else (module, loop)
            del in_memory, module, loop  # before the next one is made
        ranked = sorted(running, key=lambda key: (-judged[key].score, key))
        out = ranked[max(LEAST_LEFT, -(-len(running) // 2)) :]
        fallen.add([judged[key] for key in out])
        for key in out:
            del running[key]
    return _searched(ended, fallen)


def grid(branches: Branches, depths: Sequence[int], seeds: Sequence[int]) -> DepthSearch:
    """The best of all depths and seeds, each trained to the end."""
    ended: dict[Key, tuple[TrainedBranch, DepthCandidate]] = {}
    fallen = FallenBranches(branches, depths, seeds)
    for layers in depths:
        for seed in seeds:
            if (layers, seed) in fallen.candidates:
                continue
            module, loop = branches.loop(branches.path(layers), seed=seed)
            loop.advance()
            ended[layers, seed] = _ended(branches, (layers, seed), module, loop)
            ranked = _ranked({key: ended[key] for key in ended if key[0] == layers})
            fallen.add([ended.pop(key)[1] for key in ranked[1:]])
    return _searched(ended, fallen)


Key = tuple[int, int]


def _ended(branches: Branches, key: Key, module: OnTap, loop: TaskLoop) -> tuple[TrainedBranch, DepthCandidate]:
    return branches.grown(branches.path(key[0]), module, loop), _candidate(key, loop)


def _candidate(key: Key, loop: TaskLoop) -> DepthCandidate:
    return DepthCandidate(layers=key[0], seed=key[1], epochs=loop.done, score=loop.best_score)


def _ranked(ended: Mapping[Key, tuple[TrainedBranch, DepthCandidate]]) -> list[Key]:
    """The best first; ties: fewer layers, then the smaller seed (2.a.6)."""
    return sorted(ended, key=lambda key: (-ended[key][1].score, key))


def _searched(ended: Mapping[Key, tuple[TrainedBranch, DepthCandidate]], fallen: FallenBranches) -> DepthSearch:
    """The best candidate that was trained to the end."""
    ranked = _ranked(ended)
    of_depth = {key[0]: key for key in reversed(ranked)}
    candidates = [*fallen.candidates.values(), *(candidate for _, candidate in ended.values())]
    return DepthSearch(
        best=ended[ranked[0]][0],
        ended=tuple(ended[of_depth[layers]][0] for layers in sorted(of_depth)),
        candidates=tuple(sorted(candidates, key=lambda candidate: (candidate.layers, candidate.seed))),
    )
