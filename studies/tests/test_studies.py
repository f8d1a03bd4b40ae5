"""What long studies share: their arguments, their parts, and the report that they end with."""

import importlib
import json
from pathlib import Path

import pytest

from studies.results import Claim
from studies.tests import cells

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def settings(monkeypatch, tmp_path):
    module = importlib.import_module("studies.settings")
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    return module


def test_parts_share_the_jobs_without_a_gap_or_a_job_twice(settings):
    jobs = list(range(11))
    for of in (1, 2, 3):
        parts = [settings.part_of(jobs, f"{part}/{of}") for part in range(1, of + 1)]
        assert sorted(job for part in parts for job in part) == jobs
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("part", ["0/2", "3/2", "1", "a/b", "1/0"])
def test_a_part_that_there_is_not_is_refused(settings, part):
    with pytest.raises(SystemExit, match="give i/n"):
        settings.part_of([1, 2], part)


@pytest.mark.parametrize("name", ["huang2022.run", "stickland2019.run"])
@pytest.mark.parametrize("argument", ["--jobs=mian", "--seeds=1,9"])
def test_a_study_without_such_jobs_or_seeds_is_refused(settings, name, argument, monkeypatch, tmp_path):
    """It would train nothing, and nobody would notice for hours."""
    study = importlib.import_module(f"studies.{name}")
    monkeypatch.setattr("sys.argv", [name, argument, "--threads", "1", "--rows", str(tmp_path / "r.jsonl")])
    with pytest.raises(SystemExit, match="there are"):
        study.main()


def test_rows_of_several_files_are_reported_with_what_lacks_and_what_holds(settings, tmp_path, capsys):
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for number, file in enumerate(files):
        file.write_text(json.dumps({"seed": number}) + "\n")
    claim = Claim(id="x.1", text="it is better", target=1.0, value=0.5, unit="seconds", holds=False)
    rows = settings.rows_of(files)
    settings.report("study", command="python x.py", rows=rows, claims=[claim], lacking=["seed 3"])
    written = json.loads((tmp_path / "study.json").read_text())
    assert written["rows"] == [{"seed": 0}, {"seed": 1}] and written["claims"][0]["id"] == "x.1"
    said = capsys.readouterr().out
    assert "lacking: seed 3" in said and "MISSED     x.1  0.5 seconds (1)  it is better" in said


@pytest.mark.parametrize("name", ["du2020.run_leave_out", "wei2021.run_joint"])
def test_a_study_reports_from_its_rows_alone(settings, name, monkeypatch, tmp_path, capsys):
    """It writes them, says what lacks, and trains nothing."""
    joint = {"task": "rte", "seed": 1, "method": "together", "tap": 6, "layers": 0, "validation": 0.5, "test": 0.5}
    rows = cells.rows()[:2] if name == "du2020.run_leave_out" else [joint, {**joint, "task": "cola", "seed": 2}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    study = importlib.import_module(f"studies.{name}")
    monkeypatch.setattr("sys.argv", [name, "--report", "--rows", str(tmp_path / "rows.jsonl")])
    study.main()
    assert json.loads((tmp_path / f"{study.NAME}.json").read_text())["rows"] == rows
    assert "lacking: " in capsys.readouterr().out
