"""The gauges of drift: what a server tells of texts like those that a task knows, of others, and where nothing."""

import random
import shutil
from urllib.request import urlopen

import msgspec
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from polyhead.bundle.read import Bundle
from polyhead.bundle.remove import remove_tasks
from polyhead.bundle.row_profile import stored_profile
from polyhead.client import Client
from polyhead.engine.session import Session
from polyhead.evaluate.drift import distances, unlike_rows
from polyhead.evaluate.profile import answer_scores, asked, profile_rows, scores_in
from polyhead.serve import drift
from polyhead.serve.app import application
from polyhead.serve.service import Service
from polyhead.serve.settings import ServeSettings
from polyhead.tasks.kinds import kind_of
from polyhead.train.run import train_project
from support import tiny_project
from support.loopback_server import listening, replace_task, service_of, until
from support.shared import made_once

HIGH = 0.05  # docs/guides/operations.md: share of unlike texts from which they are others


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a bundle whose tasks know 150 messages, but for `same`, which reads pairs."""

    def make(home):
        tiny_project.write_data(home / "data", train=24, other=150)
        train_project(tiny_project.project(home, "mood", "urgency", "names", "same"), folder=home)

    return made_once(tmp_path_factory, "drift", make)


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Every request is looked at, and comparisons follow each other at once."""
    monkeypatch.setattr(drift, "SPACING", 0.0)
    monkeypatch.setattr(drift, "REST", 0)


def messages(count, seed):
    return [row["text"] for row in tiny_project.messages(count, seed)]


def others(count):
    chance = random.Random(0)
    words = ("kessel", "lampe", "kaputt", "gestern", "nicht", "mehr", "und", "aber")
    return [" ".join(chance.choice(words) for _ in range(12)) for _ in range(count)]


def gauges(text):
    """By name, and by task or by task and aspect."""
    told = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith(("polyhead_task_drift", "polyhead_task_unlike")):
            told[family.name] = {
                tuple(s.labels[key] for key in ("task", "aspect") if key in s.labels): s.value for s in family.samples
            }
    return told


def told_after(port, service, texts, *, tasks=("mood", "urgency", "names")):
    """The gauges after these texts were asked, 16 at a time, and looked at."""
    with Client(f"http://127.0.0.1:{port}") as client:
        for start in range(0, len(texts), 16):
            client.predict(texts[start : start + 16], tasks=list(tasks))
            until(lambda: service.drift.is_idle)
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return gauges(answer.read().decode())


@pytest.mark.slow
def test_a_server_tells_texts_like_the_known_ones_from_others(home):
    service = service_of(home / "bundle")
    with listening(service) as port:
        assert not any(told_after(port, service, []).values())
        same = told_after(port, service, messages(256, seed=5))
        shifted = told_after(port, service, others(256))
    assert set(same["polyhead_task_unlike"]) == {("mood",), ("urgency",), ("names",)}  # `same` reads pairs
    assert max(same["polyhead_task_unlike"].values()) < HIGH < min(shifted["polyhead_task_unlike"].values())
    for (task, aspect), value in same["polyhead_task_drift"].items():
        assert value < 0.03, (task, aspect)
        assert aspect == "answers" or shifted["polyhead_task_drift"][task, aspect] > 0.1, (task, aspect)
    assert ("mood", "answers") in same["polyhead_task_drift"] and ("names", "answers") not in same[
        "polyhead_task_drift"
    ]
    assert set(same["polyhead_task_drift_texts"].values()) == {256.0}


def test_the_gauges_are_what_drift_computes_of_the_newest_texts(home):
    service, texts = service_of(home / "bundle"), messages(300, seed=8)
    with listening(service) as port:
        told = told_after(port, service, texts)
    newest = [(text,) for text in texts[288 - 256 : 288]]  # after 288 of them it was compared the last time
    session = Session(home / "bundle", backend="reference")
    known = stored_profile(session.bundle, "mood")
    rows = profile_rows(session.tasks["mood"], newest, asked(session, "mood", newest))
    assert told["polyhead_task_unlike"]["mood",] == pytest.approx(unlike_rows(known, rows)[0], abs=0.005)
    for aspect, value in distances(known, rows).items():
        assert told["polyhead_task_drift"]["mood", aspect] == pytest.approx(value, abs=1e-3)


def test_few_texts_tell_nothing(home):
    service = service_of(home / "bundle")
    with listening(service) as port:
        assert not any(told_after(port, service, messages(drift.LEAST - 16, seed=3)).values())
        assert told_after(port, service, messages(64, seed=4))["polyhead_task_unlike"]


def test_nothing_is_asked_more_where_no_task_keeps_a_summary(home, tmp_path):
    made = msgspec.structs.replace(tiny_project.project(tmp_path, "mood"), bundle="bundle")
    train_project(made, folder=tmp_path)  # on rows that are too few
    service = service_of(tmp_path / "bundle")
    loaded = service.loaded
    assert service.drift.asked(("mood",), loaded) == ()
    with TestClient(application(service)) as client:
        client.post("/v1/predict", json={"inputs": messages(40, seed=1), "tasks": ["mood"]})
        assert service.drift._thread is None
        assert not any(gauges(client.get("/metrics").text).values())


def test_answers_and_receipts_are_those_of_requests_that_are_not_looked_at(home, monkeypatch):
    """In deterministic mode bit for bit, as the mean vector is computed beside them."""
    service = service_of(home / "bundle", deterministic=True)
    body = {"inputs": messages(20, seed=2), "tasks": ["mood", "urgency", "names"]}
    with TestClient(application(service)) as client:
        first = client.post("/v1/predict", json=body).json()
        until(lambda: service.drift._windows)
        monkeypatch.setattr(drift, "SPACING", 1e9)
        service.drift._next = float("inf")
        assert client.post("/v1/predict", json=body).json()["results"] == first["results"]


def test_requests_are_looked_at_seldom(home, monkeypatch):
    now = [100.0]
    session = Session(home / "bundle", backend="reference")
    service = Service(session, ServeSettings())
    watch = drift.DriftWatch(session, service.vectors, now=lambda: now[0])
    loaded = service.loaded
    monkeypatch.setattr(drift, "SPACING", 0.05)
    assert watch.asked(("mood",), loaded) == (service.vectors,)
    assert watch.asked(("mood",), loaded) == ()
    now[0] += 0.06
    assert watch.asked(("same",), loaded) == ()  # nothing to compare with a pair
    assert watch.asked((service.vectors, "mood"), loaded) == ()
    assert watch.asked(("mood",), loaded) == (service.vectors,)
    service.queue.close()


@pytest.mark.slow
@pytest.mark.parametrize("is_removed", [False, True], ids=["replaced", "removed, and added by the same name"])
def test_a_new_version_begins_anew(home, tmp_path, is_removed):
    root = tmp_path / "b"
    shutil.copytree(home / "bundle", root)
    service = service_of(root)
    with listening(service) as port:
        assert ("mood",) in told_after(port, service, messages(160, seed=6))["polyhead_task_unlike"]
        if is_removed:
            remove_tasks(root, ["mood"])
        replace_task(root, "mood", seed=3)  # without a summary
        service.session.refresh()
        told = told_after(port, service, messages(64, seed=7))["polyhead_task_unlike"]
        assert ("mood",) not in told and ("urgency",) in told


@pytest.mark.slow
def test_texts_of_a_removed_task_are_forgotten(home, tmp_path):
    """They stayed as long as the server ran, for every name that a task ever had."""
    root = tmp_path / "b"
    shutil.copytree(home / "bundle", root)
    service = service_of(root)
    with listening(service) as port:
        told_after(port, service, messages(160, seed=6))
        assert set(service.drift._windows) == set(service.drift._states) == {"mood", "urgency", "names"}
        remove_tasks(root, ["mood"])
        service.session.refresh()
        told_after(port, service, messages(16, seed=7), tasks=("urgency", "names"))
        assert set(service.drift._windows) == set(service.drift._states) == {"urgency", "names"}


@pytest.mark.parametrize("name", ["mood", "topics", "urgency"])
def test_scores_of_an_answer_are_those_of_its_outputs(name):
    task = tiny_project.ENTRIES[name].task()
    kind = kind_of(task)
    outputs = np.random.default_rng(0).normal(size=(20, kind.width(task))).astype(np.float32)
    answers = kind.answers(task, kind.decode_rows(task, outputs))
    expected = answer_scores(task, list(outputs))
    np.testing.assert_allclose(np.stack([scores_in(task, answer) for answer in answers]), expected, atol=1e-6)


@pytest.mark.slow
def test_a_summary_that_is_gone_stops_no_server(home, tmp_path, caplog):
    root = tmp_path / "b"
    shutil.copytree(home / "bundle", root)
    service = service_of(root)
    with listening(service) as port:
        version = Bundle.open(root).version("mood")
        (root / "tasks" / "mood" / version / "seen.safetensors").write_bytes(b"damaged")
        told = told_after(port, service, messages(160, seed=6))["polyhead_task_unlike"]
    assert ("mood",) not in told and ("urgency",) in told
    assert "'mood' cannot be compared" in caplog.text
