"""What the rows of `engine_plans.py` say: claims, each of runs that followed each other, and the table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from polyhead.values import Value
from studies.results import Claim
from studies.settings import within

Row = dict[str, object]
LAYERED = {
    "mixed-plan": "eight tasks, branches of several depths or pooled tasks beside branches (the larger of the two): "
    "time over the bare trunk's, over what layer evaluations let expect",
    "production-plan": "21 tasks, 8 shared and 32 private layers of BERT-base's shape: time over the bare trunk's, "
    "over what layer evaluations let expect",
}
STACKED = "stacked-branches"
SHORT, LONG = "one-text-32", "one-text-128"
NEAR = 0.2  # of the FLOPs ratio
WHY = (
    "Adapters in layers take less than their FLOPs: eight rows use the processor better than the one of the bare pass. "
    "Poolers take more: eight read 5 MB of weights for few FLOPs. So does attention on top: products 102 wide and "
    "heads of 17 numbers run at 60 % of the rate, each lane's head is a call, and norms and sums are no FLOPs; one "
    "head graph for a stack would close a third of that."
)


class Measured(Value):
    """A run's time over another's, of each repeat, and what it was expected to be."""

    run: str
    ratios: tuple[float, ...]
    expected: float

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def relative(self) -> float:
        """1 where it took what was expected."""
        return self.ratio / self.expected

    @property
    def line(self) -> str:
        return f"{self.run}: {self.ratio:.2f} times, expected {self.expected:.2f}"


def measured(rows: Sequence[Row], part: str, *, below: str = "bare") -> list[Measured]:
    """Every other run of a part over one of them, repeat by repeat."""
    times: dict[str, dict[object, float]] = {}
    expected: dict[str, float] = {}
    for row in rows:
        if row["part"] == part:
            name = str(row["run"])
            times.setdefault(name, {})[row["repeat"]] = float(str(row["seconds"]))
            expected[name] = float(str(row["expected"]))
    base = times.pop(below, {})
    return [
        Measured(
            run=name, ratios=tuple(seconds / base[repeat] for repeat, seconds in runs.items()), expected=expected[name]
        )
        for name, runs in times.items()
    ]


def claims(rows: Sequence[Row]) -> tuple[list[Claim], list[str]]:
    """The claims, and the ids of those whose rows are not there."""
    made = {f"engine.{part}": layered(rows, part) for part in LAYERED}
    made[f"engine.{STACKED}"] = stacked(rows)
    made["engine.strategies-one-text"] = strategies(rows)
    made["engine.attach"] = attached(rows)
    return [claim for claim in made.values() if claim], [id for id, claim in made.items() if not claim]


def layered(rows: Sequence[Row], part: str) -> Claim | None:
    """The claim on the plan that is farthest above the time expected from its layers."""
    runs = measured(rows, part)
    if not runs:
        return None
    worst = max(runs, key=lambda run: run.relative)
    return Claim(
        id=f"engine.{part}",
        text=LAYERED[part],
        target=1.15,
        value=round(worst.relative, 3),
        unit="ratio",
        holds=worst.relative <= 1.15,
        note="; ".join(run.line for run in runs),
    )


def stacked(rows: Sequence[Row]) -> Claim | None:
    """The claim on the number of texts that is worst for the stack."""
    sizes = sorted({int(str(row["texts"])) for row in rows if str(row["part"]).startswith(f"{STACKED}-")})
    if not sizes:
        return None
    ratios = {size: measured(rows, f"{STACKED}-{size}", below="stacked")[0].ratio for size in sizes}
    return Claim(
        id=f"engine.{STACKED}",
        text="eight equal branches of three layers: time branch by branch, over that of all as one, the least of "
        f"{', '.join(map(str, sizes))} texts",
        target=1.0,
        value=round(min(ratios.values()), 3),
        unit="ratio",
        holds=min(ratios.values()) >= 1.0,
        note=", ".join(f"{ratio:.2f} at batch {size}" for size, ratio in ratios.items()),
    )


def strategies(rows: Sequence[Row]) -> Claim | None:
    """The claim on the strategy that is farthest from its FLOPs; the note names others that are far."""
    runs = measured(rows, SHORT)
    if not runs:
        return None
    worst = max(abs(run.relative - 1) for run in runs)
    far = [run.line for run in runs if abs(run.relative - 1) > NEAR]
    long = [run for run in measured(rows, LONG) if abs(run.relative - 1) > NEAR]
    note = f"{'; '.join(far)}. {WHY}" if far else "none is farther"
    return Claim(
        id="engine.strategies-one-text",
        text="eight tasks on one text of 32 tokens, by strategy: how far time over the bare trunk's is from FLOPs over "
        f"the bare trunk's, the largest of {len(runs)} strategies",
        target=NEAR,
        value=round(worst, 3),
        unit="of the FLOPs ratio",
        holds=worst <= NEAR,
        note=f"{note} Of 128 tokens: {'; '.join(run.line for run in long) or 'none'}",
    )


def attached(rows: Sequence[Row]) -> Claim | None:
    return within(
        "engine.attach",
        "a pooled task that comes to a session of 50: until it is answered for the first time",
        [float(str(row["seconds"])) for row in rows if row["part"] == "attach"],
        target=0.5,
    )


def lines(rows: Sequence[Row]) -> list[list[str]]:
    """A table: median milliseconds, the time over the bare trunk's or the stack's, and what was expected."""
    cells = [["part", "run", "ms", "ratio", "expected"]]
    for part, run in dict.fromkeys((str(row["part"]), str(row["run"])) for row in rows):
        seconds = [float(str(row["seconds"])) for row in rows if (row["part"], row["run"]) == (part, run)]
        below = "stacked" if part.startswith(STACKED) else "bare"
        over = [
            measurement
            for measurement in (measured(rows, part, below=below) if part != "attach" else [])
            if measurement.run == run
        ]
        ratio, expected = (f"{over[0].ratio:.2f}", f"{over[0].expected:.2f}") if over else ("", "")
        cells.append([part, run, f"{1000 * statistics.median(seconds):.2f}", ratio, expected])
    return cells
