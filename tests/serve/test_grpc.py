"""The Open Inference Protocol over gRPC, by tritonclient's own client: answers, guards, limits, and the end."""

import asyncio
import json
import threading
from functools import partial

import httpx
import numpy as np
import pytest

pytest.importorskip("grpc", reason="grpcio is not installed: pip install 'polyhead[grpc]'")
pytest.importorskip("tritonclient.grpc", reason="tritonclient[grpc] is not installed: pip install '.[compat]'")

import grpc
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from polyhead.cli.serve_options import grpc_beside
from polyhead.errors import BadValue, ConfigError
from polyhead.serve.grpc.listen import CODES, SERVICE, grpc_listening
from polyhead.serve.grpc.messages import FIELDS, check_fields_of, message_classes, message_in
from polyhead.serve.http import MOST_VALUES, STATUS
from polyhead.serve.keys import AccessKeys, keys_in
from polyhead.serve.run import bound
from polyhead.serve.settings import RequestLimits, ServeSettings
from polyhead.serve.workers import WorkerPlace
from support.loopback_server import held, listening, service_of, tiny_root, until

TEXTS = ["good lamp", "the order is late 😀", "where is anna?"]
HOST = "127.0.0.1"


class Served:
    """A server with both ports, and what its observers were told."""

    def __init__(self, service, **more):
        self.service, self.exchanges, self.ports = service, [], []
        beside = partial(
            grpc_listening, service, HOST, 0, observers=[self.exchanges.append], ready=self.ports.append, **more
        )
        self.running = listening(service, beside=[beside])

    def __enter__(self):
        self.http = self.running.__enter__()
        self.address = f"{HOST}:{self.ports[0]}"
        return self

    def __exit__(self, *error):
        return self.running.__exit__(*error)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tiny_root(tmp_path_factory.mktemp("grpc") / "b")


@pytest.fixture(scope="module")
def server(root):
    limits = RequestLimits(inputs=8, body_bytes=100_000)
    with Served(service_of(root, ServeSettings(limits=limits))) as served:
        yield served


@pytest.fixture(scope="module")
def client(server):
    with triton.InferenceServerClient(server.address) as client:
        yield client


def tensor(texts, name="text"):
    made = triton.InferInput(name, [len(texts)], "BYTES")
    made.set_data_from_numpy(np.array([text.encode() for text in texts], np.object_))
    return made


def refused(call):
    with pytest.raises(InferenceServerException) as caught:
        call()
    return caught.value.status().removeprefix("StatusCode."), caught.value.message()


def raw_call(address, method, data):
    """The bytes of an answer to bytes."""
    with grpc.insecure_channel(address) as channel:
        return channel.unary_unary(f"/{SERVICE}/{method}")(data, timeout=60)


def test_messages_have_the_numbers_and_types_of_the_protocol():
    """Those of tritonclient's own file; of its messages that nest, the inner name."""
    known = {}

    def collect(messages):
        for message in messages:
            known.setdefault(message.name, []).append(message)
            collect(message.nested_types)

    collect(service_pb2.DESCRIPTOR.message_types_by_name.values())
    for name, fields in FIELDS.items():
        for theirs in known[name]:
            by_number = {field.number: field for field in theirs.fields}
            for number, field, kind in (words.split() for words in fields):
                its, ours = by_number[int(number)], message_classes()[name].DESCRIPTOR.fields_by_name[field]
                assert (its.name, its.type) == (field, ours.type), (name, field)
                assert its.is_repeated == kind.startswith("*") == ours.is_repeated
    methods = {method.name for method in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods}
    assert {name.removesuffix("Request") for name in FIELDS if name.endswith("Request")} <= methods


def test_the_server_and_its_models_tell_what_they_tell_over_http(client, server):
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("mood") and client.is_model_ready("mood", "v0001")
    assert client.get_server_metadata(as_json=True)["name"] == "polyhead"
    for task in ("mood", "same", "reply", "all"):
        own = client.get_model_metadata(task)
        http = httpx.get(f"http://{HOST}:{server.http}/v2/models/{task}").json()
        assert [own.name, own.platform, list(own.versions)] == [http[key] for key in ("name", "platform", "versions")]
        for side in ("inputs", "outputs"):
            told = [{"name": e.name, "datatype": e.datatype, "shape": list(e.shape)} for e in getattr(own, side)]
            assert told == http[side]


def test_answers_are_those_of_the_session(client, server):
    answer = client.infer("mood", [tensor(TEXTS)], request_id="seven")
    own = [result.answers["mood"] for result in server.service.session.predict(TEXTS, tasks=["mood"])]
    assert [label.decode() for label in answer.as_numpy("label")] == [each["label"] for each in own]
    scores = np.array([list(each["scores"].values()) for each in own], np.float32)
    np.testing.assert_allclose(answer.as_numpy("scores"), scores, atol=1e-6)
    assert [json.loads(each)["label"] for each in answer.as_numpy("answer")] == [each["label"] for each in own]
    response = answer.get_response()
    assert (response.id, response.model_name, response.model_version) == ("seven", "mood", "v0001")
    assert json.loads(response.parameters["x_receipt"].string_param)["passes"] == len(TEXTS)
    only = client.infer("mood", [tensor(TEXTS)], outputs=[triton.InferRequestedOutput("label")])
    assert only.as_numpy("scores") is None and len(only.as_numpy("label")) == len(TEXTS)


def test_pairs_numbers_questions_and_all_tasks_are_answered(client):
    pair = client.infer("alike", [tensor(["a lamp"]), tensor(["a kettle"], "text_b")])
    assert pair.as_numpy("value").dtype == np.float64 and pair.as_numpy("value").shape == (1,)
    question = json.dumps({"question": "is it good?", "options": ["yes", "no"]})
    assert json.loads(client.infer("reply", [tensor([question], "input")]).as_numpy("answer")[0])
    every = client.infer("all", [tensor(TEXTS)])
    assert json.loads(every.as_numpy("mood")[0])["label"] in ("bad", "good")


def test_texts_may_stand_in_contents_in_place_of_raw_data(server, client):
    """As clients that are not Triton's send them."""
    request = service_pb2.ModelInferRequest(model_name="mood")
    own = request.inputs.add(name="text", datatype="BYTES", shape=[len(TEXTS)])
    own.contents.bytes_contents.extend(text.encode() for text in TEXTS)
    answer = service_pb2.ModelInferResponse.FromString(
        raw_call(server.address, "ModelInfer", request.SerializeToString())
    )
    whole = client.infer("mood", [tensor(TEXTS)]).get_response()
    assert list(answer.raw_output_contents) == list(whole.raw_output_contents)


def test_texts_in_contents_and_in_raw_data_too_are_refused(server):
    """Triton refuses them too: one of the two would be read, and nobody could tell which."""
    request = service_pb2.ModelInferRequest(model_name="mood", raw_input_contents=[b"\x04\0\0\0good"])
    own = request.inputs.add(name="text", datatype="BYTES", shape=[1])
    own.contents.bytes_contents.append(b"bad")
    with pytest.raises(grpc.RpcError) as caught:
        raw_call(server.address, "ModelInfer", request.SerializeToString())
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "has its data twice" in caught.value.details()


def test_asyncio_s_client_is_answered(server):
    async def asked():
        async with triton_aio.InferenceServerClient(server.address) as own:
            answer = await own.infer("urgency", [tensor(TEXTS)])
            return answer.as_numpy("value")

    assert asyncio.run(asked()).shape == (3,)


@pytest.mark.parametrize(
    ("call", "code", "word"),
    [
        (lambda c: c.infer("moood", [tensor(["a"])]), "NOT_FOUND", "'mood'"),
        (lambda c: c.get_model_metadata("mood", "v0009"), "NOT_FOUND", "v0009"),
        (lambda c: c.infer("mood", [tensor(["a"] * 9)]), "INVALID_ARGUMENT", "too many inputs"),
        (lambda c: c.infer("mood", [tensor(["a"], "other")]), "INVALID_ARGUMENT", "inputs of model"),
        (lambda c: c.infer("mood", [tensor(["a"])], timeout=-1), "INVALID_ARGUMENT", "deadline"),
        (lambda c: c.infer("mood", [tensor(["a"])], parameters={"familiar": "yes"}), "INVALID_ARGUMENT", "familiar"),
        (
            lambda c: c.infer("mood", [tensor(["a"])], outputs=[triton.InferRequestedOutput("label", class_count=1)]),
            "INVALID_ARGUMENT",
            "not ranked",
        ),
        (lambda c: c.infer("mood", [tensor(["a" * 200_000])]), "RESOURCE_EXHAUSTED", "larger than max"),
        (lambda c: c.infer("mood", [tensor(["a"])], timeout=1), "RESOURCE_EXHAUSTED", "deadline"),
        (lambda c: c.get_model_repository_index(), "UNIMPLEMENTED", ""),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_answered_is_refused_by_its_code(client, call, code, word):
    told, message = refused(lambda: call(client))
    assert told == code and word in message


def test_every_status_of_an_error_has_a_code():
    assert set(STATUS.values()) | {401, 403, 413, 504} <= set(CODES)
    assert all(hasattr(grpc.StatusCode, code) for code in CODES.values())


def test_bytes_that_are_no_message_are_refused(server):
    for data in (b"\xff", b"\x2a\x05a", b"\x0b", b"\x0a\x02\xff\xfe"):
        with pytest.raises(grpc.RpcError) as caught:
            raw_call(server.address, "ModelInfer", data)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, data


def test_fields_are_counted_before_they_are_read():
    """Two bytes of a body become a message each: at the top, in an input, in its contents."""
    many = MOST_VALUES + 1
    inputs, outputs, parameters, contents = (bytes([field << 3 | 2, 0]) * many for field in (5, 6, 4, 8))

    def within(*fields, content):
        for field in reversed(fields):
            size, length = b"", len(content)
            while length > 127:
                size, length = size + bytes([length & 127 | 128]), length >> 7
            content = bytes([field << 3 | 2]) + size + bytes([length]) + content
        return content

    deeper = [within(5, content=parameters), within(5, 5, content=contents), within(6, content=b"\x12\x00" * many)]
    for data in [inputs, outputs, parameters, *deeper]:
        with pytest.raises(BadValue, match="too many values"):
            check_fields_of(data)
    request = service_pb2.ModelInferRequest(model_name="mood", raw_input_contents=[b"\x22\x00" * many])
    assert message_in(request.SerializeToString(), "ModelInferRequest").model_name == "mood"


def test_every_call_is_told_to_observers_once_and_counted(server, client):
    server.exchanges.clear()
    client.infer("mood", [tensor(TEXTS)])
    refused(lambda: client.infer("moood", [tensor(TEXTS)]))
    until(lambda: len(server.exchanges) == 2)
    assert [(each.route, each.status, each.inputs) for each in server.exchanges] == [
        (f"/{SERVICE}/ModelInfer", 200, 3),
        (f"/{SERVICE}/ModelInfer", 404, 0),
    ]
    counts = httpx.get(f"http://{HOST}:{server.http}/metrics").text
    assert f'route="/{SERVICE}/ModelInfer",status="404"' in counts


def test_keys_open_what_they_open_over_http(root):
    keys = AccessKeys(keys_in("secret # shop\nadmin:chief\n", source="test"))
    with Served(service_of(root), keys=keys) as served, triton.InferenceServerClient(served.address) as client:
        assert client.is_server_live() and client.is_server_ready()
        for headers in (None, {"authorization": "Bearer wrong"}, {"authorization": "secret"}):
            told, message = refused(lambda h=headers: client.infer("mood", [tensor(TEXTS)], headers=h))
            assert told == "UNAUTHENTICATED" and "secret" not in message
        assert refused(lambda: client.get_server_metadata())[0] == "UNAUTHENTICATED"
        for headers in ({"authorization": "Bearer secret"}, {"x-api-key": "chief"}):
            assert client.infer("mood", [tensor(TEXTS)], headers=headers).as_numpy("label") is not None
        until(lambda: served.exchanges[-1].key == "admin-2")
        assert {each.key for each in served.exchanges} == {"", "shop", "admin-2"}


def test_what_is_under_way_is_answered_when_the_server_stops_and_nothing_else(root, monkeypatch):
    service, answers = service_of(root), []
    with held(monkeypatch) as (begun, go, _):
        go.set()  # while it warms
        with Served(service) as served, triton.InferenceServerClient(served.address) as client:
            go.clear()
            begun.clear()
            ask = threading.Thread(target=lambda: answers.append(client.infer("mood", [tensor(TEXTS)])))
            ask.start()
            assert begun.wait(30)
            service.drain()
            told, message = refused(lambda: client.infer("mood", [tensor(TEXTS)]))
            assert told == "UNAVAILABLE" and "stops" in message
            assert client.is_server_live() and not client.is_server_ready()
            go.set()
            ask.join(30)
    assert len(answers[0].as_numpy("label")) == len(TEXTS)


def test_a_port_that_is_taken_is_told_before_anything_is_loaded(root):
    taken = bound(HOST, 0)
    settings = ServeSettings(grpc_port=taken.getsockname()[1])
    with taken, pytest.raises(ConfigError, match="cannot listen"):
        grpc_beside(service_of(root, settings), HOST, keys=AccessKeys(), observers=[], worker=None)
    with pytest.raises(ConfigError, match="several workers"):
        service = service_of(root, ServeSettings(grpc_port=0))
        place = WorkerPlace(number=1, of=2, sockets=(), ready=0, alive=0, folder="", processors=(0,))
        grpc_beside(service, HOST, keys=AccessKeys(), observers=[], worker=place)
    assert grpc_beside(service_of(root), HOST, keys=AccessKeys(), observers=[], worker=None) == []
