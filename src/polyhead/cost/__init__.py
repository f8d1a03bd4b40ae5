"""What a plan costs, from shapes alone: FLOPs, parameters, bytes and layer evaluations, by one fold.

`arrays` says which arrays a plan reads and who owns them, `work` how many multiplications it takes; neither
needs weights. What the papers count, these functions count (papers.md 0.2, 0.3, 1.a, 2.a.4, 3.a.5, 5.a).
"""

from polyhead.cost.arrays import (
    OwnedArray,
    arrays_of,
    arrays_of_path,
    arrays_of_plan,
    parameters,
    part_arrays,
)
from polyhead.cost.stored import row_bytes, stored_bytes
from polyhead.cost.total import Cost, OwnerCost, added, cost_of
from polyhead.cost.work import flops, layer_evaluations

__all__ = [
    "Cost",
    "OwnedArray",
    "OwnerCost",
    "added",
    "arrays_of",
    "arrays_of_path",
    "arrays_of_plan",
    "cost_of",
    "flops",
    "layer_evaluations",
    "parameters",
    "part_arrays",
    "row_bytes",
    "stored_bytes",
]
