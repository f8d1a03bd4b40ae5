"""What every backend must do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import msgspec
import numpy as np

from polyhead import cost, plan
from polyhead.engine.backends.base import Backend, LoadedTask, TokenBatch
from polyhead.errors import PolyheadError
from polyhead.plan import Layers, Path, Pool, Positions
from polyhead.store.codec import encode
from polyhead.testing.check import Check
from polyhead.testing.conditioned import tiny_conditioned, tiny_siblings
from polyhead.testing.tiny import (
    CODECS,
    tiny_batch,
    tiny_loaded,
    tiny_part,
    tiny_path,
    tiny_tasks,
    tiny_trunk,
    tiny_widths,
)
from polyhead.trunk.data import TrunkData

MARGIN = 1e-5  # features nearer than this to where their code changes may be written either way
HALF_STEP = 0.01  # of outputs, where a few features of size 1 move by a float16's step

MakeBackend = Callable[[TrunkData, Mapping[str, LoadedTask]], Backend]
BATCHES: Mapping[str, tuple[int, ...]] = {
    "ragged": (9, 4, 7, 3, 2, 11, 5, 8),
    "single row": (6,),
    "one token": (1, 1),
    "longest": (48, 48, 20),
}


def yield_backend_checks(subject: str, make: MakeBackend) -> Iterator[Check]:
    """What every backend must do; `make` gives one with a trunk and tasks loaded."""
    from polyhead.engine.backends.reference import ReferenceBackend

    trunk = tiny_trunk()
    for codec_name, codec in CODECS.items():
        tasks = tiny_loaded(trunk, codec=codec)
        yardstick, ours = ReferenceBackend(trunk, tasks), make(trunk, tasks)
        for name, lengths in BATCHES.items():
            batch = tiny_batch(trunk, lengths)

            def agrees(a: Backend = ours, b: Backend = yardstick, batch: TokenBatch = batch, t: object = tasks) -> None:
                _assert_agree(a, b, trunk, batch, t)  # type: ignore[arg-type]

            yield Check(subject=subject, name=f"equals the reference, {codec_name}, {name}", run=agrees)
    tasks = tiny_loaded(trunk)
    for name, run in (
        ("gives the same bits twice", _assert_same_twice),
        ("leaves its batch as it was", _assert_batch_unchanged),
        ("runs each layer once for all tasks", _assert_layers_once),
        ("runs no layer above the deepest tap", _assert_tapped_layers),
        ("runs branches from any tap, each layer once", _assert_branches),
        ("does not depend on padding or order", _assert_rows_alone),
        ("answers an empty batch with no rows", _assert_empty),
        ("refuses a step that it cannot run", _assert_refuses),
        ("refuses to average more layers than were run", _assert_refuses_depth),
        ("states name, precision and tolerance", _assert_stated),
    ):
        yield Check(subject=subject, name=name, run=partial(run, make, trunk, tasks))
    yield from _conditioned_checks(subject, make)


def _conditioned_checks(subject: str, make: MakeBackend) -> Iterator[Check]:
    """The same for prompts, functions inside the layers and layers on top; and the layers that these run."""
    from polyhead.engine.backends.reference import ReferenceBackend

    trunk = tiny_trunk(max_tokens=56)  # room for prompts before the longest text
    tasks = tiny_conditioned(trunk)
    ours = make(trunk, tasks)
    for name, lengths in BATCHES.items():
        batch = tiny_batch(trunk, lengths)

        def agrees(batch: TokenBatch = batch) -> None:
            _assert_agree(ours, ReferenceBackend(trunk, tasks), trunk, batch, tasks)

        yield Check(subject=subject, name=f"equals the reference, prompts and adapters, {name}", run=agrees)
    for which, siblings in (
        ("tasks alike but for their arrays", tiny_siblings(trunk)),
        ("tasks of few and many labels", tiny_widths(trunk)),
    ):

        def agree(loaded: dict[str, LoadedTask] = siblings) -> None:
            backend, batch = make(trunk, loaded), tiny_batch(trunk, BATCHES["ragged"])
            _assert_agree(backend, ReferenceBackend(trunk, loaded), trunk, batch, loaded)
            merged = plan.merge({n: task.path for n, task in loaded.items()})
            assert backend.layers_run == cost.layer_evaluations(merged)

        yield Check(subject=subject, name=f"equals the reference, {which}", run=agree)
    for name, run, maker in (
        ("gives the same bits twice", _assert_same_twice, make),
        ("does not depend on padding or order", _assert_rows_alone, lambda *_: ours),
        ("answers an empty batch with no rows", _assert_empty, lambda *_: ours),
        ("runs the layers that are counted", _assert_conditioned_layers, lambda *_: ours),
    ):
        yield Check(subject=subject, name=f"{name}, prompts and adapters", run=partial(run, maker, trunk, tasks))


def stable_rows(trunk: TrunkData, path: Path, batch: TokenBatch, *, margin: float = MARGIN) -> np.ndarray:
    """bool (rows,): whether no feature of the row lies so near a border of its codec that rounding decides its code."""
    import torch

    from polyhead.model import TextBatch, stored_value
    from polyhead.nn.trunk import Trunk

    pool = path.stored().pool
    if pool.codec.format.is_exact:
        return np.ones(len(batch.ids), bool)
    ids, mask, segments, words = map(torch.from_numpy, (batch.ids, batch.mask, batch.segments, batch.words))
    texts = TextBatch(ids=ids, mask=mask, segments=segments, words=words)
    with torch.inference_mode():
        states = Trunk.from_data(trunk)(texts.ids, texts.mask, segments=texts.segments)
        value = stored_value(states, pool, texts.words)
    raw, seen = value.values.numpy(), value.mask.numpy()
    moved = (encode(raw - np.float32(margin), pool.codec) != encode(raw + np.float32(margin), pool.codec)).any(
        axis=(2, 3)
    )
    stable: np.ndarray = ~(moved & seen).any(axis=1)
    return stable


def _assert_agree(
    ours: Backend, yardstick: Backend, trunk: TrunkData, batch: TokenBatch, tasks: Mapping[str, LoadedTask]
) -> None:
    merged = plan.merge({name: task.path for name, task in tasks.items()})
    outputs, wanted = ours.run(merged, batch), yardstick.run(merged, batch)
    assert set(outputs) == set(wanted) == set(tasks)
    stable = {path.stored(): stable_rows(trunk, path, batch) for path in (t.path for t in tasks.values())}
    for name, task in tasks.items():
        rows = stable[task.path.stored()]
        a, b = _outputs(ours, name, outputs[name], task), _outputs(yardstick, name, wanted[name], task)
        assert a.shape == b.shape, f"{name}: {a.shape} for {b.shape}"
        if task.path.head.separate:  # row i is compared with the row before it
            rows = rows & np.roll(rows, 1)
        if task.path.pool.positions == "tokens":  # what a word without a token gives is not asked
            a, b = a * (batch.words >= 0)[..., None], b * (batch.words >= 0)[..., None]
        worst = float(np.abs(a[rows] - b[rows]).max(initial=0.0))
        assert worst <= ours.tolerance, f"{name}: differs by {worst}, stated {ours.tolerance}"
        if task.path.pool.codec.format.is_fine:  # a feature on a border moves by one part in 1024
            worst = float(np.abs(a - b).max(initial=0.0))
            assert worst <= ours.tolerance + HALF_STEP, f"{name}: differs by {worst} beside a border"
        else:
            assert rows.mean() >= 0.25 or len(rows) < 4, f"{name}: only {rows.sum()} of {len(rows)} rows compared"


def _outputs(backend: Backend, name: str, found: np.ndarray, task: LoadedTask) -> np.ndarray:
    return backend.compared(name, found, np.roll(found, 1, axis=0)) if task.path.head.separate else found


def _assert_same_twice(make: MakeBackend, trunk: TrunkData, tasks: Mapping[str, LoadedTask]) -> None:
    merged, batch = plan.merge({n: t.path for n, t in tasks.items()}), tiny_batch(trunk, BATCHES["ragged"])
    backend = make(trunk, tasks)
    first, second, other = (backend.run(merged, batch), backend.run(merged, batch), make(trunk, tasks))
    third = other.run(merged, batch)
    for name in tasks:
        assert first[name].tobytes() == second[name].tobytes() == third[name].tobytes(), name


def _assert_batch_unchanged(make: MakeBackend, trunk: TrunkData, tasks: Mapping[str, LoadedTask]) -> None:
    batch, again = tiny_batch(trunk, BATCHES["ragged"]), tiny_batch(trunk, BATCHES["ragged"])
    make(trunk, tasks).run(plan.merge({n: t.path for n, t in tasks.items()}), batch)
    for field in ("ids", "mask", "segments", "words"):
        assert np.array_equal(getattr(batch, field), getattr(again, field)), field


def _assert_layers_once(make: MakeBackend, trunk: TrunkData, tasks: Mapping[str, LoadedTask]) -> None:
    backend = make(trunk, tasks)
    backend.run(plan.merge({n: t.path for n, t in tasks.items()}), tiny_batch(trunk, (5, 3)))
    assert len(tasks) > 10
    assert backend.layers_run == trunk.architecture.layers, backend.layers_run


def _assert_tapped_layers(make: MakeBackend, trunk: TrunkData, tasks: Mapping[str, LoadedTask]) -> None:
    task = tiny_tasks()[0]
    path = tiny_path(task, trunk, pool=Pool(positions="mean"), stop=1)
    low = LoadedTask(path=path, arrays=tiny_part(path, trunk.architecture, f"task:{task.name}"))
    backend = make(trunk, {task.name: low})
    backend.run(plan.merge({task.name: path}), tiny_batch(trunk, (5, 3)))
    assert backend.layers_run == 1, backend.layers_run


def _assert_conditioned_layers(make: MakeBackend, trunk: TrunkData, tasks: Mapping[str, LoadedTask]) -> None:
    """Over a trunk of two layers: a prompt group runs as one input, isolated prompts share the text's layers."""
    backend, batch = make(trunk, tasks), tiny_batch(trunk, (5, 3))
    for layers, names in (
        (2, ["joint-a", "joint-b", "joint-c"]),
        (2, ["plain", "apart-a", "apart-b", "apart-c"]),
        (4, ["plain", "joint-a", "joint-b", "apart-a"]),
        (4, ["plain", "in-lora"]),
        (3, ["plain", "upper"]),
        (6, ["in-scale", "in-prefix", "in-attention"]),
        (6, ["plain", "top-attention", "top-layer"]),
        (2, ["scorer-a", "scorer-b"]),
        (cost.layer_evaluations(plan.merge({n: t.path for n, t in tasks.items()})), list(tasks)),
    ):
        before = backend.layers_run
        backend.run(plan.merge({name: tasks[name].path for name in names}), batch)
        assert backend.layers_run - before == layers, f"{names}: {backend.layers_run - before}"


def _assert_branches(make: MakeBackend, trunk: TrunkData, tasks: Mapping[str, LoadedTask]) -> None:
    """Taps 0 and 1, one of two layers; answers equal the reference's, and the layers run are D + sum l."""
    from polyhead.engine.backends.reference import ReferenceBackend

    branches = {}
    chosen: tuple[tuple[int, Positions], ...] = ((0, "first"), (1, "first"), (1, "mean"), (0, "tokens"))
    for place, (tap, positions) in enumerate(chosen):
        task = next(t for t in tiny_tasks() if (t.kind == "tagging") == (positions == "tokens"))
        named = msgspec.structs.replace(task, name=f"b{place}")
        whole = tiny_path(named, trunk, pool=Pool(positions=positions))
        embed, _, *rest = whole.nodes
        shared = (Layers(start=0, stop=tap),) if tap else ()
        own = Layers(start=tap, stop=trunk.architecture.layers, weights=whole.head.part)
        path = Path(nodes=(embed, *shared, own, *rest))
        arrays = tiny_part(path, trunk.architecture, whole.head.part, seed=place)
        branches[named.name] = LoadedTask(path=path, arrays=arrays)
    merged, batch = plan.merge({n: t.path for n, t in branches.items()}), tiny_batch(trunk, BATCHES["ragged"])
    ours, yardstick = make(trunk, branches), ReferenceBackend(trunk, branches)
    wanted = yardstick.run(merged, batch)
    for name, values in ours.run(merged, batch).items():
        seen = batch.words >= 0 if branches[name].path.pool.positions == "tokens" else slice(None)
        worst = float(np.abs(values - wanted[name])[seen].max())
        assert worst <= max(ours.tolerance, 1e-5), f"{name}: differs by {worst}"
    assert ours.layers_run == 1 + 2 + 1 + 1 + 2, ours.layers_run


def _assert_rows_alone(make: MakeBackend, trunk: TrunkData, tasks: Mapping[str, LoadedTask]) -> None:
    merged, backend = plan.merge({n: t.path for n, t in tasks.items()}), make(trunk, tasks)
    batch = tiny_batch(trunk, BATCHES["ragged"])
    whole = backend.run(merged, batch)
    for row, size in enumerate(BATCHES["ragged"]):
        alone = TokenBatch(
            ids=batch.ids[row : row + 1, :size],
            mask=batch.mask[row : row + 1, :size],
            segments=batch.segments[row : row + 1, :size],
            words=batch.words[row : row + 1],
        )
        kept = {name: stable_rows(trunk, tasks[name].path, alone).all() for name in tasks}
        for name, values in backend.run(merged, alone).items():
            worst = float(np.abs(values[0] - whole[name][row]).max()) if kept[name] else 0.0
            assert worst <= max(backend.tolerance, 1e-5), f"{name}, row {row}: differs by {worst}"


def _assert_empty(make: MakeBackend, trunk: TrunkData, tasks: Mapping[str, LoadedTask]) -> None:
    nothing = np.zeros((0, 1), np.int64)
    batch = TokenBatch(ids=nothing, mask=nothing.astype(bool), segments=nothing, words=nothing)
    for name, values in make(trunk, tasks).run(plan.merge({n: t.path for n, t in tasks.items()}), batch).items():
        assert len(values) == 0, name


def _assert_refuses(make: MakeBackend, trunk: TrunkData, tasks: Mapping[str, LoadedTask]) -> None:
    name, task = next(iter(tasks.items()))
    embed, layers, *rest = task.path.nodes
    assert isinstance(layers, Layers)
    strange = Path(nodes=(embed, msgspec.structs.replace(layers, weights="family:unknown"), *rest))
    try:
        make(trunk, tasks).run(plan.merge({name: strange}), tiny_batch(trunk, (3,)))
    except PolyheadError as error:
        assert "layers" in str(error).lower(), error
    else:
        raise AssertionError("layers of an unknown owner were run")


def _assert_refuses_depth(make: MakeBackend, trunk: TrunkData, tasks: Mapping[str, LoadedTask]) -> None:
    task = tiny_tasks()[0]
    path = tiny_path(task, trunk, pool=Pool(layers="mean", of=2, positions="mean"), stop=1)
    low = LoadedTask(path=path, arrays=tiny_part(path, trunk.architecture, f"task:{task.name}"))
    try:
        make(trunk, {task.name: low}).run(plan.merge({task.name: path}), tiny_batch(trunk, (3,)))
    except PolyheadError as error:
        assert "more layers" in str(error), error
    else:
        raise AssertionError("the embedding's output was averaged as a layer")


def _assert_stated(make: MakeBackend, trunk: TrunkData, tasks: Mapping[str, LoadedTask]) -> None:
    backend = make(trunk, tasks)
    assert backend.name and backend.precision, "a backend has a name and a precision"
    assert 0 <= backend.tolerance < 1, backend.tolerance
