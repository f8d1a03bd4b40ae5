"""Checks of backends in deterministic mode: adding, removing or changing a task changes no bit of another's answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, partial

import msgspec
import numpy as np

from polyhead import plan
from polyhead.encoder.data import TrunkData
from polyhead.engine.backends.base import Backend, ChangingBackend, LoadedTask, TokenBatch
from polyhead.plan import Embed, Head, Layers, Path, Pool, Prompt
from polyhead.testing.backends import MakeBackend
from polyhead.testing.tiny import Check, prompted_path, tiny_batch, tiny_owned, tiny_siblings, tiny_trunk

LENGTHS = (7, 2, 12, 5, 1)
Case = tuple[TrunkData, Mapping[str, LoadedTask]]


def yield_deterministic_checks(subject: str, make: MakeBackend, *, family: str = "bert") -> Iterator[Check]:
    """Checks of the backends that `make` opens in deterministic mode, for trunks of a family, several widths and many
    tasks.
    """
    beside, changing = _cases(family)
    for name, (trunk, tasks) in beside.items():
        run = partial(_assert_same_beside_others, make, trunk, tasks)
        yield Check(subject=subject, name=f"gives the same bits {name}", run=run)
    run = partial(_assert_same_while_others_change, make, *changing)
    yield Check(subject=subject, name="gives the same bits while tasks come, change and go", run=run)


@cache  # shared by all checked backends
def _cases(family: str) -> tuple[dict[str, Case], Case]:
    """Trunks with tasks, some of which are run and loaded together with others; and one whose tasks come and go."""
    beside: dict[str, Case] = {}
    for width, layers, count in ((16, 2, 20), (48, 2, 20), (384, 1, 18)):
        trunk = tiny_trunk(width=width, layers=layers, family=family)
        beside[f"with more tasks, {width} wide"] = (trunk, _pooled(trunk, count))
    wide, small = (
        tiny_trunk(width=width, layers=layers, max_tokens=56, family=family) for width, layers in ((384, 1), (16, 2))
    )
    alike = tiny_siblings(small)
    beside["with more isolated prompts, 384 wide"] = (wide, _isolated(wide, 18))
    beside["beside tasks alike but for their arrays"] = (small, alike)
    return beside, (small, {**_pooled(small, 6), **alike})


def _pooled(trunk: TrunkData, count: int) -> dict[str, LoadedTask]:
    """Tasks that read the last layer in several ways, some with their own branches above a tap."""
    depth, embed, paths = trunk.architecture.layers, Embed(trunk=trunk.digest), dict[str, Path]()
    for number in range(count):
        part = f"task:p{number}"
        pool = Pool(positions="attention", heads=trunk.architecture.heads, part=part)
        if number % 5 == 3:
            pool = Pool(layers="mean", of=depth, positions="mean")
        layers = (Layers(start=0, stop=depth),)
        if number % 5 == 4:
            below = (Layers(start=0, stop=depth - 1),) if depth > 1 else ()
            layers = (*below, Layers(start=depth - 1, stop=depth, weights=part))
        head = Head(kind="single_label", width=2 + number % 3, part=part, hidden=24)
        paths[f"p{number}"] = Path(nodes=(embed, *layers, pool, head))
    return tiny_owned(paths, trunk.architecture)


def _isolated(trunk: TrunkData, count: int) -> dict[str, LoadedTask]:
    """Tasks with prompts that the text does not see, of two and three rows: more than fit in a group of slots."""
    paths = dict[str, Path]()
    for number in range(count):
        prompt = Prompt(part=f"task:i{number}", rows=2 + number % 2)
        paths[f"i{number}"] = prompted_path(trunk, f"i{number}", [prompt], isolated=True)
    return tiny_owned(paths, trunk.architecture)


def _assert_same_beside_others(make: MakeBackend, trunk: TrunkData, tasks: Mapping[str, LoadedTask]) -> None:
    """Loaded with all, run with all; loaded with all, run alone; loaded with some; loaded alone."""
    batch, names = tiny_batch(trunk, LENGTHS), list(tasks)
    backend = make(trunk, tasks)
    whole = _answers(backend, tasks, batch)
    for subset in (names[::2], names[:1], names[3:4], names[-2:]):
        chosen = {name: tasks[name] for name in subset}
        _assert_bits(_answers(backend, chosen, batch), whole)
        _assert_bits(_answers(make(trunk, chosen), chosen, batch), whole)


def _assert_same_while_others_change(make: MakeBackend, trunk: TrunkData, tasks: Mapping[str, LoadedTask]) -> None:
    batch, names = tiny_batch(trunk, LENGTHS), list(tasks)
    stays = {name: tasks[name] for name in names[::4]}
    backend = make(trunk, stays)
    wanted = _answers(backend, stays, batch)
    assert isinstance(backend, ChangingBackend), "tasks of this backend cannot change"
    loaded = dict(stays)
    others = [name for name in names if name not in stays]
    for start in range(0, len(others), 3):
        come = others[start : start + 3]
        loaded |= {name: tasks[name] for name in come}
        backend.replace(loaded)
        _assert_bits(_answers(backend, stays, batch), wanted)
        loaded |= {name: _other_arrays(tasks[name]) for name in come}
        backend.replace(loaded)
        _assert_bits(_answers(backend, stays, batch), wanted)
    for gone in (others[::3], others[1::3]):
        loaded = {name: task for name, task in loaded.items() if name not in gone}
        backend.replace(loaded)
        _assert_bits(_answers(backend, stays, batch), wanted)


def _other_arrays(task: LoadedTask) -> LoadedTask:
    arrays = {leaf: array * np.float32(1.5) for leaf, array in task.arrays.items()}
    return msgspec.structs.replace(task, arrays=arrays)


def _answers(backend: Backend, tasks: Mapping[str, LoadedTask], batch: TokenBatch) -> dict[str, np.ndarray]:
    return backend.run(plan.merge({name: task.path for name, task in tasks.items()}), batch)


def _assert_bits(results: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> None:
    for name, values in results.items():
        assert values.tobytes() == wanted[name].tobytes(), (
            f"{name}: other bits, by {np.abs(values - wanted[name]).max()}"
        )
