"""The best sequence of BIO labels among those in which every `I-x` continues a span of x.

Viterbi's algorithm (Forney 1973) with transitions that are allowed or not; nothing about them is learned.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def allowed(labels: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Which labels may come first, bool (labels,), and which may follow which, bool (labels, labels) as [from, to].

    `O` and every `B-x` may stand anywhere; `I-x` follows `B-x` or `I-x` alone.
    """
    heads, _, names = zip(*(label.partition("-") for label in labels), strict=True)
    inside, begun, name = np.array(heads) == "I", np.isin(heads, ("B", "I")), np.array(names)
    return ~inside, ~inside[None, :] | (begun[:, None] & (name[:, None] == name[None, :]))


def best_path(outputs: np.ndarray, labels: Sequence[str]) -> np.ndarray:
    """The allowed sequence of label indices with the largest sum of log-probabilities, int64 (words,).

    `outputs` are raw outputs of the head, (words, labels); they differ from log-probabilities by one number a word,
    which all sequences share. A word whose row is NaN gets some label that its neighbours allow: it may be the
    beginning of a span that goes on after it. Where the best label of each word gives an allowed sequence, that is
    the one; of equal sequences, the one whose last word has the first label, then the word before it, and so on.
    """
    scores = np.asarray(outputs, np.float64).reshape(-1, len(labels))
    scores = np.where(np.isnan(scores).any(axis=-1, keepdims=True), 0.0, scores)
    first, follows = allowed(labels)
    greedy: np.ndarray = scores.argmax(axis=-1).astype(np.int64)
    if not len(greedy) or (first[greedy[0]] and follows[greedy[:-1], greedy[1:]].all()):
        return greedy
    closed = np.where(follows, 0.0, -np.inf)
    total = np.where(first, scores[0], -np.inf)
    before = np.zeros(scores.shape, np.int64)  # (words, labels): the best label of the word before
    for word in range(1, len(scores)):
        through = total[:, None] + closed  # (from, to)
        before[word] = through.argmax(axis=0)
        total = through[before[word], np.arange(len(labels))] + scores[word]
    path = np.empty(len(scores), np.int64)
    path[-1] = total.argmax()
    for word in range(len(scores) - 1, 0, -1):
        path[word - 1] = before[word, path[word]]
    return path
