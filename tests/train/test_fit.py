"""The loop: its rate, its losses, its best epoch, its checkpoint, and what it refuses."""

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from polyhead.deep.loop import checkpoint as checkpoints
from polyhead.deep.loop import fit as fitting
from polyhead.deep.loop.feed import TaskSchedule, TrainingBatch
from polyhead.deep.loop.fit import TaskLoop
from polyhead.deep.loop.loss import LOSSES, UNLABELLED, cross_entropy
from polyhead.deep.loop.optimizer import groups_of, rate_at
from polyhead.errors import TrainError
from polyhead.project import recipes
from polyhead.project.recipes import Training
from polyhead.train.data.batches import SORTED_CHUNK, LengthSorted
from polyhead.train.events import Meter
from polyhead.train.runs import stream

TRAINING = Training(seed=3, epochs=6, patience=6, batch=4, learning_rate=0.05, weight_decay=0.0)


class Points(LengthSorted):
    """Points in the plane, labelled by which side of a line they are on."""

    def __init__(self, count=22):
        rng = np.random.default_rng(0)
        self.values = rng.normal(size=(count, 2)).astype(np.float32)
        self.targets = (self.values.sum(axis=1) > 0).astype(np.int64)
        self.seen = []
        super().__init__(np.arange(count) % 5)

    def unread(self, member):
        return None

    def batch(self, members):
        self.seen.append(members)
        values = torch.from_numpy(self.values[members])
        return TrainingBatch(arguments=(values,), targets=torch.from_numpy(self.targets[members]), members=members)


def line(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.3), nn.Tanh(), nn.Linear(4, 2))


def accuracy(module, points):
    def score():
        with torch.no_grad():
            found = module(torch.from_numpy(points.values)).argmax(dim=1).numpy()
        return float((found == points.targets).mean())

    return score


def run(points=None, *, training=TRAINING, score=None, module=None, **arguments):
    points, module = points or Points(), module or line()
    fitted = TaskLoop(
        module, points, loss=cross_entropy, score=score or accuracy(module, points), training=training, **arguments
    ).train()
    return module, fitted


def state(module):
    return {name: value.numpy().tobytes() for name, value in module.state_dict().items()}


@pytest.fixture(autouse=True)
def _every_epoch(monkeypatch):
    monkeypatch.setattr(fitting, "SAVE_SECONDS", 0.0)


def test_separable_points_are_separated():
    longer = msgspec.structs.replace(TRAINING, epochs=40, patience=40)
    _, fitted = run(training=longer)
    assert fitted.score >= 0.95
    assert fitted.history[-1]["loss"] < fitted.history[0]["loss"]


def test_rate_rises_over_the_warm_up_then_falls_to_zero_in_a_straight_line():
    steps, warmup = 50, 0.2
    rates = [rate_at(step, steps, warmup) for step in range(steps + 1)]
    rising = 10
    assert rates[:rising] == pytest.approx([(i + 1) / rising for i in range(rising)])
    assert rates[rising:] == pytest.approx([(steps - i) / (steps - rising) for i in range(rising, steps + 1)])
    assert rates[steps] == 0.0 and max(rates) == 1.0


def test_rate_is_positive_at_every_step_that_is_taken_whatever_the_warm_up():
    for steps in (1, 2, 3, 7):
        for warmup in (0.0, 0.06, 0.5, 1.0):
            assert all(0 < rate_at(step, steps, warmup) <= 1 for step in range(steps)), (steps, warmup)


def test_the_learning_rate_of_each_step_follows_the_schedule(monkeypatch):
    seen = []
    original = torch.optim.AdamW.step

    def step(self, *arguments, **named):
        seen.append(self.param_groups[0]["lr"])
        return original(self, *arguments, **named)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    points = Points()
    run(points)
    steps = points.steps(TRAINING.batch) * TRAINING.epochs
    assert len(seen) == steps == 36
    assert seen == pytest.approx([0.05 * rate_at(i, steps, TRAINING.warmup) for i in range(steps)])


def test_gradients_are_scaled_down_to_the_clip_and_smaller_ones_left_alone(monkeypatch):
    """The reference is torch's own clipping of the first step's gradients."""
    seen, original = {}, torch.optim.AdamW.step
    for clip in (0.01, 1e9):
        seen[clip] = []

        def step(self, *arguments, to=seen[clip], **named):
            to.append([p.grad.clone() for group in self.param_groups for p in group["params"]])
            return original(self, *arguments, **named)

        monkeypatch.setattr(torch.optim.AdamW, "step", step)
        run(training=msgspec.structs.replace(TRAINING, clip=clip))
    parameters = [nn.Parameter(torch.zeros_like(one)) for one in seen[1e9][0]]
    for parameter, gradient in zip(parameters, seen[1e9][0], strict=True):
        parameter.grad = gradient.clone()
    assert nn.utils.clip_grad_norm_(parameters, 0.01) > 0.01
    for parameter, gradient in zip(parameters, seen[0.01][0], strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-6, atol=0)
    naive = line()
    torch.manual_seed(stream(TRAINING.seed, "dropout", 0))
    batch = next(iter(TaskSchedule(Points(), TRAINING).updates(0)))[0][1]
    cross_entropy(naive(*batch.arguments), batch.targets, None).backward()
    several = [p for group in groups_of(naive, 0.0, lambda name: 1.0) for p in group["params"]]
    assert all(torch.equal(p.grad, found) for p, found in zip(several, seen[1e9][0], strict=True))


def test_prompts_and_prefixes_do_not_decay():
    module = nn.ModuleDict({"prompt": nn.Embedding(2, 3), "key": nn.Linear(3, 3, bias=False)})
    module.deltas = nn.Module()
    module.deltas.key, module.deltas.value = (nn.Parameter(torch.zeros(2, 3)) for _ in range(2))
    decaying, others = (group["params"] for group in groups_of(module, 0.5, lambda name: 1.0))
    assert [id(p) for p in decaying] == [id(module["key"].weight)] and len(others) == 3


def test_weights_decay_in_matrices_alone():
    module = nn.Module()
    module.matrix = nn.Parameter(torch.zeros(2, 2))
    module.bias, module.scale = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.ones(()))
    groups = groups_of(module, 0.5, lambda name: 1.0)
    assert [[p.ndim for p in group["params"]] for group in groups] == [[2], [1, 0]]
    assert [group["weight_decay"] for group in groups] == [0.5, 0.0]
    apart = groups_of(module, 0.5, lambda name: 3.0 if name == "scale" else 1.0)
    assert [(g["scale"], g["weight_decay"], len(g["params"])) for g in apart] == [(1, 0.5, 1), (1, 0, 1), (3, 0, 1)]


def test_the_best_epoch_is_kept_and_the_earlier_of_equals():
    module, points, states = line(), Points(), []
    scores = iter([0.2, 0.7, 0.5, 0.7, 0.1, 0.3])

    def score():
        states.append(state(module))
        return next(scores)

    _, fitted = run(points, module=module, score=score)
    assert (fitted.best_epoch, fitted.score) == (2, 0.7)
    assert state(module) == states[1] != states[-1]
    assert [row["score"] for row in fitted.history] == [0.2, 0.7, 0.5, 0.7, 0.1, 0.3]
    assert [row["epoch"] for row in fitted.history] == [1, 2, 3, 4, 5, 6]
    assert not module.training


def test_training_stops_after_epochs_without_a_better_score():
    scores = iter([0.1, 0.5, 0.4, 0.5, 0.9, 0.9])
    patient = msgspec.structs.replace(TRAINING, patience=2)
    _, fitted = run(training=patient, score=lambda: next(scores))
    assert len(fitted.history) == 4 and fitted.best_epoch == 2
    assert fitted.examples_seen == 4 * 22


def test_same_seed_same_weights_and_another_seed_others():
    first, second = run()[0], run()[0]
    other = run(training=msgspec.structs.replace(TRAINING, seed=4))[0]
    assert state(first) == state(second) != state(other)


def test_what_was_drawn_before_changes_nothing():
    first = line()
    second = line()
    run(module=first)
    torch.rand(7)
    np.random.rand(3)
    run(module=second)
    assert state(first) == state(second)


@pytest.mark.parametrize("epochs", [1, 2, 5], ids=["one", "two", "five"])
def test_resumed_after_some_epochs_is_the_uninterrupted_run(tmp_path, monkeypatch, epochs):
    whole, wanted = run()
    saved = fitting.TrainingLoop.save

    def save(this):
        saved(this)
        if this.done == epochs:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(fitting.TrainingLoop, "save", save)
        with pytest.raises(KeyboardInterrupt):
            run(checkpoint=tmp_path / "c.checkpoint")
    points = Points()
    resumed, found = run(points, checkpoint=tmp_path / "c.checkpoint", module=line(seed=99))
    assert len(points.seen) == points.steps(4) * (6 - epochs)  # the finished epochs are not run again
    assert state(resumed) == state(whole)
    drop = [[{k: v for k, v in row.items() if k != "seconds"} for row in f.history] for f in (found, wanted)]
    assert drop[0] == drop[1] and found.best_epoch == wanted.best_epoch


class NoisyPoints(Points):
    """Each batch draws, as one does that a teacher with dropout answers."""

    def batch(self, members):
        made = super().batch(members)
        values = nn.functional.dropout(made.arguments[0], 0.3)
        return msgspec.structs.replace(made, arguments=(values,))


@pytest.mark.parametrize("points", [Points, NoisyPoints])
@pytest.mark.parametrize("epoch", [0, 3], ids=["in the first epoch", "in a later one"])
@pytest.mark.parametrize("updates", [1, 4])
def test_resumed_inside_an_epoch_is_the_uninterrupted_run(tmp_path, monkeypatch, points, epoch, updates):
    """Its loss, which is a mean over the epoch, too; dropout goes on where it was."""
    heard, update = [], Meter.update
    monkeypatch.setattr(Meter, "update", lambda this, **done: (heard.append(done), update(this, **done))[1])
    whole, wanted = run(points())
    straight, saved = list(heard), fitting.TrainingLoop.save_inside

    def save(this, begun):
        saved(this, begun)
        if (this.done, begun.updates) == (epoch, updates):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(fitting.TrainingLoop, "save_inside", save)
        with pytest.raises(KeyboardInterrupt):
            run(points(), checkpoint=tmp_path / "c.checkpoint")
    heard.clear()
    resumed, found = run(points(), checkpoint=tmp_path / "c.checkpoint", module=line(seed=99))
    steps = points().steps(4)
    assert heard == straight[epoch * steps + updates :]  # what was done is not done again, the rest to the bit
    assert state(resumed) == state(whole) and found.best_epoch == wanted.best_epoch
    assert [row["loss"] for row in found.history] == [row["loss"] for row in wanted.history]


def test_checkpoints_that_take_long_come_seldom(tmp_path, monkeypatch):
    """Each may cost a fiftieth of the time: here the second would have to wait for years."""
    written = []
    monkeypatch.setattr(fitting, "SAVE_SECONDS", 1e-9)
    monkeypatch.setattr(fitting, "SAVE_COST", 1e-30)
    monkeypatch.setattr(fitting, "write_checkpoint", lambda path, state: written.append(state))
    run(checkpoint=tmp_path / "c.checkpoint")
    assert len(written) == 1


def test_a_finished_run_is_not_run_again(tmp_path):
    whole, _ = run(checkpoint=tmp_path / "c.checkpoint")
    points = Points()
    again, fitted = run(points, checkpoint=tmp_path / "c.checkpoint", module=line(seed=99))
    assert points.seen == [] and state(again) == state(whole) and len(fitted.history) == 6


def test_checkpoints_come_no_more_often_than_said(tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "SAVE_SECONDS", 3600.0)
    run(checkpoint=tmp_path / "c.checkpoint")
    assert not (tmp_path / "c.checkpoint").exists()


def test_a_temporary_file_of_a_killed_writer_is_not_resumed(tmp_path):
    (tmp_path / "c.pt.tmp").write_bytes(b"half a checkpoint")
    assert state(run(checkpoint=tmp_path / "c.checkpoint")[0]) == state(run()[0])


def loop(points=None, *, module=None, training=TRAINING, **arguments):
    points, module = points or Points(), module or line()
    score = accuracy(module, points)
    made = TaskLoop(module, points, loss=cross_entropy, score=score, training=training, **arguments)
    return module, points, made


def untimed(fitted):
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in fitted.history]
    return (fitted.best_epoch, fitted.score, fitted.examples_seen, rows)


@pytest.mark.parametrize("steps", [(1, 2, 3, 4, 5, 6), (2, 6), (6,), (4, 4, 9)], ids=str)
def test_a_course_in_pieces_is_the_whole_run_byte_for_byte(steps):
    whole, fitted = run()
    module, points, made = loop()
    for epochs in steps:
        torch.rand(5)  # what others draw between the pieces changes nothing
        best = made.advance(epochs)
        assert len(points.seen) == points.steps(4) * min(epochs, 6)
        assert best == made.best_score == max(row["score"] for row in fitted.history[:epochs])
    assert untimed(made.finish()) == untimed(fitted)
    assert state(module) == state(whole) and not module.training


def test_courses_that_take_turns_are_each_the_run_alone():
    wanted = [state(run(training=msgspec.structs.replace(TRAINING, seed=seed))[0]) for seed in (3, 4)]
    several = [loop(training=msgspec.structs.replace(TRAINING, seed=seed)) for seed in (3, 4)]
    for epochs in range(1, 7):
        for _, _, made in several:
            made.advance(epochs)
    for (module, _, made), expected in zip(several, wanted, strict=True):
        made.finish()
        assert state(module) == expected


def test_a_course_asked_for_no_more_epochs_than_it_has_trains_nothing():
    _, points, made = loop()
    made.advance(2)
    seen = len(points.seen)
    made.advance(2)
    made.advance(1)
    assert len(points.seen) == seen == 2 * points.steps(4)


def test_a_course_that_is_over_early_stays_over():
    patient = msgspec.structs.replace(TRAINING, patience=2)
    scores = iter([0.5, 0.4, 0.3])
    points = Points()
    made = TaskLoop(line(), points, loss=cross_entropy, score=lambda: next(scores), training=patient)
    assert [made.advance(epochs) for epochs in (2, 4, 6)] == [0.5, 0.5, 0.5]
    assert len(made.finish().history) == 3


@pytest.mark.parametrize("epochs", [1, 4], ids=["one", "four"])
def test_a_course_stopped_between_two_calls_goes_on_from_its_checkpoint(tmp_path, epochs):
    whole, fitted = run()
    loop(checkpoint=tmp_path / "c.checkpoint")[2].advance(epochs)
    module, points, resumed = loop(module=line(seed=99), checkpoint=tmp_path / "c.checkpoint")
    assert resumed.best_score == max(row["score"] for row in fitted.history[:epochs])
    resumed.advance(epochs)
    assert points.seen == []
    resumed.advance(6)
    assert untimed(resumed.finish()) == untimed(fitted) and state(module) == state(whole)


@pytest.fixture
def short_rounds(monkeypatch):
    """Passes of more than four updates count as long."""
    monkeypatch.setattr(recipes, "LONGEST_ROUND", 4)


def test_rounds_within_a_pass_read_what_the_pass_reads(short_rounds):
    """Seven updates a pass, three a round: a round may begin in one pass and end in the next."""
    points = Points(26)
    _, fitted = run(points)
    passes = [points.drawn(4, np.random.default_rng(stream(TRAINING.seed, "order", number))) for number in range(6)]
    wanted = [members.tolist() for each in passes for members in each][:36]
    assert [members.tolist() for members in points.seen] == wanted
    assert len(fitted.history) == 12 and fitted.updates == 36
    assert fitted.examples_seen == sum(map(len, wanted))


def test_training_stops_within_a_pass_that_brings_no_better_score(short_rounds):
    points = Points(400)
    training = msgspec.structs.replace(TRAINING, epochs=None, patience=None, least_updates=0)
    _, fitted = run(points, training=training, score=lambda: 0.5)
    assert fitted.best_update == 4 and fitted.updates == len(points.seen) == 4 + 6 * 4 < points.steps(4)


@pytest.mark.parametrize(("rounds", "updates"), [(1, 0), (3, 0), (3, 2)], ids=str)
def test_resumed_within_a_pass_is_the_uninterrupted_run(tmp_path, monkeypatch, short_rounds, rounds, updates):
    whole, wanted = run(Points(26))
    saved = fitting.TrainingLoop._save

    def save(this, begun):
        saved(this, begun)
        if (this.done, begun.updates if begun else 0) == (rounds, updates):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(fitting.TrainingLoop, "_save", save)
        with pytest.raises(KeyboardInterrupt):
            run(Points(26), checkpoint=tmp_path / "c.checkpoint")
    resumed, found = run(Points(26), checkpoint=tmp_path / "c.checkpoint", module=line(seed=99))
    assert state(resumed) == state(whole) and untimed(found) == untimed(wanted)


def test_what_a_teacher_answers_reaches_the_loss_with_its_own_examples():
    """And a batch that carries none calls the loss with three values, as before there were teachers."""

    class Taught(Points):
        def batch(self, members):
            soft = torch.from_numpy(members.astype(np.float32))
            return msgspec.structs.replace(super().batch(members), soft=soft)

    calls = []

    def loss(outputs, targets, weights, *taught):
        calls.append((targets, taught))
        return cross_entropy(outputs, targets, weights)

    for points in (Points(), Taught()):
        TaskLoop(line(), points, loss=loss, score=lambda: 0.0, training=TRAINING).train()
    plain, taught = calls[: len(calls) // 2], calls[len(calls) // 2 :]
    assert len(plain) == 36 and not any(soft for _, soft in plain)
    for targets, (soft,) in taught:
        assert targets.tolist() == points.targets[soft.numpy().astype(int)].tolist()


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=["nan", "infinite"])
def test_a_loss_that_is_not_finite_stops_training_with_epoch_and_step(value):
    points = Points()
    points.values[3] = value
    with pytest.raises(TrainError, match=r"epoch 1, step \d+") as caught:
        run(points)
    assert caught.value.do == "lower learning_rate"


def test_streams_of_seeds_differ_by_seed_name_and_number():
    names = [stream(1, "order", 0), stream(1, "order", 1), stream(2, "order", 0), stream(1, "dropout", 0)]
    assert len(set(names)) == 4
    assert all(0 <= name < 2**32 for name in names)


def test_one_pass_takes_every_example_once_in_another_order_each_time():
    points = Points(300)
    passes = []
    for epoch in range(2):
        passes.append(np.concatenate(list(points.drawn(4, np.random.default_rng(epoch)))))
    assert all(sorted(p.tolist()) == list(range(300)) for p in passes)
    assert passes[0].tolist() != passes[1].tolist()
    list(points.in_order(7))
    assert np.concatenate(points.seen).tolist() == np.argsort(np.arange(300) % 5, kind="stable").tolist()


def test_examples_of_like_length_share_a_batch():
    points = Points(4 * SORTED_CHUNK)
    spread = [int(np.ptp(members % 5)) for members in points.drawn(4, np.random.default_rng(0))]
    assert sum(s == 0 for s in spread) >= len(spread) - 5


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def outputs(*shape):
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def test_cross_entropy_is_the_mean_of_minus_log_probability_and_weights_make_it_a_weighted_mean():
    x, y, w = outputs(5, 3), np.array([0, 2, 1, 1, 0]), np.array([0.5, 2.0, 3.0], np.float32)
    each = -np.log(softmax(x)[np.arange(5), y])
    assert value("cross_entropy", x, y) == pytest.approx(each.mean(), rel=1e-5)
    assert value("cross_entropy", x, y, w) == pytest.approx((w[y] * each).sum() / w[y].sum(), rel=1e-5)


def test_binary_cross_entropy_weighs_the_positive_term_of_each_label():
    x, w = outputs(4, 3), np.array([0.5, 2.0, 3.0], np.float32)
    y = np.array([[0, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 1]], np.float32)
    p = 1 / (1 + np.exp(-x))
    plain = -(y * np.log(p) + (1 - y) * np.log(1 - p))
    weighted = -(w * y * np.log(p) + (1 - y) * np.log(1 - p))
    assert value("binary_cross_entropy", x, y) == pytest.approx(plain.mean(), rel=1e-5)
    assert value("binary_cross_entropy", x, y, w) == pytest.approx(weighted.mean(), rel=1e-5)


def test_squared_error_is_the_mean_square_of_the_difference():
    x, y = outputs(6, 1), outputs(6)
    assert value("squared_error", x, y) == pytest.approx(((x[:, 0] - y) ** 2).mean(), rel=1e-5)


def test_word_cross_entropy_is_the_mean_over_labelled_words_alone():
    x = outputs(2, 4, 3)
    y = np.array([[0, 2, UNLABELLED, UNLABELLED], [1, UNLABELLED, 2, 0]])
    kept = y != UNLABELLED
    each = -np.log(softmax(x)[kept][np.arange(kept.sum()), y[kept]])
    assert value("word_cross_entropy", x, y) == pytest.approx(each.mean(), rel=1e-5)
    assert value("word_cross_entropy", x, np.full((2, 4), UNLABELLED)) == 0.0


def test_every_loss_falls_along_its_gradient():
    targets = {
        "cross_entropy": torch.tensor([0, 1, 2]),
        "binary_cross_entropy": torch.eye(3),
        "squared_error": torch.tensor([0.1, 0.5, 0.9]),
        "word_cross_entropy": torch.tensor([[0, 1], [2, UNLABELLED], [1, 0]]),
        "token_cross_entropy": torch.tensor([[0, 1], [2, UNLABELLED], [1, 0]]),
        "ranking": torch.tensor([[0, 1], [0, 0], [1, 0], [1, 0], [1, 1]]),
        "span_cross_entropy": torch.tensor([[[1, 0], [0, 1], [0, 0]], [[0, 0], [1, 1], [UNLABELLED, UNLABELLED]]]),
    }
    assert set(targets) == set(LOSSES)
    shapes = dict.fromkeys(("word_cross_entropy", "token_cross_entropy"), (3, 2, 3))
    shapes |= {"squared_error": (3, 1), "ranking": (5, 1), "span_cross_entropy": (2, 3, 2)}
    for name, y in targets.items():
        shape = shapes.get(name, (3, 3))
        x = torch.from_numpy(outputs(*shape)).requires_grad_()
        before = LOSSES[name](x, y, None)
        before.backward()
        assert LOSSES[name](x.detach() - 0.1 * x.grad, y, None) < before


def value(name, x, y, w=None):
    weights = None if w is None else torch.from_numpy(w)
    return float(LOSSES[name](torch.from_numpy(x), torch.from_numpy(np.asarray(y)), weights))


def test_a_disk_that_fills_up_in_the_middle_of_a_checkpoint_is_said_and_nothing_half_written_stays(
    tmp_path, monkeypatch
):
    def full(file, tensors, metadata):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "_write_tensors", full)
    with pytest.raises(TrainError, match="cannot write the checkpoint") as caught:
        run(checkpoint=tmp_path / "one.checkpoint")
    assert "No space left" in str(caught.value) and not list(tmp_path.iterdir())


def test_a_checkpoint_is_a_safetensors_file_that_comes_back_bit_for_bit(tmp_path):
    shared = torch.randn(3, 4)
    state = {
        "module": {"a": shared, "b": shared, "turned": shared.T, "low": shared.bfloat16(), "none": torch.zeros(0, 2)},
        "optimizer": {"state": {0: {"step": torch.tensor(3.0), "done": torch.tensor(True)}}, "betas": (0.9, 0.999)},
        "random": [torch.get_rng_state()],
        "best": [-float("inf"), 0.1, None, "x"],
    }
    file = tmp_path / "one.checkpoint"
    checkpoints.write_checkpoint(file, state)
    again = checkpoints.read_checkpoint(file)
    assert torch.equal(again["module"]["a"], shared) and torch.equal(again["module"]["turned"], shared.T)
    assert again["module"]["low"].dtype == torch.bfloat16 and again["module"]["none"].shape == (0, 2)
    assert again["optimizer"]["betas"] == (0.9, 0.999) and again["optimizer"]["state"][0]["step"].shape == ()
    assert torch.equal(again["random"][0], state["random"][0]) and again["best"] == state["best"]
    assert len(load_file(file)) == 7  # what two names share is written once


def test_a_damaged_checkpoint_is_said_and_nothing_pickled_is_read(tmp_path):
    file = tmp_path / "one.checkpoint"
    torch.save({"module": {}}, file)
    with pytest.raises(TrainError, match="cannot be read.*delete it"):
        checkpoints.read_checkpoint(file)
    checkpoints.write_checkpoint(file, {"a": torch.ones(9)})
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(TrainError, match="cannot be read"):
        checkpoints.read_checkpoint(file)
