"""ModernBERT (Warner et al. 2024), and mmBERT, Ettin and gte-modernbert, which have its shape."""

from __future__ import annotations

from collections.abc import Mapping

from polyhead.encoder.families.base import ClassifierForm, EncoderConfig, EncoderFamily, register_encoder_family
from polyhead.encoder.families.bert import SIZES
from polyhead.encoder.families.gte import ATTENTION
from polyhead.encoder.shape import Architecture, Rotary

POOLING = {"cls": "first", "mean": "mean"}  # of classifiers
WHOLE, LOCAL = "full_attention", "sliding_attention"


def _more(settings: EncoderConfig, shape: Architecture) -> dict[str, object]:
    attention_bias, inner_bias = settings.flag("attention_bias", False), settings.flag("mlp_bias", False)
    every = _whole_every(settings, shape.layers)
    whole, local = _rotary(settings, shape.width // shape.heads)
    return {
        "norm_bias": settings.flag("norm_bias", False),
        "attention_bias": attention_bias,
        "output_bias": attention_bias,
        "inner_bias": inner_bias,
        "outer_bias": inner_bias,
        "rotary": whole,
        "local_rotary": local if every > 1 and local != whole else None,
        "window": settings.count("local_attention", 128) // 2 if every > 1 else None,
        "whole_every": every,
    }


def _whole_every(settings: EncoderConfig, layers: int) -> int:
    """n where layers 0, n, 2 n, ... read the whole text; at most the number of layers."""
    types = settings.get("layer_types")
    if types is None:
        return max(1, min(settings.count("global_attn_every_n_layers", 3), layers))
    kinds = types if isinstance(types, list) else [types]
    wholes = [index for index, kind in enumerate(kinds) if kind == WHOLE]
    every = wholes[1] if len(wholes) > 1 else max(1, len(kinds))
    if len(kinds) != layers or kinds != [LOCAL if index % every else WHOLE for index in range(layers)]:
        raise settings.refused("layer_types", types, f"'{WHOLE}' for every n-th layer from the first, else '{LOCAL}'")
    return every


def _rotary(settings: EncoderConfig, width: int) -> tuple[Rotary, Rotary]:
    """Rotary positions of layers that read the whole text, and of those with a window."""
    whole = settings.get("global_rope_theta", 160_000.0)
    local = settings.config.get("local_rope_theta", 10_000.0) or whole  # null: as the others
    scaling, rope = settings.table("rope_scaling"), settings.table("rope_parameters")
    if unknown := set(rope) - {WHOLE, LOCAL}:
        raise settings.refused("rope_parameters", sorted(unknown), [WHOLE, LOCAL])
    turned = []
    for name, theta in ((WHOLE, whole), (LOCAL, local)):
        layer_rope = rope.get(name) or {}
        if not isinstance(layer_rope, Mapping):
            raise settings.refused(f"rope_parameters.{name}", layer_rope, "an object")
        key = f"rope_parameters.{name}" if layer_rope else "rope_scaling"
        turned.append(settings.turned(key, {"rope_theta": theta, **scaling, **layer_rope}, width=width))
    return turned[0], turned[1]


def _head(settings: EncoderConfig) -> dict[str, object]:
    activation, pooling = settings.get("classifier_activation", "gelu"), settings.get("classifier_pooling", "cls")
    if activation not in ("gelu", "relu", "tanh"):
        raise settings.refused("classifier_activation", activation, ["gelu", "relu", "tanh"])
    if pooling not in POOLING:
        raise settings.refused("classifier_pooling", pooling, list(POOLING))
    biases = {"head.hidden.bias": "classifier_bias", "head.norm.bias": "norm_bias"}
    return {
        "activation": activation,
        "epsilon": settings.number("norm_eps", 1e-5),
        "without": tuple(name for name, key in biases.items() if not settings.flag(key, False)),
        "positions": POOLING[str(pooling)],
    }


CLASSES = ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")
HEAD = ClassifierForm(
    model_type="modernbert", hidden="head.dense", norm="head.norm", output="classifier", settings=_head
)

register_encoder_family(
    EncoderFamily(
        name="modernbert",
        model_types=("modernbert",),
        prefix="model",
        keys=SIZES | {"norm_epsilon": "norm_eps", "activation": "hidden_activation"},
        defaults={"positions": 8192, "norm_epsilon": 1e-5, "activation": "gelu"},
        fixed={"segments": 0, "position_table": False, "norm_first": True, "first_norm": False, "gated": True},
        more=_more,
        table=(
            ("embeddings.tok_embeddings", "embeddings.word"),
            ("embeddings.norm", "embeddings.norm"),
            ("layers.{}.attn_norm", "layers.{}.attention.norm"),
            ("layers.{}.attn.Wqkv", ATTENTION),
            ("layers.{}.attn.Wo", "layers.{}.attention.output"),
            ("layers.{}.mlp_norm", "layers.{}.feed_forward.norm"),
            # The first half passes the activation.
            ("layers.{}.mlp.Wi", ("layers.{}.feed_forward.inner", "layers.{}.feed_forward.gate")),
            ("layers.{}.mlp.Wo", "layers.{}.feed_forward.outer"),
            ("final_norm", "layers.{last}.norm"),
        ),
        classifiers={f"ModernBertFor{name}": HEAD for name in CLASSES},
    )
)
