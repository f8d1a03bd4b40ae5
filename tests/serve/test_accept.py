"""Taking connections: many in a turn of the loop, none lost where the system has no more files, none after the end."""

import asyncio
import contextlib
import errno
import socket
import sys
import threading

import pytest

from polyhead.serve import connections as accept
from polyhead.serve import run as serving
from polyhead.serve.app import application
from polyhead.serve.connections import Acceptor
from polyhead.serve.run import Listener, bound
from polyhead.serve.settings import ConnectionLimits
from support.loopback_server import connected, listening, read_all, request_bytes, service_of, tiny_root

LOOPBACK = "127.0.0.1"
LOOPS = ["asyncio", "uvloop"]


class Greeting(asyncio.Protocol):
    def connection_made(self, transport):
        transport.write(b"hello")
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


def run(loop, main):
    factory = asyncio.new_event_loop if loop == "asyncio" else pytest.importorskip("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(asyncio.wait_for(main, 30))


@contextlib.contextmanager
def callers(listening, count):
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(socket.create_connection(listening.getsockname())) for _ in range(count)]
        for own in made:
            own.setblocking(False)
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
def test_many_callers_are_taken_in_a_turn_of_the_loop(loop, monkeypatch):
    """A busy server's turns are long, and libuv's own listener takes one caller in each."""
    monkeypatch.setattr(accept, "AT_ONCE", 16)
    turns, taken, count = [], [], 3 * 16

    def made():
        taken.append(len(turns))
        return Greeting()

    async def main():
        listening = bound(LOOPBACK, 0)
        acceptor = Acceptor(listening, made)
        with callers(listening, count):
            while len(taken) < count:
                turns.append(None)
                await asyncio.sleep(0)
            acceptor.close()
            await acceptor.wait_closed()
        listening.close()

    run(loop, main())
    assert len(taken) == count and taken[-1] - taken[0] <= 20


@pytest.mark.parametrize("loop", LOOPS)
def test_callers_are_answered_and_who_goes_at_once_harms_nobody(loop):
    async def main():
        listening = bound(LOOPBACK, 0)
        acceptor = Acceptor(listening, Greeting)
        with callers(listening, 5):
            # These reset their connections.
            for own in (gone := [socket.create_connection(listening.getsockname()) for _ in range(5)]):
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            for own in gone:
                own.close()
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            assert await reader.readexactly(5) == b"hello"
            writer.write(b"you")
            assert await reader.readexactly(3) == b"you"
            writer.close()
        acceptor.close()
        await acceptor.wait_closed()
        listening.close()

    run(loop, main())


@pytest.mark.parametrize("loop", LOOPS)
def test_without_a_file_left_callers_wait_and_are_taken_later(loop, monkeypatch, caplog):
    monkeypatch.setattr(accept, "PAUSE", 0.05)

    class Scarce:
        """A listening socket of a process that may not open any file more, twice."""

        def __init__(self, listening):
            self.listening, self.refused = listening, 0

        def __getattr__(self, name):
            return getattr(self.listening, name)

        def accept(self):
            if self.refused < 2:
                self.refused += 1
                raise OSError(errno.EMFILE, "Too many open files")
            return self.listening.accept()

    async def main():
        listening = Scarce(bound(LOOPBACK, 0))
        acceptor = Acceptor(listening, Greeting)
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        assert await reader.readexactly(5) == b"hello"
        writer.close()
        acceptor.close()
        listening.close()
        return listening.refused

    assert run(loop, main()) == 2
    assert caplog.text.count("Too many open files") == 2


@pytest.mark.parametrize("loop", [loop for loop in LOOPS if loop != "asyncio"])
def test_a_process_that_the_server_starts_does_not_hold_its_port(loop):
    """The process of a change had the socket too: callers of a server that stopped waited, and got no answer.

    Python's own loop gives no file to a process that it starts.
    """

    async def main():
        listening = bound(LOOPBACK, 0)
        address = listening.getsockname()
        beside = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE)
        try:
            listening.close()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address).close()
        finally:
            await beside.communicate(b"\n")

    run(loop, main())


@pytest.mark.parametrize("loop", LOOPS)
def test_after_the_end_nobody_is_taken(loop):
    async def main():
        listening, taken = bound(LOOPBACK, 0), []
        acceptor = Acceptor(listening, lambda: taken.append(None) or Greeting())
        acceptor.close()
        with callers(listening, 3):
            await asyncio.sleep(0.05)
        listening.close()
        return taken

    assert run(loop, main()) == []


def test_a_loop_that_watches_no_sockets_has_its_own_listener(tmp_path, monkeypatch):
    """As on Windows."""

    class Unwatched(Acceptor):
        def __init__(self, *given):
            raise NotImplementedError

    monkeypatch.setattr(serving, "Acceptor", Unwatched)
    with listening(service_of(tiny_root(tmp_path / "b"))) as port, connected(port) as own:
        own.sendall(request_bytes({"inputs": "good lamp", "tasks": ["mood"]}, close=True))
        assert b" 200 " in read_all(own)


def test_a_server_that_stops_ends_connections_that_were_just_accepted(tmp_path, monkeypatch):
    """Whose callers send nothing: it would wait for them as long as they may be silent."""
    service, accepted, connect = service_of(tiny_root(tmp_path / "b")), threading.Event(), Acceptor._connected
    patient, ready = ConnectionLimits(header_seconds=600, body_seconds=600), threading.Event()

    close, closed = Acceptor.close, asyncio.Event()

    async def later(self, own):
        accepted.set()
        await closed.wait()
        await asyncio.sleep(0.02)  # by then uvicorn has told all connections that it knows
        await connect(self, own)

    def closing(self):
        close(self)
        closed.set()

    monkeypatch.setattr(Acceptor, "_connected", later)
    monkeypatch.setattr(Acceptor, "close", closing)

    async def main():
        listener, until = Listener(app=application(service), socket=bound(LOOPBACK, 0)), asyncio.Event()
        task = asyncio.create_task(
            serving.serve([listener], drain_seconds=600, ready=ready.set, until=until, limits=patient)
        )
        assert await asyncio.to_thread(ready.wait, 60)
        with callers(listener.socket, 1):
            assert await asyncio.to_thread(accepted.wait, 60)
            until.set()
            await asyncio.wait_for(task, 60)

    asyncio.run(main())
