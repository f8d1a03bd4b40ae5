"""Words read with their neighbours: which these are, in rows of their own or packed, and what else is loaded."""

import numpy as np
import pytest

from polyhead.engine.backends.base import TokenBatch
from polyhead.engine.backends.graph import GraphBackend
from polyhead.engine.compile.layout import neighbour_inputs
from polyhead.errors import PlanError
from polyhead.plan import Head, Layers, Path, Pool, cost, merge
from polyhead.testing import tiny_batch, tiny_loaded, tiny_trunk
from support.numpy_graphs import NumpyRuntime

TRUNK = tiny_trunk()
LENGTHS = (9, 4, 12, 7)


def test_neighbours_are_those_of_a_loop():
    chance = np.random.default_rng(1)
    places, is_word = chance.integers(0, 99, (3, 5)), chance.random((3, 5)) < 0.7
    found = neighbour_inputs({"places": places, "keep": places}, is_word, 2)
    for text in range(3):
        for word in range(5):
            for offset in range(5):
                near = word + offset - 2
                is_near = 0 <= near < 5 and is_word[text, near]
                assert found["near"][text, offset, word] == is_near
                assert not is_near or found["places"][text, offset, word] == places[text, near]
    assert found["keep"] is places and set(found["places"].ravel()) <= set(places.ravel())
    assert neighbour_inputs({"places": places[:, :0]}, is_word[:, :0], 1)["near"].shape == (3, 3, 0)


@pytest.mark.parametrize("deterministic", [True, False], ids=["deterministic", "packed"])
def test_a_task_with_neighbours_answers_alike_alone_beside_others_and_in_any_batch(deterministic):
    every, name = tiny_loaded(TRUNK), "names-learned-first-near"
    alone, beside = (
        GraphBackend(NumpyRuntime(), TRUNK, tasks, deterministic=deterministic)
        for tasks in ({name: every[name]}, every)
    )
    batch = tiny_batch(TRUNK, LENGTHS)
    own, both = merge({name: every[name].path}), merge({task: one.path for task, one in every.items()})
    found, among = alone.run(own, batch)[name], beside.run(both, batch)[name]
    np.testing.assert_allclose(among, found, atol=0.0 if deterministic else 1e-5)
    for row, length in enumerate(LENGTHS):
        parts = (batch.ids[:, :length], batch.mask[:, :length], batch.segments[:, :length], batch.words)
        ids, mask, segments, words = (array[row : row + 1] for array in parts)
        (single,) = alone.run(own, TokenBatch(ids=ids, mask=mask, segments=segments, words=words))[name]
        seen = words[0] >= 0
        np.testing.assert_allclose(single[seen], found[row][seen], atol=1e-5)


def test_a_head_with_neighbours_has_as_many_inputs_and_needs_words():
    path = tiny_loaded(TRUNK)["names-last-first-near"].path
    width, hidden = TRUNK.architecture.width, path.head.hidden
    shapes = cost.part_arrays(path, TRUNK.architecture, path.head.part)
    assert shapes["head.hidden.weight"] == (hidden, 3 * width)
    with pytest.raises(PlanError, match="neighbours"):
        Head(kind="tagging", width=3, part="task:x", window=-1)
    whole = Path(nodes=(path.embed, Layers(start=0, stop=2), Pool(), Head(kind="x", width=2, part="p", window=1)))
    with pytest.raises(PlanError, match="reads none"):
        cost.part_arrays(whole, TRUNK.architecture, "p")
