"""Graphs compiled by OpenVINO: numbers that it must not lose, shapes of real encoders, and one task beside many."""

import numpy as np
import pytest

from polyhead import plan
from polyhead.encoder.data import TextSettings, TrunkData
from polyhead.encoder.shape import Architecture, trunk_arrays
from polyhead.engine.backends.graph import GraphBackend
from polyhead.engine.backends.reference import ReferenceBackend
from polyhead.plan import Codec, Embed, Head, Layers, Path, Pool
from polyhead.testing import tiny_batch, tiny_owned
from support.tiers import first_of

pytest.importorskip("openvino")
from polyhead.engine.backends.openvino import OpenVINORuntime

SHAPES = {
    "bert base": Architecture(layers=2, width=768, heads=12, feed_forward=3072, vocabulary=500, positions=40),
    "roberta large": Architecture(
        layers=1,
        width=1024,
        heads=16,
        feed_forward=4096,
        vocabulary=700,
        family="roberta",
        positions=42,
        first_position=2,
        segments=1,
        norm_epsilon=1e-5,
    ),
    "electra small": Architecture(
        layers=2,
        width=256,
        heads=4,
        feed_forward=1024,
        vocabulary=300,
        family="electra",
        positions=40,
        embedding_width=128,
    ),
    "distilbert": Architecture(
        layers=2, width=96, heads=3, feed_forward=200, vocabulary=300, family="distilbert", positions=40, segments=0
    ),
    "one head, odd width": Architecture(layers=3, width=33, heads=1, feed_forward=70, vocabulary=101, positions=40),
}


def trunk_of(shape):
    """Weights as those of a trained encoder are: matrices that keep the size of what they read."""
    rng = np.random.default_rng(0)
    arrays = {}
    for name, size in trunk_arrays(shape):
        if len(size) > 1:
            arrays[name] = rng.standard_normal(size).astype(np.float32) / np.float32(size[-1] ** 0.5)
        else:
            centre = 1.0 if name.endswith("norm.weight") else 0.0
            arrays[name] = (centre + 0.05 * rng.standard_normal(size)).astype(np.float32)
    return TrunkData(
        name="shape", architecture=shape, arrays=arrays, tokenizer=b"{}", settings=TextSettings(max_tokens=36)
    )


def tasks_of(trunk, heads):
    paths = {}
    whole = Layers(start=0, stop=trunk.architecture.layers)
    for name, pool in (
        ("attention", Pool(positions="attention", heads=heads, part="task:attention")),
        ("mean", Pool(positions="mean", codec=Codec(name="float16"))),
        ("mixed", Pool(layers="learned", part="task:mixed")),
        ("words", Pool(positions="tokens")),
    ):
        head = Head(kind="single_label", width=5, part=f"task:{name}", hidden=32 if name == "attention" else 0)
        paths[name] = Path(nodes=(Embed(trunk=trunk.digest), whole, pool, head))
    own = Layers(start=trunk.architecture.layers - 1, stop=trunk.architecture.layers, weights="task:branch")
    below = (Layers(start=0, stop=own.start),) if own.start else ()
    head = Head(kind="single_label", width=3, part="task:branch")
    paths["branch"] = Path(nodes=(Embed(trunk=trunk.digest), *below, own, Pool(), head))
    tasks = tiny_owned(paths, trunk.architecture)
    for task in tasks.values():
        for array in task.arrays.values():
            if array.ndim > 1:
                array /= np.float32(array.shape[-1] ** 0.5)
    return tasks


@pytest.mark.slow
@pytest.mark.parametrize("name", first_of(SHAPES))
def test_encoders_of_any_shape_give_what_the_reference_gives(name):
    trunk = trunk_of(SHAPES[name])
    tasks = tasks_of(trunk, SHAPES[name].heads)
    batch, merged = tiny_batch(trunk, (21, 5, 9, 2)), plan.merge({n: t.path for n, t in tasks.items()})
    wanted = ReferenceBackend(trunk, tasks).run(merged, batch)
    found = GraphBackend(OpenVINORuntime(precision="float32"), trunk, tasks).run(merged, batch)
    for task, values in wanted.items():
        seen = batch.words >= 0 if task == "words" else slice(None)
        atol = 1e-3 if task == "mean" else 1e-4  # a float16 number may be the next one
        np.testing.assert_allclose(found[task][seen], values[seen], atol=atol, err_msg=task)


def halved(values, precision):
    def build(ops):
        x = ops.matmul(ops.input("x", "float", (-1, 1)), ops.constant(np.ones((1, 1), np.float32)))
        return {"out": ops.halved(x)}

    runtime = OpenVINORuntime(precision=precision)
    return runtime.compile(build, label="halves", layers=False)({"x": values[:, None]})["out"][:, 0]


def test_float16_is_rounded_as_numpy_rounds_it():
    """Numbers of every size, ties among them, and those below the smallest normal one."""
    rng = np.random.default_rng(0)
    drawn = rng.standard_normal(40_000) * 10.0 ** rng.uniform(-9, 4, 40_000)
    ties = np.arange(-3, 3, 2.0**-12)
    edges = [0.0, 65504.0, -65504.0, 2.0**-14, 2.0**-15, 2.0**-24, 2.0**-25, 3 * 2.0**-25]
    values = np.concatenate([drawn, ties, edges]).astype(np.float32).clip(-65504, 65504)
    assert np.array_equal(halved(values, "float32"), values.astype(np.float16).astype(np.float32))


@pytest.mark.skipif(not OpenVINORuntime().has_bfloat16, reason="the processor has no bfloat16")
def test_what_bfloat16_holds_float16_holds_too():
    rng = np.random.default_rng(0)
    values = (rng.standard_normal(20_000) * 10.0 ** rng.uniform(-9, 4, 20_000)).astype(np.float32)
    held = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    np.testing.assert_allclose(
        halved(held, "bfloat16"), held.astype(np.float16).astype(np.float32), atol=2**-25, rtol=0
    )


def test_weights_are_rounded_to_bfloat16_as_torch_rounds_them():
    import torch

    from polyhead.engine.backends.openvino.ops import rounded

    rng = np.random.default_rng(0)
    weights = (rng.normal(size=(33, 50)) * 10.0 ** rng.integers(-44, 38, (33, 50))).astype(np.float32)
    special = [0.0, -0.0, np.inf, -np.inf, 3.4e38, 1e-45, 1 + 2**-8, 1 + 3 * 2**-8, np.nan]
    weights[0, : len(special)] = special
    node = rounded(weights)  # its data go with it
    found = torch.from_numpy(node.data.view(np.int16).copy()).view(torch.bfloat16)
    torch.testing.assert_close(found, torch.from_numpy(weights).bfloat16(), rtol=0, atol=0, equal_nan=True)
    signs = torch.signbit(found)[~torch.isnan(found)]
    assert torch.equal(signs, torch.signbit(torch.from_numpy(weights))[~torch.isnan(found)])
