"""The torch backend: the training code itself, in evaluation mode."""

from __future__ import annotations

import copy
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from polyhead.deep.model import MultiTaskModel, Reached, StoredPool, TextBatch, stored_values
from polyhead.deep.nn.decoder import TorchSteps
from polyhead.deep.nn.runtime import deterministic as equal_bits
from polyhead.deep.nn.runtime import to_device, to_host
from polyhead.deep.nn.trunk import Trunk
from polyhead.deep.sharing.make import make_families, make_part
from polyhead.deep.sharing.part import pair_features
from polyhead.deep.stacked.codecs import DeviceCodecs
from polyhead.deep.stacked.heads import StackedEnds, is_stacked
from polyhead.deep.stacked.maps import StackAnswers, StackMember
from polyhead.deep.stacked.reads import BatchPositions
from polyhead.encoder.data import TrunkData
from polyhead.engine.backends.base import (
    TORCH_POOL,
    Count,
    FeatureBatch,
    LoadedTask,
    StageResults,
    TokenBatch,
    loaded_decoder,
    owned_arrays,
    whole,
)
from polyhead.engine.backends.prefix import check_feature_batch, depth_of, stored_paths
from polyhead.engine.generate.step import DecoderStep
from polyhead.errors import BackendError, without_frames
from polyhead.plan import Path, Plan, Pool

log = logging.getLogger(__name__)

STACKS = 16  # sets of tasks whose stacked arrays are kept: mostly all tasks are asked at once
# A card computes a batch of a processor in less time than its kernels take to be started.
BREADTHS = {"cpu": 1, "cuda": 8}
NAMES = {"cpu": "torch", "cuda": "torch-cuda"}  # of the backend, by its device


class _Loaded:
    """Tasks and their model; the layers that it ran (`counted`) are included in the backend's count."""

    def __init__(
        self,
        tasks: Mapping[str, LoadedTask],
        model: MultiTaskModel,
        codecs: DeviceCodecs,
        before: _Loaded | None = None,
    ) -> None:
        """Folded arrays of tasks that are the same as `before` are kept."""
        self.tasks, self.model = dict(tasks), model
        self.counted, self.counting = 0, threading.Lock()
        self.edge = max((task.path.head.window for task in tasks.values()), default=0)
        self.stackable = {name for name, task in tasks.items() if is_stacked(task.path)}
        self.members: dict[tuple[str, int], StackMember] = {}
        for (name, width), member in list(before.members.items()) if before is not None else ():
            if before is not None and name in self.tasks and _is_same(before.tasks[name], self.tasks[name]):
                self.members[name, width] = member
        self.ends = lru_cache(STACKS)(partial(_stacked_ends, self.tasks, self.members, codecs))


def _is_same(first: LoadedTask, second: LoadedTask) -> bool:
    """Whether two versions of a task have the same path and share their arrays."""
    return first is second or (
        first.path == second.path
        and all(first.arrays.get(name) is array for name, array in second.arrays.items())
        and all(first.others.get(owner) is arrays for owner, arrays in second.others.items())
    )


def _stacked_ends(
    tasks: Mapping[str, LoadedTask],
    members: dict[tuple[str, int], StackMember],
    codecs: DeviceCodecs,
    names: tuple[str, ...],
    width: int,
) -> StackedEnds:
    """The poolers and heads of these tasks, which read states or values of this width."""
    for name in names:
        if (name, width) not in members:
            members[name, width] = StackMember.of(name, tasks[name], width=width)
    return StackedEnds([members[name, width] for name in names], width=width, codecs=codecs)


class _Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A batch on the device; `positions` for stacked poolers."""

    texts: TextBatch
    positions: BatchPositions | None = None


class _Ends(msgspec.Struct, frozen=True, kw_only=True):
    """The results of some tasks so far: outputs, or stored values that their own modules read."""

    stacked: list[StackAnswers] = []
    values: dict[str, StoredPool] = {}
    layers_left: int = 0  # layers that further tasks need

    @property
    def tasks(self) -> set[str]:
        """The tasks of these results."""
        return {*self.values, *(task for answers in self.stacked for task in answers.tasks)}


class TorchBackend:
    """Runs plans with `polyhead.deep.model`; layers and deltas in `precision`, poolers and heads in float32.

    Paths that differ in their deltas run in one pass, and isolated prompts at once; poolers and heads of one form are
    one product each (`deep.stacked`). In deterministic mode one runs after another.
    """

    version, calibration = str(torch.__version__), ""
    weight_bits: int | None = None
    packs = False

    def __init__(
        self,
        trunk: TrunkData,
        tasks: Mapping[str, LoadedTask],
        *,
        precision: str = "float32",
        deterministic: bool = False,
        device: str = "cpu",
    ) -> None:
        """`device` is cpu or cuda; raises BackendError if it is missing, or if a fork lost its threads."""
        self.name, self.precision, self._device = NAMES[device], precision, _device(device)
        TORCH_POOL.use(torch.get_num_threads())
        if device == "cuda" and deterministic:
            _check_products()
        self._guard = equal_bits if deterministic else nullcontext
        self.breadth = BREADTHS[device]
        self.tolerance = 1e-4 if precision == "float32" else 0.5
        self._trunk = Trunk.from_data(trunk, dtype=getattr(torch, precision)).to(self._device)
        self._shape = trunk.architecture
        self._stacked = not deterministic
        self._count, self._codecs = Count(), DeviceCodecs(self._device)
        self._loaded = self._loaded_from(tasks)

    @property
    def layers_run(self) -> int:
        return self._count.layers

    def now(self) -> TorchBackend:
        return copy.copy(self)

    def run(self, plan: Plan, batch: TokenBatch) -> dict[str, np.ndarray]:
        loaded = self._loaded
        prepared = self._prepared(loaded, batch)
        with self._counted(loaded):
            ends = self._answered(loaded, loaded.model.reached(plan, prepared.texts), prepared)
        return whole(iter([self._stage(loaded.model, ends)]))

    def stages(self, plan: Plan, batch: TokenBatch) -> Iterator[StageResults]:
        """The outputs, each as soon as it is known; further layers run only when more outputs are requested.

        If a pass fails, the remaining tasks run one by one, so that a fault in a task's own layers, deltas or prompts
        fails only that task; an error of all is raised.
        """
        loaded, pending = self._loaded, list(plan.tasks)
        prepared = self._prepared(loaded, batch)
        staged = loaded.model.staged(plan, prepared.texts)
        failure: Exception | None = None
        while pending and failure is None:
            try:
                with self._counted(loaded):
                    ends = self._answered(loaded, next(staged), prepared)
            except Exception as error:
                failure = error
                continue
            pending = [task for task in pending if task not in ends.tasks]
            yield self._stage(loaded.model, ends)
        if failure is not None:
            del staged
            yield from self._apart(loaded, plan, pending, prepared, failure)

    def _apart(
        self, loaded: _Loaded, plan: Plan, tasks: Sequence[str], prepared: _Prepared, failure: Exception
    ) -> Iterator[StageResults]:
        """Runs each task's own path, with the errors of those that fail again; raises the error if none succeeds."""
        if len(plan.tasks) == 1:
            raise failure
        without_frames(failure)  # else its layers' states would be kept while others are computed
        has_outputs, failed = len(tasks) < len(plan.tasks), dict[str, Exception]()
        for task in tasks:
            try:
                with self._counted(loaded):
                    stored = loaded.model.stored(plan.only([task]), prepared.texts)
            except Exception as error:
                failed[task] = without_frames(error)
                continue
            has_outputs = True
            yield self._stage(loaded.model, _Ends(values=stored))
        if not has_outputs:
            raise failure
        yield StageResults(outputs={}, failed=failed, layers_left=0)

    def _answered(self, loaded: _Loaded, reached: Reached, prepared: _Prepared) -> _Ends:
        """The outputs of tasks whose poolers and heads are stacked, and the values that others' read.

        A stack that fails leaves its tasks among the others, so that only those fail whose own arrays are at fault.
        """
        stacked = list[StackAnswers]()
        for states, tasks in reached.alike() if prepared.positions is not None else ():
            names = tuple(task for task in tasks if task in loaded.stackable)
            if names and prepared.positions is not None:
                try:
                    stacked += loaded.ends(names, states.last.shape[-1]).over(states, prepared.positions)
                except Exception as error:
                    log.info("%d tasks are computed one by one: %s", len(names), error)
        done = {task for answers in stacked for task in answers.tasks}
        values = reached.values([task for task in reached.tasks if task not in done])
        return _Ends(stacked=stacked, values=values, layers_left=reached.layers_left)

    def _stage(self, model: MultiTaskModel, ends: _Ends) -> StageResults:
        on_device, failed = dict[str, Tensor](), dict[str, Exception]()
        for task, value in ends.values.items():
            try:
                with torch.inference_mode(), self._guard():
                    part = model.parts[task]
                    if part.decoder is not None:
                        on_device[task] = value.values[:, :, 0]
                        continue
                    features = part.features(value.values, value.mask)
                    on_device[task] = features if part.separate else part.head(features)
            except Exception as error:  # an error in this task's own pooler or head
                failed[task] = error
        outputs = dict[str, np.ndarray]()
        if self._stacked:  # one copy of all, after all are launched: it waits for the device
            with torch.inference_mode():
                unstacked, stacked = list(on_device.values()), [answers.values for answers in ends.stacked]
                arrays = to_host([*unstacked, *stacked])
            outputs = dict(zip(on_device, arrays[: len(unstacked)], strict=True))
            for answers, array in zip(ends.stacked, arrays[len(unstacked) :], strict=True):
                outputs |= {task: answers.of(task, array) for task in answers.tasks}
            return StageResults(outputs=outputs, failed=failed, layers_left=ends.layers_left)
        for task, values in on_device.items():
            try:
                outputs[task] = values.cpu().numpy()
            except Exception as error:  # errors of a device appear when its results are read
                failed[task] = error
        return StageResults(outputs=outputs, failed=failed, layers_left=ends.layers_left)

    def compared(self, task: str, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        pairs = pair_features(torch.from_numpy(first), torch.from_numpy(second)).numpy()
        with torch.inference_mode(), self._guard():
            features = torch.from_numpy(pairs).to(self._device)
            outputs: np.ndarray = self._loaded.model.parts[task].head(features).cpu().numpy()
        return outputs

    def decoder(self, task: str) -> DecoderStep:
        loaded_decoder(self._loaded.tasks, task)
        decoder = self._loaded.model.parts[task].decoder
        assert decoder is not None
        return TorchSteps(decoder, self._trunk.embeddings.word.weight.float(), guard=self._guard)

    def features(self, paths: Sequence[Path], batch: TokenBatch) -> list[np.ndarray]:
        stored = stored_paths(paths)
        with torch.inference_mode(), self._guard():
            values = stored_values(self._trunk, stored, self._texts(batch))
        self._count.add(max(map(depth_of, stored), default=0))
        return values

    def heads(self, tasks: Sequence[str], features: FeatureBatch) -> dict[str, np.ndarray]:
        loaded = self._loaded
        for name in tasks:
            if name not in loaded.tasks:
                raise BackendError(f"task '{name}' is not loaded", allowed=list(loaded.tasks))
            check_feature_batch(name, loaded.tasks[name].path, features, self._shape.width)
        values, mask = (to_device(array, self._device) for array in (features.values, features.mask))
        stacked, unstacked = list[StackAnswers](), list(tasks)
        if self._stacked:
            unstacked = [name for name in tasks if name not in loaded.stackable]
            groups: dict[Pool, list[str]] = {}
            for name in tasks:
                if name in loaded.stackable:
                    groups.setdefault(loaded.tasks[name].path.pool.stored(), []).append(name)
            with torch.inference_mode():
                for names in groups.values():
                    stacked += loaded.ends(tuple(names), self._shape.width).over_kept(values, mask)
        ends = _Ends(stacked=stacked, values=dict.fromkeys(unstacked, StoredPool(values=values, mask=mask)))
        return whole(iter([self._stage(loaded.model, ends)]))

    def replace(self, tasks: Mapping[str, LoadedTask]) -> None:
        self._loaded = self._loaded_from(tasks, self._loaded)

    def _loaded_from(self, tasks: Mapping[str, LoadedTask], before: _Loaded | None = None) -> _Loaded:
        dtype = getattr(torch, self.precision)
        owned = owned_arrays(tasks)
        families = make_families({name: task.path for name, task in tasks.items()}, self._shape)
        for owner, family in families.items():
            _fill(family, owner, owned.get(owner, {}))
            family.to(self._device).lower(dtype)
        parts = {}
        for name, task in tasks.items():
            parts[name] = make_part(task.path, self._shape, families=families)
            _fill(parts[name], task.path.head.part, task.arrays)
            parts[name].to(self._device).lower(dtype)
        model = MultiTaskModel(self._trunk, parts, families, stacked=self._stacked)
        model.eval().requires_grad_(False)
        return _Loaded(tasks, model, self._codecs, before)

    def _prepared(self, loaded: _Loaded, batch: TokenBatch) -> _Prepared:
        texts, positions = self._texts(batch), None
        if self._stacked:
            positions = BatchPositions.of(batch.mask, batch.words, edge=loaded.edge, device=self._device)
        return _Prepared(texts=texts, positions=positions)

    def _texts(self, batch: TokenBatch) -> TextBatch:
        ids, mask, segments, words = (
            to_device(array, self._device) for array in (batch.ids, batch.mask, batch.segments, batch.words)
        )
        return TextBatch(ids=ids, mask=mask, segments=segments, words=words)

    @contextmanager
    def _counted(self, loaded: _Loaded) -> Iterator[None]:
        try:
            with torch.inference_mode(), self._guard():
                yield
        finally:
            with loaded.counting:
                run = loaded.model.layers_run
                self._count.add(run - loaded.counted)
                loaded.counted = run


def _device(device: str) -> torch.device:
    if device == "cuda" and not torch.cuda.is_available():
        raise BackendError(
            "the torch-cuda backend needs a graphics processor, and torch finds none here",
            got=f"torch {torch.__version__}",
            do="choose --backend torch, or install the build of torch for this machine's CUDA",
        )
    return torch.device(device)


def _check_products() -> None:
    if os.environ.get("CUBLAS_WORKSPACE_CONFIG") not in (":4096:8", ":16:8"):
        raise BackendError(
            "products on a graphics processor give equal bits by a setting that has to be there before torch starts",
            got=f"CUBLAS_WORKSPACE_CONFIG={os.environ.get('CUBLAS_WORKSPACE_CONFIG', '')}",
            allowed=[":4096:8", ":16:8"],
            do="export CUBLAS_WORKSPACE_CONFIG=:4096:8",
        )


def _fill(module: nn.Module, owner: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Loads into a part or family the arrays that the tasks here read."""
    wanted = list(module.state_dict())
    missing = [name for name in wanted if name not in arrays]
    if missing:
        raise BackendError(
            f"layers, prompts or heads read arrays of '{owner}' that are not loaded",
            got=f"none for {missing[:3]}",
            do="give every owner's arrays with the tasks that read them",
        )
    module.load_state_dict({name: torch.from_numpy(np.array(arrays[name])) for name in wanted})
