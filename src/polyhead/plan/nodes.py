"""The four kinds of nodes in a path, and the values inside them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import msgspec

from polyhead.arguments import check_fields
from polyhead.codecs import CODECS, EXACT, HALF, FeatureCodec
from polyhead.codecs.tables import is_digest
from polyhead.encoder.decoder import Decoder
from polyhead.encoder.shape import LEAST_EPSILON
from polyhead.errors import PlanError
from polyhead.values import Value

TRUNK = "trunk"
LayerMix = Literal["last", "mean", "beside", "learned", "all"]
Positions = Literal["first", "second", "mean", "attention", "tokens", "prompt", "all"]
PLACE_OF: dict[Positions, int] = {"first": 0, "second": 1}
"""Positions that are one token of each text, and its place; a text of fewer tokens gives its last."""
DeltaKind = Literal["projected_attention", "low_rank", "feed_forward", "scale", "bottleneck", "prefix", "lora"]
GeluPlace = Literal["none", "inside", "after"]
Dense = Literal[
    "attention.query",
    "attention.key",
    "attention.value",
    "attention.output",
    "feed_forward.inner",
    "feed_forward.gate",
    "feed_forward.outer",
]
Activation = Literal["tanh", "relu", "gelu"]
WORD_COLUMNS = tuple(2**bits for bits in range(6, 21))  # of hashed words
MOST_HIDDEN = 256  # hidden layers of a feed-forward half
MOST_WINDOW = 8  # neighbours on each side
LEAST_READ = 8  # tokens of a text that shifted prompts leave room for: of a pair two of each text, and special ones
FLOAT32_RANGE = (2.0**-126, (2 - 2.0**-23) * 2.0**127)  # number of digits that represent a positive number exactly


class Prompt(Value):
    """`rows` trained input vectors that one owner adds before the text (MTOP)."""

    part: str
    rows: int

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise PlanError("a prompt has at least one row", got=self.rows)


class Delta(Value):
    """A function added inside each layer.

    `projected_attention`, `low_rank` and `feed_forward`: `h' = LN2(a + FFN(a) + TS(h))`, TS(h) = V_D g(V_E h)
    (Stickland and Murray 2019), with `scaled` times 2 sigmoid(r) (their released code). `scale`: the layer's output
    times 2 sigmoid(r) (LHUC). `bottleneck`: after each half, before it is added (Houlsby et al. 2019). `prefix`: keys
    and values that every position sees (Liu et al. 2022, P-Tuning v2). `lora`: `W x + (alpha / size) V_D V_E x` (Hu et
    al. 2022).
    """

    kind: DeltaKind
    part: str
    size: int = 0  # inner width d_s, rank, or rows of a prefix; 0 for `scale`
    heads: int = 1
    tied: bool = False  # one encoder and decoder for all layers of the part
    ends: str | None = None  # owner of the encoders and decoders, if several tasks share them; None: the part
    gelu: GeluPlace = "none"  # inside: g ends in a GELU; after: a GELU follows V_D (both as in the released code)
    serial: bool = False  # after the layer: `LN3(h' + TS(h'))` with its own norm
    scaled: bool = False  # TS(h) is multiplied by 2 sigmoid(r), elementwise
    alpha: float = 0.0  # of `lora`
    targets: tuple[Dense, ...] = ()  # of `lora`: the dense maps that it adds to

    def __post_init__(self) -> None:
        if (self.size < 1) != (self.kind == "scale"):
            allowed = "0" if self.kind == "scale" else "1 or more"
            raise PlanError(f"a delta '{self.kind}' cannot have this size", got=self.size, allowed=allowed)
        if self.heads < 1 or (self.size % self.heads and self.kind == "projected_attention"):
            raise PlanError("a delta's size must be a multiple of its heads", got=f"{self.size} and {self.heads}")
        if self.kind == "feed_forward" and self.size % 2:
            raise PlanError("a feed-forward delta is 3/2 of its size inside", got=self.size, allowed="an even size")
        settings = {"tied": self.tied, "ends": self.ends, "serial": self.serial, "scaled": self.scaled}
        if self.kind not in ADDED and (any(settings.values()) or self.gelu != "none"):
            raise PlanError(
                f"a delta '{self.kind}' has no encoder and decoder to tie over layers, share between tasks, put a GELU "
                "between, scale or place after the layer",
                got=", ".join(f"{name} {value}" for name, value in settings.items()) + f", gelu '{self.gelu}'",
                do="leave these out",
            )
        single = len(set(self.targets)) == len(self.targets) > 0
        if (self.kind == "lora") != (single and 0 < self.alpha < math.inf) or (
            self.kind != "lora" and (self.targets or self.alpha)
        ):
            raise PlanError(
                "a delta 'lora', and no other, has targets, each once, and an alpha",
                got=f"kind '{self.kind}', targets {list(self.targets)}, alpha {self.alpha}",
            )


ADDED: tuple[DeltaKind, ...] = ("projected_attention", "low_rank", "feed_forward")


class Codec(Value):
    """The encoding of a stored feature: the name of a codec in `codecs`, and its constants.

    `scale` and `zero` hold one number (per tensor) or one per dimension, computed from training features; they are part
    of the digest, so features written with other constants are other features. `arrays` is the digest of the table file
    (`codecs.tables`) of a codec that has one.
    """

    name: str = HALF
    scale: tuple[float, ...] = ()
    zero: tuple[float, ...] = ()
    before_mean: bool = False  # encode each layer, then average; else average, then encode
    arrays: str = ""

    def __post_init__(self) -> None:
        check_fields(self)
        codec = CODECS.named(self.name)
        if len(self.scale) != len(self.zero) or (self.scale and not codec.has_constants):
            raise PlanError(
                f"codec '{self.name}' cannot have these constants",
                got=f"{len(self.scale)} scales, {len(self.zero)} zero points",
                allowed="as many scales as zero points, for a codec that has constants",
            )
        if self.arrays and not (codec.has_arrays and is_digest(self.arrays)):
            raise PlanError(
                f"codec '{self.name}' cannot have these arrays",
                got=self.arrays,
                allowed="64 hexadecimal digits, for a codec that has arrays",
            )
        least, most = FLOAT32_RANGE
        if not all(least <= scale <= most for scale in self.scale) or not all(map(math.isfinite, self.zero)):
            raise PlanError(
                f"codec '{self.name}' cannot divide by these constants",
                got=f"scales {list(self.scale)}, zero points {list(self.zero)}",
                allowed="positive scales that float32 holds, finite zero points",
                do="fix them from training features, as `train` does",
            )

    @property
    def format(self) -> FeatureCodec:
        """The registered codec of this name."""
        return CODECS[self.name]


class Embed(Value, tag="embed"):
    """The text, and prompt rows if any, become the first state."""

    trunk: str  # digest
    prompts: tuple[Prompt, ...] = ()
    isolated: bool = False  # text rows do not see prompts; a prompt sees the text and itself
    shift: bool = False  # positions of the text count the prompt rows before it

    def __post_init__(self) -> None:
        if self.shift and (self.isolated or not self.prompts):
            raise PlanError(
                "a text has its positions shifted by the prompts that it sees",
                got=f"isolated {self.isolated}, {len(self.prompts)} prompts",
                do="leave `shift` out",
            )

    @property
    def shifted(self) -> int:
        """The number of positions that prompt rows take from the text."""
        return sum(prompt.rows for prompt in self.prompts) if self.shift else 0


class Layers(Value, tag="layers"):
    """Run layers [start, stop) with the trunk's or a part's weights."""

    start: int
    stop: int
    weights: str = TRUNK
    delta: Delta | None = None
    width: int | None = None  # narrower layers of a part, numbered consecutively; None: the trunk's width
    feed_forward: int | None = None  # their feed-forward width, 0 for none; None: the trunk's
    heads: int | None = None
    enter: bool = False  # project from the trunk's width before, by the part's `enter`
    leave: bool = False  # and back after, by the part's `leave`
    attention: bool = True  # False omits that half of a part's layers
    residual: bool = True  # False: a part's layers return the output of their halves, without residual and norm
    hidden_layers: int = 1  # hidden layers of a part's feed-forward half, of one width, each with a GELU
    closed: Literal[True] | msgspec.UnsetType = msgspec.UNSET  # a norm of the part's own stands behind the last of them

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop:
            raise PlanError("layers must run upward", got=f"[{self.start}, {self.stop})", allowed="0 <= start < stop")
        least = ((self.width, 1), (self.feed_forward, 0), (self.heads, 1))
        if any(number is not None and number < lowest for number, lowest in least):
            raise PlanError(
                "layers have a width and heads of 1 or more",
                got=f"width {self.width}, feed-forward width {self.feed_forward}, heads {self.heads}",
                do="leave them out for the trunk's",
            )
        if self.closed is True and self.weights == TRUNK:
            raise PlanError("a part's own layers alone are closed by a norm", got=f"layers of '{TRUNK}'")
        if not self.attention and self.feed_forward == 0:
            raise PlanError("layers need an attention half or a feed-forward half", got="neither")
        if not 1 <= self.hidden_layers <= MOST_HIDDEN or (self.hidden_layers > 1 and not self.feed_forward):
            raise PlanError(
                "several hidden layers are of a part's own feed-forward half",
                got=f"{self.hidden_layers} of width {self.feed_forward}",
                allowed=f"1, or up to {MOST_HIDDEN} with a width",
            )

    @property
    def is_plain(self) -> bool:
        """True if the node may be cut and joined freely, since nothing of its own stands at its ends."""
        return not (self.enter or self.leave or self.closed is True)


class Pool(Value, tag="pool"):
    """Mix the path's own states over layers, then over positions.

    `first`, `second` (of BERT the beginning of the first word), `mean`, `attention` (learned query, Du et al. 2020) and
    `prompt` (mean of its own prompt rows) give one vector; `tokens` gives the first sub-token of each word. Layers
    `beside` gives the vectors of the path's last layers side by side, each scaled to the length sqrt(width) (decision
    0065), `of` times as wide. `all` (layers or positions) keeps them unmixed: the stored form.
    """

    layers: LayerMix = "last"
    of: int = 1  # number of the path's last layers that `mean` averages, or `beside` reads side by side
    positions: Positions = "first"
    heads: int = 0  # of `attention`
    part: str | None = None  # owner of a learned mix or of an attention pooler
    codec: Codec = Codec(name=EXACT)

    def __post_init__(self) -> None:
        learned = self.layers == "learned" or self.positions in ("attention", "prompt")
        if learned != (self.part is not None):
            raise PlanError(
                f"a pool of layers '{self.layers}' and positions '{self.positions}' "
                + ("needs a part that owns its arrays" if learned else "owns no arrays, so it has no part"),
                got=self.part,
            )
        if self.of < 1 or (self.of > 1 and self.layers not in ("mean", "beside")):
            raise PlanError("only layers 'mean' and 'beside' read so many", got=f"{self.layers} of {self.of}")
        if self.layers == "beside" and not (self.positions in (*PLACE_OF, "mean") and self.codec.before_mean):
            raise PlanError(
                "layers stand side by side as one vector each, and a codec encodes each alone",
                got=f"positions '{self.positions}', before_mean {self.codec.before_mean}",
                allowed="positions 'first', 'second' or 'mean', before_mean true",
            )

    def stored(self) -> Pool:
        """The form kept in a store: learned mixes and attention are not applied yet, nor are layers concatenated."""
        return Pool(
            layers=_STORED.get(self.layers, self.layers),
            of=self.of,
            positions="all" if self.positions in ("attention", "prompt") else self.positions,
            codec=self.codec,
        )


_STORED: dict[LayerMix, LayerMix] = {"learned": "all", "beside": "mean"}  # a codec before the mean keeps each layer


class Head(Value, tag="head"):
    """Features to the kind's outputs: `y = U f(W z + b) + u`, f the activation, or `y = U z + u` if `hidden` is 0.

    With a `norm_epsilon` a layer norm stands between them, `U LN(f(W z + b)) + u`, as in ModernBERT's classifiers.

    With `words` so many columns of the input's hashed words, or of a word's features and those of its two neighbours
    where each word is answered (`text.hashing`), are multiplied by weights and added to y;
    nothing else of the input reads them, so they are added wherever its text is at hand, beside the plan.

    A generating head has a decoder instead, which reads all positions; its width is the vocabulary's.
    """

    kind: str
    width: int
    part: str
    hidden: int = 0
    bias: bool = True  # of the output layer
    separate: bool = False  # a pair read as two texts: z = [u, v, |u - v|, u * v], |u| = |v| = sqrt(width)
    activation: Activation = "tanh"  # after the hidden layer; gelu is the exact (erf) one
    hidden_part: str | None = None  # owner of the hidden layer, if several tasks share it; None: the part
    # neighbours on each side of a word: z = [x_(i-n), ..., x_i, ..., x_(i+n)], zeros for unread words and beyond ends
    window: int = 0
    words: int = 0  # columns of hashed words, a power of two; 0: none
    decoder: Decoder | msgspec.UnsetType = msgspec.UNSET  # of a generating head
    norm_epsilon: float | msgspec.UnsetType = msgspec.UNSET  # of the layer norm behind the activation; unset: none

    def __post_init__(self) -> None:
        other = self.hidden or not self.bias or self.separate or self.window or self.words
        if self.decoder is not msgspec.UNSET and (other or self.hidden_part is not None):
            raise PlanError(
                "a generating head is a decoder alone",
                got=self,
                do="leave out hidden, hidden_part, bias, separate, window and words",
            )
        if not 0 <= self.window <= MOST_WINDOW or (self.window and self.separate):
            raise PlanError(
                "a head cannot read a word with so many neighbours",
                got=self.window,
                allowed="0 for texts of a pair that are compared" if self.separate else f"0 to {MOST_WINDOW}",
            )
        if self.words and self.words not in WORD_COLUMNS:
            raise PlanError(
                "a head cannot have these columns of hashed words",
                got=self.words,
                allowed=f"0, or a power of two from {WORD_COLUMNS[0]} to {WORD_COLUMNS[-1]}",
            )
        if not self.hidden and self.activation != "tanh":
            raise PlanError(
                "a head without a hidden layer has no activation",
                got=self.activation,
                do="leave it out, or give the head a hidden layer",
            )
        if not self.hidden and self.hidden_part is not None:
            raise PlanError("a head without a hidden layer cannot share it", got=self.hidden_part)
        if self.norm_epsilon is not msgspec.UNSET and not (
            self.hidden and self.hidden_part is None and LEAST_EPSILON <= self.norm_epsilon <= 1
        ):
            raise PlanError(
                "a head's layer norm stands behind a hidden layer of its own",
                got=f"{self.hidden} hidden of {self.hidden_part or self.part}, norm_epsilon {self.norm_epsilon}",
                allowed=f"a hidden layer that is not shared, and a norm_epsilon of {LEAST_EPSILON:g} to 1",
            )

    @property
    def norm(self) -> float | None:
        """The epsilon of its layer norm, None where it has none."""
        return None if self.norm_epsilon is msgspec.UNSET else self.norm_epsilon


Node = Embed | Layers | Pool | Head


def shared_layers(depth: int) -> tuple[Layers, ...]:
    """The trunk's first `depth` layers as a node of a path; none for 0, as over a static table."""
    return (Layers(start=0, stop=depth),) if depth else ()


def owners_of_node(node: Node) -> Iterator[str]:
    """Owners of the arrays that the node reads."""
    match node:
        case Embed():
            yield TRUNK
            yield from (prompt.part for prompt in node.prompts)
        case Layers():
            yield node.weights
            if node.delta is not None:
                yield from (owner for owner in (node.delta.part, node.delta.ends) if owner is not None)
        case Pool():
            if node.part is not None:
                yield node.part
        case Head():
            yield from (owner for owner in (node.part, node.hidden_part) if owner is not None)
