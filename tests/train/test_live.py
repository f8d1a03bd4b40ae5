"""Prompts and adapters over a frozen trunk, and with it: who learns, what stays, and what a bundle answers."""

import msgspec
import numpy as np
import pytest
import torch

import tiny
from polyhead.bundle.read import Bundle
from polyhead.engine.session import Session
from polyhead.errors import ConfigError, TrainError
from polyhead.project import Project
from polyhead.recipe import ONE_TASK, Joint
from polyhead.strategy import Adapter, InLayer, OnTop, Pooled, Prompted
from polyhead.train.joint import JointCourse
from polyhead.train.joint_paths import joint_paths
from polyhead.train.joint_run import train_together
from polyhead.train.live import bonds_of, units_of
from polyhead.train.prepare import prepare
from polyhead.train.run import train_project
from polyhead.train.starts import donor, frequent_tokens, start_parts

NAMES = ("mood", "urgency")
TRAINING = msgspec.structs.replace(tiny.TRAINING, epochs=2, learning_rate=3e-3, batch=4)
GROUP = Prompted(hidden=6)
STRATEGIES = {
    "group": GROUP,
    "shared rows": Prompted(shared=2, hidden=6),
    "isolated": Prompted(isolated=True),
    "in_layer": InLayer(adapters=(Adapter(size=4, heads=2),)),
    "pooler": InLayer(adapters=(Adapter(delta="low_rank", size=4, tied=False),), pooler="shared"),
    "on_top": OnTop(width=8, heads=2, layers=2),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    tiny.project(folder)
    return folder


def project(home, strategy, *names, bundle="bundle", recipe=None):
    made = tiny.project(home, *(names or NAMES), training=TRAINING)
    changed = {"strategy": strategy, "bundle": bundle} | ({"recipe": recipe} if recipe else {})
    entries = tuple(msgspec.structs.replace(entry, strategy=None) for entry in made.tasks)
    return msgspec.structs.replace(made, tasks=entries, **changed)


def course_of(home, strategy, *names, frozen=True, recipe=ONE_TASK, **changes):
    from polyhead.nn.load import load_trunk

    prepared = [
        msgspec.structs.replace(p, training=msgspec.structs.replace(TRAINING, **changes))
        for p in prepare(project(home, strategy, *names), home)
    ]
    data = load_trunk(str(home / "trunk"))
    paths = joint_paths(prepared, data, recipe)
    return JointCourse(
        prepared, paths, data, recipe, training=prepared[0].training, precision="float32", frozen=frozen
    )


def bytes_of(arrays):
    return {name: np.ascontiguousarray(value).tobytes() for name, value in arrays.items()}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_frozen_trunk_stays_to_the_bit_while_every_own_array_learns(home, name):
    course = course_of(home, STRATEGIES[name])
    trunk = bytes_of(course.module.model.trunk.to_arrays())
    before = {task: bytes_of(part.state_dict()) for task, part in course.module.model.parts.items()}
    learned = course.learn()
    assert learned.data.digest == course.data.digest
    assert bytes_of(course.module.model.trunk.to_arrays()) == trunk
    for task, arrays in learned.arrays.items():
        moved = {n for n, value in bytes_of(arrays).items() if value != before[task][n]}
        assert {n for n in before[task] if not n.endswith("key.bias")} <= moved


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_what_was_trained_is_what_the_bundle_answers(home, tmp_path, name, precision):
    made = project(home, STRATEGIES[name])
    training = msgspec.structs.replace(made.training, precision=precision)
    made = msgspec.structs.replace(made, bundle=str(tmp_path / "bundle"), training=training)
    outcome = train_project(made, folder=home, cache=tmp_path / "cache")
    assert set(outcome.trained) == set(NAMES)
    session = Session(tmp_path / "bundle")
    for p in prepare(made, home):
        outputs = session.outputs(p.task.name, p.validation.examples.inputs)
        found, said = p.validation.examples.scores(p.task, outputs), outcome.trained[p.task.name]["validation"]
        if precision == "float32":
            assert found == pytest.approx(said, abs=1e-6)
        elif "accuracy" in found:  # rows whose two best labels are a rounding apart may differ
            assert found["accuracy"] == pytest.approx(said["accuracy"], abs=1.01 / len(outputs))
    again = train_project(made, folder=home, cache=tmp_path / "cache")
    assert not again.trained and set(again.kept) == set(NAMES)


def test_a_checkpoint_holds_what_learns_and_a_stopped_run_goes_on_to_the_same_bits(
    home, tmp_path, monkeypatch
):
    from polyhead.train import fit

    monkeypatch.setattr(fit, "SAVE_SECONDS", 0.0)
    file, strategy = tmp_path / "c.pt", Prompted(hidden=6, shared=1)
    whole = course_of(home, strategy, epochs=3).learn()
    stopped = course_of(home, strategy, epochs=3)
    stopped._checkpoint = file
    save, saved = fit._Run.save, []

    def killed(run):
        save(run)
        saved.append(run.done)
        if run.done == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(fit._Run, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        stopped.learn()
    monkeypatch.setattr(fit._Run, "save", save)
    state = torch.load(file, weights_only=True)
    assert saved == [1, 2] and not any("trunk" in name for name in (*state["module"], *state["best"][0]))
    resumed = course_of(home, strategy, epochs=3)
    resumed._checkpoint = file
    again = resumed.learn()
    for task, arrays in whole.arrays.items():
        assert bytes_of(arrays) == bytes_of(again.arrays[task])
    for owner, arrays in whole.families.items():
        assert bytes_of(arrays) == bytes_of(again.families[owner])


def test_a_group_is_trained_whole_or_not_at_all(home, tmp_path):
    made = msgspec.structs.replace(project(home, GROUP), bundle=str(tmp_path / "bundle"))
    with pytest.raises(ConfigError, match="each other's arrays") as caught:
        train_project(made, folder=home, cache=tmp_path / "cache", only=("mood",))
    assert "urgency" in str(caught.value.got)


def test_shifted_prompts_leave_room_for_the_longest_text(home):
    with pytest.raises(TrainError, match="position") as caught:
        course_of(home, Prompted(hidden=6, shift=True, rows=400))
    assert "max_tokens" in caught.value.do


def test_units_are_the_groups_and_families_that_tasks_share():
    shared = InLayer(pooler="shared")
    found = units_of(
        {
            "a": Prompted(group="x"),
            "b": InLayer(),
            "c": Prompted(group="x"),
            "d": Prompted(isolated=True),
            "e": shared,
            "f": OnTop(pooler="shared"),
            "g": Pooled(),
        }
    )
    assert found == [("a", "c"), ("b",), ("d",), ("e", "f"), ("g",)]
    assert bonds_of(InLayer(adapters=(Adapter(share="ends", tied=True),))) == {"adapters"}


def test_a_step_of_one_task_leaves_the_others_prompt_and_pooler_alone(home):
    """With the gradient stop: to the bit, under AdamW with decay. Without it the prompt moves."""
    for stop in (True, False):
        course = course_of(home, Prompted(hidden=6, stop_gradient=stop), frozen=False, weight_decay=0.1)
        parts, (batch,) = course.module.model.parts, _one_batch(course, "mood")
        before = bytes_of(parts["urgency"].state_dict())
        optimizer = torch.optim.AdamW(course.module.parameters(), lr=1e-2, weight_decay=0.1)
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            course.loss("mood", batch).backward()
            optimizer.step()
        after = bytes_of(parts["urgency"].state_dict())
        moved = {name for name in after if after[name] != before[name]}
        assert moved == (set() if stop else {"prompt.weight"})


def _one_batch(course, task):
    return [course.examples[task].batch(np.arange(4))]


def test_frequent_tokens_are_words_of_the_task_and_fill_the_prompt(home):
    course = course_of(home, Prompted(hidden=6, init="frequent", rows=3))
    start_parts(course)
    words = course.data.arrays["embeddings.word.weight"]
    for name, prepared in course.prepared.items():
        ids = {int(i) for e in course.tokeniser.encode(prepared.train.examples.inputs) for i in e.ids}
        special = set(course.tokeniser.encode([("",)])[0].ids.tolist())
        rows = frequent_tokens(prepared, course.tokeniser, 3)
        assert set(rows.tolist()) <= ids - special
        given = course.module.model.parts[name].prompt.weight.detach().numpy()
        np.testing.assert_array_equal(given, words[rows])


def test_donors_give_prompt_and_pooler_but_not_the_head(home):
    strategy = Prompted(hidden=6, init="donors", pooler_init="donors", donor_epochs=1)
    course = course_of(home, strategy)
    drawn = bytes_of(course.module.model.parts["mood"].state_dict())
    trunk = bytes_of(course.module.model.trunk.to_arrays())
    start_parts(course)
    expected = donor(course, course.prepared["mood"], strategy, None)
    found = bytes_of(course.module.model.parts["mood"].state_dict())
    assert found["head.output.weight"] == drawn["head.output.weight"]
    for name in ("prompt.weight", "head.hidden.weight", "head.hidden.bias"):
        assert found[name] == bytes_of(expected)[name] != drawn[name]
    assert bytes_of(course.module.model.trunk.to_arrays()) == trunk


@pytest.mark.parametrize("name", ["group", "shared rows", "pooler", "on_top"])
def test_a_trunk_that_learns_with_them_is_a_bundle_that_answers(home, tmp_path, name):
    recipe = Joint(families=(), micro_batches=1, layer_dropout=0.0)
    made = project(home, STRATEGIES[name], recipe=recipe)
    made = msgspec.structs.replace(made, bundle=str(tmp_path / "bundle"))
    assert isinstance(made, Project)
    outcome = train_together(made, folder=home, cache=tmp_path / "cache")
    bundle = Bundle.open(tmp_path / "bundle")
    assert bundle.digest == outcome.trunk != outcome.learned_from
    answers = Session(bundle).predict([("where is my order?",)])
    assert set(answers[0].answers) == set(NAMES)


def test_heads_are_probed_over_the_frozen_trunk_before_it_learns(home, monkeypatch):
    """What the first joint update starts from is what a frozen run of the same epochs, rate and seed gives."""
    from polyhead.train import joint

    strategy = Pooled(layers="last", positions="mean")
    probing = course_of(home, strategy, epochs=3, patience=3, learning_rate=1e-2).learn().arrays
    recipe = msgspec.structs.replace(ONE_TASK, head_epochs=3, head_learning_rate=1e-2, layer_dropout=0.0)
    course, seen = course_of(home, strategy, frozen=False, recipe=recipe), {}

    def devices(place, loss, **kwargs):
        if not course.module.model.trunk.training and loss is course.loss:
            seen.update(
                {name: bytes_of(part.state_dict()) for name, part in course.module.model.parts.items()}
            )
        return real(place, loss, **kwargs)

    real = joint.devices_of
    monkeypatch.setattr(joint, "devices_of", devices)
    learned = course.learn()
    assert seen == {name: bytes_of(arrays) for name, arrays in probing.items()}
    assert learned.data.digest != course.data.digest
