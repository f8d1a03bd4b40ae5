"""`/classify` as Infinity's own client, vLLM's callers and vLLM's semantic router speak it.

vLLM has no client for this route: its own example posts JSON, as is done here. The router is a program in Go; what it
demands of an answer (its files http_classifier.go, complexity_remote_backend.go and http_token_classifier.go) is
checked here rule by rule.
"""

import math

import pytest

pytest.importorskip("starlette", reason="the server's packages are not installed: pip install polyhead")

from support.client_server import LONG, TASKS, TEXTS, posted, running, tiny_server_bundle

EMOJI = "\U0001f600 the lamp is broken, anna \U0001f680 kettle"  # code points that are two units of UTF-16


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tiny_server_bundle(tmp_path_factory.mktemp("b") / "b")
    with running(root, ports=["mood", "urgency", "names"]) as server:
        yield server


def by_score(answer):
    return sorted(answer["scores"].items(), key=lambda item: -item[1])


def distribution(body, labels):
    """Probabilities in the order of labels, as the router aligns them; asserts all that it demands."""
    assert isinstance(body, list) and body
    found = {}
    for entry in body:
        assert entry["label"] in labels and entry["label"] not in found
        assert math.isfinite(entry["score"]) and 0 <= entry["score"] <= 1
        found[entry["label"]] = entry["score"]
    assert set(found) == set(labels) and abs(sum(found.values()) - 1) <= 0.02
    return [found[label] for label in labels]


def spans_in(body, text, labels):
    """Spans as (label, start, end, score), as the router reads them; and where reading stopped, or None."""
    listed, end = (body, None) if isinstance(body, list) else (body["spans"], body["truncated_at"])
    assert end is None or 0 <= end <= len(text)
    seen = set()
    for span in listed:
        assert span["label"] == span["entity_group"] and span["label"] in labels
        assert 0 <= span["start"] < span["end"] <= (len(text) if end is None else end)
        assert span["text"] == span["word"] == text[span["start"] : span["end"]]
        assert 0 <= span["score"] <= 1
        key = (span["label"], span["start"], span["end"])
        assert key not in seen
        seen.add(key)
    return [(span["label"], span["start"], span["end"], span["score"]) for span in listed], end


def test_a_port_of_a_task_answers_label_distribution_v1(server):
    for text, own in zip(TEXTS, server.replies("mood", TEXTS), strict=True):
        status, _, body = posted(f"{server.urls['mood']}/classify", {"inputs": text}, {"Accept": "application/json"})
        assert status == 200
        assert distribution(body, TASKS["mood"].labels) == list(own["scores"].values())


def test_pairs_are_read_as_pipelines_of_transformers_take_them(server):
    pairs = [(TEXTS[0], TEXTS[1]), (TEXTS[2], TEXTS[3])]
    sent = [{"text": first, "text_pair": second} for first, second in pairs]
    own = [[{"label": label, "score": score} for label, score in by_score(o)] for o in server.replies("same", pairs)]
    assert posted(f"{server.url}/classify?task=same", {"inputs": sent})[2] == own
    assert posted(f"{server.url}/classify?task=same", {"inputs": sent[0]})[2] == own[0]
    assert posted(f"{server.url}/models/same", {"inputs": sent})[2] == own
    assert posted(f"{server.url}/models/same", {"inputs": sent[0]})[2] == own[:1]
    mixed = posted(f"{server.url}/models/mood", {"inputs": [TEXTS[0], {"text": TEXTS[1]}]})[2]
    assert mixed == posted(f"{server.url}/models/mood", {"inputs": TEXTS[:2]})[2]


@pytest.mark.parametrize(
    "path, body, reason",
    [
        ("/models/same", {"inputs": "good"}, "reads a pair of texts"),
        ("/classify", {"inputs": ["good"], "model": "same"}, "reads a pair of texts"),
        ("/classify", {"input": ["good"], "model": "same"}, "POST /models/same"),
        ("/vllm/classify", {"input": "good", "model": "same"}, "POST /models/same"),
        ("/models/same", {"inputs": {"text": "a", "text_b": "b"}}, "text_pair"),
        ("/models/same", {"inputs": [{"text_pair": "b"}, "a"]}, "text_pair"),
        ("/models/same", {"inputs": [{"text": "a", "text_pair": 3}]}, "text_pair"),
        ("/models/mood", {"inputs": [{"text": "a", "text_pair": "b"}]}, "input 0 has no answer"),
    ],
)
def test_a_pair_that_is_none_is_refused_with_the_form_of_one(server, path, body, reason):
    status, _, answer = posted(server.url + path, body)
    assert status == 422 and reason in str(answer)


def test_a_port_of_a_task_answers_score_v1(server):
    (own,) = server.replies("urgency", TEXTS[:1])
    _, _, body = posted(f"{server.urls['urgency']}/classify", {"inputs": TEXTS[0]})
    assert body == [{"label": "urgency", "score": own["value"]}]


def test_a_port_of_a_task_answers_token_spans_v1_in_code_points(server):
    labels, spans = {label[2:] for label in TASKS["names"].labels if label != "O"}, 0
    for text in (*TEXTS, EMOJI):
        _, _, body = posted(f"{server.urls['names']}/classify", {"inputs": text})
        told, end = spans_in(body, text, labels)
        (own,) = server.replies("names", [text])
        assert told == [(s["label"], s["start"], s["end"], s["score"]) for s in own["spans"]] and end is None
        spans += len(told)
    assert spans > 0


def test_a_text_that_is_cut_says_where_in_token_spans_v1(server):
    _, _, body = posted(f"{server.urls['names']}/classify", {"inputs": LONG})
    told, end = spans_in(body, LONG, {label[2:] for label in TASKS["names"].labels})
    # 46 of its tokens are read beside the two special ones; each of its words is one.
    words = list(LONG.split())
    assert end == len(" ".join(words[:46])) < len(LONG) and told
    _, _, several = posted(f"{server.urls['names']}/classify", {"inputs": ["good", LONG]})
    assert isinstance(several[0], list) and several[1] == body


def test_several_texts_get_a_list_each(server):
    _, _, body = posted(f"{server.url}/classify?task=mood", {"inputs": TEXTS})
    own = server.replies("mood", TEXTS)
    assert [distribution(each, TASKS["mood"].labels) for each in body] == [list(o["scores"].values()) for o in own]


@pytest.mark.parametrize("task", ["mood", "topics"])
def test_infinity_s_client_gets_all_labels_of_each_text(server, task):
    package = pytest.importorskip("infinity_client", reason="infinity_client is not installed: see the Makefile")
    from infinity_client.api.default import classify
    from infinity_client.models import ClassifyInput

    with package.Client(base_url=server.url) as client:
        answer = classify.sync(client=client, body=ClassifyInput(input_=TEXTS, model=task))
    own = server.replies(task, TEXTS)
    assert [[(each.label, each.score) for each in row] for row in answer.data] == [by_score(each) for each in own]
    assert answer.model == task and answer.usage.total_tokens > 0 and answer.object_ == "classify"


def test_infinity_s_client_needs_no_model_on_the_port_of_a_task(server):
    package = pytest.importorskip("infinity_client", reason="infinity_client is not installed: see the Makefile")
    from infinity_client.api.default import classify
    from infinity_client.models import ClassifyInput

    with package.Client(base_url=server.urls["mood"]) as client:
        answer = classify.sync(client=client, body=ClassifyInput(input_=TEXTS[:1]))
    assert {each.label for each in answer.data[0]} == {"good", "bad"}


@pytest.mark.parametrize(
    "path, body",
    [
        ("/classify", {"model": "mood", "input": TEXTS[0]}),
        ("/classify", {"model": "mood", "input": [TEXTS[0]], "use_activation": True}),
        ("/classify", {"model": "mood", "input": [TEXTS[0]], "truncate_prompt_tokens": -1}),
        ("/vllm/classify", {"model": "mood", "input": [TEXTS[0]]}),
    ],
    ids=["one text", "a switch of vLLM", "another", "its own path"],
)
def test_vllm_s_callers_get_probabilities_in_the_order_of_labels(server, path, body):
    (own,) = server.replies("mood", TEXTS[:1])
    _, _, answer = posted(server.url + path, body)
    (data,) = answer["data"]
    assert data == {"index": 0, "label": own["label"], "probs": list(own["scores"].values()), "num_classes": 2}
    assert answer["object"] == "list" and answer["model"] == "mood" and answer["id"].startswith("classify-")
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] == answer["x_receipt"]["tokens"] > 0


def test_a_bare_list_is_infinity_s_and_its_path_takes_a_text_too(server):
    for path, given in (("/classify", [TEXTS[0]]), ("/infinity/classify", TEXTS[0])):
        _, _, answer = posted(server.url + path, {"model": "mood", "input": given})
        assert answer["object"] == "classify" and len(answer["data"][0]) == 2


def test_vllm_s_form_of_other_kinds(server):
    own, (number,) = server.replies("topics", TEXTS[:1])[0], server.replies("urgency", TEXTS[:1])
    _, _, answer = posted(f"{server.url}/classify", {"model": "topics", "input": TEXTS[0]})
    assert answer["data"][0]["probs"] == list(own["scores"].values())
    assert answer["data"][0]["label"] == by_score(own)[0][0]
    _, _, answer = posted(f"{server.url}/classify", {"model": "urgency", "input": TEXTS[0]})
    assert answer["data"][0] == {"index": 0, "label": "urgency", "probs": [number["value"]], "num_classes": 1}


@pytest.mark.parametrize(
    "body, status, reason",
    [
        ({"model": "moods", "input": "good"}, 404, "did you mean 'mood'?"),
        ({"input": "good"}, 422, "names no task"),
        ({"model": "mood"}, 422, "holds no text"),
        ({"model": "mood", "input": [1, 2]}, 422, "token ids"),
        ({"model": "mood", "input": "good", "use_activation": False}, 422, "before their activation"),
        ({"model": "mood", "input": ["good"], "raw_scores": True}, 422, "before their activation"),
        ({"model": "mood", "input": "good", "truncate_prompt_tokens": 7}, 422, "cut where the trunk ends"),
        ({"model": "mood", "messages": [{"role": "user", "content": "good"}]}, 422, "chat messages"),
        ({"model": "names", "input": "good"}, 422, "POST /models/names"),
        ({"model": "where", "input": "good"}, 422, "POST /v1/predict"),
        ({"model": "where", "inputs": "good"}, 422, "POST /v1/predict"),
        ({"model": "same", "inputs": "good"}, 422, "reads a pair of texts"),
    ],
)
def test_what_cannot_be_answered_is_told(server, body, status, reason):
    got, _, answer = posted(f"{server.url}/classify", body)
    assert got == status and reason in answer["error"]["message"]


def test_a_body_with_both_names_of_its_inputs_is_refused(server):
    both = {"model": "mood", "input": ["good"], "inputs": ["bad"]}
    for path in ("/classify", "/vllm/classify", "/infinity/classify"):
        status, _, body = posted(f"{server.url}{path}", both)
        assert status == 422 and "says its inputs twice" in str(body), body
