"""Mixtures of tasks: shares in closed form and as drawn, published counts of steps, and what every order keeps."""

import math
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chisquare

from polyhead.deep.recipes.sampling import Mixture, apportioned, size_shares
from polyhead.errors import ConfigError
from polyhead.project.recipes import Joint, Sampling
from support.cases import cases

SMALL = {"rte": 2490, "cola": 8551, "sst": 67349}
SCHEDULE = ({"rte": 1.0}, {"rte": 1.0, "cola": 3.0})
SAMPLINGS = {
    "proportional": Sampling(),
    "square root": Sampling(exponent=0.5),
    "uniform": Sampling(exponent=0.0),
    "capped": Sampling(cap=5000),
    "annealed": Sampling(kind="annealed"),
    "round robin": Sampling(kind="round_robin"),
    "all": Sampling(kind="all"),
    "shuffled": Sampling(kind="shuffled"),
    "schedule": Sampling(kind="schedule", schedule=SCHEDULE),
}
SEQUENTIAL = {name: one for name, one in SAMPLINGS.items() if one.kind != "all"}

# Stickland and Murray 2019: training examples of eight GLUE tasks (QNLI as first released).
GLUE = {
    "cola": 8551,
    "mrpc": 3668,
    "mnli": 392702,
    "rte": 2490,
    "sts": 5749,
    "sst": 67349,
    "qqp": 363849,
    "qnli": 108436,
}
# Expected steps of 60,000, and passes over the data, as computed by hand from the sizes.
PUBLISHED = {
    "proportional": ([538, 231, 24730, 157, 362, 4241, 22913, 6829], [2.0] * 8),
    "square root": ([2645, 1733, 17927, 1427, 2169, 7424, 17255, 9420], [9.9, 15.1, 1.5, 18.3, 12.1, 3.5, 1.5, 2.8]),
    "annealed": ([2364, 1638, 19117, 1397, 1983, 6629, 18196, 8677], [8.9, 14.3, 1.6, 18.0, 11.0, 3.2, 1.6, 2.6]),
}


def mixture(sampling=None, sizes=SMALL, *, batch=32, epochs=4, seed=1, in_a_pass=None, **recipe):
    joint = Joint(sampling=sampling or Sampling(), **recipe)
    return Mixture(sizes, joint, batch=batch, epochs=epochs, seed=seed, in_a_pass=in_a_pass)


def drawn(mix, epochs=None):
    """Every update of the run."""
    return [update for epoch in range(epochs or 4) for update in mix.updates(epoch)]


def counts_of(updates):
    return Counter(task for update in updates for task in update)


@pytest.mark.parametrize("name", PUBLISHED)
def test_expected_steps_and_passes_are_the_published_ones(name):
    """60,000 steps of one batch of 32, in 25 epochs."""
    mix = mixture(SAMPLINGS[name], GLUE, epochs=25, micro_batches=1, steps=2400)
    steps, passes = PUBLISHED[name]
    found = mix.expected()
    assert [one.task for one in found] == list(GLUE)
    assert [round(one.micro_batches) for one in found] == steps
    assert sum(one.micro_batches for one in found) == pytest.approx(60000)
    # A pass has a last batch that is not full, so ours are up to 0.05 fewer than steps * 32 / examples.
    np.testing.assert_allclose([one.passes for one in found], passes, atol=0.1)
    for one, size in zip(found, GLUE.values(), strict=True):
        assert one.passes == pytest.approx(one.micro_batches / math.ceil(size / 32))


def test_largest_share_over_smallest_is_that_of_the_sizes():
    """The paper prints 158."""
    shares = mixture(sizes=GLUE).shares(0)
    assert max(shares.values()) / min(shares.values()) == pytest.approx(392702 / 2490)


@pytest.mark.parametrize("exponent", [0.0, 0.1, 0.5, 1.0, 3.0])
def test_shares_are_powers_of_sizes(exponent):
    shares = mixture(Sampling(exponent=exponent)).shares(0)
    total = sum(size**exponent for size in SMALL.values())
    assert shares == pytest.approx({task: size**exponent / total for task, size in SMALL.items()})


def test_shares_of_large_powers_do_not_overflow():
    np.testing.assert_allclose(size_shares({"a": 3_600_000, "b": 2490}, 100.0), [1.0, 0.0], atol=1e-12)


def test_a_cap_bounds_what_counts_and_what_an_epoch_reads():
    mix = mixture(Sampling(cap=5000), micro_batches=1)
    assert mix.shares(0) == pytest.approx({"rte": 2490 / 12490, "cola": 5000 / 12490, "sst": 5000 / 12490})
    assert mix.steps == 78 + 157 + 157
    by_task = {one.task: one for one in mix.expected()}
    assert by_task["sst"].passes == pytest.approx(4 * 392 * 5000 / 12490 / math.ceil(67349 / 32))


@pytest.mark.parametrize("epochs", [2, 5, 25])
def test_annealing_goes_from_one_to_a_fifth_in_equal_steps(epochs):
    mix = mixture(SAMPLINGS["annealed"], epochs=epochs)
    shares = [mix.shares(epoch) for epoch in range(epochs)]
    exponents = [math.log(s["sst"] / s["rte"]) / math.log(67349 / 2490) for s in shares]
    assert exponents[0] == pytest.approx(1.0)
    assert exponents[-1] == pytest.approx(0.2)
    assert [b - a for a, b in pairwise(exponents)] == pytest.approx([-0.8 / (epochs - 1)] * (epochs - 1))


def test_annealing_over_one_epoch_stays_at_its_first_exponent():
    annealed, plain = mixture(SAMPLINGS["annealed"], epochs=1), mixture(epochs=1)
    assert annealed.shares(0) == plain.shares(0)


def test_a_schedule_gives_each_epoch_its_shares_and_keeps_the_last():
    mix = mixture(SAMPLINGS["schedule"], steps=50)
    assert mix.shares(0) == {"rte": 1.0, "cola": 0.0, "sst": 0.0}
    assert mix.shares(1) == mix.shares(3) == {"rte": 0.25, "cola": 0.75, "sst": 0.0}
    assert set(counts_of(mix.updates(0))) == {"rte"}
    assert set(counts_of(mix.updates(3))) == {"rte", "cola"}


@pytest.mark.parametrize("name", ["proportional", "square root", "uniform", "capped", "annealed", "schedule"])
@pytest.mark.parametrize("scheme", ["heterogeneous", "batch"])
def test_draws_follow_the_shares(name, scheme):
    """Chi-square of each epoch's draws; an update of one task counts once."""
    mix = mixture(SAMPLINGS[name], epochs=4, steps=3000, micro_batches=2, scheme=scheme)
    for epoch in range(4):
        shares = {task: share for task, share in mix.shares(epoch).items() if share}
        updates = list(mix.updates(epoch))
        found = counts_of(updates if scheme == "heterogeneous" else [update[:1] for update in updates])
        assert set(found) <= set(shares)
        total = sum(found.values())
        wanted = [share * total for share in shares.values()]
        assert len(shares) == 1 or chisquare([found[task] for task in shares], wanted).pvalue > 1e-3


@cases("name", SAMPLINGS)
def test_shares_sum_to_one_and_expectations_to_the_runs_micro_batches(name):
    mix = mixture(SAMPLINGS[name])
    for epoch in range(4):
        assert sum(mix.shares(epoch).values()) == pytest.approx(1.0)
    total = 4 * mix.steps * mix.micro_batches
    assert sum(one.micro_batches for one in mix.expected()) == pytest.approx(total)


@cases("scheme", ["heterogeneous", "batch", "dataset"])
@cases("name", SEQUENTIAL)
def test_epochs_have_their_size_and_depend_on_nothing_before(name, scheme):
    mix = mixture(SEQUENTIAL[name], scheme=scheme, steps=21, micro_batches=4)
    whole = [list(mix.updates(epoch)) for epoch in range(4)]
    for epoch, updates in enumerate(whole):
        assert len(updates) == 21
        assert all(len(update) == 4 for update in updates)
        anew = mixture(SEQUENTIAL[name], scheme=scheme, steps=21, micro_batches=4)
        assert list(anew.updates(epoch)) == updates
        if scheme != "heterogeneous":
            assert all(len(set(update)) == 1 for update in updates)


@pytest.mark.parametrize("name", ["proportional", "shuffled"])
def test_epochs_and_seeds_draw_differently(name):
    """Where sizes let them: one task of three times the examples."""
    mix, other = (mixture(SAMPLINGS[name], {"a": 320, "b": 960}, seed=s, micro_batches=8, steps=5) for s in (1, 2))
    epochs = [list(mix.updates(epoch)) for epoch in range(4)]
    assert all(epochs[a] != epochs[b] for a in range(4) for b in range(a))
    assert epochs[0] != list(other.updates(0))


def test_heterogeneous_updates_draw_each_micro_batch_by_itself():
    """Pairs of one update's tasks occur as often as their shares multiply to."""
    mix = mixture(Sampling(exponent=0.5), micro_batches=2, steps=4000)
    shares, pairs = mix.shares(0), Counter(mix.updates(0))
    wanted = {(a, b): 4000 * shares[a] * shares[b] for a in SMALL for b in SMALL}
    assert chisquare([pairs[pair] for pair in wanted], list(wanted.values())).pvalue > 1e-3


def test_all_holds_every_task_once_in_each_update():
    mix = mixture(SAMPLINGS["all"], micro_batches=8)
    assert mix.micro_batches == 3
    assert mix.steps == math.ceil((78 + 268 + 2105) / 3)
    assert set(drawn(mix)) == {tuple(SMALL)}
    assert mix.shares(2) == pytest.approx(dict.fromkeys(SMALL, 1 / 3))


@pytest.mark.parametrize("scheme", ["heterogeneous", "batch"])
def test_round_robin_takes_turns_across_updates_and_epochs(scheme):
    mix = mixture(SAMPLINGS["round robin"], steps=7, micro_batches=4, scheme=scheme)
    flat = [task for update in drawn(mix) for task in update]
    turns = flat[:: 4 if scheme == "batch" else 1]
    assert turns == [list(SMALL)[i % 3] for i in range(len(turns))]


def test_shuffled_takes_every_batch_once_a_pass():
    """An epoch need not be a pass: passes are counted over the whole run."""
    sizes, batches = {"a": 100, "b": 321, "c": 5}, {"a": 4, "b": 11, "c": 1}
    mix = mixture(SAMPLINGS["shuffled"], sizes, micro_batches=5)
    assert mix.steps == math.ceil(16 / 5)
    flat = [task for update in drawn(mix) for task in update]
    passes = [flat[start : start + 16] for start in range(0, len(flat), 16)]
    assert len(passes) == 5
    for one in passes[:-1]:
        assert Counter(one) == batches
    assert passes[0] != passes[1]
    assert mix.shares(0) == pytest.approx({task: count / 16 for task, count in batches.items()})


def test_shuffled_batches_repeat_for_a_whole_update():
    mix = mixture(SAMPLINGS["shuffled"], {"a": 100, "b": 321, "c": 5}, micro_batches=4, scheme="batch", steps=16)
    for epoch in range(3):
        updates = list(mix.updates(epoch))
        assert Counter(update[0] for update in updates) == {"a": 4, "b": 11, "c": 1}
        assert all(len(set(update)) == 1 for update in updates)


@cases("name", SEQUENTIAL)
def test_one_after_the_other_reads_each_task_in_one_piece(name):
    mix = mixture(SEQUENTIAL[name], scheme="dataset", steps=33, micro_batches=2)
    order = [update[0] for update in drawn(mix)]
    assert len(order) == 4 * 33
    pieces = [task for i, task in enumerate(order) if i == 0 or order[i - 1] != task]
    assert pieces == [task for task in SMALL if task in pieces]
    mixed = mixture(SEQUENTIAL[name], steps=33, micro_batches=2)
    found = Counter(order)
    for one in mixed.expected():  # as many as the mixed run expects, rounded up or down
        assert abs(found[one.task] - one.micro_batches / 2) < 1
    for epoch in range(4):
        here = Counter(update[0] for update in mix.updates(epoch))
        assert mix.shares(epoch) == {task: here[task] / 33 for task in SMALL}
    assert {one.task: one.micro_batches for one in mix.expected()} == pytest.approx(
        {task: 2 * found[task] for task in SMALL}
    )


@pytest.mark.parametrize(
    ("shares", "total", "wanted"),
    [
        ([0.5, 0.3, 0.2], 10, [5, 3, 2]),
        ([1 / 3, 1 / 3, 1 / 3], 4, [2, 1, 1]),
        ([0.48, 0.26, 0.26], 2, [1, 1, 0]),
        ([0.7, 0.0, 0.3], 3, [2, 0, 1]),
    ],
    ids=["exact", "ties go to the first", "remainders", "none"],
)
def test_apportioned_by_largest_remainders(shares, total, wanted):
    assert apportioned(np.array(shares), total).tolist() == wanted


@cases("seed", range(20))
def test_apportioned_sums_to_the_total_and_stays_within_one(seed):
    chance = np.random.default_rng(seed)
    shares, total = chance.dirichlet(np.full(30, 0.2)), int(chance.integers(1, 1000))
    found = apportioned(shares, total)
    assert found.sum() == total
    assert (np.abs(found - shares * total) < 1).all()


@pytest.mark.parametrize(("micro_batches", "steps"), [(1, 2451), (8, 307), (64, 39)])
def test_an_epoch_is_by_default_as_long_as_reading_everything_once(micro_batches, steps):
    assert mixture(micro_batches=micro_batches).steps == steps
    assert mixture(micro_batches=micro_batches, scheme="dataset").steps == steps
    assert mixture(micro_batches=micro_batches, steps=7).steps == 7


@pytest.mark.parametrize("micro_batches", [1, 8])
@pytest.mark.parametrize("name", ["proportional", "shuffled"])
def test_under_a_budget_an_epoch_has_every_batch_of_a_pass(name, micro_batches):
    """It had as many updates as `batch` alone would give, a quarter of a pass here."""
    sizes, in_a_pass = {"short": 320, "long": 160}, {"short": 10, "long": 50}
    mix = mixture(SAMPLINGS[name], sizes, in_a_pass=in_a_pass, tokens=100, micro_batches=micro_batches)
    assert mix.steps == math.ceil(60 / micro_batches)
    by_task = {one.task: one for one in mix.expected()}
    for task, batches in in_a_pass.items():
        assert by_task[task].passes == pytest.approx(by_task[task].micro_batches / batches)
    if name == "shuffled" and micro_batches == 1:
        assert [one.passes for one in by_task.values()] == pytest.approx([4.0, 4.0])
        assert [counts_of(mix.updates(epoch)) for epoch in range(4)] == [in_a_pass] * 4


def test_under_a_budget_a_cap_counts_its_share_of_a_pass():
    sizes, in_a_pass = {"short": 320, "long": 160}, {"short": 10, "long": 50}
    mix = mixture(Sampling(cap=100), sizes, in_a_pass=in_a_pass, tokens=100, micro_batches=1)
    assert mix.steps == math.ceil(10 * 100 / 320) + math.ceil(50 * 100 / 160)
    assert mixture(sizes=sizes, in_a_pass=in_a_pass, tokens=100, steps=7).steps == 7


def test_lines_say_what_is_expected():
    first, *rest = mixture(steps=100, micro_batches=8).lines()
    assert first == "4 epochs x 100 updates x 8 micro-batches of 32 examples; expected for each task:"
    assert [line.split()[0] for line in rest] == list(SMALL)
    share = 2490 / sum(SMALL.values())
    words = rest[0].split()
    assert words[1:3] == ["2490", "examples"]
    assert words[3] == f"{3200 * share:.1f}"
    assert words[5] == f"{8 * share:.2f}"
    assert words[8] == f"{3200 * share / 78:.2f}"


def test_the_table_in_the_docs_is_what_is_printed():
    page = (Path(__file__).parents[2] / "docs" / "guides" / "training-together.md").read_text(encoding="utf-8")
    assert "\n".join(["```text", *mixture(micro_batches=8).lines(), "```"]) in page


@pytest.mark.parametrize(
    ("sizes", "sampling", "said"),
    [
        ({}, Sampling(), "no task"),
        ({"a": 3, "b": 0}, Sampling(), "none for b"),
        ({"a": 3}, Sampling(kind="schedule", schedule=({"a": 1.0}, {"c": 2.0})), "names tasks"),
        ({"a": 3}, Sampling(kind="schedule", schedule=({"a": 1.0},) * 5), "more epochs .* at most 4"),
    ],
    ids=["no task", "no examples", "unknown task", "schedule beyond the last epoch"],
)
def test_what_cannot_be_mixed_is_refused(sizes, sampling, said):
    with pytest.raises(ConfigError, match=said):
        mixture(sampling, sizes)
