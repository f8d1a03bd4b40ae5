"""Wei et al. 2021: branches of a frozen trunk, their students, and which of them to keep.

"A Flexible Multi-Task Model for BERT Serving": its numbers as data with the counts made anew, and the same tables
and figure from the runs of our own study.
"""

from studies.wei2021.figures import Box, boxes, gains, plot_figure2
from studies.wei2021.published import (
    more_options,
    published_options,
    published_table1,
    published_table2,
    published_table5,
    teacher_depths,
)
from studies.wei2021.study import (
    Mixed,
    Run,
    as_published,
    missing,
    mixed,
    options_of,
    read_runs,
    runs_of,
    scored,
    students_of,
    teachers_of,
)
from studies.wei2021.table import Line, Table, near_best, printed_otherwise
from studies.wei2021.tables import Statistic, table1, table2, table5

__all__ = [
    "Box",
    "Line",
    "Mixed",
    "Run",
    "Statistic",
    "Table",
    "as_published",
    "boxes",
    "gains",
    "missing",
    "mixed",
    "more_options",
    "near_best",
    "options_of",
    "plot_figure2",
    "printed_otherwise",
    "published_options",
    "published_table1",
    "published_table2",
    "published_table5",
    "read_runs",
    "runs_of",
    "scored",
    "students_of",
    "table1",
    "table2",
    "table5",
    "teacher_depths",
    "teachers_of",
]
