"""The page as files: how they are served, what they may do, and that they are small and complete."""

import re
import threading
from importlib.resources import files

import httpx
import pytest

from polyhead.engine.inputs import input_types_of
from polyhead.serve.formats.page import MEDIA, POLICY, page_files
from support.page_server import page_bundle, page_server

FILES = page_files()
TEXTS = {name: body.decode() for name, body in FILES.items()}
SCRIPTS = {name: text for name, text in TEXTS.items() if name.endswith(".js")}
MOST = 77_000  # bytes of all files
NO_HTML = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|setHTML|createContextualFragment"
    r"|\beval\b|new Function|setAttribute\(.style|srcdoc|javascript:"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with page_server(page_bundle(tmp_path_factory.mktemp("files") / "bundle")) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with httpx.Client(base_url=server.url, trust_env=False) as own:
        yield own


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_sent_once_and_then_by_its_tag(client, name):
    path = "/" if name == "index.html" else f"/page/{name}"
    first = client.get(path)
    assert first.status_code == 200 and first.content == FILES[name]
    assert first.headers["Content-Type"] == MEDIA[f".{name.rpartition('.')[2]}"]
    assert first.headers["Content-Security-Policy"] == POLICY and first.headers["Cache-Control"] == "no-cache"
    for tag in (first.headers["ETag"], f'"other", W/{first.headers["ETag"]}', "*"):
        again = client.get(path, headers={"If-None-Match": tag})
        assert (again.status_code, again.content) == (304, b"") and again.headers["ETag"] == first.headers["ETag"]
    assert client.get(path, headers={"If-None-Match": '"other"'}).content == FILES[name]
    assert client.head(path).content == b"" and client.put(path).status_code == 405


def test_nothing_beside_the_files_is_served(client):
    for path in ("/page/", "/page/page.py", "/page/../own.py", "/page/%2e%2e/__init__.py", "/page/index.js"):
        assert client.get(path).status_code == 404, path


def test_the_policy_allows_no_inline_code_and_no_other_server():
    allowed = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert allowed["default-src"] == "'none'" and allowed["trusted-types"] == "'none'"
    assert {value for name, value in allowed.items() if name.endswith("-src")} == {"'none'", "'self'"}
    assert "unsafe" not in POLICY and "*" not in POLICY


def test_the_page_has_nothing_inline_and_names_no_other_server():
    start = TEXTS["index.html"]
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", start)
    for name, text in TEXTS.items():
        code = re.sub(r"^\s*//.*", "", text, flags=re.MULTILINE)
        addresses = set(re.findall(r"(?:https?:)?//[a-z][\w.-]+\.\w+", code))
        assert addresses <= {"http://www.w3.org"}, f"{name}: {addresses}"
        assert "@import" not in text and "url(" not in text


def test_no_script_makes_html_of_a_text():
    assert len(SCRIPTS) > 5
    for name, text in SCRIPTS.items():
        assert not NO_HTML.search(text), name


def test_every_file_is_small_and_every_one_that_is_named_is_there():
    assert sum(map(len, FILES.values())) < MOST
    named = set(re.findall(r'(?:src|href)="page/([\w.]+)"', TEXTS["index.html"]))
    for text in SCRIPTS.values():
        named |= set(re.findall(r'from "\./([\w.]+)"', text))
    assert named | {"index.html"} == FILES.keys()


def test_all_files_of_the_folder_are_package_data():
    """Whatever lies beside the modules goes into the wheel: hatch takes the whole package."""
    folder = files("polyhead.serve") / "page"
    assert {file.name for file in folder.iterdir() if not file.name.startswith("__")} == FILES.keys()


def test_tasks_tell_what_they_read(client, server):
    told = {task["name"]: task["inputs"] for task in client.get("/v1/tasks").json()["tasks"]}
    tasks = server.session.tasks
    assert told == {name: list(input_types_of(tasks[name])) for name in told} and len(told) == 12


def test_load_counts_what_was_asked(client):
    before = client.get("/v1/load")
    assert before.headers["Cache-Control"] == "no-store"
    assert sum(before.json()["requests"]) == 0, "what warms a server is not counted"
    for _ in range(3):
        assert client.post("/v1/predict", json={"inputs": ["good", "bad lamp"], "tasks": ["mood"]}).status_code == 200
    for _ in range(500):  # until their second is over
        load = client.get("/v1/load").json()
        if sum(load["requests"]) == 3:
            break
        threading.Event().wait(0.02)
    assert (sum(load["requests"]), sum(load["inputs"]), load["now"]) == (3, 6, 0)
    assert 0 < max(time for time in load["milliseconds"] if time is not None) <= max(filter(None, load["slowest"]))
