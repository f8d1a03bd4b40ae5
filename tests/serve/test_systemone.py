"""System One: its own client and conformance suite, answers, errors; questions never see each other."""

import importlib.util
import json
import secrets
import subprocess
import sys
import time

import pytest
from starlette.middleware import Middleware
from starlette.testclient import TestClient

from polyhead.serve.app import application
from polyhead.serve.http import HttpError
from polyhead.serve.settings import Renamed
from support.decision_server import TEXT, asked_app, listening, service_of, write_asked

BACKENDS = [
    "reference",
    pytest.param(
        "openvino",
        marks=pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="openvino is not installed"),
    ),
]
MISSING = "is not installed: pip install '.[compat]'"
ANGER = {"calm": None, "cross": None, "furious": "very angry"}
NOUL = {"type": "noul", "instructions": "Is it late?"}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_asked(tmp_path_factory.mktemp("asked") / "bundle")


@pytest.fixture(scope="module")
def client(root):
    with TestClient(asked_app(root)) as client:
        yield client


@pytest.fixture(scope="module")
def guessing(root):
    """The same with answers by similarity."""
    with TestClient(asked_app(root, unknown="similarity")) as client:
        yield client


def choice(criteria, instructions="Which one?"):
    return {"type": "choice", "instructions": instructions, "criteria": criteria}


def score(*levels, instructions="How much?"):
    return {"type": "score", "instructions": instructions, "criteria": list(levels)}


def ask(client, questions, state=TEXT, **fields):
    return client.post("/v1/systemone", json={"model": "jev-latest", "state": state, "questions": questions, **fields})


def answers(client, questions, state=TEXT, **fields):
    reply = ask(client, questions, state, **fields)
    assert reply.status_code == 200, reply.text
    return reply.json()["answers"]


def own(client, *tasks):
    """What the tasks answer by the server's own format."""
    reply = client.post("/v1/predict", json={"inputs": TEXT, "tasks": list(tasks)})
    return reply.json()["results"][0]["answers"]


def test_answers_are_those_of_the_tasks(client):
    wanted = own(client, "anger", "urgency", "broken", "stars")
    found = answers(
        client, {"broken": NOUL, "urgency": NOUL, "anger": choice(ANGER), "stars": score("a", "b", "c", "d", "e")}
    )
    assert found["broken"]["noul"] == wanted["broken"]["scores"]["yes"]
    assert found["urgency"]["noul"] == wanted["urgency"]["value"]
    assert found["anger"]["choice"] == wanted["anger"]["label"]
    assert found["anger"]["probabilities"] == wanted["anger"]["scores"]
    assert found["stars"]["score"] == pytest.approx(wanted["stars"]["value"] - 1, abs=1e-5)
    assert found["stars"]["legend"] == {"0": "a", "1": "b", "2": "c", "3": "d", "4": "e"}
    assert {(name, each["x_task"]) for name, each in found.items()} == {(name, name) for name in found}


def test_levels_of_any_json_stand_in_the_legend_as_they_were_given(guessing):
    levels = ["calm", {"label": "cross"}, ["very", "angry"]]
    found = answers(guessing, {"how": score(*levels)})["how"]
    assert list(found["legend"].values()) == levels
    assert found["score"] == pytest.approx(found["probabilities"]["1"] + 2 * found["probabilities"]["2"], abs=1e-5)


def test_every_question_that_no_task_answers_is_named(client):
    reply = ask(client, {"late": NOUL, "broken": NOUL, "mood": choice({"good": None, "fair": None})})
    assert reply.status_code == 422
    detail = reply.json()["detail"]
    assert [each["loc"] for each in detail] == [["body", "questions", "late"], ["body", "questions", "mood"]]
    assert {each["type"] for each in detail} == {"unanswerable"} and "fair" in detail[1]["msg"]


def test_all_questions_cost_one_pass_of_the_text(guessing):
    questions = {"broken": NOUL, "anger": choice(ANGER), "late": NOUL, "what": choice({"box": None, "card": None})}
    alone = ask(guessing, {"broken": NOUL}).json()["x_receipt"]
    first, second = (ask(guessing, questions).json() for _ in range(2))
    assert alone["passes"] == first["x_receipt"]["passes"] == second["x_receipt"]["passes"] == 1
    assert first["x_receipt"]["layers"] == alone["layers"] == 2
    assert first["x_receipt"]["options"]["passes"] == 3 and "options" not in second["x_receipt"]
    assert first["usage"] == second["usage"]
    assert first["usage"]["input_tokens"] == alone["tokens"] + first["x_receipt"]["options"]["tokens"]


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_questions_never_see_each_other(root, backend):
    """Alone, reversed, renamed and among others: the same bits."""
    service = service_of(root, backend=backend, unknown="similarity", labels={"tone": Renamed(task="anger")})
    base = {
        "anger": choice(ANGER),
        "topics.bill": NOUL,
        "which": choice({"bill": None, "order": "a box", "phone": None}),
        "late": NOUL,
        "stars": score("a", "b", "c", "d", "e"),
        "how": score("happy", "sad"),
    }
    others = {"broken": NOUL, "urgency": NOUL, "mood": choice({"good": None, "bad": None}), "x": score("lamp", "card")}
    names = {"anger": "tone", "which": "Q 1", "late": "zz", "how": "x.y"}
    renamed = {names.get(name, name): question for name, question in base.items()}

    def bits(questions):
        return {name: json.dumps(each, sort_keys=True) for name, each in answers(client, questions).items()}

    with TestClient(application(service)) as client:
        wanted = bits(base)
        assert bits(dict(reversed(base.items()))) == wanted
        assert bits(renamed) == {names.get(name, name): each for name, each in wanted.items()}
        assert {name: each for name, each in bits({**others, **base}).items() if name in base} == wanted
        assert {name: bits({name: question})[name] for name, question in base.items()} == wanted


@pytest.mark.parametrize(
    ("questions", "place", "kind"),
    [
        ({}, ["questions"], "too_short"),
        ({f"q{i}": NOUL for i in range(401)}, ["questions"], "too_long"),
        ({"a": {"instructions": "x"}}, ["questions", "a", "type"], "missing"),
        ({"a": {"type": "box"}}, ["questions", "a", "type"], "value_error"),
        ({"a": {**NOUL, "criteria": {"maybe": "x"}}}, ["questions", "a", "criteria"], "type_error"),
        ({"a": choice({})}, ["questions", "a", "criteria"], "too_short"),
        ({"a": choice({"x": None})}, ["questions", "a", "criteria"], "too_short"),
        ({"a": choice({f"x{i}": None for i in range(256)})}, ["questions", "a", "criteria"], "too_long"),
        ({"a": choice({"x": 3, "y": None})}, ["questions", "a", "criteria", "..."], "type_error"),
        ({"a": score("x")}, ["questions", "a", "criteria"], "too_short"),
        ({"a": score(*map(str, range(11)))}, ["questions", "a", "criteria"], "too_long"),
        ({"a": score("x", None)}, ["questions", "a", "criteria", 1], "type_error"),
        ({"a": {"type": "score", "criteria": {"0": "x"}}}, ["questions", "a", "criteria"], "type_error"),
        ({"": NOUL}, ["questions", ""], "too_short"),
    ],
    ids=[
        "none", "401", "no-type", "unknown-type", "unknown-outcome", "no-option", "one-option", "256-options",
        "number", "one-level", "11-levels", "null-level", "map", "no-name",
    ],
)  # fmt: skip
def test_questions_that_are_none_are_named_with_their_place(client, questions, place, kind):
    reply = ask(client, questions)
    assert reply.status_code == 422
    (fault,) = reply.json()["detail"]
    assert (fault["loc"], fault["type"]) == (["body", *place], kind) and fault["msg"]


def test_every_fault_is_told_at_once(client):
    detail = ask(client, {"a": {"type": "box"}, "b": NOUL, "c": {}}).json()["detail"]
    assert [each["loc"][2] for each in detail] == ["a", "c"]


@pytest.mark.parametrize(
    ("body", "place", "kind"),
    [
        (b"{", [0], "json_invalid"),
        (b"\xff", [0], "json_invalid"),
        (b"[" * 5000, None, None),
        (b"[]", [], "type_error"),
        ({"model": "jev-latest", "questions": {"a": NOUL}}, ["state"], "missing"),
        ({"state": "x", "questions": {"a": NOUL}}, ["model"], "missing"),
        ({"model": "jev-latest", "state": 3, "questions": {"a": NOUL}}, ["state"], "type_error"),
        ({"model": "jev-latest", "state": "", "questions": {"a": NOUL}}, ["state"], "empty"),
        ({"model": "jev-latest", "state": {"a": None}, "questions": {"a": NOUL}}, ["state"], "empty"),
        (
            {"model": "jev-latest", "state": json.loads("[" * 40 + "]" * 40), "questions": {"a": NOUL}},
            ["state"],
            "too_deep",
        ),
    ],
    ids=["cut", "bytes", "deep", "list", "no-state", "no-model", "number", "blank", "nulls", "nested"],
)
def test_body_that_is_none_is_told_as_a_list(client, body, place, kind):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    reply = client.post("/v1/systemone", content=content)
    fault = reply.json()["detail"][0]
    assert reply.status_code == 422 and fault["loc"][0] == "body" and fault["msg"]
    assert place is None or (fault["loc"], fault["type"]) == (["body", *place], kind)


def test_unknown_model_is_refused_and_known_ones_are_listed(client):
    reply = ask(client, {"broken": NOUL}, model="other")
    assert reply.status_code == 404 and reply.json()["detail"]["error_type"] == "not_found_error"
    names = [model["name"] for model in client.get("/v1/models").json()["models"]]
    assert len(names) == 2 and "jev-latest" in names
    for name in (*names, "jev-1.13.0"):
        assert answers(client, {"broken": NOUL}, model=name)


def test_state_of_any_json_is_read_as_words(client):
    wanted = answers(client, {"anger": choice(ANGER)}, "subject: my lamp\nitems: a\nb")
    assert answers(client, {"anger": choice(ANGER)}, {"subject": "my lamp", "items": ["a", "b"]}) == wanted


def test_compressed_body_is_read_up_to_the_limit(client):
    zstd = pytest.importorskip("backports.zstd", reason=f"backports.zstd {MISSING}")
    body = json.dumps({"model": "jev-latest", "state": TEXT, "questions": {"broken": NOUL}}).encode()
    headers = {"content-encoding": "zstd"}

    def send(content, coding="zstd"):
        return client.post("/v1/systemone", content=content, headers={"content-encoding": coding})

    assert client.post("/v1/systemone", content=zstd.compress(body), headers=headers).json()["answers"] == answers(
        client, {"broken": NOUL}
    )
    assert send(zstd.compress(b" " * 2**25)).status_code == 413
    assert send(zstd.compress(body)[:-5]).status_code == 400
    assert send(body).status_code == 400
    assert send(body, "gzip").status_code == 415
    assert send(body, "gzip").json()["detail"]["error_type"] == "unsupported_media_type"


def test_task_whose_head_fails_fails_the_request(root, monkeypatch):
    from support.tiny_project import fail_heads

    with TestClient(asked_app(root)) as client:
        fail_heads(monkeypatch, "anger")
        reply = ask(client, {"anger": choice(ANGER), "broken": NOUL})
    assert reply.status_code == 503 and reply.json()["detail"]["error_type"] == "overloaded_error"


def test_unmodified_client_reads_every_answer(root):
    sdk = pytest.importorskip("typesafe_sdk", reason=f"typesafe-sdk {MISSING}")
    questions = {
        "broken": sdk.Noul(instructions="Is something broken?"),
        "anger": sdk.Choice(instructions="How angry?", criteria=ANGER),
        "stars": sdk.Score(instructions="How many stars?", criteria=["1", "2", "3", "4", "5"]),
    }
    with (
        listening(asked_app(root)) as address,
        sdk.TypeSafeClient(api_key="none", base_url=address, retry=sdk.RetryPolicy(max_retries=0)) as client,
    ):
        result = client.system_one(state={"text": TEXT}, questions=questions)
        assert 0 <= result.nouls["broken"].noul <= 1 and result.choices["anger"].choice in ANGER
        assert result.scores["stars"].legend == {level: str(level + 1) for level in range(5)}
        assert result.usage.input_tokens > 0 and result.request_id.startswith("req_")
        assert [model.name for model in client.models.list().models][0] == "jev-latest"
        with pytest.raises(sdk.TypeSafeUnprocessableEntityError, match="questions.late: no task answers"):
            client.system_one(state=TEXT, questions={"late": sdk.Noul(instructions="Is it late?")})
        long = client.system_one(state=[TEXT] * 100, questions=questions)  # compressed where the client can
        assert set(long.answers) == set(questions)


class Key:
    """A guard that lets in who knows the key: stands in where the server has none of its own."""

    def __init__(self, app, key):
        self._app, self._key = app, f"Bearer {key}".encode()

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http" and dict(scope["headers"]).get(b"authorization") != self._key:
            raise HttpError(401, "the key is missing or wrong", do="send 'Authorization: Bearer KEY'")
        await self._app(scope, receive, send)


def has_keys():
    """Whether `polyhead serve` takes keys by itself."""
    from polyhead.cli.serve import command

    return any("--keys" in parameter.opts for parameter in command.params)


def conformance(address, key=None):
    """Each requirement and its outcome."""
    from jevcompat import runner

    report = runner.run(address, key=key, timeout=60)
    failures = [f"{each.id}: {finding}" for each in report.results for finding in each.findings]
    assert report.verdict == "conformant" and not failures, (report.aborted, failures, report.inconclusive)
    return {(each.level, each.id): each.status for each in report.results}


@pytest.mark.slow
def test_conformance_suite_passes_whole_with_and_without_a_key(root):
    """33 MUST and 15 SHOULD: one MUST and two SHOULD are about keys, one MUST is about a server without."""
    pytest.importorskip("jevcompat", reason=f"jevcompat {MISSING}")
    key = secrets.token_hex(16)
    with listening(asked_app(root, unknown="similarity")) as address:
        off = conformance(address)
    guarded = asked_app(root, unknown="similarity")
    guarded.user_middleware.append(Middleware(Key, key=key))
    with listening(guarded) as address:
        on = conformance(address, key)
    passed = {name for found in (off, on) for name, status in found.items() if status == "pass"}
    assert passed == off.keys() == on.keys()
    assert [sum(level == wanted for level, _ in passed) for wanted in ("MUST", "SHOULD")] == [33, 15]


@pytest.mark.slow
@pytest.mark.skipif(not has_keys(), reason="this server takes no keys")
def test_conformance_suite_passes_with_the_keys_of_the_command_line(root, tmp_path):
    pytest.importorskip("jevcompat", reason=f"jevcompat {MISSING}")
    key = secrets.token_hex(16)
    (tmp_path / "keys").write_text(f"{key}\n")
    (tmp_path / "keys").chmod(0o600)
    words = ["serve", str(root), "--port", "0", "--unknown", "similarity", "--keys", str(tmp_path / "keys")]
    server = subprocess.Popen(
        [sys.executable, "-m", "polyhead", *words, "--backend", "reference"], stderr=subprocess.PIPE, text=True
    )
    try:
        line, end = "", time.monotonic() + 60
        while "http://" not in line and time.monotonic() < end and server.poll() is None:
            line = server.stderr.readline()
        found = conformance(next(word for word in line.split() if word.startswith("http://")), key)
    finally:
        server.terminate()
        server.communicate()
    assert found["MUST", "auth.bearer"] == found["SHOULD", "auth.missing"] == found["SHOULD", "auth.invalid"] == "pass"
