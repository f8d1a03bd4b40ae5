"""Kind `span`: the words of a text (the context) that answer a question, or that there is no answer.

The question and the context are read as one pair. An example's places are: first (-1, -1), which means "no answer" and
is read at the first token, then the context's words as character offsets (`text.words.boundary_places`). The head
returns two numbers per place, for the answer's first word and its last; NaN rows are places that no token of an
encoding represents. Trained tasks read both at a word's first token; models of `transformers` are taught an answer's
end at its last token, which a task with `ends` reads.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial

import numpy as np

from polyhead.errors import ConfigError, DataError
from polyhead.tasks import metrics
from polyhead.tasks.judging import Decisions, Judged, confusion_of, from_sums
from polyhead.tasks.kinds import base
from polyhead.tasks.task import Answer, Arrays, Example, Kind, Mistake, Task
from polyhead.text.tokenize import repair
from polyhead.values import Value

TRUTHS, OUTCOMES = (
    ("an answer", "no answer"),
    ("a right answer", "a part of it, or more", "another answer", "no answer"),
)
LONGEST = 30  # words of an answer; SQuAD scripts have the same limit in tokens
ANSWERS = 'a list of {"text": ..., "start": its first character in the context}'


class BestSpan(Value):
    """The best span of an output: the places of its first and last word, and the sum of their two numbers."""

    first: int
    last: int
    score: float


class Span(Kind):
    """Two softmaxes over places, as Rajpurkar et al. 2016, 2018 score them: see `best_span`, `merge_words`."""

    name = "span"
    other_names = ("qa", "question_answering", "extractive_qa", "squad")
    loss = "span_cross_entropy"
    uses = ("pair", "null_answers", "long_texts", "ends")
    per_word = shares_head = True
    pair = "joined"
    model_class = "QuestionAnswering"
    text_column, context_column = "question", "context"
    label_key, column_keys = "answers", ("answers",)

    def check(self, task: Task) -> None:
        """Raises unless the task has no labels, and reads a joined pair of question and context."""
        if task.pair != "joined":
            raise ConfigError(
                f"task '{task.name}': kind 'span' reads question and context together",
                got=f"pair = '{task.pair}'",
                allowed="pair = 'joined'",
                do="leave 'pair' out",
                task=task.name,
            )

    def width(self, task: Task) -> int:
        """Two outputs per place: how well the answer begins there, and ends there."""
        return 2

    def metrics(self, task: Task) -> tuple[str, ...]:
        """Word-level F1, and exact matches, each against the closest right answer."""
        return ("f1", "exact_match")

    def parse(self, cell: str, separator: str | None) -> object:
        """A JSON list of answers."""
        try:
            return json.loads(cell)
        except ValueError:
            return cell

    def encode(self, task: Task, label: object, example: Example) -> np.ndarray:
        """Every right answer, int64 (answers, 4): places of its first and last word, and its characters [start, end).

        `label` is a list of {"text", "start"}. An answer that begins or ends inside a word is widened to whole words.
        No answer is one row of zeros.
        """
        answers, text, places = _answers(label), example.text, example.places
        wrong = partial(base.bad_value, task, example)
        if answers is None:
            raise wrong("the answers cannot be read", got=label, allowed=ANSWERS)
        if not answers and not task.null_answers:
            raise wrong(
                "there is no answer",
                got="an empty list",
                allowed=ANSWERS,
                do="set null_answers = true if a text may hold no answer, or leave the row out",
            )
        rows = []
        for answer, start in answers:
            end = start + len(answer)
            if start < 0 or text[start:end] != answer:
                stands = f"there stands {text[max(start, 0) : end]!r}"
                raise wrong(f"the answer does not stand at {start}", got=repr(answer), allowed=stands)
            inside = np.flatnonzero((places[:, 0] < end) & (places[:, 1] > start))
            if not len(inside):
                allowed = "a word of the context, or more"
                raise wrong("an answer holds no word", got=repr(answer), allowed=allowed)
            rows.append((int(inside[0]), int(inside[-1]), start, end))
        return np.array(rows or [(0, 0, 0, 0)], np.int64)

    def widened(self, target: np.ndarray, example: Example) -> int:
        """The number of gold answers that begin or end inside a word and were widened to whole words."""
        answers, places = target[target[:, 1] > 0], example.places
        return int(np.sum((places[answers[:, 0], 0] < answers[:, 2]) | (places[answers[:, 1], 1] > answers[:, 3])))

    def decode(self, task: Task, outputs: np.ndarray, example: Example) -> Answer:
        """`{"text", "start", "end", "score"}` with offsets in the context; without an answer, only the score is set.

        The score is the product of the two probabilities, each a softmax over the places read.
        """
        outputs, places = np.asarray(outputs, np.float64).reshape(-1, 2), example.places
        _check_places(task, outputs, places)
        best = answered(task, outputs)
        read = np.where(np.isnan(outputs), -np.inf, outputs)
        read = read - read.max(axis=0, initial=-1e300)
        shares = np.exp(read) / np.maximum(np.exp(read).sum(axis=0), 1e-300)
        if best is None:
            return {"text": None, "start": None, "end": None, "score": float(shares[0].prod())}
        start, end = _characters(best, places, outputs)
        score = float(shares[best.first, 0] * shares[best.last, 1])
        return {"text": example.text[start:end], "start": start, "end": end, "score": score}

    def evaluate(self, task: Task, outputs: Arrays, targets: Arrays, examples: Sequence[Example]) -> dict[str, float]:
        """`f1` and `exact_match` of the answers' texts."""
        base.check_split(task, outputs, targets)
        if len(outputs) != len(examples):
            raise DataError(
                f"task '{task.name}': answers are compared as texts, so contexts and places are needed",
                got=f"{len(examples)} contexts with places for {len(outputs)} outputs",
                do="score with Examples.scores",
            )
        wanted, answers = [], []
        for output, target, example in zip(outputs, targets, examples, strict=True):
            text, places = example.text, example.places
            _check_places(task, output, places)
            best = answered(task, output)
            start, end = (0, 0) if best is None else _characters(best, places, np.asarray(output).reshape(-1, 2))
            answers.append(text[start:end])
            wanted.append([text[start:end] for start, end in target[:, 2:].tolist()])
        return {"f1": metrics.answer_f1(wanted, answers), "exact_match": metrics.exact_match(wanted, answers)}

    def constant(self, task: Task, targets: Arrays, examples: Sequence[Example]) -> list[np.ndarray]:
        """No answer if the task allows it, else the first word."""
        outputs = [np.zeros((len(example.places), 2), np.float32) for example in examples]
        for output in outputs:
            output[0] = 1.0
        return outputs

    def judged(self, task: Task, outputs: Arrays, targets: Arrays, examples: Sequence[Example]) -> Judged:
        """Everything except differences, for questions."""
        answers = self.decode_all(task, outputs, examples)
        sums, outcome = np.zeros((len(targets), 3)), np.zeros(len(targets), np.int64)
        truth = np.array([0 if target[:, 1].any() else 1 for target in targets], np.int64)
        for row, (answer, target, example) in enumerate(zip(answers, targets, examples, strict=True)):
            wanted, texts = [[example.text[start:end] for start, end in target[:, 2:].tolist()]], [answer["text"] or ""]
            f1, exact = metrics.answer_f1(wanted, texts), metrics.exact_match(wanted, texts)
            sums[row] = (f1, exact, 1)
            outcome[row] = 3 if answer["text"] is None else 0 if exact else 1 if f1 else 2
        return Judged(
            recount=from_sums(
                sums,
                lambda sums: {
                    name: metrics.ratio(sums[..., place], sums[..., 2])
                    for place, name in enumerate(("f1", "exact_match"))
                },
            ),
            confusion=confusion_of(
                truth, outcome, of="questions", truths=TRUTHS, outcomes=OUTCOMES, right=OUTCOMES[:1]
            ),
            decisions=Decisions(
                of="questions", confidence=np.array([answer["score"] for answer in answers]), is_right=sums[:, 1] == 1
            ),
        )

    def support(self, task: Task, answer: Answer, other: Answer) -> dict[str, float]:
        """The score, if the text is the same or both are no answer; else 0."""
        text = "no answer" if answer["text"] is None else answer["text"]
        return {text: other["score"] if other["text"] == answer["text"] else 0.0}

    def mistake(self, task: Task, answer: Answer, target: np.ndarray, example: Example) -> Mistake | None:
        """A text that is none of the right ones, as compared by `exact_match`, and its score."""
        text, answer_text = example.text, answer["text"]
        truth = [text[start:end] for start, end in target[:, 2:].tolist() if end > start]
        is_right = metrics.exact_match([truth or [""]], [answer_text or ""]) == 1
        return None if is_right else Mistake(truth=truth, answer=answer_text, score=answer["score"])

    def in_window(self, target: np.ndarray, read: np.ndarray, whole: np.ndarray) -> np.ndarray:
        """The first right answer if the window holds all of it, else "no answer" (as in SQuAD scripts)."""
        answer = target[:1]
        if not np.isin(answer[0, :2], read[whole]).all():
            return np.zeros_like(answer)
        return np.concatenate([np.searchsorted(read, answer[:, :2]), answer[:, 2:]], axis=1)

    def merge_windows(self, task: Task, outputs: Arrays) -> np.ndarray:
        """Like `merge_words`, for windows that return every place, NaN where the window did not read."""
        places = np.arange(len(outputs[0]))
        return self.merge_words(task, outputs, [places] * len(outputs), places)

    def merge_words(self, task: Task, outputs: Arrays, read: Arrays, best: np.ndarray) -> np.ndarray:
        """The window with the best span, (places, 2), with the least likely "no answer" of all windows in row 0.

        As in SQuAD 2.0 scripts: a text has no answer only if no window has one. Only the length of `best` is used,
        since a span lies within one window.
        """
        windows = [np.asarray(window, np.float32).reshape(-1, 2) for window in outputs]
        stretches = [_stretch(window, words) for window, words in zip(windows, read, strict=True)]
        spans = [best_span(stretch) for stretch in stretches]
        chosen = int(np.argmax([-np.inf if span is None else span.score for span in spans]))
        merged = np.full((len(best), 2), np.nan, np.float32)
        merged[read[chosen]] = windows[chosen]
        if len(best):
            merged[0] = min((stretch[0] for stretch in stretches), key=lambda null: float(null.sum()))
        return merged


def _stretch(outputs: np.ndarray, read: np.ndarray) -> np.ndarray:
    """Place 0, then the places from the first to the last word that a window read; NaN for skipped words."""
    words = read > 0
    places = read[words]
    first, stop = (int(places.min()), int(places.max()) + 1) if len(places) else (1, 1)
    stretch = np.full((1 + stop - first, 2), np.nan, np.float32)
    stretch[: np.count_nonzero(~words)] = outputs[~words]
    stretch[1 + places - first] = outputs[words]
    return stretch


def best_span(outputs: np.ndarray) -> BestSpan | None:
    """The words first <= last, at most LONGEST of them, with the largest sum `start[first] + end[last]`.

    Among equals the one that begins first, then the shortest. None if no word was read.
    """
    words = np.asarray(outputs, np.float64).reshape(-1, 2)[1:]
    if not len(words):
        return None
    words = np.where(np.isnan(words).any(axis=1, keepdims=True), -np.inf, words)
    ends = np.concatenate([words[:, 1], np.full(LONGEST - 1, -np.inf)])
    scores = words[:, :1] + np.lib.stride_tricks.sliding_window_view(ends, LONGEST)  # (words, lengths)
    first, more = np.unravel_index(int(np.argmax(scores)), scores.shape)
    best = float(scores[first, more])
    if best == -np.inf:
        return None
    return BestSpan(first=int(first) + 1, last=int(first + more) + 1, score=best)


def answered(task: Task, outputs: np.ndarray) -> BestSpan | None:
    """The best span; None for no answer: no word was read, or "no answer" scores higher and the task allows it."""
    best = best_span(outputs)
    if best is None or (task.null_answers and float(np.asarray(outputs[0], np.float64).sum()) > best.score):
        return None
    return best


def _answers(label: object) -> list[tuple[str, int]] | None:
    """Texts and starts; None for another form of label. Hub data sets use a dict of two lists."""
    if isinstance(label, dict):
        texts, starts = label.get("text"), label.get("start", label.get("answer_start"))
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            return None
        label = [{"text": text, "start": start} for text, start in zip(texts, starts, strict=True)]
    if not isinstance(label, list):
        return None
    answers = []
    for answer in label:
        fields = answer if isinstance(answer, dict) else {}
        text, start = fields.get("text"), fields.get("start", fields.get("answer_start"))
        if not isinstance(text, str) or not text or type(start) is not int:
            return None
        answers.append((repair(text), start))
    return answers


def _characters(span: BestSpan, places: np.ndarray, outputs: np.ndarray) -> tuple[int, int]:
    """Its characters, extended by words that share the last word's token: they adjoin it and have its outputs."""
    last = span.last
    while last + 1 < len(places) and places[last + 1, 0] == places[last, 1] and _are_equal(outputs, last):
        last += 1
    return int(places[span.first, 0]), int(places[last, 1])


def _are_equal(outputs: np.ndarray, place: int) -> bool:
    return bool((outputs[place] == outputs[place + 1]).all())


def _check_places(task: Task, outputs: np.ndarray, places: np.ndarray) -> None:
    if len(outputs) != len(places):
        raise DataError(
            f"task '{task.name}': one output a place is needed",
            got=f"{len(outputs)} outputs",
            allowed=f"{len(places)} places: 'no answer' and the words of the context",
        )
