"""A plan drawn as a tree."""

from __future__ import annotations

from polyhead.encoder.decoder import Decoder
from polyhead.plan import TRUNK, Embed, Head, Layers, Node, Plan, Pool
from polyhead.progress import counted

ARROW = " → "


def tree(plan: Plan) -> list[str]:
    """One line for each step that tasks share, and one line, with the task's name first, for its other steps.

    A shared step is computed once for all tasks below it. Isolated prompts form a separate group: the text does not see
    them, so its layers run once for them and for all tasks that read the plain trunk.
    """
    lines: list[str] = []
    nodes = {root: plan.steps[root].node for root in plan.children(-1)}
    beside = [root for root, node in nodes.items() if isinstance(node, Embed) and node.isolated]
    for root in (root for root in plan.children(-1) if root not in beside):
        if len(plan.steps[root].tasks) == 1:
            lines.append(f"{plan.steps[root].tasks[0]}  {ARROW.join(_way(plan, root))}")
            continue
        lines.append(_shared(plan, root))
        _branches(plan, [*plan.children(root)], "", lines)
    if beside:
        trunk = plan.path(plan.steps[beside[0]].tasks[0]).embed.trunk
        lines.append(f"Beside the text of trunk {trunk[:12]}, which is run once")
        _branches(plan, beside, "", lines)
    return lines


def _branches(plan: Plan, children: list[int], indent: str, lines: list[str]) -> None:
    ways = {child: _way(plan, child) for child in children if len(plan.steps[child].tasks) == 1}
    name_width = max((len(plan.steps[child].tasks[0]) for child in ways), default=0)
    widths = _widths(list(ways.values()))
    for place, child in enumerate(children):
        is_last = place == len(children) - 1
        mark = "└─ " if is_last else "├─ "
        if child in ways:
            padded = [text.ljust(width) for text, width in zip(ways[child], widths, strict=False)]
            name = plan.steps[child].tasks[0].ljust(name_width)
            lines.append(f"{indent}{mark}{name}  {ARROW.join(padded)}".rstrip())
        else:
            lines.append(f"{indent}{mark}{_shared(plan, child)}")
            _branches(plan, [*plan.children(child)], indent + ("   " if is_last else "│  "), lines)


def _widths(ways: list[list[str]]) -> list[int]:
    """Widths that align the steps of several tasks; the last step of each needs none."""
    longest = max(map(len, ways), default=0)
    return [max((len(way[i]) for way in ways if i < len(way) - 1), default=0) for i in range(longest)]


def _way(plan: Plan, index: int) -> list[str]:
    """The steps from the current one to the task's answer."""
    below = list(plan.children(index))
    following = _way(plan, below[0]) if below else []
    return [describe(plan.steps[index].node), *following]


def _shared(plan: Plan, index: int) -> str:
    step = plan.steps[index]
    return f"{describe(step.node)}  [{counted(len(step.tasks), 'task')}]"


def describe(node: Node) -> str:
    """A node in a few words; layers are numbered from 1."""
    match node:
        case Embed():
            rows = sum(prompt.rows for prompt in node.prompts)
            if node.isolated:
                return f"own prompt of {counted(rows, 'row')}"
            prompt_count = f"{counted(len(node.prompts), 'prompt')} of {counted(rows, 'row')}"
            prompts = f", {prompt_count} before the text" if rows else ""
            return f"Embed by trunk {node.trunk[:12]}{prompts}"
        case Layers():
            owner = "" if node.weights == TRUNK else f" of {node.weights}"
            size = f" {node.delta.size}" if node.delta and node.delta.size else ""
            delta = f" with {node.delta.kind}{size} of {node.delta.part}" if node.delta else ""
            is_single = node.stop - node.start == 1
            layers = f"Layer {node.stop}" if is_single else f"Layers {node.start + 1} to {node.stop}"
            closed = ", closed by a norm" if node.closed is True else ""
            return f"{layers}{owner}{delta}{closed}"
        case Pool():
            return _pool(node)
        case Head(decoder=Decoder() as decoder):
            return f"Head {node.kind}, a decoder of {counted(decoder.layers, 'layer')}, {counted(node.width, 'token')}"
        case Head():
            pair = ", two texts compared" if node.separate else ""
            near = f", {counted(node.window, 'neighbour')} on each side" if node.window else ""
            hidden = f"{node.activation} {node.hidden}, " if node.hidden else ""
            hidden += "layer norm, " if node.norm is not None else ""
            words = f", words hashed to {node.words:,} columns" if node.words else ""
            return f"Head {node.kind}, {hidden}{counted(node.width, 'output')}{pair}{near}{words}"


def _pool(node: Pool) -> str:
    mixes = {"last": "last layer", "learned": "learned mix of layers", "all": "all layers"}
    last_mixes = {"mean": f"mean of last {node.of} layers", "beside": f"last {node.of} layers side by side"}
    mix = (mixes | last_mixes)[node.layers]
    places = {
        "first": "first position",
        "second": "second position",
        "mean": "mean of positions",
        "attention": f"attention ({node.heads} heads)",
        "tokens": "each word",
        "prompt": "own prompt",
        "all": "all positions",
    }
    order = " before the mean" if node.codec.before_mean else ""
    return f"Pool {mix}, {places[node.positions]}, {node.codec.name}{order}"
