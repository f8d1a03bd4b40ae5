"""Counts, the access log and traces, each against what was asked."""

import io
import json
import logging
import re
import time
from pathlib import Path

import click
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from polyhead.cli.serve import command as serve
from polyhead.serve.app import application
from polyhead.serve.exchange import WAITING, AccessLog, Exchange, Tracing
from polyhead.serve.exposition import families_of
from polyhead.serve.keys import AccessKeys, keys_in
from polyhead.serve.metrics import Histogram, TaskCounts
from polyhead.serve.settings import ServeSettings
from support.loopback_server import LONG, TASKS, TEXT_TASKS, replace_task, service_of, tiny_root, until


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tiny_root(tmp_path_factory.mktemp("metrics") / "b")


def read(client, service):
    """Every sample of /metrics: name and labels to value. A batch is counted after it was answered."""
    until(lambda: service.queue.is_idle)
    text = client.get("/metrics").text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def ask(client, inputs, tasks=TEXT_TASKS, **options):
    return client.post("/v1/predict", json={"inputs": inputs, "tasks": list(tasks), "options": options})


def of(samples, name, **labels):
    return samples.get((f"polyhead_{name}", tuple(sorted(labels.items()))), 0)


def test_counts_are_those_of_the_requests(root):
    service = service_of(root)
    with TestClient(application(service)) as client:
        assert of(read(client, service), "batch_seconds_count") == 0  # what warmed it is not counted
        receipts = [
            ask(client, inputs, tasks).json()["receipt"]
            for inputs, tasks in ((["good lamp"], ["mood"]), (["sad phone", LONG], ["mood", "topics"]))
        ]
        ask(client, ["good lamp"], ["mood", "same"])  # of which the second reads pairs
        ask(client, ["good lamp", "  "], ["mood"], deadline=1e-9)
        assert ask(client, [], ["mood"]).status_code == 422
        client.get("/no-such-route")
        samples = read(client, service)
    assert of(samples, "requests_total", route="/v1/predict", status="200") == 4
    assert of(samples, "requests_total", route="/v1/predict", status="422") == 1
    assert of(samples, "requests_total", route="unmatched", status="404") == 1
    assert of(samples, "request_seconds_count", route="/v1/predict") == 5
    mood, topics = {"task": "mood", "version": "v0001"}, {"task": "topics", "version": "v0001"}
    assert of(samples, "task_answers_total", **mood) == 4
    assert of(samples, "task_answers_total", **topics) == 2
    assert of(samples, "task_skipped_total", task="same", version="v0001") == 1
    assert of(samples, "task_skipped_total", **mood) == 1
    assert of(samples, "task_late_total", **mood) == 1
    assert of(samples, "task_cut_total", **mood) == of(samples, "task_cut_total", **topics) == 1
    assert of(samples, "task_failures_total", **mood) == 0
    assert of(samples, "task_seconds_count", **mood) == 4
    assert of(samples, "task_seconds_count", task="same", version="v0001") == 0
    tokens = sum(receipt["tokens"] for receipt in receipts)
    again = receipts[0]["tokens"]  # the same text once more
    assert of(samples, "encoder_tokens_total") == of(samples, "batch_tokens_sum") == tokens + again
    assert of(samples, "encoder_passes_total") == of(samples, "batch_inputs_sum") == 4
    assert of(samples, "encoder_layers_total") == 4 * 2
    assert of(samples, "queue_wait_seconds_count") == 4
    assert 0 < of(samples, "batch_fill_sum") <= of(samples, "batch_fill_count")
    assert of(samples, "ready") == 1 and of(samples, "queue_inputs") == 0
    told = {dict(labels)["task"] for (name, labels) in samples if name == "polyhead_task_info"}
    assert told == set(TASKS)
    assert ("process_resident_memory_bytes", ()) in samples


def test_a_task_that_changed_counts_under_its_new_version(tmp_path):
    root = tiny_root(tmp_path / "b")
    service = service_of(root)
    with TestClient(application(service)) as client:
        ask(client, ["good lamp"], ["mood", "topics"])
        replace_task(root, "mood", seed=77)
        service.session.refresh()
        ask(client, ["good lamp"] * 2, ["mood", "topics"])
        samples = read(client, service)
    assert of(samples, "task_answers_total", task="mood", version="v0001") == 1
    assert of(samples, "task_answers_total", task="mood", version="v0002") == 2
    assert of(samples, "task_answers_total", task="topics", version="v0001") == 3


def test_stages_are_timed_when_they_are_told(root):
    service = service_of(root)
    with TestClient(application(service)) as client:
        lines = client.post("/v1/predict/stream", json={"inputs": ["good lamp"], "tasks": ["mood"]}).text
        assert lines
        samples = read(client, service)
    assert of(samples, "task_seconds_count", task="mood", version="v0001") == 1
    assert of(samples, "task_answers_total", task="mood", version="v0001") == 1


def test_both_text_formats_are_spoken(root):
    with TestClient(application(service_of(root))) as client:
        plain = client.get("/metrics")
        assert plain.headers["content-type"].startswith("text/plain")
        new = client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        assert new.headers["content-type"].startswith("application/openmetrics-text")
        assert new.text.endswith("# EOF\n")
        for version in ("x", "1.x", "9" * 5000, "\u00ff", "", " 1.0.0", "1.0.0.0.0.0", "1.0.0\u00b2", "-1", "2.0.0 "):
            for rest in ("", ";q=1", ";escaping=x", ";escaping=dots"):
                for media in ("application/openmetrics-text", "text/plain"):
                    accept = f"{media};version={version}{rest}".encode("latin-1")
                    assert client.get("/metrics", headers={"Accept": accept}).status_code == 200, accept


def test_two_services_count_apart(root):
    first, second = service_of(root), service_of(root)
    with TestClient(application(first)) as one, TestClient(application(second)) as other:
        ask(one, ["good lamp"])
        assert of(read(other, second), "encoder_passes_total") == 0
        assert of(read(one, first), "encoder_passes_total") == 1


def test_a_histogram_counts_up_to_and_with_each_bound():
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.add(value)
    assert histogram.cumulative() == [2, 4, 5] and histogram.total == 14.0


def test_sets_of_tasks_without_end_are_added_up():
    counts = TaskCounts()

    class Loaded:
        versions, hidden = {}, frozenset()

    class Answered:
        stage, loaded, results = None, Loaded, []

    for number in range(3000):
        Answered.tasks = (f"task-{number}",)
        counts.ticket(Answered, 0.1)
    assert len(counts._groups) <= 1025
    counts.add_up()
    assert len(counts.answers) == 3000


def logged(root, ask_all, **more):
    file = io.BytesIO()
    log = AccessLog(file)
    with TestClient(application(service_of(root), observers=[log.exchange], **more)) as client:
        ask_all(client)
    log.close()
    return [json.loads(line) for line in file.getvalue().splitlines()], file.getvalue().decode()


def test_a_line_says_what_a_request_cost_and_neither_its_text_nor_its_key(root):
    keys = AccessKeys(keys_in("predict:s3cret-key # web shop", source="keys"))
    headers = {"Authorization": "Bearer s3cret-key"}

    def ask_all(client):
        body = {"inputs": ["good lamp", LONG], "tasks": ["mood"]}
        client.post("/v1/predict", json=body, headers=headers)
        assert client.post("/v1/predict?token=s3cret-key", json=body, headers=headers).status_code == 422
        client.get("/v1/tasks/mood", headers=headers)
        client.get("/good/lamp", headers={"Authorization": "Bearer wr0ng"})

    (predict, refused, task, unknown), text = logged(root, ask_all, keys=keys)
    assert (refused["route"], refused["status"], refused["key"]) == ("/v1/predict", 422, "web shop")
    assert (predict["route"], predict["method"], predict["status"]) == ("/v1/predict", "POST", 200)
    assert (predict["inputs"], predict["passes"], predict["key"]) == (2, 2, "web shop")
    assert predict["tokens"] > 2 and predict["cut"] > 0
    assert 0 < predict["waited"] < predict["milliseconds"]
    assert predict["time"].endswith("+00:00")
    assert (task["route"], task["status"], task["key"]) == ("/v1/tasks/{name}", 200, "web shop")
    assert (unknown["route"], unknown["status"], unknown.get("key")) == ("unmatched", 404, None)
    for secret in ("s3cret", "wr0ng", "good", "lamp"):
        assert secret not in text


def test_lines_that_cannot_be_written_stop_no_request(root, caplog):
    class Full(io.BytesIO):
        def write(self, content):
            raise OSError(28, "No space left on device")

    log = AccessLog(Full())
    with TestClient(application(service_of(root), observers=[log.exchange])) as client:
        assert ask(client, ["good lamp"]).status_code == 200
    log.close()
    assert "1 lines of the access log could not be written" in caplog.text


def test_lines_that_wait_are_bounded_and_those_that_are_dropped_are_counted():
    file = io.BytesIO()
    log = AccessLog(file)
    log.close()  # nobody writes
    exchange = Exchange({"method": "GET"})
    for _ in range(WAITING + 7):
        log.exchange(exchange)
    assert len(log._waiting) == WAITING
    log._waiting.clear()
    log.exchange(exchange)
    assert log._waiting[0].dropped == 7


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_request_is_a_span_with_its_wait_and_its_batch(root):
    trace = pytest.importorskip("opentelemetry.sdk.trace", reason="the extra otel is not installed")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider, file = InMemorySpanExporter(), trace.TracerProvider(), io.BytesIO()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    log, tracing = AccessLog(file), Tracing(provider.get_tracer("test"))
    began = time.time_ns()
    with TestClient(application(service_of(root), observers=[tracing.exchange, log.exchange])) as client:
        body = {"inputs": ["good lamp"], "tasks": ["mood"]}
        assert client.post("/v1/predict", json=body, headers={"traceparent": PARENT}).status_code == 200
        client.get("/v1/tasks/none")
    log.close()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"wait", "batch", "POST /v1/predict", "GET /v1/tasks/{name}"}
    request, wait, batch = spans["POST /v1/predict"], spans["wait"], spans["batch"]
    assert f"{request.context.trace_id:032x}" == PARENT[3:35] and f"{request.parent.span_id:016x}" == PARENT[36:52]
    assert wait.parent.span_id == batch.parent.span_id == request.context.span_id
    slack = 50_000_000  # of two clocks
    assert began - slack <= request.start_time <= wait.start_time <= wait.end_time == batch.start_time
    assert batch.end_time <= request.end_time <= time.time_ns() + slack
    assert request.attributes["http.response.status_code"] == 200 and request.attributes["polyhead.passes"] == 1
    assert "good" not in str([span.attributes for span in spans.values()])
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    assert lines[0]["trace"] == PARENT[3:35]


def test_traces_without_their_package_say_what_to_install(monkeypatch):
    from polyhead.errors import MissingExtra

    monkeypatch.setitem(__import__("sys").modules, "opentelemetry", None)
    with pytest.raises(MissingExtra, match=r"polyhead\[otel\]"):
        Tracing()


def test_nothing_is_traced_where_no_sdk_is_set_up(root, caplog):
    pytest.importorskip("opentelemetry.trace", reason="the extra otel is not installed")
    caplog.set_level(logging.WARNING)
    with TestClient(application(service_of(root), observers=[Tracing().exchange])) as client:
        assert ask(client, ["good lamp"]).status_code == 200
    assert not caplog.records


def test_health_says_how_the_server_is(root):
    service = service_of(root, ServeSettings())
    app = application(service)
    assert not service.is_ready
    with TestClient(app) as client:
        health = client.get("/health")
        assert health.status_code == 200 and health.headers["cache-control"] == "no-store"
        told = health.json()
        assert (told["status"], told["tasks"], told["waiting"]) == ("ready", len(TASKS), 0)
        assert told["trunk"] == service.session.bundle.digest
        service.is_ready = False
        assert client.get("/health").json()["status"] == "starting"
    assert service.is_closing


def test_the_page_names_every_count_and_no_other(root):
    text = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `(polyhead_\w+)` \|", text, re.MULTILINE))
    service = service_of(root, ServeSettings(cache_bytes=1000))
    there = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in families_of(service)
        if family.name != "polyhead"
    } | {"polyhead_info"}
    assert told == there and len(told) > 20
    service.queue.close()


def test_the_page_names_every_limit_with_its_default():
    text = (Path(__file__).parents[2] / "docs" / "guides" / "operations.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| [^|]*\| `(--[\w-]+)` \| ([\d,]+)", text, re.MULTILINE))
    defaults = {option.opts[0]: option.default for option in serve.params if isinstance(option, click.Option)}
    assert len(rows) >= 13
    for option, number in rows.items():
        assert float(number.replace(",", "")) == defaults[option], option
