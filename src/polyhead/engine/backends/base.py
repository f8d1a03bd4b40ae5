"""What a backend is: it turns a batch of token ids into each task's features, and features into outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec
import numpy as np

from polyhead.plan import Path, Plan


class LoadedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task's path and arrays, as its bundle holds them."""

    path: Path
    arrays: Mapping[str, np.ndarray]  # those of its own part
    # Those of every other owner on the path but the trunk: families, and tasks of the same prompt group.
    others: Mapping[str, Mapping[str, np.ndarray]] = msgspec.field(default_factory=dict)


class TokenBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Padded inputs. `words` holds the first sub-token of each word, -1 for none; needed by word-level tasks only."""

    ids: np.ndarray  # (rows, tokens) int64
    mask: np.ndarray  # (rows, tokens) bool
    segments: np.ndarray  # (rows, tokens) int64
    words: np.ndarray  # (rows, words) int64


class Backend(Protocol):
    """Five members; a backend keeps no state between calls but what it loaded and what it counted."""

    name: str
    precision: str
    tolerance: float  # largest absolute difference of outputs from the reference backend at float32 weights

    @property
    def layers_run(self) -> int:
        """Layers evaluated so far, one a batch and layer, as `cost.layer_evaluations` counts them for the plan."""

    def features(self, plan: Plan, batch: TokenBatch) -> dict[str, np.ndarray]:
        """Every task's features: (rows, width), or (rows, words, width) for a path that reads words."""

    def outputs(self, task: str, features: np.ndarray, second: np.ndarray | None = None) -> np.ndarray:
        """The task's outputs for its features; `second` is the other text of pairs read separately."""
