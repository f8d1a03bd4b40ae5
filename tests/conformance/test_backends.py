"""Every registered backend passes every check of `polyhead.testing`."""

from contextlib import nullcontext
from functools import partial

import pytest

from polyhead.codecs import EXACT
from polyhead.engine.backends import BACKENDS, open_backend
from polyhead.testing import BATCHES, CODECS, yield_backend_checks, yield_deterministic_checks
from support import compiled_graphs

SLOW = {"openvino": pytest.mark.slow}  # it compiles graph after graph
CODED = tuple(
    f"{check}, {codec}"
    for codec in CODECS
    if codec != EXACT
    for check in ("equals the reference", "answers from kept features as from texts")
)
# Checks of several backends, in either mode, for each of which equal graphs are compiled again.
ANEW = ("gives the same bits twice", "gives the same bits with more tasks, 16 wide")


def make(name, trunk, tasks, *, deterministic=False):
    return open_backend(name, trunk, tasks, precision="float32", deterministic=deterministic)


@pytest.fixture(params=BACKENDS)
def name(request, monkeypatch):
    if request.param == "torch-cuda":
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("torch finds no graphics processor here")
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return request.param


def ran(checks):
    """How many checks there were; all of them hold."""
    count = 0
    for check in checks:
        try:
            with compiled_graphs.anew() if check.name.startswith(ANEW) else nullcontext():
                check.run()
        except Exception as error:
            raise AssertionError(f"{check.tasks}: {check.name}: {error}") from error
        count += 1
    return count


@pytest.mark.parametrize("name", [pytest.param(each, marks=SLOW.get(each, ())) for each in BACKENDS], indirect=True)
def test_backend_passes_one_check_of_each_kind(name):
    """Names of a kind differ behind the first comma: in codecs, batches and widths."""
    checks = {}
    for check in yield_backend_checks(name, partial(make, name)):
        checks.setdefault(check.name.partition(",")[0], check)
    assert ran(checks.values()) >= 10


FORMS = ("mpnet", "modernbert", "deberta-v2", "eurobert", "nomic_bert")  # each has what no other has


@pytest.mark.parametrize("family", ["modernbert", "deberta-v2"])
def test_forms_of_layers_with_prompts_and_adapters_are_computed_alike(family):
    """Of torch and ONNX Runtime; the second tier looks at all of them."""
    for backend in ("torch", "onnxruntime"):
        checks = yield_backend_checks(backend, partial(make, backend), family=family)
        assert ran(check for check in checks if check.name.endswith("prompts and adapters, ragged")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("family", FORMS)
def test_backend_passes_one_check_of_each_kind_over_other_forms_of_layers(name, family):
    checks = {}
    for check in yield_backend_checks(name, partial(make, name), family=family):
        kind = check.name if "prompts and adapters" in check.name else check.name.partition(",")[0]
        checks.setdefault(kind, check)
    assert ran(checks.values()) >= 17


@pytest.mark.slow
@pytest.mark.parametrize("family", FORMS)
def test_no_task_moves_a_bit_of_another_over_other_forms_of_layers(family):
    """On torch, and on ONNX Runtime for the graphs."""
    for backend in ("torch", "onnxruntime"):
        make_one = partial(make, backend, deterministic=True)
        checks = [c for c in yield_deterministic_checks(backend, make_one, family=family) if "384" not in c.name]
        assert ran(checks) == 4


@pytest.mark.slow
def test_backend_passes_every_check(name):
    checks = yield_backend_checks(name, partial(make, name))
    assert ran(checks) == (len(CODECS) + 1) * len(BATCHES) + len(CODECS) + 10 + 6 + 1  # the last: a decoder


@pytest.mark.slow
def test_backend_passes_every_check_in_deterministic_mode(name):
    """But for codecs, which are computed in it as they are without.

    The reference has no other mode. Of OpenVINO only what is equal: the rest lies above what compiles, where graphs of
    ONNX Runtime, which are ready far sooner, are looked at.
    """
    if name == "reference":
        pytest.skip("the reference computes the same in both modes")
    checks = list(yield_backend_checks(name, partial(make, name, deterministic=True)))
    chosen = [check for check in checks if not check.name.startswith(CODED)]
    equal = [check for check in chosen if check.name.startswith("equals the reference")]
    assert (len(chosen), len(equal)) == (2 * len(BATCHES) + 2 + 10 + 6, 2 * len(BATCHES) + 2)
    ran(equal if name == "openvino" else chosen)


@pytest.mark.slow
def test_no_task_moves_a_bit_of_another_in_deterministic_mode(name):
    assert ran(yield_deterministic_checks(name, partial(make, name, deterministic=True))) == 6


def test_backends_that_are_known_are_all_looked_at():
    assert set(BACKENDS) >= {"torch", "torch-cuda", "openvino", "onnxruntime", "reference"}
