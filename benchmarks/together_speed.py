"""How fast tasks train together: tokens a second beside each task alone, and a step's time beside idle tasks.

Minutes on two cores. Everything is timed in one process, in turn, so that a ratio compares like with like.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import msgspec
import torch

from polyhead.deep.loop.feed import TrainingBatch
from polyhead.deep.recipes.joint_loop import JointLoop
from polyhead.deep.recipes.paths import joint_paths
from polyhead.deep.recipes.sampling import MixedFeed
from polyhead.project.recipes import Joint, Sampling
from polyhead.train.data.prepared import Prepared
from studies.aghajanyan2021.mixes import JOINT, LEARNING, Mix, folders
from studies.aghajanyan2021.runs import Runs
from studies.results import Claim, Study, results, write_results
from studies.settings import DATA, RESULTS, RUNS, answer_help

NAME = "together_speed"
COMMAND = "python -m benchmarks.together_speed"
TASKS, ROWS = 8, 512
UPDATES, REPEATS = 6, 5
IDLE = (1, 50)


def main() -> None:
    runs = Runs(DATA, RUNS / NAME, Study(RUNS / f"{NAME}.jsonl"))
    prepared = runs.mixed(Mix(name=NAME, sets=folders(TASKS), rows=ROWS), 1)
    rows = [*throughput(runs, prepared), *idle(runs, prepared)]
    file = results(NAME, command=COMMAND, rows=rows, claims=claims(rows))
    write_results(RESULTS, file)
    for claim in file.claims:
        print(f"{'holds' if claim.holds else 'MISSED'}  {claim.id}  {claim.value} {claim.unit}  ({claim.target})")


def course_of(runs: Runs, prepared: Sequence[Prepared], recipe: Joint) -> JointLoop:
    return JointLoop(
        prepared, joint_paths(prepared, runs.plain, recipe), runs.plain, recipe, training=LEARNING, precision="bfloat16"
    )


class Stepper:
    """The optimizer's steps of a loop over updates that were drawn before, as training takes them."""

    def __init__(self, loop: JointLoop, updates: Sequence[Sequence[tuple[str, TrainingBatch]]]) -> None:
        self.loop, self.updates = loop, updates
        self.parameters = [p for p in loop.module.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-6, fused=True)
        self.tokens = sum(batch.tokens for update in updates for _, batch in update)
        loop.module.train()

    def seconds(self) -> float:
        """The seconds of all updates once."""
        began = time.perf_counter()
        for update in self.updates:
            self.optimizer.zero_grad(set_to_none=True)
            for task, batch in update:
                (self.loop.loss(task, batch) / len(update)).backward()
            torch.nn.utils.clip_grad_norm_(self.parameters, LEARNING.clip)
            self.optimizer.step()
        return time.perf_counter() - began


def stepper(runs: Runs, prepared: Sequence[Prepared], recipe: Joint, updates: int) -> Stepper:
    loop = course_of(runs, prepared, recipe)
    feed = MixedFeed(loop.examples, loop.mixture, LEARNING)
    drawn = []
    for update, _ in zip(feed.updates(0), range(updates), strict=False):
        drawn.append([(task, batch) for task, batch in update if batch is not None])
    return Stepper(loop, drawn)


def throughput(runs: Runs, prepared: Sequence[Prepared]) -> list[dict[str, object]]:
    """Updates of eight micro-batches, one a task, and updates of one micro-batch of each task alone."""
    recipe = msgspec.structs.replace(JOINT, sampling=Sampling(kind="all"), families=())
    alone = msgspec.structs.replace(JOINT, micro_batches=1, families=())
    together = stepper(runs, prepared, recipe, UPDATES)
    singles = [stepper(runs, [p], alone, UPDATES) for p in prepared]
    together.seconds()
    for single in singles:
        single.seconds()
    rows: list[dict[str, object]] = []
    for repeat in range(REPEATS):
        joint = together.tokens / together.seconds()
        each = sum(s.tokens for s in singles) / sum(s.seconds() for s in singles)
        rows.append({"what": "throughput", "repeat": repeat, "joint": joint, "alone": each, "ratio": joint / each})
        print(f"tokens a second: together {joint:,.0f}, alone {each:,.0f}, ratio {joint / each:.3f}", flush=True)
    return rows


def idle(runs: Runs, prepared: Sequence[Prepared]) -> list[dict[str, object]]:
    """The same updates of one task, beside one idle task and beside fifty."""
    first = prepared[0]
    steppers = {}
    for count in IDLE:
        idlers = [
            msgspec.structs.replace(first, task=msgspec.structs.replace(first.task, name=f"idle-{i}"))
            for i in range(count)
        ]
        only = Sampling(kind="schedule", schedule=({first.task.name: 1.0},))
        recipe = msgspec.structs.replace(JOINT, sampling=only, families=())
        steppers[count] = stepper(runs, [first, *idlers], recipe, UPDATES)
        steppers[count].seconds()
    rows: list[dict[str, object]] = []
    for repeat in range(REPEATS):
        taken = {count: loop.seconds() / UPDATES for count, loop in steppers.items()}
        ratio = taken[IDLE[1]] / taken[IDLE[0]]
        rows.append({"what": "idle", "repeat": repeat, "one": taken[IDLE[0]], "fifty": taken[IDLE[1]], "ratio": ratio})
        print(f"a step: {taken[IDLE[0]]:.3f} s beside 1 idle task, {taken[IDLE[1]]:.3f} s beside 50", flush=True)
    return rows


def claims(rows: Sequence[dict[str, object]]) -> list[Claim]:
    def median(what: str) -> float:
        return round(statistics.median(float(str(row["ratio"])) for row in rows if row["what"] == what), 3)

    speed, step = median("throughput"), median("idle")
    return [
        Claim(
            id="together.tokens-a-second",
            text=f"training {TASKS} tasks together, over training each alone, in tokens a second",
            target=0.9,
            value=speed,
            unit="ratio",
            holds=speed >= 0.9,
            note=f"median of {REPEATS}; an update is one optimizer step, of {TASKS} micro-batches against one; "
            "drawing, making batches, validation and checkpoints are not in it",
        ),
        Claim(
            id="together.idle-tasks",
            text="time of a training step beside 50 idle tasks, over that beside 1",
            target=1.05,
            value=step,
            unit="ratio",
            holds=step <= 1.05,
            note=f"median of {REPEATS}; idle tasks have heads of their own and are never drawn",
        ),
    ]


if __name__ == "__main__":
    answer_help(__doc__)
    main()
