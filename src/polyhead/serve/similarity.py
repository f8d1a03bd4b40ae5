"""Answers to questions that no task answers: how near the text's vector lies to those of the options' words."""

from __future__ import annotations

import hashlib
import logging
import math
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import cast

import msgspec
import numpy as np

from polyhead.bundle.read import Bundle
from polyhead.engine.queue import Queue
from polyhead.engine.receipt import Receipt
from polyhead.engine.tickets import Ticket
from polyhead.errors import BadValue, PolyheadError
from polyhead.serve.questions import DecisionQuestion, json_text
from polyhead.serve.settings import why_no_answers
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.values import Value

KEPT = 16_384  # vectors of options that are kept: 25 MB at width 384
PROBES = 64  # of a task that are read to fit the temperature, where it has so many
SHARPEST, FLATTEST = 1 / 200, 1.0  # temperatures between which the fitted one lies
# Of a bundle without a task to fit on: in the middle of those that fit training rows of ten data sets best.
UNFITTED, CENTRE = 1 / 20, 0.13

_HYPHEN = re.compile(r"(?<=[^\W\d_])-(?=[^\W\d_])")

log = logging.getLogger(__name__)


class OptionVector(Value, eq=False):
    """The direction of an option's words, and what reading them took."""

    vector: np.ndarray  # float32 (width,), of length 1
    tokens: int
    receipt: Receipt | None = None  # of words that were read for this request; None of those that were kept


OptionVectors = Mapping[str, OptionVector | PolyheadError]
"""The vectors of options' words; an error for those that could not be read."""


class Fit(Value):
    """A fitted conversion of similarities to probabilities."""

    temperature: float = UNFITTED
    centre: float = CENTRE  # the cosine at which a statement about a text is as likely true as not
    tasks: tuple[str, ...] = ()  # those that it was fitted on


class Similarity:
    """Compares texts with options by their mean vectors; vectors of options are kept, the last used ones.

    `fit` is called once; all else at any time, and all by any thread.
    """

    def __init__(self, vectors: str, trunk: str, *, kept: int = KEPT) -> None:
        """`vectors` names the hidden task whose output is the mean vector, which a trunk of this digest computes."""
        self.vectors, self.fitted = vectors, Fit()
        self._trunk, self._most = trunk.encode(), kept
        self._kept: OrderedDict[bytes, OptionVector] = OrderedDict()
        self._lock = threading.Lock()  # of what is kept, which several threads read and write

    def fit(self, queue: Queue, bundle: Bundle) -> None:
        """Fits the temperature to what the bundle's own tasks answer to their own probes; see `fitted_to`.

        Tasks with labels over one text count, if each label has a letter. The words of a label are read as those of an
        option whose question has the task's name as its instructions. Waits for the queue.
        """
        samples = dict[str, Sample]()
        for name, record in bundle.tasks.items():
            if not _is_sample(record.task):
                continue
            read = [(probe.get("text") or [""])[0] for probe in bundle.probes(name)]
            if texts := [text for text in read if isinstance(text, str) and text.strip()][:PROBES]:
                samples[name] = self._sample(queue, record.task, texts)
        self.fitted = fitted_to(samples)
        log.info(
            "similarity: temperature %.4f, centre %.3f, fitted on %s",
            self.fitted.temperature,
            self.fitted.centre,
            ", ".join(samples) or "nothing: no task of the bundle has labels in words and probes",
        )

    def _sample(self, queue: Queue, task: Task, texts: Sequence[str]) -> Sample:
        words = [option_text(plain_words(task.name), plain_words(label), "") for label in task.labels]
        answered = _waited_for(queue, [*texts, *words], [task.name, self.vectors])
        vectors = [_direction(outputs[self.vectors]) for outputs in answered.outputs]
        options = np.stack(vectors[len(texts) :])
        answers = [result.answers[task.name] for result in answered.results[: len(texts)] if result is not None]
        scores = [cast(Mapping[str, float], answer["scores"]) for answer in answers]
        shares = np.array([[each[label] for label in task.labels] for each in scores], np.float64)
        cosines = np.stack([_cosines(options, vector) for vector in vectors[: len(texts)]])
        return Sample(cosines=cosines, shares=shares / np.maximum(shares.sum(axis=1, keepdims=True), 1e-9))

    def known(self, words: Iterable[str]) -> tuple[dict[str, OptionVector], list[str]]:
        """The vectors of these words that are kept, and the words that have none."""
        options, unread = dict[str, OptionVector](), list[str]()
        for text in words:
            key = self._key(text)
            with self._lock:
                if (kept := self._kept.get(key)) is not None:
                    self._kept.move_to_end(key)
            if kept is None:
                unread.append(text)
            else:
                options[text] = kept
        return options, unread

    def learned(self, words: Sequence[str], read: Ticket, refused: Collection[int] = ()) -> OptionVectors:
        """The vectors of words that were read, which are kept from now on, but for those `refused`, by number.

        Words without a vector have an error.
        """
        options = dict[str, OptionVector | PolyheadError]()
        for number, (text, result, outputs) in enumerate(zip(words, read.results, read.outputs, strict=True)):
            if number in refused:
                continue
            if result is None or self.vectors not in outputs:
                do = "ask again, or in other words"
                options[text] = BadValue("the words of an option could not be read", got=text, do=do)
                continue
            vector, tokens = _direction(outputs[self.vectors]), result.receipt.tokens
            key, kept = self._key(text), OptionVector(vector=vector, tokens=tokens)
            options[text] = msgspec.structs.replace(kept, receipt=result.receipt)
            with self._lock:
                self._kept[key] = kept
                while len(self._kept) > self._most:
                    self._kept.popitem(last=False)
        return options

    def _key(self, text: str) -> bytes:
        return hashlib.sha256(self._trunk + text.encode("utf-8", "surrogatepass")).digest()

    def probabilities(
        self, question: DecisionQuestion, text: np.ndarray, options: Mapping[str, OptionVector]
    ) -> tuple[float, ...]:
        """One for each option of the question, from the text's mean vector (width,)."""
        words, fitted = words_read(question), self.fitted
        cosines = _cosines(np.stack([options[each].vector for each in words]), _direction(text)).tolist()
        if len(cosines) == 1:  # of a predicate: what holds, or what does not, is compared with nothing
            holds = _sigmoid((cosines[0] - fitted.centre) / fitted.temperature)
            return (1.0 - holds, holds) if _only_false(question) else (holds, 1.0 - holds)
        return order_free_softmax([cosine / fitted.temperature for cosine in cosines])


def words_read(question: DecisionQuestion) -> tuple[str, ...]:
    """The texts that represent a question: one per option, or a single one for a predicate with one described side.

    An option is read after the instructions, a value before its description; the values of a predicate are not read.
    Raises BadValue for an option without words.
    """
    if question.form != "predicate":
        texts = [
            option_text(question.instructions, plain_words(json_text(each.value)), each.words)
            for each in question.options
        ]
    elif all(each.words for each in question.options):
        texts = [option_text(question.instructions, "", each.words) for each in question.options]
    else:
        texts = [option_text(question.instructions, "", "".join(each.words for each in question.options))]
    if not all(text.strip() for text in texts):
        raise BadValue(
            f"question '{question.name}' has no words to compare the text with",
            allowed="instructions, or words for each option",
            do="say what is asked",
        )
    return tuple(texts)


def characters_read(question: DecisionQuestion) -> int:
    """Characters of all texts that `words_read` makes of a question, at most: instructions stand before each option."""
    options = ((len(each.value) if isinstance(each.value, str) else 0) + len(each.words) for each in question.options)
    return (len(question.instructions) + 3) * len(question.options) + sum(options)


def option_text(instructions: str, value: str, description: str) -> str:
    """The text of an option: `INSTRUCTIONS VALUE: DESCRIPTION`, without the parts that it lacks."""
    option = f"{value}: {description}" if value and description else value or description
    return f"{instructions} {option}".strip() if instructions else option


def plain_words(name: str) -> str:
    """A label or name as words: `_`, and `-` between letters, are spaces."""
    return _HYPHEN.sub(" ", name.replace("_", " "))


class Sample(Value, eq=False):
    """A task's answers to its probes, and their similarities to the labels' words; float64 (probes, labels)."""

    cosines: np.ndarray
    shares: np.ndarray  # probabilities; those of a task that gives several labels are divided by their sum


def fitted_to(samples: Mapping[str, Sample]) -> Fit:
    """The temperature with the lowest cross-entropy of softmax(cosines / temperature) to what the tasks answer.

    A task's mean over its probes is divided by that of equal probabilities, and tasks count alike. The sum is convex in
    1 / temperature, so the best value is bisected by its slope. The centre is that from which, at this temperature,
    sigmoid((cosine - centre) / temperature) is in the mean what the shares are, tasks counting alike. Without samples
    both are those of a bundle without tasks.
    """
    if not samples:
        return Fit()
    each = list(samples.values())
    sharpness = _root(lambda sharpness: sum(_slope(sample, sharpness) for sample in each), 1 / FLATTEST, 1 / SHARPEST)
    centre = _root(lambda centre: sum(_missing(sample, sharpness, centre) for sample in each), -1.0, 1.0)
    return Fit(temperature=1 / sharpness, centre=centre, tasks=tuple(samples))


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    """The zero of an increasing function, or else the nearer end of the range."""
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2


def _slope(sample: Sample, sharpness: float) -> float:
    """The derivative of a task's cross-entropy by 1 / temperature."""
    shares = np.exp(sharpness * (sample.cosines - sample.cosines.max(axis=1, keepdims=True)))
    shares /= shares.sum(axis=1, keepdims=True)
    rows = ((shares - sample.shares) * sample.cosines).sum(axis=1)
    return float(rows.mean() / math.log(sample.cosines.shape[1]))


def _missing(sample: Sample, sharpness: float, centre: float) -> float:
    """By how much labels are said to hold too rarely, in the mean over a task's probes and labels."""
    holds = 0.5 * (1.0 + np.tanh(0.5 * sharpness * (sample.cosines - centre)))
    return float((sample.shares - holds).mean())


def order_free_softmax(numbers: Sequence[float]) -> tuple[float, ...]:
    """Probabilities whose bits do not depend on the order of the numbers."""
    most = max(numbers)
    powers = [math.exp(number - most) for number in numbers]
    total = math.fsum(powers)
    return tuple(power / total for power in powers)


def _sigmoid(number: float) -> float:
    return 0.5 * (1.0 + math.tanh(0.5 * number))


def _direction(vector: np.ndarray) -> np.ndarray:
    """The vector at length 1; zeros stay."""
    length = math.sqrt(float(np.sum(np.square(vector, dtype=np.float64))))
    return np.asarray(vector / length if length else vector, np.float32)


def _cosines(options: np.ndarray, text: np.ndarray) -> np.ndarray:
    """Float64 (options,). Each is summed by itself: a product of matrices may round it otherwise among others."""
    return np.asarray((options.astype(np.float64) * text).sum(axis=1))


def _waited_for(queue: Queue, texts: Sequence[str], tasks: Sequence[str]) -> Ticket:
    answered: Future[Ticket] = Future()
    queue.submit(texts, answered.set_result, tasks=tasks)
    ticket = answered.result()
    if ticket.error is not None:
        raise ticket.error
    return ticket


def _is_sample(task: Task) -> bool:
    """Whether a task has labels in words, and reads one text."""
    is_words = len(task.labels) > 1 and all(any(sign.isalpha() for sign in label) for label in task.labels)
    return is_words and kind_of(task).scores in ("softmax", "sigmoid") and why_no_answers(task) is None


def _only_false(question: DecisionQuestion) -> bool:
    holds, fails = question.options
    return bool(fails.words) and not holds.words
