"""Estimators with scikit-learn's interface, each over one task of a `Model`.

They need scikit-learn, and work in its `Pipeline`, `GridSearchCV` and `cross_val_score`. Fitting several of them
encodes a text once: features are kept for the life of the process.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import warnings
from collections.abc import Iterable
from functools import cache
from numbers import Number
from typing import Any, Self

import numpy as np

from polyhead.api.model import Model
from polyhead.data.guess_kind import is_missing, separator_of
from polyhead.engine.answers import AnswerColumn
from polyhead.errors import BadValue, MissingExtra
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
    """A folder of kept features for the life of the process."""
    folder = tempfile.mkdtemp(prefix="polyhead-features-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class _TextEstimator(BaseEstimator):  # type: ignore[misc]
    """The common base: reads X, and trains and queries a `Model` of one task."""

    def __init__(
        self,
        trunk: str = "minilm",
        *,
        pair: str | None = None,
        metric: str | None = None,
        strategy: Any = None,
        training: Any = None,
        effort: str | None = None,
        cache: str | None = None,
        backend: str | None = None,
        verbose: bool = False,
    ) -> None:
        self.trunk = trunk
        self.pair = pair
        self.metric = metric
        self.strategy = strategy
        self.training = training
        self.effort = effort
        self.cache = cache
        self.backend = backend
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.non_deterministic = False
        return tags

    def _texts(self, X: Any, *, reset: bool) -> list[Any]:
        """The texts of an array (rows,), or of columns: joined by line breaks, or with `pair` as a pair's two texts."""
        names = getattr(X, "columns", None)
        if isinstance(X, str | bytes):
            raise ValueError("X is one text, where a list of texts is expected")
        if hasattr(X, "to_pylist") and names is None:
            X = X.to_pylist()  # a column of pyarrow
        if isinstance(X, list | tuple):
            X = np.array(X, object)  # in an array of strings each text would need the space of the longest
        array = X.to_numpy() if hasattr(X, "to_numpy") else X
        are_objects = getattr(getattr(array, "dtype", None), "kind", "") == "O"
        array = check_array(array, dtype=None, ensure_2d=False, ensure_all_finite=not are_objects, estimator=self)
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
        if all(isinstance(cell, Number) for row in rows for cell in row):
            if array.ndim == 1:
                raise ValueError("X is a row of numbers, where texts are expected. Reshape your data")
            if reset:
                warnings.warn(f"X holds numbers alone, and {type(self).__name__} reads them as texts", stacklevel=4)
        _check_texts(rows, whole=self.pair is not None)
        if self.pair is not None:
            return [tuple(map(str, row)) for row in rows]
        return ["\n".join(map(str, row)) for row in rows]

    def _fitted(self, X: Any, answers: list[Any], kind: str, **settings: Any) -> Self:
        texts = self._texts(X, reset=True)
        check_consistent_length(texts, answers)
        model = Model(self.trunk, cache=self.cache or _features(), backend=self.backend, verbose=self.verbose)
        model.keeps_rows = False  # it is trained once
        own = {"pair": self.pair, "metric": self.metric, "strategy": self.strategy, "training": self.training}
        own["effort"] = self.effort
        chosen = {key: value for key, value in (own | settings).items() if value is not None}
        self.model_ = model.fit(TASK, texts, answers, kind=kind, **chosen)
        return self

    def _column(self, X: Any) -> AnswerColumn:
        """The answers, one per row. Raises the error of a row without one."""
        check_is_fitted(self, "model_")
        column = self.model_.session.columns(self._texts(X, reset=False), tasks=[TASK])[TASK]
        for error in column.errors.values():
            raise error
        return column


def _check_texts(rows: list[list[Any]], *, whole: bool) -> None:
    """Raises ValueError that names the rows without a text, and those with other values.

    At least one cell of each row must hold visible text, or all of them if `whole` is true.
    """
    faults: dict[str, list[int]] = {"a missing value": [], "neither texts nor numbers": [], "no visible text": []}
    for number, row in enumerate(rows):
        visible = [str(cell).strip() != "" for cell in row if isinstance(cell, str | Number)]
        if any(map(is_missing, row)):
            faults["a missing value"].append(number)
        elif len(visible) < len(row):
            faults["neither texts nor numbers"].append(number)
        elif not (all(visible) if whole else any(visible)):
            faults["no visible text"].append(number)
    for fault, numbers in faults.items():
        if numbers:
            shown = ", ".join(map(str, numbers[:10])) + (", ..." if len(numbers) > 10 else "")
            raise _BadRows(
                f"X has {fault} in {len(numbers):,} of {len(rows):,} rows",
                got=f"rows {shown}",
                allowed="texts",
                do="leave these rows out, or fill them with a text",
                rows=tuple(numbers),
            )


def _is_sparse(y: object) -> bool:
    """Whether the value is a sparse matrix or array of scipy."""
    return hasattr(y, "tocsr")


class _BadRows(BadValue, ValueError):
    """An error for unusable rows that is both a PolyheadError and a ValueError, as scikit-learn's tools expect."""


class PolyheadClassifier(ClassifierMixin, _TextEstimator):  # type: ignore[misc]
    """A classifier with one label per text, or any number of them if `y` is a 0/1 matrix (rows, labels).

    X is an array or list of texts (rows,), or an array or data frame (rows, columns) whose columns are joined; with
    `pair="joined"` or `"separate"` its two columns are the texts of a pair. Missing and empty texts are refused. The
    matrix may be sparse. Other settings are those of a `[[tasks]]` table. After fitting: `classes_`, and `model_`,
    whose `save` writes a bundle.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Trains on these texts and labels. Raises ValueError, with the rows, if X or y cannot be used."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        _check_labelled(y)
        if type_of_target(y) == "multilabel-indicator":
            return self._fit_matrix(X, y)
        if _is_sparse(y):
            raise ValueError("a sparse y is a matrix of 0 and 1 (rows, labels), with two labels or more")
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        self.classes_, indices = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"{type(self).__name__} needs two classes or more; the data contains one class only")
        several = separator_of([label for label in self.classes_ if isinstance(label, str)])
        if several is not None and several[1]:
            warnings.warn(
                f"y seems to hold several labels with {several[0]!r} between them, and each different string is one "
                "class. For labels of their own give a 0/1 matrix (MultiLabelBinarizer)",
                stacklevel=2,
            )
        names = [str(number) for number in range(len(self.classes_))]
        return self._fitted(X, [names[index] for index in indices], SingleLabel.name, classes=names)

    def _fit_matrix(self, X: Any, y: Any) -> Self:
        matrix = y.tocsr() if _is_sparse(y) else np.asarray(y)
        self.classes_ = np.arange(matrix.shape[1])
        names = [str(label) for label in self.classes_]
        columns = [row.nonzero()[-1] for row in (matrix[number : number + 1] for number in range(matrix.shape[0]))]
        return self._fitted(X, [[names[column] for column in row] for row in columns], MultiLabel.name, classes=names)

    def predict(self, X: Any) -> np.ndarray:
        """The labels (rows,), of the type of y; for a matrix y, a dense one (rows, labels) of 0 and 1."""
        column = self._column(X)
        if column.labels is not None:
            return column.labels.astype(int)
        return np.asarray(self.classes_[column.label])

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities (rows, classes), in the order of `classes_`."""
        scores = self._column(X).scores
        assert scores is not None
        return scores


def _check_labelled(y: Any) -> None:
    """Raises ValueError that names the rows of y without a label; scikit-learn checks numbers."""
    dtype = getattr(y, "dtype", None)
    has_numbers = isinstance(dtype, np.dtype) and dtype.kind not in "OT"
    if not isinstance(y, Iterable) or _is_sparse(y) or has_numbers or getattr(y, "ndim", 1) != 1:
        return
    values = list(y)
    if missing := [number for number, value in enumerate(values) if is_missing(value)]:
        shown = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
        raise _BadRows(
            f"y has no label in {len(missing):,} of {len(values):,} rows",
            got=f"rows {shown}",
            do="leave these rows out",
            rows=tuple(missing),
        )


class PolyheadRegressor(RegressorMixin, _TextEstimator):  # type: ignore[misc]
    """A regressor for texts or pairs of texts: see `PolyheadClassifier`. The range is that of y."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # of scikit-learn's, about columns of numbers: here they are read as text
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Trains on these texts and numbers. Raises ValueError if X or y cannot be used."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        if _is_sparse(y):
            raise ValueError("y is a sparse matrix, and a number for each text is expected: y.toarray().ravel()")
        _check_labelled(y)
        y = check_array(column_or_1d(y, warn=True), ensure_2d=False, dtype=np.float64)
        low, high = float(y.min()), float(y.max())
        if not low < high:
            raise ValueError(f"y holds one number only (n_samples={len(y)}), so there is nothing to learn")
        return self._fitted(X, y.tolist(), Regression.name, range=(low, high))

    def predict(self, X: Any) -> np.ndarray:
        """The numbers (rows,), float64."""
        values = self._column(X).value
        assert values is not None
        return values
