"""bfloat16 and int8 beside the reference in float32: how far outputs move, as a share of how texts differ in them."""

import numpy as np
import pytest

from polyhead import plan
from polyhead.engine.backends import open_backend, open_runtime
from polyhead.engine.backends.graph import GraphBackend
from polyhead.engine.backends.reference import ReferenceBackend
from polyhead.engine.probes import has_bfloat16
from polyhead.engine.scales import ObservingRuntime
from polyhead.testing import tiny_batch, tiny_conditioned, tiny_loaded, tiny_trunk

TRUNK = tiny_trunk(max_tokens=56)
SOME = ("joint-a", "joint-b", "joint-c", "apart-a", "in-attention-tied", "in-bottleneck", "by-depth", "top-attention")
LENGTHS = (9, 4, 7, 3, 2, 11, 5, 8, 30, 1, 14, 22)
# Of all tasks' median, and of any: 8 bits of a number are 0.4 % of it, and errors add up over layers.
MOST = {"bfloat16": (0.04, 0.2), "int8": (0.08, 0.25)}


@pytest.fixture(scope="module")
def wanted():
    tasks = {**tiny_loaded(TRUNK), **{n: t for n, t in tiny_conditioned(TRUNK).items() if n in SOME}}
    merged, batch = plan.merge({n: t.path for n, t in tasks.items()}), tiny_batch(TRUNK, LENGTHS)
    return tasks, merged, batch, ReferenceBackend(TRUNK, tasks).run(merged, batch)


def backend_of(name, precision, tasks, merged, batch):
    if precision == "bfloat16":
        if not has_bfloat16(name):
            pytest.skip(f"{name} has no bfloat16 on this processor")
        return open_backend(name, TRUNK, tasks, precision=precision)
    watching = ObservingRuntime(open_runtime(name, precision="float32"), rows=50)
    GraphBackend(watching, TRUNK, tasks).run(merged, batch)
    return GraphBackend(open_runtime(name, precision="int8", scales=watching.scales()), TRUNK, tasks)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "precision"),
    [("openvino", "bfloat16"), ("torch", "bfloat16"), ("openvino", "int8"), ("onnxruntime", "int8")],
    ids="-".join,
)
def test_outputs_are_those_of_the_reference_but_for_a_share_of_their_spread(name, precision, wanted):
    """Root mean squares over texts; zeros, or another task's outputs, would be all of it or more."""
    tasks, merged, batch, exact = wanted
    found, moved = backend_of(name, precision, tasks, merged, batch).run(merged, batch), {}
    for task, values in exact.items():
        there = batch.words >= 0 if tasks[task].path.pool.positions == "tokens" else slice(None)
        spread = np.square(values[there] - values[there].mean(axis=0)).mean()
        moved[task] = float(np.sqrt(np.square(found[task][there] - values[there]).mean() / spread))
    middle, any_task = MOST[precision]
    assert max(moved.values()) < any_task, moved
    assert 0 < np.median(list(moved.values())) < middle, moved
