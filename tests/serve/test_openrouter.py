"""OpenRouter's decisions: the bodies and answers of System One at its path, errors in its own form."""

import pytest
from starlette.testclient import TestClient

from support.decision_server import TEXT, asked_app, write_asked

PATH = "/api/alpha/decisions"
QUESTIONS = {
    "mood.bad": {"type": "noul", "instructions": "Is it bad?"},
    "anger": {"type": "choice", "instructions": "?", "criteria": {"calm": None, "cross": None, "furious": None}},
    "stars": {"type": "score", "instructions": "?", "criteria": ["1", "2", "3", "4", "5"]},
}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with TestClient(asked_app(write_asked(tmp_path_factory.mktemp("asked") / "bundle"))) as client:
        yield client


def body(model, **questions):
    return {"model": model, "state": TEXT, "questions": questions or QUESTIONS}


@pytest.mark.parametrize("model", ["typesafe/jev-1.13", "~typesafe/jev-latest", "jev-latest"])
def test_the_answers_are_those_of_system_one(client, model):
    answer = client.post(PATH, json=body(model))
    assert answer.status_code == 200 and set(answer.json()["answers"]) == set(QUESTIONS)
    assert answer.json()["answers"] == client.post("/v1/systemone", json=body("jev-latest")).json()["answers"]
    assert set(answer.json()["usage"]) >= {"input_tokens", "output_tokens"}


def test_errors_have_a_code_and_say_where_the_fault_is(client):
    unknown = client.post(PATH, json=body("jev-latest", nothing={"type": "noul", "instructions": "?"}))
    assert unknown.status_code == 400 and unknown.json()["error"]["code"] == 400
    assert unknown.json()["error"]["message"].startswith("questions.nothing: ")
    other = client.post(PATH, json=body("openai/gpt-6"))
    assert other.status_code == 404 and other.json()["error"]["code"] == 404
    assert client.post(PATH, content=b"{").json()["error"]["code"] == 400
