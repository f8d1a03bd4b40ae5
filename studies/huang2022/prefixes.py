"""The baseline P-Tuning v2 (Liu et al. 2022): prefixes learn at a rate of their own, beside a trunk that learns slowly.

They start as the keys and values that the trunk has for random ones of the task's frequent tokens, which Huang et al.
2022 (6.2) start from. At the rate of the trunk the few hundred updates of a study would leave them there; the released
scripts take 5e-3.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from polyhead.deep.nn.layer import Layer
from polyhead.deep.recipes.joint_loop import JointLoop, JointResult, frequent_tokens


class PrefixCourse(JointLoop):
    """Joint training in which prefixes start at tokens and learn at `prefix_rate`."""

    def __init__(self, *arguments: Any, prefix_rate: float, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._prefix_rate = prefix_rate

    def rate(self, name: str) -> float:
        """The multiple for this parameter of the loss."""
        is_prefix = ".delta." in name and name.endswith((".key", ".value"))
        return self._prefix_rate / self.training.learning_rate if is_prefix else super().rate(name)

    def learn(self, label: str = "training together", *, fresh: bool = True) -> JointResult:
        """Trains to the end; unless `fresh`, parts start as the caller left them."""
        if fresh:
            start_at_tokens(self)
        return super().learn(label, fresh=fresh)


@torch.no_grad()
def start_at_tokens(loop: JointLoop) -> None:
    """Sets every task's prefixes to the keys and values of its tokens, read as a text by the trunk as it is."""
    model = loop.module.model
    for name, prepared in loop.prepared.items():
        prefixes = dict(model.parts[name].delta.named_children())  # type: ignore[union-attr]
        size = int(next(iter(prefixes.values())).key.shape[0])
        ids = torch.from_numpy(frequent_tokens(prepared, loop.tokenizer, size))[None]
        states = model.trunk.eval()(ids, torch.ones_like(ids, dtype=torch.bool))
        for index, prefix in prefixes.items():
            layer = model.trunk.layers[int(index)]
            assert isinstance(layer, Layer)
            keys = layer.keys(states.layer(int(index)))
            _set(prefix, "key", keys.key)
            _set(prefix, "value", keys.value)


def _set(prefix: nn.Module, name: str, values: torch.Tensor) -> None:
    """Copies (1, heads, size, head width) into an array (size, width)."""
    prefix.get_parameter(name).copy_(values.transpose(1, 2).flatten(2)[0])
