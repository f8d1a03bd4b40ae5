"""Memory that was freed goes back to the system, and threads have few places to keep it: in processes of their own."""

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the calls are glibc's")

ARENAS = """
import ctypes, threading
from polyhead import machine as memory

if SHARED:
    memory.share_arenas()
libc, taken = ctypes.CDLL(None), threading.Barrier(9)
libc.malloc.restype = ctypes.c_void_p

def take():
    libc.malloc(ctypes.c_size_t(1000))
    taken.wait()
    taken.wait()

threads = [threading.Thread(target=take) for _ in range(8)]
for thread in threads:
    thread.start()
taken.wait()
libc.fdopen.restype = ctypes.c_void_p
out = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
taken.wait()
"""

FREED = """
import ctypes
from polyhead import machine as memory

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
SIZE = 64 * 1024  # of which each is taken from a heap, not from the system

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

blocks = [libc.malloc(ctypes.c_size_t(SIZE)) for _ in range(2000)]
for block in blocks:
    ctypes.memset(block, 1, SIZE)
for block in blocks[:-1]:  # behind the last one nothing is free
    libc.free(ctypes.c_void_p(block))
before = resident()
memory.trim()
print(before - resident())
"""


def printed(script, **environment):
    own = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"} | environment
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=own).stdout


def test_threads_share_few_arenas():
    counts = {shared: printed(ARENAS.replace("SHARED", str(shared))).count("<heap nr=") for shared in (False, True)}
    assert counts[True] <= 2 < counts[False]
    assert printed(ARENAS.replace("SHARED", "True"), MALLOC_ARENA_MAX="5").count("<heap nr=") == 5  # what was asked for


def test_freed_memory_goes_back():
    assert int(printed(FREED)) > 1999 * 64 * 1024 * 0.9


def test_other_systems_do_nothing(monkeypatch):
    from polyhead import machine as memory

    monkeypatch.setattr(sys, "platform", "darwin")
    memory.share_arenas()
    memory.trim()
