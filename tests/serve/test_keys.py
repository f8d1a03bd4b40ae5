"""Keys: which there are, what they open, and that nothing ever shows one."""

import asyncio
import hmac
import logging
import re

import pytest
from click.testing import CliRunner
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from polyhead.cli.main import commands
from polyhead.cli.serve import address_of
from polyhead.cli.serve_options import hosts_of
from polyhead.errors import ConfigError
from polyhead.serve.app import application
from polyhead.serve.changes import Refusal
from polyhead.serve.formats import FORMATS, Operation, WireFormat, register_format
from polyhead.serve.http import headers_of, status_of
from polyhead.serve.keys import NO_KEYS, AccessKeys, HttpError, check_keys, is_loopback, keys_in
from polyhead.serve.settings import ServeSettings
from support.loopback_server import service_of, tiny_root

SECRET, ADMIN = "s3cret-0123456789", "r00t-9876543210"
FILE = f"""
# keys of the shop
{SECRET}   # web shop
predict:other-key
admin: {ADMIN} # ops
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tiny_root(tmp_path_factory.mktemp("keys") / "b")


class WithChanges(WireFormat):
    """A format with a route for admins, one without a description, and errors in a form of its own."""

    name = "with-changes"

    def routes(self, service):
        return [
            Route("/changes/{name}", self._done, methods=["PUT", "GET"]),
            Route("/bare", self._done, methods=["GET"]),
            Route("/seen", self._done, methods=["GET"]),
        ]

    def operations(self):
        return [
            Operation(method="PUT", path="/changes/{name}", summary="Changes.", access="admin"),
            Operation(method="GET", path="/seen", summary="Anyone sees it.", access="open"),
        ]

    def error_response(self, error):
        return JSONResponse({"detail": str(error)}, status_of(error), headers_of(error))

    async def _done(self, request):
        return JSONResponse({"done": True})


@pytest.fixture(scope="module")
def client(root):
    with FORMATS.temporary():
        register_format(WithChanges())
        app = application(service_of(root), keys=AccessKeys(keys_in(FILE, source="keys")))
        with TestClient(app) as own:
            yield own


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def test_a_file_holds_a_key_a_line_with_its_purpose_and_its_name():
    keys = keys_in(FILE, source="keys")
    assert [(key.name, key.purpose) for key in keys] == [
        ("web shop", "predict"),
        ("predict-2", "predict"),
        ("ops", "admin"),
    ]


@pytest.mark.parametrize(
    "line", ["two words", "predict:", "schlüssel", "a\tb"], ids=["space", "empty", "umlaut", "tab"]
)
def test_what_is_no_key_is_refused_by_its_line_without_being_quoted(line):
    with pytest.raises(ConfigError, match="keys.txt, line 2") as caught:
        keys_in(f"good-key\n{line}", source="keys.txt")
    assert caught.value.got is None and line.strip() not in str(caught.value).replace("predict:KEY", "")


def test_a_route_needs_a_key_that_is_known(client):
    assert client.get("/v1/tasks").status_code == 401
    assert client.get("/v1/tasks", headers=bearer("wrong")).status_code == 401
    assert client.get("/v1/tasks", headers={"Authorization": f"Basic {SECRET}"}).status_code == 401
    assert client.get("/v1/tasks", headers=bearer(SECRET)).status_code == 200
    assert client.get("/v1/tasks", headers={"authorization": f"bearer {SECRET}"}).status_code == 200
    assert client.get("/v1/tasks", headers={"X-API-Key": SECRET}).status_code == 200
    refused = client.get("/v1/tasks")
    assert refused.headers["www-authenticate"] == "Bearer"
    assert refused.json()["error"]["do"] == "send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'"


def test_every_route_but_those_for_anyone_needs_a_key(client):
    open_routes = {"/health", "/openapi.json", "/docs", "/seen", "/v2/health/live", "/v2/health/ready", "/"}
    looked_at = 0
    for route in client.app.routes:
        path = re.sub(r"{\w+(:path)?}", "mood", route.path)
        if path.startswith("/page/"):
            open_routes.add(path)
        for method in route.methods - {"HEAD"}:
            looked_at += 1
            status = client.request(method, path).status_code
            is_open = path in open_routes and (method, path) != ("POST", "/")
            assert (status == 401) != is_open, (method, path, status)
    assert looked_at >= 10


@pytest.mark.parametrize(
    "path", ["/no-such-route", "/v1/changes", "/v1/changes%0A", "/v1/tasks%0A", "/v1/tasks/", "/changes/x%0A/y"]
)
def test_a_path_that_no_route_has_is_told_before_any_key_is_looked_at(client, path):
    for headers in ({}, bearer("wrong"), bearer(SECRET), bearer(ADMIN)):
        assert client.get(path, headers=headers).status_code == 404


def test_a_change_needs_a_key_for_admin_which_opens_all_else_too(client):
    assert client.put("/changes/x", headers=bearer(SECRET)).status_code == 403
    assert client.put("/changes/x", headers=bearer(ADMIN)).status_code == 200
    assert client.get("/changes/x", headers=bearer(SECRET)).status_code == 200
    assert client.get("/v1/tasks", headers=bearer(ADMIN)).status_code == 200


def test_a_format_tells_what_is_refused_before_its_routes_in_its_own_form(client):
    assert client.get("/bare").json() == {
        "detail": "this needs a key, and none was given. "
        "Do: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
    }
    assert set(client.post("/bare", headers=bearer(SECRET)).json()) == {"detail"}  # 405
    assert set(client.get("/v1/tasks").json()) == {"error"}


def test_a_key_is_refused_before_the_body_is_read(client):
    sent = []

    async def receive():
        raise AssertionError("the body was asked for")

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/predict", "headers": [(b"x-api-key", b"wrong")]}
    asyncio.run(client.app(scope, receive, send))
    assert sent[0]["status"] == 401


def test_a_server_with_keys_exempts_nobody_at_home(root):
    """A program of this machine changes tasks without a key only where there are no keys at all."""
    settings, statuses = ServeSettings(admin=True, watch_seconds=0), []
    for keys in (NO_KEYS, AccessKeys(keys_in("predict:a", source="keys"))):
        app = application(service_of(root, settings), keys=keys)
        with TestClient(app, base_url="http://127.0.0.1:8000", client=("127.0.0.1", 4)) as own:
            statuses.append([own.get("/v1/changes", headers=given).status_code for given in ({}, bearer("a"))])
    assert statuses == [[200, 200], [401, 403]]


HOSTS = ["polyhead.example", ".shop.example"]


@pytest.fixture(scope="module")
def asked_by_name(root):
    with TestClient(application(service_of(root), hosts=HOSTS)) as own:
        yield lambda path, **headers: own.get(path, headers=headers).status_code


@pytest.mark.parametrize(
    "name",
    [
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "shop.example.evil",
        "x",
        ".",
        "evil.example.",
        "x..:1",
    ],
)
def test_a_name_that_is_not_the_servers_own_is_refused(asked_by_name, name):
    """A page whose name is pointed at this machine would else ask it as its own."""
    assert asked_by_name("/v1/tasks", Host=name) == 403
    assert asked_by_name("/health", Host=name) == 200  # which nobody needs a key for


@pytest.mark.parametrize(
    "name",
    [
        "127.0.0.1:8000",
        "[::1]:8000",
        "192.168.1.7",
        "localhost",
        "LOCALHOST:1",
        "localhost.",
        "Polyhead.Example.:8000",
        "polyhead.example",
        "a.shop.example:80",
    ],
)
def test_addresses_and_own_names_are_answered(asked_by_name, name):
    assert asked_by_name("/v1/tasks", Host=name) == 200
    assert asked_by_name("/v1/tasks", Host=name, Origin=f"http://{name}") == 200
    assert asked_by_name("/v1/tasks", Host=name, Origin="https://polyhead.example") == 200
    foreign = ("https://evil.example", "null", "", f"http://{name}.evil.example", "http://[::1")
    for origin in (*foreign, "http://127.0.0.1:9", "http://localhost:9"):  # pages of other programs of this machine
        assert asked_by_name("/v1/tasks", Host=name, Origin=origin) == 403, origin


@pytest.mark.parametrize("name", ["[::1", "::1]", "a b", "a@b", "a/b", "[::1]x", "a:b", "é"])
def test_a_host_that_is_no_address_is_a_wrong_request(asked_by_name, name):
    assert asked_by_name("/v1/tasks", Host=name.encode()) == 400
    assert asked_by_name("/docs", Host=name.encode()) == 400


def test_a_key_is_proof_enough_whatever_the_name(root):
    with TestClient(application(service_of(root), keys=AccessKeys(keys_in(SECRET, source="keys")), hosts=HOSTS)) as own:
        headers = {**bearer(SECRET), "Host": "evil.example", "Origin": "https://evil.example"}
        assert own.get("/v1/tasks", headers=headers).status_code == 200


def test_health_names_no_task_and_no_label(root):
    """Anyone may ask it; why a change was refused is told to admins and in the log."""
    service = service_of(root, ServeSettings(admin=True, watch_seconds=0))
    refusal = Refusal(at=1.0, error="task 'layoffs' labels 'secret' and 'fired', and its arrays are cut")
    service.changes._tell(refused=1, refusal=refusal)
    app = application(service, keys=AccessKeys(keys_in(FILE, source="keys")))
    with TestClient(app) as own:
        told = own.get("/health")
        assert told.json()["changes"]["refusal"]["at"] == 1.0 and told.json()["changes"]["refused"] == 1
        assert not any(word in told.text for word in ("layoffs", "secret", "fired", "arrays are"))
        changes = own.get("/v1/changes", headers=bearer(ADMIN)).json()
        assert changes["server"]["refusal"]["error"] == refusal.error


@pytest.mark.parametrize("host, start", [("::1", "http://[::1]:"), ("127.0.0.1", "http://127.0.0.1:")])
def test_the_address_that_is_printed_can_be_opened(host, start):
    class Listening:
        def getsockname(self):
            return (host, 8000, 0, 0)

    assert address_of(host, Listening()) == f"{start}8000"


def test_the_command_gives_the_server_its_names():
    assert hosts_of([], "127.0.0.1") == ["127.0.0.1"]
    assert hosts_of(["API.example.", ".shop.example"], "box") == ["box", "api.example", ".shop.example"]
    assert hosts_of(["*"], "box") is None


def test_without_keys_any_authorization_is_accepted(root):
    with TestClient(application(service_of(root))) as own:
        for headers in ({}, bearer("anything"), {"Authorization": "Basic eDp5"}, {"x-api-key": "z"}):
            assert own.get("/v1/tasks", headers=headers).status_code == 200


def test_every_key_is_compared_in_constant_time(monkeypatch):
    """As many comparisons for the first, the last and no key; each of digests, so that lengths tell nothing."""
    compared = []
    plain = hmac.compare_digest

    def counted(one, other):
        compared.append((len(one), len(other)))
        return plain(one, other)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    keys = AccessKeys(keys_in(FILE, source="keys"))
    for given in (SECRET, ADMIN, "x", "y" * 5000):
        compared.clear()
        try:
            keys.opened([(b"x-api-key", given.encode())], "predict")
        except HttpError as error:
            assert error.status == 401
        assert compared == [(32, 32)] * 3


def test_no_key_is_ever_shown_or_logged(client, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    keys = AccessKeys(keys_in(FILE, source="keys"))
    for key in (SECRET, ADMIN, "wr0ng-5555555"):
        answer = client.get("/v1/tasks", headers=bearer(key))
        told = answer.text + repr(vars(keys)) + caplog.text + "".join(capfd.readouterr())
        assert key not in told


def test_a_server_that_others_reach_has_keys_or_says_that_it_has_none():
    keys = AccessKeys(keys_in("predict:a\nadmin:b", source="keys"))
    for host in ("0.0.0.0", "::", "192.168.1.7", "example.org"):
        with pytest.raises(ConfigError, match="needs keys"):
            check_keys(NO_KEYS, host=host, admin=False, no_keys=False)
        with pytest.raises(ConfigError, match="needs keys"):  # a key for admin alone leaves the rest open
            check_keys(AccessKeys(keys_in("admin:b", source="keys")), host=host, admin=False, no_keys=False)
        check_keys(NO_KEYS, host=host, admin=False, no_keys=True)
        check_keys(keys, host=host, admin=True, no_keys=False)
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        check_keys(NO_KEYS, host=host, admin=False, no_keys=False)


def test_changes_need_a_key_of_their_own():
    predict = AccessKeys(keys_in("predict:a", source="keys"))
    for keys, host, no_keys in (
        (NO_KEYS, "127.0.0.1", False),
        (predict, "127.0.0.1", False),
        (NO_KEYS, "0.0.0.0", True),
    ):
        with pytest.raises(ConfigError, match="a key of its own"):
            check_keys(keys, host=host, admin=True, no_keys=no_keys)
    check_keys(NO_KEYS, host="127.0.0.1", admin=True, no_keys=True)


def test_names_are_not_looked_up():
    assert not is_loopback("localhost.example.org") and not is_loopback("") and is_loopback("[::1]")


def test_the_command_refuses_to_start_open_to_others(root):
    def error(*arguments, env=None):
        done = CliRunner(env=env).invoke(commands, ["serve", str(root), "--port", "0", *arguments])
        return done.exception

    assert "needs keys" in str(error("--host", "0.0.0.0"))
    assert "was told to need none" in str(error("--no-keys", env={"POLYHEAD_KEYS": SECRET}))
    named = str(error(env={"POLYHEAD_ADMIN_KEYS": "a b c"}))
    assert "POLYHEAD_ADMIN_KEYS, line 1" in named and "a b c" not in named
