"""What a run of training did."""

from __future__ import annotations

import msgspec

from polyhead.train.data.extract import Extraction
from polyhead.train.record.compared import VersionComparison


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of `train` did."""

    bundle: str
    trained: dict[str, dict[str, dict[str, float]]]  # task -> split -> metric -> value
    kept: tuple[str, ...]  # tasks that were trained already, unchanged
    left: dict[str, str] = {}  # tasks that were not trained this way, and stay so: why
    compared: dict[str, VersionComparison] = {}  # tasks that had a live version: it beside the new one
    extraction: Extraction
    seconds: float
