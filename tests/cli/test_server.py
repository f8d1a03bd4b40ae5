"""`polyhead serve` on several ports, and `polyhead predict --server`, which prints what it prints of a bundle."""

import json
import os
import re
import signal
import subprocess
import sys

import msgspec
import pytest

pytest.importorskip("starlette", reason="the server's packages are not installed: pip install polyhead")

from polyhead.client.answers import Prediction
from polyhead.errors import Overloaded
from support.cases import cases
from support.client_server import LONG, SECONDS, TEXTS, got, posted, running, tiny_server_bundle
from support.commands import environment, run

LINES = [
    *TEXTS,
    LONG,
    "",
    '{"id": 7, "text": "good", "text_b": "bad"}',
    '{"tokens": ["anna", "", "phone", "is late"]}',
    '{"question": "where?", "options": ["here", "there"], "context": "it is here"}',
    '{"question": "who is late?", "context": "anna is late"}',
    '"caf\\u00e9 \\ud83d\\ude00 \\ud800 lamp"',
    '{"text": 3}',
    "{",
    '{"text": " "}',
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return tiny_server_bundle(tmp_path_factory.mktemp("b") / "b")


@pytest.fixture(scope="module")
def server(bundle):
    with running(bundle) as server:
        yield server


def locally(bundle, *words, **options):
    computes = ["--backend", "reference", "--precision", "float32", "--deterministic"]
    return run("predict", bundle, *words, *computes, **options)


def same(left, right):
    assert left.code == right.code and left.err == right.err
    assert left.out == right.out


@pytest.mark.parametrize(
    "words", [(), ("--tasks", "mood,names,same"), ("--format", "text")], ids=["all", "some", "text"]
)
def test_a_server_prints_the_lines_that_the_bundle_prints(bundle, server, words):
    given = "\n".join(LINES)
    told = run("predict", "--server", server.url, *words, stdin=given)
    same(locally(bundle, *words, stdin=given), told)
    assert len(told.rows) == len(LINES) - 1


def test_a_file_is_answered_and_written(bundle, server, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    done = run("predict", "--server", server.url, tmp_path / "texts.txt", "-o", tmp_path / "out.jsonl")
    assert done.code == 0 and not done.out
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    for row, answer in zip(rows, server.replies("mood", TEXTS), strict=True):
        assert row["answers"]["mood"]["label"] == answer["label"]
        assert row["answers"]["mood"]["scores"] == pytest.approx(answer["scores"], abs=1e-5)


def test_a_line_that_the_server_refuses_takes_no_other_with_it(tmp_path):
    from polyhead.serve.settings import RequestLimits, ServeSettings

    settings = ServeSettings(limits=RequestLimits(inputs=2, characters=100))
    with running(tiny_server_bundle(tmp_path / "b", "mood"), settings=settings) as server:
        done = run("predict", "--server", server.url, stdin="\n".join([*TEXTS, "x" * 101]))
    assert ["mood" in row.get("answers", {}) for row in done.rows] == [True] * 4 + [False]
    assert "too long" in done.rows[-1]["error"] and done.code == 1


class LateServer:
    """A client whose server has time for `most` inputs of a call, and never for `slow` and what follows.

    `calls` counts their inputs; after `calls_answered` of them it raises an error.
    """

    def __init__(self, most, slow=(), calls_answered=99):
        self.most, self.slow, self.calls_answered, self.calls = most, slow, calls_answered, []

    def __call__(self, *_, **__):
        return self

    def predict(self, inputs, **_):
        if len(self.calls) == self.calls_answered:
            raise Overloaded("too much waits", retry_after=1.0)
        self.calls.append(len(inputs))
        first_slow = next((number for number, text in enumerate(inputs) if text in self.slow), self.most)
        read = [number < min(self.most, first_slow) for number in range(len(inputs))]
        return msgspec.convert({"results": [result_of("mood" if is_read else "") for is_read in read]}, Prediction)

    def close(self):
        pass


def result_of(*answered, tasks=("mood",)):
    """A result with answers of these tasks; the server was late for the others."""
    return {
        "answers": {task: {"label": "good", "scores": {}} for task in answered if task},
        "late": [task for task in tasks if task not in answered],
    }


def asked_of(monkeypatch, server, lines=8):
    """What the command prints of so many numbered lines."""
    monkeypatch.setattr("polyhead.cli.remote.Client", server)
    return run("predict", "--server", "here", stdin="".join(f"{number}\n" for number in range(lines)))


def test_lines_that_the_server_was_late_for_are_asked_again(monkeypatch):
    server = LateServer(3)
    done = asked_of(monkeypatch, server)
    assert [sorted(row) for row in done.rows] == [["answers", "line", "receipt", "skipped"]] * 8
    assert (done.code, done.err, server.calls) == (0, "", [8, 4, 2])


def test_a_line_that_stays_late_takes_no_other_with_it(monkeypatch):
    for slow in ("0", "4", "047"):
        server = LateServer(3, slow=slow)
        done = asked_of(monkeypatch, server)
        assert [number for number, row in enumerate(done.rows) if row.get("late")] == [int(number) for number in slow]
        assert done.code == 1


def test_lines_that_stay_late_are_named_and_counted_as_late(monkeypatch):
    """Several lines in turn that are late alone end it: the server is too slow for any."""
    server = LateServer(8, slow="01234567")
    done = asked_of(monkeypatch, server)
    assert [row.get("late") for row in done.rows] == [["mood"]] * 8
    assert done.code == 1 and "the server was late for tasks on 8 lines" in done.err and "fit no task" not in done.err
    assert server.calls == [8, 4, 2, 1, 1, 1]


def test_an_error_of_a_repeat_takes_no_answer(monkeypatch):
    done = asked_of(monkeypatch, LateServer(5, calls_answered=1))
    assert [row.get("late") for row in done.rows] == [None] * 5 + [["mood"]] * 3 and done.code == 1


def test_a_repeat_takes_no_answer(monkeypatch):
    """A task that was answered before may be the late one of the repeat."""
    tasks, server = ("mood", "names"), LateServer(8)
    results = [result_of("mood", tasks=tasks), result_of("names", tasks=tasks)]
    server.predict = lambda *_, **__: msgspec.convert({"results": [results.pop(0)]}, Prediction)
    (row,) = asked_of(monkeypatch, server, lines=1).rows
    assert list(row["answers"]) == ["mood"] and row["late"] == ["names"] and not results


def test_texts_of_the_command_line_are_asked_of_the_server(server):
    by_words = run("predict", "--server", server.url, "--tasks", "mood", "the lamp is good", "so late")
    by_lines = run("predict", "--server", server.url, "--tasks", "mood", stdin="the lamp is good\nso late\n")
    assert [row["answers"] for row in by_words.rows] == [row["answers"] for row in by_lines.rows]
    assert len(by_words.rows) == 2


def test_errors_of_a_server_end_the_command(server):
    run("predict", "--server", server.url, "--tasks", "moods", stdin="good").refuses(
        "UnknownTask", "did you mean 'mood'?"
    )
    run("predict", "--server", "127.0.0.1:1", stdin="good").refuses("BackendError", "no server answers")


@cases(
    "words, reason",
    [
        (["--server", "here", os.path.dirname(__file__), "b"], "the server has the bundle"),
        (["--server", "here", __file__, "--text", "text", "-o", "out.csv"], "a --server answers texts and lines"),
        (["--server", "here", "--backend", "reference"], "are the server's"),
        (["bundle", "--key-file", __file__], "goes with --server"),
        ([], "Missing argument 'BUNDLE'"),
        ([__file__], "is a file"),
    ],
)
def test_a_command_line_that_means_nothing_is_refused(words, reason):
    assert reason in run("predict", *words, stdin="good").refuses(code=2).err


@pytest.mark.parametrize("from_file", [True, False], ids=["file", "environment"])
def test_the_key_comes_from_a_file_or_the_environment(tmp_path, monkeypatch, from_file):
    from polyhead.cli.remote import Remote

    (tmp_path / "key").write_text("secret\n")
    if not from_file:
        monkeypatch.setenv("POLYHEAD_API_KEY", "secret")
    remote = Remote("http://here", key_file=str(tmp_path / "key") if from_file else None, tasks=None, familiar=False)
    assert remote._client._connections._headers["Authorization"] == "Bearer secret"


def test_ports_for_all_tasks_and_for_one_are_one_process_and_drain_together(bundle):
    command = [
        sys.executable,
        "-m",
        "polyhead",
        "serve",
        str(bundle),
        "--backend",
        "reference",
        "--precision",
        "float32",
    ]
    command += ["--port", "topics=0", "--port", "0", "--default-task", "mood"]
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
    try:
        said = [process.stderr.readline() for _ in range(2)]
        for_all, for_topics = (re.search(r"http://\S+", line)[0] for line in said)
        assert "answers 9 tasks" in said[0] and "answers for task 'topics'" in said[1], said
        assert {each["label"] for each in posted(f"{for_topics}/classify", {"inputs": "good"})[2]} == {
            "order",
            "bill",
            "person",
        }
        assert {each["label"] for each in posted(f"{for_all}/classify", {"inputs": "good"})[2]} == {"good", "bad"}
        assert len(got(f"{for_topics}/v1/tasks")[2]["tasks"]) == 9
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@cases(
    "words, code, reason",
    [
        (["--port", "topics"], 2, "neither PORT nor TASK=PORT"),
        (["--port", "=1"], 2, "neither PORT nor TASK=PORT"),
        (["--port", "topics=70000"], 2, "70000"),
        (["--port", "topic=0", "--port", "0"], 1, "did you mean 'topics'?"),
        (["--default-task", "moods", "--port", "0"], 1, "did you mean 'mood'?"),
    ],
)
def test_ports_and_tasks_that_are_none_are_refused(bundle, words, code, reason):
    run("serve", bundle, "--backend", "reference", *words).refuses(reason, code=code)


def test_a_name_with_an_equals_sign_is_no_task(bundle):
    run("serve", bundle, "--port", "a=b=0", "--port", "0").refuses("a=b", code=1)


def test_the_environment_of_tests_has_no_key():
    assert "POLYHEAD_API_KEY" not in os.environ
