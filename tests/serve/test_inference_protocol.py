"""The Open Inference Protocol with NVIDIA's own `tritonclient`, in JSON and in its binary extension."""

import asyncio
import json
import struct

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the server's packages are not installed: pip install polyhead")

from polyhead._version import __version__
from polyhead.errors import BadValue
from polyhead.serve.formats.tensors import MOST_DIMENSIONS, InferRequest, InputTensor, tensor_texts
from support.client_server import LONG, TASKS, TEXTS, as_json, got, posted, running, tiny_server_bundle

PAIRS = [(TEXTS[0], TEXTS[1]), (TEXTS[2], TEXTS[3])]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running(tiny_server_bundle(tmp_path_factory.mktemp("b") / "b")) as server:
        yield server


@pytest.fixture(scope="module")
def http():
    return pytest.importorskip("tritonclient.http", reason="tritonclient is not installed: 'polyhead[compat]'")


@pytest.fixture
def client(server, http):
    with http.InferenceServerClient(server.place) as client:
        yield client


def tensors(http, *, binary=True, **texts):
    """Tensors of texts by name."""
    built = []
    for name, values in texts.items():
        built.append(http.InferInput(name, [len(values)], "BYTES"))
        built[-1].set_data_from_numpy(np.array([text.encode() for text in values], np.object_), binary_data=binary)
    return built


def in_json(answer, name):
    """A tensor of JSON objects."""
    return [json.loads(value) for value in answer.as_numpy(name).tolist()]


def test_server_and_models_are_described(client, server):
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("mood") and client.is_model_ready("mood", "v0001") and client.is_model_ready("all")
    assert client.get_server_metadata()["version"] == __version__
    index = {each["name"]: each for each in client.get_model_repository_index()}
    assert set(index) == {*TASKS, "all"} and all(each["state"] == "READY" for each in index.values())
    assert index["mood"]["version"] == "v0001"
    facts = client.get_model_metadata("mood")
    assert facts["versions"] == ["v0001"] and facts["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    assert {each["name"]: (each["datatype"], each["shape"]) for each in facts["outputs"]} == {
        "answer": ("BYTES", [-1]),
        "label": ("BYTES", [-1]),
        "scores": ("FP32", [-1, 2]),
    }
    assert [each["name"] for each in client.get_model_metadata("alike")["inputs"]] == ["text", "text_b"]
    assert [each["name"] for each in client.get_model_metadata("reply")["inputs"]] == ["input"]
    assert [each["name"] for each in client.get_model_metadata("all")["outputs"]] == list(TASKS)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_labels_scores_and_whole_answers_are_the_session_s(client, server, http, binary):
    wanted = [http.InferRequestedOutput(name, binary_data=binary) for name in ("label", "scores", "answer")]
    answer = client.infer("mood", tensors(http, binary=binary, text=TEXTS), outputs=wanted, request_id="a 1")
    own = server.answers("mood", TEXTS)
    assert [label.decode() if binary else label for label in answer.as_numpy("label")] == [o["label"] for o in own]
    scores = np.array([list(each["scores"].values()) for each in own], np.float32)
    assert answer.as_numpy("scores").tolist() == scores.tolist() and answer.as_numpy("scores").dtype == np.float32
    assert in_json(answer, "answer") == as_json(own)
    told = answer.get_response()
    assert (told["model_name"], told["model_version"], told["id"]) == ("mood", "v0001", "a 1")
    assert json.loads(told["parameters"]["x_receipt"])["passes"] == len(TEXTS)


def test_an_answer_holds_all_outputs_in_binary_where_none_is_named(client, server, http):
    answer = client.infer("topics", tensors(http, text=TEXTS), model_version="v0001")
    assert in_json(answer, "answer") == as_json(server.answers("topics", TEXTS))
    assert answer.as_numpy("scores").shape == (4, 3) and answer.as_numpy("label") is None
    assert "binary_data_size" in answer.get_output("scores")["parameters"]


def test_numbers_spans_pairs_and_questions(client, server, http):
    answer = client.infer("urgency", tensors(http, text=TEXTS))
    assert answer.as_numpy("value").tolist() == [each["value"] for each in server.answers("urgency", TEXTS)]
    answer = client.infer("names", tensors(http, text=TEXTS))
    assert in_json(answer, "answer") == as_json(server.answers("names", TEXTS))
    firsts, seconds = zip(*PAIRS, strict=True)
    answer = client.infer("alike", tensors(http, text=firsts, text_b=seconds))
    assert answer.as_numpy("value").tolist() == [each["value"] for each in server.answers("alike", PAIRS)]
    asked = {"question": "where is it?", "options": ["the box", "the phone"]}
    answer = client.infer("reply", tensors(http, input=[json.dumps(asked)]))
    from polyhead import Question

    question = Question(text=asked["question"], options=tuple(asked["options"]))
    assert in_json(answer, "answer") == as_json(server.answers("reply", [question]))


def test_tokens_of_an_input_are_its_words(client, http):
    answer = client.infer("names", tensors(http, input=[json.dumps({"tokens": ["anna", "phone"]})]))
    assert all(span["text"] in ("anna", "phone", "anna phone") for span in in_json(answer, "answer")[0]["spans"])


def test_the_model_all_answers_every_task_from_one_pass(client, server, http):
    answer, batches = server.batches_of(lambda: client.infer("all", tensors(http, text=TEXTS)))
    (result, *_) = server.session.predict(TEXTS)
    for name in TASKS:
        first = in_json(answer, name)[0]
        assert first == as_json(result.answers[name]) if name in result.answers else first["skipped"]
    assert sum(batch.passes for batch in batches) == len(TEXTS)
    some = client.infer("all", tensors(http, text=TEXTS), outputs=[http.InferRequestedOutput("mood")])
    assert [each["name"] for each in some.get_response()["outputs"]] == ["mood"]
    pairs = client.infer("all", tensors(http, text=[PAIRS[0][0]], text_b=[PAIRS[0][1]]))
    assert in_json(pairs, "same") == as_json(server.answers("same", PAIRS[:1]))


def test_texts_of_every_plane_arrive_as_they_are(client, server, http):
    texts = ["\U0001f600 good", "caf\u00e9 \u4f60\u597d", "\u0000 bad \uffff"]
    answer = client.infer("mood", tensors(http, text=texts))
    assert in_json(answer, "answer") == as_json(server.answers("mood", texts))


def test_the_asynchronous_client_gets_the_same(server, http):
    aio = pytest.importorskip("tritonclient.http.aio")

    async def asked():
        async with aio.InferenceServerClient(server.place) as client:
            return await asyncio.gather(*(client.infer("mood", tensors(http, text=[text])) for text in TEXTS))

    answers = [in_json(answer, "answer")[0] for answer in asyncio.run(asked())]
    assert answers == as_json(server.answers("mood", TEXTS))


def test_changes_of_models_are_refused_by_name(client, http):
    from tritonclient.utils import InferenceServerException

    for change in (client.load_model, client.unload_model):
        with pytest.raises(InferenceServerException, match=r"\[403\] task 'mood' is not \w+ed: .* takes no changes"):
            change("mood")


def test_shared_memory_is_refused_by_name(client, http, server):
    from tritonclient.utils import InferenceServerException

    with pytest.raises(InferenceServerException, match="shared memory of clients is not read"):
        client.register_system_shared_memory("region", "/key", 64)
    asked = http.InferInput("text", [1], "BYTES")
    asked.set_shared_memory("region", 64)
    with pytest.raises(InferenceServerException, match="input 'text' lies in shared memory"):
        client.infer("mood", [asked])
    output = http.InferRequestedOutput("label")
    output.set_shared_memory("region", 64)
    with pytest.raises(InferenceServerException, match="shared memory of clients is not read"):
        client.infer("mood", tensors(http, text=["good"]), outputs=[output])


def test_what_cannot_be_answered_is_told(client, http):
    from tritonclient.utils import InferenceServerException

    good = tensors(http, text=["good"])
    cases = [
        (("moods", good), {}, r"\[404\].*did you mean 'mood'\?"),
        (("mood", good), {"model_version": "v0009"}, r"\[404\] version 'v0009' of model 'mood' is not served.*v0001"),
        (("mood", tensors(http, words=["good"])), {}, r"\[422\] these are not the inputs of model 'mood'.*text"),
        (("alike", good), {}, "text and text_b"),
        (("alike", tensors(http, text=["a", "b"], text_b=["c"])), {}, "of one length"),
        (("mood", tensors(http, text=["good", " "])), {}, "input 1 has no answer of task 'mood'"),
        (("mood", good), {"outputs": [http.InferRequestedOutput("lable")]}, "no output 'lable'"),
        (("mood", good), {"outputs": [http.InferRequestedOutput("scores", class_count=2)]}, "not ranked here"),
        (("mood", good), {"request_compression_algorithm": "gzip"}, r"\[415\] the body is compressed"),
        (("mood", tensors(http, input=["{"])), {}, "input 0 is not JSON"),
    ]
    for arguments, options, reason in cases:
        with pytest.raises(InferenceServerException, match=reason):
            client.infer(*arguments, **options)


def test_two_inputs_of_one_name_are_refused(server):
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES"}
    body = {"inputs": [tensor | {"data": ["good"]}, tensor | {"data": ["bad"]}]}
    status, _, answer = posted(f"{server.url}/v2/models/mood/infer", body)
    assert status == 422 and "two inputs are named 'text'" in answer["error"]


@pytest.mark.parametrize("timeout", [2**63 - 1, 2**64 - 1, int("9" * 4000)], ids=["63 bits", "64 bits", "digits"])
def test_a_timeout_of_any_size_is_answered(server, timeout):
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["good"]}
    body = {"inputs": [tensor], "parameters": {"timeout": timeout}}
    assert posted(f"{server.url}/v2/models/mood/infer", body)[0] == 200
    body["parameters"]["timeout"] = -timeout
    status, _, answer = posted(f"{server.url}/v2/models/mood/infer", body)
    assert status == 422 and "a deadline is the seconds" in answer["error"]


def of_bytes(size, data, *, shape=(1,), datatype="BYTES", **more):
    """A body of one binary tensor."""
    tensor = {"name": "text", "shape": list(shape), "datatype": datatype, "parameters": {"binary_data_size": size}}
    header = json.dumps({"inputs": [tensor | more]}).encode()
    return header + data, {"Inference-Header-Content-Length": str(len(header))}


@pytest.mark.parametrize(
    "body, reason",
    [
        (of_bytes(8, struct.pack("<I", 4) + b"good", shape=(2,)), "do not fit its shape"),
        (of_bytes(8, struct.pack("<I", 4) + b"good", shape=(-1,)), "do not fit its shape"),
        (of_bytes(8, struct.pack("<I", 4) + b"good", shape=(2**62, 2**62)), "do not fit its shape"),
        (of_bytes(8, struct.pack("<I", 4000) + b"good"), "end within a text"),
        (of_bytes(3, b"abc"), "end within a text"),
        (of_bytes(800, struct.pack("<I", 4) + b"good"), "ends before its data do"),
        (of_bytes(-8, struct.pack("<I", 4) + b"good"), "ends before its data do"),
        (of_bytes(8, struct.pack("<I", 4) + b"goodness"), "data that no input names"),
        (of_bytes(8, struct.pack("<I", 4) + b"\xff\xfe\xfd\xfc"), "is not UTF-8"),
        (of_bytes(8, struct.pack("<d", 4.0), datatype="FP64"), "is no text"),
    ],
)
def test_binary_data_that_do_not_fit_are_refused(server, body, reason):
    status, _, answer = posted(f"{server.url}/v2/models/mood/infer", *body)
    assert status == 422 and reason in answer["error"]


@pytest.mark.parametrize("length", ["9999", "9" * 5000, "-1", "two", "\u0664"])
def test_a_length_of_json_that_the_body_does_not_have_is_refused(server, length):
    status, _, answer = posted(
        f"{server.url}/v2/models/mood/infer", {"inputs": []}, {"Inference-Header-Content-Length": length.encode()}
    )
    assert status == 400 and "does not fit the body" in answer["error"]


def test_texts_in_nested_lists_of_json_are_read_in_order(server):
    tensor = {"name": "text", "shape": [2, 2], "datatype": "BYTES", "data": [TEXTS[:2], TEXTS[2:]]}
    _, _, answer = posted(f"{server.url}/v2/models/mood/infer", {"inputs": [tensor]})
    (label,) = [each["data"] for each in answer["outputs"] if each["name"] == "label"]
    assert label == [each["label"] for each in server.answers("mood", TEXTS)]
    status, _, answer = posted(f"{server.url}/v2/models/mood/infer", {"inputs": [tensor | {"data": [1, "a", 2, 3]}]})
    assert status == 422 and "holds what is no text" in answer["error"]


def test_texts_that_are_cut_are_told(server):
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [LONG]}
    _, _, answer = posted(f"{server.url}/v2/models/mood/infer", {"inputs": [tensor]})
    assert json.loads(answer["parameters"]["x_receipt"])["cut"] > 0


def test_parts_that_are_not_spoken_say_so(server):
    for path in ("/v2/models/mood/config", "/v2/models/mood/stats", "/v2/models/stats/x", "/v2/logging"):
        status, _, answer = got(server.url + path)
        assert status == 404 and "not spoken" in answer["error"]


def test_a_shape_of_many_dimensions_is_refused_and_not_multiplied(monkeypatch):
    """Their product took a minute of every thread: 131,072 numbers of 62 bits."""

    def never(*_):
        raise AssertionError("it was multiplied")

    monkeypatch.setattr("polyhead.serve.formats.tensors.prod", never)
    for shape in ([2**62] * (MOST_DIMENSIONS + 1), [], [-1]):
        own = InputTensor(name="text", shape=shape, datatype="BYTES", data=["a"])
        with pytest.raises(BadValue, match="do not fit its shape"):
            tensor_texts(InferRequest(inputs=[own]), b"", most=8)
