"""Small random encoders of every family, as `transformers` makes and saves them."""

import tokenizers
import torch
import transformers

BERT = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 50,
    "max_position_embeddings": 30,
}
DISTILBERT = {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 64, "vocab_size": 50, "max_position_embeddings": 30}
ROBERTA = BERT | {"type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1}
WIDER = BERT | {"max_position_embeddings": 48}  # so that windows and buckets are left
NAMED = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}  # theirs lie beyond a tiny vocabulary
MODERN = WIDER | NAMED | {"cls_token_id": 0, "sep_token_id": 2, "local_attention": 8, "num_hidden_layers": 4}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
DEBERTA = WIDER | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
DEBERTA_3 = DEBERTA | {
    "position_biased_input": False,
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
}
BART = {"d_model": 32, "vocab_size": 50, "max_position_embeddings": 30} | {
    f"{part}_{key}": value
    for part in ("encoder", "decoder")
    for key, value in {"layers": 3, "attention_heads": 4, "ffn_dim": 64}.items()
}
CASES = {
    "bert": ("Bert", BERT),
    "bert-tanh": ("Bert", BERT | {"hidden_act": "gelu_new"}),
    "roberta": ("Roberta", ROBERTA),
    "xlm-roberta": ("XLMRoberta", ROBERTA),
    "camembert": ("Camembert", ROBERTA),
    "electra": ("Electra", BERT | {"embedding_size": 32}),
    "electra-narrow": ("Electra", BERT | {"embedding_size": 16}),
    "distilbert": ("DistilBert", DISTILBERT),
    "distilbert-sinusoidal": ("DistilBert", DISTILBERT | {"sinusoidal_pos_embds": True}),
    "mpnet": ("MPNet", BERT | {"max_position_embeddings": 180}),
    "modernbert": ("ModernBert", MODERN),
    "modernbert-biases": (
        "ModernBert",
        MODERN | {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "global_attn_every_n_layers": 2},
    ),
    "modernbert-yarn": (
        "ModernBert",
        MODERN | {"global_rope_theta": 1e4, "local_rope_theta": 1e4, "rope_scaling": YARN},
    ),
    "modernbert-long": ("ModernBert", MODERN | {"max_position_embeddings": 700}),  # in blocks
    "deberta-v3": ("DebertaV2", DEBERTA_3),
    "deberta-v2": ("DebertaV2", DEBERTA | {"type_vocab_size": 2}),
    "deberta-v2-c2p": ("DebertaV2", DEBERTA | {"pos_att_type": ["c2p"], "position_buckets": 8}),
    "bart": ("Bart", BART),
    "eurobert": ("EuroBert", WIDER | NAMED | {"num_key_value_heads": 2, "mask_token_id": 3}),
    "eurobert-biases": (
        "EuroBert",
        WIDER
        | NAMED
        | {"head_dim": 16, "num_key_value_heads": 1, "mask_token_id": 3, "attention_bias": True, "mlp_bias": True},
    ),
    "eurobert-yarn": (
        "EuroBert",
        WIDER | NAMED | {"mask_token_id": 3, "rope_parameters": {**YARN, "rope_theta": 1000.0, "beta_fast": 4.0}},
    ),
    "gte": ("Gte", WIDER),
    "gte-no-segments": ("Gte", WIDER | {"type_vocab_size": 0}),
    "nomic": ("NomicBert", WIDER),
}


# Of weights; 0.3 elsewhere, where norms behind each half bound states. With 0.3 the float32 of torch itself is 1.3e-5
# from float64 for GTE.
SPREAD = {"ModernBert": 0.2, "EuroBert": 0.2, "Gte": 0.2, "NomicBert": 0.2}


def saved_model(case, folder, *, dtype="float32", **saving):
    """A random encoder of `transformers`, saved with a tokenizer; numbers so large that a wrong norm shows."""
    name, settings = CASES[case]
    config = getattr(transformers, f"{name}Config")(**settings)
    model = getattr(transformers, f"{name}Model")(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for key, value in model.named_parameters():
            centre = 1.0 if "norm" in key.lower() and key.endswith("weight") else 0.0
            value.copy_(centre + SPREAD.get(name, 0.3) * torch.randn(value.shape, generator=generator))
    model.to(getattr(torch, dtype)).save_pretrained(folder, **saving)
    words = {f"w{i}": i for i in range(50)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return model.encoder if name == "Bart" else model
