"""What the card is to run, most worth first: each job is one task's, and makes rows that are not there yet.

Full fine-tuning, three private layers and their students, and pooled heads over the frozen trunk, each at the same
search: three rates, five seeds, patience.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from studies.gpu.feed import CardExamples, on_device, outputs_of, states_of
from studies.gpu.fit import Deadline, Ended, Lane, LaneSchedule, Splits, fit
from studies.gpu.mixed import learn, mixes_of
from studies.gpu.packed import SPLITS, Pack
from studies.gpu.stack import WORDS, Form, Stack, joined, start_arrays, trunk_form
from studies.gpu.together import CardTask, fit_together

Row = dict[str, Any]
ORDER = ("stsb", "rte", "mrpc", "cola", "emotion", "offensive", "qnli", "sst2")  # the cheapest first
PRIVATE, STUDENTS, MEAN_OF = 3, (1, 2), 4  # layers: of a branch, of its students, that pooled heads read
PALS = 96  # wide: of twelve heads, as near to the paper's 204 of 768 as they divide
HELD_OUT = ("stsb", "rte", "mrpc", "cola", "emotion")  # tasks that no mix learns from
KEY = ("method", "layers", "init", "task", "seed", "rate", "settings")


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is run: the whole, or a little of it to see that it runs."""

    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    rates: tuple[float, ...] = (5e-5, 1e-4, 2e-4)  # where layers learn
    head_rates: tuple[float, ...] = (3e-4, 1e-3, 3e-3)
    layers: LaneSchedule = LaneSchedule(epochs=16, patience=4)
    heads: LaneSchedule = LaneSchedule(epochs=30, patience=6)
    together: LaneSchedule = LaneSchedule(epochs=8, patience=3)  # of all tasks in one trunk
    mix_seeds: tuple[int, ...] = (1, 2, 3)
    mix_epochs: int = 2
    mix_batch: int = 64
    rows: int | None = None  # of each split at most


WHOLE = Size()
TINY = Size(
    seeds=(1,),
    rates=(2e-4,),
    head_rates=(1e-3,),
    layers=LaneSchedule(epochs=2, patience=2, batch=8),
    heads=LaneSchedule(epochs=2, patience=2, batch=8),
    together=LaneSchedule(epochs=2, patience=2, batch=8),
    mix_seeds=(1,),
    mix_epochs=1,
    mix_batch=4,
    rows=24,
)


class Bench:
    """The card, the pack on it, and the rows: those that are there, and what to do with new ones."""

    def __init__(
        self,
        pack: Pack,
        rows: Sequence[Row],
        write: Callable[[Row], None],
        *,
        size: Size,
        device: str,
        deadline: Deadline,
    ) -> None:
        self.pack, self.size, self.device, self.deadline = pack, size, device, deadline
        self.weights = joined(pack.weights, pack.shape.layers)
        self.dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
        self.card = torch.cuda.get_device_name() if device.startswith("cuda") else "cpu"
        self.settings = hashlib.sha256(f"{pack.digest} {size}".encode()).hexdigest()[:8]
        self._write, self._there = write, set(map(_key, rows))
        self.rows = list(rows)

    def lacking(self, lanes: Sequence[Lane], **key: object) -> list[Lane]:
        """The lanes without a row."""
        return [lane for lane in lanes if _key(self._keyed(lane, **key)) not in self._there]

    def write(self, lane: Lane, one: Ended, facts: Row, **key: object) -> None:
        """A lane's row."""
        row = {
            **self._keyed(lane, **key),
            "validation": round(one.validation, 5),
            "test": round(one.test, 5),
            "best_epoch": one.best_epoch,
            "ended_epoch": one.epochs,
            "flops": one.flops,
            "flops_per_second": round(one.flops_per_second),
            **facts,
            "whole": self.size.rows is None,
            "device": self.card,
            "precision": str(self.dtype).removeprefix("torch."),
        }
        self.rows.append(row)
        self._there.add(_key(row))
        self._write(row)

    def rate_of(self, method: str, layers: int, task: str, rates: Sequence[float]) -> float:
        """The rate that is best on validation in the mean over seeds."""
        wanted = {"method": method, "layers": layers, "task": task, "init": "", "settings": self.settings}
        scores: dict[float, list[float]] = {rate: [] for rate in rates}
        for row in self.rows:
            if wanted.items() <= row.items() and row["rate"] in scores:
                scores[row["rate"]].append(row["validation"])
        return max(rates, key=lambda rate: float(np.mean(scores[rate] or [-1.0])))

    def _keyed(self, lane: Lane, **key: object) -> Row:
        return {**key, "init": lane.init, "seed": lane.seed, "rate": lane.rate, "settings": self.settings}


class TaskBench:
    """One task on the card: its splits, the words that it uses, and the states that frozen layers give.

    With `others` the words of these tasks too.
    """

    def __init__(self, bench: Bench, name: str, *, others: Sequence[str] = ()) -> None:
        self.bench, self.task = bench, bench.pack.sets[name]
        several = [rows for one in (name, *others) for rows in bench.pack.sets[one].splits.values()]
        ids = np.unique(np.concatenate([[0], *(rows.ids.ravel() for rows in several)]))
        places = np.zeros(int(ids.max()) + 1, np.int32)
        places[ids] = np.arange(len(ids))
        self.words = ids  # of the pack that the task uses
        self.weights = {**bench.weights, WORDS: bench.weights[WORDS][ids]}
        self.splits = self._each(lambda split: self._examples(split, places))

    def states(self, taps: Sequence[int]) -> Splits:
        """The splits as the frozen trunk's states at these taps, their mean if several."""
        form = trunk_form(self.bench.pack.shape)
        trunk = Stack(
            form, [start_arrays(form, self.weights, seed=0)], device=self.bench.device, dtype=self.bench.dtype
        )
        return self._each(lambda split: states_of(trunk, getattr(self.splits, split), taps, self.bench.deadline.check))

    def run(
        self,
        form: Form,
        lanes: Sequence[Lane],
        *,
        splits: Splits,
        schedule: LaneSchedule,
        method: str,
        starts: Callable[[Lane], dict[str, np.ndarray]] | None = None,
        keep: bool = False,
    ) -> dict[int, Stack]:
        """Trains the lanes as one stack, a row each; with `keep` their models by seed, and no rows that are there."""
        key = {"method": method, "layers": form.layers, "task": self.task.name}
        models: dict[int, Stack] = {}
        missing = self.bench.lacking(lanes, **key)
        running = list(lanes) if keep else missing
        if not running:
            return models
        start = starts or (lambda lane: start_arrays(form, self.weights, seed=lane.seed))
        stack = Stack(form, list(map(start, running)), device=self.bench.device, dtype=self.bench.dtype)
        began, count = time.monotonic(), stack.lanes
        facts = {"metric": self.task.metric, "epochs": schedule.epochs, "tap": form.tap, "lanes": count}
        facts |= {f"{split}_rows": len(getattr(splits, split)) for split in SPLITS}

        def ended(one: Ended) -> None:
            if one.lane in missing:
                spent = round((time.monotonic() - began) / count, 3)
                self.bench.write(one.lane, one, {**facts, "seconds": spent}, **key)
            if keep:
                models[one.lane.seed] = one.model

        fit(stack, self.task, splits, running, schedule, deadline=self.bench.deadline, ended=ended)
        return models

    def _each(self, make: Callable[[str], CardExamples]) -> Splits:
        return Splits(**{split: make(split) for split in SPLITS})

    def _examples(self, split: str, places: np.ndarray) -> CardExamples:
        rows = self.task.splits[split]
        if self.bench.size.rows is not None:
            rows = rows.first(self.bench.size.rows)
        return on_device(replace(rows, ids=places[rows.ids]), self.bench.device)


def jobs(bench: Bench) -> Iterator[tuple[str, Callable[[], None]]]:
    """What to run, in order."""
    names = [name for name in (*ORDER, *bench.pack.sets) if name in bench.pack.sets]
    for name in dict.fromkeys(names):
        for what, make in (("full fine-tuning", full), ("branches and students", branches), ("pooled heads", pooled)):
            yield f"{name}: {what}", lambda make=make, name=name: make(TaskBench(bench, name))  # type: ignore[misc]
    for seed in bench.size.mix_seeds if bench.pack.mix else ():
        yield f"pre-finetuning, seed {seed}", lambda seed=seed: pre_finetuned(bench, seed)  # type: ignore[misc]
    for what, inner in (("sharing", 0), ("PALs", PALS)):
        yield f"all tasks in one trunk: {what}", lambda inner=inner: together(bench, inner)  # type: ignore[misc]


def full(on: TaskBench) -> None:
    """Fine-tuning of the whole trunk, embeddings too."""
    size, shape = on.bench.size, on.bench.pack.shape
    form = Form(shape=shape, tap=0, layers=shape.layers, outputs=on.task.outputs, embeds=True)
    on.run(form, _lanes(size.seeds, size.rates), splits=on.splits, schedule=size.layers, method="full")


def pre_finetuned(bench: Bench, seed: int) -> None:
    """Trunks that learn from many sets at once, then fine-tuning of each for tasks that they did not learn from."""
    size, held = bench.size, [name for name in HELD_OUT if name in bench.pack.sets]
    mixes = mixes_of(bench.pack)
    lanes = [Lane(seed=seed, rate=rate, init=mix.name) for mix in mixes for rate in size.rates]
    layers = bench.pack.shape.layers
    lacking = [name for name in held if bench.lacking(lanes, method="full", layers=layers, task=name)]
    if not lacking:
        return
    trunks = learn(
        bench.pack,
        mixes,
        seed,
        epochs=size.mix_epochs,
        batch=size.mix_batch,
        rows=None if size.rows is None else size.rows // 8,
        device=bench.device,
        dtype=bench.dtype,
        deadline=bench.deadline,
    )
    for name in lacking:
        on = TaskBench(bench, name)
        form = Form(shape=bench.pack.shape, tap=0, layers=layers, outputs=on.task.outputs, embeds=True)

        def start(lane: Lane, on: TaskBench = on, form: Form = form) -> dict[str, np.ndarray]:
            trunk = trunks[lane.init]
            own = {**trunk, WORDS: trunk[WORDS][on.words]}
            return start_arrays(form, on.weights, seed=lane.seed, own=own)

        on.run(form, lanes, splits=on.splits, schedule=size.layers, method="full", starts=start)


def together(bench: Bench, inner: int) -> None:
    """One trunk for all tasks, and with `inner` functions of each task, so wide."""
    size, shape, names = bench.size, bench.pack.shape, list(bench.pack.sets)
    lanes, method = _lanes(size.mix_seeds, size.rates), "pals" if inner else "shared"
    key = {"method": method, "layers": shape.layers}
    lacking = [lane for lane in lanes if any(bench.lacking([lane], **key, task=name) for name in names)]
    if not lacking:
        return
    on = [TaskBench(bench, name, others=names) for name in names]
    firsts = np.cumsum([0, *(one.task.outputs for one in on)]).tolist()
    tasks = [
        CardTask(task=one.task, splits=one.splits, number=number, first=firsts[number]) for number, one in enumerate(on)
    ]
    whole = Form(shape=shape, tap=0, layers=shape.layers, outputs=firsts[-1], embeds=True)
    form = replace(whole, tasks=len(on), inner=inner) if inner else whole
    starts = [start_arrays(form, on[0].weights, seed=lane.seed) for lane in lacking]
    stack = Stack(form, starts, device=bench.device, dtype=bench.dtype)
    began, count = time.monotonic(), stack.lanes

    def ended(one: Ended, name: str) -> None:
        splits, metric = tasks[names.index(name)].splits, bench.pack.sets[name].metric
        facts: Row = {f"{split}_rows": len(getattr(splits, split)) for split in SPLITS}
        spent = round((time.monotonic() - began) / count, 3)
        facts |= {"metric": metric, "epochs": size.together.epochs, "tap": 0, "lanes": count, "seconds": spent}
        bench.write(one.lane, one, facts, **key, task=name)

    fit_together(stack, tasks, lacking, size.together, deadline=bench.deadline, ended=ended)


def branches(on: TaskBench) -> None:
    """Private layers above a tap of the frozen trunk, then their students: of each seed's teacher, at the best rate."""
    size, shape = on.bench.size, on.bench.pack.shape
    own = min(PRIVATE, shape.layers)
    form = Form(shape=shape, tap=shape.layers - own, layers=own, outputs=on.task.outputs)
    splits, lanes = on.states([form.tap]), _lanes(size.seeds, size.rates)
    on.run(form, lanes, splits=splits, schedule=size.layers, method="branch")
    taught = [Lane(seed=s, rate=r, init=i) for s in size.seeds for r in size.rates for i in ("teacher", "pretrained")]
    shorter = [n for n in STUDENTS if n < own]
    key = {"method": "student", "task": on.task.name}
    if not any(on.bench.lacking(taught, layers=n, **key) for n in shorter):
        return
    rate = on.bench.rate_of("branch", own, on.task.name, size.rates)
    best = [lane for lane in lanes if lane.rate == rate]
    teachers = on.run(form, best, splits=splits, schedule=size.layers, method="branch", keep=True)
    for layers in shorter:
        students(
            on,
            form,
            splits,
            teachers,
            [lane for lane in taught if on.bench.lacking([lane], layers=layers, **key)],
            layers,
        )


def students(
    on: TaskBench, form: Form, splits: Splits, teachers: dict[int, Stack], lanes: Sequence[Lane], layers: int
) -> None:
    """Students of so many layers, each of its seed's teacher, from it or from the trunk."""
    short = replace(form, layers=layers)
    answers = {seed: torch.from_numpy(outputs_of(teacher, splits.train)[0]) for seed, teacher in teachers.items()}
    own = {seed: teacher.arrays(0) for seed, teacher in teachers.items()}

    def start(lane: Lane) -> dict[str, np.ndarray]:
        taken = own[lane.seed] if lane.init == "teacher" else None
        return start_arrays(short, on.weights, seed=lane.seed, own=taken)

    if lanes:
        soft = torch.stack([answers[lane.seed] for lane in lanes]).to(on.bench.device)
        taught = replace(splits, train=replace(splits.train, soft=soft))
        on.run(short, lanes, splits=taught, schedule=on.bench.size.layers, method="student", starts=start)


def pooled(on: TaskBench) -> None:
    """Attention, and the mean of positions, over the mean of the frozen trunk's last layers."""
    size, shape = on.bench.size, on.bench.pack.shape
    taps = range(max(0, shape.layers - MEAN_OF) + 1, shape.layers + 1)
    splits = on.states(list(taps))
    for pool in ("attention", "mean"):
        form = Form(shape=shape, tap=shape.layers, layers=0, outputs=on.task.outputs, pool=pool)
        lanes = _lanes(size.seeds, size.head_rates)
        on.run(form, lanes, splits=splits, schedule=size.heads, method=f"pooled-{pool}")


def _lanes(seeds: Sequence[int], rates: Sequence[float]) -> list[Lane]:
    return [Lane(seed=seed, rate=rate) for seed in seeds for rate in rates]


def _key(row: Row) -> tuple[object, ...]:
    return tuple(row.get(name) for name in KEY)
