"""Prompts, adapters and layers on top, served by the torch backend: owners, bits and precisions."""

import msgspec
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from polyhead import plan
from polyhead.deep.backend import TorchBackend
from polyhead.errors import BackendError
from polyhead.plan import cost
from polyhead.testing import tiny_batch, tiny_trunk
from polyhead.testing.tiny import tiny_conditioned
from support.pooled_features import of_torch

TRUNK = tiny_trunk()
TASKS = tiny_conditioned(TRUNK)
BATCH = tiny_batch(TRUNK, (9, 4, 7, 2))


def features(tasks, names=None, **options):
    """The features of these tasks from one run, on a backend that has `tasks` loaded."""
    backend = TorchBackend(TRUNK, tasks, **options)
    merged = plan.merge({name: tasks[name].path for name in names or tasks})
    return of_torch(backend, merged, BATCH), backend


def without(*names):
    return {name: task for name, task in TASKS.items() if name not in names}


def test_in_deterministic_mode_no_task_changes_a_bit_of_another():
    """Tasks come and go one by one; those of a joint prompt group all at once."""
    whole, _ = features(TASKS, deterministic=True)
    assert len(whole) > 25
    for name in TASKS:
        alone, _ = features({name: TASKS[name]}, deterministic=True)
        assert alone[name].tobytes() == whole[name].tobytes(), name
    for gone in (("apart-b",), ("joint-a", "joint-b", "joint-c"), ("in-attention", "top-layer", "scorer-a")):
        fewer, _ = features(without(*gone), deterministic=True)
        assert set(fewer) == set(TASKS) - set(gone)
        assert all(fewer[name].tobytes() == whole[name].tobytes() for name in fewer)


def test_side_by_side_the_features_are_those_of_deterministic_mode():
    one_by_one, slow = features(TASKS, deterministic=True)
    together, fast = features(TASKS)
    for name, value in one_by_one.items():
        np.testing.assert_allclose(together[name], value, rtol=0, atol=fast.tolerance, err_msg=name)
    merged = plan.merge({name: task.path for name, task in TASKS.items()})
    assert fast.layers_run == slow.layers_run == cost.layer_evaluations(merged)


@pytest.mark.parametrize("name", ["joint-b", "in-attention-ends", "in-attention-all", "scorer-a"])
def test_arrays_of_others_that_are_missing_are_named(name):
    task = TASKS[name]
    (owner, *_) = task.others
    bare = msgspec.structs.replace(task, others={o: a for o, a in task.others.items() if o != owner})
    with pytest.raises(BackendError, match=f"'{owner}' that are not loaded"):
        TorchBackend(TRUNK, {name: bare})


def test_what_a_family_has_beyond_what_is_read_is_left_alone():
    name = "in-attention-all"
    more = {"family:adapters": {**TASKS[name].others["family:adapters"], "delta.7.query.weight": np.ones(3)}}
    larger = msgspec.structs.replace(TASKS[name], others=more)
    found, _ = features({name: larger})
    assert found[name].tobytes() == features({name: TASKS[name]})[0][name].tobytes()


def test_what_tasks_share_is_loaded_once():
    backend = TorchBackend(TRUNK, {name: TASKS[name] for name in ("scorer-a", "scorer-b")})
    first, second = (backend._loaded.model.parts[name].head for name in ("scorer-a", "scorer-b"))
    assert first._shared[0] is second._shared[0] is backend._loaded.model.families["family:pooler"].hidden


def test_what_sits_in_layers_has_the_precision_of_the_trunk_and_heads_float32():
    found, backend = features(TASKS, precision="bfloat16")
    exact, _ = features(TASKS)
    for name, value in exact.items():
        assert found[name].dtype == np.float32
        assert np.abs(found[name] - value).max() <= backend.tolerance * np.abs(value).max(), name
    kinds = {}
    for name, value in backend._loaded.model.named_parameters():
        owner, _, leaf = name.partition(".")
        kinds.setdefault("trunk" if owner == "trunk" else leaf.split(".")[0], set()).add(value.dtype)
    low, whole = {torch.bfloat16}, {torch.float32}
    assert kinds == {
        "trunk": low,
        "delta": low,
        "layers": low,
        "enter": low,
        "leave": low,
        "prompt": whole,
        "head": whole,
    }


@pytest.mark.parametrize("deterministic", [False, True], ids=["stacked", "deterministic"])
def test_in_stages_outputs_are_those_of_one_run_and_need_ever_more_layers(deterministic):
    """Each task once; what is known of a batch before its end rests on the layers that have run by then."""
    merged = plan.merge({name: task.path for name, task in TASKS.items()})
    whole = TorchBackend(TRUNK, TASKS, deterministic=deterministic).run(merged, BATCH)
    backend, found, left = TorchBackend(TRUNK, TASKS, deterministic=deterministic), {}, None
    layers = cost.layer_evaluations(merged)
    for stage in backend.stages(merged, BATCH):
        assert not stage.failed and not stage.outputs.keys() & found.keys()
        assert backend.layers_run == layers - stage.layers_left
        assert left is None or stage.layers_left < left
        left, found = stage.layers_left, found | stage.outputs
        for name in stage.outputs if deterministic else ():
            assert cost.layer_evaluations(plan.merge({name: TASKS[name].path})) <= backend.layers_run
    assert left == 0 and found.keys() == whole.keys()
    for name, output in whole.items():
        assert found[name].tobytes() == output.tobytes(), name


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of two devices, but for copies and single numbers."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor) and one.dim()]
        copies = func.overloadpacket in (torch.ops.aten.copy_, torch.ops.aten._to_copy)
        assert copies or len({one.device for one in given}) < 2, func
        return func(*args, **(kwargs or {}))


@pytest.mark.slow
@pytest.mark.parametrize("stacked", [False, True])
def test_all_ways_compute_on_the_device_of_their_texts(stacked, monkeypatch):
    """The device "meta" is there on every machine, and computes shapes."""
    from polyhead.deep.model import MultiTaskModel, TextBatch
    from polyhead.deep.nn.trunk import Trunk
    from polyhead.deep.sharing.make import make_families, make_part

    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)  # it does not know "meta"
    paths = {name: task.path for name, task in TASKS.items()}
    families = make_families(paths, TRUNK.architecture)
    parts = {name: make_part(path, TRUNK.architecture, families=families) for name, path in paths.items()}
    model = MultiTaskModel(Trunk(TRUNK.architecture), parts, families, stacked=stacked).eval().to("meta")
    given = (BATCH.ids, BATCH.mask, BATCH.segments, BATCH.words)
    ids, mask, segments, words = (torch.from_numpy(one).to("meta") for one in given)
    texts = TextBatch(ids=ids, mask=mask, segments=segments, words=words)
    with torch.no_grad(), OneDevice():
        for name, value in model.stored(plan.merge(paths), texts).items():
            out = model.parts[name](value.values, value.mask)
            assert value.values.is_meta and out.is_meta, name
