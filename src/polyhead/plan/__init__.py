"""The plan: a task is a path of four kinds of nodes, and the paths of many tasks are merged on equal prefixes.

Everything else reads these values: training runs them, the engine compiles them, `cost` folds over them, the store
keeps the value at a node under the digest of its prefix, and the bundle saves them. No tensor library is needed.
"""

from polyhead.plan.nodes import (
    ADDED,
    LEAST_READ,
    PLACE_OF,
    TRUNK,
    Activation,
    Codec,
    Delta,
    DeltaKind,
    Dense,
    Embed,
    GeluPlace,
    Head,
    Layers,
    Node,
    Pool,
    Positions,
    Prompt,
    owners_of_node,
    shared_layers,
)
from polyhead.plan.tree import Path, Plan, Step, digest, join_layers, merge, owners_of, split_layers

__all__ = [
    "ADDED",
    "Activation",
    "Codec",
    "Delta",
    "DeltaKind",
    "Dense",
    "Embed",
    "Head",
    "LEAST_READ",
    "Layers",
    "Node",
    "PLACE_OF",
    "Path",
    "GeluPlace",
    "Plan",
    "Pool",
    "Positions",
    "Prompt",
    "Step",
    "TRUNK",
    "digest",
    "join_layers",
    "merge",
    "owners_of",
    "owners_of_node",
    "shared_layers",
    "split_layers",
]
