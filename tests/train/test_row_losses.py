"""The losses of linear heads against torch: values, gradients by autograd, and second derivatives."""

import numpy as np
import pytest
import torch

from polyhead.deep.loop.loss import LOSSES
from polyhead.train.heads.losses import curvatures, row_losses

NAMES = ("cross_entropy", "soft", "binary_cross_entropy", "squared_error", "ranking")
ROWS = 24


def drawn(name):
    """The loss, outputs, targets and how many labels its mean in torch is over."""
    chance = np.random.default_rng(3)
    count = 1 if name in ("ranking", "squared_error") else 4
    soft = chance.dirichlet(np.ones(4), size=ROWS)
    targets = {
        "cross_entropy": np.arange(ROWS) % 4,
        "soft": soft,
        "weighed": soft * (np.arange(ROWS) % 3 / 2)[:, None],  # rows that count nothing, half and fully
        "binary_cross_entropy": (chance.random((ROWS, 4)) < 0.3).astype(float),
        "squared_error": chance.random(ROWS),
        "ranking": np.stack([np.arange(ROWS) // 3, np.arange(ROWS) % 3 == 0], axis=1).astype(np.int64),
    }[name]
    loss = "cross_entropy" if name in ("soft", "weighed") else name
    return loss, chance.normal(scale=3, size=(ROWS, count)), targets, count if "binary" in name else 1


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        *((name, None) for name in (*NAMES, "weighed")),
        *((name, np.array([1.0, 3.0, 0.5, 2.0])) for name in (*NAMES[:3], "weighed")),
    ],
)
def test_loss_and_gradient_are_those_of_torch(name, weights):
    loss, outputs, targets, labels = drawn(name)
    found = row_losses(loss, outputs, targets, weights)
    theirs = torch.from_numpy(outputs).requires_grad_()
    of_labels = None if weights is None else torch.from_numpy(weights)
    expected = LOSSES[loss](theirs, torch.from_numpy(targets), of_labels) * labels
    (gradient,) = torch.autograd.grad(expected, theirs)
    assert found.mean == pytest.approx(expected.item(), rel=1e-9)
    np.testing.assert_allclose(found.gradients / found.total, gradient.numpy(), atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_outputs_far_from_each_other_have_finite_losses(name):
    loss, outputs, targets, _ = drawn(name)
    found = row_losses(loss, np.float32(1e4) * outputs.astype(np.float32), targets, None)
    assert np.isfinite(found.losses).all() and np.isfinite(found.gradients).all()


@pytest.mark.parametrize("name", NAMES)
def test_curvatures_are_the_diagonal_of_the_second_derivative(name):
    """By autograd, added up over the rows; of the options of an example, each one's own."""
    loss, outputs, targets, labels = drawn(name)
    weights = np.array([1.0, 3.0, 0.5, 2.0]) if "binary" in name else None
    of_labels = None if weights is None else torch.from_numpy(weights)

    def mean_loss(rows):
        return LOSSES[loss](rows.view(outputs.shape), torch.from_numpy(targets), of_labels) * labels

    hessian = torch.autograd.functional.hessian(mean_loss, torch.from_numpy(outputs).flatten())
    second = hessian.diagonal().view(outputs.shape).sum(dim=0)
    np.testing.assert_allclose(curvatures(loss, outputs, targets, weights), second.numpy(), rtol=1e-6)
