"""How sure the default is, without any command: expected calibration error on the whole test split.

    python -m studies defaults run-calibration [--sets trec6,cr] [--report]

Ten sets with 64 rows a label, three draws, as trained and with the scale that training fits on held-out rows taken out
of the outputs again (Guo et al. 2017). The sets and draws are those of `run.py`. Writes
results/minute_calibration.json. Goes on where it stopped: rows are in runs/minute_calibration.jsonl, or else in the
results.
"""

from __future__ import annotations

import itertools
import json
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from polyhead import Model, train_project
from polyhead.tasks.metrics import calibration_error
from polyhead.train.data.prepare import prepare
from studies.defaults.claims import DRAWS, lacking_draws
from studies.defaults.run import project_of, test_split
from studies.evidence import by_draw, judged
from studies.results import Claim
from studies.settings import RUNS, checked_names, command, parsed, report, resumed, rows_of, say, study_arguments

NAME = "minute_calibration"
NAMES = ("trec6", "emotion", "cr", "sst5", "irony", "mrpc", "subj", "ag_news", "trec50", "rte")
SIZE = "64"
MOST = 0.05  # expected calibration error, on average


def main() -> None:
    parser = study_arguments(__doc__, f"{NAME}.jsonl")
    parser.add_argument("--sets", default=",".join(NAMES))
    options = parsed(parser)
    if not options.report:
        study = resumed(options.rows[0], NAME)
        for draw, name in itertools.product(DRAWS, checked_names(options.sets, NAMES, "set")):
            say(str(study.row(partial(run, name, draw), set=name, draw=draw)))
        return
    rows = rows_of(options.rows)
    errors = by_set(rows)
    lacking = [f"{name}: {count} draws" for name in NAMES if (count := len(errors.get(name, ()))) < len(DRAWS)]
    report(NAME, command=command(), rows=rows, claims=claims(rows), lacking=lacking)


def by_set(rows: list[dict[str, Any]]) -> dict[str, dict[int, float]]:
    """By set and draw, the error as trained."""
    errors: dict[str, dict[int, float]] = {}
    for row in rows:
        errors.setdefault(row["set"], {})[row["draw"]] = row["error"]
    return errors


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    """The mean error, with the sets where it is largest, and the mean without the scale."""
    errors = by_set(rows)
    means = {name: statistics.mean(draws.values()) for name, draws in errors.items()}
    worst = ", ".join(f"{name} {means[name]:.3f}" for name in sorted(means, key=means.__getitem__)[-3:])
    unscaled = statistics.mean(row["unscaled"] for row in rows)
    absent = [name for name in NAMES if name not in errors]
    return [
        judged(
            "minute.calibration",
            f"expected calibration error on test, mean of {len(errors)} sets, {SIZE} rows a label, no command",
            by_draw(errors),
            target=MOST,
            side="most",
            unit="",
            digits=4,
            note=f"without the scale {unscaled:.3f}; largest: {worst}",
            lacking=f"without {', '.join(absent)}" if absent else lacking_draws(errors),
        )
    ]


def run(name: str, draw: int) -> dict[str, object]:
    """The error as trained, and without the scale of the outputs."""
    with tempfile.TemporaryDirectory() as folder:
        project = project_of(name, SIZE, draw, Path(folder))
        outcome = train_project(project, folder=Path(folder), cache=RUNS / "right-cache")
        (scores,) = Path(outcome.bundle).glob("tasks/task/*/scores.json")
        scale = json.loads(scores.read_text(encoding="utf-8")).get("scale", 1.0)
        test = test_split(prepare(project, Path(folder))[0]).examples
        model = Model.load(outcome.bundle)
        shares = np.asarray(model.predict_proba(list(test.inputs), task="task"), np.float64)
    is_right = (shares.argmax(axis=1) == np.asarray(test.targets)) * 1.0
    logits = np.log(np.maximum(shares, 1e-300)) / scale
    plain = np.exp(logits - logits.max(axis=1, keepdims=True))
    plain /= plain.sum(axis=1, keepdims=True)
    error, unscaled = (round(calibration_error(each.max(axis=1), is_right), 4) for each in (shares, plain))
    return {"scale": scale, "error": error, "unscaled": unscaled}


if __name__ == "__main__":
    main()
