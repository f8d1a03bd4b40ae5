"""Parts that are trained as one learn what each of them learns alone."""

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from polyhead.deep.heads.stack import StackedCourse, StackedParts
from polyhead.deep.loop.feed import TaskSchedule, TrainingBatch
from polyhead.deep.loop.fit import Course
from polyhead.deep.loop.loss import LOSSES
from polyhead.deep.nn.dropout import own_generator
from polyhead.deep.sharing.part import PooledPart
from polyhead.errors import PlanError
from polyhead.plan import Codec, Embed, Head, Path, Pool, shared_layers
from polyhead.project.recipes import Training
from polyhead.train.data.batches import UNLABELLED, LengthSorted

WIDTH, LABELS = 16, 3
ATTENTION = {"positions": "attention", "heads": 2, "part": "task:a"}
BESIDE = {"layers": "beside", "of": 2, "positions": "mean", "codec": Codec(name="float32", before_mean=True)}
FORMS = {
    "attention": (ATTENTION, {"hidden": 8}),
    "attention without a hidden layer": (ATTENTION, {}),
    "a learned mix of layers": ({**ATTENTION, "layers": "learned"}, {"hidden": 8, "bias": False}),
    "a learned mix at the first position": ({"layers": "learned", "part": "task:a"}, {"hidden": 8}),
    "layers side by side": (BESIDE, {"hidden": 8, "activation": "relu"}),
    "texts that are compared": (ATTENTION, {"hidden": 8, "separate": True}),
    "words with neighbours": ({"positions": "tokens"}, {"hidden": 8, "window": 1}),
}


def path_of(form):
    pool, head = FORMS[form]
    kind = "tagging" if pool.get("positions") == "tokens" else "single_label"
    return Path(
        nodes=(Embed(trunk="x"), *shared_layers(2), Pool(**pool), Head(kind=kind, width=LABELS, part="task:a", **head))
    )


class Drawn(LengthSorted):
    """Rows of drawn numbers of one to seven tokens, and labels that depend on them."""

    def __init__(self, path, count, seed):
        drawn = np.random.default_rng(seed)
        pool, self._path = path.pool, path
        layers = 2 if pool.layers in ("learned", "beside") else 1
        one = pool.positions in ("first", "mean")
        super().__init__(np.ones(count, int) if one else drawn.integers(1, 8, count))
        self._rows = None
        self._values = [drawn.standard_normal((n, layers, WIDTH)).astype(np.float32) for n in self.lengths]
        self._labels = [np.argmax(rows.sum(axis=1)[:, :LABELS], axis=1) for rows in self._values]

    def batch(self, members):
        lengths = self.lengths[members]
        mask = torch.from_numpy(np.arange(lengths.max()) < lengths[:, None])
        values = torch.zeros(*mask.shape, *self._values[0].shape[1:])
        words = torch.full(mask.shape, UNLABELLED)
        for row, member in enumerate(members):
            values[row, : lengths[row]] = torch.from_numpy(self._values[member])
            words[row, : lengths[row]] = torch.from_numpy(self._labels[member])
        arguments = (values, mask)
        if self._path.head.separate:
            arguments = (values, mask, (values.flip(0) * mask.flip(0)[..., None, None], mask.flip(0)))
        targets = words if self._path.pool.positions == "tokens" else words[:, 0]
        return TrainingBatch(arguments=arguments, targets=targets, members=members)


TRAINING = Training(batch=8, epochs=3, dropout=0.2, learning_rate=3e-3, clip=0.5, weight_decay=0.1)


def part(path, seed):
    generator = torch.Generator().manual_seed(seed)
    return PooledPart(path, WIDTH, dropouts=TRAINING.dropouts, generator=generator)


def values_of(module):
    return {name: value.detach().numpy().copy() for name, value in module.state_dict().items()}


def alone(path, examples, seed, rounds):
    """The part after its own run, which knows of no other."""
    module = part(path, seed)
    loss = LOSSES["word_cross_entropy" if path.pool.positions == "tokens" else "cross_entropy"]
    course = Course(module, examples, loss=loss, score=lambda: None, training=TRAINING, last=True)
    with own_generator():
        course.advance(rounds)
    return values_of(module)


def together(path, several, seeds, rounds):
    parts = [part(path, seed) for seed in seeds]
    schedule = TRAINING.schedule(several[0].steps(TRAINING.batch))
    loss = LOSSES["word_cross_entropy" if path.pool.positions == "tokens" else "cross_entropy"]
    feeds = [TaskSchedule(examples, TRAINING, steps=schedule.updates) for examples in several]
    course = StackedCourse(parts, feeds, loss=loss, training=TRAINING, schedule=schedule)
    with own_generator():
        course.advance(rounds)
    course.stack.take_apart()
    return [values_of(own) for own in parts]


@pytest.mark.parametrize("form", FORMS)
def test_each_part_learns_what_it_learns_alone(form):
    """With rows of its own, whose batches have other sizes; dropout, decay and the limit of gradients are its own."""
    path = path_of(form)
    several = [Drawn(path, count, seed) for seed, count in enumerate((40, 37, 34))]
    stacked = together(path, several, (1, 2, 3), rounds=2)
    for seed, (examples, found) in enumerate(zip(several, stacked, strict=True), start=1):
        expected, start = alone(path, examples, seed, 2), values_of(part(path, seed))
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=0, atol=2e-5, err_msg=name)
        moved = [name for name in expected if not np.array_equal(found[name], start[name])]
        assert set(expected) - set(moved) <= {"pool.key.bias"}  # which has no effect


def test_how_many_parts_are_trained_as_one_moves_none_of_them():
    """So the number of threads, each with a stack of its own, decides nothing."""
    path = path_of("attention")
    several = [Drawn(path, 40, seed) for seed in range(3)]
    three = together(path, several, (1, 2, 3), rounds=1)
    two = together(path, several[:2], (1, 2), rounds=1)
    for whole, fewer in zip(three, two, strict=False):
        for name, value in fewer.items():
            np.testing.assert_allclose(whole[name], value, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("form", FORMS)
def test_one_batch_is_read_by_all_parts(form):
    path = path_of(form)
    parts, (batch,) = [part(path, seed).eval() for seed in (1, 2)], [Drawn(path, 6, 0).batch(np.arange(6))]
    outputs = StackedParts(parts).eval()([batch.arguments])
    for own, found in zip(parts, outputs, strict=True):
        torch.testing.assert_close(found, own(*batch.arguments), rtol=0, atol=1e-5)


def test_heads_of_hashed_words_are_refused():
    path = path_of("attention")
    head = Head(kind="single_label", width=LABELS, part="task:a", words=4096)
    own = PooledPart(Path(nodes=(*path.nodes[:-1], head)), WIDTH)
    with pytest.raises(PlanError, match="read hashed words"):
        StackedParts([own, own])
