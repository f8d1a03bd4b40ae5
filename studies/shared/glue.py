"""The eight tasks of GLUE that studies train on together, each with its share of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from studies.shared.data import Set, prepared_of, train_rows

if TYPE_CHECKING:
    from polyhead.project.recipes import Training
    from polyhead.project.strategies import Strategy
    from polyhead.train.data.prepared import Prepared

# The reported split is test where it has labels, else the published validation split
GLUE = (
    Set(folder="glue_cola", name="cola", test="validation", metric="matthews"),
    Set(folder="glue_sst2", name="sst2", metric="accuracy"),
    Set(folder="glue_mrpc", name="mrpc", metric="accuracy"),
    Set(folder="glue_stsb", name="stsb", range=(0.0, 5.0), metric="pearson"),
    Set(folder="glue_qqp", name="qqp", metric="accuracy"),
    Set(folder="glue_mnli", name="mnli", test="validation", metric="accuracy"),
    Set(folder="glue_qnli", name="qnli", test="validation", metric="accuracy"),
    Set(folder="glue_rte", name="rte", test="validation", metric="accuracy"),
)
TITLES = {
    "cola": "CoLA",
    "sst2": "SST-2",
    "mrpc": "MRPC",
    "stsb": "STS-B",
    "qqp": "QQP",
    "mnli": "MNLI",
    "qnli": "QNLI",
    "rte": "RTE",
}


def prepared_sets(
    data: Path,
    sets: Sequence[Set],
    *,
    rows: int,
    natural: bool = True,
    validation: int,
    test: int | None = None,
    strategy: Strategy,
    training: Training,
) -> list[Prepared]:
    """The sets as tasks with `rows` training rows in the mean, `natural`: each in proportion to its train file.

    `validation` more rows of each train file are set aside for the choice of an epoch; of the reported split at most
    `test` rows, None: all. Raises DataError where a set's folder is missing.
    """
    sizes = [train_rows(data, dataset) for dataset in sets]
    shares = [round(rows * len(sets) * size / sum(sizes)) if natural else rows for size in sizes]
    return [
        prepared_of(data, dataset, train=share, validation=validation, test=test, strategy=strategy, training=training)
        for dataset, share in zip(sets, shares, strict=True)
    ]
