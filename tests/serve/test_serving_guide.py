"""The guide of the server tells the truth: its requests are answered, in the form that it shows."""

import json
import re
import shlex
from importlib.resources import files
from pathlib import Path

import httpx
import pytest

import polyhead.testing as tiny
from polyhead.bundle.create import write_bundle
from polyhead.plan import Pool
from polyhead.project.tables import read_project
from polyhead.serve.formats.asking import LATE
from polyhead.serve.formats.inference_protocol import PACKED
from polyhead.serve.formats.page import page_files
from polyhead.serve.http import STATUS
from polyhead.testing.strategies import add_tiny
from support.page_server import page_server

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "serving.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(command.replace("\\\n", " "))
    for command in re.findall(r"^\$ (curl .*?)(?=^\$|^```)", PAGE, re.MULTILINE | re.DOTALL)
]
SHOWN = re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """A server of tiny tasks that are called, and answer, like those of the sample."""
    root, trunk = tmp_path_factory.mktemp("guide") / "bundle", tiny.tiny_trunk()
    write_bundle(root, trunk)
    project = read_project(Path(str(files("polyhead.sample") / "polyhead.toml")))
    for seed, task in enumerate(entry.task() for entry in project.tasks):
        add_tiny(root, trunk, task, tiny.tiny_path(task, trunk, pool=Pool(positions="mean")), seed=seed)
    with page_server(root) as server, httpx.Client(base_url=server.url, trust_env=False) as own:
        yield own


def told(client, command):
    """The answer to one of the guide's commands, line by line."""
    (url,) = (word for word in command if word.startswith("http://127.0.0.1:8000/"))
    path = url.removeprefix("http://127.0.0.1:8000")
    body = command[command.index("-d") + 1] if "-d" in command else None
    answer = client.get(path) if body is None else client.post(path, content=body)
    assert answer.status_code == 200, f"{command}: {answer.text}"
    return [json.loads(line) for line in answer.text.splitlines()]


def assert_of_the_form(shown, real, where="$"):
    """Every key that is shown is there; "..." stands for those that are not shown."""
    if isinstance(shown, dict):
        for key in shown.keys() - {"..."}:
            assert key in real, f"{where}: no '{key}'"
            assert_of_the_form(shown[key], real[key], f"{where}.{key}")
        assert "..." in shown or shown.keys() == real.keys(), f"{where}: {real.keys() - shown.keys()} is not shown"
    elif isinstance(shown, list):
        assert len(shown) == len(real), where
        for own, other in zip(shown, real, strict=True):
            assert_of_the_form(own, other, where)
    else:
        assert type(shown) is type(real), where


def test_every_request_of_the_guide_is_answered(client):
    assert len(COMMANDS) == 4
    for command in COMMANDS:
        assert told(client, command)


def test_answers_have_the_form_that_is_shown(client):
    first, streamed = COMMANDS[0], next(command for command in COMMANDS if "-N" in command)
    assert_of_the_form(json.loads(SHOWN[0]), told(client, first)[0])
    lines = told(client, streamed)
    assert_of_the_form([json.loads(line) for line in SHOWN[1].splitlines()], lines)
    refused = client.post("/v1/predict", json={"inputs": ["a"], "tasks": ["mood"]})
    assert refused.status_code == 404
    assert_of_the_form(json.loads(SHOWN[2]), refused.json())


def test_statuses_in_the_table_are_those_of_errors():
    cells = re.findall(r"^\| (\d+(?:, \d+)*) \|", PAGE, re.MULTILINE)
    listed = {int(number) for cell in cells for number in cell.split(", ")}
    assert {404, 422, 429, 503} <= listed & set(STATUS.values())
    assert {*LATE, *PACKED} <= listed


def test_the_size_of_the_page_is_told():
    told_files, told_bytes = map(int, re.search(r"(\d+) files, (\d+) kB", PAGE).groups())
    sizes = [len(body) for body in page_files().values()]
    assert told_files == len(sizes) and told_bytes == round(sum(sizes) / 1000)
