"""DeBERTa v2 and v3 (He et al. 2021, 2023): scores of contents and of distances apart, one table of distances."""

from __future__ import annotations

from polyhead.encoder.families.base import EncoderConfig, EncoderFamily, classifier_forms, register_encoder_family
from polyhead.encoder.families.bert import EMBEDDINGS, KEYS, SECOND_HALF
from polyhead.encoder.shape import Architecture, Relative

_NORMS = {"none": False, "layer_norm": True}
POOLED = {"hidden": "pooler.dense", "activation": "gelu"}


def _more(settings: EncoderConfig, shape: Architecture) -> dict[str, object]:
    if not settings.flag("relative_attention", False):
        raise settings.refused("relative_attention", False, True)
    for key, only in (("embedding_size", shape.width), ("attention_head_size", shape.width // shape.heads)):
        if settings.get(key, only) != only:
            raise settings.refused(key, settings.get(key), only)
    norm = settings.get("norm_rel_ebd", "none")
    if not isinstance(norm, str) or norm not in _NORMS:
        raise settings.refused("norm_rel_ebd", norm, list(_NORMS))
    terms = settings.get("pos_att_type", [])
    terms = [term.strip() for term in terms.lower().split("|")] if isinstance(terms, str) else terms
    if not isinstance(terms, list) or not terms or not {*map(str, terms)} <= {"c2p", "p2c"}:
        raise settings.refused("pos_att_type", terms, "c2p, p2c or both")
    furthest, buckets = (settings.get(key, -1) for key in ("max_relative_positions", "position_buckets"))
    if not isinstance(furthest, int) or not isinstance(buckets, int):
        raise settings.refused("position_buckets", [furthest, buckets], "whole numbers")
    furthest = furthest if furthest >= 1 else shape.positions
    relative = Relative(
        kind="disentangled",
        buckets=2 * (buckets if buckets > 0 else furthest),
        distance=furthest,
        logarithmic=buckets > 0,
        content_to_position="c2p" in terms,
        position_to_content="p2c" in terms,
        shared=settings.flag("share_att_key", False),
        norm=_NORMS[norm],
    )
    return {"relative": relative, "position_table": settings.flag("position_biased_input", True)}


register_encoder_family(
    EncoderFamily(
        name="deberta-v2",
        model_types=("deberta-v2",),
        prefix="deberta",
        keys=KEYS,
        defaults={"positions": 512, "segments": 0, "norm_epsilon": 1e-7, "activation": "gelu"},
        only={"conv_kernel_size": (0,), "pooler_hidden_act": ("gelu",)},
        more=_more,
        table=(
            *EMBEDDINGS,
            ("encoder.rel_embeddings", "relative"),
            ("encoder.LayerNorm", "relative.norm"),
            ("encoder.layer.{}.attention.self.query_proj", "layers.{}.attention.query"),
            ("encoder.layer.{}.attention.self.key_proj", "layers.{}.attention.key"),
            ("encoder.layer.{}.attention.self.value_proj", "layers.{}.attention.value"),
            ("encoder.layer.{}.attention.self.pos_key_proj", "layers.{}.attention.position_key"),
            ("encoder.layer.{}.attention.self.pos_query_proj", "layers.{}.attention.position_query"),
            ("encoder.layer.{}.attention.output.dense", "layers.{}.attention.output"),
            ("encoder.layer.{}.attention.output.LayerNorm", "layers.{}.attention.norm"),
            *SECOND_HALF,
        ),
        surplus=("embeddings.position.weight",),  # v3 was saved with a table that it does not read
        classifiers=classifier_forms("DebertaV2", "deberta-v2", POOLED, POOLED),
    )
)
