"""Dropout, and the generator that each thread draws from."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional

_LEVELS = 1 << 16


class _Own(threading.local):
    generator: torch.Generator | None = None  # None: torch's, which all threads share


_own = _Own()


@contextmanager
def own_generator() -> Iterator[None]:
    """A context in which dropout on a CPU uses this thread's own generator, so that threads can train at once.

    After the same `seed` it draws the same numbers as torch's generator.
    """
    before, _own.generator = _own.generator, torch.Generator()
    try:
        yield
    finally:
        _own.generator = before


def generator() -> torch.Generator:
    """The generator of this thread for dropout on a CPU."""
    return _own.generator or torch.default_generator


def seed(number: int) -> None:
    """Seeds this thread's generator for dropout; outside `own_generator` that is torch's, of each device."""
    if _own.generator is None:
        torch.manual_seed(number)
    else:
        _own.generator.manual_seed(number)


def dropped(values: Tensor, share: float, training: bool = True) -> Tensor:
    """Each number is 0 with probability `share`, rounded to 1/65536, else divided by `1 - share`.

    On a CPU four numbers share one draw of this thread's generator; on other devices this is torch's own dropout.
    """
    if not training or not share or values.device.type != "cpu":
        return functional.dropout(values, share, training)
    lost, count = min(round(share * _LEVELS), _LEVELS - 1), values.numel()
    drawn = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None, generator=_own.generator)
    kept = drawn.view(torch.int16)[:count].ge_(lost - _LEVELS // 2).view(values.shape).to(values.dtype)
    return values * kept.mul_(_LEVELS / (_LEVELS - lost))
