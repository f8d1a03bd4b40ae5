"""Recipe `donors`: prompts and poolers learned alone, kept as a bundle, and the runs that start from it."""

import json
import shutil

import msgspec
import numpy as np
import pytest

from polyhead.bundle.read import Bundle
from polyhead.deep.recipes.joint_loop import JointLoop, start_parts
from polyhead.deep.recipes.paths import joint_paths
from polyhead.engine.session import Session
from polyhead.errors import BundleError, ConfigError, UnknownTask, WrongTrunk
from polyhead.project.pretrained import load_trunk
from polyhead.project.recipes import ONE_TASK, Donors, FineTune, Frozen, Joint, LeaveOut, SearchGrid
from polyhead.project.strategies import Pooled, Prompted
from polyhead.project.tables import TaskEntry, TrunkChoice, read_project, with_seed
from polyhead.train.data.leaks import LEAST, without_leaks
from polyhead.train.data.prepare import kept_donors, prepare
from polyhead.train.events import Events
from polyhead.train.run import train_project
from support import tiny_project
from support.commands import run
from support.shared import made_once
from support.tiers import first_of
from support.tiny_project import to_toml

NAMES = ("mood", "urgency")
TRAINING = msgspec.structs.replace(tiny_project.TRAINING, epochs=1, batch=4)
STRATEGY = Prompted(hidden=6, shared=1, init="donors", pooler_init="donors", donor_epochs=2, donor_learning_rate=1e-2)
TOGETHER = Joint(families=(), micro_batches=1, layer_dropout=0.0)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with data, a trunk, and the donors of two tasks."""

    def make(folder):
        train_project(project(folder, recipe=Donors(), bundle="donors"), folder=folder)

    return made_once(tmp_path_factory, "donors", make)


def project(home, *names, strategy=STRATEGY, recipe=TOGETHER, training=TRAINING, **changes):
    made = tiny_project.project(home, *(names or NAMES), training=training)
    entries = tuple(msgspec.structs.replace(entry, strategy=None) for entry in made.tasks)
    return msgspec.structs.replace(made, tasks=entries, strategy=strategy, recipe=recipe, **changes)


def started(made, home):
    """What the parts of a run hold before its first update, by task."""
    prepared, _ = without_leaks(prepare(made, home))
    data = load_trunk(str(home / "trunk"))
    loop = JointLoop(
        prepared, joint_paths(prepared, data, ONE_TASK), data, ONE_TASK, training=TRAINING, precision="float32"
    )
    start_parts(loop)
    return {
        name: {array: value.numpy().tobytes() for array, value in part.state_dict().items()}
        for name, part in loop.module.model.parts.items()
    }


def refused(error, *said):
    text = str(error.value)
    assert all(word in text for word in said), text


def test_a_task_that_writes_beside_tasks_that_start_from_donors_needs_none(home):
    """It was looked for in the bundle of donors, and the project was refused."""
    made = project(home, recipe=Frozen(), donors="donors")
    brief = TaskEntry(name="brief", kind="summarization", train="mood.jsonl")
    donors = kept_donors(msgspec.structs.replace(made, tasks=(*made.tasks, brief)), home)
    assert sorted(donors) == sorted(NAMES)


@pytest.mark.parametrize("fields", [("init",), ("pooler_init",), ("init", "pooler_init")])
def test_a_run_starts_from_kept_donors_as_from_those_it_trains_itself(home, fields, monkeypatch):
    """To the bit; and neither start is the random one. From kept ones nothing is trained."""
    other = {"init", "pooler_init"} - set(fields)
    strategy = msgspec.structs.replace(STRATEGY, **dict.fromkeys(other, "random"))
    own = started(project(home, strategy=strategy), home)
    drawn = started(project(home, strategy=STRATEGY.without_donors()), home)
    monkeypatch.setattr(JointLoop, "learn", lambda *_, **__: pytest.fail("a donor is trained"))
    kept = started(project(home, strategy=strategy, donors="donors"), home)
    assert kept == own
    donors = Bundle.open(home / "donors")
    for name in NAMES:
        arrays = {"init": ["prompt.weight"], "pooler_init": ["head.hidden.weight", "head.hidden.bias"]}
        taken = [array for field in fields for array in arrays[field]]
        for array in kept[name]:
            assert (kept[name][array] != drawn[name][array]) == (array in taken), array
        for array in taken:
            assert kept[name][array] == np.ascontiguousarray(donors.part(name)[array]).tobytes()


def test_a_bundle_of_donors_stands_on_the_trunk_as_it_was_and_answers(home):
    bundle = Bundle.open(home / "donors")
    assert bundle.digest == load_trunk(str(home / "trunk")).digest and set(bundle.tasks) == set(NAMES)
    answer = Session(bundle).predict([("where is my order?",)])[0]
    assert set(answer.answers) == set(NAMES)
    for name in NAMES:  # each alone in its input, with no shared rows before it
        (prompt,) = bundle.tasks[name].path.embed.prompts
        assert prompt.rows == 2


def test_donors_come_one_by_one_and_those_that_are_there_stay(home, tmp_path):
    made = project(home, recipe=Donors(), bundle=str(tmp_path / "donors"))
    assert set(train_project(made, folder=home, only=("urgency",)).trained) == {"urgency"}
    before = Bundle.open(tmp_path / "donors").part("urgency")
    second = train_project(made, folder=home)
    assert set(second.trained) == {"mood"} and second.kept == ("urgency",)
    after, whole = Bundle.open(tmp_path / "donors"), Bundle.open(home / "donors")
    for array, value in after.part("urgency").items():
        assert value.tobytes() == before[array].tobytes()
    for name in NAMES:
        for array, value in after.part(name).items():
            assert value.tobytes() == whole.part(name)[array].tobytes()


@pytest.mark.parametrize("isolated", first_of([False, True]))
def test_a_group_and_isolated_prompts_over_a_frozen_trunk_start_from_them_too(home, tmp_path, isolated):
    changes = {"isolated": True, "shared": 0} if isolated else {"shared": 0}
    strategy = msgspec.structs.replace(STRATEGY, **changes)
    donors = str(tmp_path / "donors")
    train_project(project(home, strategy=strategy, recipe=Donors(), bundle=donors), folder=home)
    own = project(home, strategy=strategy, recipe=Frozen(), bundle=str(tmp_path / "own"))
    kept = project(home, strategy=strategy, recipe=Frozen(), bundle=str(tmp_path / "kept"), donors=donors)
    for made in (own, kept):
        train_project(made, folder=home)
    one, other = Bundle.open(tmp_path / "own"), Bundle.open(tmp_path / "kept")
    for name in NAMES:
        for array, value in one.part(name).items():
            assert value.tobytes() == other.part(name)[array].tobytes()


def test_a_joint_run_from_donors_is_known_again_and_other_donors_make_another_trunk(home, tmp_path):
    shutil.copytree(home / "donors", tmp_path / "donors")
    made = project(home, bundle=str(tmp_path / "joint"), donors=str(tmp_path / "donors"))
    first = train_project(made, folder=home)
    assert not first.kept and train_project(made, folder=home).kept
    moved = str(tmp_path / "moved")  # the same donors elsewhere are the same
    shutil.copytree(home / "donors", moved)
    assert train_project(msgspec.structs.replace(made, donors=moved), folder=home).kept
    again, other = str(tmp_path / "again"), msgspec.structs.replace(TRAINING, weight_decay=0.5)
    train_project(project(home, recipe=Donors(), bundle=again, training=other), folder=home)
    with pytest.raises(BundleError, match="holds another trunk, or was trained otherwise"):
        train_project(msgspec.structs.replace(made, donors=again), folder=home)


def test_tasks_without_prompts_are_read_so_that_no_donor_learns_their_texts(home, tmp_path):
    """Another task is evaluated on the rows that `mood` trains on: the long ones go, short ones are alike by chance."""
    made = project(home, "mood", recipe=Donors(), bundle=str(tmp_path / "donors"))
    pooled = tiny_project.ENTRIES["topics"]
    pooled = msgspec.structs.replace(pooled, strategy=Pooled(), train=pooled.test, test=pooled.train)
    made, told = msgspec.structs.replace(made, tasks=(*made.tasks, pooled)), []
    outcome = train_project(made, folder=home, events=Events(say=told.append))
    assert set(outcome.trained) == {"mood"} and "topics: without prompts, so read for their texts alone" in told
    texts = [json.loads(line)["text"] for line in (home / pooled.test).read_text().splitlines()]
    short = [text for text in texts if sum(map(str.isalnum, text)) < LEAST]
    record = Bundle.open(tmp_path / "donors").tasks["mood"]
    assert record.trained_with["data"]["train"]["rows"] == len(short) < len(texts)
    frozen = msgspec.structs.replace(
        made, recipe=Frozen(), donors=str(tmp_path / "donors"), bundle=str(tmp_path / "all")
    )
    assert set(train_project(frozen, folder=home, only=("topics",)).trained) == {"topics"}
    assert set(train_project(frozen, folder=home).trained) == {"mood"}


def test_a_donor_that_trained_on_rows_of_the_validation_split_is_refused(home, tmp_path):
    """Shares are drawn by the seed; files are what they are."""
    made = project(home, "mood", recipe=Donors(), bundle=str(tmp_path / "donors"))
    shared = tuple(msgspec.structs.replace(entry, validation=0.3) for entry in made.tasks)
    made = msgspec.structs.replace(made, tasks=shared)
    train_project(made, folder=home)
    made = msgspec.structs.replace(made, recipe=TOGETHER, bundle="b", donors=str(tmp_path / "donors"))
    assert prepare(made, home)[0].donor is not None
    with pytest.raises(ConfigError) as error:
        prepare(with_seed(made, 7), home)
    refused(error, "'mood'", "validation split", "same files, tasks and seed")
    by_file = project(home, donors="donors")
    assert all(p.donor is not None for p in prepare(with_seed(by_file, 7), home))


def test_some_tasks_alone_hold_out_what_all_of_them_do(home, tmp_path):
    """Over one file, with shares: a task alone drew other rows, and its donor was refused."""
    strategy = msgspec.structs.replace(STRATEGY, shared=0, isolated=True)
    made = project(home, strategy=strategy, recipe=Donors(), bundle=str(tmp_path / "donors"))
    shared = tuple(msgspec.structs.replace(entry, validation=0.3) for entry in made.tasks)
    made = msgspec.structs.replace(made, tasks=shared)
    train_project(made, folder=home)
    frozen = msgspec.structs.replace(
        made, recipe=Frozen(), donors=str(tmp_path / "donors"), bundle=str(tmp_path / "all")
    )
    assert set(train_project(frozen, folder=home, only=("mood",)).trained) == {"mood"}
    assert set(train_project(frozen, folder=home).trained) == {"urgency"}


def test_one_task_fine_tunes_a_trunk_from_its_donor(home, tmp_path):
    search = SearchGrid(learning_rates=(1e-30,), epsilons=(1e-8,), dropouts=(0.0,))  # nothing moves
    training = msgspec.structs.replace(TRAINING, learning_rate=tiny_project.SEARCHED.learning_rate)
    made = project(
        home, training=training, recipe=FineTune(search=search), bundle=str(tmp_path / "out"), donors="donors"
    )
    strategy = msgspec.structs.replace(STRATEGY, shared=0)
    train_project(msgspec.structs.replace(made, strategy=strategy), folder=home)
    found, donors = Bundle.open(tmp_path / "out" / "mood").part("mood"), Bundle.open(home / "donors")
    assert found["prompt.weight"].tobytes() == donors.part("mood")["prompt.weight"].tobytes()


def test_the_commands_of_a_user(tmp_path):
    """Two project files beside each other: relative names, progress, a receipt of what was done."""
    for file, changes in {
        "donors.toml": {"recipe": Donors(), "bundle": "donors"},
        "polyhead.toml": {"bundle": "desk", "donors": "donors"},
    }.items():
        (tmp_path / file).write_text(to_toml(project(tmp_path, **changes)))
    run("train", tmp_path / "polyhead.toml").refuses("'donors' names no bundle", "train that project first")
    done = run("train", tmp_path / "donors.toml")
    assert done.code == 0, done.err
    assert "2 trained, 0 kept" in done.out
    run("train", tmp_path / "donors.toml", "--device", "cpu").refuses("recipe 'donors'")
    done = run("train", tmp_path / "polyhead.toml", "--device", "cpu")
    assert done.code == 0, done.err
    assert "mood, urgency: what starts from donors is taken" in done.out
    assert "a trunk learned from 2 tasks" in done.out
    assert set(Bundle.open(tmp_path / "desk").tasks) == set(NAMES)


def test_what_cannot_start_from_a_bundle_of_donors_is_refused_before_training(home, tmp_path):
    with pytest.raises(ConfigError) as error:
        prepare(project(home, *NAMES, "topics", donors="donors"), home)
    refused(error, "Got: topics", "mood, urgency")
    for changes, said in (
        ({"rows": 3}, "rows = 3 (donor: 2)"),
        ({"hidden": None}, "hidden = 16 (donor: 6)"),
        ({"shift": True}, "shift = True (donor: False)"),
        ({"isolated": True, "shared": 0}, "isolated = True (donor: False)"),
        ({"donor_epochs": 9}, "donor_epochs = 9 (donor: 2)"),
        ({"donor_learning_rate": 0.5}, "donor_learning_rate = 0.5 (donor: 0.01)"),
    ):
        strategy = msgspec.structs.replace(STRATEGY, **changes)
        with pytest.raises(ConfigError) as error:
            prepare(project(home, strategy=strategy, donors="donors"), home)
        refused(error, "mood", said)
    shorter = TrunkChoice(name="trunk", max_tokens=12)
    with pytest.raises(WrongTrunk, match="a donor over another trunk"):
        train_project(project(home, trunk=shorter, bundle=str(tmp_path / "b"), donors="donors"), folder=home)
    own = msgspec.structs.replace(STRATEGY.without_donors(), shared=0)
    for strategy, said in ((Pooled(), "strategy 'pooled'"), (own, "2 prompts in its input")):
        other = str(tmp_path / said[-5:].strip("'"))
        train_project(project(home, strategy=strategy, recipe=Frozen(), bundle=other), folder=home)
        with pytest.raises(ConfigError) as error:
            prepare(project(home, donors=other), home)
        refused(error, "mood", "is no donor", said)
    with pytest.raises(ConfigError) as error:
        prepare(project(home, recipe=Frozen(), bundle=str(home / "donors"), donors="donors"), home)
    refused(error, "are one folder")


def test_a_project_in_which_donors_would_mean_nothing_is_refused(home, tmp_path):
    plain = project(home, strategy=STRATEGY.without_donors(), donors="donors")
    (tmp_path / "polyhead.toml").write_text(to_toml(plain))
    with pytest.raises(ConfigError) as error:
        read_project(tmp_path / "polyhead.toml")
    refused(error, "no task starts from one", "polyhead.toml")
    for recipe in (Donors(), LeaveOut()):
        with pytest.raises(ConfigError) as error:
            project(home, recipe=recipe, donors="donors")
        refused(error, "leave 'donors' out")
    with pytest.raises(ConfigError) as error:
        train_project(project(home, strategy=Pooled(), recipe=Donors()), folder=home)
    refused(error, "no task with prompts")
    with pytest.raises(UnknownTask, match="moods"):
        train_project(project(home, recipe=Donors()), folder=home, only=("moods",))
