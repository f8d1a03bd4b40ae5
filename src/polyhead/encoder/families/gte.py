"""GTE (Zhang et al. 2024) and arctic-embed-m-v2.0; `new` is its name on the hub before `transformers` had it."""

from __future__ import annotations

from polyhead.encoder.families.base import EncoderFamily, classifier_forms, register_encoder_family
from polyhead.encoder.families.bert import EMBEDDINGS, KEYS

THETA = {"gte": 160_000.0, "new": 10_000.0}  # where the config states none
ATTENTION = ("layers.{}.attention.query", "layers.{}.attention.key", "layers.{}.attention.value")
# The layers as `transformers` names them in memory; it saves those of the hub.
IN_MEMORY = (
    ("layers.{}.self_attn.q_proj", ATTENTION[0]),
    ("layers.{}.self_attn.k_proj", ATTENTION[1]),
    ("layers.{}.self_attn.v_proj", ATTENTION[2]),
    ("layers.{}.self_attn.o_proj", "layers.{}.attention.output"),
    ("layers.{}.post_attention_layernorm", "layers.{}.attention.norm"),
    ("layers.{}.mlp.gate_proj", "layers.{}.feed_forward.inner"),
    ("layers.{}.mlp.up_proj", "layers.{}.feed_forward.gate"),
    ("layers.{}.mlp.down_proj", "layers.{}.feed_forward.outer"),
    ("layers.{}.post_mlp_layernorm", "layers.{}.feed_forward.norm"),
)

register_encoder_family(
    EncoderFamily(
        name="gte",
        model_types=("gte", "new"),
        keys=KEYS,
        defaults={"positions": 8192, "segments": 1, "norm_epsilon": 1e-12, "activation": "gelu"},
        fixed={"position_table": False, "gated": True, "inner_bias": False},
        only={
            "position_embedding_type": ("rope",),
            "layer_norm_type": ("layer_norm",),
            "logn_attention_scale": (False,),
        },
        more=lambda settings, shape: {
            "rotary": settings.rotary(
                THETA[str(settings.get("model_type"))], width=shape.width // shape.heads, ntk=True
            )
        },
        table=(
            *EMBEDDINGS,
            ("encoder.layer.{}.attention.qkv_proj", ATTENTION),
            ("encoder.layer.{}.attention.q_proj", ATTENTION[0]),
            ("encoder.layer.{}.attention.k_proj", ATTENTION[1]),
            ("encoder.layer.{}.attention.v_proj", ATTENTION[2]),
            ("encoder.layer.{}.attention.o_proj", "layers.{}.attention.output"),
            ("encoder.layer.{}.attn_ln", "layers.{}.attention.norm"),
            # The second half passes the activation.
            ("encoder.layer.{}.mlp.up_gate_proj", ("layers.{}.feed_forward.gate", "layers.{}.feed_forward.inner")),
            ("encoder.layer.{}.mlp.down_proj", "layers.{}.feed_forward.outer"),
            ("encoder.layer.{}.mlp_ln", "layers.{}.feed_forward.norm"),
            *IN_MEMORY,
        ),
        classifiers=classifier_forms("Gte", "gte", {"hidden": "gte.pooler.dense"}),
    )
)
