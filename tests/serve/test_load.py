"""The load of the last minute, counted by hand."""

import pytest

from polyhead.engine.queue import BatchFacts
from polyhead.serve.metrics import LAST_SECONDS, Load


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def facts(*waited, seconds, tickets=1):
    inputs = len(waited)
    return BatchFacts(
        inputs=inputs, tickets=tickets, tasks=1, tokens=9, passes=inputs, layers=6, seconds=seconds, waited=waited
    )


def test_a_second_is_counted_when_it_is_over():
    clock, waiting = Clock(), [0]
    load = Load(lambda: waiting[0], clock=clock)
    waiting[0] = 3
    load.batch(facts(0.010, 0.030, seconds=0.020, tickets=2))
    waiting[0] = 1
    load.batch(facts(0.000, seconds=0.080))
    assert sum(load.answer().requests) == 0
    clock.now += 1
    answer = load.answer()
    assert (answer.requests[-1], answer.inputs[-1], answer.waiting[-1], answer.now) == (3, 3, 3, 1)
    assert answer.milliseconds[-1] == pytest.approx((30 + 50 + 80) / 3, abs=0.01)
    assert answer.slowest[-1] == 80


def test_seconds_without_answers_have_no_time_and_old_ones_are_gone():
    clock = Clock()
    load = Load(lambda: 0, clock=clock)
    load.batch(facts(0.0, seconds=0.004))
    clock.now += 2
    answer = load.answer()
    assert answer.milliseconds[-2:] == [4.0, None] and answer.requests[-2:] == [1, 0]
    assert {len(getattr(answer, name)) for name in ("requests", "inputs", "waiting", "milliseconds", "slowest")} == {
        LAST_SECONDS
    }
    clock.now += LAST_SECONDS
    assert load.answer().requests == [0] * LAST_SECONDS
    clock.now += 1000
    load.batch(facts(0.0, seconds=0.004))
    clock.now += 1
    assert sum(load.answer().requests) == 1
