"""The processor's properties that decide how libraries compute, freed memory returned to the system, and mapped files.

Libraries look at the processor themselves; a numerics label has to say what they find, and the width of 8-bit weights
has to fit it. An environment variable can cap oneDNN, with which OpenVINO and torch multiply, to older instructions; a
capped process counts as one on such a processor. (It is no setting of ours, so it is read here and not in the CLI.)
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import platform
import re
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from threadpoolctl import ThreadpoolController

from polyhead.values import Value

ARENAS = 2  # of the allocator; glibc's own limit is eight for each processor
M_ARENA_MAX = -8  # of malloc.h
CAPS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")  # oneDNN reads the first of them that is set
X86 = ("x86_64", "AMD64", "i386", "i686")
WIDE_SUMS = frozenset({"avx512_vnni", "avx_vnni"})
BFLOAT16 = frozenset({"avx512_bf16", "avx_ne_convert", "amx_bf16", "bf16"})  # the last is Arm's
# Which of these oneDNN may use, by the name of the cap; under other names, which are newer, all of them.
_ALLOWED: dict[str, frozenset[str]] = {
    **dict.fromkeys(("SSE41", "AVX", "AVX2", "AVX512_CORE"), frozenset[str]()),
    "AVX2_VNNI": frozenset({"avx_vnni"}),
    "AVX2_VNNI_2": frozenset({"avx_vnni", "avx_ne_convert"}),
    "AVX512_CORE_VNNI": WIDE_SUMS,
}


class Processor(Value):
    """A processor; `features` is None if the system does not list them."""

    machine: str  # as `platform.machine()` names it
    model: str = ""  # its name
    family: str = ""  # if Linux lists it: processors of one name may round differently
    features: frozenset[str] | None = None  # the listed ones that libraries may use
    cap: str = ""  # the instructions to which the environment caps oneDNN; "" where it does not

    @property
    def has_wide_sums(self) -> bool:
        """Whether products of unsigned by signed bytes are summed in 32 bits at once.

        x86 without VNNI adds two of them in 16 bits, where they saturate; without a list of features, that is assumed.
        """
        return self.machine not in X86 or bool(WIDE_SUMS & (self.features or frozenset()))

    @property
    def weight_bits(self) -> int:
        """Bits of 8-bit weights that no sum cuts: 8, or 7 where two products share 16 bits."""
        return 8 if self.has_wide_sums else 7

    @property
    def may_have_bfloat16(self) -> bool:
        """Whether bfloat16 is not ruled out; the library then decides."""
        if self.features is None:
            return self.cap not in _ALLOWED or bool(BFLOAT16 & _ALLOWED[self.cap])
        return bool(BFLOAT16 & self.features)

    @property
    def label(self) -> str:
        """The whole name, and the cap if there is one: both may change bits of answers."""
        name = f"model name {self.model}, {self.family}" if self.family else self.model or self.machine
        return f"{name}, capped to {self.cap}" if self.cap else name


def processor() -> Processor:
    """This machine's processor, as the environment caps it now."""
    return _read(next((os.environ[name] for name in CAPS if os.environ.get(name)), ""))


def processor_of(cpuinfo: str | None, *, machine: str, cap: str = "") -> Processor:
    """The processor that /proc/cpuinfo describes (None: there is no such file), with oneDNN capped to `cap`."""
    cap = cap.upper()
    cap = "" if cap in ("", "ALL", "DEFAULT") else cap
    if cpuinfo is None:
        return Processor(machine=machine, model=platform.processor() or machine, cap=cap)
    facts = {m[1]: m[2] for line in cpuinfo.splitlines() if (m := re.match(r"([^:\t]+?)\s*: (.+)", line))}
    family = ", ".join(f"{key} {facts[key]}" for key in ("cpu family", "model") if key in facts)
    model, flags = facts.get("model name", machine), facts.get("flags") or facts.get("Features")  # x86, Arm
    features = None
    if flags is not None:
        features = frozenset(flags.split()) & (WIDE_SUMS | BFLOAT16)
        features &= _ALLOWED.get(cap, features)
    return Processor(machine=machine, model=model, family=family, features=features, cap=cap)


def processors(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """How many processors this process may keep busy, as its container allows."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(groups)
    return max(1, count if quota is None else min(count, math.ceil(quota)))


def _quota(groups: Path) -> float | None:
    """The processor time that the control group (version 2 or 1) allows, in processors; None without a limit."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            fields = " ".join((groups / name).read_text() for name in names).split()
        except OSError:
            continue
        if len(fields) == 2 and fields[0].isdecimal() and fields[1].isdecimal() and int(fields[1]) > 0:
            return int(fields[0]) / int(fields[1])
    return None


def share_arenas() -> None:
    """Limits the allocator to `ARENAS` arenas for all threads of the process, unless MALLOC_ARENA_MAX is set.

    Freed memory stays in its arena, so that a process with many arenas keeps more of it.
    """
    mallopt = _of_glibc("mallopt")
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(M_ARENA_MAX, ARENAS)


def trim() -> None:
    """Returns freed memory to the system, where the C library is glibc."""
    if (malloc_trim := _of_glibc("malloc_trim")) is not None:
        malloc_trim(ctypes.c_size_t(0))


class MappedFile:
    """A read-only file in memory: for numpy an array (size,) uint8, which keeps no file open.

    Python's own `mmap` keeps it open before Python 3.13.
    """

    def __init__(self, handle: int, size: int) -> None:
        self._system, self._size = ctypes.CDLL(None, use_errno=True), ctypes.c_size_t(size)
        self._system.mmap.restype = ctypes.c_void_p
        self._system.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
        address = self._system.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, handle, 0)
        self._address = ctypes.c_void_p(address)
        if address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        # At the end of the process the system does it: an array may be in use until then.
        weakref.finalize(self, self._system.munmap, self._address, self._size).atexit = False
        self.__array_interface__ = {"data": (address, True), "shape": (size,), "typestr": "|u1", "version": 3}

    def madvise(self, advice: int) -> None:
        """Tells the system how the bytes are used."""
        self._system.madvise(self._address, self._size, advice)


def _of_glibc(name: str) -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


@lru_cache
def _read(cap: str) -> Processor:
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text()
    except OSError:
        cpuinfo = None
    return processor_of(cpuinfo, machine=platform.machine(), cap=cap)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Within, numpy's products of matrices take one thread of this process: beside busy processors more are slower."""
    with _openblas().limit(limits=1):
        yield


@lru_cache
def _openblas() -> ThreadpoolController:
    """Finds numpy's library among all that are loaded, once: that takes milliseconds."""
    return ThreadpoolController().select(internal_api="openblas")


class Clock:
    """Seconds that work takes, whatever else the machine does meanwhile; counts from when it is made."""

    def __init__(self) -> None:
        self._wall, self._processor = time.monotonic(), time.process_time()

    @property
    def wall(self) -> float:
        """Seconds that passed."""
        return time.monotonic() - self._wall

    @property
    def seconds(self) -> float:
        """Seconds of work: those that passed, but no more than the processor spent on it."""
        return min(self.wall, time.process_time() - self._processor)
