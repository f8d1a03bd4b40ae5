"""Dropout drops the share that it should, independently, and its gradient is that of what it kept."""

import math

import pytest
import torch

from polyhead.nn.layer import dropped


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_share_is_dropped_and_the_rest_is_scaled_as_torch_does(share, dtype):
    """Within five standard deviations of a binomial; what is kept is scaled as torch scales it."""
    torch.manual_seed(1)
    count = 1_000_003  # no multiple of four
    found = dropped(torch.ones(count, dtype=dtype), share)
    expected = torch.nn.functional.dropout(torch.ones(1000, dtype=dtype), share).max()
    assert found.dtype == dtype and float(found.max()) == pytest.approx(float(expected), rel=1e-4)
    assert abs((found == 0).sum() - share * count) < 5 * math.sqrt(count * share * (1 - share))


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
    found = dropped(values, 0.4)
    found.sum().backward()
    torch.testing.assert_close(values.grad, (found != 0) / 0.6, rtol=1e-4, atol=0)
    torch.testing.assert_close(found, values * values.grad)


def test_the_same_seed_drops_the_same_and_another_something_else():
    drawn = []
    for seed in (4, 4, 5):
        torch.manual_seed(seed)
        drawn.append(dropped(torch.ones(64), 0.5))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_nothing_is_dropped_or_drawn_outside_training_or_without_a_share():
    values, before = torch.randn(4), torch.random.get_rng_state()
    assert torch.equal(dropped(values, 0.5, False), values) and torch.equal(dropped(values, 0.0), values)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not dropped(torch.ones(1000), 1 - 1e-9).count_nonzero()
    assert dropped(torch.ones(0, 3), 0.5).shape == (0, 3)
