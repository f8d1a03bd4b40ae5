"""What the paper prints in tables 2 and 3 and in table 1 of its appendix, as data. The encoder is BERT-base."""

from __future__ import annotations

from polyhead.values import Value
from studies.aghajanyan2021.table import Line, Table, table_of


class Cell(Value):
    """A mean over seeds, in points, with its standard error where there are several."""

    mean: float
    error: float | None = None
    seeds: int = 3


# Table 2: GLUE test. The printed mean is that of nine columns: of QQP and MRPC their F1 (and not, as its caption has
# it, F1 before accuracy: the pairs are accuracy and F1).
_COLUMNS = (
    ("MNLI-m", "accuracy"),
    ("MNLI-mm", "accuracy"),
    ("QQP accuracy", "accuracy"),
    ("QQP F1", "F1"),
    ("QNLI", "accuracy"),
    ("SST-2", "accuracy"),
    ("CoLA", "Matthews"),
    ("STS-B", "correlation"),
    ("MRPC accuracy", "accuracy"),
    ("MRPC F1", "F1"),
    ("RTE", "accuracy"),
    ("average", ""),
)
TABLE2 = {
    "BERT-base, one a task": (84.6, 83.4, 89.2, 71.2, 90.1, 93.5, 52.1, 85.8, 84.8, 88.9, 66.4, 79.6),
    "Shared": (84.0, 83.4, 88.9, 70.8, 89.3, 93.4, 51.2, 83.6, 81.3, 86.7, 76.6, 79.9),
    "Proj. attn. on top": (84.0, 83.2, 88.8, 71.2, 89.7, 93.2, 47.1, 85.3, 83.1, 87.5, 75.5, 79.6),
    "PALs (204)": (84.3, 83.5, 89.2, 71.5, 90.0, 92.6, 51.2, 85.8, 84.6, 88.7, 76.0, 80.4),
}
# Table 3: GLUE dev, mean of eight metrics; mean and standard error of three seeds, by sampling
_PROP, _SQRT, _ANNEAL = "proportional", "square-root", "annealed"
TABLE3: dict[str, dict[str, tuple[float, float | None]]] = {
    "shared": {_PROP: (79.17, 0.03), _SQRT: (80.56, 0.04), _ANNEAL: (80.7, 0.3)},
    "layer-on-top": {_PROP: (80.6, 0.2), _SQRT: (81.6, 0.3), _ANNEAL: (81.5, 0.2)},
    "on-top": {_PROP: (80.3, 0.1), _SQRT: (81.4, 0.1), _ANNEAL: (81.5, 0.1)},
    "ffn-on-top": {_SQRT: (81.07, None), _ANNEAL: (80.8, 0.1)},
    "pals": {_PROP: (80.6, 0.2), _SQRT: (81.0, 0.2), _ANNEAL: (81.7, 0.2)},
    "pals-untied": {_ANNEAL: (81.3, 0.1)},
    "low-rank": {_ANNEAL: (81.9, 0.2)},
    "pals-top": {_ANNEAL: (81.61, 0.06)},
    "pals-bottom": {_ANNEAL: (81.4, 0.1)},
}
RATIOS = {"shared": 1.00, "layer-on-top": 1.66, "on-top": 1.10, "pals": 1.13}  # of parameters, where printed
RATIO_NOTE = "A BERT layer on top of each of eight tasks is 1.52 times the parameters; 1.66 is that of layers alone."
# Table 1 of the appendix: SQuAD (exact match, F1) and SWAG (accuracy), their mean; round robin
SQUAD_SWAG = {"shared": (82.75, 0.09), "pals": (82.774, 0.006), "low-rank": (82.74, 0.06)}


def published_table2() -> Table:
    """Table 2, the mean of nine columns counted anew."""
    names, metrics = zip(*_COLUMNS, strict=True)
    nine = {name: 1.0 for name in names[:-1] if name not in ("QQP accuracy", "MRPC accuracy")}
    lines = [Line(name=name, scores=scores) for name, scores in TABLE2.items()]
    return table_of(names, metrics, lines, means={"average": nine})


def published_table3() -> dict[str, dict[str, Cell]]:
    """Table 3 by method and sampling."""
    return {
        method: {sampling: Cell(mean=mean, error=error) for sampling, (mean, error) in row.items()}
        for method, row in TABLE3.items()
    }


def published_questions() -> dict[str, Cell]:
    """Table 1 of the appendix by method."""
    return {method: Cell(mean=mean, error=error) for method, (mean, error) in SQUAD_SWAG.items()}
