"""What a loss counts: published weights, learned ones, and losses of which a uniform guess has exactly 1."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from polyhead.deep.loop.feed import TrainingBatch
from polyhead.deep.loop.loss import LOSSES, UNLABELLED, options_of, place_counts
from polyhead.deep.recipes.weighting import Objective, log_outcomes, scaled_loss, spread_of, weights_of
from polyhead.errors import ConfigError
from polyhead.project.recipes import Weighting
from polyhead.tasks.kinds import KINDS, kind_of
from polyhead.tasks.task import Task
from support.cases import cases

# Training examples of the tasks of Du et al. 2020, table 1 (SST-2 as printed there; IMDB is left out there).
DU2020 = {
    "mnli": 392702,
    "qnli": 104743,
    "qqp": 363849,
    "rte": 2490,
    "sst-2": 17000,
    "mrpc": 3668,
    "cola": 8551,
    "imdb": 25000,
    "ag-news": 120000,
    "amazon-5": 3000000,
    "amazon-2": 3600000,
    "yelp-5": 650000,
    "yelp-2": 560000,
    "dbpedia": 560000,
}

LABELS = tuple(f"label {i}" for i in range(5))
TASKS = {
    "single_label": Task(name="topic", kind="single_label", labels=LABELS),
    "multi_label": Task(name="topics", kind="multi_label", labels=LABELS),
    "tagging": Task(name="words", kind="tagging", labels=LABELS),
    "regression": Task(name="urgency", kind="regression", range=(0.0, 1.0)),
    "multiple_choice": Task(name="choice", kind="multiple_choice"),
    "span": Task(name="answer", kind="span", pair="joined"),
    "summarization": Task(name="summary", kind="summarization"),
}
VALUES = np.array([0.1, 0.9, 0.4, 0.3], np.float32)
# Three questions of 4, 2 and 3 options; three contexts of 3, 5 and 2 places, the last one's answer cut away.
OPTIONS = torch.tensor([[0, 0], [0, 0], [0, 1], [0, 0], [1, 1], [1, 0], [2, 0], [2, 1], [2, 0]])
PLACES = torch.full((3, 5, 2), UNLABELLED)
PLACES[0, :3], PLACES[1], PLACES[2, :2] = 0, 0, 0
PLACES[0, 1, 0] = PLACES[0, 2, 1] = PLACES[1, 0, 0] = PLACES[1, 0, 1] = 1
TARGETS = {
    "single_label": torch.tensor([0, 4, 2, 2]),
    "multi_label": torch.tensor([[0.0, 1, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]]),
    "tagging": torch.tensor([[0, 3, UNLABELLED], [1, UNLABELLED, 4]]),
    "regression": torch.from_numpy(VALUES),
    "multiple_choice": OPTIONS,
    "span": PLACES,
    "summarization": torch.tensor([[5, 3, 0], [1, UNLABELLED, UNLABELLED]]),
}
SHAPES = {
    "single_label": (4, 5),
    "multi_label": (3, 5),
    "tagging": (2, 3, 5),
    "regression": (4, 1),
    "multiple_choice": (9, 1),
    "span": (3, 5, 2),
    "summarization": (2, 3, 6),
}


def batch_of(targets):
    return TrainingBatch(arguments=(), targets=targets, members=np.arange(len(targets)))


def objective(*kinds, weighting=None, sizes=None, **arguments):
    tasks = {TASKS[kind].name: (TASKS[kind], list(TARGETS[kind].numpy())) for kind in kinds}
    sizes = sizes or {name: 10 * (i + 1) for i, name in enumerate(tasks)}
    return Objective(tasks, weighting or Weighting(), sizes, **arguments)


def drawn(kind, seed=0):
    return torch.randn(SHAPES[kind], generator=torch.Generator().manual_seed(seed))


def test_every_kind_is_looked_at():
    assert set(KINDS) == set(TASKS) == set(TARGETS) == set(SHAPES)


@cases("height", [0.0, -3.5, 7.0])
@cases("kind", TASKS)
def test_a_uniform_guess_loses_exactly_one(kind, height):
    """Any logits that are all alike; two values of a label are alike at 0 only; a regression guesses the mean."""
    height = {"multi_label": 0.0, "regression": float(VALUES.mean())}.get(kind, height)
    outputs = torch.full(SHAPES[kind], height)
    loss = objective(kind)(TASKS[kind].name, outputs, batch_of(TARGETS[kind]))
    assert float(loss) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("kind", [kind for kind in TASKS if kind not in ("multiple_choice", "span")])
def test_scaled_losses_are_the_plain_ones_over_one_number(kind):
    number = {
        "single_label": math.log(5),
        "tagging": math.log(5),
        "multi_label": math.log(2),
        "regression": float(VALUES.astype(np.float64).var()),
        "summarization": math.log(6),
    }[kind]
    name, outputs, batch = TASKS[kind].name, drawn(kind), batch_of(TARGETS[kind])
    plain = objective(kind, weighting=Weighting(scaled=False))(name, outputs, batch)
    assert float(plain) == pytest.approx(float(LOSSES[kind_of(TASKS[kind]).loss](outputs, batch.targets, None)))
    assert float(objective(kind)(name, outputs, batch)) == pytest.approx(float(plain) / number, rel=1e-5)


def test_each_question_is_scaled_by_its_own_number_of_options():
    outputs = drawn("multiple_choice")
    by_hand = [
        float(functional.cross_entropy(outputs[a:b].T, torch.tensor([right]))) / math.log(b - a)
        for a, b, right in ((0, 4, 2), (4, 6, 0), (6, 9, 1))
    ]
    assert options_of(OPTIONS).tolist() == [4, 2, 3]
    found = scaled_loss("ranking", outputs, OPTIONS, None)
    assert float(found) == pytest.approx(np.mean(by_hand), rel=1e-5)


def test_each_context_is_scaled_by_its_own_places_and_cut_answers_do_not_count():
    outputs = drawn("span")
    by_hand = []
    for row, places, (first, last) in ((0, 3, (1, 2)), (1, 5, (0, 0))):
        ends = [
            float(functional.cross_entropy(outputs[row, :places, column][None], torch.tensor([right])))
            for column, right in ((0, first), (1, last))
        ]
        by_hand.append(np.mean(ends) / math.log(places))
    assert place_counts(PLACES).tolist() == [3, 5, 2]
    found = scaled_loss("span_cross_entropy", outputs, PLACES, None)
    assert float(found) == pytest.approx(np.mean(by_hand), rel=1e-5)


def test_labels_count_although_the_batch_has_few_of_them():
    """ln of all five labels, not of the one that occurs."""
    found = scaled_loss("cross_entropy", torch.zeros(3, 5), torch.zeros(3, dtype=torch.int64), None)
    assert float(found) == pytest.approx(1.0)


def test_one_outcome_is_left_unscaled():
    one_place = torch.full((1, 2, 2), UNLABELLED)
    one_place[0, 0] = 1
    cases = (
        ("cross_entropy", torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64)),
        ("ranking", torch.ones(2, 1), torch.tensor([[0, 1], [1, 1]])),
        ("span_cross_entropy", torch.ones(1, 2, 2), one_place),
    )
    for loss, outputs, targets in cases:
        assert log_outcomes(loss, outputs, targets).unique().tolist() == [1.0]
        assert float(scaled_loss(loss, outputs, targets, None)) == 0.0
    same = [np.float32(0.25)] * 4
    assert spread_of(TASKS["regression"], same) == 1.0


def test_batches_without_anything_labelled_lose_nothing():
    outputs = torch.randn(2, 3, 5, requires_grad=True)
    loss = scaled_loss("word_cross_entropy", outputs, torch.full((2, 3), UNLABELLED), None)
    places = torch.randn(2, 3, 2, requires_grad=True)
    cut = scaled_loss("span_cross_entropy", places, torch.zeros(2, 3, 2, dtype=torch.int64), None)
    (loss + cut).backward()
    assert loss.item() == cut.item() == 0.0
    assert float(outputs.grad.abs().sum()) == float(places.grad.abs().sum()) == 0.0


def test_class_weights_keep_a_uniform_guess_at_one():
    weights = torch.tensor([0.1, 3.0, 1.0, 0.5, 2.0])
    made = objective("single_label", "tagging", class_weights={"topic": weights, "words": weights})
    for kind in ("single_label", "tagging"):
        outputs, batch = drawn(kind), batch_of(TARGETS[kind])
        name = TASKS[kind].name
        assert float(made(name, torch.zeros(SHAPES[kind]), batch)) == pytest.approx(1.0, abs=1e-6)
        assert float(made(name, outputs, batch)) != pytest.approx(float(objective(kind)(name, outputs, batch)))


def test_weights_by_size_are_those_that_the_paper_means():
    weights = weights_of(Weighting(kind="size"), DU2020)
    assert sum(weights.values()) == pytest.approx(1.0)
    assert min(weights, key=weights.get) == "rte"
    assert max(weights, key=weights.get) == "amazon-2"
    assert weights["rte"] == pytest.approx(0.047, abs=5e-4)
    assert weights["amazon-2"] == pytest.approx(0.098, abs=5e-4)
    assert weights["amazon-2"] / weights["rte"] == pytest.approx(2.07, abs=5e-3)


def test_the_printed_exponent_would_train_two_tasks_of_fourteen():
    weights = weights_of(Weighting(kind="size", literal=True), DU2020)
    assert weights["amazon-2"] == pytest.approx(0.861, abs=5e-4)
    assert weights["amazon-5"] == pytest.approx(0.139, abs=5e-4)
    assert max(w for task, w in weights.items() if not task.startswith("amazon")) < 4e-8
    assert weights["rte"] == pytest.approx(2e-32, rel=0.1)


def test_both_readings_agree_at_exponent_one():
    printed, meant = (
        weights_of(Weighting(kind="size", exponent=1.0, literal=literal), DU2020) for literal in (True, False)
    )
    assert printed == pytest.approx(meant)
    assert meant["cola"] == pytest.approx(8551 / sum(DU2020.values()))


def test_no_weights_fixed_weights_and_learned_ones():
    sizes = {"a": 3, "b": 4}
    assert weights_of(Weighting(), sizes) == {"a": 1.0, "b": 1.0}
    assert weights_of(Weighting(kind="fixed", fixed={"b": 0.25}), sizes) == {"a": 1.0, "b": 0.25}
    assert weights_of(Weighting(kind="uncertainty"), sizes) == {"a": 1.0, "b": 1.0}
    with pytest.raises(ConfigError, match="names tasks that are not there"):
        weights_of(Weighting(kind="fixed", fixed={"c": 2.0}), sizes)


@pytest.mark.parametrize("kind", ["none", "size", "fixed"])
def test_a_tasks_weight_multiplies_its_loss_and_what_is_added(kind):
    fixed = {"topic": 0.5, "urgency": 3.0} if kind == "fixed" else {}
    weighting = Weighting(kind=kind, fixed=fixed)
    made = objective("single_label", "regression", weighting=weighting, sizes={"topic": 10, "urgency": 1000})
    weights = weights_of(weighting, {"topic": 10, "urgency": 1000})
    assert not list(made.parameters())
    for one in ("single_label", "regression"):
        name, outputs, batch = TASKS[one].name, drawn(one), batch_of(TARGETS[one])
        plain = made.loss(name, outputs, batch)
        added = torch.tensor(0.75)
        assert float(made(name, outputs, batch)) == pytest.approx(weights[name] * float(plain))
        assert float(made(name, outputs, batch, added)) == pytest.approx(weights[name] * float(plain + added))


def test_learned_variances_are_those_of_the_formula_and_find_their_best_value():
    """`d/ds [exp(-s) L + s / 2] = 0` at s = ln 2 L, and at s = ln L for a regression."""
    made = objective("single_label", "regression", weighting=Weighting(kind="uncertainty", scaled=False))
    cases = [(k, TASKS[k].name, drawn(k), batch_of(TARGETS[k])) for k in ("single_label", "regression")]
    for kind, name, outputs, batch in cases:
        half = 0.5 if kind == "regression" else 1.0
        plain = made.loss(name, outputs, batch).item()
        assert made(name, outputs, batch).item() == pytest.approx(half * plain)
    optimizer = torch.optim.SGD(made.parameters(), lr=1.0)
    for _ in range(60):
        optimizer.zero_grad()
        sum(made(name, outputs, batch) for _, name, outputs, batch in cases).backward()
        optimizer.step()
    for place, (kind, name, outputs, batch) in enumerate(cases):
        times = 1.0 if kind == "regression" else 2.0
        best = math.log(times * float(made.loss(name, outputs, batch)))
        assert float(made.log_variances[place].detach()) == pytest.approx(best, abs=1e-3)


def test_a_task_that_an_update_does_not_read_gives_its_variance_no_gradient():
    made = objective("single_label", "regression", weighting=Weighting(kind="uncertainty"))
    made("topic", drawn("single_label"), batch_of(TARGETS["single_label"])).backward()
    read, unread = made.log_variances
    assert read.grad is not None
    assert unread.grad is None
    assert {name for name, _ in made.named_parameters()} == {"log_variances.0", "log_variances.1"}


def test_gradients_scale_as_losses_do():
    """Nothing but the numbers of the scale stands between the two."""
    outputs, batch = drawn("single_label").requires_grad_(), batch_of(TARGETS["single_label"])
    scaled = torch.autograd.grad(objective("single_label")("topic", outputs, batch), outputs)[0]
    plain = Weighting(scaled=False)
    whole = torch.autograd.grad(objective("single_label", weighting=plain)("topic", outputs, batch), outputs)[0]
    torch.testing.assert_close(scaled, whole / math.log(5))


def test_weighting_is_unchanged_by_the_order_of_tasks():
    one = weights_of(Weighting(kind="size"), DU2020)
    other = weights_of(Weighting(kind="size"), dict(reversed(DU2020.items())))
    assert one == pytest.approx(other)
