"""Families of encoders: the conversion of config.json to a shape, and the names of arrays in checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from polyhead.encoder.shape import Architecture, Rotary
from polyhead.errors import ConfigError, TrunkError
from polyhead.registry import Registry
from polyhead.values import Value

ArrayReader = Callable[[str], np.ndarray | None]
"""An array of a checkpoint by its name there, as it is stored; None where there is none."""

ACTIVATIONS: Mapping[str, str] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
}
"""Their name of an activation -> ours."""


class EncoderConfig:
    """The settings of a config.json; every error names the file and the setting."""

    def __init__(
        self,
        config: Mapping[str, object],
        source: str,
        shape_of: Callable[[str], tuple[int, ...] | None] = lambda name: None,
    ) -> None:
        """`shape_of` is the shape of an array of the checkpoint by its name there."""
        self.config, self.source, self.shape_of = config, source, shape_of

    def get(self, key: str, default: object = None) -> object:
        """The setting; the default if it is absent or null."""
        value = self.config.get(key)
        return default if value is None else value

    def number(self, key: str, default: float | None = None) -> float:
        """The setting as a positive number."""
        return self._number(key, self.get(key, default))

    def count(self, key: str, default: int | None = None) -> int:
        """The setting as a whole number from 0."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.refused(key, value, "a whole number from 0")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """The setting as true or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.refused(key, value, "true or false")
        return value

    def table(self, key: str) -> Mapping[str, object]:
        """The setting as an object; empty if it is absent."""
        value = self.get(key, {})
        if not isinstance(value, Mapping):
            raise self.refused(key, value, "an object")
        return value

    def rotary(self, default: float, *, width: int, ntk: bool = False) -> Rotary:
        """Rotary positions by `rope_parameters`, or else by `rope_theta` and `rope_scaling`.

        `width` is that of a head; `ntk`: the family has fixed NTK scaling.
        """
        key = "rope_parameters" if self.get("rope_parameters") else "rope_scaling"
        scaling = {"rope_theta": self.get("rope_theta", default), **self.table("rope_scaling")}
        return self.turned(key, {**scaling, **self.table("rope_parameters")}, width=width, ntk=ntk)

    def turned(self, key: str, rope: Mapping[str, object], *, width: int, ntk: bool = False) -> Rotary:
        """Rotary positions by the parameters `rope`, which errors call `key`; `width` is that of a head."""
        kind = rope.get("rope_type", rope.get("type")) or "default"
        allowed = ["default", "linear", "yarn", *(["ntk"] if ntk else [])]
        if kind not in allowed:
            raise self.refused(f"{key}.rope_type", kind, allowed)
        for name, only in (("partial_rotary_factor", 1.0), ("mixed_b", None), ("mscale", None), ("truncate", True)):
            if rope.get(name, only) not in (only, None):
                raise self.refused(f"{key}.{name}", rope[name], only)
        base = self._number(f"{key}.rope_theta", rope.get("rope_theta"))
        if kind == "default":
            return Rotary(base=base)
        factor = self._number(f"{key}.factor", rope.get("factor"))
        if kind == "ntk":
            return Rotary(base=base * factor, factor=factor ** (2 / width))
        return Rotary(base=base, factor=factor) if kind == "linear" else self._yarn(key, rope, base, factor, width)

    def _yarn(self, key: str, rope: Mapping[str, object], base: float, factor: float, width: int) -> Rotary:
        """Pairs that turn often within the first length keep their frequency; others get a lower one, by degrees."""
        numbers = {"beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": max(1.0, 0.1 * math.log(factor) + 1)}
        fast, slow, scale = (self._number(f"{key}.{n}", rope.get(n) or default) for n, default in numbers.items())
        first = rope.get("original_max_position_embeddings") or self.get("max_position_embeddings")
        length = self._number(f"{key}.original_max_position_embeddings", first)
        if base <= 1:
            raise self.refused(f"{key}.rope_theta", base, "more than 1")
        edges = [width * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (fast, slow)]
        low, high = float(max(math.floor(edges[0]), 0)), float(min(math.ceil(edges[1]), width - 1))
        if high < low:
            raise self.refused(f"{key}.beta_fast", fast, "more than beta_slow")
        return Rotary(base=base, factor=factor, ramp=(low, high + 0.001 * (high == low)), scale=scale)

    def refused(self, key: str, got: object, allowed: object) -> TrunkError:
        """The error for a value that would be computed wrongly."""
        return TrunkError(
            f"{self.source}: the setting '{key}' has a value that is not supported",
            got=got,
            allowed=allowed,
            do="choose an encoder without it; it would be computed wrongly",
            key=key,
        )

    def _number(self, key: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self.refused(key, value, "a positive number")
        return float(value)


class ClassifierForm(Value):
    """The maps of a classifier over the encoder, by their names: a dense one, an activation, a norm, the output."""

    model_type: str
    output: str
    hidden: str | None = None
    activation: Literal["tanh", "relu", "gelu"] = "tanh"
    norm: str | None = None  # of the layer norm behind the activation
    epsilon: float = 1e-5  # of that norm
    without: tuple[str, ...] = ()  # arrays, by our names, that the classifier lacks: biases, which are zero
    positions: Literal["first", "mean"] = "first"  # of a text, where words are not answered
    settings: Callable[[EncoderConfig], Mapping[str, object]] = lambda settings: {}
    """The fields that config.json says."""

    @property
    def names(self) -> dict[str, str]:
        """Our name of each array of the head -> the checkpoint's."""
        maps = {"head.hidden": self.hidden, "head.norm": self.norm, "head.output": self.output}
        return {
            f"{ours}.{leaf}": f"{theirs}.{leaf}"
            for ours, theirs in maps.items()
            if theirs is not None
            for leaf in ("weight", "bias")
            if f"{ours}.{leaf}" not in self.without
        }


TWO_MAPS = {"hidden": "classifier.dense", "output": "classifier.out_proj"}  # of a classifier with its own dense layer


def classifier_forms(
    classes: str, model_type: str, sequence: Mapping[str, Any], choice: Mapping[str, Any] | None = None
) -> dict[str, ClassifierForm]:
    """The forms by class: `sequence` holds the fields of `<classes>ForSequenceClassification` beside `model_type`.

    `...ForTokenClassification` is one dense map. With `choice`, the fields of `...ForMultipleChoice`, there is also
    `...ForQuestionAnswering`, one dense map from each token to the numbers of a beginning and an end.
    """
    forms = {"SequenceClassification": {"output": "classifier", **sequence}}
    forms["TokenClassification"] = {"output": "classifier"}
    if choice is not None:
        forms |= {"QuestionAnswering": {"output": "qa_outputs"}, "MultipleChoice": {"output": "classifier", **choice}}
    return {f"{classes}For{name}": ClassifierForm(model_type=model_type, **fields) for name, fields in forms.items()}


class DecoderForm(Value):
    """The decoder that a family's checkpoints have: how config.json gives its shape, and the names of its arrays."""

    keys: Mapping[str, str]  # field of the `Decoder` -> its key in config.json
    defaults: Mapping[str, object]  # of fields, as in `transformers`
    first_position: int
    extra_positions: int  # rows of the position table beyond those that the config counts
    tied: tuple[str, ...]  # names of word vectors that are the trunk's, inside its prefix or at the top
    table: tuple[tuple[str, str], ...]
    """(their name, our name) of each module, `{}` the layer's index; `.weight` or `.bias` follows, unless ours has it.

    Names stand inside the encoder's prefix, but that of the output's bias: (1, vocabulary) at the top, zero if absent.
    """


class EncoderFamily(Value, eq=False):
    """A family of encoders. `{}` in a name is the layer's index, `{last}` in ours that of the last layer."""

    name: str  # `Architecture.family`
    model_types: tuple[str, ...]
    keys: Mapping[str, str]  # field of the shape -> its key in config.json
    table: tuple[tuple[str, str | tuple[str, ...]], ...]
    """(their name, our name) of each module; `.weight` or `.bias` follows, unless ours has it.

    Several of ours are equal rows of theirs, in this order. Of several names for one of ours the first is written.
    """
    prefix: str = ""  # of the encoder inside a model with a head; '': the family's name
    defaults: Mapping[str, object] = {}  # of fields, as in `transformers`; None: the shape's own
    fixed: Mapping[str, object] = {}  # fields that no setting changes
    only: Mapping[str, tuple[object, ...]] = {}  # settings that change the computation, with their supported values
    activations: Mapping[str, str] = {}  # names of activations beside `ACTIVATIONS`
    current: Callable[[EncoderConfig], Mapping[str, object]] = lambda settings: {}
    """The settings of an older form of config.json, by the keys of today."""
    more: Callable[[EncoderConfig, Architecture], Mapping[str, object]] = lambda settings, shape: {}
    """Fields that need more than a key, from the shape of all others."""
    decoder: DecoderForm | None = None  # of checkpoints that write texts
    pooler: str = "pooler.dense"  # their name of the tanh map of the first position, read where it is there
    ignored: str = ""  # expression of names inside the encoder that are not read, beside poolers and buffers
    surplus: tuple[str, ...] = ()  # arrays, by our names, that a checkpoint may hold and a shape lack
    classifiers: Mapping[str, ClassifierForm] = {}  # by the class in `transformers`; they read position 0 or words
    unread_head: str = ""  # why heads of its classes in `transformers` are none of `classifiers`
    finished: Callable[[dict[str, np.ndarray], ArrayReader, bytes], dict[str, np.ndarray]] = lambda arrays, *_: arrays
    """The trunk's arrays from those of the table and the tokenizer file, for a format that stores them in parts."""
    tokenizer: Callable[[bytes], bytes] = lambda content: content
    """The tokenizer file as the trunk reads texts."""


FAMILIES: Registry[EncoderFamily] = Registry("encoder family", unknown=TrunkError)
"""Every family by its name."""


def register_encoder_family(family: EncoderFamily) -> None:
    """Adds a family; raises ConfigError where its name or one of its model types is taken."""
    for other in FAMILIES.values():
        if other.name == family.name or set(other.model_types) & set(family.model_types):
            raise ConfigError(
                f"there is an encoder family '{other.name}' already",
                got=family.model_types,
                do="give the new family another name and other model types",
            )
    FAMILIES.register(family)


def family_of(model_type: object) -> EncoderFamily | None:
    """The family of a config's `model_type`."""
    return next((family for family in FAMILIES.values() if model_type in family.model_types), None)
