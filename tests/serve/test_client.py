"""The Python client, alone and from coroutines: answers, errors, retries, time limits, and calls that are given up."""

import asyncio
import http.server
import json
import subprocess
import sys
import threading
from contextlib import contextmanager

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the server's packages are not installed: pip install polyhead")

from polyhead import Passage, Question, errors
from polyhead.client import AsyncClient, Client
from polyhead.client.client import predict_body
from polyhead.client.connection import Call
from polyhead.engine.queue import QueueLimits
from polyhead.serve.settings import ServeSettings
from polyhead.values import few_digits
from support.client_server import SECONDS, TASKS, TEXTS, as_json, running, tiny_server_bundle, wait_until

INPUTS = [
    TEXTS[0],
    (TEXTS[1], TEXTS[2]),
    Question(text="where is it?", options=("the box", "the phone"), context="anna is late"),
    Passage(question="who is late?", context="anna is late"),
    {"text": TEXTS[3]},
]
AS_READ = [*INPUTS[:-1], TEXTS[3]]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running(tiny_server_bundle(tmp_path_factory.mktemp("b") / "b")) as server:
        yield server


@pytest.fixture
def client(server):
    with Client(server.url, timeout=SECONDS) as client:
        yield client


@contextmanager
def scripted(*replies):
    """A server that gives these answers in turn: (status, headers, body), or None to hang up; what it was asked."""
    asked, left = [], list(replies)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            asked.append((self.path, dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
            reply = left.pop(0) if left else None
            if callable(reply):
                reply = reply()
            if reply is None:
                self.close_connection = True
                return
            status, headers, body = reply
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_address[1]}", asked
        finally:
            listening.shutdown()
            thread.join()


BUSY = (429, {"Retry-After": "1"}, b'{"error":{"type":"Overloaded","message":"too much waits to be answered."}}')
NOTHING = (200, {}, b'{"results":[],"versions":{},"trunk":"","receipt":{}}')


def test_answers_are_the_session_s_for_every_form_of_input(client, server):
    prediction = client.predict(INPUTS)
    for result, own in zip(prediction.results, server.session.predict(AS_READ), strict=True):
        assert result.answers == few_digits(as_json(own.answers)) and result.skipped == own.skipped
        assert (result.failed, result.late) == ({}, ())
        assert result.receipt["passes"] == own.receipt.passes
    assert prediction.trunk == server.session.bundle.digest and prediction.versions["mood"].version == "v0001"
    assert prediction.receipt["passes"] == sum(result.receipt["passes"] for result in prediction.results)


def test_one_input_needs_no_list(client):
    for alone in ("good", {"text": "good"}, Passage(question="when was it late?", context="it was late on monday")):
        (result,), (own,) = client.predict(alone).results, client.predict([alone]).results
        assert result.answers == own.answers and result.answers
    with client.stream("good", tasks=["mood"]) as stream:
        assert [list(part.answers) for part in stream] == [[0]]


def test_some_tasks_are_asked_by_name(client):
    (result,) = client.predict(["good"], tasks=["mood", "urgency"]).results
    assert set(result.answers) == {"mood", "urgency"}


def test_a_stream_gives_each_answer_once_and_then_the_rest(client, server):
    with client.stream(TEXTS, tasks=["mood", "names"]) as stream:
        parts = list(stream)
    told = [(part.task, number) for part in parts for number in part.answers]
    assert sorted(told) == [(name, number) for name in ("mood", "names") for number in range(4)]
    own = few_digits(as_json([each.answers for each in server.session.predict(TEXTS, tasks=["mood", "names"])]))
    assert all(part.answers[number] == own[number][part.task] for part in parts for number in part.answers)
    assert stream.end.versions["mood"].version == "v0001" and stream.end.receipt["passes"] == 4
    assert len(client._connections._idle) == 1  # kept for the next call


def test_tasks_are_described(client):
    listed = {task.name: task for task in client.tasks()}
    assert set(listed) == set(TASKS) and listed["mood"].task["labels"] == ["bad", "good"]
    assert listed["mood"].version == "v0001" and client.task("mood").path is not None


def test_vectors_are_those_of_embeddings(client, server):
    from support.client_server import posted

    vectors = client.embed(TEXTS)
    _, _, own = posted(f"{server.url}/v1/embeddings", {"input": TEXTS})
    assert vectors.dtype == np.float32 and vectors.tolist() == [each["embedding"] for each in own["data"]]
    assert client.embed(TEXTS[:1], dimensions=3).shape == (1, 3)


def test_errors_are_those_of_the_server_word_for_word(client, server):
    with pytest.raises(errors.UnknownTask) as told:
        client.predict(["good"], tasks=["moods"])
    with pytest.raises(errors.UnknownTask) as own:
        server.service.named(["moods"])
    assert str(told.value) == str(own.value) and told.value.what == own.value.what
    assert told.value.do == "did you mean 'mood'?" and told.value.status == 404
    with pytest.raises(errors.EmptyData, match="holds no input"):
        client.predict([])
    with pytest.raises(errors.BadValue, match="input 0: this is not an input"):
        client.predict([{"words": "good"}])
    with pytest.raises(errors.UnknownTask):
        list(client.stream(["good"], tasks=["moods"]))


def test_inputs_that_no_server_reads_are_refused_here(client):
    for given, reason in (
        (b"good", "come in a list"),
        ([3], "input 0 is none that can be sent"),
        (("good", "bad"), "may be a pair"),
    ):
        with pytest.raises(errors.BadValue, match=reason):
            client.predict(given)
    with pytest.raises(errors.BadValue, match="tasks come in a list"):
        client.predict(["good"], tasks="mood")


def test_lone_surrogates_are_replaced_one_for_one(client, server):
    text = "anna \ud800 \U0001f600 is late"
    (result,) = client.predict([text], tasks=["names"]).results
    assert [result.answers["names"]] == server.replies("names", [text.replace("\ud800", "\ufffd")])


def test_neighbouring_surrogates_are_replaced_one_for_one(client, server):
    text = "\ud83d\ude00 anna \ud800 is late"  # two characters of Python, of which UTF-16 would make one
    (result,) = client.predict([text], tasks=["names"]).results
    replaced = text.translate(dict.fromkeys(range(0xD800, 0xE000), "\ufffd"))
    assert [result.answers["names"]] == server.replies("names", [replaced])
    assert json.loads(predict_body([text], None, None))["inputs"] == [replaced]
    body = json.loads(predict_body([{"tokens": np.array(["a", "\ud800"])}], None, None))
    assert body["inputs"] == [{"tokens": ["a", "\ufffd"]}]


def test_texts_of_numpy_are_texts(client):
    texts = np.array(TEXTS)
    question = Question(text=texts[0], options=(texts[1], texts[2]), context=texts[3])
    sent = [*texts, tuple(texts[:2]), question, Passage(question=texts[0], context=texts[1]), {"text": texts[3]}]
    question = Question(text=TEXTS[0], options=(TEXTS[1], TEXTS[2]), context=TEXTS[3])
    plain = [*TEXTS, tuple(TEXTS[:2]), question, Passage(question=TEXTS[0], context=TEXTS[1]), {"text": TEXTS[3]}]
    results = zip(client.predict(sent).results, client.predict(plain).results, strict=True)
    assert all(result.answers == own.answers for result, own in results)
    assert client.predict(texts[2], tasks=np.array(["mood"])).results[0].answers.keys() == {"mood"}
    assert client.embed(texts).tolist() == client.embed(TEXTS).tolist()


def test_numbers_that_are_none_are_refused_as_a_session_refuses_them(client, server):
    for number in (float("nan"), np.array(np.nan), 10**400):
        for wish in ({"deadline": number}, {"none_below": number}, {"none_below": {"mood": number}}):
            for asked in (server.session.predict, client.predict, client.stream):
                with pytest.raises(errors.BadValue, match=next(iter(wish))):
                    asked(["good"], **wish)


def test_the_bundles_of_a_set_are_told():
    body = json.dumps({"results": [], "bundles": {"cheap": "a", "deep": "b"}}).encode()
    line = b'{"task":"mood","answers":{},"layers_left":0,"bundle":"cheap"}\n'
    with scripted((200, {}, body), (200, {}, line + body)) as (url, _), Client(url) as client:
        assert client.predict(["good"]).bundles == {"cheap": "a", "deep": "b"}
        with client.stream(["good"]) as stream:
            assert [part.bundle for part in stream] == ["cheap"] and stream.end.bundles["deep"] == "b"


def test_a_busy_server_is_asked_again_when_it_says():
    waited, call = [], Call()
    call.is_aborted.wait = lambda seconds: waited.append(seconds) or False
    later = (429, {"Retry-After": "7"}, BUSY[2])
    with scripted(BUSY, later, NOTHING) as (url, asked), Client(url) as client:
        assert client.predict(["good"], call=call).results == []
        assert len(asked) == 3 and waited == [1.0, 7.0]


def test_a_stream_that_ends_before_its_end_is_an_error():
    line = b'{"task":"mood","answers":{"0":{"label":"good"}},"layers_left":0}\n'
    with scripted((200, {}, line), (200, {}, b"no json\n")) as (url, _), Client(url) as client:
        parts = iter(client.stream(["good"]))
        assert next(parts).answers == {0: {"label": "good"}}
        with pytest.raises(errors.BackendError, match="stopped before its answer was whole"):
            next(parts)
        with client.stream(["good"]) as stream, pytest.raises(errors.BackendError, match="is none of a server"):
            list(stream)


def test_an_error_within_a_stream_is_raised_there():
    line = b'{"error":{"type":"BackendError","message":"the queue was closed."}}\n'
    with scripted(BUSY, (200, {}, line)) as (url, asked), Client(url) as client:
        with client.stream(["good"]) as stream, pytest.raises(errors.BackendError, match="the queue was closed"):
            list(stream)
        assert len(asked) == 2  # a busy server is asked again here too


def test_a_server_that_stays_busy_is_told_with_when_to_ask():
    with scripted(BUSY, BUSY) as (url, asked), Client(url, retries=0) as client:
        with pytest.raises(errors.Overloaded, match="too much waits") as told:
            client.predict(["good"])
        assert told.value.retry_after == 1.0 and told.value.status == 429 and len(asked) == 1


def test_a_wait_that_is_longer_than_the_time_limit_is_not_begun():
    with scripted((429, {"Retry-After": "3600"}, BUSY[2])) as (url, asked), Client(url, timeout=60) as client:
        with pytest.raises(errors.Overloaded) as told:
            client.predict(["good"])
        assert told.value.retry_after == 3600.0 and len(asked) == 1


def test_no_answer_within_the_time_limit_is_an_error():
    going = threading.Event()
    with scripted(lambda: going.wait(SECONDS) and None) as (url, _), Client(url, timeout=0.2) as client:
        with pytest.raises(errors.BackendError, match="gave no answer in 0.2 seconds"):
            client.predict(["good"])
        going.set()


def test_a_kept_connection_that_the_server_closed_is_replaced():
    with scripted(NOTHING, None, NOTHING, None) as (url, asked), Client(url) as client:
        client.predict(["good"])
        client.predict(["good"])  # the first try finds the connection closed
        assert len(asked) == 3
        client.close()
        with pytest.raises(errors.BackendError, match="no server answers"):  # a new one that is closed is an error
            client.predict(["good"])


def test_no_server_and_no_address_are_told():
    with scripted() as (url, _):
        pass
    with Client(url) as client, pytest.raises(errors.BackendError, match="no server answers at .* `polyhead serve`"):
        client.predict(["good"])
    with pytest.raises(errors.ConfigError, match="no address of a server"):
        Client("ftp://here")
    with pytest.raises(errors.ConfigError, match="limits are too small"):
        Client("here:8000", timeout=0)


@pytest.mark.parametrize(
    "status, kind", [(502, errors.BackendError), (404, errors.PolyheadError)], ids=["gateway", "other"]
)
def test_an_answer_of_something_else_is_shown_in_part(status, kind):
    with scripted((status, {}, b"<html>" + b"x" * 1000)) as (url, _), Client(url) as client:
        with pytest.raises(kind, match="status 50?" if status == 502 else "status 404") as told:
            client.predict(["good"])
        assert "<html>xxx" in str(told.value) and len(str(told.value)) < 400


def test_an_answer_of_another_form_is_an_error():
    with (
        scripted((200, {}, b'{"answer": 1}')) as (url, _),
        Client(url) as client,
        pytest.raises(errors.BackendError, match="answers otherwise than a server of polyhead"),
    ):
        client.predict(["good"])


def test_the_key_is_sent_as_a_bearer_token():
    wrong = (401, {}, b'{"error":{"type":"HttpError","message":"the key is not known."}}')
    with scripted(NOTHING, wrong) as (url, asked), Client(f"{url}/behind/", key="secret") as client:
        client.predict(["good"])
        assert asked[0][0] == "/behind/v1/predict" and asked[0][1]["Authorization"] == "Bearer secret"
        with pytest.raises(errors.ConfigError, match="the key is not known"):
            client.predict(["good"])


def test_what_a_later_server_adds_is_left_out():
    body = json.dumps({"results": [{"answers": {}, "new": 1}], "versions": {"a": {"new": 1}}, "new": 1}).encode()
    with scripted((200, {}, body)) as (url, _), Client(url) as client:
        assert client.predict(["good"]).results[0].answers == {}


def test_threads_share_a_client_and_connections_are_kept(server, client):
    texts = [f"{text} {number}" for number in range(8) for text in TEXTS]
    found = [None] * len(texts)

    def ask(number):
        found[number] = client.predict([texts[number]], tasks=["mood"]).results[0].answers["mood"]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert found == server.replies("mood", texts)
    kept = len(client._connections._idle)
    client.predict(["good"])
    assert len(client._connections._idle) == kept <= len(texts)


def test_coroutines_get_the_same(server):
    async def asked():
        async with AsyncClient(server.url, timeout=SECONDS) as client:
            predictions = await asyncio.gather(*(client.predict([text], tasks=["mood"]) for text in TEXTS))
            async with client.stream(TEXTS, tasks=["mood"]) as stream:
                parts = [part async for part in stream]
            names = [task.name for task in await client.tasks()]
            vectors = await client.embed(TEXTS)
            with pytest.raises(errors.UnknownTask, match="moods"):
                await client.task("moods")
            return predictions, parts, stream.end, names, vectors

    predictions, parts, end, names, vectors = asyncio.run(asked())
    own = server.replies("mood", TEXTS)
    assert [each.results[0].answers["mood"] for each in predictions] == own
    assert {number: answer for part in parts for number, answer in part.answers.items()} == dict(enumerate(own))
    assert end.receipt["passes"] == 4 and names == list(TASKS) and vectors.shape == (4, 16)


def test_a_cancelled_call_is_dropped_by_the_server(server):
    async def asked():
        async with AsyncClient(server.url, timeout=SECONDS) as client:
            task = asyncio.ensure_future(client.predict(["good"] * 3))
            await asyncio.to_thread(wait_until, lambda: server.service.queue.waiting == 3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    with server.stalled():
        asyncio.run(asked())
        wait_until(lambda: all(ticket.is_cancelled for ticket in server.waiting()))
    wait_until(lambda: server.service.queue.is_idle)
    assert server.batches == []


def test_a_stream_that_is_not_read_to_its_end_frees_its_connection(server):
    async def asked():
        async with AsyncClient(server.url, timeout=SECONDS) as client:
            stream = client.stream(["good"], tasks=["mood"])
            reading = asyncio.ensure_future(anext(aiter(stream)))
            await asyncio.to_thread(wait_until, lambda: server.service.queue.waiting == 1)
            reading.cancel()
            await stream.aclose()
            assert stream.end is None and client._client._connections._idle == []

    with server.stalled():
        asyncio.run(asked())


def test_an_overloaded_server_is_told_from_end_to_end(tmp_path):
    settings = ServeSettings(queue=QueueLimits(waiting_inputs=2))
    with running(tiny_server_bundle(tmp_path / "b", "mood"), settings=settings) as server:
        with server.stalled(), Client(server.url, retries=0, timeout=SECONDS) as client:
            server.service.queue.submit(["good"] * 2, lambda _: None)
            with pytest.raises(errors.Overloaded, match="too much waits") as told:
                client.predict(["good"])
        assert told.value.retry_after >= 1


def test_importing_the_client_loads_little():
    """No array library, no HTTP, no event loop: a process that asks once is not kept waiting."""
    code = (
        "import sys, polyhead.client\n"
        "heavy = {'torch', 'transformers', 'numpy', 'tokenizers', 'http.client', 'ssl', 'asyncio', 'polyhead.values'}\n"
        "print(sorted(heavy & set(sys.modules)), len(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("[]"), done.stdout
