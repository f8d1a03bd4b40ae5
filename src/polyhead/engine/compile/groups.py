"""The graphs of a group's poolers and heads, for all slots or for a few, and the choice of the cheaper calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec
import numpy as np

from polyhead.bundle.files import release
from polyhead.engine.compile.arrangement import Arrangement, HeadForm, SlotGroup
from polyhead.engine.compile.heads import (
    Slot,
    SlotForm,
    answers,
    between_maps,
    folded,
    output_of,
    pad_slot,
    pooled_values,
    slots_apart,
    states,
    values_read,
    without_spare,
)
from polyhead.engine.compile.maps import Arrays
from polyhead.engine.compile.ops import PART, Build, Ops, Tensor
from polyhead.engine.compile.program import OutputPlace
from polyhead.plan import Path

Group = SlotGroup[HeadForm, str]
# In weights that are read in the same time (docs/project/log.md): the start of a call, and a weight that is gathered.
BEGIN, GATHERED = 260_000, 2
WORTH = 1.25  # times the price of a few that all must cost: the graph of a few has to be compiled first


def answer_places(
    arranged: Arrangement, group: Group, names: Sequence[str], outputs: Sequence[str]
) -> Iterator[OutputPlace]:
    """Where the tasks' outputs stand; `outputs` are those of the graph, which may know tasks that left since."""
    for number, slot in enumerate(group.slots):
        if slot.member is not None and slot.member in names:
            head, output = arranged.tasks[slot.member].path.head, outputs[number]
            writes = head.decoder is not msgspec.UNSET
            index = 0 if writes else outputs[:number].count(output)
            yield OutputPlace(slot.member, output, index, None if head.separate or writes else head.width)


def few_places(arranged: Arrangement, names: Sequence[str], outputs: Sequence[str]) -> Iterator[OutputPlace]:
    """Where the outputs of asked tasks stand in a graph that gathers their weights, each under its output's name."""
    for number, (name, output) in enumerate(zip(names, outputs, strict=True)):
        head = arranged.tasks[name].path.head
        yield OutputPlace(name, output, outputs[:number].count(output), None if head.separate else head.width)


def slot_outputs(arranged: Arrangement, group: Group) -> tuple[str, ...]:
    """The name of each slot's output; a spare slot is as wide as the first that is none."""
    names = [None if slot.member is None else output_of(arranged.tasks[slot.member].path.head) for slot in group.slots]
    first = next((name for name in names if name is not None), "")  # a group without members keeps its graph's names
    return tuple(name or first for name in names)


def slots_graph(arranged: Arrangement, group: Group, outputs: Sequence[str]) -> Build:
    """All slots' answers, under the names of their outputs."""
    form = group.form.form
    if form.pool.positions == "all":
        return lambda ops: states(ops, form)
    return _graph_of(arranged, group, partial(answers, outputs=outputs, apart=arranged.deterministic))


def few_graph(arranged: Arrangement, group: Group, outputs: Sequence[str]) -> Build:
    """The answers of the asked slots, under the names of their outputs."""
    return _graph_of(arranged, group, partial(few_answers, outputs=outputs))


def is_few(arranged: Arrangement, group: Group, names: Sequence[str], *, gathers: bool) -> bool:
    """True if gathering the weights of these tasks is cheaper than computing all slots; False unless `gathers`.

    Never in deterministic mode: there no product's shape depends on what is asked.
    """
    if arranged.deterministic or not gathers or not names or group.form.form.pool.positions in ("prompt", "all"):
        return False
    return WORTH * _few_price(arranged, group, names) < _price(arranged, [group])


def is_joint(
    arranged: Arrangement, unit: Sequence[Group], requested: Sequence[Sequence[str]], *, gathers: bool
) -> bool:
    """Whether one call of the whole unit costs hardly more than calls of its asked groups."""
    apart = 0
    for group, names in zip(unit, requested, strict=True):
        if is_few(arranged, group, names, gathers=gathers):
            apart += _few_price(arranged, group, names)
        elif names:
            apart += _price(arranged, [group])
    return len(unit) > 1 and apart > 0 and _price(arranged, unit) <= WORTH * apart


def _price(arranged: Arrangement, groups: Sequence[Group]) -> int:
    """The price of one call that computes all slots of these groups, in numbers of weights that are read."""
    return BEGIN + sum(numbers_of(g.form.form, name) for g in groups for name in slot_outputs(arranged, g))


def _few_price(arranged: Arrangement, group: Group, names: Sequence[str]) -> int:
    """The price of a call that gathers the weights of these tasks."""
    outputs = [output_of(arranged.tasks[name].path.head) for name in names]
    return BEGIN + GATHERED * sum(numbers_of(group.form.form, output) for output in outputs)


def _graph_of(arranged: Arrangement, group: Group, answered: Callable[..., dict[str, Tensor]]) -> Build:
    """What `answered` makes of the group's form and its slots."""
    form, tasks = group.form.form, [arranged.tasks[name] for name in group.members]
    filled: list[tuple[Path, Arrays, Arrays, Arrays] | None] = []
    for slot in group.slots:
        if slot.member is None:
            filled.append(None)
            continue
        path = arranged.tasks[slot.member].path
        part, hidden, pooler = path.head.part, path.head.hidden_part, path.pool.part
        filled.append((path, arranged.arrays(part), arranged.arrays(hidden or part), arranged.arrays(pooler or part)))

    def build(ops: Ops) -> dict[str, Tensor]:
        if not tasks:
            return {}
        part, slots = PART.get(), list[Slot | None]()
        for arrays in filled:
            with part():
                slots.append(None if arrays is None else pad_slot(folded(*arrays, width=form.width), form))
        release(array for task in tasks if task.is_mapped for array in task.arrays.values())
        with part():
            return answered(ops, form, slots)

    return build


def numbers_of(form: SlotForm, output: str) -> int:
    """The number of folded weights of a slot of this form, whose output has this name."""
    read = form.layers * form.width
    pooler = read * (form.width + form.pool.heads) if form.pool.positions == "attention" else 0
    inputs = (2 * form.window + 1) * (form.width if pooler else read)
    labels = int(output) if output.isdecimal() else form.width
    return pooler + (inputs * form.hidden + form.hidden * labels if form.hidden else inputs * labels)


def few_answers(ops: Ops, form: SlotForm, slots: Sequence[Slot | None], outputs: Sequence[str]) -> dict[str, Tensor]:
    """The result of `heads.answers` for the asked slots alone.

    It has the inputs of `answers` and these: `slots` (asked,), the numbers of the asked slots; with attention `heads`
    (asked * heads,), the numbers of their heads; for each name of an output `at.<name>`, the numbers of its asked slots
    among all slots of that name, and `of.<name>`, the numbers of the same slots among the asked ones.
    """
    x, filled = values_read(ops, form), without_spare(slots)
    positions = [ops.size(x, 1)] if form.pool.positions == "tokens" else []
    is_deep, is_attention = filled[0].second is not None, form.pool.positions == "attention"
    each = is_deep or is_attention  # else all slots read the same
    asked = ops.input("slots", "int", (-1,)) if each else None
    if is_attention:
        queries = ops.gather(_stacked(ops, [slot.scores for slot in filled if slot.scores is not None]), asked)
        queries = ops.reshape(ops.transpose(queries, (1, 0, 2)), (form.layers * form.width, -1))
        values = _stacked(ops, [matrix for slot in filled if slot.values is not None for matrix in slot.values])
        out = ops.matmul(pooled_values(ops, x, queries), ops.gather(values, ops.input("heads", "int", (-1,))))
        x = slots_apart(ops, out, form, ops.size(asked, 0))
    else:
        x = ops.reshape(x, (1, -1, (2 * form.window + 1) * form.layers * form.width))
    if is_deep:
        matrix = _stacked(ops, [slot.first for slot in filled])
        bias = _stacked(ops, [slot.first_bias[None] for slot in filled])
        x = between_maps(ops, ops.add(ops.matmul(x, ops.gather(matrix, asked)), ops.gather(bias, asked)), form)
    answers: dict[str, Tensor] = {}
    for name in dict.fromkeys(outputs):
        maps = [slot.last for slot, output in zip(filled, outputs, strict=True) if output == name]
        matrix, bias = _stacked(ops, [m for m, _ in maps]), _stacked(ops, [b[None] for _, b in maps])
        at = ops.input(f"at.{name}", "int", (-1,))
        read = ops.gather(x, ops.input(f"of.{name}", "int", (-1,))) if each else x
        out = ops.add(ops.matmul(read, ops.gather(matrix, at)), ops.gather(bias, at))
        answers[name] = ops.reshape(out, (ops.size(at, 0), -1, *positions, len(maps[0][1])))
    return answers


def places_of_few(form: SlotForm, outputs: Sequence[str], asked: Sequence[int]) -> dict[str, np.ndarray]:
    """The inputs of `few_answers` for these numbers of slots; a name without an asked slot computes its first slot."""
    numbers, heads = np.array(asked, np.int64), form.pool.heads
    is_each = form.hidden > 0 or form.pool.positions == "attention"
    places: dict[str, np.ndarray] = {"slots": numbers} if is_each else {}
    if form.pool.positions == "attention":
        places["heads"] = (numbers[:, None] * heads + np.arange(heads)).ravel()
    for name in dict.fromkeys(outputs):
        slots = [slot for slot, output in enumerate(outputs) if output == name]
        pairs = [(number, slots.index(slot)) for number, slot in enumerate(asked) if slot in slots] or [(0, 0)]
        of, at = np.array(pairs, np.int64).T
        places |= {f"of.{name}": of.copy(), f"at.{name}": at.copy()} if is_each else {f"at.{name}": at.copy()}
    return places


def _stacked(ops: Ops, arrays: Sequence[np.ndarray]) -> Tensor:
    return ops.constant(np.stack(arrays))
