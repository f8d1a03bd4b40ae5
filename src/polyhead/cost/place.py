"""The place before each node of a path: width and depth of its states, and its prompt rows."""

from __future__ import annotations

import msgspec

from polyhead.config import Value
from polyhead.errors import PlanError
from polyhead.plan import TRUNK, Embed, Layers, Node, Path, Plan, Pool
from polyhead.trunk.shape import Architecture


class Place(Value):
    """The states that the next node of a path reads."""

    trunk: str  # digest
    width: int
    depth: int = 0
    prompts: tuple[int, ...] = ()  # rows of each prompt before the text
    isolated: bool = False
    words: bool = False  # one vector for each word, behind a pool of that kind

    @property
    def prompt_rows(self) -> int:
        """Rows before the text."""
        return sum(self.prompts)


def places(plan: Plan, shape: Architecture) -> list[Place]:
    """The place before each step; raises PlanError where a path does not fit the trunk's shape."""
    after: list[Place] = []
    before: list[Place] = []
    for step in plan.steps:
        before.append(after[step.parent] if step.parent >= 0 else _start(step.node, shape))
        after.append(place_after(step.node, before[-1], shape))
    return before


def places_of_path(path: Path, shape: Architecture) -> list[Place]:
    """The place before each node of the path; raises PlanError where it does not fit the trunk's shape."""
    before = [_start(path.nodes[0], shape)]
    for node in path.nodes[:-1]:
        before.append(place_after(node, before[-1], shape))
    place_after(path.nodes[-1], before[-1], shape)
    return before


def place_after(node: Node, before: Place, shape: Architecture) -> Place:
    """The place behind the node; poolers and heads leave the width and depth as they were."""
    if isinstance(node, Pool):
        return msgspec.structs.replace(before, words=node.positions == "tokens")
    if not isinstance(node, Layers):
        return before
    check_layers(node, before.width, shape)
    inner = node.width or shape.width
    return msgspec.structs.replace(before, width=shape.width if node.leave else inner, depth=node.stop)


def check_layers(node: Layers, width: int, shape: Architecture) -> None:
    """Raises PlanError when layers cannot run on states of this width, or the trunk has no such layers."""
    where = f"layers [{node.start}, {node.stop}) of '{node.weights}'"
    whole = node.attention and node.residual and node.feed_forward != 0
    own = node.width is not None or node.feed_forward is not None or node.heads is not None or not whole
    if node.weights == TRUNK:
        if node.stop > shape.layers:
            raise PlanError(f"{where} are not there", got=node.stop, allowed=f"0 to {shape.layers}")
        if own or not node.is_plain:
            raise PlanError(f"{where} cannot have another shape than the trunk", do="give them to a part")
    if node.delta is not None and not whole:
        raise PlanError(f"{where} have no place for a delta", do="give them both halves and their norms")
    inner, heads = node.width or shape.width, node.heads or shape.heads
    if inner % heads:
        raise PlanError(f"{where} must be as wide as a multiple of their heads", got=f"{inner} and {heads}")
    if inner != width and not node.enter:
        raise PlanError(f"{where} cannot read states of width {width}", got=inner, do="set `enter`")


def _start(node: Node, shape: Architecture) -> Place:
    if not isinstance(node, Embed):
        raise PlanError("a plan must start with Embed", got=type(node).__name__)
    return Place(
        trunk=node.trunk,
        width=shape.width,
        prompts=tuple(prompt.rows for prompt in node.prompts),
        isolated=node.isolated,
    )
