"""Makes the pack beside the data: minilm in bfloat16, and the eight sets of Wei et al. 2021, whole, as token ids."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from studies.gpu.packed import Pack, PackedRows, PackedSet, TrunkShape, padded

if TYPE_CHECKING:
    from polyhead.encoder.data import TrunkData
    from polyhead.text.tokenize import Tokenizer
    from polyhead.train.data.prepared import Prepared, Split

MAX_TOKENS = 128
WHOLE = 10**9  # rows of train at most: all
HELD = (400, 1000)  # rows of train that choices are made on: an eighth, within these
WORDS, PLACES = "embeddings.word.weight", "embeddings.position.weight"


def pack_of(trunk: TrunkData, prepared: Mapping[str, Prepared]) -> Pack:
    """The trunk with the words alone that occur, and every split of these tasks."""
    from polyhead.text.tokenize import Tokenizer

    tokenizer = Tokenizer(trunk.tokenizer, trunk.settings)
    sets = {name: _set(tokenizer, one) for name, one in prepared.items()}
    used = np.unique(
        np.concatenate([[0], *(rows.ids.ravel() for one in sets.values() for rows in one.splits.values())])
    )
    places = np.zeros(int(used.max()) + 1, np.int32)
    places[used] = np.arange(len(used))
    for one in sets.values():
        for rows in one.splits.values():
            rows.ids[:] = places[rows.ids]
    arrays = dict(trunk.arrays) | {WORDS: trunk.arrays[WORDS][used], PLACES: trunk.arrays[PLACES][:MAX_TOKENS]}
    if trunk.pooler is not None:
        arrays |= {"pooler.weight": trunk.pooler.weight, "pooler.bias": trunk.pooler.bias}
    form = trunk.architecture
    shape = TrunkShape(
        layers=form.layers, width=form.width, heads=form.heads, inner=form.feed_forward, epsilon=form.norm_epsilon
    )
    return Pack(shape=shape, weights=arrays, sets=sets, digest=_digest(arrays, sets))


def prepared_whole(data: Path) -> dict[str, Prepared]:
    """The eight tasks with all rows of train, less those that choices are made on."""
    from polyhead.data.read import read
    from studies.wei2021.tasks import Size, entries, prepared_for

    made = {}
    for name, entry in entries(str(data)).items():
        rows = len(read(entry.source(entry.train, Path()), entry.task()).targets)
        made[name] = prepared_for(entry, Size(train=WHOLE, validation=min(max(rows // 8, HELD[0]), HELD[1])))
    return made


def _set(tokenizer: Tokenizer, prepared: Prepared) -> PackedSet:
    from polyhead.tasks.kinds import kind_of

    task = prepared.task
    return PackedSet(
        name=task.name,
        metric=kind_of(task).default_metric(task),
        labels=len(task.labels),
        splits={split.name: _rows(tokenizer, split) for split in prepared.splits},
    )


def _rows(tokenizer: Tokenizer, split: Split) -> PackedRows:
    from polyhead.text.question import read_alone

    encoded = tokenizer.encode(read_alone(split.examples.inputs))
    lengths = np.array([len(one.ids) for one in encoded], np.int64)
    targets = np.stack([np.asarray(target) for target in split.examples.targets])  # numbers are 0 to 1 already
    return PackedRows(
        ids=padded(np.concatenate([one.ids for one in encoded]), lengths),
        lengths=lengths,
        seconds=lengths - np.array([int(one.segments.sum()) for one in encoded]),
        targets=targets.reshape(-1),
    )


def _digest(arrays: Mapping[str, np.ndarray], sets: Mapping[str, PackedSet]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name], np.float32).tobytes())
    for one in sets.values():
        for rows in one.splits.values():
            digest.update(rows.ids.tobytes() + rows.targets.tobytes())
    return digest.hexdigest()[:8]
