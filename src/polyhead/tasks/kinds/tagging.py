"""Kind `tagging`: one label for each word; BIO labels are read as spans.

A word that the trunk did not read (cut off, or without a token) has a NaN output row: it counts as `O` for BIO labels,
and as a wrong answer for plain ones.

All words get the best allowed sequence (`decoder = "constrained"`, see `best_path`; the default of a project's tasks
with BIO labels), or each word its own best label (`"greedy"`). With the latter, an `I-x` may follow something else than
`B-x` or `I-x`: it then begins a span, in answers and in `span_f1`, as in conlleval and seqeval. Labels to learn from
are read in the same way, and such an `I-x` becomes `B-x`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from polyhead.errors import ConfigError, DataError
from polyhead.tasks import metrics
from polyhead.tasks.judging import Decisions, Judged, Recount, confusion_of, from_labels, from_sums, label_metrics
from polyhead.tasks.kinds import base
from polyhead.tasks.kinds.tagged import UNREAD, TaggedRow, begun, chosen, is_bio, parts_of, tagged_rows, whole_words
from polyhead.tasks.metrics import LabelScore
from polyhead.tasks.task import Answer, Arrays, Example, Kind, Mistake, Task


class Tagging(Kind):
    """Softmax over the labels at each word's first sub-token; the task's decoder selects, the first among equals."""

    name = "tagging"
    other_names = ("ner", "token_classification", "pos", "chunking", "sequence_labeling", "sequence_labelling")
    loss = "word_cross_entropy"
    scores = "softmax"
    uses = ("labels", "long_texts", "decoder", "transitions")
    per_word = label_is_list = True
    model_class = "TokenClassification"
    column_keys = ("tokens", "tags", "spans")

    def check(self, task: Task) -> None:
        """Checks for at least two labels over one text; BIO labels need `O`, and a `B-x` for every `I-x`."""
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
        shape, wanted = [len(row) for row in task.transitions], [len(task.labels)] * (len(task.labels) + 1)
        if shape and (shape != wanted or task.decoder != "constrained"):
            raise ConfigError(
                f"task '{task.name}': its transitions do not fit its labels or its decoder",
                got=f"decoder '{task.decoder}', {len(shape)} rows",
                allowed=f"decoder 'constrained', {len(wanted)} rows of {len(task.labels)} numbers",
                do="train the task again",
                task=task.name,
            )

    def metrics(self, task: Task) -> tuple[str, ...]:
        """`span_f1` for BIO labels; `accuracy` and `macro_f1` are over words."""
        return ("span_f1", "accuracy") if is_bio(task) else ("accuracy", "macro_f1")

    def parse(self, cell: str, separator: str | None) -> object:
        """A JSON list, or labels between separators, of which one may follow the last."""
        return base.parts_of_cell(cell, separator)

    def encode(self, task: Task, label: object, example: Example) -> np.ndarray:
        """The labels' indices, int64 (words,)."""
        if not isinstance(label, list):
            raise base.bad_value(
                task, example, "a list of labels is needed, one a word", got=label, allowed=task.labels
            )
        indices = np.array([base.label_index(task, name, example) for name in label], np.int64)
        return begun(task.labels, indices) if is_bio(task) else indices

    def decode(self, task: Task, outputs: np.ndarray, example: Example) -> Answer:
        """`{"spans": [...]}` for BIO labels, or `{"words": [...]}` for plain ones, without unread words.

        A span is `{"start", "end", "label", "text", "score"}`, with the mean score of its words; a word is
        `{"start", "end", "label", "score"}`.
        """
        return self.decode_all(task, [outputs], [example])[0]

    def decode_all(self, task: Task, outputs: Arrays, examples: Sequence[Example]) -> list[Answer]:
        """The words of all rows at once."""
        pairs = zip(outputs, examples, strict=True)
        each = [whole_words(np.asarray(row).reshape(-1, len(task.labels)), example) for row, example in pairs]
        rows, places = [row for row, _ in each], [words for _, words in each]
        for row, words in each:
            if len(words) != len(row):
                raise DataError(
                    f"task '{task.name}': one output a word is needed",
                    got=f"{len(row)} outputs",
                    allowed=f"{len(words)} words",
                )
        if not rows:
            return []
        flat, starts = np.concatenate(rows), np.cumsum([0, *map(len, rows)])
        indices = chosen(task, flat, starts)
        places_of_all, is_part = np.arange(len(flat)), parts_of(flat)
        probabilities, word_labels = base.softmax(flat), indices
        if is_part.any():
            whole = np.maximum.accumulate(np.where(is_part, 0, places_of_all))  # each first part of a word
            probabilities, word_labels = probabilities[whole], indices[whole]
        scores = probabilities[places_of_all, word_labels]
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

    def evaluate(self, task: Task, outputs: Arrays, targets: Arrays, examples: Sequence[Example]) -> dict[str, float]:
        """`span_f1` and `accuracy` (BIO), or `accuracy` and `macro_f1`.

        Spans are compared by their characters with those of the file. If words cannot represent all of these,
        `widened_span_f1` is the F1 with gold spans widened to whole words.
        """
        base.check_split(task, outputs, targets)
        rows = tagged_rows(task, outputs, targets, examples)
        if is_bio(task):
            return {name: float(value) for name, value in _span_scores(_sums(task, rows).sum(axis=0)).items()}
        flat = np.concatenate([row.target for row in rows]), np.concatenate([row.answer for row in rows])
        return {"accuracy": metrics.accuracy(*flat), "macro_f1": metrics.macro_f1(*flat, nothing=UNREAD)}

    def label_scores(
        self, task: Task, outputs: Arrays, targets: Arrays, examples: Sequence[Example]
    ) -> tuple[LabelScore, ...]:
        """Scores of whole spans by their label (BIO), or of words; an unread word got no label."""
        rows = tagged_rows(task, outputs, targets, examples)
        if not is_bio(task):
            wanted, answered = (
                np.concatenate(side) for side in zip(*((r.target, r.answer) for r in rows), strict=True)
            )
            parts = (wanted[wanted == answered], answered[answered != UNREAD], wanted)
            return metrics.scores_by_label(task.labels, *(np.bincount(p, minlength=len(task.labels)) for p in parts))
        names = list(dict.fromkeys(label[2:] for label in task.labels if label != "O"))
        counts = [
            Counter(label for row in spans for _, _, label in row)
            for spans in zip(*((r.gold & r.spans, r.spans, r.gold) for r in rows), strict=True)
        ]
        return metrics.scores_by_label(names, *(np.array([of[name] for name in names]) for of in counts))

    def judged(self, task: Task, outputs: Arrays, targets: Arrays, examples: Sequence[Example]) -> Judged:
        """Everything except differences, for words; the confidence of a word is the probability of its label."""
        rows, labels = tagged_rows(task, outputs, targets, examples), len(task.labels)
        wanted, answered = np.concatenate([row.target for row in rows]), np.concatenate([row.answer for row in rows])
        is_read, flat = answered != UNREAD, np.concatenate([row.outputs for row in rows])
        decided = ~np.isnan(flat).any(axis=-1)  # words that share a token are one decision
        probabilities, named = base.softmax(flat[decided]), {*wanted.tolist(), *answered[is_read].tolist()}
        return Judged(
            recount=self._recount(task, rows),
            confusion=confusion_of(
                wanted,
                np.where(is_read, answered, labels),
                of="words",
                truths=task.labels,
                outcomes=(*task.labels, "(not read)"),
            ),
            decisions=Decisions(
                of="words",
                confidence=np.take_along_axis(probabilities, answered[decided][:, None], axis=-1)[:, 0],
                is_right=(wanted == answered)[decided],
            ),
            undefined=() if any(task.labels[label] != "O" for label in named) else ("span_f1",),
        )

    def _recount(self, task: Task, rows: Sequence[TaggedRow]) -> Recount:
        if is_bio(task):
            return from_sums(_sums(task, rows), _span_scores)
        names = self.metrics(task)
        return from_labels(
            np.concatenate([row.target for row in rows]),
            np.concatenate([row.answer for row in rows]),
            np.repeat(np.arange(len(rows)), [len(row.target) for row in rows]),
            len(task.labels),
            lambda *counts: {name: label_metrics(*counts)[name] for name in names},
        )

    def support(self, task: Task, answer: Answer, other: Answer) -> dict[str, float]:
        """The score of each span, by its label and text; 0 if the span is missing. None for labels without spans."""
        still: dict[str, float] = {}
        for span in other.get("spans", []):
            still.setdefault(_named(span), span["score"])
        return {_named(span): still.get(_named(span), 0.0) for span in answer.get("spans", [])}

    def mistake(self, task: Task, answer: Answer, target: np.ndarray, example: Example) -> Mistake | None:
        """The spans, or labels of words, given instead, and the score of the most confident wrong one."""
        answered = _plain(self.cell_of(answer))
        if example.gold is None:
            sure = np.eye(len(task.labels), dtype=np.float32)[np.asarray(target, np.int64)]
            truth = _plain(self.cell_of(self.decode(_greedy(task), sure, example)))
        else:
            in_order = sorted(example.gold, key=lambda span: span.start)
            truth = [
                {"start": s.start, "end": s.end, "label": s.label, "text": example.text[s.start : s.end]}
                for s in in_order
            ]
        if truth == answered:
            return None
        items: list[dict[str, Any]] = answer["spans" if "spans" in answer else "words"]
        scores = [item["score"] for item in items if _plain([item])[0] not in truth]
        return Mistake(truth=truth, answer=answered, score=max(scores, default=None))

    def constant(self, task: Task, targets: Arrays, examples: Sequence[Example]) -> list[np.ndarray]:
        """The counts of the labels, for every word, so that the most frequent is answered."""
        words = np.concatenate([np.asarray(target, np.int64) for target in targets])
        counts = np.bincount(words, minlength=len(task.labels)).astype(np.float32)
        return [np.tile(counts, (len(example.places), 1)) for example in examples]

    def class_weights(self, task: Task, targets: Arrays) -> np.ndarray:
        """`n / (k n_c)` over the words of all rows, scikit-learn's 'balanced'."""
        return base.balanced(np.concatenate([np.asarray(t, np.int64) for t in targets]), len(task.labels))

    def offsets(self, task: Task, targets: Arrays) -> list[np.ndarray]:
        """For spans 1, 2 or 3 less for `O`, the label of most words: of few rows, training gives too few spans."""
        if self.default_metric(task) != "span_f1":
            return []
        outside = np.array([label == "O" for label in task.labels], np.float32)
        return [-np.float32(less) * outside for less in (1, 2, 3)]

    def merge_windows(self, task: Task, outputs: Arrays) -> np.ndarray:
        """Each word's row from the first window that read it; windows return all words, NaN for unread ones.

        `text.words.best_windows` says which window should read a word.
        """
        merged = np.array(outputs[0], np.float32)
        for window in outputs[1:]:
            unread = np.isnan(merged).any(axis=-1)
            merged[unread] = window[unread]
        return merged


def _named(span: dict[str, Any]) -> str:
    return f"{span['label']} '{span['text']}'"


def _sums(task: Task, rows: Sequence[TaggedRow]) -> np.ndarray:
    """For each row, float64 (rows, 5): twice its right spans, all spans, right words, words, twice the spans near gold.

    The fifth column exists only if words cannot represent all gold spans of all rows.
    """
    outside = task.labels.index("O")
    sums = np.zeros((len(rows), 5))
    for place, row in enumerate(rows):
        right_words = int(np.sum(row.target == np.where(row.answer == UNREAD, outside, row.answer)))
        right, near = 2 * len(row.gold & row.spans), 2 * len(row.near & row.spans)
        sums[place] = (right, len(row.gold) + len(row.spans), right_words, len(row.target), near)
    return sums if any(row.gold != row.near for row in rows) else sums[:, :4]


def _span_scores(sums: np.ndarray) -> dict[str, np.ndarray]:
    """The metrics of BIO labels from the sums of `_sums`, (..., 4 or 5)."""
    scores = {
        "span_f1": metrics.ratio(sums[..., 0], sums[..., 1]),
        "accuracy": metrics.ratio(sums[..., 2], sums[..., 3]),
    }
    if sums.shape[-1] > 4:
        scores["widened_span_f1"] = metrics.ratio(sums[..., 4], sums[..., 1])
    return scores


def _greedy(task: Task) -> Task:
    """The task without a decoder, which would change the labels to be decoded."""
    return msgspec.structs.replace(task, decoder="greedy", transitions=())


def _plain(items: Any) -> list[dict[str, object]]:
    """Spans or words without their scores."""
    return [{key: value for key, value in item.items() if key != "score"} for item in items]


def _check_bio(task: Task) -> None:
    names = [label.partition("-") for label in task.labels if label != "O"]
    stray = ["-".join(filter(None, (head, name))) for head, _, name in names if head not in ("B", "I") or not name]
    begun = {name for head, _, name in names if head == "B"}
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
    """Each text's spans, read as in `metrics.spans_of`; a text's words begin at `starts` and end at the next start."""
    head, name = _read(task.labels)
    inside = np.where(indices == UNREAD, 0, head[indices])  # 0 outside, 1 begins, 2 continues
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
    # Each span is summed separately, so that no score depends on other texts' words.
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
