"""Hugging Face `config.json` files: read the shape of a trunk, or name the unsupported setting."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from polyhead.encoder.decoder import Decoder
from polyhead.encoder.families import ACTIVATIONS, FAMILIES, EncoderConfig, EncoderFamily, family_of
from polyhead.encoder.shape import Architecture
from polyhead.errors import ConfigError, TrunkError
from polyhead.values import to_value


def model_types() -> tuple[str, ...]:
    """The model types that `load_trunk` reads."""
    return tuple(sorted(name for family in FAMILIES.values() for name in family.model_types))


def architecture_of(
    raw: bytes, *, source: str, shape_of: Callable[[str], tuple[int, ...] | None] = lambda name: None
) -> Architecture:
    """The shape that a config.json describes; `shape_of` is that of an array of the checkpoint, None for no array.

    Raises TrunkError, naming the setting, for an unsupported model type or setting.
    """
    settings = EncoderConfig(_decoded(raw, source), source, shape_of)
    family = family_of(settings.get("model_type"))
    if family is None:
        raise TrunkError(
            f"{source}: this model type is not supported",
            got=settings.get("model_type"),
            allowed=model_types(),
            do="choose an encoder of one of these types",
        )
    for key, allowed in family.only.items():
        if settings.get(key) is not None and settings.get(key) not in allowed:
            raise settings.refused(key, settings.get(key), allowed[0] if len(allowed) == 1 else allowed)
    return _architecture(family, settings)


def decoder_of(raw: bytes, *, source: str) -> Decoder | None:
    """The decoder that a config.json describes; None if its family has none.

    Raises TrunkError, naming the setting, for one that is not supported.
    """
    settings = EncoderConfig(_decoded(raw, source), source)
    family = family_of(settings.get("model_type"))
    form = None if family is None else family.decoder
    if form is None:
        return None
    if settings.get("is_encoder_decoder", True) is not True or settings.get("tie_word_embeddings", True) is not True:
        raise settings.refused("is_encoder_decoder and tie_word_embeddings", False, True)
    fields = {name: settings.get(key, form.defaults.get(name)) for name, key in form.keys.items()}
    counts = {name: settings.count(form.keys[name]) for name in form.keys if name != "activation" and name in fields}
    activation = fields["activation"]
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise settings.refused(form.keys["activation"], activation, list(ACTIVATIONS))
    fields |= counts | {"activation": ACTIVATIONS[activation], "first_position": form.first_position}
    fields["positions"] = counts["positions"] + form.extra_positions
    try:
        return to_value(fields, Decoder, source=source)
    except ConfigError as error:
        raise TrunkError(f"{source}: a setting of the decoder is wrong", got=error.what, allowed=form.keys) from None


def _architecture(family: EncoderFamily, config: EncoderConfig) -> Architecture:
    settings = EncoderConfig({**config.config, **family.current(config)}, config.source, config.shape_of)
    fields = {name: settings.get(key, family.defaults.get(name)) for name, key in family.keys.items()}
    activation = fields.get("activation")
    if activation is not None:
        known = {**ACTIVATIONS, **family.activations}
        if not isinstance(activation, str) or activation not in known:
            raise settings.refused(family.keys["activation"], activation, list(known))
        fields["activation"] = known[activation]
    optional = {name for name, value in family.defaults.items() if value is None}
    missing = [family.keys[name] for name, value in fields.items() if value is None and name not in optional]
    if missing:
        raise TrunkError(
            f"{config.source}: settings are missing", got=missing, do="give the config.json of the weights"
        )
    try:
        plain = to_value({"family": family.name, **family.fixed, **fields}, Architecture, source=config.source)
    except ConfigError as error:
        raise TrunkError(f"{config.source}: a setting is wrong", got=error.what, allowed=family.keys) from None
    return _without_defaults(msgspec.structs.replace(plain, **family.more(settings, plain)))


def _without_defaults(shape: Architecture) -> Architecture:
    """The shape, whose digest must not depend on whether a config states what is the default."""
    same = {
        "embedding_width": shape.width,
        "head_width": shape.width // shape.heads,
        "key_heads": shape.heads,
        "local_rotary": shape.rotary,
    }
    stated = [name for name, default in same.items() if getattr(shape, name) == default]
    return msgspec.structs.replace(shape, **dict.fromkeys(stated)) if stated else shape


def _decoded(raw: bytes, source: str) -> dict[str, object]:
    try:
        return msgspec.json.decode(raw, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TrunkError(f"{source} is not a JSON object", got=error, do="give the file as it was saved") from None
