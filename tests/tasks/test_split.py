"""Held-out rows: the same for the same seed, in proportion, and never an input on both sides."""

from collections import Counter

import numpy as np
import pytest

from polyhead.errors import EmptyData
from polyhead.tasks.read import Examples, ReadReport
from polyhead.tasks.split import split
from polyhead.tasks.task import Task

TASK = Task(name="t", kind="single_label", labels=("a", "b", "c"))


def examples(inputs, labels=None):
    labels = labels if labels is not None else [0] * len(inputs)
    return Examples(
        inputs=inputs,
        targets=[np.asarray(label) for label in labels],
        words=None,
        rows=list(range(1, len(inputs) + 1)),
        report=ReadReport(rows=len(inputs), used=len(inputs)),
    )


def many(seed, rows=400):
    rng = np.random.default_rng(seed)
    labels = rng.choice(3, rows, p=[0.8, 0.15, 0.05])
    return examples([(f"text {rng.integers(0, 3 * rows)}",) for _ in range(rows)], labels)


def sides(given, fraction=0.2, seed=1, task=TASK):
    kept, held = split(given, fraction, seed, task)
    assert sorted(kept.rows + held.rows) == given.rows
    assert kept.rows == sorted(kept.rows)
    assert held.rows == sorted(held.rows)
    return kept, held


@pytest.mark.parametrize("seed", range(10))
def test_each_label_gives_its_share(seed):
    given = many(seed)
    kept, held = sides(given)
    total = Counter(int(target) for target in given.targets)
    found = Counter(int(target) for target in held.targets)
    assert abs(len(held.rows) - 80) <= 4
    for label, count in total.items():
        assert abs(found[label] - 0.2 * count) <= 4
    assert {given.inputs[row - 1] for row in kept.rows} == set(kept.inputs)


def test_the_same_seed_gives_the_same_rows_and_another_does_not():
    assert sides(many(0))[1].rows == sides(many(0))[1].rows
    assert sides(many(0))[1].rows != sides(many(0), seed=2)[1].rows


@pytest.mark.parametrize("seed", range(10))
def test_equal_inputs_never_land_on_both_sides(seed):
    rng = np.random.default_rng(seed)
    pairs = [tuple(rng.choice(["x y", "X  y", "z", "w ", "q"], 2)) for _ in range(60)]
    kept, held = sides(examples(pairs, rng.integers(0, 3, 60)), seed=seed)

    def keys(side):
        return {tuple(sorted(" ".join(text.lower().split()) for text in pair)) for pair in side.inputs}

    assert not keys(kept) & keys(held)


def test_a_label_with_one_input_is_kept():
    given = examples([(str(i),) for i in range(21)], [0] * 20 + [1])
    assert 21 in sides(given, fraction=0.5)[0].rows


def test_words_and_targets_stay_with_their_rows():
    task = Task(name="t", kind="tagging", labels=("O", "B-x"))
    given = examples([(f"w{i}",) for i in range(10)], range(10))
    given = Examples(
        inputs=given.inputs,
        targets=given.targets,
        words=[np.array([[0, i]]) for i in range(10)],
        rows=given.rows,
        report=given.report,
    )
    for side in sides(given, task=task):
        assert [int(target) for target in side.targets] == [row - 1 for row in side.rows]
        assert [int(words[0, 1]) for words in side.words] == [row - 1 for row in side.rows]


@pytest.mark.parametrize("inputs", [[("a",)], [("a",), ("A ",)]], ids=["one", "equal"])
def test_too_few_inputs_are_refused(inputs):
    with pytest.raises(EmptyData, match="too few"):
        split(examples(inputs), 0.5, 1, TASK)
