"""What holds for every test: no network, one torch thread, an environment of its own, seeds of its own."""

import atexit
import gc
import importlib.util
import logging
import os
import random
import shutil
import socket
import sys
import tempfile
import zlib

import numpy as np
import pytest

from support import compiled_graphs, disk_failures, head_search
from support.encoding import ENCODING, encode_by_torch

KEPT = {"POLYHEAD_DATA", "POLYHEAD_MPNET"}
MEMORY, ROOM = "/dev/shm", 4 * 2**30
LOOPBACK = ("127.", "localhost", "::1")
# Folders of tests that train heads by the way.
SHORT = {"advise", "api", "bundle", "cli", "e2e", "evaluate", "project", "report", "serve", "sharing", "store", "train"}
TRAINED = SHORT | {"tasks"}  # folders of tests that train heads
# Where heads must have learned what a word of each text says, and where the search is looked at, or a process of its
# own must train the same bytes.
LEARNED = {"test_estimators.py", "test_model.py", "test_taggers.py", "test_word_heads.py"}
SEARCHES = {"test_heads.py", "test_linear.py", "test_baseline.py", "test_run.py"}
# What OpenVINO makes of a graph is looked at: each is compiled again.
COMPILES = {"test_openvino.py", "test_graph_openvino.py"}
# Training encodes by the backend that a user has.
ENCODES = {"test_light.py"}

os.environ["HF_HUB_OFFLINE"] = "1"
# Folders of tests lie in memory where it has room: making and removing them is a fifth of many a test on a disk.
if "TMPDIR" not in os.environ and os.path.isdir(MEMORY) and shutil.disk_usage(MEMORY).free >= ROOM:
    os.environ["TMPDIR"], tempfile.tempdir = MEMORY, None
# What commands compile is kept for none but the tests of one process, and their own.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="polyhead-tests-cache-")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)
for _name in [name for name in os.environ if name.startswith("POLYHEAD_") and name not in KEPT]:
    del os.environ[_name]

_connect = socket.socket.connect


def _guarded(self, address):
    if isinstance(address, tuple) and not str(address[0]).startswith(LOOPBACK):
        raise OSError(f"tests have no network: {address[0]}")
    return _connect(self, address)


socket.socket.connect = _guarded
os.fsync = disk_failures.fsync  # what is written is not waited for: that decides after a power cut alone


def pytest_configure():
    """A busy machine is no failure: before any test's own settings are read, which keep the rest of the profile."""
    if importlib.util.find_spec("hypothesis") is None:
        return
    from hypothesis import HealthCheck, settings

    settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any speed")


def pytest_report_header():
    from polyhead.machine import processor

    here = processor()
    return f"processor: {here.label}; 8-bit weights of {here.weight_bits} bits"


def pytest_sessionstart(session):
    """Each worker, and what it starts, has a processor of its own: two that share theirs wait for each other."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None and hasattr(os, "sched_setaffinity"):
        here = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {here[int(worker.removeprefix("gw")) % len(here)]})


def pytest_collection_finish(session):
    """What was collected stays to the end: the garbage collector need not go through it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    try:
        import torch
    except ImportError:
        return
    torch.set_num_threads(1)
    # Those that do not propagate would be given pytest's handlers, and lose them, several times a test.
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("torch") and isinstance(logger, logging.Logger):
            logger.propagate = True
    for devices in (torch.cuda, torch.xpu):
        if not devices.is_available():  # each seed would be kept for later with a traceback
            devices.manual_seed_all = lambda seed: None


@pytest.fixture(autouse=True)
def _own_seed(request):
    """Whatever a test draws without saying from what depends on its name alone."""
    seed = zlib.crc32(request.node.nodeid.encode())
    random.seed(seed)
    np.random.seed(seed)
    try:
        import torch
    except ImportError:
        return
    torch.default_generator.manual_seed(seed)  # without the other devices, for which a traceback is kept each time


@pytest.fixture(autouse=True)
def _keeps_no_graphs():
    """Commands that a test runs in this process begin to keep compiled graphs; the next test's are compiled."""
    yield
    if kept := sys.modules.get("polyhead.engine.compile.compiled"):
        kept.COMPILED.path = None


@pytest.fixture(scope="module", autouse=True)
def _quick_search(request):
    """Linear heads are searched for once, and shortly where the search is not looked at."""
    folder = request.path.parent.name
    if folder not in TRAINED or importlib.util.find_spec("torch") is None:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        name = request.path.name
        if folder not in SHORT or name in SEARCHES:
            head_search.remember(patch)
        elif name in LEARNED:
            head_search.lessen(patch)
        else:
            head_search.shorten(patch)
        yield


@pytest.fixture(scope="module", autouse=True)
def _encodes_by_torch(request):
    """Texts are encoded by torch, which compiles nothing, but where backends that encode are looked at."""
    if request.path.name in ENCODES or importlib.util.find_spec("torch") is None:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        encode_by_torch(patch)
        yield


@pytest.fixture
def encodes_by_default(monkeypatch):
    """Texts are encoded by what a user has, as in processes that a test starts."""
    from polyhead.engine.backends import encoding_backend

    for module in ENCODING:
        monkeypatch.setattr(f"polyhead.{module}.encoding_backend", encoding_backend)


@pytest.fixture(scope="module", autouse=True)
def _compiled_once(request):
    """Equal graphs of OpenVINO are compiled once, but where that is what is looked at."""
    if request.path.name in COMPILES or importlib.util.find_spec("openvino") is None:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        compiled_graphs.remember(patch)
        yield
