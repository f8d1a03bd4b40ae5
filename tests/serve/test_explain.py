"""`explain` as an option of a request: the words that moved each answer, from one request to the queue."""

import asyncio

import pytest

from polyhead.evaluate.explain import attention_of, explained
from polyhead.serve import explain
from polyhead.serve.settings import ServeSettings
from polyhead.values import few_digits
from support.client_server import LONG, TEXTS, as_json, posted, running, tiny_server_bundle


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tiny_server_bundle(tmp_path_factory.mktemp("explain") / "bundle", "mood", "urgency", "names", "same")
    with running(root) as running_server:
        yield running_server


def ask(server, inputs, path="/v1/predict", **options):
    body = {"inputs": inputs, "tasks": ["mood", "urgency"], "options": options}
    return posted(server.url + path, body)


def test_an_explanation_is_that_of_the_session_beside_the_same_answer(server):
    status, _, answer = ask(server, TEXTS[:2], explain=True)
    assert status == 200
    _, _, plain = ask(server, TEXTS[:2])
    wanted = explained(server.session, [(text,) for text in TEXTS[:2]], ["mood", "urgency"])
    assert len(answer["results"]) == len(TEXTS[:2])
    for result, without, explanations in zip(answer["results"], plain["results"], wanted, strict=True):
        assert result["answers"] == without["answers"] and "explained" not in without
        assert result["explained"] == few_digits(as_json(explanations))
        assert result["explained"]["mood"]["attention"]["words"]
    texts = sum(1 + len(each["mood"].said[0].parts) for each in wanted)
    assert answer["receipt"]["passes"] == texts and plain["receipt"]["passes"] == 2  # what it cost is told


def test_tokens_keep_their_words_and_what_no_task_reads_has_no_explanation(server):
    body = {"inputs": [{"tokens": ["anna", "is", "here"]}], "tasks": ["names", "same"], "options": {"explain": True}}
    status, _, answer = posted(server.url + "/v1/predict", body)
    (result,) = answer["results"]
    assert status == 200 and result["explained"].keys() == {"names"} and "same" in result["skipped"]


def test_more_than_a_request_may_hold_is_refused(server):
    status, _, answer = ask(server, ["one two three four"] * 300, explain=True)
    assert status == 422 and answer["error"]["got"].startswith("1,500 inputs")
    status, _, answer = ask(server, TEXTS, path="/v1/predict/stream", explain=True)
    assert status == 422 and answer["error"]["do"] == "ask without streaming"


def test_an_error_names_the_input_of_the_request(server):
    with running(server.session.bundle.root, settings=ServeSettings(long_texts="refuse")) as whole:
        status, _, refused = ask(whole, ["the lamp is late", LONG], explain=True)
    assert status == 422 and refused["error"]["message"].startswith("input 1 is longer")


@pytest.mark.parametrize("why", ["deadline", "gone"])
def test_no_weights_are_computed_for_nobody(server, monkeypatch, why):
    """The first input's weights take until after the deadline, or until its caller has hung up."""
    inputs, asked, now = [(text,) for text in TEXTS[:3]], [], [0.0]

    def takes_long(session, tasks, entry):
        asked.append(entry)
        now[0] += 2 * server.service.settings.timeout if why == "deadline" else 0.0
        return attention_of(session, tasks, entry)

    monkeypatch.setattr(explain, "attention_of", takes_long)
    monkeypatch.setattr(explain, "monotonic", lambda: now[0])
    names = server.service.named(["mood", "urgency"])

    def is_gone():
        return why == "gone" and bool(asked)

    answered = asyncio.run_coroutine_threadsafe(
        explain.explain_request(server.service, inputs, names, words=None, deadline=None, is_gone=is_gone),
        server.service._loop,
    ).result(60)
    assert asked == inputs[:1]
    assert [by_task["mood"].attention is not None for by_task in answered.explanations] == [True, False, False]
