"""Every family of encoders on every backend against `transformers`, and what a family's file promises."""


import numpy as np
import pytest
import torch

from polyhead import plan
from polyhead.engine.backends import open_backend
from polyhead.engine.backends.base import LoadedTask, TokenBatch
from polyhead.plan import Pool
from polyhead.project.pretrained import load_trunk
from polyhead.testing.tiny import tiny_part, tiny_path, tiny_tasks
from support.encoder_families import CASES, saved_model

transformers = pytest.importorskip("transformers")
LENGTHS = (12, 1, 7, 28, 3)
FAR = {"mpnet": 170, "deberta-v2": 48, "deberta-v3": 48, "deberta-v2-c2p": 48, "modernbert": 48}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def batch_of(lengths, *, padding):
    """Ids that are none of the padding ids inside the texts."""
    mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
    ids = np.where(mask, np.random.default_rng(1).integers(2, 50, mask.shape), padding)
    return TokenBatch(ids=ids, mask=mask, segments=np.zeros_like(ids), words=np.full((len(lengths), 1), -1))


def states_of_backend(name, data, batch):
    """The state of every token behind every layer, (tokens, width) each."""
    task = tiny_tasks()[0]
    paths = [tiny_path(task, data, pool=Pool(positions="all"), stop=i + 1) for i in range(data.architecture.layers)]
    whole = tiny_path(task, data, pool=Pool(positions="mean"))
    arrays = tiny_part(whole, data.architecture, whole.head.part)
    backend = open_backend(name, data, {task.name: LoadedTask(path=whole, arrays=arrays)}, precision="float32")
    backend.run(plan.merge({task.name: whole}), batch)
    return [values[:, 0] for values in backend.features(paths, batch)]


def states_of_transformers(model, batch):
    given = {"input_ids": torch.from_numpy(batch.ids), "attention_mask": torch.from_numpy(batch.mask).long()}
    with torch.inference_mode():
        states = model(**given, output_hidden_states=True).hidden_states
    return [state[torch.from_numpy(batch.mask)].numpy() for state in states[1:]]


@pytest.mark.parametrize("backend", ["reference", "openvino", "onnxruntime"])
@pytest.mark.parametrize("case", CASES)
def test_every_layer_equals_transformers(case, backend, tmp_path):
    model, data = saved_model(case, tmp_path), load_trunk(str(tmp_path))
    batch = batch_of((*LENGTHS, FAR.get(case, 1)), padding=model.config.pad_token_id)
    ours, theirs = states_of_backend(backend, data, batch), states_of_transformers(model, batch)
    assert len(ours) == len(theirs) == data.architecture.layers
    worst = [np.abs(a - b).max() / max(1, b.std()) for a, b in zip(ours, theirs, strict=True)]
    assert max(worst) < 1e-5, worst
