"""The methods that the study compares, each a strategy and a way of training over the same seven tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from polyhead.project.strategies import Adapter, InLayer, Pooled, Prompted, Strategy
from polyhead.values import Value

Way = Literal["alone", "together", "conditioned", "frozen"]
LEARNED: Mapping[Way, str] = {
    "alone": "a trunk a task",
    "together": "one trunk",
    "conditioned": "one trunk",
    "frozen": "no trunk",
}


class Method(Value):
    """One row of a table.

    `alone`: a trunk and a head for each task. `together`: one trunk learns with all tasks' parts. `conditioned`: the
    same, as CA-MTL has it. `frozen`: each task's part alone, over the trunk as it is.
    """

    name: str
    title: str = msgspec.field(name="told")  # the name in digests of rows
    way: Way
    strategy: Strategy
    shared_pooler: bool = False  # one dense tanh layer for all tasks
    apart: bool = False  # each task's prompt stands in an input of its own
    prefix_rate: float | None = None  # learning rate of prefixes; None: that of the rest
    tried_for: str | None = None  # in a search, the method of the study whose settings it changes
    learning_rate: float | None = None  # of all that learns, donors apart; None: the study's for this way

    @property
    def learned(self) -> str:
        """Which trunks learned, besides the parts."""
        return LEARNED[self.way]

    def strategy_of(self, task: str) -> Strategy:
        """The task's; `apart` makes it a prompt group of its own."""
        if self.apart and isinstance(self.strategy, Prompted):
            return msgspec.structs.replace(self.strategy, group=task)
        return self.strategy


FIRST = Pooled(layers="last", positions="first", codec="float32")
DONORS = Prompted(init="donors", pooler_init="donors")
PREFIX = InLayer(adapters=(Adapter(delta="prefix", size=8),))
PREFIX_RATE = 5e-3  # of P-Tuning v2's scripts; at the trunk's rate prefixes would stay as small as they start


def _prompted(name: str, title: str, **fields: object) -> Method:
    return Method(name=name, title=title, way="together", strategy=msgspec.structs.replace(DONORS, **fields))


SINGLE = Method(name="single", title="Single task", way="alone", strategy=FIRST)
SHARED_POOLER = Method(name="shared-pooler", title="MT-DNN", way="together", strategy=FIRST, shared_pooler=True)
MTOP = _prompted("mtop", "MTOP")
NO_STOP = _prompted("mtop-no-stop", "MTOP without gradient stop", stop_gradient=False)
ISOLATED = Method(
    name="isolated-frozen", title="Isolated prompts, trunk frozen", way="frozen", strategy=Prompted(isolated=True)
)
POOLED = Method(
    name="pooled-frozen", title="Pooled attention, trunk frozen", way="frozen", strategy=Pooled(positions="attention")
)
MAIN = (
    SINGLE,
    SHARED_POOLER,
    Method(
        name="p-tuning",
        title="P-Tuning",
        way="together",
        strategy=Prompted(init="frequent"),
        apart=True,
        shared_pooler=True,
    ),
    Method(
        name="p-tuning-v2",
        title="P-Tuning v2",
        way="together",
        strategy=PREFIX,
        shared_pooler=True,
        prefix_rate=PREFIX_RATE,
    ),
    Method(name="ca-mtl", title="CA-MTL", way="conditioned", strategy=FIRST, shared_pooler=True),
    MTOP,
    NO_STOP,
    _prompted("isolated-joint", "Isolated prompts", isolated=True),
    ISOLATED,
    POOLED,
)
PRIVATE_POOLERS = Method(name="private-poolers", title="no prompts, private poolers", way="together", strategy=FIRST)
# Rows of table 3, by their numbers there; 0 is ours: what private poolers do without prompts
ABLATION = {
    0: PRIVATE_POOLERS,
    1: SHARED_POOLER,
    2: _prompted("random-random", "random prompts, random poolers", init="random", pooler_init="random"),
    3: _prompted("tokens-random", "token prompts, random poolers", init="frequent", pooler_init="random"),
    4: _prompted("donors-random", "donor prompts, random poolers", pooler_init="random"),
    5: _prompted("random-donors", "random prompts, donor poolers", init="random"),
    6: NO_STOP,
    7: MTOP,
}
# Figure 2: rows of each task's prompt and shared rows before them, all begun at random
GRID = {
    (rows, shared): _prompted(
        f"rows-{rows}-shared-{shared}",
        f"{rows} rows a task, {shared} shared",
        init="random",
        pooler_init="random",
        rows=rows,
        shared=shared,
    )
    for rows in (1, 2, 4)
    for shared in (0, 2)
}
GRID[2, 0] = ABLATION[2]


def _at(method: Method, rate: float) -> Method:
    name, title = f"{method.name}-{rate:g}", f"{method.title}, at {rate:g}"
    return msgspec.structs.replace(method, name=name, title=title, learning_rate=rate, tried_for=method.name)


def _isolated(name: str, title: str, **fields: object) -> Method:
    strategy = msgspec.structs.replace(Prompted(isolated=True), **fields)
    return Method(
        name=f"{ISOLATED.name}-{name}",
        title=f"{ISOLATED.title}, {title}",
        way="frozen",
        strategy=strategy,
        tried_for=ISOLATED.name,
    )


# The methods of both targets at other learning rates, and isolated prompts of other rows and starts: what the builder's
# split says of them is what the main study's numbers rest on
SEARCH = (
    *(
        _at(method, rate)
        for method, rates in (
            (ISOLATED, (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)),
            (POOLED, (3e-5, 1e-4, 3e-4, 1e-3, 3e-3)),
            (SINGLE, (5e-5, 1e-4)),
            (MTOP, (5e-5, 1e-4)),
        )
        for rate in rates
    ),
    _isolated("frequent", "from frequent tokens", init="frequent"),
    _isolated("rows-8", "8 rows", rows=8),
    _isolated("rows-8-frequent", "8 rows from frequent tokens", rows=8, init="frequent"),
)
MAIN_SEEDS, ABLATION_SEEDS, GRID_SEEDS = (1, 2, 3, 4, 5), (1, 2, 3), (1,)
SEARCH_SEEDS = {"frozen": (1, 2, 3), "alone": (1,), "together": (1,)}


def tried_for(method: Method) -> tuple[Method, ...]:
    """The methods of the search that change this one's settings."""
    return tuple(searched for searched in SEARCH if searched.tried_for == method.name)


PLANNED = {
    **{method.name: SEARCH_SEEDS[method.way] for method in SEARCH},
    **{method.name: GRID_SEEDS for method in GRID.values()},
    **{method.name: ABLATION_SEEDS for method in ABLATION.values()},
    **{method.name: MAIN_SEEDS for method in MAIN},
}
"""The seeds that the study has of each method."""
METHODS = {method.name: method for method in (*MAIN, *ABLATION.values(), *GRID.values(), *SEARCH)}
