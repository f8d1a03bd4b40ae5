"""The study of plans: what its rows claim."""

import importlib

import pytest


@pytest.fixture
def study():
    return importlib.import_module("benchmarks.engine_plans_claims")


def timed(part, run, seconds, expected=1.0, texts=1):
    return [
        {"part": part, "run": run, "texts": texts, "expected": expected, "repeat": repeat, "seconds": one}
        for repeat, one in enumerate(seconds)
    ]


def claim_of(study, rows):
    """The only claim that these rows make."""
    (found,), lacking = study.claims(rows)
    assert found.id not in lacking and len(lacking) == 4
    return found


def test_a_plan_is_compared_with_the_bare_trunk_of_its_repeat_and_the_farthest_counts(study):
    """4.4, 4.4 and 9 times the bare trunk where 4 are expected; the other plan takes what it may."""
    rows = timed("mixed-plan", "bare", (1.0, 10.0, 1.0)) + timed("mixed-plan", "a", (4.4, 44.0, 9.0), 4.0)
    found = claim_of(study, rows + timed("mixed-plan", "b", (2.0, 20.0, 2.0), 2.0))
    assert found.value == pytest.approx(1.1) and found.holds


def test_stacks_are_claimed_for_one_text_and_told_for_more(study):
    rows = []
    for texts, apart in ((1, 0.9), (32, 2.0)):
        part = f"stacked-branches-{texts}"
        rows += timed(part, "stacked", (1.0,), texts=texts) + timed(part, "apart", (apart,), texts=texts)
    found = claim_of(study, rows)
    assert found.value == pytest.approx(0.9) and not found.holds
    assert found.note == "0.90 at batch 1, 2.00 at batch 32"


def test_a_strategy_may_be_neither_slower_nor_faster_than_its_flops_say(study):
    rows = timed("one-text-32", "bare", (1.0,)) + timed("one-text-32", "near", (2.1,), 2.0)
    found = claim_of(study, rows + timed("one-text-32", "fast", (4.0,), 8.0))
    assert found.value == pytest.approx(0.5) and not found.holds
    assert "fast" in found.note and "near" not in found.note


def test_a_task_that_comes_is_claimed_in_seconds(study):
    rows = timed("attach", "one more", (0.1, 0.6, 0.3))
    found = claim_of(study, rows)
    assert found.value == pytest.approx(0.3) and found.holds
    assert study.lines(rows)[1][:3] == ["attach", "one more", "300.00"]
