"""A service's counts in the text format of Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from polyhead._version import __version__
from polyhead.serve.metrics import Histogram, Metrics
from polyhead.serve.service import Service

TASK = ("task", "version")
_VERSION = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){0,2} *")  # of a media type
WITHOUT = {
    "failed": ("failures", "Answers that could not be computed"),
    "late": ("late", "Answers that were not done by the deadline"),
    "skipped": ("skipped", "Answers that there are none of, as the task does not read such an input"),
    "cut": ("cut", "Answers to an input of which the task did not read all"),
}


class _Collected(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Sequence[Metric]:
        return self._families


def registry_of(families: Sequence[Metric]) -> CollectorRegistry:
    """A registry of families that were collected already."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(families))
    return registry


def exposition_text(families: Sequence[Metric], accept: str) -> tuple[bytes, str]:
    """These families and the process's own, as text, and its media type; reads files of /proc.

    `accept` are the media types that the caller reads; where a version in it is none, it counts as left out.
    """
    registry = registry_of(families)
    ProcessCollector(registry=registry)
    is_read = all(_VERSION.fullmatch(version) for version in re.findall(r"version=([^;,]*)", accept))
    encode, media = choose_encoder(accept if is_read else "")
    return encode(registry), media


def families_of(service: Service) -> list[Metric]:
    """All counts of this moment; for the event loop, which alone changes most of them."""
    ready = GaugeMetricFamily(
        "polyhead_ready", "1 once the server is warm, until it stops", value=float(service.is_ready)
    )
    members = [({"bundle": name}, member) for name, member in service.members.items()] or [({}, service)]
    families = _joined((labels, family) for labels, member in members for family in _of_bundle(member))
    return [ready, *_of_requests(service.metrics), *families]


def _of_bundle(service: Service) -> Iterator[Metric]:
    yield _of_backend(service)
    yield _of_changes(service)
    yield from _of_batches(service)
    yield from _of_tasks(service)
    yield from _of_drift(service)
    yield from _of_cache(service)


def _of_backend(service: Service) -> Metric:
    backend = service.session.backend
    return InfoMetricFamily(
        "polyhead",
        "The server and what computes",
        value={
            "version": __version__,
            "backend": backend.name,
            "precision": backend.precision,
            "deterministic": str(service.session.deterministic).lower(),
            "trunk": service.session.bundle.digest,
        },
    )


def _of_changes(service: Service) -> Metric:
    state = service.changes.state
    counts = [(("taken",), state.taken), (("refused",), state.refused)]
    return _counter("polyhead_changes", "Changes of the bundle: taken over, or refused", ("outcome",), counts)


def _of_requests(metrics: Metrics) -> Iterator[Metric]:
    requests = [((route, str(status)), number) for (route, status), number in list(metrics.requests.items())]
    yield _counter("polyhead_requests", "Requests that were answered", ("route", "status"), requests)
    seconds = [((route,), histogram) for route, histogram in list(metrics.seconds.items())]
    text = "From a request's headers to the end of its answer"
    yield _histogram("polyhead_request_seconds", text, ("route",), seconds)
    refused = [((str(status),), number) for status, number in list(metrics.refused.items())]
    text = "Connections that were closed for their limits"
    yield _counter("polyhead_connections_refused", text, ("status",), refused)


def _of_batches(service: Service) -> Iterator[Metric]:
    metrics, queue = service.metrics, service.queue
    yield GaugeMetricFamily("polyhead_queue_inputs", "Inputs that wait for the encoder", value=queue.waiting)
    yield GaugeMetricFamily("polyhead_queue_seconds", "Estimated time until all that waits is read", queue.seconds())
    waited = "From a call to the batch with its input, by input"
    for name, text, histogram in (
        ("polyhead_queue_wait_seconds", waited, metrics.waited),
        ("polyhead_batch_tokens", "Tokens of a batch", metrics.batch["tokens"]),
        ("polyhead_batch_inputs", "Inputs of a batch", metrics.batch["inputs"]),
        ("polyhead_batch_fill", "Tokens of a batch over the most that it may have", metrics.batch["fill"]),
        ("polyhead_batch_seconds", "Time of a batch, from its tokens to its answers", metrics.batch_seconds),
    ):
        yield _histogram(name, text, (), [((), histogram)])
    yield CounterMetricFamily("polyhead_encoder_passes", "Texts that the encoder read", value=metrics.passes)
    yield CounterMetricFamily("polyhead_encoder_layers", "Layers that were run, of all passes", value=metrics.layers)
    yield CounterMetricFamily("polyhead_encoder_tokens", "Tokens that the encoder read", value=metrics.tokens)


def _of_tasks(service: Service) -> Iterator[Metric]:
    counts, loaded = service.metrics.tasks, service.loaded
    counts.add_up()
    info = GaugeMetricFamily("polyhead_task_info", "Tasks that can be asked", labels=(*TASK, "kind", "digest"))
    for name, task in service.tasks.items():
        digest = loaded.records[name].arrays if name in loaded.records else ""
        info.add_metric((name, loaded.versions.get(name, ""), task.kind, digest), 1)
    yield info
    yield _counter("polyhead_task_answers", "Answers that were given", TASK, counts.answers.items())
    for reason, (name, text) in WITHOUT.items():
        yield _counter(f"polyhead_task_{name}", text, TASK, counts.without[reason].items())
    yield _histogram("polyhead_task_seconds", "From a call to a task's answer, by input", TASK, counts.seconds.items())


def _of_drift(service: Service) -> Iterator[Metric]:
    texts = GaugeMetricFamily(
        "polyhead_task_drift_texts", "Texts that were compared with those that a task knows", labels=TASK
    )
    unlike = GaugeMetricFamily(
        "polyhead_task_unlike", "Share of them that are farther from these than 99 of 100 of these", labels=TASK
    )
    distance = GaugeMetricFamily(
        "polyhead_task_drift", "Distance of texts, lengths or answers from those, 0 to 1", labels=(*TASK, "aspect")
    )
    for state in service.drift.states():
        label = (state.task, state.version)
        texts.add_metric(label, state.texts)
        unlike.add_metric(label, state.unlike)
        for aspect, value in state.distances.items():
            distance.add_metric((*label, aspect), value)
    yield from (texts, unlike, distance)


def _of_cache(service: Service) -> Iterator[Metric]:
    cache = service.cache
    if cache is None:
        return
    yield CounterMetricFamily("polyhead_cache_hits", "Inputs that were answered from the cache", value=cache.hits)
    yield CounterMetricFamily("polyhead_cache_misses", "Inputs that were looked for in vain", value=cache.misses)
    yield CounterMetricFamily("polyhead_cache_dropped", "Inputs that made room for others", value=cache.dropped)
    yield GaugeMetricFamily("polyhead_cache_inputs", "Inputs that are kept", value=len(cache))
    yield GaugeMetricFamily("polyhead_cache_bytes", "Bytes that they take, nearly", value=cache.bytes)


def _counter(name: str, text: str, labels: Sequence[str], counts: Iterable[tuple[Sequence[str], int]]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, number in counts:
        family.add_metric(values, number)
    return family


def _histogram(
    name: str, text: str, labels: Sequence[str], histograms: Iterable[tuple[Sequence[str], Histogram]]
) -> Metric:
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, histogram in histograms:
        bounds = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
        buckets = list(zip(bounds, histogram.cumulative(), strict=True))
        family.add_metric(values, buckets, max(0.0, histogram.total))
    return family


def _joined(families: Iterable[tuple[Mapping[str, str], Metric]]) -> list[Metric]:
    """Families of one name as one; the samples of each get its labels."""
    by_name: dict[str, Metric] = {}
    for labels, family in families:
        joined = by_name.setdefault(family.name, Metric(family.name, family.documentation, family.type))
        joined.samples += [each._replace(labels={**labels, **each.labels}) for each in family.samples]
    return list(by_name.values())


def joined_counts(texts: Mapping[int, str]) -> str:
    """Texts in Prometheus' form as one: each series gets the label `worker`, and stands with others of its family."""
    families = (
        ({"worker": str(number)}, family)
        for number, text in texts.items()
        for family in text_string_to_metric_families(text)
    )
    return generate_latest(registry_of(_joined(families))).decode()
