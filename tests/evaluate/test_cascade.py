"""A cascade's scores and costs by threshold, against what a set of the bundles answers and counts."""

import json

import msgspec
import numpy as np
import pytest

from polyhead.api.showing import evaluation_on
from polyhead.cli.evaluate_lines import cascade_lines
from polyhead.engine.session import Session
from polyhead.errors import BadValue, ConfigError, EmptyData
from polyhead.evaluate.cascade import NEVER, cascade_of, thresholds_of
from polyhead.testing import tiny_trunk
from support.bundle_sets import EXACT, WORDS, bundle_of, set_of, two_bundles
from support.commands import run

ROWS = 60


def drawn(count=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS, 5)) for _ in range(count)]
    return texts, rng.choice(["good", "bad"], count).tolist()


def cascade_on(cheap, deep, task, texts, labels, **chosen):
    evaluation = evaluation_on(deep, deep.tasks[task], texts, labels)
    return cascade_of(cheap, deep, task, evaluation.answered.examples, **chosen)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    return two_bundles(tmp_path_factory.mktemp("cascade"))


@pytest.fixture(scope="module")
def choice(bundles):
    return cascade_on(*(Session(root, **EXACT) for root in bundles), "mood", *drawn(), points_lost=2.0)


def test_every_point_is_what_the_set_answers_and_counts(bundles, choice):
    texts, labels = drawn()
    assert len(choice.points) > 10 and choice.rows == ROWS and choice.metric == "accuracy"
    for point in choice.points:
        results = set_of(bundles, mood=point.threshold).predict(texts, tasks=["mood"])
        assert point.share == pytest.approx(np.mean([r.receipt.bundles["mood"] == "cheap" for r in results]))
        assert point.score == pytest.approx(
            np.mean([r.answers["mood"]["label"] == own for r, own in zip(results, labels, strict=True)])
        )
        if point.threshold != NEVER:  # a set asks the first bundle in vain; nobody would serve that
            assert point.layers == pytest.approx(np.mean([r.receipt.layers for r in results]))


def test_points_go_from_one_bundle_to_the_other(choice):
    first, *_, last = choice.points
    assert (first.share, first.layers) == (0.0, 4.0) and (last.share, last.layers) == (1.0, 2.0)
    assert [point.threshold for point in choice.points] == sorted((p.threshold for p in choice.points), reverse=True)
    assert [point.share for point in choice.points] == sorted(point.share for point in choice.points)


def test_work_counts_what_a_layer_multiplies(tmp_path):
    """A layer of half the width is about a quarter of the work; counted by hand, at the tokens that were read."""
    narrow, wide = tiny_trunk(layers=4, width=16), tiny_trunk(layers=4, width=32, seed=3)
    bundles = bundle_of(tmp_path / "cheap", narrow, {"mood": 0}), bundle_of(tmp_path / "deep", wide, {"mood": 5})
    texts, labels = drawn()
    found = cascade_on(*(Session(root, **EXACT) for root in bundles), "mood", texts, labels, points_lost=100)
    tokens = 5 + 2  # words that are a token each, and two special tokens

    def products(width, layers=4, feed_forward=2):
        return layers * tokens * (4 * width**2 + 2 * feed_forward * width**2 + 2 * tokens * width)

    own, deep = 2 * products(16), 2 * products(32)  # a product and a sum each
    alone, last = found.points[0], found.points[-1]
    assert alone.work == pytest.approx(deep, rel=0.05) and last.work == pytest.approx(own, rel=0.05)
    for point in found.points[1:]:
        assert point.work == pytest.approx(last.work + (1 - point.share) * alone.work)
        assert point.layers == pytest.approx(4 + (1 - point.share) * 4)
    assert found.chosen == min(found.points, key=lambda point: point.work)
    assert found.work == pytest.approx(last.work / alone.work) and 0.2 < found.work < 0.3


def test_the_cheapest_that_loses_little_is_taken(choice):
    alone = choice.points[0]
    fits = [point for point in choice.points if point.score >= alone.score - 0.02]
    assert choice.chosen in fits and all(choice.chosen.work <= point.work for point in fits)


def test_where_every_threshold_loses_too_much_the_deeper_bundle_stays_alone(bundles):
    """The labels are what the deeper bundle answers."""
    texts, _ = drawn()
    cheap, deep = (Session(root, **EXACT) for root in bundles)
    labels = [result.answers["mood"]["label"] for result in deep.predict(texts, tasks=["mood"])]
    texts = [text for text, label in zip(texts, labels, strict=True) if label == "good"] or texts
    sure = [result.answers["mood"]["label"] for result in cheap.predict(texts, tasks=["mood"])]
    wrong = [{"good": "bad", "bad": "good"}[label] for label in sure]
    deeper = [result.answers["mood"]["label"] for result in deep.predict(texts, tasks=["mood"])]
    both = [(text, label) for text, label, own in zip(texts, wrong, deeper, strict=True) if label == own]
    assert both, "the two bundles differ on some rows"
    found = cascade_on(cheap, deep, "mood", *zip(*both, strict=True), points_lost=0.0)
    assert not found.is_worth_it and found.chosen == found.points[0]


def test_thresholds_part_the_rows_evenly():
    sure = np.linspace(0.5, 1, 200)
    shares = [float((sure >= threshold).mean()) for threshold in thresholds_of(sure)]
    assert shares == pytest.approx([*np.arange(1, 20) / 20, 1.0])
    assert thresholds_of(np.full(7, 0.25)) == [0.25, 0.0]


def test_tasks_that_cannot_be_a_cascade_are_refused(bundles):
    cheap, deep = (Session(root, **EXACT) for root in bundles)
    with pytest.raises(ConfigError, match="cannot be a cascade. Got: kind 'multi_label'"):
        cascade_on(deep, deep, "topics", ["good"], [["order"]])
    with pytest.raises((EmptyData, BadValue)):
        cascade_on(cheap, deep, "mood", [], [])


def test_the_command_prints_how_to_serve_it(bundles, tmp_path):
    texts, labels = drawn()
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": t, "mood": own}) + "\n" for t, own in zip(texts, labels, strict=True)))
    cheap, deep = map(str, bundles)
    words = ("evaluate", deep, "--data", rows, "--cascade", cheap, "--points-lost", "2", "--backend", "reference")
    done = run(*words)
    assert done.code == 0, done.err
    assert f"polyhead serve {cheap} {deep} --cascade mood=" in done.out and "% of the work of deep alone" in done.out
    (found,) = json.loads(run(*words, "--json", "-").out)["cascades"]
    assert f"mood={found['chosen']['threshold']:g}" in done.out
    assert found["points_lost"] == 2 and len(found["points"]) > 10
    none = run(*words, "--task", "topics", "--label", "topics=mood")
    assert none.code == 1


def test_what_the_chosen_cascade_may_lose_is_the_spread_of_as_many_other_rows(bundles):
    """The interval, against the differences of other rows drawn like these; where it is wide, the command says so."""
    sessions = [Session(root, **EXACT) for root in bundles]
    choice = cascade_on(*sessions, "mood", *drawn(300), points_lost=2.0)
    assert choice.chosen.share > 0 and choice.difference.low < choice.chosen.score - choice.points[0].score
    threshold, others = choice.chosen.threshold, []
    for seed in range(1, 25):
        deep, cascade = cascade_on(*sessions, "mood", *drawn(300, seed), thresholds=[threshold]).points
        others.append(cascade.score - deep.score)
    spread = np.subtract(*np.percentile(others, [97.5, 2.5]))
    assert choice.difference.high - choice.difference.low == pytest.approx(spread, rel=0.5)
    assert choice.may_lose_more
    assert "other texts may lose more than 2 points" in cascade_lines(choice, "cheap", "deep")[-1]
    wide = msgspec.structs.replace(choice, points_lost=50.0)
    assert not wide.may_lose_more and "95 % interval" in cascade_lines(wide, "cheap", "deep")[-1]


def test_a_bundle_that_stays_alone_loses_nothing(bundles):
    deep = Session(bundles[1], **EXACT)
    choice = cascade_on(deep, deep, "mood", *drawn(), thresholds=[NEVER])
    assert choice.difference is None and not choice.may_lose_more
