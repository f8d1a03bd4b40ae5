"""The joint recipe: what an update is, who learns from it, and that a stopped run goes on as if it never was."""

import copy
import json

import msgspec
import numpy as np
import pytest
import torch

from polyhead.bundle.atomic import BUILDING
from polyhead.bundle.format import LINEAGE
from polyhead.bundle.merge import merge_bundles
from polyhead.bundle.read import Bundle
from polyhead.bundle.remove import remove_tasks
from polyhead.deep.loop import fit as fitting
from polyhead.deep.recipes.joint import joint_outlook
from polyhead.deep.recipes.joint_loop import JointLoop, text_examples
from polyhead.deep.recipes.paths import joint_paths
from polyhead.deep.recipes.sampling import MixedFeed
from polyhead.deep.recipes.trained_trunk import lineage_of, writing_alone
from polyhead.encoder.data import arrays_digest
from polyhead.engine.session import Session
from polyhead.errors import BundleError, TrainError
from polyhead.folders import claim
from polyhead.project.pretrained import load_trunk
from polyhead.project.recipes import Joint, Sampling, Smoothing, Weighting
from polyhead.project.tables import TrunkChoice
from polyhead.tasks.task import Task
from polyhead.text.tokenize import Tokenizer, windows_of
from polyhead.train.data.prepare import prepare
from polyhead.train.events import Events
from polyhead.train.run import train_project
from support import tiny_project
from support.tiers import first_of

NAMES = ("mood", "urgency", "names", "same")
TRAINING = msgspec.structs.replace(tiny_project.TRAINING, epochs=2, learning_rate=1e-3, dropout=0.0)
RECIPE = Joint(micro_batches=3, layer_dropout=0.0)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    tiny_project.project(folder)
    return folder


def project(home, *names, recipe=RECIPE, training=TRAINING, **named):
    made = tiny_project.project(home, *(names or NAMES), training=training)
    return msgspec.structs.replace(made, recipe=recipe, **named)


def loop(home, *names, recipe=RECIPE, training=TRAINING, **named):
    prepared = prepare(project(home, *names, training=training), home)
    data = load_trunk(str(home / "trunk"))
    paths = joint_paths(prepared, data, recipe)
    return JointLoop(prepared, paths, data, recipe, training=training, precision="float32", **named)


def arrays(learned):
    return arrays_digest(learned.data.arrays), {n: arrays_digest(a) for n, a in learned.arrays.items()}


def first_gradient(made, monkeypatch):
    """What the optimizer is given at the first update of the loop, which learns to its end."""
    seen, step = [], torch.optim.AdamW.step
    monkeypatch.setattr(torch.nn.utils, "clip_grads_with_norm_", lambda parameters, most, norm: None)

    def noted(self, *arguments, **named):
        if not seen:
            seen.append({n: p.grad.clone() for n, p in made.module.named_parameters() if p.grad is not None})
        return step(self, *arguments, **named)

    monkeypatch.setattr(torch.optim.AdamW, "step", noted)
    made.learn()
    return seen[0]


def assert_mean_gradient(found, before, update, loss):
    """The naive way: one backward pass a micro-batch, each on a copy of its own, then their mean."""
    total = {}
    for task, batch in update:
        alone = copy.deepcopy(before)
        loss(task, alone(task, *batch.arguments), batch).backward()
        for name, parameter in alone.named_parameters():
            if parameter.grad is not None:
                total[name] = total.get(name, 0) + parameter.grad / len(update)
    assert set(total) == set(found)
    for name, gradient in total.items():
        assert torch.allclose(gradient, found[name], atol=1e-6), name


def test_an_update_steps_on_the_mean_of_its_micro_batches_gradients(home, monkeypatch):
    made = loop(home)
    before, found = copy.deepcopy(made.module).train(), first_gradient(made, monkeypatch)
    first = next(iter(MixedFeed(made.examples, made.mixture, TRAINING).updates(0)))
    assert len(first) == 3
    assert_mean_gradient(found, before, first, made.objective)


def test_a_task_that_is_never_drawn_learns_nothing(home):
    """No decay and no momentum either: its arrays keep their bits, while the trunk moves."""
    only = Sampling(kind="schedule", schedule=({"mood": 1.0},))
    made = loop(home, recipe=msgspec.structs.replace(RECIPE, sampling=only))
    before = {name: arrays_digest(_state(part)) for name, part in made.module.model.parts.items()}
    trunk = arrays_digest(made.data.arrays)
    learned = made.learn()
    after = {name: arrays_digest(a) for name, a in learned.arrays.items()}
    assert {name for name in NAMES if before[name] != after[name]} == {"mood"}
    assert learned.data.digest != made.data.digest and arrays_digest(made.data.arrays) == trunk


def _state(part):
    return {name: value.detach().numpy() for name, value in part.state_dict().items()}


def test_where_every_task_is_in_an_update_it_is_the_papers_sum_over_the_tasks_by_their_number(home, monkeypatch):
    """Du et al. weigh losses by N^0.1 over the sum of these; here an update is the mean of its micro-batches."""
    recipe = Joint(sampling=Sampling(kind="all"), weighting=Weighting(kind="size", exponent=0.1), layer_dropout=0.0)
    base = project(home)
    fewer = [
        msgspec.structs.replace(e, train="data/messages-validation.jsonl") if e.name == "urgency" else e
        for e in base.tasks
    ]
    prepared, data = (prepare(msgspec.structs.replace(base, tasks=tuple(fewer)), home), load_trunk(str(home / "trunk")))
    plain, made = (
        JointLoop(prepared, joint_paths(prepared, data, one), data, one, training=TRAINING, precision="float32")
        for one in (RECIPE, recipe)
    )
    before, found = copy.deepcopy(made.module).train(), first_gradient(made, monkeypatch)
    first = next(iter(MixedFeed(made.examples, made.mixture, TRAINING).updates(0)))
    sizes = {one.task.name: len(one.train.examples.targets) for one in prepared}
    assert sorted(task for task, _ in first) == sorted(sizes) and len(set(sizes.values())) > 1
    whole = sum(size**0.1 for size in sizes.values())

    def weighed(task, outputs, batch):
        return sizes[task] ** 0.1 / whole * plain.objective(task, outputs, batch)

    assert_mean_gradient(found, before, first, weighed)


def test_a_task_that_was_drawn_and_is_idle_now_moves_no_more(home):
    """Its parts have moments by then, which would go on moving and decaying them."""
    turns = Sampling(kind="schedule", schedule=({"mood": 1.0, "urgency": 1.0}, {"mood": 1.0}))
    made, seen = loop(home, recipe=msgspec.structs.replace(RECIPE, sampling=turns)), []
    scores, start = made.scores, {n: arrays_digest(_state(p)) for n, p in made.module.model.parts.items()}

    def score():
        seen.append({name: arrays_digest(_state(part)) for name, part in made.module.model.parts.items()})
        return scores()

    made.scores = score
    made.learn()
    drawn, idle = seen[0], seen[1]
    assert {name for name in NAMES if drawn[name] != start[name]} == {"mood", "urgency"}
    assert {name for name in NAMES if idle[name] != drawn[name]} == {"mood"}


STOPPED = {kind: Joint(sampling=Sampling(kind=kind)) for kind in ("size", "all", "shuffled", "round_robin")} | {
    "annealed": Joint(sampling=Sampling(kind="annealed")),
    "schedule": Joint(
        sampling=Sampling(kind="schedule", schedule=({"mood": 1.0}, {"urgency": 1.0, "names": 1.0}, {"same": 1.0}))
    ),
    "batch": Joint(scheme="batch"),
    "dataset": Joint(scheme="dataset"),
    "smoothing": Joint(smoothing=Smoothing(size=0.1)),
    "uncertainty": Joint(weighting=Weighting(kind="uncertainty")),
}


@pytest.mark.parametrize("kind", first_of(STOPPED))
def test_a_stopped_run_goes_on_as_if_it_had_never_stopped(home, tmp_path, monkeypatch, kind):
    """Sampler, noise and passes through the data too: an epoch reads no whole number of passes here."""
    monkeypatch.setattr(fitting, "SAVE_SECONDS", 0.0)
    training = msgspec.structs.replace(TRAINING, epochs=3, dropout=0.2)
    recipe = msgspec.structs.replace(STOPPED[kind], micro_batches=2, steps=3, layer_dropout=0.1)
    straight = loop(home, recipe=recipe, training=training).learn()

    class Stopped(Exception):
        pass

    stopped = loop(home, recipe=recipe, training=training, checkpoint=tmp_path / "one.checkpoint")
    scores, counted = stopped.scores, []

    def score():
        counted.append(1)
        if len(counted) == 3:
            raise Stopped
        return scores()

    stopped.scores = score
    with pytest.raises(Stopped):
        stopped.learn()
    again = loop(home, recipe=recipe, training=training, checkpoint=tmp_path / "one.checkpoint").learn()
    assert len(counted) == 3 and arrays(again) == arrays(straight)
    assert again.fitted.history[2]["loss"] == straight.fitted.history[2]["loss"]


def test_every_example_of_a_task_comes_once_a_pass(home):
    made = loop(home, "mood", recipe=Joint(micro_batches=1, steps=2))
    feed = MixedFeed(made.examples, made.mixture, TRAINING)
    members = [batch.members for epoch in (0, 1) for update in feed.updates(epoch) for _, batch in update]
    assert sorted(np.concatenate(members).tolist()) == list(range(32))


def test_learned_weights_of_losses_are_trained_and_stay_out_of_the_bundle(home):
    recipe = msgspec.structs.replace(RECIPE, weighting=Weighting(kind="uncertainty"))
    made = loop(home, recipe=recipe)
    learned = made.learn()
    assert any(float(value.detach()) != 0.0 for value in made.objective.parameters())
    assert all("log" not in name for a in learned.arrays.values() for name in a)


def test_a_bundle_of_its_own_answers_as_it_was_scored(home, tmp_path):
    lines = []
    made = project(home, bundle=str(tmp_path / "learned"))
    outcome = train_project(made, folder=home, events=Events(say=lines.append))
    bundle = Bundle.open(tmp_path / "learned")
    assert set(bundle.tasks) == set(NAMES) and bundle.digest == outcome.trunk != outcome.learned_from
    assert {record.trunk for record in bundle.tasks.values()} == {bundle.digest}
    prepared = {p.task.name: p for p in prepare(made, home)}
    session = Session(bundle)
    mood = prepared["mood"]
    found = [r.answers["mood"]["label"] for r in session.predict(mood.test.examples.inputs, tasks=["mood"])]
    right = [mood.task.labels[int(t)] for t in mood.test.examples.targets]
    share = np.mean([a == b for a, b in zip(found, right, strict=True)])
    assert share == pytest.approx(bundle.scores("mood")["splits"]["test"]["accuracy"])
    result = session.predict(["the lamp is bad please"])[0]
    assert result.receipt.passes == 1 and set(result.answers) == {"mood", "urgency", "names"}
    assert any("micro-batches" in line for line in lines)


def test_the_same_again_is_kept_and_other_data_is_refused(home, tmp_path):
    made = project(home, "mood", "same", bundle=str(tmp_path / "learned"))
    first = train_project(made, folder=home)
    again = train_project(made, folder=home)
    assert again.kept and not first.kept
    assert (again.trunk, again.scores) == (first.trunk, first.scores)
    with pytest.raises(BundleError, match="name another bundle"):
        train_project(project(home, "mood", "urgency", bundle=made.bundle), folder=home)
    assert set(Bundle.open(made.bundle).tasks) == {"mood", "same"}


def test_tasks_that_were_replaced_or_removed_since_are_told(home, tmp_path):
    """It said "unchanged", with the scores of tasks that were not there."""
    made, told = project(home, "mood", "names", bundle=str(tmp_path / "b")), []
    scores = train_project(made, folder=home).scores
    name = next(iter(scores))
    Bundle.open(tmp_path / "b").remove_task(name)
    assert train_project(made, folder=home, events=Events(say=told.append)).kept
    assert any(f"replaced or removed since then: {name} (" in line for line in told)
    assert not any("unchanged" in line for line in told)


def test_a_blended_trunk_lies_between_what_was_and_what_was_learned(home, tmp_path):
    """The naive mean of weights (Wortsman et al. 2022, eq. 1); scores are the learned trunk's."""
    found = {}
    for share in (1.0, 0.25):
        recipe = msgspec.structs.replace(RECIPE, heads="strip", blend=share)
        made = project(home, "mood", "names", recipe=recipe, bundle=str(tmp_path / str(share)))
        outcome = train_project(made, folder=home, cache=tmp_path / f"cache-{share}")
        found[share] = Bundle.open(tmp_path / str(share)).trunk().arrays, outcome
    (whole, first), (blended, second) = found[1.0], found[0.25]
    plain = load_trunk(str(home / "trunk")).arrays
    assert first.scores == second.scores and first.trunk != second.trunk
    for name, array in plain.items():
        np.testing.assert_allclose(blended[name], 0.75 * array + 0.25 * whole[name], rtol=1e-5, atol=1e-7)
    assert any(not np.array_equal(whole[name], plain[name]) for name in plain)
    lineage = lineage_of(tmp_path / "0.25")
    assert lineage.recipe["blend"] == 0.25 and lineage.trunk == second.trunk


def test_a_trunk_without_heads_is_not_trained_again_and_keeps_its_scores(home, tmp_path, monkeypatch):
    """The bundle has no task that could hold them; the same command used to come back with none."""
    recipe = msgspec.structs.replace(RECIPE, heads="strip")
    made = project(home, "mood", "same", recipe=recipe, bundle=str(tmp_path / "learned"))
    first = train_project(made, folder=home)
    monkeypatch.setattr(JointLoop, "learn", lambda *_: pytest.fail("it is trained again"))
    again = train_project(made, folder=home)
    assert set(again.scores) == {"mood", "same"} and set(again.scores["mood"]) == {"validation", "test"}
    assert again == msgspec.structs.replace(first, trained={}, kept=("mood", "same"), seconds=again.seconds)


def test_a_lineage_says_on_how_many_processes_and_how_a_trunk_was_learned(home, tmp_path):
    """One that was written before these were kept is read as well, and gives the scores that it has."""
    made = project(home, "mood", "same", bundle=str(tmp_path / "learned"))
    first = train_project(made, folder=home)
    found = lineage_of(tmp_path / "learned")
    assert found.processes == 1 and found.numerics["precision"] == "float32"
    file = tmp_path / "learned" / "trunk" / LINEAGE
    older = json.loads(file.read_text())
    for name in ("processes", "numerics", "scores"):
        del older[name]
    file.write_text(json.dumps(older))
    assert lineage_of(tmp_path / "learned").processes is None
    assert train_project(made, folder=home).scores == first.scores
    remove_tasks(tmp_path / "learned", ["same"])
    again = train_project(made, folder=home).scores
    assert again["mood"] == first.scores["mood"] and again["same"] == {"validation": found.validation["same"]}


def test_the_outlook_counts_windows_and_budgets(home):
    """With room for one token each window stands alone: as many batches as the texts have windows."""
    recipe = msgspec.structs.replace(RECIPE, tokens=1)
    made = tiny_project.project(home, "names", training=TRAINING, max_tokens=8, long_texts="windows")
    prepared, data = prepare(made, home), load_trunk(str(home / "trunk"), max_tokens=8)
    paths = joint_paths(prepared, data, recipe)
    learns = JointLoop(prepared, paths, data, recipe, training=TRAINING, precision="float32")
    texts = list(prepared[0].train.examples.inputs)
    windows = len(Tokenizer(data.tokenizer, data.settings).encode(texts, windows=windows_of(8)))
    row = next(line.split() for line in joint_outlook(learns) if line.startswith("names"))
    assert int(row[5]) == windows > 32


def test_a_learned_trunk_serves_as_a_frozen_one(home, tmp_path):
    """Heads are stripped, the trunk keeps its lineage, and tasks come over it as over any other."""
    recipe = msgspec.structs.replace(RECIPE, heads="strip")
    outcome = train_project(project(home, "mood", "same", recipe=recipe, bundle=str(tmp_path / "learned")), folder=home)
    assert not Bundle.open(tmp_path / "learned").tasks
    lineage = lineage_of(tmp_path / "learned")
    assert lineage is not None and lineage.trunk == outcome.trunk and set(lineage.tasks) == {"mood", "same"}
    assert lineage.learned_from["digest"] == load_trunk(str(home / "trunk")).digest
    frozen = msgspec.structs.replace(
        tiny_project.project(home, "urgency"),
        trunk=TrunkChoice(name=str(tmp_path / "learned")),
        bundle=str(tmp_path / "frozen"),
    )
    train_project(frozen, folder=home)
    assert Bundle.open(tmp_path / "frozen").digest == outcome.trunk
    sources = [Bundle.open(tmp_path / name) for name in ("frozen", "learned")]
    merged = merge_bundles(tmp_path / "merged", sources)
    assert lineage_of(merged.root) == lineage and set(merged.tasks) == {"urgency"}


def test_what_cannot_learn_together_is_refused_with_its_name(home):
    with pytest.raises(TrainError, match="alike"):
        loop(home, "mood", "alike")


def test_a_head_that_is_not_named_is_attention_where_the_trunk_learns(home):
    prepared = prepare(project(home, "mood"), home)[0]
    data = load_trunk(str(home / "trunk"))
    paths = []
    for positions in ("auto", "attention"):
        strategy = msgspec.structs.replace(tiny_project.STRATEGY, positions=positions)
        paths.append(joint_paths([msgspec.structs.replace(prepared, strategy=strategy)], data, RECIPE))
    assert paths[0] == paths[1]


def test_tasks_of_a_family_share_one_strategy(home):
    prepared = prepare(project(home, "mood", "same"), home)
    data = load_trunk(str(home / "trunk"))
    both = [msgspec.structs.replace(p, task=Task(name=p.task.name, kind="multiple_choice")) for p in prepared]
    paths = joint_paths(both, data, RECIPE)
    assert {path.head.part for path in paths.values()} == {"family:multiple_choice"}
    heads = msgspec.structs.replace(tiny_project.STRATEGY, heads=4)
    both[1] = msgspec.structs.replace(both[1], strategy=heads)
    with pytest.raises(TrainError, match="one strategy") as caught:
        joint_paths(both, data, RECIPE)
    assert "'mood' and 'same'" in str(caught.value)
    apart = joint_paths(both, data, msgspec.structs.replace(RECIPE, families=()))
    assert {path.head.part for path in apart.values()} == {"task:mood", "task:same"}


def test_where_epochs_read_other_tasks_the_last_one_is_kept(home):
    """One task after the other: an early epoch scores well while the later tasks have learned nothing."""
    training = msgspec.structs.replace(TRAINING, epochs=4, patience=1)
    recipe = msgspec.structs.replace(RECIPE, scheme="dataset", micro_batches=1, steps=4)
    made = loop(home, recipe=recipe, training=training)
    scores = iter((0.9, 0.1, 0.2, 0.3))
    made._score = lambda: next(scores)
    fitted = made.learn().fitted
    assert len(fitted.history) == fitted.best_epoch == 4


def test_a_place_that_is_no_bundle_is_refused_before_training(home, tmp_path):
    for name in ("folder", "file"):
        place = tmp_path / name / "learned"
        (place if name == "folder" else place.parent).mkdir(parents=True)
        (place / "notes.txt" if name == "folder" else place).write_text("mine")
        events = []
        with pytest.raises(BundleError, match="no bundle"):
            train_project(project(home, "mood", bundle=str(place)), folder=home, events=Events(say=events.append))
        assert not any("micro-batches" in line for line in events)
        assert not (tmp_path / name / ".learned.learning").exists()


def test_two_trainings_of_one_bundle_do_not_meet(home, tmp_path):
    made = project(home, "mood", bundle=str(tmp_path / "learned"))
    with writing_alone(tmp_path / "learned"), pytest.raises(BundleError, match="another training"):
        train_project(made, folder=home)
    train_project(made, folder=home)
    assert {entry.name for entry in tmp_path.iterdir()} <= {"learned", "learned-cache"}


def test_what_a_killed_run_left_is_removed_by_the_next(home, tmp_path):
    made = project(home, "mood", bundle=str(tmp_path / "learned"))
    train_project(made, folder=home)
    claim(tmp_path / ".learned.learning", BUILDING)
    (tmp_path / ".learned.learning" / "bundle" / "kept").mkdir(parents=True)
    assert train_project(made, folder=home).kept
    assert not (tmp_path / ".learned.learning").exists()


def test_weights_that_are_no_numbers_are_never_kept(home):
    training = msgspec.structs.replace(TRAINING, learning_rate=1e38, epochs=1)
    recipe = msgspec.structs.replace(RECIPE, steps=1)
    with pytest.raises(TrainError, match="not finite"):
        loop(home, recipe=recipe, training=training).learn()


def test_validation_rows_are_spread_over_the_split(home):
    made = loop(home, "mood", recipe=msgspec.structs.replace(RECIPE, validation_rows=4))
    split = made.prepared["mood"].validation
    rows, examples = made._validation["mood"]
    assert examples.count == len(rows.targets) == 4
    whole = text_examples(split.examples, made.prepared["mood"].task, made.tokenizer)
    assert whole.count == 12 and len(made.scores()["mood"]) >= 1
