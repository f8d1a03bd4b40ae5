"""EuroBERT (Boizard et al. 2025): Llama's layers, read in both directions."""

from __future__ import annotations

from polyhead.encoder.families.base import EncoderConfig, EncoderFamily, classifier_forms, register_encoder_family
from polyhead.encoder.shape import Architecture


def _more(settings: EncoderConfig, shape: Architecture) -> dict[str, object]:
    attention_bias, inner_bias = settings.flag("attention_bias", False), settings.flag("mlp_bias", False)
    return {
        "attention_bias": attention_bias,
        "output_bias": attention_bias,
        "inner_bias": inner_bias,
        "outer_bias": inner_bias,
        "rotary": settings.rotary(10_000.0, width=shape.head_width or shape.width // shape.heads),
    }


def _pooled(settings: EncoderConfig) -> dict[str, object]:
    """By default outputs of all tokens are averaged, which no head here does."""
    pooling, known = settings.get("classifier_pooling", "late"), {"bos": "first", "mean": "mean"}
    if pooling not in known:
        raise settings.refused("classifier_pooling", pooling, list(known))
    return {"positions": known[str(pooling)]}


register_encoder_family(
    EncoderFamily(
        name="eurobert",
        model_types=("eurobert",),
        prefix="model",
        keys={
            "layers": "num_hidden_layers",
            "width": "hidden_size",
            "heads": "num_attention_heads",
            "key_heads": "num_key_value_heads",
            "head_width": "head_dim",
            "feed_forward": "intermediate_size",
            "vocabulary": "vocab_size",
            "positions": "max_position_embeddings",
            "norm_epsilon": "rms_norm_eps",
            "activation": "hidden_act",
        },
        defaults={"key_heads": None, "head_width": None, "positions": 8192, "norm_epsilon": 1e-5, "activation": "silu"},
        fixed={
            "segments": 0,
            "position_table": False,
            "embedding_norm": False,
            "norm": "rms",
            "norm_first": True,
            "gated": True,
        },
        more=_more,
        table=(
            ("embed_tokens", "embeddings.word"),
            ("layers.{}.input_layernorm", "layers.{}.attention.norm"),
            ("layers.{}.self_attn.q_proj", "layers.{}.attention.query"),
            ("layers.{}.self_attn.k_proj", "layers.{}.attention.key"),
            ("layers.{}.self_attn.v_proj", "layers.{}.attention.value"),
            ("layers.{}.self_attn.o_proj", "layers.{}.attention.output"),
            ("layers.{}.post_attention_layernorm", "layers.{}.feed_forward.norm"),
            ("layers.{}.mlp.gate_proj", "layers.{}.feed_forward.inner"),
            ("layers.{}.mlp.up_proj", "layers.{}.feed_forward.gate"),
            ("layers.{}.mlp.down_proj", "layers.{}.feed_forward.outer"),
            ("norm", "layers.{last}.norm"),
        ),
        classifiers=classifier_forms(
            "EuroBert", "eurobert", {"hidden": "dense", "activation": "gelu", "settings": _pooled}
        ),
    )
)
