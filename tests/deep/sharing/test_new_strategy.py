"""A strategy of one file outside the package: declared in a project file, trained, bundled, served and checked."""

import msgspec
import numpy as np
import pytest

from one_file.strategy import Bottleneck
from polyhead.bundle.read import Bundle
from polyhead.engine.session import Session
from polyhead.errors import ConfigError
from polyhead.project.strategies import STRATEGIES, Strategy, register_strategy
from polyhead.project.tables import read_project, training_of
from polyhead.testing import tiny_tasks, tiny_trunk, yield_strategy_checks
from polyhead.train.run import train_project
from polyhead.values import Value
from support import tiny_project

SETTINGS = 'kind = "bottleneck", of = 1, size = 3'
PROJECT = """
bundle = "bundle"
strategy = {{ {settings} }}
trunk = {{ name = "trunk" }}
training = {{ seed = 1, epochs = 2, learning_rate = 3e-3, batch = 4 }}

[[tasks]]
name = "mood"
kind = "single_label"
train = "data/mood-train.jsonl"
labels = ["bad", "good"]
"""


@pytest.fixture(scope="module", autouse=True)
def registered():
    """The strategy is known as long as these tests run."""
    with STRATEGIES.temporary():
        register_strategy(Bottleneck)
        yield


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    tiny_project.project(folder)
    return folder


def declared(home, settings=SETTINGS):
    """The project file with these settings of the strategy, read."""
    entry = tiny_project.ENTRIES["mood"]
    text = PROJECT.format(settings=settings).replace("data/mood-train.jsonl", entry.train)
    text = text.replace('["bad", "good"]', str(list(entry.labels)).replace("'", '"'))
    text += f'label = "{entry.label}"\n'
    (home / "polyhead.toml").write_text(text)
    return read_project(home / "polyhead.toml")


def test_it_is_trained_bundled_and_served_by_two_backends(home):
    project = declared(home)
    assert project.strategy == Bottleneck(of=1, size=3)
    outcome = train_project(project, folder=home)
    assert list(outcome.trained) == ["mood"]
    record = Bundle.open(home / "bundle").tasks["mood"]
    assert record.path.head.hidden == 3
    assert record.trained_with["strategy"] == {"kind": "bottleneck", "of": 1, "positions": "mean", "size": 3}
    texts = ["the lamp is good", "sad and late today"]
    found = {
        name: Session(home / "bundle", backend=name, precision="float32").outputs("mood", texts)
        for name in ("reference", "torch")
    }
    for one, other in zip(found["reference"], found["torch"], strict=True):
        assert one.shape == (2,)
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-4)
    assert not train_project(project, folder=home).trained  # the same once more: nothing to do


def test_its_defaults_are_those_of_its_file(home):
    bare = msgspec.structs.replace(declared(home), training=None)
    assert training_of(bare, bare.tasks[0]) == Bottleneck.default_training


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('kind = "botleneck"', "did you mean 'bottleneck'"),
        ('kind = "bottleneck", sise = 3', "unknown key 'sise' in strategy.*did you mean 'size'"),
        ('kind = "bottleneck", size = "3"', "wrong type at strategy.size"),
        ('kind = "bottleneck", size = 0', "strategy.size is too small"),
        ('kind = "bottleneck", positions = "las"', "first, mean"),
        ("size = 3", "key 'kind' is missing in strategy"),
    ],
    ids=["kind", "key", "type", "value", "choice", "no kind"],
)
def test_wrong_settings_are_named(home, settings, message):
    with pytest.raises(ConfigError, match=message):
        declared(home, settings)


def test_it_passes_every_check_of_strategies():
    ran = 0
    for check in yield_strategy_checks("bottleneck", Bottleneck(of=1, size=3)):
        check.run()
        ran += 1
    assert ran == 3 * len(tiny_tasks()) + 4


def test_a_name_is_taken_once_and_a_strategy_needs_one():
    class Other(Strategy, Value, tag="pooled", tag_field="kind"):
        pass

    class Untagged(Strategy, Value):
        pass

    with pytest.raises(ConfigError, match="there is a strategy 'pooled' already"):
        register_strategy(Other)
    with pytest.raises(ConfigError, match="no strategy that a project file can name"):
        register_strategy(Untagged)
    assert register_strategy(Bottleneck) is Bottleneck


def test_a_strategy_without_a_path_says_what_to_define():
    class Pathless(Strategy, Value, tag="pathless", tag_field="kind"):
        pass

    with pytest.raises(ConfigError, match="'pathless' has no path. Do: define `path`"):
        Pathless().path(tiny_tasks()[0], trunk="", shape=tiny_trunk().architecture)
