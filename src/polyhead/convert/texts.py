"""The texts that prove a task: those given that it reads, or some of the packaged sample."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Mapping, Sequence

from polyhead.engine.inputs import (
    IN_WORDS,
    AnyInput,
    InputType,
    input_type_of,
    input_types_of,
    is_blank_input,
    reads_in_words,
    task_input,
)
from polyhead.errors import ConfigError
from polyhead.tasks.task import Task
from polyhead.text.question import Question, TaskInput
from polyhead.text.tokenize import repair

LEAST_TEXTS = 16
SAMPLE_TEXTS = 128  # of the packaged sample, if no texts are given
OPTIONS = 3  # of a question that is made of the sample's pairs


def proof_texts(tasks: Sequence[Task], inputs: Sequence[AnyInput] | None) -> Mapping[str, list[TaskInput]]:
    """The texts that prove each task: all given ones that it reads, or those of the sample.

    Raises ConfigError for a text that is blank or that no task reads, and for a task that reads too few.
    """
    types = {task.name: input_types_of(task) for task in tasks}
    if inputs is None:
        return {name: sample_texts(read[0]) for name, read in types.items()}
    if any(map(is_blank_input, inputs)):
        raise ConfigError("a text of the proof is blank", do="leave it out")
    allowed = list(dict.fromkeys(map(reads_in_words, types.values())))
    unread = [text for text in inputs if not any(input_type_of(text) in read for read in types.values())]
    if unread:
        raise ConfigError(
            "the texts of the proof are not of the kind that the tasks read",
            got=f"{IN_WORDS[input_type_of(unread[0])]} ({len(unread)} of {len(inputs)} lines are unread)",
            allowed=allowed,
            do="give pairs to classifiers with --pair joined, single texts without it",
        )
    texts = {name: [_repaired(text) for text in inputs if input_type_of(text) in read] for name, read in types.items()}
    for name, task_texts in texts.items():
        if len(task_texts) < LEAST_TEXTS:
            raise ConfigError(
                f"too few texts to prove that the answers of task '{name}' are the same",
                got=len(task_texts),
                allowed=f"{LEAST_TEXTS} or more, each {reads_in_words(types[name])}",
            )
    return texts


def sample_texts(input_type: InputType) -> list[TaskInput]:
    """Texts of the packaged sample, evenly spaced, and those of them that are not ASCII.

    The options of a question are the second texts of its pair and the pairs after it.
    """
    name, keys = ("messages.jsonl", ("text",)) if input_type == "text" else ("pairs.jsonl", ("text_a", "text_b"))
    raw = importlib.resources.files("polyhead.sample").joinpath(name).read_text(encoding="utf-8")
    rows = [json.loads(line) for line in raw.splitlines()]
    texts = [tuple(row[key] for key in keys) for row in rows]
    foreign = [text for text in texts if not all(part.isascii() for part in text)]
    spaced = [texts[i * len(texts) // SAMPLE_TEXTS] for i in range(SAMPLE_TEXTS)]
    chosen = list(dict.fromkeys([*foreign, *spaced]))[:SAMPLE_TEXTS]
    if input_type != "question":
        return [(text[0],) if len(text) == 1 else (text[0], text[1]) for text in chosen]
    options = [[chosen[(i + more) % len(chosen)][1] for more in range(OPTIONS)] for i in range(len(chosen))]
    return [Question(text=text[0], options=tuple(choices)) for text, choices in zip(chosen, options, strict=True)]


def _repaired(entry: AnyInput) -> TaskInput:
    """The input as its task reads it, without lone surrogates."""
    text = task_input(entry)
    if isinstance(text, Question):
        options = tuple(map(repair, text.options))
        return Question(text=repair(text.text), options=options, context=repair(text.context))
    return (repair(text[0]),) if len(text) == 1 else (repair(text[0]), repair(text[1]))
