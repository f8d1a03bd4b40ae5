"""Huang et al. 2022: the answers of all tasks from one pass, by prompts that stand in one input (MTOP).

"All Birds with One Stone: Multi-task Text Classification for Efficient Inference with One Forward Pass": its tasks
built anew, its numbers as data, and our study of its methods and baselines.
"""

from studies.huang2022.figures import plot_figure2, plot_methods
from studies.huang2022.methods import ABLATION, MAIN, METHODS
from studies.huang2022.nhc import build
from studies.huang2022.nhc_files import source_in, write
from studies.huang2022.published import (
    BEST_ROWS,
    OPINION,
    TABLE3_NOTE,
    published_table1,
    published_table2,
    published_table3,
)
from studies.huang2022.study import MEASURES, Measure, Row, averages, differences, missing, read_rows, rows_of
from studies.huang2022.table import Line, Table
from studies.huang2022.table import printed_otherwise as averages_printed_otherwise
from studies.huang2022.tables import Cell, grid, search, table1, table2, table3

__all__ = [
    "ABLATION",
    "BEST_ROWS",
    "MAIN",
    "MEASURES",
    "METHODS",
    "OPINION",
    "TABLE3_NOTE",
    "Cell",
    "Line",
    "Measure",
    "Row",
    "Table",
    "averages",
    "averages_printed_otherwise",
    "build",
    "differences",
    "grid",
    "missing",
    "plot_figure2",
    "plot_methods",
    "published_table1",
    "published_table2",
    "published_table3",
    "read_rows",
    "rows_of",
    "search",
    "source_in",
    "table1",
    "table2",
    "table3",
    "write",
]
