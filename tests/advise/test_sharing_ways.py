"""Ways of sharing as project files: what is written is what is trained, and what a way cannot answer is pooled."""

import tomllib

import msgspec
import pytest
import tomli_w

from polyhead.advise.sharing_ways import (
    ALL,
    ALONE,
    OWN,
    chosen_ways,
    declared,
    project_file,
    read_task_set,
    unfit,
    ways_of,
)
from polyhead.deep.recipes.paths import joint_paths
from polyhead.errors import ConfigError
from polyhead.project.pretrained import load_trunk
from polyhead.project.recipes import FineTune, Frozen, Joint, Training
from polyhead.project.strategies import Branch, Pooled, Prompted
from polyhead.project.tables import read_project
from polyhead.train.data.prepare import prepare
from support import tiny_project

WAYS = ways_of(6)


@pytest.fixture
def tasks(tmp_path):
    return tasks_in(tmp_path, "mood", "names", "alike")


def tasks_in(folder, *names, pair=None):
    project = tiny_project.project(folder, *names, strategy=Pooled(), training=Training(seed=5, class_weights=True))
    plain = tomllib.loads(tiny_project.to_toml(project))
    for table in plain["tasks"]:
        table.pop("pair", None)
        table |= {"pair": pair} if pair else {}
    (folder / "polyhead.toml").write_text(tomli_w.dumps(plain))
    return read_task_set(folder / "polyhead.toml")


def test_a_written_project_is_the_declared_one(tasks, tmp_path):
    """Read back from another folder, each file declares the same tasks, strategy, recipe and numbers."""
    other = tmp_path / "elsewhere"
    other.mkdir()
    for way in WAYS:
        project = declared(tasks, way, seed=3, bundle="b", epochs=2)
        (other / "p.toml").write_text(project_file(project, tmp_path))
        again = read_project(other / "p.toml")
        places = {"train", "validation", "test"}
        for mine, its in zip(project.tasks, again.tasks, strict=True):
            for place in places:
                assert getattr(its, place) == str((tmp_path / getattr(mine, place)).resolve()), way.name
            same = dict.fromkeys(places, "file")
            assert msgspec.structs.replace(mine, **same) == msgspec.structs.replace(its, **same), way.name
        assert (again.strategy, again.recipe, again.allocation) == (way.strategy, way.recipe, way.allocation), way.name


def test_names_are_their_own_and_every_strategy_is_there():
    names = [way.name for way in WAYS]
    assert len(set(names)) == len(names)
    assert {way.kind for way in WAYS} == {"pooled", "branch", "prompted", "in_layer", "on_top", "fine_tune"}
    assert {way.strategy.layers for way in WAYS if isinstance(way.strategy, Branch)} == {1, 2, 3, 6}


def test_a_table_of_word_vectors_has_pooled_ways_alone():
    assert {type(way.strategy) for way in ways_of(0)} == {Pooled}
    assert {"pooled-auto", "pooled-joint", "fine-tune"} <= {way.name for way in ways_of(0)}


def test_a_trunk_of_one_layer_has_no_way_twice():
    assert [way.strategy.layers for way in ways_of(1) if isinstance(way.strategy, Branch)] == [1]


def test_what_is_retrained_follows_the_recipe():
    for way in WAYS:
        expected = ALL if isinstance(way.recipe, Joint) else OWN if isinstance(way.recipe, FineTune) else None
        assert expected is None or way.retrained == expected
    alone = [way.name for way in WAYS if way.retrained == ALONE]
    assert "prompted-isolated" in alone and "prompted-group" not in alone


def test_a_way_is_trained_by_its_own_numbers_but_for_seed_weights_and_precision(tasks):
    for way in WAYS:
        project = declared(tasks, way, seed=7, bundle="b")
        for entry in project.tasks:
            assert (entry.training.seed, entry.training.class_weights) == (7, True)
    rates = {w.name: declared(tasks, w, seed=1, bundle="b").tasks[0].training.learning_rate for w in WAYS}
    assert rates["pooled-auto"] == 3e-4 and rates["on-top"] == 1e-3 and rates["pooled-joint"] == 2e-4


def test_epochs_bound_ways_in_which_layers_run_and_no_other(tasks):
    for way in WAYS:
        plain, bound = (declared(tasks, way, seed=1, bundle="b", epochs=e).tasks[0].training for e in (None, 2))
        assert (bound == plain) != way.runs_layers, way.name
        assert not way.runs_layers or bound.epochs == 2


def test_pairs_are_read_as_each_way_reads_them_best(tasks):
    read = {way.name: declared(tasks, way, seed=1, bundle="b").tasks[2].pair for way in WAYS}
    assert read["pooled-auto"] == "separate" and read["pooled-joint"] == "joined" and read["in-layer"] == "joined"


def test_a_pair_that_the_file_reads_separately_is_joined_where_layers_of_the_way_learn_from_both(tmp_path):
    """`init` writes `pair = "separate"`, and ways whose trunk learns could not be trained on it."""
    tasks = tasks_in(tmp_path, "alike", pair="separate")
    read = {way.name: declared(tasks, way, seed=1, bundle="b").tasks[0].pair for way in WAYS}
    for way in WAYS:
        is_kept = way.recipe == Frozen() and not way.strategy.is_live
        assert read[way.name] == ("separate" if is_kept else "joined"), way.name
    data = load_trunk(str(tmp_path / "trunk"))
    for name in ("pooled-joint", "fine-tune"):
        (way,) = chosen_ways(WAYS, [name])
        joint_paths(prepare(declared(tasks, way, seed=1, bundle="b"), tmp_path), data, Joint())  # it raised


def test_a_pair_that_the_file_reads_in_one_input_stays_so(tmp_path):
    tasks = tasks_in(tmp_path, "alike", pair="joined")
    assert tasks.pairs == {"alike": "joined"}
    assert {declared(tasks, way, seed=1, bundle="b").tasks[0].pair for way in WAYS} == {"joined"}


def test_a_task_that_a_way_cannot_answer_is_pooled(tasks):
    way = next(way for way in WAYS if isinstance(way.strategy, Prompted) and way.strategy.isolated)
    reasons = {entry.name: unfit(way, entry) for entry in tasks.project.tasks}
    assert [name for name, reason in reasons.items() if reason] == ["names"]
    strategies = {entry.name: entry.strategy for entry in declared(tasks, way, seed=1, bundle="b").tasks}
    assert strategies == {"mood": None, "names": Pooled(), "alike": None}


def test_only_names_ways_and_strategies():
    assert [way.name for way in chosen_ways(WAYS, ["lora", "on_top"])] == ["lora", "on-top", "on-top-joint"]
    assert chosen_ways(WAYS, []) == WAYS
    with pytest.raises(ConfigError, match="branch-9"):
        chosen_ways(WAYS, ["branch-9"])
