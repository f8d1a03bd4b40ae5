import math

import pytest
import torch
from torch import nn

from polyhead.deep.nn.attention import visible
from polyhead.deep.nn.layer import Layer, LayerDelta, fill_normal
from polyhead.encoder.shape import LayerForm, layer_arrays
from polyhead.errors import PlanError
from support.cases import cases


def filled(layer, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for value in layer.parameters():
        nn.init.normal_(value, std=0.3, generator=generator)
    return layer.eval()


class Times(LayerDelta):
    """The layer's input some times over."""

    def __init__(self, times):
        super().__init__()
        self.times = times

    def term(self, hidden, mask):
        return self.times * hidden


@pytest.fixture
def layer():
    return filled(Layer(LayerForm(width=8, heads=2, feed_forward=12)))


@pytest.fixture
def hidden():
    return torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def mask():
    return torch.arange(5) < torch.tensor([[5], [2], [4]])


def test_layer_equals_torchs_own_post_norm_layer(layer, hidden, mask):
    """The reference is torch.nn.TransformerEncoderLayer with the same weights."""
    other = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, activation="gelu", layer_norm_eps=1e-12, batch_first=True)
    ours = layer.state_dict()
    inner = [f"attention.{name}" for name in ("query", "key", "value")]
    other.load_state_dict(
        {
            "self_attn.in_proj_weight": torch.cat([ours[f"{name}.weight"] for name in inner]),
            "self_attn.in_proj_bias": torch.cat([ours[f"{name}.bias"] for name in inner]),
            **{f"self_attn.out_proj.{leaf}": ours[f"attention.output.{leaf}"] for leaf in ("weight", "bias")},
            **{f"norm1.{leaf}": ours[f"attention.norm.{leaf}"] for leaf in ("weight", "bias")},
            **{f"linear1.{leaf}": ours[f"feed_forward.inner.{leaf}"] for leaf in ("weight", "bias")},
            **{f"linear2.{leaf}": ours[f"feed_forward.outer.{leaf}"] for leaf in ("weight", "bias")},
            **{f"norm2.{leaf}": ours[f"feed_forward.norm.{leaf}"] for leaf in ("weight", "bias")},
        }
    )
    expected = other.train()(hidden, src_key_padding_mask=~mask)  # train: the plain path, not the fused one
    torch.testing.assert_close(layer(hidden, mask)[mask], expected[mask], atol=1e-5, rtol=0)


@pytest.mark.parametrize("first", [False, True])
def test_training_computes_what_serving_does_with_equal_gradients(layer, hidden, mask, first):
    """The reference is torch's own attention, which `eval` uses; every token's and weight's gradient counts."""
    found = []
    for training in (True, False):
        inputs = hidden.clone().requires_grad_()
        out = layer.train(training)(inputs, mask, first=first)
        real = out if first else out[mask]
        gradients = torch.autograd.grad(real.square().sum(), (inputs, *layer.attention.parameters()))
        found.append((real, *gradients))
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-5)


def test_array_names_are_those_of_the_architecture(layer):
    expected = dict(layer_arrays("x", layer.form))
    assert {f"x.{name}": tuple(value.shape) for name, value in layer.state_dict().items()} == expected


def test_layer_without_feed_forward_is_the_attention_half():
    half = Layer(LayerForm(width=8, heads=2, feed_forward=0))
    assert {f"x.{name}" for name in half.state_dict()} == {name for name, _ in layer_arrays("x", half.form)}


@pytest.mark.parametrize("shape", [{"feed_forward": 0}, {"feed_forward": 12, "residual": False}])
def test_layer_without_a_second_norm_refuses_a_deltas_term(shape, hidden, mask):
    with pytest.raises(PlanError, match="second norm"):
        Layer(LayerForm(width=8, heads=2, **shape))(hidden, mask, Times(1))


@cases("feed_forward", [12, 0])
@cases("attention", [True, False])
@cases("residual", [True, False])
def test_array_names_are_those_of_the_halves_that_are_there(feed_forward, attention, residual):
    half = {"attention": attention, "residual": residual}
    made = Layer(LayerForm(width=8, heads=2, feed_forward=feed_forward, **half))
    expected = dict(layer_arrays("x", made.form))
    assert {f"x.{name}": tuple(value.shape) for name, value in made.state_dict().items()} == expected


def test_layer_without_attention_is_the_feed_forward_half(layer, hidden, mask):
    half = Layer(LayerForm(width=8, heads=2, feed_forward=12, attention=False))
    half.load_state_dict({n: v for n, v in layer.state_dict().items() if n.startswith("feed_forward")})
    inner = half.feed_forward.inner(hidden)
    exact = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
    expected = half.feed_forward.norm(hidden + half.feed_forward.outer(exact))
    torch.testing.assert_close(half(hidden, mask), expected, atol=1e-6, rtol=0)
    alone = half(hidden, mask, first=True)
    torch.testing.assert_close(alone, half(hidden, mask)[:, :1], atol=1e-6, rtol=0)


def test_layer_without_residual_is_what_its_halves_give(layer, hidden, mask):
    """The reference is torch.nn.MultiheadAttention with the same weights, then the two dense maps."""
    bare = Layer(LayerForm(width=8, heads=2, feed_forward=12, residual=False)).eval()
    ours = {n: v for n, v in layer.state_dict().items() if ".norm." not in n}
    bare.load_state_dict(ours)
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    parts = [f"attention.{name}" for name in ("query", "key", "value")]
    attention.load_state_dict({
        **{f"in_proj_{leaf}": torch.cat([ours[f"{part}.{leaf}"] for part in parts]) for leaf in ("weight", "bias")},
        **{f"out_proj.{leaf}": ours[f"attention.output.{leaf}"] for leaf in ("weight", "bias")},
    })  # fmt: skip
    mixed = attention(hidden, hidden, hidden, key_padding_mask=~mask)[0]
    inner = bare.feed_forward.inner(mixed)
    expected = bare.feed_forward.outer(inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2))))
    torch.testing.assert_close(bare(hidden, mask)[mask], expected[mask], atol=1e-5, rtol=0)
    alone = Layer(LayerForm(width=8, heads=2, feed_forward=0, residual=False)).eval()
    alone.load_state_dict({n: v for n, v in ours.items() if n.startswith("attention")})
    torch.testing.assert_close(alone(hidden, mask)[mask], mixed[mask], atol=1e-5, rtol=0)


def test_zero_delta_changes_no_bit(layer, hidden, mask):
    assert torch.equal(layer(hidden, mask, Times(0)), layer(hidden, mask))


def test_delta_reads_the_layers_input_and_enters_before_the_second_norm(layer, hidden, mask):
    """Worked by hand: undo nothing, rebuild LN2(a + FFN(a) + 2 h) from the layer's own halves."""
    attended = layer.attention(hidden, mask)
    inner = layer.feed_forward.inner(attended)
    exact = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
    total = attended + layer.feed_forward.outer(exact) + 2 * hidden
    expected = layer.feed_forward.norm(total)
    torch.testing.assert_close(layer(hidden, mask, Times(2)), expected, atol=1e-5, rtol=0)


def test_fully_padded_row_is_finite_and_leaves_others_alone(layer, hidden, mask):
    padded = mask.clone()
    padded[1] = False
    out = layer(hidden, padded)
    assert torch.isfinite(out).all()
    torch.testing.assert_close(out[[0, 2]], layer(hidden, mask)[[0, 2]])


def test_mask_of_who_sees_whom_equals_separate_rows(layer, hidden):
    """Two texts packed into one row, each seeing itself only, as if each had its own row."""
    packed = torch.zeros(1, 5, 5, dtype=torch.bool)
    packed[:, :2, :2] = packed[:, 2:, 2:] = True
    every = torch.ones(1, 5, dtype=torch.bool)
    out = layer(hidden[:1], packed)
    alone = torch.cat([layer(hidden[:1, :2], every[:, :2]), layer(hidden[:1, 2:], every[:, 2:])], dim=1)
    torch.testing.assert_close(out, alone, atol=1e-5, rtol=0)


def test_visible_opens_only_rows_that_see_nothing():
    mask = torch.tensor([[True, False], [False, False]])
    assert visible(mask)[:, 0, 0].tolist() == [[True, False], [True, True]]


def near(mask):
    """Each token sees the real tokens at most two places away; what is padding sees nothing."""
    place = torch.arange(5)
    return mask[:, None, :] & mask[:, :, None] & ((place - place[:, None]).abs() <= 2)


@pytest.mark.parametrize("first", [1, 3])
@pytest.mark.parametrize("feed_forward", [12, 0], ids=["whole", "attention half"])
@pytest.mark.parametrize("seeing", [lambda mask: mask, near], ids=["padding", "who sees whom"])
def test_the_first_positions_alone_are_those_of_the_whole_layer(hidden, mask, feed_forward, seeing, first):
    layer = filled(Layer(LayerForm(width=8, heads=2, feed_forward=feed_forward)))
    found = layer(hidden, seeing(mask), first=first)
    assert found.shape == (3, first, 8)
    torch.testing.assert_close(found, layer(hidden, seeing(mask))[:, :first], atol=1e-6, rtol=0)


def test_the_first_position_alone_is_that_of_the_whole_layer_where_a_row_sees_nothing(layer, hidden, mask):
    padded = mask.clone()
    padded[1] = False
    torch.testing.assert_close(layer(hidden, padded, first=True), layer(hidden, padded)[:, :1], atol=1e-6, rtol=0)


@pytest.mark.parametrize("seeing", [lambda mask: mask, near], ids=["padding", "who sees whom"])
def test_the_first_position_alone_has_the_gradients_of_the_whole_layer(layer, hidden, mask, seeing):
    """Of every parameter and of every position of the input, which is read by the keys and values."""
    found = []
    for first in (True, False):
        layer.zero_grad()
        read = hidden.clone().requires_grad_()
        layer(read, seeing(mask), first=first)[:, 0].pow(2).sum().backward()
        found.append({"input": read.grad} | {name: p.grad.clone() for name, p in layer.named_parameters()})
    reached = found[0]["input"][0].abs().sum(dim=1) > 0
    assert reached.tolist() == [True, True, True, seeing is not near, seeing is not near]
    for name, gradient in found[0].items():
        torch.testing.assert_close(gradient, found[1][name], atol=1e-5, rtol=0, msg=name)


def test_the_first_position_alone_is_that_of_the_whole_layer_in_bfloat16(layer, hidden, mask):
    """Both within a few of bfloat16's steps (2^-8 of values up to 4) of the same layer in float32."""
    half = Layer(LayerForm(width=8, heads=2, feed_forward=12))
    half.load_state_dict(layer.state_dict())
    half.eval().to(torch.bfloat16)
    rounded = hidden.to(torch.bfloat16)
    first, whole = half(rounded, mask, first=True), half(rounded, mask)[:, :1]
    assert first.dtype == torch.bfloat16
    torch.testing.assert_close(first, whole, atol=0.05, rtol=0)
    torch.testing.assert_close(first.float(), layer(rounded.float(), mask, first=True), atol=0.1, rtol=0)


def test_dropout_acts_in_training_mode_only(hidden, mask):
    layer = filled(Layer(LayerForm(width=8, heads=2, feed_forward=12), dropout=0.5))
    same = filled(Layer(LayerForm(width=8, heads=2, feed_forward=12)))
    assert torch.equal(layer(hidden, mask), same(hidden, mask))
    torch.manual_seed(0)
    assert not torch.equal(layer.train()(hidden, mask), same(hidden, mask))


def test_making_a_layer_leaves_the_global_random_state_alone():
    before = torch.random.get_rng_state()
    fill_normal(Layer(LayerForm(width=8, heads=2, feed_forward=12)), torch.Generator().manual_seed(0))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("norm_init", ["one", "legacy"])
def test_new_layers_draw_matrices_and_norms_only_where_asked(norm_init):
    made = Layer(LayerForm(width=40, heads=2, feed_forward=1000))
    fill_normal(made, torch.Generator().manual_seed(0), norm_init=norm_init)
    for name, value in made.state_dict().items():
        if value.dim() == 2 or (norm_init == "legacy" and ".norm." in name):
            assert 0.012 < value.std() < 0.028 and abs(value.mean()) < 0.01, name
        else:
            assert (value == float(name.endswith("norm.weight"))).all(), name


def test_keys_computed_before_change_no_bit(layer, hidden, mask):
    assert torch.equal(layer(hidden, mask, keys=layer.keys(hidden)), layer(hidden, mask))


def test_width_must_divide_into_heads():
    with pytest.raises(PlanError, match="heads"):
        Layer(LayerForm(width=8, heads=3, feed_forward=8))
