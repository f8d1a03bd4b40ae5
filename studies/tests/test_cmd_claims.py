"""`python -m studies claims`: every claim, those that do not hold first."""

import json

from studies.results import Claim, results, write_results
from studies.tests.commands import run


def claim(name, holds, note=""):
    return Claim(id=name, text=f"what {name} says", target=1, value=0.5, unit="seconds", holds=holds, note=note)


def test_claims_that_do_not_hold_come_first(tmp_path):
    write_results(
        tmp_path, results("a", command="x", rows=[], claims=[claim("a.one", True), claim("a.two", False, "why")])
    )
    write_results(tmp_path, results("b", command="x", rows=[], claims=[claim("b.one", False)]))
    done = run("claims", tmp_path)
    assert done.code == 0
    lines = done.out.splitlines()
    assert [line.split()[:2] for line in lines[1:4]] == [["NO", "a.two"], ["NO", "b.one"], ["yes", "a.one"]]
    assert "a.two: why" in done.out
    assert "3 claims: 1 holds, 2 do not" in done.out
    told = json.loads(run("claims", tmp_path, "--json", "-").out)
    assert [row["claim"]["id"] for row in told] == ["a.two", "b.one", "a.one"]
    assert told[1]["file"] == "b"


def test_folders_without_results_and_files_that_are_none_are_named(tmp_path):
    run("claims", tmp_path).refuses("no results files")
    run("claims", tmp_path / "none").refuses("no results files")
    (tmp_path / "x.json").write_text("{}")
    run("claims", tmp_path).refuses("x.json")
    (tmp_path / "x.json").write_bytes(b"\xff")
    run("claims", tmp_path).refuses("x.json")


def test_what_is_not_shown_stands_between_with_its_interval_and_seeds(tmp_path):
    judged = {"holds": None, "note": "not shown: x", "seeds": 3, "interval": (-1, 3)}
    shown = Claim(id="c.one", text="gain", target=0, value=1, unit="points", **judged)
    write_results(tmp_path, results("a", command="x", rows=[], claims=[claim("a.one", True), shown, claim("z", False)]))
    lines = run("claims", tmp_path).out.splitlines()
    assert lines[2].split()[:10] == ["not", "shown", "c.one", "0", "1", "-1", "to", "3", "3", "points"]
    assert "3 claims: 1 holds, 1 does not, 1 is not shown" in lines
