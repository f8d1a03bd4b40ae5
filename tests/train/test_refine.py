"""Fine-tuning with a search: what is tried, which one is kept, where heads start, that the test is read once."""

import msgspec
import numpy as np
import pytest
import torch

from polyhead.data.read import Examples
from polyhead.deep.loop import fit as fitting
from polyhead.deep.recipes.fine_tune import refine
from polyhead.deep.recipes.joint_loop import JointLoop
from polyhead.deep.recipes.paths import joint_paths
from polyhead.encoder.data import arrays_digest
from polyhead.errors import ConfigError, TrainError
from polyhead.project.pretrained import load_trunk
from polyhead.project.recipes import Joint, SearchGrid, SearchPoint, Smoothing
from polyhead.project.strategies import Prompted
from polyhead.train.data.prepare import prepare
from polyhead.train.events import Events
from support import tiny_project

TRAINING = msgspec.structs.replace(tiny_project.TRAINING, epochs=2, patience=1, learning_rate=1e-3)
SEARCH = SearchGrid(learning_rates=(1e-9, 3e-3), epsilons=(1e-8,), dropouts=(0.0,))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    tiny_project.project(folder)
    return folder


@pytest.fixture(scope="module")
def data(home):
    return load_trunk(str(home / "trunk"))


def prepared(home, name, **changes):
    (one,) = prepare(tiny_project.project(home, name, training=TRAINING), home)
    return msgspec.structs.replace(one, **changes)


def test_a_search_is_every_combination_in_order():
    found = SearchGrid(learning_rates=(1.0, 2.0), epsilons=(0.5,), dropouts=(0.0, 0.1)).candidates
    assert [(c.learning_rate, c.epsilon, c.dropout) for c in found] == [
        (1.0, 0.5, 0.0),
        (1.0, 0.5, 0.1),
        (2.0, 0.5, 0.0),
        (2.0, 0.5, 0.1),
    ]
    with pytest.raises(ConfigError, match="needs a candidate"):
        SearchGrid(epsilons=())
    for wrong in ({"learning_rates": (0.0,)}, {"epsilons": (-1e-8,)}, {"dropouts": (1.0,)}):
        with pytest.raises(ConfigError, match="search"):
            SearchGrid(**wrong)


def test_the_best_on_validation_is_kept_with_what_it_learned(home, data):
    one = prepared(home, "mood")
    found = refine(one, data, search=SEARCH, precision="float32")
    assert [t.candidate for t in found.tried] == list(SEARCH.candidates)
    best = max(found.tried, key=lambda t: t.score)
    assert found.chosen == best.candidate and found.learned.fitted.score == best.score
    assert found.scores["validation"]["accuracy"] == pytest.approx(best.score)
    assert set(found.scores) == {"validation", "test"}
    alone = refine(
        one, data, search=SearchGrid(learning_rates=(3e-3,), epsilons=(1e-8,), dropouts=(0.0,)), precision="float32"
    )
    of_search = next(t for t in found.tried if t.candidate.learning_rate == 3e-3)
    assert alone.tried[0] == of_search  # no candidate leaves anything behind for the next one
    assert found.learned.data.digest != data.digest


def test_patience_ends_a_candidate_and_its_best_epoch_counts(home, data):
    """At a rate of nothing no epoch is better than the first."""
    one = prepared(home, "mood", training=msgspec.structs.replace(TRAINING, epochs=5, patience=2))
    still = SearchGrid(learning_rates=(1e-30,), epsilons=(1e-8,), dropouts=(0.0,))
    (tried,) = refine(one, data, search=still, precision="float32").tried
    assert (tried.best_epoch, tried.epochs) == (1, 3)


def test_ties_go_to_the_first(home, data):
    still = SearchGrid(learning_rates=(1e-30, 1e-31), epsilons=(1e-8,), dropouts=(0.0,))
    assert refine(prepared(home, "mood"), data, search=still, precision="float32").chosen == still.candidates[0]


def test_a_candidate_that_does_not_stay_finite_has_failed_and_the_search_goes_on(home, data):
    """The first rate overflows float32 in one step; the second alone is chosen, as if it had been tried alone."""
    one = prepared(home, "mood")
    wild = SearchGrid(learning_rates=(1e38, 3e-3), epsilons=(1e-8,), dropouts=(0.0,))
    lines = []
    found = refine(one, data, search=wild, precision="float32", events=Events(say=lines.append))
    failed, fine = found.tried
    assert failed.score is failed.best_epoch is None and "not finite" in failed.error
    assert any("rate 1e+38" in line and failed.error in line for line in lines)
    alone = refine(one, data, search=msgspec.structs.replace(wild, learning_rates=(3e-3,)), precision="float32")
    assert (fine,) == alone.tried and not fine.error
    assert found.chosen == fine.candidate and found.scores == alone.scores


def test_a_search_of_which_all_fail_names_every_failure(home, data):
    wild = SearchGrid(learning_rates=(1e38, 2e38), epsilons=(1e-8,), dropouts=(0.0,))
    with pytest.raises(TrainError, match="'mood'") as caught:
        refine(prepared(home, "mood"), data, search=wild, precision="float32")
    said = str(caught.value)
    assert "rate 1e+38 epsilon 1e-08" in said and "rate 2e+38" in said and said.count("not finite") == 2
    assert [tried.candidate for tried in caught.value.tried] == list(wild.candidates)


def test_the_test_split_is_read_once(home, data, monkeypatch):
    one = prepared(home, "mood")
    counted, scores = [], Examples.scores

    def noted(self, task, outputs):
        counted.append(self is one.test.examples)
        return scores(self, task, outputs)

    monkeypatch.setattr(Examples, "scores", noted)
    refine(one, data, search=SEARCH, precision="float32")
    assert sum(counted) == 1 and len(counted) > 1


def test_epsilon_and_dropout_reach_adam_and_every_dropout(home, data, monkeypatch):
    seen, made = [], torch.optim.AdamW.__init__

    def noted(self, *arguments, **named):
        seen.append(named["eps"])
        made(self, *arguments, **named)

    monkeypatch.setattr(torch.optim.AdamW, "__init__", noted)
    built, learn = [], JointLoop.learn
    monkeypatch.setattr(
        JointLoop, "learn", lambda self, label, **named: built.append(self.module) or learn(self, label, **named)
    )
    search = SearchGrid(learning_rates=(1e-3,), epsilons=(1e-8, 1e-3), dropouts=(0.25,))
    refine(prepared(home, "mood"), data, search=search, precision="float32")
    assert seen == [1e-8, 1e-3]
    shares = [part.dropout for module in built for part in module.modules() if hasattr(part, "dropout")]
    assert set(shares) == {0.25} and len(shares) > 2 * len(built)  # the trunk's layers, the part, its head


def test_a_head_that_was_left_is_where_every_candidate_starts(home, data):
    """At a rate of nothing what comes out is what was put in; without it, the fresh head of the seed."""
    one = prepared(home, "mood")
    joint = Joint(micro_batches=1, layer_dropout=0.0, families=())
    loop = JointLoop([one], joint_paths([one], data, joint), data, joint, training=TRAINING, precision="float32")
    left = loop.learn().arrays["mood"]
    still = SearchGrid(learning_rates=(1e-30,), epsilons=(1e-8,), dropouts=(0.0,))
    kept = refine(one, data, search=still, head=left, precision="float32").learned.arrays["mood"]
    fresh = refine(one, data, search=still, precision="float32").learned.arrays["mood"]
    assert arrays_digest(kept) == arrays_digest(left) != arrays_digest(fresh)


STILL = SearchGrid(learning_rates=(1e-30,), epsilons=(1e-8,), dropouts=(0.0,))


@pytest.mark.parametrize("name", ["mood", "names"])
def test_a_head_starts_as_it_was_left_where_heads_are_normalised(home, data, name):
    """The loop names a head's matrix otherwise while it is normalised, so every head was refused."""
    one = prepared(home, name)
    left = refine(one, data, search=SEARCH, precision="float32").learned.arrays[name]
    smooth = Joint(families=(), micro_batches=1, smoothing=Smoothing(spectral=True))
    kept = refine(one, data, search=STILL, head=left, recipe=smooth, precision="float32").learned.arrays[name]
    largest = np.linalg.norm(left["head.output.weight"], 2)
    assert largest != pytest.approx(1.0, abs=1e-3)
    for array, value in left.items():
        divided = value / largest if array == "head.output.weight" else value
        np.testing.assert_allclose(kept[array], divided, rtol=1e-5, atol=1e-7, err_msg=array)


@pytest.mark.parametrize("init", ["frequent", "donors"])
def test_a_prompt_that_was_left_is_where_every_candidate_starts(home, data, init):
    """The declared start was made again over it, and by tokens or donors the given prompt was lost."""
    strategy = Prompted(hidden=6, init=init, pooler_init="donors", donor_epochs=1)
    one = prepared(home, "mood", strategy=strategy)
    left = refine(one, data, search=SEARCH, precision="float32").learned.arrays["mood"]
    assert "prompt.weight" in left
    kept = refine(one, data, search=STILL, head=left, precision="float32").learned.arrays["mood"]
    assert arrays_digest(kept) == arrays_digest(left)


def test_a_head_that_was_left_is_not_probed_again(home, data):
    one = prepared(home, "mood")
    left = refine(one, data, search=SEARCH, precision="float32").learned.arrays["mood"]
    probing = Joint(families=(), micro_batches=1, head_epochs=2, head_learning_rate=1e-2)
    kept = refine(one, data, search=STILL, head=left, recipe=probing, precision="float32")
    assert arrays_digest(kept.learned.arrays["mood"]) == arrays_digest(left)
    fresh = refine(one, data, search=STILL, precision="float32").learned.arrays["mood"]
    probed = refine(one, data, search=STILL, recipe=probing, precision="float32").learned.arrays["mood"]
    assert arrays_digest(probed) != arrays_digest(fresh)


def test_a_head_of_another_task_is_refused_by_name(home, data):
    left = refine(prepared(home, "urgency"), data, search=SEARCH, precision="float32").learned.arrays
    with pytest.raises(TrainError, match="'mood' cannot start from this head"):
        refine(prepared(home, "mood"), data, search=SEARCH, head=left["urgency"], precision="float32")


def test_a_search_that_was_stopped_goes_on(home, data, tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "SAVE_SECONDS", 0.0)
    one = prepared(home, "mood")
    straight = refine(one, data, search=SEARCH, precision="float32")
    first = SearchGrid(learning_rates=SEARCH.learning_rates[:1], epsilons=(1e-8,), dropouts=(0.0,))
    refine(one, data, search=first, precision="float32", checkpoints=tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    again = refine(one, data, search=SEARCH, precision="float32", checkpoints=tmp_path)
    assert again.tried == straight.tried and again.scores == straight.scores
    assert arrays_digest(again.learned.data.arrays) == arrays_digest(straight.learned.data.arrays)


@pytest.mark.slow
def test_a_search_goes_on_only_where_all_that_decides_it_is_the_same(home, data, tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "SAVE_SECONDS", 0.0)
    one, first = prepared(home, "mood"), SearchGrid(learning_rates=(3e-3,), epsilons=(1e-8,), dropouts=(0.0,))
    other = msgspec.structs.replace(one, training=msgspec.structs.replace(TRAINING, seed=2))
    head = refine(other, data, search=first, precision="float32").learned.arrays["mood"]
    name = next(iter(data.arrays))
    changed = msgspec.structs.replace(data, arrays=data.arrays | {name: data.arrays[name] * 1.5})
    runs = [
        (one, data, {}),
        (other, data, {}),
        (one, changed, {}),
        (one, data, {"head": head}),
        (one, data, {"recipe": Joint(families=(), micro_batches=2)}),
        (one, data, {"precision": "bfloat16"}),
    ]
    for count, (task, trunk, given) in enumerate(runs, 1):
        given = {"search": first, "precision": "float32", **given}
        straight = refine(task, trunk, **given).learned
        for _ in range(2):  # afresh, and from the file that it left
            found = refine(task, trunk, checkpoints=tmp_path, **given).learned
            assert arrays_digest(found.data.arrays) == arrays_digest(straight.data.arrays)
            assert len(list(tmp_path.iterdir())) == count


def test_every_kind_that_learns_together_can_be_refined(home, data):
    one = SearchPoint(learning_rate=1e-3, dropout=0.0)
    search = SearchGrid(learning_rates=(one.learning_rate,), epsilons=(one.epsilon,), dropouts=(0.0,))
    for name in ("topics", "urgency", "names", "same"):
        found = refine(prepared(home, name), data, search=search, precision="float32")
        assert found.chosen == one
        assert np.isfinite(list(found.scores["test"].values())).all()
