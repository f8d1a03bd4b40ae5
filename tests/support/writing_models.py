"""Small random BART models of `transformers`, as arrays of a decoder and of the trunk below it."""

from functools import cache
from typing import Any

import numpy as np
import torch
from transformers import BartConfig, BartForConditionalGeneration

from polyhead.encoder.decoder import OUTPUT_BIAS, Decoder
from polyhead.encoder.families.bart import DECODER
from polyhead.encoder.families.base import ACTIVATIONS
from polyhead.encoder.shape import WORD_VECTORS

VOCABULARY = 40


def small_bart(seed: int, *, vocabulary: int = VOCABULARY, **settings: Any) -> BartForConditionalGeneration:
    """A model whose scores differ enough that it writes different texts."""
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": vocabulary,
        "d_model": 16,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 32,
        "max_position_embeddings": 48,
        "init_std": 0.6,
    }
    model = BartForConditionalGeneration(BartConfig(**{**sizes, **settings})).eval()
    with torch.no_grad():
        for _, value in model.named_parameters():
            if value.dim() == 1:
                value.add_(torch.randn_like(value) * 0.1)
        model.final_logits_bias.copy_(torch.randn_like(model.final_logits_bias) * 0.3)
    return model


def decoder_of(model: BartForConditionalGeneration) -> Decoder:
    config = model.config
    fields = {name: getattr(config, key) for name, key in DECODER.keys.items()}
    fields["activation"] = ACTIVATIONS[fields["activation"]]
    fields["positions"] += DECODER.extra_positions
    return Decoder(**fields, first_position=DECODER.first_position)


def decoder_parts(model: BartForConditionalGeneration) -> dict[str, np.ndarray]:
    """The part's arrays, by the table of names."""
    state = {name.removeprefix("model."): value.numpy() for name, value in model.state_dict().items()}
    arrays = {}
    for theirs, ours in DECODER.table:
        for index in range(model.config.decoder_layers if "{}" in theirs else 1):
            for leaf in ("", ".weight", ".bias"):
                if (name := theirs.format(index) + leaf) in state:
                    arrays[ours.format(index) + leaf] = np.array(state[name], np.float32)
    arrays[OUTPUT_BIAS] = arrays[OUTPUT_BIAS].reshape(-1)
    return arrays


def words_of(model: BartForConditionalGeneration) -> dict[str, np.ndarray]:
    return {WORD_VECTORS: model.model.shared.weight.detach().numpy()}


@cache
def documents(seed: int, rows: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Ids and mask (rows, tokens) of documents of several lengths."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, 12, rows)
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = rng.integers(4, VOCABULARY, mask.shape)
    ids[:, 0] = 0
    ids[np.arange(rows), lengths - 1] = 2
    return np.where(mask, ids, 1), mask


def states_of(model: BartForConditionalGeneration, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        encoder = model.get_encoder()
        out = encoder(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask).long())
    return out.last_hidden_state.numpy()


def generated(model: BartForConditionalGeneration, ids: np.ndarray, mask: np.ndarray, **rules: Any) -> list[list[int]]:
    """Each document's text by `generate`, alone: ids without the start, up to the end."""
    texts = []
    for row, there in zip(ids, mask, strict=True):
        out = model.generate(
            input_ids=torch.from_numpy(row[there])[None], do_sample=False, num_return_sequences=1, **rules
        )
        texts.append(out[0, 1:].tolist())
    return texts
