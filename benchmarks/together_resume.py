"""Whether joint training that was killed outright and gone on with is the one that ran through, to the bit.

Minutes. The example of `examples/together/learn.toml`, with fewer rows, is trained twice: once from beginning to end,
and once in processes that are killed (SIGKILL) as soon as so many checkpoints were written. Every array of both bundles
is compared.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from polyhead.bundle.read import Bundle
from polyhead.project.recipes import Joint
from polyhead.project.tables import DataFile, Project, read_project
from studies.results import Claim
from studies.settings import ROOT, RUNS, command, parsed, report, say

NAME = "together_resume"
EXAMPLE = ROOT / "examples" / "together" / "learn.toml"
ROWS, SCORED, UPDATES = 320, 64, 12  # of each task, and of an epoch
KILLED_AFTER = (2, 4)  # checkpoints of one process after the other
SECONDS = 1.0  # between two checkpoints


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, help="used by itself: one process, which writes into this folder")
    parser.add_argument("--threads", type=int, help="of torch; by default as many as it finds")
    options = parsed(parser)
    if options.train:
        train(options.train)
        return
    folders = {name: RUNS / NAME / name for name in ("through", "killed")}
    shutil.rmtree(RUNS / NAME, ignore_errors=True)
    words = [
        sys.executable,
        "-m",
        "benchmarks.together_resume",
        *(["--threads", str(options.threads)] if options.threads else []),
    ]
    subprocess.run([*words, "--train", str(folders["through"])], check=True)
    rows: list[dict[str, object]] = []
    for count in KILLED_AFTER:
        rows.append(
            {"what": "kill", "checkpoints": count, **killed([*words, "--train", str(folders["killed"])], count)}
        )
        say(str(rows[-1]))
    subprocess.run([*words, "--train", str(folders["killed"])], check=True)
    rows += compared(folders["through"], folders["killed"])
    report(NAME, command=command(), rows=rows, claims=[claim(rows)], lacking=[])


def train(folder: Path) -> None:
    """One run of the example, which goes on where another was killed."""
    from polyhead.deep.loop import fit
    from polyhead.train.events import Events
    from polyhead.train.run import train_project

    fit.SAVE_SECONDS = SECONDS
    project = fewer(read_project(EXAMPLE), folder)
    train_project(project, folder=EXAMPLE.parent, cache=folder / "cache", events=Events(say=say))


def fewer(project: Project, folder: Path) -> Project:
    """The project with fewer rows and updates, and its bundle in the folder."""
    assert isinstance(project.recipe, Joint)
    tasks = tuple(
        msgspec.structs.replace(e, train=limited(e.train, ROWS), validation=limited(e.validation, SCORED), test=None)
        for e in project.tasks
    )
    recipe = msgspec.structs.replace(project.recipe, steps=UPDATES, validation_rows=SCORED)
    return msgspec.structs.replace(project, tasks=tasks, recipe=recipe, bundle=str(folder / "bundle"))


def limited(file: object, rows: int) -> DataFile:
    assert isinstance(file, DataFile)
    return msgspec.structs.replace(file, limit=rows)


def killed(words: list[str], checkpoints: int) -> dict[str, object]:
    """Starts a process, and kills it when it has written so many checkpoints."""
    folder, seen = Path(words[-1]), set[int]()
    with subprocess.Popen(words) as process:
        before = stamps(folder)
        while len(seen) < checkpoints:
            if process.poll() is not None:
                raise SystemExit("the process ended before it was killed: fewer checkpoints, please")
            seen |= stamps(folder) - before
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    return {"ended_by": -process.returncode}


def stamps(folder: Path) -> set[int]:
    """When each checkpoint that is there was written."""
    stamps_of_files = set[int]()
    for path in folder.rglob("*.pt"):
        try:
            stamps_of_files.add(path.stat().st_mtime_ns)
        except FileNotFoundError:  # it is being replaced
            continue
    return stamps_of_files


def compared(through: Path, killed: Path) -> Iterator[dict[str, object]]:
    """Every array of the trunk and of all parts: whether both have the same bytes."""
    whole, resumed = (dict(arrays(Bundle.open(folder / "bundle"))) for folder in (through, killed))
    assert whole.keys() == resumed.keys()
    for name, array in whole.items():
        same = array.dtype == resumed[name].dtype and array.tobytes() == resumed[name].tobytes()
        yield {"what": "array", "name": name, "numbers": int(array.size), "equal": same}


def arrays(bundle: Bundle) -> Iterator[tuple[str, np.ndarray]]:
    for name, array in bundle.trunk().arrays.items():
        yield f"trunk {name}", np.asarray(array)
    for task in bundle.tasks:
        for name, array in bundle.part(task).items():
            yield f"{task} {name}", np.asarray(array)


def claim(rows: list[dict[str, object]]) -> Claim:
    several = [row for row in rows if row["what"] == "array"]
    unlike = sum(not row["equal"] for row in several)
    kills = sum(row["what"] == "kill" for row in rows)
    return Claim(
        id="together.resume",
        text="arrays of the trunk and of all parts that differ by any bit between joint training that ran through and "
        f"one that was killed {kills} times and gone on with",
        target=0,
        value=unlike,
        unit=f"of {len(several)}",
        holds=not unlike,
        note=f"four tasks of three kinds, {UPDATES} updates an epoch, on the processor",
    )


if __name__ == "__main__":
    main()
