"""Du et al. 2020: frozen features of one encoder, kept small, with a pooler and a head for each task.

"General Purpose Text Embeddings from Pre-trained Language Models for Scalable Inference": its numbers as data with
the averages counted anew, its storage table and figure 4 counted from plans and shapes alone, and its tables 3 and 4
from the runs of our own study (`study`, `orderings`).
"""

from studies.du2020.counts import (
    DISTILROBERTA,
    MINILM,
    ROBERTA_LARGE,
    SCHEMES,
    FlopsRow,
    Scheme,
    StorageRow,
    break_even,
    figure4,
    plot_figure4,
    scheme_flops,
    storage_table,
)
from studies.du2020.published import (
    BLOCKS,
    GROUPS,
    TASKS,
    Size,
    blocks_of,
    published_table1,
    published_table4,
    sizes_printed_otherwise,
)
from studies.du2020.table import Line, Table, groups_of, printed_otherwise, table_of

__all__ = [
    "BLOCKS",
    "DISTILROBERTA",
    "GROUPS",
    "MINILM",
    "ROBERTA_LARGE",
    "SCHEMES",
    "TASKS",
    "FlopsRow",
    "Line",
    "Scheme",
    "Size",
    "StorageRow",
    "Table",
    "blocks_of",
    "break_even",
    "figure4",
    "groups_of",
    "plot_figure4",
    "printed_otherwise",
    "published_table1",
    "published_table4",
    "scheme_flops",
    "sizes_printed_otherwise",
    "storage_table",
    "table_of",
]
