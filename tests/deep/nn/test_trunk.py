import numpy as np
import pytest
import torch

from polyhead.deep.nn.layer import LayerDelta
from polyhead.deep.nn.trunk import States, Trunk
from polyhead.encoder.shape import Architecture, trunk_arrays
from polyhead.errors import PlanError, TrunkError
from polyhead.plan import Delta
from support.single_delta import OneDelta

ROBERTA = {"family": "roberta", "segments": 1, "first_position": 2, "norm_epsilon": 1e-5}
SHAPES = {
    "bert": {},
    "roberta": ROBERTA,
    "electra-narrow": {"family": "electra", "embedding_width": 8},
    "distilbert": {"family": "distilbert", "segments": 0},
}


class Hidden(LayerDelta):
    """Adds the layer's input, some times over."""

    def __init__(self, times=1):
        super().__init__()
        self.times = times

    def term(self, hidden, mask):
        return self.times * hidden


@pytest.fixture
def trunk(data):
    return Trunk.from_data(data)


@pytest.fixture(params=SHAPES, ids=list(SHAPES))
def any_trunk(request, make_data):
    common = {"layers": 2, "width": 16, "heads": 2, "feed_forward": 32, "vocabulary": 14, "positions": 24}
    return Trunk.from_data(make_data(Architecture(**(common | SHAPES[request.param]))))


def test_array_names_and_shapes_are_those_of_the_architecture(any_trunk):
    expected = dict(trunk_arrays(any_trunk.architecture))
    assert {name: tuple(value.shape) for name, value in any_trunk.state_dict().items()} == expected


def test_arrays_come_back_unchanged(trunk, data):
    arrays = trunk.to_arrays()
    assert arrays.keys() == data.arrays.keys()
    assert all(np.array_equal(arrays[name], data.arrays[name]) for name in arrays)


def test_training_never_writes_into_the_data(trunk, data):
    digest = data.digest
    with torch.no_grad():
        for value in trunk.parameters():
            value.add_(1)
    assert data.digest == digest


def test_read_only_arrays_are_taken(data):
    for array in data.arrays.values():
        array.flags.writeable = False
    Trunk.from_data(data)


def test_trunk_from_data_evaluates_and_can_be_trained(trunk):
    assert not trunk.training
    assert all(value.requires_grad for value in trunk.parameters())


def test_every_layer_is_in_the_states(any_trunk, batch):
    ids, mask, segments = batch
    states = any_trunk(ids, mask, segments=segments)
    assert (states.first, states.depth) == (0, any_trunk.architecture.layers)
    assert states.last.shape == (4, 7, 16)


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_run_from_any_state_equals_the_full_pass(trunk, batch, cut):
    ids, mask, segments = batch
    full = trunk(ids, mask, segments=segments)
    rest = trunk.run(full.layer(cut), mask, start=cut, stop=3)
    assert (rest.first, rest.depth) == (cut, 3)
    assert all(torch.equal(rest.layer(i), full.layer(i)) for i in range(cut, 4))


def test_going_on_keeps_the_states_before(trunk, batch):
    ids, mask, segments = batch
    full = trunk(ids, mask, segments=segments)
    states = trunk.go_on(trunk.go_on(trunk.start(ids, mask, segments=segments), stop=1), stop=3)
    assert all(torch.equal(a, b) for a, b in zip(states.hidden, full.hidden, strict=True))


@pytest.mark.parametrize(("start", "stop"), [(2, 1), (0, 4), (4, 4)], ids=["backwards", "beyond", "outside"])
def test_impossible_ranges_are_refused(trunk, batch, start, stop):
    ids, mask, _ = batch
    with pytest.raises(PlanError, match=r"\[0, 3\)"):
        trunk.run(trunk.embed(ids), mask, start=start, stop=stop)


def test_padding_changes_no_real_token(any_trunk, batch):
    ids, mask, segments = batch
    padded = any_trunk(ids, mask, segments=segments)
    for row in range(len(ids)):
        length = int(mask[row].sum())
        alone = any_trunk(
            ids[row : row + 1, :length], mask[row : row + 1, :length], segments=segments[row : row + 1, :length]
        )
        for index in range(padded.depth + 1):
            torch.testing.assert_close(alone.layer(index)[0], padded.layer(index)[row, :length], atol=2e-6, rtol=0)


def test_what_stands_in_padding_changes_no_bit(trunk, batch):
    ids, mask, segments = batch
    other = torch.where(mask, ids, (ids + 5) % 14)
    a, b = trunk(ids, mask, segments=segments), trunk(other, mask, segments=segments)
    assert torch.equal(a.last[mask], b.last[mask])


def test_fully_padded_row_is_finite_and_leaves_others_alone(trunk, batch):
    ids, mask, _ = batch
    empty = mask.clone()
    empty[2] = False
    out = trunk(ids, empty).last
    assert torch.isfinite(out).all()
    assert torch.equal(out[[0, 1, 3]], trunk(ids, mask).last[[0, 1, 3]])


def test_missing_segments_are_segment_zero(any_trunk, batch):
    ids, mask, segments = batch
    assert torch.equal(any_trunk(ids, mask).last, any_trunk(ids, mask, segments=torch.zeros_like(segments)).last)


def test_segments_matter_where_the_family_has_two(trunk, batch):
    ids, mask, segments = batch
    assert not torch.allclose(trunk(ids, mask).last, trunk(ids, mask, segments=segments).last)


def test_given_positions_are_read_with_the_familys_offset(any_trunk, batch):
    ids, _, _ = batch
    counted = torch.arange(7).expand(4, 7)
    assert torch.equal(any_trunk.embed(ids, positions=counted), any_trunk.embed(ids))
    restarted = torch.tensor([[0, 1, 2, 0, 1, 2, 3]]).expand(4, 7)
    packed = any_trunk.embed(ids, positions=restarted)
    assert torch.equal(packed[:, 3:], any_trunk.embed(ids[:, 3:]))


def test_inputs_longer_than_the_position_table_are_refused(any_trunk):
    limit = any_trunk.architecture.max_tokens
    any_trunk.embed(torch.zeros(1, limit, dtype=torch.long))
    with pytest.raises(TrunkError, match=str(limit)):
        any_trunk.embed(torch.zeros(1, limit + 1, dtype=torch.long))


def test_prompts_stand_before_the_text_and_do_not_shift_it(any_trunk, batch):
    ids, _, segments = batch
    narrow = any_trunk.architecture.embedding_width or 16
    prompts = torch.randn(2, narrow, generator=torch.Generator().manual_seed(4))
    out = any_trunk.embed(ids, segments=segments, prompts=prompts)
    assert out.shape == (4, 9, 16)
    assert torch.equal(out[:, 2:], any_trunk.embed(ids, segments=segments))


def test_prompt_rows_pass_the_embedding_norm_once_without_a_position(trunk):
    """By hand: LN(p + segment 0), p the given row."""
    prompts = torch.randn(2, 16, generator=torch.Generator().manual_seed(4))
    out = trunk.embed(torch.zeros(1, 3, dtype=torch.long), prompts=prompts)[0, :2]
    total = prompts + trunk.embeddings.segment.weight[0]
    centred = total - total.mean(-1, keepdim=True)
    expected = centred / centred.square().mean(-1, keepdim=True).sqrt()
    expected = expected * trunk.embeddings.norm.weight + trunk.embeddings.norm.bias
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=0)


def test_prompts_are_never_padding_and_may_differ_by_row(trunk, batch):
    ids, mask, _ = batch
    prompts = torch.randn(4, 2, 16, generator=torch.Generator().manual_seed(4))
    states = trunk.start(ids, mask, prompts=prompts)
    assert states.mask[:, :2].all()
    assert torch.equal(states.mask[:, 2:], mask)
    assert torch.equal(states.last[1:2, :2], trunk.embed(ids[1:2], prompts=prompts[1])[:, :2])


def test_prompts_receive_gradients(trunk, batch):
    ids, mask, _ = batch
    prompts = torch.zeros(2, 16, requires_grad=True)
    trunk.go_on(trunk.start(ids, mask, prompts=prompts), stop=3).last[:, 0].square().sum().backward()
    assert prompts.grad.abs().sum() > 0


def test_zero_deltas_change_no_bit(trunk, batch):
    ids, mask, _ = batch
    zero = {i: Hidden(0) for i in range(3)}
    assert torch.equal(trunk.run(trunk.embed(ids), mask, start=0, stop=3, deltas=zero).last, trunk(ids, mask).last)


def test_a_delta_acts_in_its_own_layer_only(trunk, batch):
    ids, mask, _ = batch
    plain = trunk(ids, mask)
    changed = trunk.run(trunk.embed(ids), mask, start=0, stop=3, deltas={1: Hidden()})
    assert torch.equal(changed.layer(1), plain.layer(1))
    assert not torch.equal(changed.layer(2), plain.layer(2))
    assert torch.equal(changed.layer(2), trunk.layers[1](plain.layer(1), mask, Hidden()))


def test_a_delta_outside_the_layers_run_is_refused(trunk, batch):
    ids, mask, _ = batch
    with pytest.raises(PlanError, match="delta"):
        trunk.run(trunk.embed(ids), mask, start=0, stop=2, deltas={2: Hidden()})


def test_layers_computed_again_have_the_gradients_of_the_deltas_too(data, batch):
    """With dropout in the trunk and in projected attention, to the bit; also over a trunk that does not learn."""
    ids, mask, _ = batch
    node = Delta(kind="projected_attention", part="task:a", size=6, heads=2, tied=True)
    for learns in (True, False):
        trunk, found = Trunk.from_data(data, dropout=0.3).train(learns), []
        trunk.requires_grad_(learns)
        runs = []
        trunk.layers[1].register_forward_pre_hook(lambda *_, runs=runs: runs.append(1))
        for again in (False, True):
            generator = torch.Generator().manual_seed(0)
            deltas = OneDelta(node, range(3), width=16, heads=2, dropout=0.5, generator=generator, init="normal")
            trunk.checkpointing = again
            torch.manual_seed(1)
            states = trunk.start(ids, mask)
            out = trunk.go_on(states, stop=3, deltas={index: deltas.at(index) for index in range(3)}).last
            gradients = torch.autograd.grad(out.square().sum(), list(deltas.parameters()))
            found.append([out, *gradients])
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
        assert all(gradient.abs().sum() > 0 for gradient in found[0])
        assert len(runs) == 1 + 2


# isolated prompts


SIZES = (2, 3, 1)


def prompts_of(trunk, seed=4):
    narrow = trunk.architecture.embedding_width or 16
    return torch.randn(sum(SIZES), narrow, generator=torch.Generator().manual_seed(seed))


def in_one_input(trunk, ids, mask, prompts):
    """States of [prompts, text] in one input, where a mask says who sees whom: (prompt rows', text's)."""
    rows, text = sum(SIZES), ids.shape[1]
    seen = torch.zeros(len(ids), rows + text, rows + text, dtype=torch.bool)
    seen[:, :, rows:] = mask[:, None]
    start = 0
    for size in SIZES:
        seen[:, start : start + size, start : start + size] = True
        start += size
    states = trunk.run(trunk.embed(ids, prompts=prompts), seen, start=0, stop=len(trunk.layers))
    return [h[:, :rows] for h in states.hidden], [h[:, rows:] for h in states.hidden]


@pytest.mark.parametrize("keep", [True, False], ids=["keys kept", "keys anew"])
def test_prompts_beside_the_text_are_those_of_one_masked_input(any_trunk, batch, keep):
    ids, mask, _ = batch
    prompts = prompts_of(any_trunk)
    before, expected = in_one_input(any_trunk, ids, mask, prompts)
    text = any_trunk.go_on(any_trunk.start(ids, mask), stop=2, keep=keep)
    for found, other in zip(text.hidden, expected, strict=True):
        torch.testing.assert_close(found[mask], other[mask], atol=1e-5, rtol=0)
    states = any_trunk.beside(text, any_trunk.embeddings.of_prompts(prompts)[None], sizes=SIZES)
    assert (states.first, states.depth, states.mask.all()) == (0, 2, True)
    for found, other in zip(states.hidden, before, strict=True):
        assert found.shape == (4, 6, 16)
        torch.testing.assert_close(found, other, atol=1e-5, rtol=0)


def test_keeping_keys_changes_no_bit_of_the_text(trunk, batch):
    ids, mask, segments = batch
    kept = trunk.go_on(trunk.start(ids, mask, segments=segments), stop=3, keep=True)
    plain = trunk(ids, mask, segments=segments)
    assert sorted(kept.keys) == [0, 1, 2] and not plain.keys
    assert all(torch.equal(a, b) for a, b in zip(kept.hidden, plain.hidden, strict=True))


def test_prompts_beside_the_text_go_on_from_any_state(trunk, batch):
    ids, mask, _ = batch
    text, embedded = trunk(ids, mask), trunk.embeddings.of_prompts(prompts_of(trunk))
    whole = trunk.beside(text, embedded, sizes=SIZES)
    first = trunk.beside(text.upto(0), embedded, sizes=SIZES, stop=1)
    rest = trunk.beside(text, first.last, sizes=SIZES, start=1)
    assert (rest.first, rest.depth) == (1, 3)
    assert all(torch.equal(rest.layer(i), whole.layer(i)) for i in (1, 2, 3))


def test_rows_of_kept_keys_go_with_their_texts(trunk, batch):
    ids, mask, _ = batch
    text, embedded = (
        trunk.go_on(trunk.start(ids, mask), stop=3, keep=True),
        trunk.embeddings.of_prompts(prompts_of(trunk)),
    )
    found = trunk.beside(text.rows([2, 0]), embedded, sizes=SIZES).last
    torch.testing.assert_close(found, trunk.beside(text, embedded, sizes=SIZES).last[[2, 0]], atol=1e-6, rtol=0)
    assert sorted(text.upto(1).keys) == [0]


def test_what_stands_in_padding_changes_no_bit_of_a_prompt(trunk, batch):
    ids, mask, _ = batch
    other = torch.where(mask, ids, (ids + 5) % 14)
    embedded = trunk.embeddings.of_prompts(prompts_of(trunk))
    a, b = (trunk.beside(trunk(x, mask), embedded, sizes=SIZES).last for x in (ids, other))
    assert torch.equal(a, b)


def test_a_prompt_is_the_same_alone_and_among_others(trunk, batch):
    ids, mask, _ = batch
    text, embedded = trunk(ids, mask), trunk.embeddings.of_prompts(prompts_of(trunk))
    together = trunk.beside(text, embedded, sizes=SIZES).last
    alone = trunk.beside(text, embedded[2:5], sizes=[3]).last
    torch.testing.assert_close(together[:, 2:5], alone, atol=1e-6, rtol=0)


@pytest.mark.parametrize("others", [0.0, 1.0, 100.0])
def test_what_stands_in_other_slots_changes_no_bit_of_a_prompt(trunk, batch, others):
    """In slots of one shape, empty ones zero, a new prompt fills a slot and moves nothing else."""
    ids, mask, _ = batch
    text, slots = trunk(ids, mask), torch.zeros(16, 2, 16)
    slots[3] = trunk.embeddings.of_prompts(prompts_of(trunk))[:2]
    alone = trunk.beside(text, slots.flatten(0, 1), sizes=[2] * 16).last[:, 6:8]
    slots[:3] = slots[4:] = others * torch.randn(1, generator=torch.Generator().manual_seed(1))
    among = trunk.beside(text, slots.flatten(0, 1), sizes=[2] * 16).last[:, 6:8]
    assert torch.equal(among, alone)


def test_prompts_and_text_have_the_gradients_of_one_masked_input(trunk, batch):
    """Of the prompts, of the text's first state and of the trunk's weights, from all prompt rows."""
    ids, mask, _ = batch
    words, weights = trunk.embeddings.word.weight, trunk.layers[0].attention.key.weight
    found = []
    for beside in (True, False):
        prompts = prompts_of(trunk).requires_grad_()
        if beside:
            text = trunk.go_on(trunk.start(ids, mask), stop=3, keep=True)
            last = trunk.beside(text, trunk.embeddings.of_prompts(prompts), sizes=SIZES).last
        else:
            last = in_one_input(trunk, ids, mask, prompts)[0][-1]
        wanted = (prompts, words, weights)
        found.append(torch.autograd.grad((last * torch.arange(16)).square().sum(), wanted))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4 * float(b.abs().max()), rtol=0)


def test_no_prompts_gradient_reaches_another(trunk, batch):
    ids, mask, _ = batch
    prompts = prompts_of(trunk).requires_grad_()
    last = trunk.beside(trunk(ids, mask), trunk.embeddings.of_prompts(prompts), sizes=SIZES).last
    gradient = torch.autograd.grad(last[:, 2:5].square().sum(), prompts)[0]
    assert (gradient.abs().sum(dim=1) > 0).tolist() == [False, False, True, True, True, False]


def test_prompts_may_differ_by_text(trunk, batch):
    ids, mask, _ = batch
    own = trunk.embeddings.of_prompts(torch.stack([prompts_of(trunk, seed) for seed in range(4)]))
    found = trunk.beside(trunk(ids, mask), own, sizes=SIZES).last
    alone = trunk.beside(trunk(ids[2:3], mask[2:3]), own[2], sizes=SIZES).last
    torch.testing.assert_close(found[2:3], alone, atol=1e-6, rtol=0)


def test_embedded_prompts_are_those_before_a_text(any_trunk, batch):
    prompts = prompts_of(any_trunk)
    before = any_trunk.embed(batch[0], prompts=prompts)[:, : sum(SIZES)]
    torch.testing.assert_close(any_trunk.embeddings.of_prompts(prompts).expand(4, -1, -1), before, atol=1e-6, rtol=0)


def test_prompts_of_other_sizes_than_their_rows_are_refused(trunk, batch):
    ids, mask, _ = batch
    with pytest.raises(PlanError, match="sizes"):
        trunk.beside(trunk(ids, mask), trunk.embeddings.of_prompts(prompts_of(trunk)), sizes=[2, 2])


@pytest.mark.parametrize(("start", "stop"), [(0, 3), (2, 1), (0, 4)], ids=["unseen", "backwards", "beyond"])
def test_prompts_beside_layers_whose_text_is_not_there_are_refused(trunk, batch, start, stop):
    ids, mask, _ = batch
    text = trunk(ids, mask).upto(1)
    with pytest.raises(PlanError, match=r"layers \[0, 1\]"):
        trunk.beside(text, trunk.embeddings.of_prompts(prompts_of(trunk)), sizes=SIZES, start=start, stop=stop)
    assert isinstance(text, States)


def test_shifted_texts_have_positions_that_count_the_prompt_rows(any_trunk, batch):
    ids, mask, _ = batch
    prompts = prompts_of(any_trunk)
    found = any_trunk.start(ids, mask, prompts=prompts, shift=True).last
    counted = torch.arange(6, 13).expand(4, 7)
    torch.testing.assert_close(found[:, 6:], any_trunk.embed(ids, positions=counted), atol=1e-6, rtol=0)
    assert torch.equal(found[:, :6], any_trunk.start(ids, mask, prompts=prompts).last[:, :6])
    assert torch.equal(any_trunk.start(ids, mask, shift=True).last, any_trunk.start(ids, mask).last)


def test_shifted_texts_longer_than_the_position_table_are_refused(trunk):
    prompts, limit = prompts_of(trunk), trunk.architecture.max_tokens
    trunk.embed(torch.zeros(1, limit - 6, dtype=torch.long), prompts=prompts, shift=True)
    with pytest.raises(TrunkError, match=str(limit + 1)):
        trunk.embed(torch.zeros(1, limit - 5, dtype=torch.long), prompts=prompts, shift=True)


def test_bfloat16_trunk_agrees_with_float32(data, batch):
    """Wholly in bf16 (8 bits of mantissa, steps of 0.4 %): within 0.1 at unit scale, cosine over 0.999."""
    ids, mask, segments = batch
    exact = Trunk.from_data(data)(ids, mask, segments=segments)
    rough = Trunk.from_data(data, dtype=torch.bfloat16)(ids, mask, segments=segments)
    for index in range(4):
        assert rough.layer(index).dtype == torch.bfloat16
        a, b = exact.layer(index)[mask], rough.layer(index).float()[mask]
        assert (a - b).abs().max() < 0.1
        assert torch.cosine_similarity(a, b, dim=-1).min() > 0.999


def test_new_trunk_draws_from_its_generator_only(shape):
    before = torch.random.get_rng_state()
    first, again = (Trunk(shape, generator=torch.Generator().manual_seed(7)).to_arrays() for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    words = first["embeddings.word.weight"]
    assert 0.015 < words.std() < 0.025
    assert np.array_equal(first["layers.0.attention.norm.weight"], np.ones(16, np.float32))
