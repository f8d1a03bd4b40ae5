"""Huang et al. 2022: the printed numbers against their own sums, and our tables from rows made up by hand."""

import statistics
import sys

import pytest

from polyhead.errors import DataError, MissingExtra
from studies import huang2022 as paper
from studies.huang2022.counts import parameters_added, ratios
from studies.huang2022.methods import ABLATION, GRID, MAIN
from studies.huang2022.nhc import TASKS
from studies.tests.nhc_rows import DROP, GRID_POINTS, POINTS, SPREAD, rows


def test_averages_of_the_paper_are_those_of_its_scores_but_for_one():
    tables = (paper.published_table1(), paper.published_table2(), paper.published_table3())
    assert [len(table.lines) for table in tables] == [6, 6, 7]
    assert [len(table.tasks) for table in tables] == [8, 9, 9]
    assert [paper.averages_printed_otherwise(table) for table in tables] == [
        [],
        [],
        ["(1) no prompts, shared pooler: average printed 86, counted 86.13"],
    ]


def test_differences_of_the_ablation_are_those_that_the_paper_tells():
    """papers.md 3.d: the gradient stop is rows 6 and 7, +0.1 on average, RTE +1.8, MRPC -1.2."""
    table = paper.published_table3()
    without, full = table.lines[-2:]
    gained = {t: round(b - a, 1) for t, a, b in zip(table.tasks, without.scores, full.scores, strict=True)}
    assert (gained["RTE"], gained["MRPC"]) == (1.8, -1.2)
    assert round(full.average - without.average, 1) == 0.1
    assert [line.passes for line in paper.published_table1().lines] == [8, 1, 8, 8, 8, 1]


def test_counts_are_the_published_ones():
    """papers.md 3.a.5 and 3.a.6."""
    added = parameters_added()
    assert [one.parameters for one in added] == [592_896, 593_664, 594_432, 4_749_312]
    assert round(added[-1].share, 2) == 4.34
    found = {(one.tasks, one.tokens): one for one in ratios()}
    assert [round(found[place].together, 2) for place in ((8, 128), (21, 128), (100, 128))] == [1.13, 1.34, 2.67]
    assert found[8, 128].layers == (12, 12, 96)
    assert all(one.isolated <= one.together < one.apart for one in found.values() if one.tasks > 1)


def test_table1_has_medians_by_task_and_the_mean_of_the_averages():
    table = paper.table1(paper.rows_of(rows()))
    assert table.tasks == TASKS and table.notes[0] == "3 of 5 seeds of Single task"
    line = table.lines[0]
    assert (line.name, line.seeds, line.passes, line.layers) == ("Single task", 3, 7, 42)
    assert line.scores == pytest.approx([80.0 + n for n in range(7)])  # the median seed adds nothing
    assert line.average == pytest.approx(83.0)
    assert line.mean == pytest.approx(83.0 + statistics.mean(SPREAD.values()))
    assert line.spread == pytest.approx(statistics.stdev(SPREAD.values()))
    assert [found.name for found in table.lines] == [method.title for method in MAIN]


@pytest.mark.parametrize(("measure", "lower"), [("validation", 0.0), ("test", DROP), ("recall", DROP / 2)])
def test_every_measure_is_read_from_its_own_key(measure, lower):
    found = paper.averages(paper.rows_of(rows()), "mtop", measure)
    assert found == pytest.approx({seed: POINTS["mtop"] + 3 + SPREAD[seed] - lower for seed in SPREAD})


def test_table3_compares_the_seeds_that_all_of_its_rows_have():
    made = [one for one in rows() if not (one["method"] == "tokens-random" and one["seed"] == 3)]
    table = paper.table3(paper.rows_of(made))
    assert [line.seeds for line in table.lines] == [2] * len(ABLATION)
    assert table.lines[-1].average == pytest.approx(POINTS["mtop"] + 3 - 1.5)
    assert table.notes == ("2 of 3 seeds of token prompts, random poolers",)


def test_differences_are_of_the_same_seed():
    made = [one for one in rows() if not (one["method"] == "single" and one["seed"] == 2)]
    found = paper.differences(paper.rows_of(made), "mtop", "single", "test")
    assert found == pytest.approx(dict.fromkeys((1, 3), POINTS["mtop"] - POINTS["single"]))


def test_a_seed_without_all_tasks_has_no_average():
    made = [one for one in rows() if (one["method"], one["seed"], one.get("task")) != ("mtop", 1, "travel")]
    found = paper.rows_of(made)
    assert set(paper.averages(found, "mtop", "test")) == {2, 3}
    assert "2 of 5 seeds of MTOP" in paper.table1(found).notes


def test_figure_2_has_a_cell_for_every_number_of_rows():
    found = {(cell.rows, cell.shared): cell for cell in paper.grid(paper.rows_of(rows()))}
    assert set(found) == set(GRID) and {cell.seeds for cell in found.values()} == {1}
    assert found[4, 2].average == pytest.approx(GRID_POINTS["rows-4-shared-2"])
    assert found[2, 0].average == pytest.approx(POINTS["random-random"] + 3 + SPREAD[1])


def test_rows_of_other_settings_do_not_count_where_later_ones_are_there():
    made = rows()
    old = [{**one, "settings": "old", "test": 0.0} for one in made if one["method"] == "mtop"]
    assert paper.rows_of([*old, *made])[-1].settings == "s"
    assert paper.averages(paper.rows_of([*old, *made]), "mtop", "test")[2] == pytest.approx(POINTS["mtop"] + 3 - DROP)


def test_rows_that_are_no_runs_are_refused():
    broken = [one for one in rows() if one["stage"] == "task"]
    del broken[4]["passes"]
    with pytest.raises(DataError, match="row 5 of the study is not a run"):
        paper.rows_of(broken)
    with pytest.raises(DataError, match="holds no run"):
        paper.rows_of([{"stage": "run", "method": "mtop"}])


def test_figures_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    found = paper.rows_of(rows())
    paper.plot_methods(found, tmp_path / "methods.svg")
    paper.plot_figure2(found, tmp_path / "grid.svg")
    told = (tmp_path / "methods.svg").read_text()
    assert all(f"<!-- {method.title} (" in told for method in MAIN)
    assert "<!-- shared rows -->" in (tmp_path / "grid.svg").read_text()
    with pytest.raises(DataError, match="figure 2"):
        paper.plot_figure2([row for row in found if row.method == "mtop"], tmp_path / "none.svg")


def test_drawing_without_matplotlib_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"polyhead\[plots\]"):
        paper.plot_methods(paper.rows_of(rows()), tmp_path / "f.svg")
