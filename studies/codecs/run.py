"""Codecs at equal bytes: five TweetEval tasks, ten paired seeds, an attention pooler over every token; one row a run.

    python -m studies codecs run [--codecs float16,sign] [--tasks irony] [--seeds 1,2] [--part 1/2] [--report]

The trunk is `minilm`, frozen, and what is kept is the mean of its last four layers. A codec's constants come once from
1,024 training texts of the five tasks, or as many as it wants, as a store has one codec for all tasks. A seed draws the
head's start and the order of its batches: runs of one seed differ in their codec alone. Goes on where it stopped: rows
are in runs/store_codecs.jsonl, or else in the results.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from polyhead.codecs import ONE_BIT
from polyhead.plan import Codec
from polyhead.plan.cost import vector_bytes
from studies.codecs.kept import ATTENTION, Held, Kept, StudyTask, head_over
from studies.codecs.tokens import TOKEN_BYTES, TokenMeans
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

NAME = "store_codecs"
TASKS = {
    "emotion": StudyTask(dataset=Set(folder="tweeteval_emotion", metric="macro_f1")),
    "hate": StudyTask(dataset=Set(folder="tweeteval_hate", metric="macro_f1")),
    "irony": StudyTask(dataset=Set(folder="tweeteval_irony"), told={"positive": "irony"}),
    "offensive": StudyTask(dataset=Set(folder="tweeteval_offensive", metric="macro_f1")),
    "sentiment": StudyTask(dataset=Set(folder="tweeteval_sentiment", metric="macro_recall")),
}
SEEDS = tuple(range(1, 11))
YARDSTICK = "float16"
CODECS = (YARDSTICK, "uint8", "sign", "pca1", ONE_BIT)
MORE = ("pca2", "pca4")  # with fewer seeds, to see where nothing is lost any more
TOKEN = "pca1 about token means"  # another way to what the product has (`studies.codecs.tokens`)
TEXTS = 1024  # of which constants are fixed, at least
WIDTH = 384


def main() -> None:
    parser = study_arguments(__doc__, f"{NAME}.jsonl", seeds=SEEDS, part=True)
    parser.add_argument("--codecs", default=",".join(CODECS))
    parser.add_argument("--tasks", default=",".join(TASKS))
    options = parsed(parser)
    if not options.report:
        study, kept = resumed(options.rows[0], NAME), Kept(DATA, TASKS, RUNS / "codecs")
        seeds = [int(seed) for seed in options.seeds.split(",")]
        codecs = checked_names(options.codecs, (*CODECS, TOKEN, *MORE), "codec")
        tasks = checked_names(options.tasks, TASKS, "task")
        runs = Runs(kept)
        for task, codec in part_of([(task, codec) for task in tasks for codec in codecs], options.part):
            for seed in seeds:
                say(str(study.row(partial(runs.run, task, codec, seed), task=task, codec=codec, seed=seed)))
    else:
        rows = rows_of(options.rows)
        report(NAME, command=command(), rows=rows, claims=claims(rows), lacking=lacking(rows))


class Runs:
    """One head a run; values of the last task, and of the last codec, stay in memory for the next run."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self._nodes: dict[str, Codec] = {}
        self._means: TokenMeans | None = None
        self._held: tuple[str, Held] | None = None
        self._coded: tuple[tuple[str, str], Held] | None = None

    def run(self, task: str, codec: str, seed: int) -> dict[str, object]:
        """Scores of one head."""
        held = self.coded(task, codec)
        facts = head_over(held, self._kept.path(ATTENTION, held.task), seed)
        size = (
            vector_bytes(Codec(name="pca1"), WIDTH) + TOKEN_BYTES
            if codec == TOKEN
            else vector_bytes(Codec(name=codec), WIDTH)
        )
        return {**facts, "token_bytes": size, "tokens": round(held.tokens(), 2)}

    def coded(self, task: str, codec: str) -> Held:
        """The task's values as a reader of a store sees them."""
        if self._coded is None or self._coded[0] != (task, codec):
            held = self.held(task)
            self._coded = None  # before the next are made
            if codec == TOKEN:
                self._coded = (task, codec), self._about_tokens(held)
            else:
                node = self.node(codec)
                self._coded = (task, codec), held.each(lambda values: values.coded(node))
        return self._coded[1]

    def held(self, task: str) -> Held:
        """The task's values as the trunk gave them."""
        if self._held is None or self._held[0] != task:
            self._held = task, self._kept.held(task, ATTENTION)
        return self._held[1]

    def _about_tokens(self, held: Held) -> Held:
        """The values about the means of tokens, which come from training texts of all tasks."""
        if self._means is None:
            self._kept.fill([ATTENTION])
            several = [self._kept.held(name, ATTENTION) for name in TASKS]
            states = np.concatenate([one.values["train"][0].values for one in several])
            ids = np.concatenate([one.values["train"][0].tokens for one in several])
            self._means = TokenMeans(states, ids, self._kept.extractor.data.architecture.vocabulary)
        means, coded = self._means, {}
        for split, (values,) in held.values.items():
            decoded = means.through(values.values, values.tokens)
            coded[split] = [msgspec.structs.replace(values, values=decoded)]
        return Held(held.task, held.splits, coded)

    def node(self, codec: str) -> Codec:
        """The codec with its constants, the same for every task."""
        if codec not in self._nodes:
            if not self._nodes:
                self._kept.fill([ATTENTION])
            texts = max(TEXTS, Codec(name=codec).format.sample)
            self._nodes[codec] = self._kept.calibrated(ATTENTION, codec, texts)
        return self._nodes[codec]


def lacking(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Which runs are not there yet."""
    there = {(row["task"], row["codec"]) for row in rows}
    counts = {pair: sum((row["task"], row["codec"]) == pair for row in rows) for pair in there}
    return [
        f"{task}, {codec}: {counts.get((task, codec), 0)} of {len(SEEDS)} seeds"
        for codec in CODECS
        for task in TASKS
        if counts.get((task, codec), 0) < len(SEEDS)
    ]


def losses(rows: Sequence[dict[str, Any]], codec: str) -> dict[str, dict[int, float]]:
    """By task and seed that both have, in points: the score in float16 less that of the codec."""
    scores = {(row["task"], row["codec"], row["seed"]): 100 * float(row["test"]) for row in rows}
    return {
        task: found
        for task in TASKS
        if (
            found := {
                seed: scores[task, YARDSTICK, seed] - scores[task, codec, seed]
                for seed in SEEDS
                if {(task, YARDSTICK, seed), (task, codec, seed)} <= set(scores)
            }
        )
    }


def claims(rows: Sequence[dict[str, Any]]) -> list[Claim]:
    """The mean loss to float16 of each codec, over tasks and paired seeds."""
    return [
        claim
        for id, codec, target, words in (
            ("store.codec-uint8", "uint8", 0.3, "uint8, one scale for all"),
            ("store.codec-one-bit", "sign", 1.5, "one bit a dimension, its sign (Du et al. 2020)"),
            ("store.codec-best", ONE_BIT, 0.5, f"one bit a dimension, {ONE_BIT}"),
            ("store.codec-pca1", "pca1", 0.5, "one bit a dimension, pca1, which no token is told"),
            ("store.codec-token", TOKEN, 0.5, f"1.04 bits a dimension, {TOKEN} of all training texts"),
        )
        if (claim := claimed(id, losses(rows, codec), target, f"{words}: points below float16")) is not None
    ]


def claimed(id: str, lost: dict[str, dict[int, float]], target: float, text: str) -> Claim | None:
    """The claim that a mean loss over tasks stays within its target, over paired seeds; None without runs."""
    if not lost:
        return None
    found = by_draw(lost)
    return judged(
        id,
        f"{text}, mean of {len(lost)} tasks, {found.seeds} paired seeds",
        found,
        target=target,
        side="most",
        digits=3,
        note=", ".join(f"{task} {statistics.mean(by_seed.values()):+.2f}" for task, by_seed in lost.items()),
    )


if __name__ == "__main__":
    main()
