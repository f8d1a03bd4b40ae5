"""Bundles over the encoder of a tiny BART that plain `transformers` made, with a task that writes by its decoder."""

import msgspec
import numpy as np

from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.write import Draft, add_tasks
from polyhead.encoder.data import TrunkData
from polyhead.plan import Embed, Head, Path, Pool, shared_layers
from polyhead.project.pretrained import load_trunk
from polyhead.tasks.generation import GenerationRules
from polyhead.tasks.task import Task, owner_of
from polyhead.testing import tiny_part, tiny_path, tiny_writing
from support import summarizers

RULES = GenerationRules(start=2, ends=(2,), pad=1, tokens=12)
MOOD = ("mood", "tone", "topic", "urgency", "spam")


def trunk(**generation) -> TrunkData:
    return load_trunk(str(summarizers.folder(**generation)), max_tokens=40)


def writing_path(name: str, data: TrunkData) -> Path:
    known = data.decoder()
    shape = data.architecture
    head = Head(kind="summarization", width=shape.vocabulary, part=f"task:{name}", decoder=known.shape)
    return Path(nodes=(Embed(trunk=data.digest), *shared_layers(shape.layers), Pool(positions="all"), head))


def writing_draft(data: TrunkData, name="brief", *, seed=None, probes=(), **rules) -> Draft:
    """The task with the checkpoint's decoder, or with `seed` a random one."""
    task = Task(name=name, kind="summarization", generation=msgspec.structs.replace(RULES, **rules))
    path = writing_path(name, data)
    arrays = {key: np.array(array) for key, array in data.decoder().arrays.items()}
    if seed is not None:
        rng = np.random.default_rng(seed)
        arrays = {key: np.float32(array + 0.3 * rng.standard_normal(array.shape)) for key, array in arrays.items()}
    return draft(task, path, data, arrays, probes)


def tiny_draft(data: TrunkData, name="brief", *, seed=1, probes=(), trained_with=None) -> Draft:
    """A task with a random decoder over the tiny trunk."""
    task, loaded = tiny_writing(data, name, seed=seed)
    return draft(task, loaded.path, data, loaded.arrays, probes, trained_with=trained_with)


def class_draft(data: TrunkData, name="mood", *, seed=1, probes=()) -> Draft:
    task = Task(name=name, kind="single_label", labels=("good", "bad"))
    path = tiny_path(task, data, pool=Pool())
    return draft(task, path, data, tiny_part(path, data.architecture, owner_of(task), seed=seed), probes)


def draft(task, path, data, arrays, probes, *, trained_with=None) -> Draft:
    record = TaskRecord(task=task, path=path, trunk=data.digest, trained_with=trained_with or {})
    lines = [{"text": [text]} for text in probes]
    return Draft(record=record, arrays=arrays, scores={}, probes=lines, card="")


def bundle(root, *drafts, data=None):
    """A bundle of these tasks; by default one that writes, and five classifications."""
    data = data or trunk()
    write_bundle(root, data)
    add_tasks(root, drafts or [writing_draft(data), *(class_draft(data, name) for name in MOOD)])
    return root


def texts(count, *, seed=0, words=10):
    return [text for text, _ in summarizers.documents(count, seed=seed, words=words)]


def theirs(documents, **rules):
    """What `generate` of `transformers` writes of each, alone."""
    import torch

    model, library = summarizers.theirs(summarizers.folder())
    written = []
    for text in documents:
        given = library([text], return_tensors="pt", truncation=True, max_length=40)
        rules = {"max_new_tokens": 12, "forced_eos_token_id": None, "num_beams": 1, **rules}
        with torch.inference_mode():
            ids = model.generate(**given, do_sample=False, **rules)
        written.append(library.decode(ids[0, 1:], skip_special_tokens=True).strip())
    return written
