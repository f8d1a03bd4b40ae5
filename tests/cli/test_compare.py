"""`polyhead compare` and `polyhead advise`: what they print is what they write, and the written project trains."""

import json

import pytest

from polyhead.project.tables import read_project
from polyhead.testing import tiny_trunk
from support import head_search, tiny_project
from support.commands import run, write_project


@pytest.fixture
def project(work, monkeypatch):
    head_search.hurry(monkeypatch)
    monkeypatch.chdir(work)
    return write_project(work, "mood", "names")


def test_a_list_names_each_way_with_its_time_and_trains_nothing(project, work):
    done = run("compare", project, "--list", "--only", "branch,lora", "--json", "report.json")
    assert done.code == 0, done.err
    listed = json.loads((work / "report.json").read_text())
    assert {way["name"] for way in listed} == {"branch-1", "branch-2", "lora"}
    assert all(way["seconds"] > 0 and way["name"] in done.out for way in listed)
    assert not list((work / "polyhead-compare").glob("rows/*"))


def test_an_unknown_way_is_refused_with_those_that_there_are(project):
    run("compare", project, "--only", "branch-9").refuses("branch-9", "fine_tune", "pooled-auto")


@pytest.mark.slow
def test_the_table_the_page_and_the_report_are_one_comparison(project, work):
    words = ("--only", "pooled-mean,branch-1", "--seeds", 2, "--epochs", 1, "--json", "report.json")
    done = run("compare", project, *map(str, words))
    assert done.code == 0, done.err
    report = json.loads((work / "report.json").read_text())
    page = (work / "polyhead-compare" / "compare.html").read_text()
    assert [way["seeds"] for way in report["ways"]] == [2, 2]
    for way in report["ways"]:
        shown = f"{way['quality']:.2f} ± {way['spread']:.2f}"
        assert shown in done.out and shown in page and way["name"] in page
    assert done.out.startswith("price: 4 runs")
    again = run("compare", project, *map(str, words))
    assert again.out.startswith("price: 0 runs")


@pytest.mark.slow
def test_advice_is_a_project_that_trains(project, work):
    done = run("advise", project, "--layers", "3", "--frozen", "--json", "report.json")
    assert done.code == 0, done.err
    report = json.loads((work / "report.json").read_text())
    assert report["cost"] <= 3
    for name, task in report["tasks"].items():
        assert f"{name}: {task['chosen']}, since {task['why']}" in done.out
    trained = run("train", "polyhead-advised.toml")
    assert trained.code == 0, trained.err


@pytest.mark.slow
def test_advice_shows_each_encoder_and_names_the_one_taken(project, work):
    tiny_project.write_trunk(work / "deep", tiny_trunk(layers=4, width=32, seed=3))
    done = run(
        "advise", project, "--layers", "4", "--frozen", "--epochs", "1", "--trunk", "deep", "--json", "report.json"
    )
    assert done.code == 0, done.err
    report = json.loads((work / "report.json").read_text())
    own, deep = report["trunks"]
    assert (own["layers"], deep["layers"], deep["name"]) == (2, 4, "deep")
    for trial in (own, deep):
        assert f"{trial['score']:.2f}" in done.out and trial["name"] in done.out
    (why,) = report["why_trunk"]
    taken = "deep" if why.startswith("deep over") else "trunk"
    assert why in done.out and read_project("polyhead-advised.toml").trunk.name == str(work / taken)
    run("advise", project, "--trunk", "./nowhere").refuses("no encoder './nowhere'", code=2)


def test_advice_takes_one_amount(project):
    run("advise", project, "--layers", "3", "--ms", "4").refuses("one of --layers, --ms and --bytes", code=2)


def test_advice_does_not_replace_the_project(project):
    run("advise", project, "--layers", "3", "--output", project).refuses("PROJECT and --output")
