"""Wei et al. 2021: the printed numbers against their own arithmetic, and our tables from runs made up by hand."""

import sys
import xml.etree.ElementTree as ElementTree

import msgspec
import pytest

from polyhead.errors import DataError, MissingExtra
from polyhead.plan.cost.allocate import allocation_of
from studies import wei2021
from studies.trained import CONVERGED, Learned
from studies.wei2021.published import OTHERS, PRINTED, TASKS
from studies.wei2021.study import missing
from studies.wei2021.table import ONE_A_LAYER, Line, near_best, table_of

SEEDS = (1, 2, 3)
# Of each task: score of a branch by layers (validation, in points); the trunk has 4 layers.
BRANCHES = {"rte": (60.0, 66.0, 64.0, 65.0), "cola": (40.0, 50.0, 55.0, 55.0)}
STUDENTS = {"rte": {1: 63.0}, "cola": {1: 42.0, 2: 54.0}}
FULL = {"rte": 66.0, "cola": 56.0}
DROP = 10.0  # test scores are lower by so much, so that reading the wrong split shows
SPREAD = {1: -1.0, 2: 0.0, 3: 1.0}


def row(task, seed, method, layers, score, **more):
    points = score + SPREAD[seed]
    return {
        "task": task,
        "seed": seed,
        "method": method,
        "init": "",
        "layers": layers,
        "tap": 0,
        "metric": "accuracy",
        "validation": points / 100,
        "test": (points - DROP) / 100,
        "seconds": 1.0,
        **more,
    }


def study():
    """Two tasks, three seeds; teachers of 2 (rte) and 3 layers (cola: of equals the fewer)."""
    rows = []
    for seed in SEEDS:
        for task, branches in BRANCHES.items():
            tap = 4 - {"rte": 2, "cola": 3}[task]
            rows.append(row(task, seed, "full", 4, FULL[task]))
            rows.append(row(task, seed, "half", 2, FULL[task] - 6))
            rows += [row(task, seed, "branch", n, s, tap=4 - n) for n, s in enumerate(branches, 1)]
            for layers, score in STUDENTS[task].items():
                rows.append(row(task, seed, "student", layers, score, tap=tap, init="teacher"))
                rows.append(row(task, seed, "student", layers, score - 2, tap=tap, init="pretrained"))
            rows.append({"task": task, "seed": seed, "method": "search", "layers": 2, "cpu_seconds": 9.0})
    return rows


@pytest.fixture
def runs():
    return wei2021.runs_of(study())


def line(table, name):
    return next(found for found in table.lines if found.name == name)


# What the paper prints


def test_teacher_depths_of_table_1_are_those_that_the_paper_used():
    assert list(wei2021.teacher_depths().values()) == [10, 5, 10, 8, 6, 5, 8, 8]


def test_the_row_without_distillation_is_the_best_of_table_1():
    """Table 2 prints it apart from table 1, so one is a check on the other."""
    printed = (91.7, 71.5, 91.1, 84.5, 93.1, 89.7, 55.2, 88.9)
    assert line(wei2021.published_table2(), "without distillation").scores == printed


def test_the_mixed_row_is_the_one_printed():
    found = line(wei2021.published_table2(), "mixed, c = 1")
    assert found.scores == (90.2, 71.5, 91.0, 82.9, 92.7, 88.0, 55.2, 88.3)
    assert found.of_full == pytest.approx(99.65, abs=0.005)


def test_averages_and_layers_are_those_printed_but_for_the_known_misprints():
    lines = [*wei2021.published_table2().lines, *wei2021.published_table5().lines]
    printed = [found for found in lines if found.printed is not None]
    assert len(printed) == len(OTHERS) + len(PRINTED) + 1 + 3
    assert sum(found.printed.average is not None for found in printed) == len(printed) - 3  # as in the paper
    assert wei2021.printed_otherwise(wei2021.published_table2()) == ["KD-1: average printed 77.4, counted 77.7"]
    assert wei2021.printed_otherwise(wei2021.published_table5()) == [
        "rule, c = 1: overhead printed 34.3, counted 34.4",
        "rule, c = 2: overhead printed 20.2, counted 20.8",
    ]


def test_overheads_are_shares_of_96_layers():
    found = {
        name: line(wei2021.published_table2(), name).overhead
        for name in ("KD-1", "KD-2", "KD-3", "without distillation")
    }
    assert [round(share, 1) for share in found.values()] == [15.6, 24.0, 32.3, 69.8]
    shares = [line(wei2021.published_table5(), f"rule, c = {c}").overhead for c in (1, 2, 3)]
    assert [round(share, 2) for share in shares] == [34.38, 20.83, 18.75]


def test_a_misprint_in_any_column_would_be_said():
    table = wei2021.published_table5([3.0])
    wrong = wei2021.table.Printed(average=80.1, layers=19, overhead=19.0)
    lines = [
        msgspec.structs.replace(found, printed=wrong) if found.name == "rule, c = 3" else found for found in table.lines
    ]
    said = wei2021.printed_otherwise(msgspec.structs.replace(table, lines=tuple(lines)))
    assert [words.split()[4] for words in said] == ["average", "layers", "overhead"]


def test_what_table_1_shades_is_what_lies_within_99_percent():
    *depths, _ = wei2021.published_table1().lines
    marks = near_best(depths)
    rte = [depth for depth, marked in enumerate(marks, 1) if marked[TASKS.index("RTE")]]
    assert rte == [5, 6, 8, 9]  # 71.5 x 0.99 = 70.785
    assert near_best([Line(name="a", scores=(None,)), Line(name="b", scores=(3.0,))]) == [[False], [True]]


def test_no_choice_at_the_printed_layers_beats_the_printed_one():
    table = wei2021.published_table5()
    for c, layers in ((1, 33), (2, 20), (3, 18)):
        rule, best = line(table, f"rule, c = {c}"), line(table, f"best within {layers} layers")
        assert (rule.average, rule.layers) == (pytest.approx(best.average), best.layers)


# Ours


def test_runs_are_read_from_a_results_file_and_from_json_lines(tmp_path, runs):
    whole, lines, cut = tmp_path / "r.json", tmp_path / "r.jsonl", tmp_path / "cut.jsonl"
    whole.write_bytes(msgspec.json.encode({"name": "x", "rows": study(), "claims": []}))
    raw = b"".join(msgspec.json.encode(one) + b"\n" for one in study())
    lines.write_bytes(raw)
    cut.write_bytes(raw + b'{"task": "rte", "se')
    assert wei2021.read_runs(whole) == wei2021.read_runs(lines) == wei2021.read_runs(cut) == runs
    assert len(runs) == len(study()) - len(SEEDS) * len(BRANCHES)  # without the searches


BAD = {
    "no-json": (b"task,score\n", "neither a results file nor JSON lines"),
    "no-rows": (b'{"rows": []}', "holds no run"),
    "other-rows": (b'{"rows": [{"speed": 3}]}', "holds no run"),
    "no-score": (b'{"task": "a", "seed": 1, "method": "full", "layers": 6, "test": 0.5}', "row 1"),
    "a-word": (b'{"task": "a", "seed": 1, "method": "full", "layers": 6, "test": 0.5, "validation": "x"}', "row 1"),
    "not-utf-8": (b"\xff\xfe", "neither a results file nor JSON lines"),
    "empty": (b"", "holds no run"),
}


@pytest.mark.parametrize(("content", "words"), BAD.values(), ids=BAD)
def test_files_that_hold_no_runs_are_refused(content, words, tmp_path):
    (tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(DataError, match=words) as caught:
        wei2021.read_runs(tmp_path / "bad.json")
    assert "bad.json" in str(caught.value)
    with pytest.raises(DataError, match=r"cannot read .*none\.json"):
        wei2021.read_runs(tmp_path / "none.json")


def test_two_rows_of_one_run_are_refused_and_a_student_run_anew_replaces():
    with pytest.raises(DataError, match="second one of the same run"):
        wei2021.runs_of([*study(), study()[0]])
    again = row("rte", 1, "student", 1, 70.0, tap=1, init="teacher")
    (found,) = [
        run for run in wei2021.runs_of([*study(), again]) if (run.task, run.seed, run.option) == ("rte", 1, "student-1")
    ]
    assert found.tap == 1 and found.validation == pytest.approx(0.69)


def test_options_are_branches_and_students_of_teachers_with_mean_validation_scores(runs):
    found = {(o.task, o.name): (o.tap, o.layers, round(o.score, 6)) for o in wei2021.options_of(runs)}
    assert found == {
        **{("rte", f"branch-{n}"): (4 - n, n, s) for n, s in enumerate(BRANCHES["rte"], 1)},
        **{("cola", f"branch-{n}"): (4 - n, n, s) for n, s in enumerate(BRANCHES["cola"], 1)},
        ("rte", "student-1"): (2, 1, 63.0),
        ("cola", "student-1"): (1, 1, 42.0),
        ("cola", "student-2"): (1, 2, 54.0),
    }
    assert [o.task for o in wei2021.options_of(runs)] == ["cola"] * 6 + ["rte"] * 5  # the study's order
    first = {o.name: o.score for o in wei2021.options_of(runs, 1) if o.task == "rte"}
    assert first["student-1"] == pytest.approx(62.0)


def test_an_option_whose_seeds_have_several_taps_pays_for_the_deepest():
    rows = [row("rte", 1, "student", 1, 60.0, tap=3), row("rte", 2, "student", 1, 60.0, tap=1)]
    runs = wei2021.runs_of(rows)
    assert [o.tap for o in wei2021.options_of(runs)] == [3]
    assert [o.tap for o in wei2021.options_of(runs, 2)] == [1]


def test_the_paper_chooses_from_students_and_the_best_branch(runs):
    offered = wei2021.as_published(wei2021.options_of(runs))
    assert [(o.task, o.name) for o in offered] == [
        ("cola", "branch-3"),  # as good as 4, and less
        ("cola", "student-1"),
        ("cola", "student-2"),
        ("rte", "branch-2"),
        ("rte", "student-1"),
    ]


def test_the_mixed_model_is_chosen_on_validation_and_scored_by_seed_on_test(runs):
    """c = 1: cola 55 - 3, 42 - 1, 54 - 2: a tie at 52, so more layers; rte 66 - 2 beats 63 - 1."""
    found = wei2021.mixed(runs, 1.0)
    assert {task: o.name for task, o in found.allocation.chosen.items()} == {"cola": "branch-3", "rte": "branch-2"}
    assert (found.allocation.layers, found.allocation.depth) == (2 + 3 + 2, 2)
    assert found.scores["cola"] == pytest.approx({1: 44.0, 2: 45.0, 3: 46.0})
    assert found.seeds == pytest.approx({1: 49.5, 2: 50.5, 3: 51.5})
    cheaper = wei2021.mixed(runs, 1.1)
    assert cheaper.allocation.chosen["cola"].name == "student-2"
    assert cheaper.allocation.layers == 2 + 2 + 2
    assert wei2021.mixed(runs, 1.0, split="validation").seeds[2] == pytest.approx(60.5)


@pytest.mark.parametrize(("statistic", "shift"), [("max", 1.0), ("mean", 0.0), ("median", 0.0)])
def test_table_1_has_every_depth_and_full_fine_tuning(runs, statistic, shift):
    table = wei2021.table1(runs, statistic=statistic)
    assert table.tasks == ("cola", "rte")
    assert [found.name for found in table.lines] == [f"L = {n}" for n in (1, 2, 3, 4)] + ["full fine-tuning"]
    for n, found in enumerate(table.lines[:4]):
        expected = [BRANCHES[task][n] - DROP + shift for task in table.tasks]
        assert found.scores == pytest.approx(expected)
        assert found.spreads == pytest.approx([1.0, 1.0])
    assert table.lines[-1].scores == pytest.approx([46.0 + shift, 56.0 + shift])
    assert table.depths == {"cola": 3, "rte": 2}
    assert wei2021.table1(runs, split="validation").lines[0].scores == pytest.approx([41.0, 61.0])
    assert table.notes == ()


def test_table_2_counts_the_layers_of_models_apart_and_merged(runs):
    table = wei2021.table2(runs)
    layers = {found.name: found.layers for found in table.lines}
    assert layers == {
        "full fine-tuning": 8,
        "half depth, distilled whole": 4,
        "MT-DNN (full)": None,
        "MT-DNN (leave-one-out)": None,
        "student-1": 2 + 1 + 1,
        "student-2": 2 + 2 + 2,  # rte has no student of 2: its teacher has no more layers
        "without distillation": 2 + 3 + 2,
        "mixed, c = 1": 2 + 3 + 2,
    }
    assert line(table, "half depth, distilled whole").overhead == 50.0
    assert line(table, "student-1").scores == pytest.approx([32.0, 53.0])
    assert line(table, "student-2").scores == pytest.approx([44.0, 56.0])
    assert "python -m studies wei2021 run-joint" in line(table, "MT-DNN (full)").note
    assert line(table, "student-2").of_full is None  # these runs tell no epochs: full fine-tuning may not have learned
    known = {task: Learned(state=CONVERGED, why="") for task in table.tasks}
    of_full = line(table_of(table.tasks, 8, table.lines, learned=known), "student-2").of_full
    assert of_full == pytest.approx(100 * 50.0 / 51.0)
    assert line(table, "student-2").spread == pytest.approx(1.0)


def test_table_2_has_joint_training_where_its_runs_are_given():
    """One trunk of four layers for both tasks; trunks that leave a task out are no one model, so count no layers."""
    joint = [row(task, s, "together", 4, 60.0) for s in SEEDS for task in BRANCHES]
    joint += [row(task, s, "left-out", 4, 50.0) for s in SEEDS for task in BRANCHES if task != "rte"]
    runs = wei2021.runs_of([*study(), *joint])
    table, before = wei2021.table2(runs), wei2021.table2(wei2021.runs_of(study()))
    full, left = line(table, "MT-DNN (full)"), line(table, "MT-DNN (leave-one-out)")
    assert (full.layers, full.overhead, full.note) == (4, 50.0, "")
    assert full.scores == pytest.approx((50.0, 50.0)) and full.spread == pytest.approx(1.0)
    assert left.scores == (pytest.approx(40.0), None) and (left.layers, left.average) == (None, None)
    others = [found for found in table.lines if not found.name.startswith("MT-DNN")]
    assert others == [found for found in before.lines if not found.name.startswith("MT-DNN")]
    assert missing(runs) == ("0 of 3 runs of left-out-4 on rte",)
    assert wei2021.options_of(runs) == wei2021.options_of(wei2021.runs_of(study()))


def test_the_spread_of_an_average_is_that_of_the_seeds_averages():
    """Two tasks whose seeds go opposite ways: each cell spreads, the average does not."""
    rows = [row("rte", seed, "full", 4, 60.0) for seed in SEEDS]
    rows += [row("cola", seed, "full", 4, 60.0 - 2 * SPREAD[seed]) for seed in SEEDS]
    (found,) = [one for one in wei2021.table2(wei2021.runs_of(rows)).lines if one.name == "full fine-tuning"]
    assert found.spreads == pytest.approx([1.0, 1.0]) and found.spread == pytest.approx(0.0, abs=1e-9)


def test_table_5_never_shows_a_rule_that_beats_the_exact_choice_on_validation(runs):
    table = wei2021.table5(runs, [0.0, 1.0, 2.0, 4.0, 20.0])
    compared = 0
    for rule, greedy, best in zip(table.lines[1::3], table.lines[2::3], table.lines[3::3], strict=True):
        assert (rule.name[:4], greedy.name[:6], best.name[:4]) == ("rule", "greedy", "best")
        assert best.layers <= rule.layers
        assert sum(o.score for o in best.chosen) >= sum(o.score for o in rule.chosen) - 1e-9
        compared += 1
    assert compared == 5
    assert line(table, "rule, c = 20").layers == 4


def test_a_study_that_is_not_whole_shows_what_there_is(runs):
    part = [run for run in runs if not (run.task == "rte" and run.method in ("full", "student"))]
    part = [run for run in part if not (run.task == "cola" and run.option == "branch-1" and run.seed == 3)]
    assert missing(runs) == ()
    assert set(missing(part)) == {
        "0 of 3 runs of full-4 on rte",
        "2 of 3 runs of branch-1 on cola",
        "0 of 3 runs of student-1 on rte",
        "0 of 3 runs of student-1 from pretrained on rte",
    }
    table = wei2021.table2(part)
    full = line(table, "full fine-tuning")
    assert full.scores == (pytest.approx(46.0), None)
    assert (full.average, full.layers, full.of_full) == (None, None, None)
    student = line(table, "student-1")
    assert student.scores[1] is None and student.layers is None
    assert line(wei2021.table1(part), "L = 1").scores[0] == pytest.approx(30.0)  # the larger of two seeds
    only_full = [run for run in runs if run.method == "full"]
    assert line(wei2021.table2(only_full), "without distillation").average is None
    assert len(wei2021.table5(only_full).lines) == 1


def test_any_choice_can_be_scored_by_seed(runs):
    options = {o.name: o for o in wei2021.options_of(runs) if o.task == "cola"}
    found = wei2021.scored(runs, {"cola": options["branch-1"]})
    assert found.allocation == allocation_of({"cola": options["branch-1"]}, ONE_A_LAYER)
    assert found.seeds == pytest.approx({1: 29.0, 2: 30.0, 3: 31.0})


def test_boxes_hold_the_quartiles_of_the_seeds(runs):
    found = wei2021.boxes(runs)
    assert len(found) == 2 * sum(len(sizes) for sizes in STUDENTS.values())
    box = next(b for b in found if (b.task, b.layers, b.init) == ("cola", 2, "pretrained"))
    assert (box.low, box.first, box.median, box.third, box.high) == pytest.approx((41, 41.5, 42, 42.5, 43))
    assert wei2021.gains(found) == pytest.approx({("cola", 1): 2.0, ("cola", 2): 2.0, ("rte", 1): 2.0})
    with pytest.raises(DataError, match="students"):
        wei2021.boxes([run for run in runs if run.method != "student"])


def test_figure_2_is_drawn_with_a_panel_a_task(runs, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        wei2021.plot_figure2(runs, tmp_path / "figure2.svg")
    root = ElementTree.parse(tmp_path / "figure2.svg").getroot()
    text = " ".join(node.text or "" for node in root.iter() if node.tag.endswith("text"))
    for words in ("cola", "rte", "from pre-trained layers", "from the teacher's layers", "3 seeds", "points"):
        assert words in text


def test_figure_2_without_matplotlib_names_the_extra(runs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"polyhead\[plots\]"):
        wei2021.plot_figure2(runs, tmp_path / "figure2.svg")
