"""The shape of a trunk, layer by layer, and the names and shapes of its arrays: the basis of counting and building.

A family of encoders is a file in `polyhead.encoder.families`; everything else reads what stands here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import msgspec

from polyhead.errors import TrunkError
from polyhead.values import Value

LayerActivation = Literal["gelu", "gelu_tanh", "silu", "relu"]
ArrayShape = tuple[str, tuple[int, ...]]
WORD_VECTORS = "embeddings.word.weight"  # (vocabulary, width of the embedding)
RELATIVE = "relative"  # the table of relative positions, one for all layers of an owner
LEAST_EPSILON = 1e-30  # float32, since backends add it to a variance and take the root


class Rotary(Value):
    """Queries and keys turned by their position (Su et al. 2021): pair i of d / 2 by `position / (factor base^(2i/d))`.

    The pair of dimension i is dimension i + d / 2. With a ramp pairs up to its first number turn as with factor 1,
    those from its second on with the factor, and between them the two frequencies are mixed evenly (Peng et al. 2024).
    """

    base: float
    factor: float = 1.0
    ramp: tuple[float, float] | None = None
    scale: float = 1.0  # of what is turned

    def __post_init__(self) -> None:
        if self.ramp is not None and not 0 <= self.ramp[0] < self.ramp[1] < math.inf:
            raise TrunkError("a rotary position's ramp must rise from 0 or more", got=self.ramp)
        for name, number in (("base", self.base), ("factor", self.factor), ("scale", self.scale)):
            if not 0 < number < math.inf:
                raise TrunkError(f"a rotary position's {name} must be a positive number", got=number)


class Relative(Value):
    """The part of a score that depends on the distance of its two tokens, from a table that all layers read.

    `bias`: a number for each head and bucket of distances (T5's buckets, as MPNet has them). `disentangled`: content to
    position `Q_i K_r(i-j)` and position to content `K_j Q_r(i-j)`, K_r and Q_r the table's vectors through maps of the
    layer (He et al. 2021); every product of the score is then divided by the root of `width terms`, terms 1 for the
    content and 1 for each of these.
    """

    kind: Literal["bias", "disentangled"]
    buckets: int  # rows of the table
    distance: int  # from which on all distances share a bucket
    logarithmic: bool = True  # far buckets are wider; False: one for each distance
    content_to_position: bool = True
    position_to_content: bool = True
    shared: bool = True  # vectors pass the layer's own maps of keys and queries; False: maps for positions alone
    norm: bool = False  # the table passes a layer norm

    @property
    def terms(self) -> int:
        """Products that a score is the sum of."""
        return 1 + (self.kind == "disentangled") * (self.content_to_position + self.position_to_content)


class LayerForm(Value):
    """The form of one layer, for all code that computes, counts or stores layers.

    With norms behind the halves (Devlin et al. 2019) `a = LN1(h + MH(h)); h' = LN2(a + FF(a))`; with norms before them
    (`norm_first`) `a = h + MH(LN1 h); h' = a + FF(LN2 a)`. `FF(a) = W2 f(W1 a)`, or with a gate `W2 (f(W1 a) * W3 a)`.
    """

    width: int
    heads: int
    feed_forward: int  # inner width of the second half; 0: none
    attention: bool = True  # False: no first half
    residual: bool = True  # False: halves are used as they are, nothing added and no norm
    hidden_layers: int = 1  # of the second half
    head_width: int | None = None  # None: width / heads
    key_heads: int | None = None  # heads of keys and values, each read by several queries; None: as many as heads
    norm: Literal["layer", "rms"] = "layer"
    norm_epsilon: float = 1e-12
    norm_bias: bool = True
    norm_first: bool = False
    attention_norm: bool = True  # False: the first half reads its input as it is (ModernBERT's first layer)
    closing_norm: bool = False  # the layer's output passes a norm (the last layer of an encoder with norms first)
    attention_bias: bool = True  # of queries, keys and values
    output_bias: bool = True  # of attention's output
    inner_bias: bool = True  # of the second half's maps from the width
    outer_bias: bool = True  # of the second half's map back
    activation: LayerActivation = "gelu"
    gated: bool = False
    rotary: Rotary | None = None
    relative: Relative | None = None
    window: int | None = None  # a token reads tokens at most so far from it; None: all

    @property
    def query_width(self) -> int:
        """The width of all heads' queries together."""
        return self.heads * (self.head_width or self.width // self.heads)

    @property
    def key_width(self) -> int:
        """The width of all heads' keys, or values, together."""
        return (self.key_heads or self.heads) * (self.head_width or self.width // self.heads)

    @property
    def maps(self) -> tuple[str, ...]:
        """Names, in the layer, of the dense maps that rows pass, without those of further hidden layers."""
        first = ("query", "key", "value", "output") if self.attention else ()
        second = ("inner", *(("gate",) if self.gated else ()), "outer") if self.feed_forward else ()
        return (*(f"attention.{name}" for name in first), *(f"feed_forward.{name}" for name in second))

    def ends(self, name: str) -> tuple[int, int]:
        """Inputs and outputs of a dense map by its name in the layer (`attention.query`, `feed_forward.inner`)."""
        widths = {
            "attention.query": (self.width, self.query_width),
            "attention.key": (self.width, self.key_width),
            "attention.value": (self.width, self.key_width),
            "attention.output": (self.query_width, self.width),
            "feed_forward.outer": (self.feed_forward, self.width),
        }
        return widths.get(name, (self.width, self.feed_forward))


class Architecture(Value, omit_defaults=True):
    """Shape of an encoder; `layer` returns the form of each layer.

    State 0 is the embedding's output, state l that of layer l; the last state is read behind the closing norm, where
    there is one, the others before any. Files leave out what is at its default, so that older versions read them.
    """

    layers: int
    width: int
    heads: int
    feed_forward: int
    vocabulary: int
    family: str = "bert"  # the file that names its arrays in checkpoints
    positions: int = 512  # rows of the position table; without one the longest input
    segments: int = 2  # rows of the segment table; 0: the family has none
    first_position: int = 0  # RoBERTa counts positions from padding index + 1 = 2
    embedding_width: int | None = None  # ELECTRA-small has narrower embeddings and projects them; None: the width
    norm_epsilon: float = 1e-12
    activation: LayerActivation = "gelu"
    position_table: bool = True
    embedding_norm: bool = True
    head_width: int | None = None
    key_heads: int | None = None
    norm: Literal["layer", "rms"] = "layer"
    norm_bias: bool = True
    norm_first: bool = False
    first_norm: bool = True  # of norms first: the first layer's first half has one
    attention_bias: bool = True
    output_bias: bool = True
    inner_bias: bool = True
    outer_bias: bool = True
    gated: bool = False
    rotary: Rotary | None = None
    local_rotary: Rotary | None = None  # of layers with a window; None: as the others
    relative: Relative | None = None
    window: int | None = None  # of layers that do not read the whole text
    whole_every: int = 1  # layers 0, n, 2 n, ... read the whole text
    cut_from: int | None = None  # layers of the encoder whose first ones these are: its last has the closing norm

    def __post_init__(self) -> None:
        for name in (
            "width",
            "heads",
            "feed_forward",
            "vocabulary",
            "positions",
            "embedding_width",
            "whole_every",
            "head_width",
            "key_heads",
            "window",
        ):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise TrunkError(f"a trunk's {name} must be positive", got=number, allowed="1 or more")
        for name in ("layers", "segments", "first_position"):
            if getattr(self, name) < 0:
                raise TrunkError(f"a trunk's {name} cannot be negative", got=getattr(self, name), allowed="0 or more")
        if not 0 < self.norm_epsilon < math.inf:
            raise TrunkError("a trunk's norm_epsilon must be a positive number", got=self.norm_epsilon)
        if self.cut_from is not None and not (self.norm_first and self.layers < self.cut_from):
            raise TrunkError(
                "a trunk is cut from an encoder with norms first and more layers",
                got=f"{self.layers} of {self.cut_from} layers",
                do="leave cut_from out",
            )
        if self.head_width is None and self.width % self.heads:
            raise TrunkError("a trunk's width must be a multiple of its heads", got=f"{self.width} and {self.heads}")
        if not LEAST_EPSILON <= self.norm_epsilon <= 1:
            raise TrunkError(
                "a trunk's norm_epsilon keeps a layer norm from dividing by nothing",
                got=self.norm_epsilon,
                allowed=f"{LEAST_EPSILON:g} to 1",
                do="give the layer_norm_eps of the model's own config.json",
            )
        if self.heads % (self.key_heads or self.heads):
            raise TrunkError(
                "a trunk's heads must be a multiple of its key_heads", got=f"{self.heads} and {self.key_heads}"
            )
        if self.window is not None and self.relative is not None:
            raise TrunkError(
                "a trunk's layers have windows, or scores that relative positions add to",
                got=f"window {self.window} and relative positions of kind '{self.relative.kind}'",
                allowed="one of these",
            )
        if self.rotary is not None and (self.head_width or self.width // self.heads) % 2:
            raise TrunkError("heads with rotary positions must have an even width", got=self.width // self.heads)

    @property
    def max_tokens(self) -> int:
        """Longest input, special tokens included."""
        return self.positions - self.first_position

    @property
    def whole_layers(self) -> int:
        """Layers of the encoder that these are of."""
        return self.layers if self.cut_from is None else self.cut_from

    def first_layers(self, depth: int) -> Architecture:
        """The shape of its first layers; a norm that closes the encoder stays at the encoder's last layer."""
        is_open = self.norm_first and depth < self.whole_layers
        return msgspec.structs.replace(self, layers=depth, cut_from=self.whole_layers if is_open else None)

    def layer(self, index: int) -> LayerForm:
        """The form of the layer of this index, from 0."""
        local = self.window is not None and index % self.whole_every != 0
        return LayerForm(
            width=self.width,
            heads=self.heads,
            feed_forward=self.feed_forward,
            head_width=self.head_width,
            key_heads=self.key_heads,
            norm=self.norm,
            norm_epsilon=self.norm_epsilon,
            norm_bias=self.norm_bias,
            norm_first=self.norm_first,
            attention_norm=self.first_norm or index > 0,
            closing_norm=self.norm_first and index == self.whole_layers - 1,
            attention_bias=self.attention_bias,
            output_bias=self.output_bias,
            inner_bias=self.inner_bias,
            outer_bias=self.outer_bias,
            activation=self.activation,
            gated=self.gated,
            rotary=self.local_rotary or self.rotary if local else self.rotary,
            relative=self.relative,
            window=self.window if local else None,
        )


def embedding_arrays(shape: Architecture) -> Iterator[ArrayShape]:
    """Names and shapes of the embedding block."""
    narrow = shape.embedding_width or shape.width
    yield WORD_VECTORS, (shape.vocabulary, narrow)
    if shape.position_table:
        yield "embeddings.position.weight", (shape.positions, narrow)
    if shape.segments:
        yield "embeddings.segment.weight", (shape.segments, narrow)
    if shape.embedding_norm:
        yield from norm_shapes("embeddings.norm", narrow, bias=shape.norm == "layer" and shape.norm_bias)
    if narrow != shape.width:
        yield from linear("embeddings.project", narrow, shape.width)


def relative_arrays(form: LayerForm) -> Iterator[ArrayShape]:
    """Names and shapes of the table of relative positions that layers of this form read, where they do."""
    if form.relative is not None:
        wide = form.heads if form.relative.kind == "bias" else form.width
        yield f"{RELATIVE}.weight", (form.relative.buckets, wide)
        if form.relative.norm:
            yield from norm_shapes(f"{RELATIVE}.norm", wide)


def layer_arrays(prefix: str, form: LayerForm) -> Iterator[ArrayShape]:
    """Names and shapes of one layer."""
    if form.attention:
        for name in ("query", "key", "value"):
            yield from linear(f"{prefix}.attention.{name}", *form.ends(f"attention.{name}"), bias=form.attention_bias)
        yield from linear(f"{prefix}.attention.output", *form.ends("attention.output"), bias=form.output_bias)
        for name in position_maps(form):
            yield from linear(f"{prefix}.{name}", form.width, form.query_width, bias=form.attention_bias)
        if form.residual and form.attention_norm:
            yield from _norm(f"{prefix}.attention.norm", form)
    if form.feed_forward:
        yield from linear(f"{prefix}.feed_forward.inner", form.width, form.feed_forward, bias=form.inner_bias)
        if form.gated:
            yield from linear(f"{prefix}.feed_forward.gate", form.width, form.feed_forward, bias=form.inner_bias)
        for number in range(1, form.hidden_layers):
            yield from linear(f"{prefix}.feed_forward.between.{number - 1}", form.feed_forward, form.feed_forward)
        yield from linear(f"{prefix}.feed_forward.outer", form.feed_forward, form.width, bias=form.outer_bias)
        if form.residual:
            yield from _norm(f"{prefix}.feed_forward.norm", form)
    if form.closing_norm:
        yield from _norm(f"{prefix}.norm", form)


def position_maps(form: LayerForm) -> tuple[str, ...]:
    """Names, in the layer, of the maps that vectors of relative positions alone pass."""
    relative = form.relative
    if relative is None or relative.kind == "bias" or relative.shared:
        return ()
    keys = ("attention.position_key",) if relative.content_to_position else ()
    return (*keys, *(("attention.position_query",) if relative.position_to_content else ()))


def trunk_arrays(shape: Architecture) -> Iterator[ArrayShape]:
    """Names and shapes of a whole trunk, without a pooler."""
    yield from embedding_arrays(shape)
    if shape.layers:
        yield from relative_arrays(shape.layer(0))
    for index in range(shape.layers):
        yield from layer_arrays(f"layers.{index}", shape.layer(index))


def _norm(name: str, form: LayerForm) -> Iterator[ArrayShape]:
    return norm_shapes(name, form.width, bias=form.norm == "layer" and form.norm_bias)


def norm_shapes(name: str, width: int, *, bias: bool = True) -> Iterator[ArrayShape]:
    """A norm's gain and bias."""
    yield f"{name}.weight", (width,)
    if bias:
        yield f"{name}.bias", (width,)


def linear(name: str, inputs: int, outputs: int, *, bias: bool = True) -> Iterator[ArrayShape]:
    """A dense map `y = W x + b`: W has shape (outputs, inputs)."""
    yield f"{name}.weight", (outputs, inputs)
    if bias:
        yield f"{name}.bias", (outputs,)
