"""A trained part with its scores."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from polyhead.plan import Path
from polyhead.train.loop.fit import Fitted


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """A trained part, where it sits, and how it did on whole splits."""

    path: Path
    arrays: dict[str, np.ndarray]
    scores: dict[str, dict[str, float]]  # split -> metric -> value
    fitted: Fitted
    tried: dict[str, float]  # candidate -> score on rows held out, where it was chosen
    chosen: str = ""  # which of them
    folds: int = 0  # that stand in for a validation split
    refitted: bool = False  # whether it learned from the validation rows too, after they had chosen it
    baselines: Baselines = {}  # simple answers -> split -> metric -> value

    def notes(self) -> dict[str, Any]:
        """What is written beside the part: scores, those of the baselines, what was tried, how training went.

        Without seconds: what a bundle holds is the same for the same seed. Branches that were found again come from a
        file, where an epoch's number has become a float.
        """
        history = [
            {"epoch": int(row["epoch"]), **{n: v for n, v in row.items() if n not in ("epoch", "seconds")}}
            for row in self.fitted.history
        ]
        notes: dict[str, Any] = {"splits": self.scores, "baselines": self.baselines, "tried": self.tried}
        notes["history"] = history
        if self.chosen:
            notes["chosen"] = self.chosen
        if self.folds:
            notes["folds"] = self.folds
        if self.refitted:
            notes["refitted"] = True
        return notes


Baselines = dict[str, dict[str, dict[str, float]]]
