"""Buckets of distances against the functions of `transformers`, over all distances of long texts."""

import numpy as np
import pytest
import torch

from polyhead.encoder.relative import buckets_of
from polyhead.encoder.shape import Relative

pytest.importorskip("transformers")
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

DISTANCES = np.arange(-1100, 1101)


def test_buckets_of_a_bias_are_those_of_mpnet():
    """Its function takes key - query; ours query - key."""
    ours = buckets_of(Relative(kind="bias", buckets=32, distance=128), DISTANCES)
    theirs = MPNetEncoder.relative_position_bucket(torch.from_numpy(-DISTANCES), num_buckets=32, max_distance=128)
    assert np.array_equal(ours, theirs.numpy())


@pytest.mark.parametrize(("span", "most"), [(256, 512), (16, 64), (8, 1000)])
def test_logarithmic_buckets_are_those_of_deberta(span, most):
    ours = buckets_of(Relative(kind="disentangled", buckets=2 * span, distance=most), DISTANCES)
    theirs = make_log_bucket_position(torch.from_numpy(DISTANCES), span, most).long()
    assert np.array_equal(ours, (theirs + span).clamp(0, 2 * span - 1).numpy())


def test_linear_buckets_are_distances_up_to_the_ends_of_the_table():
    ours = buckets_of(Relative(kind="disentangled", buckets=12, distance=6, logarithmic=False), np.arange(-8, 9))
    assert ours.tolist() == [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 11, 11, 11]
