"""Optimization steps: AdamW with warm-up and decay, clipped gradients, embedding tables and memory."""

from __future__ import annotations

import ctypes
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from polyhead.errors import NotFinite
from polyhead.project.recipes import Training

PROMPTS = ("prompt.weight", ".key", ".value")  # rows that are read directly; the last two belong to a prefix


def adamw(module: nn.Module, training: Training, rate: Callable[[str], float]) -> torch.optim.Optimizer:
    """AdamW over the trainable parameters; `rate` returns each one's factor of the learning rate, by name."""
    groups = groups_of(module, training.weight_decay, rate)
    return _AdamW(groups, lr=training.learning_rate, betas=training.betas, eps=training.epsilon, fused=True)


class _AdamW(torch.optim.AdamW):
    """AdamW that leaves torch's compiler, which nothing here uses, unloaded: loading it takes seconds.

    Torch excludes an optimizer's methods from compilation, and loads the compiler to do so.
    """

    def __init__(self, groups: list[dict[str, object]], **settings: object) -> None:
        base = torch.optim.Optimizer
        for method in (base.add_param_group, base.zero_grad, base.state_dict, base.load_state_dict):
            _leave_as_it_is(inspect.unwrap(method))
        super().__init__(groups, **settings)  # type: ignore[arg-type]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update."""
        inspect.unwrap(torch.optim.AdamW.step)(self)


def _leave_as_it_is(method: Any) -> None:
    """Says to torch that the method was excluded from compilation already."""
    if "torch._dynamo" not in sys.modules:
        method.__dynamo_disable = method


def groups_of(module: nn.Module, decay: float, rate: Callable[[str], float]) -> list[dict[str, object]]:
    """Groups by learning rate; weight decay on matrices only: not on biases, norms, queries, mixes, prompts."""
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {(1.0, True): [], (1.0, False): []}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            decays = parameter.ndim >= 2 and not name.endswith(PROMPTS)
            groups.setdefault((rate(name), decays), []).append(parameter)
    return [
        {"params": parameters, "weight_decay": decay if matrices else 0.0, "scale": scale}
        for (scale, matrices), parameters in groups.items()
    ]


def rate_at(step: int, steps: int, warmup: float) -> float:
    """Linear from 0 to 1 over the warm-up, then linear to 0."""
    rising = max(1, round(steps * warmup))
    return (step + 1) / rising if step < rising else max(0.0, (steps - step) / max(1, steps - rising))


def clipped(parameters: Sequence[nn.Parameter], limit: float, *, when: str) -> float:
    """Scales gradients so that their total norm is at most the limit; returns the original norm.

    Raises NotFinite for a norm that is not a number; `when` names the position in training.
    """
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # of slices
    if norm > limit:
        nn.utils.clip_grads_with_norm_(parameters, limit, norm)
    size = float(norm)
    if not math.isfinite(size):
        raise NotFinite(f"the gradient is not finite in {when}", got=size, do="lower learning_rate")
    return size


class EmbeddingTables:
    """A module's embedding tables, on a processor; each keeps one array for its gradient between updates.

    A backward pass would allocate an array of zeros as large as the table, which takes longer than a layer. Sums equal
    those of dense gradients: for one micro-batch to the bit, for several up to the order of sums.
    """

    def __init__(self, module: nn.Module) -> None:
        self._tables = [part for part in module.modules() if isinstance(part, nn.Embedding)]
        self._sums: dict[nn.Embedding, tuple[Tensor, Tensor]] = {}  # and its rows that are not zero

    @contextmanager
    def learning(self) -> Iterator[None]:
        """A context in which backward passes add up rows; afterwards parameters hold dense gradients, as usual.

        An existing gradient of a table's parameter is kept, and the array is then made again.
        """
        sparse = [table for table in self._tables if table.weight.grad is None and not table.sparse]
        for table in sparse:
            table.sparse = True
        try:
            yield
        finally:
            for table in sparse:
                table.sparse = False
        for table in self._tables:
            if table.weight.grad is not None and table.weight.grad.is_sparse:
                table.weight.grad = self._summed(table, table.weight.grad)
            elif table not in sparse:
                self._sums.pop(table, None)

    def _summed(self, table: nn.Embedding, gradient: Tensor) -> Tensor:
        (rows,), values = gradient._indices(), gradient._values()
        total, before = self._sums.get(table) or (torch.zeros_like(table.weight), rows)
        total.index_fill_(0, before, 0.0).index_add_(0, rows, values)
        self._sums[table] = (total, rows)
        return total


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
# bytes: the maximum that is kept; blocks of at least this size are allocated and freed as before
KEPT, APART = 512 << 20, 32 << 20


def keep_freed() -> None:
    """Asks glibc to return only memory beyond `KEPT` to the system, for the whole process.

    By default it returns gradients' memory in each update, and writing to new pages takes 7 % of an update of a small
    trunk. On other systems nothing is changed.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_MMAP_THRESHOLD, APART)
        libc.mallopt(_TRIM_THRESHOLD, KEPT)
