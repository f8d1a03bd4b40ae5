"""The kinds of task, one self-contained file each."""

from __future__ import annotations

from polyhead.tasks.kinds.multi_label import MultiLabel
from polyhead.tasks.kinds.multiple_choice import MultipleChoice
from polyhead.tasks.kinds.regression import Regression
from polyhead.tasks.kinds.single_label import SingleLabel
from polyhead.tasks.kinds.span import Span
from polyhead.tasks.kinds.summarization import Summarization
from polyhead.tasks.kinds.tagging import Tagging
from polyhead.tasks.task import KINDS, kind_of, register_kind

__all__ = ["KINDS", "kind_of", "register_kind"]

for _kind in (SingleLabel(), MultiLabel(), Regression(), Tagging(), MultipleChoice(), Span(), Summarization()):
    register_kind(_kind)
