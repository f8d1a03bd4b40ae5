"""Heads that read several layers' vectors side by side: every backend against the layers' vectors and two products."""

import numpy as np
import pytest

from polyhead.deep.backend import TorchBackend
from polyhead.engine.backends.base import FeatureBatch
from polyhead.engine.backends.graph import GraphBackend
from polyhead.engine.backends.reference import ReferenceBackend
from polyhead.errors import ConfigError, PlanError
from polyhead.plan import Codec, Head, Path, Pool, cost, digest, merge
from polyhead.project.strategies import Pooled
from polyhead.project.strategies.base import with_codec
from polyhead.testing import tiny_batch, tiny_loaded, tiny_trunk
from support.numpy_graphs import NumpyRuntime

TRUNK = tiny_trunk()
TASKS = {name: task for name, task in tiny_loaded(TRUNK).items() if name.startswith("topics-beside")}
BACKENDS = {
    "reference": ReferenceBackend,
    "torch": TorchBackend,
    "graph": lambda trunk, tasks: GraphBackend(NumpyRuntime(), trunk, tasks, deterministic=True),
    "packed": lambda trunk, tasks: GraphBackend(NumpyRuntime(), trunk, tasks),
}


def layers_of(path, batch):
    """The vectors of every layer of each text, (texts, layers, width), as they are kept."""
    pool = Pool(layers="all", positions=path.pool.positions, codec=Codec(name="float32"))
    (values,) = ReferenceBackend(TRUNK, {}).features([Path(nodes=(*path.nodes[:-2], pool))], batch)
    return values


@pytest.mark.parametrize("name", BACKENDS)
def test_a_head_reads_the_last_layers_side_by_side(name):
    backend, batch = BACKENDS[name](TRUNK, TASKS), tiny_batch(TRUNK, (3, 7, 5, 12))
    found = backend.run(merge({task: one.path for task, one in TASKS.items()}), batch)
    assert len(TASKS) == 3
    for task, one in TASKS.items():
        path, arrays = one.path, one.arrays
        read = layers_of(path, batch)[:, -path.pool.of :]
        normalized = read / np.sqrt(np.mean(read**2, axis=2, keepdims=True))
        hidden = np.tanh(
            normalized.reshape(len(read), -1) @ arrays["head.hidden.weight"].T + arrays["head.hidden.bias"]
        )
        expected = hidden @ arrays["head.output.weight"].T + arrays["head.output.bias"]
        np.testing.assert_allclose(found[task], expected, atol=2e-5)
        kept = FeatureBatch(values=read[:, None], mask=np.ones((len(read), 1), bool))
        np.testing.assert_allclose(backend.heads([task], kept)[task], expected, atol=2e-5)
        np.testing.assert_allclose(backend.features([path], batch)[0], read, atol=2e-5)


def test_layers_side_by_side_are_other_inputs_of_the_same_kept_value():
    path, shape = TASKS["topics-beside-mean"].path, TRUNK.architecture
    arrays = cost.part_arrays(path, shape, path.head.part)
    assert arrays["head.hidden.weight"] == (path.head.hidden, 2 * shape.width)
    mean = Path(nodes=(*path.nodes[:2], Pool(layers="mean", of=2, positions="mean", codec=path.pool.codec), path.head))
    assert digest(path.stored()) == digest(mean.stored())
    parts = {path.head.part: "0" * 64}
    assert digest(path, parts) != digest(mean, parts)
    assert cost.stored_bytes(path.pool, shape, 9) == 2 * cost.vector_bytes(path.pool.codec, shape.width)
    assert with_codec(path, Codec(name="float16")).pool.codec == Codec(name="float16", before_mean=True)


def test_layers_stand_side_by_side_as_one_vector_of_one_text():
    each = Codec(before_mean=True)
    with pytest.raises(PlanError, match="one vector each"):
        Pool(layers="beside", of=2, positions="tokens", codec=each)
    with pytest.raises(PlanError, match="one vector each"):
        Pool(layers="beside", of=2, positions="mean")
    path = TASKS["topics-beside-mean"].path
    pool = Pool(layers="beside", of=9, positions="mean", codec=each)
    with pytest.raises(PlanError, match="more layers"):
        cost.part_arrays(Path(nodes=(*path.nodes[:-2], pool, path.head)), TRUNK.architecture, path.head.part)
    with pytest.raises(ConfigError, match="one vector of each layer"):
        Pooled(layers="beside")
    with pytest.raises(PlanError, match="one vector of each text"):
        Path(nodes=(*path.nodes[:-1], Head(kind="x", width=2, part="p", separate=True)))
