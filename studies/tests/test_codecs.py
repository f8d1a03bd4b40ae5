"""The study of codecs: values in memory as a store gives them, losses by paired seeds, and claims that rows decide."""

import numpy as np
import pytest

from polyhead.plan import Codec
from polyhead.plan.coding import through
from studies.codecs import run, run_vector
from studies.codecs.kept import Values

SCORES = {"float16": 0.80, "uint8": 0.80, "sign": 0.77, "pca1": 0.79, "token1": 0.799}


def codec_rows(**change):
    """A row of every run; a codec scores the same on every task, but for a part of the seed that all share."""
    return [
        {"task": task, "codec": codec, "seed": seed, "test": score + seed / 1000}
        for task in run.TASKS
        for codec, score in {**SCORES, **change}.items()
        for seed in run.SEEDS
    ]


@pytest.fixture
def values():
    lengths = np.array([3, 1, 5, 2])
    numbers = np.random.default_rng(0).standard_normal((lengths.sum(), 4)).astype(np.float32)
    return Values(values=numbers, lengths=lengths, tokens=np.arange(lengths.sum()))


def test_texts_are_taken_padded_in_the_order_asked(values):
    taken = values.take([2, 0, 2])
    assert taken.values.shape == (3, 5, 1, 4) and taken.mask.sum(axis=1).tolist() == [5, 3, 5]
    np.testing.assert_array_equal(taken.values[1, :3, 0], values.values[:3])
    np.testing.assert_array_equal(taken.values[0, :, 0], values.values[4:9])
    assert not taken.values[1, 3:].any()


def test_a_vector_is_the_mean_of_its_tokens_and_a_codec_is_that_of_the_store(values):
    means = values.means()
    assert means.lengths.tolist() == [1, 1, 1, 1] and (means.tokens == -1).all()
    np.testing.assert_allclose(means.values[2], values.values[4:9].mean(axis=0), rtol=1e-6)
    codec = Codec(name="float16")
    np.testing.assert_array_equal(values.coded(codec).values, through(values.values, codec))


def test_losses_are_between_runs_of_one_seed():
    lost = run.losses(codec_rows(), "sign")
    assert set(lost) == set(run.TASKS)
    assert all(by_seed == pytest.approx(dict.fromkeys(run.SEEDS, 3.0)) for by_seed in lost.values())
    assert run.losses([row for row in codec_rows() if row["codec"] != "float16"], "sign") == {}


@pytest.mark.parametrize(("score", "holds"), [(0.796, True), (0.79, False)])
def test_a_claim_says_what_was_lost_whether_it_holds_or_not(score, holds):
    claims = {claim.id: claim for claim in run.claims(codec_rows(token1=score))}
    assert set(claims) == {"store.codec-uint8", "store.codec-one-bit", "store.codec-best", "store.codec-pca1"}
    best = claims["store.codec-best"]
    assert (best.value, best.target, best.holds) == (pytest.approx(80 - 100 * score), 0.5, holds)
    assert not claims["store.codec-one-bit"].holds and claims["store.codec-uint8"].value == 0
    assert all(task in best.note for task in run.TASKS)


def test_runs_that_lack_are_named():
    assert run.lacking(codec_rows()) == []
    rows = [row for row in codec_rows() if (row["task"], row["codec"], row["seed"]) != ("irony", "sign", 3)]
    assert run.lacking(rows) == ["irony, sign: 9 of 10 seeds"]


@pytest.mark.parametrize("gain", [0.02, -0.02])
def test_every_token_is_held_against_the_better_vector(gain):
    tests = {run_vector.TOKENS: 0.7 + gain, run_vector.VECTOR: 0.7, run_vector.LAST_VECTOR: 0.6}
    rows = [
        {"task": task, "method": method, "seed": seed, "test": test, "document_bytes": 480 if test > 0.7 else 768}
        for task in run_vector.TASKS
        for method, test in tests.items()
        for seed in run_vector.SEEDS
    ]
    assert run_vector.lacking(rows) == []
    points, size = run_vector.claims(rows)
    assert (points.value, points.holds) == (pytest.approx(100 * gain), gain > 0)
    assert size.id == "store.pooled-vector-bytes" and run_vector.VECTOR in points.text
    assert run_vector.claims(rows[:3]) == []
