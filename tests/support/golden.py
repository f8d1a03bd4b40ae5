"""What commands and servers say to wrong and right input, over a bundle of drawn arrays: `tests/golden` freezes it.

`PYTHONPATH=.:tests python -m support.golden` writes the files of `tests/golden` anew; read their difference before
they are committed. Numbers are rounded, and digests, times and random names left out: the files hold on any machine.
"""

import json
import math
import os
import re
import sys
import tempfile
from pathlib import Path
from unittest import mock

from benchmarks.rooms_cases import ERRORS, REQUESTS, write_faults
from benchmarks.rooms_golden import MOMENTS, PREFIXES
from benchmarks.rooms_made import write_all
from benchmarks.rooms_record import record_errors, record_http
from support.loopback_server import tiny_root

HOME = Path(__file__).parents[1] / "golden"
DIGITS, LONGEST = 3, 8  # digits after the point, and numbers of a list that are written out
DIGEST = re.compile(r"\b[0-9a-f]{12,64}\b")
NUMBER = re.compile(r"-?\d+\.\d{4,}")
# What `tasks quantize` says of the processor, and its second attempt, which follows only where heads had 8 bits too.
OF_PROCESSOR = re.compile(
    r"^note: int8 saves memory on this processor.*\n|^too much for a task: poolers and (?s:.)*", re.MULTILINE
)
DURATION = re.compile(r"\bin (\d+ h )?(\d+ min )?\d+ s\b")


def recorded(folder):
    """errors and HTTP answers, by name; the folder is empty before."""
    write_all(folder)
    bundle = tiny_root(folder / "made")
    write_faults(folder, bundle)
    return {"errors": errors(folder, ERRORS), "http": steady(record_http(bundle, REQUESTS))}


def errors(folder, cases):
    """What these commands say, without the progress that slow work alone shows."""
    with mock.patch("polyhead.progress.SOON", math.inf):
        return steady(record_errors(folder, cases))


def steady(value):
    """The value as it is on any machine at any time."""
    if isinstance(value, dict):
        return {key: steady(each) for key, each in value.items() if key not in MOMENTS}
    if isinstance(value, list):
        if len(value) > LONGEST and all(isinstance(each, float) for each in value):
            return f"{len(value)} numbers"
        return [steady(each) for each in value]
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, str):
        text = NUMBER.sub(
            lambda number: f"{float(number[0]):.{DIGITS}f}", OF_PROCESSOR.sub("", DURATION.sub("in 0 s", value))
        )
        return next((prefix for prefix in PREFIXES if text.startswith(prefix)), DIGEST.sub("<digest>", text))
    return value


def known(part):
    """What the file of this part says."""
    return json.loads((HOME / f"{part}.json").read_text())


def main():
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        for part, found in recorded(Path(folder).resolve()).items():
            text = json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True)
            (HOME / f"{part}.json").write_text(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
