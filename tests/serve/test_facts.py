"""What `/v1/tasks` says of tasks: how sure they are, and no weights."""

import numpy as np
import pytest
from starlette.testclient import TestClient

from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.data.read import Examples, ReadReport
from polyhead.plan import Pool
from polyhead.serve.app import application
from polyhead.tasks.calibration import Calibration
from polyhead.tasks.task import Task
from polyhead.testing import tiny_part, tiny_path, tiny_trunk
from polyhead.train.record.draft import HeldOutRows, held_calibration
from support.loopback_server import service_of

LABELS = ("O", "B-x", "I-x")
TASKS = (
    Task(name="mood", kind="single_label", labels=("bad", "good")),
    Task(name="names", kind="tagging", labels=LABELS, decoder="constrained", transitions=((0.5,) * 3,) * 4),
    Task(name="urgency", kind="regression", range=(0.0, 1.0)),
)
MEASURED = {"calibration_error": {"before": 0.2, "after": 0.012345}}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    root, trunk = tmp_path_factory.mktemp("facts") / "bundle", tiny_trunk()
    write_bundle(root, trunk)
    scores = {"splits": {}, "scale": 0.52, "calibration": {"error": 0.0312345, "rows": 90}}
    for task in TASKS:
        path = tiny_path(task, trunk, pool=Pool())
        own = Calibration(scale=(0.5,), measured=MEASURED) if task.name == "mood" else None
        record = TaskRecord(task=task, path=path, trunk=trunk.digest, calibration=own)
        arrays = tiny_part(path, trunk.architecture, path.head.part)
        notes = scores if task.name == "mood" else {}
        Bundle.open(root).add_task(record, arrays, scores=notes, probes=[], card="")
    with TestClient(application(service_of(root))) as client:
        yield client


def test_calibration_is_told_where_it_is_known(client):
    told = {each["name"]: each.get("calibration") for each in client.get("/v1/tasks").json()["tasks"]}
    assert told["mood"] == {"error": 0.0312, "rows": 90, "scale": 0.52, "calibrated_error": 0.0123}
    assert told["names"] is None and told["urgency"] is None
    assert client.get("/v1/tasks/mood").json()["calibration"] == told["mood"]


def test_what_a_tagger_learned_of_transitions_is_left_out(client):
    for path in ("/v1/tasks", "/v1/tasks/names"):
        answer = client.get(path)
        assert "transitions" not in answer.text and "0.5,0.5" not in answer.text
    assert client.get("/v1/tasks/names").json()["task"]["labels"] == list(LABELS)


def held(targets, outputs):
    inputs = [("a",)] * len(targets)
    examples = Examples(inputs=inputs, targets=targets, words=None, rows=[], report=ReadReport())
    return HeldOutRows(examples=examples, outputs=outputs)


def test_held_calibration_is_the_expected_error_of_the_answered_label():
    """By the formula of Guo et al. 2017 with 15 bins, one by one."""
    chance = np.random.default_rng(3)
    outputs, targets = chance.normal(size=(200, 2)), chance.integers(0, 2, 200)
    shares = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    sure, right = shares.max(axis=1), shares.argmax(axis=1) == targets
    total = 0.0
    for place in range(15):
        inside = (sure > place / 15) & (sure <= (place + 1) / 15)
        if inside.any():
            total += abs(right[inside].mean() - sure[inside].mean()) * inside.mean()
    found = held_calibration(TASKS[0], held(list(targets), list(outputs)))
    assert found.rows == 200 and found.error == pytest.approx(total, abs=1e-9)
    number = held([np.float32(0.5)] * 3, [np.zeros(1)] * 3)
    assert held_calibration(TASKS[2], number) is None
