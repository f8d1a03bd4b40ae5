"""Kind `tagging`: one label for each word; BIO labels are read as spans.

A word that the trunk did not read (cut away, or without a token) has an output row of NaN: it counts as `O`
for BIO labels, and as a wrong answer for plain ones.

Each word gets its own best label (`decoder = "greedy"`), or all words the best labels that make sense in a row
(`"constrained"`, see `best_path`). Taken alone, words may give an `I-x` after something else than `B-x` or `I-x`:
it is then read as the beginning of a span, in answers and in `span_f1`, as conlleval and seqeval read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from polyhead import metrics
from polyhead.config import Value
from polyhead.errors import ConfigError, DataError
from polyhead.metrics import LabelScore
from polyhead.tasks.judging import Decisions, Judged, Recount, confusion_of, from_labels, from_sums, label_metrics
from polyhead.tasks.kinds import base
from polyhead.tasks.task import Answer, Example, Kind, Mistake, Task

UNREAD = -1  # the label index of a word that was not read


class Tagging(Kind):
    """Softmax over the labels at the first sub-token of each word; the task's decoder chooses; the first of equals."""

    name = "tagging"
    other_names = ("ner", "token_classification", "pos", "chunking", "sequence_labeling", "sequence_labelling")
    loss = "word_cross_entropy"
    scores = "softmax"
    uses = ("labels", "long_texts", "decoder")
    per_word = label_is_list = True
    column_keys = ("tokens", "tags", "spans")

    def check(self, task: Task) -> None:
        """At least two labels over one text; BIO labels need `O`, and a `B-x` for every `I-x`."""
        base.check_labels(task, least=self.least_labels)
        if is_bio(task):
            _check_bio(task)
        elif task.decoder == "constrained":
            raise ConfigError(
                f"task '{task.name}': decoder 'constrained' says which BIO labels may follow which",
                got=task.labels,
                allowed="BIO labels: 'O', 'B-x', 'I-x'",
                do="leave 'decoder' out",
                task=task.name,
            )

    def metrics(self, task: Task) -> tuple[str, ...]:
        """`span_f1` for BIO labels; `accuracy` and `macro_f1` are over words."""
        return ("span_f1", "accuracy") if is_bio(task) else ("accuracy", "macro_f1")

    def parse(self, cell: str, separator: str | None) -> object:
        """A JSON list, or labels between separators."""
        return base.listed(cell, cell.split(separator) if separator else cell)

    def encode(self, task: Task, label: object, example: Example) -> np.ndarray:
        """The labels' indices, int64 (words,)."""
        if not isinstance(label, list):
            raise base.bad_value(
                task, example, "a list of labels is needed, one a word", got=label, allowed=task.labels
            )
        return np.array([base.label_index(task, name, example) for name in label], np.int64)

    def decode(self, task: Task, outputs: np.ndarray, example: Example) -> Answer:
        """`{"spans": [{"start", "end", "label", "text", "score"}]}` for BIO labels, score the mean of its
        words'; `{"words": [{"start", "end", "label", "score"}]}` for plain ones, without the words that were
        not read.
        """
        return self.decode_all(task, [outputs], [example])[0]

    def decode_all(self, task: Task, outputs: Sequence[np.ndarray], examples: Sequence[Example]) -> list[Answer]:
        """The words of all rows at once."""
        rows = [np.asarray(row).reshape(-1, len(task.labels)) for row in outputs]
        places = [example.places for example in examples]
        for row, words in zip(rows, places, strict=True):
            if len(words) != len(row):
                raise DataError(
                    f"task '{task.name}': one output a word is needed",
                    got=f"{len(row)} outputs",
                    allowed=f"{len(words)} words",
                )
        if not rows:
            return []
        flat, starts = np.concatenate(rows), np.cumsum([0, *map(len, rows)])
        indices = best(flat) if task.decoder == "greedy" else np.concatenate([chosen(task, row) for row in rows])
        scores = np.take_along_axis(base.softmax(flat), indices[:, None], axis=-1)[:, 0]
        if is_bio(task):
            texts = [example.text for example in examples]
            return [{"spans": spans} for spans in _spans(task, indices, scores, starts, np.concatenate(places), texts)]
        flat_words = zip(np.concatenate(places).tolist(), indices.tolist(), scores.tolist(), strict=True)
        words_of = [
            {"start": start, "end": end, "label": task.labels[index], "score": score} if index != UNREAD else None
            for (start, end), index, score in flat_words
        ]
        return [
            {"words": [word for word in words_of[a:b] if word is not None]}
            for a, b in zip(starts.tolist(), starts[1:].tolist(), strict=False)
        ]

    def cell_of(self, answer: Answer) -> object:
        """The spans, or the words."""
        return answer["spans" if "spans" in answer else "words"]

    def evaluate(
        self, task: Task, outputs: Sequence[np.ndarray], targets: Sequence[np.ndarray], examples: Sequence[Example]
    ) -> dict[str, float]:
        """`span_f1` and `accuracy` (BIO), or `accuracy` and `macro_f1`."""
        base.check_split(task, outputs, targets)
        answers = [chosen(task, np.asarray(row).reshape(-1, len(task.labels))) for row in outputs]
        for row, (answer, target) in enumerate(zip(answers, targets, strict=True)):
            if len(answer) != len(target):
                raise DataError(
                    f"task '{task.name}': one output a word", got=f"{len(answer)} in row {row}", allowed=len(target)
                )
        flat = np.concatenate(targets), np.concatenate(answers)
        if not is_bio(task):
            return {"accuracy": metrics.accuracy(*flat), "macro_f1": metrics.macro_f1(*flat, nothing=UNREAD)}
        outside = task.labels.index("O")
        answers = [np.where(answer == UNREAD, outside, answer) for answer in answers]
        named = [[[task.labels[i] for i in row] for row in side] for side in (targets, answers)]
        return {"span_f1": metrics.span_f1(*named), "accuracy": metrics.accuracy(flat[0], np.concatenate(answers))}

    def label_scores(
        self, task: Task, outputs: Sequence[np.ndarray], targets: Sequence[np.ndarray], examples: Sequence[Example]
    ) -> tuple[LabelScore, ...]:
        """Of whole spans by their label (BIO), or of words; a word that was not read got no label."""
        answers = [chosen(task, np.asarray(row).reshape(-1, len(task.labels))) for row in outputs]
        if not is_bio(task):
            wanted, answered = np.concatenate(targets), np.concatenate(answers)
            parts = (wanted[wanted == answered], answered[answered != UNREAD], wanted)
            return metrics.label_scores(task.labels, *(np.bincount(p, minlength=len(task.labels)) for p in parts))
        names = list(dict.fromkeys(label[2:] for label in task.labels if label != "O"))
        right, given, true = (dict.fromkeys(names, 0) for _ in range(3))
        for target, answer in zip(targets, answers, strict=True):
            truth, found = (_spans_of(task, indices) for indices in (target, answer))
            for counts, spans in ((true, truth), (given, found), (right, truth & found)):
                for span in spans:
                    counts[span.label] += 1
        return metrics.label_scores(names, *(np.array([of[name] for name in names]) for of in (right, given, true)))

    def judged(
        self, task: Task, outputs: Sequence[np.ndarray], targets: Sequence[np.ndarray], examples: Sequence[Example]
    ) -> Judged:
        """All but differences, of words; the confidence of a word is the probability of its label."""
        rows = [np.asarray(row).reshape(-1, len(task.labels)) for row in outputs]
        answers, labels = [chosen(task, row) for row in rows], len(task.labels)
        wanted, answered = np.concatenate(targets), np.concatenate(answers)
        is_read = answered != UNREAD
        probabilities = base.softmax(np.concatenate(rows)[is_read])
        return Judged(
            recount=self._recount(task, targets, answers),
            confusion=confusion_of(
                wanted,
                np.where(is_read, answered, labels),
                of="words",
                truths=task.labels,
                given=(*task.labels, "(not read)"),
            ),
            decisions=Decisions(
                of="words",
                confidence=np.take_along_axis(probabilities, answered[is_read][:, None], axis=-1)[:, 0],
                is_right=(wanted == answered)[is_read],
            ),
        )

    def _recount(self, task: Task, targets: Sequence[np.ndarray], answers: Sequence[np.ndarray]) -> Recount:
        if not is_bio(task):
            row, names = np.repeat(np.arange(len(targets)), [len(target) for target in targets]), self.metrics(task)
            return from_labels(
                np.concatenate(targets),
                np.concatenate(answers),
                row,
                len(task.labels),
                lambda *counts: {name: label_metrics(*counts)[name] for name in names},
            )
        sums, outside = np.zeros((len(targets), 4)), task.labels.index("O")
        for place, (target, answer) in enumerate(zip(targets, answers, strict=True)):
            truth, given = (_spans_of(task, indices) for indices in (target, answer))
            right = int(np.sum(target == np.where(answer == UNREAD, outside, answer)))
            sums[place] = (2 * len(truth & given), len(truth) + len(given), right, len(target))
        return from_sums(
            sums,
            lambda sums: {
                "span_f1": metrics.ratio(sums[..., 0], sums[..., 1]),
                "accuracy": metrics.ratio(sums[..., 2], sums[..., 3]),
            },
        )

    def support(self, task: Task, answer: Answer, other: Answer) -> dict[str, float]:
        """The score of each span, by its label and text; 0 where it is gone. None of labels that are no spans."""
        still: dict[str, float] = {}
        for span in other.get("spans", []):
            still.setdefault(_named(span), span["score"])
        return {_named(span): still.get(_named(span), 0.0) for span in answer.get("spans", [])}

    def mistake(self, task: Task, answer: Answer, target: np.ndarray, example: Example) -> Mistake | None:
        """Other spans, or other labels of words; the score of the surest one that should not be there."""
        sure = np.eye(len(task.labels), dtype=np.float32)[np.asarray(target, np.int64)]
        truth, given = (_plain(self.cell_of(each)) for each in (self.decode(_greedy(task), sure, example), answer))
        if truth == given:
            return None
        items: list[dict[str, Any]] = answer["spans" if "spans" in answer else "words"]
        scores = [item["score"] for item in items if _plain([item])[0] not in truth]
        return Mistake(truth=truth, answer=given, score=max(scores, default=None))

    def constant(self, task: Task, targets: Sequence[np.ndarray], examples: Sequence[Example]) -> list[np.ndarray]:
        """The counts of the labels, for every word: the most frequent one is answered."""
        words = np.concatenate([np.asarray(target, np.int64) for target in targets])
        counts = np.bincount(words, minlength=len(task.labels)).astype(np.float32)
        return [np.tile(counts, (len(example.places), 1)) for example in examples]

    def class_weights(self, task: Task, targets: Sequence[np.ndarray]) -> np.ndarray:
        """`n / (k n_c)` over the words of all rows, scikit-learn's 'balanced'."""
        return base.balanced(np.concatenate([np.asarray(t, np.int64) for t in targets]), len(task.labels))

    def merge_windows(self, task: Task, outputs: Sequence[np.ndarray]) -> np.ndarray:
        """Each word's row from the first window that read it; every window gives all words, NaN where it did
        not.

        `text.words.best_windows` says which window should read a word.
        """
        merged = np.array(outputs[0], np.float32)
        for window in outputs[1:]:
            unread = np.isnan(merged).any(axis=-1)
            merged[unread] = window[unread]
        return merged


def _spans_of(task: Task, indices: np.ndarray) -> set[metrics.Span]:
    return set(metrics.spans_of(["O" if index == UNREAD else task.labels[index] for index in indices.tolist()]))


def _named(span: dict[str, Any]) -> str:
    return f"{span['label']} '{span['text']}'"


def _greedy(task: Task) -> Task:
    """The task without a decoder, which would change what is given to be decoded."""
    return msgspec.structs.replace(task, decoder="greedy")


def _plain(items: Any) -> list[dict[str, object]]:
    """Spans or words without their scores."""
    return [{key: value for key, value in item.items() if key != "score"} for item in items]


class TaggedSpan(Value):
    """Characters [start, end) of a text that carry a label."""

    start: int
    end: int
    label: str


def is_bio(task: Task) -> bool:
    """Whether the labels are BIO: any of them begins with `B-` or `I-`."""
    return any(label.startswith(("B-", "I-")) for label in task.labels)


def chosen(task: Task, outputs: np.ndarray) -> np.ndarray:
    """The label index of each word by the task's decoder, int64 (words,); UNREAD for rows of NaN."""
    if task.decoder == "greedy":
        return best(outputs)
    unread = np.isnan(outputs).any(axis=-1)
    return np.where(unread, UNREAD, best_path(outputs, task.labels))


def best(outputs: np.ndarray) -> np.ndarray:
    """The label index of each word, int64 (words,); UNREAD for rows of NaN."""
    unread = np.isnan(outputs).any(axis=-1)
    return np.where(unread, UNREAD, np.argmax(np.where(unread[:, None], 0.0, outputs), axis=-1))


def tags_of(spans: Sequence[TaggedSpan], words: np.ndarray) -> list[str]:
    """BIO labels of words (words, 2) from spans of characters; a span takes every word that it overlaps.

    Raises ValueError for a span that overlaps no word, or shares a word with another.
    """
    tags = ["O"] * len(words)
    for span in spans:
        inside = np.flatnonzero((words[:, 0] < span.end) & (words[:, 1] > span.start))
        if not len(inside):
            raise ValueError("a span holds no word")
        if any(tags[index] != "O" for index in inside):
            raise ValueError("two spans share a word")
        for index in inside:
            tags[index] = f"{'B' if index == inside[0] else 'I'}-{span.label}"
    return tags


def _check_bio(task: Task) -> None:
    names = [label.partition("-") for label in task.labels if label != "O"]
    stray = ["-".join(filter(None, (head, name))) for head, _, name in names if head not in ("B", "I") or not name]
    begun = [name for head, _, name in names if head == "B"]
    headless = [f"I-{name}" for head, _, name in names if head == "I" and name not in begun]
    if "O" not in task.labels or stray or headless:
        raise ConfigError(
            f"task '{task.name}': its labels are no BIO scheme",
            got=f"not B-x, I-x or O: {stray}" if stray else f"no B- for {headless}" if headless else "no 'O'",
            allowed="'O', and for every 'I-x' a 'B-x'",
            task=task.name,
        )


def _spans(
    task: Task, indices: np.ndarray, scores: np.ndarray, starts: np.ndarray, places: np.ndarray, texts: Sequence[str]
) -> list[list[dict[str, object]]]:
    """Each text's spans, as `metrics.spans_of` reads its labels; its words begin at `starts` and end at the next."""
    head, name = _read(task.labels)
    inside = np.where(indices == UNREAD, 0, head[indices])  # 0 outside, 1 begins, 2 goes on
    first = np.zeros(len(indices) + 1, bool)
    first[starts] = True
    named = name[indices]
    goes_on = np.zeros(len(indices), bool)
    goes_on[1:] = (inside[1:] == 2) & (inside[:-1] > 0) & (named[1:] == named[:-1]) & ~first[1:-1]
    begins = np.flatnonzero((inside > 0) & ~goes_on)
    breaks = np.append(np.flatnonzero(~goes_on), len(indices))
    stops = breaks[np.searchsorted(breaks, begins, side="right")]
    answers: list[list[dict[str, object]]] = [[] for _ in texts]
    if not len(begins):
        return answers
    # The sum of each span by itself, so that no score depends on other texts' words.
    sums = np.add.reduceat(np.append(scores, 0.0).astype(np.float64), np.stack([begins, stops], 1).ravel())[::2]
    row = np.searchsorted(starts, begins, side="right") - 1
    columns = (row, places[begins, 0], places[stops - 1, 1], indices[begins], sums / (stops - begins))
    for text, start, end, index, score in zip(*(column.tolist() for column in columns), strict=True):
        label = task.labels[index][2:]
        answers[text].append(
            {"start": start, "end": end, "label": label, "text": texts[text][start:end], "score": score}
        )
    return answers


@lru_cache(maxsize=1024)
def _read(labels: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """For each label: outside (0), begins (1) or continues (2) a span, and a number for the span's name."""
    parts = [label.partition("-") for label in labels]
    names = sorted({name for _, _, name in parts})
    return (
        np.array([{"B": 1, "I": 2}.get(head, 0) for head, _, _ in parts]),
        np.array([names.index(name) for _, _, name in parts]),
    )


def allowed_transitions(labels: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
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
    first, follows = allowed_transitions(labels)
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
