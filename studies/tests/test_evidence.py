"""When a claim about quality is shown, refuted or neither: intervals against scipy, and cases worked by hand."""

import numpy as np
import pytest
from scipy import stats

from studies import trained
from studies.evidence import (
    Estimate,
    by_draw,
    counted,
    distance,
    estimate,
    judged,
    least,
    most,
    proportion,
    unpaired,
    verdict,
)
from studies.results import broken
from studies.seen import marked, seen, seen_lines
from studies.shared.rows import over_seeds
from studies.trained import CONVERGED, NOT, UNKNOWN, Fit, Learned, learned, mark_lines, unknown, whole

NARROW = Estimate(mean=1.0, low=0.5, high=1.5, seeds=3)


def test_an_interval_is_that_of_students_t():
    points = [1.0, 2.5, 2.0, 4.0]
    low, high = stats.ttest_1samp(points, 0).confidence_interval(0.95)
    found = estimate(points)
    assert (found.mean, found.low, found.high, found.seeds) == pytest.approx((2.375, low, high, 4))
    alone = estimate([3.0])
    assert (alone.mean, alone.low, alone.seeds, alone.is_enough) == (3.0, None, 1, False)
    assert estimate([]).seeds == 0 and not estimate([1.0, 1.1]).is_enough


def test_means_and_deviations_alone_give_welchs_interval():
    one, other = [1.0, 2.0, 4.0], [0.5, 0.7, 0.6, 1.4]
    low, high = stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    found = unpaired([(over_seeds(dict(enumerate(one))), over_seeds(dict(enumerate(other))))])
    assert (found.low, found.high, found.seeds) == pytest.approx((low, high, 3))
    twice = unpaired([(over_seeds(dict(enumerate(one))), over_seeds(dict(enumerate(other))))] * 2)
    assert twice.mean == pytest.approx(found.mean) and twice.high - twice.low < found.high - found.low


def test_tasks_are_averaged_by_seed_before_seeds_are():
    """A seed that lacks a task counts for none."""
    found = by_draw({"a": {1: 0.0, 2: 2.0, 3: 9.0}, "b": {1: 4.0, 2: 4.0}})
    assert (found.mean, found.seeds) == (2.5, 2) and found.low < 2.0
    assert by_draw({}).seeds == 0
    apart = by_draw({"a": {1: 1.0}, "b": {2: 3.0}})
    assert (apart.mean, apart.low, apart.seeds) == (2.0, None, 0)
    assert judged("a", "gain", by_draw({}), target=0.0).note == "not shown: 0 of 3 seeds or draws"


def test_a_share_of_draws_has_the_interval_of_its_zeros_and_ones():
    answers = np.repeat([1.0, 0.0], [30, 10])
    found, same = proportion(30, 40), estimate(answers)
    assert (found.mean, found.low, found.high) == pytest.approx((same.mean, same.low, same.high))


def test_ends_of_several_and_distances():
    wide = Estimate(mean=2.0, low=-1.0, high=5.0, seeds=5)
    assert least([NARROW, wide]) == Estimate(mean=1.0, low=-1.0, high=1.5, seeds=3)
    assert most([NARROW, wide]) == Estimate(mean=2.0, low=0.5, high=5.0, seeds=3)
    assert least([NARROW, estimate([9.0])]).low is None
    assert distance(wide) == Estimate(mean=2.0, low=0.0, high=5.0, seeds=5)
    below = distance(Estimate(mean=-1.0, low=-1.5, high=-0.5, seeds=3))
    assert (below.mean, below.low, below.high) == (1.0, 0.5, 1.5)


def test_a_count_goes_from_those_that_surely_are_to_those_that_may_be():
    """One surely above 0, one surely not, one by its mean alone."""
    of = {"a": NARROW, "b": Estimate(mean=-1.0, low=-2.0, high=-0.5, seeds=3), "c": estimate([-1.0, 0.0, 4.0])}
    found = counted(of, 0.0, side="above")
    assert (found.mean, found.low, found.high, found.seeds) == (2, 1, 2, 3)


@pytest.mark.parametrize(
    ("target", "side", "outcome"),
    [(0.5, "least", True), (0.5, "above", None), (1.0, "least", None), (1.6, "least", False), (1.5, "most", True)],
)
def test_the_whole_interval_decides(target, side, outcome):
    assert verdict(NARROW, target, side) is outcome


def test_a_claim_is_shown_refuted_or_neither_and_says_why():
    shown = judged("a", "gain", NARROW, target=0.0)
    assert (shown.holds, shown.note, shown.interval, shown.seeds) == (True, "", (0.5, 1.5), 3)
    assert judged("a", "gain", NARROW, target=2.0, note="why").note == "why"
    few = judged("a", "gain", estimate([1.0, 1.1]), target=0.0)
    assert few.holds is None and few.note == "not shown: 2 of 3 seeds or draws"
    both = judged("a", "gain", NARROW, target=1.0, note="more")
    assert both.note == "not shown: the interval holds both sides of the target; more"
    assert judged("a", "gain", NARROW, target=0.0, lacking="no runs of b").holds is None
    assert not any(map(broken, (shown, few, both)))


def test_the_side_that_is_behind_must_have_learned():
    """What is ahead may well not have converged: more training would only help it."""
    poor, good = unknown("fine-tuning"), Learned(state=CONVERGED, why="")
    assert judged("a", "gain", NARROW, target=0.0, against=poor).holds is None
    assert judged("a", "gain", NARROW, target=0.0, ours=poor, against=good).holds is True
    assert judged("a", "gain", NARROW, target=2.0, ours=good, against=poor).holds is False
    lost = judged("a", "gain", NARROW, target=2.0, ours=poor)
    assert lost.holds is None and lost.loser == UNKNOWN and "its rows hold no epochs" in lost.note


@pytest.fixture
def simple(monkeypatch):
    """Simple scores of one task, at two sizes."""
    rows = [
        {
            "set": "rte",
            "size": size,
            "rows": rows,
            "metric": "accuracy",
            "baselines": {"cosine": score, "constant": 0.5},
        }
        for size, rows, score in (("8", 16, 0.60), ("8", 16, 0.62), ("64", 128, 0.65), ("all", 2490, 0.70))
    ]
    monkeypatch.setattr(trained, "results_rows", lambda name: rows)
    trained._simple_rows.cache_clear()
    yield
    trained._simple_rows.cache_clear()


def fits(score, *epochs, rows=1000, metric="accuracy", task="rte"):
    return [Fit(task=task, score=score, best_epoch=epoch, metric=metric, rows=rows) for epoch in epochs]


def test_simple_scores_have_at_most_as_many_rows(simple):
    assert trained.simple_scores("rte", "accuracy", 1000) == pytest.approx({"cosine": 65.0, "constant": 50.0})
    assert trained.simple_scores("rte", "accuracy", 16) == pytest.approx({"cosine": 61.0, "constant": 50.0})
    assert trained.simple_scores("rte", "matthews", 1000) == trained.simple_scores("cola", "accuracy", 1000) == {}


@pytest.mark.parametrize(
    ("found", "state", "why"),
    [
        (fits(66.0, 1, 2, 2), CONVERGED, "rte"),
        (fits(66.0, 1, 3, 2), NOT, "rte: 1 of 3 runs end at the last epoch"),
        (fits(64.0, 1, 2, 2), NOT, "rte: 64.0 is below the untrained cosine, 65.0"),
        (fits(66.0, 1, None), UNKNOWN, "rte"),
        (fits(66.0, 1, 2, metric="matthews"), UNKNOWN, "rte"),
    ],
    ids=["learned", "last epoch", "below a simple score", "no epochs", "no simple score"],
)
def test_a_baseline_has_learned_or_is_marked(simple, found, state, why):
    one = learned(found, allowed=3)["rte"]
    assert (one.state, one.why) == (state, why)


def test_a_method_is_as_good_as_its_worst_task(simple):
    tasks = learned([*fits(64.0, 3, 3), *fits(90.0, 1, task="cola"), *fits(70.0, 1, task="rte2")], allowed=3)
    found = whole("full fine-tuning", tasks)
    assert found.state == NOT and "on 1 of 3 tasks (2 of 4 runs end at the last epoch; rte 64.0 is below" in found.why
    lines = mark_lines("full", tasks)
    assert lines[1].startswith("! full, not converged: rte: 2 of 2") and lines[2].endswith("beside it: cola, rte2")
    assert whole("full", learned(fits(66.0, 1), allowed=3)).state == CONVERGED
    assert mark_lines("full", learned(fits(66.0, 1), allowed=3)) == []


def test_sets_that_the_trunk_has_seen_are_marked_by_any_of_their_names():
    assert marked("glue_mnli") == "glue_mnli‡" and marked("mnli") == "mnli‡" and marked("STS-B") == "STS-B†"
    assert marked("superglue_boolq") == "superglue_boolq†" and seen("rte") is None and marked("emotion") == "emotion"
    assert seen_lines(["rte"]) == [] and len(seen_lines(["mnli", "rte"])) == 3
