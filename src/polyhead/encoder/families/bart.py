"""BART's encoder (Lewis et al. 2020); its decoder is not read here."""

from __future__ import annotations

from polyhead.encoder.families.base import EncoderFamily, register_encoder_family

OFFSET = 2  # rows of the position table that no token reads, beyond those that the config counts

register_encoder_family(
    EncoderFamily(
        name="bart",
        model_types=("bart",),
        prefix="model",
        keys={
            "layers": "encoder_layers",
            "width": "d_model",
            "heads": "encoder_attention_heads",
            "feed_forward": "encoder_ffn_dim",
            "vocabulary": "vocab_size",
            "positions": "max_position_embeddings",
            "activation": "activation_function",
        },
        defaults={
            "layers": 12,
            "width": 1024,
            "heads": 16,
            "feed_forward": 4096,
            "vocabulary": 50265,
            "positions": 1024,
            "activation": "gelu",
        },
        fixed={"segments": 0, "first_position": OFFSET, "norm_epsilon": 1e-5},
        only={
            "scale_embedding": (False,),
            "normalize_before": (False,),
            "normalize_embedding": (True,),
            "add_final_layer_norm": (False,),
            "static_position_embeddings": (False,),
        },
        more=lambda settings, shape: {"positions": shape.positions + OFFSET},
        table=(
            ("shared", "embeddings.word"),
            ("encoder.embed_tokens", "embeddings.word"),
            ("encoder.embed_positions", "embeddings.position"),
            ("encoder.layernorm_embedding", "embeddings.norm"),
            ("encoder.layers.{}.self_attn.q_proj", "layers.{}.attention.query"),
            ("encoder.layers.{}.self_attn.k_proj", "layers.{}.attention.key"),
            ("encoder.layers.{}.self_attn.v_proj", "layers.{}.attention.value"),
            ("encoder.layers.{}.self_attn.out_proj", "layers.{}.attention.output"),
            ("encoder.layers.{}.self_attn_layer_norm", "layers.{}.attention.norm"),
            ("encoder.layers.{}.fc1", "layers.{}.feed_forward.inner"),
            ("encoder.layers.{}.fc2", "layers.{}.feed_forward.outer"),
            ("encoder.layers.{}.final_layer_norm", "layers.{}.feed_forward.norm"),
        ),
        ignored=r"decoder\..*",
    )
)
