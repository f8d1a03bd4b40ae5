"""The cost of a trained set of tasks, counted from its paths and measured on this machine, for 1 to 32 tasks."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path as FilePath
from typing import Any

import msgspec
import numpy as np

from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.owners import TASK_OF, owner_named
from polyhead.bundle.read import Bundle
from polyhead.encoder.shape import Architecture
from polyhead.engine.backends import open_backend
from polyhead.engine.backends.base import LoadedTask, runner_of
from polyhead.engine.inputs import AnyInput, input_types_of
from polyhead.engine.loaded import LoadedTasks, loaded, trained_precision, word_weights_of
from polyhead.engine.request import Request
from polyhead.engine.scale_files import scales_for
from polyhead.plan import TRUNK, Path, Prompt, cost, merge, owners_of
from polyhead.text.tokenize import Tokenizer
from polyhead.values import Value

COUNTS = (1, 2, 4, 8, 16, 32)
TEXTS, ALONE = 64, 12  # texts of a batch, and texts answered one by one
REPEATS = 5  # maximum repeats of each, of which the fastest counts, as the least disturbed by other programs
LONGEST = 1.0  # seconds after which no repeat is started
MOST_BYTES = 2 * 2**30  # of the copies' arrays


class Counted(Value):
    """The cost of this many tasks on one text, from shapes alone."""

    layers: int
    flops: int
    parameters: int  # includes the trunks'


class Speed(Value):
    """Measurements of one text alone, and of many in one call."""

    ms: float  # of a text answered alone: median over texts, each the fastest of several repeats
    texts_a_second: float


class WayCosts(Value):
    """For one way: the cost that a task adds, and the cost of several numbers of tasks."""

    added_parameters: float  # of one more task, mean
    stored_bytes: int  # stored for one text, of the set itself
    tokens: int  # of the text for which FLOPs and bytes are counted
    tasks: int  # of the set
    of_set: Counted
    counted: dict[str, Counted] = {}  # by number of tasks, as JSON has keys
    measured: dict[str, Speed] = {}
    backend: str = ""  # the machine, with its precision

    @property
    def timed(self) -> list[int]:
        """The timed numbers of tasks."""
        return sorted(map(int, self.measured))

    def counted_for(self, tasks: int) -> Counted | None:
        """The counted cost of this many tasks, if known."""
        return self.counted.get(str(tasks))

    def speed_for(self, tasks: int) -> Speed | None:
        """The measured speed with this many tasks, if known."""
        return self.measured.get(str(tasks))


def counted_costs(
    bundles: Sequence[FilePath], tokens: int, counts: Sequence[int] = COUNTS, *, apart: bool = False
) -> WayCosts:
    """The costs of a trained set; `apart`: each task has its own trunk and bundle."""
    opened = [Bundle.open(root, verify=False) for root in bundles]
    shape = opened[0].architecture
    records = [record for bundle in opened for record in bundle.tasks.values()]
    costs = [_plan_cost(list(bundle.tasks.values()), shape, tokens) for bundle in opened]
    # A trunk shared by all adds nothing, even if a plan does not run all of its layers.
    added = sum(owner.parameters for plan_cost in costs for owner in plan_cost.owners if apart or owner.owner != TRUNK)
    of_counts = {}
    for count in counts:
        copied = list(copies(records, count).values())
        groups = [[record] for record in copied] if apart else [copied]
        of_counts[str(count)] = _counted([_plan_cost(group, shape, tokens) for group in groups])
    return WayCosts(
        added_parameters=added / len(records),
        stored_bytes=sum(plan_cost.stored_bytes for plan_cost in costs),
        tokens=tokens,
        tasks=len(records),
        of_set=_counted(costs),
        counted=of_counts,
    )


def measured_speed(
    bundles: Sequence[FilePath],
    inputs: Mapping[str, Sequence[AnyInput]],
    *,
    counts: Sequence[int] = COUNTS,
    apart: bool = False,
    backend: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[dict[int, Speed], str]:
    """Milliseconds, and texts per second, by number of tasks, and the machine.

    `inputs` are texts of each task. The tasks that read the most frequent type of input are copied. Separate trunks run
    one after another: one is measured, and counts once per task. Copies that do not fit in memory are omitted.
    """
    bundle = Bundle.open(bundles[0], verify=False)
    names = _alike(bundle)
    texts = _texts([text for name in names for text in inputs.get(name, ())])
    speeds: dict[int, Speed] = {}
    label = ""
    for count in counts:
        if apart and speeds:
            single = speeds[counts[0]]
            speeds[count] = Speed(ms=single.ms * count, texts_a_second=single.texts_a_second / count)
            continue
        measured = _measured(bundle, names, texts, 1 if apart else count, backend)
        if measured is None:
            say(f"{count} tasks and more are not measured: their arrays take over {MOST_BYTES / 2**30:.0f} GiB")
            break
        speeds[count], label = measured
    return speeds, label


def _measured(
    bundle: Bundle, names: Sequence[str], texts: Sequence[AnyInput], count: int, backend: str | None
) -> tuple[Speed, str] | None:
    base = [loaded(bundle, name) for name in names]
    records = [bundle.tasks[name] for name in names]
    if any(is_group(record.path) for record in records):  # a group's prompts belong to all its tasks
        records = [record for record in records if is_group(record.path)]
        base = [task for task in base if is_group(task.path)]
    records_copied, shape, trunk = copies(records, count), bundle.architecture, bundle.trunk()
    arrays = copied_arrays(records_copied, base, shape)
    if sum(array.nbytes for task in arrays.values() for array in task.arrays.values()) > MOST_BYTES:
        return None
    opened = open_backend(
        backend,
        trunk,
        arrays,
        precision=None,
        trained=trained_precision(bundle.tasks),
        scales=partial(scales_for, bundle),
    )
    now = LoadedTasks(
        records_copied,
        runner_of(opened),
        Tokenizer(trunk.tokenizer, trunk.settings),
        shape=shape,
        deterministic=False,
        word_weights=word_weights_of(arrays),
    )

    def seconds(texts_asked: Sequence[AnyInput]) -> float:
        began = time.perf_counter()
        Request(now, texts_asked, list(records_copied)).run(now)
        return time.perf_counter() - began

    for texts_asked in (texts[:1], texts):  # compiles what it needs
        seconds(texts_asked)
    single_text = statistics.median(_least(partial(seconds, [text]), LONGEST / ALONE) for text in texts[:ALONE])
    together = _least(partial(seconds, texts), LONGEST)
    speed = Speed(ms=round(1000 * single_text, 3), texts_a_second=round(len(texts) / together, 1))
    return speed, f"{opened.name}, {opened.precision}"


def _least(run: Callable[[], float], longest: float) -> float:
    """The fastest of several repeats, which stop after too long a time."""
    took = [run()]
    while len(took) < REPEATS and sum(took) < longest:
        took.append(run())
    return min(took)


def _alike(bundle: Bundle) -> list[str]:
    """The tasks with the most frequent type of input."""
    types: dict[object, list[str]] = {}
    for name, record in bundle.tasks.items():
        types.setdefault(input_types_of(record.task), []).append(name)
    return max(types.values(), key=len)


def _texts(texts: Sequence[AnyInput]) -> list[AnyInput]:
    """As many as are timed, evenly spaced, and repeated if there are fewer."""
    step = max(1, len(texts) // TEXTS)
    chosen = list(texts[::step][:TEXTS])
    return (chosen * math.ceil(TEXTS / len(chosen)))[:TEXTS]


def _plan_cost(records: Sequence[TaskRecord], shape: Architecture, tokens: int) -> cost.Cost:
    return cost.cost_of(merge({record.task.name: record.path for record in records}), shape, tokens, folded=True)


def _counted(costs: Sequence[cost.Cost]) -> Counted:
    return Counted(
        layers=sum(plan_cost.layer_evaluations for plan_cost in costs),
        flops=sum(plan_cost.flops for plan_cost in costs),
        parameters=sum(plan_cost.parameters for plan_cost in costs),
    )


def copy_name(number: int) -> str:
    """The name of the copy of this number."""
    return f"copy-{number}"


def copies(records: Sequence[TaskRecord], count: int) -> dict[str, TaskRecord]:
    """`count` tasks by name, which copy `records` in turn; each owns its arrays.

    Prompts of a group share one input, and so do the prompts of all copies.
    """
    copied = {}
    for number in range(count):
        base = number % len(records)
        record, name = records[base], copy_name(number)
        path = _path_of(records, base, number, count)
        task = msgspec.structs.replace(record.task, name=name)
        copied[name] = msgspec.structs.replace(record, task=task, path=path, owner=owner_named(name))
    return copied


def copied_arrays(
    records: Mapping[str, TaskRecord], tasks: Sequence[LoadedTask], shape: Architecture
) -> dict[str, LoadedTask]:
    """The copies, `records`, with their arrays; `tasks` are those that were copied, in order."""
    copied, arrays = dict(zip(records, itertools.cycle(tasks), strict=False)), dict[str, LoadedTask]()
    for name, record in records.items():
        path, read = record.path, dict[str, dict[str, np.ndarray]]()
        for owner in set(owners_of(path)) - {TRUNK, path.head.part}:
            if owner.startswith(TASK_OF):
                owner_arrays = copied[owner.removeprefix(TASK_OF)].arrays
                read[owner] = {leaf: owner_arrays[leaf] for leaf in cost.part_arrays(path, shape, owner)}
            else:
                read[owner] = dict(copied[name].others[owner])
        arrays[name] = LoadedTask(path=path, arrays=dict(copied[name].arrays), others=read)
    return arrays


def _path_of(records: Sequence[TaskRecord], base: int, number: int, count: int) -> Path:
    path = records[base].path
    owner = owner_named(records[base].task.name)
    embed = path.embed
    if len(embed.prompts) > 1 or is_group(path):
        shared = [prompt for prompt in embed.prompts if not prompt.part.startswith(TASK_OF)]
        rows = next(prompt.rows for prompt in embed.prompts if prompt.part == owner)
        prompts = [Prompt(part=owner_named(copy_name(copy)), rows=rows) for copy in range(count)]
        embed = msgspec.structs.replace(embed, prompts=(*shared, *prompts))
        path = Path(nodes=(embed, *path.nodes[1:]))
    renamed = _renamed(msgspec.to_builtins(path), owner, owner_named(copy_name(number)))
    return msgspec.convert(renamed, Path)


def _renamed(value: Any, old: str, new: str) -> Any:
    if isinstance(value, dict):
        return {key: _renamed(item, old, new) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_renamed(item, old, new) for item in value]
    return new if value == old else value


def is_group(path: Path) -> bool:
    """True if the text attends to the path's prompts and to those of other tasks, all in one input."""
    return bool(path.embed.prompts) and not path.embed.isolated
