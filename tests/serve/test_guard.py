"""What a request may hold, and what an answer never tells: the rules of servers like this that were broken into."""

import ast
import asyncio
import gzip
import json
import logging
from pathlib import Path

import pytest
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

import polyhead.serve
from polyhead.engine.queue import QueueLimits
from polyhead.errors import BackendError, CorruptFile
from polyhead.nesting import DEEPEST, PART
from polyhead.serve.app import application
from polyhead.serve.formats import FORMATS, WireFormat, register_format
from polyhead.serve.guard import Guard, Paths
from polyhead.serve.http import MOST_VALUES, HttpError, checked_json, fact_in_json, replaced, without_files
from polyhead.serve.settings import RequestLimits, ServeSettings
from support.loopback_server import LONG, TEXT_TASKS, service_of, tiny_root

LIMITS = RequestLimits(body_bytes=40_000, inputs=8, characters=5_000, tokens=200, answers=20, options=5)
SOURCE = Path(polyhead.serve.__file__).parent


class Faulty(WireFormat):
    """Routes that fail in several ways."""

    name = "faulty"

    def routes(self, service):
        def failing(error):
            async def route(request):
                raise error

            return route

        return [
            Route("/fault", failing(RuntimeError("at /srv/models/secret.bin line 3"))),
            Route("/corrupt", failing(CorruptFile("task.json is cut", got="/srv/bundle/tasks/mood/v0001/task.json"))),
            Route(
                "/backend", failing(BackendError("cannot open '/tmp/tmpab12/model.xml'", do="see src/core/x.cpp:66"))
            ),
            Route("/windows", failing(CorruptFile(r"C:\models\trunk\weights.bin is cut"))),
        ]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tiny_root(tmp_path_factory.mktemp("guard") / "b")


@pytest.fixture(scope="module")
def client(root):
    with FORMATS.temporary():
        register_format(Faulty())
        app = application(service_of(root, ServeSettings(limits=LIMITS)))
        with TestClient(app, raise_server_exceptions=False) as own:
            yield own


def asked(client, inputs, tasks=("mood",), **options):
    return client.post("/v1/predict", json={"inputs": inputs, "tasks": list(tasks), **options})


QUESTION = {"question": "which one?", "options": ["a", "b", "c", "d", "e", "f"]}


@pytest.mark.parametrize(
    "inputs, tasks, what",
    [
        (["good lamp"] * 9, ["mood"], "too many inputs"),
        (["good lamp"] * 6, TEXT_TASKS, "too many inputs"),
        (["x" * 5_001], ["mood"], "is too long"),
        ([{"text": "a", "text_b": "x" * 5_001}], ["same"], "is too long"),
        ([QUESTION], ["reply"], "too many options"),
        ([], ["mood"], "no input"),
    ],
    ids=["inputs", "answers", "characters", "pair", "options", "none"],
)
def test_more_than_a_request_may_hold_is_refused(client, inputs, tasks, what):
    answer = asked(client, inputs, tasks)
    assert answer.status_code == 422 and what in answer.json()["error"]["message"]


def test_a_request_that_names_no_task_is_not_called_one_of_no_tasks(client):
    """All of them were asked, and the refusal said "9 inputs and 0 tasks"."""
    answer = client.post("/v1/predict", json={"inputs": ["good lamp"] * 9})
    assert answer.status_code == 422 and answer.json()["error"]["got"] == "9 inputs"


def test_characters_are_counted_with_each_option(root):
    """A long question with several options is read several times."""
    limits = RequestLimits(all_characters=1_000)
    with TestClient(application(service_of(root, ServeSettings(limits=limits)))) as client:
        question = {"question": "x" * 300, "options": ["a", "b", "c", "d"]}
        assert asked(client, [question | {"options": ["a", "b", "c"]}], ["reply"]).status_code == 200
        refused = asked(client, [question], ["reply"])
        assert refused.status_code == 422 and "too many characters" in refused.json()["error"]["message"]
        assert asked(client, ["x" * 500] * 2).status_code == 200
        assert asked(client, ["x" * 500] * 3).status_code == 422


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": {"x": "a" * 30_000}},
        {"inputs": "a", "tasks": ["a" * 30_000]},
        {"inputs": "a", "tasks": [f"t{number}" for number in range(4_000)]},
        {"inputs": "a", "tasks": ["a", "\u202e" * 3_000]},
        {"inputs": "a", "x" * 30_000: 1},
        {"inputs": {"x": ["\0"] * 3_000}},
    ],
    ids=["value", "task", "tasks", "signs", "key", "controls"],
)
def test_the_reason_of_a_refusal_is_short_however_long_the_body(client, body):
    answer = client.post("/v1/predict", json=body)
    assert answer.status_code in (404, 422) and len(answer.content) < 20_000


def test_tokens_are_counted_where_characters_leave_it_open(root):
    """As many long texts as fit are answered, one more is not; many characters of few tokens are no reason."""
    with TestClient(application(service_of(root, ServeSettings(limits=LIMITS)))) as client:
        most = asked(client, [LONG]).json()["receipt"]["tokens"]
        fit = LIMITS.tokens // most
        assert 1 <= fit < LIMITS.inputs
        assert asked(client, [LONG] * fit).status_code == 200
        assert asked(client, ["x" * 4_000] * 8).status_code == 200  # unknown words, a token each
        refused = asked(client, [LONG] * (fit + 1))
        assert refused.status_code == 422
        assert refused.json()["error"]["got"] == f"{most * (fit + 1):,} that the encoder would read"


@pytest.mark.parametrize("path", ["/v1/predict", "/v1/decisions", "/embed", "/classify", "/v2/models/mood/infer"])
def test_a_compressed_body_is_refused_as_one(client, path):
    """It was called no JSON, with "invalid character (byte 0)"."""
    body, headers = gzip.compress(b'{"inputs": "good lamp"}'), {"content-encoding": "gzip"}
    refused = client.post(path, content=body, headers=headers)
    assert refused.status_code == 415 and "the body is compressed. Got: gzip" in refused.text


@pytest.mark.parametrize(
    "path, do", [("/v1/predict/", "ask /v1/predict."), ("//v1//predict", "ask /v1/predict."), ("/v1/", "see /docs")]
)
def test_slashes_too_many_are_told(client, path, do):
    refused = client.post(f"http://testserver{path}", json={"inputs": "good lamp"})
    assert refused.status_code == 404 and f"Do: {do}" in refused.json()["error"]["message"]


def test_a_body_of_another_size_than_allowed_is_refused(client):
    assert client.post("/v1/predict", content=b" " * 40_001).status_code == 413

    def chunks():
        for _ in range(10):
            yield b" " * 8_000

    assert client.post("/v1/predict", content=chunks()).status_code == 413


def nested(depth, *, inside="1"):
    return "[" * depth + inside + "]" * depth


def test_json_is_refused_that_is_nested_too_deeply(client):
    for body in (
        '{"inputs": ' + nested(DEEPEST) + "}",
        '{"inputs": ' + '{"text":' * 4_000 + '"x"' + "}" * 4_000 + "}",
        "[" * 39_000,
    ):
        answer = client.post("/v1/predict", content=body)
        assert answer.status_code == 400 and "nested too deeply" in answer.json()["error"]["message"]
    shallow = client.post("/v1/predict", content='{"inputs": ' + nested(DEEPEST - 1) + "}")
    assert shallow.status_code == 422  # which is JSON, and no input


def test_json_that_names_a_key_twice_is_refused(client):
    """The last value counted in silence; one name may be written in several ways."""
    for body in (
        '{"inputs": ["good"], "tasks": ["mood"], "tasks": ["topics"]}',
        '{"inputs": [{"text": "good", "t\\u0065xt": "bad"}]}',
    ):
        answer = client.post("/v1/predict", content=body)
        assert answer.status_code == 400 and "names a key twice" in answer.json()["error"]["message"]
    twice = client.post("/v1/predict", content='{"inputs": [{"text": "a"}, {"text": "a", "text_b": "\\"text\\":"}]}')
    assert twice.status_code != 400, twice.text


@pytest.mark.parametrize(
    "text, deep",
    [
        (nested(DEEPEST), False),
        (nested(DEEPEST + 1), True),
        (json.dumps(["[{" * 500, '"[' * 500, "\\[" * 500, '\\"{' * 500, "\\" * 501]), False),
        (json.dumps(["\\", '"', nested(200)]), False),
        ("[" + ",".join(["[1]"] * 500) + "]", False),
        ('{"a\\\\": ' + nested(DEEPEST) + "}", True),
    ],
)
def test_levels_are_counted_outside_strings(text, deep):
    """Against Python's own reading of the same JSON."""

    def depth(value):
        inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
        return 0 if inner is None else 1 + max(map(depth, inner), default=0)

    assert is_refused(text.encode()) is deep is (depth(json.loads(text)) > DEEPEST)


def is_refused(body):
    try:
        checked_json(body)
    except HttpError as error:
        assert error.status == 400
        return True
    return False


def test_values_are_counted_outside_strings_wherever_a_body_is_divided():
    """A body of several parts, of which strings and escapes go on over each end; against Python's own reading."""
    commas, escapes = "," * 200_000, r"\\" * (PART // 2)
    for before in range(4):
        start = '["' + "x" * before + escapes + r"\"" + commas + '",'
        inside = '"[,"' + r',"\\"' * 10
        assert len(json.loads(start + inside + "]")) == 12
        assert not is_refused((start + inside + "]").encode())
        assert not is_refused((start + nested(DEEPEST - 1) + "]").encode())
        assert is_refused((start + nested(DEEPEST) + "]").encode())
    assert not is_refused(("[" + "1," * (MOST_VALUES - 1) + "1]").encode())
    assert is_refused(("[" + "1," * MOST_VALUES + "1]").encode())
    assert is_refused(("[" + "[]," * MOST_VALUES + "1]").encode())


@pytest.mark.parametrize("path, status", [("/fault", 500), ("/corrupt", 400), ("/backend", 503), ("/windows", 400)])
def test_no_error_tells_of_files_or_libraries(client, path, status, caplog):
    caplog.set_level(logging.ERROR)
    answer = client.get(path)
    assert answer.status_code == status
    for word in ("/srv", "/tmp", "secret", "tmpab12", "cpp", "models", "Traceback", ".py"):
        assert word not in answer.text, word
    assert ("secret.bin" in caplog.text) == (status == 500)  # a fault is logged with all of it


def test_words_of_callers_are_told_as_they_were_given():
    for words in (
        "a/b",
        "and/or",
        "3/4",
        "task 'x' is not one of a, b",
        "application/json",
        "/v1",
        "ask POST /models/mood",
        "5 km/h.",
    ):
        assert without_files(words) == words
    assert without_files("open /a/b/c.d failed") == "open (a file) failed"
    assert without_files("'/tmp/x y'") == "'(a file) y'"


def test_a_folder_with_the_name_of_a_word_does_not_garble_a_message():
    places = {"e": "the bundle", "/srv/e": "the bundle", "/srv/e/up": "the upload"}
    words = (
        "e/tasks/mood/v0001 and /srv/e/bundle.json and '/srv/e/up' are read; e is the name of the label in /srv/every"
    )
    told = replaced(words, places)
    assert told == (
        "the bundle/tasks/mood/v0001 and the bundle/bundle.json and 'the upload' are read; "
        "e is the name of the label in /srv/every"
    )


def test_an_unknown_route_and_method_are_told_with_what_is_there(client):
    missing = client.get("/v1/nothing?x=1")
    assert missing.status_code == 404 and missing.json()["error"]["got"] == "GET /v1/nothing"
    wrong = client.put("/v1/predict")
    assert wrong.status_code == 405 and wrong.headers["allow"] == "POST"
    assert wrong.json()["error"]["allowed"] == ["POST"]


def test_a_range_of_a_file_is_never_answered(client):
    """No route answers with a file: a Range header changes nothing."""
    for path in ("/docs", "/openapi.json", "/health"):
        answer = client.get(path, headers={"Range": "bytes=0-10," + "5-6," * 1000 + "1-2"})
        assert answer.status_code == 200 and "content-range" not in answer.headers


FORBIDDEN = {
    "pickle", "cPickle", "shelve", "marshal", "dill", "cloudpickle", "joblib",
    "urllib.request", "http.client", "requests", "httpx", "ftplib", "aiohttp", "importlib", "subprocess",
    "multiprocessing.shared_memory", "multiprocessing.connection",
}  # fmt: skip
CALLS = {"eval", "exec", "compile", "__import__", "FileResponse", "StaticFiles", "import_module", "SharedMemory"}


def test_the_server_fetches_nothing_executes_nothing_and_unpickles_nothing():
    """By what its modules import and call; the page's own files are read once and sent as they are."""
    looked_at = 0
    for path in SOURCE.rglob("*.py"):
        looked_at += 1
        for node in ast.walk(ast.parse(path.read_text())):
            names = set()
            if isinstance(node, ast.Import):
                names = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
            assert not names & FORBIDDEN, f"{path.name} imports {names & FORBIDDEN}"
            if isinstance(node, ast.Name):  # not methods: a pattern is compiled too
                assert node.id not in CALLS, f"{path.name} uses {node.id}"
    assert looked_at >= 18


def test_addresses_in_a_request_are_texts(client, monkeypatch, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("good")

    def refused(*_):
        raise AssertionError("something was opened")

    monkeypatch.setattr("socket.create_connection", refused)
    monkeypatch.setattr("builtins.open", refused)
    inputs = [f"file://{secret}", "http://127.0.0.1:1/x", str(secret), "//server/share"]
    assert asked(client, inputs).status_code == 200


def test_what_was_cut_stands_in_every_receipt(client):
    answer = asked(client, ["good lamp", LONG]).json()
    cuts = [result["receipt"]["cut"] for result in answer["results"]]
    assert cuts[0] == 0 and cuts[1] > 0 and answer["receipt"]["cut"] == cuts[1]
    without = asked(client, [LONG], options={"receipt": False}).json()
    assert without["receipt"]["cut"] == cuts[1]


def test_long_texts_are_refused_where_the_server_says_so(root):
    service = service_of(root, ServeSettings(long_texts="refuse"))
    with TestClient(application(service)) as client:
        assert asked(client, ["good lamp"]).status_code == 200
        refused = asked(client, ["good lamp", LONG])
        assert refused.status_code == 422
        assert "input 1 is longer than the encoder reads" in refused.json()["error"]["message"]
        streamed = client.post("/v1/predict/stream", json={"inputs": [LONG], "tasks": ["mood"]})
        lines = [json.loads(line) for line in streamed.text.splitlines()]
        assert [list(line) for line in lines] == [["error"]]  # no answer about the beginning slips out before
        lines = client.post("/v1/predict/stream", json={"inputs": ["good lamp"], "tasks": ["mood", "topics"]}).text
        assert {json.loads(line).get("task") for line in lines.splitlines()} == {"mood", "topics", None}


def test_a_full_queue_refuses_with_the_seconds_to_wait(root):
    limits = QueueLimits(waiting_inputs=4, waiting_characters=10_000)
    service = service_of(root, ServeSettings(queue=limits))

    async def overloaded():
        import httpx

        transport = httpx.ASGITransport(application(service))
        await service.start()
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as own:
                many = (own.post("/v1/predict", json={"inputs": ["good lamp"] * 2}) for _ in range(30))
                return await asyncio.gather(*many)
        finally:
            await service.stop()

    answers = asyncio.run(overloaded())
    refused = [answer for answer in answers if answer.status_code == 429]
    assert {answer.status_code for answer in answers} == {200, 429} and len(refused) > 5
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert refused[0].json()["error"]["type"] == "Overloaded"


def test_a_deadline_that_has_passed_is_told_and_nothing_is_read(client):
    """429 where all is late; where an input has its answer at once, the tasks that are late for the other."""
    late = asked(client, ["good lamp"], options={"deadline": 1e-9})
    assert late.status_code == 429 and int(late.headers["retry-after"]) >= 1
    answer = asked(client, ["good lamp", "  "], options={"deadline": 1e-9}).json()
    assert answer["results"][0]["late"] == ["mood"] and answer["receipt"]["passes"] == 0
    assert asked(client, ["good lamp"], options={"deadline": 1e9}).status_code == 200


@pytest.mark.parametrize("deadline", [0, -1, -1e-9])
def test_a_deadline_that_never_was_is_a_wrong_request(client, deadline):
    refused = asked(client, ["good lamp"], options={"deadline": deadline})
    assert refused.status_code == 422 and refused.json()["error"]["allowed"] == "more than 0"
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["good"]}
    if deadline == -1:
        body = {"inputs": [tensor], "parameters": {"timeout": deadline}}
        assert client.post("/v2/models/mood/infer", json=body).status_code == 422


def test_a_wish_for_a_task_that_is_not_there_is_told(client):
    for path in ("/v1/predict", "/v1/predict/stream"):
        body = {"inputs": ["good lamp"], "tasks": ["mood"], "options": {"calibrated": {"moood": False}}}
        refused = client.post(path, json=body)
        assert refused.status_code == 404 and "'mood'" in refused.json()["error"]["do"]


@pytest.mark.parametrize(
    "option", [{"calibrated": {"topics": False}}, {"none_below": {"topics": 0.1}}], ids=["calibrated", "none_below"]
)
def test_a_wish_for_a_task_that_is_not_asked_is_told(client, option):
    """It was ignored in silence."""
    for path in ("/v1/predict", "/v1/predict/stream"):
        refused = client.post(path, json={"inputs": ["good lamp"], "tasks": ["mood", "same"], "options": option})
        error = refused.json()["error"]
        assert refused.status_code == 422 and error["got"] == "topics" and error["allowed"] == ["mood", "same"]
        assert client.post(path, json={"inputs": ["good lamp"], "options": option}).status_code == 200


def test_a_body_of_another_form_is_refused_with_what_would_do(client):
    """The fields that may stand at the place that is wrong, and a body that is answered."""
    error = client.post("/v1/predict", json={"texts": "good lamp"}).json()["error"]
    assert error["allowed"] == ["inputs", "text", "tasks", "options"] and "texts" in error["got"]
    assert client.post("/v1/predict", content=error["do"].removeprefix("send such as ")).status_code == 200
    inner = client.post("/v1/predict", json={"inputs": "a", "options": {"calibrate": True}}).json()["error"]
    assert (
        inner["allowed"] == ["deadline", "receipt", "calibrated", "familiar", "none_below", "explain"]
        and "options" in inner["got"]
    )
    unknown = asked(client, ["good lamp"], ["moood"]).json()["error"]
    assert unknown["got"] == ["moood"] and set(TEXT_TASKS) <= set(unknown["allowed"])


def test_texts_may_be_said_as_text_in_place_of_inputs(client):
    """The same answers; what says both or neither is told which fields there are."""
    for texts in ("good lamp", ["good lamp", "late"]):
        said, given = (client.post("/v1/predict", json={name: texts}).json() for name in ("text", "inputs"))
        assert said["results"] == given["results"] and len(said["results"]) == (1 if texts == "good lamp" else 2)
    for body in ({}, {"text": "good", "inputs": ["lamp"]}):
        refused = client.post("/v1/predict", json=body)
        assert refused.status_code == 422 and refused.json()["error"]["allowed"] == ["inputs", "text"]


def test_facts_of_errors_are_json_values(client):
    given = {"question": ["a", 1, None], "far": {"deep": {"deeper": {"deepest": 1}}}}
    error = client.post("/v1/predict", json={"inputs": [given]}).json()["error"]
    assert error["got"]["question"] == given["question"]
    assert error["got"]["far"]["deep"]["deeper"] == "{'deepest': 1}", "deeper ones are texts, so that they end"


@pytest.mark.parametrize(
    ("fact", "told"),
    [
        (8, 8),
        (0.5, 0.5),
        (True, True),
        (None, None),
        (2**53, str(2**53)),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
        (("a", 1), ["a", 1]),
        ({"a": {3}}, {"a": [3]}),
        ("x" * 2000, "x" * 1000),
        (list(range(103)), [*range(100), "and 3 more"]),
    ],
)
def test_a_fact_in_json_is_a_value_that_any_reader_takes(fact, told):
    found = fact_in_json(fact, lambda words: words)
    assert found == told and json.loads(json.dumps(found, allow_nan=False)) == told


def test_a_task_whose_head_raises_fails_alone_and_without_internals(root, monkeypatch, caplog):
    service = service_of(root)
    backend, stages = service.session.backend, type(service.session.backend).stages

    def failing(self, plan, batch):
        for stage in stages(self, plan, batch):
            outputs = {name: values for name, values in stage.outputs.items() if name != "mood"}
            failed = dict(stage.failed)
            if len(outputs) < len(stage.outputs):
                failed["mood"] = RuntimeError("head at /opt/models/m.bin\n  File 'x.py'")
            yield type(stage)(outputs=outputs, failed=failed, layers_left=stage.layers_left)

    def run(self, plan, batch):
        if "mood" in plan.tasks:
            raise RuntimeError("head")
        return type(backend).run_plain(self, plan, batch)

    with TestClient(application(service)) as client:
        monkeypatch.setattr(type(backend), "run_plain", type(backend).run, raising=False)
        monkeypatch.setattr(type(backend), "stages", failing)
        monkeypatch.setattr(type(backend), "run", run)
        for _ in range(3):
            answer = asked(client, ["good lamp"], TEXT_TASKS)
            assert answer.status_code == 200
            result = answer.json()["results"][0]
            assert set(result["answers"]) == set(TEXT_TASKS) - {"mood"}
            assert result["failed"] == {"mood": "RuntimeError: head at (a file)"}
    assert [record.getMessage() for record in caplog.records if "mood failed" in record.getMessage()] == [
        "task mood failed: RuntimeError: head at /opt/models/m.bin\n  File 'x.py'"
    ]  # once


def test_a_caller_that_hangs_up_while_sending_is_no_fault(root, caplog):
    service = service_of(root)
    app, sent = application(service), []
    messages = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]

    async def receive():
        return messages.pop(0)

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/predict", "headers": [], "query_string": b""}
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 499 and not caplog.records
    service.queue.close(drain=False)


def test_an_error_in_an_answer_that_has_begun_is_counted_and_logged_by_the_server(root):
    class Breaks(WireFormat):
        name = "breaks"

        def routes(self, service):
            return [Route("/breaks", self._begin)]

        async def _begin(self, request):
            class Half(JSONResponse):
                async def __call__(self, scope, receive, send):
                    await send({"type": "http.response.start", "status": 200, "headers": []})
                    raise RuntimeError("in the middle")

            return Half({})

    with FORMATS.temporary():
        register_format(Breaks())
        service = service_of(root)
        with TestClient(application(service)) as client, pytest.raises(RuntimeError, match="in the middle"):
            client.get("/breaks")
    assert service.metrics.requests["/breaks", 500] == 1


def test_a_request_that_a_server_stops_is_answered_and_no_fault():
    """Cancelled before its answer begins it is 503; afterwards what was begun is cut off, and nothing is raised."""

    async def told(begins):
        asked, sent, routes = asyncio.Event(), [], Faulty().routes(None)

        async def never(scope, receive, send):
            if begins:
                await send({"type": "http.response.start", "status": 200, "headers": []})
            asked.set()
            await asyncio.Event().wait()

        async def send(message):
            sent.append(message)

        guard = Guard(never, paths=Paths([(Faulty(), routes)]), body_bytes=1000)
        scope = {"type": "http", "method": "GET", "path": "/fault", "headers": []}
        request = asyncio.ensure_future(guard(scope, asyncio.Event().wait, send))
        await asked.wait()
        request.cancel("the server stops")
        await request
        return sent

    start, body = asyncio.run(told(begins=False))
    assert start["status"] == 503 and "the server stops" in json.loads(body["body"])["error"]["message"]
    assert [message["type"] for message in asyncio.run(told(begins=True))] == ["http.response.start"]
