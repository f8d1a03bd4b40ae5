"""Checks that every backend must pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial

import msgspec
import numpy as np

from polyhead import plan
from polyhead.codecs import EXACT
from polyhead.encoder.data import TrunkData
from polyhead.engine.backends.base import Backend, FeatureBatch, LoadedTask, TokenBatch
from polyhead.engine.backends.prefix import with_every_token
from polyhead.errors import PolyheadError
from polyhead.plan import PLACE_OF, Layers, Path, Pool, Positions, cost
from polyhead.plan.coding import through, tokens_of
from polyhead.testing.tiny import (
    CODECS,
    Check,
    tiny_batch,
    tiny_conditioned,
    tiny_loaded,
    tiny_part,
    tiny_path,
    tiny_siblings,
    tiny_tasks,
    tiny_trunk,
    tiny_widths,
)
from polyhead.testing.writing import writing_checks

HALF_STEP = 0.01  # of outputs, if a few features of size 1 change by a float16 step

# Tasks for the checks of a codec: whole texts and words with every pooler, and pairs read separately.
CODED = ("mood-", "names-", "alike-learned-attention")

MakeBackend = Callable[[TrunkData, Mapping[str, LoadedTask]], Backend]
BATCHES: Mapping[str, tuple[int, ...]] = {
    "ragged": (9, 4, 7, 3, 2, 11, 5, 8),
    "single row": (6,),
    "one token": (1, 1),
    "longest": (48, 48, 20),
}


def yield_backend_checks(subject: str, make: MakeBackend, *, family: str = "bert") -> Iterator[Check]:
    """Checks of one backend over the tiny trunk of a family; `make` opens it with a trunk and tasks loaded."""
    # Most checks of a case share a backend, opened by the first: its state must not matter to later checks.
    cases = {codec_name: _case(codec_name, family) for codec_name in CODECS}
    opened = cache(lambda codec_name: make(*cases[codec_name]))
    for codec_name, (trunk, tasks) in cases.items():
        for name, lengths in BATCHES.items():
            yield Check(
                subject=subject,
                name=f"equals the reference, {codec_name}, {name}",
                run=partial(_assert_agree, partial(opened, codec_name), (codec_name, family), trunk, tasks, lengths),
            )
        yield Check(
            subject=subject,
            name=f"answers from kept features as from texts, {codec_name}",
            run=partial(_assert_stored, partial(opened, codec_name), (codec_name, family), trunk, tasks),
        )
    trunk, tasks = cases[EXACT]

    def ours(*_: object) -> Backend:
        return opened(EXACT)

    for name, run, maker in (
        ("gives the same bits twice", partial(_assert_same_twice, ours), make),
        ("leaves its batch as it was", _assert_batch_unchanged, ours),
        ("runs each layer once for all tasks", _assert_layers_once, ours),
        ("runs no layer above the deepest tap", _assert_tapped_layers, make),
        ("runs branches from any tap, each layer once", _assert_branches, make),
        ("does not depend on padding or order", _assert_rows_alone, ours),
        ("answers an empty batch with no rows", _assert_empty, ours),
        ("refuses a step that it cannot run", _assert_refuses, make),
        ("refuses to average more layers than were run", _assert_refuses_depth, make),
        ("states name, precision and tolerance", _assert_stated, ours),
    ):
        yield Check(subject=subject, name=name, run=partial(run, maker, trunk, tasks))
    yield from _conditioned_checks(subject, make, family)
    yield from writing_checks(subject, make, trunk)


def _conditioned_checks(subject: str, make: MakeBackend, family: str) -> Iterator[Check]:
    """The same for prompts, functions inside the layers and layers on top; and the layers that these run."""
    trunk, tasks = _case("prompts and adapters", family)
    opened = cache(lambda: make(trunk, tasks))

    def ours(*_: object) -> Backend:
        return opened()

    for name, lengths in BATCHES.items():
        yield Check(
            subject=subject,
            name=f"equals the reference, prompts and adapters, {name}",
            run=partial(_assert_agree, ours, ("prompts and adapters", family), trunk, tasks, lengths),
        )
    for which in ("tasks alike but for their arrays", "tasks of few and many labels"):

        def agree(which: str = which) -> None:
            trunk, loaded = _case(which, family)
            backend = make(trunk, loaded)
            _assert_agree(lambda: backend, (which, family), trunk, loaded, BATCHES["ragged"])
            merged = plan.merge({n: task.path for n, task in loaded.items()})
            assert backend.layers_run == cost.layer_evaluations(merged)

        yield Check(subject=subject, name=f"equals the reference, {which}", run=agree)
    for name, run, maker in (
        ("gives the same bits twice", partial(_assert_same_twice, ours), make),
        ("does not depend on padding or order", _assert_rows_alone, ours),
        ("answers an empty batch with no rows", _assert_empty, ours),
        ("runs the layers that are counted", _assert_conditioned_layers, ours),
    ):
        yield Check(subject=subject, name=f"{name}, prompts and adapters", run=partial(run, maker, trunk, tasks))


def _case(which: str, family: str) -> tuple[TrunkData, dict[str, LoadedTask]]:
    """A trunk and tasks over it, with new arrays at each call; those of a family are equal."""
    trunk, tasks = _drawn(which, family)
    copies: dict[int, np.ndarray] = {}

    def copied(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: copies.setdefault(id(array), array.copy()) for name, array in arrays.items()}

    copied_tasks = {
        name: LoadedTask(
            path=task.path,
            arrays=copied(task.arrays),
            others={owner: copied(arrays) for owner, arrays in task.others.items()},
        )
        for name, task in tasks.items()
    }
    return msgspec.structs.replace(trunk, arrays=copied(trunk.arrays)), copied_tasks


@cache
def _drawn(which: str, family: str) -> tuple[TrunkData, dict[str, LoadedTask]]:
    if which in CODECS:
        trunk = tiny_trunk(family=family)
        tasks = tiny_loaded(trunk, codec=CODECS[which])
        if which != EXACT:  # a codec only affects the pool; the exact codec covers all kinds above it
            tasks = {name: task for name, task in tasks.items() if name.startswith(CODED)}
        return trunk, tasks
    trunk = tiny_trunk(max_tokens=56, family=family)  # room for prompts before the longest text
    if which == "prompts and adapters":
        return trunk, tiny_conditioned(trunk)
    return trunk, tiny_siblings(trunk) if which == "tasks alike but for their arrays" else tiny_widths(trunk)


class _Expected(msgspec.Struct, frozen=True, eq=False):
    """The reference's outputs for a batch, and the rows that rounding cannot change."""

    outputs: Mapping[str, np.ndarray]
    stable: Mapping[Path, np.ndarray]


@cache  # shared by all checked backends
def _expected(case: tuple[str, str], lengths: tuple[int, ...]) -> _Expected:
    from polyhead.engine.backends.reference import ReferenceBackend

    trunk, tasks = _case(*case)
    yardstick, batch = ReferenceBackend(trunk, tasks), tiny_batch(trunk, lengths)
    results = yardstick.run(plan.merge({name: task.path for name, task in tasks.items()}), batch)
    outputs = {name: _outputs(yardstick, name, results[name], task) for name, task in tasks.items()}
    from polyhead.deep.checks import stable_states, states_of

    states = states_of(trunk, batch)
    stable = {path: stable_states(states, path, batch) for path in {t.path.stored() for t in tasks.values()}}
    return _Expected(outputs=outputs, stable=stable)


def _assert_agree(
    opened: Callable[[], Backend],
    case: tuple[str, str],
    trunk: TrunkData,
    tasks: Mapping[str, LoadedTask],
    lengths: tuple[int, ...],
) -> None:
    ours = opened()
    expected, batch = _expected(case, lengths), tiny_batch(trunk, lengths)
    results = ours.run(plan.merge({name: task.path for name, task in tasks.items()}), batch)
    assert set(results) == set(expected.outputs) == set(tasks)
    for name, task in tasks.items():
        rows = expected.stable[task.path.stored()]
        a, b = _outputs(ours, name, results[name], task), expected.outputs[name]
        assert a.shape == b.shape, f"{name}: {a.shape} for {b.shape}"
        if task.path.head.separate:  # row i is compared with the row before it
            rows = rows & np.roll(rows, 1)
        if task.path.pool.positions == "tokens":  # the output of a word without a token is not tested
            a, b = a * (batch.words >= 0)[..., None], b * (batch.words >= 0)[..., None]
        worst = float(np.abs(a[rows] - b[rows]).max(initial=0.0))
        assert worst <= ours.tolerance, f"{name}: differs by {worst}, stated {ours.tolerance}"
        if task.path.pool.codec.format.is_fine:  # a feature on a boundary changes by one part in 1024
            worst = float(np.abs(a - b).max(initial=0.0))
            assert worst <= ours.tolerance + HALF_STEP, f"{name}: differs by {worst} beside a border"
        else:
            assert rows.mean() >= 0.25 or len(rows) < 4, f"{name}: only {rows.sum()} of {len(rows)} rows compared"


def _assert_stored(
    opened: Callable[[], Backend], case: tuple[str, str], trunk: TrunkData, tasks: Mapping[str, LoadedTask]
) -> None:
    """Checks that features equal the reference's, and that heads over them answer as the reference does over texts."""
    from polyhead.engine.backends.reference import ReferenceBackend

    ours = opened()
    lengths = BATCHES["ragged"]
    expected, batch, yardstick = _expected(case, lengths), tiny_batch(trunk, lengths), ReferenceBackend(trunk, tasks)
    paths = {name: with_every_token(task.path.stored()) for name, task in tasks.items()}
    distinct = list(dict.fromkeys(paths.values()))
    before = ours.layers_run
    values = dict(zip(distinct, ours.features(distinct, batch), strict=True))
    assert ours.layers_run - before == max(path.depth for path in distinct), "layers ran more than once"
    for path, theirs in zip(distinct, yardstick.features(distinct, batch), strict=True):
        assert values[path].shape == theirs.shape, f"{path.pool}: {values[path].shape} for {theirs.shape}"
        worst = float(np.abs(values[path] - theirs).max())
        assert worst <= max(ours.tolerance, 1e-5), f"features of {path.pool} differ by {worst}"
        values[path] = theirs  # so that rounding never decides a code
    for name, task in tasks.items():
        kept = kept_features(values[paths[name]], task.path.stored().pool, batch)
        outputs = _outputs(ours, name, ours.heads([name], kept)[name], task)
        seen = batch.words >= 0 if task.path.pool.positions == "tokens" else slice(None)
        worst = float(np.abs(outputs - expected.outputs[name])[seen].max())
        assert worst <= max(ours.tolerance, 1e-5), f"{name}: heads differ by {worst}, stated {ours.tolerance}"


def kept_features(values: np.ndarray, pool: Pool, batch: TokenBatch) -> FeatureBatch:
    """Values (positions of all texts, layers, width) as a reader of a store gets them for a stored pool."""
    if pool.positions in (*PLACE_OF, "mean"):
        tokens = tokens_of(pool, ids=batch.ids, mask=batch.mask, words=batch.words)
        coded = through(values, pool.codec, tokens)
        return FeatureBatch(values=coded[:, None], mask=np.ones((len(coded), 1), bool))
    coded = through(values, pool.codec, batch.ids[batch.mask][:, None])
    padded = np.zeros((*batch.mask.shape, *values.shape[1:]), np.float32)
    padded[batch.mask] = coded
    if pool.positions == "all":
        return FeatureBatch(values=padded, mask=batch.mask)
    words = np.take_along_axis(padded, np.maximum(batch.words, 0)[:, :, None, None], axis=1)
    return FeatureBatch(values=words, mask=batch.words >= 0)


def _outputs(backend: Backend, name: str, outputs: np.ndarray, task: LoadedTask) -> np.ndarray:
    return backend.compared(name, outputs, np.roll(outputs, 1, axis=0)) if task.path.head.separate else outputs


def _assert_same_twice(
    opened: Callable[[], Backend], make: MakeBackend, trunk: TrunkData, tasks: Mapping[str, LoadedTask]
) -> None:
    """Checks equality between runs of one backend, whatever it ran before, and of another, fresh one."""
    backend = opened()
    merged, batch = plan.merge({n: t.path for n, t in tasks.items()}), tiny_batch(trunk, BATCHES["ragged"])
    first, second = backend.run(merged, batch), backend.run(merged, batch)
    third = make(trunk, tasks).run(merged, batch)
    for name in tasks:
        assert first[name].tobytes() == second[name].tobytes() == third[name].tobytes(), name


def _assert_batch_unchanged(make: MakeBackend, trunk: TrunkData, tasks: Mapping[str, LoadedTask]) -> None:
    batch, again = tiny_batch(trunk, BATCHES["ragged"]), tiny_batch(trunk, BATCHES["ragged"])
    make(trunk, tasks).run(plan.merge({n: t.path for n, t in tasks.items()}), batch)
    for field in ("ids", "mask", "segments", "words"):
        assert np.array_equal(getattr(batch, field), getattr(again, field)), field


def _assert_layers_once(make: MakeBackend, trunk: TrunkData, tasks: Mapping[str, LoadedTask]) -> None:
    backend = make(trunk, tasks)
    before = backend.layers_run
    backend.run(plan.merge({n: t.path for n, t in tasks.items()}), tiny_batch(trunk, (5, 3)))
    assert len(tasks) > 10
    assert backend.layers_run - before == trunk.architecture.layers, backend.layers_run - before


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
    """Taps 0 and 1, one with two layers; answers equal the reference's, and the layers run are D + sum l."""
    from polyhead.engine.backends.reference import ReferenceBackend

    branches = {}
    chosen: tuple[tuple[int, Positions], ...] = ((0, "second"), (1, "first"), (1, "mean"), (0, "tokens"))
    for place, (tap, positions) in enumerate(chosen):
        task = next(t for t in tiny_tasks() if (t.kind == "tagging") == (positions == "tokens"))
        named = msgspec.structs.replace(task, name=f"b{place}")
        whole = tiny_path(named, trunk, pool=Pool(positions=positions))
        embed, _, *ends = whole.nodes
        shared = (Layers(start=0, stop=tap),) if tap else ()
        branch = Layers(start=tap, stop=trunk.architecture.layers, weights=whole.head.part)
        path = Path(nodes=(embed, *shared, branch, *ends))
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
    """For tasks with exact features: no rounding decides a code."""
    merged, backend = plan.merge({n: t.path for n, t in tasks.items()}), make(trunk, tasks)
    batch = tiny_batch(trunk, BATCHES["ragged"])
    whole = backend.run(merged, batch)
    for row, size in enumerate(BATCHES["ragged"]):
        single = TokenBatch(
            ids=batch.ids[row : row + 1, :size],
            mask=batch.mask[row : row + 1, :size],
            segments=batch.segments[row : row + 1, :size],
            words=batch.words[row : row + 1],
        )
        for name, values in backend.run(merged, single).items():
            worst = float(np.abs(values[0] - whole[name][row]).max())
            assert worst <= max(backend.tolerance, 1e-5), f"{name}, row {row}: differs by {worst}"


def _assert_empty(make: MakeBackend, trunk: TrunkData, tasks: Mapping[str, LoadedTask]) -> None:
    nothing = np.zeros((0, 1), np.int64)
    batch = TokenBatch(ids=nothing, mask=nothing.astype(bool), segments=nothing, words=nothing)
    for name, values in make(trunk, tasks).run(plan.merge({n: t.path for n, t in tasks.items()}), batch).items():
        assert len(values) == 0, name


def _assert_refuses(make: MakeBackend, trunk: TrunkData, tasks: Mapping[str, LoadedTask]) -> None:
    name, task = next(iter(tasks.items()))
    embed, layers, *following = task.path.nodes
    assert isinstance(layers, Layers)
    strange = Path(nodes=(embed, msgspec.structs.replace(layers, weights="family:unknown"), *following))
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
