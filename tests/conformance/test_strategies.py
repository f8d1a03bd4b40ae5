"""Every strategy, in many of its settings, passes every check of `polyhead.testing`."""

import typing

import pytest

from polyhead.plan.nodes import DeltaKind
from polyhead.project.strategies import STRATEGIES, Adapter, Branch, InLayer, OnTop, Pooled, Prompted
from polyhead.testing import tiny_tasks, yield_strategy_checks

CHOICES = {
    f"pooled-{layers}-{positions}": Pooled(layers=layers, of=2, positions=positions, hidden=hidden)
    for layers in ("last", "mean", "learned")
    for positions, hidden in (("first", 0), ("mean", 8), ("attention", None))
} | {
    f"branch-{positions}-{tap}-{layers}": Branch(positions=positions, tap=tap, layers=layers, hidden=hidden)
    for positions, tap, layers, hidden in (
        ("first", None, 1, None),
        ("first", 0, 2, 0),
        ("mean", 0, 1, 8),
        ("attention", 1, 1, None),
    )
}
CHOICES |= {
    "prompted-group": Prompted(),
    "prompted-shared-shifted": Prompted(rows=1, shared=2, shift=True, hidden=8),
    "prompted-isolated": Prompted(isolated=True),
    "prompted-isolated-long": Prompted(isolated=True, rows=5, hidden=8),
}
ADAPTERS = {
    "attention-upper-untied": Adapter(size=6, heads=3, start=1, tied=False, gelu="after"),
    "attention-ends": Adapter(size=6, heads=2, share="ends"),
    "attention-ends-by-layer": Adapter(size=6, heads=2, tied=False, share="ends", scaled=True),
    "attention-all": Adapter(size=6, heads=2, share="all"),
    "low-rank": Adapter(delta="low_rank", size=3, gelu="inside"),
    "low-rank-serial": Adapter(delta="low_rank", size=3, serial=True),
    "feed-forward": Adapter(delta="feed_forward", size=4),
    "bottleneck": Adapter(delta="bottleneck", size=3),
    "scale": Adapter(delta="scale"),
    "prefix": Adapter(delta="prefix", size=3),
    "lora": Adapter(delta="lora", size=2),
}
CHOICES |= {f"in-layer-{name}": InLayer(adapters=(adapter,)) for name, adapter in ADAPTERS.items()}
CHOICES |= {
    "in-layer-mixed": InLayer(
        adapters=(Adapter(delta="low_rank", size=3, stop=1), Adapter(size=6, heads=2, start=1)),
        positions="attention",
        hidden=0,
    ),
    "in-layer-shared-pooler": InLayer(
        adapters=(Adapter(size=6, heads=2, serial=True),), pooler="shared", positions="mean"
    ),
    "on-top-attention": OnTop(width=8, heads=2, layers=3),
    "on-top-feed-forward": OnTop(form="feed_forward", width=6, positions="mean"),
    "on-top-two-hidden-layers": OnTop(form="feed_forward", width=6, hidden_layers=2),
    "on-top-alone": OnTop(width=8, heads=2, layers=1, residual=False, positions="attention"),
    "on-top-layer-shared-pooler": OnTop(form="layer", pooler="shared"),
}
# The tiny tasks that a strategy refuses: those answered by words see no isolated prompt, and a pair read separately has
# a pooler of another width than that which tasks share.
WORDS, SEPARATE = {"names", "where", "who"}, {"alike"}
REFUSED = {
    "prompted-isolated": WORDS,
    "prompted-isolated-long": WORDS,
    "in-layer-shared-pooler": SEPARATE,
    "on-top-layer-shared-pooler": SEPARATE,
}


# In the first tier: one choice of each strategy, and prompts of both sorts.
FIRST = {
    *("pooled-mean-attention", "branch-first-None-1", "prompted-group", "prompted-isolated"),
    *("in-layer-low-rank", "on-top-attention"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FIRST else pytest.mark.slow) for name in CHOICES]
)
def test_strategy_passes_every_check(name):
    assert checked(name) == 3 * (len(tiny_tasks()) - len(REFUSED.get(name, ()))) + 4


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mpnet", "modernbert", "deberta-v2", "eurobert"])
def test_every_strategy_fits_every_form_of_layers(family):
    """One choice of each, and every adapter."""
    for name in sorted({*FIRST, *(f"in-layer-{adapter}" for adapter in ADAPTERS)}):
        assert checked(name, family) == 3 * (len(tiny_tasks()) - len(REFUSED.get(name, ()))) + 4


def checked(name, family="bert"):
    """How many checks there were; all of them hold."""
    ran = 0
    for check in yield_strategy_checks(name, CHOICES[name], family=family):
        try:
            check.run()
        except Exception as error:
            raise AssertionError(f"{check.tasks}, {family}: {check.name}: {error}") from error
        ran += 1
    return ran


def test_every_strategy_of_a_project_is_looked_at():
    declared = {STRATEGIES[name] for name in ("pooled", "branch", "prompted", "in_layer", "on_top")}
    assert declared == {type(choice) for choice in CHOICES.values()} == {type(CHOICES[name]) for name in FIRST}
    assert {adapter.delta for adapter in ADAPTERS.values()} | {"projected_attention"} == set(typing.get_args(DeltaKind))
