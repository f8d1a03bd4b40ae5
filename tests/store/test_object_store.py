"""A store in an object store: Lance over S3, as a local server speaks it."""

import multiprocessing
import socket
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest

from polyhead.store.corpus.lance import LanceStore
from store.test_corpus import SCHEMA, appending, documents, held, labels, run_all, same

LOCATION = "s3://bucket/corpus"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    pytest.importorskip("moto.server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = (tmp_path_factory.mktemp("s3") / "log.txt").open("w")
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log
    )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(1200):
            try:
                urllib.request.urlopen(urllib.request.Request(f"{address}/bucket", method="PUT"), timeout=60)
                break
            except OSError:
                assert process.poll() is None, "the server ended"
                time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait(60)
        log.close()


@pytest.fixture
def location(server, monkeypatch, request):
    known = {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret", "REGION": "us-east-1", "ALLOW_HTTP": "true"}
    for name, value in (known | {"ENDPOINT": server}).items():
        monkeypatch.setenv(f"AWS_{name}", value)
    return f"{LOCATION}-{request.node.name}"


@pytest.mark.slow
def test_documents_results_and_compaction_in_an_object_store(location):
    store = LanceStore.create(location, SCHEMA)
    assert store.append(*documents(range(5))) == 5 and store.append(*documents(range(3, 9))) == 4
    store.put_results(store.fragments[0].name, "topics", {"label": np.arange(5)})
    reader = LanceStore.open(location)
    assert same(reader, range(9)) and len(held(reader)) == 9
    done, lacking = labels(reader)
    assert done["label"].tolist() == list(range(5)) and lacking is None
    assert reader.append(*documents(range(9, 12))) == 3 and store.append(*documents(range(10, 14))) == 2
    assert store.compact(rows=100) == 2 and same(store, range(14)) and len(held(store)) == 14


@pytest.mark.slow
def test_two_writers_of_an_object_store_lose_nothing_and_keep_nothing_twice(location):
    LanceStore.create(location, SCHEMA)
    context = multiprocessing.get_context("spawn")
    jobs = [context.Process(target=appending, args=(LanceStore, location, start)) for start in (0, 20)]
    run_all(jobs)
    store = LanceStore.open(location)
    ids = held(store)
    assert len(ids) == len(set(ids)) == 62 and same(store, range(62))
