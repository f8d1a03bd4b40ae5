"""Choices of depth: the exact optimum against brute force, costs against the merged plan, rules against the paper."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyhead.encoder.shape import Architecture
from polyhead.errors import ConfigError
from polyhead.plan import Embed, Layers, Path, merge
from polyhead.plan.cost import cost_of
from polyhead.plan.cost.allocate import (
    AllocationOption,
    LayerPrice,
    allocation_of,
    best_under,
    by_rule,
    frontier,
    greedy,
    price_of,
)
from studies.wei2021.published import TASKS, published_options
from support.cases import cases

BERT = Architecture(layers=12, width=768, heads=12, feed_forward=3072, vocabulary=30522)
SMALL = Architecture(layers=4, width=16, heads=2, feed_forward=64, vocabulary=50, embedding_width=8)
LAYERS = LayerPrice(shared=1, private=1, unit="layers")

# papers.md 2.a.4: (tap, private layers) of QNLI, RTE, QQP, MNLI, SST-2, MRPC, CoLA, STS-B; D + sum; sum
PUBLISHED = {
    1.0: ([(2, 3), (7, 5), (2, 1), (4, 3), (6, 2), (7, 3), (4, 8), (4, 1)], 33, 26),
    2.0: ([(2, 2), (7, 1), (2, 1), (4, 2), (6, 2), (7, 1), (4, 3), (4, 1)], 20, 13),
    3.0: ([(2, 1), (7, 1), (2, 1), (4, 2), (6, 1), (7, 1), (4, 3), (4, 1)], 18, 11),
}


def option(task, name, tap, layers, score):
    return AllocationOption(task=task, name=name, tap=tap, layers=layers, score=score)


@st.composite
def instances(draw):
    """A few options for a few tasks; few distinct numbers, so that ties and dominated choices are common."""
    options = []
    for task in range(draw(st.integers(1, 4))):
        for name in range(draw(st.integers(1, 4))):
            tap, layers = draw(st.integers(0, 4)), draw(st.integers(0, 4))
            score = draw(st.sampled_from([-12.5, 0.1, 0.2, 0.3, 60.1, 60.2, 90.0]))
            options.append(option(f"t{task}", f"o{name}", tap, layers, score))
    price = draw(
        st.builds(
            LayerPrice,
            shared=st.integers(0, 3),
            private=st.integers(1, 3),
            base=st.sampled_from([0, 7]),
            unit=st.just("x"),
        )
    )
    return draw(st.permutations(options)), price


def every_choice(options, price):
    """(cost, score, depth, indices, choice) of all combinations, counted in tenths of a point."""
    tasks = {}
    for one in options:
        tasks.setdefault(one.task, []).append(one)
    for indices in itertools.product(*(range(len(found)) for found in tasks.values())):
        chosen = {task: tasks[task][index] for task, index in zip(tasks, indices, strict=True)}
        depth = max(one.tap for one in chosen.values())
        private = sum(one.layers for one in chosen.values())
        score = sum(round(10 * one.score) for one in chosen.values())
        yield price.base + depth * price.shared + private * price.private, score, depth, indices, chosen


@settings(max_examples=100, deadline=None)
@given(instances())
def test_frontier_is_what_brute_force_finds(instance):
    options, price = instance
    choices = list(every_choice(options, price))
    expected = []
    for cost in sorted({choice[0] for choice in choices}):
        there = [choice for choice in choices if choice[0] == cost]
        top = max(choice[1] for choice in there)
        if not expected or top > expected[-1][1]:
            # Of equals the shallower trunk, then the options listed first.
            expected.append(min((c for c in there if c[1] == top), key=lambda c: (c[2], c[3])))
    found = frontier(options, price)
    assert [(a.cost, a.chosen) for a in found] == [(cost, chosen) for cost, _, _, _, chosen in expected]
    for allocation, (_, score, depth, _, chosen) in zip(found, expected, strict=True):
        assert allocation.score == pytest.approx(score / 10 / len(chosen))
        assert allocation.depth == depth
        assert allocation.layers == depth + sum(one.layers for one in chosen.values())


@settings(max_examples=100, deadline=None)
@given(instances(), st.integers(0, 60))
def test_best_under_a_budget_is_what_brute_force_finds(instance, budget):
    options, price = instance
    within = [choice for choice in every_choice(options, price) if choice[0] <= budget]
    if not within:
        with pytest.raises(ConfigError, match="within the budget"):
            best_under(options, budget, price)
        return
    found = best_under(options, budget, price)
    top = max(choice[1] for choice in within)
    assert round(10 * found.score * len(found.chosen)) == top
    assert found.cost == min(choice[0] for choice in within if choice[1] == top)


def test_the_order_of_adding_scores_makes_no_point_of_the_frontier():
    """0.1 + 0.2 and 0.3 are equal scores, so the dearer of the two choices is left out."""
    assert 0.1 + 0.2 > 0.3 + 0.0
    options = [option("a", "dear", 0, 1, 0.3), option("a", "free", 0, 0, 0.1)]
    options += [option("b", "free", 0, 0, 0.0), option("b", "dear", 0, 2, 0.2)]
    assert [(a.cost, round(2 * a.score, 9)) for a in frontier(options, LAYERS)] == [(0, 0.1), (1, 0.3), (3, 0.5)]


@cases("unit", ["layers", "flops", "bytes"])
@cases("shape", [BERT, SMALL], ids=["bert", "narrow-embedding"])
@cases("taps", [(7, 2, 2), (0, 0, 0), (3, 0, 4)], ids=["mixed", "no-trunk", "one-at-zero"])
def test_an_allocation_costs_what_its_merged_plan_costs(unit, shape, taps):
    """Real paths without poolers and heads, merged and counted as any plan is."""
    taps = [min(tap, shape.layers - 1) for tap in taps]
    chosen = {f"t{i}": option(f"t{i}", "x", tap, i + 1, 50.0) for i, tap in enumerate(taps)}
    paths = {}
    for task, one in chosen.items():
        trunk = (Layers(start=0, stop=one.tap),) if one.tap else ()
        own = Layers(start=one.tap, stop=one.tap + one.layers, weights=f"task:{task}")
        paths[task] = Path(nodes=(Embed(trunk="0" * 64), *trunk, own))
    whole = cost_of(merge(paths), shape, 24)
    counted = {"layers": whole.layer_evaluations, "flops": whole.flops, "bytes": whole.bytes}[unit]
    assert allocation_of(chosen, price_of(unit, shape, 24)).cost == counted


def test_prices_of_bert_are_those_counted_by_hand():
    width, tokens = 768, 50
    layer = 4 * (width * width + width) + 2 * width + 8 * width * width + 5 * width + 2 * width
    table = (30522 + 512 + 2 + 2) * width
    assert price_of("layers", BERT) == LAYERS
    flops = 24 * width**2 * tokens + 4 * tokens**2 * width
    assert price_of("flops", BERT, tokens) == LayerPrice(shared=flops, private=flops, unit="flops")
    assert price_of("bytes", BERT) == LayerPrice(shared=4 * layer, private=4 * layer, base=4 * table, unit="bytes")


@pytest.mark.parametrize("c", PUBLISHED)
def test_the_rule_gives_every_depth_that_the_paper_prints(c):
    depths, layers, private = PUBLISHED[c]
    chosen = by_rule(published_options(), c)
    assert [(chosen[task].tap, chosen[task].layers) for task in TASKS] == depths
    found = allocation_of(chosen, LAYERS)
    assert (found.layers, found.depth, sum(o.layers for o in chosen.values())) == (layers, 7, private)


def test_the_papers_wording_differs_from_its_table_in_one_depth_of_24():
    """Greedy stops at RTE's first dip: 66.1, 64.6, 66.8, 71.5 for 1, 2, 3 and 5 layers."""
    options = published_options()
    differing = [
        (c, task, greedy(options, c)[task].layers)
        for c in PUBLISHED
        for task in TASKS
        if greedy(options, c)[task] != by_rule(options, c)[task]
    ]
    assert differing == [(1.0, "RTE", 1)]


def test_the_published_choices_are_the_best_of_their_number_of_layers():
    """All options of the tasks with the deepest tap have that tap, so the trunk costs the same for every choice."""
    options = published_options()
    for c, (_, layers, _) in PUBLISHED.items():
        assert best_under(options, layers, LAYERS).chosen == by_rule(options, c)


def test_equal_worth_goes_to_more_layers_also_where_floats_would_not_tie():
    assert 50.0 - 1.3 > 51.3 - 2 * 1.3 and 51.3 - 50.0 < 1.3
    options = [option("a", "one", 2, 1, 50.0), option("a", "two", 2, 2, 51.3)]
    for given_order in (options, options[::-1]):
        assert by_rule(given_order, 1.3)["a"].name == greedy(given_order, 1.3)["a"].name == "two"


def test_equal_options_of_one_depth_go_to_the_shallower_tap():
    options = [option("a", "deep", 5, 1, 80.0), option("a", "shallow", 2, 1, 80.0)]
    assert by_rule(options, 1.0)["a"].name == greedy(options, 1.0)["a"].name == "shallow"


def test_free_layers_give_the_best_score_and_dear_ones_the_fewest_layers():
    options = published_options()
    for task, chosen in by_rule(options, 0.0).items():
        assert chosen.score == max(o.score for o in options if o.task == task)
    assert {chosen.layers for chosen in by_rule(options, 1000.0).values()} == {1}


def test_greedy_steps_over_gaps_by_their_gain_for_each_layer():
    options = [option("a", f"{n}", 0, n, score) for n, score in ((1, 50.0), (2, 52.0), (5, 58.0), (6, 58.5))]
    assert [greedy(options, c)["a"].layers for c in (0.5, 1.0, 2.0, 2.1)] == [6, 5, 5, 1]


def test_one_deep_tap_is_paid_for_by_all():
    """The rule sees one private layer for 1 point; with it the trunk is five layers deeper."""
    options = [option("a", "deep", 6, 1, 81.0), option("a", "shallow", 1, 2, 80.5), option("b", "only", 1, 1, 70.0)]
    assert by_rule(options, 1.0)["a"].name == "deep"
    assert allocation_of(by_rule(options, 1.0), LAYERS).layers == 8
    assert best_under(options, 7, LAYERS).chosen["a"].name == "shallow"
    assert best_under(options, 8, LAYERS).chosen["a"].name == "deep"
    trunk_runs_anyway = LayerPrice(shared=0, private=1, base=6, unit="layers")
    assert best_under(options, 8, trunk_runs_anyway).chosen["a"].name == "deep"


def test_a_budget_that_is_too_small_names_the_cheapest_cost():
    with pytest.raises(ConfigError, match=r"Got: 14 \(layers\)\. Allowed: 15 or more"):
        best_under(published_options(), 14, LAYERS)


@pytest.mark.parametrize("choose", [by_rule, greedy], ids=["rule", "greedy"])
@pytest.mark.parametrize("c", [-0.1, math.nan, math.inf])
def test_a_price_of_a_layer_that_means_nothing_is_refused(choose, c):
    with pytest.raises(ConfigError, match="c is a price"):
        choose(published_options(), c)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"tap": -1}, "tap"), ({"layers": -1}, "layers"), ({"score": math.nan}, "score"), ({"score": math.inf}, "score")],
)
def test_options_that_mean_nothing_are_refused(changes, words):
    fields = {"task": "rte", "name": "x", "tap": 1, "layers": 1, "score": 50.0}
    with pytest.raises(ConfigError, match=f"option 'x' of task 'rte'.*{words}"):
        AllocationOption(**{**fields, **changes})


@pytest.mark.parametrize("prices", [(1, 0, 0), (-1, 1, 0), (1, 1, -1)])
def test_prices_that_mean_nothing_are_refused(prices):
    shared, private, base = prices
    with pytest.raises(ConfigError, match="price"):
        LayerPrice(shared=shared, private=private, base=base, unit="layers")


@pytest.mark.parametrize("choose", [lambda o: by_rule(o, 1.0), lambda o: frontier(o, LAYERS)], ids=["rule", "frontier"])
def test_no_options_and_options_of_one_name_are_refused(choose):
    with pytest.raises(ConfigError, match="no option"):
        choose([])
    with pytest.raises(ConfigError, match="task 'a' has several options of one name"):
        choose([option("a", "x", 1, 1, 1.0), option("a", "x", 2, 1, 1.0), option("b", "x", 1, 1, 1.0)])


def test_nothing_chosen_has_no_cost():
    with pytest.raises(ConfigError, match="no option"):
        allocation_of({}, LAYERS)
