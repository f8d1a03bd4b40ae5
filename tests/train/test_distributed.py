"""Two processes learn what one does, whoever draws which head, and a run may go on in more or fewer of them."""

import json
import random
import subprocess
import sys

import msgspec
import numpy as np
import pytest

from polyhead.bundle.read import Bundle
from polyhead.deep.loop.devices import from_first, place_in
from polyhead.deep.recipes.trained_trunk import lineage_of
from polyhead.errors import ConfigError
from polyhead.project.recipes import Frozen, Joint, Sampling, Smoothing, Weighting
from polyhead.project.strategies import Adapter, Branch, InLayer, Prompted
from polyhead.project.tables import TaskEntry
from polyhead.train.runs import ProcessRank
from support import tiny_project
from support.commands import environment, run
from support.tiny_project import to_toml
from support.two_processes import LIMIT, Job, Pair, course_of, learn, refused

NAMES = ("mood", "urgency", "names", "same")
TRAINING = msgspec.structs.replace(tiny_project.TRAINING, epochs=2, learning_rate=1e-3, dropout=0.0, clip=0.05, batch=4)
RECIPE = Joint(micro_batches=4, steps=2, layer_dropout=0.0)
KINDS = ("ddp", "fsdp")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    tiny_project.project(folder)
    return folder


@pytest.fixture(scope="module")
def pair():
    with Pair() as both:
        yield both


def job(home, *names, recipe=RECIPE, training=TRAINING, **changes):
    return Job(home=str(home), names=names or NAMES, recipe=recipe, training=training, **changes)


ALONE = {}


def alone(one):
    """What one process learns, found once for both ways in which two share it."""
    same = msgspec.structs.replace(one, recipe=msgspec.structs.replace(one.recipe, parallel="ddp"))
    key = repr(same)
    if key not in ALONE:
        ALONE[key] = learn(ProcessRank(), same)
    return ALONE[key]


def recipe(**changes):
    return msgspec.structs.replace(RECIPE, **changes)


def on_both(pair, one):
    """What two processes learn; they hold the same to the bit."""
    first, second = pair.run(learn, one)
    assert first["seen"] == second["seen"]
    assert {n: a.tobytes() for n, a in first["arrays"].items()} == {n: a.tobytes() for n, a in second["arrays"].items()}
    assert [untimed(row) for row in first["history"]] == [untimed(row) for row in second["history"]]
    return first


def untimed(row):
    return {name: value for name, value in row.items() if name != "seconds"}


def assert_close(one, other, *, unseen=("key.bias",)):
    """Equal up to the order of sums.

    What a softmax does not see, such as biases of keys, is left out: its gradient is rounding, which AdamW magnifies.
    """
    assert one["arrays"].keys() == other["arrays"].keys()
    for name, array in one["arrays"].items():
        if not name.endswith(unseen):
            np.testing.assert_allclose(other["arrays"][name], array, rtol=0, atol=1e-5, err_msg=name)
    for fact in ("loss", "score"):
        found, expected = ([row[fact] for row in run["history"]] for run in (other, one))
        assert found == pytest.approx(expected, rel=1e-4)  # float32 sums in another order
    assert other["validation"].keys() == one["validation"].keys() and other["seen"] == one["seen"]


@pytest.mark.slow
def test_a_pair_goes_on_after_a_process_that_died_or_a_function_that_failed(pair):
    """One of two that fails must not leave the other waiting for every test after it."""
    pair.end([1])
    assert pair.run(rank_of) == [0, 1]
    with pytest.raises(AssertionError, match="only the second"):
        pair.run(rank_of, "only the second")
    assert pair.run(rank_of) == [0, 1]


def rank_of(place, said=None):
    if said and place.rank:
        raise RuntimeError(said)
    return place.rank


@pytest.mark.slow
@pytest.mark.parametrize("parallel", KINDS)
def test_two_processes_learn_what_one_does(pair, home, parallel):
    """With all that an update may have: learned weights, a budget of tokens, layers computed again."""
    made = recipe(parallel=parallel, weighting=Weighting(kind="uncertainty"), tokens=40, checkpointing=True)
    straight = alone(job(home, recipe=made))
    assert straight["history"][0]["loss"] != straight["history"][1]["loss"]
    assert_close(straight, on_both(pair, job(home, recipe=made)))


CONDITIONED = {
    "prompts": Prompted(hidden=6, shared=1),
    "prompts without the stop": Prompted(hidden=6, stop_gradient=False),
    "adapters": InLayer(adapters=(Adapter(size=4, heads=2, share="ends", dropout=0.0),), pooler="shared"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONDITIONED)
def test_two_processes_learn_prompts_and_adapters_as_one_does(pair, home, name):
    strategies = dict.fromkeys(("mood", "urgency"), CONDITIONED[name])
    one = job(home, "mood", "urgency", recipe=recipe(families=()), strategies=strategies)
    assert_close(alone(one), on_both(pair, one))


@pytest.mark.slow
def test_prompts_and_adapters_refuse_sharded_layers(pair, home):
    one = job(home, "mood", recipe=recipe(parallel="fsdp"), strategies={"mood": Prompted(isolated=True, hidden=6)})
    for kind, said in pair.run(refused, one):
        assert kind == "ConfigError" and "sharded" in said and "ddp" in said


@pytest.mark.slow
@pytest.mark.parametrize("parallel", KINDS)
def test_gradients_are_the_mean_over_the_micro_batches_of_all_processes(pair, home, parallel):
    """And missing where no process has one: nothing decays. The key bias of a pooler gets zeros at most."""
    one = job(home, recipe=recipe(parallel=parallel, sampling=Sampling(kind="round_robin"), micro_batches=2))
    single, both = graded(ProcessRank(), one), pair.run(graded, one)
    for found in both:
        missing = {name for name in single if name not in found}
        added = {name for name in found if name not in single}
        assert not missing and all(name.endswith("pool.key.bias") for name in added)
        assert not any(found[name].any() for name in added)
        for name, gradient in single.items():
            np.testing.assert_allclose(found[name], gradient, rtol=1e-5, atol=1e-5, err_msg=name)
    assert any("part_1" in name for name in single) and not any("part_2" in name for name in single)


def graded(place, one):
    """The gradients of the first update, by parameter."""
    learning, devices, feed = parts_of(one, place)
    devices.module.train()
    devices.learn(next(iter(feed.updates(0))))
    found = {n: p.grad for n, p in devices.module.named_parameters() if p.grad is not None}
    return {name: gradient.numpy() for name, gradient in from_first(place, devices.whole(found)).items()}


def parts_of(one, place):
    from polyhead.deep.loop.devices import devices_of
    from polyhead.deep.recipes.sampling import MixedFeed

    made = course_of(one, place)
    devices = devices_of(place, made.loss, parallel=one.recipe.parallel)
    return made.loss, devices, MixedFeed(made.examples, made.mixture, made.training, place=place)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", KINDS)
def test_one_update_in_bf16_is_that_of_one_process(pair, home, parallel):
    """One alone: after it, bf16 rounds differences of the last float32 bit to other numbers."""
    once = msgspec.structs.replace(TRAINING, epochs=1)
    both = job(home, recipe=recipe(parallel=parallel, steps=1, checkpointing=True), training=once)
    both = msgspec.structs.replace(both, precision="bfloat16")
    assert_close(alone(both), on_both(pair, both))


@pytest.mark.slow
@pytest.mark.parametrize("parallel", KINDS)
def test_heads_and_layers_that_one_process_alone_draws(pair, home, parallel):
    """Tasks in turn: each update the first process draws the first and the third, one of them over fewer layers."""
    turns = recipe(parallel=parallel, sampling=Sampling(kind="round_robin"))
    branches = {
        "mood": Branch(layers=1, tap=1, positions="first", hidden=8),
        "urgency": Branch(layers=1, tap=0, positions="mean", hidden=8),
    }
    both = job(home, recipe=turns, strategies=branches)
    assert_close(alone(both), on_both(pair, both))


@pytest.mark.slow
@pytest.mark.parametrize("parallel", KINDS)
@pytest.mark.parametrize("kind", ["multiple_choice", "span"])
def test_a_head_that_two_processes_learn_through_different_tasks(pair, home, parallel, kind):
    """One scorer of two sets of questions, or one start and end head of two sets of passages, in turn.

    An example costs a row for each of its options.
    """
    make, tokens = {"multiple_choice": (questions, 60), "span": (passages, None)}[kind]
    names = tuple(f"{kind}-{one}" for one in ("first", "second"))
    entries = tuple(make(home, name, seed) for seed, name in enumerate(names))
    turns = recipe(parallel=parallel, sampling=Sampling(kind="round_robin"), micro_batches=2, tokens=tokens)
    both = msgspec.structs.replace(job(home, recipe=turns, entries=entries), names=())
    straight = alone(both)
    heads = [
        {n.split(".", 1)[1]: a.tobytes() for n, a in straight["arrays"].items() if n.startswith(f"{name}.")}
        for name in names
    ]
    assert heads[0] and heads[0] == heads[1]
    assert_close(straight, on_both(pair, both), unseen=("key.bias", "head.output.bias"))


def passages(home, name, seed):
    """Which of two things is happy."""
    chance = random.Random(seed)
    for split, count in (("train", 24), ("validation", 8)):
        rows = []
        for _ in range(count):
            happy, other = chance.sample(tiny_project.THINGS, 2)
            begin = f"my {other} is {chance.choice(tiny_project.BAD)}, the "
            answers = [{"text": happy, "start": len(begin)}]
            rows.append({"question": "what is happy?", "context": f"{begin}{happy} is happy", "answers": answers})
        tiny_project.write_jsonl(home / f"{name}-{split}.jsonl", rows)
    files = {split: str(home / f"{name}-{split}.jsonl") for split in ("train", "validation")}
    return TaskEntry(name=name, kind="span", **files)


def questions(home, name, seed):
    """Two to four options, of which one is happy."""
    chance = random.Random(seed)
    for split, count in (("train", 24), ("validation", 8)):
        rows = []
        for _ in range(count):
            options = [f"it is {chance.choice(tiny_project.BAD)}" for _ in range(chance.randint(1, 3))]
            right = chance.randint(0, len(options))
            options.insert(right, "it is happy")
            rows.append(
                {"question": f"how is my {chance.choice(tiny_project.THINGS)}?", "choices": options, "label": right}
            )
        tiny_project.write_jsonl(home / f"{name}-{split}.jsonl", rows)
    files = {split: str(home / f"{name}-{split}.jsonl") for split in ("train", "validation")}
    return TaskEntry(name=name, kind="multiple_choice", **files)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", KINDS)
def test_a_task_that_no_process_draws_keeps_its_bits(pair, home, parallel):
    only = Sampling(kind="schedule", schedule=({"mood": 0.5, "same": 0.5},))
    both = job(home, recipe=recipe(parallel=parallel, sampling=only))
    before = course_of(both, ProcessRank()).module.model.parts
    after = on_both(pair, both)["arrays"]
    kept = {task for task in NAMES if all(_same(after, task, before[task]))}
    assert kept == {"urgency", "names"}


def _same(arrays, task, part):
    return [arrays[f"{task}.{n}"].tobytes() == v.numpy().tobytes() for n, v in part.state_dict().items()]


@pytest.mark.slow
@pytest.mark.parametrize("parallel", KINDS)
def test_smoothing_and_divided_heads_over_two_processes(pair, home, parallel):
    """Each process draws its own noise, so its size is one that float32 does not feel."""
    smooth = Smoothing(spectral=True, size=1e-12, both=False, detached=False)
    both = job(home, "mood", "names", "same", recipe=recipe(parallel=parallel, smoothing=smooth))
    assert_close(alone(both), on_both(pair, both))


@pytest.mark.slow
@pytest.mark.parametrize("parallel", KINDS)
def test_dropout_differs_between_processes_and_weights_do_not(pair, home, parallel):
    dropped = msgspec.structs.replace(TRAINING, dropout=0.3)
    both = job(home, recipe=recipe(parallel=parallel, layer_dropout=0.1), training=dropped)
    found = on_both(pair, both)
    assert all(np.isfinite(array).all() for array in found["arrays"].values())
    seeds = pair.run(drawn_first, both)
    assert seeds[0] != seeds[1]


def drawn_first(place, one):
    import torch

    from polyhead.train.runs import stream

    torch.manual_seed(stream(one.training.seed, "dropout", 0, place.rank))
    return float(torch.rand(()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "then"), [("ddp", None), (None, "fsdp"), ("fsdp", "ddp")], ids=["2-to-1", "1-to-2", "2-to-2"]
)
def test_a_stopped_run_goes_on_in_more_or_fewer_processes(pair, home, tmp_path, first, then):
    """From the checkpoint that the first process wrote: weights, moments, the mixture's place, the best epoch."""
    longer = msgspec.structs.replace(TRAINING, epochs=3)
    straight = alone(job(home, training=longer))
    told = {"training": longer, "checkpoint": str(tmp_path / "one.checkpoint")}
    _run(pair, job(home, recipe=recipe(parallel=first or "ddp"), stop=2, **told), alone=first is None)
    assert (tmp_path / "one.checkpoint").exists()
    again = _run(pair, job(home, recipe=recipe(parallel=then or "ddp"), **told), alone=then is None)
    assert again["epochs"] == 1
    assert_close(straight, again)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", KINDS)
def test_a_run_stopped_inside_an_epoch_goes_on_to_the_same_numbers(pair, home, tmp_path, parallel):
    """Each process draws its dropout on from where it was."""
    training = msgspec.structs.replace(TRAINING, dropout=0.3)
    told = {"recipe": recipe(parallel=parallel, layer_dropout=0.2), "training": training}
    straight = pair.run(learn, job(home, **told))[0]
    stopped = job(home, inside=1, checkpoint=str(tmp_path / "one.checkpoint"), **told)
    assert pair.run(learn, stopped) == [None, None]
    again = pair.run(learn, msgspec.structs.replace(stopped, inside=None))[0]
    for name, array in straight["arrays"].items():
        assert array.tobytes() == again["arrays"][name].tobytes(), name
    assert [row["loss"] for row in again["history"]] == [row["loss"] for row in straight["history"]]


@pytest.mark.slow
def test_processes_of_which_one_alone_finds_a_checkpoint_are_refused_before_heads_are_trained(pair, home, tmp_path):
    """As where each has a cache of its own: the others would train heads first, and updates would not meet."""
    (tmp_path / "first.checkpoint").touch()
    found = pair.run(refused_apart, job(home, recipe=recipe(head_epochs=1)), str(tmp_path))
    assert found[0] == found[1] and found[0][0] == "TrainError"
    assert all(said in found[0][1] for said in ("different checkpoints", "one, none", "folder that all of them read"))


def refused_apart(place, one, folder):
    name = "first" if place.is_first else "second"
    return refused(place, msgspec.structs.replace(one, checkpoint=f"{folder}/{name}.checkpoint"))


def _run(pair, one, *, alone):
    return learn(ProcessRank(), one) if alone else pair.run(learn, one)[0]


@pytest.mark.slow
def test_the_first_process_alone_tells_and_counts_everything(pair, home, tmp_path):
    events = tmp_path / "events.jsonl"
    learn(ProcessRank(), job(home, events=str(tmp_path / "alone.jsonl")))
    pair.run(learn, job(home, events=str(events)))
    told, single = (
        [json.loads(line) for line in path.read_text().splitlines()] for path in (events, tmp_path / "alone.jsonl")
    )
    assert [one["event"] for one in told] == ["training", "epoch"] * 2
    for one, other in zip(told, single, strict=True):
        for name in ("micro_batches", "effective_steps", "learning_rate", "step"):
            assert one.get(name) == other.get(name)
        assert one["loss"] == pytest.approx(other["loss"])


@pytest.mark.slow
def test_what_processes_cannot_share_is_refused_by_all(pair, home):
    uneven = pair.run(refused, job(home, recipe=recipe(micro_batches=3)))
    every = pair.run(refused, job(home, "mood", "urgency", "same", recipe=recipe(sampling=Sampling(kind="all"))))
    smooth = pair.run(refused, job(home, recipe=recipe(parallel="fsdp", smoothing=Smoothing())))
    for found, said in ((uneven, "3 micro-batches"), (every, "number of tasks"), (smooth, "urgency")):
        assert found[0] == found[1] and found[0][0] == "ConfigError" and said in found[0][1]


@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_all_processes_with_its_task(pair, home):
    huge = msgspec.structs.replace(TRAINING, learning_rate=1e30, warmup=0.0, clip=1e30)
    found = pair.run(refused, job(home, training=huge))
    assert found[0] == found[1] and found[0][0] == "NotFinite" and "of task '" in found[0][1]


@pytest.mark.slow
def test_sharded_arrays_are_slices(pair, home):
    """Between updates a process holds about half of every array, its moments too."""
    found = pair.run(held, job(home, recipe=recipe(parallel="fsdp")))
    whole = found[0]["whole"]
    for part in ("weights", "moments"):
        one, other = (rank[part] for rank in found)
        assert one + other == (whole if part == "weights" else 2 * whole)
        assert 0.4 < one / (one + other) < 0.6


def held(place, one):
    from polyhead.deep.loop.fit import TrainingLoop

    learning, devices, feed = parts_of(one, place)
    loop = TrainingLoop(devices, feed, score=lambda: 0.0, training=one.training)
    loop.train()
    moments = [s for state in loop.optimizer.state.values() for n, s in state.items() if n != "step"]
    return {
        "whole": sum(p.numel() for p in learning.parameters()),
        "weights": sum(p.to_local().numel() for p in devices.module.parameters()),
        "moments": sum(m.to_local().numel() for m in moments),
    }


def test_torchruns_environment_says_which_process_this_is():
    assert place_in({}, "cpu") == ProcessRank()
    assert place_in({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, "cpu") == ProcessRank(rank=5, world=8)
    with pytest.raises(ConfigError, match="torchrun"):
        place_in({"RANK": "first"}, "cpu")
    with pytest.raises(ConfigError, match="rank 2 of 2"):
        place_in({"RANK": "2", "WORLD_SIZE": "2"}, "cpu")


# The command; each process writes which threads it still has when it ends. One of the group's own may abort it then.
TELLING = """
import atexit, os, pathlib

place = pathlib.Path(__file__).with_name("threads-" + os.environ["RANK"])

def tell():
    names = [file.read_text() for file in pathlib.Path("/proc/self/task").glob("*/comm")]
    place.write_text("".join(names))

atexit.register(tell)

from polyhead.cli.main import main

main()
"""


@pytest.mark.slow
def test_torchrun_trains_one_bundle_and_says_everything_once(home, tmp_path):
    """The command as a shell starts it, in two processes; one process finds that nothing is left to do."""
    path, program = joint_project(home, tmp_path, RECIPE), tmp_path / "program.py"
    program.write_text(TELLING)
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program), "train"]
    words += [str(path), "--json", str(tmp_path / "told.json"), "--device", "cpu"]
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env={**environment(), "GLOO_SOCKET_IFNAME": "lo"},
    )
    assert done.returncode == 0, done.stderr
    left = [file.read_text().split() for file in sorted(tmp_path.glob("threads-*"))]
    assert len(left) == 2, done.stderr
    assert not [name for names in left for name in names if "gloo" in name]
    assert done.stdout.count("a trunk learned from") == 1
    assert "2 processes (ddp), the first on cpu" in done.stdout
    assert set(json.loads((tmp_path / "told.json").read_text())["scores"]) == set(NAMES)
    assert "trained already, unchanged" in run("train", path).out
    assert lineage_of(tmp_path / "learned").processes == 2
    arrays = alone(job(home))["arrays"]
    for name, array in Bundle.open(tmp_path / "learned").trunk().arrays.items():
        if not name.endswith("key.bias"):
            np.testing.assert_allclose(array, arrays[f"trunk.{name}"], rtol=0, atol=1e-5, err_msg=name)


def joint_project(home, folder, recipe):
    project = tiny_project.project(home, *NAMES, training=TRAINING)
    entries = tuple(
        msgspec.structs.replace(entry, **{s: str(home / getattr(entry, s)) for s in ("train", "validation", "test")})
        for entry in project.tasks
    )
    path = folder / "polyhead.toml"
    bundle = str(folder / "learned")
    path.write_text(to_toml(msgspec.structs.replace(project, tasks=entries, recipe=recipe, bundle=bundle)))
    return path


@pytest.mark.parametrize("words", [(), ("--device", "cpu"), ("--tensorboard", "board")], ids=str)
def test_frozen_trunks_are_trained_on_by_one_process_alone(home, tmp_path, monkeypatch, words):
    path = joint_project(home, tmp_path, Frozen())
    if not words:
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
    run("train", path, *words).refuses("by which an encoder learns" if words else "joint recipe")
    assert not (tmp_path / "learned").exists()
