"""Connections over real sockets: who is slow, sends without end, or goes away, takes nothing from the others."""

import asyncio
import contextlib
import gc
import json
import select
import socket
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from polyhead.engine.tickets import SharedBatch
from polyhead.serve.connections import Connection, JoinedWrites
from polyhead.serve.settings import ConnectionLimits, RequestLimits, ServeSettings
from support.loopback_server import (
    Clock,
    connected,
    held,
    listening,
    read_all,
    read_answer,
    request_bytes,
    service_of,
    tiny_root,
    until,
)

LIMIT = 1000.0  # seconds by the server's clock, which the tests move on
LIMITS = ConnectionLimits(open=8, header_seconds=LIMIT, body_seconds=LIMIT, header_bytes=4096)
ASKED = {"inputs": "good lamp", "tasks": ["mood"]}


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    root = tiny_root(tmp_path_factory.mktemp("connections") / "b")
    return service_of(root, ServeSettings(limits=RequestLimits(body_bytes=100_000)))


@pytest.fixture(scope="module")
def clock():
    return Clock()


@pytest.fixture(scope="module")
def port(service, clock):
    with listening(service, limits=LIMITS, clock=clock) as own:
        yield own


@pytest.fixture(scope="module")
def patient(service):
    """The port of a server that waits for headers, but not for more than a few thousand bytes."""
    with listening(service, limits=ConnectionLimits(header_bytes=LIMITS.header_bytes)) as own:
        yield own


def _part(own):
    part = own.recv(65536)
    assert part, "the connection was closed"
    return part


def answered(port):
    """A whole request on a connection of its own."""
    with connected(port) as own:
        own.sendall(request_bytes(ASKED, close=True))
        return read_all(own)


def is_readable(own):
    return bool(select.select([own], [], [], 0)[0])


def status(content):
    return int(content.split(b" ", 2)[1])


def body(content):
    return json.loads(content.partition(b"\r\n\r\n")[2])


def test_headers_that_do_not_end_in_time_are_refused(port, clock):
    with connected(port) as own:
        own.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\n")
        clock.advance(LIMIT + 1)
        content = read_all(own)
    assert status(content) == 408 and "took too long" in body(content)["error"]["message"]


def test_headers_that_drip_are_refused_as_well(port, clock):
    """Each byte comes in time, all together do not."""
    with connected(port) as own:
        for byte in b"GET /":
            assert not is_readable(own)
            own.sendall(bytes([byte]))
            clock.advance(LIMIT / 4.5)
        assert status(read_all(own)) == 408


def test_a_connection_that_says_nothing_is_closed(port, service, clock):
    before = service.metrics.refused[408]
    with connected(port) as own:
        clock.advance(LIMIT + 1)
        assert status(read_all(own)) == 408
    assert service.metrics.refused[408] == before + 1


def test_a_body_that_does_not_come_in_time_is_refused(port, clock):
    with connected(port) as own:
        own.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{")
        clock.advance(LIMIT + 1)
        assert status(read_all(own)) == 408
    with connected(port) as own:
        own.sendall(b'POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"inp')
        clock.advance(LIMIT + 1)
        assert status(read_all(own)) == 408


@pytest.mark.slow
def test_many_requests_at_once_are_no_header_without_end(tmp_path):
    """Whole requests of more bytes than headers may have, of which the first and the last arrive in two parts."""
    whole = request_bytes(ASKED)
    limits = ConnectionLimits(header_bytes=1024)
    count = 3 * limits.header_bytes // len(whole)
    with listening(service_of(tiny_root(tmp_path / "b")), limits=limits) as port, connected(port) as own:
        own.sendall(whole[:20])
        select.select([own], [], [], 0.1)
        own.sendall(whole[20:] + whole * (count - 1) + whole[:20])
        content = b""
        while content.count(b"HTTP/1.1 200") < count:
            content += _part(own)
        own.sendall(whole[20:])
        while content.count(b"HTTP/1.1 200") <= count:
            content += _part(own)
    assert content.count(b"HTTP/1.1") == count + 1


def test_headers_without_end_are_refused(patient):
    with connected(patient) as own:
        own.sendall(b"GET /health HTTP/1.1\r\n")
        content = b""
        with contextlib.suppress(OSError):
            for number in range(10_000):
                own.sendall(b"X-%d: " % number + b"a" * 500 + b"\r\n")
        content = read_all(own)
    assert status(content) == 431


@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "begun"])
def test_headers_that_come_at_once_are_counted_too(patient, is_whole):
    """In one read of the socket: what came with a request's first bytes was not counted."""
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: "
    room = LIMITS.header_bytes - len(head)
    with connected(patient) as own:
        own.sendall(head + b"a" * (room - 100) + b"\r\n\r\n")
        assert status(read_answer(own)) == 200
        own.sendall(head + b"a" * (room + 100) + (b"\r\n\r\n" if is_whole else b""))
        content = read_all(own)
    assert status(content) == 431 and body(content)["error"]["allowed"] == "4,096 bytes"


CHUNKED = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("begin", "part"),
    [(b"0\r\n", b"x: a\r\n" * 1000), (b"0\r\nx: ", b"a" * 6000), (b"1;x=", b"a" * 6000)],
    ids=["trailers", "one trailer", "extension"],
)
def test_what_comes_in_place_of_a_body_without_end_is_refused(patient, begin, part):
    """More than one read of the socket holds, of which the first may hold the end of the body too."""
    with connected(patient) as own:
        own.sendall(CHUNKED + begin)
        with contextlib.suppress(OSError):
            for _ in range(100):
                own.sendall(part)
        content = read_all(own)
    assert status(content) == 431 and body(content)["error"]["allowed"] == "4,096 bytes"


def test_a_few_trailers_are_none_too_many(patient):
    content = json.dumps(ASKED).encode()
    with connected(patient) as own:
        own.sendall(CHUNKED + b"%x\r\n%s\r\n0\r\nx: a\r\n\r\n" % (len(content), content))
        assert status(read_answer(own)) == 200


@pytest.mark.parametrize(
    "sent", [b"POST /v1/predict HTTP/1.1\r\nHost", request_bytes(ASKED)[:-5]], ids=["header", "body"]
)
def test_a_caller_that_stops_sending_halfway_is_closed(port, sent):
    with connected(port) as own:
        own.sendall(sent)
        own.shutdown(socket.SHUT_WR)
        assert read_all(own) == b""  # at once: nobody waits for the rest
    assert status(answered(port)) == 200


def test_no_more_connections_than_allowed_are_open(port):
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(connected(port)) for _ in range(LIMITS.open)]
        with connected(port) as another:
            content = read_all(another)
        assert status(content) == 429 and b"retry-after: 1" in content
        opened.pop().close()
        for own in opened:
            own.close()
    assert status(answered(port)) == 200


def test_a_request_on_a_connection_too_many_is_answered_whatever_it_sends(port):
    """The server closes after the caller has its answer: bytes that it never read would have the kernel drop it."""
    large = request_bytes({"inputs": "good lamp" * 5_000, "tasks": ["mood"]})
    with contextlib.ExitStack() as stack:
        for _ in range(LIMITS.open):
            stack.enter_context(connected(port))
        for _ in range(20):
            with connected(port) as another:
                another.sendall(large[:30_000])
                another.sendall(large[30_000:])
                content = read_all(another)
            assert status(content) == 429 and body(content)["error"]["allowed"] == "8"


def test_connections_too_many_are_bounded_and_are_forgotten(port, service):
    """Four times as many are answered as may be open; more are closed at once; then callers are served again."""
    with contextlib.ExitStack() as stack:
        for _ in range(LIMITS.open):
            stack.enter_context(connected(port))
        surplus = [stack.enter_context(connected(port)) for _ in range(4 * LIMITS.open)]
        before = service.metrics.refused[0]
        beyond = stack.enter_context(connected(port))
        with contextlib.suppress(ConnectionError):
            assert beyond.recv(100) == b""
        assert service.metrics.refused[0] == before + 1
        for own in surplus:
            own.sendall(request_bytes(ASKED))
            assert status(read_all(own)) == 429
    assert status(answered(port)) == 200


@pytest.mark.skipif(sys.platform == "win32", reason="limits of open files are the system's own there")
def test_the_limit_of_open_files_follows_that_of_connections():
    """In a process of its own: what a process has lowered it may not have back."""
    script = (
        "import resource\n"
        "from polyhead.serve.run import allow_open_files\n"
        "from polyhead.serve.settings import ConnectionLimits\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4000))\n"
        "for count in (1, 200, 5000):\n"
        "    allow_open_files(ConnectionLimits(open=count))\n"
        "    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["261", "1256", "4000"]  # 5 times and 256 more; never over the hard one


@pytest.mark.slow
def test_a_refused_caller_that_sends_on_is_closed(patient):
    """What it sends is thrown away, for a second."""
    with connected(patient) as own:
        own.sendall(b"GET /health HTTP/1.1\r\n")
        while not select.select([own], [], [], 0.01)[0]:
            own.sendall(b"X: " + b"a" * 500 + b"\r\n")
        assert status(read_answer(own)) == 431
        with pytest.raises(ConnectionError):
            for _ in range(3000):
                own.sendall(b"a" * 1000)
                select.select([], [], [], 0.01)


def test_a_body_is_cut_off_while_it_streams(port, service):
    """Chunks without end, and no declared size; what is beyond the limit is never kept."""
    most = service.settings.limits.body_bytes
    with connected(port) as own:
        own.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        sent = 0
        while not select.select([own], [], [], 0.01)[0] and sent < 40 * most:
            own.sendall(b"2000\r\n" + b"a" * 0x2000 + b"\r\n")
            sent += 0x2000
        content = read_answer(own)
    assert status(content) == 413 and sent < 40 * most
    assert body(content)["error"]["allowed"] == "100,000 bytes"


@pytest.mark.parametrize("part", [65536 * 100, 1024], ids=["steadily", "in drips"])
def test_a_large_body_that_comes_steadily_has_its_time(tmp_path, monkeypatch, part):
    """Parts with pauses take longer than the limit for a body that drips; 64 KiB buy a second."""
    arrived, receive = [0], Connection.data_received

    def counted(connection, data):
        receive(connection, data)
        arrived[0] += len(data)

    monkeypatch.setattr(Connection, "data_received", counted)
    limits, clock = ConnectionLimits(body_seconds=150), Clock()
    settings = ServeSettings(limits=RequestLimits(body_bytes=10 * part))
    service = service_of(tiny_root(tmp_path / "b"), settings)
    with listening(service, limits=limits, clock=clock) as port, connected(port) as own:
        content = json.dumps(ASKED).encode().ljust(5 * part)
        own.sendall(f"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n".encode())
        for start in range(0, len(content), part):
            clock.advance(90)
            if is_readable(own):
                break
            own.sendall(content[start : start + part])
            until(lambda sent=start + part: arrived[0] >= sent)  # the clock waits for the server
        assert status(read_answer(own)) == (408 if part == 1024 else 200)


def test_a_refused_body_does_not_stream_on_for_ever(port, clock):
    """Sent faster than what would buy time, were it still wanted."""
    with connected(port) as own:
        own.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        with pytest.raises(ConnectionError):
            for _ in range(3000):
                own.sendall(b"10000\r\n" + b"a" * 0x10000 + b"\r\n")
                clock.advance(LIMIT / 100)


def test_a_request_that_drips_behind_another_spoils_no_answer(port, service, clock, monkeypatch):
    """A whole request and the beginning of a second: the first is under way when the second is too late."""
    refused = service.metrics.refused[408]
    with held(monkeypatch) as (begun, go, _), connected(port) as own:
        own.sendall(request_bytes(ASKED) + b"POST /v1/predict HTTP/1.1\r\nHost")
        assert begun.wait(30)
        clock.advance(LIMIT + 1)
        assert read_all(own) == b""  # closed, and nothing was written in the first one's place
        go.set()
    until(lambda: service.metrics.refused[408] == refused + 1)


def test_a_declared_size_is_refused_before_any_of_it_comes(port):
    with connected(port) as own:
        own.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100001\r\n\r\n")
        assert status(read_answer(own)) == 413


@pytest.mark.parametrize(
    "line",
    [
        b"GET",
        b"\x16\x03\x01\x02\x00",
        b"GET /\xff\xfe HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ],
    ids=["short", "tls", "bytes", "negative"],
)
def test_what_is_no_http_is_refused(port, line):
    with connected(port) as own:
        own.sendall(line)
        own.shutdown(socket.SHUT_WR)
        content = read_all(own)
    assert not content or status(content) in (400, 404)


def test_what_nobody_waits_for_is_dropped(port, service, monkeypatch):
    """Two callers wait behind a batch, and one hangs up: its inputs are never read."""
    facts, gone_before = [], service.metrics.requests["/v1/predict", 499]
    service.observers.append(facts.append)
    with held(monkeypatch) as (begun, go, sizes), ThreadPoolExecutor(2) as threads:
        first = threads.submit(answered, port)
        assert begun.wait(30)
        gone = connected(port)
        gone.sendall(request_bytes({"inputs": ["sad phone"] * 7, "tasks": ["mood"]}))
        until(lambda: service.queue.waiting == 7)
        stays = threads.submit(answered, port)
        until(lambda: service.queue.waiting == 8)
        gone.close()
        until(lambda: _is_gone(service))
        go.set()
        assert status(first.result()) == status(stays.result()) == 200
    until(lambda: service.queue.is_idle)
    service.observers.pop()
    assert sizes == [1, 1] and sum(each.inputs for each in facts) == 2
    until(lambda: service.metrics.requests["/v1/predict", 499] == gone_before + 1)


def _is_gone(service):
    return any(
        piece.tickets[0].is_cancelled for lane in list(service.queue._lanes.values()) for _, _, piece in list(lane)
    )


def test_a_caller_that_does_not_read_is_closed(tmp_path):
    """Its answers fill the kernel's buffers and then wait: not without end."""
    service, clock = service_of(tiny_root(tmp_path / "b")), Clock()
    with listening(service, limits=LIMITS, clock=clock) as port:
        own = socket.socket()
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        own.settimeout(30)
        own.connect(("127.0.0.1", port))
        asked = request_bytes(b"", path="/v1/predict").replace(b"POST /v1/predict", b"GET /openapi.json")
        with contextlib.closing(own):
            own.sendall(asked * 2_000)  # whose answers are megabytes
            until(lambda: clock.advance(LIMIT / 2) or service.metrics.refused == {0: 1})


def test_answered_requests_leave_nothing_to_a_collector_of_garbage(port):
    """Cycles would keep answers until a collection, which stops all requests for tens of milliseconds."""

    def alive():
        return sum(type(each).__name__ in ("RequestResponseCycle", "Ticket") for each in gc.get_objects())

    with connected(port) as own:
        own.sendall(request_bytes(ASKED))
        read_answer(own)
        gc.collect()
        gc.disable()
        try:
            before = alive()
            for _ in range(20):
                own.sendall(request_bytes(ASKED))
                assert status(read_answer(own)) == 200
            until(lambda: alive() <= before + 3)  # the last request may not have ended yet
        finally:
            gc.enable()


def test_a_stream_that_is_cut_off_leaves_no_answers_to_a_collector_of_garbage(port, monkeypatch):
    """The error of a caller who is gone, which anyio leaves in a cycle, held the frame of the stream with all of it."""
    told, go, run = threading.Event(), threading.Event(), SharedBatch.run

    def alive():
        return sum(type(each).__name__ in ("Ticket", "TaskResults", "Result") for each in gc.get_objects())

    def waits(self, deliver):
        first = iter([True])

        def delivers(calls):
            deliver(calls)
            if calls and next(first, False):  # none are of a task that nobody asked
                told.set()
                assert go.wait(30)

        return run(self, delivers)

    def cut_off():
        told.clear()
        go.clear()
        with connected(port) as own:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            own.sendall(request_bytes({"inputs": ["good lamp"] * 4}, path="/v1/predict/stream"))
            assert told.wait(30)
            while b'"task"' not in _part(own):
                pass
        go.set()

    monkeypatch.setattr(SharedBatch, "run", waits)
    cut_off()
    gc.collect()
    gc.disable()
    try:
        before = alive()
        for _ in range(10):
            cut_off()
        until(lambda: alive() <= before + 6)  # the last ones may not have ended yet
    finally:
        gc.enable()


class Written:
    """A transport that notes what is written in each call."""

    def __init__(self):
        self.calls, self.is_closed = [], False

    def writelines(self, parts):
        assert not self.is_closed
        self.calls.append(b"".join(parts))

    def close(self):
        self.is_closed = True

    def is_closing(self):
        return self.is_closed


async def _answers_in_parts(written):
    loop = asyncio.get_running_loop()
    whole = JoinedWrites(written, loop)
    whole.write(b"head ")
    assert not written.calls
    whole.write(b"body")
    whole.write(b"")
    whole.write(b"more")
    assert written.calls == [b"head body", b"more"]
    stream = JoinedWrites(written, loop)
    stream.write(b"head alone")
    await asyncio.sleep(0)
    stream.write(b"first part")
    assert written.calls[2:] == [b"head alone", b"first part"]
    last = JoinedWrites(written, loop)
    last.write(b"head, then the end")
    last.close()
    assert written.calls[4:] == [b"head, then the end"] and last.is_closing()
    last.write(b"too late")
    await asyncio.sleep(0)
    assert len(written.calls) == 5


def test_the_head_of_an_answer_is_written_with_its_body_and_never_left_behind():
    asyncio.run(_answers_in_parts(Written()))


def test_the_answer_to_a_request_for_a_head_alone_ends(port):
    with connected(port) as own:
        own.sendall(b"HEAD /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        content = read_all(own)
    assert status(content) == 200 and content.endswith(b"\r\n\r\n")
