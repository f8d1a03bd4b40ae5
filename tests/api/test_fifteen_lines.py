"""The example that shows all of `Model` in fifteen lines runs as it stands."""

import ast
import json
import runpy
import sys
from pathlib import Path

import pytest

from support import head_search
from support.tiny_project import write_trunk

pytest.importorskip("torch")
EXAMPLE = Path(__file__).parents[2] / "examples" / "fifteen_lines.py"


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    head_search.hurry(monkeypatch)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(write_trunk(tmp_path / "trunk"))])
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    said = capsys.readouterr().out
    answers, spans = (ast.literal_eval(line) for line in said.splitlines()[:2])
    assert answers.keys() == {"mood"} and answers["mood"] in ("good", "bad")
    assert spans["thing"][0]["text"] in "the lamp is good"  # a part of it, or nothing
    assert "v0001" in said.splitlines()
    last = ast.literal_eval(said.splitlines()[-1])
    assert json.dumps(last) and last["answers"].keys() == {"mood"} and last["versions"]
    assert (tmp_path / "lamps" / "bundle.json").exists()


def test_it_has_fifteen_lines_at_most():
    code = EXAMPLE.read_text()[EXAMPLE.read_text().index("model = ") :]
    lines = [line for line in code.splitlines() if line.strip() and not line.strip().startswith("#")]
    assert len(lines) <= 15
