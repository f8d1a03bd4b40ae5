"""Section 3: what a task adds in parameters, and what prompt rows add to the pass, counted from plans and shapes."""

from __future__ import annotations

from collections.abc import Sequence

from polyhead.encoder.shape import Architecture
from polyhead.plan import Embed, Head, Layers, Path, Plan, Pool, Prompt, merge
from polyhead.plan.cost import added, flops, layer_evaluations, parameters
from polyhead.values import Value

BERT_BASE = Architecture(layers=12, width=768, heads=12, feed_forward=3072, vocabulary=30522)
ROWS = 2  # of a prompt
GLUE_OUTPUTS = {"CoLA": 2, "SST-2": 2, "MRPC": 2, "STS-B": 1, "QQP": 2, "MNLI": 3, "QNLI": 2, "RTE": 2}
TOKENS = (50, 128)
NUMBERS = (1, 8, 21, 100)
_POOLER = 768**2 + 768  # BERT's own, part of the 109,482,240 that the share is of


class Added(Value):
    """Parameters of prompt, pooler and head of one new task; of GLUE those of its eight together."""

    what: str
    parameters: int
    share: float  # percent of BERT-base


class Ratio(Value):
    """FLOPs for one text and all tasks over those of the text alone, and layers evaluated."""

    tasks: int
    tokens: int
    together: float  # all prompts in one input
    isolated: float  # the text sees no prompt
    apart: float  # a pass for each task's prompt
    layers: tuple[int, int, int]  # in that order


def parameters_added() -> tuple[Added, ...]:
    """A task with 1, 2 and 3 outputs, and the eight of GLUE."""
    whole = parameters(_plan({"": _path("", [""], 2, "plain")}), BERT_BASE) + _POOLER
    tasks = [_added(f"a task with {c} output{'s' * (c > 1)}", {"t": c}, whole) for c in (1, 2, 3)]
    return (*tasks, _added("the eight tasks of GLUE", GLUE_OUTPUTS, whole))


def ratios(numbers: Sequence[int] = NUMBERS, tokens: Sequence[int] = TOKENS) -> tuple[Ratio, ...]:
    """The cost of prompts by number of tasks and length of the text, for the encoder without heads."""
    rows = []
    for count in numbers:
        names = [f"t{index}" for index in range(count)]
        plans = [_plan({n: _path(n, names, 2, way) for n in names}) for way in ("together", "isolated", "apart")]
        plain = _plan({"t": _path("t", ["t"], 2, "plain")})
        for length in tokens:
            base = flops(plain, BERT_BASE, length)
            share = [flops(plan, BERT_BASE, length) / base for plan in plans]
            evaluated = [layer_evaluations(plan) for plan in plans]
            rows.append(
                Ratio(
                    tasks=count,
                    tokens=length,
                    together=share[0],
                    isolated=share[1],
                    apart=share[2],
                    layers=(evaluated[0], evaluated[1], evaluated[2]),
                )
            )
    return tuple(rows)


def _added(what: str, outputs: dict[str, int], whole: int) -> Added:
    plan = merge({name: _path(name, list(outputs), c, "together") for name, c in outputs.items()})
    count = sum(added(plan, name, BERT_BASE, 128).parameters for name in outputs)
    return Added(what=what, parameters=count, share=100 * count / whole)


def _path(name: str, group: Sequence[str], outputs: int, way: str) -> Path:
    """A task's path; the head has no output bias, as the paper counts."""
    own = f"task:{name}"
    owners = {"plain": [], "together": [f"task:{task_name}" for task_name in group]}.get(way, [own])
    prompts = tuple(Prompt(part=owner, rows=ROWS) for owner in owners)
    embed = Embed(trunk="bert-base", prompts=prompts, isolated=way == "isolated")
    head = Head(kind="single_label", width=outputs, part=own, hidden=768, bias=False)
    return Path(nodes=(embed, Layers(start=0, stop=12), Pool(positions="prompt", part=own), head))


def _plan(paths: dict[str, Path]) -> Plan:
    """The encoder alone: embeddings and layers of all tasks."""
    return merge({name: Path(nodes=path.nodes[:2]) for name, path in paths.items()})
