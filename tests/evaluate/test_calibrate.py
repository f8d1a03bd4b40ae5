"""What calibration finds on labelled rows: scaling, thresholds, sets; and what it refuses."""

import numpy as np
import pytest

from polyhead.errors import BadValue, ConfigError, EmptyData
from polyhead.evaluate.calibrate import CalibrateRequest, fit_calibration, halved, measures
from polyhead.evaluate.probabilities import (
    LENT,
    Goal,
    LabelledOutputs,
    best_temperature,
    conformal_quantile,
    error_of,
    fit_scaling,
    label_scores_of,
    log_loss,
    of_label,
    of_labels,
    rows_for,
)
from polyhead.store.jobs.answers import calibrated_arrays
from polyhead.tasks.agreement import wilson
from polyhead.tasks.calibration import Calibration, SetRule, with_calibrated
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.metrics import calibration_error
from polyhead.tasks.task import Task

MOOD = Task(name="mood", kind="single_label", labels=("bad", "good", "so-so"))
TOPICS = Task(name="topics", kind="multi_label", labels=("order", "bill", "card"))
URGENCY = Task(name="urgency", kind="regression", range=(0.0, 5.0))
WHICH = Task(name="which", kind="multiple_choice")


def drawn(count, *, temperature=1.0, seed=0):
    """Outputs of a single_label task whose labels are drawn by their probabilities, then made too sure."""
    rng = np.random.default_rng(seed)
    outputs = rng.normal(size=(count, 3)) * 1.5
    chances = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    targets = [np.asarray(rng.choice(3, p=row)) for row in chances]
    return list((outputs * temperature).astype(np.float32)), targets


def drawn_topics(count, *, temperature=1.0, seed=0):
    rng = np.random.default_rng(seed)
    outputs = rng.normal(size=(count, 3)) * 2
    targets = (rng.random((count, 3)) < 1 / (1 + np.exp(-outputs))).astype(np.float32)
    return list((outputs * temperature).astype(np.float32)), list(targets)


def drawn_numbers(count, *, seed=0):
    rng = np.random.default_rng(seed)
    answers = rng.random(count)
    return [np.array([a], np.float32) for a in answers], [
        np.asarray(a) for a in np.clip(answers + rng.normal(size=count) / 9, 0, 1)
    ]


def test_calibration_error_is_that_of_a_case_worked_by_hand():
    """Two bins: 0.9 sure and half right, 0.2 sure and never right."""
    confidence, right = np.array([0.9, 0.9, 0.2, 0.2]), np.array([1.0, 0.0, 0.0, 0.0])
    assert calibration_error(confidence, right) == pytest.approx(0.5 * 0.4 + 0.5 * 0.2)
    assert calibration_error(np.ones(3), np.ones(3)) == 0  # the last bin holds 1


def test_a_conformal_quantile_is_the_value_of_its_rank():
    values = np.arange(1, 20) / 20  # 19 values: ceil(20 * 0.9) = 18
    assert conformal_quantile(values, 0.9) == pytest.approx(0.9)
    assert conformal_quantile(values[:8], 0.9) is None
    assert conformal_quantile(values[:9], 0.9) == pytest.approx(0.45)
    assert [rows_for(coverage) for coverage in (0.5, 0.8, 0.9, 0.99)] == [1, 4, 9, 99]


def test_a_lower_bound_is_wilson_s():
    """8 of 10 at 95 % from both sides: 0.490 (Wilson 1927)."""
    assert wilson(np.array(8), np.array(10), z=1.959964)[0] == pytest.approx(0.4902, abs=1e-4)
    assert wilson(np.array(3), np.array(4), z=0.0)[0] == pytest.approx(0.75)


def test_the_temperature_is_that_of_a_search_over_many():
    outputs, targets = drawn(400, temperature=3.0)
    rows = label_scores_of(MOOD, outputs, targets)
    tried = np.exp(np.linspace(np.log(0.5), np.log(8), 2000))
    losses = [log_loss(rows, Calibration(scale=(1 / t,)).probabilities(MOOD, rows.logarithms)) for t in tried]
    assert best_temperature(rows) == pytest.approx(tried[int(np.argmin(losses))], rel=0.005)


def test_the_loss_of_answers_that_are_all_right_and_sure_has_no_sign():
    """It was printed as -0.0000."""
    rows = label_scores_of(MOOD, [np.array([1000.0, 0.0, 0.0], np.float32)] * 3, [0] * 3)
    assert f"{log_loss(rows, Calibration().probabilities(MOOD, rows.logarithms)):.4f}" == "0.0000"


@pytest.mark.parametrize("temperature", [0.4, 3.0], ids=["too unsure", "too sure"])
def test_scaling_finds_the_temperature_that_made_answers_too_sure(temperature):
    for task, draw in ((MOOD, drawn), (TOPICS, drawn_topics)):
        calibration = fit_calibration(task, *draw(3000, temperature=temperature))
        assert calibration.measured["temperature"] == pytest.approx(temperature, rel=0.12)
        error = calibration.measured["calibration_error"]
        assert error["after"] < error["before"] / 2
        fresh = label_scores_of(task, *draw(3000, temperature=temperature, seed=1))
        assert error_of(fresh, calibration.probabilities(task, fresh.logarithms)) < 0.04


def test_vector_scaling_undoes_a_shift_that_a_temperature_cannot():
    outputs, targets = drawn(3000)
    shifted = [row + np.array([2.0, 0.0, 0.0], np.float32) for row in outputs]
    rows = label_scores_of(MOOD, shifted, targets)
    losses = {
        method: log_loss(rows, fit_scaling(method, rows).probabilities(MOOD, rows.logarithms))
        for method in ("none", "temperature", "vector")
    }
    true = label_scores_of(MOOD, outputs, targets)
    assert losses["vector"] < losses["temperature"] - 0.1
    assert losses["vector"] == pytest.approx(
        log_loss(true, Calibration().probabilities(MOOD, true.logarithms)), abs=0.01
    )


def test_vector_scaling_leaves_labels_that_no_row_has_at_the_common_temperature():
    outputs, targets = drawn(600, temperature=2.0)
    seen = [(row, target) for row, target in zip(outputs, targets, strict=True) if target != 2]
    calibration = fit_calibration(MOOD, [r for r, _ in seen], [t for _, t in seen], CalibrateRequest(method="vector"))
    rows = label_scores_of(MOOD, *zip(*seen, strict=True))
    assert calibration.shift[2] == 0
    assert "so-so" in calibration.measured["notes"][-1]
    assert np.isfinite(calibration.probabilities(MOOD, rows.logarithms)).all()


def test_scores_stay_as_they_are_where_scaling_does_not_help():
    """Rows that fit are too sure, rows that check are not."""
    calibration = fit_calibration(MOOD, *drawn(400, temperature=5.0), check=drawn(400, seed=1))
    assert calibration.scale == ()
    assert calibration.measured["log_loss"]["after"] == calibration.measured["log_loss"]["before"]
    assert "kept as they are" in calibration.measured["notes"][0]


def test_thresholds_of_one_label_are_those_of_all_that_could_be_chosen():
    """Each goal against a look at every threshold."""
    rng = np.random.default_rng(3)
    probabilities = rng.random(500)
    true = rng.random(500) < probabilities
    for goal in ("f1", "precision=0.8", "recall=0.9"):
        threshold = of_label(probabilities, true, Goal.of(goal))
        given = probabilities >= threshold
        precision, recall = true[given].mean(), given[true].mean()
        others = [probabilities >= other for other in probabilities]
        if goal == "f1":
            best = max(2 * (true & other).sum() / (other.sum() + true.sum()) for other in others)
            assert 2 * (true & given).sum() / (given.sum() + true.sum()) == pytest.approx(best)
        elif goal == "recall=0.9":
            assert 0.9 <= recall < 0.91
        else:
            assert precision >= 0.8
            assert given.sum() > 0.5 * max(other.sum() for other in others if true[other].mean() >= 0.8)


def test_a_threshold_for_recall_loses_no_row_to_rounding():
    true = np.linspace(0.1, 0.9, 9)
    assert of_label(true, np.ones(9, bool), Goal.of("recall=0.9")) == pytest.approx(0.1)


def test_rows_of_one_probability_are_given_together():
    threshold = of_label(np.array([0.5] * 60 + [0.2] * 60), np.array([True, False] * 60), Goal.of("precision=0.9"))
    assert threshold is None
    assert of_label(np.array([0.5] * 60 + [0.2] * 60), np.array([True] * 60 + [False] * 60), Goal.of("f1")) == 0.35


def test_the_asked_precision_and_accuracy_hold_on_other_rows():
    fresh = label_scores_of(MOOD, *drawn(6000, temperature=3.0, seed=5))
    for goal in ("precision=0.85", "accuracy=0.85"):
        calibration = fit_calibration(MOOD, *drawn(4000, temperature=3.0), CalibrateRequest(goal=goal))
        scores = measures(calibration, fresh)
        assert scores["accuracy_of_sure"] > 0.83
        assert 0.1 < scores["sure"] < 0.9
        assert scores["accuracy"] < 0.8


def test_thresholds_of_several_labels_reach_their_goals_on_other_rows():
    fresh = label_scores_of(TOPICS, *drawn_topics(6000, seed=5))
    for goal, key, least in (("precision=0.9", "precision", 0.88), ("recall=0.9", "recall", 0.88)):
        calibration = fit_calibration(TOPICS, *drawn_topics(4000), CalibrateRequest(goal=goal))
        by_label = measures(calibration, fresh)["labels"]
        assert all(scores[key] > least for scores in by_label.values())


def test_a_positive_label_has_a_threshold_that_decides_alone():
    for goal in ("recall=0.9", "precision=0.8", "f1"):
        calibration = fit_calibration(MOOD, *drawn(4000), CalibrateRequest(goal=goal, positive="good"))
        fresh = label_scores_of(MOOD, *drawn(6000, seed=5))
        scores = measures(calibration, fresh)["labels"]["good"]
        assert calibration.positive == "good"
        assert scores["recall"] > 0.87 or goal != "recall=0.9"
        assert scores["precision"] > 0.77 or goal != "precision=0.8"


def test_a_label_that_nothing_can_show_is_never_given():
    outputs, targets = drawn_topics(200)
    rare = [np.array([a, b, 0.0], np.float32) for a, b, _ in targets]
    rare[0] = np.array([0.0, 0.0, 1.0], np.float32)
    rare[1] = rare[0]
    calibration = fit_calibration(TOPICS, outputs, rare, CalibrateRequest(goal="precision=0.9"))
    assert calibration.thresholds[2] == 1.0
    assert "card" in " ".join(calibration.measured["notes"])


def test_sets_hold_the_truth_as_often_as_asked_on_other_rows():
    for task, draw in ((MOOD, drawn), (TOPICS, drawn_topics)):
        calibration = fit_calibration(task, *draw(4000, temperature=2.0), CalibrateRequest(coverage=0.85))
        fresh = label_scores_of(task, *draw(8000, temperature=2.0, seed=5))
        probabilities = calibration.probabilities(task, fresh.logarithms)
        for rule in calibration.sets:
            inside = probabilities >= rule.limit
            true = fresh.targets if fresh.is_sigmoid else np.eye(3, dtype=bool)[fresh.targets]
            assert (inside | ~true).all(axis=1).mean() == pytest.approx(rule.coverage, abs=0.025)
        assert calibration.coverage == 0.85
        assert [rule.coverage for rule in calibration.sets] == [0.8, 0.85, 0.9, 0.95, 0.99]


def test_sets_hold_the_truth_where_probabilities_repeat():
    """A limit that was rounded up left out the very rows that it came from."""
    for chance in np.linspace(0.21, 0.39, 19):
        probabilities = np.array([0.95 - chance, chance, 0.05])
        targets = [np.asarray(label) for label in np.arange(3).repeat(np.rint(100 * probabilities).astype(int))]
        outputs = [np.log(probabilities).astype(np.float32)] * len(targets)
        calibration = fit_calibration(MOOD, outputs, targets, CalibrateRequest(method="none"), check=(outputs, targets))
        for rule in calibration.sets:
            assert calibration.measured["sets"][f"{rule.coverage:g}"]["coverage"] >= rule.coverage


def test_answers_hold_the_truth_where_probabilities_of_several_labels_repeat():
    """Answers make log odds anew from probabilities: some come out a little lower than those that a limit is from."""
    for chance in np.linspace(0.21, 0.39, 19):
        outputs = [np.array([np.log(chance) - np.log1p(-chance), 0.3, -2.0], np.float32)] * 60
        targets = [np.array([1.0, 0.0, 0.0], np.float32)] * 60
        answers = kind_of(TOPICS).decode_all(TOPICS, outputs, [None] * 60)
        for method in ("none", "temperature"):
            wish = CalibrateRequest(method=method, goal="recall=0.9")
            calibration = fit_calibration(TOPICS, outputs, targets, wish)
            for answer in with_calibrated(TOPICS, calibration, answers):
                assert "order" in answer["calibrated"]["set"]
                assert "order" in answer["calibrated"]["labels"]


def test_numbers_get_intervals_and_no_temperature():
    calibration = fit_calibration(URGENCY, *drawn_numbers(2000))
    outputs, targets = drawn_numbers(4000, seed=5)
    off = np.abs(np.concatenate(outputs) - np.array(targets))
    (rule,) = [rule for rule in calibration.sets if rule.coverage == 0.9]
    assert (off <= rule.limit).mean() == pytest.approx(0.9, abs=0.03)
    assert calibration.scale == ()
    assert "no temperature" in calibration.measured["notes"][0]
    for wish in (CalibrateRequest(goal="f1"), CalibrateRequest(unsure_below=0.5)):
        with pytest.raises(BadValue, match="a number has no probability"):
            fit_calibration(URGENCY, *drawn_numbers(200), wish)


def test_questions_with_fewer_options_than_others_are_calibrated():
    rng = np.random.default_rng(0)
    outputs = [rng.normal(size=2 + number % 3).astype(np.float32) * 3 for number in range(600)]
    targets = [np.asarray(rng.integers(len(row))) for row in outputs]
    calibration = fit_calibration(WHICH, outputs, targets)
    rows = label_scores_of(WHICH, outputs, targets)
    probabilities = calibration.probabilities(WHICH, rows.logarithms)
    assert calibration.measured["temperature"] > 3  # labels are drawn by chance alone
    assert probabilities.sum(axis=1) == pytest.approx(1)
    assert (probabilities[:, 2:][[len(row) == 2 for row in outputs]] == 0).all()
    with pytest.raises(EmptyData, match="accuracy of at least 0.9 cannot be shown"):
        fit_calibration(WHICH, outputs, targets, CalibrateRequest(goal="accuracy=0.9"))
    with pytest.raises(BadValue, match="no labels to scale one by one"):
        fit_calibration(WHICH, outputs, targets, CalibrateRequest(method="vector"))


def test_a_goal_that_no_threshold_reaches_is_refused_and_not_made_live():
    """Rows that are all sure and half right: no part of them has a precision of 0.9."""
    outputs, targets = drawn(60)
    sure = [np.eye(3, dtype=np.float32)[number % 3] * 20 for number in range(60)]
    for wish in (
        CalibrateRequest(goal="precision=0.99", positive="good"),
        CalibrateRequest(goal="precision=0.9"),
        CalibrateRequest(goal="accuracy=0.9"),
    ):
        with pytest.raises(EmptyData, match="cannot be shown by any threshold"):
            fit_calibration(MOOD, sure, targets, wish)
    with pytest.raises(EmptyData, match="cannot be shown by any threshold"):
        fit_calibration(TOPICS, *drawn_topics(40), CalibrateRequest(goal="precision=0.99"))


def test_label_unsure_and_set_of_a_calibrated_answer_agree():
    """A positive label that is the likeliest, yet not so likely as its goal needs, gives no label at all."""
    standing = {"positive": "good", "sets": (SetRule(coverage=0.9, limit=0.6),), "coverage": 0.9}
    for threshold, scores, label, members in (
        (0.9, (0.2, 0.7, 0.1), None, ["good"]),
        (0.9, (0.7, 0.2, 0.1), "bad", ["bad"]),
        (0.1, (0.7, 0.2, 0.1), "good", ["bad", "good"]),
        (0.1, (0.4, 0.5, 0.1), "good", ["good"]),
    ):
        calibration = Calibration(thresholds=(0.0, threshold, 0.0), **standing)
        answer = {"label": "good", "scores": dict(zip(MOOD.labels, scores, strict=True))}
        (made,) = with_calibrated(MOOD, calibration, [answer])
        assert (made["calibrated"]["label"], made["calibrated"]["set"]) == (label, members)
        assert made["calibrated"]["unsure"] is (label is None)
        logits = np.log(np.array([scores]))
        arrays = calibrated_arrays(MOOD, calibration, logits)
        assert [MOOD.labels[place] for place in np.flatnonzero(arrays["set"][0])] == members
        assert arrays["label"][0] == (-1 if label is None else MOOD.labels.index(label))


def rare_topics(count, *, labels=30, seed=0):
    """Outputs of many labels, most of them rare: on few rows extreme thresholds look best."""
    rng = np.random.default_rng(seed)
    odds = np.linspace(-1, -4, labels)
    outputs = odds + rng.normal(size=(count, labels)) * 1.5
    targets = (rng.random((count, labels)) < 1 / (1 + np.exp(-outputs))).astype(np.float32)
    return list(outputs.astype(np.float32)), list(targets)


def test_thresholds_for_f1_raise_it_on_other_rows_where_labels_are_rare():
    """With the threshold that is best on each label's own few rows micro F1 falls."""
    task = Task(name="topics", kind="multi_label", labels=tuple(f"topic {number}" for number in range(30)))
    fresh = label_scores_of(task, *rare_topics(4000, seed=9))
    gains = []
    for seed in range(4):
        draw = rare_topics(200, seed=seed)
        calibration = fit_calibration(task, *draw, CalibrateRequest(goal="f1", method="none"))
        gains.append(measures(calibration, fresh)["f1"] - measures(Calibration(), fresh)["f1"])
    assert min(gains) > 0.02, gains


def test_f1_thresholds_are_the_best_of_all_where_a_label_borrows_from_the_others():
    """Against the formula, looked up at every threshold."""
    rng = np.random.default_rng(4)
    probabilities, targets = rng.random((80, 3)), rng.random((80, 3)) < 0.2
    rows = LabelledOutputs(task=TOPICS, logarithms=probabilities, targets=targets)
    share = LENT / targets.sum()
    for label, threshold in enumerate(of_labels(rows, probabilities, Goal.of("f1"), default=np.full(3, 0.5))):

        def f1(least, label=label):
            own, every = probabilities[:, label] >= least, probabilities >= least
            right = (own & targets[:, label]).sum() + share * (every & targets).sum()
            return 2 * right / (own.sum() + targets[:, label].sum() + share * (every.sum() + targets.sum()))

        ordered = np.sort(probabilities[:, label])
        assert f1(threshold) == pytest.approx(max(map(f1, [0.0, *((ordered[1:] + ordered[:-1]) / 2)])))


def test_a_temperature_leaves_the_f1_of_a_learned_threshold_as_it_is():
    task = Task(name="topics", kind="multi_label", labels=("order", "bill", "card"), threshold=0.06)
    outputs, targets = drawn_topics(600, temperature=3.0)
    calibration = fit_calibration(task, outputs, targets)
    rows = label_scores_of(task, outputs, targets)
    assert calibration.scale[0] < 0.5
    assert measures(calibration, rows) == measures(Calibration(), rows)


def test_thresholds_for_f1_are_left_out_where_they_score_worse_on_the_rows_that_check():
    fit, check = drawn_topics(200), drawn_topics(200, seed=1)
    turned = ([row * 0 - 3 for row in fit[0]], fit[1])  # of rows that say nothing everything is given
    calibration = fit_calibration(TOPICS, *turned, CalibrateRequest(goal="f1", method="none"), check=check)
    assert calibration.thresholds == ()
    assert "thresholds stay as they are" in " ".join(calibration.measured["notes"])


def test_a_goal_leaves_the_wished_probability_of_sure_answers():
    """It was dropped where thresholds for F1 were left out, held against them, and overwritten by that of accuracy."""
    for seed in range(4):
        alone = fit_calibration(MOOD, *drawn(200, seed=seed), CalibrateRequest(goal="f1", positive="good"))
        wish = CalibrateRequest(goal="f1", positive="good", unsure_below=0.8)
        calibration = fit_calibration(MOOD, *drawn(200, seed=seed), wish)
        assert calibration.unsure_below == 0.8
        assert (calibration.thresholds, calibration.positive) == (alone.thresholds, alone.positive)
    fit, check = drawn(200), drawn(200, seed=1)
    turned = ([row * 0 for row in fit[0]], fit[1])
    wish = CalibrateRequest(goal="f1", positive="good", unsure_below=0.4, method="none")
    calibration = fit_calibration(MOOD, *turned, wish, check=check)
    assert (calibration.thresholds, calibration.unsure_below) == ((), 0.4)
    for least in (0.2, 0.9):
        wish = CalibrateRequest(goal="accuracy=0.7", unsure_below=least)
        unsure_below = fit_calibration(MOOD, *drawn(2000), wish).unsure_below
        assert unsure_below == 0.9 if least == 0.9 else unsure_below > 0.2


def test_halves_share_each_label_and_are_drawn_by_the_seed():
    strata = [0] * 10 + [1] * 3 + [2]
    first = halved(strata, seed=1)
    assert [int(first[np.array(strata) == label].sum()) for label in (0, 1)] == [5, 1] or first[10:13].sum() == 2
    assert abs(int(first.sum()) - 7) <= 1
    assert (first == halved(strata, seed=1)).all()
    assert any((first != halved(strata, seed=seed)).any() for seed in range(2, 6))


def test_rows_of_one_group_are_in_one_half():
    """A person's rows stood on both sides, so that what was checked was known."""
    groups = [place // 3 for place in range(60)]
    strata = [place % 2 for place in range(60)]
    for seed in range(3):
        first = halved(strata, seed, groups)
        assert {int(first[start : start + 3].sum()) for start in range(0, 60, 3)} == {0, 3}
        assert first.sum() == 30
        np.testing.assert_array_equal(halved(strata, seed, range(60)), halved(strata, seed))
    calibration = fit_calibration(MOOD, *drawn(120), together=[place // 60 for place in range(120)])
    assert calibration.measured["rows"] == {"fit": 60, "check": 60}


@pytest.mark.parametrize(
    ("wish", "error", "words"),
    [
        (CalibrateRequest(goal="precision"), BadValue, "cannot be read"),
        (CalibrateRequest(goal="precision=1.5"), BadValue, "cannot be read"),
        (CalibrateRequest(goal="recall=0.9"), BadValue, "--positive LABEL"),
        (CalibrateRequest(goal="f1", positive="great"), BadValue, "great"),
        (CalibrateRequest(positive="good"), BadValue, "leave out --positive"),
        (CalibrateRequest(goal="accuracy=0.5", positive="good"), BadValue, "leave out --positive"),
        (CalibrateRequest(coverage=1.0), BadValue, "coverage is a share"),
        (CalibrateRequest(coverage=0.999), EmptyData, "999 or more"),
        (CalibrateRequest(unsure_below=2.0), BadValue, "0 to 1"),
    ],
)
def test_wishes_that_cannot_be_met_are_refused(wish, error, words):
    with pytest.raises(error, match=words):
        fit_calibration(MOOD, *drawn(200), wish)


def test_too_few_rows_and_other_kinds_are_refused():
    with pytest.raises(EmptyData, match="40 or more"):
        fit_calibration(MOOD, *drawn(39))
    with pytest.raises(EmptyData, match="40 and 19 to check on"):
        fit_calibration(MOOD, *drawn(40), check=drawn(19))
    names = Task(name="names", kind="tagging", labels=("O", "B-x"))
    with pytest.raises(ConfigError, match="cannot be calibrated"):
        fit_calibration(names, [np.zeros((3, 2))] * 50, [np.zeros(3)] * 50)
    with pytest.raises(BadValue, match="several labels may fit"):
        fit_calibration(TOPICS, *drawn_topics(200), CalibrateRequest(unsure_below=0.5))
    with pytest.raises(BadValue, match="leave out --positive"):  # it was ignored, and every label got a threshold
        fit_calibration(TOPICS, *drawn_topics(200), CalibrateRequest(goal="f1", positive="bill"))
