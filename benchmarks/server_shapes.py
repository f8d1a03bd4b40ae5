"""A bundle in the shape of BERT-base with drawn weights: good for timing alone.

Its tasks are those of `one_pass_tasks` with the same kinds, labels and poolers over 12 layers of width 768.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from benchmarks.engine_plans_made import drawn_trunk
from benchmarks.one_pass_tasks import FOLDER, TASKS, bundle_of
from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.bundle.write import Draft, add_tasks
from polyhead.encoder.shape import Architecture
from polyhead.plan import Embed, Layers, cost
from polyhead.plan import Path as TaskPath
from polyhead.tasks.task import owner_of

BERT_BASE = Architecture(layers=12, width=768, heads=12, feed_forward=3072, vocabulary=30522)


def bert_base() -> Path:
    """The bundle, made where it is not there yet."""
    root, trained = FOLDER / "bert-base", Bundle.open(bundle_of(len(TASKS) + 2))
    if (root / "bundle.json").exists():
        return root
    trunk = drawn_trunk(BERT_BASE, trained.trunk().tokenizer)
    write_bundle(root, trunk)
    rng, drafts = np.random.default_rng(0), list[Draft]()
    for record in trained.tasks.values():
        rest = record.path.nodes[len(record.path.layers) + 1 :]
        path = TaskPath(nodes=(Embed(trunk=trunk.digest), Layers(start=0, stop=BERT_BASE.layers), *rest))
        sizes = cost.part_arrays(path, BERT_BASE, owner_of(record.task))
        arrays = {name: (0.02 * rng.standard_normal(size)).astype(np.float32) for name, size in sizes.items()}
        made = TaskRecord(task=msgspec.structs.replace(record.task), path=path, trunk=trunk.digest)
        drafts.append(Draft(record=made, arrays=arrays, scores={}, probes=[], card="Drawn weights, for timing."))
    add_tasks(root, drafts)
    return root
