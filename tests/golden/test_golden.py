"""Messages of refused commands and answers of every HTTP route are as they were: a change to one is made on purpose.

They are freezes of texts and shapes, not references of numbers: `support.golden` writes them anew. Bits of answers and
of trained arrays are compared by `benchmarks.rooms_golden`; the help of every command stands in docs/reference/cli.md.
"""

import itertools
import re
from types import SimpleNamespace

import pytest
from starlette.routing import Route

from benchmarks.rooms_cases import ERRORS, REQUESTS
from polyhead.serve.app import application
from polyhead.serve.settings import ServeSettings
from support import golden
from support.loopback_server import service_of, tiny_root

OTHERS = ("/page/", "/metrics", "/openapi.json", "/docs", "/v1/load")  # have tests of their own


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return golden.recorded(tmp_path_factory.mktemp("golden"))


@pytest.mark.parametrize("part", ["errors", "http"])
def test_what_is_said_is_what_was_said(found, part):
    known = golden.known(part)
    assert sorted(found[part]) == sorted(known)
    differ = {name: (known[name], said) for name, said in found[part].items() if not _near(known[name], said)}
    assert not differ, differ


def test_a_slow_machine_says_the_same(tmp_path, monkeypatch):
    """A busy one took half a second, and a command said so; others told of their progress, which stood in no file."""
    clock = SimpleNamespace(monotonic=itertools.count(0.0, 7.0).__next__)
    for module in ("polyhead.progress", "polyhead.cli.check"):
        monkeypatch.setattr(f"{module}.time", clock)
    names = ("check: no file", "import: no folder")
    said = golden.errors(tmp_path, {name: ERRORS[name] for name in names})
    assert said == {name: golden.known("errors")[name] for name in names}


def test_every_refused_command_has_one_message_and_a_failing_exit_code(found):
    """But those that answer the rest, and `check`, whose findings are its answer."""
    assert len(found["errors"]) == len(ERRORS) > 60
    for name, said in found["errors"].items():
        assert said["code"] in (1, 2), name
        assert "Traceback" not in said["out"] + said["err"], name
        assert said["err"] or name.startswith("check"), name


def test_every_route_is_asked(tmp_path):
    app = application(service_of(tiny_root(tmp_path / "b"), ServeSettings(admin=True)))
    asked = {(method, path.partition("?")[0]) for method, path, _ in REQUESTS.values()}
    routes = [route for route in app.routes if isinstance(route, Route) and ":path}" not in route.path]
    routes = [route for route in routes if route.path != "/" and not route.path.startswith(OTHERS)]
    known = {(method, route.path) for route in routes for method in route.methods - {"HEAD"}}
    assert len(known) > 35
    missing = [(method, path) for method, path in known if not any(method == m and _fits(path, p) for m, p in asked)]
    assert not missing


def _fits(pattern, path):
    return re.fullmatch(re.sub(r"\{[^}]*\}", "[^/]+", pattern), path)


def _near(one, other):
    """Equal but for the last digit of numbers, also of those in texts."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_near(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_near, one, other))
    if isinstance(one, float) or isinstance(other, float):
        return abs(one - other) < 2 * 10**-golden.DIGITS
    if isinstance(one, str) and isinstance(other, str):
        texts = [re.split(r"(-?\d+\.\d+)", each) for each in (one, other)]
        return len(texts[0]) == len(texts[1]) and all(map(_near_text, *texts))
    return one == other


def _near_text(one, other):
    is_number = re.fullmatch(r"-?\d+\.\d+", one) and re.fullmatch(r"-?\d+\.\d+", other)
    return abs(float(one) - float(other)) < 2 * 10**-golden.DIGITS if is_number else one == other
