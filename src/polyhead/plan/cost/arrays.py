"""The arrays that a path reads, their owners and sizes; each array is counted once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import msgspec

from polyhead.encoder.decoder import Decoder, decoder_arrays
from polyhead.encoder.shape import (
    Architecture,
    ArrayShape,
    LayerForm,
    embedding_arrays,
    layer_arrays,
    linear,
    norm_shapes,
    relative_arrays,
)
from polyhead.errors import PlanError
from polyhead.plan import TRUNK, Delta, Embed, Head, Layers, Node, Path, Plan, Pool
from polyhead.values import Value

WORD_WEIGHTS = "words.weight"  # of a head: a row for each column of hashed words


class Offset(Value):
    """The states that a path's next node reads."""

    trunk: str  # digest
    width: int
    depth: int = 0
    prompts: tuple[int, ...] = ()  # rows of each prompt before the text
    isolated: bool = False
    words: bool = False  # one vector for each word, after a pool of that kind

    @property
    def prompt_rows(self) -> int:
        """Rows before the text."""
        return sum(self.prompts)


def places(plan: Plan, shape: Architecture) -> list[Offset]:
    """The states before each step; raises PlanError if a path does not fit the trunk's shape."""
    after: list[Offset] = []
    before: list[Offset] = []
    for step in plan.steps:
        before.append(after[step.parent] if step.parent >= 0 else _start(step.node, shape))
        after.append(place_after(step.node, before[-1], shape))
    return before


def places_of_path(path: Path, shape: Architecture) -> list[Offset]:
    """The states before each node of the path; raises PlanError if it does not fit the trunk's shape."""
    before = [_start(path.nodes[0], shape)]
    for node in path.nodes[:-1]:
        before.append(place_after(node, before[-1], shape))
    place_after(path.nodes[-1], before[-1], shape)
    return before


def place_after(node: Node, before: Offset, shape: Architecture) -> Offset:
    """The states after the node. A pooler may join several states; a head changes neither width nor depth."""
    if isinstance(node, Head) and node.window and not before.words:
        raise PlanError("a head reads neighbours of words, and this path reads none", got=f"window {node.window}")
    if isinstance(node, Head) and node.decoder is not msgspec.UNSET:
        _check_decoder(node, node.decoder, before.width, shape)
    if isinstance(node, Pool):
        if node.positions == "attention" and (node.heads < 1 or before.width % node.heads):
            problem = "a pool by attention has heads, and reads states as wide as a multiple of them"
            raise PlanError(problem, got=f"{node.heads} heads and width {before.width}")
        if node.layers == "beside" and node.of > before.depth:
            raise PlanError("a pool reads more layers than its path runs", got=node.of, allowed=before.depth)
        width = before.width * (node.of if node.layers == "beside" else 1)
        return msgspec.structs.replace(before, words=node.positions == "tokens", width=width)
    if not isinstance(node, Layers):
        return before
    check_layers(node, before.width, shape)
    inner = node.width or shape.width
    return msgspec.structs.replace(before, width=shape.width if node.leave else inner, depth=node.stop)


def check_layers(node: Layers, width: int, shape: Architecture) -> None:
    """Raises PlanError if layers cannot run on states of this width, or the trunk has no such layers."""
    where = f"layers [{node.start}, {node.stop}) of '{node.weights}'"
    whole = node.attention and node.residual and node.feed_forward != 0
    has_own_shape = node.width is not None or node.feed_forward is not None or node.heads is not None or not whole
    if node.weights == TRUNK:
        if node.stop > shape.layers:
            raise PlanError(f"{where} are not there", got=node.stop, allowed=f"0 to {shape.layers}")
        if has_own_shape or not node.is_plain:
            raise PlanError(f"{where} cannot have another shape than the trunk", do="give them to a part")
    if node.delta is not None and not whole:
        raise PlanError(f"{where} have no place for a delta", do="give them both halves and their norms")
    inner, heads, form = node.width or shape.width, node.heads or shape.heads, layer_form(node, node.start, shape)
    if node.delta is not None and not set(node.delta.targets) <= set(form.maps):
        raise PlanError(f"{where} have no maps of these names", got=node.delta.targets, allowed=form.maps)
    if form.head_width is None and inner % heads:
        raise PlanError(f"{where} must be as wide as a multiple of their heads", got=f"{inner} and {heads}")
    if inner != width and not node.enter:
        raise PlanError(f"{where} cannot read states of width {width}", got=inner, do="set `enter`")


def _check_decoder(head: Head, decoder: Decoder, width: int, shape: Architecture) -> None:
    """Raises PlanError for a decoder that cannot read these states or write with the trunk's word vectors."""
    narrow = shape.embedding_width or shape.width
    if not width == shape.width == narrow:
        raise PlanError(
            "a decoder writes with the trunk's word vectors, and reads states of their width",
            got=f"states of width {width}, word vectors of width {narrow}, a trunk of width {shape.width}",
            do="use a trunk whose word vectors are as wide as its layers, and a path that ends at that width",
        )
    if head.width != shape.vocabulary:
        raise PlanError("a generating head has an output for each token", got=head.width, allowed=shape.vocabulary)
    if width % decoder.heads:
        raise PlanError("a decoder is as wide as a multiple of its heads", got=f"{width} and {decoder.heads}")


def _start(node: Node, shape: Architecture) -> Offset:
    if not isinstance(node, Embed):
        raise PlanError("a plan must start with Embed", got=type(node).__name__)
    return Offset(
        trunk=node.trunk,
        width=shape.width,
        prompts=tuple(prompt.rows for prompt in node.prompts),
        isolated=node.isolated,
    )


class OwnedArray(Value):
    """An array by its owner, its name in the owner's file, and its shape."""

    owner: str
    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of parameters."""
        return math.prod(self.shape)

    @property
    def is_matrix(self) -> bool:
        """True if it counts as a weight without biases: any array but biases and layer norms."""
        return not (self.name.endswith(".bias") or ".norm." in self.name)


def arrays_of(
    node: Node, shape: Architecture, *, width: int | None = None, depth: int | None = None
) -> Iterator[OwnedArray]:
    """The arrays that one node reads, on states of `width` after `depth` layers (default: the trunk's end).

    The encoder and decoder of a tied delta are named without a layer, so that nodes cut from one another name the same
    arrays.
    """
    width, depth = width or shape.width, shape.layers if depth is None else depth
    match node:
        case Embed():
            yield from _owned(TRUNK, embedding_arrays(shape))
            for prompt in node.prompts:
                # Prompts are concatenated with the word vectors, before the embedding's norm and projection.
                yield OwnedArray(
                    owner=prompt.part, name="prompt.weight", shape=(prompt.rows, shape.embedding_width or shape.width)
                )
        case Layers():
            check_layers(node, width, shape)
            yield from _owned(node.weights, _layers(node, shape, width))
            if node.delta is not None:
                width = node.width or shape.width
                if node.delta.tied:
                    ends = _ends("delta", node.delta.size, width)
                    yield from _owned(node.delta.ends or node.delta.part, ends)
                for index in range(node.start, node.stop):
                    prefix = f"delta.{index}"
                    if node.delta.ends is not None and not node.delta.tied:
                        yield from _owned(node.delta.ends, _ends(prefix, node.delta.size, width))
                    delta = _delta(node.delta, prefix, layer_form(node, index, shape))
                    yield from _owned(node.delta.part, delta)
        case Pool(part=str(owner)):
            yield from _owned(owner, _pool(node, width, depth))
        case Head(decoder=Decoder() as decoder):
            yield from _owned(node.part, decoder_arrays(decoder, width, node.width))
        case Head():
            inputs = head_inputs(node, width)
            if node.hidden:
                hidden = linear("head.hidden", inputs, node.hidden)
                yield from _owned(node.hidden_part or node.part, hidden)
            if node.norm is not None:
                yield from _owned(node.part, norm_shapes("head.norm", node.hidden))
            output = linear("head.output", node.hidden or inputs, node.width, bias=node.bias)
            yield from _owned(node.part, output)
            if node.words:
                yield OwnedArray(owner=node.part, name=WORD_WEIGHTS, shape=(node.words, node.width))


def arrays_of_path(path: Path, shape: Architecture) -> Iterator[OwnedArray]:
    """All arrays that the path reads, each once; raises PlanError if it does not fit the trunk's shape."""
    yield from _once(zip(path.nodes, places_of_path(path, shape), strict=True), shape)


def arrays_of_plan(plan: Plan, shape: Architecture) -> Iterator[OwnedArray]:
    """All arrays that the plan reads, each once: by owner and name, and for trunks by digest too."""
    yield from _once(((s.node, at) for s, at in zip(plan.steps, places(plan, shape), strict=True)), shape)


def part_arrays(path: Path, shape: Architecture, owner: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the arrays that `owner` contributes to the path; empty if it contributes none."""
    return {array.name: array.shape for array in arrays_of_path(path, shape) if array.owner == owner}


def parameters(plan: Plan, shape: Architecture) -> int:
    """The number of parameters of a plan; shared arrays count once."""
    return sum(array.size for array in arrays_of_plan(plan, shape))


def _once(nodes: Iterable[tuple[Node, Offset]], shape: Architecture) -> Iterator[OwnedArray]:
    known: dict[tuple[str, str, str], tuple[int, ...]] = {}
    for node, at in nodes:
        for array in arrays_of(node, shape, width=at.width, depth=at.depth):
            key = (at.trunk if array.owner == TRUNK else "", array.owner, array.name)
            if key not in known:
                known[key] = array.shape
                yield array
            elif known[key] != array.shape:
                raise PlanError(
                    f"owner '{array.owner}' cannot have two arrays of the name '{array.name}'",
                    got=f"shapes {known[key]} and {array.shape}",
                    do="give one of them to another part",
                )


def _owned(owner: str, arrays: Iterable[ArrayShape]) -> Iterator[OwnedArray]:
    return (OwnedArray(owner=owner, name=name, shape=shape) for name, shape in arrays)


def _layers(node: Layers, shape: Architecture, width: int) -> Iterator[ArrayShape]:
    inner = node.width or shape.width
    if node.enter:
        yield from linear("enter", width, inner)
    yield from relative_arrays(layer_form(node, node.start, shape))
    for index in range(node.start, node.stop):
        yield from layer_arrays(f"layers.{index}", layer_form(node, index, shape))
    if node.leave:
        yield from linear("leave", inner, shape.width)


def layer_form(node: Layers, index: int, shape: Architecture) -> LayerForm:
    """How the node's layer of this index computes: as the trunk's; at another width, and above norms first, as BERT's.

    Above a trunk that ends without a norm of its own, layers are its further layers: those of an imported encoder.
    """
    if node.width is None and (index < shape.whole_layers or not shape.norm_first):
        form = shape.layer(index)
    else:
        form = LayerForm(width=node.width or shape.width, heads=1, feed_forward=0, norm_epsilon=shape.norm_epsilon)
    return msgspec.structs.replace(
        form,
        closing_norm=form.closing_norm or (node.closed is True and index == node.stop - 1),
        heads=node.heads or shape.heads,
        feed_forward=shape.feed_forward if node.feed_forward is None else node.feed_forward,
        attention=node.attention,
        residual=node.residual,
        hidden_layers=node.hidden_layers,
    )


def delta_hidden(delta: Delta) -> int:
    """Inner width of a `feed_forward` delta: 3/2 of its size, so that it has as many parameters as projected attention.

    `2 d_s (3/2 d_s) = 3 d_s^2` (306 for 204).
    """
    return 3 * delta.size // 2


def _delta(delta: Delta, prefix: str, form: LayerForm) -> Iterator[ArrayShape]:
    """Parameters in one layer, without an encoder and decoder that are tied or belong to another owner."""
    width = form.width
    match delta.kind:
        case "scale":
            yield f"{prefix}.scale", (width,)
        case "prefix":
            for name in ("key", "value"):
                yield f"{prefix}.{name}", (delta.size, form.key_width)
        case "lora":
            for target in delta.targets:
                inputs, outputs = form.ends(target)
                yield from linear(f"{prefix}.{target}.encoder", inputs, delta.size, bias=False)
                yield from linear(f"{prefix}.{target}.decoder", delta.size, outputs, bias=False)
        case "bottleneck":
            yield from _ends(f"{prefix}.attention", delta.size, width)
            yield from _ends(f"{prefix}.feed_forward", delta.size, width)
        case "projected_attention" | "low_rank" | "feed_forward":
            yield from _task_function(delta, prefix, width)


def _task_function(delta: Delta, prefix: str, width: int) -> Iterator[ArrayShape]:
    if not delta.tied and delta.ends is None:
        yield from _ends(prefix, delta.size, width)
    if delta.scaled:
        yield f"{prefix}.scale", (width,)
    if delta.kind == "projected_attention":
        for name in ("query", "key", "value"):
            yield from linear(f"{prefix}.{name}", delta.size, delta.size)
    elif delta.kind == "feed_forward":
        yield from linear(f"{prefix}.inner", delta.size, delta_hidden(delta))
        yield from linear(f"{prefix}.outer", delta_hidden(delta), delta.size)
    if delta.serial:
        yield from norm_shapes(f"{prefix}.norm", width)


def _ends(prefix: str, size: int, width: int) -> Iterator[ArrayShape]:
    yield from linear(f"{prefix}.encoder", width, size)
    yield from linear(f"{prefix}.decoder", size, width)


def _pool(pool: Pool, width: int, depth: int) -> Iterator[ArrayShape]:
    if pool.layers == "learned":
        yield "mix.weights", (depth,)
        yield "mix.scale", ()
    if pool.positions == "attention":
        yield "pool.query", (width,)
        for name in ("inner_query", "key", "value", "output"):
            yield from linear(f"pool.{name}", width, width)


def head_inputs(head: Head, width: int) -> int:
    """Input width of the head: four concatenated vectors for a pair read as two texts, or a word and its neighbours."""
    return (4 if head.separate else 2 * head.window + 1) * width
