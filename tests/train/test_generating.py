"""Tasks that write, trained over a frozen encoder by every strategy, like tasks of any other kind."""

import json
import shutil
import sys

import msgspec
import numpy as np
import pytest
import torch

from polyhead.bundle.read import Bundle
from polyhead.deep.loop import fit
from polyhead.deep.recipes.joint_loop import JointLoop
from polyhead.deep.recipes.paths import joint_paths
from polyhead.encoder.data import arrays_digest
from polyhead.errors import ConfigError, MissingExtra, TrainError
from polyhead.plan import TRUNK, Head, Pool, cost
from polyhead.project.pretrained import load_trunk
from polyhead.project.recipes import ONE_TASK
from polyhead.project.strategies import Adapter, Branch, InLayer, OnTop, Pooled, Prompted
from polyhead.project.tables import TrunkChoice, read_project
from polyhead.testing import tiny_trunk
from polyhead.train.data.encoder import load_any_trunk
from polyhead.train.data.prepare import prepare, with_decoders
from polyhead.train.events import Events
from polyhead.train.run import train_project
from support import summarizers, tiny_project, writing
from support.tiny_project import to_toml

pytest.importorskip("rouge_score")

STRATEGIES = {
    "pooled": Pooled(),
    "branch": Branch(layers=1),
    "in_layer": InLayer(adapters=(Adapter(delta="low_rank", size=4),)),
    "on_top": OnTop(form="layer"),
    "prompted": Prompted(),
}


def course_of(folder, *others, epochs=1, frozen=True, checkpoint=None, recipe=ONE_TASK, trunk=None, **changes):
    """The loop of a project's tasks, and the prepared tasks."""
    training = msgspec.structs.replace(writing.QUICK, epochs=epochs, **changes.pop("numbers", {}))
    made = writing.project(folder, *others, training=training, trunk=trunk, **{"count": 12, **changes})
    data = load_any_trunk(made, folder)
    several = with_decoders(prepare(made, folder), data)
    paths = joint_paths(several, data, recipe)
    named = {"training": training, "precision": training.precision, "checkpoint": checkpoint, "frozen": frozen}
    return JointLoop(several, paths, data, recipe, **named), several


def bytes_of(learned):
    return {name: array.tobytes() for name, array in learned.arrays["brief"].items()}


def untimed(learned):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in learned.fitted.history]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A bundle with a task that knows its 20 documents."""
    folder, lines = tmp_path_factory.mktemp("writing"), []
    training = msgspec.structs.replace(writing.LEARNS, epochs=100, patience=100, batch=5)
    made = writing.project(folder, count=20, training=training)
    outcome = train_project(made, folder=folder, events=Events(say=lines.append))
    return folder, made, outcome, lines


def test_documents_are_learned_by_heart(home):
    _, _, outcome, lines = home
    scores = outcome.trained["brief"]
    assert scores["validation"]["rouge_l"] > 0.9 and scores["test"] == scores["validation"]
    assert any(line.startswith("brief: validation rouge_l 0.9") for line in lines), lines


def test_the_trunk_is_that_of_the_checkpoint_and_the_part_the_decoder(home):
    folder, *_ = home
    bundle, data = Bundle.open(folder / "bundle"), load_trunk(str(summarizers.folder()), max_tokens=40)
    path, shape = bundle.tasks["brief"].path, data.architecture
    assert bundle.digest == data.digest
    assert [type(node) for node in path.nodes[-2:]] == [Pool, Head] and path.pool.positions == "all"
    own = {array.name: array.shape for array in cost.arrays_of_path(path, shape) if array.owner != TRUNK}
    part = bundle.part("brief")
    assert {name: array.shape for name, array in part.items()} == own
    started = data.decoder().arrays
    assert set(part) == set(started) and not all(np.array_equal(part[name], started[name]) for name in part)


def test_what_is_trained_is_kept_and_another_way_trains_again(home, tmp_path):
    folder, made, *_ = home
    shutil.copytree(folder, tmp_path / "home")
    again = train_project(made, folder=tmp_path / "home")
    assert again.kept == ("brief",) and not again.trained
    for changed in ({"beams": 2}, {"smoothing": 0.1}):
        other = writing.project(folder, training=writing.QUICK, **changed)
        (p,) = with_decoders(prepare(other, folder), load_any_trunk(other, folder))
        (q,) = with_decoders(prepare(made, folder), load_any_trunk(made, folder))
        assert {**p.fingerprint(), "training": 0} != {**q.fingerprint(), "training": 0}


def test_another_decoder_beside_the_same_encoder_trains_again(tmp_path):
    other = tmp_path / "other"
    shutil.copytree(summarizers.folder(), other)
    tiny_project.change_array(other / "model.safetensors", "model.decoder.layers.0.fc1.bias", lambda a: a + 1)
    data = [load_trunk(str(place), max_tokens=40) for place in (summarizers.folder(), other)]
    prints = []
    for each in data:
        (p,) = with_decoders(prepare(writing.project(tmp_path, count=4), tmp_path), each)
        prints.append(p.fingerprint())
    assert data[0].digest == data[1].digest and prints[0] != prints[1]


def test_the_card_says_what_it_is(home):
    folder, *_ = home
    card = Bundle.open(folder / "bundle").card("brief")
    assert "A `summarization` task." in card and "decoder" in card and "16 tokens" in card, card
    history = json.loads((folder / "bundle" / "tasks" / "brief" / "v0001" / "scores.json").read_text())["history"]
    assert len(history) == 100 and "seconds" not in history[0]


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_learns_to_write_and_leaves_the_trunk_as_it_is(tmp_path, name):
    loop, (p,) = course_of(tmp_path, strategy=STRATEGIES[name], epochs=3)
    before, path = loop.data.digest, loop.paths["brief"]
    learned = loop.learn()
    losses = [row["loss"] for row in learned.fitted.history]
    assert losses[2] < losses[0] and learned.data.digest == before
    own = {array.name for array in cost.arrays_of_path(path, loop.data.architecture) if array.owner == path.head.part}
    assert set(learned.arrays["brief"]) == own
    assert set(learned.validation["brief"]) == {"rouge_l", "rouge_1", "rouge_2"}
    other = msgspec.structs.replace(p.strategy.under) if name == "pooled" else None
    assert other is None or path.layers == other.path(p.task, trunk=before, shape=loop.data.architecture).layers


def test_every_parameter_of_the_part_gets_a_gradient(tmp_path):
    loop, _ = course_of(tmp_path, strategy=InLayer(adapters=(Adapter(delta="low_rank", size=4, init="normal"),)))
    (update,) = (piece for piece, _ in zip([next(loop.examples["brief"].in_order(4))], [0], strict=True))
    loop.loss("brief", update).backward()
    part = loop.module.model.parts["brief"]
    assert {name for name, value in part.named_parameters() if value.grad is None} == set()
    assert all(parameter.grad is None for parameter in loop.module.model.trunk.parameters())


def test_batches_hold_what_transformers_would_be_given(tmp_path):
    loop, (p,) = course_of(tmp_path)
    theirs, library = summarizers.theirs(summarizers.folder())
    members = []
    for piece in map(loop.examples["brief"].batch, loop.examples["brief"].drawn(5, np.random.default_rng(0))):
        pairs = [(p.train.examples.inputs[i][0], str(p.train.examples.targets[i][0])) for i in piece.members]
        wanted, (texts,) = summarizers.batch(library, pairs), piece.arguments
        assert torch.equal(texts.ids, wanted["input_ids"]) and torch.equal(texts.mask.long(), wanted["attention_mask"])
        assert torch.equal(piece.targets, wanted["labels"])
        assert torch.equal(texts.written, theirs.prepare_decoder_input_ids_from_labels(wanted["labels"]))
        members += piece.members.tolist()
    assert sorted(members) == list(range(12))


def test_the_decoder_starts_as_the_checkpoint_s_and_learns_its_loss(tmp_path):
    """The first loss of a loop, divided by ln V, is that of the whole model in `transformers`."""
    loop, (p,) = course_of(tmp_path)
    known = loop.data.decoder().arrays
    part = loop.module.model.parts["brief"].state_dict()
    assert all(np.array_equal(part[name].numpy(), array) for name, array in known.items())
    theirs, library = summarizers.theirs(summarizers.folder())
    piece = loop.examples["brief"].batch(np.arange(6))
    pairs = [(p.train.examples.inputs[i][0], str(p.train.examples.targets[i][0])) for i in piece.members]
    with torch.inference_mode():
        wanted = theirs(**summarizers.batch(library, pairs)).loss.item()
        found = loop.loss.eval()("brief", piece).item()
    assert found == pytest.approx(wanted / np.log(loop.data.architecture.vocabulary), abs=1e-6)


def test_a_random_decoder_learns_over_any_encoder(tmp_path):
    """The text's first token is what the decoder starts with, so it is not written."""
    trunk = tiny_project.write_trunk(tmp_path / "trunk")
    loop, _ = course_of(tmp_path, trunk=trunk, start="random", layers=2, epochs=3, max_tokens=None)
    piece = loop.examples["brief"].batch(np.arange(3))
    (texts,) = piece.arguments
    rules = loop.tasks["brief"].generation
    assert (texts.written[:, 0] == rules.start).all() and not (piece.targets == rules.start).any()
    assert (piece.targets == rules.ends[0]).sum(dim=1).tolist() == [1, 1, 1]
    assert loop.paths["brief"].head.decoder.layers == 2
    losses = [row["loss"] for row in loop.learn().fitted.history]
    assert losses[2] < losses[0] < 1.5  # of a uniform guess it is 1


def test_the_same_seed_gives_the_same_bytes_and_a_stopped_run_goes_on(tmp_path, monkeypatch):
    """Stopped in its third epoch, with a checkpoint after each."""
    numbers = {"epochs": 4, "numbers": {"dropout": 0.1}}
    whole, again = (course_of(tmp_path, **numbers)[0].learn() for _ in range(2))
    assert bytes_of(whole) == bytes_of(again)
    monkeypatch.setattr(fit, "SAVE_SECONDS", 0.0)
    stopped, _ = course_of(tmp_path, checkpoint=tmp_path / "state.checkpoint", **numbers)
    scores, counted = stopped.scores, []

    def stopping():
        counted.append(1)
        if len(counted) == 3:
            raise KeyboardInterrupt
        return scores()

    stopped.scores = stopping
    with pytest.raises(KeyboardInterrupt):
        stopped.learn()
    resumed = course_of(tmp_path, checkpoint=tmp_path / "state.checkpoint", **numbers)[0].learn()
    assert bytes_of(resumed) == bytes_of(whole) and untimed(resumed) == untimed(whole)


def test_cut_texts_are_counted(tmp_path):
    lines = []
    made = writing.project(tmp_path, count=6, training=writing.QUICK, tokens=4)
    made = msgspec.structs.replace(made, trunk=TrunkChoice(name=made.trunk.name, max_tokens=8))
    train_project(made, folder=tmp_path, events=Events(say=lines.append))
    assert any("brief: 6 texts cut in training" in line for line in lines), lines
    assert any("brief: 6 texts to write cut in training" in line for line in lines), lines


def test_a_missing_package_is_told_before_training(tmp_path, monkeypatch):
    made = writing.project(tmp_path, count=6)
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(MissingExtra, match=r"polyhead\[summarization\]"):
        train_project(made, folder=tmp_path)
    assert not (tmp_path / "bundle").exists()


REFUSED = {
    "isolated prompts": (Prompted(isolated=True), ConfigError, "isolated"),
    "donors": (Prompted(init="donors"), ConfigError, "donors"),
    "a search": (Branch(), TrainError, "depth"),
    "students": (Branch(layers=1, students=()), None, ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused_before_training(tmp_path, name):
    strategy, error, words = REFUSED[name]
    made = writing.project(tmp_path, count=4, strategy=strategy, training=writing.QUICK)
    if error is None:
        assert train_project(made, folder=tmp_path).trained
        return
    with pytest.raises(error, match=words):
        train_project(made, folder=tmp_path)


def test_an_encoder_without_a_decoder_is_refused_before_training(tmp_path):
    made = writing.project(tmp_path, count=4, trunk=tiny_project.write_trunk(tmp_path / "trunk"))
    with pytest.raises(ConfigError, match="no decoder to start from"):
        train_project(made, folder=tmp_path)
    assert tiny_trunk().decoder is None and not (tmp_path / "bundle").exists()


def test_a_project_file_declares_it(tmp_path):
    made = writing.project(tmp_path, writing.mood(tmp_path), count=4, training=writing.QUICK, beams=3, no_repeat=2)
    (tmp_path / "polyhead.toml").write_text(to_toml(made))
    read = read_project(tmp_path / "polyhead.toml")
    assert read == made
    (p,) = [p for p in with_decoders(prepare(read, tmp_path), load_any_trunk(read, tmp_path)) if p.task.name == "brief"]
    assert (p.task.generation.beams, p.task.generation.no_repeat, p.task.generation.tokens) == (3, 2, 16)
    other = to_toml(made).replace('kind = "single_label"', 'kind = "single_label"\ngeneration = { beams = 2 }', 1)
    (tmp_path / "polyhead.toml").write_text(other)
    with pytest.raises(ConfigError, match="writes nothing"):
        read_project(tmp_path / "polyhead.toml")


def test_a_part_is_the_same_whatever_is_trained_beside_it(tmp_path):
    """In one run with a classification, or alone."""
    alone = writing.project(tmp_path, count=8, training=writing.QUICK)
    train_project(alone, folder=tmp_path)
    both = writing.project(tmp_path, writing.mood(tmp_path), count=8, training=writing.QUICK)
    both = msgspec.structs.replace(both, bundle="both")
    outcome = train_project(both, folder=tmp_path, cache=tmp_path / "other")
    assert set(outcome.trained) == {"mood", "brief"}
    parts = [Bundle.open(tmp_path / name).part("brief") for name in ("bundle", "both")]
    assert arrays_digest(parts[0]) == arrays_digest(parts[1])
