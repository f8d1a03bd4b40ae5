"""Rows cut into blocks for layers with a window: every check of backends again, with blocks of few positions."""

from functools import partial

import pytest

from polyhead.encoder import near
from polyhead.engine.backends import open_backend
from polyhead.testing import yield_backend_checks
from support.numpy_graphs import NumpyRuntime

BACKENDS = {"numpy": NumpyRuntime, "torch": lambda: "torch", "onnxruntime": lambda: "onnxruntime"}


@pytest.fixture(params=[4, 7])
def block(request, monkeypatch):
    """Positions of a block; texts of the checks have up to 48, and windows are of 4."""
    monkeypatch.setattr(near, "BLOCK", request.param)
    monkeypatch.setattr(near, "WORTH", 1)
    assert near.block_of(48, 4) in (request.param, request.param + 1) and near.block_of(11, 4) == 11


def make(name, trunk, tasks, *, deterministic=False):
    return open_backend(BACKENDS[name](), trunk, tasks, precision="float32", deterministic=deterministic)


@pytest.mark.parametrize("name", [*BACKENDS])
def test_blocks_pass_every_check_of_backends(name, block):
    for check in yield_backend_checks(name, partial(make, name), family="modernbert"):
        if (
            check.name.startswith("equals the reference, float32")
            or "prompts and adapters" in check.name
            or "alike" in check.name
            or "padding" in check.name
        ):
            check.run()
