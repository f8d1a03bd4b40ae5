"""Hugging Face `config.json` files: read the shape of a trunk, or name the unsupported setting."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from polyhead.encoder.shape import Architecture
from polyhead.errors import ConfigError, TrunkError
from polyhead.values import Value, to_value


class _Keys(Value):
    """A model type: its family, the config key of each field, and the defaults in `transformers`."""

    family: str
    keys: Mapping[str, str]
    defaults: Mapping[str, object]
    activation: str = "hidden_act"


_BERT_KEYS = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "feed_forward": "intermediate_size",
    "vocabulary": "vocab_size",
    "positions": "max_position_embeddings",
    "segments": "type_vocab_size",
    "norm_epsilon": "layer_norm_eps",
}
_BERT_DEFAULTS = {"positions": 512, "segments": 2, "norm_epsilon": 1e-12}
_DISTILBERT_KEYS = {
    "layers": "n_layers",
    "width": "dim",
    "heads": "n_heads",
    "feed_forward": "hidden_dim",
    "vocabulary": "vocab_size",
    "positions": "max_position_embeddings",
}
# pad_token_id is read as `first_position`, which is one more (`architecture_of`).
_ROBERTA = _Keys(
    family="roberta",
    keys=_BERT_KEYS | {"first_position": "pad_token_id"},
    defaults=_BERT_DEFAULTS | {"first_position": 1},
)
MODEL_TYPES: Mapping[str, _Keys] = {
    "bert": _Keys(family="bert", keys=_BERT_KEYS, defaults=_BERT_DEFAULTS),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "electra": _Keys(
        family="electra", keys=_BERT_KEYS | {"embedding_width": "embedding_size"}, defaults=_BERT_DEFAULTS
    ),
    "distilbert": _Keys(
        family="distilbert", keys=_DISTILBERT_KEYS, defaults={"positions": 512}, activation="activation"
    ),
}
"""What `load_trunk` reads."""

# Settings that change the computation, with the only supported value.
_ONLY: Mapping[str, object] = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}


def architecture_of(raw: bytes, *, source: str) -> Architecture:
    """The shape that a config.json describes.

    Raises TrunkError, naming the setting, for an unsupported model type or setting.
    """
    config = _decoded(raw, source)
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in MODEL_TYPES:
        raise TrunkError(
            f"{source}: this model type is not supported",
            got=model_type,
            allowed=sorted(MODEL_TYPES),
            do="choose an encoder of one of these types",
        )
    table = MODEL_TYPES[model_type]
    for key, only in {table.activation: "gelu", **_ONLY}.items():
        if config.get(key, only) != only:
            raise _unsupported(source, key, config[key], only)
    if config.get("pruned_heads"):
        raise _unsupported(source, "pruned_heads", config["pruned_heads"], "none")
    return _architecture(config, table, source)


def _architecture(config: Mapping[str, object], table: _Keys, source: str) -> Architecture:
    fields = {name: config.get(key) for name, key in table.keys.items()}
    fields = {name: table.defaults.get(name) if value is None else value for name, value in fields.items()}
    missing = [table.keys[name] for name, value in fields.items() if value is None and name != "embedding_width"]
    if missing:
        raise TrunkError(f"{source}: settings are missing", got=missing, do="give the config.json of the weights")
    if table.family == "distilbert":
        fields["segments"] = 0
    if fields.get("embedding_width") == fields["width"]:
        fields["embedding_width"] = None  # the digest must not depend on whether the config states the default
    padding = fields.get("first_position")
    if isinstance(padding, int):
        fields["first_position"] = padding + 1
    try:
        return to_value({"family": table.family, **fields}, Architecture, source=source)
    except ConfigError as error:
        raise TrunkError(f"{source}: a setting is wrong", got=error.what, allowed=table.keys) from None


def _decoded(raw: bytes, source: str) -> dict[str, object]:
    try:
        return msgspec.json.decode(raw, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TrunkError(f"{source} is not a JSON object", got=error, do="give the file as it was saved") from None


def _unsupported(source: str, key: str, got: object, only: object) -> TrunkError:
    return TrunkError(
        f"{source}: the setting '{key}' has a value that is not supported",
        got=got,
        allowed=only,
        do="choose an encoder without it; it would be computed wrongly",
        key=key,
    )
