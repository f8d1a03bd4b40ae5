"""Copies answer what the copied tasks answer, and cost what so many tasks would cost."""

import numpy as np
import pytest

from polyhead.advise.measure import copied_arrays, copies, counted_costs
from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.write import Draft, add_tasks
from polyhead.engine.backends import open_backend
from polyhead.engine.backends.base import TokenBatch
from polyhead.plan import cost, merge
from polyhead.project.strategies import Branch, InLayer, OnTop, Pooled, Prompted, prompt_groups
from polyhead.tasks.task import Task
from polyhead.testing import tiny_trunk
from polyhead.testing.tiny import tiny_owned

TASKS = (
    Task(name="mood", kind="single_label", labels=("bad", "good")),
    Task(name="topics", kind="multi_label", labels=("order", "bill", "card")),
)
STRATEGIES = {
    "pooled": Pooled(positions="attention", heads=2, codec="float32"),
    "branch": Branch(layers=1),
    "isolated": Prompted(isolated=True),
    "group": Prompted(shared=1),
    "in-layer": InLayer(),
    "on-top": OnTop(layers=1),
}


def made(strategy):
    trunk = tiny_trunk()
    shape, digest = trunk.architecture, trunk.digest
    groups = prompt_groups([(task, strategy) for task in TASKS])
    paths = {t.name: strategy.path(t, trunk=digest, shape=shape, group=groups[t.name]) for t in TASKS}
    records = [TaskRecord(task=task, path=paths[task.name], trunk=digest) for task in TASKS]
    return trunk, records, tiny_owned(paths, shape)


def batch():
    ids = np.array([[2, 40, 41, 42, 3], [2, 45, 46, 3, 0]], np.int32)
    mask = np.array([[True] * 5, [True] * 4 + [False]])
    return TokenBatch(ids=ids, mask=mask, segments=np.zeros_like(ids), words=np.zeros((2, 0), np.int32))


@pytest.mark.parametrize("name", STRATEGIES)
def test_copies_answer_as_the_tasks_that_they_copy(name):
    trunk, records, tasks = made(STRATEGIES[name])
    read = batch()
    plain = open_backend("reference", trunk, tasks)
    expected = plain.run(merge({n: task.path for n, task in tasks.items()}), read)
    twice = copies(records, 2)
    loaded = copied_arrays(twice, [tasks[record.task.name] for record in records], trunk.architecture)
    copied = open_backend("reference", trunk, loaded).run(merge({n: t.path for n, t in loaded.items()}), read)
    for number, record in enumerate(records):
        np.testing.assert_allclose(copied[f"copy-{number}"], expected[record.task.name], atol=1e-6)


@pytest.mark.parametrize(
    ("name", "layers"),
    [("pooled", 2), ("branch", 1 + 5), ("isolated", 2), ("group", 2), ("in-layer", 5 * 2), ("on-top", 2 + 5)],
)
def test_five_copies_run_the_layers_of_five_tasks(name, layers):
    """The trunk has two layers: shared once, or one private layer each above the first, or all anew for each task."""
    trunk, records, _ = made(STRATEGIES[name])
    plan = merge({n: record.path for n, record in copies(records, 5).items()})
    assert cost.layer_evaluations(plan) == layers


def test_a_group_of_copies_has_the_prompts_of_all_and_the_shared_rows_once():
    _, records, _ = made(STRATEGIES["group"])
    for copied in copies(records, 3).values():
        parts = [prompt.part for prompt in copied.path.embed.prompts]
        own = ["task:copy-0", "task:copy-1", "task:copy-2"]
        assert [part for part in parts if part.startswith("task:")] == own
        assert len(parts) == 4


def bundles(folder, strategy):
    """A bundle of one task for each of them, the trunk, and how many numbers each task owns."""
    trunk, records, tasks = made(strategy)
    roots = []
    for record in records:
        root = folder / record.task.name
        write_bundle(root, trunk)
        draft = Draft(record=record, arrays=tasks[record.task.name].arrays, scores={}, probes=[], card="")
        add_tasks(root, [draft])
        roots.append(root)
    return roots, trunk, [sum(a.size for a in tasks[r.task.name].arrays.values()) for r in records]


@pytest.mark.parametrize("name", ["pooled", "branch", "in-layer", "on-top"])
def test_a_task_adds_what_it_owns(name, tmp_path):
    """A branch too, above which the trunk's own layers are not run."""
    roots, _, sizes = bundles(tmp_path, STRATEGIES[name])
    assert counted_costs(roots[:1], 8, (1,)).added_parameters == sizes[0]


def test_costs_of_bundles_of_their_own_add_up(tmp_path):
    """Two trunks cost twice one, and one more task brings a trunk."""
    roots, trunk, sizes = bundles(tmp_path, STRATEGIES["pooled"])
    both, one = counted_costs(roots, 8, (1, 2), apart=True), counted_costs(roots[:1], 8, (1, 2))
    assert both.of_set.layers == 2 * one.of_set.layers == 4
    assert both.counted_for(2).layers == 4 and one.counted_for(2).layers == 2
    size = sum(array.size for array in trunk.arrays.values())
    assert both.added_parameters == size + sum(sizes) / 2
