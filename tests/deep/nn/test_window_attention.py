"""Attention over long rows, with a window in blocks and without one in pieces, against the same over whole rows."""

import itertools

import numpy as np
import pytest
import torch

from polyhead.deep.nn import attention
from polyhead.deep.nn.attention import AttentionKeys, attend
from polyhead.deep.nn.positions import RowPlaces
from polyhead.deep.nn.trunk import Trunk
from polyhead.encoder import window_blocks
from polyhead.testing import tiny_trunk

LAYER = Trunk.from_data(tiny_trunk(family="modernbert", max_tokens=300)).layers[1]
WINDOW = 4


def masks(size):
    """A row and a shorter one; and rows of two texts each, with padding."""
    plain = torch.ones(2, size, dtype=torch.bool)
    plain[1, size - 5 :] = False
    owner = torch.zeros(2, size, dtype=torch.int64)
    owner[0, size // 3 :], owner[1, size // 2 :], owner[1, size - 5 :] = 1, 2, -1
    return plain, owner[:, :, None] == owner[:, None]


def computed(hidden, mask, before, monkeypatch, block):
    """The layer's states at real tokens and their gradient."""
    monkeypatch.setattr(window_blocks, "BLOCK", block)
    monkeypatch.setattr(window_blocks, "WORTH", 1)
    places = RowPlaces(hidden.shape[1], before=before)
    assert (places.blocks(WINDOW) is None) == (hidden.shape[1] - before < block + 2 * WINDOW)
    out = LAYER(hidden, mask, places=places)
    out = out if mask.dim() == 3 else out * mask[..., None]
    return out, torch.autograd.grad((out**2).sum(), hidden)[0]


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("before", [0, 3])
def test_blocks_give_the_states_and_gradients_of_whole_rows(before, learns, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    LAYER.train(learns)
    for size, block in itertools.product((17, 40, 41, 63, 100), (WINDOW, 7, 11)):
        hidden = torch.randn(2, size, 16, generator=generator, requires_grad=True)
        for mask in masks(size):
            (out, gradient), (whole, expected) = (
                computed(hidden, mask, before, monkeypatch, each) for each in (block, 1000)
            )
            torch.testing.assert_close(out, whole, atol=2e-5, rtol=1e-4)
            torch.testing.assert_close(gradient, expected, atol=3e-4, rtol=1e-3)
    LAYER.eval()


def test_a_state_depends_on_tokens_in_its_window_alone():
    """A row of the size from which on rows are cut: what moves when a token does."""
    size = 4 * window_blocks.BLOCK + 3
    places = RowPlaces(size)
    assert places.blocks(WINDOW) is not None
    hidden = torch.randn(1, size, 16, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(1, size, dtype=torch.bool)
    with torch.inference_mode():
        before = LAYER(hidden, mask, places=places)
        for token in (0, 1, window_blocks.BLOCK - 1, window_blocks.BLOCK, 2 * window_blocks.BLOCK + 5, size - 1):
            changed = hidden.clone()
            changed[0, token] = torch.arange(16.0)
            moved = (LAYER(changed, mask, places=places) - before).abs().amax(dim=-1)[0] > 0
            at = np.arange(size)
            assert moved.tolist() == (np.abs(at - token) <= WINDOW).tolist()


def test_rows_are_cut_where_it_pays():
    assert window_blocks.block_of(511, 64) == 511 and window_blocks.block_of(512, 64) == 128
    for positions, window in itertools.product((512, 577, 1000, 4095, 8192), (1, 64, 100)):
        block = window_blocks.block_of(positions, window)
        blocks = -(-positions // block)
        assert block >= max(window_blocks.BLOCK, window) and 0 <= blocks * block - positions < block
        assert blocks * block - positions <= blocks  # little is filled up


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("is_biased", [True, False])
def test_pieces_of_long_rows_give_what_whole_rows_give(is_biased, is_packed, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 3, 70, 8, generator=generator, requires_grad=True) for _ in range(3))
    seen = torch.rand(2, 1, 70 if is_packed else 1, 70, generator=generator) > 0.3
    bias = torch.randn(1, 3, 70, 70, generator=generator) if is_biased else None
    found = []
    for long in (1000, 1):
        monkeypatch.setattr(attention, "LONG", long)
        monkeypatch.setattr(attention, "PIECE", 16)
        out = attend(query, AttentionKeys(key=key, value=value), seen, dropout=0.0, learns=True, bias=bias)
        found.append((out, *torch.autograd.grad((out**2).sum(), (query, key, value))))
    for whole, pieces in zip(*found, strict=True):
        torch.testing.assert_close(pieces, whole, atol=1e-4, rtol=1e-4)


def test_pieces_drop_the_same_when_they_are_computed_again(monkeypatch):
    """The sum of what is read is linear in the values: its gradient times these is itself, with the same dropout."""
    monkeypatch.setattr(attention, "LONG", 1)
    monkeypatch.setattr(attention, "PIECE", 16)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 3, 70, 8, generator=generator, requires_grad=True) for _ in range(3))
    seen = torch.ones(2, 1, 1, 70, dtype=torch.bool)
    out = attend(query, AttentionKeys(key=key, value=value), seen, dropout=0.5, learns=True)
    (gradient,) = torch.autograd.grad(out.sum(), value)
    torch.testing.assert_close((gradient * value).sum(), out.sum(), atol=1e-3, rtol=1e-4)
