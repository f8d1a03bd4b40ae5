"""What a server says of how familiar a text is: in its own format, from the cache, in streams and in decisions."""

import json

import msgspec
import pytest
from starlette.testclient import TestClient

from polyhead.engine.session import Session
from polyhead.serve.app import application
from polyhead.serve.service import Service
from polyhead.serve.settings import ServeSettings
from polyhead.train.run import train_project
from support import tiny_project
from support.shared import made_once

TEXT = "?!?! " * 9
KNOWN = "the lamp is late, please refund"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A bundle whose task `mood` knows 150 messages and has a limit of its own, and whose task `urgency` has none."""

    def make(home):
        tiny_project.write_data(home / "data", train=24, other=150)
        made = tiny_project.project(home, "mood", "urgency", "same")
        tasks = [msgspec.structs.replace(each, none_below=0.05 * (each.name == "mood")) for each in made.tasks]
        train_project(msgspec.structs.replace(made, tasks=tasks), folder=home)

    return made_once(tmp_path_factory, "familiar", make) / "bundle"


@pytest.fixture(scope="module")
def session(root):
    return Session(root, backend="reference", deterministic=True)


@pytest.fixture(scope="module")
def client(root):
    service = Service(Session(root, backend="reference", deterministic=True), ServeSettings(cache_bytes=2**20))
    with TestClient(application(service)) as client:
        yield client


def asked(client, texts, **options):
    answer = client.post("/v1/predict", json={"inputs": texts, "options": options})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_answers_are_those_of_a_session_also_from_the_cache(client, session):
    texts = [TEXT, KNOWN]
    expected = [result.answers for result in session.predict(texts, familiar=True)]
    before = [result["answers"] for result in asked(client, texts)["results"]]  # kept without numbers of `urgency`
    for _ in range(2):
        told = asked(client, texts, familiar=True)
        for result, answers in zip(told["results"], expected, strict=True):
            assert {name: answer["familiar"] for name, answer in result["answers"].items()} == pytest.approx(
                {name: answer["familiar"] for name, answer in answers.items()}
            )
    assert told["receipt"]["cached"] == 2
    assert not any("familiar" in result["urgency"] for result in before)
    assert [result["answers"]["urgency"].keys() for result in asked(client, texts)["results"]] == [
        result["urgency"].keys() for result in before
    ]


def test_limit_of_the_task_and_of_the_request(client):
    (result,) = asked(client, [TEXT])["results"]
    assert result["answers"]["mood"]["none_of_these"] is True and result["answers"]["mood"]["label"]
    assert "none_of_these" not in result["answers"]["urgency"]
    (result,) = asked(client, [TEXT], none_below={"mood": 0})["results"]
    assert "none_of_these" not in result["answers"]["mood"]
    (result,) = asked(client, [KNOWN], none_below=1)["results"]
    assert result["answers"]["mood"]["none_of_these"] == (result["answers"]["mood"]["familiar"] < 1)


@pytest.mark.parametrize("limit", [2, {"urgency": 0.5}, {"nobody": 0.5}], ids=["above one", "no labels", "no task"])
def test_limit_that_means_nothing_is_refused(client, limit):
    answer = client.post("/v1/predict", json={"inputs": [KNOWN], "options": {"none_below": limit}})
    assert answer.status_code in (404, 422), answer.text


def test_stream_says_it_at_its_end(client):
    body = {"inputs": [TEXT + "?!?!"], "options": {"familiar": True}}
    lines = [json.loads(line) for line in client.post("/v1/predict/stream", json=body).text.splitlines()]
    *parts, end = lines
    assert {part["task"] for part in parts} == {"mood", "urgency"}
    (result,) = end["results"]
    assert set(result["familiar"]) == {"mood", "urgency"} and result["none_of_these"] == {"mood": True}


def test_decisions_say_it_in_fields_of_an_extension(client):
    question = {"type": "choice", "name": "mood", "instructions": "Which?"}
    labels = client.get("/v1/tasks/mood").json()["task"]["labels"]
    body = {
        "model": "polyhead",
        "input": TEXT,
        "questions": [question | {"choices": [{"value": label} for label in labels]}],
    }
    answer = client.post("/v1/decisions", json=body).json()["answers"][0]
    assert answer["x_none_of_these"] is True and 0 < answer["x_familiar"] < 0.05


def test_answers_that_are_explained_do_not_say_it(client):
    body = {"inputs": [KNOWN], "tasks": ["urgency"], "options": {"familiar": True, "explain": True}}
    assert client.post("/v1/predict", json=body).status_code == 422
