"""Estimators: scikit-learn's own checks, and its tools around them."""

import contextlib
import os
import pickle
import shutil
import subprocess
import sys
import tracemalloc
import unittest

import msgspec
import numpy as np
import pytest

from support.mood_texts import texts_of
from support.tiny_project import tiny_trunk, write_trunk

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import estimator_checks_generator

from polyhead import Model
from polyhead.api.estimators import TASK, PolyheadClassifier, PolyheadRegressor
from polyhead.api.shared import SHARED, EstimatorModel, SharedFolder
from polyhead.errors import ConfigError, EmptyData, PolyheadError
from polyhead.project.recipes import Training
from polyhead.train.heads.linear import Inputs
from polyhead.train.heads.search import solutions

SHORT = Training(epochs=2)  # enough for linear heads
TEXTS = np.array(
    [
        f"the {thing} is {word}"
        for thing in ("lamp", "kettle", "phone", "box")
        for word in ("good", "happy", "bad", "sad", "broken", "late")
    ]
    * 2
)
MOODS = np.array(["good", "good", "bad", "bad", "bad", "bad"] * 8)


@pytest.fixture(scope="module")
def trunk(tmp_path_factory):
    return str(write_trunk(tmp_path_factory.mktemp("estimators") / "trunk"))


# Of some 50 checks those that fit once or not at all; all of them take minutes (`pytest -m slow`).
QUICK = (
    "check_do_not_raise_errors_in_init_or_set_param",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimators_fit_returns_self",
    "check_estimators_unfitted",
    "check_estimators_nan_inf",
    "check_n_features_in_after_fitting",
    "check_no_attributes_set_in_init",
    "check_requires_y_none",
)
# What they expect of matrices of numbers and estimators of texts do not do.
OTHERWISE = {
    "check_fit1d": "a list of texts is what X usually is",
    "check_fit2d_predict1d": "so is it when asked; the error is that of another number of columns",
    "check_sample_weight_equivalence_on_dense_data": "a repeated row is one text for the choice of the head",
    "check_sample_weight_equivalence_on_sparse_data": "a repeated row is one text for the choice of the head",
    "check_methods_subset_invariance": "numbers are float32 sums, whose last bits depend on a batch's shape",
}


class _NumbersAsTexts:
    """For scikit-learn's checks, which give matrices of numbers alone."""

    def _refuse_numbers(self, dimensions):
        if dimensions == 1:
            super()._refuse_numbers(dimensions)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        return tags


class ClassifierOfNumbers(_NumbersAsTexts, PolyheadClassifier):
    pass


class RegressorOfNumbers(_NumbersAsTexts, PolyheadRegressor):
    pass


READS_NUMBERS = {PolyheadClassifier: ClassifierOfNumbers, PolyheadRegressor: RegressorOfNumbers}


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [PolyheadClassifier, PolyheadRegressor])
@pytest.mark.filterwarnings("ignore")
def test_checks_of_scikit_learn_pass(estimator, trunk, request):
    is_whole = request.config.getoption("-m") == "slow"
    passed = []
    made = READS_NUMBERS[estimator](trunk, training=SHORT, backend="reference")
    for checked, check in estimator_checks_generator(made, expected_failed_checks=OTHERWISE, mark="skip"):
        name = getattr(check, "func", check).__name__
        if name in OTHERWISE or not (is_whole or name in QUICK):
            continue
        with contextlib.suppress(unittest.SkipTest):
            check(checked)
            passed.append(name)
    assert len(passed) >= len(QUICK) - 1


def test_little_effort_tries_linear_heads_alone_and_says_what_more_would_try(trunk, capsys):
    quick = PolyheadClassifier(trunk, training=SHORT, effort="quick", backend="reference", verbose=True)
    quick.fit(TEXTS, MOODS)
    assert "effort 'default' also tries attention: " in capsys.readouterr().err
    assert all(name.startswith("linear") for name in quick.model_.session.bundle.scores(TASK)["tried"])
    with pytest.raises(ConfigError, match="effort"):
        PolyheadClassifier(trunk, effort="little").fit(TEXTS, MOODS)


def test_a_setting_of_a_strategy_that_nothing_reads_is_refused(trunk):
    idle = {"kind": "branch", "layers": 1, "temperature": 1.5}
    with pytest.raises(ConfigError, match="strategy.temperature would change nothing"):
        PolyheadClassifier(trunk, strategy=idle).fit(TEXTS, MOODS)


def test_labels_keep_their_type(trunk):
    numbers = np.where(MOODS == "good", 3, 7)
    fitted = PolyheadClassifier(trunk, training=SHORT, backend="reference").fit(TEXTS, numbers)
    assert fitted.classes_.tolist() == [3, 7]
    answers = fitted.predict(TEXTS[:4])
    assert answers.dtype == numbers.dtype and set(answers.tolist()) <= {3, 7}
    shares = fitted.predict_proba(TEXTS)
    assert shares.shape == (48, 2)
    assert np.array_equal(fitted.classes_[shares.argmax(axis=1)], fitted.predict(TEXTS))
    assert fitted.score(TEXTS, numbers) > 0.9


OWN_TYPES = ("Int64", "boolean", "int64[pyarrow]", "object")


@pytest.mark.parametrize("own", OWN_TYPES)
def test_labels_of_pandas_own_types_come_back_as_whole_numbers_and_booleans(trunk, own):
    """They came back as floats, which changed large ones: 2**53 + 1 was answered as 2**53."""
    pandas = pytest.importorskip("pandas")
    if "pyarrow" in own:
        pytest.importorskip("pyarrow")
    labels = [False, True] if "bool" in own else [2**53 + 1, 2**53 + 3]
    answers = [labels[mood == "good"] for mood in MOODS]
    fitted = PolyheadClassifier(trunk, effort="quick", backend="reference")
    fitted.fit(TEXTS, pandas.Series(answers, dtype=own))
    assert fitted.classes_.tolist() == labels and fitted.classes_.dtype == np.array(labels).dtype
    assert fitted.predict(TEXTS).tolist() == np.array(labels)[fitted.predict_proba(TEXTS).argmax(axis=1)].tolist()


def test_a_fit_that_fails_leaves_the_model_before_and_its_labels(trunk):
    """The labels were those of the new rows, and answers of the old model were read by them."""
    fitted = PolyheadClassifier(trunk, effort="quick", training=SHORT).fit(TEXTS, MOODS)
    before = fitted.predict(TEXTS).tolist()
    for other in (np.array(["early", "late"] * 24), np.eye(3, dtype=int)[np.arange(48) % 3]):
        with pytest.raises(ValueError, match="missing value"):
            fitted.fit([None, *TEXTS[1:]], other)
        assert fitted.classes_.tolist() == ["bad", "good"]
        assert fitted.predict(TEXTS).tolist() == before


def test_a_fit_that_fails_leaves_the_columns_that_the_model_reads(trunk):
    """The estimator wanted the columns of the failed fit, and refused those that its model had learned from."""
    frame = pytest.importorskip("pandas").DataFrame({"title": TEXTS, "body": TEXTS[::-1]})
    fitted = PolyheadClassifier(trunk, effort="quick", training=SHORT).fit(frame, MOODS)
    before = fitted.predict(frame).tolist()
    for texts, options in (([None, *TEXTS[1:]], {}), (TEXTS, {"groups": ["one"] * 48})):
        with pytest.raises((ValueError, PolyheadError)):
            fitted.fit(texts, MOODS, **options)
        assert fitted.n_features_in_ == 2 and fitted.feature_names_in_.tolist() == ["title", "body"]
    assert fitted.predict(frame).tolist() == before
    with pytest.warns(UserWarning, match="feature names"), pytest.raises(ValueError, match="1 features"):
        fitted.predict(TEXTS)
    fresh = PolyheadClassifier(trunk, effort="quick", training=SHORT)
    with pytest.raises(ValueError):
        fresh.fit([None, *TEXTS[1:]], MOODS)
    assert not hasattr(fresh, "n_features_in_")


def test_a_matrix_of_labels_is_answered_by_one(trunk):
    matrix = np.stack([MOODS == "good", ["lamp" in text for text in TEXTS]], axis=1).astype(int)
    fitted = PolyheadClassifier(trunk, training=SHORT, backend="reference").fit(TEXTS, matrix)
    answers = fitted.predict(TEXTS)
    assert answers.shape == matrix.shape and set(np.unique(answers)) <= {0, 1}
    assert np.mean(answers == matrix) > 0.8


@pytest.mark.slow
def test_search_cross_validation_and_pipelines(trunk):
    classifier = PolyheadClassifier(trunk, training=SHORT, backend="reference")
    scores = cross_val_score(classifier, TEXTS, MOODS, cv=3)
    assert scores.shape == (3,) and scores.mean() > 0.8
    search = GridSearchCV(classifier, {"metric": ["accuracy", "macro_f1"]}, cv=2).fit(TEXTS, MOODS)
    assert search.best_params_["metric"] in ("accuracy", "macro_f1") and search.predict(TEXTS[:2]).shape == (2,)
    lower = FunctionTransformer(np.char.lower)
    pipeline = make_pipeline(lower, classifier).fit(TEXTS, MOODS)
    assert np.array_equal(pipeline.predict(np.char.upper(TEXTS[:5])), pipeline.predict(TEXTS[:5]))


def test_numbers_are_learned(trunk):
    values = np.where(MOODS == "good", 4.5, 1.0)
    fitted = PolyheadRegressor(trunk, training=SHORT, backend="reference").fit(TEXTS, values)
    answers = fitted.predict(TEXTS)
    assert answers.dtype == np.float64 and fitted.score(TEXTS, values) > 0.5
    assert answers.min() >= 1.0 and answers.max() <= 4.5


def test_two_columns_are_joined_or_compared(trunk):
    columns = np.stack([TEXTS, TEXTS[::-1]], axis=1)
    joined = PolyheadClassifier(trunk, training=SHORT, backend="reference").fit(columns, MOODS)
    assert joined.model_.tasks["answer"].pair == "none" and joined.n_features_in_ == 2
    compared = PolyheadClassifier(trunk, training=SHORT, pair="separate", backend="reference").fit(columns, MOODS)
    assert compared.model_.tasks["answer"].pair == "separate"
    with pytest.raises(ValueError, match="two columns"):
        PolyheadClassifier(trunk, training=SHORT, pair="joined").fit(TEXTS, MOODS)
    with pytest.raises(ValueError, match="2 features"):
        joined.predict(TEXTS)


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_columns_of_a_frame_are_those_of_the_fit_in_their_order(trunk, kind):
    """Swapped columns were answered, and names stayed from an earlier fit."""
    frame = pytest.importorskip(kind).DataFrame({"title": list(map(str, TEXTS)), "body": list(map(str, TEXTS[::-1]))})
    fitted = PolyheadClassifier(trunk, training=SHORT, pair="separate", backend="reference").fit(frame, MOODS)
    assert fitted.feature_names_in_.tolist() == ["title", "body"] and len(fitted.predict(frame)) == len(TEXTS)
    with pytest.raises(ValueError, match="should match those that were passed during fit(.|\n)*same order"):
        fitted.predict(frame[["body", "title"]])
    with pytest.raises(ValueError, match="should match(.|\n)*- head(.|\n)*now missing(.|\n)*- title"):
        fitted.predict(frame.rename(**{"columns" if kind == "pandas" else "mapping": {"title": "head"}}))
    fitted.fit(frame.to_numpy(), MOODS)
    assert not hasattr(fitted, "feature_names_in_")


def test_a_fitted_estimator_is_pickled(trunk):
    fitted = PolyheadClassifier(trunk, training=SHORT, backend="reference").fit(TEXTS, MOODS)
    assert np.array_equal(pickle.loads(pickle.dumps(fitted)).predict(TEXTS), fitted.predict(TEXTS))


def test_numbers_in_batches_of_any_size_are_equal_but_for_rounding(trunk):
    values = np.where(MOODS == "good", 4.5, 1.0)
    fitted = PolyheadRegressor(trunk, training=SHORT, backend="reference").fit(TEXTS, values)
    alone = np.concatenate([fitted.predict(TEXTS[i : i + 1]) for i in range(8)])
    np.testing.assert_allclose(fitted.predict(TEXTS)[:8], alone, rtol=1e-5)


MISSING = {
    "none": [None],
    "nan": [float("nan"), np.nan, np.float64("nan")],
    "bytes": [b"the lamp", np.bytes_(b"the lamp")],
    "blank": ["", "  \n"],
    "objects": [{"a": 1}, ["a"], object()],
}


def with_bad_cells(cells):
    """Texts with one of the cells in turn at rows 3 and 7, in each container that keeps them as they are."""
    pandas = pytest.importorskip("pandas")
    for cell in cells:
        texts = [str(text) for text in TEXTS]
        texts[3] = texts[7] = cell
        array = np.empty(len(texts), object)
        array[:] = texts
        yield from (texts, array, pandas.Series(texts, dtype=object))


@pytest.mark.parametrize("kind", [PolyheadClassifier, PolyheadRegressor])
@pytest.mark.parametrize("what", MISSING)
def test_what_is_no_text_is_refused_with_its_rows(trunk, fitted, kind, what):
    """None became the text "None", NaN "nan", and bytes "b'...'": in fit and in predict."""
    y = MOODS if kind is PolyheadClassifier else np.where(MOODS == "good", 4.5, 1.0)
    for X in with_bad_cells(MISSING[what]):
        for call in (
            lambda X=X: kind(trunk).fit(X, y),
            lambda X=X: fitted.predict(X),
            lambda X=X: fitted.predict_proba(X),
        ):
            with pytest.raises(ValueError, match="in 2 of 48 rows. Got: rows 3, 7") as raised:
                call()
            assert raised.value.rows == (3, 7)


@pytest.mark.filterwarnings("ignore:X has feature names")  # it was fitted on an array
def test_missing_values_of_pandas_are_refused(trunk, fitted):
    pandas = pytest.importorskip("pandas")
    texts = pandas.array([*map(str, TEXTS[:-1]), pandas.NA], dtype="string")
    for X in (pandas.Series(texts), pandas.DataFrame({"text": texts})):
        for call in (lambda X=X: fitted.predict(X), lambda X=X: PolyheadClassifier(trunk).fit(X, MOODS)):
            with pytest.raises(ValueError, match="a missing value in 1 of 48 rows. Got: rows 47"):
                call()
    columns = pandas.DataFrame({"title": TEXTS, "body": [None, *TEXTS[1:]]})
    with pytest.raises(ValueError, match="rows 0"):
        PolyheadClassifier(trunk).fit(columns, MOODS)


def test_one_column_of_several_may_be_blank(trunk):
    """A message without a title; a pair needs both."""
    columns = np.stack([np.where(np.arange(48) % 3 == 0, "", TEXTS), TEXTS], axis=1)
    joined = PolyheadClassifier(trunk, training=SHORT, backend="reference").fit(columns, MOODS)
    assert joined.predict(columns).shape == (48,)
    with pytest.raises(ValueError, match="no visible text in 16 of 48 rows"):
        PolyheadClassifier(trunk, pair="separate").fit(columns, MOODS)


@pytest.fixture(scope="module")
def fitted(trunk):
    return PolyheadClassifier(trunk, training=SHORT, backend="reference").fit(TEXTS, MOODS)


@pytest.mark.parametrize("label", [None, float("nan")], ids=["none", "nan"])
def test_labels_that_are_missing_are_refused_with_their_rows(trunk, label):
    moods = [*map(str, MOODS[:-1]), label]
    for y in (moods, np.array(moods, object)):
        with pytest.raises(ValueError, match="y has no label in 1 of 48 rows. Got: rows 47"):
            PolyheadClassifier(trunk).fit(TEXTS, y)


def test_labels_of_pandas_own_types_are_refused_where_they_are_missing(trunk):
    pandas = pytest.importorskip("pandas")
    numbers = pandas.Series([0, 1, None] * 16, dtype="Int64")
    for kind in (PolyheadClassifier, PolyheadRegressor):
        with pytest.raises(ValueError, match="y has no label in 16 of 48 rows. Got: rows 2, 5"):
            kind(trunk).fit(TEXTS, numbers)


def test_an_array_of_variable_strings_is_a_list_of_texts(trunk, fitted):
    asked = TEXTS.astype(np.dtypes.StringDType())
    assert fitted.predict(asked[:4]).tolist() == fitted.predict(TEXTS[:4]).tolist()
    labels = MOODS.astype(np.dtypes.StringDType())
    again = PolyheadClassifier(trunk, training=SHORT).fit(asked.reshape(-1, 1), labels)
    np.testing.assert_array_equal(again.predict(asked.reshape(-1, 1)) == labels, fitted.predict(TEXTS) == MOODS)
    missing = np.array([*TEXTS[:3], None], np.dtypes.StringDType(na_object=None))
    with pytest.raises(ValueError, match="a missing value in 1 of 4 rows. Got: rows 3"):
        fitted.predict(missing)


def test_a_column_of_pyarrow_is_a_list_of_texts_and_one_text_is_none(fitted):
    pyarrow = pytest.importorskip("pyarrow")
    asked = [str(text) for text in TEXTS[:4]]
    assert fitted.predict(pyarrow.array(asked)).tolist() == fitted.predict(asked).tolist()
    with pytest.raises(ValueError, match="in 1 of 2 rows. Got: rows 1"):
        fitted.predict(pyarrow.array([asked[0], None]))
    with pytest.raises(ValueError, match="one text"):
        fitted.predict("the lamp is good")


@pytest.mark.slow
def test_a_sparse_matrix_of_labels_is_the_dense_one(trunk):
    """It was an internal IndexError."""
    from scipy import sparse

    matrix = np.stack([MOODS == "good", ["lamp" in text for text in TEXTS], np.zeros(48)], axis=1).astype(int)
    matrix[::5, 2] = 1
    dense = PolyheadClassifier(trunk, training=SHORT, backend="reference").fit(TEXTS, matrix)
    explicit_zero = sparse.csr_matrix(matrix)
    explicit_zero.data[0] = 0
    for y, same in ((sparse.csr_matrix(matrix), True), (sparse.csc_array(matrix), True), (explicit_zero, False)):
        made = PolyheadClassifier(trunk, training=SHORT, backend="reference").fit(TEXTS, y)
        assert made.classes_.tolist() == [0, 1, 2] and isinstance(made.predict(TEXTS), np.ndarray)
        assert np.array_equal(made.predict_proba(TEXTS), dense.predict_proba(TEXTS)) == same
    with pytest.raises(ValueError, match="sparse"):
        PolyheadClassifier(trunk).fit(TEXTS, sparse.csr_matrix(matrix[:, :1]))
    with pytest.raises(ValueError, match="sparse"):
        PolyheadRegressor(trunk).fit(TEXTS, sparse.csr_matrix(matrix[:, :1]))


def test_a_long_text_among_short_ones_costs_its_own_size(fitted):
    """A list of texts became one array of strings, where each takes the room of the longest: gigabytes."""
    short = [f"the lamp {n} is good" for n in range(3000)]
    peaks = []
    for texts in (short, [*short, "good " * 20_000]):
        tracemalloc.start()
        fitted._texts(texts, reset=False)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 2_000_000, "100,000 characters, not as many for each of 3,000 texts"


def test_numbers_alone_are_refused_and_labels_in_one_string_are_told_of(trunk, fitted):
    matrix = np.arange(96).reshape(48, 2)
    for call in (
        lambda: PolyheadClassifier(trunk).fit(matrix, MOODS),
        lambda: PolyheadRegressor(trunk).fit(matrix / 7, np.arange(48)),
        lambda: fitted.predict(matrix[:, :1]),
    ):
        with pytest.raises(ValueError, match="X is a matrix of numbers, where .* reads texts"):
            call()
    several = np.array(["good; bad", "good", "bad; late", "late"] * 12)
    with pytest.warns(UserWarning, match="several labels with ';' between them"):
        made = PolyheadClassifier(trunk, training=SHORT, backend="reference").fit(TEXTS, several)
    assert made.classes_.tolist() == sorted(set(several.tolist()))


def test_a_part_of_a_setting_and_no_rows_are_refused_in_words():
    for estimator in (PolyheadClassifier(), PolyheadClassifier(training={"seed": 1}), PolyheadRegressor()):
        with pytest.raises(ValueError, match="training__seed names a part of 'training', which is set only as a whole"):
            estimator.set_params(training__seed=3)
        with pytest.raises(ValueError, match="Invalid parameter 'strategi'"):
            estimator.set_params(strategi__depth=3)
        assert estimator.set_params(training={"seed": 2}, effort="little").training == {"seed": 2}
    for labels in ([], np.array([], int)):
        with pytest.raises(ValueError, match="no rows to learn from"):
            PolyheadClassifier().fit([], labels)


def test_weights_are_those_of_the_textbook_loss(trunk):
    """A row of weight 2 is two rows to a linear head, as in scikit-learn's logistic regression on the same vectors."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.utils.class_weight import compute_sample_weight

    chance = np.random.default_rng(0)
    values, targets = chance.normal(size=(60, 4)).astype(np.float32), chance.integers(0, 3, 60)
    weights = compute_sample_weight("balanced", targets) * chance.integers(1, 4, 60)
    shares = np.eye(3, dtype=np.float32)[targets] * (weights / weights.mean())[:, None].astype(np.float32)
    inputs = Inputs(values=values, targets=shares, members=np.arange(60), loss="cross_entropy", outputs=3)
    solved = next(iter(solutions(inputs, [0.1])))
    known = LogisticRegression(C=1 / (60 * 0.1), tol=1e-8).fit(values / inputs.scale, targets, weights / weights.mean())
    np.testing.assert_allclose(solved.weight * inputs.scale, known.coef_, atol=2e-3)


def test_weights_of_classes_and_rows_reach_training_multiplied(trunk, monkeypatch):
    seen = []
    monkeypatch.setattr(EstimatorModel, "fit", lambda self, *given, **options: seen.append(options) or self)
    made = PolyheadClassifier(trunk, class_weight={"good": 1, "bad": 3})
    made.fit(TEXTS, MOODS)
    made.fit(TEXTS, MOODS, sample_weight=np.arange(48))
    made.set_params(class_weight=None).fit(TEXTS, MOODS)
    of_class = np.where(MOODS == "good", 1.0, 3.0)
    np.testing.assert_array_equal(seen[0]["weights"], of_class)
    np.testing.assert_array_equal(seen[1]["weights"], of_class * np.arange(48))
    assert "weights" not in seen[2]
    PolyheadRegressor(trunk).fit(TEXTS, np.arange(48.0), groups=np.arange(48) // 2)
    np.testing.assert_array_equal(seen[-1]["groups"], np.arange(48) // 2)
    kept = np.arange(48) % 3 > 0
    made.set_params(class_weight="balanced").fit(TEXTS, MOODS, sample_weight=kept).fit(TEXTS[kept], MOODS[kept])
    np.testing.assert_array_equal(seen[-2]["weights"][kept], seen[-1]["weights"])
    assert not seen[-2]["weights"][~kept].any()
    for wrong, match in (
        ([1.0], "inconsistent"),
        ([-1.0] * 48, "zero or more"),
        ([0.0] * 48, "not all"),
        (["a"] * 48, "could not convert"),
    ):
        with pytest.raises(ValueError, match=match):
            made.fit(TEXTS, MOODS, sample_weight=wrong)
    with pytest.raises(ValueError, match="matrix of labels"):
        made.fit(TEXTS, np.eye(48, 2, dtype=int), sample_weight=np.ones(48))


def test_a_row_without_weight_is_not_learned(trunk):
    """Texts with turned labels and weight 0 change no answer."""
    turned = np.where(MOODS == "good", "bad", "good")
    texts, moods = np.concatenate([TEXTS, TEXTS]), np.concatenate([MOODS, turned])
    kept = np.repeat([1.0, 0.0], 48)
    linear = {"training": SHORT, "effort": "quick", "backend": "reference"}
    first = PolyheadClassifier(trunk, **linear).fit(texts, moods, sample_weight=kept)
    other = PolyheadClassifier(trunk, **linear).fit(texts, moods, sample_weight=1 - kept)
    assert np.mean(first.predict(TEXTS) == MOODS) > 0.9 and np.mean(other.predict(TEXTS) == turned) > 0.9


def test_a_fit_with_rows_without_weight_is_the_one_without_these_rows(trunk):
    """They counted where the metric was chosen, among the rows held out and as texts."""
    chance = np.random.default_rng(3)
    moods = np.where(chance.random(160) < 0.2, "good", "bad")  # uneven: the metric is one of rare labels
    texts, kept = np.array(texts_of(list(moods))), chance.random(160) < 0.6
    moods[~kept] = "good"  # with them labels are even
    made = [Model(trunk, backend="reference", verbose=False) for _ in range(2)]
    for model, rows, weights in ((made[0], slice(None), kept * 2.0), (made[1], kept, np.full(kept.sum(), 2.0))):
        model.fit("mood", list(texts[rows]), list(moods[rows]), weights=list(weights), effort="quick")
    assert made[0].tasks == made[1].tasks and made[0].tasks["mood"].metric != "accuracy"
    np.testing.assert_array_equal(*(model.predict_proba(TEXTS) for model in made))
    assert made[0].scores("mood") == made[1].scores("mood")
    third = np.where(kept, moods, "blue")
    made[0].fit("third", list(texts), list(third), weights=list(kept * 1.0), effort="quick", kind="single_label")
    assert made[0].tasks["third"].labels == ("bad", "blue", "good"), "as in scikit-learn, such a class is a class"
    assert set(made[0].predict(list(texts), tasks="third")["third"]) <= {"bad", "good"}
    with pytest.raises(EmptyData, match="every row has weight 0"):
        made[0].fit("none", list(texts), list(moods), weights=[0.0] * 160)


def test_the_decision_function_is_the_logarithm_of_the_odds(trunk, fitted):
    shares, decided = fitted.predict_proba(TEXTS), fitted.decision_function(TEXTS)
    assert decided.shape == (48,)
    np.testing.assert_allclose(decided, np.log(shares[:, 1] / shares[:, 0]), rtol=1e-3, atol=1e-3)
    things = [text.split()[1] for text in TEXTS]
    several = PolyheadClassifier(trunk, training=SHORT, effort="quick", backend="reference").fit(TEXTS, things)
    logits = several.decision_function(TEXTS)
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(shares, several.predict_proba(TEXTS), atol=1e-5)


LOADED = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).predict(['the lamp is good']).tolist())"


def loaded_elsewhere(path):
    return subprocess.run([sys.executable, "-c", LOADED, str(path)], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_pickle_names_its_encoder_and_a_portable_one_holds_it(trunk, tmp_path):
    """Each fitted estimator was a copy of the encoder, in its folder and in its pickle."""
    own, sizes = tmp_path / "encoder", {}
    shutil.copytree(trunk, own)
    for portable in (False, True):
        made = PolyheadClassifier(str(own), training=SHORT, effort="quick", backend="reference", portable=portable)
        sizes[portable] = (tmp_path / f"{portable}.pkl").write_bytes(pickle.dumps(made.fit(TEXTS, MOODS)))
        assert loaded_elsewhere(tmp_path / f"{portable}.pkl").stdout == "['good']\n"
    weights = (made.model_.folder / "trunk" / "weights.safetensors").stat()
    assert sizes[True] - sizes[False] > weights.st_size * 0.99
    shutil.rmtree(own)
    assert loaded_elsewhere(tmp_path / "True.pkl").stdout == "['good']\n"
    failed = loaded_elsewhere(tmp_path / "False.pkl").stderr
    assert "of a pickled estimator is not on this machine" in failed and "portable=True" in failed
    data = tiny_trunk()
    write_trunk(own, msgspec.structs.replace(data, arrays={name: 2 * array for name, array in data.arrays.items()}))
    assert "has other weights than the one" in loaded_elsewhere(tmp_path / "False.pkl").stderr


def test_estimators_share_one_copy_of_the_encoder_and_what_it_read(trunk):
    made = [PolyheadClassifier(trunk, training=SHORT, effort="quick", backend="reference") for _ in range(2)]
    for one in made:
        one.fit(TEXTS, MOODS)
    made.append(pickle.loads(pickle.dumps(made[0])))
    assert len({(one.model_.folder / "trunk" / "weights.safetensors").stat().st_ino for one in made}) == 1
    assert len({str(one.model_.folder) for one in made}) == 3
    del made[0]
    assert made[0].predict(TEXTS[:1]).tolist() == ["good"], "the folder of one takes nothing from the others"


def test_workers_use_the_folder_of_the_process_that_started_them():
    mine, other, path = SharedFolder(), SharedFolder(), str(SHARED.path)
    mine.adopt(path, os.getppid())
    other.adopt(path, os.getpid())
    assert str(mine.path) == path != str(other.path)
    state = PolyheadClassifier().__getstate__()
    assert path in str(state)
    assert "shared" not in str(pickle.loads(pickle.dumps(PolyheadClassifier())).__dict__)


def test_a_changed_folder_is_another_encoder(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    before = SHARED.encoder(str(tmp_path))
    assert before == SHARED.encoder(str(tmp_path)) != SHARED.encoder("minilm")
    (tmp_path / "config.json").write_text("{ }")
    assert SHARED.encoder(str(tmp_path)) != before
