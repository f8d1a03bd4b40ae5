"""OpenAI's decisions: its own client, answers and refusals, sizes, errors; questions never see each other."""

import importlib.util
import json

import pytest
from starlette.testclient import TestClient

from polyhead.serve.app import application
from polyhead.serve.settings import Renamed
from support.decision_server import TEXT, asked_app, listening, service_of, write_asked

BACKENDS = [
    "reference",
    pytest.param(
        "openvino",
        marks=pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="openvino is not installed"),
    ),
]
ANGER = ["calm", "cross", "furious"]


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


def predicate(name=None, instructions="Is it late?"):
    return {"type": "predicate", "instructions": instructions} | ({"name": name} if name else {})


def choice(name, values, instructions="Which one?"):
    choices = [value if isinstance(value, dict) else {"value": value} for value in values]
    return {"type": "choice", "instructions": instructions, "name": name, "choices": choices}


def score(name, labels, instructions="How much?"):
    levels = [{"label": label} for label in labels]
    return {"type": "score", "instructions": instructions, "name": name, "levels": levels}


def ask(client, questions, given=TEXT, **fields):
    body = {"model": "gpt-6-luna", "input": given, "questions": questions, **fields}
    return client.post("/v1/decisions", json=body)


def answers(client, questions, given=TEXT, **fields):
    reply = ask(client, questions, given, **fields)
    assert reply.status_code == 200, reply.text
    return reply.json()["answers"]


def own(client, *tasks, text=TEXT):
    """What the tasks answer by the server's own format."""
    reply = client.post("/v1/predict", json={"inputs": text, "tasks": list(tasks)})
    return reply.json()["results"][0]["answers"]


def test_answers_are_those_of_the_tasks_in_the_order_of_the_questions(client):
    wanted = own(client, "anger", "topics", "broken", "stars")
    found = answers(
        client,
        [
            choice("anger", reversed(ANGER)),
            predicate("topics.bill"),
            score("anger", ANGER),
            predicate("broken"),
            score("stars", "abcde"),
        ],
    )
    scores = wanted["anger"]["scores"]
    assert [each["type"] for each in found] == ["choice", "predicate", "score", "predicate", "score"]
    assert found[0]["choice"] == wanted["anger"]["label"]
    assert {each["value"]: each["probability"] for each in found[0]["probabilities"]} == scores
    assert [each["value"] for each in found[0]["probabilities"]] == ANGER[::-1]
    assert found[1]["probability"] == wanted["topics"]["scores"]["bill"]
    assert found[2]["probabilities"] == [
        {"label": label, "value": level, "probability": scores[label]} for level, label in enumerate(ANGER)
    ]
    assert found[2]["score"] == pytest.approx(scores["cross"] + 2 * scores["furious"], abs=1e-5)
    assert found[3]["probability"] == wanted["broken"]["scores"]["yes"]
    assert found[4]["score"] == pytest.approx(wanted["stars"]["value"] - 1, abs=1e-5)
    assert all(each["x_answered_by"] == "task" for each in found)
    assert [each["name"] for each in found] == ["anger", "topics.bill", "anger", "broken", "stars"]


def test_question_that_no_task_answers_is_a_named_refusal_and_the_others_are_answered(client):
    found = answers(client, [predicate("late"), choice("anger", ANGER), choice("mood", ["good", "fair"]), predicate()])
    assert [each["type"] for each in found] == ["refusal", "choice", "refusal", "refusal"]
    assert [each["name"] for each in found] == ["late", "anger", "mood", None]
    assert "no task answers" in found[0]["x_reason"]["message"] and "anger" in found[0]["x_reason"]["allowed"]
    assert found[2]["x_reason"]["got"] and "'good'" not in found[2]["x_reason"]["got"]


def test_refusals_alone_read_no_text(client):
    body = ask(client, [predicate("late")]).json()
    assert body["usage"]["input_tokens"] == 0 and not any(body["x_receipt"].values())


def test_similarity_answers_what_no_task_does(guessing):
    found = answers(
        guessing,
        [
            predicate("late"),
            choice("what", ["bill", {"value": "order", "description": "a box or a lamp"}, True]),
            score(None, ["sad", "happy"]),
            choice("anger", ANGER),
        ],
    )
    assert [each["type"] for each in found] == ["predicate", "choice", "score", "choice"]
    assert [each["x_answered_by"] for each in found] == ["similarity"] * 3 + ["task"]
    assert sum(each["probability"] for each in found[1]["probabilities"]) == pytest.approx(1)
    assert found[1]["choice"] == max(found[1]["probabilities"], key=lambda each: each["probability"])["value"]


def test_all_questions_cost_one_pass_of_the_text(guessing):
    questions = [predicate("mood.good"), choice("anger", ANGER), predicate(None, "my"), choice("x", ["box", "card"])]
    alone = ask(guessing, questions[:1]).json()["x_receipt"]
    first, second = (ask(guessing, questions).json() for _ in range(2))
    assert (alone["passes"], alone["layers"]) == (1, 2)
    for name in ("passes", "layers", "tokens"):
        assert first["x_receipt"][name] == second["x_receipt"][name] == alone[name]
    assert first["x_receipt"]["options"]["passes"] == 3 and "options" not in second["x_receipt"]


def test_usage_counts_tokens_read_and_those_of_options_that_were_kept(guessing):
    question = [choice("y", ["phone", "kettle"])]
    first, second = (ask(guessing, question).json() for _ in range(2))
    text, options = first["x_receipt"]["tokens"], first["x_receipt"]["options"]["tokens"]
    assert first["usage"] == {
        "input_tokens": text + options,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": options},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": text + options,
    }
    assert second["usage"]["input_tokens_details"] == {"cached_tokens": options, "cache_write_tokens": 0}
    assert second["usage"]["total_tokens"] == text + options


def test_versions_are_of_the_tasks_that_answered(client):
    body = ask(client, [predicate("mood.good"), predicate("late")]).json()
    assert list(body["x_versions"]) == ["mood"] and body["x_versions"]["mood"]["version"] == "v0001"
    assert body["model"].startswith("polyhead-")


def test_text_that_is_cut_says_so(client):
    assert ask(client, [predicate("mood.good")], "lamp " * 200).json()["x_receipt"]["cut"] > 0


def test_labels_of_a_mapping_file_are_used(root):
    labels = {"tone": Renamed(task="anger", labels={"relaxed": "calm", "livid": "furious"})}
    with TestClient(asked_app(root, labels=labels)) as client:
        plain, renamed = answers(client, [choice("anger", ANGER), choice("tone", ["relaxed", "cross", "livid"])])
    assert [each["probability"] for each in plain["probabilities"]] == [
        each["probability"] for each in renamed["probabilities"]
    ]
    assert renamed["x_task"] == "anger" and {each["value"] for each in renamed["probabilities"]} >= {"relaxed", "livid"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_questions_never_see_each_other(root, backend):
    """Alone, reversed, renamed and among others: the same bits."""
    labels = {"tone": Renamed(task="anger")}
    service = service_of(root, backend=backend, unknown="similarity", labels=labels)
    base = [
        choice("anger", ANGER),
        predicate("topics.bill"),
        choice("which", ["bill", "order", "phone"]),
        predicate("late", "the refund is late"),
        score("stars", "abcde"),
        score("how", ["happy", "sad"]),
    ]
    others = [
        predicate("broken"),
        predicate("urgency"),
        choice("mood", ["good", "bad"]),
        choice("new", ["lamp", "card"]),
    ]
    names = {"anger": "tone", "which": "Q 1", "late": "zz", "how": "x_y"}
    renamed = [{**question, "name": names.get(question["name"], question["name"])} for question in base]

    def bits(found):
        return [json.dumps({key: value for key, value in each.items() if key != "name"}) for each in found]

    with TestClient(application(service)) as client:
        wanted = bits(answers(client, base))
        assert bits(answers(client, base[::-1])) == wanted[::-1]
        assert bits(answers(client, renamed)) == wanted
        assert bits(answers(client, [*others, *base]))[len(others) :] == wanted
        assert [bits(answers(client, [question]))[0] for question in base] == wanted


def test_options_in_another_order_have_the_same_bits(guessing):
    one = answers(guessing, [choice("z", ["bill", "order", "phone", "lamp"])])[0]
    other = answers(guessing, [choice("z", ["lamp", "phone", "order", "bill"])])[0]
    assert one["probabilities"] == other["probabilities"][::-1] and one["confidence"] == other["confidence"]


MESSAGE = [{"role": "user", "content": [{"type": "input_text", "text": TEXT}]}]


def test_message_is_read_as_its_text(client):
    assert answers(client, [choice("anger", ANGER)], MESSAGE) == answers(client, [choice("anger", ANGER)])


def test_several_messages_are_one_text(client):
    items = [{"role": "assistant", "content": "How can I help?"}, {"role": "user", "content": "my lamp"}]
    joined = "assistant: How can I help?\nuser: my lamp"
    assert answers(client, [choice("anger", ANGER)], items) == answers(client, [choice("anger", ANGER)], joined)


def test_fields_about_caches_are_taken(client):
    fields = {"prompt_cache_key": "a", "prompt_cache_options": {"ttl": "30m"}, "safety_identifier": "b", "later": 1}
    assert answers(client, [predicate("broken")], **fields) == answers(client, [predicate("broken")])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"[" * 5000, None),
        ({"model": "m", "questions": [predicate("a")]}, "input"),
        ({"model": "m", "input": TEXT, "questions": []}, "questions"),
        ({"model": "m", "input": TEXT, "questions": [predicate(f"a{i}") for i in range(401)]}, "questions"),
        ({"model": "m", "input": TEXT, "questions": [{"type": "maybe", "instructions": "x"}]}, "questions[0].type"),
        ({"model": "m", "input": TEXT, "questions": [choice("a", ["x"])]}, "questions[0].choices"),
        (
            {"model": "m", "input": TEXT, "questions": [choice("a", [f"x{i}" for i in range(256)])]},
            "questions[0].choices",
        ),
        ({"model": "m", "input": TEXT, "questions": [choice("a", ["x", "x"])]}, "questions[0].choices"),
        ({"model": "m", "input": TEXT, "questions": [choice("a", [1, 2])]}, "questions[0].choices[0].value"),
        ({"model": "m", "input": TEXT, "questions": [predicate("a"), score("b", ["x"])]}, "questions[1].levels"),
        ({"model": "m", "input": " ", "questions": [predicate("a")]}, "input"),
        ({"model": "m", "input": [{"role": "user"}], "questions": [predicate("a")]}, "input"),
        (
            {
                "model": "m",
                "input": TEXT,
                "questions": [predicate("a", [{"type": "input_image", "image_url": "http://x"}])],
            },
            "questions[0].instructions",
        ),
    ],
    ids=[
        "no-json", "deep", "no-input", "no-questions", "401-questions", "unknown-type", "one-choice", "256-choices",
        "twice", "number", "one-level", "blank", "no-content", "image",
    ],
)  # fmt: skip
def test_request_that_cannot_be_answered_is_told_as_clients_read_it(client, body, param):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    reply = client.post("/v1/decisions", content=content)
    error = reply.json()["error"]
    assert reply.status_code == 400 and error["type"] == "invalid_request_error" and error["message"]
    assert (error["param"], error["code"]) == (param, None)


def test_sizes_at_their_limits_are_answered(client, guessing):
    assert len(answers(client, [predicate("broken")] * 400)) == 400
    assert len(answers(guessing, [choice("a", [f"x{i}" for i in range(255)])])[0]["probabilities"]) == 255


def test_string_and_boolean_of_equal_text_are_two_choices(guessing):
    (found,) = answers(guessing, [choice("a", ["true", True, False])])
    assert [each["value"] for each in found["probabilities"]] == ["true", True, False]


def test_body_that_is_too_large_is_told_as_clients_read_it(root):
    from polyhead.serve.settings import RequestLimits

    with TestClient(asked_app(root, limits=RequestLimits(body_bytes=300))) as client:
        reply = ask(client, [predicate("a", "x" * 500)])
    assert reply.status_code == 413 and reply.json()["error"]["type"] == "invalid_request_error"


def test_task_whose_head_fails_is_a_refusal_and_the_others_are_answered(root, monkeypatch):
    from support.tiny_project import fail_heads

    with TestClient(asked_app(root)) as client:
        fail_heads(monkeypatch, "anger")
        found = answers(client, [choice("anger", ANGER), predicate("broken")])
    assert [each["type"] for each in found] == ["refusal", "predicate"]
    assert "not answered" in found[0]["x_reason"]["message"]


def test_unmodified_client_of_openai_reads_every_answer(root):
    openai = pytest.importorskip("openai", reason="openai is not installed: pip install '.[compat]'")
    with (
        listening(asked_app(root)) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client,
    ):
        decision = client.decisions.create(
            model="gpt-6-luna",
            input=[
                {"role": "user", "content": TEXT},
                {"type": "function_call", "call_id": "1", "name": "find", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "1", "output": "the lamp is broken"},
            ],
            questions=[
                predicate("broken"),
                choice("anger", ANGER),
                score("anger", ANGER),
                choice("broken", [True, False]),
                predicate("late"),
            ],
        )
        kinds = [type(answer).__name__.removeprefix("AnswerAnswerResource") for answer in decision.answers]
        assert kinds == ["Predicate", "Choice", "Score", "Choice", "Refusal"]
        assert 0 <= decision.answers[0].probability <= 1
        assert decision.answers[1].choice in ANGER and decision.answers[2].probabilities[2].label == "furious"
        assert decision.answers[3].choice in (True, False) and decision.answers[4].name == "late"
        assert decision.usage.total_tokens == decision.x_receipt["tokens"] > 0
        assert "jev-latest" in [model.id for model in client.models.list()]
        with pytest.raises(openai.BadRequestError) as error:
            client.decisions.create(model="m", input=TEXT, questions=[])
        assert error.value.param == "questions" and error.value.type == "invalid_request_error"
