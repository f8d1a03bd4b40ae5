"""Methods and what they cost against the paper's numbers; means and tables from rows whose answer is known by hand."""

from xml.etree import ElementTree

import msgspec
import pytest

from polyhead.errors import DataError
from polyhead.plan import TRUNK, owners_of
from polyhead.project.strategies import InLayer, OnTop
from polyhead.tasks.task import Task
from studies import stickland2019 as paper
from studies.du2020.counts import MINILM
from studies.huang2022.counts import BERT_BASE
from studies.stickland2019.counts import paths_of, strategy_of
from studies.stickland2019.methods import METHODS
from studies.stickland2019.published import published_table2
from studies.stickland2019.study import GLUE, averages, cell_of, differences, missing, rows_of, runs_of
from studies.stickland2019.tables import by_task, compared, curves, table3
from studies.stickland2019.tables import questions as questions_of
from studies.tests.adapters import ABOVE, BASE, DROP, SPREAD, STEPS, questions, rows

BERT = 109_482_240  # parameters of BERT-base
# Millions in matrices of eight tasks' functions, and parameters over BERT-base
PARAMETERS = {
    "pals": (14.49, 1.132),
    "pals-untied": (14.42, 1.132),
    "low-rank": (14.75, 1.135),
    "pals-top": (14.36, 1.131),
    "pals-bottom": (14.36, 1.131),
    "ffn": (14.49, 1.132),
    "on-top": (10.50, 1.096),
    "scale": (0.07, 1.001),
    "low-rank-10": (1.47, 1.013),
    "pals-60": (1.77, 1.016),
}
GFLOPS = {"shared": 22.3, "pals": 190.8, "pals-top": 109.4, "on-top": 25.7, "layer-on-top": 37.2}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_formula_gives_the_published_parameters_and_so_do_our_arrays(name):
    (found,) = [one for one in paper.table1() if one.method == name]
    assert found.value == found.counted.own
    assert (round(found.value / 1e6, 2), round(1 + found.value / BERT, 3)) == PARAMETERS[name]
    assert 0 <= found.counted.ratio - (1 + found.value / BERT) < 0.002  # biases, norms


def test_a_whole_layer_is_two_thirds_of_the_layers_and_half_of_the_parameters():
    found = paper.costs(METHODS["layer-on-top"], BERT_BASE)
    assert found.parameters - BERT == 8 * 7_087_872
    assert (round(found.ratio, 3), round(found.layer_ratio, 3)) == (1.518, 1.667)


@pytest.mark.parametrize("name", GFLOPS)
def test_eight_tasks_take_the_published_flops(name):
    found = paper.costs(METHODS[name], BERT_BASE)
    assert round(found.flops / 1e9, 1) == GFLOPS[name]
    assert found.share == pytest.approx(GFLOPS[name] / 178.8, abs=5e-4)


def test_sizes_on_another_trunk_are_in_the_papers_proportion():
    """minilm is half as wide and half as deep: 204 of 768 is 102 of 384, the top 6 of 12 layers are 3 of 6."""
    top = strategy_of(METHODS["pals-top"], MINILM)
    assert isinstance(top, InLayer) and (top.adapters[0].size, top.adapters[0].start) == (138, 3)
    sizes = {"pals": 102, "pals-untied": 42, "low-rank": 50, "low-rank-10": 5, "pals-60": 30, "bottleneck": 25}
    assert {name: strategy_of(METHODS[name], MINILM).adapters[0].size for name in sizes} == sizes
    assert strategy_of(METHODS["pals-heads-12"], MINILM).adapters[0].size == 96  # 102 is no multiple; 108 is as near
    above = strategy_of(METHODS["ffn-on-top"], MINILM)
    assert isinstance(above, OnTop) and (above.width, above.feed_forward, above.layers) == (102, 204, 6)
    for method in METHODS.values():
        if not method.within:
            assert strategy_of(method, BERT_BASE) == method.strategy


def test_a_width_that_heads_do_not_divide_is_said_with_both_counts():
    """Of 8 tasks, 384 wide and 6 layers deep: 8 (2 * 384 * s + 3 * 6 * s^2) in matrices; 96 is nearer than 108."""
    counts = {s: 8 * (2 * 384 * s + 18 * s**2) for s in (96, 102, 108)}
    (note,) = paper.size_notes(MINILM)
    assert note.startswith("PALs, 12 heads: 96 wide where 102 would be")
    assert f"{counts[96]:,}" in note and f"PALs {counts[102]:,}" in note
    assert counts[102] - counts[96] < counts[108] - counts[102]
    assert paper.size_notes(BERT_BASE) == ()


def test_the_main_methods_have_at_most_thirteen_percent_more_parameters_on_our_trunk():
    for method in paper.MAIN:
        assert paper.costs(method, MINILM).ratio <= 1.13


@pytest.mark.parametrize("shape", [MINILM, BERT_BASE], ids=["minilm", "bert-base"])
def test_a_pooler_a_task_leaves_the_budget_as_it_is(shape):
    method, most = METHODS["pals-own-pooler"], paper.costs(METHODS["pals"], shape).parameters
    found = paper.costs(method, shape).parameters
    strategy = strategy_of(method, shape)
    assert isinstance(strategy, InLayer) and strategy.pooler == "private"
    one_more = 8 * 6 * (2 * shape.width + 3 * shape.layers * (2 * strategy.adapters[0].size + 6))
    assert found <= most < found + one_more * 1.01


def test_all_methods_share_one_pooler_but_those_that_say_so():
    task = Task(name="t", kind="single_label", labels=("a", "b"))
    for method in METHODS.values():
        path = paths_of(method, MINILM, [task], trunk="")["t"]
        assert ("family:pooler" in owners_of(path)) == (method.name != "pals-own-pooler"), method.name
    shared = paths_of(METHODS["pals-shared"], MINILM, [task], trunk="")["t"]
    assert set(owners_of(shared)) == {TRUNK, "task:t", "family:adapters", "family:pooler"}


def test_methods_differ_and_have_one_name_each():
    several = [*paper.TABLE3, *paper.ABLATION]
    assert len({one.name for one in several}) == len({one.title for one in several}) == len(several)
    told = [msgspec.json.encode([one.strategy, one.base, one.within]) for one in several]
    assert len(set(told)) == len(told)
    assert set(paper.FORMULAS) <= set(METHODS)


def test_the_printed_means_are_those_of_nine_columns():
    table = published_table2()
    assert paper.printed_otherwise(table) == []
    counted = [round(line.counted["average"], 2) for line in table.lines]
    assert counted == [79.56, 79.89, 79.63, 80.40]


def test_means_over_tasks_come_with_their_standard_error():
    """Tasks lie 0 to 7 points above the base, seeds 1 apart: standard deviation 1, error 1 / sqrt(3)."""
    found = rows_of(rows())
    assert averages(found, "pals", "annealed") == pytest.approx({s: BASE + 6.5 + d for s, d in SPREAD.items()})
    assert averages(found, "pals", "annealed", split="validation")[2] == pytest.approx(BASE + 6.5 + DROP)
    cell = cell_of(averages(found, "shared", "annealed"))
    assert (cell.mean, cell.error, cell.seeds) == (pytest.approx(63.5), pytest.approx(3**-0.5), 3)
    assert cell_of({1: 2.0}).error is None and cell_of({}) is None
    above = differences(found, ("low-rank", "annealed"), ("pals", "annealed"))
    assert above == pytest.approx({1: -1.0, 2: -1.0, 3: -1.0})


def test_a_seed_without_all_tasks_does_not_count_and_is_named():
    part = [r for r in rows() if not (r["seed"] == 3 and r["method"] == "pals" and r.get("task") == "rte")]
    found = rows_of(part)
    assert set(averages(found, "pals", "annealed")) == {1, 2}
    assert "2 of 3 seeds of PALs (204), annealed" in missing(found)
    assert "2 of 3 seeds of PALs (204), annealed" not in missing(rows_of(rows()))


def test_what_is_missing_are_the_planned_runs_of_the_main_part_and_of_what_was_begun():
    """Main methods have three seeds and are missed without a row; others have one, and count once they are begun."""
    began = rows_of(rows())
    assert missing(began) == (
        "0 of 3 seeds of Single task, alone",
        "0 of 3 seeds of PALs (276, top), annealed",
        "0 of 3 seeds of Proj. attn. on top, annealed",
        "0 of 3 seeds of Shared, square-root",
        "0 of 3 seeds of PALs (204), proportional",
        "0 of 3 seeds of PALs (204), square-root",
    )
    without = [row for row in began if (row.method, row.task) != ("scale", "rte")]
    assert missing(without) == (*missing(began), "0 of 1 seeds of LHUC, annealed")


def test_runs_of_another_scale_are_not_compared():
    """Data that changed in mid-study: PALs of the new rows, all else of the old ones."""
    old, new = rows(), rows(ways=(("pals", "annealed"),), settings="n")
    mixed = [*({**row, "scale": "old"} for row in old), *({**row, "scale": "new"} for row in new)]
    assert {(row.method, row.scale) for row in rows_of(mixed)} == {("pals", "new")}


def test_of_several_settings_those_that_came_last_count():
    twice = [*rows((1,), settings="old"), *rows((2, 3))]
    assert {row.seed for row in rows_of(twice)} == {2, 3} and {run.seed for run in runs_of(twice)} == {2, 3}
    both = rows_of([*rows(), *questions()])
    assert {row.settings for row in both} == {"s", "q"}
    with pytest.raises(DataError, match="row 2"):
        rows_of([rows()[1], {**rows()[1], "test": "x"}])
    with pytest.raises(DataError, match="holds no run of a task"):
        rows_of([{"speed": 1}])


def test_the_tables_hold_the_papers_rows_beside_ours():
    found = {line.method: line for line in table3(rows_of(rows()))}
    assert list(found) == [method.name for method in paper.TABLE3]
    pals = found["pals"]
    assert (pals.published["annealed"].mean, pals.published["annealed"].error) == (81.7, 0.2)
    assert pals.measured["annealed"].mean == pytest.approx(66.5) and pals.costs.ratio == 1.09
    assert set(found["shared"].measured) == {"annealed", "proportional"}
    assert found["on-top"].measured == {} and found["on-top"].costs is None
    lines = {line.method: line for line in by_task(rows_of(rows()))}
    assert set(lines) == {method for method, sampling in ABOVE if sampling == "annealed"}
    assert lines["pals"].tasks["rte"].mean == pytest.approx(BASE + 7 + 3)
    ways = {(one.method, one.sampling): one for one in compared(rows_of(rows()))}
    assert set(ways) == set(ABOVE)
    assert ways["pals", "round-robin"].above_pals.mean == pytest.approx(-4.0)
    assert ways["pals", "round-robin"].above_pals.error == pytest.approx(0.0, abs=1e-9)


def test_questions_average_exact_match_f1_and_accuracy():
    found = {one.method: one for one in questions_of(rows_of(questions()))}
    assert {name: round(cell.mean) for name, cell in found["shared"].scores.items()} == {
        "EM": 50,
        "F1": 60,
        "accuracy": 40,
    }
    assert found["shared"].average.mean == pytest.approx(50.0)
    assert found["pals"].average is None and found["pals"].published.mean == 82.774


def test_curves_are_means_over_seeds_by_task_method_and_step():
    found = curves(runs_of(rows()), rows_of(rows()))
    assert set(found) == set(GLUE) and set(found["cola"]) == {"pals", "low-rank"}
    points = found["rte"]["low-rank"]
    assert [point.step for point in points] == list(STEPS)
    assert points[0].mean == pytest.approx(BASE + 7 + 2 + 10) and points[0].deviation == pytest.approx(1.0)


def test_both_figures_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    found = rows_of(rows())
    paper.plot_methods(found, tmp_path / "methods.svg")
    paper.plot_curves(curves(runs_of(rows()), found), tmp_path / "curves.svg")
    for name in ("methods", "curves"):
        ElementTree.parse(tmp_path / f"{name}.svg")
    with pytest.raises(DataError, match="no means to draw"):
        paper.plot_methods(found, tmp_path / "none.svg", methods=["on-top"])
    with pytest.raises(DataError, match="no curves to draw"):
        paper.plot_curves({}, tmp_path / "none.svg")
