"""The cost of a plan, computed from shapes alone: FLOPs, parameters, bytes and layer evaluations.

`arrays` says which arrays a plan reads and who owns them, `work` how many multiplications it takes; neither needs
weights. The counts follow the papers (Du et al. 2020, Stickland and Murray 2019, and others).
"""

from polyhead.plan.cost.arrays import WORD_WEIGHTS, arrays_of, arrays_of_path, arrays_of_plan, parameters, part_arrays
from polyhead.plan.cost.total import (
    Cost,
    OwnerCost,
    added,
    added_each,
    cost_of,
    flops_by_sharers,
    shared_flops,
    stored_bytes,
    vector_bytes,
)
from polyhead.plan.cost.work import flops, layer_evaluations

__all__ = [
    "Cost",
    "OwnerCost",
    "WORD_WEIGHTS",
    "added",
    "added_each",
    "arrays_of",
    "arrays_of_path",
    "arrays_of_plan",
    "cost_of",
    "flops",
    "flops_by_sharers",
    "layer_evaluations",
    "parameters",
    "part_arrays",
    "vector_bytes",
    "shared_flops",
    "stored_bytes",
]
