"""CamemBERT (Martin et al. 2020): RoBERTa for French, with another model type."""

from __future__ import annotations

from polyhead.encoder.families.base import TWO_MAPS, EncoderFamily, classifier_forms, register_encoder_family
from polyhead.encoder.families.bert import DEFAULTS, KEYS, ONLY, ROBERTA_POOLER, TABLE

register_encoder_family(
    EncoderFamily(
        name="camembert",
        model_types=("camembert",),
        prefix="roberta",
        keys=KEYS,
        defaults=DEFAULTS,
        only=ONLY,
        # Positions are counted from the padding index + 1.
        more=lambda settings, shape: {"first_position": settings.count("pad_token_id", 1) + 1},
        table=TABLE,
        classifiers=classifier_forms("Camembert", "camembert", TWO_MAPS, ROBERTA_POOLER),
    )
)
