"""The same answers, arrays, errors, help and HTTP bodies as at an earlier commit, bit for bit on this machine.

    python -m benchmarks.rooms_golden COMMIT [--no-demo]

The commit is checked out into a folder of its own; `rooms_record` runs once over its source and once over this tree's,
in processes of their own with one thread. Bits depend on the processor and on builds of libraries, so both run here.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from studies.results import Claim
from studies.settings import ROOT, command, report, say

NAME = "rooms_golden"
PARTS = ("help", "errors", "http", "answers", "arrays")
# Keys of answers whose values are of one moment.
MOMENTS = ("created", "seconds", "release_date")
PREFIXES = ("infinity-", "classify-")


def recorded(tree: Path, file: Path, parts: tuple[str, ...]) -> dict[str, Any]:
    """Runs the recorder of this tree over the source of `tree`, and gives its record."""
    paths = os.pathsep.join([str(tree / "src"), str(ROOT)])
    own = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    words = [sys.executable, "-m", "benchmarks.rooms_record", str(file), *parts]
    subprocess.run(words, check=True, cwd=file.parent, env=own)
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def without_moments(value: Any) -> Any:
    """The value without times and random names."""
    if isinstance(value, dict):
        return {key: without_moments(each) for key, each in value.items() if key not in MOMENTS}
    if isinstance(value, list):
        return [without_moments(each) for each in value]
    if isinstance(value, str):
        return next((prefix for prefix in PREFIXES if value.startswith(prefix)), value)
    return value


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The names whose values differ, or that one side lacks."""
    names = sorted({*before, *after})
    return [name for name in names if without_moments(before.get(name)) != without_moments(after.get(name))]


def differing_arrays(before: dict[str, list[str]], after: dict[str, list[str]]) -> tuple[int, list[str]]:
    """How many arrays there are, and those that are not byte-equal, as `bundle: name type shape digest`."""
    found = []
    for bundle, arrays in before.items():
        found += [f"{bundle}: {array}" for array in sorted({*arrays} ^ {*after.get(bundle, [])})]
    return sum(map(len, before.values())), found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="the commit before")
    parser.add_argument("--no-demo", action="store_true", help="leave out the demo's bundle, which takes minutes")
    given = parser.parse_args()
    parts = PARTS if given.no_demo else (*PARTS, "demo")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder).resolve()
        subprocess.run(
            ["git", "worktree", "add", "-q", "--detach", str(place / "tree"), given.commit], check=True, cwd=ROOT
        )
        try:
            before = recorded(place / "tree", place / "before.json", parts)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(place / "tree")], check=True, cwd=ROOT)
        after = recorded(ROOT, place / "after.json", parts)
    rows: list[dict[str, Any]] = []
    for part in ("help", "errors", "http", "answers"):
        differ = differences(before[part], after[part])
        rows.append({"part": part, "cases": len(before[part]), "differ": differ})
    bundles = [{**each["arrays"], "demo": each.get("demo", [])} for each in (before, after)]
    arrays, differ = differing_arrays(*bundles)
    rows.append({"part": "arrays", "cases": arrays, "differ": differ})
    for row in rows:
        say(f"{row['part']}: {row['cases']} compared, {len(row['differ'])} differ")
        for name in row["differ"]:
            say(f"  {name}")
    claims = [
        _claim("rooms.golden_answers", rows[3], "answers of every strategy on every backend", "with other bits"),
        _claim("rooms.golden_arrays", rows[4], "trained arrays of the demo and of every strategy", "with other bytes"),
    ]
    rows.append({"part": "commit", "commit": given.commit})
    report(NAME, command=command(), rows=rows, claims=claims, lacking=[])


def _claim(name: str, row: dict[str, Any], what: str, how: str) -> Claim:
    count = len(row["differ"])
    return Claim(
        id=name,
        text=f"of {row['cases']:,} {what}, those {how} than before the rooms were made",
        target=0,
        value=count,
        unit="differences",
        holds=not count,
    )


if __name__ == "__main__":
    main()
