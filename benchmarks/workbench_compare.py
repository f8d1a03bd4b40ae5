"""Every way of sharing on four small task sets: quality over seeds, costs, and which of the papers' orderings show.

    python -m benchmarks.workbench_compare [--sets single,pairs] [--seeds 1,2,3] [--minutes 60] [--report]

Sets are those of `workbench_sets`: 400 training rows a task, 150 that choose, at most 500 test rows. Each way is
trained by `polyhead compare` with its defaults, but in at most `EPOCHS` passes where layers run as a way learns: joint
recipes take 3 by default, branches, prompts, adapters, layers on top and fine-tuning 10 or more, so these may be
undertrained here.
Runs are seed by seed, the cheapest way first. Rows are kept under runs/workbench and in the results as they come; it
goes on where it stopped. `--time` then times every way, at best on a quiet machine.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.workbench_sets import FOLDER, SETS, sizes, written
from polyhead.advise.compare import Compared, Comparing, Settings, WayComparison
from polyhead.advise.plot import plot_svg
from polyhead.advise.sharing_ways import read_task_set
from polyhead.advise.tables import comparison_page
from polyhead.bundle.format import BUNDLE
from polyhead.machine import Clock
from polyhead.project.tables import bundles_of
from polyhead.train.events import Events
from studies.evidence import judged, unpaired
from studies.results import Claim, results, write_results
from studies.settings import RESULTS, checked_names, command, say
from studies.shared.rows import Spread
from studies.trained import unknown

NAME = "workbench_compare"
EPOCHS = 4
SAME = 0.5  # points within which two ways count as equal
# Pooled attention reads the mean of four layers; the mean and the first position read the last layer.
LAYERS_TOO = ("pooled-attention", "pooled-mean")
POSITIONS = (LAYERS_TOO, ("pooled-mean", "pooled-first"))  # taggers read words in all of them
# What the papers say: the first way scores at least as well as the second.
ORDERINGS = (
    ("pooled-attention", "pooled-mean", "Du et al. 2020: an attention pooler is at least as good as the mean"),
    ("pooled-mean", "pooled-first", "Du et al. 2020: the mean is at least as good as the first token"),
    ("pooled-mix", "pooled-attention", "Du et al. 2020: a learned mix of all layers is at least as good as fixed ones"),
    ("branch-2", "branch-1", "Wei et al. 2021: two private layers are at least as good as one"),
    ("branch-3", "branch-2", "Wei et al. 2021: three private layers are at least as good as two"),
    ("student-1", "branch-1", "Wei et al. 2021: a student is at least as good as a branch of its depth"),
    ("branch-3", "fine-tune", "Wei et al. 2021: half of the layers, private, score like fine-tuning"),
    ("prompted-joint", "pooled-joint", "Huang et al. 2022: prompts are at least as good as a shared trunk alone"),
    ("prompted-joint", "fine-tune", "Huang et al. 2022: prompts in one input score like a model a task"),
    ("in-layer-joint", "pooled-joint", "Stickland and Murray 2019: adapters beat a shared trunk alone"),
    ("in-layer-joint", "on-top-joint", "Stickland and Murray 2019: adapters inside beat layers on top"),
    ("fine-tune", "in-layer", "a frozen trunk with adapters does not beat fine-tuning"),
    ("fine-tune", "pooled-auto", "frozen features do not beat fine-tuning"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--minutes", type=float, default=180.0, help="of work, all sets together")
    parser.add_argument("--report", action="store_true", help="write the results from the rows, train nothing")
    parser.add_argument("--time", action="store_true", help="time all ways again, train nothing: for a quiet machine")
    options = parser.parse_args()
    names = checked_names(options.sets, SETS, "set")
    seeds = tuple(int(seed) for seed in checked_names(options.seeds, ("1", "2", "3"), "seed"))
    if options.time:
        for name in names:
            time_again(comparing(name, seeds, None, timed=True))
    clock = Clock()
    for seed in () if options.report or options.time else seeds:
        for number, name in enumerate(names):  # what is left is shared out evenly over the sets of this seed
            minutes = max(0.0, options.minutes - clock.seconds / 60) / (len(names) - number)
            say(f"{name}, seed {seed}, {minutes:.0f} minutes")
            comparing(name, (seed,), minutes).run()
            report()
    report()


def time_again(compared: Comparing) -> None:
    """Counts and times the ways again whose bundles were kept."""
    for way in compared.ways:
        for seed in compared.settings.seeds:
            roots = [compared.home / bundle for bundle in bundles_of(compared.declared(way, seed))]
            if all((root / BUNDLE).exists() for root in roots):
                compared.keep_costs(way, roots)
                compared.events.line(f"{way.name}: timed again")
                break


def comparing(name: str, seeds: Sequence[int], minutes: float | None, *, timed: bool = False) -> Comparing:
    """A set's comparison."""
    file = written(name)
    settings = Settings(seeds=tuple(seeds), minutes=minutes, epochs=EPOCHS, keep_bundles=True, timed=timed)
    return Comparing(read_task_set(file), name, FOLDER / name / "compare", settings, Events(say=say))


def known(name: str) -> WayComparison | None:
    """What the rows of a set say; None where there is none."""
    comparison = comparing(name, (1, 2, 3), None).known()
    return comparison if comparison.ways else None


def report() -> None:
    """Writes the results of all rows that are there, the plots and the pages."""
    comparisons = {name: comparison for name in SETS if (comparison := known(name)) is not None}
    rows: list[dict[str, object]] = []
    for name, comparison in comparisons.items():
        rows += [{"set": name, **msgspec.to_builtins(way)} for way in comparison.ways]
        rows.append({"set": name, "tasks": comparison.tasks, "sizes": sizes(name), "lacking": comparison.lacking})
        plot_svg(comparison, str(RESULTS / f"{NAME}_{name}.png"))
        Path(FOLDER / name / "compare.html").write_text(comparison_page(comparison), encoding="utf-8")
    rows += [{"set": name, "processors": processors_of(name)} for name in comparisons]
    rows += [row for left, right, text in ORDERINGS for row in ordering(comparisons, left, right, text)]
    write_results(RESULTS, results(NAME, command=command(), rows=rows, claims=claims(rows)))


def processors_of(name: str) -> dict[str, int]:
    """How many runs of a set each processor trained."""
    return dict(Counter(row.processor for row in comparing(name, (1, 2, 3), None).kept.rows()))


def ordering(comparisons: dict[str, WayComparison], left: str, right: str, text: str) -> list[dict[str, object]]:
    """An ordering on each set that has both ways: the difference, and whether it is found within `SAME`."""
    found = []
    for name, comparison in comparisons.items():
        ways = {way.name: way for way in comparison.ways}
        if left in ways and right in ways:
            gain = ways[left].quality - ways[right].quality
            seeds = min(ways[left].seeds, ways[right].seeds)
            found.append(
                {"ordering": text, "set": name, "gain": round(gain, 3), "seeds": seeds, "found": gain >= -SAME}
            )
    return found


def claims(rows: Sequence[dict[str, Any]]) -> list[Claim]:
    """Each ordering's mean difference over the sets, and how many sets are whole."""
    claimed = []
    whole = [row["set"] for row in rows if "lacking" in row and "1" not in row["lacking"]]
    ways = {(row["set"], row["name"]): row for row in rows if "quality" in row}
    names = dict.fromkeys(name for name, _ in ways)
    seeds = {name: sorted({way["seeds"] for (of, _), way in ways.items() if of == name}) for name in names}
    claimed.append(
        Claim(
            id="workbench.compare_sets",
            text="task sets on which every way has a row and a cost",
            target=4,
            value=len(whole),
            unit="sets",
            holds=len(whole) >= 4,
            note="seeds of the ways: " + "; ".join(f"{name} {'-'.join(map(str, n))}" for name, n in seeds.items()),
        )
    )
    for left, right, text in ORDERINGS:
        pairs = {
            name: (spread_of(ways[name, left]), spread_of(ways[name, right]))
            for name in names
            if (name, left) in ways and (name, right) in ways and not (name == "tagging" and (left, right) in POSITIONS)
        }
        if not pairs:
            continue
        gains = {name: one.mean - other.mean for name, (one, other) in pairs.items()}
        told = ", ".join(f"{name} {gain:+.1f}" for name, gain in gains.items())
        are_variants = left.partition("-")[0] == right.partition("-")[0]  # of one method, in equally many passes
        claimed.append(
            judged(
                f"workbench.order_{left}_{right}",
                f"{text}: {left} less {right}, mean of {len(pairs)} sets",
                unpaired(list(pairs.values())),
                target=-SAME,
                note=f"{told}; {sum(gain >= -SAME for gain in gains.values())} of {len(pairs)} sets show it",
                ours=unknown(left) if trains_layers(left) and not are_variants else None,
                against=unknown(right) if trains_layers(right) and not are_variants else None,
                lacking="the two differ in layers as well as in positions" if (left, right) == LAYERS_TOO else "",
            )
        )
    return claimed


def spread_of(way: dict[str, Any]) -> Spread:
    """A way's quality over its seeds."""
    return Spread(mean=way["quality"], deviation=way["spread"], seeds=way["seeds"])


def trains_layers(name: str) -> bool:
    """Whether a way is more than a head over frozen features."""
    return not name.startswith("pooled-") or name.endswith("-joint")


def best_affordable(ways: Sequence[Compared], layers: float | None) -> Compared:
    """The way with the best quality whose layers for the set are within the budget."""
    return max((w for w in ways if layers is None or (w.costs and w.costs.of_set.layers <= layers)), key=quality)


def quality(way: Compared) -> float:
    return way.quality


if __name__ == "__main__":
    main()
