"""R3F and R4F: the term against torch's own divergence, where its gradient goes, and what heads use and keep."""

import copy
import math

import msgspec
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize

from polyhead.deep.loop.feed import TrainingBatch
from polyhead.deep.loop.loss import UNLABELLED
from polyhead.deep.loop.smooth import Noise, normalise_heads, settle_heads, smoothed, symmetric_kl, without_dropout
from polyhead.deep.nn.heads import OutputHead
from polyhead.deep.nn.trunk import Trunk
from polyhead.project.recipes import Smoothing
from polyhead.tasks.kinds import KINDS
from polyhead.tasks.task import Task
from polyhead.testing import tiny_trunk
from support.cases import cases

# Questions of 3 and 2 options; rows of 2 and 4 places and one whose answer was cut away.
OPTIONS = torch.tensor([[0, 0], [0, 1], [0, 0], [1, 1], [1, 0]])
PLACES = torch.full((3, 4, 2), UNLABELLED)
PLACES[0, :2], PLACES[1], PLACES[2, :3] = 0, 0, 0
PLACES[0, 1], PLACES[1, 0, 0], PLACES[1, 3, 1] = 1, 1, 1
TARGETS = {
    "cross_entropy": torch.tensor([0, 2, 1]),
    "binary_cross_entropy": torch.tensor([[0.0, 1, 1], [1, 0, 0]]),
    "word_cross_entropy": torch.tensor([[0, 2, UNLABELLED], [1, UNLABELLED, UNLABELLED]]),
    "ranking": OPTIONS,
    "span_cross_entropy": PLACES,
    "token_cross_entropy": torch.tensor([[3, UNLABELLED], [0, 1]]),
}
SHAPES = {
    "cross_entropy": (3, 4),
    "binary_cross_entropy": (2, 3),
    "word_cross_entropy": (2, 3, 4),
    "ranking": (5, 1),
    "span_cross_entropy": (3, 4, 2),
    "token_cross_entropy": (2, 2, 7),
}
TASK = Task(name="mood", kind="single_label", labels=("bad", "good", "none"))
TEXTS = torch.tensor([[2, 9, 10, 11, 3], [2, 12, 13, 3, 0]])
MASK = TEXTS != 0
BATCH = TrainingBatch(arguments=(), targets=torch.tensor([0, 2]), members=np.arange(2))


def drawn(loss, seed):
    return torch.randn(SHAPES[loss], generator=torch.Generator().manual_seed(seed)).double()


def both_ways(one, other):
    """`KL(p || q) + KL(q || p)` of two vectors of logits, by torch's `kl_div`."""
    p, q = functional.log_softmax(one, dim=0), functional.log_softmax(other, dim=0)
    forth = functional.kl_div(q, p, log_target=True, reduction="sum")
    back = functional.kl_div(p, q, log_target=True, reduction="sum")
    return float(forth + back)


def by_hand(loss, one, other):
    """Every comparison by itself, with the number of outcomes of each."""
    targets = TARGETS[loss]
    if loss == "cross_entropy":
        return [(both_ways(a, b), 4) for a, b in zip(one, other, strict=True)]
    if loss in ("word_cross_entropy", "token_cross_entropy"):
        read = targets != UNLABELLED
        return [(both_ways(a, b), one.shape[2]) for a, b in zip(one[read], other[read], strict=True)]
    if loss == "binary_cross_entropy":
        pairs = zip(one.flatten(), other.flatten(), strict=True)
        return [(both_ways(torch.stack([a, 0 * a]), torch.stack([b, 0 * b])), 2) for a, b in pairs]
    if loss == "ranking":
        return [(both_ways(one[a:b, 0], other[a:b, 0]), b - a) for a, b in ((0, 3), (3, 5))]
    return [
        (both_ways(one[row, :places, end], other[row, :places, end]), places)
        for row, places in ((0, 2), (1, 4))
        for end in (0, 1)
    ]


@cases("scaled", [False, True], ids=["plain", "scaled"])
@cases("loss", TARGETS)
def test_the_divergence_is_torchs_both_ways(loss, scaled):
    one, other = drawn(loss, 1), drawn(loss, 2)
    wanted = np.mean([value / (math.log(n) if scaled else 1) for value, n in by_hand(loss, one, other)])
    found = symmetric_kl(loss, one, other, TARGETS[loss], scaled=scaled)
    assert found.item() == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("loss", TARGETS)
def test_the_divergence_is_symmetric_and_zero_of_the_same(loss):
    one, other = drawn(loss, 1), drawn(loss, 2)
    forth, back = (symmetric_kl(loss, a, b, TARGETS[loss]) for a, b in ((one, other), (other, one)))
    assert forth.item() == back.item() > 0.01
    assert symmetric_kl(loss, one, one.clone(), TARGETS[loss]).item() == 0.0


@pytest.mark.parametrize("loss", TARGETS)
def test_the_divergence_has_finite_gradients_for_what_it_compares_alone(loss):
    """Padding, and rows without a target, stand in the batch but are not compared."""
    one, other = drawn(loss, 1).requires_grad_(), drawn(loss, 2).requires_grad_()
    symmetric_kl(loss, one, other, TARGETS[loss]).backward()
    targets = TARGETS[loss]
    if loss in ("word_cross_entropy", "token_cross_entropy"):
        compared = (targets != UNLABELLED)[..., None].expand(one.shape)
    elif loss == "span_cross_entropy":
        compared = (targets != UNLABELLED) & torch.tensor([True, True, False])[:, None, None]
    else:
        compared = torch.ones(one.shape, dtype=torch.bool)
    for grad in (one.grad, other.grad):
        assert torch.isfinite(grad).all()
        assert (grad[compared] != 0).all()
        assert (grad[~compared] == 0).all()


def test_every_loss_is_compared_but_that_of_regressions():
    assert {kind.loss for kind in KINDS.values()} == {*TARGETS, "squared_error"}
    with pytest.raises(ValueError, match="no distribution"):
        symmetric_kl("squared_error", torch.zeros(2, 1), torch.ones(2, 1), torch.zeros(2))


def test_batches_without_anything_labelled_have_no_divergence():
    nothing = torch.full((2, 3), UNLABELLED)
    assert symmetric_kl("word_cross_entropy", torch.randn(2, 3, 4), torch.randn(2, 3, 4), nothing).item() == 0
    cut = torch.zeros(2, 3, 2, dtype=torch.int64)
    assert symmetric_kl("span_cross_entropy", torch.randn(2, 3, 2), torch.randn(2, 3, 2), cut).item() == 0


class Net(nn.Module):
    """A tiny trunk whose word vectors take noise, and a head over its first token."""

    def __init__(self, dropout):
        super().__init__()
        self.trunk = Trunk.from_data(tiny_trunk(), dropout=dropout)
        width = self.trunk.architecture.width
        self.head = OutputHead(width, 3, dropout=dropout, generator=torch.Generator().manual_seed(1))
        self.runs = []
        self.train()

    def forward(self, noise=None):
        self.runs.append((noise is not None, self.training))
        states = self.trunk.start(TEXTS, MASK, noise=noise)
        return self.head(self.trunk.go_on(states, stop=len(self.trunk.layers)).hidden[-1][:, 0])


def term(net, smoothing, *, task=TASK, batch=BATCH, scaled=False, seed=3, outputs=None):
    torch.manual_seed(seed)
    outputs = net() if outputs is None else outputs
    return smoothed(smoothing, task, outputs, batch, run=net, module=net, scaled=scaled)


def gradients(net, value):
    """Of the term alone, by parameter; None where it has none."""
    net.zero_grad(set_to_none=True)
    value.backward()
    return {name: p.grad for name, p in net.named_parameters()}


def test_without_noise_and_dropout_there_is_no_term():
    assert term(Net(0.0), Smoothing(size=0.0)).item() == 0.0
    assert term(Net(0.3), Smoothing(size=0.0, dropout=False)).item() == 0.0
    assert term(Net(0.3), Smoothing(size=0.0)).item() > 0.0
    assert term(Net(0.0), Smoothing(size=0.1)).item() > 0.0


@pytest.mark.parametrize("noise", ["uniform", "normal"])
def test_the_term_is_the_weighted_divergence_of_the_noisy_answer(noise):
    net, smoothing = Net(0.0), Smoothing(size=0.5, noise=noise, weight=0.7)
    torch.manual_seed(3)
    plain = net()
    noisy = net(Noise(smoothing))
    wanted = 0.7 * symmetric_kl("cross_entropy", plain, noisy, BATCH.targets)
    assert term(net, smoothing).item() == pytest.approx(wanted.item(), rel=1e-6)


def test_the_term_is_scaled_where_losses_are_and_the_recipe_says_so():
    net = Net(0.0)
    plain = term(net, Smoothing(size=0.5)).item()
    assert term(net, Smoothing(size=0.5), scaled=True).item() == pytest.approx(plain / math.log(3))
    unscaled = Smoothing(size=0.5, scaled=False)
    assert term(net, unscaled, scaled=True).item() == pytest.approx(plain)


def test_regressions_and_a_weight_of_zero_have_no_term_and_no_second_pass():
    net = Net(0.0)
    outputs = net()
    regression = Task(name="urgency", kind="regression", range=(0.0, 1.0))
    assert term(net, Smoothing(), task=regression, outputs=outputs[:, :1]).item() == 0.0
    assert term(net, Smoothing(weight=0.0), outputs=outputs).item() == 0.0
    assert net.runs == [(False, True)]


def test_without_dropout_both_answers_are_computed_anew_with_it_off():
    net = Net(0.3)
    part = net.trunk.layers[0].eval()  # one that was in evaluation mode before stays in it
    term(net, Smoothing(dropout=False))
    assert net.runs == [(False, True), (False, False), (True, False)]
    assert net.training
    assert net.head.training
    assert not part.training
    with pytest.raises(KeyError), without_dropout(net):
        raise KeyError
    assert net.training


def test_noise_does_not_touch_the_pass_that_the_loss_comes_from():
    net = Net(0.0)
    torch.testing.assert_close(net(), net(lambda words: words), rtol=0, atol=0)
    assert not torch.equal(net(), net(Noise(Smoothing(size=1e-2))))


@pytest.mark.parametrize("noise", ["uniform", "normal"])
def test_noise_has_its_size_and_comes_from_its_generator(noise):
    smoothing = Smoothing(size=0.25, noise=noise)
    words = torch.zeros(50, 40, 16)
    made = [Noise(smoothing, torch.Generator().manual_seed(5))(words) for _ in range(2)]
    assert torch.equal(*made)
    deviation = 0.25 / math.sqrt(3) if noise == "uniform" else 0.25
    assert float(made[0].std()) == pytest.approx(deviation, rel=0.02)
    assert float(made[0].mean()) == pytest.approx(0.0, abs=0.01)
    if noise == "uniform":
        assert float(made[0].abs().max()) <= 0.25
    again = Noise(smoothing, torch.Generator().manual_seed(5))
    assert not torch.equal(again(words), again(words))


def test_noise_stands_before_segments_positions_and_norm():
    """Equal to a trunk whose word table holds the changed vectors."""
    net = Net(0.0)
    added = torch.randn(TEXTS.shape[0], TEXTS.shape[1], net.trunk.architecture.width)
    found = net.trunk.embed(TEXTS, noise=lambda words: words + added)
    other = copy.deepcopy(net.trunk)
    other.embeddings.word = nn.Embedding.from_pretrained((net.trunk.embeddings.word(TEXTS) + added).flatten(0, 1))
    ids, embed = torch.arange(TEXTS.numel()).view(TEXTS.shape), other.embeddings
    torch.testing.assert_close(found, embed(ids), rtol=0, atol=0)


def test_detached_word_vectors_learn_from_the_plain_pass_alone():
    """With `both` off too, nothing reaches the word table, while everything above it learns."""
    net, smoothing = Net(0.0), Smoothing(size=0.5, both=False)
    found = gradients(net, term(net, smoothing))
    assert found["trunk.embeddings.word.weight"] is None
    assert found["trunk.embeddings.position.weight"].abs().sum() > 0
    assert found["head.output.weight"].abs().sum() > 0
    attached = msgspec.structs.replace(smoothing, detached=False)
    assert gradients(net, term(net, attached))["trunk.embeddings.word.weight"].abs().sum() > 0
    plain = msgspec.structs.replace(smoothing, both=True)
    assert gradients(net, term(net, plain))["trunk.embeddings.word.weight"].abs().sum() > 0


@pytest.mark.parametrize("both", [True, False])
def test_the_gradient_flows_through_the_answers_that_the_recipe_says(both):
    outputs, noisy = (torch.randn(2, 3, requires_grad=True) for _ in range(2))
    value = smoothed(
        Smoothing(both=both), TASK, outputs, BATCH, run=lambda noise: noisy, module=nn.Identity(), scaled=False
    )
    value.backward()
    assert (outputs.grad is not None) == both
    assert noisy.grad.abs().sum() > 0


def heads():
    generator = torch.Generator().manual_seed(2)
    return nn.ModuleList([OutputHead(6, 5, generator=generator), OutputHead(6, 1, hidden=4, generator=generator)])


def test_heads_use_and_keep_a_matrix_of_spectral_norm_one():
    made, inputs = heads(), torch.randn(7, 6)
    drawn_matrix = made[0].output.weight.detach().clone()
    normalise_heads(made)
    normalise_heads(made)  # nothing more happens the second time
    used = made[0].output.weight
    assert torch.linalg.svdvals(used)[0].item() == pytest.approx(1.0, abs=1e-6)
    assert torch.linalg.svdvals(made[1].output.weight)[0].item() == pytest.approx(1.0, abs=1e-6)
    torch.testing.assert_close(used, drawn_matrix / torch.linalg.svdvals(drawn_matrix)[0])
    answers = [head(inputs).detach() for head in made]
    settle_heads(made)
    settle_heads(made)
    assert {name for name, _ in made.named_parameters()} == {name for name, _ in heads().named_parameters()}
    for head, before in zip(made, answers, strict=True):
        torch.testing.assert_close(head(inputs).detach(), before, rtol=0, atol=0)


def test_normalised_heads_learn_and_stay_normalised():
    """The drawn matrix moves; what is used keeps its norm, and no gradient goes along the drawn matrix itself."""
    torch.manual_seed(0)
    made, inputs, wanted = heads()[:1], torch.randn(64, 6), torch.arange(64) % 5
    normalise_heads(made)
    optimizer, losses = torch.optim.SGD(made.parameters(), lr=0.5), []
    drawn_matrix = made[0].output.parametrizations.weight.original
    for _ in range(30):
        optimizer.zero_grad()
        loss = functional.cross_entropy(made[0](inputs), wanted)
        loss.backward()
        assert (drawn_matrix.grad * drawn_matrix).sum().item() == pytest.approx(0.0, abs=1e-6)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert torch.linalg.matrix_norm(made[0].output.weight, ord=2).item() == pytest.approx(1.0, abs=1e-6)


def test_the_gradient_is_that_of_the_spectral_norm():
    made, inputs = heads()[:1], torch.randn(7, 6)
    weight = made[0].output.weight.detach().clone().requires_grad_()
    normalise_heads(made)
    made[0](inputs).square().sum().backward()
    used = weight / torch.linalg.matrix_norm(weight, ord=2)
    functional.linear(inputs, used, made[0].output.bias).square().sum().backward()
    torch.testing.assert_close(made[0].output.parametrizations.weight.original.grad, weight.grad)


def test_normalised_heads_go_on_from_a_saved_state():
    """The state of a run that was stopped fits a module that was made the same way."""
    one, other = heads(), heads()
    for made in (one, other):
        normalise_heads(made)
    with torch.no_grad():
        one[0].output.parametrizations.weight.original.mul_(2.0).add_(0.1)
    other.load_state_dict(one.state_dict())
    torch.testing.assert_close(other[0].output.weight, one[0].output.weight, rtol=0, atol=0)


def test_a_matrix_of_zeros_stays_one():
    made = OutputHead(6, 5)
    nn.init.zeros_(made.output.weight)
    normalise_heads(made)
    assert parametrize.is_parametrized(made.output, "weight")
    assert not made.output.weight.any()
