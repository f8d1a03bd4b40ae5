import math

import pytest
import torch
from torch import nn

from polyhead.deep.nn.heads import AttentionPooler, LearnedMix
from polyhead.errors import PlanError

WIDTH, HEADS = 12, 3


@pytest.fixture
def stored():
    return torch.randn(4, 6, 5, WIDTH, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def values(stored):
    return stored[:, :, -1].contiguous()


@pytest.fixture
def mask():
    return torch.arange(6) < torch.tensor([[6], [2], [1], [4]])


@pytest.fixture
def attention():
    """With biases and a query large enough to matter."""
    generator = torch.Generator().manual_seed(2)
    made = AttentionPooler(WIDTH, HEADS, generator=generator)
    with torch.no_grad():
        for name, value in made.named_parameters():
            if value.dim() == 1:
                value.copy_(torch.randn(WIDTH, generator=generator) * (3 if name == "query" else 0.5))
    return made


def unfolded(pooler, values, mask):
    """The paper's own order of operations: keys and values of every token, in plain torch."""
    rows, tokens, width = values.shape
    split = (rows, tokens, pooler.heads, -1)
    query = pooler.inner_query(pooler.query).view(pooler.heads, -1)
    keys, given = pooler.key(values).view(split), pooler.value(values).view(split)
    scores = torch.einsum("hk,rthk->rht", query, keys) / math.sqrt(width // pooler.heads)
    weights = torch.softmax(scores.masked_fill(~mask[:, None], -math.inf), dim=-1)
    return pooler.output(torch.einsum("rht,rthk->rhk", weights, given).reshape(rows, width))


def test_learned_mix_starts_as_the_mean(stored):
    torch.testing.assert_close(LearnedMix(5)(stored), stored.mean(dim=2))


def test_learned_mix_with_one_huge_weight_is_that_layer(stored):
    mix = LearnedMix(5)
    with torch.no_grad():
        mix.weights[2] = 1000
        mix.scale.fill_(2)
    torch.testing.assert_close(mix(stored), 2 * stored[:, :, 2])


def test_learned_mix_has_one_weight_a_layer_and_a_scale():
    assert {name: tuple(value.shape) for name, value in LearnedMix(24).state_dict().items()} == {
        "weights": (24,),
        "scale": (),
    }


def test_attention_equals_torchs_multi_head_attention(attention, values, mask):
    """The reference: torch.nn.MultiheadAttention with our arrays, one query a row."""
    other = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    parts = [attention.inner_query, attention.key, attention.value]
    with torch.no_grad():
        other.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        other.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        other.out_proj.load_state_dict(attention.output.state_dict())
    query = attention.query.expand(len(values), 1, WIDTH)
    expected, _ = other(query, values, values, key_padding_mask=~mask)
    torch.testing.assert_close(attention(values, mask), expected[:, 0], atol=1e-5, rtol=0)


def test_attention_computed_folded_equals_unfolded_in_value_and_gradients(attention, values, mask):
    """In float64, where only the algebra differs. Unfolded, the key bias gets rounding noise as gradient."""
    attention, values = attention.double(), values.double().requires_grad_(True)
    weights = torch.randn(4, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    found = []
    for run in (attention, lambda v, m: unfolded(attention, v, m)):
        attention.zero_grad()
        values.grad = None
        out = run(values, mask)
        (out * weights).sum().backward()
        gradients = {name: p.grad for name, p in attention.named_parameters()} | {"values": values.grad}
        found.append(
            (out.detach(), {n: torch.zeros(WIDTH).double() if g is None else g.clone() for n, g in gradients.items()})
        )
    (value, gradients), (expected, reference) = found
    torch.testing.assert_close(value, expected, atol=1e-12, rtol=0)
    assert len(gradients) == 10
    for name in gradients:
        torch.testing.assert_close(gradients[name], reference[name], atol=1e-12, rtol=0, msg=name)
    assert gradients["query"].abs().max() > 1e-3


def test_attention_without_a_query_is_an_affine_map_of_the_mean(attention, values, mask):
    with torch.no_grad():
        attention.query.zero_()
        attention.inner_query.bias.zero_()
    expected = attention.output(attention.value((values * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)))
    torch.testing.assert_close(attention(values, mask), expected, atol=1e-5, rtol=0)


def test_key_bias_has_no_effect(attention, values, mask):
    before = attention(values, mask)
    with torch.no_grad():
        attention.key.bias.add_(10)
    assert torch.equal(attention(values, mask), before)


def test_attention_parameters_are_the_papers_count():
    """Du et al. 2020: 4,199,424 at width 1024."""
    assert sum(p.numel() for p in AttentionPooler(1024, 16).parameters()) == 4_199_424


def test_attention_leaves_padding_out(attention, values, mask):
    changed = torch.where(mask[:, :, None], values, values + 7)
    assert torch.equal(attention(changed, mask), attention(values, mask))
    torch.testing.assert_close(attention(values[1:2, :2], mask[1:2, :2])[0], attention(values, mask)[1])


def test_attention_of_a_row_without_tokens_is_finite_in_value_and_gradient(attention, values, mask):
    mask[1] = False
    out = attention(values, mask)
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert all(torch.isfinite(p.grad).all() for p in attention.parameters() if p.grad is not None)


def test_attention_draws_from_its_generator_only():
    before = torch.random.get_rng_state()
    first, again, other = (AttentionPooler(WIDTH, HEADS, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first.query, again.query)
    assert torch.equal(first.output.weight, again.output.weight)
    assert not torch.equal(first.query, other.query)
    wide = AttentionPooler(512, 8, generator=torch.Generator().manual_seed(0))
    assert 0.018 < wide.query.std() < 0.022
    limit = math.sqrt(6 / 1024)  # Xavier-uniform: +-sqrt(6 / (inputs + outputs))
    assert 0.99 * limit < wide.key.weight.abs().max() <= limit
    assert not any(part.bias.any() for part in (wide.inner_query, wide.key, wide.value, wide.output))


@pytest.mark.parametrize("heads", [0, 5])
def test_width_must_divide_into_heads(heads):
    with pytest.raises(PlanError, match="heads"):
        AttentionPooler(WIDTH, heads)
