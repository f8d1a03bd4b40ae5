"""Gradients of tables are what torch gives without, in one array that stays."""

import pytest
import torch
from torch import nn

from polyhead.deep.loop.devices import Devices
from polyhead.deep.loop.feed import TrainingBatch
from polyhead.deep.loop.optimizer import EmbeddingTables


def module(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(40, 6), nn.Linear(6, 3))


def ids(*shape, seed=1):
    return torch.randint(0, 40, shape, generator=torch.Generator().manual_seed(seed))


def backward(model, *several):
    for one in several:
        model(one).square().sum().backward()


def test_one_backward_pass_gives_the_same_bits_and_several_the_same_sums():
    plain, ours = module(), module()
    tables = EmbeddingTables(ours)
    for update in range(3):
        for count in (1, 3):
            several = [ids(4, 5, seed=10 * update + n) for n in range(count)]
            plain.zero_grad(set_to_none=True)
            ours.zero_grad(set_to_none=True)
            backward(plain, *several)
            with tables.learning():
                backward(ours, *several)
            found, expected = ours[0].weight.grad, plain[0].weight.grad
            assert not found.is_sparse and torch.equal(ours[1].weight.grad, plain[1].weight.grad)
            if count == 1:
                assert torch.equal(found, expected)
            else:
                torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_the_array_stays_and_what_was_changed_in_it_is_gone_at_the_next_update():
    """Clipping scales gradients where they lie."""
    ours = module()
    tables = EmbeddingTables(ours)
    with tables.learning():
        backward(ours, ids(9))
    first = ours[0].weight.grad
    first.mul_(0.5)
    ours.zero_grad(set_to_none=True)
    with tables.learning():
        backward(ours, ids(9, seed=2))
    expected = module()
    backward(expected, ids(9, seed=2))
    assert ours[0].weight.grad is first and torch.equal(first, expected[0].weight.grad)


def test_what_is_not_learned_has_no_gradient_and_what_is_held_is_added_to():
    ours, plain = module(), module()
    tables = EmbeddingTables(ours)
    ours[0].weight.requires_grad_(False)
    with tables.learning():
        backward(ours, ids(9))
    assert ours[0].weight.grad is None
    ours[0].weight.requires_grad_(True)
    for seed in (2, 3):  # no zero_grad between
        with tables.learning():
            backward(ours, ids(9, seed=seed))
        backward(plain, ids(9, seed=seed))
        assert torch.equal(ours[0].weight.grad, plain[0].weight.grad)
    ours.zero_grad(set_to_none=True)
    with tables.learning():
        backward(ours, ids(9, seed=4))
    plain.zero_grad(set_to_none=True)
    backward(plain, ids(9, seed=4))
    assert torch.equal(ours[0].weight.grad, plain[0].weight.grad) and not ours[0].sparse


def test_a_table_that_is_used_as_a_matrix_too_gets_both_gradients():
    """As the output layer of a decoder is its table."""
    both = [module(), module()]
    for model, tables in zip(both, (EmbeddingTables(both[0]), EmbeddingTables(nn.Module())), strict=True):
        with tables.learning():
            (model[0](ids(9)) @ model[0].weight.T).square().sum().backward()
    torch.testing.assert_close(both[0][0].weight.grad, both[1][0].weight.grad)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_processor_learns_with_it(micro_batches):
    model, plain, held = module(), module(), []
    devices = Devices(model, lambda task, batch: model(*batch.arguments).square().mean())
    for seed in (1, 2):
        batches = [
            TrainingBatch(arguments=(ids(7, seed=10 * seed + n),), targets=torch.zeros(7), members=None)
            for n in range(micro_batches)
        ]
        model.zero_grad(set_to_none=True)
        devices.learn([("", batch) for batch in batches])
        plain.zero_grad(set_to_none=True)
        for batch in batches:
            (plain(*batch.arguments).square().mean() / micro_batches).backward()
        torch.testing.assert_close(model[0].weight.grad, plain[0].weight.grad)
        held.append(model[0].weight.grad)
    assert held[0] is held[1]
