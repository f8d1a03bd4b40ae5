"""The OpenAPI file: it is one, it names every route, and nothing that it allows or forbids makes a server fail."""

import json
import re

import hypothesis
import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

from polyhead.serve.app import application
from polyhead.serve.formats import FORMATS, Operation, WireFormat, register_format
from polyhead.serve.http import json_content
from polyhead.serve.settings import RequestLimits, ServeSettings
from polyhead.values import Value
from support.loopback_server import listening, service_of, tiny_root

EXAMPLES = 8


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    root = tiny_root(tmp_path_factory.mktemp("openapi") / "b")
    limits = RequestLimits(body_bytes=200_000, inputs=16, characters=5_000)
    return service_of(root, ServeSettings(limits=limits, timeout=20))


@pytest.fixture(scope="module")
def port(service):
    with listening(service) as own:
        yield own


@pytest.fixture(scope="module")
def client(service, port):
    """In process, over the service that the server on the port has started."""
    return TestClient(application(service))


def test_every_route_is_described_and_nothing_else(client):
    described = client.get("/openapi.json").json()
    told = {(path, method.upper()) for path, methods in described["paths"].items() for method in methods}
    routes = [route for route in client.app.routes if not route.path.startswith("/page/")]
    there = {
        (route.path, method) for route in routes if ":path}" not in route.path for method in route.methods - {"HEAD"}
    }
    assert told == there - {("/", "GET")} and len(told) >= 8


def test_references_lead_somewhere_and_types_have_words(client):
    text = client.get("/openapi.json").text
    schemas = json.loads(text)["components"]["schemas"]
    assert set(re.findall(r"#/components/schemas/([\w.-]+)", text)) <= set(schemas)
    assert {"polyhead.PredictRequest", "inference-api.TeiPredictRequest", "health.Health", "ErrorReply"} <= set(schemas)
    assert all(schema.get("description") for schema in schemas.values())


def test_a_format_from_outside_adds_its_routes_types_and_access(tmp_path):
    class Sought(Value):
        """What is sought."""

        text: str

    class Finding(Value):
        """What there is."""

        hits: list[int]

    class Search(WireFormat):
        name = "search"

        def routes(self, service):
            return [Route("/search/{name}", self._search, methods=["POST"])]

        def operations(self):
            return [
                Operation(
                    method="POST",
                    path="/search/{name}",
                    summary="Searches <here>.",
                    request=Sought,
                    response=Finding,
                    access="admin",
                    statuses={409: "Another search runs."},
                )
            ]

        async def _search(self, request):
            return json_content(Finding(hits=[1]))

    with FORMATS.temporary():
        register_format(Search())
        app = application(service_of(tiny_root(tmp_path / "b")), formats=["search", "health"])
    with TestClient(app) as client:
        described = client.get("/openapi.json").json()
        page = client.get("/docs").text
    entry = described["paths"]["/search/{name}"]["post"]
    assert entry["requestBody"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/search.Sought"
    }
    assert entry["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].endswith("/search.Finding")
    assert "Another search runs." in entry["responses"]["409"]["description"]
    assert entry["parameters"][0]["name"] == "name" and entry["security"]
    assert "/v1/predict" not in described["paths"]
    assert "Searches &lt;here&gt;." in page


def test_the_page_asks_nothing_of_anyone(client):
    answer = client.get("/docs")
    assert answer.status_code == 200 and "default-src 'none'" in answer.headers["content-security-policy"]
    page = answer.text.replace("<wbr>", "")  # where a line may break
    for path in json.loads(client.get("/openapi.json").text)["paths"]:
        assert path in page
    assert "<script" not in page and "http:" not in page and "https:" not in page and "@import" not in page
    assert set(re.findall(r"(?:href|src)='([^']*)'", page)) == {"/openapi.json"}


def test_the_page_shows_the_fields_of_every_body_and_answer_and_how_to_ask(client):
    """Those of the file's own types, found there by another way: every property of every type that is referred to."""
    described, page = client.get("/openapi.json").json(), client.get("/docs").text.replace("<wbr>", "")
    routes = page.split("<details>")[1:]
    entries = [(path, method, entry) for path, own in described["paths"].items() for method, entry in own.items()]
    assert len(routes) == len(entries) and "$ref" not in page
    for (path, method, entry), told in zip(entries, routes, strict=True):
        assert f"<code>{path}</code>" in told and "curl localhost:8000" in told, path
        schemas = [content["schema"] for content in entry["responses"]["200"].get("content", {}).values()]
        if "requestBody" in entry:
            content = entry["requestBody"]["content"]["application/json"]
            schemas.append(content["schema"])
            assert "curl localhost:8000" in told and " -d &#x27;" in told
        for name in re.findall(r"#/components/schemas/([\w.-]+)", json.dumps(schemas)):
            for field in described["components"]["schemas"][name].get("properties", {}):
                assert f"<code>{field}</code>" in told, (path, method, name, field)


TASK_OF = {"/models/{task}": "topics", "/rerank": "alike"}
TASK_OF |= dict.fromkeys(["/v1/systemone", "/api/alpha/decisions"], "mood.bad")


def test_every_example_is_answered(client):
    """As the page has it, with a task of the bundle for TASK."""
    described = client.get("/openapi.json").json()["paths"]
    asked = 0
    for path, methods in described.items():
        for method, entry in methods.items():
            if "requestBody" not in entry or "admin" in entry["tags"]:
                continue
            task = TASK_OF.get(path, "mood")
            content = json.dumps(entry["requestBody"]["content"]["application/json"]["example"]).replace("TASK", task)
            address = re.sub(r"{version}", "v0001", re.sub(r"{(name|task)}", task, path))
            if any(each["in"] == "query" for each in entry.get("parameters", ())):
                address += f"?task={task}"
            answer = client.request(method, address, content=content)
            assert answer.status_code == 200, (path, answer.text)
            asked += 1
    assert asked >= 12


@pytest.mark.slow
def test_no_request_makes_the_server_fail(port, client):
    """Requests that schemathesis makes of the file, right and wrong ones: no 5xx, and answers as the file says.

    The seed is fixed, so that a run that passes passes again.
    """
    schemathesis = pytest.importorskip("schemathesis", reason="a package of the extra dev is not installed")
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    checks = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]
    looked_at = {}
    for result in schema.get_all_operations():
        operation = result.ok()
        takes_body = "requestBody" in operation.definition.raw
        for mode in GenerationMode if takes_body else (GenerationMode.POSITIVE,):  # else nothing can be wrong

            @hypothesis.settings(
                max_examples=EXAMPLES,
                deadline=None,
                database=None,
                derandomize=True,
                suppress_health_check=list(hypothesis.HealthCheck),
            )
            @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
            def asked(case):
                looked_at[case.operation.label] = looked_at.get(case.operation.label, 0) + 1
                case.call_and_validate(base_url=f"http://127.0.0.1:{port}", checks=checks)

            asked()
    assert len(looked_at) >= 8 and looked_at["POST /v1/predict"] >= EXAMPLES, looked_at
