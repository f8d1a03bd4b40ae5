"""The storage table measured: what a store writes to disk for one text, keys and offsets included."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from polyhead.encoder.shape import Architecture
from polyhead.plan import Codec
from polyhead.store.corpus.ids import document_id
from polyhead.store.features import FeatureStore
from polyhead.values import Value
from studies.du2020.counts import CODECS, ROBERTA_LARGE, TOKENS

TEXTS = 8
_FORMS = (("fixed", "first or mean"), ("fixed", "attention"), ("learned", "attention"))


class MeasuredRow(Value):
    """Bytes on disk for one text under three codecs, the mean of some texts of equal length."""

    layers: str
    positions: str
    float16: int
    uint8: int
    sign: int


def measured(shape: Architecture = ROBERTA_LARGE, tokens: int = TOKENS) -> tuple[MeasuredRow, ...]:
    """Table 2 as it lies on disk; values do not matter, so they are drawn at random."""
    rows = []
    for layers, positions in _FORMS:
        depth = shape.layers if layers == "learned" else 1
        length = tokens if positions == "attention" else 1
        float16, uint8, sign = (_bytes(name, depth, length, shape.width) for name in CODECS)
        rows.append(MeasuredRow(layers=layers, positions=positions, float16=float16, uint8=uint8, sign=sign))
    return tuple(rows)


def _bytes(name: str, layers: int, tokens: int, width: int) -> int:
    """A text's share of the fragment; the store's schema and versions are for all texts and are left out."""
    codec = Codec(name=name, scale=(0.03,), zero=(128.0,)) if name == "uint8" else Codec(name=name)
    generator = np.random.default_rng(0)
    values = [generator.standard_normal((tokens, layers, width), np.float32) for _ in range(TEXTS)]
    with tempfile.TemporaryDirectory() as folder:
        store = FeatureStore.open(folder, digest="0" * 64, layers=layers, width=width, codec=codec)
        before = _size(Path(folder))
        store.append([document_id((str(index),)) for index in range(TEXTS)], values)
        return round((_size(Path(folder)) - before) / TEXTS)


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*/fragments/*/*") if file.is_file())
