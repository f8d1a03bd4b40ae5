"""Metrics of whole splits; higher is better. Equal to scikit-learn, scipy and seqeval where these define a value.

Where they do not: an empty split raises EmptyData; a correlation with a constant is 0 (scipy: nan); an F1, recall or
Matthews correlation with a zero denominator is 0 (scikit-learn's `zero_division=0`).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from polyhead.errors import DataError, EmptyData
from polyhead.values import Value

BINS = 15  # of confidence, of equal width, as in Guo et al. 2017
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")

Metric = Callable[[np.ndarray, np.ndarray], float]
"""(targets, predictions) of a whole split to one number."""


def accuracy(targets: np.ndarray, predictions: np.ndarray) -> float:
    """Share of right rows: labels (rows,), or whole label sets (rows, labels)."""
    targets, predictions = _checked(targets, predictions)
    same = targets == predictions
    return float(same.reshape(len(same), -1).all(axis=1).mean())


def macro_f1(targets: np.ndarray, predictions: np.ndarray, *, nothing: int | None = None) -> float:
    """Mean F1 of the labels: those that occur on either side of (rows,), or all of (rows, labels).

    A prediction of (rows,) that equals `nothing` misses its row's label and is not a label itself.
    """
    right, predicted, actual = _counts(targets, predictions)
    if nothing is not None:
        is_label = np.unique(np.concatenate([targets, predictions])) != nothing
        right, predicted, actual = right[is_label], predicted[is_label], actual[is_label]
    return float(np.mean(ratio(2 * right, predicted + actual)))


def micro_f1(targets: np.ndarray, predictions: np.ndarray) -> float:
    """F1 over all decisions together; for (rows,) of labels it equals accuracy."""
    right, predicted, actual = _counts(targets, predictions)
    return float(ratio(2 * right.sum(), predicted.sum() + actual.sum()))


def macro_recall(targets: np.ndarray, predictions: np.ndarray) -> float:
    """Mean recall of the labels in targets or predictions, as TweetEval scores sentiment."""
    right, _, true = _counts(targets, predictions)
    return float(np.mean(ratio(right, true)))


def f1_of(label: int) -> Metric:
    """The F1 of one label index: 2 right / (predicted + true)."""

    def f1(targets: np.ndarray, predictions: np.ndarray) -> float:
        targets, predictions = _checked(targets, predictions)
        right = np.sum((targets == label) & (predictions == label))
        return float(ratio(2 * right, np.sum(targets == label) + np.sum(predictions == label)))

    return f1


def matthews(targets: np.ndarray, predictions: np.ndarray) -> float:
    """Matthews correlation of any number of labels (Gorodkin 2004): cov(t, p) / sqrt(cov(t, t) cov(p, p))."""
    return float(matthews_of(*_counts(targets, predictions)))


def matthews_of(right: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> np.ndarray:
    """The same, from how often each label is right, predicted and true, each (..., labels)."""
    right, predicted, true = (np.asarray(counts, np.float64) for counts in (right, predicted, true))
    rows = true.sum(axis=-1)
    covariance = right.sum(axis=-1) * rows - (predicted * true).sum(axis=-1)
    spread = (rows**2 - (predicted**2).sum(axis=-1)) * (rows**2 - (true**2).sum(axis=-1))
    return ratio(covariance, np.sqrt(np.maximum(spread, 0.0)))


def pearson(targets: np.ndarray, predictions: np.ndarray) -> float:
    """Linear correlation, in float64; 0 when either side is constant."""
    targets, predictions = _checked(targets, predictions)
    first, second = _centred(targets), _centred(predictions)
    if not first.any() or not second.any():
        return 0.0
    return float(np.clip(first / np.linalg.norm(first) @ (second / np.linalg.norm(second)), -1.0, 1.0))


def spearman(targets: np.ndarray, predictions: np.ndarray) -> float:
    """Correlation of ranks; equal values share their mean rank."""
    targets, predictions = _checked(targets, predictions)
    places = (np.unique(values, return_inverse=True)[1] for values in (targets, predictions))
    return pearson(*(ranks(place, np.ones(len(place))) for place in places))


class WordSpan(Value):
    """Words [start, stop) with one label."""

    label: str
    start: int
    stop: int


def spans_of(tags: Sequence[str]) -> list[WordSpan]:
    """Spans of a BIO sequence as conlleval reads it: an I-x after anything but B-x or I-x begins a span."""
    spans: list[WordSpan] = []
    label, start = None, 0
    for index, tag in enumerate([*tags, "O"]):
        head, _, name = tag.partition("-")
        if label is not None and (head != "I" or name != label):
            spans.append(WordSpan(label=label, start=start, stop=index))
            label = None
        if head in ("B", "I") and label is None:
            label, start = name, index
    return spans


def exact_match(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> float:
    """Share of rows whose answer is one of the right ones, after `normalised`; as in the script of SQuAD.

    `targets` holds every right answer of each row; an empty list, or an empty answer, means that no answer is right.
    """
    return _best_of(targets, predictions, lambda reference, answer: float(reference == answer))


def answer_f1(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> float:
    """Mean over rows of the word-level F1 of the answer and the closest right answer; as in the script of SQuAD.

    Words are those of `normalised`, with multiplicity. If one side has none, the F1 is 1 if the other has none either,
    else 0 (Rajpurkar et al. 2018).
    """
    return _best_of(targets, predictions, _words_f1)


def normalised(answer: str) -> str:
    """Lower case, without ASCII punctuation, English articles and extra white space (Rajpurkar et al. 2016)."""
    plain = answer.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def _best_of(targets: Sequence[Sequence[str]], predictions: Sequence[str], score: Callable[[str, str], float]) -> float:
    check_rows(targets, predictions)
    total = 0.0
    for answers, predicted in zip(targets, predictions, strict=True):
        wanted = [answer for answer in map(normalised, answers) if answer] or [""]
        normal = normalised(predicted)
        total += max(score(answer, normal) for answer in wanted)
    return total / len(targets)


def check_rows(targets: Sequence[object], predictions: Sequence[object]) -> None:
    """Raises DataError if there are not as many predictions as targets, EmptyData if there are none."""
    if len(targets) != len(predictions):
        raise DataError("predictions and targets differ in number", got=len(predictions), allowed=len(targets))
    if not len(targets):
        raise EmptyData("a split without rows has no score")


def _words_f1(reference: str, answer: str) -> float:
    reference_words, answer_words = Counter(reference.split()), Counter(answer.split())
    if not reference_words or not answer_words:
        return float(reference_words == answer_words)
    return 2 * (reference_words & answer_words).total() / (reference_words.total() + answer_words.total())


def _checked(targets: np.ndarray, predictions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    targets, predictions = np.asarray(targets), np.asarray(predictions)
    if targets.shape != predictions.shape:
        raise DataError("predictions and targets differ in shape", got=predictions.shape, allowed=targets.shape)
    if not len(targets):
        raise EmptyData("a split without rows has no score")
    return targets, predictions


class LabelScore(Value):
    """Precision, recall and F1 of one label: over rows, words, or spans."""

    label: str
    precision: float  # share of the rows with this answer that are right; 0 if no row has it
    recall: float  # share of the rows with this label that are right; 0 if no row has it
    f1: float
    support: int  # number with the label
    predicted: int  # number with the answer


def scores_by_label(
    labels: Sequence[str], right: np.ndarray, predicted: np.ndarray, support: np.ndarray
) -> tuple[LabelScore, ...]:
    """The scores of each label from how often it is right, given, and true, each (labels,)."""
    columns = (ratio(right, predicted), ratio(right, support), ratio(2 * right, predicted + support))
    return tuple(
        LabelScore(label=label, precision=p, recall=r, f1=f, support=true, predicted=answered)
        for label, p, r, f, true, answered in zip(
            labels, *(column.tolist() for column in (*columns, support, predicted)), strict=True
        )
    )


def _counts(targets: np.ndarray, predictions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per label: right rows, predicted rows, true rows."""
    targets, predictions = _checked(targets, predictions)
    if targets.ndim == 1:
        _, codes = np.unique(np.concatenate([targets, predictions]), return_inverse=True)
        targets, predictions = codes[: len(targets)], codes[len(targets) :]
        size = int(codes.max()) + 1
        right = np.bincount(targets[targets == predictions], minlength=size)
        return right, np.bincount(predictions, minlength=size), np.bincount(targets, minlength=size)
    targets, predictions = targets.astype(bool), predictions.astype(bool)
    return (targets & predictions).sum(axis=0), predictions.sum(axis=0), targets.sum(axis=0)


def ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """above / below; 0 if below is 0."""
    above, below = np.asarray(above, np.float64), np.asarray(below, np.float64)
    return np.asarray(np.divide(above, below, out=np.zeros_like(above), where=below != 0))


def _centred(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, np.float64)
    if np.all(values == values[0]):  # the mean of equal numbers can differ from them by rounding
        return np.zeros_like(values)
    return np.asarray(values - values.mean())


def ranks(place: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Ranks (rows,) of rows with these multiplicities; equal numbers, those with one `place`, share their mean rank."""
    of_each = np.bincount(place, weights=counts)
    return np.asarray((np.cumsum(of_each) - (of_each - 1) / 2)[place])


def bins_of(confidence: np.ndarray, bins: int = BINS) -> np.ndarray:
    """The bin of each confidence, int64 (decisions,): bin i holds (i / bins, (i + 1) / bins], and 0 is in bin 0."""
    places: np.ndarray = np.clip(np.ceil(np.asarray(confidence) * bins).astype(np.int64) - 1, 0, bins - 1)
    return places


def calibration_error(confidence: np.ndarray, is_right: np.ndarray, bins: int = BINS) -> float:
    """Expected calibration error (Guo et al. 2017): mean over decisions of |accuracy - confidence| of their bin.

    Both are (decisions,), confidence from 0 to 1; 0 without decisions. Lower is better.
    """
    if not len(confidence):
        return 0.0
    gaps = np.bincount(bins_of(confidence, bins), weights=is_right - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(confidence))
