"""A backend is one file: registered from outside, it passes every check and answers in sessions."""

from functools import partial

import pytest

from polyhead.bundle.read import Bundle
from polyhead.engine.backends import BACKENDS, BackendKind, open_backend, open_runtime, register_backend
from polyhead.engine.probes import Numerics, numerics_of
from polyhead.engine.session import Session
from polyhead.errors import BackendError, ConfigError
from polyhead.project.strategies import Pooled
from polyhead.testing import tiny_trunk, yield_backend_checks
from polyhead.testing.strategies import TEXTS, tiny_bundle, tiny_paths

with BACKENDS.temporary():
    from one_file.backend import Counting, CountingBackend

    register_backend(Counting())
    CHECKS = list(yield_backend_checks("counting", partial(open_backend, "counting")))


@pytest.fixture(scope="module", autouse=True)
def registered():
    """The backend is known as long as these tests run."""
    with BACKENDS.temporary():
        register_backend(Counting())
        yield


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    pytest.importorskip("torch")
    trunk = tiny_trunk()
    return tiny_bundle(tmp_path_factory.mktemp("backend") / "b", trunk, tiny_paths(Pooled(codec="float32"), trunk))


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_it_passes_every_check(check):
    check.run()


def test_a_session_opens_it_by_its_name(bundle):
    session = Session(bundle, backend="counting", deterministic=True)
    answers = [result.answers for result in session.predict(list(TEXTS))]
    wanted = Session(bundle, backend="reference", deterministic=True).predict(list(TEXTS))
    assert answers == [result.answers for result in wanted]
    assert isinstance(session.backend, CountingBackend)
    assert sum(session.backend.batches) >= len(TEXTS)


def test_what_it_computes_with_is_said(bundle):
    session = Session(bundle, backend="counting")
    assert numerics_of(session) == Numerics(backend="counting", precision="float32", version=session.backend.version)
    label = BACKENDS["counting"].label()
    assert list(label) == ["numpy", "threads"]
    assert not BACKENDS["counting"].has_bfloat16


def test_what_it_cannot_do_is_refused_by_name(bundle):
    with pytest.raises(BackendError, match="the counting backend cannot run the trunk in bfloat16.*float32"):
        Session(Bundle.open(bundle.root), backend="counting", precision="bfloat16")
    with pytest.raises(BackendError, match="'counting' compiles no graphs.*openvino, onnxruntime"):
        open_runtime("counting")


def test_a_name_stands_for_one_backend():
    class Other(Counting):
        pass

    register_backend(Counting())  # the same one again
    with pytest.raises(ConfigError, match="there is a backend 'counting' already"):
        register_backend(Other())
    assert isinstance(BACKENDS["counting"], BackendKind)
