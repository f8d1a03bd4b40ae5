"""Codec constants of pooled tasks: one set for all tasks that store the same value."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from polyhead.bundle.read import Bundle
from polyhead.plan import Codec, Path
from polyhead.project.strategies import Pooled
from polyhead.sharing.pooled import with_codec
from polyhead.text.tokenize import Input
from polyhead.train.data.extract import Extractor
from polyhead.train.data.prepare import single_inputs
from polyhead.train.data.prepared import Prepared
from polyhead.train.heads.run import paths_of


def pooled_paths(
    todo: list[Prepared], prepared: Sequence[Prepared], extractor: Extractor, bundle: Bundle
) -> dict[str, list[Path]]:
    """Each pooled task's candidate paths; uint8 constants are shared by all tasks that store the same value.

    A bundle's own constants come first, so that a task added later reads the features that are kept already. Others
    come from the texts of all tasks, those that are done too, so that a resumed run finds the same ones.
    """
    known: dict[bytes, Codec] = {}
    for record in bundle.tasks.values():
        per = "dimension" if len(record.path.pool.codec.scale) > 1 else "tensor"
        known.setdefault(_key(record.path, per), record.path.pool.codec)
    found: dict[str, list[Path]] = {}
    for p in todo:
        assert isinstance(p.strategy, Pooled)
        found[p.task.name] = []
        for path in paths_of(p, extractor, _bare(p.strategy)):
            per = p.strategy.codec_per
            key = _key(path, per)
            if key not in known:
                known[key] = extractor.calibrated(path, _texts_like(key, prepared, extractor), per=per)
            found[p.task.name].append(with_codec(path, known[key]))
    return found


def _bare(strategy: Pooled) -> Codec:
    return Codec(name=strategy.codec, before_mean=strategy.codec_before_mean)


def _key(path: Path, per: str) -> bytes:
    pool = path.stored().pool
    bare = msgspec.structs.replace(pool.codec, scale=(), zero=())
    return msgspec.json.encode([msgspec.structs.replace(pool, codec=bare), per])


def _texts_like(key: bytes, prepared: Sequence[Prepared], extractor: Extractor) -> list[Input]:
    """Training inputs of every task that stores the same value, taken in turn."""
    lists: list[list[Input]] = []
    for p in prepared:
        if not isinstance(p.strategy, Pooled):
            continue
        paths = paths_of(p, extractor, _bare(p.strategy))
        if any(_key(path, p.strategy.codec_per) == key for path in paths):
            lists += single_inputs(p.train.examples.inputs, p.task)
    return [text for inputs in lists for text in inputs]
