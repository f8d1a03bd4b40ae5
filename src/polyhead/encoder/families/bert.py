"""BERT, RoBERTa, XLM-RoBERTa and ELECTRA (Devlin et al. 2019, Liu et al. 2019, Clark et al. 2020)."""

from __future__ import annotations

from polyhead.encoder.families.base import TWO_MAPS, EncoderFamily, classifier_forms, register_encoder_family

SIZES = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "feed_forward": "intermediate_size",
    "vocabulary": "vocab_size",
    "positions": "max_position_embeddings",
}
KEYS = SIZES | {"segments": "type_vocab_size", "norm_epsilon": "layer_norm_eps", "activation": "hidden_act"}
DEFAULTS = {"positions": 512, "segments": 2, "norm_epsilon": 1e-12, "activation": "gelu"}
ONLY = {
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({},),
}
EMBEDDINGS = (
    ("embeddings.word_embeddings", "embeddings.word"),
    ("embeddings.position_embeddings", "embeddings.position"),
    ("embeddings.token_type_embeddings", "embeddings.segment"),
    ("embeddings.LayerNorm", "embeddings.norm"),
)
SECOND_HALF = (
    ("encoder.layer.{}.intermediate.dense", "layers.{}.feed_forward.inner"),
    ("encoder.layer.{}.output.dense", "layers.{}.feed_forward.outer"),
    ("encoder.layer.{}.output.LayerNorm", "layers.{}.feed_forward.norm"),
)
TABLE = (
    *EMBEDDINGS,
    ("encoder.layer.{}.attention.self.query", "layers.{}.attention.query"),
    ("encoder.layer.{}.attention.self.key", "layers.{}.attention.key"),
    ("encoder.layer.{}.attention.self.value", "layers.{}.attention.value"),
    ("encoder.layer.{}.attention.output.dense", "layers.{}.attention.output"),
    ("encoder.layer.{}.attention.output.LayerNorm", "layers.{}.attention.norm"),
    *SECOND_HALF,
)

BERT_POOLER, ROBERTA_POOLER = {"hidden": "bert.pooler.dense"}, {"hidden": "roberta.pooler.dense"}

register_encoder_family(
    EncoderFamily(
        name="bert",
        model_types=("bert",),
        keys=KEYS,
        defaults=DEFAULTS,
        only=ONLY,
        table=TABLE,
        # The dense layer of the first is the encoder's pooler.
        classifiers=classifier_forms("Bert", "bert", BERT_POOLER, BERT_POOLER),
    )
)
register_encoder_family(
    EncoderFamily(
        name="roberta",
        model_types=("roberta", "xlm-roberta"),
        keys=KEYS,
        defaults=DEFAULTS,
        only=ONLY,
        # Positions are counted from the padding index + 1.
        more=lambda settings, shape: {"first_position": settings.count("pad_token_id", 1) + 1},
        table=TABLE,
        classifiers=classifier_forms("Roberta", "roberta", TWO_MAPS, ROBERTA_POOLER)
        | classifier_forms("XLMRoberta", "xlm-roberta", TWO_MAPS, ROBERTA_POOLER),
    )
)
register_encoder_family(
    EncoderFamily(
        name="electra",
        model_types=("electra",),
        keys=KEYS | {"embedding_width": "embedding_size"},
        defaults=DEFAULTS | {"embedding_width": None},
        only=ONLY,
        table=(*TABLE, ("embeddings_project", "embeddings.project")),
        classifiers=classifier_forms(
            "Electra",
            "electra",
            {**TWO_MAPS, "activation": "gelu"},
            {"hidden": "sequence_summary.summary", "activation": "gelu"},
        ),
    )
)
