"""Questions while tasks change, and any JSON: never a mixed answer, never a fault of the server."""

import asyncio
import json

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from polyhead.bundle.manifest import TaskRecord
from polyhead.errors import BadValue, EmptyData, Overloaded
from polyhead.plan import Pool
from polyhead.serve.decide import decide_request
from polyhead.serve.questions import DecisionQuestion, Option
from polyhead.serve.settings import RequestLimits
from polyhead.testing import tiny_part, tiny_path
from support.decision_server import TASKS, TEXT, asked_app, service_of, write_asked

ANGER = DecisionQuestion(
    name="anger",
    form="choice",
    instructions="",
    options=tuple(Option(value=value) for value in ("calm", "cross", "furious")),
)
HOLDS = (Option(value=True), Option(value=False))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_asked(tmp_path_factory.mktemp("asked") / "bundle")


@pytest.fixture
def service(root):
    service = service_of(root)
    yield service
    service.queue.close()


def anger(service, *labels):
    """The task `anger` with these labels, ready to be attached."""
    task = msgspec.structs.replace(next(task for task in TASKS if task.name == "anger"), labels=labels)
    trunk = service.session.bundle.trunk()
    path = tiny_path(task, trunk, pool=Pool())
    return TaskRecord(task=task, path=path, trunk=trunk.digest), tiny_part(path, trunk.architecture, path.head.part)


def changed_before_the_answer(service, monkeypatch, change):
    """The first call of `ask` finds the tasks changed, after their labels were looked at."""
    ask, changes = service.ask, [change]

    async def changing(*arguments, **more):
        if changes:
            changes.pop()()
        return await ask(*arguments, **more)

    monkeypatch.setattr(service, "ask", changing)


@pytest.mark.parametrize("change", ["replaced", "other labels", "removed"])
def test_questions_are_answered_by_the_tasks_that_were_there_when_they_came(service, monkeypatch, change):
    """Never an answer of one version read with the labels of another, and none is refused for a change meanwhile."""
    before = service.session.predict([TEXT], tasks=["anger"])[0].answers["anger"]["scores"]
    changes = {
        "replaced": lambda: service.session.attach(*anger(service, "furious", "calm", "cross")),
        "other labels": lambda: service.session.attach(*anger(service, "calm", "cross")),
        "removed": lambda: service.session.detach("anger"),
    }
    changed_before_the_answer(service, monkeypatch, changes[change])
    broken = DecisionQuestion(name="broken", form="predicate", instructions="", options=HOLDS)
    first, other = asyncio.run(decide_request(service, TEXT, [ANGER, broken])).answers
    assert first.probabilities == tuple(before[label] for label in ("calm", "cross", "furious"))
    assert other.task == "broken"


def test_text_without_words_is_refused(service):
    with pytest.raises(EmptyData, match="text is empty"):
        asyncio.run(decide_request(service, " \n", [ANGER]))


def test_text_that_is_not_read_in_time_is_refused(root):
    service = service_of(root, timeout=1e-6)
    try:
        with pytest.raises(Overloaded):
            asyncio.run(decide_request(service, TEXT, [ANGER]))
    finally:
        service.queue.close()


def colour(name, *words):
    """A question that no task answers, with an option for each of these words."""
    options = tuple(Option(value=f"{name} {number}", words=each) for number, each in enumerate(words))
    return DecisionQuestion(name=name, form="choice", instructions="Which?", options=options)


def test_an_option_that_is_not_read_whole_is_the_refusal_of_its_question(root, monkeypatch):
    """Two calls of the queue, of the text and of all options, however many of these are too long."""
    long, longer = colour("red", "", "as the sky is " * 60), colour("blue", "as the sea is " * 80, "")
    service, asked = service_of(root, unknown="similarity", long_texts="refuse"), []
    ask = service.ask
    monkeypatch.setattr(service, "ask", lambda inputs, *a, **more: asked.append(len(inputs)) or ask(inputs, *a, **more))
    try:
        for calls in ([1, 6], [1, 2]):  # what was read is kept, but not what was cut
            decided = asyncio.run(decide_request(service, TEXT, [long, ANGER, longer, colour("green", "", "late")]))
            first, by_task, second, compared = decided.answers
            for refusal, name in ((first, "red 1: as the sky is"), (second, "blue 0: as the sea is")):
                assert isinstance(refusal, BadValue) and refusal.what.startswith(f"the option 'Which? {name}")
                assert "is longer than the encoder reads" in refusal.what
            assert (by_task.task, compared.answered_by) == ("anger", "similarity")
            assert sorted(asked) == calls
            asked.clear()
        assert decided.options_read == 0 and decided.options_kept > 0
        with pytest.raises(BadValue, match="the text is longer"):
            asyncio.run(decide_request(service, TEXT * 30, [long]))
    finally:
        service.queue.close()


def test_an_option_that_is_too_long_for_any_request_is_the_refusal_of_its_question(root):
    service = service_of(root, unknown="similarity", limits=RequestLimits(characters=100))
    try:
        asked = [colour("red", "", "x" * 101), colour("green", "", "late")]
        refusal, compared = asyncio.run(decide_request(service, TEXT, asked)).answers
        assert isinstance(refusal, BadValue) and compared.answered_by == "similarity"
        assert refusal.what.startswith("the option 'Which? red 1: xxx") and refusal.what.endswith(" is too long")
        with pytest.raises(BadValue, match="^the text is too long"):
            asyncio.run(decide_request(service, "x" * 101, asked))
    finally:
        service.queue.close()


def test_an_option_without_a_vector_is_the_refusal_of_its_question(root, monkeypatch):
    service = service_of(root, unknown="similarity")
    ask = service.ask

    async def without_a_vector(inputs, *arguments, **options):
        ticket = await ask(inputs, *arguments, **options)
        for (text, *_), outputs in zip(inputs, ticket.outputs, strict=True):
            if text == "Which? red 1: late":
                outputs.clear()
        return ticket

    monkeypatch.setattr(service, "ask", without_a_vector)
    try:
        asked = [colour("red", "", "late"), ANGER, colour("green", "", "late")]
        refusal, by_task, compared = asyncio.run(decide_request(service, TEXT, asked)).answers
        assert isinstance(refusal, BadValue) and "could not be read" in refusal.what
        assert (by_task.task, compared.answered_by) == ("anger", "similarity")
    finally:
        service.queue.close()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
PREDICATE = {"type": "predicate", "name": "broken", "instructions": [{"type": "input_text", "text": "x"}]}
CHOICE = {"type": "choice", "instructions": "x", "choices": [{"value": "a", "description": "b"}, {"value": True}]}
SCORE = {"type": "score", "instructions": "x", "levels": [{"label": "a"}, {"label": "b"}]}
CALL = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "1", "output": "x"}
DECISIONS = {
    "model": "m",
    "input": [{"role": "user", "content": [{"type": "input_json", "data": {"a": 1}}]}, CALL, OUTPUT],
    "questions": [PREDICATE, CHOICE, SCORE],
}
SYSTEM_ONE = {
    "model": "jev-latest",
    "state": {"a": ["b", {"c": 1}]},
    "questions": {
        "broken": {"type": "noul", "instructions": "x", "criteria": {"true": "a"}},
        "q": {"type": "choice", "criteria": {"a": None, "b": {"c": 1}}},
        "r": {"type": "score", "criteria": ["a", {"b": 1}]},
    },
}


@st.composite
def altered(draw, value):
    """The value with one of its parts replaced by any JSON, or left out."""
    copied = json.loads(json.dumps(value))
    here = copied
    while True:
        key = draw(st.sampled_from(range(len(here)) if isinstance(here, list) else list(here)))
        if isinstance(here[key], dict | list) and here[key] and draw(st.booleans()):
            here = here[key]
        elif draw(st.booleans()):
            here[key] = draw(JSON)
            return copied
        else:
            del here[key]
            return copied


@pytest.fixture(scope="module")
def guessing(root):
    with TestClient(asked_app(root, unknown="similarity"), raise_server_exceptions=False) as client:
        yield client


FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)


@FUZZ
@given(altered(DECISIONS) | JSON)
def test_any_json_to_decisions_is_answered_or_told_as_clients_read_it(guessing, body):
    reply = guessing.post("/v1/decisions", json=body)
    if reply.status_code == 200:
        assert len(reply.json()["answers"]) == len(body["questions"])
    else:
        assert reply.status_code == 400 and isinstance(reply.json()["error"]["message"], str)


@pytest.mark.slow
@FUZZ
@given(altered(SYSTEM_ONE) | JSON)
def test_any_json_to_system_one_is_answered_or_told_as_clients_read_it(guessing, body):
    reply = guessing.post("/v1/systemone", json=body)
    if reply.status_code == 200:
        assert reply.json()["answers"].keys() == body["questions"].keys()
    elif reply.status_code == 404:
        assert reply.json()["detail"]["error_type"] == "not_found_error"
    else:
        detail = reply.json()["detail"]
        assert reply.status_code == 422 and detail and all(each["loc"][0] == "body" for each in detail)
