"""BART's encoder (Lewis et al. 2020), and the names of its decoder, which generating heads may start from."""

from __future__ import annotations

from polyhead.encoder.families.base import DecoderForm, EncoderFamily, register_encoder_family

OFFSET = 2  # rows of the position table that no token reads, beyond those that the config counts

DECODER = DecoderForm(
    keys={
        "layers": "decoder_layers",
        "heads": "decoder_attention_heads",
        "feed_forward": "decoder_ffn_dim",
        "positions": "max_position_embeddings",
        "activation": "activation_function",
    },
    defaults={"layers": 12, "heads": 16, "feed_forward": 4096, "positions": 1024, "activation": "gelu"},
    first_position=OFFSET,
    extra_positions=OFFSET,
    tied=("decoder.embed_tokens.weight", "lm_head.weight"),
    table=(
        ("decoder.embed_positions", "decoder.position"),
        ("decoder.layernorm_embedding", "decoder.norm"),
        ("decoder.layers.{}.self_attn.q_proj", "decoder.layers.{}.attention.query"),
        ("decoder.layers.{}.self_attn.k_proj", "decoder.layers.{}.attention.key"),
        ("decoder.layers.{}.self_attn.v_proj", "decoder.layers.{}.attention.value"),
        ("decoder.layers.{}.self_attn.out_proj", "decoder.layers.{}.attention.output"),
        ("decoder.layers.{}.self_attn_layer_norm", "decoder.layers.{}.attention.norm"),
        ("decoder.layers.{}.encoder_attn.q_proj", "decoder.layers.{}.cross.query"),
        ("decoder.layers.{}.encoder_attn.k_proj", "decoder.layers.{}.cross.key"),
        ("decoder.layers.{}.encoder_attn.v_proj", "decoder.layers.{}.cross.value"),
        ("decoder.layers.{}.encoder_attn.out_proj", "decoder.layers.{}.cross.output"),
        ("decoder.layers.{}.encoder_attn_layer_norm", "decoder.layers.{}.cross.norm"),
        ("decoder.layers.{}.fc1", "decoder.layers.{}.feed_forward.inner"),
        ("decoder.layers.{}.fc2", "decoder.layers.{}.feed_forward.outer"),
        ("decoder.layers.{}.final_layer_norm", "decoder.layers.{}.feed_forward.norm"),
        ("final_logits_bias", "decoder.output.bias"),
    ),
)

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
        decoder=DECODER,
        unread_head="it reads the decoder's last state, and a head here reads the encoder",
        ignored=r"decoder\..*",
    )
)
