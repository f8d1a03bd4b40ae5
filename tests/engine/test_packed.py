"""Outputs straight from packed features, against the reference backend's unfolded pooler on decoded ones."""

import msgspec
import numpy as np
import pytest

from polyhead import plan
from polyhead.engine.backends.base import LoadedTask
from polyhead.engine.backends.reference import ReferenceBackend, backend
from polyhead.plan import Pool, merge
from polyhead.plan.coding import encode, tokens_of
from polyhead.store.corpus.base import FeatureColumn, PackedRows
from polyhead.store.packed import PackedTasks
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import RowKind
from polyhead.testing import tiny_batch, tiny_loaded, tiny_owned, tiny_tasks, tiny_trunk
from polyhead.testing.tiny import CODECS as EVERY
from support.tiers import first_of

TRUNK = tiny_trunk()
LENGTHS = (3, 7, 5, 7, 7, 1, 12, 40, 3)
KINDS = {task.name: task for task in tiny_tasks()}


def answerable(loaded):
    """The tasks that a store alone can answer."""
    return {
        name: one
        for name, one in loaded.items()
        if isinstance(kind_of(KINDS[name.split("-")[0]]), RowKind) and not one.path.head.separate
    }


def stored(path, batch):
    """What a store keeps of a path for a batch: the column and its rows."""
    reference = ReferenceBackend(TRUNK, {"x": LoadedTask(path=path, arrays={})})
    short, states = path.stored(), {}
    tree = merge({"x": plan.Path(nodes=(*short.nodes, path.head))})
    (pool,) = [index for index, step in enumerate(tree.steps) if isinstance(step.node, Pool)]
    value = backend._stored(reference._states(tree, tree.steps[pool].parent, batch, states), short.pool, batch)
    codec = short.pool.codec
    column = FeatureColumn(
        digest=plan.digest(short), layers=value.shape[2], width=TRUNK.architecture.width, codec=codec
    )
    mask = batch.mask if short.pool.positions == "all" else batch.mask[:, :1]
    tokens = tokens_of(short.pool, ids=batch.ids, mask=batch.mask, words=batch.words)[:, :, None]
    raw = encode(value, codec, tokens).reshape(*value.shape[:2], -1)
    return column, PackedRows.of(mask.sum(axis=1), raw[mask])


@pytest.mark.parametrize("name", first_of([*EVERY]))
def test_outputs_from_packed_features_equal_those_of_the_reference(name):
    assert checked(answerable(tiny_loaded(TRUNK, codec=EVERY[name]))) >= 9


def test_heads_with_a_norm_answer_from_packed_features_too():
    loaded = answerable(tiny_loaded(TRUNK, codec=EVERY["uint8"]))
    paths = {
        task: plan.Path(nodes=(*one.path.nodes[:-1], msgspec.structs.replace(one.path.head, norm_epsilon=1e-3)))
        for task, one in loaded.items()
        if one.path.head.hidden
    }
    assert checked(tiny_owned(paths, TRUNK.architecture)) >= 9


def checked(loaded):
    """Compares every task's outputs from packed features with the reference's; the number of tasks."""
    batch = tiny_batch(TRUNK, LENGTHS)
    expected = ReferenceBackend(TRUNK, loaded).run(merge({task: one.path for task, one in loaded.items()}), batch)
    columns = {}
    for task, one in loaded.items():
        column, rows = stored(one.path, batch)
        columns.setdefault(column.digest, (column, rows, {}))[2][task] = one
    count = 0
    for column, rows, tasks in columns.values():
        outputs = PackedTasks.of(column, tasks).outputs(rows)
        for task in tasks:
            np.testing.assert_allclose(outputs[task], expected[task], rtol=2e-4, atol=2e-4, err_msg=task)
            count += 1
    assert count == len(loaded)
    return count
