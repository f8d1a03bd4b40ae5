"""A server gives freed memory back again and again, until it stops."""

import asyncio
import threading

from polyhead.serve import service as served
from support.loopback_server import service_of, tiny_root


def test_freed_memory_is_given_back_until_the_server_stops(tmp_path, monkeypatch):
    trimmed, thrice = [], threading.Event()

    def trim():
        trimmed.append(threading.current_thread())
        if len(trimmed) == 3:
            thrice.set()

    monkeypatch.setattr(served, "trim", trim)
    monkeypatch.setattr(served, "TRIMMED_EVERY", 0.001)
    service = service_of(tiny_root(tmp_path / "b"))

    async def run():
        await service.start()
        assert await asyncio.to_thread(thrice.wait, 30)
        await service.stop()
        count = len(trimmed)
        await asyncio.sleep(0.05)
        return count

    count = asyncio.run(run())
    assert len(trimmed) <= count + 1  # one may have been under way
    assert threading.main_thread() not in trimmed
