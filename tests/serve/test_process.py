"""The server as a process: told to stop, killed and started again, under load, and told its settings by a file."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import httpx
import pytest

from polyhead.bundle.read import Bundle
from support.loopback_server import TASKS, connected, read_all, request_bytes, tiny_root, until

pytestmark = pytest.mark.slow
READY = re.compile(r"http://127\.0\.0\.1:(\d+) answers (\d+) tasks")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tiny_root(tmp_path_factory.mktemp("process") / "b")


@contextlib.contextmanager
def process(root, *options, port=0, env=None):
    """A server process and its port, when it answers; it is ended by then or killed."""
    words = [sys.executable, "-m", "polyhead", "serve", str(root), "--port", str(port), "--backend", "reference"]
    own = subprocess.Popen([*words, *options], stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})
    try:
        line = own.stderr.readline()
        match = READY.search(line)
        assert match, line + own.stderr.read()
        assert int(match[2]) == len(TASKS)
        yield own, int(match[1])
    finally:
        own.kill()
        own.wait()
        own.stderr.close()


def test_what_is_under_way_is_answered_when_the_server_is_told_to_stop(root, tmp_path):
    """Twenty callers wait for long answers; all get them, and the process ends by itself. No new caller is taken."""
    log = tmp_path / "log"
    with process(root, "--access-log", str(log)) as (own, port):
        body = {"inputs": [f"good lamp {number}" for number in range(200)], "tasks": list(TASKS)}
        with contextlib.ExitStack() as stack:
            callers = [stack.enter_context(connected(port, timeout=60)) for _ in range(20)]
            for caller in callers:
                caller.sendall(request_bytes(body))
            # Whoever is answered after all of these were sent is answered after they were read.
            until(lambda: httpx.get(f"http://127.0.0.1:{port}/health").json()["waiting"] > 0)
            own.send_signal(signal.SIGTERM)
            contents = [read_all(caller) for caller in callers]
        assert own.wait(60) == 0
        for content in contents:
            assert content.startswith(b"HTTP/1.1 200"), content[:200]
            assert len(json.loads(content.partition(b"\r\n\r\n")[2])["results"]) == 200
        with pytest.raises(ConnectionRefusedError):
            connected(port)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    predicted = [line["inputs"] for line in lines if line["route"] == "/v1/predict"]
    assert predicted == [200] * 20  # none is lost at the end


def test_after_a_kill_under_load_the_same_bundle_is_served_again(root):
    """Callers ask without pause while the process is killed and another takes its port: nothing is answered wrongly."""
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != "bundle.lock"}
    stop, statuses, answers = threading.Event(), Counter(), set()
    with process(root) as (own, port):

        def ask():
            while not stop.is_set():
                try:
                    answer = httpx.post(
                        f"http://127.0.0.1:{port}/v1/predict",
                        json={"inputs": "good lamp", "tasks": ["mood"]},
                        timeout=30,
                    )
                    statuses[answer.status_code] += 1
                    answers.add(answer.json()["results"][0]["answers"]["mood"]["label"])
                except httpx.HTTPError:
                    statuses["gone"] += 1
                    time.sleep(0.02)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        until(lambda: statuses[200] > 20)
        own.kill()
        own.wait()
        until(lambda: statuses["gone"] > 4)
        answered = statuses[200]
        with process(root, port=port):
            until(lambda: statuses[200] > answered + 20)
            stop.set()
            for thread in threads:
                thread.join()
    assert set(statuses) == {200, "gone"} and len(answers) == 1
    after = {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != "bundle.lock"}
    assert after == before
    assert set(Bundle.open(root).tasks) == set(TASKS)


def test_settings_come_from_a_file_and_the_command_line_goes_before_it(root, tmp_path):
    settings = tmp_path / "serve.toml"
    settings.write_text('inputs = 2\ncharacters = 100\nlong-texts = "refuse"\ncache-mb = 1\nkeys = "keys.txt"\n')
    keys = tmp_path / "keys.txt"
    keys.write_text("k1 # shop\n")
    options = ["--config", str(settings), "--characters", "10", "--keys", str(keys)]
    with process(root, *options, env={"POLYHEAD_KEYS": "k2, k3"}) as (_, port):

        def ask(inputs, key):
            headers = {"x-api-key": key}
            body = {"inputs": inputs, "tasks": ["mood"]}
            return httpx.post(f"http://127.0.0.1:{port}/v1/predict", json=body, headers=headers, timeout=30)

        assert ask(["good"], "k4").status_code == 401
        assert [ask(["good"] * size, "k2").status_code for size in (2, 3)] == [200, 422]
        assert ask(["x" * 11], "k3").status_code == 422
        assert ask(["good"], "k1").json()["receipt"]["cached"] == 1


@pytest.mark.parametrize(
    "content, what",
    [("inputz = 2", "there is no option 'inputz'"), ("inputs = ", "is not TOML"), ("[inputs]\na = 1", "no option")],
    ids=["name", "form", "table"],
)
def test_a_wrong_file_of_settings_is_told(root, tmp_path, content, what):
    settings = tmp_path / "serve.toml"
    settings.write_text(content)
    words = [sys.executable, "-m", "polyhead", "serve", str(root), "--config", str(settings)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 1 and what in done.stderr
