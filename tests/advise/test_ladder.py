"""Advice: within the budget, from validation alone, as a project file that trains; labels against layers."""

import json

import pytest
from safetensors.numpy import save_file

from advise.test_sharing_ways import tasks_in
from polyhead.advise.choice import Budget, next_step, task_advice
from polyhead.advise.labels import LearningCurve, curve_of
from polyhead.advise.ladder import Ladder
from polyhead.errors import ConfigError
from polyhead.plan.cost.allocate import AllocationOption, LayerPrice, allocation_of
from polyhead.project.strategies import Branch, Pooled
from polyhead.project.tables import read_project
from polyhead.testing import tiny_trunk
from polyhead.train.events import Events
from support import head_search

LAYER = LayerPrice(shared=1, private=1, unit="layers")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("advised")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    head_search.hurry(monkeypatch)


HEADS = {"pooled-heads", "pooled-attention"}


def ladder(home, folder, said=None, names=("mood", "names"), **budget):
    tasks = tasks_in(home, *names)
    return Ladder(tasks, folder, Budget(**budget), Events(say=(said if said is not None else []).append))


@pytest.mark.slow
def test_the_choice_is_within_the_budget_and_its_project_reads(home, tmp_path):
    said = []
    asked = ladder(home, tmp_path, said, amount=3, frozen=True)
    advice = asked.run()
    assert said[0].startswith("price: ")
    assert advice.cost <= 3 and not advice.learned
    assert advice.left_out == ("a trunk that learns: the trunk is to stay frozen",)
    (tmp_path / "p.toml").write_text(asked.project_text(advice, "b"))
    project = read_project(tmp_path / "p.toml")
    for entry in project.tasks:
        chosen = advice.tasks[entry.name].chosen
        heads = {"pooled-heads": None, "pooled-attention": Pooled(positions="attention")}
        expected = heads[chosen] if chosen in heads else Branch(layers=int(chosen.removeprefix("branch-")))
        assert entry.strategy == expected
    for task in advice.tasks.values():
        assert task.tried[task.chosen] == task.score and {"pooled-heads", "branch-1"} <= set(task.tried)


@pytest.mark.slow
def test_the_same_call_trains_nothing_anew(home, tmp_path, monkeypatch):
    first = ladder(home, tmp_path, amount=3, frozen=True).run()
    from polyhead.deep.branch import task
    from polyhead.train.heads import run

    for module, name in ((run, "train_task"), (task, "grow")):
        monkeypatch.setattr(module, name, lambda *a, **k: pytest.fail("trained again"))
    again = ladder(home, tmp_path, amount=3, frozen=True).run()
    assert {n: t.tried for n, t in again.tasks.items()} == {n: t.tried for n, t in first.tasks.items()}


def test_below_the_whole_trunk_a_layer_stands_on_a_low_tap(home, tmp_path):
    """One layer for one task, where the trunk has two: a private one above none of the trunk's."""
    asked = ladder(home, tmp_path, names=("mood",), amount=1)
    advice = asked.run()
    assert advice.cost == 1 and advice.tasks["mood"].chosen == "branch-1" and not advice.learned
    (tmp_path / "p.toml").write_text(asked.project_text(advice, "b"))
    assert read_project(tmp_path / "p.toml").tasks[0].strategy == Branch(layers=1, tap=0)


def test_a_table_of_word_vectors_has_no_branches(tmp_path):
    words, folder = tiny_trunk(family="static"), tmp_path / "trunk"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(words.tokenizer)
    (folder / "config.json").write_text(json.dumps({"model_type": "model2vec"}))
    save_file({"embeddings": words.arrays["embeddings.word.weight"]}, folder / "model.safetensors")
    for unit, amount in (("ms", 1e4), ("layers", 0)):
        asked = ladder(tmp_path, tmp_path / "kept", names=("mood",), amount=amount, unit=unit, frozen=True)
        advice = asked.run()
        assert advice.left_out[0] == "branches: a table of word vectors has no layers"
        assert advice.tasks["mood"].chosen in HEADS and advice.cost <= amount
        (tmp_path / "p.toml").write_text(asked.project_text(advice, "b"))
        assert read_project(tmp_path / "p.toml").tasks[0].name == "mood"


def test_a_budget_for_nothing_is_refused_with_what_is_needed(home, tmp_path):
    with pytest.raises(ConfigError, match="no way of sharing is within the budget"):
        ladder(home, tmp_path, amount=1).run()


def test_what_takes_longer_than_the_minutes_is_named(home, tmp_path):
    advice = ladder(home, tmp_path, amount=4, minutes=1e-6).run()
    assert len(advice.left_out) == 2 and {task.chosen for task in advice.tasks.values()} <= HEADS


@pytest.mark.slow
def test_milliseconds_are_measured_and_kept_to(home, tmp_path):
    advice = ladder(home, tmp_path, amount=1e4, unit="ms", frozen=True).run()
    assert 0 < advice.cost <= 1e4 and advice.unit == "ms"


def option(task, layers, score):
    name = f"branch-{layers}" if layers else "pooled-heads"
    return AllocationOption(task=task, name=name, tap=6 - layers if layers else 6, layers=layers, score=score)


def test_the_next_better_choice_is_the_cheapest_that_is_better():
    """Both pooled cost 6 layers. Two branches of one above tap 5 cost 7, as does one alone, which gains less."""
    options = [option("a", 0, 80), option("a", 1, 81), option("b", 0, 70), option("b", 1, 76), option("b", 2, 77)]
    chosen = allocation_of({"a": options[0], "b": options[2]}, LAYER)
    step = next_step(options, LAYER, chosen, score=chosen.score, cost=chosen.cost)
    assert (step.cost, step.score, step.changes) == (1, 78.5, {"a": "branch-1", "b": "branch-1"})
    best = allocation_of({"a": options[1], "b": options[4]}, LAYER)
    assert next_step(options, LAYER, best, score=best.score, cost=best.cost) is None


@pytest.mark.parametrize(
    ("scores", "gain"),
    [((50, 60, 70, 78), 8.0), ((50, 60, 62, 70), 5.0), ((80, 79, 78, 77), 0.0), ((70,), 0.0)],
    ids=["flattening", "uneven", "falling", "one"],
)
def test_twice_the_labels_gain_what_the_last_doublings_did_at_most(scores, gain):
    assert LearningCurve(rows=tuple(range(len(scores))), scores=scores).doubled == gain


@pytest.mark.parametrize(("deeper", "which"), [(85.0, "labels"), (95.0, "layers")])
def test_labels_are_weighed_against_layers(deeper, which):
    """Twice the labels are worth 8 points; the deeper branch gains 5 or 15."""
    curve = LearningCurve(rows=(125, 250, 500, 1000), scores=(50, 60, 70, 78))
    advice = task_advice("pooled-heads", {"pooled-heads": 80.0, "branch-1": deeper}, curve, "why")
    assert advice.says.endswith(f"more {which} would help more") and advice.layers == deeper - 80


def test_a_curve_rises_where_labels_tell_more(home, tmp_path):
    """Its last point is learned from all rows, and draws are the same for the same seed."""
    from polyhead.train.data.extract import Extractor

    asked = ladder(home, tmp_path, amount=3)
    source = Extractor(asked.data, folder=tmp_path / "features", precision="float32")
    curve = curve_of(asked.prepared[0], source)
    assert curve.rows[-1] == len(asked.prepared[0].train.examples.targets)
    assert curve == curve_of(asked.prepared[0], source)


@pytest.mark.slow
def test_a_budget_that_was_asked_before_gets_the_same_answer_again(home, tmp_path):
    """Between the two another budget, whose branches are others."""
    small, large = ({"names": ("mood",), "amount": amount, "frozen": True} for amount in (1, 4))
    first = [ladder(home, tmp_path, **budget).run().tasks["mood"] for budget in (small, large)]
    again = [ladder(home, tmp_path, **budget).run().tasks["mood"] for budget in (small, large)]
    assert [task.tried for task in again] == [task.tried for task in first]
    assert [task.chosen for task in again] == [task.chosen for task in first]
