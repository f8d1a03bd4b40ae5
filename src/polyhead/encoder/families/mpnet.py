"""MPNet (Song et al. 2020): BERT with a bias by distance in every score, shared by the layers."""

from __future__ import annotations

from polyhead.encoder.families.base import TWO_MAPS, EncoderFamily, classifier_forms, register_encoder_family
from polyhead.encoder.families.bert import DEFAULTS, EMBEDDINGS, KEYS, SECOND_HALF
from polyhead.encoder.shape import Relative

BUCKETS, DISTANCE = 32, 128  # `transformers` computes with these, whatever the config says
FIRST_POSITION = 2  # the padding index is 1, whatever the config says

register_encoder_family(
    EncoderFamily(
        name="mpnet",
        model_types=("mpnet",),
        keys={field: key for field, key in KEYS.items() if field != "segments"},
        defaults=DEFAULTS,
        fixed={
            "segments": 0,
            "first_position": FIRST_POSITION,
            "relative": Relative(kind="bias", buckets=BUCKETS, distance=DISTANCE),
        },
        only={"relative_attention_num_buckets": (BUCKETS,)},
        table=(
            *EMBEDDINGS,
            ("encoder.relative_attention_bias", "relative"),
            ("encoder.layer.{}.attention.attn.q", "layers.{}.attention.query"),
            ("encoder.layer.{}.attention.attn.k", "layers.{}.attention.key"),
            ("encoder.layer.{}.attention.attn.v", "layers.{}.attention.value"),
            ("encoder.layer.{}.attention.attn.o", "layers.{}.attention.output"),
            ("encoder.layer.{}.attention.LayerNorm", "layers.{}.attention.norm"),
            *SECOND_HALF,
        ),
        classifiers=classifier_forms("MPNet", "mpnet", TWO_MAPS, {"hidden": "mpnet.pooler.dense"}),
    )
)
