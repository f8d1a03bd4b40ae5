"""docs/guides/decisions-api.md: its code runs with the clients, its mapping file fits, its numbers are measured."""

import contextlib
import io
import json
import re
from importlib.resources import files
from pathlib import Path

import pytest

from polyhead.bundle.create import write_bundle
from polyhead.plan import Pool
from polyhead.project.tables import read_project
from polyhead.serve.settings import check_served_labels, read_labels
from polyhead.testing import tiny_path, tiny_trunk
from polyhead.testing.strategies import add_tiny
from support.decision_server import asked_app, listening

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "decisions-api.md").read_text(encoding="utf-8")
MEASURED = (ROOT / "docs" / "project" / "similarity.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8000"


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def tasks():
    sample = read_project(str(files("polyhead.sample") / "polyhead.toml"))
    return {entry.name: entry.task() for entry in sample.tasks}


@pytest.fixture(scope="module")
def address(tmp_path_factory, tasks):
    """A server of the sample's tasks with drawn weights."""
    root, trunk = tmp_path_factory.mktemp("page") / "bundle", tiny_trunk(max_tokens=64)
    write_bundle(root, trunk)
    for seed, name in enumerate(("topics", "sentiment", "urgency")):
        add_tiny(root, trunk, tasks[name], tiny_path(tasks[name], trunk, pool=Pool()), seed=seed)
    with listening(asked_app(root)) as address:
        yield address


@pytest.mark.parametrize(("number", "package"), [(0, "openai"), (1, "typesafe_sdk")], ids=["openai", "system-one"])
def test_example_runs_with_its_client(address, number, package):
    pytest.importorskip(package, reason=f"{package} is not installed: pip install '.[compat]'")
    code, said = blocks("py")[number], io.StringIO()
    assert code.count(ADDRESS) == 1 and package in code
    with contextlib.redirect_stdout(said):
        exec(compile(code.replace(ADDRESS, address), "decisions-api.md", "exec"), {})
    words = said.getvalue().split()
    assert words[1] in ("positive", "neutral", "negative") and 0 <= float(words[0]) <= 1 and 0 <= float(words[2]) <= 2


def test_every_example_of_a_client_is_run():
    assert len(blocks("py")) == 2


def test_mapping_file_fits_the_sample(tasks, tmp_path):
    (text,) = blocks("toml")
    (tmp_path / "labels.toml").write_text(text)
    read = read_labels(tmp_path / "labels.toml")
    check_served_labels(read, tasks)
    assert read["tone"].labels == {"Pleased": "positive", "Annoyed": "negative"}


def test_numbers_of_the_page_are_those_that_were_measured():
    rows = json.loads((ROOT / "results" / "server_similarity.json").read_text())["rows"]
    shown = re.findall(r"^\| `(\w+)` \| (.*) \|$", MEASURED, re.MULTILINE)
    assert len(shown) == 5
    for name, cells in shown:
        row = max((each for each in rows if each["set"] == name), key=lambda each: each["options"] == "described")
        metric = row["metric"]
        baseline = max(row["majority"][metric], row["chance"] if metric == "accuracy" else 0)
        numbers = [row[metric], baseline, row["log_loss"], row["uniform_log_loss"]]
        assert [f"{number:.3f}" for number in numbers] == re.findall(r"\d\.\d{3}", cells), name
    overall = json.loads((ROOT / "results" / "server_jevbench.json").read_text())["rows"][1]
    assert f"overall {100 * overall['overall']:.1f} of 100" in MEASURED
