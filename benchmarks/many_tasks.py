"""A thousand pooled tasks in one process: their rate over the bare trunk's, memory, loading, and twenty asked of them.

    python -m benchmarks.one_pass_tasks      once: the tasks
    python -m benchmarks.many_tasks          an idle machine, nothing else running

The bundles and the way of timing are those of one_pass.py, whose processes take turns: 1, 50 and 1,000 tasks, or what
--sizes says beyond 100. Beyond 21 tasks a bundle holds copies with other numbers.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Sequence

from benchmarks import one_pass_tasks
from benchmarks.one_pass import Row, arguments, ours, show
from benchmarks.one_pass_claims import chosen, per_text
from benchmarks.one_pass_tasks import FOLDER, bundle_of
from benchmarks.server_load import FLOATS, SUFFIX
from polyhead.engine.session import Session
from studies.results import Claim
from studies.settings import command, report, say

VARIANT, ASKED = f"openvino:{FLOATS}", 20
OF_TRUNK, OF_ONE, OF_ALONE, LOADED = 0.25, 1.2, 1.5, 10.0  # the claims' targets


def main() -> None:
    options = arguments()
    options.sizes, options.texts = (1, 50, *(size for size in options.sizes if size > 100)), min(options.texts, 512)
    if len(options.sizes) < 3:
        options.sizes = (1, 50, 1000)
    one_pass_tasks.train()
    (FOLDER / "tweets.json").write_text(json.dumps(one_pass_tasks.tweets(options.texts)))
    rows: list[Row] = ours(options, VARIANT)
    rows += few_of_many(options.sizes[-1], options.repeats)
    show(chosen(rows, what="time"))
    report(f"many_tasks{SUFFIX}", command=command(), rows=rows, claims=list(claims(rows)), lacking=[])


def few_of_many(size: int, repeats: int) -> Iterator[Row]:
    """Twenty tasks asked of a bundle that has no others, and of one with so many: neighbours, and spread over all."""
    texts = one_pass_tasks.tweets(64)
    for tasks in (ASKED, size):
        session = Session(bundle_of(tasks), backend="openvino", precision=FLOATS)
        names = [name for name, task in session.tasks.items() if task.pair == "none"]
        chosen_names = {"neighbours": names[:ASKED], "spread": names[:: len(names) // ASKED][:ASKED]}
        for how, asked in chosen_names.items() if tasks > ASKED else [("neighbours", names)]:
            for text in texts:
                session.predict([text], tasks=asked)
            for repeat in range(1, repeats + 1):
                began = time.perf_counter()
                for text in texts:
                    session.predict([text], tasks=asked)
                milliseconds = 1000 * (time.perf_counter() - began) / len(texts)
                row = {"what": "asked", "tasks": tasks, "how": how, "repeat": repeat, "milliseconds": milliseconds}
                say(json.dumps(row))
                yield row


def claims(rows: Sequence[Row]) -> Iterator[Claim]:
    """The rate, memory, loading and the price of twenty."""
    own, size = SUFFIX.replace("_", "-"), max(int(str(row["tasks"])) for row in rows)
    times = {
        tasks: statistics.median(map(per_text, chosen(rows, what="time", tasks=tasks, how="all")))
        for tasks in (0, 1, 50, size)
    }
    held = {tasks: int(str(chosen(rows, what="time", tasks=tasks)[-1]["resident"])) for tasks in (1, 50, size)}
    yield made(
        f"fast.many-tasks{own}",
        f"texts a second with {size:,} pooled tasks over those of the bare trunk",
        times[0] / times[size],
        OF_TRUNK,
        least=True,
        note=f"{1 / times[size]:.0f} and {1 / times[0]:.0f} a second; "
        f"{(held[size] - held[1]) / size / 2**20:.2f} MiB a task",
    )
    yield made(
        f"fast.memory{own}",
        "resident memory of a process with 50 pooled tasks over one with 1, both after their runs",
        held[50] / held[1],
        OF_ONE,
        note=f"{held[50] / 2**20:.0f} and {held[1] / 2**20:.0f} MiB",
    )
    loads = [
        float(str(row["load_seconds"])) + float(str(row["first_seconds"]))
        for row in chosen(rows, what="load", tasks=size)
    ]
    yield made(
        f"fast.many-load{own}",
        f"seconds from a new process to the first answer of {size:,} tasks",
        statistics.median(loads),
        LOADED,
        note=f"median of {len(loads)}, {min(loads):.2f} to {max(loads):.2f}",
    )
    asked = {
        (tasks, how): statistics.median(
            float(str(r["milliseconds"])) for r in chosen(rows, what="asked", tasks=tasks, how=how)
        )
        for tasks, how in ((ASKED, "neighbours"), (size, "neighbours"), (size, "spread"))
    }
    yield made(
        f"fast.twenty-of-many{own}",
        f"time of one text with {ASKED} tasks of {size:,}, spread over all, over a bundle of these {ASKED} alone",
        asked[size, "spread"] / asked[ASKED, "neighbours"],
        OF_ALONE,
        note=f"{asked[size, 'spread']:.1f} and {asked[ASKED, 'neighbours']:.1f} ms; neighbours "
        f"{asked[size, 'neighbours']:.1f} ms",
    )


def made(id: str, text: str, value: float, target: float, *, note: str, least: bool = False) -> Claim:
    """A claim on a ratio or seconds."""
    holds = value >= target if least else value <= target
    unit = "seconds" if text.startswith("seconds") else "ratio"
    return Claim(id=id, text=text, target=target, value=round(value, 3), unit=unit, holds=bool(holds), note=note)


if __name__ == "__main__":
    main()
