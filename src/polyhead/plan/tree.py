"""Paths, and the plan that results from merging them on equal prefixes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from polyhead.arguments import check_fields, typed
from polyhead.errors import PlanError
from polyhead.plan.nodes import TRUNK, Embed, Head, Layers, Node, Pool, owners_of_node
from polyhead.values import Value, digested


class Path(Value):
    """The nodes of one task from text to answer, or a prefix of them."""

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        check_fields(self)
        order = [_ORDER[type(node)] for node in self.nodes]
        once = all(order.count(kind) <= 1 for kind in (0, 2, 3))
        headless = 3 in order and 2 not in order
        if not order or order[0] != 0 or order != sorted(order) or not once or headless:
            raise PlanError(
                "a path does not have its nodes in order",
                got=[type(node).__name__ for node in self.nodes],
                allowed="Embed, Layers..., Pool, Head",
            )
        if 3 in order and self.head.separate and self.pool.layers == "beside":
            raise PlanError("a head compares one vector of each text", got="layers 'beside'", allowed="last or mean")
        generates = 3 in order and self.head.decoder is not msgspec.UNSET
        if generates and (self.pool.layers, self.pool.positions) != ("last", "all"):
            raise PlanError(
                "a generating head reads all positions of the path's last layer",
                got=f"layers '{self.pool.layers}', positions '{self.pool.positions}'",
                allowed="layers 'last', positions 'all'",
            )
        depth = 0
        for node in self.nodes:
            if isinstance(node, Layers) and node.start != depth:
                raise PlanError("layers must follow on", got=f"layer {node.start} after {depth}", allowed=depth)
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
    def depth(self) -> int:
        """Number of the last layer that it runs; 0 for none."""
        return self.layers[-1].stop if self.layers else 0

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
    tasks: tuple[str, ...]  # all tasks whose path contains the step


class Plan(Value):
    """The paths of many tasks merged on equal prefixes: steps, parents first."""

    steps: tuple[Step, ...]

    def children(self, index: int) -> Iterator[int]:
        """Indices of the steps directly below `index` (-1: the roots)."""
        return (i for i, step in enumerate(self.steps) if step.parent == index)

    @typed
    def path(self, task: str) -> Path:
        """The task's path as it is in the plan, cut where other paths require it."""
        nodes = tuple(step.node for step in self.steps if task in step.tasks)
        if not nodes:
            raise PlanError(f"the plan has no task '{task}'", allowed=self.tasks)
        return Path(nodes=nodes)

    @typed
    def only(self, tasks: Iterable[str]) -> Plan:
        """The part of the plan that these tasks need."""
        return merge({task: join_layers(self.path(task)) for task in tasks})

    @property
    def tasks(self) -> tuple[str, ...]:
        """All tasks, grouped by root, in the order in which they were merged."""
        return tuple(dict.fromkeys(task for step in self.steps for task in step.tasks))


def split_layers(path: Path, boundaries: Iterable[int]) -> Path:
    """The same path with its layer nodes cut at these depths; narrow layers and projections are never cut."""
    cuts, nodes = set(boundaries), list[Node]()
    for node in path.nodes:
        nodes += _pieces(node, cuts) if isinstance(node, Layers) else [node]
    return Path(nodes=tuple(nodes))


def _pieces(node: Layers, cuts: Iterable[int]) -> list[Layers]:
    if not node.is_plain or node.width is not None:
        return [node]
    edges = [node.start, *(c for c in sorted(cuts) if node.start < c < node.stop), node.stop]
    return [msgspec.structs.replace(node, start=a, stop=b) for a, b in zip(edges, edges[1:], strict=False)]


def join_layers(path: Path) -> Path:
    """The inverse of `split_layers`: adjacent layer nodes that differ only in their range become one."""
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


@typed
def merge(paths: Mapping[str, Path]) -> Plan:
    """One plan for many tasks: layers are cut where others with the same weights start or stop; equal prefixes meet."""
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
    """The path's nodes, with layers cut at the boundaries of their own weights."""
    for node in path.nodes:
        if isinstance(node, Layers):
            yield from _pieces(node, cuts[node.weights])
        else:
            yield node


def digest(path: Path, parts: Mapping[str, str] | None = None) -> str:
    """SHA-256, in hex, of everything that determines the value at the end of `path`.

    `parts` maps every owner on the path, except the trunk (whose digest is in the first node), to the digest of its
    arrays. Cutting layers does not change the digest.
    """
    owners = sorted(set(owners_of(path)) - {TRUNK})
    missing = [owner for owner in owners if owner not in (parts or {})]
    if missing:
        raise PlanError("a digest needs the arrays' digest of every part on the path", got=f"none for {missing}")
    content = {"nodes": join_layers(path).nodes, "parts": {owner: (parts or {})[owner] for owner in owners}}
    return hashlib.sha256(msgspec.json.encode(digested(content), order="sorted")).hexdigest()


def owners_of(path: Path) -> Iterator[str]:
    """Owners of the arrays that the path reads, with repeats."""
    for node in path.nodes:
        yield from owners_of_node(node)
