"""Operations of the torch backend that tasks add to one pass of the trunk: on a graphics card each is a kernel started.

    python -m benchmarks.kernels               on the processor; no card, no data, and any other work beside it

Torch's profiler counts them on the processor, where the same code runs. Views, new memory, and copies to and from the
card are no kernels. The tasks' kinds are those of `one_pass_tasks`. Of each kind the
heads that default training tries stand in turn, those on hashed words aside, which no card computes: so all forms stand
beside each other, and a bundle of fewer forms starts fewer. Weights are drawn, a trunk of six layers is narrow: neither
changes a count.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import profile

from benchmarks.one_pass_tasks import PAIRED, TASKS, Chosen
from polyhead.codecs import HALF
from polyhead.deep.backend import TorchBackend
from polyhead.encoder.data import TrunkData
from polyhead.engine.backends.base import LoadedTask
from polyhead.plan import Codec, merge
from polyhead.project.strategies import Pooled
from polyhead.tasks.task import Task, owner_of
from polyhead.testing.tiny import tiny_batch, tiny_part, tiny_trunk
from studies.results import Claim
from studies.settings import command, report, say

NAME, TARGET, PRECISION = "kernels", 30, "bfloat16"
SIZES = (1, 5, 21, 42)
# Operations that start no kernel themselves: views, memory, and calls whose work the profiler lists by itself.
VIEWS = """_reshape_alias _unsafe_view alias as_strided detach expand flatten lift_fresh mT narrow numpy_T permute
    reshape resolve_conj resolve_neg select set_ slice split_with_sizes t transpose unfold unsqueeze view"""
MEMORY = "empty empty_like empty_strided new_empty new_ones resize_"
CALLS = """__or__ _to_copy clone dropout einsum embedding layer_norm linear matmul pad scaled_dot_product_attention
    softmax stack to"""
NO_KERNEL = frozenset(f"{VIEWS} {MEMORY} {CALLS}".split())
TWO = ("baddbmm",)  # a card copies what is added before it multiplies


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    trunk = tiny_trunk(layers=6, width=128)
    alone = of_trunk(trunk)
    rows: list[dict[str, Any]] = [{"tasks": 0, "kernels": sum(alone.values()), "each": alone}]
    for size in SIZES:
        for mode in ("stacked", "deterministic"):
            counted = of_tasks(trunk, size, deterministic=mode == "deterministic")
            added = sum(counted.values()) - sum(alone.values())
            say(f"{size} tasks, {mode}: {added} kernels beside {sum(alone.values())} of the trunk")
            rows.append({"tasks": size, "mode": mode, "added": added, "each": counted})
    (value,) = [row["added"] for row in rows if row["tasks"] == 21 and row["mode"] == "stacked"]
    claim = Claim(
        id="fast.kernels",
        text="kernels that 21 tasks, their heads the default ones in turn, add to one pass of the trunk on a card; "
        "counted as operations on the processor",
        target=TARGET,
        value=value,
        unit="kernels",
        holds=value <= TARGET,
    )
    report(NAME, command=command(), rows=rows, claims=[claim], lacking=[])


def tasks_of(trunk: TrunkData, size: int) -> dict[str, LoadedTask]:
    """So many tasks, each with the next of the heads that its kind may get."""
    chosen, turns, loaded = (*TASKS, PAIRED), dict[str, int](), dict[str, LoadedTask]()
    for number in range(size):
        task = _task(chosen[number % len(chosen)], number)
        heads = [head for head in Pooled().candidates(task, trunk.architecture.layers) if not head.words]
        form = "words" if task.kind == "tagging" else str(task.pair)
        turn = turns[form] = turns.get(form, -1) + 1
        strategy = heads[turn % len(heads)].strategy
        path = strategy.path(task, trunk=trunk.digest, shape=trunk.architecture, codec=Codec(name=HALF))
        arrays = tiny_part(path, trunk.architecture, owner_of(task), seed=number)
        loaded[task.name] = LoadedTask(path=path, arrays=arrays)
    return loaded


def _task(chosen: Chosen, number: int) -> Task:
    labels = () if chosen.kind == "regression" else tuple(f"label {i}" for i in range(2 + 7 * number))
    fields = {key: value for key, value in chosen.fields.items() if key in ("range", "pair")}
    return Task(name=f"{chosen.name}-{number}", kind=chosen.kind, labels=labels, **fields)


def of_tasks(trunk: TrunkData, size: int, *, deterministic: bool) -> Mapping[str, int]:
    """The operations of one batch with all tasks."""
    tasks = tasks_of(trunk, size)
    backend = TorchBackend(trunk, tasks, precision=PRECISION, deterministic=deterministic)
    plan, batch = merge({name: task.path for name, task in tasks.items()}), tiny_batch(trunk, (9, 4, 7, 3))
    backend.run(plan, batch)  # what is made once is made
    with profile() as profiled:
        outputs = backend.run(plan, batch)
    assert len(outputs) == size
    return counts(profiled)


def of_trunk(trunk: TrunkData) -> Mapping[str, int]:
    """The operations of the trunk's layers over the same batch."""
    backend, batch = TorchBackend(trunk, {}, precision=PRECISION), tiny_batch(trunk, (9, 4, 7, 3))
    texts = backend._texts(batch)
    with torch.inference_mode(), profile() as profiled:
        start = backend._trunk.start(texts.ids, texts.mask, segments=texts.segments)
        backend._trunk.go_on(start, stop=trunk.architecture.layers)
    return counts(profiled)


def counts(profiled: profile) -> dict[str, int]:
    """How often each operation ran that starts a kernel; what one calls in turn is part of it."""
    started = Counter(event.name.removeprefix("aten::") for event in profiled.events() if _starts(event))
    return {name: count * (1 + (name in TWO)) for name, count in sorted(started.items())}


def _starts(event: FunctionEvent) -> bool:
    parent = event.cpu_parent
    while parent is not None:
        if _is_kernel(parent):
            return False
        parent = parent.cpu_parent
    return _is_kernel(event)


def _is_kernel(event: FunctionEvent) -> bool:
    return event.name.startswith("aten::") and event.name.removeprefix("aten::") not in NO_KERNEL


if __name__ == "__main__":
    main()
