"""How long a run takes is said beforehand, where it is long."""

import math

import pytest

from polyhead.bundle.read import Bundle
from polyhead.deep.training_time import rates_of
from polyhead.project.pretrained import load_trunk
from polyhead.project.strategies import Pooled
from polyhead.testing import tiny_trunk
from polyhead.train import events as telling
from polyhead.train.candidates import feature_paths
from polyhead.train.data.extract import Extractor
from polyhead.train.data.prepare import prepare
from polyhead.train.events import Events
from polyhead.train.job import open_or_create
from polyhead.train.record.estimate import UPDATE_SECONDS, estimating, head_seconds
from support import tiny_project


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    tiny_project.project(folder)
    data = load_trunk(str(folder / "trunk"))
    return folder, Extractor(data, folder=folder / "cache" / "features", precision="float32"), data


def planned(home, *names, **changes):
    folder, source, data = home
    prepared = prepare(tiny_project.project(folder, *names, **changes), folder)
    bundle: Bundle = open_or_create(folder / "bundle", data.facts, load=lambda: data)
    return prepared, feature_paths(prepared, prepared, source, bundle), source


def test_heads_are_expected_to_take_what_their_work_takes_at_the_pace_of_encoding(home):
    todo, paths, source = planned(home, "mood")
    none, one, two, more = (
        head_seconds(todo, paths, source, texts=texts, seconds=seconds)
        for texts, seconds in ((10, 0.0), (10, 5.0), (10, 10.0), (20, 10.0))
    )
    steps = -(-len(todo[0].train.examples.targets) // tiny_project.TRAINING.batch)
    assert none == pytest.approx(UPDATE_SECONDS * steps * tiny_project.TRAINING.epochs)
    assert two - none == pytest.approx(2 * (one - none)) and more == pytest.approx(one)


def test_over_a_table_of_words_heads_are_not_expected_to_take_what_reading_takes(home, tmp_path):
    """A table computes nothing: 65 s of reading made 1,800 hours of heads."""
    folder, _, _ = home
    data = tiny_trunk(family="static")
    source = Extractor(data, folder=tmp_path / "features", precision="float32")
    todo = prepare(tiny_project.project(folder, "mood"), folder)
    bundle = open_or_create(tmp_path / "bundle", data.facts, load=lambda: data)
    seconds = head_seconds(todo, feature_paths(todo, todo, source, bundle), source, texts=10, seconds=60.0)
    assert 0 < seconds < 60


def test_the_speed_of_no_layers_is_a_number(home):
    """It was divided by none of them."""
    folder, _, _ = home
    rates = rates_of(tiny_trunk(family="static"), prepare(tiny_project.project(folder, "mood"), folder))
    assert math.isfinite(rates.encode) and math.isfinite(rates.learn)


def test_all_tasks_and_all_folds_are_expected(home):
    auto = Pooled(of=2, heads=2, hidden=8)
    each = [planned(home, name, strategy=auto) for name in ("mood", "names")]
    both = planned(home, "mood", "names", strategy=auto)
    seconds = [head_seconds(*facts, texts=10, seconds=0.0) for facts in (*each, both)]
    assert seconds[2] == pytest.approx(seconds[0] + seconds[1])
    folded = planned(home, "mood", strategy=auto, validation=0.3)
    assert head_seconds(*folded, texts=10, seconds=0.0) > seconds[0]


def test_an_estimate_is_said_once_where_encoding_takes_long(home, monkeypatch):
    now, said = [100.0], []
    monkeypatch.setattr(telling.time, "monotonic", lambda: now[0])
    events = Events(say=said.append)
    for share in (0.008, 0.4):  # in 4 s, after the first batch
        filled = estimating(events.progress("encoding", unit="texts"), events, *planned(home, "mood"))
        for number, seconds in enumerate((20.0, 4.0, 4.0), start=1):
            now[0] += seconds
            filled(number, 100, number * share)
    (line,) = said
    assert line.startswith("estimate: encoding about 8 min 20 s, heads at most ")
