"""The recipe `fine_tune`: a bundle a task, what its lineage says, where heads start, that a stopped search goes on."""

import msgspec
import numpy as np
import pytest

from polyhead.bundle.atomic import BUILDING
from polyhead.bundle.read import Bundle
from polyhead.deep.loop import fit as fitting
from polyhead.deep.recipes.fine_tune import refine
from polyhead.deep.recipes.joint_loop import JointLoop
from polyhead.deep.recipes.trained_trunk import lineage_of
from polyhead.encoder.data import arrays_digest
from polyhead.engine.session import Session
from polyhead.errors import BundleError, ConfigError, TrainError, UnknownTask
from polyhead.folders import claim
from polyhead.project.pretrained import load_trunk
from polyhead.project.recipes import FineTune, Joint, SearchGrid, SearchPoint, Smoothing
from polyhead.project.tables import TrunkChoice
from polyhead.train.data.prepare import prepare
from polyhead.train.events import Events
from polyhead.train.run import train_project
from support import tiny_project

TRAINING = msgspec.structs.replace(tiny_project.SEARCHED, epochs=2, patience=2)
SEARCH = SearchGrid(learning_rates=(1e-9, 3e-3), epsilons=(1e-8,), dropouts=(0.0,))
STILL = SearchGrid(learning_rates=(1e-30,), epsilons=(1e-8,), dropouts=(0.0,))
NAMES = ("mood", "names")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    tiny_project.project(folder)
    return folder


def project(home, out, *names, recipe=None, **named):
    made = tiny_project.project(home, *(names or NAMES), training=TRAINING)
    return msgspec.structs.replace(made, recipe=recipe or FineTune(search=SEARCH), bundle=str(out), **named)


def test_each_task_has_a_bundle_with_what_the_best_candidate_learned(home, tmp_path):
    told = []
    made = project(home, tmp_path / "out")
    found = train_project(made, folder=home, events=Events(say=told.append))
    start = load_trunk(str(home / "trunk"))
    assert list(found.bundles) == list(NAMES)
    for name, one in found.bundles.items():
        assert one.learned_from == start.digest
        (prepared,) = prepare(msgspec.structs.replace(made, tasks=tuple(t for t in made.tasks if t.name == name)), home)
        known = refine(prepared, start, search=SEARCH, precision="float32")
        bundle, lineage = Bundle.open(tmp_path / "out" / name), lineage_of(tmp_path / "out" / name)
        assert bundle.digest == known.learned.data.digest == one.trunk == lineage.trunk != start.digest
        assert arrays_digest(bundle.part(name)) == arrays_digest(known.learned.arrays[name])
        assert one.chosen == known.chosen and one.tried == known.tried
        assert lineage.learned_from["digest"] == start.digest and lineage.recipe["kind"] == "fine_tune"
        assert lineage.search["chosen"] == msgspec.to_builtins(known.chosen)
        assert lineage.training["learning_rate"] == known.chosen.learning_rate
        for split in ("validation", "test"):
            assert one.scores[name][split] == pytest.approx(known.scores[split], abs=1e-6)
        session = Session(tmp_path / "out" / name)
        outputs = session.outputs(name, prepared.test.examples.inputs, words=prepared.test.examples.words)
        assert prepared.test.examples.scores(prepared.task, outputs) == pytest.approx(
            one.scores[name]["test"], abs=1e-6
        )
    chosen = [line for line in told if line.endswith(", chosen")]
    assert len(chosen) == 2 and all(line.strip().startswith("rate ") for line in chosen)
    assert not list((tmp_path / "out-cache").rglob("*.pt"))


def test_a_second_run_keeps_what_is_there_and_other_numbers_are_refused(home, tmp_path):
    made = project(home, tmp_path / "out", "mood")
    first = train_project(made, folder=home)
    again = train_project(made, folder=home)
    assert again.bundles["mood"].kept and not first.bundles["mood"].kept
    assert (again.bundles["mood"].scores, again.bundles["mood"].tried) == (
        first.bundles["mood"].scores,
        first.bundles["mood"].tried,
    )
    for other in (FineTune(search=STILL), FineTune(search=SEARCH, smoothing=Smoothing())):
        with pytest.raises(BundleError, match="trained otherwise"):
            train_project(msgspec.structs.replace(made, recipe=other), folder=home)
    assert lineage_of(tmp_path / "out" / "mood").search["chosen"] == msgspec.to_builtins(first.bundles["mood"].chosen)


def test_a_kept_head_starts_as_pre_finetuning_left_it(home, tmp_path):
    """At a rate of nothing the answers are those of the bundle that the trunk is from."""
    joint = Joint(micro_batches=2, layer_dropout=0.0, steps=4)
    train_project(project(home, tmp_path / "joint", recipe=joint), folder=home)
    over = TrunkChoice(name=str(tmp_path / "joint"))
    recipe = FineTune(search=STILL, head="kept")
    made = project(home, tmp_path / "out", "mood", recipe=recipe, trunk=over)
    train_project(made, folder=home)
    texts = [("the lamp is broken",), ("my phone is good today",)]
    before, after = (Session(place).outputs("mood", texts) for place in (tmp_path / "joint", tmp_path / "out" / "mood"))
    assert np.allclose(before, after, atol=1e-6)
    fresh = msgspec.structs.replace(made, recipe=FineTune(search=STILL), bundle=str(tmp_path / "fresh"))
    train_project(fresh, folder=home)
    assert not np.allclose(before, Session(tmp_path / "fresh" / "mood").outputs("mood", texts), atol=1e-3)


def test_a_kept_head_that_is_not_there_is_said_before_any_training(home, tmp_path):
    recipe = FineTune(search=STILL, head="kept")
    with pytest.raises(ConfigError, match="'mood' has no part in the trunk") as caught:
        train_project(project(home, tmp_path / "out", recipe=recipe), folder=home)
    assert "no bundle" in str(caught.value)
    joint = Joint(micro_batches=1, steps=1)
    train_project(project(home, tmp_path / "joint", "mood", recipe=joint), folder=home)
    over = TrunkChoice(name=str(tmp_path / "joint"))
    turned = msgspec.structs.replace(tiny_project.ENTRIES["mood"], labels=("good", "bad"))
    made = msgspec.structs.replace(project(home, tmp_path / "out", "mood", recipe=recipe, trunk=over), tasks=(turned,))
    with pytest.raises(ConfigError, match="asks something else"):
        train_project(made, folder=home)
    with pytest.raises(ConfigError, match="'names' has no part"):
        train_project(project(home, tmp_path / "out", recipe=recipe, trunk=over), folder=home)
    assert not (tmp_path / "out").exists()


def test_a_search_that_was_stopped_goes_on(home, tmp_path, monkeypatch):
    """Killed in its second candidate: the first is not trained again, and all is as if nothing had been."""
    monkeypatch.setattr(fitting, "SAVE_SECONDS", 0.0)
    straight = train_project(project(home, tmp_path / "straight", "mood"), folder=home)
    made, scored, score = project(home, tmp_path / "out", "mood"), [], JointLoop.scores

    class Killed(Exception):
        pass

    def scores(self):
        scored.append(1)
        if len(scored) == 4:
            raise Killed
        return score(self)

    monkeypatch.setattr(JointLoop, "scores", scores)
    with pytest.raises(Killed):
        train_project(made, folder=home)
    again = train_project(made, folder=home)
    # of a candidate both epochs and the kept one are scored; killed in the second candidate, of the first then one is
    assert len(scored) == 4 + 1 + 3
    assert again.bundles["mood"].trunk == straight.bundles["mood"].trunk
    assert again.bundles["mood"].tried == straight.bundles["mood"].tried
    assert not list((tmp_path / "out-cache").rglob("*.pt"))


def test_what_a_killed_run_left_is_removed_by_the_next(home, tmp_path):
    made = project(home, tmp_path / "out", "mood")
    train_project(made, folder=home)
    claim(tmp_path / "out" / ".mood.learning", BUILDING)
    (tmp_path / "out" / ".mood.learning" / "bundle" / "kept").mkdir(parents=True)
    assert train_project(made, folder=home).bundles["mood"].kept
    assert not (tmp_path / "out" / ".mood.learning").exists()


def test_what_a_later_task_cannot_do_is_said_before_the_first_is_tuned(home, tmp_path):
    with pytest.raises(TrainError, match="read separately"):
        train_project(project(home, tmp_path / "out", "mood", "alike"), folder=home)
    with pytest.raises(UnknownTask, match="moods"):
        train_project(project(home, tmp_path / "out"), folder=home, only=("moods",))
    assert not (tmp_path / "out").exists()
    train_project(project(home, tmp_path / "out"), folder=home, only=("names",))
    with pytest.raises(BundleError, match="trained otherwise"):
        train_project(project(home, tmp_path / "out", recipe=FineTune(search=STILL)), folder=home)
    assert {one.name for one in (tmp_path / "out").iterdir()} == {"names"}
    with pytest.raises(BundleError, match="is a bundle"):
        train_project(project(home, tmp_path / "out" / "names"), folder=home)


def test_another_training_is_another_run(home, tmp_path):
    made = project(home, tmp_path / "out", "mood")
    train_project(made, folder=home)
    other = msgspec.structs.replace(TRAINING, batch=4)
    with pytest.raises(BundleError, match="trained otherwise"):
        train_project(msgspec.structs.replace(made, training=other), folder=home)


@pytest.mark.parametrize("name", SearchPoint.__struct_fields__)
def test_numbers_of_a_training_that_the_search_replaces_are_refused(home, tmp_path, name):
    """They were ignored in silence, in the project's training and in a task's."""
    assert hasattr(SearchGrid(), f"{name}s")
    made, given = project(home, tmp_path / "out", "mood"), msgspec.structs.replace(TRAINING, **{name: 0.5})
    of_task = tuple(msgspec.structs.replace(entry, training=given) for entry in made.tasks)
    for changes in ({"training": given}, {"tasks": of_task}):
        with pytest.raises(ConfigError, match=f"training.{name} would change nothing: .*recipe.search.{name}s"):
            train_project(msgspec.structs.replace(made, **changes), folder=home)
    assert not (tmp_path / "out").exists()


def test_what_the_joint_recipe_held_out_is_held_out_here(home, tmp_path):
    """The same tasks and seed: no row that chooses a candidate taught the trunk that it starts from."""
    share = {"validation": 0.25, "test": None}
    made = tiny_project.project(home, "mood", "urgency", training=TRAINING, **share)
    joint = prepare(msgspec.structs.replace(made, recipe=Joint()), home)
    tuned = prepare(msgspec.structs.replace(made, recipe=FineTune()), home)
    for one, other in zip(joint, tuned, strict=True):
        assert one.validation.digest == other.validation.digest and one.train.digest == other.train.digest


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"head": "kept", "head_epochs": 1}, "head_epochs is for fresh parts"),
        ({"head_rate": 0.0}, "head_rate must be positive"),
        ({"tokens": 0}, "tokens is too small"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(wrong, said):
    with pytest.raises(ConfigError, match=said):
        FineTune(**wrong)
