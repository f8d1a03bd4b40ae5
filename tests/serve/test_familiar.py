"""What a server says of how familiar a text is: in its own format, from the cache, in streams and in decisions."""

import json

import msgspec
import pytest
from starlette.testclient import TestClient

from polyhead.client.client import AnswerStream, predict_body
from polyhead.client.connection import Call
from polyhead.engine.session import Session
from polyhead.serve.app import application
from polyhead.serve.service import Service
from polyhead.serve.settings import ServeSettings
from polyhead.train.run import train_project
from support import tiny_project
from support.loopback_server import LONG
from support.shared import made_once

TEXT = "?!?! " * 9
KNOWN = "the lamp is late, please refund"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A bundle whose tasks know 150 messages: `mood` has a limit of its own, `urgency` reads long texts in windows."""

    def make(home):
        tiny_project.write_data(home / "data", train=24, other=150)
        made = tiny_project.project(home, "mood", "urgency", "same")
        changes = {"mood": {"none_below": 0.05}, "urgency": {"long_texts": "windows"}}
        tasks = [msgspec.structs.replace(each, **changes.get(each.name, {})) for each in made.tasks]
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
                {name: answer["familiar"] for name, answer in answers.items()}, rel=1e-5
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


def test_a_client_s_stream_says_it_at_its_end(client):
    body = predict_body([TEXT + "!?!?"], None, None, familiar=True)
    lines = client.post("/v1/predict/stream", content=body).content.splitlines(keepends=True)
    stream = AnswerStream((line for line in lines), Call())
    answered = {part.task for part in stream}
    (result,) = stream.end.results
    assert set(result.familiar) == answered == {"mood", "urgency"} and result.none_of_these == {"mood": True}


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


@pytest.mark.parametrize("cache_bytes", [0, 2**20])
def test_long_text_that_is_read_in_windows_is_not_refused_for_it(root, cache_bytes):
    settings = ServeSettings(long_texts="refuse", cache_bytes=cache_bytes)
    service = Service(Session(root, backend="reference", deterministic=True), settings)
    with TestClient(application(service)) as client:
        for options in ({}, {"familiar": True}) * 2:
            body = {"inputs": [LONG], "tasks": ["urgency"], "options": options}
            answer = client.post("/v1/predict", json=body)
            assert answer.status_code == 200, answer.text
            (result,) = answer.json()["results"]
            assert result["receipt"]["windows"] > 1 and result["receipt"]["cut"] == 0
            assert ("familiar" in result["answers"]["urgency"]) == bool(options)
        assert client.post("/v1/predict", json=body | {"tasks": ["mood"]}).status_code == 422


def test_answers_that_are_explained_do_not_say_it(client):
    body = {"inputs": [KNOWN], "tasks": ["urgency"], "options": {"familiar": True, "explain": True}}
    assert client.post("/v1/predict", json=body).status_code == 422


def test_classifier_servers_say_it_in_fields_of_an_extension(client, session):
    told = [result.answers["mood"] for result in session.predict([TEXT, KNOWN], tasks=["mood"])]
    shares, none = ([answer[key] for answer in told] for key in ("familiar", "none_of_these"))
    infinity = client.post("/infinity/classify", json={"input": [TEXT, KNOWN], "model": "mood"}).json()
    assert infinity["x_familiar"] == pytest.approx(shares) and infinity["x_none_of_these"] == none
    vllm = client.post("/vllm/classify", json={"input": [TEXT, KNOWN], "model": "mood"}).json()["data"]
    assert [each["x_familiar"] for each in vllm] == pytest.approx(shares)
    assert [each["x_none_of_these"] for each in vllm] == none


@pytest.mark.parametrize("path", ["/classify", "/predict", "/models/mood", "/"])
def test_bare_lists_say_it_in_headers(client, session, path):
    told = [result.answers["mood"] for result in session.predict([TEXT, KNOWN], tasks=["mood"])]
    texts = [[TEXT], [KNOWN]] if path == "/predict" else [TEXT, KNOWN]
    of_task = {"x-polyhead-task": "mood"}
    answer = client.post(path, json={"inputs": texts}, headers=of_task)
    assert answer.status_code == 200 and isinstance(answer.json(), list), answer.text
    shares = json.loads(answer.headers["X-Polyhead-Familiar"])
    assert shares == pytest.approx([each["familiar"] for each in told], abs=1e-4)
    assert json.loads(answer.headers["X-Polyhead-None-Of-These"]) == [each["none_of_these"] for each in told]
    many = client.post(path, json={"inputs": (texts * 129)[:257]}, headers=of_task)
    assert many.status_code == 200 and "X-Polyhead-Familiar" not in many.headers
    if path != "/models/mood":
        without = client.post(path, json={"inputs": texts}, headers={"x-polyhead-task": "urgency"})
        assert without.status_code == 200 and "X-Polyhead-Familiar" not in without.headers


@pytest.mark.parametrize("model", ["mood", "all"])
def test_open_inference_protocol_says_it_in_the_answer(client, session, model):
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [KNOWN]}
    (expected,) = session.predict([KNOWN], familiar=True, none_below={"mood": 0.5})
    parameters = {"familiar": True, "none_below": 0.5}
    answer = client.post(f"/v2/models/{model}/infer", json={"inputs": [tensor], "parameters": parameters}).json()
    outputs = {output["name"]: output for output in answer["outputs"]}
    mood = json.loads(outputs["answer" if model == "mood" else "mood"]["data"][0])
    assert mood["familiar"] == pytest.approx(expected.answers["mood"]["familiar"])
    assert mood["none_of_these"] == (mood["familiar"] < 0.5)
    refused = client.post(f"/v2/models/{model}/infer", json={"inputs": [tensor], "parameters": {"none_below": 2}})
    assert refused.status_code == 422


def test_options_of_a_client_are_those_of_the_route():
    options = json.loads(predict_body([KNOWN], None, None, none_below={"mood": 0.0}))["options"]
    assert options == {"none_below": {"mood": 0.0}}
    assert json.loads(predict_body([KNOWN], None, 2.0, familiar=True, none_below=0.1))["options"] == {
        "deadline": 2.0,
        "familiar": True,
        "none_below": 0.1,
    }
    assert "options" not in json.loads(predict_body([KNOWN], None, None))
