"""DistilBERT (Sanh et al. 2019)."""

from __future__ import annotations

from polyhead.encoder.families.base import EncoderFamily, classifier_forms, register_encoder_family

HEAD = {"hidden": "pre_classifier", "activation": "relu"}

register_encoder_family(
    EncoderFamily(
        name="distilbert",
        model_types=("distilbert",),
        keys={
            "layers": "n_layers",
            "width": "dim",
            "heads": "n_heads",
            "feed_forward": "hidden_dim",
            "vocabulary": "vocab_size",
            "positions": "max_position_embeddings",
            "activation": "activation",
        },
        defaults={"positions": 512, "activation": "gelu"},
        fixed={"segments": 0},
        only={"pruned_heads": ({},)},
        table=(
            ("embeddings.word_embeddings", "embeddings.word"),
            ("embeddings.position_embeddings", "embeddings.position"),
            ("embeddings.LayerNorm", "embeddings.norm"),
            ("transformer.layer.{}.attention.q_lin", "layers.{}.attention.query"),
            ("transformer.layer.{}.attention.k_lin", "layers.{}.attention.key"),
            ("transformer.layer.{}.attention.v_lin", "layers.{}.attention.value"),
            ("transformer.layer.{}.attention.out_lin", "layers.{}.attention.output"),
            ("transformer.layer.{}.sa_layer_norm", "layers.{}.attention.norm"),
            ("transformer.layer.{}.ffn.lin1", "layers.{}.feed_forward.inner"),
            ("transformer.layer.{}.ffn.lin2", "layers.{}.feed_forward.outer"),
            ("transformer.layer.{}.output_layer_norm", "layers.{}.feed_forward.norm"),
        ),
        classifiers=classifier_forms("DistilBert", "distilbert", HEAD, HEAD),
    )
)
