"""Poolers and heads of one form as one product: what each task gives alone, in few kernels, by one copy to the host.

That codecs round alike is held by tests/conformance/test_backends.py.
"""

import logging

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks import kernels
from polyhead import plan
from polyhead.deep import backend as backends
from polyhead.deep.backend import TorchBackend
from polyhead.deep.stacked.heads import StackedEnds, is_stacked
from polyhead.deep.stacked.maps import StackMember
from polyhead.engine.backends.base import FeatureBatch
from polyhead.engine.backends.prefix import stored_layers
from polyhead.plan import PLACE_OF, Pool
from polyhead.testing.tiny import (
    CODECS,
    tiny_batch,
    tiny_conditioned,
    tiny_loaded,
    tiny_owned,
    tiny_path,
    tiny_tasks,
    tiny_trunk,
    tiny_widths,
)

TRUNK = tiny_trunk()
BATCH = tiny_batch(TRUNK, (9, 4, 7, 3, 2, 11))
EXACT = {"forms": tiny_loaded(TRUNK), "widths": tiny_widths(TRUNK), "prompts and adapters": tiny_conditioned(TRUNK)}


def merged(tasks):
    return plan.merge({name: task.path for name, task in tasks.items()})


def alone(tasks):
    """Each task's outputs by its own pooler and head."""
    return TorchBackend(TRUNK, tasks, deterministic=True).run(merged(tasks), BATCH)


@pytest.fixture
def stacks(monkeypatch):
    """The names of the tasks of every stack that was computed."""
    seen, over = [], StackedEnds.over

    def watched(self, states, positions):
        answers = over(self, states, positions)
        seen.extend(name for each in answers for name in each.tasks)
        return answers

    monkeypatch.setattr(StackedEnds, "over", watched)
    return seen


@pytest.mark.parametrize("case", EXACT)
def test_stacked_tasks_answer_as_each_does_alone(case, stacks):
    tasks = EXACT[case]
    expected = alone(tasks)
    assert stacks == []  # in deterministic mode none is stacked
    outputs = TorchBackend(TRUNK, tasks).run(merged(tasks), BATCH)
    assert sorted(stacks) == sorted(name for name, task in tasks.items() if is_stacked(task.path)) and stacks
    assert outputs.keys() == expected.keys()
    for name, value in expected.items():
        assert outputs[name].shape == value.shape and outputs[name].dtype == value.dtype
        np.testing.assert_allclose(outputs[name], value, rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("words", [np.zeros((6, 0), np.int64), np.full((6, 2), -1)], ids=["no place", "places of none"])
def test_texts_without_words_are_answered(words, caplog):
    tasks = EXACT["forms"]
    batch = msgspec.structs.replace(BATCH, words=words)
    expected = TorchBackend(TRUNK, tasks, deterministic=True).run(merged(tasks), batch)
    with caplog.at_level(logging.INFO, backends.__name__):
        outputs = TorchBackend(TRUNK, tasks).run(merged(tasks), batch)
    assert not caplog.records
    for name, value in outputs.items():
        assert value.shape == expected[name].shape
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("hidden", [0, 8])
def test_heads_that_read_other_numbers_of_neighbours(hidden, caplog):
    (task,) = [task for task in tiny_tasks() if task.kind == "tagging"]
    paths = {}
    for window in (2, 0, 1):
        path = tiny_path(msgspec.structs.replace(task, name=f"near-{window}"), TRUNK, pool=Pool(), hidden=hidden)
        head = msgspec.structs.replace(path.head, window=window)
        paths[f"near-{window}"] = msgspec.structs.replace(path, nodes=(*path.nodes[:-1], head))
    tasks = tiny_owned(paths, TRUNK.architecture)
    with caplog.at_level(logging.INFO, backends.__name__):
        outputs = TorchBackend(TRUNK, tasks).run(merged(tasks), BATCH)
    assert not caplog.records
    for name, value in alone(tasks).items():
        np.testing.assert_allclose(outputs[name], value, rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("codec", CODECS)
def test_no_stack_is_left_in_silence(codec, stacks, caplog):
    tasks = tiny_loaded(TRUNK, codec=CODECS[codec])
    with caplog.at_level(logging.INFO, backends.__name__):
        TorchBackend(TRUNK, tasks).run(merged(tasks), BATCH)
    assert not caplog.records
    assert sorted(stacks) == sorted(name for name, task in tasks.items() if is_stacked(task.path))


def test_some_of_the_tasks_are_stacked_without_the_others(stacks):
    tasks, expected = EXACT["forms"], alone(EXACT["forms"])
    backend, some = TorchBackend(TRUNK, tasks), list(tasks)[::3]
    outputs = backend.run(merged({name: tasks[name] for name in some}), BATCH)
    assert set(outputs) == set(some) == set(stacks)
    for name in some:
        np.testing.assert_allclose(outputs[name], expected[name], rtol=0, atol=1e-5, err_msg=name)


def test_a_stack_that_fails_is_said_and_its_tasks_answer_one_by_one(monkeypatch, caplog):
    def fails(self, states, positions):
        raise RuntimeError("no room")

    monkeypatch.setattr(StackedEnds, "over", fails)
    tasks = EXACT["forms"]
    with caplog.at_level(logging.INFO, backends.__name__):
        outputs = TorchBackend(TRUNK, tasks).run(merged(tasks), BATCH)
    assert caplog.messages == [f"{len(tasks)} tasks are computed one by one: no room"]
    for name, value in alone(tasks).items():
        np.testing.assert_allclose(outputs[name], value, rtol=0, atol=1e-5, err_msg=name)


def test_kept_features_are_answered_by_the_same_stacks():
    """Of words and of whole texts, where tasks read one value."""
    tasks = EXACT["forms"]
    values = {}
    for name, task in tasks.items():
        values.setdefault(task.path.stored().pool, []).append(name)
    backend, drawn = TorchBackend(TRUNK, tasks), np.random.default_rng(0)
    own = TorchBackend(TRUNK, tasks, deterministic=True)
    assert max(map(len, values.values())) > 1
    for pool, names in values.items():
        layers = stored_layers(tasks[names[0]].path)
        positions = 1 if pool.positions in (*PLACE_OF, "mean") else 5
        mask = np.arange(positions) < drawn.integers(1, positions + 1, 4)[:, None]
        kept = drawn.standard_normal((4, positions, layers, 16)).astype(np.float32) * mask[..., None, None]
        features = FeatureBatch(values=kept, mask=mask)
        stacked, expected = backend.heads(names, features), own.heads(names, features)
        assert stacked.keys() == set(names)
        for name in names:
            np.testing.assert_allclose(stacked[name], expected[name], rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(("rows", "words"), [(4, 0), (0, 5)], ids=["no words", "no texts"])
def test_nothing_is_answered_by_the_same_stacks(rows, words, caplog):
    """A batch of stored texts of which none has a word was an error of shapes."""
    tasks = EXACT["forms"]
    backend, own = TorchBackend(TRUNK, tasks), TorchBackend(TRUNK, tasks, deterministic=True)
    for name, task in tasks.items():
        if rows == 0 or task.path.stored().pool.positions == "tokens":
            positions = 1 if task.path.stored().pool.positions in (*PLACE_OF, "mean") else words
            values = np.zeros((rows, positions, stored_layers(task.path), 16), np.float32)
            features = FeatureBatch(values=values, mask=np.zeros((rows, positions), bool))
            stacked, expected = backend.heads([name], features)[name], own.heads([name], features)[name]
            assert stacked.shape == expected.shape and not stacked.size
    arrays = {field: getattr(BATCH, field)[:rows] for field in ("ids", "mask", "segments", "words")}
    with caplog.at_level(logging.INFO, backends.__name__):
        TorchBackend(TRUNK, tasks).run(merged(tasks), msgspec.structs.replace(BATCH, **arrays))
    assert not caplog.records


def test_tasks_that_stay_are_folded_once(monkeypatch):
    """A task that changes under its name is folded anew, and answers with its new arrays."""
    folded, of = [], StackMember.of
    monkeypatch.setattr(StackMember, "of", lambda name, task, **how: folded.append(name) or of(name, task, **how))
    tasks = EXACT["widths"]
    first, second, *_ = tasks
    changed = msgspec.structs.replace(tasks[second], arrays={n: 2 * a for n, a in tasks[second].arrays.items()})
    fewer = {name: task for name, task in {**tasks, second: changed}.items() if name != first}
    backend = TorchBackend(TRUNK, tasks)
    backend.run(merged(tasks), BATCH)
    assert sorted(folded) == sorted(tasks)
    folded.clear()
    backend.replace(fewer)
    outputs = backend.run(merged(fewer), BATCH)
    assert folded == [second]
    for name, value in alone(fewer).items():
        np.testing.assert_allclose(outputs[name], value, rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_more_tasks_of_the_same_forms_start_no_more_kernels():
    trunk = tiny_trunk(layers=6, width=64)
    counted = {size: sum(kernels.of_tasks(trunk, size, deterministic=False).values()) for size in (21, 42, 63)}
    assert counted[42] == counted[63]
    assert 0 < counted[21] - sum(kernels.of_trunk(trunk).values()) <= 26 < kernels.TARGET
    assert sum(kernels.of_tasks(trunk, 21, deterministic=True).values()) > counted[63]
