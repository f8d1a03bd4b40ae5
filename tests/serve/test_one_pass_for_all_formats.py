"""Several formats asked at the same time share batches of the encoder, and each is answered as if it were alone."""

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

pytest.importorskip("starlette", reason="the server's packages are not installed: pip install polyhead")

from polyhead.serve.settings import RequestLimits, ServeSettings
from support.client_server import TEXTS, WHOLE, posted, running, tiny_server_bundle, wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running(tiny_server_bundle(tmp_path_factory.mktemp("b") / "b")) as server:
        yield server


@pytest.fixture(scope="module")
def of_texts(tmp_path_factory):
    """Tasks over pairs read other texts: their calls have batches of their own, here there are none."""
    root = tiny_server_bundle(tmp_path_factory.mktemp("t") / "b", "mood", "topics", "urgency", "names")
    with running(root, ports=["topics"]) as server:
        yield server


@pytest.fixture(scope="module")
def limited(tmp_path_factory):
    settings = ServeSettings(limits=RequestLimits(inputs=8, body_bytes=10_000), queue=WHOLE)
    with running(tiny_server_bundle(tmp_path_factory.mktemp("l") / "b", "mood"), settings=settings) as server:
        yield server


def bytes_tensor(*texts):
    return {"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": list(texts)}


def requests(server):
    """One text each, in eight formats."""
    text, *others = TEXTS
    return [
        (f"{server.url}/v1/predict", {"inputs": [text], "tasks": ["mood"]}),
        (f"{server.url}/v1/embeddings", {"input": others[0]}),
        (f"{server.url}/embed", {"inputs": text}),
        (f"{server.url}/predict?task=mood", {"inputs": others[1]}),
        (f"{server.urls['topics']}/classify", {"inputs": others[2]}),
        (f"{server.url}/classify", {"model": "topics", "input": text}),
        (f"{server.url}/models/names", {"inputs": others[0]}),
        (f"{server.url}/v2/models/all/infer", {"inputs": [bytes_tensor(others[1])]}),
    ]


def without_what_differs(body):
    """A body without ids, times and receipts, which differ from request to request."""
    if isinstance(body, list):
        return [without_what_differs(each) for each in body]
    if isinstance(body, dict):
        gone = {"id", "created", "x_receipt", "receipt", "parameters"}
        return {name: without_what_differs(value) for name, value in body.items() if name not in gone}
    return body


def test_formats_that_ask_at_once_share_one_batch(of_texts):
    asked = requests(of_texts)
    alone = [posted(*each) for each in asked]
    with ThreadPoolExecutor(len(asked)) as pool:
        with of_texts.stalled():
            answers = [pool.submit(posted, *each) for each in asked]
            wait_until(lambda: of_texts.service.queue.waiting == len(asked))
        together = [answer.result() for answer in answers]
    wait_until(lambda: of_texts.service.queue.is_idle)
    (batch,) = of_texts.batches
    assert batch.tickets == batch.inputs == batch.passes == len(asked)
    for (status, _, body), (own_status, _, own_body) in zip(together, alone, strict=True):
        assert status == own_status == 200
        assert without_what_differs(body) == without_what_differs(own_body)


def test_all_inputs_of_a_request_are_one_call(server):
    """A text that is compared with others is read beside them, and pairs of texts to rank too."""
    for url, body, passes in (
        (f"{server.url}/similarity", {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}}, 4),
        (f"{server.url}/rerank", {"query": TEXTS[0], "texts": TEXTS[1:]}, 4),
        (f"{server.url}/rerank?task=alike", {"query": TEXTS[0], "texts": TEXTS[1:]}, 4),
        (f"{server.url}/v1/embeddings", {"input": TEXTS}, 4),
        (f"{server.url}/v2/models/all/infer", {"inputs": [bytes_tensor(*TEXTS)]}, 4),
    ):
        (status, _, _), (batch,) = server.batches_of(partial(posted, url, body))
        assert status == 200 and batch.tickets == 1 and batch.passes == passes, url


@pytest.mark.parametrize(
    "path, body",
    [
        ("/predict?task=mood", {"inputs": [["good"]] * 9}),
        ("/v1/embeddings", {"input": ["good"] * 9}),
        ("/embed", {"inputs": ["good"] * 9}),
        ("/similarity", {"inputs": {"source_sentence": "good", "sentences": ["good"] * 8}}),
        ("/rerank", {"query": "good", "texts": ["good"] * 8}),
        ("/classify?task=mood", {"inputs": ["good"] * 9}),
        ("/classify", {"model": "mood", "input": ["good"] * 9}),
        ("/models/mood", {"inputs": ["good"] * 9}),
        ("/v2/models/mood/infer", {"inputs": [bytes_tensor(*["good"] * 9)]}),
    ],
)
def test_the_limits_of_a_request_hold_in_every_format(limited, path, body):
    status, _, answer = posted(limited.url + path, body)
    assert status == 422 and "too many inputs" in str(answer["error"])
    assert posted(limited.url + path, b'{"input":"' + b"a" * 10_000 + b'"}')[0] == 413
    status, _, answer = posted(limited.url + path, b'{"x":' + b"[" * 5000)
    assert status == 400 and any(what in str(answer["error"]) for what in ("not JSON", "nested too deeply"))
    fields = json.dumps(body)[1:-1].encode()
    status, _, answer = posted(limited.url + path, b"{" + fields + b", " + fields + b"}")
    assert status == 400 and "an object names a key twice" in str(answer["error"])  # the last one was answered
