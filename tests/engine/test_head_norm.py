"""Heads with a layer norm between their two maps, as ModernBERT's classifiers have: the formula, on every backend."""

import functools

import msgspec
import numpy as np
import pytest
import torch

from polyhead import plan
from polyhead.engine.backends import open_backend
from polyhead.errors import PlanError
from polyhead.plan import Head, Pool, cost
from polyhead.testing import tiny_batch, tiny_owned, tiny_path, tiny_tasks, tiny_trunk

TRUNK = tiny_trunk(family="modernbert")
TASKS = {task.name: task for task in tiny_tasks()}
BATCH = tiny_batch(TRUNK, (9, 4, 7, 1))
BACKENDS = ("reference", "torch", "openvino", "onnxruntime")
MEAN, FIRST = Pool(positions="mean"), Pool()
# Like tasks with and without a norm, with another epsilon, over words, and over two texts that are compared.
FORMS = {
    "plain": ("mood", MEAN, {}),
    "one": ("mood", MEAN, {"norm_epsilon": 1e-5}),
    "two": ("mood", MEAN, {"norm_epsilon": 1e-5, "activation": "gelu"}),
    "three": ("mood", MEAN, {"norm_epsilon": 1e-5, "activation": "gelu"}),
    "wide": ("topics", FIRST, {"norm_epsilon": 0.5, "activation": "relu"}),
    "names": ("names", FIRST, {"norm_epsilon": 1e-5, "activation": "gelu"}),
    "alike": ("alike", MEAN, {"norm_epsilon": 1e-3}),
}


def path_of(name):
    task, pool, settings = FORMS[name]
    path = tiny_path(msgspec.structs.replace(TASKS[task], name=name), TRUNK, pool=pool)
    return plan.Path(nodes=(*path.nodes[:-1], msgspec.structs.replace(path.head, **settings)))


LOADED = tiny_owned({name: path_of(name) for name in FORMS}, TRUNK.architecture)


@functools.cache
def states():
    """The encoder's states, by the reference."""
    whole = tiny_path(TASKS["mood"], TRUNK, pool=Pool(positions="all"))
    (values,) = open_backend("reference", TRUNK, LOADED, precision="float32").features([whole], BATCH)
    rows = np.zeros((*BATCH.mask.shape, TRUNK.architecture.width), np.float32)
    rows[BATCH.mask] = values[:, 0]
    return torch.from_numpy(rows)


def expected(name, features):
    """`U LN(f(W z + b)) + u`, with torch's own functions."""
    loaded = LOADED[name]
    own = {key: torch.from_numpy(array) for key, array in loaded.arrays.items()}
    head = loaded.path.head
    hidden = torch.nn.functional.linear(features, own["head.hidden.weight"], own["head.hidden.bias"])
    hidden = {"tanh": torch.tanh, "relu": torch.relu, "gelu": torch.nn.functional.gelu}[head.activation](hidden)
    if head.norm is not None:
        args = (own["head.norm.weight"], own["head.norm.bias"], head.norm)
        hidden = torch.nn.functional.layer_norm(hidden, (head.hidden,), *args)
    return torch.nn.functional.linear(hidden, own["head.output.weight"], own["head.output.bias"]).numpy()


def mean_vectors():
    mask = torch.from_numpy(BATCH.mask)[..., None]
    return (states() * mask).sum(1) / mask.sum(1)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_computes_the_formula_whatever_stands_beside(name, deterministic):
    backend = open_backend(name, TRUNK, LOADED, precision="float32", deterministic=deterministic)
    outputs = backend.run(plan.merge({task: one.path for task, one in LOADED.items() if task != "alike"}), BATCH)
    for task in ("plain", "one", "two", "three"):
        np.testing.assert_allclose(outputs[task], expected(task, mean_vectors()), atol=1e-5)
    np.testing.assert_allclose(outputs["wide"], expected("wide", states()[:, 0]), atol=1e-5)
    rows, places = np.nonzero(BATCH.words >= 0)
    words = states()[rows, BATCH.words[rows, places]]
    np.testing.assert_allclose(outputs["names"][rows, places], expected("names", words), atol=1e-5)


@pytest.mark.parametrize("name", BACKENDS)
def test_two_texts_that_are_compared_have_it_too(name):
    backend = open_backend(name, TRUNK, LOADED, precision="float32")
    first, second = mean_vectors(), mean_vectors().flip(0)
    size = first.shape[1] ** 0.5
    u, v = (size * torch.nn.functional.normalize(vectors, dim=-1) for vectors in (first, second))
    wanted = expected("alike", torch.cat([u, v, (u - v).abs(), u * v], -1))
    np.testing.assert_allclose(backend.compared("alike", first.numpy(), second.numpy()), wanted, atol=1e-5)


def test_its_gain_and_bias_are_counted_and_paths_without_it_are_as_before():
    owner, plain = "task:one", msgspec.structs.replace(path_of("one").head, norm_epsilon=msgspec.UNSET)
    with_norm, without = path_of("one"), plan.Path(nodes=(*path_of("one").nodes[:-1], plain))
    sizes = [sum(map(np.prod, cost.part_arrays(p, TRUNK.architecture, owner).values())) for p in (with_norm, without)]
    assert sizes[0] - sizes[1] == 2 * plain.hidden
    assert b"norm_epsilon" not in msgspec.json.encode(plain)
    assert msgspec.json.decode(msgspec.json.encode(with_norm), type=plan.Path) == with_norm


@pytest.mark.parametrize(
    "settings",
    [{"hidden": 0, "norm_epsilon": 1e-5}, {"hidden_part": "family:x", "norm_epsilon": 1e-5}, {"norm_epsilon": 0.0}],
)
def test_a_norm_without_a_hidden_layer_of_its_own_is_refused(settings):
    with pytest.raises(PlanError, match="a head's layer norm"):
        Head(**{"kind": "single_label", "width": 2, "part": "task:x", "hidden": 4} | settings)
