"""Which backend is opened: one that is ready made computes as it was made, or not at all."""

import importlib.util

import pytest

from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.write import Draft, add_tasks
from polyhead.engine import backends
from polyhead.engine.probes import Numerics, numerics_of
from polyhead.engine.session import Session
from polyhead.errors import BackendError
from polyhead.plan import Pool
from polyhead.testing import tiny_part, tiny_path, tiny_tasks, tiny_trunk
from polyhead.testing.strategies import tiny_bundle
from support.numpy_graphs import NumpyRuntime


@pytest.fixture
def bundle(tmp_path):
    trunk = tiny_trunk()
    return tiny_bundle(tmp_path / "b", trunk, {"mood": tiny_path(tiny_tasks()[0], trunk, pool=Pool())})


@pytest.mark.parametrize("precision", ["int8", "bfloat16"])
def test_another_precision_than_that_of_a_given_runtime_is_refused(bundle, precision):
    """It was ignored: float32 answered where int8 was asked."""
    runtime = NumpyRuntime()
    with pytest.raises(BackendError, match=f"numpy runtime.*Got: {precision}.*Allowed: float32"):
        Session(bundle, backend=runtime, precision=precision)
    assert not runtime.compiled


@pytest.mark.parametrize("precision", [None, "float32"])
def test_a_given_runtime_computes_in_its_own_precision(bundle, precision):
    session = Session(bundle, backend=NumpyRuntime(), precision=precision)
    assert session.predict(["good"])[0].answers
    assert numerics_of(session) == Numerics(backend="numpy", precision="float32")


def test_a_given_runtime_answers_tasks_that_were_trained_in_several_precisions(tmp_path):
    """It was told to say which precision is to answer, which a runtime does; int8 could not be calibrated."""
    trunk, tasks = tiny_trunk(), {task.name: task for task in tiny_tasks()}
    write_bundle(tmp_path / "b", trunk)
    for name, precision in (("mood", "bfloat16"), ("topics", "float32")):
        path = tiny_path(tasks[name], trunk, pool=Pool())
        record = TaskRecord(
            task=tasks[name], path=path, trunk=trunk.digest, trained_with={"numerics": {"precision": precision}}
        )
        arrays = tiny_part(path, trunk.architecture, path.head.part)
        add_tasks(tmp_path / "b", [Draft(record=record, arrays=arrays, scores={}, probes=[], card="")])
    with pytest.raises(BackendError, match="of different precisions"):
        Session(tmp_path / "b", backend="reference")
    session = Session(tmp_path / "b", backend=NumpyRuntime())
    assert set(session.predict(["good"])[0].answers) == {"mood", "topics"}
    session.refresh()


def test_a_folder_of_a_packages_name_is_no_package(tmp_path, monkeypatch):
    """Python started beside a folder `openvino` finds a namespace of that name."""
    (tmp_path / "lamps_and_kettles").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert importlib.util.find_spec("lamps_and_kettles") is not None
    assert not backends.is_installed("lamps_and_kettles") and backends.is_installed("numpy")
