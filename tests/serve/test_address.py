"""An address is read as a whole: a task's own port asks that task, and a query that no route reads is refused."""

import pytest

from support.client_server import TEXTS, got, posted, running, tiny_server_bundle


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tiny_server_bundle(tmp_path_factory.mktemp("address") / "b", "mood", "topics", "urgency")
    with running(root, ports=["mood"]) as own:
        yield own


BODY = {"inputs": TEXTS[:1]}


def answering(url, body=BODY, headers=None):
    """The tasks that answer the first input."""
    status, _, answer = posted(url, body, headers)
    assert status == 200, answer
    assert set(answer["versions"]) == set(answer["results"][0]["answers"])
    return set(answer["versions"])


def test_a_tasks_own_port_asks_that_task_where_the_body_names_none(server):
    """It answered all tasks, which the port's help and the page about clients say otherwise."""
    port_url = server.urls["mood"]
    assert answering(f"{port_url}/v1/predict") == {"mood"}
    assert answering(f"{server.url}/v1/predict") == {"mood", "topics", "urgency"}
    assert answering(f"{port_url}/v1/predict", BODY | {"tasks": ["topics"]}) == {"topics"}
    assert answering(f"{port_url}/v1/predict?task=urgency") == {"urgency"}


def test_the_tasks_of_a_tasks_own_port_say_which_it_is(server):
    (_, _, here), (_, _, there) = got(f"{server.urls['mood']}/v1/tasks"), got(f"{server.url}/v1/tasks")
    assert here.pop("task") == "mood" and "task" not in there and here == there


def test_a_task_that_the_address_or_a_header_names_is_asked_alone(server):
    url = f"{server.url}/v1/predict"
    assert answering(f"{url}?task=mood") == {"mood"}
    assert answering(url, headers={"X-Polyhead-Task": "topics"}) == {"topics"}
    assert answering(f"{url}?task=mood", BODY | {"tasks": ["topics", "urgency"]}) == {"topics", "urgency"}
    status, _, refused = posted(f"{url}?task=moods", BODY)
    assert status == 404 and "'mood'" in refused["error"]["do"]


@pytest.mark.parametrize("path", ["/v1/predict", "/v1/predict/stream"])
@pytest.mark.parametrize("name", ["tasks", "options", "Task", "explain"])
def test_a_query_that_the_route_does_not_read_is_refused_with_its_place(server, path, name):
    """`?tasks=mood` was left unread, and all tasks answered."""
    for query in (f"{name}=mood", f"task=mood&{name}", f"{name}=&{name}=1"):
        status, _, answer = posted(f"{server.url}{path}?{query}", BODY)
        error = answer["error"]
        assert status == 422 and name in error["got"] and error["allowed"] == ["task"]
        assert "body" in error["do"] and "'tasks'" in error["do"]


def test_the_same_of_what_is_read(server):
    for path in ("/v1/tasks", "/v1/tasks/mood"):
        assert got(f"{server.url}{path}")[0] == 200
        status, _, answer = got(f"{server.url}{path}?labels=1")
        assert (status, answer["error"]["got"], answer["error"]["allowed"]) == (422, ["labels"], [])


@pytest.mark.parametrize(
    "path, body",
    [
        ("/v1/embeddings", {"input": "good", "model": "any"}),
        ("/models/mood", {"inputs": "good"}),
        ("/predict?task=mood&", {"inputs": "good"}),
        ("/embed", {"inputs": "good"}),
        ("/classify", {"model": "mood", "input": "good"}),
        ("/v2/models/mood/infer", {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["good"]}]}),
    ],
)
def test_clients_of_other_services_may_send_a_query_of_their_own(server, path, body):
    mark = "" if "?" in path else "?"
    assert posted(f"{server.url}{path}{mark}api-version=2024-10-21", body)[0] == 200


def test_a_query_is_not_told_with_its_value(server):
    _, _, answer = posted(f"{server.url}/v1/predict?token=s3cret", BODY)
    assert answer["error"]["got"] == ["token"] and "s3cret" not in str(answer)


def test_a_task_that_the_address_names_twice_is_refused(server):
    """The second name was asked alone."""
    for query in ("task=mood&task=topics", "task=mood&task=mood"):
        status, _, answer = posted(f"{server.url}/v1/predict?{query}", BODY)
        assert status == 422 and "the body's 'tasks'" in answer["error"]["do"]


def test_an_empty_name_of_a_task_is_refused_as_any_other_that_no_task_has(server):
    """`?task=$NAME` of a script without that variable asked all tasks, or the port's."""
    for url in (server.url, server.urls["mood"]):
        for path, body in (("/v1/predict", BODY), ("/predict", {"inputs": "good"}), ("/", {"inputs": "good"})):
            assert posted(f"{url}{path}?task=", body)[0] == 404
