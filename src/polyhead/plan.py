"""A task is a path of four node kinds; the paths of many tasks, merged on equal prefixes, are the plan.

Everything else reads these values: training runs them, the engine compiles them, `cost` folds over them, the
store keeps the value at a node under the digest of its prefix, the bundle writes them down. No tensor library
is needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import msgspec

from polyhead.config import Value, digested
from polyhead.errors import PlanError

TRUNK = "trunk"
LayerMix = Literal["last", "mean", "learned", "all"]
Positions = Literal["first", "mean", "attention", "tokens", "prompt", "all"]
DeltaKind = Literal["projected_attention", "low_rank", "feed_forward", "scale", "bottleneck"]
CodecName = Literal["float32", "float16", "uint8", "sign"]
Activation = Literal["tanh", "relu", "gelu"]


class Prompt(Value):
    """`rows` trained input vectors that one owner adds before the text (MTOP)."""

    part: str
    rows: int

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise PlanError("a prompt has at least one row", got=self.rows)


class Delta(Value):
    """A function added inside each layer: `h' = LN2(a + FFN(a) + TS(h))` (Stickland and Murray 2019)."""

    kind: DeltaKind
    part: str
    size: int = 0  # inner width d_s; 0 for `scale` (LHUC)
    heads: int = 1
    tied: bool = False  # one encoder and decoder matrix for all layers of the part

    def __post_init__(self) -> None:
        if (self.size < 1) != (self.kind == "scale"):
            allowed = "0" if self.kind == "scale" else "1 or more"
            raise PlanError(f"a delta '{self.kind}' cannot have this size", got=self.size, allowed=allowed)
        if self.heads < 1 or (self.size % self.heads and self.kind == "projected_attention"):
            raise PlanError(
                "a delta's size must be a multiple of its heads", got=f"{self.size} and {self.heads}"
            )
        if self.kind == "feed_forward" and self.size % 2:
            raise PlanError(
                "a feed-forward delta is 3/2 of its size inside", got=self.size, allowed="an even size"
            )
        if self.tied and self.kind in ("scale", "bottleneck"):
            raise PlanError(
                f"a delta '{self.kind}' has no encoder and decoder to tie over layers", do="untie it"
            )


class Codec(Value):
    """How a stored feature is written: uint8 is `q = clip(round(x / scale) + zero, 0, 255)`, 1 bit the sign.

    `scale` and `zero` hold one number (per tensor) or one a dimension, fixed from training features; they are
    part of the digest, so features written under other constants are other features.
    """

    name: CodecName = "float16"
    scale: tuple[float, ...] = ()
    zero: tuple[float, ...] = ()
    before_mean: bool = False  # encode each layer, then average; else average, then encode

    def __post_init__(self) -> None:
        if len(self.scale) != len(self.zero) or (self.scale and self.name != "uint8"):
            raise PlanError(
                f"codec '{self.name}' cannot have these constants",
                got=f"{len(self.scale)} scales, {len(self.zero)} zero points",
                allowed="as many scales as zero points, for uint8 alone",
            )


class Embed(Value, tag="embed"):
    """The text, and prompt rows if any, become the first state."""

    trunk: str  # digest
    prompts: tuple[Prompt, ...] = ()
    isolated: bool = False  # text rows do not see prompts, a prompt sees the text and itself


class Layers(Value, tag="layers"):
    """Run layers [start, stop) with the trunk's or a part's weights."""

    start: int
    stop: int
    weights: str = TRUNK
    delta: Delta | None = None
    width: int | None = None  # narrower layers of a part, numbered on; None: the trunk's width
    feed_forward: int | None = None  # their feed-forward width, 0 for none; None: the trunk's
    heads: int | None = None
    enter: bool = False  # project from the trunk's width before, by the part's `enter`
    leave: bool = False  # and back after, by the part's `leave`

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop:
            raise PlanError(
                "layers must run upward", got=f"[{self.start}, {self.stop})", allowed="0 <= start < stop"
            )

    @property
    def is_plain(self) -> bool:
        """Whether the node may be cut and joined freely: no projections at its ends."""
        return not (self.enter or self.leave)


class Pool(Value, tag="pool"):
    """Mix the path's own states over layers, then over positions.

    `first`, `mean`, `attention` (learned query, Du et al. 2020) and `prompt` (mean of own prompt rows) give one
    vector; `tokens` gives the first sub-token of each word. `all` (layers or positions) keeps them unmixed:
    stored form.
    """

    layers: LayerMix = "last"
    of: int = 1  # how many of the path's last layers `mean` averages
    positions: Positions = "first"
    heads: int = 0  # of `attention`
    part: str | None = None  # owner of a learned mix or of an attention pooler
    codec: Codec = Codec(name="float32")

    def __post_init__(self) -> None:
        learned = self.layers == "learned" or self.positions in ("attention", "prompt")
        if learned != (self.part is not None):
            raise PlanError(
                f"a pool of layers '{self.layers}' and positions '{self.positions}' "
                + ("needs a part that owns its arrays" if learned else "owns no arrays, so it has no part"),
                got=self.part,
            )
        if self.of < 1 or (self.of > 1 and self.layers != "mean"):
            raise PlanError("only layers 'mean' averages several layers", got=f"{self.layers} of {self.of}")

    def stored(self) -> Pool:
        """What a store keeps for this pool: what is left to learn (mix, attention) is not applied yet."""
        return Pool(
            layers="all" if self.layers == "learned" else self.layers,
            of=self.of,
            positions="all" if self.positions in ("attention", "prompt") else self.positions,
            codec=self.codec,
        )


class Head(Value, tag="head"):
    """Features to the kind's outputs: `y = U f(W z + b) + u`, f the activation, or `y = U z + u` when `hidden` is 0."""

    kind: str
    width: int
    part: str
    hidden: int = 0
    bias: bool = True  # of the output layer
    separate: bool = False  # a pair read as two texts: z = [u, v, |u - v|, u * v], |u| = |v| = sqrt(width)
    activation: Activation = "tanh"  # after the hidden layer; gelu is the exact (erf) one

    def __post_init__(self) -> None:
        if not self.hidden and self.activation != "tanh":
            raise PlanError(
                "a head without a hidden layer has no activation",
                got=self.activation,
                do="leave it out, or give the head a hidden layer",
            )


Node = Embed | Layers | Pool | Head


class Path(Value):
    """How one task gets from text to answer, or a prefix of that way."""

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        order = [_ORDER[type(node)] for node in self.nodes]
        once = all(order.count(kind) <= 1 for kind in (0, 2, 3))
        headless = 3 in order and 2 not in order
        if not order or order[0] != 0 or order != sorted(order) or not once or headless:
            raise PlanError(
                "a path does not have its nodes in order",
                got=[type(node).__name__ for node in self.nodes],
                allowed="Embed, Layers..., Pool, Head",
            )
        depth = 0
        for node in self.nodes:
            if isinstance(node, Layers) and node.start != depth:
                raise PlanError(
                    "layers must follow on", got=f"layer {node.start} after {depth}", allowed=depth
                )
            depth = node.stop if isinstance(node, Layers) else depth

    @property
    def embed(self) -> Embed:
        """The first node."""
        assert isinstance(self.nodes[0], Embed)
        return self.nodes[0]

    @property
    def layers(self) -> tuple[Layers, ...]:
        """The nodes that run layers, in order."""
        return tuple(node for node in self.nodes if isinstance(node, Layers))

    @property
    def pool(self) -> Pool:
        """The pool; raises PlanError on a prefix without one."""
        for node in self.nodes:
            if isinstance(node, Pool):
                return node
        raise PlanError("this path has no pool", got=[type(node).__name__ for node in self.nodes])

    @property
    def head(self) -> Head:
        """The head; raises PlanError on a prefix."""
        node = self.nodes[-1]
        if not isinstance(node, Head):
            raise PlanError("this path has no head", got=[type(node).__name__ for node in self.nodes])
        return node

    def stored(self) -> Path:
        """The prefix whose value a store keeps for this path (see `Pool.stored`)."""
        before = tuple(node for node in self.nodes if not isinstance(node, (Pool, Head)))
        return Path(nodes=(*before, self.pool.stored()))


_ORDER: dict[type, int] = {Embed: 0, Layers: 1, Pool: 2, Head: 3}


class Step(Value):
    """One node of the merged tree. `parent` is an index into the plan's steps, -1 at a root."""

    node: Node
    parent: int
    tasks: tuple[str, ...]  # every task whose path passes here


class Plan(Value):
    """The paths of many tasks merged on equal prefixes: steps in an order where parents come first."""

    steps: tuple[Step, ...]

    def children(self, index: int) -> Iterator[int]:
        """Indices of the steps right below `index` (-1: the roots)."""
        return (i for i, step in enumerate(self.steps) if step.parent == index)

    def path(self, task: str) -> Path:
        """The task's path as it stands in the plan, cut where other paths make it so."""
        nodes = tuple(step.node for step in self.steps if task in step.tasks)
        if not nodes:
            raise PlanError(f"the plan has no task '{task}'", allowed=self.tasks)
        return Path(nodes=nodes)

    def only(self, tasks: Iterable[str]) -> Plan:
        """The part of the plan that these tasks need, and nothing else."""
        return merge({task: joined(self.path(task)) for task in tasks})

    @property
    def tasks(self) -> tuple[str, ...]:
        """All tasks: those of one root together, in the order in which they were merged."""
        return tuple(dict.fromkeys(task for step in self.steps for task in step.tasks))


def split(path: Path, boundaries: Iterable[int]) -> Path:
    """The same path, its layer nodes cut at these depths; narrow layers and projections are never cut."""
    cuts, nodes = set(boundaries), list[Node]()
    for node in path.nodes:
        nodes += _pieces(node, cuts) if isinstance(node, Layers) else [node]
    return Path(nodes=tuple(nodes))


def _pieces(node: Layers, cuts: Iterable[int]) -> list[Layers]:
    if not node.is_plain or node.width is not None:
        return [node]
    edges = [node.start, *(c for c in sorted(cuts) if node.start < c < node.stop), node.stop]
    return [msgspec.structs.replace(node, start=a, stop=b) for a, b in zip(edges, edges[1:], strict=False)]


def joined(path: Path) -> Path:
    """The inverse of `split`: neighbouring layer nodes that differ only in their range become one."""
    nodes: list[Node] = []
    for node in path.nodes:
        last = nodes[-1] if nodes else None
        if isinstance(node, Layers) and isinstance(last, Layers) and _continues(last, node):
            nodes[-1] = msgspec.structs.replace(last, stop=node.stop)
        else:
            nodes.append(node)
    return Path(nodes=tuple(nodes))


def _continues(first: Layers, second: Layers) -> bool:
    same = msgspec.structs.replace(second, start=first.start, stop=first.stop) == first
    return same and first.is_plain and first.width is None and first.stop == second.start


def merge(paths: Mapping[str, Path]) -> Plan:
    """One plan for many tasks: layers are cut where others with the same weights start or stop, equal prefixes meet."""
    cuts: dict[str, set[int]] = {}
    for path in paths.values():
        for layers in path.layers:
            cuts.setdefault(layers.weights, set()).update((layers.start, layers.stop))
    steps: list[tuple[Node, int, list[str]]] = []
    known: dict[tuple[int, Node], int] = {}
    for task, path in paths.items():
        parent = -1
        for node in _cut(path, cuts):
            key = (parent, node)
            if key not in known:
                known[key] = len(steps)
                steps.append((node, parent, []))
            parent = known[key]
            steps[parent][2].append(task)
    return Plan(steps=tuple(Step(node=node, parent=up, tasks=tuple(names)) for node, up, names in steps))


def _cut(path: Path, cuts: Mapping[str, Iterable[int]]) -> Iterator[Node]:
    """The path's nodes, its layers cut at the boundaries of their own weights."""
    for node in path.nodes:
        if isinstance(node, Layers):
            yield from _pieces(node, cuts[node.weights])
        else:
            yield node


def digest(path: Path, parts: Mapping[str, str] | None = None) -> str:
    """SHA-256, in hex, of what the value at the end of `path` should be.

    `parts` gives the digest of the arrays of every owner on the path other than the trunk (whose digest the
    first node holds). Cutting layers does not change the digest.
    """
    owners = sorted(set(owners_of(path)) - {TRUNK})
    missing = [owner for owner in owners if owner not in (parts or {})]
    if missing:
        raise PlanError(
            "a digest needs the arrays' digest of every part on the path", got=f"none for {missing}"
        )
    content = {"nodes": joined(path).nodes, "parts": {owner: (parts or {})[owner] for owner in owners}}
    return hashlib.sha256(msgspec.json.encode(digested(content), order="sorted")).hexdigest()


def owners_of(path: Path) -> Iterator[str]:
    """Owners of the arrays that the path reads, with repeats."""
    for node in path.nodes:
        yield from owners_of_node(node)


def owners_of_node(node: Node) -> Iterator[str]:
    """Owners of the arrays that the node reads."""
    match node:
        case Embed():
            yield TRUNK
            yield from (prompt.part for prompt in node.prompts)
        case Layers():
            yield node.weights
            if node.delta is not None:
                yield node.delta.part
        case Pool():
            if node.part is not None:
                yield node.part
        case Head():
            yield node.part
