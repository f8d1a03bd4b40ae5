"""Rows that may have several labels: how many altered ones stand at the head of the list of `polyhead check`.

    python -m benchmarks.workbench_several [--seeds 1,2,3] [--report]

The slots of Snips as any number of labels, 3,000 rows of train; in 5 % of them one label is taken away or added, drawn
at random. The list is that of the command: rows with labels that held-out heads would add or take away.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.one_pass_tasks import filled
from polyhead.check.label_errors import all_labelled_rows, doubted
from polyhead.check.run import read_splits
from polyhead.project.tables import Project, TaskEntry, TrunkChoice
from polyhead.train.events import Events
from polyhead.train.heads.held_out import features_for, held_out, whole_of
from studies.evidence import estimate, judged
from studies.results import Claim
from studies.settings import DATA, RUNS, command, parsed, report, resumed, say, study_arguments
from studies.settings import rows_of as rows_in

NAME, SEEDS = "workbench_several", (1, 2, 3)
ROWS, ALTERED, FIRST, TARGET = 3000, 0.05, 0.1, 0.7


def main() -> None:
    options = parsed(study_arguments(__doc__, f"{NAME}.jsonl", seeds=SEEDS))
    if not options.report:
        study = resumed(options.rows[0], NAME)
        for seed in map(int, options.seeds.split(",")):
            say(str(study.row(partial(run, seed), seed=seed)))
    rows = rows_in(options.rows)
    lacking = [f"seed {seed}" for seed in SEEDS if not any(row["seed"] == seed for row in rows)]
    report(NAME, command=command(), rows=rows, claims=claims(rows), lacking=lacking)


def run(seed: int) -> dict[str, object]:
    """How many rows are told, and how many of the altered ones in the first tenth, with the very label or any."""
    with gzip.open(DATA / "snips_slots" / "train.jsonl.gz", "rt", encoding="utf-8") as file:
        several = [filled(json.loads(line)) for line in file]
    rows = [several[i] for i in np.random.default_rng(0).permutation(len(several))[:ROWS]]
    names = tuple(sorted({label for row in rows for label in row["label"]}))
    altered = alter(rows, names, np.random.default_rng(seed))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
        entry = TaskEntry(name="slots", kind="multi_label", labels=names, train="train.jsonl")
        project = Project(tasks=(entry,), trunk=TrunkChoice(max_tokens=128))
        parts, _ = read_splits(project.tasks, Path(folder))
        whole = all_labelled_rows(parts)
        source = features_for(project, Path(folder), cache=RUNS / "right-cache")
        answered = held_out(whole_of(project, entry, parts[0].task, whole.examples), source, Events())
        findings = doubted(whole, answered.rows, answered.outputs, answered.vectors)
    places = [place for finding in findings for place in finding.places]
    first = places[: round(FIRST * len(rows))]
    return {
        "rows": len(rows),
        "altered": len(altered),
        "told": len(places),
        "found": sum(place.row in altered for place in first),
        "found_exactly": sum(f"{altered.get(place.row, '?')} (" in place.other for place in first),
    }


def alter(rows: list[dict], names: tuple[str, ...], generator: np.random.Generator) -> dict[int, str]:
    """Takes a label away or adds one in some rows; what each row, from 1, should be told."""
    told = {}
    for index in generator.choice(len(rows), round(ALTERED * len(rows)), replace=False).tolist():
        labels = rows[index]["label"]
        if labels and generator.random() < 0.5:
            told[index + 1] = f"with {labels.pop(int(generator.integers(len(labels))))}"
        else:
            label = str(generator.choice([name for name in names if name not in labels]))
            labels.append(label)
            told[index + 1] = f"without {label}"
    return told


def claims(rows: list[dict]) -> list[Claim]:
    if not rows:
        return []
    shares = [row["found"] / row["altered"] for row in rows]
    told = ", ".join(f"{row['told']} told, {row['found']} of {row['altered']} found" for row in rows)
    return [
        judged(
            "workbench.check_several",
            "share of altered rows of several labels that stand in the first tenth of the list",
            estimate(shares),
            target=TARGET,
            unit="share",
            digits=3,
            note=f"by seed: {told}; with exactly the label {', '.join(str(row['found_exactly']) for row in rows)}",
        )
    ]


if __name__ == "__main__":
    main()
