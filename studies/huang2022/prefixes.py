"""The baseline P-Tuning v2 (Liu et al. 2022): prefixes learn at a rate of their own, beside a trunk that learns slowly.

They start as noise of 0.02 where keys and values of a trained trunk are about 1. At the rate of the trunk the few
hundred updates of a study would leave them there; the released scripts take 5e-3.
"""

from __future__ import annotations

from typing import Any

from polyhead.deep.recipes.course import JointCourse


class PrefixCourse(JointCourse):
    """Joint training in which prefixes learn at `prefix_rate`."""

    def __init__(self, *arguments: Any, prefix_rate: float, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._prefix_rate = prefix_rate

    def rate(self, name: str) -> float:
        """The multiple for this parameter of the loss."""
        is_prefix = ".delta." in name and name.endswith((".key", ".value"))
        return self._prefix_rate / self.training.learning_rate if is_prefix else super().rate(name)
