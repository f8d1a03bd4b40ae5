"""Heads that are probed first: which tasks they learn from; and which recipes train otherwise than at first."""

import hashlib

import msgspec
import pytest

from polyhead.deep.recipes.joint_loop import JointLoop, start_parts
from polyhead.deep.recipes.paths import fingerprint_of, joint_paths
from polyhead.deep.sharing.make import arrays_of_part
from polyhead.encoder.data import arrays_digest
from polyhead.project.pretrained import load_trunk
from polyhead.project.recipes import Joint, Sampling
from polyhead.train.data.prepare import prepare
from support import tiny_project

NAMES = ("mood", "urgency", "same")
TRAINING = msgspec.structs.replace(tiny_project.TRAINING, epochs=3, learning_rate=1e-3)
LATE = Sampling(kind="schedule", schedule=({"mood": 1.0}, {"mood": 1.0, "urgency": 1.0, "same": 1.0}))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    tiny_project.project(folder)
    return folder


def course_of(home, recipe):
    prepared = prepare(tiny_project.project(home, *NAMES, training=TRAINING), home)
    data = load_trunk(str(home / "trunk"))
    paths = joint_paths(prepared, data, recipe)
    return JointLoop(prepared, paths, data, recipe, training=TRAINING, precision="float32")


def started(loop):
    start_parts(loop)
    return {name: arrays_digest(arrays_of_part(loop.module.model.parts[name])) for name in NAMES}


def test_every_head_is_probed_though_a_schedule_begins_with_some_tasks(home):
    """Heads of tasks that the schedule leaves out at first were random when their turn came."""
    scheduled = Joint(sampling=LATE, head_epochs=1, head_learning_rate=1e-2)
    loop = course_of(home, scheduled)
    fresh = {name: arrays_digest(arrays_of_part(loop.module.model.parts[name])) for name in NAMES}
    found = started(loop)
    assert [name for name in NAMES if found[name] == fresh[name]] == []
    by_size = msgspec.structs.replace(scheduled, sampling=Sampling())
    assert found == started(course_of(home, by_size))


UNTOLD = {"blend": 1.0, "head_epochs": 0, "head_learning_rate": 1e-3}


def of_the_declaration(prepared, recipe, data):
    """The digest of what is declared, and of nothing else."""
    declared = msgspec.to_builtins(recipe)
    unsaid = ("blend",) if recipe.head_epochs else tuple(UNTOLD)
    assert all(declared[name] == UNTOLD[name] for name in unsaid)
    told = {name: value for name, value in declared.items() if name not in unsaid}
    content = [data.digest, told, [p.fingerprint() for p in prepared]]
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:16]


@pytest.mark.parametrize(
    ("recipe", "is_otherwise"),
    [
        (Joint(), False),
        (Joint(sampling=Sampling(kind="shuffled")), False),
        (Joint(head_epochs=1), False),
        (Joint(sampling=LATE), False),
        (Joint(tokens=40, steps=3), False),
        (Joint(tokens=40), True),
        (Joint(tokens=40, steps=3, sampling=Sampling(kind="shuffled")), True),
        (Joint(sampling=LATE, head_epochs=1), True),
    ],
    ids=[
        "plain",
        "shuffled",
        "probed",
        "schedule",
        "budget and steps",
        "budget",
        "shuffled under a budget",
        "schedule after probing",
    ],
)
def test_declarations_that_train_otherwise_than_at_first_say_so(home, recipe, is_otherwise):
    """A trunk that was learned from one of them is not taken for what it would be now; all others stay known."""
    prepared = prepare(tiny_project.project(home, *NAMES, training=TRAINING), home)
    data = load_trunk(str(home / "trunk"))
    found = fingerprint_of(prepared, recipe, data)
    assert (found != of_the_declaration(prepared, recipe, data)) == is_otherwise
