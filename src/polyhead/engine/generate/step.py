"""The interface of a decoder that writes: a backend computes one step at a time, the search chooses tokens."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np


class DecoderCache(Protocol):
    """A decoder's keys and values of the encoder states and of earlier tokens."""

    def only(self, texts: np.ndarray, rows: np.ndarray) -> DecoderCache:
        """The cache of some texts, int64 (texts,), with earlier rows, int64 (texts * beams,), in a new order."""


class DecoderStep(Protocol):
    """A task's decoder. Several threads may write with it, each with its own caches."""

    def begin(self, states: np.ndarray, mask: np.ndarray) -> Any:
        """The `DecoderCache` of texts with these states, float32 (texts, tokens, width), read where `mask` is True."""

    def step(self, ids: np.ndarray, cache: Any) -> tuple[np.ndarray, Any]:
        """Scores of each next token, float32 (texts, beams, vocabulary), after these, int64 (texts, beams)."""
