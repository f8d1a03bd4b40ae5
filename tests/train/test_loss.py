"""Losses over options and over places, against torch's cross entropy row by row and against transformers."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from polyhead.deep.loop.loss import (
    LOSSES,
    UNLABELLED,
    by_example,
    competing,
    options_of,
    place_counts,
    ranking_each,
    span_each,
)
from polyhead.train.data.batches import without_unread
from support.cases import cases


def questions(seed):
    """Scores of some questions' options, and which option of each is right."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(2, 6, int(rng.integers(1, 7)))
    scores = [torch.from_numpy(rng.normal(size=n)) for n in counts]
    right = [int(rng.integers(n)) for n in counts]
    rows = [(i, int(option == right[i])) for i, n in enumerate(counts) for option in range(n)]
    return scores, right, torch.cat(scores)[:, None].requires_grad_(), torch.tensor(rows)


@cases("seed", range(10))
def test_ranking_is_cross_entropy_over_padded_options(seed):
    scores, right, outputs, targets = questions(seed)
    padded = torch.nn.utils.rnn.pad_sequence(scores, batch_first=True, padding_value=-torch.inf).requires_grad_()
    expected = functional.cross_entropy(padded, torch.tensor(right))
    found = LOSSES["ranking"](outputs, targets, None)
    torch.testing.assert_close(found, expected)
    expected.backward()
    found.backward()
    flat = torch.cat([row[: len(own)] for row, own in zip(padded.grad, scores, strict=True)])
    torch.testing.assert_close(outputs.grad[:, 0], flat)
    assert options_of(targets).tolist() == [len(own) for own in scores]
    each = [functional.cross_entropy(own, torch.tensor(r)) for own, r in zip(scores, right, strict=True)]
    torch.testing.assert_close(ranking_each(outputs, targets), torch.stack(each))
    shares = torch.softmax(by_example(outputs[:, 0], targets), dim=1).sum(dim=1)
    torch.testing.assert_close(shares, torch.ones_like(shares))


def test_a_uniform_guess_loses_the_log_of_the_options():
    targets = torch.tensor([[0, 1], [0, 0], [1, 0], [1, 0], [1, 1]])
    found = ranking_each(torch.full((5, 1), 7.0), targets)
    torch.testing.assert_close(found, torch.tensor([2.0, 3.0]).log())


ANSWERS = (((1, 3, 0, 0),), ((0, 0, 0, 0),), ((2, 2, 0, 0), (1, 1, 0, 0)), ((4, 5, 0, 0),), ((1, 2, 0, 0),))
UNREAD = ([], [3], [1], [5], [2, 3, 4])  # the ends of the last two are cut away


def passages():
    """Outputs of five texts of four to six places, some unread, their answers, and the padded targets."""
    rng = np.random.default_rng(3)
    sizes = (4, 4, 5, 6, 6)
    outputs = torch.from_numpy(rng.normal(size=(5, 6, 2))).requires_grad_()
    marks = []
    for size, answers, unread in zip(sizes, ANSWERS, UNREAD, strict=True):
        there = np.isin(np.arange(size), unread)
        marks.append(without_unread(np.array(answers, np.int64), there))
    padded = np.full((5, 6, 2), UNLABELLED)
    for row, one in enumerate(marks):
        padded[row, : len(one)] = one
    return outputs, torch.from_numpy(padded), sizes


def test_span_is_the_mean_of_two_cross_entropies_over_the_places_that_were_read():
    outputs, targets, sizes = passages()
    each, counted = span_each(outputs, targets)
    assert counted.tolist() == [True, True, True, False, False]
    assert place_counts(targets).tolist() == [4, 3, 4, 5, 3]
    for row in range(3):
        read = [place for place in range(sizes[row]) if place not in UNREAD[row]]
        first, last = ANSWERS[row][0][:2]
        expected = sum(
            functional.cross_entropy(outputs[row, read, end], torch.tensor(read.index(place)))
            for end, place in enumerate((first, last))
        )
        torch.testing.assert_close(each[row], expected / 2)
    found = LOSSES["span_cross_entropy"](outputs, targets, None)
    torch.testing.assert_close(found, each[:3].mean())
    found.backward()
    assert outputs.grad.isfinite().all()
    assert not outputs.grad[3:].any() and not outputs.grad[targets == UNLABELLED].any()
    assert outputs.grad[:3][targets[:3] != UNLABELLED].all()
    shares = torch.softmax(competing(outputs, targets), dim=1)
    torch.testing.assert_close(shares.sum(dim=1), torch.ones(5, 2, dtype=torch.float64))
    assert not shares[targets == UNLABELLED].any()


def test_a_batch_whose_answers_are_all_cut_away_has_no_loss():
    outputs, targets, _ = passages()
    value = LOSSES["span_cross_entropy"](outputs[3:], targets[3:], None)
    value.backward()
    assert float(value.detach()) == 0.0 and not outputs.grad.any()


def test_one_end_alone_teaches_nothing():
    target = np.array([(1, 2, 0, 0)], np.int64)
    assert without_unread(target, np.array([False, False, True])).tolist() == [[0, 0], [0, 0], [UNLABELLED] * 2]
    assert without_unread(target, np.array([False, False, False])).tolist() == [[0, 0], [1, 0], [0, 1]]


def test_span_equals_the_loss_of_transformers_where_every_token_is_a_place():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    torch.manual_seed(0)
    model = transformers.BertForQuestionAnswering(config).eval()
    first, last = torch.tensor([0, 3, 2]), torch.tensor([0, 5, 2])
    answer = model(torch.randint(0, 30, (3, 7)), start_positions=first, end_positions=last)
    outputs = torch.stack([answer.start_logits, answer.end_logits], dim=2)
    places = torch.arange(7)[:, None]
    targets = torch.stack([(places == torch.stack([a, b])).long() for a, b in zip(first, last, strict=True)])
    torch.testing.assert_close(LOSSES["span_cross_entropy"](outputs, targets, None), answer.loss)
