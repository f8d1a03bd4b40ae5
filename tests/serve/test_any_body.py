"""Whatever JSON a request holds, it is answered or refused with a reason: the server does not fail."""

import http.client
import json

import pytest

pytest.importorskip("starlette", reason="the server's packages are not installed: pip install polyhead")

from hypothesis import given, settings
from hypothesis import strategies as st

from support.client_server import SECONDS, running, tiny_server_bundle

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**80), 2**80),
    st.floats(allow_nan=False),
    st.text(st.characters(codec="utf-8"), max_size=12),
    st.sampled_from(["mood", "names", "float", "base64", "text", "BYTES", "left", "softmax", "v0001"]),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=2)
)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)


def bodies(likely, **fields):
    """Objects with some of these fields, each with a likely value of its own, or any; rarely something else."""
    own = {name: VALUES | value for name, value in (likely | fields).items()}
    return st.fixed_dictionaries({}, optional=own) | VALUES


INPUTS = TEXTS | st.lists(TEXTS, max_size=3) | st.lists(st.lists(TEXTS, max_size=3), max_size=3)
READING = {
    "truncate": st.booleans(),
    "truncation_direction": st.sampled_from(["left", "Right"]),
    "raw_scores": st.booleans(),
}
TENSOR = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["text", "text_b", "input"]),
        "shape": st.lists(st.integers(-2, 4) | st.just(2**62), max_size=3) | VALUES,
        "datatype": st.sampled_from(["BYTES", "FP32"]) | VALUES,
        "data": INPUTS | VALUES,
        "parameters": bodies({"binary_data_size": st.integers(-2, 30)}),
    },
)
ROUTES = {
    "/v1/embeddings": bodies(
        {"input": INPUTS, "encoding_format": st.just("base64"), "dimensions": st.integers(-1, 18)}
    ),
    "/embed": bodies(READING, inputs=INPUTS, normalize=st.booleans(), dimensions=st.integers(0, 17)),
    "/predict?task=mood": bodies(READING, inputs=INPUTS),
    "/predict?task=same": bodies(READING, inputs=INPUTS),
    "/similarity": bodies(
        {"inputs": bodies({"source_sentence": TEXTS, "sentences": INPUTS}), "parameters": bodies(READING)}
    ),
    "/rerank": bodies(READING, query=TEXTS, texts=INPUTS, return_text=st.booleans()),
    "/models/topics": bodies({"inputs": INPUTS, "parameters": bodies({"top_k": st.integers(-1, 4)})}),
    "/models/names": bodies({"inputs": INPUTS, "parameters": bodies({"ignore_labels": st.lists(TEXTS, max_size=2)})}),
    "/classify": bodies(READING, inputs=INPUTS, input=INPUTS, model=st.sampled_from(["mood", "names", "urgency"])),
    "/v2/models/mood/infer": bodies(
        {"inputs": st.lists(TENSOR, max_size=3), "outputs": VALUES, "parameters": VALUES, "id": TEXTS}
    ),
    "/v2/models/all/infer": bodies(
        {
            "inputs": st.lists(TENSOR, max_size=3),
            "outputs": st.lists(st.fixed_dictionaries({"name": TEXTS | st.just("mood")}), max_size=2),
            "parameters": bodies({"timeout": st.integers(), "binary_data_output": st.booleans()}),
        }
    ),
}


@pytest.fixture(scope="module")
def connection(tmp_path_factory):
    with running(tiny_server_bundle(tmp_path_factory.mktemp("b") / "b")) as server:
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=SECONDS)
        yield connection
        connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
def test_no_body_makes_the_server_fail(connection, route):
    answered = set()

    @settings(max_examples=30, deadline=None, database=None)
    @given(ROUTES[route])
    def ask(body):
        connection.request("POST", route, json.dumps(body).encode())
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status in (200, 400, 404, 413, 422, 504), (body, answer.status, content)
        if answer.status != 200 and answer.getheader("Content-Type") == "application/json":
            assert json.loads(content)["error"]
        answered.add(answer.status)

    ask()
    assert 422 in answered
