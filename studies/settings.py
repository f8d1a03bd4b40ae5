"""Where benchmarks find data and leave what they make, and the arguments and reports of long studies."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from polyhead.progress import duration
from studies.results import Claim, Study, results, write_results

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("POLYHEAD_DATA", ROOT.parent / "shared" / "data"))
RESULTS = ROOT / "results"
RUNS = ROOT / "runs"
Job = TypeVar("Job")


def study_arguments(
    description: str | None,
    rows: str,
    *,
    jobs: Iterable[str] = (),
    seeds: Iterable[int] = (),
    part: bool = False,
    device: bool = False,
) -> argparse.ArgumentParser:
    """The arguments of a long study: where its rows are (in `runs` by default), threads, or the report alone.

    With `jobs`, `seeds`, `part` and `device` also the options of these names.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if names := ",".join(jobs):
        parser.add_argument("--jobs", default=names)
    if numbers := ",".join(map(str, seeds)):
        parser.add_argument("--seeds", default=numbers)
    if part:
        parser.add_argument("--part", default="1/1")
    if device:
        parser.add_argument("--device", default="cpu", help="where trunks learn: cpu, cuda")
    parser.add_argument("--rows", type=Path, nargs="*", default=[RUNS / rows])
    parser.add_argument("--threads", type=int, help="of torch; by default as many as it finds")
    parser.add_argument("--report", action="store_true", help="write the results from the rows, train nothing")
    return parser


def answer_help(description: str | None) -> None:
    """Says what a script does that has no options, and ends, where its arguments ask for help."""
    argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_known_args()


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments, with torch's threads set."""
    import torch

    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    return arguments


def part_of(jobs: Sequence[Job], part: str) -> Sequence[Job]:
    """Every n-th job from the i-th on, for the part `i/n`; ends the program where there is no such part."""
    number, _, of = part.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise SystemExit(f"--part {part}: give i/n, with i from 1 to n")
    return jobs[int(number) - 1 :: int(of)]


def checked_names(listed: str, known: Iterable[str], what: str) -> list[str]:
    """The names in a list with commas; ends the program where one is not among the known names."""
    names, known = [name.strip() for name in listed.split(",")], list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"no such {what}: {', '.join(unknown)}; there are {', '.join(known)}")
    return names


def say(line: str) -> None:
    """Prints at once, also into a file."""
    print(line, flush=True)


def rows_of(files: Iterable[Path]) -> list[dict[str, Any]]:
    """The rows of all files of a study."""
    return [row for file in files for row in Study(file).rows]


def results_rows(name: str) -> list[dict[str, Any]]:
    """The rows of a results file; none where it is not there."""
    file = RESULTS / f"{name}.json"
    return json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []


def resumed(file: Path, name: str) -> Study:
    """The study whose rows are in this file; where there is none, it goes on from the rows of its results."""
    written = RESULTS / f"{name}.json"
    if not file.exists() and written.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        rows = json.loads(written.read_text(encoding="utf-8"))["rows"]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return Study(file)


def say_left(rows: Sequence[dict[str, Any]], *, done: int, total: int) -> None:
    """Prints how many runs are done, and the time left at the mean `run_seconds` of all rows."""
    mean = statistics.mean(float(row["run_seconds"]) for row in rows)
    say(f"{done} of {total} runs, about {duration(mean * (total - done))} left")


def command() -> str:
    """This run's command line, as it is typed."""
    program = sys.argv[0]  # of a study: "python -m studies PAPER COMMAND"
    if not program.startswith("python -m "):
        program = f"python -m benchmarks.{Path(program).stem}"
    return " ".join([program, shlex.join(sys.argv[1:])]).strip()


def within(id: str, text: str, seconds: Sequence[float], *, target: float) -> Claim | None:
    """The claim that the median of some times stays below a target; None without times."""
    if not seconds:
        return None
    value = statistics.median(seconds)
    return Claim(
        id=id,
        text=text,
        target=target,
        value=round(value, 3),
        unit="seconds",
        holds=value < target,
        note=f"median of {len(seconds)}, {min(seconds):.2f} to {max(seconds):.2f}",
    )


def report(
    name: str, *, command: str, rows: list[dict[str, Any]], claims: Sequence[Claim], lacking: Iterable[str]
) -> None:
    """Writes the results file, and prints what the study lacks and whether each claim holds."""
    for what in lacking:
        print(f"lacking: {what}")
    file = results(name, command=command, rows=rows, claims=claims)
    print(write_results(RESULTS, file))
    for claim in file.claims:
        outcome = {True: "holds", False: "MISSED", None: "not shown"}[claim.holds]
        print(f"{outcome:<9}  {claim.id}  {claim.value:.4g} {claim.unit} ({claim.target:g})  {claim.text}")
