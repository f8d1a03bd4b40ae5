"""A request is answered by the tasks of the moment in which it was read, whatever changes until its end."""

import json

import msgspec
import pytest
from starlette.testclient import TestClient

from polyhead.bundle.manifest import TaskRecord
from polyhead.serve.app import application
from polyhead.tasks.calibration import Calibration
from polyhead.testing import tiny_part
from support.loopback_server import TASKS, service_of, tiny_root
from support.tiers import first_of

TEXTS = ["good lamp is late", "bad"]
WISHES = {"options": {"calibrated": {"mood": {"unsure_below": 0.1}, "topics": False}, "receipt": False}}
TENSOR = {"name": "text", "shape": [2], "datatype": "BYTES", "data": TEXTS}
OPTIONS = {"type": "choice", "name": "mood", "instructions": ""}
BODIES = {
    "/v1/predict": {"inputs": TEXTS, "tasks": ["topics", "mood"], **WISHES},
    "/v1/predict/stream": {"inputs": TEXTS, "tasks": ["topics", "mood"], **WISHES},
    "/classify?task=mood": {"inputs": TEXTS},
    "/vllm/classify": {"input": TEXTS, "model": "mood"},
    "/infinity/classify": {"input": TEXTS, "model": "mood"},
    "/predict?task=mood": {"inputs": [[text] for text in TEXTS]},
    "/models/mood": {"inputs": TEXTS},
    "/v2/models/mood/infer": {"inputs": [TENSOR]},
    "/v2/models/all/infer": {"inputs": [TENSOR]},
    "/v1/decisions": {"model": "x", "input": TEXTS[0], "questions": [OPTIONS]},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tiny_root(tmp_path_factory.mktemp("moment") / "b")


def calibrated(service, scale, *, seed):
    """The task `mood` with other arrays and this calibration, ready to be attached."""
    record = service.session.records["mood"]
    arrays = tiny_part(record.path, service.session.bundle.trunk().architecture, record.path.head.part, seed=seed)
    calibration = Calibration(scale=(scale,), unsure_below=0.99)
    return TaskRecord(task=record.task, path=record.path, trunk=record.trunk, calibration=calibration), arrays


CHANGES = {
    "replaced": lambda service: service.session.attach(*calibrated(service, 0.01, seed=9)),
    "removed": lambda service: service.session.detach("mood"),
}


@pytest.mark.parametrize("when", first_of(["before it is asked", "after it is answered"]))
@pytest.mark.parametrize("change", first_of(CHANGES))
@pytest.mark.parametrize("route", BODIES)
def test_a_change_in_the_middle_of_a_request_changes_nothing_of_it(root, monkeypatch, route, change, when):
    service = service_of(root, deterministic=True)
    service.session.attach(*calibrated(service, 3.0, seed=1))
    body = BODIES[route]
    if route == "/v1/decisions":
        labels = [{"value": label} for label in service.tasks["mood"].labels]
        body = {**body, "questions": [{**OPTIONS, "choices": labels}]}
    ask, changes = service.ask, []

    async def changing(*arguments, **more):
        if when == "before it is asked" and changes:
            changes.pop()(service)
        ticket = await ask(*arguments, **more)
        if changes:
            changes.pop()(service)
        return ticket

    monkeypatch.setattr(service, "ask", changing)
    with TestClient(application(service)) as client:
        expected = told(client.post(route, json=body))
        changes.append(CHANGES[change])
        assert told(client.post(route, json=body)) == expected and not changes
        after = client.post(route, json=body)
        assert after.status_code != 200 or told(after) != expected  # so that the change could have been seen
    assert set(TASKS) - {"mood"} <= set(service.tasks)


def told(answer):
    """What a request is answered, line by line, but for the versions, identities and times that no task gives."""
    assert answer.status_code == 200, answer.text
    lines = [json.loads(line) for line in answer.text.splitlines()]
    for line in filter(lambda line: isinstance(line, dict), lines):
        for name in ("versions", "id", "created", "x_receipt", "x_versions", "parameters"):
            line.pop(name, None)
    return msgspec.json.encode(sorted(lines, key=str))
