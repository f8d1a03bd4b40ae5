"""A queue over a backend with several streams: batches run at once, and answers are those of one stream."""

import threading

import pytest

from polyhead.bundle.create import write_bundle
from polyhead.cli import serve
from polyhead.engine.compile.compiled import COMPILED
from polyhead.engine.queue import Queue
from polyhead.engine.session import Session
from polyhead.engine.tickets import SharedBatch
from polyhead.errors import BackendError
from polyhead.plan import Pool
from polyhead.serve.settings import ServeSettings
from polyhead.testing import tiny_path, tiny_tasks, tiny_trunk
from polyhead.testing.strategies import add_tiny

STREAMS = 2
TEXTS = [f"where is my order {number}?" for number in range(8)]


@pytest.fixture
def session(tmp_path):
    trunk = tiny_trunk()
    write_bundle(tmp_path / "b", trunk)
    task = next(task for task in tiny_tasks() if task.name == "mood")
    add_tiny(tmp_path / "b", trunk, task, tiny_path(task, trunk, pool=Pool()), seed=1)
    opened = Session(tmp_path / "b", backend="reference", deterministic=True)
    opened.backend.streams = STREAMS
    return opened


@pytest.fixture
def runs(monkeypatch):
    """The texts of each batch that ran, and its thread; batches wait for each other until so many run at once."""
    ran, meet, run = [], threading.Barrier(STREAMS), SharedBatch.run

    def met(batch, deliver):
        meet.wait(30)
        ran.append((threading.get_ident(), [text for entry in batch.inputs for text in entry]))
        return run(batch, deliver)

    monkeypatch.setattr(SharedBatch, "run", met)
    return ran


def test_idle_streams_share_what_one_call_brings_and_run_at_once(session, runs):
    queue = Queue(session)
    answers = queue.answers(TEXTS)
    queue.close()
    assert len({thread for thread, _ in runs}) == len(runs) == STREAMS
    assert sorted(text for _, texts in runs for text in texts) == sorted(TEXTS)
    assert [len(texts) for _, texts in runs] == [len(TEXTS) // STREAMS] * STREAMS
    assert [each.answers for each in answers] == [each.answers for each in session.predict(TEXTS)]


def test_what_is_prepared_is_prepared_on_each_stream(session):
    queue, threads = Queue(session), []
    queue.on_each_stream(lambda: threads.append(threading.get_ident()))
    queue.close()
    assert len(set(threads)) == len(threads) == STREAMS


def test_what_cannot_be_prepared_is_told(session):
    queue = Queue(session)

    def fails():
        raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"):
        queue.on_each_stream(fails)
    assert queue.answers(TEXTS[:1])[0].answers
    queue.close()


@pytest.mark.parametrize("drain", [True, False])
def test_closing_ends_every_stream(session, drain):
    queue = Queue(session)
    futures = []
    for text in TEXTS:
        queue.submit([text], futures.append)
    queue.close(drain=drain)
    assert not any(thread.is_alive() for thread in queue._threads)
    assert len(futures) == len(TEXTS)
    errors = [ticket.error for ticket in futures if ticket.error is not None]
    assert all(isinstance(error, BackendError) for error in errors) and not (drain and errors)


def test_what_waits_is_expected_sooner_with_more_streams(session):
    queue = Queue(session)
    alone = Queue(Session(session.bundle, backend="reference", deterministic=True))
    assert queue.seconds(characters=1000, inputs=10) == pytest.approx(
        alone.seconds(characters=1000, inputs=10) / STREAMS
    )
    queue.close()
    alone.close()


@pytest.mark.parametrize(("cores", "streams"), [(1, 1), (2, 1), (3, 1), (4, 2), (16, 2)])
def test_a_server_has_two_streams_where_each_has_two_processors(tmp_path, monkeypatch, cores, streams):
    pytest.importorskip("openvino", reason="the runtime that has streams")
    monkeypatch.setattr(serve, "processors", lambda: cores)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(COMPILED, "path", None)
    trunk = tiny_trunk()
    write_bundle(tmp_path / "b", trunk)
    task = next(task for task in tiny_tasks() if task.name == "mood")
    add_tiny(tmp_path / "b", trunk, task, tiny_path(task, trunk, pool=Pool()), seed=1)
    how = serve.SetOptions(backend="openvino", precision="float32")
    service = serve.service_of([str(tmp_path / "b")], ServeSettings(), how)
    assert service.session.backend.streams == streams
    found = service.queue.answers(TEXTS, tasks=["mood"])
    alone = Session(tmp_path / "b", backend="openvino", precision="float32").predict(TEXTS, tasks=["mood"])
    assert [each.answers["mood"]["label"] for each in found] == [each.answers["mood"]["label"] for each in alone]
    assert list((tmp_path / "cache" / "polyhead" / "compiled").iterdir())
    service.queue.close()
