"""Routes of text-embeddings-inference and of the Inference API, with huggingface_hub's own `InferenceClient`."""

import json

import msgspec
import numpy as np
import pytest

pytest.importorskip("starlette", reason="the server's packages are not installed: pip install polyhead")

from polyhead.serve.settings import ServeSettings
from support.client_server import LONG, TEXTS, got, posted, running, tiny_server_bundle

PAIRS = [(TEXTS[0], TEXTS[1]), (TEXTS[2], TEXTS[3]), (TEXTS[1], TEXTS[1])]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running(tiny_server_bundle(tmp_path_factory.mktemp("b") / "b"), ports=["mood"]) as server:
        yield server


@pytest.fixture(scope="module")
def client():
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # it would refuse loopback too
        yield hub.InferenceClient(provider="hf-inference", token="none", timeout=60)


def by_score(answer):
    """All labels with their scores, the most probable first."""
    return sorted(answer["scores"].items(), key=lambda item: -item[1])


def plain(elements):
    return [(element.label, element.score) for element in elements]


@pytest.mark.parametrize("task", ["mood", "topics"])
def test_text_classification_gives_every_label_as_the_session_does(client, server, task):
    for text, own in zip(TEXTS, server.replies(task, TEXTS), strict=True):
        assert plain(client.text_classification(text, model=f"{server.url}/models/{task}")) == by_score(own)


def test_the_address_alone_means_the_task_of_its_port_or_the_one_that_it_names(client, server):
    (own,) = server.replies("mood", TEXTS[:1])
    for address in (server.urls["mood"], f"{server.url}/?task=mood"):
        assert plain(client.text_classification(TEXTS[0], model=address)) == by_score(own)
    hub = pytest.importorskip("huggingface_hub")
    assert plain(hub.InferenceClient(server.urls["mood"]).text_classification(TEXTS[0])) == by_score(own)
    status, _, refused = posted(f"{server.url}/", {"inputs": TEXTS[0]})
    assert status == 422 and "?task=NAME" in refused["error"]


def test_text_classification_at_predict_gives_what_the_client_keeps_of_such_an_answer(client, server):
    """The client takes the first element of what text-embeddings-inference sends: the most probable label."""
    (own,) = server.replies("mood", TEXTS[:1])
    best = client.text_classification(TEXTS[0], model=f"{server.url}/predict?task=mood")
    assert (best.label, best.score) == by_score(own)[0]


def test_text_classification_takes_the_most_probable_labels(client, server):
    (own,) = server.replies("topics", TEXTS[:1])
    answer = client.text_classification(
        TEXTS[0], model=f"{server.url}/models/topics", top_k=2, function_to_apply="sigmoid"
    )
    assert plain(answer) == by_score(own)[:2]


def test_a_regression_task_has_one_label_its_own_name(client, server):
    (own,) = server.replies("urgency", TEXTS[:1])
    assert plain(client.text_classification(TEXTS[0], model=f"{server.url}/models/urgency")) == [
        ("urgency", own["value"])
    ]


def test_token_classification_gives_the_spans(client, server):
    spans = 0
    for text, own in zip(TEXTS, server.replies("names", TEXTS), strict=True):
        answer = client.token_classification(text, model=f"{server.url}/models/names")
        told = [(each.entity_group, each.word, each.start, each.end, each.score) for each in answer]
        assert told == [tuple(s[name] for name in ("label", "text", "start", "end", "score")) for s in own["spans"]]
        spans += len(told)
    assert spans > 0


def vectors(server, texts):
    """Means as `/v1/embeddings` gives them, which is compared with transformers in its own tests."""
    _, _, answer = posted(f"{server.url}/v1/embeddings", {"input": texts})
    return np.array([each["embedding"] for each in answer["data"]])


def test_feature_extraction_gives_vectors_of_length_one(client, server):
    answer = client.feature_extraction(TEXTS, model=f"{server.url}/embed")
    assert answer.dtype == np.float32 and answer.shape == (4, 16)
    np.testing.assert_allclose(answer, vectors(server, TEXTS), atol=1e-7)


def test_feature_extraction_gives_vectors_as_they_are_where_that_is_asked(client, server):
    bare = client.feature_extraction(TEXTS, model=f"{server.url}/embed", normalize=False)
    np.testing.assert_allclose(bare / np.linalg.norm(bare, axis=1, keepdims=True), vectors(server, TEXTS), atol=1e-6)
    assert (np.abs(np.linalg.norm(bare, axis=1) - 1) > 0.01).all()


@pytest.fixture(scope="module")
def whole(server):
    """A server of the same bundle that does not cut texts."""
    with running(server.session.bundle.root, settings=ServeSettings(long_texts="refuse")) as whole:
        yield whole


@pytest.mark.parametrize("texts, name", [(["good", LONG], "input 1 is longer"), ([LONG], "input 0 is longer")])
def test_an_error_of_a_cosine_names_the_text_by_its_place_in_the_request(whole, texts, name):
    similarity = {"inputs": {"source_sentence": "good", "sentences": texts}}
    for path, body in (("/similarity", similarity), ("/rerank", {"query": "good", "texts": texts})):
        status, _, refused = posted(whole.url + path, body)
        assert status == 422 and refused["error"].startswith(name)


def test_an_error_of_a_cosine_names_the_text_that_all_are_compared_with(whole):
    similarity = {"inputs": {"source_sentence": LONG, "sentences": ["good", "bad"]}}
    for path, body, name in (
        ("/similarity", similarity, "source_sentence"),
        ("/rerank", {"query": LONG, "texts": ["good", "bad"]}, "query"),
    ):
        status, _, refused = posted(whole.url + path, body)
        assert status == 422 and refused["error"].startswith(f"'{name}' is longer")


@pytest.mark.parametrize("number, name", [(0, "'query'"), (1, "input 0")])
@pytest.mark.parametrize("reason, expected", [(None, 504), ("it is broken", 503)], ids=["late", "failed"])
def test_a_text_without_a_vector_is_named_by_its_place_in_the_request(
    server, monkeypatch, number, name, reason, expected
):
    ask, vectors = server.service.ask, server.service.vectors

    async def without_a_vector(*arguments, **options):
        ticket = await ask(*arguments, **options)
        del ticket.outputs[number][vectors]
        failed = {} if reason is None else {vectors: reason}
        ticket.results[number] = msgspec.structs.replace(ticket.results[number], failed=failed)
        return ticket

    monkeypatch.setattr(server.service, "ask", without_a_vector)
    status, _, refused = posted(f"{server.url}/rerank", {"query": "good", "texts": ["bad"]})
    assert status == expected and refused["error"].startswith(f"{name} has no vector")


def test_what_a_request_cannot_have_is_refused(server):
    ranked = {"query": "good", "texts": ["bad"], "raw_scores": True}
    tagged = {"inputs": "anna is late", "parameters": {"stride": 3}}
    labelled = {"inputs": "anna is late", "parameters": {"candidate_labels": ["rain", "sun"]}}  # of zero-shot clients
    cases = (
        ("/rerank", ranked, "raw_scores"),
        ("/models/names", tagged, "stride"),
        ("/models/mood", labelled, "candidate_labels"),
    )
    for path, body, name in cases:
        status, _, refused = posted(server.url + path, body)
        assert status == 422 and name in refused["error"]


def test_sentence_similarity_is_the_cosine_of_vectors(client, server):
    answer = client.sentence_similarity(TEXTS[0], TEXTS, model=f"{server.url}/similarity")
    rows = vectors(server, TEXTS)
    np.testing.assert_allclose(answer, rows @ rows[0], atol=1e-6)
    assert answer[0] == pytest.approx(1.0, abs=1e-6)


def test_endpoint_info_names_the_trunk_and_the_labels_of_a_task(client, server):
    info = client.get_endpoint_info(model=server.url)
    assert info["model_id"] == "tiny" and info["model_sha"] == server.session.bundle.digest
    assert info["max_input_length"] == 48 and info["max_client_batch_size"] == 1024
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    _, _, of_task = got(f"{server.url}/info?task=mood")
    assert of_task["model_type"]["classifier"]["id2label"] == {"0": "bad", "1": "good"}


def test_predict_answers_one_text_a_pair_or_many(server):
    url = f"{server.url}/predict"
    (one,) = server.replies("mood", TEXTS[:1])
    expected = [{"label": label, "score": score} for label, score in by_score(one)]
    for inputs in (TEXTS[0], [TEXTS[0]]):
        assert posted(f"{url}?task=mood", {"inputs": inputs})[2] == expected
    assert posted(f"{url}?task=mood", {"inputs": [[text] for text in TEXTS]})[2] == [
        [{"label": label, "score": score} for label, score in by_score(own)] for own in server.replies("mood", TEXTS)
    ]
    own = server.replies("same", PAIRS)
    pairs = [list(pair) for pair in PAIRS]
    assert [each[0]["label"] for each in posted(f"{url}?task=same", {"inputs": pairs})[2]] == [
        each["label"] for each in own
    ]
    assert posted(f"{url}?task=same", {"inputs": pairs[0]})[2][0]["score"] == max(own[0]["scores"].values())


def test_a_task_is_named_by_address_header_port_host_or_default(server, tmp_path):
    (own,) = server.replies("mood", TEXTS[:1])
    expected = [{"label": label, "score": score} for label, score in by_score(own)]
    asked, url = {"inputs": TEXTS[0]}, f"{server.url}/predict"
    assert posted(f"{url}?task=mood", asked)[2] == expected
    assert posted(url, asked, {"X-Polyhead-Task": "mood"})[2] == expected
    assert posted(f"{server.urls['mood']}/predict", asked)[2] == expected
    assert posted(url, asked, {"Host": "mood.classifiers.example:80"})[2] == expected
    status, _, body = posted(url, asked)
    assert status == 422 and "names no task" in body["error"] and "mood, topics" in body["error"]
    status, _, body = posted(f"{url}?task=moods", asked)
    assert status == 404 and "did you mean 'mood'?" in body["error"]


def test_the_only_task_and_the_default_need_no_name(tmp_path):
    from polyhead.serve.settings import ServeSettings

    with running(tiny_server_bundle(tmp_path / "one", "mood")) as server:
        assert posted(f"{server.url}/predict", {"inputs": "good"})[0] == 200
    settings = ServeSettings(default_task="urgency")
    with running(tiny_server_bundle(tmp_path / "two", "mood", "urgency"), settings=settings) as server:
        assert posted(f"{server.url}/predict", {"inputs": "good"})[2][0]["label"] == "urgency"
        assert posted(f"{server.url}/predict?task=mood", {"inputs": "good"})[2][0]["label"] in ("good", "bad")


def test_rerank_orders_by_a_task_over_pairs_or_by_the_cosine(server):
    url, texts = f"{server.url}/rerank", TEXTS[1:]
    own = [each["value"] for each in server.replies("alike", [(TEXTS[0], text) for text in texts])]
    _, _, answer = posted(f"{url}?task=alike", {"query": TEXTS[0], "texts": texts})
    assert [(each["index"], each["score"]) for each in answer] == sorted(enumerate(own), key=lambda item: -item[1])
    cosines = vectors(server, texts) @ vectors(server, TEXTS[:1])[0]
    _, _, answer = posted(url, {"query": TEXTS[0], "texts": texts, "return_text": True})
    assert [each["index"] for each in answer] == np.argsort(-cosines).tolist()
    assert [each["text"] for each in answer] == [texts[index] for index in np.argsort(-cosines)]
    assert posted(f"{server.urls['mood']}/rerank", {"query": TEXTS[0], "texts": texts})[2] == [
        {"index": each["index"], "score": each["score"]} for each in answer
    ]
    status, _, body = posted(f"{url}?task=mood", {"query": TEXTS[0], "texts": texts})
    assert status == 422 and "does not order texts" in body["error"]


def test_the_receipt_stands_in_a_header(server):
    _, headers, _ = posted(f"{server.url}/predict?task=mood", {"inputs": [[text] for text in TEXTS]})
    receipt = json.loads(headers["X-Polyhead-Receipt"])
    assert receipt["passes"] == 4 and receipt["cut"] == 0 and receipt["versions"]["mood"]["version"] == "v0001"
    assert int(headers["x-compute-tokens"]) == receipt["tokens"] > 0


def test_texts_that_are_too_long_are_refused_where_cutting_is_not_allowed(server):
    url = f"{server.url}/predict?task=mood"
    status, headers, _ = posted(url, {"inputs": LONG})
    assert status == 200 and json.loads(headers["X-Polyhead-Receipt"])["cut"] > 0
    status, _, body = posted(url, {"inputs": LONG, "truncate": False})
    assert status == 413 and "longer than the trunk reads" in body["error"]
    assert posted(f"{server.url}/embed", {"inputs": LONG, "truncate": False})[0] == 413
    assert posted(f"{server.url}/embed", {"inputs": "good", "truncate": False})[0] == 200
    status, _, _ = posted(
        f"{server.url}/similarity",
        {"inputs": {"source_sentence": "good", "sentences": [LONG]}, "parameters": {"truncate": False}},
    )
    assert status == 413


@pytest.mark.parametrize(
    "path, body, reason",
    [
        ("/predict?task=mood", {"inputs": "good", "raw_scores": True}, "what the task's kind makes of them"),
        ("/predict?task=mood", {"inputs": "good", "truncation_direction": "Left"}, "cut at their end"),
        ("/predict?task=mood", {"inputs": [["a", "b", "c"]]}, "no text, pair or list"),
        ("/predict?task=mood", {"inputs": []}, "no text, pair or list"),
        ("/predict?task=mood", {"inputs": ["good", "bad"]}, "this task reads one text"),
        ("/predict?task=mood", {"inputs": [["good"], [" "]]}, "input 1 has no answer"),
        ("/predict?task=names", {"inputs": "good"}, "POST /models/names"),
        ("/predict?task=where", {"inputs": "good"}, "POST /v1/predict"),
        ("/embed", {"inputs": "good", "prompt_name": "query"}, "no prompts of its own"),
        ("/embed", {"inputs": [[1, 2]]}, "token ids"),
        ("/embed", {"inputs": "good", "dimensions": 99}, "1 to 16"),
        ("/embed", {"inputs": "good", "parameters": {"normalize": False}}, "beside 'inputs'. Got: normalize"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, "holds no text"),
        ("/rerank", {"query": "a"}, "texts"),
        ("/models/reply", {"inputs": "good"}, "kind 'multiple_choice'"),
        ("/models/mood", {"inputs": "good", "parameters": {"function_to_apply": "none"}}, "softmax"),
        ("/models/mood", {"inputs": "good", "parameters": {"top_k": 0}}, "1 or more"),
        ("/models/names", {"inputs": "good", "parameters": {"aggregation_strategy": "max"}}, "first token"),
    ],
)
def test_what_cannot_be_answered_is_told_as_text_embeddings_inference_tells_it(server, path, body, reason):
    status, _, answer = posted(server.url + path, body)
    assert status == 422 and reason in answer["error"] and set(answer) == {"error", "error_type"}


def test_errors_reach_the_clients_user(client, server):
    from huggingface_hub.errors import HfHubHTTPError

    with pytest.raises(HfHubHTTPError, match="names no task"):
        client.text_classification("good", model=f"{server.url}/predict")


def test_parameters_at_predict_are_those_of_a_pipeline(server):
    (own,) = server.replies("topics", TEXTS[:1])
    address = f"{server.url}/predict?task=topics"
    status, _, body = posted(address, {"inputs": TEXTS[0], "parameters": {"top_k": 2, "function_to_apply": "sigmoid"}})
    assert status == 200 and [(each["label"], each["score"]) for each in body] == by_score(own)[:2]
    for name, value in {"function_to_apply": "none", "top_k": 0, "candidate_labels": ["x"], "stride": 3}.items():
        told = [
            posted(url, {"inputs": TEXTS[0], "parameters": {name: value}})
            for url in (address, f"{server.url}/models/topics")
        ]
        assert [status for status, _, _ in told] == [422, 422]
        assert told[0][2]["error"] == told[1][2]["error"]
