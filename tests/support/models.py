"""Models of tiny tasks on the paths that strategies give them, with arrays drawn from each owner's name."""

import msgspec
import numpy as np
import torch

from polyhead import plan
from polyhead.deep.model import MultiTaskModel, TextBatch
from polyhead.deep.nn.trunk import Trunk
from polyhead.deep.sharing.make import make_families, make_part
from polyhead.engine.backends.reference import ReferenceBackend
from polyhead.project.strategies import prompt_groups
from polyhead.tasks.task import Task
from polyhead.testing import tiny_batch, tiny_owned, tiny_tasks

TASKS = {task.name: task for task in tiny_tasks()}
LENGTHS = (9, 4, 7, 2)


def numbered(count):
    """As many tasks of one kind, for plans of many."""
    return [Task(name=f"t{i}", kind="single_label", labels=("no", "yes")) for i in range(count)]


def paths_of(trunk, strategy, *tasks):
    """The paths of these tasks (names, or tasks) under one strategy, or one each."""
    known = [TASKS[task] if isinstance(task, str) else task for task in tasks]
    strategies = strategy if isinstance(strategy, list) else [strategy] * len(known)
    groups = prompt_groups(list(zip(known, strategies, strict=True)))
    return {
        task.name: one.path(task, trunk=trunk.digest, shape=trunk.architecture, group=groups[task.name])
        for task, one in zip(known, strategies, strict=True)
    }


def texts_of(trunk, lengths=LENGTHS, *, seed=0):
    """A ragged batch as backends read it, and as tensors."""
    batch = tiny_batch(trunk, lengths, seed=seed)
    fields = {name: torch.from_numpy(getattr(batch, name)) for name in ("ids", "mask", "segments", "words")}
    return batch, TextBatch(**fields)


def filled(module, arrays):
    """The module with its arrays taken from these."""
    module.load_state_dict({name: torch.from_numpy(np.array(arrays[name])) for name in module.state_dict()})
    return module


def model_of(trunk, paths, *, live=None, **options):
    """A model of these paths in evaluation mode; `options` are the model's."""
    loaded, shape = tiny_owned(paths, trunk.architecture), trunk.architecture
    families = make_families(paths, shape)
    for owner, family in families.items():
        found = {n: a for task in loaded.values() for n, a in task.others.get(owner, {}).items()}
        filled(family, found)
    parts = {
        name: filled(make_part(path, shape, families=families), loaded[name].arrays) for name, path in paths.items()
    }
    return MultiTaskModel(live or Trunk.from_data(trunk), parts, families, **options).eval()


def answers(model, paths, texts):
    """Every task's outputs from one run of the merged plan, without gradients."""
    with torch.inference_mode():
        return model(plan.merge(paths), texts)


def assert_by_the_book(trunk, paths, model, *, atol=1e-5):
    """The model's outputs are those of the plain numpy backend, which computes each path by its paper's formula."""
    batch, texts = texts_of(trunk)
    loaded = tiny_owned(paths, trunk.architecture)
    yardstick = ReferenceBackend(trunk, loaded)
    wanted, found = yardstick.run(plan.merge(paths), batch), answers(model, paths, texts)
    assert set(found) == set(wanted) == set(paths)
    for name, path in paths.items():
        seen = batch.words >= 0 if path.pool.positions == "tokens" else slice(None)
        np.testing.assert_allclose(found[name].numpy()[seen], wanted[name][seen], rtol=0, atol=atol, err_msg=name)


def replaced(strategy, **changes):
    """The same strategy with other settings."""
    return msgspec.structs.replace(strategy, **changes)
