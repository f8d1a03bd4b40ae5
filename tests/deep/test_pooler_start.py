"""Poolers over the first position start as the checkpoint's own."""

import msgspec
import numpy as np
import pytest
import torch

from polyhead.deep.recipes.joint_model import JointModel
from polyhead.project.pretrained import load_trunk
from polyhead.project.recipes import Joint, Training
from polyhead.project.strategies import Adapter, Branch, InLayer, OnTop
from polyhead.tasks.task import Task
from polyhead.testing import tiny_tokenizer
from polyhead.testing.tiny import PIECES

transformers = pytest.importorskip("transformers")

TASK = Task(name="mood", kind="single_label", labels=("bad", "good"))
STRATEGIES = {
    "branch": Branch(layers=1),
    "in layer": InLayer(adapters=(Adapter(size=6, heads=2),)),
    "in layer, one pooler for all": InLayer(adapters=(Adapter(size=6, heads=2),), pooler="shared"),
    "on top": OnTop(width=8, heads=2, layers=1),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A small BERT with a pooler, and its folder."""
    folder = tmp_path_factory.mktemp("bert")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    model = transformers.BertModel(transformers.BertConfig(vocab_size=len(PIECES), **sizes)).eval()
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(tiny_tokenizer())
    return model, folder


def hidden_layer(data, strategy):
    """The tanh layer of the task before training."""
    path = strategy.path(TASK, trunk=data.digest, shape=data.architecture)
    made = JointModel(
        data, {"mood": path}, training=Training(), recipe=Joint(), bfloat16=False, strategies={"mood": strategy}
    )
    part, owner = made.model.parts["mood"], path.head.hidden_part
    return part.head.hidden if owner is None else made.model.families[owner].hidden


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_pooler_starts_as_that_of_the_checkpoint(saved, name):
    model, folder = saved
    hidden, pooler = hidden_layer(load_trunk(str(folder)), STRATEGIES[name]), model.pooler.dense
    assert torch.equal(hidden.weight, pooler.weight) and torch.equal(hidden.bias, pooler.bias)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_pooler_is_drawn_where_the_strategy_says_so_or_the_checkpoint_has_none(saved, name):
    model, folder = saved
    data = load_trunk(str(folder))
    drawn = hidden_layer(data, msgspec.structs.replace(STRATEGIES[name], pooler_init="random"))
    without = hidden_layer(msgspec.structs.replace(data, pooler=None), STRATEGIES[name])
    assert not torch.equal(drawn.weight, model.pooler.dense.weight)
    assert torch.equal(drawn.weight, without.weight) and not drawn.bias.any()


def test_poolers_of_another_width_or_over_other_positions_are_drawn(saved):
    model, folder = saved
    data = load_trunk(str(folder))
    assert hidden_layer(data, Branch(layers=1, hidden=8)).weight.shape == (8, 16)
    mean = hidden_layer(data, Branch(layers=1, positions="mean"))
    assert not torch.equal(mean.weight, model.pooler.dense.weight)


def test_a_pooler_is_no_part_of_the_trunk(saved):
    _, folder = saved
    data = load_trunk(str(folder))
    other = msgspec.structs.replace(data.pooler, weight=np.zeros_like(data.pooler.weight))
    assert msgspec.structs.replace(data, pooler=other).digest == data.digest
    assert not any("pooler" in name for name in data.arrays)
