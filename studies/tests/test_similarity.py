"""The study of similarity: its questions, its scores by hand, and claims that rows decide."""

import numpy as np
import pytest

from polyhead.serve.similarity import words_read
from studies.settings import DATA
from studies.similarity import run, run_jevbench
from studies.similarity.sets import SETS, named, rows_of

FIVE = pytest.mark.parametrize("questioned", SETS, ids=lambda each: each.folder)


@FIVE
def test_every_set_is_a_question_that_can_be_compared(questioned):
    asked = named(questioned, ["a_b", "c"]).asked(described=True)
    words = words_read(asked)
    assert all(each.startswith(questioned.instructions) for each in words)
    assert len(words) == len(asked.options) == len(questioned.options or "ab")


def test_options_of_a_predicate_are_true_and_false():
    asked = SETS[-1].asked(described=True)
    assert asked.form == "predicate" and [option.value for option in asked.options] == [True, False]
    assert len(words_read(SETS[-1].asked(described=False))) == 1


@pytest.mark.data
@FIVE
def test_options_are_the_labels_of_the_set(questioned):
    if not (DATA / questioned.folder).is_dir():
        pytest.skip(f"no data set {questioned.folder}")
    labels = run.labels_of(questioned.folder)
    assert sorted(named(questioned, labels).options) == sorted(labels)
    assert set(rows_of(DATA, questioned.folder, "test").labels) <= set(labels)


def test_scores_by_hand():
    """Four rows: three are right, at 0.9, 0.6 and 0.6; one is wrong at 0.8."""
    shares = np.array([[0.9, 0.1], [0.6, 0.4], [0.4, 0.6], [0.8, 0.2]])
    scores = run.metrics(np.array([0, 0, 1, 1]), shares)
    assert scores["accuracy"] == 0.75
    assert scores["macro_f1"] == pytest.approx((2 * 2 / 5 + 2 * 1 / 3) / 2)
    assert scores["log_loss"] == pytest.approx(-np.log([0.9, 0.6, 0.6, 0.2]).mean())
    assert scores["calibration_error"] == pytest.approx((0.1 + 0.8 + 0.8) / 4)


def test_best_temperature_is_found_again():
    """Labels drawn from softmax(cosines / 0.0625), of probabilities that were made at another temperature."""
    rng = np.random.default_rng(0)
    cosines = rng.uniform(0, 0.5, (4000, 5))
    gold = np.array([rng.choice(5, p=row) for row in run.normalized(cosines * 16)])
    assert run.best_temperature(gold, run.normalized(cosines * 5), 1 / 5) == 1 / 16


def row(questioned, score):
    form = "described" if questioned.options else "names"
    baselines = {"majority": {"accuracy": 0.5, "macro_f1": 0.3}, "chance": 0.2}
    facts = {"question": questioned.form, "labels": 2, "rows": 900, "metric": questioned.metric}
    return {"set": questioned.folder, "options": form, **facts, **baselines, "accuracy": score, "macro_f1": score}


def test_claims_are_against_the_better_baseline():
    claims = {claim.id: claim for claim in run.claims([row(each, 0.4) for each in SETS])}
    for each in SETS:
        name = f"server.similarity-{each.folder.replace('_', '-')}"
        by_texts = claims.pop(name if each.metric == "accuracy" else f"{name}-accuracy")
        assert (by_texts.target, by_texts.holds, by_texts.seeds) == (0.5, False, 900)
        assert each.metric == "accuracy" or claims.pop(name).holds is None  # one number has no interval
    assert not claims
    assert run.lacking([row(each, 0.4) for each in SETS[1:]]) == ["ag_news"]


@pytest.mark.parametrize("lowest", [1.0, 0.9])
def test_isolation_is_the_lowest_of_its_relations(lowest):
    passed = {"pass": 30, "fail": 0, "skip": 0}
    rows = [{"verdict": "conformant", "MUST": passed, "SHOULD": passed}, {"overall": 0.5}]
    rows += [{"relation": name, "score": 1.0} for name in run_jevbench.ISOLATION[1:]]
    conformed, isolation = run_jevbench.claims([*rows, {"relation": run_jevbench.ISOLATION[0], "score": lowest}])
    assert conformed.holds and (isolation.value, isolation.holds) == (lowest, lowest == 1.0)
