"""A tiny bundle of tasks and stores filled with what they read, for tests of backfills."""

import msgspec
import numpy as np

from polyhead import plan
from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import TaskRecord
from polyhead.engine.backends.base import LoadedTask
from polyhead.engine.backends.prefix import stored_layers, stored_paths
from polyhead.engine.backends.reference import ReferenceBackend
from polyhead.plan import Codec, Pool
from polyhead.plan.coding import encode
from polyhead.store.corpus.base import WORDS, FeatureColumn, PackedRows, Schema
from polyhead.store.corpus.ids import document_id
from polyhead.store.taps import batch_values, entry_batches
from polyhead.store.words import packed_words
from polyhead.tasks.task import Task
from polyhead.testing import tiny, tiny_part, tiny_tasks, tiny_trunk
from polyhead.testing.tiny import tiny_path
from polyhead.text.tokenize import Tokenizer

TRUNK = tiny_trunk()
SIGN = Codec(name="sign")
POOL = Pool(positions="attention", part="task:x", codec=SIGN)
ANSWERED = ("mood", "topics", "urgency")
TASKS = {task.name: task for task in tiny_tasks()}


def make_bundle(folder, names=ANSWERED, *, pool=POOL, seed=1, trunk=TRUNK, hidden=0, words=0):
    """A bundle of these tasks with drawn arrays, which pool what a store keeps."""
    bundle = write_bundle(folder, trunk)
    for name in names:
        add(bundle, name, pool=pool, seed=seed, trunk=trunk, hidden=hidden, words=words)
    return folder


def add(bundle, name, *, pool=POOL, seed=1, trunk=TRUNK, hidden=0, words=0, replace=False):
    """Adds a task to the bundle, or a new version of it."""
    task = TASKS.get(name) or Task(name=name, kind="single_label", labels=("no", "yes"))
    path = tiny_path(task, trunk, pool=pool, hidden=hidden)
    head = msgspec.structs.replace(path.head, words=words)
    path = msgspec.structs.replace(path, nodes=(*path.nodes[:-1], head))
    arrays = tiny_part(path, trunk.architecture, f"task:{name}", seed=seed)
    record = TaskRecord(task=task, path=path, trunk=trunk.digest, trained_with={})
    bundle.add_task(record, arrays, scores={}, probes=[], card="", replace=replace)
    return path


def texts(numbers):
    """Distinct texts of several lengths, each number always the same one."""
    made = []
    for number in numbers:
        chance = np.random.default_rng(number)
        words = chance.choice(tiny.WORDS, size=int(chance.integers(1, 9))).tolist()
        made.append((f"{' '.join(words)} {number}",))
    return made


def schema(path, *, trunk=TRUNK, codec=None, words=False):
    """What a store keeps that this path reads."""
    (stored,) = stored_paths([path])
    column = FeatureColumn(
        digest=plan.digest(stored),
        layers=stored_layers(stored),
        width=trunk.architecture.width,
        codec=codec or path.pool.codec,
    )
    return Schema(features=(column,), words=words, source={"trunk": trunk.digest, "tokenizer": "t"})


def append(store, path, inputs, *, trunk=TRUNK):
    """Encodes these inputs and appends them as one fragment."""
    backend = ReferenceBackend(trunk, {"x": LoadedTask(path=path, arrays={})})
    tokenizer = Tokenizer(trunk.tokenizer, trunk.settings)
    encodings, values = tokenizer.encodings(inputs), {}
    (stored,) = stored_paths([path])
    for members, batch in entry_batches(encodings, pad_id=tokenizer.pad_id, budget=2048):
        (found,) = batch_values(backend.features, [stored], batch)
        values.update({int(member): found.of(row) for row, member in enumerate(members)})
    column = store.schema.features[0]
    raw = [encode(values[i], column.codec).reshape(-1, column.token_bytes) for i in range(len(inputs))]
    rows = PackedRows.of([len(each) for each in raw], np.concatenate(raw))
    features = {column.digest: rows}
    if store.schema.words:
        hashed = packed_words(inputs)
        features[WORDS] = PackedRows.of(list(map(len, hashed)), np.concatenate(hashed))
    return store.append([document_id(text) for text in inputs], features)
