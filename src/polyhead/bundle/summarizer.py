"""The keys that the config.json and generation_config.json of an encoder-decoder may have, by type.

`transformers` acts on any key: one may name Python files, kernels of a hub or other ways of writing. So only known keys
reach it; bookkeeping is left out, and every other key is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec

from polyhead.errors import ConfigError, TrunkError
from polyhead.values import Value, to_value

Size = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Id = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Ids = Id | Annotated[list[Id], msgspec.Meta(max_length=10_000)]
Words = Annotated[list[Annotated[list[Id], msgspec.Meta(max_length=1000)]], msgspec.Meta(max_length=10_000)]

MODEL_TYPES = ("bart", "pegasus")  # those that the tests hold against `transformers`


class Generation(Value):
    """Settings of text generation, in generation_config.json or, for older checkpoints, in config.json."""

    bos_token_id: Id | None = None
    pad_token_id: Id | None = None
    eos_token_id: Ids | None = None
    decoder_start_token_id: Id | None = None
    forced_bos_token_id: Id | None = None
    forced_eos_token_id: Ids | None = None
    suppress_tokens: Ids | None = None
    begin_suppress_tokens: Ids | None = None
    bad_words_ids: Words | None = None
    max_length: Count | None = None
    max_new_tokens: Count | None = None
    min_length: Count | None = None
    min_new_tokens: Count | None = None
    num_beams: Count | None = None
    early_stopping: bool | Literal["never"] | None = None
    length_penalty: float | None = None
    repetition_penalty: float | None = None
    encoder_repetition_penalty: float | None = None
    no_repeat_ngram_size: Count | None = None
    encoder_no_repeat_ngram_size: Count | None = None
    exponential_decay_length_penalty: tuple[int, float] | None = None
    remove_invalid_values: bool | None = None
    renormalize_logits: bool | None = None
    use_cache: bool | None = None
    # Of sampling, which is switched off whatever they say.
    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    epsilon_cutoff: float | None = None
    eta_cutoff: float | None = None
    # Only as they are by default: other values give other answers, or call code that a hub holds.
    num_return_sequences: Literal[1] | None = None
    num_beam_groups: Literal[1] | None = None
    diversity_penalty: Literal[0] | None = None
    penalty_alpha: None = None
    output_attentions: Literal[False] | None = None
    output_hidden_states: Literal[False] | None = None
    output_scores: Literal[False] | None = None
    output_logits: Literal[False] | None = None
    return_dict_in_generate: Literal[False] | None = None


class Config(Generation, kw_only=True):
    """Keys of config.json that reach the model, as BART names them (Lewis et al. 2020)."""

    model_type: str
    vocab_size: Size
    d_model: Size
    max_position_embeddings: Size
    encoder_layers: Size
    decoder_layers: Size
    encoder_attention_heads: Size
    decoder_attention_heads: Size
    encoder_ffn_dim: Size
    decoder_ffn_dim: Size
    activation_function: Literal["gelu", "gelu_new", "relu", "silu", "swish", "tanh"] = "gelu"
    dropout: Share = 0.1
    attention_dropout: Share = 0.0
    activation_dropout: Share = 0.0
    encoder_layerdrop: Share = 0.0
    decoder_layerdrop: Share = 0.0
    init_std: float = 0.02
    scale_embedding: bool = False
    is_encoder_decoder: Literal[True] = True
    is_decoder: Literal[False] = False
    tie_word_embeddings: Literal[True] = True


# Bookkeeping, and settings of heads and of older versions that no computation reads: left out, whatever they hold.
LEFT_OUT = {
    *("_name_or_path", "_from_model_config", "_num_labels", "architectures", "transformers_version"),
    *("dtype", "torch_dtype", "num_hidden_layers", "gradient_checkpointing", "output_past", "save_step", "prefix"),
    *("num_labels", "id2label", "label2id", "problem_type", "finetuning_task", "classifier_dropout"),
    *("classif_dropout", "task_specific_params", "force_bos_token_to_be_generated", "summary_type"),
    *("add_bias_logits", "add_final_layer_norm", "extra_pos_embeddings", "normalize_before"),
    *("normalize_embedding", "static_position_embeddings", "language", "model_max_length"),
}
# Keys of every config that mean nothing where they are empty.
EMPTY: tuple[object, ...] = (None, False, [], {}, "", 0)
DO = "give a BART-type model as `save_pretrained` wrote it, or take the key out of the file"


def known_config(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The keys of config.json that reach the model, checked; raises TrunkError that names one that is not known."""
    if raw.get("model_type") not in MODEL_TYPES:
        raise TrunkError(
            f"'{name}' cannot write summaries: it is no encoder-decoder of a supported type",
            got=f"model_type '{raw.get('model_type')}'",
            allowed=MODEL_TYPES,
            do="give a BART-type model; an encoder alone is a trunk, for tasks of other kinds",
        )
    known = _known(raw, Config, f"config.json of '{name}'")
    config = to_value(known, Config, source=name)
    check_special(config, config.vocab_size, name)
    return known


def known_generation(raw: Mapping[str, Any], name: str, vocabulary: int) -> dict[str, Any]:
    """The keys of generation_config.json, checked; raises TrunkError that names one that is not known."""
    known = _known(raw, Generation, f"generation_config.json of '{name}'")
    check_special(to_value(known, Generation, source=name), vocabulary, name)
    return known


def check_special(config: Generation, vocabulary: int, name: str) -> None:
    """Raises TrunkError for a token that has no word vector."""
    wrong = sorted({index for index in _ids_in(config) if index >= vocabulary})
    if wrong:
        raise TrunkError(
            f"a setting of '{name}' names tokens that have no word vector",
            got=wrong[:5],
            allowed=f"ids up to {vocabulary - 1}",
            do=DO,
        )


def json_object(raw: bytes, source: str) -> dict[str, Any]:
    """A JSON object; raises TrunkError."""
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TrunkError(f"{source} cannot be understood", got=error, allowed="a JSON object", do=DO) from None


def _known(raw: Mapping[str, Any], kind: type[Generation], source: str) -> dict[str, Any]:
    names = set(kind.__struct_fields__)
    foreign = sorted(key for key, value in raw.items() if key not in names | LEFT_OUT and value not in EMPTY)
    if foreign:
        raise TrunkError(
            f"{source} has unknown keys, which may change what is computed or run", got=foreign[:10], do=DO
        )
    known = {key: value for key, value in raw.items() if key in names}
    try:
        to_value(known, kind, source=source)
    except ConfigError as error:
        raise TrunkError(error.what, got=error.got, allowed=error.allowed, do=DO) from None
    return known


def _ids_in(config: Generation) -> Iterator[int]:
    names = [name for name in Generation.__struct_fields__ if name.endswith(("token_id", "_tokens", "words_ids"))]
    left = [getattr(config, name) for name in names if name not in ("max_new_tokens", "min_new_tokens")]
    while left:
        value = left.pop()
        if isinstance(value, list):
            left += value
        elif value is not None:
            yield value
