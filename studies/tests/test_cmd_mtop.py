"""`python -m studies huang2022`: the tasks built from headlines, and the tables of paper and study."""

import json

import pytest

from polyhead.data.read import read
from polyhead.project.tables import TaskEntry
from polyhead.values import to_json
from studies.huang2022.nhc import TASKS
from studies.tests.commands import run
from studies.tests.headlines import write_sets
from studies.tests.nhc_rows import row, rows

TABLES = ("table1", "table3", "figure2")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rows.json"
    path.write_bytes(to_json({"rows": rows()}))
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_sets(tmp_path_factory.mktemp("data"))


def test_nhc_writes_tasks_that_can_be_read_and_tells_what(data, tmp_path):
    done = run("huang2022", "nhc", tmp_path / "nhc", "--data", data, "--size", "20", "--json", tmp_path / "card")
    assert done.code == 0, done.err
    assert "politics" in done.out and "90 rows hold a text of the test split" in done.out
    told = json.loads((tmp_path / "card").read_text())
    assert told == json.loads((tmp_path / "nhc" / "card.json").read_text())
    for task in told["tasks"]:
        entry = TaskEntry(
            name=task["name"], kind="single_label", labels=tuple(task["labels"]), train=f"{task['name']}/train.jsonl"
        )
        assert read(entry.source(entry.train, tmp_path / "nhc"), entry.task()).report.used == 32


def test_nhc_refuses_what_it_cannot_build(data, tmp_path):
    words = ("huang2022", "nhc", tmp_path / "nhc")
    run(*words).refuses("--data DIR", code=2)
    run(*words, "--data", tmp_path / "none").refuses("does not exist", code=2)
    run(*words, "--data", tmp_path).refuses("huffpost41", "Allowed")
    run(*words, "--data", data, "--size", "500").refuses("politics 105", "up to 105")
    assert not (tmp_path / "nhc").exists()
    (tmp_path / "nhc").mkdir()
    (tmp_path / "nhc" / "mine").write_text("")
    run(*words, "--data", data).refuses("already")


@pytest.mark.parametrize("name", TABLES)
def test_without_runs_the_way_to_make_them_is_named(name, tmp_path):
    done = run("huang2022", name, cwd=tmp_path)
    assert done.code == 0, done.err
    assert "python -m studies huang2022 run" in done.out
    run("huang2022", name, "--plot", tmp_path / "f.svg", cwd=tmp_path).refuses("no runs to draw", code=2)


def test_table1_prints_both_scales_and_says_what_learned(file):
    lines = run("huang2022", "table1", "--rows", file).out.splitlines()
    printed, ours = (line.split() for line in lines if line.startswith("MTOP  "))
    assert printed[1:] == ["89.9", "88.2", "91.6", "94.6", "93.3", "88.6", "85.2", "75.5", "88.4", "one", "trunk", "1"]
    assert ours[1:8] == [f"{85 + n:.1f}" for n in range(7)]
    assert ours[8:] == ["88.0", "87.3", "±2.1", "3", "one", "trunk", "0", "of", "21", "1", "6", "1.95", "1,000"]
    told = json.loads(run("huang2022", "table1", "--rows", file, "--measure", "test", "--json", "-").out)
    assert told["study"]["lines"][0]["average"] == pytest.approx(73.0)
    assert [line["learned"] for line in told["study"]["lines"]][0::9] == ["a trunk a task", "no trunk"]


def test_table3_and_figure2_print_both_scales(file):
    out = run("huang2022", "table3", "--rows", file).out
    assert "average printed 86, counted 86.13" in out
    printed = [line.split() for line in out.splitlines() if line.startswith("(7)")]
    assert len(printed) == 2 and printed[1][-4:] == ["1", "6", "1.95", "1,000"]
    out = run("huang2022", "figure2", "--rows", file).out
    last = out.splitlines()[-3].split()  # before the words on its columns
    assert last[:2] == ["4", "2"] and last[-4:] == ["1", "6", "1.95", "1,000"]


def test_the_search_stands_behind_the_methods_that_it_was_made_for(tmp_path):
    """Over the seeds of the search: one where a trunk learns, three over a frozen trunk."""
    tried = [row("single-0.0001", 1, task, 90.0) for task in TASKS]
    tried += [row("isolated-frozen-rows-8", seed, task, 60.0) for task in TASKS for seed in (1, 2)]
    (tmp_path / "rows.json").write_bytes(to_json({"rows": [*rows(), *tried]}))
    done = run("huang2022", "search", "--rows", tmp_path / "rows.json", "--json", tmp_path / "told.json")
    assert done.code == 0 and "Single task, at 0.0001" in done.out
    study = json.loads((tmp_path / "told.json").read_text())["study"]
    lines = {line["name"]: line for line in study["lines"]}
    assert list(lines)[:2] == ["Single task", "Single task, at 0.0001"]
    assert [line["seeds"] for line in lines.values()][:2] == [1, 1]
    assert lines["Single task"]["mean"] == pytest.approx(80.0 - 3 + 3)  # of the first seed alone
    assert lines["Isolated prompts, trunk frozen, 8 rows"]["seeds"] == 2
    assert "2 of 3 seeds of Isolated prompts, trunk frozen, 8 rows" in study["notes"]


def test_table2_and_counts_are_the_papers(tmp_path):
    assert "84.3" in run("huang2022", "table2").out
    out = run("huang2022", "counts").out
    assert "4,749,312" in out and "4.34" in out and "592,896" in out


@pytest.mark.parametrize("name", TABLES)
def test_the_study_is_drawn(name, file, tmp_path):
    pytest.importorskip("matplotlib")
    done = run("huang2022", name, "--rows", file, "--plot", tmp_path / "f.svg")
    assert done.code == 0, done.err
    assert (tmp_path / "f.svg").read_text().startswith("<?xml")
    run("huang2022", name, "--rows", file, "--plot", tmp_path / "f.nonsense").refuses(".svg", code=2)
