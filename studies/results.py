"""Results files: what was measured, where and how, and the claims that rest on it."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from polyhead.errors import DataError
from polyhead.files import remove_leftovers, replace_file
from polyhead.machine import processor, processors
from polyhead.values import Value, to_json
from studies import contradictions

LEAST_SEEDS = 3  # of a claim about quality
PACKAGES = ("polyhead", "numpy", "torch", "transformers", "tokenizers", "scikit-learn")

_UNITS = ("points", "macro-F1", "macro-f1", "accuracy", "area", "sets", "labels", "tasks")  # of quality alone
_SHARES = ("ratio", "share", "times", "%")  # of quality where the text says so
_SCORES = re.compile(r"\bscores?\b|accuracy|F1|fine-tuning|calibration|precision of|coverage of sets|flipped|altered")
_OTHERS = (  # claims in these units and words that are no scores
    "house.coverage",
    "workbench.compare_sets",
    "front-door.sample-tasks",
    "branches.search-cost",
    "first-light.head-training",
)


class Claim(Value, omit_defaults=True):
    """A target, the value measured, and whether it holds; a claim that is missed stays, with a note.

    A claim about quality (scores, points, sets that gain) rests on seeds or draws: `studies.evidence` judges it.
    """

    id: str
    text: str
    target: float
    value: float
    unit: str
    holds: bool | None  # None: not shown, neither way
    note: str = ""
    seeds: int | None = None  # of a claim about quality: seeds or draws that it rests on
    interval: tuple[float, float] | None = None  # of such a claim: 95 %, by Student's t over them
    loser: str = ""  # how far the side that is behind had learned, where it trains layers (`studies.trained`)
    contradicts: tuple[str, ...] = ()  # ids of claims that say otherwise

    @property
    def outcome(self) -> str:
        """Yes, no, or not shown."""
        return {True: "yes", False: "no", None: "not shown"}[self.holds]


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """One results file."""

    name: str
    date: str
    hardware: str
    versions: dict[str, str]
    command: str
    rows: list[dict[str, object]]
    claims: list[Claim]


def results(name: str, *, command: str, rows: Sequence[dict[str, object]], claims: Sequence[Claim]) -> Results:
    """A results file of today, with these packages, on this machine or those that its rows name."""
    return Results(
        name=name,
        date=datetime.date.today().isoformat(),
        hardware=hardware_of(rows),
        versions=_versions(),
        command=command,
        rows=list(rows),
        claims=[honest(claim) for claim in claims],
    )


def write_results(folder: Path, file: Results) -> Path:
    """Writes `<folder>/<name>.json`, under a temporary name first."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{file.name}.json"
    remove_leftovers(folder, of=path.name)
    replace_file(path, to_json(file))
    return path


def read_results(folder: Path) -> list[Results]:
    """Every results file of a folder, by name; a file that is not one is an error that names it."""
    files = []
    for path in sorted(folder.glob("*.json")):
        try:
            files.append(msgspec.json.decode(path.read_bytes(), type=Results))
        except msgspec.MsgspecError as error:
            raise DataError(
                f"{path} is not a results file", got=error, do="write it again with its benchmark"
            ) from None
    if not files:
        raise DataError(f"no results files in {folder}", do="run `make bench`")
    return files


def in_order(files: Iterable[Results]) -> list[tuple[str, Claim]]:
    """All claims with the name of their file: those that do not hold first, then those that are not shown."""
    claims = [(file.name, claim) for file in files for claim in file.claims]
    return sorted(claims, key=lambda pair: ((False, None, True).index(pair[1].holds), pair[1].id))


def tally(claims: Iterable[Claim]) -> str:
    """`8 claims: 5 hold, 1 does not, 2 are not shown`, without what there is none of."""
    outcomes = [claim.outcome for claim in claims]
    held, missed, open_ones = (outcomes.count(outcome) for outcome in ("yes", "no", "not shown"))
    parts = [f"{held} hold{'s' * (held == 1)}"]
    parts += [f"{missed} do{'es' * (missed == 1)} not"] * bool(missed)
    parts += [f"{open_ones} {'is' if open_ones == 1 else 'are'} not shown"] * bool(open_ones)
    return f"{len(outcomes)} claim{'s' * (len(outcomes) != 1)}: {', '.join(parts)}"


def is_quality(claim: Claim) -> bool:
    """Whether a claim is about scores, so that it needs seeds: by its unit, where that tells little by its words."""
    if claim.seeds is not None:
        return True
    if claim.id in _OTHERS:
        return False
    return claim.unit in _UNITS or (claim.unit in _SHARES and _SCORES.search(claim.text) is not None)


def honest(claim: Claim) -> Claim:
    """The claim beside those that it contradicts; one about quality that tells no seeds is not shown."""
    claim = msgspec.structs.replace(claim, contradicts=contradictions.of(claim.id))
    if claim.holds is None or claim.seeds is not None or not is_quality(claim):
        return claim
    note = "; ".join(["not shown: the rows tell no seeds or draws", *([claim.note] if claim.note else [])])
    return msgspec.structs.replace(claim, holds=None, note=note, seeds=0)


def broken(claim: Claim) -> str:
    """Which rule a claim breaks; empty where it breaks none."""
    if claim.holds is None or not is_quality(claim):
        return ""
    if claim.seeds is None or claim.seeds < LEAST_SEEDS:
        return f"{claim.id}: claimed with {claim.seeds or 'no'} seeds"
    if claim.interval is None or claim.interval[0] < claim.target < claim.interval[1]:
        return f"{claim.id}: its interval holds the target"
    if claim.loser not in ("", "converged"):
        return f"{claim.id}: rests on a side that is {claim.loser}"
    return ""


class Study:
    """Rows of a long study, one JSON line each, so that it goes on where it stopped.

    Each says on which machine and day it was run.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        content = file.read_bytes() if file.exists() else b""
        # A line that a kill cut short is dropped and its row is run again; the next row must not continue it.
        self._gap = b"" if content.endswith(b"\n") or not content else b"\n"
        self.rows: list[dict[str, Any]] = [row for line in content.splitlines() if (row := _row(line)) is not None]

    def row(self, run: Callable[[], dict[str, Any]], **key: object) -> dict[str, Any]:
        """The row of this key, run now if it was not yet."""
        for row in self.rows:
            if all(row.get(name) == value for name, value in key.items()):
                return row
        row = {**key, "hardware": hardware(), "date": datetime.date.today().isoformat(), **run()}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("ab") as out:
            out.write(self._gap + msgspec.json.encode(row) + b"\n")
            out.flush()
            os.fsync(out.fileno())
        self._gap = b""
        self.rows.append(row)
        return row

    def replaced(self, change: Callable[[dict[str, Any]], dict[str, Any]], **key: object) -> Iterator[dict[str, Any]]:
        """Changes the rows of this key, in the file too."""
        for place, row in enumerate(self.rows):
            if all(row.get(name) == value for name, value in key.items()):
                self.rows[place] = change(row)
                self._file.parent.mkdir(parents=True, exist_ok=True)
                replace_file(self._file, b"".join(msgspec.json.encode(row) + b"\n" for row in self.rows))
                yield self.rows[place]


def hardware_of(rows: Iterable[dict[str, object]]) -> str:
    """The machines that rows name, with how many rows of each; this one where none names any."""
    counts = Counter(str(row.get("hardware", "not noted")) for row in rows)
    if set(counts) <= {"not noted"}:
        return hardware()
    return next(iter(counts)) if len(counts) == 1 else "; ".join(f"{name}: {n} rows" for name, n in counts.items())


def hardware() -> str:
    """Processor, its instructions that decide speed, the cores that may be used, memory, and a graphics card if any."""
    used, there = processors(), os.cpu_count() or 1
    name, cores = processor().model, f"{used} cores" if used == there else f"{used} of {there} cores"
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
        memory = int(Path("/proc/meminfo").read_text().split()[1]) / 2**20
    except OSError:
        return f"{name}, {cores}"
    known = {"avx512f": "AVX-512", "avx512_bf16": "bfloat16", "avx512_vnni": "VNNI", "amx_bf16": "AMX"}
    told = [word for flag, word in known.items() if flag in flags] or ["AVX2"] * ("avx2" in flags)
    whole = f"{name} ({', '.join(told)}), {cores}, {memory:.0f} GiB" if told else f"{name}, {cores}, {memory:.0f} GiB"
    torch = sys.modules.get("torch")  # a study that uses a card has imported it
    return f"{whole}, {torch.cuda.get_device_name()}" if torch is not None and torch.cuda.is_available() else whole


def _row(line: bytes) -> dict[str, object] | None:
    try:
        return msgspec.json.decode(line, type=dict[str, object])
    except msgspec.MsgspecError:
        return None


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
