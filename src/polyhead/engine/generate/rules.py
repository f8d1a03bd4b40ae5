"""Rules of generation, applied to the scores of each next token in the order of `transformers`."""

from __future__ import annotations

import numpy as np

from polyhead.tasks.generation import GenerationRules


def ruled(scores: np.ndarray, written: np.ndarray, rules: GenerationRules) -> np.ndarray:
    """Scores (rows, vocabulary) under the rules, -inf for tokens that must not come; the array is changed.

    `written` (rows, 1 + tokens) are the tokens so far, the start token first.
    """
    tokens = written.shape[1] - 1
    if rules.repetition_penalty != 1.0:
        seen = np.take_along_axis(scores, written, axis=1)
        penalty = np.float32(rules.repetition_penalty)
        np.put_along_axis(scores, written, np.where(seen < 0, seen * penalty, seen / penalty), axis=1)
    if 0 < rules.no_repeat <= written.shape[1]:
        _forbid_repeats(scores, written, rules.no_repeat)
    for word in rules.bad_words:
        if len(word) > 1 or word[0] not in rules.ends:
            _forbid_word(scores, written, word)
    if tokens < rules.least:
        scores[:, list(rules.ends)] = -np.inf
    if tokens == 0 and rules.first is not None:
        _force(scores, (rules.first,))
    if tokens == rules.tokens - 1 and rules.last:
        _force(scores, rules.last)
    if rules.suppressed:
        scores[:, list(rules.suppressed)] = -np.inf
    return scores


def _forbid_repeats(scores: np.ndarray, written: np.ndarray, size: int) -> None:
    """Tokens that would end a sequence of so many tokens which stands there already."""
    windows = np.lib.stride_tricks.sliding_window_view(written, size, axis=1)  # (rows, places, size)
    prefix = written[:, written.shape[1] + 1 - size :]
    rows, places = np.nonzero((windows[..., :-1] == prefix[:, None]).all(axis=-1))
    scores[rows, windows[rows, places, -1]] = -np.inf


def _forbid_word(scores: np.ndarray, written: np.ndarray, word: tuple[int, ...]) -> None:
    before = len(word) - 1
    if before <= written.shape[1]:
        is_begun = (written[:, written.shape[1] - before :] == np.array(word[:-1], np.int64)).all(axis=1)
        scores[is_begun, word[-1]] = -np.inf


def _force(scores: np.ndarray, tokens: tuple[int, ...]) -> None:
    scores[:] = -np.inf
    scores[:, list(tokens)] = 0.0
