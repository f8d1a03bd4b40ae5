"""From what is loaded to a program: which graph every step of a plan is, and what it reads."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import partial

import numpy as np

from polyhead.engine.compile.arrangement import (
    Arrangement,
    GroupSlot,
    HeadForm,
    Read,
    SlotGroup,
    chain,
    depth,
    down_to,
    is_plain,
    reads_of,
    states_read,
)
from polyhead.engine.compile.encoder import LayerSpan, beside_graph, embed_graph, span_graph
from polyhead.engine.compile.groups import (
    answer_places,
    few_graph,
    few_places,
    is_few,
    is_joint,
    places_of_few,
    slot_outputs,
    slots_graph,
)
from polyhead.engine.compile.joint import Unit, joint_graph, output_in
from polyhead.engine.compile.layout import Shape
from polyhead.engine.compile.ops import Build
from polyhead.engine.compile.program import (
    EMBEDDED,
    LAID,
    Graph,
    GraphCall,
    Graphs,
    InputState,
    Key,
    OutputPlace,
    OwnState,
    ParallelStates,
    Program,
    Recipe,
    Token,
    program_of,
)
from polyhead.plan import TRUNK, Embed, Layers, Plan, Prompt

# What poolers read beside the states: inputs, and what of a layout these are.
_READ = {
    "attention": {"places": "places", "keep": "keep"},
    "mean": {"places": "places", "share": "share"},
    "prompt": {"places": "places", "share": "share"},
    "tokens": {"places": "words"},
    "first": {"places": "first"},
    "second": {"places": "second"},
    "all": {"places": "places"},
}


def composed(arranged: Arrangement, graphs: Graphs, plan: Plan) -> Program:
    """The program of a plan of some of the loaded tasks; nothing is compiled yet."""
    return _Composer(arranged, graphs, plan).program()


class _Composer:
    def __init__(self, arranged: Arrangement, graphs: Graphs, plan: Plan) -> None:
        passes = arranged.passes_for(plan)
        self._arranged, self._graphs, self._tasks, self._plan = arranged, graphs, plan.tasks, passes.plan
        self._shape = arranged.trunk.architecture
        self._reads = {name: read for read in reads_of(passes) for name in read.tasks}
        self._layers = {chain(self._plan, i): i for i, s in enumerate(self._plan.steps) if isinstance(s.node, Layers)}
        self._gathers: bool = getattr(graphs.runtime, "gathers", True)
        self._own: dict[int, list[OwnState]] = {}
        self._beside: dict[int, list[ParallelStates]] = {}

    def program(self) -> Program:
        roots = [i for i, step in enumerate(self._plan.steps) if step.parent < 0]
        calls = [] if self._arranged.begins else [self._embedding(root) for root in roots]
        calls = [*calls, *self._spans(), *self._besides(), *self._heads()]
        reads = dict.fromkeys(key for call in calls for _, key in call.inputs)
        return program_of(self._tasks, [self._root(root, list(reads)) for root in roots], calls)

    def _graph(
        self,
        key: Hashable,
        build: Build,
        label: str,
        *,
        layers: bool = True,
        alone: tuple[Token, ...] = (),
        outputs: tuple[str, ...] = (),
    ) -> Graph:
        digest = self._arranged.digest_maker((key, layers, outputs))
        recipe = Recipe(key=key, build=build, label=label, layers=layers, alone=alone, outputs=outputs, digest=digest)
        return self._graphs.graph(recipe)

    def _root(self, index: int, reads: Sequence[Key]) -> InputState:
        step, shape = self._plan.steps[index], self._shape
        assert isinstance(step.node, Embed)
        prompts = self._prompts(index)
        return InputState(
            step=index,
            tasks=step.tasks,
            shape=Shape(
                first_position=shape.first_position + step.node.shifted,
                segments=shape.segments,
                width=shape.width,
                prompts=tuple(prompt.rows for prompt in prompts),
                isolated=not step.node.prompts,
                pack=not self._arranged.deterministic,
                fill=self._graphs.runtime.fills,
                relative=shape.relative,
                window=shape.window,
                heads=shape.key_heads or shape.heads,
            ),
            most=shape.positions,
            reads=tuple(str(what) for what, step, whose in reads if (step, whose) == (index, "") and what in LAID),
            prompts=self._table(prompts),
            own=tuple(self._own.get(index, ())),
            beside=tuple(self._beside.get(index, ())),
        )

    def _prompts(self, root: int) -> tuple[Prompt, ...]:
        """Those before the text: of a joint group, or isolated ones, but for deterministic mode."""
        node = self._plan.steps[root].node
        assert isinstance(node, Embed)
        if node.prompts or self._arranged.deterministic:
            return node.prompts
        asides = (name for name, read in self._reads.items() if read.aside and down_to(self._plan, read.at)[0] == root)
        return tuple(dict.fromkeys(self._own_prompt(name) for name in asides))

    def _own_prompt(self, name: str) -> Prompt:
        path = self._arranged.tasks[name].path
        return next(prompt for prompt in path.embed.prompts if prompt.part == path.pool.part)

    def _table(self, prompts: Sequence[Prompt]) -> np.ndarray:
        rows = [np.zeros((1, self._shape.embedding_width or self._shape.width), np.float32)]
        return np.concatenate([*rows, *(self._arranged.arrays(prompt.part)["prompt.weight"] for prompt in prompts)])

    def _embedding(self, root: int, whose: str = "", tasks: tuple[str, ...] = ()) -> GraphCall:
        step = self._plan.steps[root]
        build = embed_graph(self._shape, self._arranged.arrays(TRUNK))
        return GraphCall(
            graph=self._graph("embedding", build, "the embedding"),
            tasks=tasks or step.tasks,
            inputs=self._embedded(root, whose),
            states=(("state.0", ((0, root, whose),)),),
            is_shared=is_plain(step.node) and not whose,
        )

    def _embedded(self, root: int, whose: str = "", *, prompted: bool = True) -> tuple[tuple[str, Key], ...]:
        names = EMBEDDED if prompted else EMBEDDED[:3]
        lacking = {"segments": not self._shape.segments, "positions": not self._shape.position_table}
        return tuple((n, (n, root, whose)) for n in names if not lacking.get(n))

    def _spans(self) -> Iterator[GraphCall]:
        for own, index in self._layers.items():
            members = self._arranged.stack_of.get(own, (own,))
            if not all(member in self._layers for member in members):
                yield self._span([index])
            elif own == members[0]:
                yield self._span([self._layers[member] for member in members])

    def _span(self, lanes: Sequence[int]) -> GraphCall:
        plan, arranged = self._plan, self._arranged
        steps = [plan.steps[lane] for lane in lanes]
        nodes = tuple(step.node for step in steps if isinstance(step.node, Layers))
        root, parents = down_to(plan, lanes[0])[0], list(dict.fromkeys(step.parent for step in steps))
        kept = sorted({number for lane in lanes for number in arranged.kept[chain(plan, lane)]})
        begins = arranged.begins and parents == [root]
        by_row = bool(self._prompts(root))
        span = LayerSpan(nodes, tuple(parents.index(step.parent) for step in steps), tuple(kept), begins, by_row)
        tokens = arranged.tokens(*nodes)
        owners = {TRUNK, *(token[0] for token in tokens)}
        build = span_graph(span, self._shape, {owner: arranged.arrays(owner) for owner in owners})
        inputs = self._embedded(root, prompted=False) if begins else ()
        if not begins:
            inputs = tuple((f"hidden.{i}", (depth(plan, step), step, "")) for i, step in enumerate(parents))
        return GraphCall(
            graph=self._graph(("layers", span, tokens), build, span.label, alone=tokens if len(lanes) == 1 else ()),
            tasks=tuple(dict.fromkeys(name for step in steps for name in step.tasks)),
            inputs=(*inputs, *((name, (name, root, "")) for name in ("added", *span.reads(self._shape)))),
            states=tuple((f"state.{number}", tuple((number, lane, "") for lane in lanes)) for number in kept),
            layers=sum(node.stop - node.start for node in nodes),
            is_shared=all(is_plain(node) for node in chain(plan, lanes[0])),
            alone=lambda: [self._span([lane]) for lane in lanes] if len(lanes) > 1 else [],
        )

    def _besides(self) -> Iterator[GraphCall]:
        """In deterministic mode each isolated prompt in rows of its own, which see the states of the text."""
        if not self._arranged.deterministic:
            return
        keys: set[Key] = set()
        for name, read in self._reads.items():
            if not read.aside:
                continue
            prompt = self._own_prompt(name)
            tasks = tuple(task for task, r in self._reads.items() if r.aside and self._own_prompt(task) == prompt)
            steps = down_to(self._plan, read.at)
            for above, index in zip([-1, *steps], steps, strict=False):
                key = (depth(self._plan, index), index, prompt.part)
                if key in keys:
                    continue
                keys.add(key)
                if above < 0:
                    slots = len(self._arranged.group_of[name].slots)
                    table = self._table([prompt])
                    self._beside.setdefault(index, []).append(
                        ParallelStates(whose=prompt.part, slots=slots, prompts=table)
                    )
                    yield self._embedding(index, prompt.part, tasks)
                else:
                    # A layer that prompts alone need runs for them alone, and counts once.
                    first = all(at != index for _, at, _ in keys - {key})
                    counted = first and not any(self._plan.children(index))
                    yield self._layer_beside((above, index), prompt.part, tasks, counted=counted)

    def _layer_beside(self, steps: tuple[int, int], whose: str, tasks: tuple[str, ...], *, counted: bool) -> GraphCall:
        above, index = steps
        node, before = self._plan.steps[index].node, depth(self._plan, above)
        assert isinstance(node, Layers)
        shape, root = self._shape, down_to(self._plan, index)[0]
        build = beside_graph(node, shape, self._arranged.arrays(TRUNK))
        return GraphCall(
            graph=self._graph(("beside", node), build, f"layer {node.start} beside its text"),
            tasks=tasks,
            inputs=(
                ("hidden.0", (before, above, whose)),
                ("hidden.1", (before, above, "")),
                ("added", ("added", root, whose)),
                *(("turns", ("turns", root, "")) for _ in range(shape.rotary is not None)),
            ),
            states=(("state.1", ((1, index, whose),)),),
            layers=int(counted),
        )

    def _heads(self) -> Iterator[GraphCall]:
        # By their ids: the groups of a unit are many values to hash.
        units = {id(unit): unit for unit in map(self._arranged.unit_of.__getitem__, self._reads)}
        for unit in units.values():
            requested = [self._asked(group) for group in unit]
            if is_joint(self._arranged, unit, requested, gathers=self._gathers):
                yield self._joint_call(unit, requested)
                continue
            for group, names in zip(unit, requested, strict=True):
                if names:
                    few = is_few(self._arranged, group, names, gathers=self._gathers)
                    yield self._few(group, names) if few else self._head(group, names)

    def _few(self, group: SlotGroup[HeadForm, str], names: Sequence[str]) -> GraphCall:
        """A call that gathers the weights of these tasks."""
        arranged, form = self._arranged, group.form.form
        places = [place for place, slot in enumerate(group.slots) if slot.member in names]
        tasks = tuple(str(group.slots[place].member) for place in places)
        outputs = slot_outputs(arranged, group)
        graph = self._graph(
            ("few heads", form, group.key[1]),
            few_graph(arranged, group, outputs),
            f"poolers and heads of some of {', '.join(group.members)}",
            layers=False,
            alone=tuple(token for slot in group.slots if slot.member is not None for token in slot.tokens),
            outputs=outputs,
        )
        inputs, outputs = self._head_inputs(group, names, self._reads[names[0]].at), graph.recipe.outputs
        return GraphCall(
            graph=graph,
            tasks=tasks,
            inputs=inputs,
            chosen=places_of_few(form, outputs, places),
            answers=tuple(few_places(arranged, tasks, [outputs[place] for place in places])),
            form=form,
            alone=partial(self._each, group, tasks, inputs),
        )

    def _each(
        self, group: SlotGroup[HeadForm, str], names: Sequence[str], inputs: tuple[tuple[str, Key], ...]
    ) -> list[GraphCall]:
        """A call for each of these tasks."""
        return [self._group_call(self._only(group, name), [name], inputs) for name in names]

    def _asked(self, group: SlotGroup[HeadForm, str]) -> list[str]:
        return [name for name in group.members if name in self._reads]

    def _head(self, group: SlotGroup[HeadForm, str], names: Sequence[str]) -> GraphCall:
        return self._group_call(group, names, self._head_inputs(group, names, self._reads[names[0]].at))

    def _head_inputs(
        self, group: SlotGroup[HeadForm, str], names: Sequence[str], at: int
    ) -> tuple[tuple[str, Key], ...]:
        head = group.form
        read = Read(at=at, pool=head.form.pool, tasks=tuple(names))
        states = states_read(self._plan, read, mixed=not self._arranged.deterministic)
        root, whose = down_to(self._plan, at)[0], head.prompt
        inputs: list[tuple[str, Key]] = [
            (f"state.{i}", (number, step, whose)) for i, (step, number) in enumerate(states)
        ]
        if head.form.pool.positions == "prompt" and not whose:
            own = self._own_rows(group, names, root)
            self._own.setdefault(root, []).append(own)
            whose = own.whose
        inputs += [(name, (of, root, whose)) for name, of in _READ[head.form.pool.positions].items()]
        return tuple(inputs)

    def _joint_call(self, unit: Unit, requested: Sequence[Sequence[str]]) -> GraphCall:
        """The answers of all groups of a unit by one graph, whichever of them are asked."""
        graph, inputs = self._joint_graph(unit, next(self._reads[name].at for names in requested for name in names))
        answers, words, start = list[OutputPlace](), set[str](), 0
        for group, names in zip(unit, requested, strict=True):
            outputs = graph.recipe.outputs[start : start + len(group.slots)]
            places = list(answer_places(self._arranged, group, names, outputs))
            if group.form.form.pool.positions == "tokens":
                words.update(place.output for place in places)
            answers += places
            start += len(group.slots)
        return GraphCall(
            graph=graph,
            tasks=tuple(name for names in requested for name in names),
            inputs=tuple(inputs.items()),
            answers=tuple(answers),
            is_joint=True,
            words=frozenset(words),
            alone=lambda: [self._head(group, names) for group, names in zip(unit, requested, strict=True) if names],
        )

    def _joint_graph(self, unit: Unit, at: int) -> tuple[Graph, dict[str, Key]]:
        """A unit's graph, and what it reads of the states of this step and those above it."""
        above, inputs, outputs = down_to(self._plan, at), dict[str, Key](), list[str]()
        builds, named = list[Build](), list[dict[str, str]]()
        for number, group in enumerate(unit):
            own = slot_outputs(self._arranged, group)
            builds.append(slots_graph(self._arranged, group, own))
            outputs += [output_in(number, name) for name in own]
            named.append({})
            for name, key in self._head_inputs(group, (), at):
                of, step, _ = key
                # A state by its place in the chain: another plan may count its steps otherwise.
                named[-1][name] = of if isinstance(of, str) else f"state.{above.index(step)}.{of}"
                if window := group.form.form.window:  # made from the words, see `execution`
                    named[-1] |= {"near": f"near.{window}"} | ({name: f"{of}.{window}"} if name == "places" else {})
                inputs[named[-1][name]] = key
        label = f"poolers and heads of {', '.join(name for group in unit for name in group.members)}"
        forms = tuple((group.form.form, group.key[1]) for group in unit)
        build = joint_graph(builds, named)
        return self._graph(("joint heads", forms), build, label, layers=False, outputs=tuple(outputs)), inputs

    def _own_rows(self, group: SlotGroup[HeadForm, str], names: Sequence[str], root: int) -> OwnState:
        """The prompt rows of each slot; a slot that is not asked reads the first."""
        prompts = self._prompts(root)
        starts = dict(zip(prompts, np.cumsum([0, *(prompt.rows for prompt in prompts)]), strict=False))
        shape = (len(group.slots), max(prompt.rows for prompt in prompts))
        offsets, share = np.zeros(shape, np.int64), np.zeros((shape[0], 1, shape[1]), np.float32)
        for number, slot in enumerate(group.slots):
            if slot.member is not None and slot.member in names:
                prompt = self._own_prompt(slot.member)
                offsets[number, : prompt.rows] = starts[prompt] + np.arange(prompt.rows)
                share[number, 0, : prompt.rows] = 1 / prompt.rows
        return OwnState(whose=f"slots {len(self._own.get(root, ()))}", offsets=offsets, share=share)

    def _group_call(
        self, group: SlotGroup[HeadForm, str], names: Sequence[str], inputs: tuple[tuple[str, Key], ...]
    ) -> GraphCall:
        arranged, outputs = self._arranged, slot_outputs(self._arranged, group)
        key, label = tuple(slot.tokens for slot in group.slots), f"poolers and heads of {', '.join(group.members)}"
        build = slots_graph(arranged, group, outputs)
        graph = self._graph(("heads", group.form.form, key), build, label, layers=False, outputs=outputs)
        return GraphCall(
            graph=graph,
            tasks=tuple(names),
            inputs=inputs,
            answers=tuple(answer_places(arranged, group, names, graph.recipe.outputs)),
            form=group.form.form,
            alone=partial(self._each, group, names, inputs) if len(group.members) > 1 else tuple,
        )

    def _only(self, group: SlotGroup[HeadForm, str], name: str) -> SlotGroup[HeadForm, str]:
        """The group with one member: in its slot, where its place among the others matters."""
        slots = [slot if slot.member == name else GroupSlot() for slot in group.slots]
        if not self._arranged.deterministic and group.form.form.pool.positions != "prompt":
            slots = [slot for slot in slots if slot.member is not None]
        return SlotGroup(group.form, tuple(slots))
