"""docs/guides/clients.md is true: its blocks run against a server, its table of routes is that of the formats."""

import contextlib
import importlib
import io
import re
import shlex
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the server's packages are not installed: pip install polyhead")

from polyhead.serve.formats import FORMATS
from support.client_server import SECONDS, running, tiny_server_bundle
from support.commands import run

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "clients.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
PYTHON = [body for kind, body in BLOCKS if kind == "python"]
LINES = [line for kind, body in BLOCKS if kind == "sh" for line in body.splitlines() if line]
PACKAGES = ("openai", "huggingface_hub", "infinity_client", "tritonclient")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tiny_server_bundle(tmp_path_factory.mktemp("b") / "b")
    with running(root, ports=["topics"]) as server:
        yield server


def here(text, server):
    """The text with the addresses of this server."""
    for port, url in (("8000", server.url), ("8101", server.urls["topics"])):
        text = text.replace(f"127.0.0.1:{port}", url.removeprefix("http://"))
    return text


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: re.search(r"(?:from|import) ([\w.]+)", block)[1])
def test_python_blocks_run(server, block, monkeypatch):
    for package in PACKAGES:
        if package in block:
            pytest.importorskip(package, reason=f"{package}, which this block imports, is not installed")
    if "huggingface_hub" in block:
        importlib.import_module("huggingface_hub.constants")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(here(block, server), str(PAGE), "exec"), {"__name__": "page"})
    assert out.getvalue().count("\n") >= block.count("print(") > 0


@pytest.mark.parametrize("line", LINES)
def test_command_lines_run(server, line):
    words = shlex.split(here(line, server))
    match words:
        case ["pip", "install", "polyhead"]:
            assert 'name = "polyhead"' in PYPROJECT
        case ["pip", "install", package]:
            assert re.search(rf"^{package.removeprefix('polyhead[').removesuffix(']')} = \[", PYPROJECT, re.MULTILINE)
        case ["polyhead", "serve", *arguments]:
            from polyhead.cli.serve import command

            assert command.make_context("serve", arguments).params["ports"]
        case ["echo", text, "|", "polyhead", *arguments]:
            done = run(*arguments, stdin=f"{text}\n")
            assert done.code == 0 and set(done.rows[0]["answers"]) == {"mood", "topics"}
        case ["curl", *arguments]:
            done = subprocess.run(["curl", *arguments], capture_output=True, text=True, timeout=SECONDS)
            if done.returncode == 2:
                pytest.skip("this curl has no --json")
            assert done.returncode == 0 and "score" in done.stdout or "probs" in done.stdout, done
        case _:
            pytest.fail(f"a line that this test cannot check: {line}")


PYPROJECT = (PAGE.parents[2] / "pyproject.toml").read_text(encoding="utf-8")


def test_every_route_of_these_formats_is_named(server):
    """And every route that the page names is there."""
    names = (
        "polyhead",
        "embeddings",
        "inference-api",
        "classify",
        "inference-protocol",
        "decisions",
        "systemone",
        "openrouter",
    )
    routes = {route.path for name in names for route in FORMATS[name].routes(server.service)}
    told = set(re.findall(r"(?:GET |POST |`)(/[\w{}/.-]*)", TEXT))
    for path in routes:
        own = "/v2" if path.startswith("/v2") else path
        assert own in told, path
    outside = {"/embed_sparse", "/embed_all", "/tokenize", "/decode", "/vllm"}
    for path in told - outside:
        as_route = path.replace("TASK", "{name}").replace("/v2/models/{task}", "/v2/models/{name}")
        assert as_route in routes or as_route.replace("{name}", "{task}") in routes, path


def test_the_page_has_the_blocks_that_are_tested_here():
    assert len(PYTHON) == 6 and len(LINES) == 8 and {kind for kind, _ in BLOCKS} == {"python", "sh", "yaml"}
