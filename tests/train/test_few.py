"""Heads of few labels: what labels' words say, and heads that are learned again and again."""

import numpy as np
import pytest
import torch

from polyhead.check.active_learning import LabelFile, Text
from polyhead.project.tables import TrunkChoice
from polyhead.tasks.task import Task
from polyhead.train.heads import inputs as head_inputs
from polyhead.train.heads.active_learning import Labelling, _fitting
from polyhead.train.heads.held_out import FewLabels
from polyhead.train.heads.label_words import centred, sentences
from polyhead.train.heads.linear import Inputs
from polyhead.train.heads.search import solutions
from support import tiny_project
from support.cases import cases


def inputs(prior=None, seed=1):
    generator = torch.Generator().manual_seed(seed)
    values = torch.nn.functional.normalize(torch.randn(24, 6, generator=generator), dim=1).numpy()
    targets = torch.randint(3, (24,), generator=generator).numpy()
    return Inputs(values=values, targets=targets, members=np.arange(24), loss="cross_entropy", outputs=3, prior=prior)


def test_a_strong_penalty_leaves_the_weights_at_the_prior_and_a_weak_one_does_not():
    prior = np.random.default_rng(4).normal(size=(3, 6)).astype(np.float32)
    strong, weak = solutions(inputs(prior), penalties=(1e6, 1e-3))
    np.testing.assert_allclose(strong.weight, prior, atol=1e-4, rtol=0)
    assert abs(weak.weight - prior).max() > 0.5


def test_weights_with_a_prior_are_those_without_that_learn_from_shifted_outputs():
    """`min L(V W + b) + p/2 |W - P|^2` is `min L(V D + V P + b) + p/2 |D|^2` with W = D + P: its gradient is zero."""
    prior = np.random.default_rng(4).normal(size=(3, 6)).astype(np.float32)
    given = inputs(prior)
    (solution,) = solutions(given, penalties=(0.1,))
    weight = torch.from_numpy(solution.weight).double().requires_grad_()
    outputs = torch.from_numpy(given.values).double() @ weight.T + torch.from_numpy(solution.bias).double()
    loss = torch.nn.functional.cross_entropy(outputs, torch.from_numpy(given.targets))
    loss = loss + 0.05 * (weight - torch.from_numpy(prior).double()).square().sum()
    (gradient,) = torch.autograd.grad(loss, weight)
    assert float(gradient.abs().max()) < 1e-3


def test_labels_are_read_as_words():
    task = Task(name="t", kind="single_label", labels=("card_arrival", "RateBook", "Sci/Tech", "top-up"))
    assert [text for (text,) in sentences(task)] == [
        "This text is about card arrival.",
        "This text is about Rate Book.",
        "This text is about Sci Tech.",
        "This text is about top up.",
    ]


def test_weights_of_words_have_mean_zero_and_mean_length_one_and_equal_words_have_none():
    values = np.array([[3.0, 0.0, 1.0], [0.0, 2.0, 1.0]], np.float32)
    weights = centred(values)
    np.testing.assert_allclose(weights.sum(axis=0), 0, atol=1e-6)
    assert float(np.linalg.norm(weights, axis=1).mean()) == pytest.approx(1.0)
    assert centred(np.ones((2, 3), np.float32)) is None


def clusters(count=300, seed=2):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, count)
    values = np.eye(3, 8)[labels] + 0.35 * generator.normal(size=(count, 8))
    return values.astype(np.float32), labels


def test_a_head_of_few_labels_answers_the_rest_and_says_how_often_it_is_right():
    values, labels = clusters()
    rows = list(range(45))
    learned = FewLabels(values, 3, None).learn(rows, labels[:45].tolist())
    right = (learned.probabilities.argmax(axis=1) == labels)[45:].mean()
    assert right > 0.85
    assert learned.accuracy == pytest.approx(right, abs=0.1)
    np.testing.assert_allclose(learned.probabilities.sum(axis=1), 1.0)


def test_a_true_prior_helps_where_labels_are_few_and_a_false_one_is_outweighed():
    values, labels = clusters()
    rows = [int(np.flatnonzero(labels == label)[i]) for label in range(3) for i in range(3)]
    own = labels[rows].tolist()
    true, false = centred(np.eye(3, 8, dtype=np.float32)), centred(np.eye(3, 8, dtype=np.float32)[[1, 2, 0]])
    scores = {
        name: (FewLabels(values, 3, prior).learn(rows, own).probabilities.argmax(axis=1) == labels).mean()
        for name, prior in {"none": None, "true": true, "false": false}.items()
    }
    assert scores["true"] >= scores["none"]
    assert scores["true"] > 0.9
    assert scores["false"] > scores["none"] - 0.1


def test_labels_of_which_none_has_a_second_row_are_learned_from_without_folds():
    values, labels = clusters()
    rows = [int(np.flatnonzero(labels == label)[0]) for label in range(3)]
    learned = FewLabels(values, 3, None).learn(rows, [0, 1, 2])
    assert learned.accuracy is None and np.isfinite(learned.probabilities).all()


def test_of_more_texts_than_fit_into_memory_those_with_labels_are_read_and_each_has_its_own_vector(
    tmp_path, monkeypatch
):
    """Vectors of some texts were taken for those of the first ones."""
    tiny_project.write_trunk(tmp_path / "trunk")
    rows = tiny_project.messages(40)
    texts = [Text(row=i, text=row["text"], label=row["mood"] if i < 8 else None) for i, row in enumerate(rows)]
    labellings = []
    for most in (2**28, 20 * 16):
        monkeypatch.setattr(head_inputs, "MOST_NUMBERS", most)
        labelling = Labelling(texts, ("good", "bad"), LabelFile(tmp_path / f"{most}.jsonl"))
        labelling.encode(TrunkChoice(name=str(tmp_path / "trunk")), tmp_path / "cache", str)
        labellings.append(labelling)
    whole, some = labellings
    kept = [text.row for text in some.texts]
    assert len(whole.texts) == 40 and len(kept) == 20 and kept == sorted(kept) and set(range(8)) < set(kept)
    assert (some._head.values == whole._head.values[kept]).all()
    assert some.learn(seed=1).labels == 8
    chosen = some.chosen(5, seed=1)
    assert len(chosen) == 5 and all(text in some.texts and text.label is None for text in chosen)


@cases(
    ("labelled", "others", "most", "wanted"),
    [(8, 32, 20, (8, 12)), (30, 10, 20, (10, 10)), (36, 4, 20, (16, 4)), (40, 0, 20, (20, 0)), (0, 40, 20, (0, 20))],
    ids=str,
)
def test_of_more_texts_than_are_read_at_once_open_ones_are_left_to_ask_for(labelled, others, most, wanted):
    """The first labelled texts were taken, and no open one, where labelled ones alone were too many."""
    texts = [Text(row=row, text=str(row)) for row in range(labelled + others)]
    rows = [text.row for text in _fitting(texts, range(labelled), most)]
    assert rows == sorted(set(rows))
    assert (sum(row < labelled for row in rows), sum(row >= labelled for row in rows)) == wanted
    assert wanted[0] < 2 or max(row for row in rows if row < labelled) == labelled - 1  # spaced over all
