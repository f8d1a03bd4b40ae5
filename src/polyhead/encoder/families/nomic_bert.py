"""Nomic BERT (Nussbaum et al. 2024): BERT with rotary positions and gates; GPT-2's keys are its older config."""

from __future__ import annotations

from polyhead.encoder.families.base import EncoderConfig, EncoderFamily, classifier_forms, register_encoder_family
from polyhead.encoder.families.bert import EMBEDDINGS, KEYS
from polyhead.encoder.families.gte import ATTENTION, IN_MEMORY
from polyhead.encoder.shape import Architecture, Rotary

_OLD = {
    "num_hidden_layers": "n_layer",
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function",
}


def _current(settings: EncoderConfig) -> dict[str, object]:
    if settings.get("n_embd") is None:
        return {}
    current = {key: settings.get(old) for key, old in _OLD.items()}
    if settings.get("rotary_scaling_factor"):  # bases grow with texts longer than this, and are one up to it
        limit = settings.count("max_trained_positions", 2048)
        current["max_position_embeddings"] = min(limit, settings.count("n_positions", limit))
    multiple = settings.count("pad_vocab_size_multiple", 1) or 1
    return current | {"vocab_size": -(-settings.count("vocab_size") // multiple) * multiple}


def _more(settings: EncoderConfig, shape: Architecture) -> dict[str, object]:
    attention_bias = settings.flag("qkv_proj_bias", False)
    if settings.get("num_heads_kv", shape.heads) != shape.heads:
        raise settings.refused("num_heads_kv", settings.get("num_heads_kv"), shape.heads)
    is_old = settings.get("n_embd") is not None
    if is_old and settings.get("rotary_emb_fraction") != 1:
        raise settings.refused("rotary_emb_fraction", settings.get("rotary_emb_fraction"), 1)
    width = shape.head_width or shape.width // shape.heads
    base = settings.number("rotary_emb_base", 1000.0)
    return {
        "attention_bias": attention_bias,
        "output_bias": attention_bias,
        "inner_bias": settings.flag("mlp_fc1_bias", False),
        "outer_bias": settings.flag("mlp_fc2_bias", False),
        "rotary": Rotary(base=base) if is_old else settings.rotary(1000.0, width=width),
    }


register_encoder_family(
    EncoderFamily(
        name="nomic_bert",
        model_types=("nomic_bert",),
        keys=KEYS | {"head_width": "head_dim"},
        defaults={"positions": 2048, "segments": 2, "norm_epsilon": 1e-12, "activation": "silu", "head_width": None},
        fixed={"position_table": False, "gated": True},
        only={
            "activation_function": ("swiglu", "geglu"),  # others have no gate
            "prenorm": (False,),
            "parallel_block": (False,),
            "causal": (False,),
            "use_rms_norm": (False,),
            "rotary_emb_interleaved": (False,),
            "rotary_emb_scale_base": (),
            "rotary_head_dim": (False,),
            "norm_mlp": (False,),
            "num_experts": (0,),
            "moe_every_n_layers": (0, -1),
        },
        activations={"swiglu": "silu", "geglu": "gelu"},
        current=_current,
        more=_more,
        table=(
            *EMBEDDINGS[:-1],
            ("emb_ln", "embeddings.norm"),
            EMBEDDINGS[-1],
            ("encoder.layers.{}.attn.Wqkv", ATTENTION),
            ("encoder.layers.{}.attn.out_proj", "layers.{}.attention.output"),
            ("encoder.layers.{}.norm1", "layers.{}.attention.norm"),
            ("encoder.layers.{}.mlp.fc11", "layers.{}.feed_forward.gate"),
            ("encoder.layers.{}.mlp.fc12", "layers.{}.feed_forward.inner"),
            ("encoder.layers.{}.mlp.fc2", "layers.{}.feed_forward.outer"),
            ("encoder.layers.{}.norm2", "layers.{}.feed_forward.norm"),
            *IN_MEMORY,
        ),
        classifiers=classifier_forms("NomicBert", "nomic_bert", {"hidden": "nomic_bert.pooler.dense"}),
    )
)
