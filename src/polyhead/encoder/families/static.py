"""A table of word vectors without layers, in model2vec's format (Tulkens and van Dongen 2024).

`embeddings` has a row for each piece of the vocabulary, or `mapping` names the row of each; `weights` multiplies the
vector of each. Its unknown piece has a zero vector here, since model2vec leaves it out.
"""

from __future__ import annotations

import numpy as np

from polyhead.encoder.families.base import ArrayReader, EncoderConfig, EncoderFamily, register_encoder_family
from polyhead.encoder.shape import WORD_VECTORS
from polyhead.errors import TrunkError, WeightsMismatch

LONGEST = 2**16  # tokens


def _current(settings: EncoderConfig) -> dict[str, object]:
    """Its config.json states no sizes: they are those of the arrays."""
    vectors, mapping = settings.shape_of("embeddings"), settings.shape_of("mapping")
    if vectors is None or len(vectors) != 2:
        raise TrunkError(
            f"{settings.source}: the sizes of a static table are those of its array 'embeddings'",
            got="no array" if vectors is None else f"shape {vectors}",
            allowed="an array of pieces and dimensions",
            do="give the folder that model2vec's `save_pretrained` wrote",
        )
    return {"hidden_dim": vectors[1], "vocab_size": (mapping or vectors)[0]}


def _finished(arrays: dict[str, np.ndarray], read: ArrayReader) -> dict[str, np.ndarray]:
    table, mapping, weights = arrays[WORD_VECTORS], read("mapping"), read("weights")
    if mapping is not None:
        if mapping.dtype.kind not in "iu" or mapping.ndim != 1 or not ((mapping >= 0) & (mapping < len(table))).all():
            raise WeightsMismatch(
                "array 'mapping' does not name a row of 'embeddings' for each piece",
                got=f"{mapping.dtype} {mapping.shape}",
                allowed=f"whole numbers from 0 to {len(table) - 1}",
            )
        table = table[mapping]
    if weights is not None:
        if weights.dtype.kind != "f" or weights.shape != table.shape[:1]:
            raise WeightsMismatch(
                "array 'weights' is not a number for each piece",
                got=f"{weights.dtype} {weights.shape}",
                allowed=f"floats ({len(table)},)",
            )
        table = table * weights.astype(np.float32)[:, None]
    return {WORD_VECTORS: table}


register_encoder_family(
    EncoderFamily(
        name="static",
        model_types=("model2vec",),
        keys={"width": "hidden_dim", "vocabulary": "vocab_size"},
        fixed={
            "layers": 0,
            "heads": 1,
            "feed_forward": 1,
            "positions": LONGEST,
            "segments": 0,
            "position_table": False,
            "embedding_norm": False,
        },
        current=_current,
        table=(("embeddings", WORD_VECTORS),),
        ignored="mapping|weights",
        finished=_finished,
    )
)
