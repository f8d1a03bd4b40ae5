"""Makes the pack beside the data: minilm in bfloat16, and the eight sets of Wei et al. 2021, whole, as token ids."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from studies.gpu.packed import Pack, PackedRows, PackedSet, TrunkShape, padded
from studies.shared.data import Set

if TYPE_CHECKING:
    from polyhead.encoder.data import TrunkData
    from polyhead.text.tokenize import Tokenizer
    from polyhead.train.data.prepared import Prepared, Split

MAX_TOKENS = 128
WHOLE = 10**9  # rows of train at most: all
HELD = (400, 1000)  # rows of train that choices are made on: an eighth, within these
MIX_ROWS = 10_000  # of a set that a trunk learns from
MIX = tuple(  # sets with labels alone, in nested order; none is one of HELD_OUT, nor made of their texts
    Set(folder=folder, test=test)
    for folder, test in (
        ("glue_sst2", "test"),
        ("glue_mnli", "validation"),
        ("glue_qqp", "test"),
        ("clinc150", "test"),
        ("tweeteval_sentiment", "test"),
        ("boolq", "validation"),
        ("glue_qnli", "validation"),
        ("tweeteval_hate", "test"),
        ("ag_news", "test"),
        ("superglue_wic", "validation"),
        ("trec6", "test"),
        ("imdb", "test"),
        ("tweeteval_offensive", "test"),
        ("dbpedia14", "test"),
        ("superglue_multirc", "validation"),
        ("tweeteval_irony", "test"),
        ("huffpost41", "test"),
        ("subj", "test"),
        ("banking77", "test"),
        ("mr_rotten_tomatoes", "test"),
        ("sst5", "test"),
        ("mctaco", "test"),
        ("cr", "test"),
        ("snips_intent", "test"),
    )
)
WORDS, PLACES = "embeddings.word.weight", "embeddings.position.weight"


def pack_of(trunk: TrunkData, prepared: Mapping[str, Prepared], mix: Mapping[str, Prepared] | None = None) -> Pack:
    """The trunk with the words alone that occur, every split of these tasks, and what a mix learns from."""
    from polyhead.text.tokenize import Tokenizer

    tokenizer = Tokenizer(trunk.tokenizer, trunk.settings)
    sets = {name: _set(tokenizer, one) for name, one in prepared.items()}
    learned = {name: _set(tokenizer, one, "train") for name, one in (mix or {}).items()}
    several = [rows for one in (*sets.values(), *learned.values()) for rows in one.splits.values()]
    used = np.unique(np.concatenate([[0], *(rows.ids.ravel() for rows in several)]))
    places = np.zeros(int(used.max()) + 1, np.int32)
    places[used] = np.arange(len(used))
    for rows in several:
        rows.ids[:] = places[rows.ids]
    arrays = dict(trunk.arrays) | {WORDS: trunk.arrays[WORDS][used], PLACES: trunk.arrays[PLACES][:MAX_TOKENS]}
    if trunk.pooler is not None:
        arrays |= {"pooler.weight": trunk.pooler.weight, "pooler.bias": trunk.pooler.bias}
    form = trunk.architecture
    shape = TrunkShape(
        layers=form.layers, width=form.width, heads=form.heads, inner=form.feed_forward, epsilon=form.norm_epsilon
    )
    digest = _digest(arrays, [*sets.values(), *learned.values()])
    return Pack(shape=shape, weights=arrays, sets=sets, mix=learned, digest=digest)


def prepared_whole(data: Path) -> dict[str, Prepared]:
    """The eight tasks with all rows of train, less those that choices are made on."""
    from polyhead.data.read import read
    from studies.wei2021.tasks import Size, entries, prepared_for

    made = {}
    for name, entry in entries(str(data)).items():
        rows = len(read(entry.source(entry.train, Path()), entry.task()).targets)
        made[name] = prepared_for(entry, Size(train=WHOLE, validation=min(max(rows // 8, HELD[0]), HELD[1])))
    return made


def prepared_mix(data: Path, held: Sequence[Prepared]) -> dict[str, Prepared]:
    """The sets of the mix, at most MIX_ROWS of each, without rows on whose texts a held-out task is evaluated."""
    from polyhead.project.recipes import Training
    from polyhead.project.strategies import Pooled
    from polyhead.train.data.leaks import without_leaks
    from studies.shared.data import prepared_of

    some = {"train": MIX_ROWS, "validation": 50, "test": 50}
    several = [prepared_of(data, one, **some, strategy=Pooled(), training=Training()) for one in MIX]
    kept, _ = without_leaks(several, others=held)
    return {one.task.name: one for one in kept}


def _set(tokenizer: Tokenizer, prepared: Prepared, *names: str) -> PackedSet:
    from polyhead.tasks.kinds import kind_of

    task = prepared.task
    return PackedSet(
        name=task.name,
        metric=kind_of(task).default_metric(task),
        labels=len(task.labels),
        splits={split.name: _rows(tokenizer, split) for split in prepared.splits if not names or split.name in names},
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


def _digest(arrays: Mapping[str, np.ndarray], sets: Sequence[PackedSet]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name], np.float32).tobytes())
    for one in sets:
        for rows in one.splits.values():
            digest.update(rows.ids.tobytes() + rows.targets.tobytes())
    return digest.hexdigest()[:8]
