"""A table of word vectors without layers, in model2vec's format (Tulkens and van Dongen 2024).

`embeddings` has a row for each piece of the vocabulary, or `mapping` names the row of each; `weights` multiplies the
vector of each. model2vec takes the mean over all pieces of a text but the unknown one, and adds no special tokens. Here
these have zero vectors, and one stands before each text, so that an empty one has a mean: means have model2vec's
direction, and n / (n + 1) of their length for n known pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
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


def _finished(arrays: dict[str, np.ndarray], read: ArrayReader, tokenizer: bytes) -> dict[str, np.ndarray]:
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
    silent = [index for index in _without_vector(_decoded(tokenizer)).values() if index < len(table)]
    table = table if table.flags.writeable else table.copy()
    table[silent] = 0
    return {WORD_VECTORS: table}


def _tokenizer(content: bytes) -> bytes:
    """The file with one silent piece before each text, instead of its own special tokens."""
    file = _decoded(content)
    silent = _without_vector(file)
    if not silent:
        return content
    name, index = next(iter(silent.items()))
    texts = {
        text: [{"SpecialToken": {"id": name, "type_id": number}}, {"Sequence": {"id": text, "type_id": number}}]
        for number, text in enumerate("AB")
    }
    template = {
        "type": "TemplateProcessing",
        "single": texts["A"],
        "pair": texts["A"] + texts["B"],
        "special_tokens": {name: {"id": name, "ids": [index], "tokens": [name]}},
    }
    return msgspec.json.encode({**file, "post_processor": template})


def _without_vector(file: Mapping[str, Any]) -> dict[str, int]:
    """Pieces without a vector, with their ids: the unknown one first, then the special tokens.

    The unknown piece of a unigram tokenizer has a vector in model2vec too.
    """
    model, added = file.get("model"), file.get("added_tokens")
    model = model if isinstance(model, dict) else {}
    vocabulary, unknown = model.get("vocab"), model.get("unk_token")
    ids: dict[str, Any] = {}
    if isinstance(vocabulary, dict) and isinstance(unknown, str) and unknown in vocabulary:
        ids[unknown] = vocabulary[unknown]
    for token in added if isinstance(added, list) else []:
        if isinstance(token, dict) and token.get("special") is True and token.get("id") != model.get("unk_id"):
            ids.setdefault(str(token.get("content")), token.get("id"))
    return {name: index for name, index in ids.items() if isinstance(index, int) and index >= 0}


def _decoded(content: bytes) -> dict[str, Any]:
    """The file; empty for one that is none, which its reader refuses."""
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


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
        tokenizer=_tokenizer,
    )
)
