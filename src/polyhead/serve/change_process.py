"""The process that makes changes for a server: it begins with the first order, and ends a while after the last."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress

import msgspec

from polyhead.engine.compile.compiled import COMPILED
from polyhead.serve.http import HttpError
from polyhead.serve.orders import ChangeReply, ChangeResult, ChangeSettings, Order, as_http
from polyhead.serve.workers import WorkerPlace

log = logging.getLogger(__name__)

COMMAND = ("-m", "polyhead.serve.make_changes")
LONGEST = 1800.0  # seconds that a change may take
REST = 60.0  # seconds without an order, after which the process ends; until then the next proof is quick
LARGEST_ANSWER = 2**26  # bytes
SHOWN = 4000  # bytes, the last, of what it wrote about problems


class ChangeProcess:
    """Makes changes one after another in a process of low priority, whose memory and cores are not the server's.

    The bundle is whole whenever the process ends. The process ends with this one, also if this one is killed. It reuses
    what it loaded, compiled and computed for earlier proofs.
    """

    def __init__(self, *, rest_seconds: float = REST) -> None:
        self._rest, self._alone = rest_seconds, asyncio.Lock()
        self._running: _Running | None = None
        self._resting: asyncio.TimerHandle | None = None

    async def make(self, order: Order) -> ChangeResult:
        """The result of `orders.perform`; raises HttpError with the status and the reason of a failure.

        Cancelling the caller ends the process.
        """
        async with self._alone:
            self._wake()
            if self._running is None or self._running.has_ended:
                await self._killed()
                self._running = await _Running.begin()
            running = self._running
            try:
                answer = await asyncio.wait_for(running.answer(msgspec.json.encode(order)), LONGEST)
                reply = msgspec.json.decode(answer, type=ChangeReply)
            except (OSError, ValueError, msgspec.DecodeError) as error:  # it ended, or wrote something else
                await self._killed()
                log.error("the process of a change ended with %s: %s; %s", running.code, error, running.problems)
                reply = ChangeReply()
            except BaseException:
                await self._killed()
                raise
            else:
                self._resting = asyncio.get_running_loop().call_later(self._rest, running.end)
        if reply.outcome is not None:
            return reply.outcome
        if reply.error is not None:
            raise as_http(reply.error, reply.status)
        raise HttpError(
            500,
            "the process that changes the bundle was stopped before its end; the bundle is whole",
            got=f"exit {running.code}",
            do="ask for the same again: what was done is found, and not done twice",
        )

    async def close(self) -> None:
        """Ends the process after the current order; at once if it has none."""
        async with self._alone:
            self._wake()
            await self._killed()

    def _wake(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None

    async def _killed(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            await running.kill()


class _Running:
    """One process, and its error output."""

    def __init__(self, process: Process, held: int) -> None:
        """`held` is the end of a pipe that this process alone holds: with it the other one ends."""
        self._process, self._held, self._is_ending, self._problems = process, held, False, b""
        self._reading = asyncio.ensure_future(self._read_problems())

    @classmethod
    async def begin(cls) -> _Running:
        alive, held = os.pipe()
        try:
            # An interrupt from the terminal is the server's.
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *COMMAND,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                limit=LARGEST_ANSWER,
                start_new_session=True,
                pass_fds=(alive,),
            )
        except BaseException:
            os.close(held)
            raise
        finally:
            os.close(alive)
        place = WorkerPlace.found(os.environ)
        settings = ChangeSettings(
            alive=alive,
            processors=() if place is None else place.processors,
            compiled=None if COMPILED.path is None else str(COMPILED.path),
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(settings) + b"\n")
        return cls(process, held)

    @property
    def has_ended(self) -> bool:
        """Whether it accepts no more orders."""
        return self._is_ending or self.code is not None

    @property
    def code(self) -> int | None:
        """The exit code; None while the process runs."""
        return self._process.returncode

    @property
    def problems(self) -> str:
        """The end of its error output."""
        return self._problems.decode("utf-8", "replace")

    async def answer(self, order: bytes) -> bytes:
        """The answer line to an order line; raises OSError, or returns nothing, if the process ends."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(order + b"\n")
        await stdin.drain()
        return await stdout.readline()

    def end(self) -> None:
        """Lets it end, by closing its input."""
        self._is_ending = True
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def ended(self) -> None:
        """Waits for its end."""
        await self._process.wait()
        await self._reading
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    async def kill(self) -> None:
        """Ends it now.

        `Process.kill` looks first whether it has ended, and so takes the exit code from asyncio, which waits for it.
        """
        if self.code is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
        await self.ended()

    async def _read_problems(self) -> None:
        assert self._process.stderr is not None
        while part := await self._process.stderr.read(SHOWN):
            self._problems = (self._problems + part)[-SHOWN:]
