"""The example that shows all of `Model` in fifteen lines runs as it stands, in a process of its own."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tiny import write_trunk

pytest.importorskip("torch")
EXAMPLE = Path(__file__).parents[2] / "examples" / "fifteen_lines.py"


def test_the_example_runs(tmp_path):
    trunk = write_trunk(tmp_path / "trunk")
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(trunk)], cwd=tmp_path, capture_output=True, text=True, timeout=280
    )
    assert not done.returncode, done.stderr[-3000:]
    said = done.stdout
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
