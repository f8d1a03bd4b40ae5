"""The kinds of task, one file each: everything about a kind is in its file."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from polyhead.tasks.kinds.base import Kind
from polyhead.tasks.kinds.multi_label import MultiLabel
from polyhead.tasks.kinds.multiple_choice import MultipleChoice
from polyhead.tasks.kinds.regression import Regression
from polyhead.tasks.kinds.single_label import SingleLabel
from polyhead.tasks.kinds.span import Span
from polyhead.tasks.kinds.summarization import Summarization
from polyhead.tasks.kinds.tagging import Tagging

if TYPE_CHECKING:
    from polyhead.tasks.task import Task

KINDS = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            SingleLabel(),
            MultiLabel(),
            Regression(),
            Tagging(),
            MultipleChoice(),
            Span(),
            Summarization(),
        )
    }
)


def kind_of(task: Task) -> Kind:
    """The kind of a task."""
    return KINDS[task.kind]
