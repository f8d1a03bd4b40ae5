"""The graphs of a group's poolers and heads, for all seats or for a few, and the choice of the cheaper calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from polyhead.bundle.files import release
from polyhead.engine.compile.arrangement import Arrangement, HeadForm, SeatGroup
from polyhead.engine.compile.few import BEGIN, GATHERED, WORTH, few_answers, numbers_of
from polyhead.engine.compile.heads import Slot, answers, folded, output_of, pad_slot, states
from polyhead.engine.compile.maps import Arrays
from polyhead.engine.compile.ops import PART, Build, Ops, Tensor
from polyhead.engine.compile.program import OutputPlace
from polyhead.plan import Path

Group = SeatGroup[HeadForm, str]


def answer_places(
    arranged: Arrangement, group: Group, names: Sequence[str], outputs: Sequence[str]
) -> Iterator[OutputPlace]:
    """Where the tasks' outputs stand; `outputs` are those of the graph, which may know tasks that left since."""
    for number, seat in enumerate(group.seats):
        if seat.member is not None and seat.member in names:
            head, output = arranged.tasks[seat.member].path.head, outputs[number]
            writes = head.decoder is not msgspec.UNSET
            slot = 0 if writes else outputs[:number].count(output)
            yield OutputPlace(seat.member, output, slot, None if head.separate or writes else head.width)


def few_places(arranged: Arrangement, names: Sequence[str], outputs: Sequence[str]) -> Iterator[OutputPlace]:
    """Where the outputs of asked tasks stand in a graph that gathers their weights, each under its output's name."""
    for number, (name, output) in enumerate(zip(names, outputs, strict=True)):
        head = arranged.tasks[name].path.head
        yield OutputPlace(name, output, outputs[:number].count(output), None if head.separate else head.width)


def slot_outputs(arranged: Arrangement, group: Group) -> tuple[str, ...]:
    """The name of each slot's output; a spare slot is as wide as the first that is none."""
    names = [None if seat.member is None else output_of(arranged.tasks[seat.member].path.head) for seat in group.seats]
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
    """Whether gathering the weights of these tasks is cheaper than computing all seats; False unless `gathers`.

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
    """The price of one call that computes all seats of these groups, in numbers of weights that are read."""
    return BEGIN + sum(numbers_of(g.form.form, name) for g in groups for name in slot_outputs(arranged, g))


def _few_price(arranged: Arrangement, group: Group, names: Sequence[str]) -> int:
    """The price of a call that gathers the weights of these tasks."""
    outputs = [output_of(arranged.tasks[name].path.head) for name in names]
    return BEGIN + GATHERED * sum(numbers_of(group.form.form, output) for output in outputs)


def _graph_of(arranged: Arrangement, group: Group, answered: Callable[..., dict[str, Tensor]]) -> Build:
    """What `answered` makes of the group's form and its slots."""
    form, tasks = group.form.form, [arranged.tasks[name] for name in group.members]
    filled: list[tuple[Path, Arrays, Arrays, Arrays] | None] = []
    for seat in group.seats:
        if seat.member is None:
            filled.append(None)
            continue
        path = arranged.tasks[seat.member].path
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
