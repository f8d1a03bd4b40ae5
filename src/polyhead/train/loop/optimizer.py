"""The optimizer of every training run: AdamW, a linear warm-up and decay of its rate, gradients of a bounded norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import nn

from polyhead.errors import NotFinite
from polyhead.project.recipes import Training

PROMPTS = ("prompt.weight", ".key", ".value")  # rows that are read as they are; the last two are a prefix's


def adamw(
    module: nn.Module, training: Training, rate: Callable[[str], float], *, epsilon: float
) -> torch.optim.Optimizer:
    """Over the parameters that learn; `rate` gives the multiple of the learning rate of each, by its name."""
    groups = groups_of(module, training.weight_decay, rate)
    return torch.optim.AdamW(groups, lr=training.learning_rate, eps=epsilon, fused=True)


def groups_of(module: nn.Module, decay: float, rate: Callable[[str], float]) -> list[dict[str, object]]:
    """Weight decay on matrices alone: not on biases, norms, queries, mixes, prompts. A group for each learning rate."""
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {(1.0, True): [], (1.0, False): []}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            decays = parameter.ndim >= 2 and not name.endswith(PROMPTS)
            groups.setdefault((rate(name), decays), []).append(parameter)
    return [
        {"params": several, "weight_decay": decay if matrices else 0.0, "scale": scale}
        for (scale, matrices), several in groups.items()
    ]


def rate_at(step: int, steps: int, warmup: float) -> float:
    """Linear from 0 to 1 over the warm-up, then linear to 0."""
    rising = max(1, round(steps * warmup))
    return (step + 1) / rising if step < rising else max(0.0, (steps - step) / max(1, steps - rising))


def clipped(parameters: Sequence[nn.Parameter], limit: float, *, when: str) -> float:
    """Brings the norm of all gradients down to the limit; gives what it was. Smaller ones are not touched.

    Raises NotFinite for a norm that is no number; `when` says where training stood.
    """
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # of slices
    if norm > limit:
        nn.utils.clip_grads_with_norm_(parameters, limit, norm)
    size = float(norm)
    if not math.isfinite(size):
        raise NotFinite(f"the gradient is not finite in {when}", got=size, do="lower learning_rate")
    return size
