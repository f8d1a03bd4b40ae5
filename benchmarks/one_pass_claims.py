"""What the rows of `one_pass.py` say: claims, each a ratio of runs that followed each other, and the plot."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from polyhead.values import Value
from studies.results import Claim
from studies.settings import within

Row = dict[str, object]
# Why a target is missed, from trials that docs/project/log.md tells of, and what would close it.
HEADS = (
    "missed: texts that fill rows together save a tenth of the layers' time, and a task takes more of the bare trunk's "
    "than is left for it: by a trial of 2026-11-23 a pooled one 0.27 hundredths, one over words 1.2, Python for each "
    "0.09. Of a pooled task a fifth is reading 0.3 million numbers for every 64 texts; larger batches would close "
    "some. Heads that read hashed words, which that trial had none of, add to it (results/heads_cost.json)"
)
ONE_TEXT = (
    "missed: by hand on 2026-11-30, of 6.6 ms in bfloat16 layers took 2.6, poolers and heads 1.3, Python 2.7 in many "
    "small parts (docs/project/log.md)"
)
LOOSE = "int8 whatever it changes of these tasks, which are trained for timing"
SHAPES = (
    "missed: OpenVINO keeps weights as given and as multiplied, and room for what lies between products "
    "(docs/project/log.md)"
)
BF16, INT8 = "openvino:bfloat16", "openvino:int8"
MANY = 21


class Run(Value):
    """Whose time it is: who, with how many tasks, asked how."""

    who: str
    tasks: int
    how: str = "all"


class Ratio(Value):
    """A claim that one run takes at most, or at least, so many times as long as another in the same group."""

    id: str
    text: str
    above: Run
    below: Run
    target: float
    least: bool = True  # the ratio is to reach the target; False: to stay within it
    group: str = ""  # of both; left out: who the lower one is
    why: str = ""  # it is missed, where it is
    note: str = ""  # what one has to know of it, whatever it is
    beside: Run | None = None  # in place of the lower one: what the ratio is then, as a note

    def claim(self, rows: Sequence[Row]) -> Claim | None:
        """The claim; None where the runs are not there."""
        ratios = self.ratios(rows, self.below)
        if not ratios:
            return None
        value = statistics.median(ratios)
        holds = value >= self.target if self.least else value <= self.target
        note = f"median of {len(ratios)}, {min(ratios):.3f} to {max(ratios):.3f}"
        if self.beside is not None and (others := self.ratios(rows, self.beside)):
            note += f"; {statistics.median(others):.2f} beside {self.beside.who}"
        if self.note:
            note += f"; {self.note}"
        return Claim(
            id=self.id,
            text=self.text,
            target=self.target,
            value=round(value, 4),
            unit="ratio",
            holds=holds,
            note=note if holds or not self.why else f"{note}; {self.why}",
        )

    def ratios(self, rows: Sequence[Row], below: Run) -> list[float]:
        """One a repeat that both have."""
        mine, its = (
            {row["repeat"]: per_text(row) for row in chosen(rows, group=self.group or self.below.who, **named(run))}
            for run in (self.above, below)
        )
        return [mine[repeat] / its[repeat] for repeat in sorted(set(mine) & set(its), key=str)]


def share(precision: str, who: str, tasks: int, target: float) -> Ratio:
    return Ratio(
        id=f"engine.{precision}-{tasks}-tasks",
        text=f"{precision}: texts a second with {tasks} tasks over the bare trunk",
        above=Run(who=who, tasks=0),
        below=Run(who=who, tasks=tasks),
        target=target,
        why=HEADS,
    )


def faster(id: str, rival: str, precision: str, target: float) -> Ratio:
    return Ratio(
        id=f"engine.{id}",
        text=f"texts a second of {MANY} tasks in int8, over {rival}, {MANY} tasks in {precision}",
        above=Run(who=rival, tasks=MANY, how="sorted"),
        below=Run(who=INT8, tasks=MANY),
        target=target,
        group=rival,
        note=LOOSE,
        beside=Run(who=BF16, tasks=MANY),
    )


RATIOS = (
    share("bf16", BF16, MANY, 0.92),
    share("int8", INT8, MANY, 0.82),
    share("bf16", BF16, 100, 0.70),
    Ratio(
        id="engine.unsorted-batches",
        text=f"texts a second in batches of 32 tweets as they come, {MANY} tasks, over the trunk without tasks on the "
        "same batches, padded",
        above=Run(who=BF16, tasks=0, how="batches"),
        below=Run(who=BF16, tasks=MANY, how="batches"),
        target=1.4,
    ),
    Ratio(
        id="engine.one-text",
        text=f"median time of one text with {MANY} tasks, over the bare trunk",
        above=Run(who=BF16, tasks=MANY, how="single"),
        below=Run(who=BF16, tasks=0, how="single"),
        target=1.5,
        least=False,
        why=ONE_TEXT,
    ),
    faster("onnxruntime-models", "ONNX Runtime int8, a model a task", "int8", 15),
    faster("adapters-parallel", "adapters, parallel", "float32", 50),
    faster("adapters-heads", "adapters, heads only", "float32", 4),
)


def claims(rows: Sequence[Row], *, floats: str = BF16) -> tuple[list[Claim], list[str]]:
    """The claims, and the ids of those whose runs are not there; `floats` is what runs in place of bfloat16."""
    rows = [{name: BF16 if value == floats else value for name, value in row.items()} for row in rows]
    made = {ratio.id: ratio.claim(rows) for ratio in RATIOS}
    made |= {"engine.slope": slope(rows), "engine.memory": memory(rows), "engine.load": loading(rows)}
    return [claim for claim in made.values() if claim], [id for id, claim in made.items() if not claim]


def slope(rows: Sequence[Row]) -> Claim | None:
    """Least squares of time over the number of tasks, in each repeat, in hundredths of that repeat's bare time."""
    mine = chosen(rows, what="time", group=BF16, how="all")
    slopes = []
    for repeat in sorted({int(str(row["repeat"])) for row in mine}):
        times = {int(str(row["tasks"])): per_text(row) for row in mine if row["repeat"] == repeat}
        sizes = [size for size in times if size]
        if 0 in times and len(sizes) > 1:
            rise = np.polyfit(sizes, [times[size] for size in sizes], 1)[0]
            slopes.append(100 * float(rise) / times[0])
    if not slopes:
        return None
    value = statistics.median(slopes)
    return Claim(
        id="engine.slope",
        text="bf16: what one more task adds to the time, in hundredths of the bare trunk's, over 1, 5, 21, 50 and 100",
        target=0.5,
        value=round(value, 3),
        unit="%",
        holds=value <= 0.5,
        note=f"median of {len(slopes)}, {min(slopes):.3f} to {max(slopes):.3f}; those above {MANY} are copies, with "
        "numbers a thousandth off",
    )


def memory(rows: Sequence[Row]) -> Claim | None:
    """The claim on the memory of the processes after their last run."""
    held = {
        size: int(str(rows_of_size[-1]["resident"]))
        for size in (1, 50)
        if (rows_of_size := chosen(rows, group=BF16, who=BF16, tasks=size))
    }
    if len(held) < 2:
        return None
    value = held[50] / held[1]
    return Claim(
        id="engine.memory",
        text="resident memory of a process with 50 pooled tasks, over one with 1, both after their runs",
        target=1.5,
        value=round(value, 3),
        unit="ratio",
        holds=value < 1.5,
        note=f"{held[50] / 2**20:.0f} MiB and {held[1] / 2**20:.0f} MiB" + ("" if value < 1.5 else f"; {SHAPES}"),
    )


def loading(rows: Sequence[Row]) -> Claim | None:
    """The claim on a new process: from the first import of Polyhead to the first answer, where that was measured."""
    mine = chosen(rows, what="load", who=BF16, tasks=50)
    to_answer = [row for row in mine if "first_seconds" in row]
    text = "opening a bundle of 50 tasks in a new process, imports included"
    end = ", to the answer to a first text" if to_answer else ", before the first call, which compiles the graphs"
    seconds = [float(str(row["load_seconds"])) + float(str(row.get("first_seconds", 0))) for row in to_answer or mine]
    return within("engine.load", text + end, seconds, target=3.0)


def milliseconds(rows: Sequence[Row]) -> list[list[str]]:
    """A table: who; median milliseconds a text with 1 to 100 tasks, and of one text that is asked alone.

    Each in the runs in which it took turns with itself, a rival with Polyhead; `bare` is the trunk without any task.
    """
    timed, many = chosen(rows, what="time"), ("all", "sorted")
    sizes = sorted({int(str(row["tasks"])) for row in timed})
    titles = ["bare" if not size else "1 task" if size == 1 else f"{size} tasks" for size in sizes]
    table = [["milliseconds a text", *titles, "one text, bare", f"one text, {MANY} tasks"]]
    for who in dict.fromkeys(str(row["group"]) for row in timed):
        mine = chosen(timed, group=who, who=who)
        each = [_median(chosen(mine, tasks=size), many) for size in sizes]
        alone = [_median(chosen(mine, tasks=size), ("single",)) for size in (0, MANY)]
        table.append([who.replace("openvino:", "Polyhead, "), *each, *alone])
    return table


def _median(rows: Sequence[Row], how: Sequence[str]) -> str:
    times = [1000 * per_text(row) for row in rows if row["how"] in how]
    return f"{statistics.median(times):.2f}" if times else ""


def chosen(rows: Sequence[Row], **wanted: object) -> list[Row]:
    """The rows with these values."""
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def named(run: Run) -> dict[str, object]:
    return {"who": run.who, "tasks": run.tasks, "how": run.how}


def per_text(row: Row) -> float:
    """Seconds for one text: runs of single texts say a median already."""
    seconds = float(str(row["seconds"]))
    return seconds if row["how"] in ("single", "again") else seconds / int(str(row["texts"]))


OURS, OTHERS = "#1f5fbf", "#8a8a8a"
TICKS, TIMES = (1, 5, 21, 50, 100), (0.5, 1, 2, 5, 10, 20, 50, 100, 200)
NAMES = {"openvino:bfloat16": "Polyhead", "openvino:int8": "Polyhead, 8 bits"}  # what a reader calls them
APART = 1.3  # of two labels, as a ratio of milliseconds


def plot(rows: Sequence[Row], claims: Sequence[Claim], folder: Path) -> None:
    """Milliseconds a text against the number of tasks, each line with its name at its end, ours in one colour.

    Lines are of groups of runs that did not follow each other; the ratio beside the arrow is that of a claim.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.6))
    ends, at_many = [], {}
    for who, curve, _ in curves(rows):
        color = OURS if who in NAMES else OTHERS
        axes.plot(*zip(*curve, strict=True), "o-", color=color, markersize=4, linewidth=2.2 if who in NAMES else 1.4)
        ends.append((curve[-1], NAMES.get(who, who), color))
        at_many[who] = dict(curve).get(MANY)
    below = dict[int, float]()  # by number of tasks: where the last label is
    for (tasks, time), name, color in sorted(ends):
        below[tasks] = max(time, below.get(tasks, 0.0) * APART)
        axes.annotate(name, (tasks * 1.06, below[tasks]), color=color, va="center", fontsize=9)
    single, own = at_many.get("ONNX Runtime int8, a model a task"), at_many.get("openvino:int8")
    if single and own:
        axes.annotate(
            "", (MANY, own * 1.12), (MANY, single * 0.9), arrowprops={"arrowstyle": "<->", "color": "#444444"}
        )
        for claim in claims:
            if claim.id == "engine.onnxruntime-models":
                text = f"{claim.value:.0f} times"
                between = 2 * (single * own) ** 0.5  # above the lines that the arrow crosses
                axes.annotate(text, (MANY * 0.93, between), ha="right", fontsize=10, color="#444444")
    axes.set(xscale="log", yscale="log", xlim=(0.9, 330), xlabel="tasks", ylabel="milliseconds a text")
    axes.set_xticks(TICKS, map(str, TICKS))
    axes.set_yticks(TIMES, [f"{time:g}" for time in TIMES])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(folder / "one_pass.png", dpi=130)


def curves(rows: Sequence[Row]) -> Iterator[tuple[str, list[tuple[int, float]], float | None]]:
    """Of everybody in its own group: points (tasks, milliseconds a text), and the bare trunk's time if it was run."""
    mine = [
        row for row in rows if row["what"] == "time" and row["who"] == row["group"] and row["how"] in ("all", "sorted")
    ]
    for who in dict.fromkeys(str(row["who"]) for row in mine):
        points = {}
        for size in sorted({int(str(row["tasks"])) for row in chosen(mine, who=who)}):
            points[size] = 1000 * statistics.median(map(per_text, chosen(mine, who=who, tasks=size)))
        bare = points.pop(0, None)
        if points:
            yield who, list(points.items()), bare
