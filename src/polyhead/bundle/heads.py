"""The check that a path ends in a head that answers its task."""

from __future__ import annotations

from polyhead.encoder.decoder import Decoder
from polyhead.encoder.shape import Architecture
from polyhead.errors import BundleError
from polyhead.plan import Head
from polyhead.tasks.generation import GenerationRules
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task


def check_head(task: Task, head: Head, shape: Architecture) -> None:
    """Raises BundleError for a head of another kind or width, ConfigError for rules that a decoder cannot follow.

    A task that generates, and no other, has a decoder and rules of generation.
    """
    kind, decoder, rules = kind_of(task), head.decoder, task.generation
    width = shape.vocabulary if kind.generates else kind.width(task)
    if (head.kind, head.width) != (task.kind, width):
        raise BundleError(
            f"the head of task '{task.name}' does not answer it",
            got=f"{head.kind} with {head.width} outputs",
            allowed=f"{task.kind} with {width} outputs",
        )
    if kind.generates and isinstance(decoder, Decoder) and isinstance(rules, GenerationRules):
        rules.check(vocabulary=shape.vocabulary, most_tokens=decoder.most_tokens, task=task.name)
    elif kind.generates or isinstance(decoder, Decoder):
        raise BundleError(
            f"task '{task.name}' of kind '{task.kind}' does not fit its head",
            got=f"decoder {decoder}, generation {rules}",
            allowed="both for a kind that generates, neither for any other",
        )
