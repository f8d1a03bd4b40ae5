"""Every strategy, with every choice of layers and positions, passes every check of `polyhead.testing`."""

import typing

import pytest

from polyhead.project import Branch, Pooled, Strategy
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


@pytest.mark.parametrize("name", CHOICES)
def test_strategy_passes_every_check(name):
    ran = 0
    for check in yield_strategy_checks(name, CHOICES[name]):
        try:
            check.run()
        except Exception as error:
            raise AssertionError(f"{check.subject}: {check.name}: {error}") from error
        ran += 1
    assert ran == 3 * len(tiny_tasks()) + 4


def test_every_strategy_of_a_project_is_looked_at():
    declared = set(typing.get_args(Strategy) or (Strategy,))
    assert declared == {type(choice) for choice in CHOICES.values()}
