"""The decoder of a generating head: its shape, and the names and shapes of its arrays."""

from __future__ import annotations

from collections.abc import Iterator

from polyhead.encoder.shape import (
    LEAST_EPSILON,
    ArrayShape,
    LayerActivation,
    LayerForm,
    layer_arrays,
    linear,
    norm_shapes,
)
from polyhead.errors import PlanError
from polyhead.values import Value

POSITIONS, OUTPUT_BIAS = "decoder.position.weight", "decoder.output.bias"  # (positions, width), (vocabulary,)
EMBEDDING_NORM = "decoder.norm"
MOST_LAYERS, MOST_POSITIONS = 256, 2**20  # far beyond any model


class Decoder(Value):
    """Layers that write a text token by token (Vaswani et al. 2017).

    Each reads the tokens before it, then all states that the path pools, and norms stand behind the halves. Input t is
    `norm(E[token] + position[first_position + t])`, the output is tied to the trunk's word vectors: `E h + b` (Lewis et
    al. 2020).
    """

    layers: int
    heads: int
    feed_forward: int
    positions: int  # rows of the position table
    first_position: int = 0  # BART counts positions from 2
    activation: LayerActivation = "gelu"
    norm_epsilon: float = 1e-5

    def __post_init__(self) -> None:
        for name, most in (("layers", MOST_LAYERS), ("heads", None), ("feed_forward", None), ("positions", None)):
            number, most = getattr(self, name), most or MOST_POSITIONS
            if not 1 <= number <= most:
                raise PlanError(f"a decoder cannot have this number of {name}", got=number, allowed=f"1 to {most:,}")
        if not 0 <= self.first_position < self.positions:
            raise PlanError(
                "a decoder's positions begin inside their table",
                got=self.first_position,
                allowed=f"0 to {self.positions - 1}",
            )
        if not LEAST_EPSILON <= self.norm_epsilon <= 1:
            raise PlanError(
                "a decoder's norm_epsilon keeps a layer norm from dividing by nothing",
                got=self.norm_epsilon,
                allowed=f"{LEAST_EPSILON:g} to 1",
            )

    @property
    def most_tokens(self) -> int:
        """The longest text that it writes, in tokens."""
        return self.positions - self.first_position

    def form(self, width: int) -> LayerForm:
        """The form of each of its layers, without the half that reads the pooled states."""
        return LayerForm(
            width=width,
            heads=self.heads,
            feed_forward=self.feed_forward,
            norm_epsilon=self.norm_epsilon,
            activation=self.activation,
        )


def decoder_arrays(decoder: Decoder, width: int, vocabulary: int) -> Iterator[ArrayShape]:
    """Names and shapes of a decoder over states of this width; word vectors are the trunk's.

    Of a layer, `attention` reads the text that is written, `cross` the pooled states.
    """
    yield POSITIONS, (decoder.positions, width)
    yield from norm_shapes(EMBEDDING_NORM, width)
    for index in range(decoder.layers):
        yield from layer_arrays(f"decoder.layers.{index}", decoder.form(width))
        for name in ("query", "key", "value", "output"):
            yield from linear(f"decoder.layers.{index}.cross.{name}", width, width)
        yield from norm_shapes(f"decoder.layers.{index}.cross.norm", width)
    yield OUTPUT_BIAS, (vocabulary,)
