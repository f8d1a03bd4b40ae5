"""A plan drawn as a tree."""

from __future__ import annotations

from polyhead.plan import Embed, Head, Layers, Node, Plan, Pool


def tree(plan: Plan) -> list[str]:
    """One line a node, indented under its parent; heads name their task."""
    lines: list[str] = []
    roots = list(plan.children(-1))
    for root in roots:
        lines.append(_node(plan, root))
        _below(plan, root, "", lines)
    return lines


def _below(plan: Plan, index: int, indent: str, lines: list[str]) -> None:
    children = list(plan.children(index))
    for place, child in enumerate(children):
        is_last = place == len(children) - 1
        lines.append(f"{indent}{'└─ ' if is_last else '├─ '}{_node(plan, child)}")
        _below(plan, child, indent + ("   " if is_last else "│  "), lines)


def _node(plan: Plan, index: int) -> str:
    step = plan.steps[index]
    shared = f"  [{len(step.tasks)} tasks]" if len(step.tasks) > 1 else ""
    return f"{describe(step.node)}{shared}" + (f"  → {step.tasks[0]}" if isinstance(step.node, Head) else "")


def describe(node: Node) -> str:
    """A node in a few words."""
    match node:
        case Embed():
            prompts = f", {len(node.prompts)} prompts" if node.prompts else ""
            return f"Embed trunk {node.trunk[:12]}{prompts}"
        case Layers():
            weights = "" if node.weights == "trunk" else f" of {node.weights}"
            delta = f" with {node.delta.kind} of {node.delta.part}" if node.delta else ""
            return f"Layers {node.start + 1}..{node.stop}{weights}{delta}"
        case Pool():
            mix = {"last": "last layer", "mean": f"mean of the last {node.of}", "learned": "learned mix"}
            order = " before the mean" if node.codec.before_mean else ""
            heads = f", {node.heads} heads" if node.heads else ""
            return (
                f"Pool {mix.get(node.layers, node.layers)}, {node.positions}{heads}, {node.codec.name}{order}"
            )
        case Head():
            pair = ", two texts compared" if node.separate else ""
            hidden = f"tanh {node.hidden}, " if node.hidden else ""
            return f"Head {node.kind}, {hidden}{node.width} outputs{pair}"
