"""One vector a document beside every token at one bit: five tasks of unlike kinds, five seeds; one row a run.

    python -m studies codecs run-vector [--tasks topic] [--seeds 1,2] [--part 1/2] [--report]

Over the frozen trunk `minilm`: the mean over a text's tokens, kept in float16, with a trained hidden layer and output;
and every token at one bit a dimension, with an attention pooler and the same head. The vector is that of the mean of
the last four layers, as tokens are kept, or of the last layer alone. Goes on where it stopped: rows are in
runs/store_pooled_vector.jsonl, or else in the results.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

from polyhead.codecs import EXACT, HALF
from polyhead.plan import Codec
from polyhead.plan.cost import vector_bytes
from polyhead.project.strategies import Pooled
from studies.codecs.kept import ATTENTION, OF, Held, Kept, StudyTask, head_over
from studies.codecs.run import TEXTS, WIDTH
from studies.evidence import by_draw, judged
from studies.results import Claim
from studies.settings import (
    DATA,
    RUNS,
    checked_names,
    command,
    parsed,
    part_of,
    report,
    resumed,
    rows_of,
    say,
    study_arguments,
)
from studies.shared.data import Set
from studies.shared.rows import paired

NAME = "store_pooled_vector"
TASKS = {
    "topic": StudyTask(dataset=Set(folder="ag_news")),
    "intent": StudyTask(dataset=Set(folder="banking77")),
    "emotion": StudyTask(dataset=Set(folder="tweeteval_emotion", metric="macro_f1")),
    "similarity": StudyTask(dataset=Set(folder="glue_stsb", range=(0.0, 5.0)), told={"pair": "separate"}),
    "grammar": StudyTask(dataset=Set(folder="glue_cola", test="validation", metric="matthews")),
}
SEEDS = (1, 2, 3, 4, 5)
LAST = Pooled(layers="last", positions="attention", codec=EXACT)
ONE_BIT = "pca1"  # the default of stores when this was measured
TOKENS, VECTOR, LAST_VECTOR = "every token, one bit", "one vector, mean of 4 layers", "one vector, last layer"
METHODS = {TOKENS: ATTENTION, VECTOR: ATTENTION, LAST_VECTOR: LAST}


def main() -> None:
    parser = study_arguments(__doc__, f"{NAME}.jsonl", seeds=SEEDS, part=True)
    parser.add_argument("--tasks", default=",".join(TASKS))
    options = parsed(parser)
    if not options.report:
        study, runs = resumed(options.rows[0], NAME), Runs(Kept(DATA, TASKS, RUNS / "codecs"))
        tasks = checked_names(options.tasks, TASKS, "task")
        seeds = [int(seed) for seed in options.seeds.split(",")]
        for task, method in part_of([(task, method) for task in tasks for method in METHODS], options.part):
            for seed in seeds:
                say(str(study.row(partial(runs.run, task, method, seed), task=task, method=method, seed=seed)))
    else:
        rows = rows_of(options.rows)
        report(NAME, command=command(), rows=rows, claims=claims(rows), lacking=lacking(rows))


class Runs:
    """One head a run; the values of the last task and method stay in memory for the next seed."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self._codec: Codec | None = None
        self._held: tuple[tuple[str, str], Held] | None = None

    def run(self, task: str, method: str, seed: int) -> dict[str, object]:
        """Scores of one head, and the bytes that it needs of a document."""
        held, strategy = self.held(task, method), METHODS[method]
        path = self._kept.path(strategy, held.task)
        if method != TOKENS:
            path = self._kept.path(
                Pooled(layers=strategy.layers, of=OF, positions="mean", codec=EXACT), held.task
            )  # of one position
        facts = head_over(held, path, seed)
        tokens = held.tokens()
        codec = Codec(name=ONE_BIT if method == TOKENS else HALF)
        return {**facts, "positions": round(tokens, 2), "document_bytes": round(tokens * vector_bytes(codec, WIDTH), 1)}

    def held(self, task: str, method: str) -> Held:
        """The task's values as a reader of a store sees them."""
        if self._held is None or self._held[0] != (task, method):
            if self._codec is None:
                self._kept.fill([ATTENTION, LAST])
                self._codec = self._kept.calibrated(ATTENTION, ONE_BIT, TEXTS)
            codec, self._held = self._codec, None
            raw = self._kept.held(task, METHODS[method])
            if method == TOKENS:
                held = raw.each(lambda values: values.coded(codec))
            else:
                held = raw.each(lambda values: values.means().coded(Codec(name=HALF)))
            self._held = (task, method), held
        return self._held[1]


def scores(rows: Sequence[dict[str, Any]], task: str, method: str) -> list[float]:
    """Test scores in points, of every seed that is there."""
    return list(by_seed(rows, task, method).values())


def by_seed(rows: Sequence[dict[str, Any]], task: str, method: str) -> dict[int, float]:
    """Test scores in points, by seed."""
    its = [row for row in rows if (row["task"], row["method"]) == (task, method)]
    return {row["seed"]: 100 * float(row["test"]) for row in its}


def lacking(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Which runs are not there yet."""
    counts = {(task, method): len(scores(rows, task, method)) for method in METHODS for task in TASKS}
    return [f"{task}, {method}: {n} of {len(SEEDS)} seeds" for (task, method), n in counts.items() if n < len(SEEDS)]


def claims(rows: Sequence[dict[str, Any]]) -> list[Claim]:
    """What every token is worth beside the better of the two vectors, in points and in bytes."""
    tasks = [task for task in TASKS if all(scores(rows, task, method) for method in METHODS)]
    if not tasks:
        return []
    mean = {
        method: statistics.mean(statistics.mean(scores(rows, task, method)) for task in tasks) for method in METHODS
    }
    best = max((VECTOR, LAST_VECTOR), key=lambda method: mean[method])
    gains = {task: paired(by_seed(rows, task, TOKENS), by_seed(rows, task, best)) for task in tasks}
    found = by_draw(gains)
    size = {
        method: statistics.mean(
            next(float(row["document_bytes"]) for row in rows if (row["task"], row["method"]) == (task, method))
            for task in tasks
        )
        for method in METHODS
    }
    return [
        judged(
            "store.pooled-vector",
            f"every token at one bit ({ONE_BIT}) with an attention pooler, beside {best} in {HALF}: "
            f"the gain, mean of {len(tasks)} tasks of unlike kinds",
            found,
            target=0,
            digits=3,
            note=", ".join(f"{task} {statistics.mean(points.values()):+.2f}" for task, points in gains.items())
            + f"; the other vector is {mean[best] - min(mean[VECTOR], mean[LAST_VECTOR]):.2f} below on average",
        ),
        Claim(
            id="store.pooled-vector-bytes",
            text="bytes of a text's tokens at one bit a dimension over those of its one vector, the same texts",
            target=1,
            value=round(size[TOKENS] / size[best], 3),
            unit="ratio",
            holds=size[TOKENS] <= size[best],
            note=f"{size[TOKENS]:,.0f} bytes and {size[best]:,.0f}; a vector is as large as "
            f"{size[best] / vector_bytes(Codec(name=ONE_BIT), WIDTH):.0f} tokens",
        ),
    ]


if __name__ == "__main__":
    main()
