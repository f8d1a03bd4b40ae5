"""States from which texts are written, over prompts, branches, deltas and codecs: every backend as the reference."""

import msgspec
import numpy as np
import pytest

from polyhead.engine.backends import open_backend
from polyhead.engine.backends.reference import ReferenceBackend
from polyhead.plan import Codec, Layers, Pool, Prompt, merge
from polyhead.testing import tiny_batch, tiny_owned, tiny_trunk, tiny_writing
from polyhead.testing.tiny import tiny_deltas

TRUNK = tiny_trunk()
OWNER = "task:brief"
DELTA = next(iter(tiny_deltas(OWNER).values()))
CHANGES = {
    "prompts": lambda embed, layers, pool: (
        msgspec.structs.replace(embed, prompts=(Prompt(part=OWNER, rows=3),)),
        layers,
        pool,
    ),
    "branch": lambda embed, layers, pool: (
        embed,
        (Layers(start=0, stop=1), Layers(start=1, stop=2, weights=OWNER)),
        pool,
    ),
    "delta": lambda embed, layers, pool: (embed, (Layers(start=0, stop=2, delta=DELTA),), pool),
    "codec": lambda embed, layers, pool: (
        embed,
        layers,
        Pool(positions="all", codec=Codec(name="uint8", scale=(0.04,), zero=(128.0,))),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("backend", ["onnxruntime", "torch"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_states_over_any_path_are_those_of_the_reference(name, backend, deterministic):
    plain = tiny_writing(TRUNK)[1].path
    embed, layers, pool = CHANGES[name](plain.embed, plain.layers, plain.pool)
    path = msgspec.structs.replace(plain, nodes=(embed, *layers, pool, plain.head))
    tasks = tiny_owned({"brief": path}, TRUNK.architecture)
    plan, batch = merge({"brief": path}), tiny_batch(TRUNK, (7, 3, 11))
    opened = open_backend(backend, TRUNK, tasks, precision="float32", trained=None, deterministic=deterministic)
    ours, expected = (each.run(plan, batch)["brief"] for each in (opened, ReferenceBackend(TRUNK, tasks)))
    assert ours.shape == expected.shape == (3, 11, TRUNK.architecture.width)
    wrong = np.abs(ours - expected)[batch.mask] > 1e-4
    assert wrong.mean() < (0.02 if name == "codec" else 1e-9)  # a feature may lie on a border of its codec
