"""The types of the own route: whatever is sent, right or wrong, is answered or refused with its reason."""

import codecs
import json

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from polyhead.engine.request import TaskResults
from polyhead.serve.app import application
from polyhead.serve.formats.own import PredictAnswer
from polyhead.serve.http import ErrorReply
from polyhead.values import few_digits
from support.loopback_server import TASKS, service_of, tiny_root

QUICK = settings(
    max_examples=60, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
TEXTS = st.text(max_size=40)
INPUTS = st.one_of(
    TEXTS,
    st.fixed_dictionaries({"text": TEXTS}, optional={"text_b": TEXTS}),
    st.fixed_dictionaries({"question": TEXTS, "context": TEXTS}),
    st.fixed_dictionaries({"question": TEXTS, "options": st.lists(TEXTS, min_size=2, max_size=4)}),
    st.fixed_dictionaries({"tokens": st.lists(TEXTS, max_size=5)}),
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)
OPTIONS = st.fixed_dictionaries({}, optional={"deadline": st.floats(20, 60), "receipt": st.booleans()})
RIGHT = st.fixed_dictionaries(
    {"inputs": st.one_of(INPUTS, st.lists(INPUTS, min_size=1, max_size=4))},
    optional={
        "tasks": st.one_of(st.none(), st.lists(st.sampled_from(TASKS), min_size=1, max_size=4)),
        "options": OPTIONS,
    },
)
WRONG = st.one_of(
    JSON,
    st.fixed_dictionaries({"inputs": JSON}, optional={"tasks": JSON, "options": JSON, "more": JSON}),
    st.fixed_dictionaries(
        {"inputs": st.lists(st.one_of(INPUTS, JSON), max_size=3)}, optional={"tasks": st.lists(TEXTS, max_size=2)}
    ),
)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    return service_of(tiny_root(tmp_path_factory.mktemp("wire") / "b"), deterministic=True)


@pytest.fixture(scope="module")
def client(service):
    with TestClient(application(service)) as own:
        yield own


@QUICK
@given(body=RIGHT)
def test_what_the_types_allow_is_answered_for_each_input(client, body):
    answer = client.post("/v1/predict", json=body)
    assert answer.status_code == 200, answer.text
    read = msgspec.json.decode(answer.content, type=PredictAnswer)
    listed = body["inputs"] if isinstance(body["inputs"], list) else [body["inputs"]]
    names = set(TASKS if body.get("tasks") is None else body["tasks"])
    assert len(read.results) == len(listed)
    for result in read.results:
        told = [set(result["answers"]), *(set(result.get(name, ())) for name in ("skipped", "failed", "late"))]
        assert set().union(*told) == names and sum(map(len, told)) == len(names)
        assert ("receipt" in result) == body.get("options", {}).get("receipt", True)
    assert set(read.versions) == names


@QUICK
@given(body=WRONG)
def test_anything_else_is_refused_with_its_reason(client, body):
    answer = client.post("/v1/predict", content=json.dumps(body))
    assert answer.status_code in (200, 400, 404, 422), answer.text
    if answer.status_code != 200:
        told = msgspec.json.decode(answer.content, type=ErrorReply).error
        assert told.message and told.type in ("HttpError", "BadValue", "EmptyData", "UnknownTask")


@QUICK
@given(body=st.binary(max_size=60))
def test_bytes_that_are_no_json_are_refused(client, body):
    assert client.post("/v1/predict", content=body).status_code in (400, 422)


@settings(QUICK, max_examples=20)
@given(body=RIGHT)
def test_a_stream_tells_the_same_as_one_answer(client, body):
    body.get("options", {}).pop("deadline", None)
    whole = client.post("/v1/predict", json=body).json()
    *lines, end = client.post("/v1/predict/stream", json=body).text.splitlines()
    answers = [{} for _ in whole["results"]]
    for line in lines:
        stage = msgspec.json.decode(line, type=TaskResults)
        for number, answer in stage.answers.items():
            answers[number][stage.task] = answer
    told = json.loads(end)
    assert [own | {"answers": its} for own, its in zip(told["results"], answers, strict=True)] == whole["results"]
    assert {key: value for key, value in told.items() if key != "results"} == {
        key: value for key, value in whole.items() if key != "results"
    }


@pytest.mark.parametrize(
    ("row", "unread"),
    [
        ({"text": "good", "text_n": "bad"}, "text_n"),
        ({"text": "good", "context": "bad"}, "context"),
        ({"question": "who?", "context": "ben is", "text_b": "b"}, "text_b"),
        ({"tokens": ["good"], "zone": 3, "id": None}, "zone"),
    ],
    ids=["misspelt", "of another form", "of a pair", "unknown"],
)
def test_a_key_of_an_input_that_nothing_reads_is_refused(client, row, unread):
    """It was left out in silence: a pair whose second text was misspelt was answered as one text."""
    answer = client.post("/v1/predict", json={"inputs": ["good", row]})
    assert answer.status_code == 422, answer.text
    told = answer.json()["error"]["message"]
    assert told.startswith(f"input 1: a key is not read. Got: {unread}. Allowed: a string, ")
    assert '"text_b": ...' in told and told.endswith("Do: correct its name, or leave it out.")


def test_keys_of_an_input_without_a_value_are_not_there(client):
    row = {"text": "good", "text_b": None, "question": None, "options": None, "tokens": None}
    plain, sent = (client.post("/v1/predict", json={"inputs": [each]}).json() for each in ("good", row))
    assert plain["results"][0]["answers"] == sent["results"][0]["answers"]


def test_a_byte_order_mark_before_the_body_is_not_read(client):
    for path in ("/v1/predict", "/predict?task=mood", "/models/mood"):
        plain = json.dumps({"inputs": "a good lamp"}).encode()
        with_mark, without = (client.post(path, content=content) for content in (codecs.BOM_UTF8 + plain, plain))
        assert with_mark.status_code == 200, with_mark.text
        assert with_mark.json() == without.json()


def test_an_empty_list_of_tasks_is_refused_with_their_names(client):
    for path in ("/v1/predict", "/v1/predict/stream"):
        answer = client.post(path, json={"inputs": ["good"], "tasks": []})
        assert answer.status_code == 422, answer.text
        told = answer.json()["error"]
        assert told["message"].startswith("the list of tasks is empty") and set(told["allowed"]) == set(TASKS)


PLANES = range(17)
# First, last and some others of each plane, among them what is no character, and what stands alone for half of one.
PLACES = (0x0000, 0x0001, 0x00AD, 0x0301, 0x200D, 0x202E, 0x3042, 0x4E00, 0xD800, 0xDFFF, 0xFE0F, 0xFFFE, 0xFFFF)


@pytest.mark.parametrize("plane", PLANES)
def test_characters_of_every_plane_are_answered_as_in_process(client, service, plane):
    texts = [f"good {chr(plane << 16 | place)} lamp" for place in PLACES]
    texts += ["".join(chr(plane << 16 | place) for place in PLACES), chr(plane << 16 | 0xFFFD) * 100]
    is_sent = [all(not 0xD800 <= ord(character) <= 0xDFFF for character in text) for text in texts]
    sent = [text for text, its in zip(texts, is_sent, strict=True) if its]
    assert len(sent) >= (10 if plane == 0 else len(texts))
    answer = client.post(
        "/v1/predict", content=json.dumps({"inputs": sent, "tasks": list(TASKS)}, ensure_ascii=plane % 2 == 0)
    )
    assert answer.status_code == 200
    expected = service.session.predict(sent, tasks=TASKS)
    for told, own in zip(answer.json()["results"], expected, strict=True):
        assert told["answers"] == few_digits(json.loads(msgspec.json.encode(own.answers)))
    for text in set(texts) - set(sent):  # halves of characters, which JSON can write alone and UTF-8 cannot
        refused = client.post("/v1/predict", content=json.dumps({"inputs": [text], "tasks": ["mood"]}))
        assert refused.status_code in (200, 400)
