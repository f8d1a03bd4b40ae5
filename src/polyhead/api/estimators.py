"""Estimators with scikit-learn's interface, each over one task of a `Model`.

They need scikit-learn, and work in its `Pipeline`, `GridSearchCV` and `cross_val_score`. What a fit reads of a text is
kept for the life of the process, for other fits and for the process's workers.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from numbers import Number
from typing import Any, Self

import numpy as np

from polyhead.api.shared import SHARED, EstimatorModel
from polyhead.data.guess_kind import is_missing, separator_of
from polyhead.engine.answers import AnswerColumn
from polyhead.errors import BadValue, MissingExtra
from polyhead.tasks.kinds.multi_label import MultiLabel
from polyhead.tasks.kinds.regression import Regression
from polyhead.tasks.kinds.single_label import SingleLabel
from polyhead.text.characters import has_visible

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils.class_weight import compute_sample_weight
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.validation import (
        check_array,
        check_consistent_length,
        check_is_fitted,
        column_or_1d,
        validate_data,
    )
except ImportError:
    raise MissingExtra("scikit-learn", "sklearn", "an estimator") from None

TASK = "answer"
_SENT = "_polyhead_shared"  # key of a pickled estimator's state


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
        portable: bool = False,
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
        self.portable = portable
        self.verbose = verbose

    def set_params(self, **params: Any) -> Self:
        """As of all estimators of scikit-learn. Raises ValueError for a part of a setting, such as `training__seed`."""
        for name in params:
            setting, divider, part = name.partition("__")
            if divider and setting in self.get_params(deep=False):
                raise ValueError(
                    f"{name} names a part of {setting!r}, which is set only as a whole. Give whole values of "
                    f"{setting!r}, each with its {part!r}"
                )
        super().set_params(**params)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), _SENT: SHARED.sent}

    def __setstate__(self, state: dict[str, Any]) -> None:
        SHARED.adopt(*state.get(_SENT, ("", 0)))
        super().__setstate__({name: value for name, value in state.items() if name != _SENT})

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        tags.non_deterministic = False
        return tags

    def _texts(self, X: Any, *, reset: bool) -> list[Any]:
        """The texts of an array (rows,), or of columns: joined by line breaks, or with `pair` as a pair's two texts."""
        names = getattr(X, "columns", None)
        if isinstance(X, str | bytes):
            raise ValueError("X is one text, where a list of texts is expected")
        validate_data(self, X, reset=reset, skip_check_array=True, ensure_2d=False)  # the names of columns
        if hasattr(X, "to_pylist") and names is None:
            X = X.to_pylist()  # a column of pyarrow
        if isinstance(X, list | tuple):
            X = np.array(X, object)  # in an array of strings each text would need the space of the longest
        array = _without_variable_strings(X.to_numpy() if hasattr(X, "to_numpy") else X)
        are_objects = getattr(getattr(array, "dtype", None), "kind", "") == "O"
        array = check_array(array, dtype=None, ensure_2d=False, ensure_all_finite=not are_objects, estimator=self)
        columns = 1 if array.ndim == 1 else array.shape[1]
        if reset:
            self.n_features_in_ = columns
        elif columns != self.n_features_in_:
            raise ValueError(
                f"X has {columns} features, but {type(self).__name__} is expecting {self.n_features_in_} features as "
                "input"
            )
        if self.pair is not None and columns != 2:
            raise ValueError(f"pair={self.pair!r} compares two columns of texts, and X has {columns}")
        rows = array.reshape(len(array), -1).tolist()
        if all(isinstance(cell, Number) for row in rows for cell in row):
            self._refuse_numbers(array.ndim)
        _check_texts(rows, whole=self.pair is not None)
        if self.pair is not None:
            return [tuple(map(str, row)) for row in rows]
        return ["\n".join(map(str, row)) for row in rows]

    def _refuse_numbers(self, dimensions: int) -> None:
        """Raises ValueError, since X holds only numbers."""
        form = "a row" if dimensions == 1 else "a matrix"
        raise ValueError(
            f"X is {form} of numbers, where {type(self).__name__} reads texts. Give the texts themselves, which it "
            "encodes, and no vectors of them. Reshape your data"
        )

    def _fitted(self, X: Any, answers: list[Any], kind: str, **settings: Any) -> Self:
        before = self.__dict__.copy()
        try:
            return self._learned(self._texts(X, reset=True), answers, kind, **settings)
        except BaseException:
            self.__dict__.clear()  # the model before stays, with the columns that it reads
            self.__dict__.update(before)
            raise

    def _learned(self, texts: list[Any], answers: list[Any], kind: str, **settings: Any) -> Self:
        check_consistent_length(texts, answers)
        cache = self.cache or str(SHARED.path / "cache")
        model = EstimatorModel(self.trunk, cache=cache, backend=self.backend, verbose=self.verbose)
        model.portable = self.portable
        parameters = {"pair": self.pair, "metric": self.metric, "strategy": self.strategy, "training": self.training}
        parameters["effort"] = self.effort
        chosen = {key: value for key, value in (parameters | settings).items() if value is not None}
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
        visible = [has_visible(str(cell)) for cell in row if isinstance(cell, str | Number)]
        if any(map(is_missing, row)):
            faults["a missing value"].append(number)
        elif len(visible) < len(row):
            faults["neither texts nor numbers"].append(number)
        elif not (all(visible) if whole else any(visible)):
            faults["no visible text"].append(number)
    for fault, numbers in faults.items():
        if numbers:
            do = "leave these rows out, or fill them with a text"
            raise _bad_rows(f"X has {fault}", numbers, len(rows), allowed="texts", do=do)


def _without_variable_strings(values: Any) -> Any:
    """An array of numpy's variable strings as one of objects: scikit-learn checks no array of them."""
    return values.astype(object) if getattr(getattr(values, "dtype", None), "kind", "") == "T" else values


def _is_sparse(y: object) -> bool:
    """Whether the value is a sparse matrix or array of scipy."""
    return hasattr(y, "tocsr")


class _BadRows(BadValue, ValueError):
    """An error for unusable rows that is both a PolyheadError and a ValueError, as scikit-learn's tools expect."""


def _bad_rows(problem: str, rows: Sequence[int], count: int, *, do: str, allowed: str | None = None) -> _BadRows:
    """The error for these of `count` rows, of which the first ten are named."""
    shown = ", ".join(map(str, rows[:10])) + (", ..." if len(rows) > 10 else "")
    problem = f"{problem} in {len(rows):,} of {count:,} rows"
    return _BadRows(problem, got=f"rows {shown}", allowed=allowed, do=do, rows=tuple(rows))


class PolyheadClassifier(ClassifierMixin, _TextEstimator):  # type: ignore[misc]
    """A classifier with one label per text, or any number of them if `y` is a 0/1 matrix (rows, labels).

    X is an array or list of texts (rows,), or an array or data frame (rows, columns) whose columns are joined; with
    `pair="joined"` or `"separate"` its two columns are the texts of a pair. Missing and empty texts are refused. The
    matrix may be sparse. Other settings are those of a `[[tasks]]` table. After fitting: `classes_`, and `model_`,
    whose `save` writes a bundle. A pickle names the encoder, which it is read with again; with `portable` it holds it.
    """

    def __init__(
        self,
        trunk: str = "minilm",
        *,
        pair: str | None = None,
        metric: str | None = None,
        class_weight: Any = None,
        strategy: Any = None,
        training: Any = None,
        effort: str | None = None,
        cache: str | None = None,
        backend: str | None = None,
        portable: bool = False,
        verbose: bool = False,
    ) -> None:
        shared = {"strategy": strategy, "training": training, "effort": effort, "cache": cache, "backend": backend}
        super().__init__(trunk, pair=pair, metric=metric, portable=portable, verbose=verbose, **shared)
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Trains on these texts and labels; a row counts in proportion to its weight.

        Rows of one group, such as a person, are all trained on or all held out to choose the head.

        Raises ValueError, with the rows, if X, y or the weights cannot be used.
        """
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        _check_labelled(y)
        y = _in_numpy(_without_variable_strings(y))
        if type_of_target(y) == "multilabel-indicator":
            if sample_weight is not None or self.class_weight is not None:
                raise ValueError("weights are for one label a text, and y is a matrix of labels")
            return self._fit_matrix(X, y, groups)
        if _is_sparse(y):
            raise ValueError("a sparse y is a matrix of 0 and 1 (rows, labels), with two labels or more")
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        if not len(y):
            raise ValueError(
                f"{type(self).__name__} has no rows to learn from: y is empty. Give texts with their labels"
            )
        classes, indices = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(f"{type(self).__name__} needs two classes or more; the data contains one class only")
        separator = separator_of([label for label in classes if isinstance(label, str)])
        if separator is not None and separator[1]:
            warnings.warn(
                f"y seems to hold several labels with {separator[0]!r} between them, and each different string is one "
                "class. For labels of their own give a 0/1 matrix (MultiLabelBinarizer)",
                stacklevel=2,
            )
        names = [str(number) for number in range(len(classes))]
        weights = self._weights(y, sample_weight)
        answers = [names[index] for index in indices]
        self._fitted(X, answers, SingleLabel.name, classes=names, weights=weights, groups=groups)
        self.classes_ = classes  # last: a fit that fails leaves the model before, with its classes
        return self

    def _weights(self, y: np.ndarray, sample_weight: Any) -> np.ndarray | None:
        """The weight of each row; None if all count alike."""
        if sample_weight is None and self.class_weight is None:
            return None
        weights = np.ones(len(y))
        if sample_weight is not None:
            row_weights = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
            check_consistent_length(y, row_weights)
            weights = column_or_1d(row_weights).copy()
        counted = weights != 0  # of the rows that class_weight="balanced" counts
        if counted.any():
            weights[counted] *= compute_sample_weight(self.class_weight, y[counted])
        if (weights < 0).any() or not weights.any():
            raise ValueError("every weight is zero or more, and not all of them are zero")
        return np.asarray(weights)

    def _fit_matrix(self, X: Any, y: Any, groups: Any) -> Self:
        matrix = y.tocsr() if _is_sparse(y) else np.asarray(y)
        names = [str(label) for label in range(matrix.shape[1])]
        columns = [row.nonzero()[-1] for row in (matrix[number : number + 1] for number in range(matrix.shape[0]))]
        answers = [[names[column] for column in row] for row in columns]
        self._fitted(X, answers, MultiLabel.name, classes=names, groups=groups)
        self.classes_ = np.arange(matrix.shape[1])
        return self

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

    def decision_function(self, X: Any) -> np.ndarray:
        """Logits (rows, classes), in the order of probabilities; of two classes the second's surplus, (rows,)."""
        column = self._column(X)
        outputs = np.stack([np.asarray(row) for row in column.outputs])
        if column.labels is None and outputs.shape[1] == 2:
            return np.asarray(outputs[:, 1] - outputs[:, 0])
        return outputs


def _check_labelled(y: Any) -> None:
    """Raises ValueError that names the rows of y without a label; scikit-learn checks numbers."""
    dtype = getattr(y, "dtype", None)
    has_numbers = isinstance(dtype, np.dtype) and dtype.kind not in "OT"
    if not isinstance(y, Iterable) or _is_sparse(y) or has_numbers or getattr(y, "ndim", 1) != 1:
        return
    values = list(y)
    if missing := [number for number, value in enumerate(values) if is_missing(value)]:
        raise _bad_rows("y has no label", missing, len(values), do="leave these rows out")


def _in_numpy(y: Any) -> Any:
    """Whole numbers and booleans of a type of pandas' own, or in a column of objects, in numpy's type of that kind.

    scikit-learn makes floats of the former, which do not hold every whole number, and refuses the latter.
    """
    dtypes = set(y.dtypes) if getattr(y, "ndim", 1) == 2 and hasattr(y, "columns") else {getattr(y, "dtype", None)}
    types = {getattr(dtype, "numpy_dtype", None) for dtype in dtypes}
    if len(types) == 1 and getattr(kind := types.pop(), "kind", "") in ("i", "u", "b"):
        return y if np.asarray(y.isna()).any() else y.to_numpy(kind)
    if dtypes == {np.dtype(object)} and y.ndim == 1 and set(map(type, y)) in ({int}, {bool}):
        return np.array(list(y))
    return y


class PolyheadRegressor(RegressorMixin, _TextEstimator):  # type: ignore[misc]
    """A regressor for texts or pairs of texts: see `PolyheadClassifier`. The range is that of y."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # of scikit-learn's, about columns of numbers: here they are read as text
        return tags

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Trains on these texts and numbers; rows of one group are all trained on or all held out.

        Raises ValueError if X or y cannot be used.
        """
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        if _is_sparse(y):
            raise ValueError("y is a sparse matrix, and a number for each text is expected: y.toarray().ravel()")
        _check_labelled(y)
        y = check_array(column_or_1d(y, warn=True), ensure_2d=False, dtype=np.float64)
        low, high = float(y.min()), float(y.max())
        if not low < high:
            raise ValueError(f"y holds one number only (n_samples={len(y)}), so there is nothing to learn")
        return self._fitted(X, y.tolist(), Regression.name, range=(low, high), groups=groups)

    def predict(self, X: Any) -> np.ndarray:
        """The numbers (rows,), float64."""
        values = self._column(X).value
        assert values is not None
        return values
