"""What every strategy must do, for every tiny task."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from polyhead import cost, plan
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.bundle.write import write_bundle
from polyhead.engine.inputs import AnyInput, Passage, form_of, forms_of
from polyhead.engine.session import Session
from polyhead.plan import TRUNK, Codec, Embed, Head, Layers, Path, Pool, owners_of
from polyhead.project import Branch, Strategy
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.kinds.base import LossName
from polyhead.tasks.task import Task
from polyhead.testing.check import Check
from polyhead.testing.tiny import tiny_batch, tiny_part, tiny_tasks, tiny_trunk
from polyhead.text.question import Question
from polyhead.trunk_data import TrunkData

TEXTS: tuple[AnyInput, ...] = (
    ("where is my order 12?",),
    ("the lamp was late and broken, please refund my card today!",),
    ("thank you",),
    ("is the kettle good?", "the kettle is bad"),
    ("sad", "my phone bill is not good, ben and anna"),
    Passage(question="who is happy?", context="anna was sad today. ben is happy and not late."),
    Question(text="is the lamp good?", options=("not good", "good", "the kettle is late")),
    Question(text="when was it late?", options=("today", "monday"), context="the order was late on monday."),
)


def yield_strategy_checks(subject: str, strategy: Strategy) -> Iterator[Check]:
    """What every strategy must do; `strategy` is one choice of its settings."""
    for task in tiny_tasks():
        for name, check in (
            ("lowers to the four nodes and ends in a head", _assert_four_nodes),
            ("counts the arrays that it really has", _assert_counted),
            ("sends gradients to its own parameters and to no other", _assert_gradients),
        ):
            yield Check(subject=subject, name=f"{name}, {task.name}", run=partial(check, strategy, task))
    for name, whole in (
        ("answers from the bundle as before it was written", _assert_saved),
        ("merged gives what each path gives alone", _assert_merged),
        ("leaves other tasks' bits alone when a task comes or goes", _assert_isolated),
        ("answers a row the same among any others", _assert_independent),
    ):
        yield Check(subject=subject, name=name, run=partial(whole, strategy))


def tiny_paths(strategy: Strategy, trunk: TrunkData) -> dict[str, Path]:
    """The strategy's path for every tiny task."""
    return {task.name: _path(task, strategy, trunk) for task in tiny_tasks()}


def _path(task: Task, strategy: Strategy, trunk: TrunkData) -> Path:
    from polyhead.sharing.branch import branch_path
    from polyhead.sharing.pooled import pooled_path

    shape = trunk.architecture
    if isinstance(strategy, Branch):
        layers = strategy.layers or 1
        tap = shape.layers - layers if strategy.tap is None else strategy.tap
        return branch_path(task, strategy, trunk=trunk.digest, shape=shape, tap=tap, layers=layers)
    return pooled_path(task, strategy, trunk=trunk.digest, shape=shape, codec=Codec(name="float32"))


def tiny_bundle(root: FilePath, trunk: TrunkData, paths: Mapping[str, Path]) -> Bundle:
    """A bundle of the tiny tasks on these paths, their parts filled by a seed of each task's own."""
    write_bundle(root, trunk)
    for seed, task in enumerate(tiny_tasks()):
        if task.name in paths:
            add_tiny(root, trunk, task, paths[task.name], seed=seed)
    return Bundle.open(root)


def add_tiny(
    root: FilePath, trunk: TrunkData, task: Task, path: Path, *, seed: int, replace: bool = False
) -> None:
    """Adds a task with drawn arrays to the bundle."""
    record = TaskRecord(task=task, path=path, trunk=trunk.digest)
    arrays = tiny_part(path, trunk.architecture, f"task:{task.name}", seed=seed)
    Bundle.open(root).add_task(record, arrays, scores={}, probes=[], card="", replace=replace)


def outputs_by_task(session: Session, texts: tuple[AnyInput, ...] = TEXTS) -> dict[str, list[np.ndarray]]:
    """Every task's outputs for those of the texts that fit it."""
    found = {}
    for name, record in session.records.items():
        found[name] = session.outputs(name, inputs_for(record.task, texts))
    return found


def inputs_for(task: Task, texts: tuple[AnyInput, ...] = TEXTS) -> list[AnyInput]:
    """Those of the texts that the task reads."""
    return [text for text in texts if form_of(text) in forms_of(task)]


def _part(path: Path, trunk: TrunkData, *, seed: int = 1) -> Any:
    """The path's part with drawn arrays."""
    import torch

    from polyhead.sharing.branch import make_part

    part = make_part(path, trunk.architecture)
    drawn = tiny_part(path, trunk.architecture, path.head.part, seed=seed)
    part.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in drawn.items()})
    return part


def _assert_four_nodes(strategy: Strategy, task: Task) -> None:
    path = tiny_paths(strategy, tiny_trunk())[task.name]
    assert all(isinstance(node, (Embed, Layers, Pool, Head)) for node in path.nodes)
    assert path.head.width == kind_of(task).width(task)
    assert set(owners_of(path)) == {TRUNK, f"task:{task.name}"}
    assert [node.start for node in path.layers][:1] == [0] and path.layers[-1].stop <= 2


def _assert_counted(strategy: Strategy, task: Task) -> None:
    trunk = tiny_trunk()
    path, owner = tiny_paths(strategy, trunk)[task.name], f"task:{task.name}"
    real = {name: tuple(v.shape) for name, v in _part(path, trunk).state_dict().items()}
    assert real == cost.part_arrays(path, trunk.architecture, owner)
    counted = cost.added(plan.merge({task.name: path}), task.name, trunk.architecture, tokens=8).parameters
    assert counted == sum(int(np.prod(shape)) for shape in real.values())


def _assert_gradients(strategy: Strategy, task: Task) -> None:
    import torch

    from polyhead.model import Model, TextBatch
    from polyhead.nn.trunk import Trunk
    from polyhead.train.loss import LOSSES

    trunk = tiny_trunk()
    path = tiny_paths(strategy, trunk)[task.name]
    part, batch = _part(path, trunk), tiny_batch(trunk, (5, 7, 3))
    model = Model(Trunk.from_data(trunk), {task.name: part})
    model.trunk.requires_grad_(False)
    fields = {name: torch.from_numpy(getattr(batch, name)) for name in ("ids", "mask", "segments", "words")}
    stored = model.stored(plan.merge({task.name: path}), TextBatch(**fields))[task.name]
    second = [(stored.values.flip(0), stored.mask)] if path.head.separate else []
    outputs = part(stored.values, stored.mask, *second)
    loss = kind_of(task).loss
    LOSSES[loss](outputs, _target(loss, outputs), None).backward()  # type: ignore[no-untyped-call]
    reached = {
        name for name, p in part.named_parameters() if p.grad is not None and bool(p.grad.abs().sum() > 0)
    }
    # A bias that cancels in a softmax, of a key or over options or places, has no gradient but rounding.
    cancels = ("key.bias", "head.output.bias") if loss in ("ranking", "span") else ("key.bias",)
    free = {name for name in reached | set(dict(part.named_parameters())) if name.endswith(cancels)}
    assert reached - free == {name for name, _ in part.named_parameters()} - free, reached
    assert all(p.grad is None for p in model.trunk.parameters())


def _target(loss: LossName, outputs: Any) -> Any:
    """Some target for each loss: the first label, the first option of one question, the first place."""
    import torch

    if loss == "binary_cross_entropy":
        return torch.zeros(outputs.shape)
    if loss == "squared_error":
        return torch.zeros(len(outputs))
    if loss == "ranking":
        return torch.tensor([(0, int(option == 0)) for option in range(len(outputs))])
    if loss == "span":
        return (torch.arange(outputs.shape[1]) == 0).long()[None, :, None].expand(outputs.shape)
    return torch.zeros(outputs.shape[:-1], dtype=torch.int64)


def _assert_saved(strategy: Strategy) -> None:
    trunk = tiny_trunk()
    paths = tiny_paths(strategy, trunk)
    with tempfile.TemporaryDirectory() as folder:
        bundle = tiny_bundle(FilePath(folder) / "b", trunk, paths)
        assert bundle.trunk().digest == trunk.digest
        for seed, task in enumerate(tiny_tasks()):
            written = tiny_part(paths[task.name], trunk.architecture, f"task:{task.name}", seed=seed)
            read = bundle.part(task.name)
            assert set(read) == set(written) and all(read[n].tobytes() == written[n].tobytes() for n in read)
            assert bundle.tasks[task.name].path == paths[task.name]


def _assert_merged(strategy: Strategy) -> None:
    trunk = tiny_trunk()
    with tempfile.TemporaryDirectory() as folder:
        session = Session(
            tiny_bundle(FilePath(folder) / "b", trunk, tiny_paths(strategy, trunk)), deterministic=True
        )
        together = session.predict(list(TEXTS))
        for name in session.records:
            alone = session.predict(list(TEXTS), tasks=[name])
            for one, all_of_them in zip(alone, together, strict=True):
                assert one.answers.get(name) == all_of_them.answers.get(name), name


def _assert_isolated(strategy: Strategy) -> None:
    trunk = tiny_trunk()
    paths = tiny_paths(strategy, trunk)
    with tempfile.TemporaryDirectory() as folder:
        root = FilePath(folder) / "b"
        names = list(paths)
        tiny_bundle(root, trunk, {name: paths[name] for name in names[:-1]})
        before = outputs_by_task(Session(root, deterministic=True))
        last, first = tiny_tasks()[-1], tiny_tasks()[0]
        add_tiny(root, trunk, last, paths[last.name], seed=9)
        _assert_same(before, outputs_by_task(Session(root, deterministic=True)), names[:-1])
        add_tiny(root, trunk, first, paths[first.name], seed=10, replace=True)
        _assert_same(before, outputs_by_task(Session(root, deterministic=True)), names[1:-1])
        Bundle.open(root).remove_task(first.name)
        _assert_same(before, outputs_by_task(Session(root, deterministic=True)), names[1:-1])
        assert Bundle.open(root).trunk().digest == trunk.digest


def _assert_independent(strategy: Strategy) -> None:
    trunk = tiny_trunk()
    with tempfile.TemporaryDirectory() as folder:
        session = Session(tiny_bundle(FilePath(folder) / "b", trunk, tiny_paths(strategy, trunk)))
        whole = outputs_by_task(session)
        turned = {name: rows[::-1] for name, rows in outputs_by_task(session, TEXTS[::-1]).items()}
        for name, rows in whole.items():
            for one, other in zip(rows, turned[name], strict=True):
                np.testing.assert_allclose(one, other, rtol=0, atol=session.backend.tolerance, err_msg=name)


def _assert_same(
    before: Mapping[str, list[np.ndarray]], after: Mapping[str, list[np.ndarray]], names: list[str]
) -> None:
    assert names
    for name in names:
        assert [o.tobytes() for o in before[name]] == [o.tobytes() for o in after[name]], name
