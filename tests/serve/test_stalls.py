"""No request, answered or refused, keeps the event loop from the others: all long work is done in other threads.

The first tier looks in which thread long work is done; the second measures the processor time of the loop's own thread,
which other work of the machine hardly changes. The time by the clock is measured by `benchmarks/silent_stalls.py`.
"""

import asyncio
import tempfile
import threading
from pathlib import Path
from time import thread_time

import pytest

from benchmarks.stall_bodies import path_of, sent_to
from polyhead.serve.app import application
from polyhead.serve.formats import own
from polyhead.serve.settings import ServeSettings
from polyhead.text.tokenize import Tokenizer
from support.loopback_server import service_of, tiny_root

MOST = 0.05  # seconds
ADDRESS = ("127.0.0.1", 8000)


@pytest.fixture
def longest(monkeypatch):
    """The longest time that a callback of the event loop took, since this list was cleared."""
    times, run = [], asyncio.Handle._run

    def measured(self):
        began = thread_time()
        run(self)
        times.append(thread_time() - began)

    monkeypatch.setattr(asyncio.Handle, "_run", measured)
    return times


async def asked(app, method, sent, path):
    """The status of a request, whose body comes as a server's own parts of it do."""
    address, _, query = (sent.path or path_of(path)).partition("?")
    headers = [(b"host", b"127.0.0.1"), *((name.lower().encode(), value.encode()) for name, value in sent.headers)]
    scope = {
        "type": "http", "method": method, "path": address, "raw_path": address.encode(), "headers": headers,
        "query_string": query.encode(), "client": ADDRESS, "server": ADDRESS, "root_path": "", "scheme": "http",
    }  # fmt: skip
    parts = [sent.content[start : start + 65_536] for start in range(0, len(sent.content), 65_536)] or [b""]
    statuses = []

    async def receive():
        await (asyncio.sleep(0) if parts else asyncio.Event().wait())  # the caller stays until it is answered
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message):
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app(scope, receive, send)
    return statuses[0]


@pytest.fixture
def service():
    with tempfile.TemporaryDirectory() as folder:
        yield service_of(
            tiny_root(Path(folder) / "b"), ServeSettings(admin=True, unknown="similarity", watch_seconds=0, timeout=500)
        )


def test_large_bodies_are_read_and_tokenized_in_other_threads(service, monkeypatch):
    """The largest body that `/v1/predict` answers."""
    threads, read, encoded = [], own.json_value, Tokenizer._encoded

    def reading(body, decoder):
        threads.append(("read", threading.get_ident()))
        return read(body, decoder)

    def encoding(self, texts, **more):
        threads.append(("tokenized", threading.get_ident()))
        return encoded(self, [text[:100] for text in texts], **more)

    monkeypatch.setattr(own, "json_value", reading)
    monkeypatch.setattr(Tokenizer, "_encoded", encoding)

    async def scenario():
        await service.start()
        bodies = [each for each in sent_to("POST", "/v1/predict") if not each.name.startswith("refused")]
        sent = max(bodies, key=lambda each: len(each.content))
        assert await asked(application(service), "POST", sent, "/v1/predict") == 200
        await service.stop()
        return threading.get_ident()

    loop = asyncio.run(scenario())
    assert {what for what, _ in threads} == {"read", "tokenized"}
    assert loop not in {thread for _, thread in threads}


@pytest.mark.slow
def test_no_request_to_any_route_keeps_the_event_loop(service, longest, monkeypatch):
    """Every route of the server's own table; one that has no bodies in `stall_bodies` fails.

    Of each text the tokenizer reads a beginning alone, in threads of its own: it is not what is measured.
    """
    encoded, app, stalls, statuses = Tokenizer._encoded, application(service), {}, {}
    monkeypatch.setattr(
        Tokenizer, "_encoded", lambda self, texts, **more: encoded(self, [text[:1000] for text in texts], **more)
    )

    async def scenario():
        await service.start()
        for route in app.routes:
            for method in sorted(route.methods - {"HEAD"}):
                for sent in sent_to(method, route.path):
                    await asyncio.sleep(0)  # what was made here is not counted
                    longest.clear()
                    status = await asked(app, method, sent, route.path)
                    await asyncio.sleep(0)
                    key = (method, route.path, sent.name)
                    statuses[key], stalls[key] = status, max(longest)
        await service.stop()

    asyncio.run(scenario())
    assert len(stalls) > 150
    assert {key: seconds for key, seconds in stalls.items() if seconds > MOST} == {}
    wrong = {key for key, status in statuses.items() if key[2].startswith("refused") != (400 <= status < 500)}
    assert {key for key in wrong if key[0] == "POST" and key[1] not in NOT_ANSWERED} == set()


NOT_ANSWERED = ("/v2/repository/models/{name}/{change}", "/v2/{rest:path}", "/v1/tasks/{name}/shadow/promote")
