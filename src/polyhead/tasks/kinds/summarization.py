"""Kind `summarization`: a short text for a long one, written by an encoder-decoder of the task's own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyhead.errors import DataError, EmptyData, MissingExtra
from polyhead.tasks.kinds import base
from polyhead.tasks.task import Answer, Arrays, Example, Kind, Task
from polyhead.text.tokenize import repair


class Summarization(Kind):
    """Text for text. A target is every reference of a row, an output the summary: arrays of strings."""

    name = "summarization"
    other_names = ("summarisation", "summary", "seq2seq", "text2text_generation")
    loss = "token_cross_entropy"
    uses = ()
    owns_model = True
    cell, cell_key = "text", "summary"

    def metrics(self, task: Task) -> tuple[str, ...]:
        """F1 of ROUGE (Lin 2004): the longest common subsequence of words, single words, pairs of words."""
        return ("rouge_l", "rouge_1", "rouge_2")

    def parse(self, cell: str, separator: str | None) -> object:
        """The cell as one reference, or several: a JSON list, or what stands between separators."""
        return base.listed(cell, [part.strip() for part in cell.split(separator)] if separator else cell)

    def encode(self, task: Task, label: object, example: Example) -> np.ndarray:
        """The references, str (references,); training takes the first, scores the best of them."""
        values = label if isinstance(label, list) else [label]
        references = [repair(value) for value in values if isinstance(value, str) and value.strip()]
        if not references or len(references) < len(values):
            raise base.bad_value(
                task, example, "a summary is needed", got=label, allowed="a string that is not blank, or a list of such"
            )
        return np.array(references, np.str_)

    def decode(self, task: Task, outputs: np.ndarray, example: Example) -> Answer:
        """`{"summary"}`."""
        return {"summary": str(np.asarray(outputs).reshape(())[()])}

    def evaluate(self, task: Task, outputs: Arrays, targets: Arrays, examples: Sequence[Example]) -> dict[str, float]:
        """`rouge_l`, `rouge_1`, `rouge_2`."""
        base.check_split(task, outputs, targets)
        summaries = [str(np.asarray(output).reshape(())[()]) for output in outputs]
        scores = rouge([target.tolist() for target in targets], summaries)
        return {name: scores[name] for name in self.metrics(task)}


def rouge(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    """Mean F1 of `rouge_1`, `rouge_2` and `rouge_l` (Lin 2004), as the package `rouge-score` counts, words stemmed.

    `targets` holds every reference of each row; each of the three takes the reference that gives it most. Words are
    runs of ASCII letters and digits, so that a text without any scores 0. Needs the extra `summarization`.
    """
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise MissingExtra("rouge-score", "summarization", "ROUGE") from None
    if len(targets) != len(predictions):
        raise DataError("predictions and targets differ in number", got=len(predictions), allowed=len(targets))
    if not len(targets):
        raise EmptyData("a split without rows has no score")
    names = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL"}
    scorer = RougeScorer(list(names.values()), use_stemmer=True)
    rows = [
        scorer.score_multi(list(references), summary) for references, summary in zip(targets, predictions, strict=True)
    ]
    return {name: float(np.mean([row[key].fmeasure for row in rows])) for name, key in names.items()}
