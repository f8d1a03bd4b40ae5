"""Deltas against their papers' formulas, written out below one row and one head at a time, without any mask."""

import copy
import math

import pytest
import torch
from torch import nn

from polyhead.deep.nn.deltas import DeltaModule, SideBySide
from polyhead.deep.nn.layer import Layer, LayerDelta
from polyhead.encoder.shape import Architecture, LayerForm
from polyhead.errors import PlanError
from polyhead.plan import Delta, Embed, Head, Layers, Path, Pool
from polyhead.plan.cost import part_arrays
from support.single_delta import OneDelta

WIDTH, HEADS, INNER = 8, 2, 12
ALL = ("attention.query", "attention.key", "attention.value", "attention.output")
ALL += ("feed_forward.inner", "feed_forward.outer")
KINDS = {
    "projected attention": {"kind": "projected_attention", "size": 6, "heads": 3, "tied": True},
    "untied": {"kind": "projected_attention", "size": 6, "heads": 2},
    "gelu inside": {"kind": "projected_attention", "size": 6, "heads": 3, "gelu": "inside"},
    "gelu after": {"kind": "projected_attention", "size": 6, "heads": 3, "tied": True, "gelu": "after"},
    "low rank": {"kind": "low_rank", "size": 3},
    "low rank with a gelu": {"kind": "low_rank", "size": 3, "tied": True, "gelu": "inside"},
    "feed-forward": {"kind": "feed_forward", "size": 4, "tied": True},
    "scaled attention": {"kind": "projected_attention", "size": 6, "heads": 2, "scaled": True, "gelu": "after"},
    "scale": {"kind": "scale"},
    "bottleneck": {"kind": "bottleneck", "size": 3},
    "lora": {"kind": "lora", "size": 2, "alpha": 3.0, "targets": ("attention.query", "attention.value")},
    "lora everywhere": {"kind": "lora", "size": 2, "alpha": 3.0, "targets": ALL},
}
NOT_ZERO = {
    "serial attention": {"kind": "projected_attention", "size": 6, "heads": 2, "serial": True},
    "serial low rank": {"kind": "low_rank", "size": 3, "tied": True, "gelu": "after", "serial": True},
    "serial scaled": {"kind": "low_rank", "size": 3, "serial": True, "scaled": True},
    "prefix": {"kind": "prefix", "size": 3},
}
every_kind = pytest.mark.parametrize("kind", [*KINDS, *NOT_ZERO], ids=lambda kind: kind.replace(" ", "-"))


def node_of(kind, **owners):
    return Delta(part="task:a", **(KINDS | NOT_ZERO)[kind], **owners)


def filled(module, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for value in module.parameters():
        nn.init.normal_(value, std=0.4, generator=generator)
    return module.eval()


def made(kind, seed=1, layers=(0, 1), **options):
    """Deltas with every array filled, as after some training."""
    sizes = {"width": WIDTH, "heads": HEADS, "feed_forward": INNER}
    return filled(OneDelta(node_of(kind), layers, **sizes, **options), seed)


@pytest.fixture
def layer():
    return filled(Layer(LayerForm(width=WIDTH, heads=HEADS, feed_forward=INNER)))


@pytest.fixture
def hidden():
    return torch.randn(3, 5, WIDTH, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def mask():
    return torch.arange(5) < torch.tensor([[5], [2], [4]])


# the formulas


def gelu(x):
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def norm(arrays, name, x):
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-12).sqrt()
    return scaled * arrays[f"{name}.weight"] + arrays[f"{name}.bias"]


def dense(arrays, name, x):
    return x @ arrays[f"{name}.weight"].T + arrays.get(f"{name}.bias", 0.0)


def attention(query, key, value, heads):
    """(tokens, width) each, of one text."""
    outs = []
    for q, k, v in zip(query.chunk(heads, 1), key.chunk(heads, 1), value.chunk(heads, 1), strict=True):
        outs.append(torch.softmax(q @ k.T / math.sqrt(q.shape[1]), dim=1) @ v)
    return torch.cat(outs, dim=1)


def task_function(node, own, x):
    """TS(x) = V_D g(V_E x)."""
    tied = "" if node.tied else "0."
    inner = dense(own, f"{tied}encoder", x)
    if node.kind == "projected_attention":
        query, key, value = (dense(own, f"0.{name}", inner) for name in ("query", "key", "value"))
        inner = attention(query, key, value, node.heads)
    if node.kind == "feed_forward":
        inner = dense(own, "0.outer", gelu(dense(own, "0.inner", inner)))
    out = dense(own, f"{tied}decoder", gelu(inner) if node.gelu == "inside" else inner)
    out = gelu(out) if node.gelu == "after" else out
    return out * 2 * torch.sigmoid(own["0.scale"]) if node.scaled else out


def naive(node, layer, own, h):
    """One layer with the delta on one text without padding, (tokens, width)."""
    layer = layer.state_dict()

    def mapped(name, x):
        low = 0.0
        if name in node.targets:
            low = node.alpha / node.size * dense(own, f"0.{name}.decoder", dense(own, f"0.{name}.encoder", x))
        return dense(layer, name, x) + low

    def within(half, x):
        if node.kind != "bottleneck":
            return x
        return x + dense(own, f"0.{half}.decoder", gelu(dense(own, f"0.{half}.encoder", x)))

    key, value = mapped("attention.key", h), mapped("attention.value", h)
    if node.kind == "prefix":
        key, value = torch.cat([own["0.key"], key]), torch.cat([own["0.value"], value])
    mixed = attention(mapped("attention.query", h), key, value, HEADS)
    a = norm(layer, "attention.norm", h + within("attention", mapped("attention.output", mixed)))
    out = mapped("feed_forward.outer", gelu(mapped("feed_forward.inner", a)))
    total = a + within("feed_forward", out)
    added = node.kind in ("projected_attention", "low_rank", "feed_forward")
    if added and not node.serial:
        total = total + task_function(node, own, h)
    out = norm(layer, "feed_forward.norm", total)
    if added and node.serial:
        out = norm(own, "0.norm", out + task_function(node, own, out))
    return out * 2 * torch.sigmoid(own["0.scale"]) if node.kind == "scale" else out


@every_kind
def test_a_layer_with_a_delta_is_the_formula_on_each_text_without_its_padding(kind, layer, hidden, mask):
    deltas = made(kind)
    found = layer(hidden, mask, deltas.at(0))
    assert not torch.allclose(found, layer(hidden, mask), atol=1e-2)
    for row, length in enumerate((5, 2, 4)):
        expected = naive(node_of(kind), layer, deltas.state_dict(), hidden[row, :length])
        torch.testing.assert_close(found[row, :length], expected, atol=1e-5, rtol=0)


def test_lora_is_the_layer_with_its_product_added_to_the_weights(layer, hidden, mask):
    deltas = made("lora everywhere")
    own, merged = deltas.state_dict(), copy.deepcopy(layer)
    with torch.no_grad():
        for name in ALL:
            product = own[f"1.{name}.decoder.weight"] @ own[f"1.{name}.encoder.weight"]
            merged.get_submodule(name).weight += 3.0 / 2 * product
    torch.testing.assert_close(layer(hidden, mask, deltas.at(1)), merged(hidden, mask), atol=1e-5, rtol=0)


def test_a_prefix_with_the_keys_and_values_of_tokens_stands_for_these_tokens(layer, hidden, mask):
    """Three more tokens in front, whose states nothing else reads, are three rows of prefix."""
    front = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(9))
    deltas = made("prefix")
    deltas.load_state_dict({
        f"{index}.{name}": layer.get_submodule(f"attention.{name}")(front)
        for index in (0, 1) for name in ("key", "value")
    })  # fmt: skip
    longer = torch.cat([front.expand(3, -1, -1), hidden], dim=1)
    expected = layer(longer, nn.functional.pad(mask, (3, 0), value=True))[:, 3:]
    torch.testing.assert_close(layer(hidden, mask, deltas.at(0))[mask], expected[mask], atol=1e-5, rtol=0)


# where it starts


def started(kind, **options):
    generator = torch.Generator().manual_seed(5)
    sizes = {"width": WIDTH, "heads": HEADS, "feed_forward": INNER}
    return OneDelta(node_of(kind), (0, 1), **sizes, generator=generator, **options)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.replace(" ", "-"))
def test_a_delta_starts_as_the_trunks_own_layer_bit_for_bit_and_can_learn(kind, layer, hidden, mask):
    deltas = started(kind).eval()
    out = layer(hidden, mask, deltas.at(0))
    assert torch.equal(out, layer(hidden, mask))
    assert torch.equal(layer(hidden, mask, deltas.at(0), first=True), layer(hidden, mask, first=True))
    (out * torch.arange(WIDTH)).square().sum().backward()
    assert any(value.grad is not None and value.grad.abs().sum() > 0 for value in deltas.parameters())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.replace(" ", "-"))
def test_deltas_that_start_at_zero_side_by_side_change_no_bit(kind, layer, hidden, mask):
    rows, seen = hidden.repeat(3, 1, 1), mask.repeat(3, 1)
    together = SideBySide([started(kind).at(0), None, started(kind).at(1)])
    assert torch.equal(layer(rows, seen, together), layer(rows, seen))


def test_the_papers_start_draws_every_matrix_and_leaves_biases_at_zero():
    node = Delta(kind="projected_attention", part="task:a", size=96, heads=6, tied=True)
    sizes = {"width": 192, "heads": 4, "generator": torch.Generator().manual_seed(0)}
    for init in ("zero", "normal"):
        for name, value in OneDelta(node, range(3), init=init, **sizes).state_dict().items():
            if name.endswith("bias") or (name == "decoder.weight" and init == "zero"):
                assert not value.any()
            else:
                assert value.std() == pytest.approx(0.02, rel=0.05) and abs(value.mean()) < 0.001


@pytest.mark.parametrize("norm_init", ["one", "legacy"])
def test_a_serial_norm_starts_at_one_or_as_in_the_released_code(norm_init):
    node = Delta(kind="low_rank", part="task:a", size=4, serial=True)
    sizes = {"width": 4000, "heads": 4, "generator": torch.Generator().manual_seed(0)}
    own = OneDelta(node, [0], norm_init=norm_init, **sizes).state_dict()
    for name, whole in (("weight", 1.0), ("bias", 0.0)):
        value = own[f"0.norm.{name}"]
        if norm_init == "one":
            assert (value == whole).all()
        else:
            assert value.std() == pytest.approx(0.02, rel=0.05) and abs(value.mean()) < 0.001


def test_a_prefix_starts_as_small_noise():
    node = Delta(kind="prefix", part="task:a", size=16)
    made = OneDelta(node, [0], width=256, heads=4, generator=torch.Generator().manual_seed(0))
    assert all(value.std() == pytest.approx(0.02, rel=0.05) for value in made.state_dict().values())


def test_a_prefix_loses_some_of_its_numbers_while_it_learns():
    """As the released code of P-Tuning v2 has it: a share is 0, the rest larger by as much; not when it answers."""
    node = Delta(kind="prefix", part="task:a", size=64)
    made = OneDelta(node, [0], width=256, heads=4, generator=torch.Generator().manual_seed(0), dropout=0.25).at(0)
    whole = made.eval().prefix(2).keys.key
    torch.manual_seed(1)
    learning = made.train().prefix(2).keys.key
    assert (learning == 0).float().mean() == pytest.approx(0.25, abs=0.02) and not (whole == 0).any()
    kept = learning != 0
    assert torch.allclose(learning[kept], whole[kept] / 0.75, rtol=1e-3)


@every_kind
def test_making_deltas_draws_from_their_generator_only(kind):
    before = torch.random.get_rng_state()
    first, again = started(kind), started(kind)
    assert torch.equal(torch.random.get_rng_state(), before)
    for value, other in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(value, other)


# arrays


def path_of(node, start=0, stop=2):
    head = Head(kind="single_label", width=2, part="task:a")
    return Path(nodes=(Embed(trunk="t"), Layers(start=start, stop=stop, delta=node), Pool(), head))


def names_and_shapes(deltas):
    return {f"delta.{name}": tuple(value.shape) for name, value in deltas.state_dict().items()}


SHAPE = Architecture(layers=2, width=WIDTH, heads=HEADS, feed_forward=INNER, vocabulary=9)


@every_kind
def test_arrays_are_those_that_cost_counts(kind):
    counted = part_arrays(path_of(node_of(kind)), SHAPE, "task:a")
    assert counted
    assert names_and_shapes(made(kind)) == {k: v for k, v in counted.items() if k.startswith("delta.")}


def test_a_tied_encoder_and_decoder_are_one_parameter_over_layers():
    deltas = made("projected attention", layers=range(12))
    own = dict(deltas.named_parameters())
    assert sum("coder" in name for name in own) == 4
    assert len({id(value) for value in own.values()}) == len(own) == 4 + 12 * 6
    for index in range(12):
        for end in ("encoder", "decoder"):
            assert deltas.at(index).maps[end].weight is own[f"{end}.weight"]
    copied = copy.deepcopy(deltas)
    assert copied.at(3).maps["decoder"] is copied.decoder is not deltas.decoder


def ends_that_are_shared(kind, layers=(0, 1)):
    """The node, what owns its encoders and decoders, and the deltas of two tasks over them."""
    node, sizes = node_of(kind, ends="family:adapters"), {"width": WIDTH, "heads": HEADS}
    family = filled(OneDelta(node, layers, owner="family:adapters", **sizes), seed=7)
    shared = {"family:adapters": family}
    return node, family, [filled(OneDelta(node, layers, shared=shared, **sizes), seed) for seed in (8, 9)]


@pytest.mark.parametrize("kind", ["projected attention", "untied"])
def test_ends_that_tasks_share_are_used_and_not_owned(kind, layer, hidden, mask):
    """Two tasks over one encoder and decoder, or over those of each layer, are as two with copies of them."""
    node, family, tasks = ends_that_are_shared(kind)
    path = path_of(node)
    counted = [part_arrays(path, SHAPE, owner) for owner in ("family:adapters", "task:a")]
    for deltas, arrays in zip((family, tasks[0]), counted, strict=True):
        assert names_and_shapes(deltas) == {k: v for k, v in arrays.items() if k.startswith("delta.")}
    for task in tasks:
        alone = made(kind)
        alone.load_state_dict({**family.state_dict(), **task.state_dict()})
        assert torch.equal(layer(hidden, mask, task.at(0)), layer(hidden, mask, alone.at(0)))
        layer(hidden, mask, task.at(1)).square().sum().backward()
    assert all(value.grad.abs().sum() > 0 for name, value in family.named_parameters() if "0." not in name)


def test_a_layer_without_a_delta_is_named_with_those_that_have_one():
    with pytest.raises(PlanError, match=r"7.*Allowed: 0, 1"):
        made("scale").at(7)


# what else a layer promises


@every_kind
def test_padding_and_batch_mates_leave_a_text_alone(kind, layer, hidden, mask):
    delta = made(kind).at(0)
    other = torch.where(mask[..., None], hidden, hidden.flip(0) * 3 + 1)
    assert torch.equal(layer(hidden, mask, delta)[mask], layer(other, mask, delta)[mask])
    alone = layer(hidden[1:2, :2], mask[1:2, :2], delta)
    torch.testing.assert_close(alone[0], layer(hidden, mask, delta)[1, :2], atol=2e-6, rtol=0)


@every_kind
def test_a_row_that_is_all_padding_is_finite_and_leaves_others_alone(kind, layer, hidden, mask):
    delta, padded = made(kind).at(0), mask.clone()
    padded[1] = False
    out = layer(hidden, padded, delta)
    assert torch.isfinite(out).all()
    torch.testing.assert_close(out[[0, 2]], layer(hidden, mask, delta)[[0, 2]])


@every_kind
def test_the_first_position_alone_is_that_of_the_whole_layer(kind, layer, hidden, mask):
    delta = made(kind).at(0)
    found = layer(hidden, mask, delta, first=True)
    assert found.shape == (3, 1, WIDTH)
    torch.testing.assert_close(found, layer(hidden, mask, delta)[:, :1], atol=2e-6, rtol=0)


@every_kind
def test_training_computes_what_serving_does_with_equal_gradients(kind, layer, hidden, mask):
    found = []
    for training in (True, False):
        deltas = made(kind).train(training)
        inputs = hidden.clone().requires_grad_()
        out = layer.train(training)(inputs, mask, deltas.at(0))[mask]
        wanted = [value for name, value in deltas.named_parameters() if not name.startswith("1.")]
        found.append((out, *torch.autograd.grad(out.square().sum(), (inputs, *wanted))))
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-4)
    assert all(part.abs().sum() > 0 for part in found[0])


def test_dropout_acts_on_projected_attention_in_training_only(layer, hidden, mask):
    deltas, plain = made("untied", dropout=0.5), made("untied")
    assert torch.equal(layer(hidden, mask, deltas.at(0)), layer(hidden, mask, plain.at(0)))
    torch.manual_seed(0)
    many = deltas.train().at(0).term(hidden.repeat(2000, 1, 1), mask.repeat(2000, 1)).view(2000, *hidden.shape)
    assert (many.std(0)[mask] > 0.1).all()  # not the last bits of one sum taken in other orders
    torch.testing.assert_close(many.mean(0)[mask], plain.at(0).term(hidden, mask)[mask], atol=0.1, rtol=0)


@every_kind
def test_a_layer_in_bfloat16_is_near_the_one_in_float32(kind, layer, hidden, mask):
    deltas = made(kind)
    half, own = (copy.deepcopy(module).to(torch.bfloat16) for module in (layer, deltas))
    out = half(hidden.to(torch.bfloat16), mask, own.at(0))
    assert out.dtype == torch.bfloat16
    expected = layer(hidden, mask, deltas.at(0))
    assert (out.float() - expected)[mask].abs().max() < 0.03 * expected[mask].abs().max()


@every_kind
def test_arrays_in_float32_learn_under_autocast(kind, layer, hidden, mask):
    """As in training: the layer runs in bfloat16, what learns is kept in float32."""
    deltas = made(kind)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer.train()(hidden, mask, deltas.train().at(0))
    out.float().square().sum().backward()
    expected = layer.eval()(hidden, mask, deltas.eval().at(0))
    assert (out.float() - expected)[mask].abs().max() < 0.03 * expected[mask].abs().max()
    for name, value in deltas.named_parameters():
        assert name.startswith("1.") or (value.grad.dtype == torch.float32 and value.grad.abs().sum() > 0)


# several tasks' at once


def assert_each_its_own(layer, deltas, hidden, mask):
    """One pass over stacked rows gives each group what its delta alone gives it."""
    rows = torch.cat([hidden.roll(index, 0) + index for index in range(len(deltas))])
    seen = torch.cat([mask.roll(index, 0) for index in range(len(deltas))])
    apart = [
        layer(part, real, delta)
        for part, real, delta in zip(rows.split(len(hidden)), seen.split(len(hidden)), deltas, strict=True)
    ]
    together = SideBySide(deltas)
    found = layer(rows, seen, together)
    torch.testing.assert_close(found[seen], torch.cat(apart)[seen], atol=2e-6, rtol=0)
    torch.testing.assert_close(layer(rows, seen, together, first=True), torch.cat(apart)[:, :1], atol=2e-6, rtol=0)


@every_kind
@pytest.mark.parametrize("others", [[], [None]], ids=["alike", "and one without"])
def test_deltas_side_by_side_are_each_its_own(kind, others, layer, hidden, mask):
    deltas = [made(kind, seed).at(0) for seed in (1, 2, 3)]
    assert_each_its_own(layer, [*deltas[:2], *others, *deltas[2:]], hidden, mask)


def test_deltas_of_all_kinds_stand_side_by_side(layer, hidden, mask):
    deltas = [made(kind, seed).at(0) for seed, kind in enumerate([*KINDS, *NOT_ZERO])]
    assert_each_its_own(layer, [None, *deltas, None, None], hidden, mask)


def test_prefixes_of_other_lengths_stand_side_by_side(layer, hidden, mask):
    sizes = {"width": WIDTH, "heads": HEADS}
    nodes = [Delta(kind="prefix", part="task:a", size=size) for size in (1, 4, 4, 2)]
    deltas = [filled(OneDelta(node, [0], **sizes), seed).at(0) for seed, node in enumerate(nodes)]
    assert_each_its_own(layer, [*deltas, None], hidden, mask)


@pytest.mark.parametrize("kind", ["projected attention", "untied"])
def test_tasks_over_shared_ends_stand_side_by_side(kind, layer, hidden, mask):
    _, _, tasks = ends_that_are_shared(kind)
    assert_each_its_own(layer, [task.at(0) for task in tasks], hidden, mask)


def test_alike_deltas_are_one_batched_product(layer, hidden, mask):
    """As many products for five tasks as for two."""
    from torch.profiler import ProfilerActivity, profile

    counts = []
    for tasks in (2, 5):
        together = SideBySide([made("untied", seed).at(0) for seed in range(tasks)])
        with profile(activities=[ProfilerActivity.CPU]) as seen, torch.no_grad():
            layer(hidden.repeat(tasks, 1, 1), mask.repeat(tasks, 1), together)
        products = ("aten::bmm", "aten::mm", "aten::addmm", "aten::baddbmm")
        counts.append(sum(event.count for event in seen.key_averages() if event.key in products))
    assert counts[0] == counts[1] > 0


@every_kind
def test_gradients_reach_each_delta_side_by_side_as_alone(kind, layer, hidden, mask):
    found = []
    for apart in (True, False):
        deltas = [made(kind, seed) for seed in (1, 2)]
        places = [one.at(0) for one in deltas]
        if apart:
            out = torch.cat([layer(hidden, mask, one) for one in places])
        else:
            out = layer(hidden.repeat(2, 1, 1), mask.repeat(2, 1), SideBySide(places))
        out[mask.repeat(2, 1)].square().sum().backward()
        found.append([p.grad for one in deltas for n, p in one.named_parameters() if not n.startswith("1.")])
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-4)


def test_rows_that_are_no_equal_groups_are_refused(layer, hidden, mask):
    with pytest.raises(PlanError, match="3 rows, 2 groups"):
        layer(hidden, mask, SideBySide([made("scale").at(0), None]))


def test_a_kind_that_cannot_be_made_or_computed_together_is_refused_at_once():
    class Halfway(DeltaModule):
        @classmethod
        def made(cls, node, sizes, tied, dropout):
            return cls(node)

    with pytest.raises(TypeError, match="together"):
        Halfway.made(node_of("scale"), None, {}, 0.0)


def test_a_slot_that_no_kind_fills_is_the_identity(layer, hidden, mask):
    assert torch.equal(layer(hidden, mask, LayerDelta()), layer(hidden, mask))
