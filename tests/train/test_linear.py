"""Linear heads: the minimum that scikit-learn finds, the cosine free of penalty, and what is read of examples."""

import sys
import zlib

import msgspec
import numpy as np
import pytest
from scipy.special import expit, softmax
from sklearn.linear_model import LogisticRegression, Ridge
from threadpoolctl import threadpool_limits

from polyhead.data.read import Examples, ReadReport
from polyhead.engine.backends.base import FeatureBatch
from polyhead.plan import Embed, Head, Path, Pool
from polyhead.tasks.task import Task
from polyhead.train.data.batches import LengthSorted, batch_targets, option_rows
from polyhead.train.data.kept_examples import KeptBatch
from polyhead.train.heads import inputs as reading
from polyhead.train.heads import search
from polyhead.train.heads.inputs import inputs_of
from polyhead.train.heads.linear import Inputs, axes_of
from polyhead.train.heads.search import PENALTIES, RISES, fold_solutions, solutions, swept
from polyhead.train.heads.selection_rule import best_penalty
from support import head_search

RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def _own_numbers(request, monkeypatch):
    """What a test draws depends on its name alone."""
    monkeypatch.setattr(sys.modules[__name__], "RNG", np.random.default_rng(zlib.crc32(request.node.name.encode())))


def inputs(values, targets, *, loss="cross_entropy", outputs=3, cosine=None):
    return Inputs(
        values=values, targets=targets, members=np.arange(len(values)), loss=loss, outputs=outputs, cosine=cosine
    )


def clouds(rows=90, width=6, classes=3):
    """Points around one centre a class, so wide that the classes overlap."""
    labels = np.arange(rows) % classes
    centres = RNG.normal(size=(classes, width)) * 1.5
    return (centres[labels] + RNG.normal(size=(rows, width))).astype(np.float32), labels


@pytest.mark.parametrize("penalty", [PENALTIES[1], PENALTIES[4], PENALTIES[7]], ids="penalty {:.2g}".format)
def test_the_solution_is_that_of_scikit_learn(penalty):
    """Its C is 1 / (rows * penalty) on inputs of mean square 1."""
    values, labels = clouds()
    given = inputs(values, labels)
    found = next(one for one in solutions(given) if one.penalty == penalty)
    model = LogisticRegression(C=1 / (len(values) * penalty), tol=1e-8, max_iter=5000)
    model.fit(values / given.scale, labels)
    np.testing.assert_allclose(
        softmax(found.outputs(given), axis=1), model.predict_proba(values / given.scale), atol=2e-3
    )


def noisy(rows, width, classes):
    """Directions of falling size, as an encoder's are, and a fifth of the labels drawn at random."""
    values, labels = clouds(rows, width, classes)
    values = values * (np.arange(1, width + 1) ** -0.7).astype(np.float32) + np.float32(0.3)
    is_drawn = (RNG.random(rows) < 0.2) & (np.arange(rows) >= classes)  # each label keeps a row
    return values, np.where(is_drawn, RNG.integers(0, classes, rows), labels)


def objective(given, weight, bias, penalty):
    """Mean loss and penalty, in float64 by numpy; a row with several labels has the sum of their losses."""
    outputs = given.values.astype(np.float64) / given.scale @ weight.T + bias
    targets = given.targets
    if given.loss == "squared_error":
        losses = (outputs[:, 0] - targets) ** 2
    elif given.loss == "binary_cross_entropy":
        losses = (np.logaddexp(0, outputs) - targets * outputs).sum(axis=1)
    else:
        losses = np.logaddexp.reduce(outputs, axis=1) - outputs[np.arange(len(targets)), targets]
    return losses.mean() + penalty / 2 * (weight**2).sum()


@threadpool_limits.wrap(limits=1)  # on busy cores the threads of thousands of small products wait for one another
def best_of_scikit_learn(given, penalty):
    """Weights and biases that scikit-learn finds, (outputs, inputs) and (outputs,)."""
    values, targets, rows = (given.values.astype(np.float64) / given.scale, given.targets, len(given.values))
    if given.loss == "squared_error":
        model = Ridge(alpha=rows * penalty / 2).fit(values, targets)
        return model.coef_[None], np.array([model.intercept_])
    if given.loss == "binary_cross_entropy":
        models = [LogisticRegression(C=1 / (rows * penalty), tol=1e-7, max_iter=5000).fit(values, t) for t in targets.T]
        return np.concatenate([m.coef_ for m in models]), np.concatenate([m.intercept_ for m in models])
    twice = 2 if given.outputs == 2 else 1  # it has one row of weights for two labels: half of each of ours
    model = LogisticRegression(C=twice / (rows * penalty), tol=1e-7, max_iter=5000).fit(values, targets)
    if given.outputs == 2:
        return np.concatenate([-model.coef_, model.coef_]) / 2, np.concatenate(
            [-model.intercept_, model.intercept_]
        ) / 2
    return model.coef_, model.intercept_


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "outputs", "rows", "width"),
    [
        ("cross_entropy", 2, 24, 32),
        ("cross_entropy", 2, 1000, 48),
        ("cross_entropy", 20, 400, 48),
        ("cross_entropy", 500, 1000, 12),
        ("binary_cross_entropy", 5, 30, 32),
        ("binary_cross_entropy", 48, 400, 32),
        ("squared_error", 1, 300, 48),
    ],
)
def test_every_head_is_as_good_as_that_of_scikit_learn(loss, outputs, rows, width):
    """The least loss and penalty, for the strongest, a middle and a weak penalty; a mean over labels missed it.

    There the loss was a mean over labels: of 48 each had a penalty 48 times as strong as it said.
    """
    values, labels = noisy(rows, width, max(outputs, 2))
    targets = labels
    if loss == "squared_error":
        targets = (values[:, 0] + 0.1 * RNG.normal(size=rows)).astype(np.float32)
    if loss == "binary_cross_entropy":
        targets = np.maximum(np.eye(outputs)[labels], RNG.random((rows, outputs)) < 0.05).astype(np.float32)
        targets[:2] = [[0.0], [1.0]]  # each label is there, and is not
    given = inputs(values, targets, loss=loss, outputs=outputs)
    for found in list(solutions(given))[1::4]:
        weight, bias = found.weight.astype(np.float64) * given.scale, found.bias.astype(np.float64)
        least = objective(given, *best_of_scikit_learn(given, found.penalty), found.penalty)
        assert objective(given, weight, bias, found.penalty) <= least * 1.0005, found.penalty


def test_axes_of_more_rows_change_nothing_but_the_way():
    """They span the rows; with fewer rows than inputs, weights lie in what the rows span."""
    values, labels = noisy(60, 100, 3)
    given, among = inputs(values[:40], labels[:40]), axes_of(inputs(values, labels))
    assert among.directions.shape == (100, 59)
    few = PENALTIES[:8]
    for own, other in zip(solutions(given, few), solutions(given, few, axes=among), strict=True):
        np.testing.assert_allclose(own.outputs(given), other.outputs(given), atol=0.02, rtol=0.01)
    apart = values[:40] - values[:40].mean(axis=0)
    basis = np.linalg.svd(apart, full_matrices=False)[2][:39]
    weight = own.weight
    np.testing.assert_allclose(weight @ basis.T @ basis, weight, atol=1e-3 * abs(weight).max())


def test_rows_that_do_not_differ_are_answered_by_the_shares_of_labels():
    labels = np.array([0, 0, 0, 1, 1, 2])
    given = inputs(np.full((6, 4), 0.5, np.float32), labels)
    for found in solutions(given):
        assert not found.weight.any()
        np.testing.assert_allclose(softmax(found.outputs(given), axis=1)[0], [1 / 2, 1 / 3, 1 / 6], atol=1e-3)


def test_a_label_learns_the_same_whatever_other_labels_there_are():
    values, labels = noisy(300, 16, 4)
    targets = np.eye(4, dtype=np.float32)[labels]
    alone = inputs(values, targets[:, :1].copy(), loss="binary_cross_entropy", outputs=1)
    among = inputs(values, np.tile(targets, 10), loss="binary_cross_entropy", outputs=40)
    for one, several in zip(solutions(alone), solutions(among), strict=True):
        np.testing.assert_allclose(one.outputs(alone)[:, 0], several.outputs(among)[:, 0], atol=0.02, rtol=0.02)


def test_a_sweep_ends_where_losses_of_rows_held_out_rise():
    values, labels = noisy(200, 48, 3)
    whole = inputs(values, labels)
    steps = list(swept([(whole.of(range(100)), whole.of(range(100, 200)))]))
    losses = [float(step.losses.mean()) for step in steps]
    assert len(steps) < len(PENALTIES)
    assert int(np.argmin(losses)) == len(losses) - 1 - RISES
    np.testing.assert_allclose(steps[2].outputs, steps[2].heads[0].outputs(whole.of(range(100, 200))))


def test_of_several_labels_a_penalty_that_gives_more_of_them_rightly_is_kept():
    """The least loss may give no label at all: rare labels stay below a half."""
    task = Task(name="topics", kind="multi_label", labels=("a", "b"))
    targets = [np.array([row % 5 == 0, row % 7 == 0], np.float32) for row in range(200)]
    examples = Examples(inputs=[("",)] * 200, targets=targets, words=None, rows=[*range(200)], report=ReadReport())
    timid = np.stack(targets) * 0.9 - 1.0
    bold = np.stack(targets) * 3 - 1.5
    candidates = [list(outputs.astype(np.float32)) for outputs in (timid, bold)]
    assert best_penalty(task, examples, candidates) == 1
    assert best_penalty(task, examples, candidates[::-1]) == 0
    mood = Task(name="mood", kind="single_label", labels=("a", "b"))
    assert best_penalty(mood, examples, candidates) == 0  # of one label a row the least loss decides


def test_of_spans_the_penalty_that_finds_most_of_them_is_kept():
    """Nearly all words are in no span: with the least loss none was found, and the first of equals is kept."""
    task = Task(name="names", kind="tagging", labels=("O", "B-name"))
    targets = [np.array([row % 5 == 0, False, False, False], np.int64) for row in range(40)]
    words = [np.array([[0, 1], [2, 3], [4, 5], [6, 7]], np.int32)] * 40
    examples = Examples(
        inputs=[("a b c d",)] * 40, targets=targets, words=words, rows=[*range(40)], report=ReadReport()
    )
    logit = [np.stack([np.zeros(4), each * 2.0], axis=1).astype(np.float32) for each in targets]
    timid, bold = [row - np.float32([0, 3]) for row in logit], [row - np.float32([0, 1]) for row in logit]
    assert best_penalty(task, examples, [timid, bold, bold]) == 1
    assert best_penalty(task, examples, [bold, timid]) == 0


def test_the_solution_of_a_regression_is_that_of_ridge_regression():
    values, _ = clouds(rows=50)
    targets = (values[:, 0] * 0.3 + 0.1 * RNG.normal(size=50)).astype(np.float32)
    given = inputs(values, targets, loss="squared_error", outputs=1)
    for found in solutions(given, PENALTIES[:6]):
        # mean (y - f)^2 + p / 2 |w|^2 is, times the rows, Ridge's with alpha = rows p / 2.
        model = Ridge(alpha=len(values) * found.penalty / 2).fit(values / given.scale, targets)
        outputs = found.outputs(given)[:, 0]
        np.testing.assert_allclose(outputs, model.predict(values / given.scale), atol=2e-3)


def test_weaker_penalties_fit_the_rows_better():
    values, labels = clouds()
    given = inputs(values, labels)
    losses = [found.losses(given).mean() for found in solutions(given)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.8 * losses[0]


def test_the_first_solution_of_pairs_reads_the_cosine():
    """Outputs are then a rising line of the cosine, whatever else the rows hold."""
    width = 4
    u, v = (RNG.normal(size=(60, width)) for _ in range(2))
    u, v = (side / np.linalg.norm(side, axis=1, keepdims=True) * np.sqrt(width) for side in (u, v))
    compared = np.concatenate([u, v, abs(u - v), u * v], axis=1).astype(np.float32)
    cosine = (u * v).sum(axis=1) / width
    targets = (0.5 + 0.4 * cosine).astype(np.float32)
    given = inputs(compared, targets, loss="squared_error", outputs=1, cosine=3 * width)
    found = next(solutions(given))
    outputs = found.outputs(given)[:, 0]
    np.testing.assert_allclose(outputs, targets, atol=1e-3)


def test_the_cosine_alone_is_the_logistic_regression_of_scikit_learn():
    width, labels = 4, np.arange(60) % 3
    u, v = (RNG.normal(size=(60, width)) for _ in range(2))
    v += labels[:, None] * u
    u, v = (side / np.linalg.norm(side, axis=1, keepdims=True) * np.sqrt(width) for side in (u, v))
    compared = np.concatenate([u, v, abs(u - v), u * v], axis=1).astype(np.float32)
    cosine = (u * v).sum(axis=1, keepdims=True) / width
    found = next(solutions(inputs(compared, labels, cosine=3 * width)))
    outputs = compared @ found.weight.T + found.bias
    model = LogisticRegression(tol=1e-8).fit(cosine, labels)
    np.testing.assert_allclose(softmax(outputs, axis=1), model.predict_proba(cosine), atol=2e-3)


@pytest.mark.parametrize("loss", ["cross_entropy", "binary_cross_entropy"])
def test_label_weights_are_those_of_the_loss(loss):
    values, labels = clouds()
    weights = np.array([1.0, 4.0, 0.5], np.float32)
    targets = labels if loss == "cross_entropy" else np.eye(3, dtype=np.float32)[labels]
    given = msgspec.structs.replace(inputs(values, targets, loss=loss), weights=weights)
    found = next(one for one in solutions(given) if one.penalty == PENALTIES[4])
    if loss == "cross_entropy":  # torch divides by the sum of the weights of the rows
        each = np.array([1.0, 4.0, 0.5])[labels]
        model = LogisticRegression(C=1 / (each.sum() * found.penalty), tol=1e-8, max_iter=5000)
        model.fit(values / given.scale, labels, sample_weight=each)
        shares = softmax(found.outputs(given), axis=1)
        np.testing.assert_allclose(shares, model.predict_proba(values / given.scale), atol=2e-3)
        return
    for label, weight in enumerate(weights.tolist()):  # each label has a loss of its own
        here = labels == label
        each = np.where(here, weight, 1.0)
        model = LogisticRegression(C=1 / (len(values) * found.penalty), tol=1e-8, max_iter=5000)
        model.fit(values / given.scale, here, sample_weight=each)
        shares = expit(given.values @ found.weight[label] + found.bias[label])
        np.testing.assert_allclose(shares, model.predict_proba(values / given.scale)[:, 1], atol=2e-3)


def test_options_of_some_of_the_examples_are_read_where_all_are_too_many(monkeypatch):
    """Examples that were left out counted as ones without options."""
    given = inputs_of(READS, Questions(600), loss="ranking", outputs=1)
    monkeypatch.setattr(reading, "MOST_NUMBERS", 300 * OPTIONS * WIDTH)
    some = inputs_of(READS, Questions(600), loss="ranking", outputs=1)
    assert len(given.values) == 600 * OPTIONS and len(some.values) == 300 * OPTIONS
    losses = [list(solutions(one))[-1].losses(one) for one in (given, some)]
    assert [len(each) for each in losses] == [600, 300]
    assert all(0 <= each.mean() < 0.5 for each in losses)


def test_of_fewer_examples_all_are_among_the_more_that_a_narrower_head_reads_and_stand_everywhere(monkeypatch):
    """Evenly spaced ones of two heads met in few places, all of them near each other."""
    read = []
    for most in (200, 300, 301):
        monkeypatch.setattr(reading, "MOST_NUMBERS", most * OPTIONS * WIDTH)
        members = inputs_of(READS, Questions(600), loss="ranking", outputs=1).examples
        assert len(members) == most and (np.diff(members) > 0).all()
        read.append(set(members.tolist()))
    assert read[0] < read[1] < read[2]
    assert all(20 < len(read[0] & set(range(start, start + 150))) < 80 for start in range(0, 600, 150))


def test_words_of_a_text_that_two_heads_read_in_part_are_told_apart():
    """Of a text in windows a wide head may read one, a narrow one two: losses could not be compared."""
    words = inputs(np.ones((4, 2), np.float32), np.zeros(4, np.int64))
    words = msgspec.structs.replace(words, members=np.array([0, 0, 1, 1]), places=np.array([0, 7, 0, 7]))
    some = msgspec.structs.replace(words.of([1]), places=np.array([0, 9]))
    assert np.isin(words.examples, some.examples).tolist() == [False, False, True, False]


OPTIONS, WIDTH = 4, 16
READS = Path(nodes=(Embed(trunk="t"), Pool(positions="mean"), Head(kind="multiple_choice", width=1, part="task:t")))


class Questions(LengthSorted[KeptBatch]):
    """Questions whose right option is the one that is farthest along a line."""

    def __init__(self, count):
        super().__init__(np.ones(count))
        self.values = RNG.normal(size=(count * OPTIONS, WIDTH)).astype(np.float32)
        far = (self.values @ np.linspace(-1, 1, WIDTH)).reshape(count, OPTIONS)
        self.right, self.options = [np.asarray(row.argmax()) for row in far], np.full(count, OPTIONS)

    def batch(self, members):
        values = self.values[option_rows(members, self.options)][:, None, None]
        return KeptBatch(
            features=FeatureBatch(values=values, mask=np.ones(values.shape[:2], bool)),
            second=None,
            words=None,
            hashed=None,
            targets=batch_targets(self.right, members, None, self.options),
            members=members,
        )

    def unread(self, members):
        return None


def test_options_of_some_examples_compete_among_themselves():
    """Three examples of two, three and two options; those of the outer two are numbered anew."""
    examples = np.array([0, 0, 1, 1, 1, 2, 2])
    right = np.array([1, 0, 0, 0, 1, 0, 1])
    whole = Inputs(
        values=np.arange(7.0, dtype=np.float32)[:, None],
        targets=np.stack([examples, right], axis=1),
        members=examples,
        loss="ranking",
        outputs=1,
    )
    some = whole.of([0, 2])
    assert some.targets.tolist() == [[0, 1], [0, 0], [1, 0], [1, 1]]
    assert some.read()[:, 0].tolist() == [0, 1, 5, 6]


def test_folds_read_the_values_of_all_rows():
    """Each fold had a copy of all rows."""
    values, labels = clouds()
    sides = inputs(values, labels).sides([list(range(start, len(values), 3)) for start in range(3)])
    assert all(side.values is values for pair in sides for side in pair)


LABELLED = ["cross_entropy", "binary_cross_entropy", "squared_error", "ranking"]


@pytest.mark.parametrize("loss", LABELLED)
def test_folds_that_are_searched_together_have_the_solutions_of_each_alone(loss, monkeypatch):
    """Alone a fold has a copy of its rows; the first of these folds ends long before the others."""
    head_search.forget(monkeypatch)
    values, labels = clouds()
    prior = None
    if loss == "ranking":
        whole = options_of(values, labels)
    elif loss == "binary_cross_entropy":
        whole = inputs(values, np.eye(3, dtype=np.float32)[labels], loss=loss, outputs=3)
    elif loss == "squared_error":
        whole = inputs(values, labels.astype(np.float32), loss=loss, outputs=1)
    else:
        whole = inputs(values, labels)
        prior = np.random.default_rng(2).normal(size=(3, values.shape[1])).astype(np.float32)
    folds = [
        whole.of(list(range(9))),
        *(train for train, _ in whole.sides([list(range(start, 60, 3)) for start in (0, 1)])),
    ]
    folds = [fold.drawn(prior, 0.5) for fold in folds]
    axes, few = axes_of(whole), PENALTIES[1:7:2]
    alone = [
        list(solutions(msgspec.structs.replace(fold, values=fold.read(), rows=None), few, axes=axes)) for fold in folds
    ]
    together = list(fold_solutions(folds, few, axes=axes))
    for singles, others in zip(zip(*alone, strict=True), together, strict=True):
        for single, other in zip(singles, others, strict=True):
            assert single.penalty == other.penalty
            # A search ends where a step would gain 1e-7 of the loss, so that weights agree to the root of that.
            np.testing.assert_allclose(other.weight, single.weight, rtol=0, atol=2e-3)
            np.testing.assert_allclose(other.bias, single.bias, rtol=0, atol=2e-3)
            assert other.losses(whole).mean() == pytest.approx(single.losses(whole).mean(), rel=1e-3)


def options_of(values, labels):
    """Questions of three options each, of which the first with the highest label is right."""
    examples = np.arange(len(values)) // 3
    right = np.zeros(len(values), int)
    for example in range(examples[-1] + 1):
        rows = np.flatnonzero(examples == example)
        right[rows[np.argmax(labels[rows])]] = 1
    return msgspec.structs.replace(
        inputs(values, np.stack([examples, right], axis=1), loss="ranking", outputs=1), members=examples
    )


def test_folds_are_rows_of_one_array():
    """A copy of a fold's rows was read as if its numbers were those of the others."""
    values, labels = clouds()
    (first, _), (second, _) = inputs(values, labels).sides([list(range(start, len(values), 2)) for start in range(2)])
    copied = msgspec.structs.replace(second, values=second.read(), rows=None)
    with pytest.raises(AssertionError, match="one array"):
        next(fold_solutions([first, copied]))


def test_one_product_of_matrices_serves_all_folds(monkeypatch):
    head_search.forget(monkeypatch)
    values, labels = clouds()
    sides = inputs(values, labels).sides([list(range(start, len(values), 3)) for start in range(3)])
    counts, solve = [], search.minimise_several

    def noted(functions, *starts, **settings):
        return solve(lambda points: counts.append(len(points)) or functions(points), *starts, **settings)

    monkeypatch.setattr(search, "minimise_several", noted)
    next(fold_solutions([train for train, _ in sides], PENALTIES[4:5]))
    assert counts[0] == 3 and len(counts) < sum(counts)


@pytest.mark.parametrize("loss", ["cross_entropy", "binary_cross_entropy", "squared_error"])
def test_rows_in_shares_have_one_solution_on_any_number_of_processors(loss, monkeypatch):
    head_search.forget(monkeypatch)
    values, labels = clouds(rows=91)
    targets = np.eye(3, dtype=np.float32)[labels] if loss == "binary_cross_entropy" else labels
    targets, outputs = (labels.astype(np.float32), 1) if loss == "squared_error" else (targets, 3)
    weights = np.array([1.0, 4.0, 0.5], np.float32) if loss != "squared_error" else None
    given = msgspec.structs.replace(inputs(values, targets, loss=loss, outputs=outputs), weights=weights)
    found = []
    for many, count in ((10**9, 1), (1, 1), (1, 3)):
        monkeypatch.setattr(search, "MANY", many)
        monkeypatch.setattr(search, "processors", lambda count=count: count)
        found.append(list(search.solutions(given, PENALTIES[4:6])))
    for whole, alone, several in zip(*found, strict=True):
        assert alone.weight.tobytes() == several.weight.tobytes() and alone.bias.tobytes() == several.bias.tobytes()
        np.testing.assert_allclose(alone.weight, whole.weight, rtol=1e-3, atol=1e-4)
