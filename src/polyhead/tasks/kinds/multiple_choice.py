"""Kind `multiple_choice`: one of the options that come with each question, in any number.

The trunk reads a pair of texts for each option (`text.question`), the head returns one number for each, and a softmax
ranks the options of one question (sentence ranking).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyhead.errors import DataError
from polyhead.tasks import metrics
from polyhead.tasks.judging import Decisions, Judged, from_sums
from polyhead.tasks.kinds import base
from polyhead.tasks.task import Answer, Arrays, Example, Kind, Mistake, Task
from polyhead.text.tokenize import repair


class MultipleChoice(Kind):
    """The answer is the option with the largest number, the first of equals."""

    name = "multiple_choice"
    other_names = ("choice", "swag")
    loss = "ranking"
    uses = ()
    per_option = shares_head = True
    model_class = "MultipleChoice"
    text_column, context_column = "question", "context"
    column_keys = ("choices",)
    cell, cell_key, score_cell = "places", "ranked", "numbers"

    def metrics(self, task: Task) -> tuple[str, ...]:
        """The share of questions with the right option."""
        return ("accuracy",)

    def parse(self, cell: str, separator: str | None) -> object:
        """The index that a cell spells, or the text of an option."""
        return int(cell) if cell.isascii() and cell.strip().isdecimal() and len(cell) < 10 else cell

    def encode(self, task: Task, label: object, example: Example) -> np.ndarray:
        """The index of the right option, int64 (); `label` is that index, from 0, the option's letter, or its text.

        Digits that are not an option's text are an index; 1.0 is 1, as frames write it where a cell is empty. A letter
        that is the text of another option is refused.
        """
        options = example.options
        if isinstance(label, float) and label.is_integer():
            label = int(label)
        if isinstance(label, str):
            places = [place for place, option in enumerate(options) if option == repair(label.strip())]
            letter = place_of_letter(label)
            if letter is not None and letter < len(options) and places in ([], [letter]):
                return np.asarray(letter, np.int64)
            if len(places) == 1 and (letter is None or letter >= len(options)):
                return np.asarray(places[0], np.int64)
            digits = label.strip().removesuffix(".0")
            index = self.parse(digits, None)
            named = [place for place, option in enumerate(options) if option == digits]
            if not places and isinstance(index, int) and named in ([], [index]):
                label = index
        if isinstance(label, int) and not isinstance(label, bool) and 0 <= label < len(options):
            return np.asarray(label, np.int64)
        raise base.bad_value(
            task,
            example,
            "the label is none of the question's options",
            got=label,
            allowed=f"an index from 0 to {len(options) - 1}, a letter from A on, or the text of one option alone"
            if options
            else "an option of the question",
        )

    def decode(self, task: Task, outputs: np.ndarray, example: Example) -> Answer:
        """`{"index", "option", "scores", "ranked"}`: probabilities in the order of the options; indices, best first."""
        outputs, options = np.asarray(outputs).reshape(-1), example.options
        if len(options) != len(outputs) or not len(outputs):
            raise DataError(
                f"task '{task.name}': one output an option is needed",
                got=f"{len(outputs)} outputs",
                allowed=f"{len(options)} options",
            )
        ranked = np.argsort(-outputs, kind="stable").tolist()
        scores = base.softmax(outputs).tolist()
        return {"index": ranked[0], "option": options[ranked[0]], "scores": scores, "ranked": ranked}

    def evaluate(self, task: Task, outputs: Arrays, targets: Arrays, examples: Sequence[Example]) -> dict[str, float]:
        """`accuracy`."""
        base.check_split(task, outputs, targets)
        answered = np.array([int(np.argmax(row)) for row in outputs], np.int64)
        return {"accuracy": metrics.accuracy(np.stack(targets), answered)}

    def judged(self, task: Task, outputs: Arrays, targets: Arrays, examples: Sequence[Example]) -> Judged:
        """The recount and the decisions, for questions."""
        answered = np.array([int(np.argmax(row)) for row in outputs], np.int64)
        confidence = np.array([base.softmax(row)[place] for row, place in zip(outputs, answered, strict=True)])
        is_right = answered == np.array(targets, np.int64)
        sums = np.stack([is_right, np.ones(len(is_right))], axis=1)
        return Judged(
            recount=from_sums(sums, lambda sums: {"accuracy": metrics.ratio(sums[..., 0], sums[..., 1])}),
            decisions=Decisions(of="questions", confidence=confidence, is_right=is_right),
        )

    def support(self, task: Task, answer: Answer, other: Answer) -> dict[str, float]:
        """The probability of the option."""
        return {answer["option"]: other["scores"][answer["index"]]}

    def mistake(self, task: Task, answer: Answer, target: np.ndarray, example: Example) -> Mistake | None:
        """The option given instead, and its probability."""
        place = answer["index"]
        if place == int(target):
            return None
        return Mistake(truth=example.options[int(target)], answer=answer["option"], score=answer["scores"][place])

    def constant(self, task: Task, targets: Arrays, examples: Sequence[Example]) -> list[np.ndarray]:
        """The position that is right most often."""
        places = np.array(targets, np.int64)
        most = max([int(places.max()) + 1, *(len(example.options) for example in examples)])
        counts = np.bincount(places, minlength=most).astype(np.float32)
        return [counts[: len(example.options)] for example in examples]


def place_of_letter(label: str) -> int | None:
    """0 for A, 1 for B, and so on; None for anything but one such letter."""
    letter = label.strip()
    return ord(letter) - ord("A") if len(letter) == 1 and "A" <= letter <= "Z" else None
