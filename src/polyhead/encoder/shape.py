"""The shape of a trunk, and the names and shapes of a layer's arrays: the basis of counting and building."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from polyhead.errors import TrunkError
from polyhead.values import Value

Family = Literal["bert", "roberta", "electra", "distilbert"]
ArrayShape = tuple[str, tuple[int, ...]]
WORD_VECTORS = "embeddings.word.weight"  # (vocabulary, width of the embedding)
LEAST_EPSILON = 1e-30  # float32, since backends add it to a variance and take the root


class Architecture(Value):
    """Shape of a post-norm encoder: layer `a = LN(h + MH(h)); h' = LN(a + W2 gelu(W1 a))` (Devlin et al. 2019)."""

    layers: int
    width: int
    heads: int
    feed_forward: int
    vocabulary: int
    family: Family = "bert"
    positions: int = 512  # rows of the position table
    segments: int = 2  # rows of the segment table; 0: the family has none
    first_position: int = 0  # RoBERTa counts positions from padding index + 1 = 2
    embedding_width: int | None = None  # ELECTRA-small has narrower embeddings and projects them; None: the width
    norm_epsilon: float = 1e-12
    activation: Literal["gelu"] = "gelu"

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "feed_forward", "vocabulary", "positions", "embedding_width"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise TrunkError(f"a trunk's {name} must be positive", got=number, allowed="1 or more")
        for name in ("segments", "first_position"):
            if getattr(self, name) < 0:
                raise TrunkError(f"a trunk's {name} cannot be negative", got=getattr(self, name), allowed="0 or more")
        if not 0 < self.norm_epsilon < math.inf:
            raise TrunkError("a trunk's norm_epsilon must be a positive number", got=self.norm_epsilon)
        if self.width % self.heads:
            raise TrunkError("a trunk's width must be a multiple of its heads", got=f"{self.width} and {self.heads}")
        if not LEAST_EPSILON <= self.norm_epsilon <= 1:
            raise TrunkError(
                "a trunk's norm_epsilon keeps a layer norm from dividing by nothing",
                got=self.norm_epsilon,
                allowed=f"{LEAST_EPSILON:g} to 1",
                do="give the layer_norm_eps of the model's own config.json",
            )

    @property
    def max_tokens(self) -> int:
        """Longest input, special tokens included."""
        return self.positions - self.first_position


def embedding_arrays(shape: Architecture) -> Iterator[ArrayShape]:
    """Names and shapes of the embedding block."""
    narrow = shape.embedding_width or shape.width
    yield WORD_VECTORS, (shape.vocabulary, narrow)
    yield "embeddings.position.weight", (shape.positions, narrow)
    if shape.segments:
        yield "embeddings.segment.weight", (shape.segments, narrow)
    yield from norm_shapes("embeddings.norm", narrow)
    if narrow != shape.width:
        yield from linear("embeddings.project", narrow, shape.width)


def layer_arrays(
    prefix: str, width: int, feed_forward: int, *, attention: bool = True, residual: bool = True, hidden_layers: int = 1
) -> Iterator[ArrayShape]:
    """Names and shapes of one layer; no `feed_forward` or `attention` omits a half, no `residual` the norms.

    `hidden_layers` are those inside the feed-forward half, all `feed_forward` wide.
    """
    if attention:
        for name in ("query", "key", "value", "output"):
            yield from linear(f"{prefix}.attention.{name}", width, width)
        if residual:
            yield from norm_shapes(f"{prefix}.attention.norm", width)
    if feed_forward:
        yield from linear(f"{prefix}.feed_forward.inner", width, feed_forward)
        for number in range(1, hidden_layers):
            yield from linear(f"{prefix}.feed_forward.between.{number - 1}", feed_forward, feed_forward)
        yield from linear(f"{prefix}.feed_forward.outer", feed_forward, width)
        if residual:
            yield from norm_shapes(f"{prefix}.feed_forward.norm", width)


def dense_ends(name: str, width: int, feed_forward: int) -> tuple[int, int]:
    """Inputs and outputs of a layer's dense map, by its name in the layer (`attention.query`, `feed_forward.inner`)."""
    ends = {"feed_forward.inner": (width, feed_forward), "feed_forward.outer": (feed_forward, width)}
    return ends.get(name, (width, width))


def trunk_arrays(shape: Architecture) -> Iterator[ArrayShape]:
    """Names and shapes of a whole trunk, without a pooler."""
    yield from embedding_arrays(shape)
    for index in range(shape.layers):
        yield from layer_arrays(f"layers.{index}", shape.width, shape.feed_forward)


def norm_shapes(name: str, width: int) -> Iterator[ArrayShape]:
    """A layer norm's gain and bias."""
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)


def linear(name: str, inputs: int, outputs: int, *, bias: bool = True) -> Iterator[ArrayShape]:
    """A dense map `y = W x + b`: W has shape (outputs, inputs)."""
    yield f"{name}.weight", (outputs, inputs)
    if bias:
        yield f"{name}.bias", (outputs,)
