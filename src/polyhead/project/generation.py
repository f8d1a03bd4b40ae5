"""`[tasks.generation]`: the decoder of a task that writes texts, what it starts from, and the rules of its writing."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from polyhead.encoder.data import CheckpointDecoder, TrunkData
from polyhead.encoder.decoder import Decoder
from polyhead.errors import ConfigError
from polyhead.project.numbers import check_least, check_shares
from polyhead.tasks.generation import GENERATION_KEYS, GenerationRules, generation_rules
from polyhead.tasks.task import kinds_with
from polyhead.text.tokenize import Tokenizer
from polyhead.values import Value, check_unused

LAYERS = 3  # of a decoder that starts at random
RULES = ("tokens", "least", "beams", "early_stopping", "length_penalty", "repetition_penalty", "no_repeat")
"""Rules of writing that a project may set; the others are ids of tokens, which a checkpoint knows."""


class DecoderChoice(Value):
    """The decoder of a task that writes texts, and how it writes.

    `checkpoint`: the decoder that the trunk's checkpoint has beside the encoder, with its rules of writing. `random`:
    a new one over any trunk whose word vectors are as wide as its layers. Label smoothing is that of the fine-tuning of
    BART on summaries (Lewis et al. 2020).
    """

    start: Literal["checkpoint", "random"] = "checkpoint"
    layers: int | None = None  # of a random decoder; None: 3
    heads: int | None = None  # of a random decoder; None: the trunk's
    feed_forward: int | None = None  # of a random decoder; None: the trunk's
    smoothing: float = 0.1  # share of the target that is distributed over the whole vocabulary
    # Rules of writing; None: the checkpoint's, else those of `GenerationRules`.
    tokens: int | None = None  # most that are written, and learned from
    least: int | None = None
    beams: int | None = None
    early_stopping: Literal["yes", "no", "never"] | None = None
    length_penalty: float | None = None
    repetition_penalty: float | None = None
    no_repeat: int | None = None

    def __post_init__(self) -> None:
        check_least("generation.", self, {"layers": 1, "heads": 1, "feed_forward": 1, "tokens": 3})
        check_shares("generation.", self, "smoothing")
        if self.start == "checkpoint":
            why = "a checkpoint's decoder has its own"
            check_unused("generation.", self, dict.fromkeys(("layers", "heads", "feed_forward"), why))
        example = GenerationRules(start=0, ends=(0,), pad=0)
        self.ruled(example)  # which checks every number

    def ruled(self, rules: GenerationRules) -> GenerationRules:
        """The rules, replaced by those that are set here."""
        rules_set = {name: value for name in RULES if (value := getattr(self, name)) is not None}
        return GenerationRules(**{**msgspec.structs.asdict(rules), **rules_set})


def decoder_for(choice: DecoderChoice, data: TrunkData, *, task: str) -> tuple[Decoder, GenerationRules, str]:
    """The decoder of a task over this trunk, its rules of writing, and the digest of the arrays that it starts from.

    The digest is empty for a decoder that starts at random. Raises ConfigError where the trunk's checkpoint has none to
    start from, or rules that the decoder cannot follow; TrunkError and WeightsMismatch for one that cannot be read.
    """
    if choice.start == "checkpoint":
        known = _checkpoint(data, task)
        shape, rules, start = known.shape, choice.ruled(_rules_of(known, data.name)), known.digest
    else:
        rules = choice.ruled(_rules_of_tokenizer(Tokenizer(data.tokenizer, data.settings), task))
        shape, start = _random(choice, data, rules.tokens), ""
    rules.check(vocabulary=data.architecture.vocabulary, most_tokens=shape.most_tokens, task=task)
    return shape, rules, start


def _checkpoint(data: TrunkData, task: str) -> CheckpointDecoder:
    if data.decoder is None:
        raise ConfigError(
            f"task '{task}' has no decoder to start from: there is none beside the trunk '{data.name}'",
            allowed="the folder or hub id of an encoder-decoder, such as facebook/bart-base, as [trunk] name",
            do="name such a trunk, or set start = 'random' in [tasks.generation]: it then learns to write from these "
            "rows alone, and needs many",
        )
    return data.decoder()


def _rules_of(known: CheckpointDecoder, name: str) -> GenerationRules:
    """The checkpoint's own, of generation_config.json or of an older config.json."""
    written: dict[str, Any] = msgspec.json.decode(known.generation or known.config)
    if known.generation is None:
        written = {key: value for key, value in written.items() if key in GENERATION_KEYS}
    file = "config.json" if known.generation is None else "generation_config.json"
    return generation_rules(written, source=f"{file} of '{name}'")


def _rules_of_tokenizer(tokenizer: Tokenizer, task: str) -> GenerationRules:
    """A text begins and ends as the trunk's inputs do."""
    special = tokenizer.encode([("",)])[0].ids.tolist()
    if len(special) < 2:
        raise ConfigError(
            f"task '{task}': the trunk's tokenizer does not mark where a text begins and ends",
            got=f"{len(special)} special tokens",
            allowed=f"two, for tasks of kind {kinds_with('generates')}",
            do="choose another trunk",
        )
    return GenerationRules(start=special[0], ends=(special[-1],), pad=tokenizer.pad_id)


def _random(choice: DecoderChoice, data: TrunkData, tokens: int) -> Decoder:
    shape = data.architecture
    return Decoder(
        layers=choice.layers or LAYERS,
        heads=choice.heads or shape.heads,
        feed_forward=choice.feed_forward or shape.feed_forward,
        positions=tokens,
    )
