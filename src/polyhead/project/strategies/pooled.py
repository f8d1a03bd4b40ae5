"""Strategy `pooled` (Du et al. 2020, stage 2): frozen features, with a task's own pooler and head."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from polyhead.codecs import CODECS, HALF
from polyhead.encoder.shape import Architecture
from polyhead.errors import ConfigError
from polyhead.plan import PLACE_OF, Codec, Embed, Head, Path, Pool, shared_layers
from polyhead.project.numbers import check_least
from polyhead.project.recipes import Effort
from polyhead.project.strategies.base import LIVE, HeadCandidate, Owners, Strategy
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task, owner_of
from polyhead.values import Value

MIXES = {2: "last 2 layers", 1: "last layer", 4: "last 4 layers"}
"""Layers whose mean linear heads read. The first was the best of five, or within a point of it, on five sets
(docs/project/log.md)."""

BESIDE = 4
"""Last layers whose mean vectors another linear head reads side by side: better than any mean of them on three of
four sets (docs/project/log.md)."""

FIRST_WORD = f"linear, first word, last {BESIDE} layers side by side"
"""A linear head on the states of one token: better by 10 points and more where a text begins with what its label says,
as questions do, and worse elsewhere (decision 0069)."""

COMPARED_MIXES = {of: MIXES[of] for of in (1, 2, 4)}
"""The same for pairs that are compared: encoders of sentences learned the cosine of their last layer."""

POOLERS: dict[Literal["mean", "first"], str] = {"mean": "mean vector", "first": "first token"}
"""Vectors that further heads, trained in steps, read instead of attending."""

WINDOWS = {1: "linear, with neighbours", 0: "linear"}
"""Neighbours on each side that linear heads of words read. The first was better by 10 points of span F1 on one of two
sets of 100 sentences, and worse by 0 to 3 on the other (docs/project/log.md)."""


class Pooled(Strategy, Value, tag="pooled", tag_field="kind"):
    """Strategy `pooled` (Du et al. 2020, second stage): frozen features, with a task's own pooler and head.

    With positions `auto` several heads are tried over a frozen trunk, and held-out rows decide: linear ones on mean
    vectors, and the attention head that the other fields describe. If the trunk is trained too, `auto` is that
    attention head. Its defaults, attention over the mean of the last four layers, were the best of the frozen poolers
    measured on two tweet tasks on validation (rows of results/first_light_quality.json).
    """

    layers: Literal["last", "mean", "beside", "learned"] = "mean"
    # number of last layers that `mean` averages, or `beside` reads side by side; at most the trunk's depth
    of: int = 4
    positions: Literal["first", "second", "mean", "attention", "auto"] = "auto"
    heads: int | None = None  # of attention; None: one per 64 dimensions
    hidden: int | None = None  # width of the tanh layer, 0 for none; None: the trunk's width
    # neighbours on each side that a head of words reads with a word; None: 0, and with positions 'auto' 1 is tried too
    window: int | None = None
    codec: str | None = None  # None: that of the store that is trained from, else float16, or uint8 for many tokens
    codec_per: Literal["tensor", "dimension"] = "tensor"  # scope of its constants, if it has any
    codec_before_mean: bool = False
    words: bool = True  # whether `auto` tries a linear head that reads the words of the texts too

    default_pair: ClassVar[Literal["separate", "joined"]] = "separate"
    shares_head: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_least("strategy.", self, {"of": 1, "heads": 1, "hidden": 0, "window": 0})
        if self.layers == "beside" and self.positions not in (*PLACE_OF, "mean"):
            raise ConfigError(
                "strategy.layers 'beside' reads one vector of each layer",
                got=f"positions '{self.positions}'",
                allowed=[*PLACE_OF, "mean"],
                do="set strategy.positions to one of them, or leave 'layers' out",
            )
        if self.codec is not None:
            CODECS.named(self.codec)

    def path(self, task: Task, *, trunk: str, shape: Architecture, group: Owners = (), codec: Codec = LIVE) -> Path:
        """`Embed, Layers(0, N, trunk), Pool, Head`; a tagging task reads the first sub-token of each word.

        Positions `auto` mean attention here: `candidates` makes a strategy for each head to try.
        """
        owner, kind = owner_of(task), kind_of(task)
        positions: Literal["first", "second", "mean", "attention", "tokens"] = "tokens"
        if not kind.per_word:
            positions = "attention" if self.positions == "auto" else self.positions
        layers = self.layers if shape.layers else "last"  # a static table has none to mix
        learned = layers == "learned" or positions == "attention"
        if self.layers == "beside":
            if kind.per_word or task.pair == "separate":
                raise ConfigError(
                    f"strategy.layers 'beside' cannot answer task '{task.name}', which compares texts or reads words",
                    got=f"kind '{task.kind}', pair '{task.pair}'",
                    allowed="tasks that answer a text, or a pair read as one",
                    do="set strategy.layers to 'last', 'mean' or 'learned'",
                )
            codec = msgspec.structs.replace(codec, before_mean=True)
        pool = Pool(
            layers=layers,
            of=min(self.of, shape.layers) if layers in ("mean", "beside") else 1,
            positions=positions,
            heads=(self.heads or max(1, shape.width // 64)) if positions == "attention" else 0,
            part=owner if learned else None,
            codec=codec,
        )
        head = Head(
            kind=task.kind,
            width=kind.width(task),
            part=owner,
            hidden=shape.width if self.hidden is None else self.hidden,
            separate=task.pair == "separate",
            window=(self.window or 0) if kind.per_word else 0,
        )
        return Path(nodes=(Embed(trunk=trunk), *shared_layers(shape.layers), pool, head))

    def candidates(self, task: Task, depth: int, effort: Effort = "default") -> tuple[HeadCandidate, ...]:
        """The heads to try over a trunk of `depth` layers; one, if the settings fix it, or no linear one can answer."""
        if self.positions != "auto":
            return (HeadCandidate(name=self.positions, strategy=self, solver="steps"),)
        linears = () if kind_of(task).loss == "span_cross_entropy" else self._linear(task, depth)
        if linears and effort == "quick":
            return linears
        return linears + self._trained(task, further=effort == "best")

    def heads_of_tokens(self, task: Task) -> tuple[HeadCandidate, ...]:
        """Attention that attends to every token alike, so that no backend needs more for it."""
        kind = kind_of(task)
        is_other = kind.per_word or task.pair == "separate" or kind.loss == "span_cross_entropy"
        if self.positions != "auto" or self.layers not in ("last", "mean") or is_other:
            return ()
        strategy = msgspec.structs.replace(self, positions="attention", heads=1, hidden=0)
        plain = HeadCandidate(name="linear, mean of tokens", strategy=strategy, solver="linear")
        words = msgspec.structs.replace(plain, name=f"{plain.name}, words", words=True)
        return (plain, words) if self.words else (plain,)

    def _trained(self, task: Task, *, further: bool) -> tuple[HeadCandidate, ...]:
        """The head that the fields describe, and `further` ones that read positions, layers or neighbours otherwise."""
        base, per_word = msgspec.structs.replace(self, positions="attention"), kind_of(task).per_word
        pools = [] if per_word or kind_of(task).loss == "span_cross_entropy" or self.layers == "beside" else POOLERS
        heads = [HeadCandidate(name="hidden layer" if per_word else "attention", strategy=base, solver="steps")]
        for positions in pools if further else ():
            strategy = msgspec.structs.replace(self, positions=positions)
            heads.append(HeadCandidate(name=f"{POOLERS[positions]}, hidden layer", strategy=strategy, solver="steps"))
        name = f"{heads[0].name}, {'with neighbours' if per_word else 'learned mix of layers'}"
        other = msgspec.structs.replace(base, **({"window": 1} if per_word else {"layers": "learned"}))
        if further and other != base:
            heads.append(HeadCandidate(name=name, strategy=other, solver="steps"))
        return tuple(heads)

    def _linear(self, task: Task, depth: int) -> tuple[HeadCandidate, ...]:
        if kind_of(task).per_word:  # every mix would need another store of all words
            base = msgspec.structs.replace(self, positions="attention")
            windows = WINDOWS if self.window is None else {self.window: "linear"}
            named = {name: msgspec.structs.replace(base, hidden=0, window=near) for near, name in windows.items()}
            linears = [HeadCandidate(name=name, strategy=strategy, solver="linear") for name, strategy in named.items()]
            if self.words:
                linears.append(msgspec.structs.replace(linears[0], name=f"{linears[0].name}, words", words=True))
            return tuple(linears)
        linears = [
            HeadCandidate(name=f"linear, {name}", strategy=self._mean_of(of), solver="linear")
            for of, name in _mixes(task).items()
            if of <= max(depth, 1)
        ]
        best = linears[0]
        if task.pair != "separate" and depth >= BESIDE:  # layer by layer: their products would be too many inputs
            strategy = msgspec.structs.replace(self._mean_of(BESIDE), layers="beside")
            best = HeadCandidate(name=f"linear, last {BESIDE} layers side by side", strategy=strategy, solver="linear")
            linears.append(best)
            if _is_of_labels(task):
                second = msgspec.structs.replace(strategy, positions="second")
                linears.append(HeadCandidate(name=FIRST_WORD, strategy=second, solver="linear"))
        if self.words:
            linears.append(msgspec.structs.replace(best, name=f"{best.name}, words", words=True))
        return tuple(linears)

    def feature_codec(self) -> tuple[Codec, Literal["tensor", "dimension"]]:
        """The codec of kept features, without constants, and the scope of one set of constants."""
        return Codec(name=self.codec or HALF, before_mean=self.codec_before_mean), self.codec_per

    @property
    def names_codec(self) -> bool:
        """Whether `codec` is given."""
        return self.codec is not None

    def settled(self) -> Pooled:
        """The strategy with the default codec for texts."""
        return msgspec.structs.replace(self, codec=self.codec or HALF)

    def _mean_of(self, of: int) -> Pooled:
        """A linear head on the mean vectors of the last `of` layers, with the same codec."""
        return Pooled(
            layers="mean" if of > 1 else "last",
            of=of if of > 1 else Pooled().of,
            positions="mean",
            hidden=0,
            codec=self.codec,
            codec_per=self.codec_per,
            codec_before_mean=self.codec_before_mean,
        )


def baseline_of(task: Task) -> Pooled:
    """The baseline head: linear, on mean vectors."""
    return Pooled()._mean_of(next(iter(_mixes(task))))


def _is_of_labels(task: Task) -> bool:
    """True for a task that labels one text."""
    return task.pair == "none" and kind_of(task).loss in ("cross_entropy", "binary_cross_entropy")


def _mixes(task: Task) -> dict[int, str]:
    return COMPARED_MIXES if task.pair == "separate" else MIXES
