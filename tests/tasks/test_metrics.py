"""Our scores against scikit-learn, scipy and seqeval, on random splits and at the edges."""

import itertools
import random
import re
import warnings

import numpy as np
import pytest
import scipy.stats
import seqeval.metrics
import sklearn.metrics

from polyhead.errors import DataError, EmptyData
from polyhead.tasks import metrics
from support.cases import cases

ROUNDS = range(40)


def random_labels(seed, labels=None):
    rng = np.random.default_rng(seed)
    labels = labels or int(rng.integers(2, 8))
    rows = int(rng.integers(1, 60))
    targets = rng.integers(0, labels, rows)
    keep = rng.random(rows) < rng.random()
    return targets, np.where(keep, targets, rng.integers(0, labels, rows))


def sets(seed):
    rng = np.random.default_rng(seed)
    shape = int(rng.integers(1, 40)), int(rng.integers(1, 6))
    return [(rng.random(shape) < rng.random()).astype(int) for _ in range(2)]


@pytest.mark.parametrize("seed", ROUNDS)
def test_label_metrics_equal_scikit_learn(seed):
    targets, found = random_labels(seed)
    known = {"average": "macro", "zero_division": 0}
    assert metrics.accuracy(targets, found) == pytest.approx(sklearn.metrics.accuracy_score(targets, found))
    assert metrics.macro_f1(targets, found) == pytest.approx(sklearn.metrics.f1_score(targets, found, **known))
    assert metrics.macro_recall(targets, found) == pytest.approx(sklearn.metrics.recall_score(targets, found, **known))
    assert metrics.micro_f1(targets, found) == pytest.approx(
        sklearn.metrics.f1_score(targets, found, average="micro", zero_division=0)
    )
    with warnings.catch_warnings(action="ignore"):  # it warns when only one label occurs
        expected = sklearn.metrics.matthews_corrcoef(targets, found)
    assert metrics.matthews(targets, found) == pytest.approx(expected, abs=1e-12)


@cases("seed", ROUNDS)
def test_f1_of_a_label_equals_scikit_learn(seed):
    targets, found = random_labels(seed, labels=2)
    for label in (0, 1):
        expected = sklearn.metrics.f1_score(targets, found, pos_label=label, zero_division=0)
        assert metrics.f1_of(label)(targets, found) == pytest.approx(expected)


@cases("seed", ROUNDS)
def test_set_metrics_equal_scikit_learn(seed):
    targets, found = sets(seed)
    if targets.shape[1] == 1:  # scikit-learn reads one column as plain labels
        targets, found = np.repeat(targets, 2, axis=1), np.repeat(found, 2, axis=1)
    for average, ours in (("macro", metrics.macro_f1), ("micro", metrics.micro_f1)):
        expected = sklearn.metrics.f1_score(targets, found, average=average, zero_division=0)
        assert ours(targets, found) == pytest.approx(expected)
    assert metrics.accuracy(targets, found) == pytest.approx(sklearn.metrics.accuracy_score(targets, found))


@cases("seed", ROUNDS)
def test_correlations_equal_scipy_with_and_without_ties(seed):
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(3, 80))
    targets = rng.integers(0, 6, rows).astype(float) if seed % 2 else rng.normal(size=rows) * 10.0**seed
    found = targets * rng.normal() + rng.normal(size=rows) * rng.random()
    assert metrics.pearson(targets, found) == pytest.approx(scipy.stats.pearsonr(targets, found).statistic, abs=1e-9)
    assert metrics.spearman(targets, found) == pytest.approx(scipy.stats.spearmanr(targets, found).statistic, abs=1e-9)


def test_correlation_with_a_constant_is_zero():
    constant, other = np.full(7, 0.1), np.arange(7.0)
    for ours in (metrics.pearson, metrics.spearman):
        assert ours(constant, other) == ours(other, constant) == ours(constant, constant) == 0.0
        assert ours(np.array([2.0]), np.array([3.0])) == 0.0


def test_one_class_only_scores_as_scikit_learn_says():
    same, other = np.zeros(5, int), np.ones(5, int)
    assert metrics.macro_f1(same, same) == metrics.macro_recall(same, same) == metrics.accuracy(same, same) == 1.0
    assert metrics.macro_f1(same, other) == metrics.macro_recall(same, other) == 0.0
    assert metrics.f1_of(1)(same, same) == 0.0
    with warnings.catch_warnings(action="ignore"):
        assert metrics.matthews(same, same) == sklearn.metrics.matthews_corrcoef(same, same) == 0.0


def test_nothing_true_and_nothing_given_is_zero():
    nothing = np.zeros((4, 3), int)
    assert metrics.micro_f1(nothing, nothing) == metrics.macro_f1(nothing, nothing) == 0.0
    assert metrics.accuracy(nothing, nothing) == 1.0


@cases(
    "score",
    [metrics.accuracy, metrics.macro_f1, metrics.micro_f1, metrics.macro_recall, metrics.matthews]
    + [metrics.pearson, metrics.spearman, metrics.f1_of(0)],
)
def test_an_empty_split_has_no_score(score):
    with pytest.raises(EmptyData, match="without rows"):
        score(np.array([], int), np.array([], int))


def test_other_shapes_are_refused():
    with pytest.raises(DataError, match="shape"):
        metrics.accuracy(np.zeros(3, int), np.zeros(4, int))


TAGS = ["O", "B-a", "I-a", "B-b", "I-b", "B-a-c", "I-a-c"]


def test_spans_equal_seqevals_on_every_short_sequence():
    looked_at = 0
    for size in (1, 2, 3, 4):
        for tags in itertools.product(TAGS[:5], repeat=size):
            expected = seqeval.metrics.sequence_labeling.get_entities(list(tags))
            ours = [(span.label, span.start, span.stop - 1) for span in metrics.spans_of(tags)]
            assert ours == expected, tags
            looked_at += 1
    assert looked_at == 5 + 25 + 125 + 625


def squad(golds, said):
    """(exact match, F1) of one answer, written out from Rajpurkar et al. 2016 (their 4.1) and 2018, with precision
    and recall."""

    def bare(text):
        kept = [c for c in text.lower() if not (c.isascii() and not c.isalnum() and c.isprintable() and c != " ")]
        return [word for word in re.split(r"\s+", re.sub(r"\b(?:a|an|the)\b", " ", "".join(kept))) if word]

    def f1(gold):
        wanted, found = bare(gold), bare(said)
        if not wanted or not found:
            return float(wanted == found)
        left, common = list(wanted), 0
        for word in found:
            if word in left:
                left.remove(word)
                common += 1
        if not common:
            return 0.0
        precision, recall = common / len(found), common / len(wanted)
        return 2 * precision * recall / (precision + recall)

    golds = [gold for gold in golds if bare(gold)] or [""]
    return max(float(bare(gold) == bare(said)) for gold in golds), max(map(f1, golds))


PARTS = [
    "the",
    "a",
    "An",
    "cat",
    "Cat",
    "sat",
    "on",
    "mat.",
    "U.S.",
    "o'clock",
    "--",
    "1,000",
    "\u00e9t\u00e9",
    "\n",
    "the-cat",
]


@cases("seed", ROUNDS)
def test_answers_are_scored_as_the_squad_script_does(seed):
    chance = random.Random(seed)
    draw = lambda most: " ".join(chance.choices(PARTS, k=chance.randint(0, most)))  # noqa: E731
    targets = [[draw(4) for _ in range(chance.randint(0, 3))] for _ in range(chance.randint(1, 12))]
    said = [chance.choice(row) if row and chance.random() < 0.3 else draw(4) for row in targets]
    rows = [squad(golds, one) for golds, one in zip(targets, said, strict=True)]
    assert metrics.exact_match(targets, said) == pytest.approx(np.mean([exact for exact, _ in rows]))
    assert metrics.answer_f1(targets, said) == pytest.approx(np.mean([f1 for _, f1 in rows]))


@cases(
    ("golds", "said", "exact", "f1"),
    [
        (["the Denver Broncos"], "Denver Broncos!", 1, 1),
        (["Denver Broncos"], "the Broncos of Denver", 0, 0.8),
        (["1 000"], "1,000", 0, 0),
        (["U.S."], "us", 1, 1),
        (["theatre"], "the atre", 0, 0),
        (["cat cat"], "cat", 0, 2 / 3),
        (["blue", "navy blue"], "a navy  BLUE", 1, 1),
        (["blue", "navy blue car"], "navy blue", 0, 0.8),
        ([], "", 1, 1),
        ([""], "something", 0, 0),
        (["something"], "", 0, 0),
        (["the"], "", 1, 1),  # nothing is left of the right answer, so none is right
    ],
)
def test_answers_at_the_edges(golds, said, exact, f1):
    assert metrics.exact_match([golds], [said]) == exact
    assert metrics.answer_f1([golds], [said]) == pytest.approx(f1)


def test_answers_need_a_row_and_as_many_predictions():
    for score in (metrics.exact_match, metrics.answer_f1):
        with pytest.raises(EmptyData):
            score([], [])
        with pytest.raises(DataError):
            score([["a"]], [])
