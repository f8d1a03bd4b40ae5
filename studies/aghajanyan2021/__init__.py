"""Aghajanyan et al. 2021: pre-finetuning, a stage of training on many labelled tasks before fine-tuning on one.

"Muppet: Massive Multi-task Representations with Pre-Finetuning": its numbers as data.
"""

from studies.aghajanyan2021.published import (
    BATCHINGS,
    DATASETS,
    FIGURE1_SETS,
    FIGURE_TASKS,
    Family,
    families_printed_otherwise,
    published_table1,
    published_table3,
    published_table4,
    published_table5,
    published_table6,
)
from studies.aghajanyan2021.table import AFTER, Line, Table, before_and_after, gains, printed_otherwise, table_of

__all__ = [
    "AFTER",
    "BATCHINGS",
    "DATASETS",
    "FIGURE1_SETS",
    "FIGURE_TASKS",
    "Family",
    "Line",
    "Table",
    "before_and_after",
    "families_printed_otherwise",
    "gains",
    "printed_otherwise",
    "published_table1",
    "published_table3",
    "published_table4",
    "published_table5",
    "published_table6",
    "table_of",
]
