"""Texts to label next: unsure ones, of each sort one; at first typical ones."""

import numpy as np

from polyhead.check.active_learning import first_texts, next_texts

SORTS, SIZE = 5, 40


def sorts(seed=1):
    """Vectors around five directions, one sort after the other."""
    generator = np.random.default_rng(seed)
    centres = np.eye(SORTS, 16)
    return np.repeat(centres, SIZE, axis=0) + 0.05 * generator.normal(size=(SORTS * SIZE, 16))


def test_the_first_texts_are_one_of_each_sort():
    chosen = first_texts(sorts(), SORTS, np.random.default_rng(3))
    assert sorted(index // SIZE for index in chosen) == list(range(SORTS))


def test_texts_that_come_next_are_unsure_unlabelled_and_of_different_sorts():
    vectors, labelled = sorts(), np.zeros(SORTS * SIZE, bool)
    labelled[::4] = True
    sure = np.full(len(vectors), 0.99)
    unsure = [i for i in range(len(vectors)) if i % 4 == 1]
    sure[unsure] = 0.55
    probabilities = np.stack([sure, 1 - sure], axis=1)
    chosen = next_texts(vectors, probabilities, labelled, SORTS, np.random.default_rng(3))
    assert set(chosen) <= set(unsure) and len(set(chosen)) == SORTS
    assert sorted(index // SIZE for index in chosen) == list(range(SORTS))


def test_the_most_unsure_comes_first_and_fewer_texts_than_asked_are_all_chosen():
    sure = np.linspace(0.5, 0.9, 6)
    probabilities = np.stack([sure, 1 - sure], axis=1)
    labelled = np.array([False, True, False, False, True, False])
    chosen = next_texts(np.eye(6), probabilities, labelled, 10, np.random.default_rng(0))
    assert chosen == [0, 2, 3, 5]
    assert next_texts(np.eye(6), probabilities, np.ones(6, bool), 3, np.random.default_rng(0)) == []


def test_the_same_seed_chooses_the_same_texts_and_equal_texts_are_no_failure():
    vectors = np.ones((30, 4))
    first = first_texts(vectors, 7, np.random.default_rng(5))
    assert first == first_texts(vectors, 7, np.random.default_rng(5)) and len(set(first)) == 7
