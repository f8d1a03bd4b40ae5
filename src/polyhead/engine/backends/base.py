"""The interface of a backend, which turns a batch of token ids into each task's outputs; its state after a fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np

from polyhead.encoder.decoder import Decoder
from polyhead.engine.generate.step import DecoderStep
from polyhead.errors import BackendError
from polyhead.plan import Path, Plan


class LoadedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task's path and arrays, as its bundle holds them."""

    path: Path
    arrays: Mapping[str, np.ndarray]  # those of its own part
    # Arrays of every other owner on the path but the trunk: families, and tasks of the same prompt group.
    others: Mapping[str, Mapping[str, np.ndarray]] = msgspec.field(default_factory=dict)
    # Whether `arrays` lie in a file and nobody else has them: memory of pages that were read may be given back.
    is_mapped: bool = False


class TokenBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Padded inputs. `words` holds the first sub-token of each word, -1 for none; needed by word-level tasks only."""

    ids: np.ndarray  # (rows, tokens) int64
    mask: np.ndarray  # (rows, tokens) bool
    segments: np.ndarray  # (rows, tokens) int64
    words: np.ndarray  # (rows, words) int64


class FeatureBatch(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Some rows, decoded and padded: `values` are 0 where `mask` is False."""

    values: np.ndarray  # (rows, tokens, layers, width) float32
    mask: np.ndarray  # (rows, tokens) bool


class StageResults(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one stage of a run: each task of the plan is in exactly one stage."""

    outputs: dict[str, np.ndarray]  # as `Backend.run` gives them
    failed: dict[str, Exception]  # tasks whose own layers, pooler or head failed, and why
    layers_left: int  # of the run, not evaluated yet


class Runner(Protocol):
    """Runs plans: a backend, or a view of its tasks at one moment."""

    packs: bool  # reads no padding, so that a batch costs its tokens
    breadth: int  # how many times as many tokens as on a processor a batch should have

    def run(self, plan: Plan, batch: TokenBatch) -> dict[str, np.ndarray]:
        """Every task's outputs (rows, labels), or (rows, words, labels) for a path that reads words.

        Of a task over pairs read separately it is the features of this text, (rows, width), for `compared`; of one that
        generates the states of the text's tokens, (rows, tokens, width), for `decoder`.
        """

    def stages(self, plan: Plan, batch: TokenBatch) -> Iterator[StageResults]:
        """The same outputs as soon as each is known, in the order of the layers that they need.

        An error of one task is returned in its place; an error of all is raised. Layers that only later tasks need are
        run when the next stage is requested.
        """

    def compared(self, task: str, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Outputs (rows, labels) of a task over pairs read separately, from the features of both texts."""

    def decoder(self, task: str) -> DecoderStep:
        """The decoder of a task that writes texts; it reads the states that `run` returns."""

    def features(self, paths: Sequence[Path], batch: TokenBatch) -> list[np.ndarray]:
        """The stored value of each path before its codec, from one pass: float32 (positions, layers, width).

        Positions of the texts follow each other without padding: every token, or one a text where the path reads the
        first or the mean. Raises BackendError for a path over other layers than the trunk's own, or that reads words.
        """

    def heads(self, tasks: Sequence[str], features: FeatureBatch) -> dict[str, np.ndarray]:
        """Outputs of tasks from the stored value that all of them read, as `run` gives them; no layer is run.

        Raises BackendError for tasks whose path stores other layers or another width, or reads rows of a prompt.
        """


class Backend(Runner, Protocol):
    """A backend keeps no state between calls but what it loaded and what it counted."""

    name: str
    precision: str
    tolerance: float  # largest absolute difference of outputs from the reference backend at float32 weights
    version: str  # of the library that computes
    calibration: str  # digest of the scales by which it computes in int8; "" where there are none
    weight_bits: int | None  # of weights in int8: 8, or 7 on processors whose sums of bytes saturate; else None

    @property
    def layers_run(self) -> int:
        """Layers evaluated so far, one a batch and layer, as `cost.layer_evaluations` counts them for the plan."""


@runtime_checkable
class ChangingBackend(Backend, Protocol):
    """A backend whose tasks change while it runs, and no call waits for that or is waited for.

    What cannot be loaded raises, and leaves everything as it was.
    """

    def now(self) -> Runner:
        """A view of the current tasks, unaffected by later changes; arrays that only it needs are freed with it."""

    def replace(self, tasks: Mapping[str, LoadedTask]) -> None:
        """Loads these tasks and no others; what they have in common with those before stays as it is."""


class Count:
    """Layers that were run, by calls in several threads."""

    def __init__(self) -> None:
        self.layers, self._lock = 0, threading.Lock()

    def add(self, layers: int) -> None:
        """So many more."""
        with self._lock:
            self.layers += layers


def loaded_decoder(tasks: Mapping[str, LoadedTask], task: str) -> tuple[Decoder, LoadedTask]:
    """The decoder of a loaded task; raises BackendError where there is none."""
    loaded = tasks.get(task)
    decoder = None if loaded is None else loaded.path.head.decoder
    if loaded is None or not isinstance(decoder, Decoder):
        able = [name for name, other in tasks.items() if isinstance(other.path.head.decoder, Decoder)]
        raise BackendError(f"no task '{task}' is loaded that generates", allowed=able)
    return decoder, loaded


def runner_of(backend: Backend) -> Runner:
    """The backend's tasks of this moment; a backend whose tasks never change is that itself."""
    return backend.now() if isinstance(backend, ChangingBackend) else backend


def whole(stages: Iterator[StageResults]) -> dict[str, np.ndarray]:
    """The outputs of all stages; raises what failed."""
    outputs: dict[str, np.ndarray] = {}
    for stage in stages:
        for error in stage.failed.values():
            raise error
        outputs |= stage.outputs
    return outputs


def same(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two arrays are one, or equal."""
    return first is second or (first.shape == second.shape and np.array_equal(first, second, equal_nan=True))


def owned_arrays(tasks: Mapping[str, LoadedTask]) -> dict[str, dict[str, np.ndarray]]:
    """The arrays of every owner, of all tasks that read them; raises BackendError where these are not the same."""
    by_owner: dict[str, dict[str, np.ndarray]] = {}
    for name, task in tasks.items():
        for owner, arrays in ((task.path.head.part, task.arrays), *task.others.items()):
            known = by_owner.setdefault(owner, {})
            for leaf, array in arrays.items():
                if not same(known.setdefault(leaf, array), array):
                    raise BackendError(
                        f"task '{name}' was loaded with other arrays of '{owner}' than the tasks that share it",
                        got=leaf,
                        do="load all tasks of that owner anew, together",
                    )
    return by_owner


class ProcessGuard:
    """The process that made a backend; one that `forks` has no threads, and works in other processes too."""

    def __init__(self, backend: Runner) -> None:
        self._pid = None if getattr(backend, "forks", False) else os.getpid()

    def check(self) -> None:
        """Raises BackendError in any other process, where a call would wait for threads that are not there."""
        process = os.getpid()
        if self._pid not in (None, process):
            raise BackendError(
                "a session that was opened before a fork cannot answer after it",
                got=f"process {process}, forked from process {self._pid}, which opened it",
                allowed="the process that opened it",
                do="open a session in each process after the fork, or start processes with multiprocessing's 'spawn'",
            )


class ForkGuard:
    """The threads that torch keeps for products, which a process forked after their start does not have."""

    def __init__(self) -> None:
        self._has_threads = self._is_lost = False

    def use(self, threads: int) -> None:
        """Called before torch computes in so many threads; raises BackendError where that would never end."""
        if threads < 2:
            return
        if self._is_lost:
            raise BackendError(
                "torch cannot compute in several threads in a process that was forked after it had",
                got=f"{threads} threads",
                allowed="one thread",
                do="call torch.set_num_threads(1) after the fork, start processes with multiprocessing's 'spawn', or "
                "take another backend",
            )
        if not self._has_threads:
            self._has_threads = True
            os.register_at_fork(after_in_child=self._lose)

    def _lose(self) -> None:
        self._is_lost = True


TORCH_POOL = ForkGuard()
