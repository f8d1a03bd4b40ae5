"""Where benchmarks find data and leave what they make."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("POLYHEAD_DATA", ROOT.parent / "shared" / "data"))
RESULTS = ROOT / "results"
RUNS = ROOT / "runs"
