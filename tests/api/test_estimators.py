"""Estimators: scikit-learn's own checks, and its tools around them."""

import contextlib
import pickle
import unittest

import numpy as np
import pytest

from tiny import write_trunk

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import estimator_checks_generator

from polyhead.api.estimators import PolyheadClassifier, PolyheadRegressor
from polyhead.project.recipes import Training

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
}
FLOAT32 = {"check_methods_subset_invariance": "numbers are float32 sums, whose last bits depend on a batch's shape"}


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [PolyheadClassifier, PolyheadRegressor])
@pytest.mark.filterwarnings("ignore")
def test_checks_of_scikit_learn_pass(estimator, trunk, request):
    is_whole = request.config.getoption("-m") == "slow"
    passed = []
    made = estimator(trunk, training=SHORT, backend="reference")
    otherwise = OTHERWISE | (FLOAT32 if estimator is PolyheadRegressor else {})
    for checked, check in estimator_checks_generator(made, expected_failed_checks=otherwise, mark="skip"):
        name = getattr(check, "func", check).__name__
        if name in otherwise or not (is_whole or name in QUICK):
            continue
        with contextlib.suppress(unittest.SkipTest):
            check(checked)
            passed.append(name)
    assert len(passed) >= len(QUICK) - 1


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


def test_a_matrix_of_labels_is_answered_by_one(trunk):
    matrix = np.stack([MOODS == "good", ["lamp" in text for text in TEXTS]], axis=1).astype(int)
    fitted = PolyheadClassifier(trunk, training=SHORT, backend="reference").fit(TEXTS, matrix)
    answers = fitted.predict(TEXTS)
    assert answers.shape == matrix.shape and set(np.unique(answers)) <= {0, 1}
    assert np.mean(answers == matrix) > 0.8


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


def test_a_fitted_estimator_is_pickled(trunk):
    fitted = PolyheadClassifier(trunk, training=SHORT, backend="reference").fit(TEXTS, MOODS)
    assert np.array_equal(pickle.loads(pickle.dumps(fitted)).predict(TEXTS), fitted.predict(TEXTS))


def test_numbers_in_batches_of_any_size_are_equal_but_for_rounding(trunk):
    values = np.where(MOODS == "good", 4.5, 1.0)
    fitted = PolyheadRegressor(trunk, training=SHORT, backend="reference").fit(TEXTS, values)
    alone = np.concatenate([fitted.predict(TEXTS[i : i + 1]) for i in range(8)])
    np.testing.assert_allclose(fitted.predict(TEXTS)[:8], alone, rtol=1e-5)
