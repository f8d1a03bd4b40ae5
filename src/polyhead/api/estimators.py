"""Estimators with scikit-learn's habits, over one task of a `Model` each.

They need scikit-learn, and work in its `Pipeline`, `GridSearchCV` and `cross_val_score`. Fitting several of them
encodes a text once: features are kept for as long as the process lives.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from typing import Any, Self

import numpy as np

from polyhead.api.model import Model
from polyhead.errors import MissingExtra
from polyhead.tasks.kinds.multi_label import MultiLabel
from polyhead.tasks.kinds.regression import Regression
from polyhead.tasks.kinds.single_label import SingleLabel

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, column_or_1d
except ImportError:
    raise MissingExtra("scikit-learn", "sklearn", "an estimator") from None

TASK = "answer"


@cache
def _features() -> str:
    """A folder of kept features, until the process ends."""
    folder = tempfile.mkdtemp(prefix="polyhead-features-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class _TextEstimator(BaseEstimator):  # type: ignore[misc]
    """The base of both: reads X, and trains and asks a `Model` of one task."""

    def __init__(
        self,
        trunk: str = "minilm",
        *,
        pair: str | None = None,
        metric: str | None = None,
        strategy: Any = None,
        training: Any = None,
        cache: str | None = None,
        backend: str | None = None,
        verbose: bool = False,
    ) -> None:
        self.trunk = trunk
        self.pair = pair
        self.metric = metric
        self.strategy = strategy
        self.training = training
        self.cache = cache
        self.backend = backend
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.non_deterministic = False
        return tags

    def _texts(self, X: Any, *, reset: bool) -> list[Any]:
        """The texts of an array (rows,), or of columns: joined by line breaks, or with `pair` the two of a pair."""
        if hasattr(X, "to_numpy"):
            names = getattr(X, "columns", None)
            X = X.to_numpy()
        else:
            names = None
        array = check_array(X, dtype=None, ensure_2d=False, estimator=self)
        if array.ndim == 1 and array.dtype.kind in "fiub":
            raise ValueError("X is a row of numbers, where texts are expected. Reshape your data")
        columns = 1 if array.ndim == 1 else array.shape[1]
        if reset:
            self.n_features_in_ = columns
            if names is not None and all(isinstance(name, str) for name in names):
                self.feature_names_in_ = np.asarray(names, object)
        elif columns != self.n_features_in_:
            raise ValueError(
                f"X has {columns} features, but {type(self).__name__} is expecting {self.n_features_in_} features as "
                "input"
            )
        if self.pair is not None and columns != 2:
            raise ValueError(f"pair={self.pair!r} compares two columns of texts, and X has {columns}")
        rows = array.reshape(len(array), -1).tolist()
        if self.pair is not None:
            return [tuple(map(str, row)) for row in rows]
        return ["\n".join(map(str, row)) for row in rows]

    def _fitted(self, X: Any, answers: list[Any], kind: str, **settings: Any) -> Self:
        texts = self._texts(X, reset=True)
        check_consistent_length(texts, answers)
        model = Model(self.trunk, cache=self.cache or _features(), backend=self.backend, verbose=self.verbose)
        own = {"pair": self.pair, "metric": self.metric, "strategy": self.strategy, "training": self.training}
        chosen = {key: value for key, value in (own | settings).items() if value is not None}
        self.model_ = model.fit(TASK, texts, answers, kind=kind, **chosen)
        return self

    def _asked(self, X: Any) -> list[Any]:
        check_is_fitted(self, "model_")
        return self._texts(X, reset=False)


class PolyheadClassifier(ClassifierMixin, _TextEstimator):  # type: ignore[misc]
    """One label of several for each text, or any number of them where `y` is a 0/1 matrix (rows, labels).

    X is an array or list of texts (rows,), or an array or frame (rows, columns) whose columns are joined; with
    `pair="joined"` or `"separate"` its two columns are the texts of a pair. Other settings are those of a `[[tasks]]`
    table. Fitted: `classes_`, and `model_`, whose `save` writes a bundle.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Learns the labels of these texts. Raises ValueError where X or y cannot be used."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        if type_of_target(y) == "multilabel-indicator":
            matrix = np.asarray(y)
            self.classes_ = np.arange(matrix.shape[1])
            names = [str(label) for label in self.classes_]
            labels = [[names[column] for column in np.flatnonzero(row)] for row in matrix]
            return self._fitted(X, labels, MultiLabel.name, classes=names)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        self.classes_, indices = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"{type(self).__name__} needs two classes or more; the data contains one class only")
        names = [str(number) for number in range(len(self.classes_))]
        return self._fitted(X, [names[index] for index in indices], SingleLabel.name, classes=names)

    def predict(self, X: Any) -> np.ndarray:
        """The labels (rows,), of the type of y; with a matrix y one (rows, labels) of 0 and 1."""
        texts = self._asked(X)
        column = self.model_.session.columns(texts, tasks=[TASK])[TASK]
        if column.labels is not None:
            return column.labels.astype(int)
        return self.classes_[column.label]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities (rows, classes), in the order of `classes_`."""
        texts = self._asked(X)
        return self.model_.predict_proba(texts, TASK)


class PolyheadRegressor(RegressorMixin, _TextEstimator):  # type: ignore[misc]
    """A number for each text, or for each pair: see `PolyheadClassifier`. The range is that of y."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # on scikit-learn's columns of numbers, which are read as text
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Learns the numbers of these texts. Raises ValueError where X or y cannot be used."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        y = check_array(column_or_1d(y, warn=True), ensure_2d=False, dtype=np.float64)
        low, high = float(y.min()), float(y.max())
        if not low < high:
            raise ValueError(f"y holds one number only (n_samples={len(y)}), so there is nothing to learn")
        return self._fitted(X, y.tolist(), Regression.name, range=(low, high))

    def predict(self, X: Any) -> np.ndarray:
        """The numbers (rows,), float64."""
        texts = self._asked(X)
        values = self.model_.session.columns(texts, tasks=[TASK])[TASK].value
        assert values is not None
        return values
