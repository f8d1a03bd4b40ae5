"""Gains, gaps and what is missing, from rows whose answer is known by hand; and the drawings of them."""

import math
import sys
from xml.etree import ElementTree

import msgspec
import pytest

from polyhead.errors import DataError, MissingExtra
from studies.aghajanyan2021 import figures, scaling, tables
from studies.aghajanyan2021.mixes import NESTED_MIXES
from studies.aghajanyan2021.sets import MIX
from studies.aghajanyan2021.study import (
    better,
    gains,
    gap_closed,
    gaps,
    mean_by_seed,
    missing,
    nested,
    read_rows,
    rows_of,
    scores,
    sizes_of,
    tasks_of,
    trunks_of,
)
from studies.shared.rows import over_seeds
from studies.tests.rows import DROP, GAIN, SPREAD, TASKS, row, study


@pytest.fixture
def rows():
    return rows_of(study())


def test_gains_are_differences_of_the_same_task_and_seed(rows):
    found = gains(rows, "sets-12")
    assert set(found) == set(TASKS)
    for points in found.values():
        assert points == pytest.approx({seed: 2.0 + shift for seed, shift in SPREAD.items()})
    at_100 = gains(rows, "sets-24", size=100)["rte"]
    assert at_100 == pytest.approx({1: 7.0, 2: 8.0, 3: 9.0})
    on_validation = scores(rows, "sets-12", split="validation")["rte"]
    assert on_validation[2] == pytest.approx(62.0 + DROP)
    assert gains(rows, "no such mix") == {}


def test_means_over_seeds_come_with_their_deviation(rows):
    found = over_seeds(mean_by_seed(rows, gains(rows)))
    assert (found.mean, found.deviation, found.seeds) == (pytest.approx(4.0), pytest.approx(1.0), 3)
    alone = over_seeds({1: 2.0})
    assert (alone.deviation, alone.seeds) == (None, 1) and over_seeds({}) is None
    assert better(rows) == tasks_of(rows) == ("rte", "mrpc")  # the study's order
    assert better(rows_of([*study(), *_worse()]), "worse") == ("mrpc",)


def _worse():
    return [row("heads", "worse", task, 1, TASKS[task] + gain) for task, gain in (("rte", -1), ("mrpc", 1))]


def test_the_share_closed_is_the_sum_of_gains_over_the_sum_of_gaps(rows):
    """Gaps 10 and 4 in the mean, gains 4 each: 8 of 14; a seed alone (4 + s) over (7 + s)."""
    assert mean_by_seed(rows, gaps(rows)) == pytest.approx({1: 6.0, 2: 7.0, 3: 8.0})
    found = gap_closed(rows)
    assert found.share == pytest.approx(8 / 14)
    assert found.seeds == pytest.approx({1: 3 / 6, 2: 4 / 7, 3: 5 / 8})
    assert (found.gain.mean, found.gap.mean) == pytest.approx((4.0, 7.0))


def test_a_trunk_that_fine_tuning_does_not_beat_has_no_share():
    raw = [row("heads", "plain", "rte", 1, 60.0), row("full", "plain", "rte", 1, 55.0)]
    found = gap_closed(rows_of([*raw, row("heads", "m", "rte", 1, 61.0)]), "m")
    assert (found.share, found.seeds, found.gap.mean) == (None, {}, pytest.approx(-5.0))


def test_seeds_that_lack_a_task_do_not_count_in_means_and_are_named(rows):
    part = [r for r in rows if not (r.task == "rte" and r.seed == 3 and r.mix == "sets-24")]
    assert missing(rows) == ()
    assert missing(part) == tuple(
        f"2 of 3 seeds of heads over the trunk sets-24, {size} rows, on rte" for size in (100, 1500)
    )
    assert set(mean_by_seed(part, gains(part))) == {1, 2}
    assert gap_closed([r for r in rows if r.stage != "full"]) is None


def test_nested_mixes_are_a_curve_from_nothing(rows):
    found = nested(rows)
    assert list(found) == [0, 6, 12, 18, 24]
    assert found[0] == {1: 0.0, 2: 0.0, 3: 0.0} and found[18][2] == pytest.approx(3.0)
    assert list(nested([r for r in rows if r.mix in ("plain", "sets-6")])) == [0, 6]
    assert sizes_of(rows) == (100, 1500) and sizes_of(rows, "sets-6") == (1500,)


def test_rows_of_settings_that_are_not_todays_are_left_out():
    today = NESTED_MIXES[0].digest()
    old, new, plain = (
        row("heads", "sets-6", "rte", 1, 50.0, digest="old"),
        row("heads", "sets-6", "rte", 1, 61.0, digest=today),
        row("heads", "plain", "rte", 1, 60.0),
    )
    assert gains(rows_of([new, old, plain]), "sets-6")["rte"] == pytest.approx({1: 1.0})
    assert gains(rows_of([old, plain]), "sets-6")["rte"] == pytest.approx({1: -10.0})  # better than nothing
    twice = rows_of([plain, row("heads", "plain", "rte", 1, 99.0)])
    assert [r.test for r in twice] == [0.6]


def test_files_of_parts_are_read_together_and_other_files_are_refused(tmp_path):
    one, other = tmp_path / "a.jsonl", tmp_path / "b.json"
    one.write_bytes(b"\n".join(msgspec.json.encode(r) for r in study((1,))) + b'\n{"stage": "he')
    other.write_bytes(msgspec.json.encode({"rows": study((2, 3)), "claims": []}))
    rows, trunks = read_rows([one, other])
    assert set(rows) == set(rows_of(study())) and len(trunks) == 3 * len(GAIN)
    (tmp_path / "c.json").write_text('{"rows": [{"speed": 1}]}')
    with pytest.raises(DataError, match="holds no run of a held-out task"):
        read_rows([tmp_path / "c.json"])
    wrong = {**row("heads", "plain", "rte", 1, 1.0), "test": "x"}
    with pytest.raises(DataError, match="row 2"):
        rows_of([row("heads", "plain", "rte", 2, 1.0), wrong])


def test_of_a_trunk_learned_anew_the_last_row_counts():
    (first, *_) = [r for r in study() if r["stage"] == "trunk"]
    (found,) = trunks_of([first, {**first, "seconds": 5.0}])
    assert found.seconds == 5.0


def test_tables_hold_every_task_once_with_both_trunks(rows):
    found = tables.compared(rows)
    assert [one.task for one in found] == ["rte", "mrpc"]
    (rte, _) = found
    assert (rte.plain.mean, rte.mixed.mean, rte.gain.mean, rte.full.mean) == pytest.approx((60, 64, 4, 70))
    assert rte.full_mixed is None
    refined = rows_of([*study(), row("full", "sets-24", "rte", 1, 75.0, digest="d")])
    assert tables.compared(refined, tasks=["rte"])[0].full_mixed.mean == pytest.approx(75.0)
    ways = tables.ways(rows, ("heterogeneous", "batch", "dataset"))
    assert [way.gain and way.gain.mean for way in ways] == [pytest.approx(3.0), pytest.approx(2.0), None]


def test_families_hold_each_set_once_and_rows_are_those_of_the_trunk():
    every = tables.families()
    assert sorted(name for f in every for name in f.sets) == sorted(one.folder for one in MIX)
    assert len(every) >= 4 and sum(f.rows for f in every) == 24 * 1500
    of_trunk = tables.families(trunks_of(study()), mix="sets-6")
    assert {f.name: f.rows for f in of_trunk} == {"classification": 1500, "tagging": 1400}


def test_factors_are_those_of_the_paper_and_a_uniform_guess_loses_one():
    """papers.md 4.a.3 has the values."""
    logs = {f.outcomes: round(f.log, 3) for f in scaling.factors()}
    printed = {2: 0.693, 3: 1.099, 4: 1.386, 5: 1.609, 14: 2.639, 384: 5.951, 50_265: 10.825}
    assert printed.items() <= logs.items()
    pytest.importorskip("torch")
    guesses = scaling.uniform_guesses()
    assert len({g.kind for g in guesses}) == 7
    for guess in guesses:
        assert guess.scaled == pytest.approx(1.0, abs=1e-5), guess.kind
    plain = {g.outcomes: g.plain for g in guesses}
    assert plain["77 labels"] == pytest.approx(math.log(77))


DRAWN = {
    "gains": (figures.plot_gains, ("rte", "mrpc", "mean", "full fine-tuning of the plain trunk", "24 sets")),
    "nested": (figures.plot_nested, ("rte", "sets that the trunk learned from", "mean of 2 tasks, 3 seeds")),
    "heat": (figures.plot_heat, ("plain trunk", "gain", "+4.0", "+8.0", "mrpc", "3 seeds")),
    "mixes": (
        lambda rows, path: figures.plot_mixes(rows, ("heterogeneous", "batch", "dataset"), path),
        ("heterogeneous", "batch", "3 seeds"),
    ),
}


@pytest.mark.parametrize("name", DRAWN)
def test_figures_are_drawn_with_their_words(name, rows, tmp_path):
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    draw, words = DRAWN[name]
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        draw(rows, tmp_path / "f.svg")
    root = ElementTree.parse(tmp_path / "f.svg").getroot()
    text = " ".join(node.text or "" for node in root.iter() if node.tag.endswith("text")).replace("−", "-")
    for word in words:
        assert word in text, text


@pytest.fixture
def drawn(monkeypatch):
    """The figures and axes that were drawn on."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    sheets, make = [], figures.sheet
    monkeypatch.setattr(figures, "sheet", lambda *size, **more: sheets.append(make(*size, **more)) or sheets[-1])
    return sheets


ONE_TRUNK = [one for one in study() if one["mix"] == "plain" or one["seed"] == 1]  # three seeds of heads over the plain


def test_figures_count_the_seeds_of_learned_trunks(drawn, tmp_path):
    """Heads over the plain trunk, which come first and are cheaper, may have more."""
    rows = rows_of(ONE_TRUNK)
    figures.plot_nested(rows, tmp_path / "f.png")
    assert [one.get_text() for one in drawn[0][1].get_legend().get_texts()] == ["mean of 2 tasks, 1 seed"]
    figures.plot_gains(rows, tmp_path / "f.png")
    figure, axes = drawn[1]
    assert axes.get_title() == "trunk that learned from 24 sets, 1 seed"
    assert "3 seeds" in figure.legends[0].get_texts()[0].get_text()
    mixed = rows_of([one for one in study() if one["mix"] != "sets-6" or one["seed"] == 1])
    figures.plot_nested(mixed, tmp_path / "f.png")
    assert "1 to 3 seeds" in drawn[2][1].get_legend().get_texts()[0].get_text()


@pytest.mark.parametrize("draw", [figures.plot_gains, figures.plot_nested], ids=["gains", "nested"])
def test_one_seed_has_no_error_bars(draw, drawn, tmp_path):
    from matplotlib.collections import LineCollection

    bars = []
    for several in (ONE_TRUNK, study()):
        draw(rows_of(several), tmp_path / "f.png")
        axes = drawn[-1][1]
        bars.append([one for one in axes.get_children() if isinstance(one, LineCollection)])
    assert not bars[0] and bars[1]


@pytest.mark.parametrize("draw", [figures.plot_gains, figures.plot_nested], ids=["gains", "nested"])
def test_words_stay_on_the_sheet_and_apart(draw, drawn, tmp_path):
    """With the study's eight tasks, five of which end at almost one height."""
    from matplotlib.text import Text

    gain = {"stsb": 9.0, "mrpc": 4.0, "rte": 0.0, "cola": 0.1, "emotion": 0.2, "banking77": 0.2}
    gain |= {"snips_slots": 0.3, "commonsenseqa": -8.0}
    one = [row("full", "plain", task, 1, 60.0) for task in gain]
    one += [row("heads", "plain", task, 1, 50.0) for task in gain]
    one += [row("heads", mix, task, 1, 50.0 + up, digest="d") for task, up in gain.items() for mix in GAIN]
    draw(rows_of(one), tmp_path / "f.png")
    figure, axes = drawn[0]
    figure.draw_without_rendering()  # in the figure's own resolution, which the file's is not
    names = axes.texts or axes.get_xticklabels()
    assert {name.get_text() for name in names} >= set(gain)
    for word in (*names, axes.yaxis.label, *([axes.title] if axes.get_title() else [])):
        box = word.get_window_extent()
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1, word
        assert figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1, word
    boxes = sorted((Text.get_window_extent(name) for name in axes.texts), key=lambda box: box.y0)  # without leaders
    assert all(below.y1 <= above.y0 for below, above in zip(boxes, boxes[1:], strict=False))


@pytest.mark.parametrize("name", DRAWN)
def test_nothing_to_draw_is_said_and_so_is_a_missing_package(name, rows, tmp_path, monkeypatch):
    draw, _ = DRAWN[name]
    with pytest.raises(DataError, match="run the study further"):
        draw([r for r in rows if r.mix == "plain"], tmp_path / "f.svg")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"polyhead\[plots\]"):
        draw(rows, tmp_path / "f.svg")
