"""A newcomer's first hour: the commands that `init` prints on one's own file, the README's Python, words to read.

    python -m benchmarks.front_door          an idle machine

The file is 2,000 rows of CLINC150 with two label columns, 10 domains and 150 intents. What runs after `init` is read
from what it printed. Both are measured a second time capped to the instructions of AVX2 (oneDNN's, torch's and MKL's
kernels). Scikit-learn's own checks of estimators run over both of ours.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import unittest
import warnings
from collections.abc import Sequence
from pathlib import Path

from benchmarks.right_snippet import CAPPED, REPEATS, measured, snippet
from benchmarks.words import user_words
from studies.results import Claim
from studies.settings import DATA, ROOT, answer_help, report, say

ROWS = 2000
SECONDS, SNIPPET_SECONDS, WORDS, LINES = 300, 40, 25_000, 15
FOLDS = (
    "missed: by hand, training attention heads on five folds of two tasks took 30 of 51 s, in two threads; folds "
    "stacked into one model would probably close some (docs/project/log.md)"
)
# The first two checks require that X is a matrix; our X is a list of texts. The third requires that predictions for a
# part of the rows equal those for all rows to 1e-7; our predictions are float32 (tests/api/test_estimators.py).
EXCEPTIONS = {
    "PolyheadClassifier": ("check_fit1d", "check_fit2d_predict1d"),
    "PolyheadRegressor": ("check_fit1d", "check_fit2d_predict1d", "check_methods_subset_invariance"),
}


def main() -> None:
    rows = []
    for name, environment in (("as it is", {}), ("AVX2", CAPPED)):
        rows.append({"what": "first hour", "processor": name, **first_hour(environment)})
        say(json.dumps(rows[-1]))
    for repeat in range(REPEATS):
        rows.append({"what": "snippet", "processor": "AVX2", "repeat": repeat, **measured(snippet())})
        say(json.dumps(rows[-1]))
    rows += [{"what": "checks", **checks(name)} for name in ("PolyheadClassifier", "PolyheadRegressor")]
    written(rows)


def written(rows: list[dict], lacking: Sequence[str] = ()) -> None:
    """Writes the results file, with what there is to read."""
    rows = [*rows, {"what": "words", **user_words()}, {"what": "lines", "lines": lines()}]
    report("front_door", command="python -m benchmarks.front_door", rows=rows, claims=claims(rows), lacking=lacking)


def first_hour(environment: dict[str, str]) -> dict:
    """Seconds of `init` on the file and of each command that it prints, and the scores that they end with."""
    with tempfile.TemporaryDirectory() as folder:
        write_rows(Path(folder, "mine.csv"))
        label = [word for name in ("domain", "intent") for word in ("--label", name)]
        printed, seconds = ran(["init", "mine.csv", *label], folder, environment)
        commands = [line.strip() for line in printed.splitlines() if line.strip().startswith("polyhead ")]
        if not commands:
            raise SystemExit(f"init prints no command:\n{printed}")
        taken = {"polyhead init mine.csv " + " ".join(label): round(seconds, 1)}
        for line in commands:
            printed, seconds = ran(shlex.split(line)[1:], folder, environment)
            taken[line.partition('"')[0].strip()] = round(seconds, 1)  # without the text of a row
    return {"rows": ROWS, "seconds": round(sum(taken.values()), 1), "commands": taken}


def write_rows(path: Path) -> None:
    """2,000 texts with their intent and its domain."""
    files = [DATA / name / "train.jsonl.gz" for name in ("clinc150_domain", "clinc150")]
    domains, intents = (
        [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()] for file in files
    )
    intent_of = {row["text"]: row["label"] for row in intents}
    both = [(row["text"], row["label"], intent_of[row["text"]]) for row in domains if row["text"] in intent_of]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "domain", "intent"))
        writer.writerows(both[:: max(1, len(both) // ROWS)][:ROWS])


def ran(words: list[str], folder: str, environment: dict[str, str]) -> tuple[str, float]:
    """The output of a command, and how many seconds it took."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "polyhead", *words],
        cwd=folder,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"polyhead {' '.join(words)} ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return done.stdout, time.perf_counter() - began


def checks(name: str) -> dict:
    """How many of scikit-learn's checks pass, by name those that fail; the exceptions are not run."""
    from sklearn.utils.estimator_checks import estimator_checks_generator

    import polyhead

    sys.path.insert(0, str(ROOT / "tests"))
    from polyhead.project.recipes import Training
    from support.tiny_project import write_trunk

    passed, skipped, failed = 0, 0, list[str]()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = getattr(polyhead, name)(
            str(write_trunk(Path(folder, "trunk"))), training=Training(epochs=2), backend="reference"
        )
        with contextlib.redirect_stderr(open(os.devnull, "w", encoding="utf-8")):
            for checked, check in estimator_checks_generator(made):
                own = getattr(check, "func", check).__name__
                if own in EXCEPTIONS[name]:
                    continue
                try:
                    check(checked)
                    passed += 1
                except unittest.SkipTest:
                    skipped += 1
                except Exception as error:
                    failed.append(f"{own}: {str(error)[:200]}")
    return {
        "estimator": name,
        "passed": passed,
        "skipped": skipped,
        "failed": failed,
        "exceptions": list(EXCEPTIONS[name]),
    }


def lines() -> int:
    """Lines with code of the example after its data, which a test runs."""
    text = (ROOT / "examples" / "fifteen_lines.py").read_text(encoding="utf-8")
    code = text[text.index("model = ") :]
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in code.splitlines())


def claims(rows: list[dict]) -> list[Claim]:
    """One for each target."""
    hours = {row["processor"]: row for row in rows if row["what"] == "first hour"}
    snippets = [row["seconds"] for row in rows if row["what"] == "snippet"]
    checked = [row for row in rows if row["what"] == "checks"]
    failed = sum(len(row["failed"]) for row in checked)
    words = next(row for row in rows if row["what"] == "words")
    made = [
        Claim(
            id=f"front-door.{ident}",
            text=f"from an empty folder with a CSV of 2,000 rows to two tasks trained, scored and asked, {where}",
            target=SECONDS,
            value=hours[name]["seconds"],
            unit="seconds",
            holds=hours[name]["seconds"] <= SECONDS,
            note="; ".join(f"{line} {taken} s" for line, taken in hours[name]["commands"].items()),
        )
        for ident, name, where in (
            ("first-hour", "as it is", "only by commands that init prints"),
            ("first-hour-avx2", "AVX2", "capped to AVX2"),
        )
    ]
    what = "the README's Python snippet on cores capped to AVX2, median"
    made.append(at_most("snippet", what, SNIPPET_SECONDS, snippets, why=FOLDS))
    if checked:
        left = dict.fromkeys(name for row in checked for name in row["exceptions"])
        made.append(
            Claim(
                id="front-door.checks",
                text="checks of scikit-learn's `check_estimator` that fail, of both estimators, but for the exceptions",
                target=0,
                value=failed,
                unit="checks",
                holds=not failed,
                note=f"{' and '.join(str(row['passed']) for row in checked)} pass; exceptions: {', '.join(left)}",
            )
        )
    made.append(
        Claim(
            id="front-door.words",
            text="words of the user docs, code in them too, without generated parts",
            target=WORDS,
            value=words["words"],
            unit="words",
            holds=words["words"] <= WORDS,
            note=f"{words['pages']} pages; the longest, {words['longest']}, has {words['longest_words']:,}",
        )
    )
    count = next(row["lines"] for row in rows if row["what"] == "lines")
    made.append(
        Claim(
            id="front-door.lines",
            text="lines of Python that fit, ask, score, update, roll back, save and load, which a test runs",
            target=LINES,
            value=count,
            unit="lines",
            holds=count <= LINES,
            note="examples/fifteen_lines.py",
        )
    )
    return made


def at_most(name: str, text: str, target: float, seconds: list[float], *, why: str) -> Claim:
    value = statistics.median(seconds)
    holds, reason = value <= target, "" if value <= target else f"; {why}"
    return Claim(
        id=f"front-door.{name}",
        text=text,
        target=target,
        value=value,
        unit="seconds",
        holds=holds,
        note=f"median of {len(seconds)}, {min(seconds):.1f} to {max(seconds):.1f}{reason}",
    )


if __name__ == "__main__":
    answer_help(__doc__)
    main()
