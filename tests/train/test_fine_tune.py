"""The recipe `fine_tune`: a bundle a task, what its lineage says, where heads start, that a stopped search goes on."""

import msgspec
import numpy as np
import pytest

import tiny
from polyhead.bundle.read import Bundle
from polyhead.engine.session import Session
from polyhead.errors import BundleError, ConfigError
from polyhead.nn.load import load_trunk
from polyhead.project import TrunkChoice
from polyhead.recipe import FineTune, Joint, Search, Smoothing
from polyhead.train import fine_tune_run
from polyhead.train import fit as fitting
from polyhead.train.events import Events
from polyhead.train.fine_tune_run import fine_tune_project
from polyhead.train.joint_run import train_together
from polyhead.train.lineage import lineage_of
from polyhead.train.prepare import prepare
from polyhead.train.refine import refine
from polyhead.trunk_data import arrays_digest

TRAINING = msgspec.structs.replace(tiny.TRAINING, epochs=2, patience=2)
SEARCH = Search(learning_rates=(1e-9, 3e-3), epsilons=(1e-8,), dropouts=(0.0,))
STILL = Search(learning_rates=(1e-30,), epsilons=(1e-8,), dropouts=(0.0,))
NAMES = ("mood", "names")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    tiny.project(folder)
    return folder


def project(home, out, *names, recipe=None, **named):
    made = tiny.project(home, *(names or NAMES), training=TRAINING)
    return msgspec.structs.replace(made, recipe=recipe or FineTune(search=SEARCH), bundle=str(out), **named)


def test_each_task_has_a_bundle_with_what_the_best_candidate_learned(home, tmp_path):
    told = []
    made = project(home, tmp_path / "out")
    found = fine_tune_project(made, folder=home, events=Events(say=told.append))
    start = load_trunk(str(home / "trunk"))
    assert list(found.tasks) == list(NAMES) and found.learned_from == start.digest
    for name, one in found.tasks.items():
        (prepared,) = prepare(
            msgspec.structs.replace(made, tasks=tuple(t for t in made.tasks if t.name == name)), home
        )
        known = refine(prepared, start, search=SEARCH, precision="float32")
        bundle, lineage = Bundle.open(tmp_path / "out" / name), lineage_of(tmp_path / "out" / name)
        assert bundle.digest == known.learned.data.digest == one.trunk == lineage.trunk != start.digest
        assert arrays_digest(bundle.part(name)) == arrays_digest(known.learned.arrays[name])
        assert one.chosen == known.chosen and one.tried == known.tried
        assert lineage.learned_from["digest"] == start.digest and lineage.recipe["kind"] == "fine_tune"
        assert lineage.search["chosen"] == msgspec.to_builtins(known.chosen)
        assert lineage.training["learning_rate"] == known.chosen.learning_rate
        for split in ("validation", "test"):
            assert one.scores[split] == pytest.approx(known.scores[split], abs=1e-6)
        session = Session(tmp_path / "out" / name)
        outputs = session.outputs(name, prepared.test.examples.inputs, words=prepared.test.examples.words)
        assert prepared.test.examples.scores(prepared.task, outputs) == pytest.approx(
            one.scores["test"], abs=1e-6
        )
    chosen = [line for line in told if line.endswith(", chosen")]
    assert len(chosen) == 2 and all(line.strip().startswith("rate ") for line in chosen)
    assert not list((tmp_path / "out-cache").rglob("*.pt"))


def test_a_second_run_keeps_what_is_there_and_other_numbers_are_refused(home, tmp_path):
    made = project(home, tmp_path / "out", "mood")
    first = fine_tune_project(made, folder=home)
    again = fine_tune_project(made, folder=home)
    assert again.tasks["mood"].kept and not first.tasks["mood"].kept
    assert msgspec.structs.replace(again.tasks["mood"], kept=False) == first.tasks["mood"]
    for other in (FineTune(search=STILL), FineTune(search=SEARCH, smoothing=Smoothing())):
        with pytest.raises(BundleError, match="trained otherwise"):
            fine_tune_project(msgspec.structs.replace(made, recipe=other), folder=home)
    assert lineage_of(tmp_path / "out" / "mood").search["chosen"] == msgspec.to_builtins(
        first.tasks["mood"].chosen
    )


def test_a_kept_head_starts_as_pre_finetuning_left_it(home, tmp_path):
    """At a rate of nothing the answers are those of the bundle that the trunk is from."""
    joint = Joint(micro_batches=2, layer_dropout=0.0, steps=4)
    train_together(project(home, tmp_path / "joint", recipe=joint), folder=home)
    over = TrunkChoice(name=str(tmp_path / "joint"))
    recipe = FineTune(search=STILL, head="kept")
    made = project(home, tmp_path / "out", "mood", recipe=recipe, trunk=over)
    fine_tune_project(made, folder=home)
    texts = [("the lamp is broken",), ("my phone is good today",)]
    before, after = (
        Session(place).outputs("mood", texts) for place in (tmp_path / "joint", tmp_path / "out" / "mood")
    )
    assert np.allclose(before, after, atol=1e-6)
    fresh = msgspec.structs.replace(made, recipe=FineTune(search=STILL), bundle=str(tmp_path / "fresh"))
    fine_tune_project(fresh, folder=home)
    assert not np.allclose(before, Session(tmp_path / "fresh" / "mood").outputs("mood", texts), atol=1e-3)


def test_a_kept_head_that_is_not_there_is_said_before_any_training(home, tmp_path):
    recipe = FineTune(search=STILL, head="kept")
    with pytest.raises(ConfigError, match="'mood' has no part in the trunk") as caught:
        fine_tune_project(project(home, tmp_path / "out", recipe=recipe), folder=home)
    assert "no bundle" in str(caught.value)
    joint = Joint(micro_batches=1, steps=1)
    train_together(project(home, tmp_path / "joint", "mood", recipe=joint), folder=home)
    over = TrunkChoice(name=str(tmp_path / "joint"))
    with pytest.raises(ConfigError, match="'names' has no part"):
        fine_tune_project(project(home, tmp_path / "out", recipe=recipe, trunk=over), folder=home)
    assert not (tmp_path / "out").exists()


def test_a_search_that_was_stopped_goes_on(home, tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "SAVE_SECONDS", 0.0)
    straight = fine_tune_project(project(home, tmp_path / "straight", "mood"), folder=home)
    made, counted = project(home, tmp_path / "out", "mood"), []

    class Killed(Exception):
        pass

    def writing(*_, **__):
        counted.append(1)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(fine_tune_run, "write_learned", writing)
        with pytest.raises(Killed):
            fine_tune_project(made, folder=home)
    assert len(list((tmp_path / "out-cache").rglob("*.pt"))) == 2  # both candidates to their ends
    again = fine_tune_project(made, folder=home)
    assert again.tasks["mood"].trunk == straight.tasks["mood"].trunk
    assert again.tasks["mood"].tried == straight.tasks["mood"].tried


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
