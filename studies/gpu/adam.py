"""AdamW over a stack: lanes have rates of their own, each one's gradient is clipped alone, and lanes can leave."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from studies.gpu.stack import WORDS, Stack

DECAY, CLIP, EPSILON = 0.01, 1.0, 1e-8
Parameters = dict[str, nn.Parameter]  # of one lane, by buffer


class LaneAdam:
    """The optimizer of a stack; weight decay on matrices and words alone. Lanes of one rate are one group."""

    def __init__(self, stack: Stack, rates: Sequence[float]) -> None:
        self._stack, self._rates = stack, list(rates)
        self._lanes: list[Parameters] = [
            {kind: nn.Parameter(flat[lane]) for kind, flat in stack.buffers.items()} for lane in range(stack.lanes)
        ]
        self._optimizer = torch.optim.AdamW(self._groups(), lr=0.0, eps=EPSILON, fused=True)
        self._gradients()

    def step(self, loss: Tensor, share: float) -> None:
        """One update of every lane at this share of its rate, from a loss that is a sum over lanes."""
        names = list(self._stack.views)
        gradients = dict(zip(names, torch.autograd.grad(loss, list(self._stack.views.values())), strict=True))
        if WORDS in gradients:
            words = gradients.pop(WORDS).flatten(1)
            self._whole["words"][:, : words.shape[1]].copy_(words)
        torch._foreach_copy_([self._views[name] for name in gradients], list(gradients.values()))
        for kind, flat in self._read.items():
            if flat is not self._whole[kind]:
                self._whole[kind].copy_(flat)
        norms = torch.stack([torch.linalg.vector_norm(flat, dim=1) for flat in self._whole.values()])
        scale = (CLIP / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
        for flat in self._whole.values():
            flat.mul_(scale[:, None])
        for group in self._optimizer.param_groups:
            group["lr"] = group["rate"] * share
        self._optimizer.step()
        self._stack.refresh()

    def keep(self, lanes: Sequence[int]) -> None:
        """Follows `Stack.keep`: the others' moments are dropped."""
        left = [self._lanes[lane] for lane in lanes]
        self._rates = [self._rates[lane] for lane in lanes]
        moments = {id(parameter): self._optimizer.state[parameter] for own in left for parameter in own.values()}
        for lane, own in enumerate(left):
            for kind, parameter in own.items():
                parameter.data = self._stack.buffers[kind][lane]
        self._lanes = left
        self._optimizer = torch.optim.AdamW(self._groups(), lr=0.0, eps=EPSILON, fused=True)
        for own in left:
            for parameter in own.values():
                if moments[id(parameter)]:
                    self._optimizer.state[parameter] = moments[id(parameter)]
        self._gradients()

    def _groups(self) -> list[dict[str, object]]:
        return [
            {
                "params": [
                    parameter
                    for own, its in zip(self._lanes, self._rates, strict=True)
                    for kind, parameter in own.items()
                    if its == rate and ("vectors" not in kind) == decays
                ],
                "weight_decay": DECAY * decays,
                "rate": rate,
            }
            for rate in dict.fromkeys(self._rates)
            for decays in (True, False)
        ]

    def _gradients(self) -> None:
        """Gradients lie as weights do: as they are computed in `_read`, in float32 in `_whole`."""
        self._whole = {kind: torch.zeros_like(flat) for kind, flat in self._stack.buffers.items()}
        self._read = {}
        for kind, names in self._stack.kinds.items():
            if kind != "words":
                self._read[kind] = self._whole[kind].to(
                    self._stack.views[names[0]].dtype
                )  # the same where it is float32
        self._views = self._stack.viewed(self._read)
        for lane, own in enumerate(self._lanes):
            for kind, parameter in own.items():
                parameter.grad = self._whole[kind][lane]
