"""Spans and multiple choice: the default, the best way that `advise` finds, and the best constant answer.

    python -m studies defaults run-pairs [--sets copa,arc_easy] [--sizes 500,all] [--minutes 60] [--report]

Of 500 rows three draws, of all rows one. `advise` may take any layers that are worth a point each, the trunk learning
too, and leaves out what would take longer than `--minutes`; the project that it writes is trained then. So that a run
takes no hours, training sets are cut to MOST rows, test splits to TEST rows drawn once, and texts to 128 tokens, as
each row says. Goes on where it stopped: rows are in runs/heads_pairs.jsonl, or else in the results.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from polyhead.advise.choice import Budget
from polyhead.advise.compare import trained_scores
from polyhead.advise.ladder import Ladder
from polyhead.advise.sharing_ways import project_file, read_task_set
from polyhead.bundle.read import Bundle
from polyhead.progress import duration
from polyhead.project.recipes import Training
from polyhead.project.tables import Project, TaskEntry, TrunkChoice, bundles_of, read_project
from polyhead.train.events import Events
from polyhead.train.run import train_project
from studies.aghajanyan2021.published import FIGURE_TASKS, SENTENCES, TABLE3
from studies.defaults.claims import DRAWS
from studies.defaults.run import MAX_TOKENS, Set, read
from studies.evidence import by_draw, counted, estimate, judged
from studies.results import LEAST_SEEDS, Claim
from studies.settings import checked_names, command, parsed, report, resumed, rows_of, say, say_left, study_arguments

NAME = "heads_pairs"
SETS = {
    "squad_v1": Set("squad_v1", "span", test="validation"),
    "race": Set("race", "multiple_choice"),
    "arc_easy": Set("arc_easy", "multiple_choice"),
    "copa": Set("copa", "multiple_choice"),
    "socialiqa": Set("socialiqa", "multiple_choice", test="validation"),
}
SIZES = {"500": DRAWS, "all": DRAWS[:1]}
METHODS = DEFAULT, ADVISED, CONSTANT = "default", "advise", "constant"
MOST, TEST = 5000, 2000
EPOCHS = 3  # of a way that runs layers
# The only published figure of a base-sized encoder that is at hand: one number, of two metrics which is not said.
SQUAD = TABLE3["RoBERTa-base"][0][SENTENCES.index(FIGURE_TASKS[3])]
PUBLISHED = {"squad_v1": f"RoBERTa-base, 87,599 rows, all layers tuned: {SQUAD} (Aghajanyan et al. 2021, table 3)"}


def main() -> None:
    parser = study_arguments(__doc__, f"{NAME}.jsonl")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--minutes", type=float, default=60.0, help="that advise may work")
    options = parsed(parser)
    if not options.report:
        study = resumed(options.rows[0], NAME)
        sets, sizes = checked_names(options.sets, SETS, "set"), checked_names(options.sizes, SIZES, "size")
        jobs = [(name, size, draw) for size in sizes for draw in SIZES[size] for name in sets]
        for number, (name, size, draw) in enumerate(jobs, start=1):
            training = (name, size, draw, options.minutes)
            say(str(study.row(partial(run, *training), set=name, size=size, draw=draw)))
            say_left(study.rows, done=number, total=len(jobs))
        return
    rows = rows_of(options.rows)
    if rows:
        mean = statistics.mean(row["run_seconds"] for row in rows)
        whole = len(SETS) * sum(map(len, SIZES.values()))
        say(f"{len(rows)} of {whole} runs; all take about {duration(mean * whole)}, judged by these")
    lacking = [
        f"{name}, {size}: {count} of {len(draws)} draws"
        for size, draws in SIZES.items()
        for name in SETS
        if (count := len(scores(rows, name, size, DEFAULT))) < len(draws)
    ]
    report(NAME, command=command(), rows=rows, claims=claims(rows), lacking=lacking)


def run(name: str, size: str, draw: int, minutes: float) -> dict[str, object]:
    """Test scores and seconds of the default and of what `advise` finds, and the constant answer's score."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        project, facts = declared(name, size, draw, home)
        outcome = train_project(project, folder=home, events=Events(say=say))
        bundle = Bundle.open(outcome.bundle)
        metric, value = bundle.headline("task")
        notes = msgspec.json.decode(next(Path(outcome.bundle).glob("tasks/task/*/scores.json")).read_bytes())
        constant = notes["baselines"]["constant"]["test"][metric]
        found = advised(project, home, draw, minutes)
    return {
        **facts,
        "metric": metric,
        "methods": {
            DEFAULT: {"score": value, "seconds": round(outcome.seconds, 1), "chosen": notes.get("chosen")},
            ADVISED: found,
            CONSTANT: {"score": constant},
        },
        "published": PUBLISHED.get(name),
        "run_seconds": round(time.perf_counter() - began, 1),
    }


def declared(name: str, size: str, draw: int, home: Path) -> tuple[Project, dict[str, object]]:
    """The project that names files alone, and how many rows it has of how many."""
    source = SETS[name]
    whole, held = read(source, "train"), read(source, source.test)
    order = np.random.default_rng(draw).permutation(len(whole))
    rows = [whole[index] for index in order[: MOST if size == "all" else int(size)]]
    test = [held[index] for index in sorted(np.random.default_rng(0).permutation(len(held))[:TEST])]
    for split, several in (("train", rows), ("test", test)):
        (home / f"{split}.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in several))
    entry = TaskEntry(name="task", kind=source.kind, train="train.jsonl", test="test.jsonl")
    project = Project(tasks=(entry,), trunk=TrunkChoice(max_tokens=MAX_TOKENS), training=Training(seed=draw))
    return project, {"rows": len(rows), "of": len(whole), "test_rows": len(test), "test_of": len(held)}


def advised(project: Project, home: Path, draw: int, minutes: float) -> dict[str, object]:
    """The way that `advise` chooses within the minutes, trained as its project file says, and what it left out."""
    file, folder = home / "polyhead.toml", home / "advise"
    file.write_text(project_file(project, home), encoding="utf-8")
    budget = Budget(minutes=minutes, epochs=EPOCHS)
    ladder = Ladder(read_task_set(file), folder, budget, Events(say=say), seed=draw)
    advice = ladder.run()
    target = folder / "advised.toml"
    target.write_text(ladder.project_text(advice, "advised"), encoding="utf-8")
    chosen = read_project(target)
    train_project(chosen, folder=folder, cache=folder / "cache", events=Events())
    score = trained_scores([folder / root for root in bundles_of(chosen)])["task"]
    return {
        "score": round(score.value / 100, 6),
        "seconds": round(advice.seconds, 1),
        "way": "a trunk that learns" if advice.learned else advice.tasks["task"].chosen,
        "tried": advice.tasks["task"].tried,
        "left_out": list(advice.left_out),
    }


def scores(rows: list[dict[str, Any]], name: str, size: str, method: str) -> list[float]:
    return [100 * row["methods"][method]["score"] for row in rows if (row["set"], row["size"]) == (name, size)]


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    """For each size: the sets on which the default is no point above the constant answer, and what `advise` adds."""
    claimed = []
    for size, draws in SIZES.items():
        means = {
            name: {method: statistics.mean(scores(rows, name, size, method)) for method in METHODS}
            for name in SETS
            if scores(rows, name, size, DEFAULT)
        }
        if not means:
            continue
        amount = f"at most {MOST:,} rows" if size == "all" else f"{size} rows"
        wanted = max(len(draws), LEAST_SEEDS)
        few = [name for name in SETS if len(scores(rows, name, size, DEFAULT)) < wanted]
        lacking = f"fewer than {wanted} draws of {', '.join(few)}" if few else ""
        note = "; ".join(
            f"{name} {', '.join(f'{method} {mean:.1f}' for method, mean in of.items())}"
            + (f" ({PUBLISHED[name]})" if name in PUBLISHED else "")
            for name, of in means.items()
        )
        ahead = {name: estimate(gained(rows, name, size, DEFAULT, CONSTANT).values()) for name in means}
        claimed.append(
            judged(
                f"heads.pairs_constant_{size}",
                f"sets of {len(means)} on which the default is at most a point above one answer, {amount}",
                counted(ahead, 1.0, side="most"),
                target=0,
                side="most",
                unit="sets",
                note=note,
                lacking=lacking,
            )
        )
        claimed.append(
            judged(
                f"heads.pairs_advised_{size}",
                f"what advise finds less the default, mean of {len(means)} sets, {amount}",
                by_draw({name: gained(rows, name, size, ADVISED, DEFAULT) for name in means}),
                target=0,
                note=note,
                lacking=lacking,
            )
        )
    return claimed


def gained(rows: list[dict[str, Any]], name: str, size: str, method: str, other: str) -> dict[int, float]:
    """Points of a method above another, by draw."""
    its = [row for row in rows if (row["set"], row["size"]) == (name, size)]
    return {row["draw"]: 100 * (row["methods"][method]["score"] - row["methods"][other]["score"]) for row in its}


if __name__ == "__main__":
    main()
