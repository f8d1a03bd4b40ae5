"""Explanations of answers: erasure of words (Li et al. 2016), and the weights of an attention pooler.

Erasure answers every input again without each of its words, all in one call of the session: the effect of a word is how
much the support of the answer falls without it, of a probability how much its log-odds do, which do not end near 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

import msgspec
import numpy as np

from polyhead.engine.backends.base import LoadedTask, TokenBatch
from polyhead.engine.backends.prefix import is_averaged, layers_read, stored_paths
from polyhead.engine.compile.heads import folded_task
from polyhead.engine.inputs import AnyInput, Passage, Words, task_input
from polyhead.engine.session import Session
from polyhead.errors import BackendError
from polyhead.plan import Path
from polyhead.plan.coding import through, tokens_of
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.kinds.base import softmax
from polyhead.tasks.task import Answer, Task
from polyhead.text.question import Question, texts_of
from polyhead.text.tokenize import Encoded, Input
from polyhead.text.words import words_of
from polyhead.values import Value


class TextPart(Value):
    """Characters [start, end) of one text of an input: a unit of omission."""

    place: int  # index of the text in the input
    start: int
    end: int


class WordWeight(TextPart):
    """A word in one of an input's texts, and its share of the pooler's weight."""

    text: str
    weight: float


class WordWeights(Value):
    """The weights of all words of an input, the mean over the pooler's heads.

    They sum to 1 with `elsewhere`, for each text of a pair that is read separately. A word beyond the cut of a text has
    none.
    """

    words: tuple[WordWeight, ...]
    elsewhere: float  # special tokens, such as [CLS]; the mean if two texts are read separately


def attention_of(session: Session, tasks: Iterable[str], entry: AnyInput) -> dict[str, WordWeights]:
    """The weights with which tasks read this input; of a long text, its beginning.

    Tasks without an attention pooler, or with their own layers or prompts, are left out; all are for a question with
    options. Tasks that read the same layers share a pass of the trunk.
    """
    if isinstance(entry, Question):
        return {}
    texts, alike = texts_of(task_input(entry)), dict[Hashable, tuple[list[Input], dict[str, Path]]]()
    for name in tasks:
        record = session.records.get(name)
        if record is None or record.path.pool.positions != "attention":
            continue
        try:
            (stored,) = stored_paths([record.path])
        except BackendError:  # only states of the trunk's own layers are kept
            continue
        is_joined = len(texts) > 1 and not record.path.head.separate
        parts: list[Input] = [(texts[0], texts[1])] if is_joined else [(text,) for text in texts]
        key = is_joined, *layers_read(stored), is_averaged(stored.pool)
        alike.setdefault(key, (parts, {}))[1][name] = record.path
    weights = dict[str, WordWeights]()
    for parts, paths in alike.values():
        weights |= _word_weights(session, paths, parts)
    return weights


def _word_weights(session: Session, paths: Mapping[str, Path], parts: Sequence[Input]) -> dict[str, WordWeights]:
    """The weights of tasks that read these parts of an input separately."""
    words, elsewhere = {name: list[WordWeight]() for name in paths}, {name: list[float]() for name in paths}
    for number, part in enumerate(parts):
        (encoded,) = session.tokenizer.encode([part])
        for name, weights in token_weights(session, paths, encoded).items():
            words[name] += _by_word(part, encoded, weights, first=number)
            elsewhere[name].append(float(weights[encoded.sequence < 0].sum()))
    return {name: WordWeights(words=tuple(words[name]), elsewhere=float(np.mean(elsewhere[name]))) for name in paths}


def token_weights(session: Session, paths: Mapping[str, Path], encoded: Encoded) -> dict[str, np.ndarray]:
    """The weight of each token of an input by task, float64 (tokens,), the mean over heads; one pass for all tasks."""
    ids = encoded.ids[None].astype(np.int64)
    mask = np.ones(ids.shape, bool)
    batch = TokenBatch(
        ids=ids, mask=mask, segments=encoded.segments[None].astype(np.int64), words=np.full((1, 1), -1, np.int64)
    )
    weights = {}
    features = session.loaded.backend.features(list(paths.values()), batch)  # of each (tokens, layers, width)
    for (name, path), values in zip(paths.items(), features, strict=True):
        pool = path.stored().pool
        tokens = tokens_of(pool, ids=ids, mask=mask, words=None)[0]
        states = through(np.ascontiguousarray(values), pool.codec, tokens[:, None])
        weights[name] = _pooler_weights(path, session.arrays(name), states)
    return weights


def _pooler_weights(path: Path, loaded: LoadedTask, states: np.ndarray) -> np.ndarray:
    """The weight of each token from the states (tokens, layers, width) that the pooler reads."""
    scores = folded_task(loaded, width=states.shape[-1]).scores
    assert scores is not None
    if path.pool.layers != "learned":
        states = states.mean(axis=1, keepdims=True)
    return np.asarray(softmax((states.reshape(len(states), -1) @ scores).T).mean(axis=0))


def _by_word(texts: Sequence[str], encoded: Encoded, weights: np.ndarray, *, first: int) -> list[WordWeight]:
    """The sum over the tokens of each word; a token that several words share is split evenly."""
    weighted = []
    for place, text in enumerate(texts):
        words = words_of(text)
        is_in_text = encoded.sequence == place
        starts, ends = encoded.offsets[is_in_text, 0], encoded.offsets[is_in_text, 1]
        overlaps = (starts[:, None] < words[:, 1]) & (ends[:, None] > words[:, 0])  # (tokens, words)
        shares = overlaps / np.maximum(overlaps.sum(axis=1, keepdims=True), 1)
        for (start, end), weight in zip(words.tolist(), (weights[is_in_text] @ shares).tolist(), strict=True):
            weighted.append(WordWeight(place=first + place, start=start, end=end, text=text[start:end], weight=weight))
    return weighted


LOOKED_AT = 2048  # characters of a text in which words are counted at once
# parts of an input that are omitted one by one; with more words, neighbouring words are omitted together
MOST_PARTS = 96
SURE = 1e-7  # a probability in float32 can be no nearer to 1


class Phrase(TextPart):
    """A word, or neighbouring words, in one of an input's texts."""

    text: str
    effect: float  # log-odds of the answer, or the number, minus those without these words; below 0: against it
    becomes: str | None = None  # the answer without these, if it differs


class Said(Value):
    """One part of an answer, and the words that affect it, in text order."""

    says: str
    support: float  # its probability, or the number
    parts: tuple[Phrase, ...]

    def strongest(self, count: int) -> list[Phrase]:
        """The parts with the largest effects in either direction, the largest first; none without effect."""
        ranked = sorted((part for part in self.parts if part.effect), key=lambda part: -abs(part.effect))
        return ranked[:count]


class Explanation(Value):
    """The reasons of a task's answer."""

    task: str
    texts: tuple[str, ...]  # texts of the input, to which character offsets refer
    said: tuple[Said, ...]
    attention: WordWeights | None = None  # for a task with an attention pooler; a server leaves it out when it is late


class Variants(Value, eq=False):
    """Inputs, each followed by copies without one of its parts."""

    entries: tuple[AnyInput, ...]
    parts: tuple[tuple[TextPart, ...], ...]  # of each input
    inputs: list[AnyInput]  # everything to be answered
    words: list[np.ndarray | None]  # the inputs' own words, as a session takes them

    def explanations(
        self, tasks: Mapping[str, Task], answers: Mapping[str, Mapping[int, Answer]]
    ) -> list[dict[str, Explanation]]:
        """For each entry the explanation of every task that answers it; `answers` are by task and number of input."""
        explanations: list[dict[str, Explanation]] = []
        start = 0
        for entry, parts in zip(self.entries, self.parts, strict=True):
            by_task = {}
            for name, of_task in answers.items():
                if start in of_task:
                    others = [of_task.get(start + 1 + place) for place in range(len(parts))]
                    by_task[name] = _explanation(tasks[name], entry, of_task[start], parts, others)
            explanations.append(by_task)
            start += 1 + len(parts)
        return explanations


def variants_of(
    inputs: Sequence[AnyInput], *, words: Words = None, check: Callable[[Sequence[int]], None] = lambda counts: None
) -> Variants:
    """The inputs to answer for explanations of these inputs; a text of n words needs n + 1.

    `check` is called with the number for each input beforehand, and may raise to refuse them.
    """
    all_inputs, all_words = list[AnyInput](), list[np.ndarray | None]()
    each_words = [None] * len(inputs) if words is None else words
    parts_of = [tuple(parts_in(entry, its)) for entry, its in zip(inputs, each_words, strict=True)]
    check([1 + len(parts) for parts in parts_of])
    for entry, its_words, parts in zip(inputs, each_words, parts_of, strict=True):
        all_inputs += [entry, *(without(entry, part) for part in parts)]
        all_words += [its_words, *(_moved(its_words, entry, part) for part in parts)]
    return Variants(entries=tuple(inputs), parts=tuple(parts_of), inputs=all_inputs, words=all_words)


def explained(
    session: Session, inputs: Sequence[AnyInput], tasks: Sequence[str], *, words: Words = None
) -> list[dict[str, Explanation]]:
    """For each input, the explanation of every one of these tasks that answers it.

    `words` are an input's own words, as a session takes them. One call of the session answers all inputs and all their
    copies without a part.
    """
    if not inputs:
        return []
    variants = variants_of(inputs, words=words)
    variant_words = variants.words if any(each is not None for each in variants.words) else None
    columns = session.columns(variants.inputs, tasks=tasks, words=variant_words)
    answers = {name: dict(zip(columns[name].rows.tolist(), columns[name].answers, strict=True)) for name in tasks}
    return [
        with_attention(by_task, attention_of(session, by_task, entry))
        for entry, by_task in zip(inputs, variants.explanations(session.tasks, answers), strict=True)
    ]


def with_attention(by_task: Mapping[str, Explanation], weights: Mapping[str, WordWeights]) -> dict[str, Explanation]:
    """Explanations of an input with the weights of poolers."""
    return {
        name: msgspec.structs.replace(explanation, attention=weights.get(name)) for name, explanation in by_task.items()
    }


def parts_in(entry: AnyInput, words: np.ndarray | None = None) -> list[TextPart]:
    """The words of all texts of an input except options; neighbours together if there are more than MOST_PARTS.

    The only word of a text is never omitted: an empty text cannot be read.
    """
    spans: list[TextPart] = []
    for place, text in enumerate(_texts(entry)):
        is_last = words is not None and place == len(_texts(entry)) - 1
        text_words = words_of(text) if not is_last or words is None else words[(words[:, 1] > words[:, 0])]
        if len(text_words) > 1:
            spans += [TextPart(place=place, start=start, end=end) for start, end in np.asarray(text_words).tolist()]
    return _together(spans)


def least_variants(entry: AnyInput) -> int:
    """A lower bound of the inputs needed to explain this one's answers; long texts are not read to the end."""
    words = 0
    for text in _texts(entry):
        for start in range(0, len(text), LOOKED_AT):
            words += max(0, len(words_of(text[start : start + LOOKED_AT])) - 1)  # the last may continue after it
            if words > MOST_PARTS:
                return MOST_PARTS // 2 - len(_texts(entry))
    return 1


def _together(spans: list[TextPart]) -> list[TextPart]:
    size = -(-len(spans) // MOST_PARTS)
    if size < 2:
        return spans
    joined: list[TextPart] = []
    for place in dict.fromkeys(span.place for span in spans):
        of_text = [span for span in spans if span.place == place]
        groups = [of_text[start : start + size] for start in range(0, len(of_text), size)]
        if len(groups) > 1:
            joined += [TextPart(place=place, start=group[0].start, end=group[-1].end) for group in groups]
    return joined


def _texts(entry: AnyInput) -> tuple[str, ...]:
    """The texts from which words are omitted."""
    if isinstance(entry, Question):
        return (entry.text, entry.context) if entry.context.strip() else (entry.text,)
    return texts_of(task_input(entry))


def without(entry: AnyInput, part: TextPart) -> AnyInput:
    """The input without these characters, and without a space that would be doubled."""
    texts = list(_texts(entry))
    before, after = texts[part.place][: part.start], texts[part.place][part.end :]
    texts[part.place] = before + (after[1:] if _joins(before, after) else after)
    if isinstance(entry, Question):
        return msgspec.structs.replace(entry, text=texts[0], context=texts[1] if len(texts) > 1 else entry.context)
    if isinstance(entry, Passage):
        return Passage(question=texts[0], context=texts[1])
    return (texts[0], texts[1]) if len(texts) > 1 else (texts[0],)


def _joins(before: str, after: str) -> bool:
    return after[:1] == " " and (not before or before[-1:] == " ")


def _moved(words: np.ndarray | None, entry: AnyInput, part: TextPart) -> np.ndarray | None:
    """The input's own words without the omitted ones, at their new offsets."""
    texts = _texts(entry)
    if words is None or part.place < len(texts) - 1:
        return words
    text = texts[part.place]
    gone = part.end - part.start + _joins(text[: part.start], text[part.end :])
    kept = words[(words[:, 1] <= part.start) | (words[:, 0] >= part.end)]
    return np.where(kept >= part.end, kept - gone, kept)


def _explanation(
    task: Task, entry: AnyInput, answer: Answer, parts: Sequence[TextPart], others: Sequence[Answer | None]
) -> Explanation:
    kind, texts = kind_of(task), _texts(entry)
    supports = [None if other is None else kind.support(task, answer, other) for other in others]
    answer_support, statements = kind.support(task, answer, answer), []
    measured = _log_odds if kind.loss != "squared_error" else float
    becomes = [None if other is None else _other(answer_support, kind.support(task, other, other)) for other in others]
    for says, support in answer_support.items():
        moved = tuple(
            Phrase(
                place=part.place,
                start=part.start,
                end=part.end,
                text=texts[part.place][part.start : part.end],
                effect=measured(support) - measured(still[says]),
                becomes=new,
            )
            for part, new, still in zip(parts, becomes, supports, strict=True)
            if still is not None
        )
        statements.append(Said(says=says, support=support, parts=moved))
    return Explanation(task=task.name, texts=texts, said=tuple(statements))


def _log_odds(share: float) -> float:
    """The logarithm of share / (1 - share), of one between SURE and 1 - SURE."""
    share = min(max(share, SURE), 1 - SURE)
    return math.log(share / (1 - share))


def _other(says: Collection[str], other: Collection[str]) -> str | None:
    """The content of another answer, in few words; None if it is the same."""
    return None if set(other) == set(says) else ", ".join(other) or "nothing"
