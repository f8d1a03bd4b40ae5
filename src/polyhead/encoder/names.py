"""Names of a trunk's arrays in Hugging Face checkpoints and in Polyhead: one table per family."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from polyhead.encoder.shape import Architecture, trunk_arrays
from polyhead.errors import WeightsMismatch

Item = TypeVar("Item")

_BERT = (
    ("embeddings.word_embeddings", "embeddings.word"),
    ("embeddings.position_embeddings", "embeddings.position"),
    ("embeddings.token_type_embeddings", "embeddings.segment"),
    ("embeddings.LayerNorm", "embeddings.norm"),
    ("encoder.layer.{}.attention.self.query", "layers.{}.attention.query"),
    ("encoder.layer.{}.attention.self.key", "layers.{}.attention.key"),
    ("encoder.layer.{}.attention.self.value", "layers.{}.attention.value"),
    ("encoder.layer.{}.attention.output.dense", "layers.{}.attention.output"),
    ("encoder.layer.{}.attention.output.LayerNorm", "layers.{}.attention.norm"),
    ("encoder.layer.{}.intermediate.dense", "layers.{}.feed_forward.inner"),
    ("encoder.layer.{}.output.dense", "layers.{}.feed_forward.outer"),
    ("encoder.layer.{}.output.LayerNorm", "layers.{}.feed_forward.norm"),
)
_DISTILBERT = (
    ("embeddings.word_embeddings", "embeddings.word"),
    ("embeddings.position_embeddings", "embeddings.position"),
    ("embeddings.LayerNorm", "embeddings.norm"),
    ("transformer.layer.{}.attention.q_lin", "layers.{}.attention.query"),
    ("transformer.layer.{}.attention.k_lin", "layers.{}.attention.key"),
    ("transformer.layer.{}.attention.v_lin", "layers.{}.attention.value"),
    ("transformer.layer.{}.attention.out_lin", "layers.{}.attention.output"),
    ("transformer.layer.{}.sa_layer_norm", "layers.{}.attention.norm"),
    ("transformer.layer.{}.ffn.lin1", "layers.{}.feed_forward.inner"),
    ("transformer.layer.{}.ffn.lin2", "layers.{}.feed_forward.outer"),
    ("transformer.layer.{}.output_layer_norm", "layers.{}.feed_forward.norm"),
)
TABLES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "bert": _BERT,
    "roberta": _BERT,
    "electra": (*_BERT, ("embeddings_project", "embeddings.project")),
    "distilbert": _DISTILBERT,
}
"""(their name, our name) of each module; `{}` is the layer's index, and `.weight` or `.bias` follows."""

_WORDS = "embeddings.word_embeddings.weight"
# Present in a file of the bare encoder, but not one of its arrays: the pooler, and index buffers of older versions.
_IGNORED = re.compile(r"pooler\..*|.*\bposition_ids|.*\btoken_type_ids")
_OLD_LEAVES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def to_hugging_face(arrays: Mapping[str, Item], family: str) -> dict[str, Item]:
    """The arrays under the names of the bare `transformers` encoder."""
    table = [(ours, theirs) for theirs, ours in TABLES[family]]
    renamed = {name: _renamed(name, table) for name in arrays}
    unknown = sorted(name for name, new in renamed.items() if new is None)
    if unknown:
        raise WeightsMismatch(f"these are no arrays of a {family} trunk", got=unknown[:5])
    return {new: arrays[name] for name, new in renamed.items() if new is not None}


def trunk_names(names: Iterable[str], family: str) -> dict[str, str]:
    """Our name -> the checkpoint's name, for every array of the trunk in it, with or without heads.

    The encoder is found by its word vectors, whatever their prefix ('bert.', 'roberta.', ...). If there is a prefix,
    everything without it is a head and is omitted, as are poolers and index buffers. The old names gamma and beta of
    LayerNorm are understood. Any other name in the encoder raises WeightsMismatch.
    """
    names = list(names)
    prefixes = sorted(name.removesuffix(_WORDS) for name in names if name.endswith(_WORDS))
    if len(prefixes) != 1:
        raise WeightsMismatch(
            f"the checkpoint does not hold one {family} encoder",
            got=f"{len(prefixes)} arrays named '...{_WORDS}'",
            allowed=1,
            do="give a checkpoint of one encoder, saved by `transformers`",
        )
    known: dict[str, str] = {}
    unknown: list[str] = []
    for name in names:
        bare = name.removeprefix(prefixes[0])
        if not name.startswith(prefixes[0]) or _IGNORED.fullmatch(bare):
            continue
        ours = trunk_name(bare, family)
        if ours is None or ours in known:
            unknown.append(name)
        else:
            known[ours] = name
    if unknown:
        raise WeightsMismatch(
            f"the checkpoint holds arrays that a {family} encoder does not have",
            got=sorted(unknown)[:5],
            do="check that config.json names the model_type these weights belong to",
        )
    return known


def trunk_name(name: str, family: str) -> str | None:
    """Our name of one array of the bare encoder; None for an array that the encoder does not have."""
    return _renamed(_modern(name), TABLES[family])


def check_names(names: Mapping[str, str], shape: Architecture) -> None:
    """Raises WeightsMismatch that names the missing and surplus arrays, by their names in the checkpoint."""
    expected = {name for name, _ in trunk_arrays(shape)}
    missing = to_hugging_face(dict.fromkeys(sorted(expected - set(names))), shape.family)
    extra = [names[name] for name in sorted(set(names) - expected)]
    if missing or extra:
        raise WeightsMismatch(
            "the checkpoint's arrays are not those that its config.json calls for",
            got=f"missing {list(missing)[:5] or 'none'}, extra {extra[:5] or 'none'}",
            do="give the weights and the config.json of one model",
        )


def _modern(name: str) -> str:
    for old, new in _OLD_LEAVES.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def _renamed(name: str, table: Iterable[tuple[str, str]]) -> str | None:
    for before, after in table:
        pattern = re.escape(before).replace(r"\{\}", r"(0|[1-9]\d*)")
        match = re.fullmatch(rf"{pattern}\.(weight|bias)", name)
        if match:
            return f"{after.format(*match.groups()[:-1])}.{match.groups()[-1]}"
    return None
