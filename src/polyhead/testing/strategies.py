"""Checks that every strategy must pass, for every tiny task."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from polyhead import plan
from polyhead.bundle import write
from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.bundle.remove import remove_tasks
from polyhead.bundle.write import FamilyDraft
from polyhead.codecs import EXACT
from polyhead.encoder.data import TrunkData
from polyhead.engine.backends import TRAINING_BACKEND
from polyhead.engine.inputs import AnyInput, Passage, input_type_of, input_types_of
from polyhead.engine.session import Session
from polyhead.errors import ConfigError
from polyhead.plan import TRUNK, Embed, Head, Layers, Path, Pool, cost, owners_of
from polyhead.project.strategies import Pooled, Strategy, prompt_groups
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.testing.tiny import Check, tiny_batch, tiny_owned, tiny_part, tiny_tasks, tiny_trunk
from polyhead.text.question import Question
from polyhead.values import Value

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


class _Subject(Value):
    """A strategy over the tiny trunk of a family."""

    strategy: Strategy
    family: str


def yield_strategy_checks(subject: str, strategy: Strategy, *, family: str = "bert") -> Iterator[Check]:
    """Checks of one strategy; `strategy` is one setting of it, `family` that of the tiny trunk.

    Tasks of one prompt group come and go together: then the tasks outside must keep their bits.
    """
    over = _Subject(strategy=strategy, family=family)
    for task in _fitting(over):
        for name, check in (
            ("lowers to the four nodes and ends in a head", _assert_four_nodes),
            ("counts the arrays that it really has", _assert_counted),
            ("sends gradients to its own parameters and families and to no other", _assert_gradients),
        ):
            yield Check(subject=subject, name=f"{name}, {task.name}", run=partial(check, over, task))
    together = strategy.prompt_group is not None
    for name, whole in (
        ("answers from the bundle as before it was written", _assert_saved),
        ("merged gives what each path gives alone", _assert_merged),
        (
            "leaves other tasks' bits alone when a task comes or goes",
            _assert_group_isolated if together else _assert_isolated,
        ),
        ("answers a row the same among any others", _assert_independent),
    ):
        yield Check(subject=subject, name=name, run=partial(whole, over))


def _fitting(subject: _Subject) -> list[Task]:
    paths = _lowered(subject)[1]
    return [task for task in tiny_tasks() if task.name in paths]


def tiny_paths(strategy: Strategy, trunk: TrunkData) -> dict[str, Path]:
    """The strategy's path for every tiny task that it does not refuse."""
    digest, fitting = trunk.digest, []

    def path(task: Task, group: tuple[str, ...]) -> Path:
        return strategy.path(task, trunk=digest, shape=trunk.architecture, group=group)

    for task in tiny_tasks():
        with suppress(ConfigError):
            path(task, ())
            fitting.append(task)
    groups = prompt_groups([(task, strategy) for task in fitting])
    return {task.name: path(task, groups[task.name]) for task in fitting}


@lru_cache(maxsize=4)
def _lowered(subject: _Subject) -> tuple[TrunkData, dict[str, Path]]:
    """The tiny trunk and the strategy's paths over it; shared by checks, read-only."""
    trunk = tiny_trunk(family=subject.family)
    return trunk, tiny_paths(subject.strategy, trunk)


def tiny_bundle(root: FilePath, trunk: TrunkData, paths: Mapping[str, Path]) -> Bundle:
    """A bundle of the tiny tasks on these paths, with parts drawn from a separate seed per task."""
    write_bundle(root, trunk)
    _add(root, trunk, paths, {task.name: seed for seed, task in enumerate(tiny_tasks())})
    return Bundle.open(root)


def add_tiny(root: FilePath, trunk: TrunkData, task: Task, path: Path, *, seed: int, replace: bool = False) -> None:
    """Adds a task with drawn arrays to the bundle, which already has the families that it reads."""
    write.add_tasks(root, [_draft(trunk, task, path, seed)], replace=replace)


def _add(
    root: FilePath, trunk: TrunkData, paths: Mapping[str, Path], seeds: Mapping[str, int], *, replace: bool = False
) -> None:
    """Adds tiny tasks with their families in one step; each family's arrays are drawn from its name."""
    tasks = {task.name: task for task in tiny_tasks()}
    drafts = [_draft(trunk, tasks[name], path, seeds[name]) for name, path in paths.items()]
    families: dict[str, dict[str, np.ndarray]] = {}
    for loaded in tiny_owned(paths, trunk.architecture).values():
        for owner, arrays in loaded.others.items():
            if owner.startswith("family:"):
                families.setdefault(owner, {}).update(arrays)
    family_drafts = [FamilyDraft(family=owner, arrays=arrays) for owner, arrays in families.items()]
    write.add_tasks(root, drafts, families=family_drafts, replace=replace)


def _draft(trunk: TrunkData, task: Task, path: Path, seed: int) -> write.Draft:
    arrays = tiny_part(path, trunk.architecture, path.head.part, seed=seed)
    record = TaskRecord(task=task, path=path, trunk=trunk.digest)
    return write.Draft(record=record, arrays=arrays, scores={}, probes=[], card="")


def outputs_by_task(session: Session, texts: tuple[AnyInput, ...] = TEXTS) -> dict[str, list[np.ndarray]]:
    """Every task's outputs for the texts that fit it."""
    outputs = {}
    for name, record in session.records.items():
        outputs[name] = session.outputs(name, inputs_for(record.task, texts))
    return outputs


def _outputs_of(root: FilePath) -> dict[str, list[np.ndarray]]:
    """Every task's outputs in deterministic mode, with the tasks now in the bundle."""
    return outputs_by_task(Session(root, backend=TRAINING_BACKEND, deterministic=True))


def inputs_for(task: Task, texts: tuple[AnyInput, ...] = TEXTS) -> list[AnyInput]:
    """The texts that the task reads."""
    return [text for text in texts if input_type_of(text) in input_types_of(task)]


@lru_cache(maxsize=4)
def _trunk_module(subject: _Subject) -> Any:
    """The tiny trunk in torch, frozen."""
    from polyhead.deep.nn.trunk import Trunk

    return Trunk.from_data(_lowered(subject)[0]).requires_grad_(False)


def _model(subject: _Subject, task: Task) -> Any:
    """A model of the task alone, with drawn arrays."""
    from polyhead.deep.checks import load_arrays
    from polyhead.deep.model import MultiTaskModel
    from polyhead.deep.sharing.make import make_families, make_part

    trunk, paths = _lowered(subject)
    path = paths[task.name]
    families = make_families({task.name: path}, trunk.architecture)
    part = make_part(path, trunk.architecture, families=families)
    loaded = tiny_owned({task.name: path}, trunk.architecture)[task.name]
    for module, arrays in ((part, loaded.arrays), *((families[o], a) for o, a in loaded.others.items())):
        load_arrays(module, arrays)
    return MultiTaskModel(_trunk_module(subject), {task.name: part}, families)


def _assert_four_nodes(subject: _Subject, task: Task) -> None:
    paths = _lowered(subject)[1]
    path, task_owner = paths[task.name], f"task:{task.name}"
    assert all(isinstance(node, (Embed, Layers, Pool, Head)) for node in path.nodes)
    assert path.head.width == kind_of(task).width(task)
    owners = set(owners_of(path))
    assert {TRUNK, task_owner} <= owners
    group = {prompt.part for prompt in path.embed.prompts}
    assert all(owner.startswith("family:") or owner in group for owner in owners - {TRUNK, task_owner}), owners
    assert group <= {f"task:{name}" for name in paths} | {o for o in owners if o.startswith("family:")}
    assert [node.start for node in path.layers][:1] == [0]
    assert all(node.stop <= 2 for node in path.layers if node.weights == TRUNK)


def _assert_counted(subject: _Subject, task: Task) -> None:
    trunk, paths = _lowered(subject)
    path = paths[task.name]
    model, shape = _model(subject, task), trunk.architecture
    modules = {path.head.part: model.parts[task.name], **model.families}
    for owner, module in modules.items():
        real = {name: tuple(value.shape) for name, value in module.state_dict().items()}
        assert real == cost.part_arrays(path, shape, owner), owner
    counted = cost.added(plan.merge({task.name: path}), task.name, shape, tokens=8).parameters
    assert counted == sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in model.trunk.parameters())


def _assert_gradients(subject: _Subject, task: Task) -> None:
    from polyhead.deep.checks import backward_from

    trunk, paths = _lowered(subject)
    path = paths[task.name]
    batch, model = tiny_batch(trunk, (5, 7, 3)), _model(subject, task)
    loss = kind_of(task).loss
    backward_from(model, {task.name: path}, batch, loss)
    named = {name: p for name, p in model.named_parameters() if not name.startswith("trunk.")}
    reached = {name for name, p in named.items() if p.grad is not None and bool(p.grad.abs().sum() > 0)}
    # A bias that cancels in a softmax, of a key or over options or places, has only rounding as gradient.
    cancels = ("key.bias", "head.output.bias") if loss in ("ranking", "span_cross_entropy") else ("key.bias",)
    free = {name for name in named if name.endswith(cancels)}
    assert reached - free == set(named) - free, set(named) - free - reached
    assert all(p.grad is None for p in model.trunk.parameters())


@lru_cache(maxsize=1)  # its checks run one after another
def _bundle(subject: _Subject) -> Bundle:
    """A bundle of the tiny tasks; shared by checks, read-only."""
    folder = tempfile.mkdtemp()
    bundle = tiny_bundle(FilePath(folder) / "b", *_lowered(subject))
    weakref.finalize(bundle, shutil.rmtree, folder, ignore_errors=True)
    return bundle


def _assert_saved(subject: _Subject) -> None:
    (trunk, paths), bundle = _lowered(subject), _bundle(subject)
    assert bundle.trunk().digest == trunk.digest
    assert set(bundle.tasks) == set(paths)
    for seed, task in enumerate(tiny_tasks()):
        if task.name not in paths:
            continue
        written = tiny_part(paths[task.name], trunk.architecture, f"task:{task.name}", seed=seed)
        read = bundle.part(task.name)
        assert set(read) == set(written) and all(read[n].tobytes() == written[n].tobytes() for n in read)
        assert bundle.tasks[task.name].path == paths[task.name]


def _assert_merged(subject: _Subject) -> None:
    session = Session(_bundle(subject), backend=TRAINING_BACKEND, deterministic=True)
    together = session.predict(list(TEXTS))
    for name in session.records:
        separate = session.predict(list(TEXTS), tasks=[name])
        for result, result_of_all in zip(separate, together, strict=True):
            assert result.answers.get(name) == result_of_all.answers.get(name), name


def _assert_isolated(subject: _Subject) -> None:
    trunk, paths = _lowered(subject)
    tasks = _fitting(subject)
    with tempfile.TemporaryDirectory() as folder:
        root = FilePath(folder) / "b"
        names = list(paths)
        tiny_bundle(root, trunk, {name: paths[name] for name in names[:-1]})
        before = _outputs_of(root)
        last, first = tasks[-1], tasks[0]
        add_tiny(root, trunk, last, paths[last.name], seed=9)
        _assert_same(before, _outputs_of(root), names[:-1])
        add_tiny(root, trunk, first, paths[first.name], seed=10, replace=True)
        _assert_same(before, _outputs_of(root), names[1:-1])
        Bundle.open(root).remove_task(first.name)
        _assert_same(before, _outputs_of(root), names[1:-1])
        assert Bundle.open(root).trunk().digest == trunk.digest


def _assert_group_isolated(subject: _Subject) -> None:
    trunk, paths = _lowered(subject)
    outside = tiny_paths(Pooled(codec=EXACT), trunk)
    with tempfile.TemporaryDirectory() as folder:
        root = FilePath(folder) / "b"
        names = list(paths)[: len(paths) // 2]
        group = _group(subject.strategy, trunk, names)
        others = {name: path for name, path in outside.items() if name not in group}
        tiny_bundle(root, trunk, others)
        before = _outputs_of(root)
        for seed, replace in ((20, False), (30, True)):
            _add(root, trunk, group, {name: seed + i for i, name in enumerate(group)}, replace=replace)
            _assert_same(before, _outputs_of(root), list(others))
        remove_tasks(root, list(group))
        _assert_same(before, _outputs_of(root), list(others))
        assert Bundle.open(root).trunk().digest == trunk.digest


def _group(strategy: Strategy, trunk: TrunkData, names: Sequence[str]) -> dict[str, Path]:
    """The paths of a prompt group of these tasks."""
    tasks = {task.name: task for task in tiny_tasks()}
    owners = [f"task:{name}" for name in names]
    digest, shape = trunk.digest, trunk.architecture
    return {name: strategy.path(tasks[name], trunk=digest, shape=shape, group=owners) for name in names}


def _assert_independent(subject: _Subject) -> None:
    session = Session(_bundle(subject), backend=TRAINING_BACKEND, precision="float32")
    whole = outputs_by_task(session)
    turned = {name: rows[::-1] for name, rows in outputs_by_task(session, TEXTS[::-1]).items()}
    for name, rows in whole.items():
        for row, turned_row in zip(rows, turned[name], strict=True):
            np.testing.assert_allclose(row, turned_row, rtol=0, atol=session.backend.tolerance, err_msg=name)


def _assert_same(
    before: Mapping[str, list[np.ndarray]], after: Mapping[str, list[np.ndarray]], names: list[str]
) -> None:
    assert names
    for name in names:
        assert [o.tobytes() for o in before[name]] == [o.tobytes() for o in after[name]], name
