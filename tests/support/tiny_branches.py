"""Branches of the tiny tasks over a trunk of three layers, their states kept: for the tests that train them."""

import msgspec

from polyhead.deep.branch.run import Branches
from polyhead.deep.features import wanted_taps
from polyhead.project.pretrained import load_trunk
from polyhead.project.recipes import Training
from polyhead.project.strategies import Branch
from polyhead.testing import tiny_trunk
from polyhead.train.data.extract import Extractor
from polyhead.train.data.prepare import prepare
from support import tiny_project

DEPTH = 3
TRAINING = Training(seed=1, epochs=3, patience=3, batch=8, learning_rate=2e-3, precision="float32")
STRATEGY = Branch(layers=2, hidden=8)


def home_in(folder):
    """The folder with a trunk of three layers and the tiny data."""
    tiny_project.write_trunk(folder / "trunk", tiny_trunk(layers=DEPTH))
    tiny_project.write_data(folder / "data")
    return folder


def copied(home, folder):
    """A new folder over the same trunk and data."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("trunk", "data"):
        (folder / name).symlink_to(home / name)
    return folder


def project(folder, *names, strategy=STRATEGY, training=TRAINING, **changes):
    """A project of branches over these tasks."""
    return tiny_project.project(folder, *names, strategy=strategy, training=training, **changes)


def prepared_of(home, name, *, strategy=STRATEGY, training=TRAINING, **changes):
    """One tiny task with everything that it trains on."""
    return prepare(project(home, name, strategy=strategy, training=training, **changes), home)[0]


def extractor_of(home, folder, *, precision="float32"):
    """The frozen trunk with stores in a folder of their own."""
    return Extractor(load_trunk(str(home / "trunk")), folder=folder / "features", precision=precision)


def branches_of(home, extractor, name, *, strategy=STRATEGY, training=TRAINING, depths=(1, 2, 3), **named):
    """The task's branches; the states at the taps of these depths are kept."""
    prepared = prepared_of(home, name, strategy=strategy, training=training)
    made = Branches(prepared, strategy, extractor, precision=extractor.precision, **named)
    taps = {made.path(layers) for layers in depths} if strategy.tap is None else {made.path(strategy.layers)}
    extractor.fill([w for path in taps for w in wanted_taps(prepared, path, extractor)])
    return made


def bytes_of(arrays):
    """Arrays by name, as bytes."""
    return {name: array.tobytes() for name, array in arrays.items()}


def weights_of(module):
    """A module's state, as bytes."""
    return {name: value.detach().float().numpy().tobytes() for name, value in module.state_dict().items()}


def untimed(fitted):
    """How training went, without its seconds."""
    rows = [{name: v for name, v in row.items() if name != "seconds"} for row in fitted.history]
    return {**msgspec.structs.asdict(fitted), "history": rows, "seconds": 0.0}


def seeded(training=TRAINING, **changes):
    """The same training with other numbers."""
    return msgspec.structs.replace(training, **changes)
