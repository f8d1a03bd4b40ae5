"""The simulated queue gives what queueing theory says of queues that have a formula."""

import math

import numpy as np
import pytest

from benchmarks.ideal_queue import BatchCost, latencies
from benchmarks.open_loop import poisson

CALLS = 100_000


def _mean_wait(rate, seconds, *, most, tokens=None):
    moments = list(poisson(rate, CALLS / rate, seed=1))
    tokens = [1] * len(moments) if tokens is None else tokens[: len(moments)]
    moments = moments[: len(tokens)]
    own = [seconds(1, n, False) for n in tokens]
    return float(np.mean(latencies(moments, tokens, seconds, most=most)) - np.mean(own))


@pytest.mark.parametrize("load", [0.3, 0.5, 0.8])
def test_one_text_a_batch_waits_as_the_queue_m_d_1(load):
    """Mean wait of M/D/1: rho D / (2 (1 - rho))."""
    assert _mean_wait(load, lambda *batch: 1.0, most=1) == pytest.approx(load / (2 * (1 - load)), rel=0.05)


def test_texts_of_unlike_length_wait_as_pollaczek_and_khinchine_say():
    """Mean wait of M/G/1: rate E[S^2] / (2 (1 - rho))."""
    tokens = np.random.default_rng(0).integers(1, 20, CALLS).tolist()
    rate, second = 0.6 / np.mean(tokens), np.mean(np.square(tokens, dtype=float))
    waited = _mean_wait(rate, lambda texts, n, idle: float(n), most=1, tokens=tokens)
    assert waited == pytest.approx(rate * second / (2 * 0.4), rel=0.05)


@pytest.mark.parametrize("rate", [0.2, 1.0, 3.0])
def test_batches_without_a_limit_and_of_one_length_wait_half_of_it_while_the_engine_is_busy(rate):
    """A busy time has exp(rate D) batches on average, an idle one 1 / rate seconds; who comes meanwhile waits D / 2."""
    busy = math.exp(rate)
    expected = 0.5 * busy / (busy + 1 / rate)
    assert _mean_wait(rate, lambda *batch: 1.0, most=10**9) == pytest.approx(expected, rel=0.05)


def test_batches_are_what_waits_in_order_and_no_larger_than_the_most():
    seen = []

    def seconds(texts, tokens, is_idle):
        seen.append((texts, tokens, is_idle))
        return 1.0

    waited = latencies([0.0, 0.1, 0.2, 0.3, 5.0], [1, 2, 3, 4, 5], seconds, most=2)
    assert seen == [(1, 1, True), (2, 5, False), (1, 4, False), (1, 5, True)]
    assert waited == pytest.approx([1.0, 1.9, 1.8, 2.7, 1.0])


def test_costs_of_batches_are_those_of_the_line_they_were_drawn_from():
    def row(texts, tokens, cold):
        return {"texts": texts, "tokens": tokens, "cold": cold, "seconds": 3 + 2 * texts + 0.1 * tokens + 5 * cold}

    lengths = (8, 10, 12)
    cost = BatchCost.of([row(n, n * each, cold) for n in (1, 4, 16) for each in lengths for cold in (False, True)])
    for texts, tokens, cold in ((1, 11, False), (2, 20, True), (16, 170, False)):
        assert cost.seconds(texts, tokens, cold) == pytest.approx(row(texts, tokens, cold)["seconds"])
