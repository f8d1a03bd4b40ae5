"""Candidates and paths of tasks over kept features, with one set of codec constants for all that store one value."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from polyhead.bundle.read import Bundle
from polyhead.plan import Codec, Path
from polyhead.strategies.base import Candidate
from polyhead.strategies.ends import with_codec
from polyhead.text.tokenize import Input
from polyhead.train.data.extract import Extractor
from polyhead.train.data.prepare import single_inputs
from polyhead.train.data.prepared import Prepared


def candidates(prepared: Prepared, extractor: Extractor) -> tuple[Candidate, ...]:
    """The heads that are tried for a task."""
    return prepared.strategy.candidates(prepared.task, extractor.data.architecture.layers)


def paths_of(prepared: Prepared, extractor: Extractor, codec: Codec) -> list[Path]:
    """A path for each candidate."""
    shape, trunk = extractor.data.architecture, extractor.digest
    return [
        candidate.strategy.path(prepared.task, trunk=trunk, shape=shape, codec=codec)
        for candidate in candidates(prepared, extractor)
    ]


def feature_paths(
    todo: Sequence[Prepared], prepared: Sequence[Prepared], extractor: Extractor, bundle: Bundle
) -> dict[str, list[Path]]:
    """Each task's candidate paths; uint8 constants are shared by all tasks that store the same value.

    A bundle's own constants come first, so that a task added later reads the features that are kept already. Others
    come from the texts of all tasks, those that are done too, so that a resumed run finds the same ones.
    """
    known: dict[bytes, Codec] = {}
    for record in bundle.tasks.values():
        per = "dimension" if len(record.path.pool.codec.scale) > 1 else "tensor"
        known.setdefault(_key(record.path, per), record.path.pool.codec)
    paths: dict[str, list[Path]] = {}
    for p in todo:
        bare, per = p.strategy.feature_codec()
        paths[p.task.name] = []
        for path in paths_of(p, extractor, bare):
            key = _key(path, per)
            if key not in known:
                known[key] = extractor.calibrated(path, _texts_like(key, prepared, extractor), per=per)
            paths[p.task.name].append(with_codec(path, known[key]))
    return paths


def _key(path: Path, per: str) -> bytes:
    """The stored value of a path, codec constants left out."""
    pool = path.stored().pool
    bare = msgspec.structs.replace(pool.codec, scale=(), zero=())
    return msgspec.json.encode([msgspec.structs.replace(pool, codec=bare), per])


def _texts_like(key: bytes, prepared: Sequence[Prepared], extractor: Extractor) -> list[Input]:
    """Training inputs of every task that stores the same value, one task after the other."""
    lists: list[list[Input]] = []
    for p in prepared:
        bare, per = p.strategy.feature_codec()
        if any(_key(path, per) == key for path in paths_of(p, extractor, bare)):
            lists += single_inputs(p.train.examples.inputs, p.task)
    return [text for inputs in lists for text in inputs]
