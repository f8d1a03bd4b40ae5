"""An encoder-decoder as plain data: its arrays, files and settings, and their digest.

A summarization task owns such a model. It has no path: text is generated step by step, and no layer of the model
belongs to the bundle's trunk (docs/project/decisions/0012-summarization.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec
import numpy as np

from polyhead.encoder.data import arrays_digest, check_finite
from polyhead.errors import ConfigError, TrunkError
from polyhead.values import Value, digested

MOST_BEAMS, MOST_READ = 64, 1_000_000  # far beyond any use: memory and time grow with both


class Summarizer(Value):
    """The initial encoder-decoder of a summarization task, and its settings.

    Defaults: label smoothing as in the fine-tuning of BART on summaries (Lewis et al. 2020); greedy generation, the
    cheapest.
    """

    name: str  # a folder that `save_pretrained` wrote, or a hub id
    max_tokens: int | None = None  # of a document; None: the model's limit, at most 1024
    summary_tokens: int = 128  # of a summary, in training and generation
    beams: int = 1  # 1: the most probable token at every step
    smoothing: float = 0.1  # share of the target that is distributed over the whole vocabulary

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise ConfigError("model.smoothing is a share", got=self.smoothing, allowed="0 to below 1")
        SummarySettings(
            max_tokens=3 if self.max_tokens is None else self.max_tokens,
            summary_tokens=self.summary_tokens,
            beams=self.beams,
        )


class SummarySettings(Value):
    """Limits of reading and generation, in tokens including special tokens, and the number of beams."""

    max_tokens: int  # of a document; the rest is cut
    summary_tokens: int  # of a summary, in training and generation
    beams: int = 1  # 1: the most probable token at every step

    def __post_init__(self) -> None:
        for name, least in (("max_tokens", 3), ("summary_tokens", 3), ("beams", 1)):
            if getattr(self, name) < least:
                raise ConfigError(
                    f"a summarizer's {name} is too small", got=getattr(self, name), allowed=f"{least} or more"
                )
        for name, most in (("max_tokens", MOST_READ), ("summary_tokens", MOST_READ), ("beams", MOST_BEAMS)):
            if getattr(self, name) > most:
                raise ConfigError(
                    f"a summarizer's {name} is too large", got=getattr(self, name), allowed=f"at most {most:,}"
                )


class Seq2SeqShape(Value):
    """The sizes in config.json, named as in the trunk's `Architecture`."""

    width: int
    encoder_layers: int
    decoder_layers: int
    encoder_feed_forward: int
    decoder_feed_forward: int
    vocabulary: int
    positions: int  # longest document or summary


class Seq2SeqData(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that determines the summaries. `arrays` are float32, named as in `transformers`, tied ones once."""

    name: str  # its origin, for people
    config: bytes  # config.json
    generation: bytes  # generation_config.json
    tokenizer: bytes  # a `tokenizers` JSON file; its own padding and truncation are ignored
    arrays: Mapping[str, np.ndarray]
    settings: SummarySettings

    def __post_init__(self) -> None:
        check_finite(self.arrays, owner=f"the encoder-decoder '{self.name}'")

    @property
    def files(self) -> dict[str, bytes]:
        """The small files by their names in `transformers`."""
        return {"config.json": self.config, "generation_config.json": self.generation, "tokenizer.json": self.tokenizer}

    @property
    def digest(self) -> str:
        """SHA-256, in hex, over arrays, files and settings; computed anew at every call."""
        facts = {
            "arrays": arrays_digest(self.arrays),
            "files": {name: hashlib.sha256(content).hexdigest() for name, content in self.files.items()},
            "settings": self.settings,
        }
        return hashlib.sha256(msgspec.json.encode(digested(facts), order="sorted")).hexdigest()

    @property
    def parameters(self) -> int:
        """How many numbers the arrays hold."""
        return sum(array.size for array in self.arrays.values())

    @property
    def shape(self) -> Seq2SeqShape:
        """The model's shape; raises TrunkError for a config that does not use BART's keys."""
        return shape_of(self.config)


class _ShapeKeys(msgspec.Struct):
    """The keys of config.json that state the shape of a BART-type model (Lewis et al. 2020)."""

    d_model: int
    encoder_layers: int
    decoder_layers: int
    encoder_ffn_dim: int
    decoder_ffn_dim: int
    vocab_size: int
    max_position_embeddings: int


def shape_of(config: bytes) -> Seq2SeqShape:
    """The shape that a config.json states."""
    try:
        keys = msgspec.json.decode(config, type=_ShapeKeys)
    except msgspec.DecodeError as error:
        raise TrunkError(
            "the shape of the encoder-decoder cannot be read from its config.json",
            got=error,
            allowed=list(_ShapeKeys.__struct_fields__),
            do="give a BART-type model",
        ) from None
    return Seq2SeqShape(
        width=keys.d_model,
        encoder_layers=keys.encoder_layers,
        decoder_layers=keys.decoder_layers,
        encoder_feed_forward=keys.encoder_ffn_dim,
        decoder_feed_forward=keys.decoder_ffn_dim,
        vocabulary=keys.vocab_size,
        positions=keys.max_position_embeddings,
    )
