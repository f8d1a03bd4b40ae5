"""The rules by which a generating head writes: where a text begins and ends, its length, beams and repetitions.

Each has the meaning that it has in `transformers`' `generate`; nothing is ever sampled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Literal

from polyhead.arguments import check_fields
from polyhead.errors import ConfigError
from polyhead.values import Value

MOST_BEAMS, MOST_TOKENS, MOST_WORDS = 64, 1_000_000, 10_000  # far beyond any use: memory and time grow with them
LARGEST_ID = 2**31 - 1


class GenerationRules(Value, omit_defaults=True):
    """Rules for writing a task's texts, in ids of tokens. Raises ConfigError for an invalid rule."""

    start: int  # what the decoder reads first; no part of the text
    ends: tuple[int, ...]  # a text ends with any of these
    pad: int  # read by rows that have ended
    first: int | None = None  # the first token, whatever its score (`forced_bos_token_id`)
    last: tuple[int, ...] = ()  # the last of `tokens` tokens, whatever its score (`forced_eos_token_id`)
    tokens: int = 128  # at most written, the end's included
    least: int = 0  # written before an end may come
    beams: int = 1  # 1: the best token at every step
    early_stopping: Literal["yes", "no", "never"] = "no"
    """When a beam search ends that has as many texts as beams: at once, when no better one is likely, or can be."""
    length_penalty: float = 1.0  # a text's score is the sum of its log-probabilities / length ** this
    repetition_penalty: float = 1.0  # by which scores of tokens that were written are lowered (Keskar et al. 2019)
    no_repeat: int = 0  # no sequence of so many tokens occurs twice; 0: any may
    bad_words: tuple[tuple[int, ...], ...] = ()  # sequences that are never written
    suppressed: tuple[int, ...] = ()  # tokens that are never written

    def __post_init__(self) -> None:
        check_fields(self)
        limits = {"tokens": (1, MOST_TOKENS), "least": (0, MOST_TOKENS), "beams": (1, MOST_BEAMS)}
        for name, (low, high) in {**limits, "no_repeat": (0, MOST_TOKENS)}.items():
            if not low <= getattr(self, name) <= high:
                raise _wrong(name, getattr(self, name), f"{low} to {high:,}")
        for name in ("length_penalty", "repetition_penalty"):
            if not math.isfinite(getattr(self, name)) or (
                name == "repetition_penalty" and self.repetition_penalty <= 0
            ):
                raise _wrong(name, getattr(self, name), "a finite number, for repetitions above 0")
        if not self.ends:
            raise _wrong("ends", [], "at least one token")
        if not all(self.bad_words) or len(self.bad_words) > MOST_WORDS:
            raise _wrong("bad_words", f"{len(self.bad_words)} sequences", f"up to {MOST_WORDS:,}, none of them empty")
        if wrong := [index for index in self._ids() if not 0 <= index <= LARGEST_ID]:
            raise _wrong("tokens' ids", wrong[:5], f"0 to {LARGEST_ID:,}")

    def check(self, *, vocabulary: int, most_tokens: int, task: str) -> None:
        """Raises ConfigError for a token that has no word vector, or a text with more tokens than positions."""
        if wrong := sorted({index for index in self._ids() if index >= vocabulary}):
            raise ConfigError(
                f"the generation of task '{task}' names tokens that have no word vector",
                got=wrong[:5],
                allowed=f"ids up to {vocabulary - 1}",
            )
        if self.tokens > most_tokens:
            raise ConfigError(
                f"the decoder of task '{task}' has no positions for that many tokens",
                got=f"tokens = {self.tokens}",
                allowed=f"at most {most_tokens}",
            )

    def _ids(self) -> Iterator[int]:
        yield from (self.start, self.pad, *self.ends, *self.last, *self.suppressed)
        yield from () if self.first is None else (self.first,)
        for word in self.bad_words:
            yield from word


def _wrong(name: str, got: object, allowed: object) -> ConfigError:
    return ConfigError(f"generation cannot have this value of {name}", got=got, allowed=allowed)


# Of sampling, which is switched off whatever they say; bookkeeping; and how the library itself computes.
_NOT_READ = {
    *("do_sample", "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"),
    *("transformers_version", "_from_model_config", "use_cache", "cache_implementation", "cache_config"),
    *("max_cache_len", "disable_compile", "compile_config", "continuous_batching_config", "low_memory"),
    *("return_dict_in_generate", "output_attentions", "output_hidden_states", "output_scores", "output_logits"),
    *("remove_invalid_values", "bos_token_id", "prefill_chunk_size"),
}
# Others are honoured only at the value that changes nothing.
_NEUTRAL: Mapping[str, object] = {
    "encoder_repetition_penalty": 1.0,
    "num_return_sequences": 1,
    "num_beam_groups": 1,
    "guidance_scale": 1,
    "num_assistant_tokens": 20,
    "num_assistant_tokens_schedule": "constant",
    "assistant_confidence_threshold": 0.4,
    "assistant_lookbehind": 10,
    "target_lookbehind": 10,
}
_KEYS: Mapping[str, str] = {
    "decoder_start_token_id": "start",
    "eos_token_id": "ends",
    "pad_token_id": "pad",
    "forced_bos_token_id": "first",
    "forced_eos_token_id": "last",
    "num_beams": "beams",
    "length_penalty": "length_penalty",
    "repetition_penalty": "repetition_penalty",
    "no_repeat_ngram_size": "no_repeat",
    "bad_words_ids": "bad_words",
    "suppress_tokens": "suppressed",
}
_LENGTHS = ("max_length", "max_new_tokens", "min_length", "min_new_tokens", "early_stopping")
_SEVERAL = ("ends", "last", "suppressed")


def generation_rules(written: Mapping[str, object], *, source: str) -> GenerationRules:
    """The rules of a checkpoint's generation_config.json, or of the config.json of one that has no such file.

    For a config.json, `written` holds only the keys in `GENERATION_KEYS`. Raises ConfigError that names a key which
    cannot be followed.
    """
    settings = {key: value for key, value in written.items() if value is not None}
    foreign = sorted(
        key
        for key, value in settings.items()
        if key not in GENERATION_KEYS | _NOT_READ and value != _NEUTRAL.get(key, 0) and value not in (False, "", [], {})
    )
    if foreign:
        raise ConfigError(
            f"{source}: texts cannot be written by these settings",
            got={key: settings[key] for key in foreign[:5]},
            allowed=sorted(GENERATION_KEYS),
            do="take them out of the file, or choose another checkpoint",
        )
    settings.setdefault("decoder_start_token_id", settings.get("bos_token_id"))
    fields = {ours: settings[key] for key, ours in _KEYS.items() if settings.get(key) is not None}
    for name in _SEVERAL:
        if isinstance(fields.get(name), int):
            fields[name] = [fields[name]]
    if isinstance(words := fields.get("bad_words"), list):
        fields["bad_words"] = tuple(tuple(word) if isinstance(word, list) else word for word in words)
    fields |= _lengths(settings, source)
    stopping = {True: "yes", False: "no", "never": "never"}
    early = settings.get("early_stopping", False)
    fields["early_stopping"] = stopping.get(early, early) if isinstance(early, bool | str) else early
    if missing := sorted({"start", "ends", "pad"} - set(fields)):
        raise ConfigError(
            f"{source} does not say where a text begins and ends",
            got=f"no {', '.join(key for key, ours in _KEYS.items() if ours in missing)}",
            do="give a checkpoint that says so, or the ids in the task's generation",
        )
    try:
        return GenerationRules(**fields)  # type: ignore[arg-type]  # which checks the type of every field
    except ConfigError as error:
        raise error.at(source) from None


GENERATION_KEYS = frozenset({*_KEYS, *_LENGTHS})
"""The keys of a checkpoint's files that `generation_rules` honours."""


def _lengths(settings: Mapping[str, object], source: str) -> dict[str, int]:
    """`tokens` and `least`: lengths count the start token in `transformers`, and new tokens do not."""
    limits: dict[str, list[int]] = {}
    for key in _LENGTHS[:4]:
        value = settings.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ConfigError(f"{source}: '{key}' is a number of tokens", got=value, allowed="0 or more")
        limits.setdefault(key[:3], []).append(max(0, value - 1) if key.endswith("length") else value)
    lengths = {"tokens": limits["max"][-1]} if "max" in limits else {}
    return {**lengths, **({"least": limits["min"][-1]} if "min" in limits else {})}
