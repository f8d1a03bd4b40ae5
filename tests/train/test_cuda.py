"""What a trunk learns on a graphics processor is what it learns on the processor, up to the order of sums."""

import msgspec
import numpy as np
import pytest
import torch

from polyhead.project.recipes import Joint, Weighting
from polyhead.project.strategies import Adapter, InLayer, Prompted
from polyhead.train.runs import ProcessRank
from support import tiny_project
from support.two_processes import Job, learn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no graphics processor here")
CARD = ProcessRank(device="cuda:0")
NAMES = ("mood", "urgency", "names", "same")
TRAINING = msgspec.structs.replace(tiny_project.TRAINING, epochs=2, learning_rate=1e-3, dropout=0.0, clip=0.05, batch=4)
RECIPE = Joint(micro_batches=4, steps=2, layer_dropout=0.0, weighting=Weighting(kind="uncertainty"))
STRATEGIES = {
    "pooled": None,
    "adapters": InLayer(adapters=(Adapter(size=4, heads=2, share="ends", dropout=0.0),)),
    "prompts": Prompted(hidden=6, shared=1),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    tiny_project.project(folder)
    return folder


def job(home, strategy=None, **changes):
    strategies = {} if strategy is None else {"mood": strategy}
    return Job(home=str(home), names=NAMES, recipe=RECIPE, training=TRAINING, strategies=strategies, **changes)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_card_learns_what_the_processor_does(home, name):
    on_processor, on_card = (learn(place, job(home, STRATEGIES[name])) for place in (ProcessRank(), CARD))
    assert on_card["arrays"].keys() == on_processor["arrays"].keys() and on_card["seen"] == on_processor["seen"]
    for array, values in on_processor["arrays"].items():
        if not array.endswith("key.bias"):  # softmax does not see them: their gradient is rounding
            np.testing.assert_allclose(on_card["arrays"][array], values, rtol=0, atol=1e-4, err_msg=array)
    losses = [[row["loss"] for row in run["history"]] for run in (on_card, on_processor)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def stopped_inside(home, tmp_path):
    """A run with dropout that is killed after its first update."""
    training = msgspec.structs.replace(TRAINING, dropout=0.1)
    stopped = job(home, checkpoint=str(tmp_path / "stopped.pt"), inside=1)
    return msgspec.structs.replace(stopped, training=training)


def test_a_run_on_a_card_goes_on_where_it_stopped(home, tmp_path):
    """With the dropout that it would have drawn."""
    stopped = stopped_inside(home, tmp_path)
    whole = learn(CARD, msgspec.structs.replace(stopped, inside=None, checkpoint=None))
    assert learn(CARD, stopped) is None
    again = learn(CARD, msgspec.structs.replace(stopped, inside=None))
    for array, values in whole["arrays"].items():
        if not array.endswith("key.bias"):
            np.testing.assert_allclose(again["arrays"][array], values, rtol=0, atol=1e-4, err_msg=array)


@pytest.mark.parametrize(
    ("first", "then"), [(ProcessRank(), CARD), (CARD, ProcessRank())], ids=["to a card", "from a card"]
)
def test_a_run_goes_on_on_another_kind_of_device(home, tmp_path, first, then):
    stopped = stopped_inside(home, tmp_path)
    assert learn(first, stopped) is None
    again = learn(then, msgspec.structs.replace(stopped, inside=None))
    assert [row["epoch"] for row in again["history"]] == [1, 2]
