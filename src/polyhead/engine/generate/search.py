"""Greedy and beam search over a decoder's steps, equal to that of `transformers`; texts do not affect each other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from polyhead.engine.generate.step import DecoderCache, DecoderStep
from polyhead.errors import BackendError
from polyhead.tasks.generation import GenerationRules
from polyhead.values import Value

NEVER = np.float32(-1e9)  # added to the score of what must not be chosen, as in `transformers`


class Written(Value, eq=False):
    """A text as it was written."""

    ids: np.ndarray  # int64 (tokens,): without the start token, with the end's
    steps: int  # of the decoder, each for all beams
    error: Exception | None = None  # why nothing was written


def write(
    step: DecoderStep,
    states: np.ndarray,
    mask: np.ndarray,
    rules: GenerationRules,
    *,
    is_late: Callable[[], bool] = lambda: False,
) -> list[Written | None]:
    """The tokens that a decoder writes from states (texts, tokens, width), of which it reads those under `mask`.

    None stands for texts that were not finished in time, which is checked first and before each step.
    """
    if not len(states) or is_late():
        return [None] * len(states)
    search = _Greedy(rules, len(states)) if rules.beams == 1 else _Beams(rules, len(states))
    cache: DecoderCache = step.begin(states, mask)
    while len(search.texts) and not is_late():
        scores, cache = step.step(search.read, cache)
        rows = search.advance(np.asarray(scores, np.float32))
        if len(search.texts):
            cache = cache.only(*rows)
    return search.done


class _Search(ABC):
    """Texts that are being written: of each `beams` rows with the tokens so far."""

    def __init__(self, rules: GenerationRules, texts: int, beams: int) -> None:
        self.rules, self.beams, self.steps = rules, beams, 0
        self.done: list[Written | None] = [None] * texts
        self.texts = np.arange(texts)  # those that go on
        self.rows = np.full((texts, beams, 1), rules.start, np.int64)

    @property
    def read(self) -> np.ndarray:
        """The tokens that the decoder reads next, (texts, beams)."""
        return self.rows[:, :, -1]

    def advance(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Chooses next tokens by their scores; the texts that go on, and of each the rows of before that do."""
        self.steps += 1
        is_whole = (scores < np.inf).all(axis=(1, 2))  # false for NaN too
        scores[~is_whole] = 0.0
        is_done, parents = self.choose(scores)
        for text in np.flatnonzero(~is_whole).tolist():
            self._end(text, np.zeros(0, np.int64), error=_not_finite())
        for text in np.flatnonzero(is_done & is_whole).tolist():
            self._end(text, self.written(text))
        kept = np.flatnonzero(~is_done & is_whole)
        rows = (kept[:, None] * self.beams + parents[kept]).reshape(-1)
        self.keep(kept)
        return kept, rows

    @abstractmethod
    def choose(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Whether each text is done, bool (texts,), and the parent of each continuing row, (texts, beams)."""

    @abstractmethod
    def written(self, text: int) -> np.ndarray:
        """The tokens of a text that is done, without the start token."""

    def keep(self, texts: np.ndarray) -> None:
        """Forgets all but these."""
        self.texts, self.rows = self.texts[texts], self.rows[texts]

    def flat(self, scores: np.ndarray) -> np.ndarray:
        """Scores of all rows under the rules, (texts, beams, vocabulary)."""
        tokens = self.rows.shape[2]
        allowed = ruled(scores.reshape(-1, scores.shape[-1]), self.rows.reshape(-1, tokens), self.rules)
        return allowed.reshape(scores.shape)

    def _end(self, text: int, ids: np.ndarray, error: Exception | None = None) -> None:
        self.done[int(self.texts[text])] = Written(ids=ids, steps=self.steps, error=error)


class _Greedy(_Search):
    """The best token at every step."""

    def __init__(self, rules: GenerationRules, texts: int) -> None:
        super().__init__(rules, texts, 1)

    def choose(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        chosen = self.flat(scores).argmax(axis=-1)
        self.rows = np.concatenate([self.rows, chosen[:, :, None]], axis=2)
        is_done = np.isin(chosen[:, 0], self.rules.ends) | (self.steps >= self.rules.tokens)
        return is_done, np.zeros_like(chosen)

    def written(self, text: int) -> np.ndarray:
        return np.array(self.rows[text, 0, 1:])


class _Beams(_Search):
    """The best few rows at every step, and as many finished ones, by their score for each token."""

    def __init__(self, rules: GenerationRules, texts: int) -> None:
        super().__init__(rules, texts, rules.beams)
        self._scores = np.zeros((texts, self.beams), np.float32)
        self._scores[:, 1:] = NEVER  # else all rows would go the same way
        self._ended = np.full((texts, self.beams, 1), rules.start, np.int64)
        self._ended_scores = np.full((texts, self.beams), NEVER)
        self._lengths = np.zeros((texts, self.beams), np.int64)
        self._is_ended = np.zeros((texts, self.beams), bool)
        self._may_gain = np.ones(texts, bool)

    def choose(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rules, vocabulary = self.rules, scores.shape[-1]
        total = (self.flat(_log_softmax(scores)) + self._scores[:, :, None]).reshape(len(scores), -1)
        count = min(max(2, 1 + len(rules.ends)) * self.beams, total.shape[1])
        best, places = _top(total, count)
        parents, tokens = places // vocabulary, places % vocabulary
        rows = np.concatenate([_of(self.rows, parents), tokens[:, :, None]], axis=2)
        is_end = np.isin(tokens, rules.ends) | (self.steps >= rules.tokens)
        going, chosen = _top(best + is_end * NEVER, self.beams)
        self._finish(rows, best, is_end)
        self.rows, self._scores = _of(rows, chosen), going
        self._weigh()
        is_full = self._is_ended.all(axis=1) & (rules.early_stopping == "yes")
        return ~self._may_gain | is_full | is_end.all(axis=1), _of(parents, chosen)

    def _finish(self, rows: np.ndarray, best: np.ndarray, is_end: np.ndarray) -> None:
        """Takes rows that end into the best finished ones; only the first `beams` are considered."""
        is_new = is_end & (np.arange(best.shape[1]) < self.beams)
        is_full = self._is_ended.all(axis=1, keepdims=True) & (self.rules.early_stopping == "yes")
        scores = best / np.float32(self.steps**self.rules.length_penalty)
        for is_out in (is_full, ~self._may_gain[:, None], ~is_new):
            scores = scores + is_out * NEVER
        before = np.pad(self._ended, ((0, 0), (0, 0), (0, 1)), constant_values=self.rules.pad)
        self._ended_scores, chosen = _top(np.concatenate([self._ended_scores, scores], axis=1), self.beams)
        self._ended = _of(np.concatenate([before, rows], axis=1), chosen)
        self._is_ended = _of(np.concatenate([self._is_ended, is_new], axis=1), chosen)
        self._lengths = _of(np.concatenate([self._lengths, np.full(best.shape, self.steps)], axis=1), chosen)

    def _weigh(self) -> None:
        """Whether a continuing row may still exceed the worst finished one."""
        rules = self.rules
        never = rules.early_stopping == "never" and rules.length_penalty > 0
        length = np.float32((rules.tokens if never else self.steps) ** rules.length_penalty)
        worst = np.where(self._is_ended, self._ended_scores.min(axis=1, keepdims=True), NEVER)
        self._may_gain &= (self._scores[:, :1] / length > worst).any(axis=1)

    def written(self, text: int) -> np.ndarray:
        return np.array(self._ended[text, 0, 1 : 1 + self._lengths[text, 0]])

    def keep(self, texts: np.ndarray) -> None:
        super().keep(texts)
        for name in ("_scores", "_ended", "_ended_scores", "_lengths", "_is_ended", "_may_gain"):
            setattr(self, name, getattr(self, name)[texts])


def _of(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The rows (texts, chosen, ...) of each text at these places in (texts, rows, ...)."""
    return np.take_along_axis(values, places.reshape(*places.shape, *(1,) * (values.ndim - 2)), axis=1)


def _top(scores: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The highest scores of each text (texts, any), best first, and their places; of equal ones the first."""
    if 4 * count < scores.shape[1]:
        least = -np.partition(-scores, count - 1, axis=1)[:, count - 1 : count]
        candidates = [np.flatnonzero(row >= low) for row, low in zip(scores, least, strict=True)]
        places = np.stack(
            [at[np.argsort(-row[at], kind="stable")[:count]] for row, at in zip(scores, candidates, strict=True)]
        )
    else:
        places = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(scores, places, axis=1), places


def _log_softmax(scores: np.ndarray) -> np.ndarray:
    shifted = scores - scores.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def _not_finite() -> BackendError:
    """The error for a text whose scores of the next token are not finite."""
    return BackendError(
        "a decoder gave scores of tokens that are not finite",
        got="NaN or infinity",
        allowed="finite numbers",
        do="run `polyhead tasks verify`; where all files are whole, train the task again",
    )


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
