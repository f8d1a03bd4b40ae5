"""What `advise` chooses on four small task sets, beside the best affordable way of `compare`, and what finding it took.

    python -m benchmarks.workbench_advise [--sets single,pairs] [--report]

Budgets are layers that run on one text for all tasks: one pass of the trunk (6), one more layer a task, two more, and
none (a layer must be worth a point, against all ways that are no deeper). The project file that is written is trained,
and its test scores count. `advise` is given the
rows of seed 1; `compare` has the mean of its seeds. Its seconds are those of the whole ladder, from nothing; those of
compare are seed 1 of every way, which must be run on the same processor. Needs the rows of `workbench_compare`.
"""

from __future__ import annotations

import argparse
import statistics
import tomllib
from functools import partial

import msgspec

from benchmarks.workbench_compare import EPOCHS, best_affordable, comparing, known
from benchmarks.workbench_sets import FOLDER, SETS, written
from polyhead.advise.choice import Budget
from polyhead.advise.compare import trained_scores
from polyhead.advise.ladder import Ladder
from polyhead.advise.sharing_ways import read_task_set
from polyhead.project.tables import bundles_of, read_project
from polyhead.train.events import Events
from polyhead.train.run import train_project
from studies.evidence import estimate, judged
from studies.results import Claim, Study, results, write_results
from studies.settings import RESULTS, RUNS, checked_names, command, say

NAME = "workbench_advise"
LAYERS = 6  # of the trunk
BUDGETS = ("trunk", "one", "two", "none")
WITHIN, SHARE = 0.5, 1 / 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--report", action="store_true", help="write the results from the rows, train nothing")
    options = parser.parse_args()
    study = Study(RUNS / f"{NAME}.jsonl")
    for name in () if options.report else checked_names(options.sets, SETS, "set"):
        for budget in reversed(BUDGETS):  # the whole ladder first: later ones find what it kept
            say(str(study.row(partial(advised, name, budget), set=name, budget=budget)))
    report(study.rows)


def budget_of(name: str, budget: str) -> float | None:
    tasks = len(SETS[name])
    return {"trunk": LAYERS, "one": LAYERS + tasks, "two": LAYERS + 2 * tasks, "none": None}[budget]


def advised(name: str, budget: str) -> dict[str, object]:
    """The advice, and the test scores of its project file."""
    file, amount = written(name), budget_of(name, budget)
    folder = FOLDER / name / "advise"
    ladder = Ladder(read_task_set(file), folder, Budget(amount=amount, epochs=EPOCHS), Events(say=say))
    advice = ladder.run()
    target = folder / f"advised-{budget}.toml"
    target.write_text(ladder.project_text(advice, f"advised-{budget}"), encoding="utf-8")
    project = read_project(target)
    train_project(project, folder=folder, cache=folder / "cache", events=Events())
    scores = trained_scores([folder / root for root in bundles_of(project)])
    return {
        "layers": amount,
        "advice": msgspec.to_builtins(advice),
        "recipe": tomllib.loads(target.read_text(encoding="utf-8")).get("recipe", {}).get("kind", "frozen"),
        "test": round(statistics.mean(score.value for score in scores.values()), 3),
        "seconds": advice.seconds,
    }


def report(rows: list[dict]) -> None:
    """Writes the results: each budget beside the best affordable way."""
    beside, ratios = [], dict[str, float]()
    for name in SETS:
        comparison = known(name)
        mine = [row for row in rows if row["set"] == name]
        if comparison is None or not mine:
            continue
        ladder = next((row["seconds"] for row in mine if row["budget"] == "none"), None)
        if ladder is not None:
            ratios[name] = float(ladder) / comparing(name, (1,), None).known().seconds
        for row in mine:
            best = best_affordable(comparison.ways, row["layers"])
            gap = best.quality - row["test"]
            facts = {"best": best.name, "best_quality": best.quality, "best_seeds": best.seeds, "gap": round(gap, 3)}
            beside.append({**row, **facts})
    write_results(RESULTS, results(NAME, command=command(), rows=beside, claims=claims(beside, ratios)))


def claims(rows: list[dict], ratios: dict[str, float]) -> list[Claim]:
    if not rows or not ratios:
        return []
    shown = ", ".join(f"{r['set']} {r['budget']} {r['gap']:+.2f} ({r['best']})" for r in rows)
    gap = statistics.mean(r["gap"] for r in rows)
    within = sum(r["gap"] <= WITHIN for r in rows)
    most = max(ratios.values())
    return [
        judged(
            "workbench.advise_gap",
            f"points by which the best affordable way of compare is above what advise chose, mean of {len(rows)}",
            estimate([gap]),
            target=WITHIN,
            side="most",
            digits=3,
            note=f"one seed of advise; {within} of {len(rows)} within {WITHIN}: {shown}. The best is chosen by its "
            "test score",
        ),
        Claim(
            id="workbench.advise_cost",
            text="seconds of advise's whole ladder over those of compare, one seed of every way: the most of the sets",
            target=round(SHARE, 3),
            value=round(most, 3),
            unit="share",
            holds=most < SHARE,
            note=", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()),
        ),
    ]


if __name__ == "__main__":
    main()
