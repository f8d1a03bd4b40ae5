"""A trunk and parts: the plan is run once, shared where it is shared, and gradients go where they should."""

import msgspec
import numpy as np
import pytest
import torch

from polyhead import plan as planning
from polyhead.deep.model import MultiTaskModel, TextBatch, coded, stored_value
from polyhead.deep.nn.trunk import States, Trunk
from polyhead.deep.sharing.part import PooledPart
from polyhead.errors import PlanError
from polyhead.plan import Codec, Delta, Path, Pool
from polyhead.plan.coding import calibrate, through
from polyhead.testing import tiny_batch, tiny_path, tiny_tasks, tiny_trunk

TASKS = {task.name: task for task in tiny_tasks()}


@pytest.fixture(scope="module")
def data():
    return tiny_trunk()


@pytest.fixture
def texts(data):
    batch = tiny_batch(data, (9, 4, 7, 2))
    fields = {name: torch.from_numpy(getattr(batch, name)) for name in ("ids", "mask", "segments", "words")}
    return TextBatch(**fields)


def model_of(data, paths):
    parts = {name: PooledPart(path, data.architecture.width) for name, path in paths.items()}
    return MultiTaskModel(Trunk.from_data(data), parts), planning.merge(paths)


def paths_of(data, **pools):
    return {name: tiny_path(TASKS[name], data, pool=pool) for name, pool in pools.items()}


def test_all_tasks_of_a_text_run_the_trunk_once(data, texts):
    model, plan = model_of(data, paths_of(data, mood=Pool(), topics=Pool(positions="mean"), names=Pool()))
    outputs = model(plan, texts)
    assert model.layers_run == 2
    assert {name: tuple(value.shape) for name, value in outputs.items()} == {
        "mood": (4, 2),
        "topics": (4, 3),
        "names": (4, 3, 5),
    }


def test_paths_that_part_ways_share_the_layers_below(data, texts):
    paths = {
        "mood": tiny_path(TASKS["mood"], data, pool=Pool(positions="mean"), stop=1),
        "topics": tiny_path(TASKS["topics"], data, pool=Pool(positions="mean")),
    }
    model, plan = model_of(data, paths)
    together = model(plan, texts)
    assert model.layers_run == 2
    for name, path in paths.items():
        alone = model(planning.merge({name: path}), texts)
        assert torch.equal(alone[name], together[name])
    assert model.layers_run == 2 + 1 + 2


def test_equal_stored_values_of_several_tasks_are_one_tensor(data, texts):
    attention = Pool(layers="mean", of=2, positions="attention", heads=2, part="task:x")
    model, plan = model_of(data, paths_of(data, mood=attention, topics=attention, urgency=Pool()))
    stored = model.stored(plan, texts)
    assert stored["mood"] is stored["topics"] and stored["mood"] is not stored["urgency"]


def test_gradients_reach_parts_and_trunk_unless_the_trunk_is_frozen(data, texts):
    paths = paths_of(data, mood=Pool(positions="mean"))
    model, plan = model_of(data, paths)
    model(plan, texts)["mood"].sum().backward()
    assert all(p.grad is not None for p in model.parts["mood"].parameters())
    assert model.trunk.layers[1].attention.query.weight.grad is not None
    frozen, plan = model_of(data, paths)
    frozen.trunk.requires_grad_(False)
    frozen(plan, texts)["mood"].sum().backward()
    assert all(p.grad is None for p in frozen.trunk.parameters())
    assert all(p.grad is not None for p in frozen.parts["mood"].parameters())


def test_layers_of_others_are_refused_by_name(data, texts):
    path = tiny_path(TASKS["mood"], data, pool=Pool())
    embed, layers, *rest = path.nodes
    for strange in (
        msgspec.structs.replace(layers, weights="task:topics"),
        msgspec.structs.replace(layers, delta=Delta(kind="low_rank", part="task:mood", size=4)),
    ):
        model, _ = model_of(data, {"mood": path})
        with pytest.raises(PlanError, match="layers"):
            model.stored(planning.merge({"mood": Path(nodes=(embed, strange, *rest))}), texts)
        assert model.layers_run == 0


def states(first=0):
    generator = torch.Generator().manual_seed(0)
    hidden = tuple(torch.randn(2, 3, 4, generator=generator) for _ in range(4 - first))
    return States(hidden=hidden, mask=torch.tensor([[True, True, True], [True, False, False]]), first=first)


def test_a_stored_mean_leaves_padding_out():
    value = stored_value(states(), Pool(positions="mean"), None)
    last = states().last
    assert value.values.shape == (2, 1, 1, 4) and value.mask.tolist() == [[True], [True]]
    torch.testing.assert_close(value.values[1, 0, 0], last[1, 0])
    torch.testing.assert_close(value.values[0, 0, 0], last[0].mean(dim=0))


def test_a_mean_over_layers_counts_from_the_last_one_run():
    value = stored_value(states(), Pool(layers="mean", of=2), None)
    expected = (states().hidden[2][:, :1] + states().hidden[3][:, :1]) / 2
    torch.testing.assert_close(value.values[:, :, 0], expected)


def test_a_learned_mix_keeps_every_layer_but_the_embedding():
    value = stored_value(states(), Pool(layers="all"), None)
    assert value.values.shape == (2, 1, 3, 4)
    assert torch.equal(value.values[:, 0, 0], states().hidden[1][:, 0])


def test_a_word_without_a_token_is_a_row_of_zeros():
    words = torch.tensor([[2, -1], [0, 0]])
    value = stored_value(states(), Pool(positions="tokens"), words)
    assert value.mask.tolist() == [[True, False], [True, True]]
    assert (value.values[0, 1] == 0).all()
    assert torch.equal(value.values[0, 0, 0], states().last[0, 2])


def test_words_that_are_not_given_are_asked_for():
    with pytest.raises(PlanError, match="first sub-token"):
        stored_value(states(), Pool(positions="tokens"), None)


@pytest.mark.parametrize("name", ["float16", "uint8", "sign", "pca1", "token1"])
def test_live_values_pass_the_codec_of_the_store(name):
    value = stored_value(states(), Pool(positions="mean"), None)
    no_token = np.array([-1])
    codec = calibrate(value.values.numpy(), name=name, tokens=no_token)
    found = coded(value, codec, None).values.numpy()
    assert found.tobytes() == through(value.values.numpy(), codec, no_token).tobytes()
    assert not np.array_equal(found, value.values.numpy())
    assert coded(value, Codec(name="float32"), None) is value


@pytest.mark.parametrize("of", [2, 3])
def test_a_pool_over_more_layers_than_the_path_runs_is_refused(data, texts, of):
    path = tiny_path(TASKS["mood"], data, pool=Pool(layers="mean", of=of, positions="mean"), stop=1)
    model, plan = model_of(data, {"mood": path})
    with pytest.raises(PlanError, match="more layers than its path runs"):
        model.stored(plan, texts)
