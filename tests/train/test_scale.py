"""Training at scale in one process: layers computed again, budgets of tokens, bf16, and what is told meanwhile."""

import itertools
import json
import sys
import types

import msgspec
import numpy as np
import pytest
import torch

from polyhead import progress
from polyhead.deep.loop.checkpoint import draw_on, generator_state
from polyhead.deep.loop.devices import on
from polyhead.deep.loop.feed import TrainingBatch
from polyhead.deep.loop.tensorboard import tensorboard
from polyhead.deep.recipes.sampling import MixedFeed
from polyhead.errors import ConfigError, MissingExtra
from polyhead.project.recipes import Joint, Sampling
from polyhead.project.strategies import Branch
from polyhead.testing import tiny_trunk
from polyhead.train import events as telling
from polyhead.train.data.batches import SORTED_CHUNK, LengthSorted
from polyhead.train.events import Events, Meter
from polyhead.train.runs import ProcessRank
from polyhead.values import to_value
from support import tiny_project
from support.cases import cases
from support.two_processes import Job, course_of, learn

NAMES = ("mood", "urgency", "names", "same")
TRAINING = msgspec.structs.replace(tiny_project.TRAINING, epochs=2, learning_rate=1e-3, dropout=0.2)
RECIPE = Joint(micro_batches=4, steps=3, layer_dropout=0.3)
BRANCH = Branch(layers=1, tap=1, positions="first", hidden=8)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    tiny_project.project(folder)
    return folder


def job(home, *names, recipe=RECIPE, **changes):
    return Job(home=str(home), names=names or NAMES, recipe=recipe, **{"training": TRAINING, **changes})


def with_(**changes):
    return msgspec.structs.replace(RECIPE, **changes)


def copied(home, folder, family):
    """A folder with the same data over a trunk of this family."""
    tiny_project.write_trunk(folder / "trunk", tiny_trunk(family=family))
    (folder / "data").symlink_to(home / "data")
    return folder


def passed(home, *, again):
    """One update's gradients, and how many tensors its forward passes kept for them."""
    made = course_of(job(home, recipe=with_(checkpointing=again), strategies={"mood": BRANCH}), ProcessRank())
    learning = made.loss.train()
    torch.manual_seed(5)
    kept = []
    for task, batch in next(iter(MixedFeed(made.examples, made.mixture, TRAINING).updates(0))):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
            loss = learning(task, batch)
        loss.backward()
    return {n: p.grad.numpy().tobytes() for n, p in learning.named_parameters() if p.grad is not None}, kept


@pytest.mark.parametrize("family", ["bert", "mpnet", "deberta-v2"])
def test_layers_that_are_computed_again_give_the_same_gradients_and_keep_less(home, tmp_path, family):
    """To the bit, with dropout on, in the trunk's layers and a branch's own, whose relative positions they share."""
    home = copied(home, tmp_path, family)
    plain, kept = passed(home, again=False)
    found, fewer = passed(home, again=True)
    assert found == plain
    assert len(fewer) < 0.4 * len(kept) and sum(fewer) < sum(kept) / 2


def test_a_run_that_computes_layers_again_learns_the_same_to_the_bit(home):
    one, other = (learn(ProcessRank(), job(home, recipe=with_(checkpointing=again))) for again in (False, True))
    assert {n: a.tobytes() for n, a in one["arrays"].items()} == {n: a.tobytes() for n, a in other["arrays"].items()}


def test_layers_are_not_computed_again_where_nothing_learns(home):
    made = course_of(job(home, recipe=with_(checkpointing=True)), ProcessRank())
    texts, calls = made.examples["mood"].batch(np.arange(4)).arguments[0], []
    for layer in made.module.model.trunk.layers:
        layer.register_forward_pre_hook(lambda *_: calls.append(1))
    made.module.eval()
    made.module("mood", texts).sum().backward()
    assert len(calls) == 2
    made.module.train()
    made.module("mood", texts).sum().backward()
    assert len(calls) == 6


class Texts(LengthSorted):
    """Lengths alone."""

    def __init__(self, lengths, options=None):
        rows = None if options is None else np.array(options)
        super().__init__(np.array(lengths) if rows is None else np.repeat(lengths, rows), options=rows)

    def batch(self, members):
        raise NotImplementedError

    def unread(self, member):
        return None


def drawn(texts, batch, **named):
    return [piece.tolist() for piece in texts.drawn(batch, np.random.default_rng(3), **named)]


@cases("has_options", [False, True], ids=["texts", "options"])
@cases("budget", [1, 64, 100, 10**6])
def test_a_budget_bounds_padded_tokens_and_loses_no_example(budget, has_options):
    chance = np.random.default_rng(0)
    lengths = chance.integers(2, 90, size=8 * SORTED_CHUNK + 5)
    rows = chance.integers(2, 6, size=len(lengths)) if has_options else np.ones(len(lengths), int)
    pieces = drawn(Texts(lengths, rows if has_options else None), 8, tokens=budget)
    assert sorted(i for piece in pieces for i in piece) == list(range(len(lengths)))
    costs = [rows[piece].sum() * lengths[piece].max() for piece in pieces]
    assert all(len(piece) <= 8 for piece in pieces)
    assert all(cost <= budget or len(piece) == 1 for cost, piece in zip(costs, pieces, strict=True))
    if budget == 10**6:
        assert pieces == drawn(Texts(lengths), 8)


def test_batches_are_as_full_as_their_budget_lets_them():
    """By hand: 2 + 2 + 3 tokens padded to 3 are 9; a fourth text would make 4 x 4."""
    pieces = drawn(Texts([2, 4, 2, 3, 9, 4]), 100, tokens=9)
    assert sorted(map(sorted, pieces)) == [[0, 2, 3], [1, 5], [4]]


def test_a_run_under_a_budget_stays_within_it_and_goes_on_where_it_stopped(home, tmp_path):
    both = job(home, recipe=with_(tokens=40))
    made = course_of(both, ProcessRank())
    feed = MixedFeed(made.examples, made.mixture, TRAINING, tokens=40)
    batches = [batch for update in feed.updates(0) for _, batch in update]
    texts = [batch.arguments[0] for batch in batches]
    assert all(t.ids.numel() <= 40 or len(t.ids) == 1 for t in texts) and any(len(t.ids) > 1 for t in texts)
    assert [batch.tokens for batch in batches] == [int(t.mask.sum()) for t in texts]
    assert feed.seen(1) == sum(len(batch.members) for batch in batches)
    straight = learn(ProcessRank(), both)
    kept = msgspec.structs.replace(both, checkpoint=str(tmp_path / "one.pt"))
    assert learn(ProcessRank(), msgspec.structs.replace(kept, stop=1)) is None
    again = learn(ProcessRank(), kept)
    assert again["seen"] == straight["seen"] and again["epochs"] == 1
    assert all(again["arrays"][n].tobytes() == a.tobytes() for n, a in straight["arrays"].items())


def test_what_is_expected_before_training_counts_what_a_budget_gives(home):
    """Against the passes that a run really reads; by `batch` alone they would be overstated more than twice."""
    turns = with_(tokens=40, sampling=Sampling(kind="round_robin"), steps=30)
    made = course_of(job(home, recipe=turns), ProcessRank())
    feed = MixedFeed(made.examples, made.mixture, TRAINING, tokens=40)
    for epoch in range(TRAINING.epochs):
        list(feed.updates(epoch))
    read = {name: feed.state()[name][2] / examples.count for name, examples in made.examples.items()}
    expected = {one.task: one for one in made.mixture.expected()}
    assert {name: one.passes for name, one in expected.items()} == pytest.approx(read, rel=0.1)
    batches = {name: -(-examples.count // TRAINING.batch) for name, examples in made.examples.items()}
    assert all(one.micro_batches / batches[name] > 2 * read[name] for name, one in expected.items())
    heading, *rows = made.mixture.lines()
    assert f"at most {TRAINING.batch} examples and 40 tokens" in heading
    assert [row.split()[-2] for row in rows] == [f"{one.passes:.2f}" for one in expected.values()]


def test_an_epoch_under_a_budget_reads_every_example_once(home):
    """Without `steps` it read less than a third of them: updates were counted by `batch` alone."""
    whole = with_(tokens=40, sampling=Sampling(kind="shuffled"), steps=None, micro_batches=1)
    made = course_of(job(home, recipe=whole), ProcessRank())
    feed = MixedFeed(made.examples, made.mixture, TRAINING, tokens=40)
    list(feed.updates(0))
    read = {name: feed.state()[name][2] for name in NAMES}
    assert read == {name: examples.count for name, examples in made.examples.items()}


def test_without_a_budget_a_pass_is_counted_by_examples(home):
    mixture, training = course_of(job(home), ProcessRank()).mixture, TRAINING
    examples = {one.task: one.examples for one in mixture.expected()}
    assert mixture.in_a_pass == {name: -(-count // training.batch) for name, count in examples.items()}


def test_bf16_computes_the_trunk_and_stores_nothing(home):
    """Parameters, gradients and moments are float32; a layer's output is bf16, and so is the pooled text before it."""
    made = course_of(job(home, precision="bfloat16"), ProcessRank())
    seen = []
    made.module.model.trunk.layers[0].feed_forward.outer.register_forward_hook(
        lambda module, given, out: seen.append(out.dtype)
    )
    made.module("mood", made.examples["mood"].batch(np.arange(4)).arguments[0]).sum().backward()
    assert seen == [torch.bfloat16]
    assert {p.dtype for p in made.module.parameters()} == {torch.float32}
    assert {p.grad.dtype for p in made.module.parameters() if p.grad is not None} == {torch.float32}
    low = learn(ProcessRank(), job(home, precision="bfloat16"))
    exact = learn(ProcessRank(), job(home))
    for name, array in exact["arrays"].items():
        assert low["arrays"][name].dtype == np.float32
        assert np.abs(low["arrays"][name] - array).max() < 0.05, name
    assert any((low["arrays"][name] != array).any() for name, array in exact["arrays"].items())


def told_in(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_training_tells_of_losses_rates_and_scores(home, tmp_path, monkeypatch):
    """With an event for each update; by hand: tasks in turn, so each head is in one micro-batch of four."""
    monkeypatch.setattr(telling.Meter.__init__, "__kwdefaults__", {"seconds": 0.0})
    turns = with_(sampling=Sampling(kind="round_robin"))
    learned = learn(ProcessRank(), job(home, recipe=turns, events=str(tmp_path / "e.jsonl")))
    told = told_in(tmp_path / "e.jsonl")
    assert [one["event"] for one in told] == [*["training"] * 3, "epoch"] * 2
    steps = [one for one in told if one["event"] == "training"]
    assert [one["step"] for one in steps] == [1, 2, 3, 4, 5, 6]
    assert [one["micro_batches"] for one in steps] == [dict.fromkeys(NAMES, i) for i in range(1, 7)]
    assert steps[-1]["effective_steps"] == {f"task:{name}": 1.5 for name in NAMES}
    assert all(one["tokens_a_second"] > 0 for one in steps)
    for epoch, row in enumerate(learned["history"]):
        several = steps[3 * epoch : 3 * epoch + 3]
        assert np.mean([list(one["loss"].values()) for one in several]) == pytest.approx(row["loss"])
    epochs = [one for one in told if one["event"] == "epoch"]
    assert [one["score"] for one in epochs] == [row["score"] for row in learned["history"]]
    best = max(epochs, key=lambda one: one["score"])
    assert best["validation"] == learned["validation"] and set(best["validation"]) == set(NAMES)


def test_rare_events_hold_the_means_of_all_updates_between_them(home, tmp_path):
    """An epoch takes less than ten seconds, so it ends with the only one."""
    learn(ProcessRank(), job(home, events=str(tmp_path / "e.jsonl")))
    told = told_in(tmp_path / "e.jsonl")
    assert [one["event"] for one in told] == ["training", "epoch"] * 2
    assert [one["step"] for one in told] == [3, 3, 6, 6]
    assert sum(told[2]["micro_batches"].values()) == 24


def test_what_a_head_has_learned_from_is_counted_across_a_stop(home, tmp_path):
    straight = tmp_path / "straight.jsonl"
    learn(ProcessRank(), job(home, events=str(straight)))
    stopped = {"checkpoint": str(tmp_path / "one.pt"), "events": str(tmp_path / "again.jsonl")}
    assert learn(ProcessRank(), job(home, stop=1, **stopped)) is None
    learn(ProcessRank(), job(home, **stopped))
    one, other = told_in(straight)[-2], told_in(tmp_path / "again.jsonl")[-2]
    for name in ("micro_batches", "effective_steps", "loss", "learning_rate"):
        assert one[name] == other[name], name


def test_tasks_of_a_family_share_a_heads_effective_steps():
    told = []
    meter = Meter(Events(listeners=[lambda name, facts: told.append(dict(facts))]), {"a": "f", "b": "f", "c": "c"})
    for step, tasks in enumerate(("aabc", "aacc"), start=1):
        losses = tuple((task, float(step)) for task in tasks)
        meter.update(step=step, losses=losses, learning_rate=0.5, tokens=10)
    meter.tell()
    assert told[0]["effective_steps"] == {"f": 1.25, "c": 0.75}
    assert told[0]["micro_batches"] == {"a": 4, "b": 1, "c": 3}
    assert told[0]["loss"] == {"a": 1.5, "b": 1.0, "c": pytest.approx(5 / 3)}
    meter.tell()
    assert len(told) == 1


def test_progress_shows_loss_tokens_and_time_left(home, monkeypatch):
    from polyhead.deep.loop import fit

    monkeypatch.setattr(fit, "STEP_SECONDS", -1.0)
    monkeypatch.setattr(progress, "EARLY", 0.0)
    monkeypatch.setattr(telling.Events, "_progress", lambda this, text, force=False: this._show(text))
    shown = []
    made = course_of(job(home), ProcessRank())
    made.events = Events(show=shown.append)
    made.learn("together")
    steps = [line for line in shown if "tokens a second" in line]
    assert len(steps) == 6
    assert all(part in steps[2] for part in ("together: 3 of 6 updates", " left", "loss "))
    assert "validation" in steps[-1] and "after epoch" in steps[-1]  # also inside an epoch


def test_progress_of_a_resumed_run_does_not_count_what_was_done_before(monkeypatch):
    clock = iter([100.0, 110.0])
    monkeypatch.setattr(telling.time, "monotonic", lambda: next(clock))
    shown = []
    monkeypatch.setattr(telling.Events, "_progress", lambda this, text, force=False: shown.append(text))
    Events().progress("training", unit="updates", done=900).update(920, 1000)
    assert shown == ["training: 920 of 1,000 updates, 2 a second, about 40 s left"]


def test_epochs_of_a_long_run_leave_their_validation_scores_in_the_log(home, monkeypatch):
    """Twenty epochs went by without a score: what was shown in place was gone before it was read."""
    monkeypatch.setattr(telling, "LAP_SECONDS", -1.0)
    said = []
    made = course_of(job(home), ProcessRank())
    made.events = Events(say=said.append)
    learned = made.learn("together")
    lines = [line for line in said if line.startswith("together: epoch ")]
    assert len(lines) == len(learned.fitted.history) > 1
    for line, row in zip(lines, learned.fitted.history, strict=True):
        assert f"epoch {row['epoch']} of " in line and f"validation {row['score']:.4f}, best " in line


def test_lines_about_epochs_come_now_and_then(monkeypatch):
    clock = itertools.count(step=12)
    monkeypatch.setattr(telling.time, "monotonic", lambda: float(next(clock)))
    said = []
    counter = Events(say=said.append).progress("head", unit="rounds", at_most=True)
    for number in range(1, 7):  # a round takes 12 seconds
        counter.lap("round", number, 60, f"validation 0.{number}")
    assert said == ["head: round 3 of at most 60, validation 0.3", "head: round 6 of at most 60, validation 0.6"]


class Writer:
    """In place of TensorBoard's."""

    def __init__(self, folder):
        self.folder, self.scalars, self.flushed = folder, {}, 0
        Writer.made = self

    def add_scalar(self, tag, value, step):
        self.scalars[tag, step] = value

    def flush(self):
        self.flushed += 1


def test_tensorboard_gets_every_number_under_its_path(home, tmp_path, monkeypatch):
    fake = types.ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    made = course_of(job(home), ProcessRank())
    made.events = Events(listeners=[tensorboard(tmp_path / "board")])
    learned = made.learn()
    writer = Writer.made
    assert writer.folder == str(tmp_path / "board") and writer.flushed == 4
    tags = {tag for tag, _ in writer.scalars}
    assert {"learning_rate", "tokens_a_second", "loss/mood", "micro_batches/mood", "score"} <= tags
    assert {"effective_steps/task:mood", "validation/mood/accuracy"} <= tags
    assert {step for _, step in writer.scalars} == {3, 6}
    best = 3 * learned.fitted.best_epoch
    assert writer.scalars["validation/mood/accuracy", best] == learned.validation["mood"]["accuracy"]


def test_tensorboard_without_its_package_is_refused_with_the_line_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtra, match=r"pip install 'polyhead\[tensorboard\]'"):
        tensorboard(tmp_path)


def test_a_place_is_checked_and_shares_evenly():
    places = [ProcessRank(rank=rank, world=3) for rank in range(3)]
    assert [[i for i in range(6) if place.owns(i)] for place in places] == [[0, 3], [1, 4], [2, 5]]
    places[0].check(6)
    with pytest.raises(ConfigError, match="4 micro-batches, 3 processes"):
        places[0].check(4)
    with pytest.raises(ConfigError):
        ProcessRank(rank=3, world=3)


def test_a_batch_goes_to_another_device_whole():
    """To torch's device without memory, since there is no other here."""
    batch = TrainingBatch(arguments=((torch.ones(2), [torch.ones(1)]),), targets=torch.ones(3), members=np.arange(3))
    moved = on(batch, "meta")
    assert {t.device.type for t in (moved.targets, moved.arguments[0][0], moved.arguments[0][1][0])} == {"meta"}
    assert moved.members is batch.members and on(batch, "cpu") is batch


def test_budgets_and_ways_of_sharing_are_checked():
    with pytest.raises(ConfigError, match="recipe.tokens is too small"):
        Joint(tokens=0)
    with pytest.raises(ConfigError, match="parallel"):
        to_value({"parallel": "all"}, Joint, source="recipe")


def test_the_state_of_another_device_is_no_state_of_this_ones_generator():
    """A CUDA generator has 16 bytes; the processor's has thousands, and draws on from them."""
    torch.manual_seed(1)
    kept, first = generator_state("cpu"), float(torch.rand(()))
    draw_on([torch.zeros(16, dtype=torch.uint8)], ProcessRank())
    assert float(torch.rand(())) != first
    draw_on([kept], ProcessRank())
    assert float(torch.rand(())) == first
