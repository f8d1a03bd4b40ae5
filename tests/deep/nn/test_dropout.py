"""Dropout drops the share that it should, independently, and its gradient is that of what it kept."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from polyhead.deep.nn.dropout import dropped, generator, own_generator, seed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_share_is_dropped_and_the_rest_is_scaled_as_torch_does(share, dtype):
    """Within five standard deviations of a binomial; what is kept is scaled as torch scales it."""
    torch.manual_seed(1)
    count = 1_000_003  # no multiple of four
    kept = dropped(torch.ones(count, dtype=dtype), share)
    expected = torch.nn.functional.dropout(torch.ones(1000, dtype=dtype), share).max()
    assert kept.dtype == dtype and float(kept.max()) == pytest.approx(float(expected), rel=1e-4)
    assert abs((kept == 0).sum() - share * count) < 5 * math.sqrt(count * share * (1 - share))


def test_neighbours_are_dropped_independently():
    """Of pairs at any small distance both are dropped at the square of the share: four numbers come from one draw."""
    torch.manual_seed(2)
    gone = dropped(torch.ones(400_000), 0.3) == 0
    for apart in (1, 2, 3, 4, 5):
        both = (gone[apart:] & gone[:-apart]).float().mean()
        assert both == pytest.approx(0.09, abs=5 * math.sqrt(0.09 * 0.91 / 400_000))


def test_the_gradient_is_that_of_what_was_kept():
    torch.manual_seed(3)
    values = torch.randn(5, 7, 3, requires_grad=True)
    kept = dropped(values, 0.4)
    kept.sum().backward()
    torch.testing.assert_close(values.grad, (kept != 0) / 0.6, rtol=1e-4, atol=0)
    torch.testing.assert_close(kept, values * values.grad)


def test_the_same_seed_drops_the_same_and_another_something_else():
    drawn = []
    for number in (4, 4, 5):
        torch.manual_seed(number)
        drawn.append(dropped(torch.ones(64), 0.5))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_nothing_is_dropped_or_drawn_outside_training_or_without_a_share():
    values, before = torch.randn(4), torch.random.get_rng_state()
    assert torch.equal(dropped(values, 0.5, False), values) and torch.equal(dropped(values, 0.0), values)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not dropped(torch.ones(1000), 1 - 1e-9).count_nonzero()
    assert dropped(torch.ones(0, 3), 0.5).shape == (0, 3)


def test_a_thread_with_a_generator_of_its_own_draws_what_torch_would_and_leaves_torchs_alone():
    """Same seed, same numbers as from torch's generator, several draws one after another."""
    values = torch.randn(31, 7)
    torch.manual_seed(6)
    expected = [dropped(values, 0.3) for _ in range(4)]
    before = torch.random.get_rng_state()
    with own_generator():
        seed(6)
        assert torch.equal(generator().get_state(), torch.Generator().manual_seed(6).get_state())
        own = [dropped(values, 0.3) for _ in range(4)]
    assert all(map(torch.equal, own, expected))
    assert torch.equal(torch.random.get_rng_state(), before)
    seed(6)  # outside it is torch's again
    assert torch.equal(dropped(values, 0.3), expected[0])


def test_threads_with_generators_of_their_own_draw_as_if_alone():
    values = torch.randn(64, 64)

    def drawn(number):
        with own_generator():
            seed(number)
            return [dropped(values, 0.5) for _ in range(50)]

    alone = [drawn(number) for number in range(8)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(drawn, range(8)))
    assert torch.equal(torch.stack(sum(alone, [])), torch.stack(sum(together, [])))
