"""The torch backend: what fails in the layers of one task fails it alone."""

import gc
import weakref

import pytest

pytest.importorskip("torch")

import torch

from polyhead.deep import backend as backend
from polyhead.deep.nn.runtime import deterministic
from polyhead.deep.nn.trunk import Trunk
from polyhead.engine.probes import numerics_of
from polyhead.engine.session import Session
from polyhead.errors import BackendError, PlanError
from polyhead.project.strategies import Adapter, Branch, InLayer, Pooled, Prompted
from polyhead.tasks.task import owner_of
from polyhead.testing import tiny_trunk
from polyhead.testing.strategies import tiny_bundle
from support.models import paths_of

TEXTS = ["where is my order?", "the lamp is broken and late", "good"]
TRUNK = tiny_trunk()
OWN = {
    "private layers": Branch(layers=1),
    "adapters": InLayer(adapters=(Adapter(delta="lora", size=2),)),
    "prompts": Prompted(isolated=True),
}


def opened(root, strategy, *, deterministic=False):
    """A session whose tasks "mood" and "topics" go ways of their own, beside one on the plain trunk."""
    tiny_bundle(root, TRUNK, paths_of(TRUNK, [strategy, strategy, Pooled()], "mood", "topics", "urgency"))
    return Session(root, backend="torch", precision="float32", deterministic=deterministic)


def broken(session, *names):
    """The private layers, adapters and prompts of these tasks are gone."""
    for name in names:
        del session.backend._loaded.model._parts[owner_of(session.tasks[name])]


@pytest.mark.parametrize("deterministic", [False, True], ids=["stacked", "deterministic"])
@pytest.mark.parametrize("own", OWN)
def test_what_fails_in_the_layers_of_one_task_fails_it_alone(tmp_path, own, deterministic):
    """It took every task of the call with it."""
    session = opened(tmp_path / "b", OWN[own], deterministic=deterministic)
    whole = session.predict(TEXTS)
    broken(session, "mood")
    found = session.predict(TEXTS)
    for one, other in zip(found, whole, strict=True):
        assert set(one.answers) == {"topics", "urgency"} and set(one.failed) == {"mood"}
        assert one.failed["mood"].startswith("no part here owns")
        assert one.answers["topics"]["labels"] == other.answers["topics"]["labels"]
        for name in ("topics", "urgency"):
            assert numbers(one.answers[name]) == pytest.approx(numbers(other.answers[name]), abs=1e-5)
    early = [one.task for one in session.stream(TEXTS)]
    assert sorted(early) == ["topics", "urgency"]


def numbers(answer):
    return [answer["value"]] if "value" in answer else list(answer["scores"].values())


def test_what_fails_for_all_tasks_is_raised_as_it_came(tmp_path, monkeypatch):
    session = opened(tmp_path / "b", OWN["private layers"])
    broken(session, "mood", "topics")
    for names in (["mood"], ["mood", "topics"]):
        with pytest.raises(PlanError, match="no part here owns"):
            session.predict(TEXTS, tasks=names)
    (result, *_) = session.predict(TEXTS)
    assert set(result.answers) == {"urgency"} and set(result.failed) == {"mood", "topics"}

    def start(*given, **more):
        raise MemoryError("no room")

    monkeypatch.setattr(Trunk, "start", start)
    with pytest.raises(MemoryError, match="no room"):
        session.predict(TEXTS)


def test_what_fails_in_a_later_layer_takes_no_earlier_answer_back(tmp_path):
    """The rest is asked alone: of it those that can be computed are answered."""
    session = opened(tmp_path / "b", OWN["private layers"])
    whole = session.predict(TEXTS)
    broken(session, "mood")
    stream, seen = session.stream(TEXTS), {}
    for early in stream:
        seen[early.task] = early.answers
    assert seen.keys() == {"topics", "urgency"} and len(seen["urgency"]) == len(TEXTS)
    for row, answer in seen["topics"].items():
        assert numbers(answer) == pytest.approx(numbers(whole[row].answers["topics"]), abs=1e-5)
    columns = stream.columns()
    assert {name for name, column in columns.tasks.items() if column.failed} == {"mood"}
    assert columns["mood"].failed.keys() == {0, 1, 2} and isinstance(columns["mood"].errors[0], PlanError)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a graphics processor")
def test_without_a_graphics_processor_the_backend_for_it_is_refused(tmp_path):
    opened(tmp_path / "b", OWN["private layers"])
    with pytest.raises(BackendError, match="torch-cuda backend needs a graphics.*--backend torch"):
        Session(tmp_path / "b", backend="torch-cuda")


def test_failed_columns_that_are_kept_keep_no_model(tmp_path):
    """The frames of an error held the model and the states of its batch."""
    session = opened(tmp_path / "b", OWN["private layers"])
    broken(session, "mood")
    columns, model = session.columns(TEXTS), weakref.ref(session.backend._loaded.model)
    assert columns["mood"].errors
    session.detach("mood")
    gc.collect()
    assert model() is None


def test_what_is_left_runs_task_by_task_until_the_deadline(tmp_path, monkeypatch):
    """Failed layers are not run for all tasks before the clock is read again."""
    session = opened(tmp_path / "b", OWN["private layers"])
    broken(session, "mood", "topics")
    stream = session.stream(TEXTS, tasks=["urgency", "topics", "mood"], deadline=60)
    assert next(stream).task == "urgency"
    monkeypatch.setattr(type(stream._request), "is_late", True)
    assert list(stream) == []
    late = {name: column.late for name, column in stream.columns().tasks.items()}
    assert late == {"urgency": (), "topics": (0, 1, 2), "mood": (0, 1, 2)}


def test_the_backend_for_cuda_is_labelled_as_such(tmp_path, monkeypatch):
    """Here its device is the processor."""
    opened(tmp_path / "b", OWN["adapters"])
    monkeypatch.setattr(backend, "_device", lambda device: torch.device("cpu"))
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    session = Session(tmp_path / "b", backend="torch-cuda", precision="float32")
    assert numerics_of(session).backend == session.backend.name == "torch-cuda"
    plain = Session(tmp_path / "b", backend="torch", precision="float32")
    assert [one.answers for one in session.predict(TEXTS)] == [one.answers for one in plain.predict(TEXTS)]
    with pytest.raises(BackendError, match="export CUBLAS_WORKSPACE_CONFIG=:4096:8"):
        Session(tmp_path / "b", backend="torch-cuda", deterministic=True)


def test_equal_bits_are_asked_of_torch_while_any_thread_wants_them():
    """One that left switched the mode off for another, or left it on for good."""
    first, second = deterministic(), deterministic()
    before = torch.get_deterministic_debug_mode()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert torch.get_deterministic_debug_mode() == 2
    second.__exit__(None, None, None)
    assert torch.get_deterministic_debug_mode() == before


def test_a_card_is_given_larger_batches_and_answers_alike(tmp_path, monkeypatch):
    opened(tmp_path / "b", OWN["adapters"])
    monkeypatch.setattr(backend, "_device", lambda device: torch.device("cpu"))
    monkeypatch.setattr("polyhead.engine.batch.TOKEN_BUDGET", 16)
    asked, prepared = [], backend.TorchBackend._prepared
    monkeypatch.setattr(
        backend.TorchBackend, "_prepared", lambda own, *given: asked.append(own.name) or prepared(own, *given)
    )
    sessions = [Session(tmp_path / "b", backend=name, precision="float32") for name in ("torch", "torch-cuda")]
    answers, others = (session.predict(TEXTS * 6) for session in sessions)
    assert asked.count("torch") > 2 * asked.count("torch-cuda") > 0
    for one, other in zip(answers, others, strict=True):
        for task in sessions[0].tasks:
            assert numbers(one.answers[task]) == pytest.approx(numbers(other.answers[task]), abs=1e-5)
