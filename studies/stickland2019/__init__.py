"""Stickland and Murray 2019: one encoder for many tasks, with small functions of each task's own inside or on top.

"BERT and PALs: Projected Attention Layers for Efficient Adaptation in Multi-Task Learning": its formulas counted anew,
its numbers as data, and our study of its methods and samplings.
"""

from studies.aghajanyan2021.table import printed_otherwise
from studies.stickland2019.counts import FORMULAS, NUMBERS, Costs, Formula, costs, size_notes, table1
from studies.stickland2019.figures import plot_curves, plot_methods
from studies.stickland2019.methods import ABLATION, ASKED, MAIN, METHODS, SAMPLED, SAMPLINGS, SINGLE, TABLE3, Method
from studies.stickland2019.published import RATIO_NOTE, Cell, published_questions, published_table2, published_table3
from studies.stickland2019.study import (
    Row,
    Run,
    averages,
    beside,
    differences,
    missing,
    read_rows,
    rows_of,
    runs_of,
    scale_of,
)
from studies.stickland2019.tables import Spent, by_task, compared, curves, questions, table3, title

__all__ = [
    "ABLATION",
    "FORMULAS",
    "MAIN",
    "METHODS",
    "NUMBERS",
    "ASKED",
    "RATIO_NOTE",
    "SAMPLED",
    "SAMPLINGS",
    "SINGLE",
    "TABLE3",
    "Cell",
    "Costs",
    "Formula",
    "Method",
    "Row",
    "Run",
    "Spent",
    "averages",
    "beside",
    "by_task",
    "compared",
    "costs",
    "curves",
    "differences",
    "missing",
    "plot_curves",
    "plot_methods",
    "printed_otherwise",
    "published_questions",
    "published_table2",
    "published_table3",
    "questions",
    "read_rows",
    "rows_of",
    "runs_of",
    "scale_of",
    "size_notes",
    "table1",
    "table3",
    "title",
]
