"""What layers made of a text is kept where bits matter: no layer runs again for it, and no answer is another."""

import msgspec
import numpy as np
import pytest

from engine.test_graph_changes import BATCH, KINDS, TRUNK, attach, branch, changed, loaded, pooled
from polyhead import plan
from polyhead.engine.backends.graph import GraphBackend
from polyhead.engine.compile.state_cache import StateCache
from polyhead.testing import tiny_batch
from support.numpy_graphs import NumpyRuntime

PATHS = {"a": pooled("a"), "b": pooled("b", stop=1, positions="mean"), "own": branch("own", 1)}
OTHER = tiny_batch(TRUNK, (7, 3, 6))


def keeping(paths, *, most=2**20):
    backend = GraphBackend(NumpyRuntime(), TRUNK, loaded(paths), deterministic=True)
    backend.state_cache.most = most
    return backend


def ran(backend, paths, batch=BATCH):
    """The outputs, and how many layers ran for them."""
    before = backend.layers_run
    return backend.run(plan.merge(paths), batch), backend.layers_run - before


def assert_equal(first, second):
    assert first.keys() == second.keys()
    for name, values in first.items():
        np.testing.assert_array_equal(second[name], values, err_msg=name)


def fresh(paths, batch=BATCH, tasks=None):
    tasks = tasks or loaded(paths)
    return GraphBackend(NumpyRuntime(), TRUNK, tasks, deterministic=True).run(plan.merge(paths), batch)


def test_the_second_time_no_layer_runs_and_the_bits_are_the_same():
    backend = keeping(PATHS)
    first, layers = ran(backend, PATHS)
    again, no_layers = ran(backend, PATHS)
    assert layers == 3 and no_layers == 0
    assert_equal(first, again)
    assert_equal(fresh(PATHS), again)


def test_every_stage_is_given_without_layers_too():
    backend = keeping(PATHS)
    ran(backend, PATHS)
    stages = list(backend.stages(plan.merge(PATHS), BATCH))
    assert {name for stage in stages for name in stage.outputs} == set(PATHS)
    assert stages[-1].layers_left == 0 and backend.layers_run == 3


def test_other_texts_run_their_layers():
    backend = keeping(PATHS)
    ran(backend, PATHS)
    outputs, layers = ran(backend, PATHS, OTHER)
    assert layers == 3
    assert_equal(fresh(PATHS, OTHER), outputs)


@pytest.mark.parametrize("field", ["ids", "mask", "segments"])
def test_all_that_layers_read_of_a_text_tells_it_from_others(field):
    backend = keeping(PATHS)
    ran(backend, PATHS)
    array = getattr(BATCH, field).copy()
    array[0, -1 if field == "mask" else 1] = not array[0, -1] if field == "mask" else 1 - min(array[0, 1], 1)
    batch = msgspec.structs.replace(BATCH, **{field: array})
    outputs, layers = ran(backend, PATHS, batch)
    assert layers == 3
    assert_equal(fresh(PATHS, batch), outputs)


def test_rows_are_known_in_any_batch_of_the_same_width():
    backend = keeping(PATHS)
    ran(backend, PATHS)
    order = [2, 0, 1]
    batch = msgspec.structs.replace(BATCH, **{name: getattr(BATCH, name)[order] for name in BATCH.__struct_fields__})
    outputs, layers = ran(backend, PATHS, batch)
    assert layers == 0
    assert_equal(fresh(PATHS, batch), outputs)


def test_a_new_head_reads_what_is_kept():
    backend, tasks = keeping(PATHS), loaded(PATHS)
    ran(backend, PATHS)
    tasks["a"] = changed(tasks["a"])
    attach(backend, "a", tasks["a"])
    outputs, layers = ran(backend, PATHS)
    assert layers == 0
    assert_equal(fresh(PATHS, tasks=tasks), outputs)


def test_new_layers_of_a_task_run():
    backend, tasks = keeping(PATHS), loaded(PATHS)
    ran(backend, PATHS)
    tasks["own"] = changed(tasks["own"])
    attach(backend, "own", tasks["own"])
    outputs, layers = ran(backend, PATHS)
    assert layers > 0
    assert_equal(fresh(PATHS, tasks=tasks), outputs)


@pytest.mark.parametrize("kind", KINDS)
def test_any_task_that_comes_is_answered_as_without_what_is_kept(kind):
    backend, paths = keeping(PATHS), {**PATHS, "new": KINDS[kind]}
    ran(backend, PATHS)
    tasks = loaded(paths)
    attach(backend, "new", tasks["new"])
    for batch in (BATCH, OTHER, BATCH):
        assert_equal(fresh(paths, batch, tasks), ran(backend, paths, batch)[0])


@pytest.mark.parametrize("kind", ["isolated prompt", "joint prompt"])
def test_of_prompts_nothing_is_kept(kind):
    paths = {"new": KINDS[kind]}
    backend = keeping(paths)
    first, layers = ran(backend, paths)
    again, as_many = ran(backend, paths)
    assert layers == as_many > 0 and backend.state_cache.size == 0
    assert_equal(first, again)


def test_no_more_than_the_limit_is_kept_and_what_was_not_read_makes_room():
    row = BATCH.ids.shape[1] * TRUNK.architecture.width * 4
    paths = {"a": PATHS["a"]}
    backend = keeping(paths, most=4 * row)
    ran(backend, paths)
    assert backend.state_cache.size == 3 * row
    ran(backend, paths, OTHER)  # two of its texts are those of the other batch
    assert backend.state_cache.size == 4 * row and ran(backend, paths, OTHER)[1] == 0
    backend.state_cache.drop_unread()
    ran(backend, paths, OTHER)
    backend.state_cache.drop_unread()
    assert backend.state_cache.size == 3 * row and ran(backend, paths)[1] == 2


def test_without_a_limit_and_out_of_deterministic_mode_nothing_is_kept():
    backend = GraphBackend(NumpyRuntime(), TRUNK, loaded(PATHS), deterministic=True)
    assert ran(backend, PATHS)[1] == ran(backend, PATHS)[1] == 3 and backend.state_cache.size == 0
    assert GraphBackend(NumpyRuntime(), TRUNK, loaded(PATHS)).state_cache is None
    assert isinstance(backend.state_cache, StateCache)
