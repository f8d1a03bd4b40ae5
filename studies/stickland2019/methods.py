"""The methods that the study compares: where a task's own functions stand, what they are, and what they share.

Sizes are those of the paper, for BERT-base (12 layers, 768 wide); `in_proportion` brings them to another trunk.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from polyhead.encoder.shape import Architecture
from polyhead.project.recipes import Sampling
from polyhead.project.strategies import Adapter, InLayer, OnTop, Strategy
from polyhead.values import Value
from studies.huang2022.methods import FIRST

Base = Literal["learned", "frozen", "scratch", "single"]
LEARNED: dict[Base, str] = {
    "learned": "trunk and parts",
    "frozen": "parts",
    "scratch": "trunk, from random weights, and parts",
    "single": "a trunk a task, and its part",
}
WIDTH, LAYERS = 768, 12  # of BERT-base
TASKS = 8

SAMPLINGS = {
    "proportional": Sampling(),
    "square-root": Sampling(exponent=0.5),
    "annealed": Sampling(kind="annealed"),
    "round-robin": Sampling(kind="round_robin"),
    "alone": Sampling(),  # of one task there is nothing to draw
}


class Method(Value):
    """One row of a table. All tasks share one dense tanh pooler, as in the paper, where the strategy says no other."""

    name: str
    title: str = msgspec.field(name="told")  # the name in digests of rows
    strategy: Strategy  # in the paper's sizes
    base: Base = "learned"
    within: str = ""  # a method whose parameters bound it: the size of the adapter is what is left


def in_proportion(strategy: Strategy, shape: Architecture) -> Strategy:
    """The strategy on a trunk of this shape: widths and ranges of layers as they stand to those of BERT-base."""
    match strategy:
        case InLayer():
            adapters = tuple(_adapter(adapter, shape) for adapter in strategy.adapters)
            return msgspec.structs.replace(strategy, adapters=adapters)
        case OnTop(width=int(width)):
            heads = strategy.heads if strategy.form == "attention" else 1
            inner = strategy.feed_forward
            return msgspec.structs.replace(
                strategy,
                width=scaled(width, shape, multiple_of=heads),
                feed_forward=None if inner is None else scaled(inner, shape),
            )
    return strategy


def scaled(size: int, shape: Architecture, *, multiple_of: int = 1) -> int:
    """A width of the paper's, in proportion to the trunk's: the nearest multiple, of two the smaller.

    Parameters grow faster than the width, so the smaller one is nearer in these.
    """
    return multiple_of * max(1, math.ceil(size * shape.width / WIDTH / multiple_of - 0.5))


def _adapter(adapter: Adapter, shape: Architecture) -> Adapter:
    start, stop = adapter.start, adapter.stop
    changed: dict[str, object] = {"start": round(start * shape.layers / LAYERS)}
    if stop is not None:
        changed["stop"] = round(stop * shape.layers / LAYERS)
    if adapter.size is not None and adapter.delta != "lora":
        multiple = {"projected_attention": adapter.heads, "feed_forward": 2}.get(adapter.delta, 1)
        changed["size"] = scaled(adapter.size, shape, multiple_of=multiple)
    return msgspec.structs.replace(adapter, **changed)


def _in_layer(name: str, title: str, *adapters: Adapter, base: Base = "learned") -> Method:
    strategy = InLayer(adapters=adapters or (Adapter(size=204),), pooler="shared")
    return Method(name=name, title=title, strategy=strategy, base=base)


def _pals(name: str, title: str, *, base: Base = "learned", **fields: object) -> Method:
    return _in_layer(name, title, msgspec.structs.replace(Adapter(size=204), **fields), base=base)


def _on_top(name: str, title: str, **fields: object) -> Method:
    strategy = OnTop(layers=6, width=204, pooler="shared")
    return Method(name=name, title=title, strategy=msgspec.structs.replace(strategy, **fields))


LOW_RANK = Adapter(delta="low_rank", size=100)
SINGLE = Method(name="single", title="Single task", strategy=FIRST, base="single")
SHARED = Method(name="shared", title="Shared", strategy=FIRST)
PALS = _pals("pals", "PALs (204)")
LOW = _in_layer("low-rank", "Low rank (100)", LOW_RANK)
TOP_HALF = _pals("pals-top", "PALs (276, top)", size=276, start=6)
ON_TOP = _on_top("on-top", "Proj. attn. on top")
MAIN = (SHARED, PALS, LOW, TOP_HALF, ON_TOP)
TABLE3 = (  # the paper's rows, in its order
    SHARED,
    _on_top("layer-on-top", "BERT layer on top", form="layer", layers=1, width=None),
    ON_TOP,
    _on_top("ffn-on-top", "Proj. FFN on top", form="feed_forward", feed_forward=408),
    PALS,
    _pals("pals-untied", "PALs (84, no sharing)", size=84, tied=False),
    LOW,
    TOP_HALF,
    _pals("pals-bottom", "PALs (276, bottom)", size=276, stop=6),
)
ABLATION = (
    _pals("pals-serial", "PALs in series", serial=True),
    _pals("pals-serial-legacy", "PALs in series, norm begun as released", serial=True, norm_init="legacy"),
    Method(
        name="pals-own-pooler",
        title="PALs, a pooler a task, no more parameters",
        strategy=InLayer(adapters=(Adapter(size=204),)),
        within=PALS.name,
    ),
    _pals("pals-shared-ends", "PALs, encoder, decoder shared", share="ends"),
    _pals("pals-layer-ends", "PALs, each layer's encoder, decoder shared", share="ends", tied=False),
    _pals("pals-shared", "PALs shared by all tasks", share="all"),
    _on_top("on-top-3", "Proj. attn. on top, 3 layers", layers=3),
    _on_top("on-top-12", "Proj. attn. on top, 12 layers", layers=12),
    _on_top(
        "ffn-on-top-2", "Proj. FFN on top, 2 hidden layers", form="feed_forward", feed_forward=252, hidden_layers=2
    ),
    _on_top("on-top-bare", "Proj. attn. on top, no residual, no norm", residual=False),
    _on_top("on-top-legacy", "Proj. attn. on top, norms begun as released", norm_init="legacy"),
    _in_layer("scale", "LHUC", Adapter(delta="scale")),
    _pals("pals-scaled", "PALs with LHUC", scaled=True),
    _in_layer("low-rank-10", "Low rank (10)", msgspec.structs.replace(LOW_RANK, size=10)),
    _pals("pals-60", "PALs (60)", size=60),
    _in_layer("ffn", "FFN inside (204)", Adapter(delta="feed_forward", size=204)),
    _pals("pals-heads-3", "PALs, 3 heads", heads=3),
    _pals("pals-heads-12", "PALs, 12 heads", heads=12),
    _pals("pals-released", "PALs, GELU and start as released", gelu="after", init="normal"),
    _in_layer(
        "low-rank-released",
        "Low rank, GELU and start as released",
        msgspec.structs.replace(LOW_RANK, gelu="inside", init="normal"),
    ),
    _in_layer(
        "pals-then-low-rank",
        "PALs (180) below, low rank (100) above",
        Adapter(size=180, stop=6),
        msgspec.structs.replace(LOW_RANK, start=6),
    ),
    _in_layer(
        "low-rank-then-pals",
        "Low rank (100) below, PALs (180) above",
        msgspec.structs.replace(LOW_RANK, stop=6),
        Adapter(size=180, start=6),
    ),
    _in_layer("bottleneck", "Bottlenecks (50)", Adapter(delta="bottleneck", size=50)),
    _in_layer("lora", "LoRA (8)", Adapter(delta="lora", size=8)),
    _pals("pals-frozen", "PALs, trunk frozen", base="frozen"),
    _pals("pals-scratch", "PALs, trunk from random weights", base="scratch"),
)
METHODS = {method.name: method for method in (SINGLE, *TABLE3, *ABLATION)}
SAMPLED = (SHARED, PALS)  # by every sampling, and not annealed alone
ASKED = (SHARED, PALS, LOW)  # on questions with texts and with options
MAIN_SEEDS, ABLATION_SEEDS = (1, 2, 3), (1,)
PLANNED = {
    (SINGLE.name, "alone"): MAIN_SEEDS,
    **{(method.name, "annealed"): MAIN_SEEDS for method in MAIN},
    **{(method.name, sampling): MAIN_SEEDS for method in SAMPLED for sampling in ("proportional", "square-root")},
}
"""The seeds that the study's main part has of each method and sampling; of all others it has `ABLATION_SEEDS`."""
