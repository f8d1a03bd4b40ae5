"""The five sets, each as one question of a decisions API: its words were written once, and tried on training rows."""

from __future__ import annotations

import gzip
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec

from polyhead.serve.questions import DecisionQuestion, Form, Option
from polyhead.values import Value

SEED, TRIED = 0, 1000  # training rows on which words and temperatures are looked at


class Questioned(Value):
    """A data set and the question that a client would ask about its texts."""

    folder: str
    form: Form
    instructions: str
    options: dict[str, str]  # label -> what describes it; "" for its name alone
    values: dict[str, str] = {}  # label -> the option's name, where it is another
    metric: str = "accuracy"

    def asked(self, *, described: bool) -> DecisionQuestion:
        """The question, with descriptions or with the options' names alone; of a predicate the sides are described."""
        options = []
        for label, words in self.options.items():
            value = label == self.positive if self.form == "predicate" else self.values.get(label, label)
            options.append(Option(value=value, words=words if described else ""))
        return DecisionQuestion(
            name=self.folder, form=self.form, instructions=self.instructions, options=tuple(options)
        )

    @property
    def positive(self) -> str:
        """The label of a predicate that holds: the first."""
        return next(iter(self.options))


SETS = (
    Questioned(
        folder="ag_news",
        form="choice",
        instructions="Which section of the news is this from?",
        options={
            "World": "World politics and international news",
            "Sports": "Sports news",
            "Business": "Business and financial news",
            "Sci/Tech": "Science and technology news",
        },
    ),
    Questioned(folder="banking77", form="choice", instructions="What does the customer ask about?", options={}),
    Questioned(
        folder="tweeteval_emotion",
        form="choice",
        instructions="Which emotion does the writer express?",
        options={
            "anger": "The writer is angry",
            "joy": "The writer is happy",
            "optimism": "The writer is hopeful",
            "sadness": "The writer is sad",
        },
        metric="macro_f1",
    ),
    Questioned(
        folder="sst5",
        form="score",
        instructions="How does the reviewer like the film?",
        options={
            "very negative": "a terrible film",
            "negative": "a bad film",
            "neutral": "a film of mixed quality",
            "positive": "a good film",
            "very positive": "a great film",
        },
    ),
    Questioned(
        folder="tweeteval_offensive",
        form="predicate",
        instructions="Is this message offensive?",
        options={"offensive": "an offensive message with insults", "not-offensive": "a polite message"},
        metric="macro_f1",
    ),
)


class Rows(Value):
    """Texts and their labels."""

    texts: tuple[str, ...]
    labels: tuple[str, ...]


def rows_of(data: Path, folder: str, split: str, *, most: int | None = None) -> Rows:
    """A split of a set; `most` rows of it, drawn by SEED."""
    with gzip.open(data / folder / f"{split}.jsonl.gz", "rb") as lines:
        rows = [msgspec.json.decode(line) for line in lines]
    if most is not None:
        rows = random.Random(SEED).sample(rows, min(most, len(rows)))
    return Rows(texts=tuple(row["text"] for row in rows), labels=tuple(row["label"] for row in rows))


def named(questioned: Questioned, labels: Sequence[str]) -> Questioned:
    """The question with all labels of its set as options, where it describes none."""
    return questioned if questioned.options else msgspec.structs.replace(questioned, options=dict.fromkeys(labels, ""))
