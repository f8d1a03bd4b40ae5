"""The model of a trunk and parts: runs a plan with gradients, and computes the values that a store keeps."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from polyhead.codecs import NO_TOKEN, TokenCodec
from polyhead.deep.nn.deltas import SideBySide
from polyhead.deep.nn.layer import LayerDelta
from polyhead.deep.nn.runtime import to_host
from polyhead.deep.nn.trunk import Noise, States, Trunk
from polyhead.deep.sharing.part import Family, OwnedPart, PooledPart
from polyhead.errors import PlanError
from polyhead.plan import PLACE_OF, TRUNK, Codec, Delta, Embed, Layers, Path, Plan, Pool, Prompt
from polyhead.plan.coding import through, tokens_of
from polyhead.plan.passes import Aside, Passes, delta_key, layers_at, legs, passes_of, prompt_rows, read_first, stages

SIDE_BY_SIDE = 8192  # maximum tokens, padding included, of one stack


class MultiTaskModel(nn.Module):
    """A trunk, the parts of some tasks and their families; a part that tasks share is one module.

    With `narrow`, layers of which only the first position, or the prompt rows, are read, compute only these: cheaper,
    with other bits. With `stacked`, paths through the same layers of the trunk that differ in their delta or in earlier
    nodes run as one pass over all their rows, and all isolated prompts at once: cheaper, for serving, since weights are
    stacked once. Without it they run one after another, and an additional one changes no bit of another.
    """

    def __init__(
        self,
        trunk: Trunk,
        parts: Mapping[str, PooledPart],
        families: Mapping[str, Family] | None = None,
        *,
        narrow: bool = False,
        stacked: bool = False,
    ) -> None:
        super().__init__()
        self.trunk = trunk
        self.parts, self.families = dict(parts), dict(families or {})
        self.layers_run = 0  # layers evaluated since the model was made, for receipts and tests
        self._narrow, self._stacked = narrow, stacked
        self._parts = {part.owner: part for part in self.parts.values()}
        self._kept: dict[int, tuple[list[Delta | None], SideBySide]] = {}  # the last stack of each layer
        for index, part in enumerate(dict.fromkeys(self.parts.values())):
            self.add_module(f"part_{index}", part)
        for index, family in enumerate(self.families.values()):
            self.add_module(f"family_{index}", family)

    def stored(
        self, plan: Plan, batch: TextBatch, *, noise: Noise | None = None, learns: str | None = None
    ) -> dict[str, StoredPool]:
        """Every task's stored value, through its codec, from one run of the plan.

        `noise` changes the text's word vectors. `learns` names the task whose loss follows: the prompts of other tasks
        then get no gradient, while no bit of any value changes.
        """
        passes = passes_of(plan)
        if batch.states is not None:
            known = {aside.step: batch.states for aside in passes.asides.values()}
            return self._asides(passes.asides, known, learns)
        states: dict[int, States] = {}
        for stage in stages(passes.plan, together=self._stacked):
            states |= self._run(passes, stage, states, batch, noise=noise, learns=learns)
        return self._pooled(passes.plan, batch, states) | self._asides(passes.asides, states, learns)

    def staged(self, plan: Plan, batch: TextBatch) -> Iterator[Reached]:
        """The tasks of the plan as soon as what they pool is known; the next request runs more layers.

        Tasks that need the fewest layers come first.
        """
        passes, plan_legs = passes_of(plan), legs(plan, together=self._stacked)
        assert batch.states is None
        layers_left, states = sum(leg.layers for leg in plan_legs), dict[int, States]()
        for leg in plan_legs:
            for group in leg.groups:
                states |= self._run(passes, group, states, batch)
            layers_left -= leg.layers
            yield Reached(self, passes, leg.tasks, batch, dict(states), layers_left)

    def reached(self, plan: Plan, batch: TextBatch) -> Reached:
        """All tasks of the plan at once."""
        passes, states = passes_of(plan), dict[int, States]()
        for stage in stages(passes.plan, together=self._stacked):
            states |= self._run(passes, stage, states, batch)
        return Reached(self, passes, plan.tasks, batch, states, 0)

    def forward(self, plan: Plan, batch: TextBatch) -> dict[str, Tensor]:
        """Outputs of every task of the plan that reads one input: (rows, labels) or (rows, words, labels)."""
        return {task: self.parts[task](v.values, v.mask) for task, v in self.stored(plan, batch).items()}

    def _run(
        self,
        passes: Passes,
        stage: Sequence[int],
        states: Mapping[int, States],
        batch: TextBatch,
        *,
        noise: Noise | None = None,
        learns: str | None = None,
    ) -> dict[int, States]:
        """The states after steps that run together."""
        first, step = stage[0], passes.plan.steps[stage[0]]
        if isinstance(step.node, Embed):
            return {first: self._start(step.node, batch, noise=noise, learns=learns)}
        if isinstance(step.node, Layers) and step.node.weights == TRUNK:
            return self._run_trunk(passes, stage, states)
        assert isinstance(step.node, Layers)
        return {first: self._run_own(step.node, states[step.parent])}

    def _start(self, node: Embed, batch: TextBatch, *, noise: Noise | None, learns: str | None) -> States:
        prompts = [self._prompt(prompt, learns) for prompt in node.prompts]
        return self.trunk.start(
            batch.ids,
            batch.mask,
            segments=batch.segments,
            prompts=torch.cat(prompts) if prompts else None,
            shift=node.shift,
            noise=noise,
        )

    def _prompt(self, prompt: Prompt, learns: str | None) -> Tensor:
        """The rows, (rows, embedding width); without a gradient if another task is trained."""
        embedding = self._owner(prompt.part).prompt
        if embedding is None or len(embedding.weight) != prompt.rows:
            raise PlanError(f"'{prompt.part}' has no prompt like this here", got=prompt)
        other = learns is not None and prompt.part in self._parts and prompt.part != self.parts[learns].owner
        return embedding.weight.detach() if other else embedding.weight

    def _run_trunk(self, passes: Passes, stage: Sequence[int], states: Mapping[int, States]) -> dict[int, States]:
        """The states after steps over the same layers of the trunk."""
        plan, after_steps = passes.plan, dict[int, States]()
        for indices in self._stacks(passes, stage, states):
            nodes, before = [layers_at(plan, i) for i in indices], [states[plan.steps[i].parent] for i in indices]
            first, stop = self._read_first(plan, indices[0]), nodes[0].stop
            deltas = self._deltas([node.delta for node in nodes], range(nodes[0].start, stop))
            self.layers_run += len(indices) * (stop - nodes[0].start)
            if len(indices) == 1:
                keep = passes.is_seen(indices[0])
                after = [self.trunk.go_on(before[0], stop=stop, deltas=deltas, first=first, keep=keep)]
            else:
                after = self._run_stack(before, stop, deltas, first=first)
            after_steps |= dict(zip(indices, after, strict=True))
        return after_steps

    def _stacks(self, passes: Passes, stage: Sequence[int], states: Mapping[int, States]) -> Iterator[list[int]]:
        """Groups of steps that run together, similar deltas next to each other; a text that prompts see runs alone."""
        plan, alike = passes.plan, dict[tuple[int, int, int, int], list[int]]()
        for index in sorted(stage, key=lambda step_index: delta_key(layers_at(plan, step_index).delta)):
            rows, tokens, _ = states[plan.steps[index].parent].last.shape
            first = self._read_first(plan, index)
            apart = index if passes.is_seen(index) else -1
            alike.setdefault((rows, tokens, first, apart), []).append(index)
        for (rows, tokens, *_), steps in alike.items():
            most = max(1, SIDE_BY_SIDE // max(1, rows * tokens))
            yield from (steps[at : at + most] for at in range(0, len(steps), most))

    def _read_first(self, plan: Plan, index: int) -> int:
        return read_first(plan, index) if self._narrow else 0

    def _run_stack(
        self, before: Sequence[States], stop: int, deltas: Mapping[int, LayerDelta], *, first: int
    ) -> list[States]:
        """The states up to `stop`, from one pass over all rows."""
        rows = States(
            hidden=(torch.cat([state.last for state in before]),),
            mask=torch.cat([state.mask for state in before]),
            first=before[0].depth,
            before=before[0].before,
        )
        new = self.trunk.go_on(rows, stop=stop, deltas=deltas, first=first).hidden[1:]
        groups = zip(*(hidden.view(len(before), -1, *hidden.shape[1:]) for hidden in new), strict=True)
        return [
            States(hidden=(*state.hidden, *group), mask=state.mask, first=state.first, before=state.before)
            for state, group in zip(before, groups, strict=True)
        ]

    def _deltas(self, nodes: Sequence[Delta | None], layers: range) -> dict[int, LayerDelta]:
        """The deltas of these layers, for as many groups of rows as there are nodes."""
        by_layer: dict[int, LayerDelta] = {}
        for index in layers if any(nodes) else ():
            deltas = [None if node is None else self._delta(node, index) for node in nodes]
            if len(set(nodes)) == 1 and deltas[0] is not None:
                by_layer[index] = deltas[0]
                continue
            kept = self._kept.get(index)
            if kept is None or kept[0] != nodes:
                kept = self._kept[index] = (list(nodes), SideBySide(deltas))
            by_layer[index] = kept[1]
        return by_layer

    def _delta(self, node: Delta, index: int) -> LayerDelta:
        adapters = self._owner(node.part).delta
        if adapters is None:
            raise PlanError("no part here owns a delta in these layers", got=node)
        return adapters.at(node, index)

    def _run_own(self, node: Layers, before: States) -> States:
        """The states after layers of a part's own."""
        part = self._parts.get(node.weights)
        if not isinstance(part, OwnedPart) or node.delta is not None:
            raise PlanError(
                "no part here owns these layers", got=node, allowed=f"layers of the trunk or of {list(self._parts)}"
            )
        self.layers_run += node.stop - node.start
        return part.run(before, stop=node.stop)

    def _owner(self, name: str) -> OwnedPart | Family:
        owner = self._parts.get(name) or self.families.get(name)
        if not isinstance(owner, (OwnedPart, Family)):
            raise PlanError(
                "no part here owns what these layers or prompts read", got=name, allowed=[*self._parts, *self.families]
            )
        return owner

    def _pooled(
        self, plan: Plan, batch: TextBatch, states: Mapping[int, States], tasks: Collection[str] | None = None
    ) -> dict[str, StoredPool]:
        """Every task's value, or only that of `tasks`, each with all tasks that read the same value."""
        by_task: dict[str, StoredPool] = {}
        values: dict[tuple[int, bool, Pool], StoredPool] = {}
        for step in plan.steps:
            if isinstance(step.node, Pool) and (tasks is None or any(task in tasks for task in step.tasks)):
                pool, of_prompt = step.node.stored(), step.node.positions == "prompt"
                key = (step.parent, of_prompt, pool)
                if key not in values:
                    rows = read_rows(states[step.parent], step.node, prompt_rows(plan, step.parent))
                    value = stored_value(rows, pool, batch.words)
                    values[key] = coded(value, pool.codec, None if of_prompt else _tokens_of(pool, batch))
                by_task.update(dict.fromkeys(step.tasks, values[key]))
        return by_task

    def _asides(
        self, asides: Mapping[str, Aside], states: Mapping[int, States], learns: str | None
    ) -> dict[str, StoredPool]:
        """The values of tasks with isolated prompts."""
        by_task: dict[str, StoredPool] = {}
        for index in dict.fromkeys(aside.step for aside in asides.values()):
            tasks = {task: aside for task, aside in asides.items() if aside.step == index}
            prompts = dict.fromkeys(prompt for aside in tasks.values() for prompt in aside.prompts)
            rows = self._rows_beside(states[index], list(prompts), learns)
            for task, aside in tasks.items():
                prompt_values = torch.cat([rows[prompt] for prompt in aside.prompts], dim=1)
                mask = states[index].mask.new_ones(prompt_values.shape[:2])
                value = StoredPool(values=prompt_values.float().unsqueeze(2), mask=mask)
                by_task[task] = coded(value, aside.pool.codec, None)
        return by_task

    def _rows_beside(self, text: States, prompts: Sequence[Prompt], learns: str | None) -> dict[Prompt, Tensor]:
        """The last state of each prompt, (rows, prompt rows, width)."""
        by_prompt: dict[Prompt, Tensor] = {}
        # In one pass, each would see the others as masked keys, which changes the order of sums.
        for group in [prompts] if self._stacked else [[prompt] for prompt in prompts]:
            sizes = [prompt.rows for prompt in group]
            rows = torch.cat([self._prompt(prompt, learns) for prompt in group])
            embedded = self.trunk.embeddings.of_prompts(rows.expand(len(text.mask), -1, -1))
            last = self.trunk.beside(text, embedded, sizes=sizes).last
            by_prompt |= dict(zip(group, torch.split(last, sizes, dim=1), strict=True))
        return by_prompt


class Reached:
    """Tasks of a plan after the layers that they need; `left` is the number of layers that others need still."""

    def __init__(
        self,
        model: MultiTaskModel,
        passes: Passes,
        tasks: Sequence[str],
        batch: TextBatch,
        states: Mapping[int, States],
        layers_left: int,
    ) -> None:
        self._model, self._passes, self._batch, self._states = model, passes, batch, states
        self.tasks, self.layers_left = tuple(tasks), layers_left

    def alike(self) -> Iterator[tuple[States, list[str]]]:
        """The text's states, without prompt rows, and the tasks that pool them; not of isolated prompts."""
        plan, pools = self._passes.plan, dict[int, list[str]]()
        for step in plan.steps:
            if isinstance(step.node, Pool) and step.node.positions != "prompt":
                pools.setdefault(step.parent, []).extend(task for task in step.tasks if task in self.tasks)
        for parent, tasks in pools.items():
            if tasks:
                yield text_rows(self._states[parent], prompt_rows(plan, parent)), tasks

    def values(self, tasks: Sequence[str]) -> dict[str, StoredPool]:
        """The stored values of these tasks."""
        asides = {task: aside for task, aside in self._passes.asides.items() if task in tasks}
        pooled_tasks = [task for task in tasks if task not in asides]
        pooled = self._model._pooled(self._passes.plan, self._batch, self._states, pooled_tasks)
        return {task: pooled[task] for task in pooled_tasks} | self._model._asides(asides, self._states, None)


class TextBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids ready for the trunk; `words` holds each word's first sub-token, -1 if there is none."""

    ids: Tensor  # (rows, tokens)
    mask: Tensor  # (rows, tokens), True where a token is
    segments: Tensor  # (rows, tokens)
    words: Tensor | None = None  # (rows, words)
    states: States | None = None  # known keys and values, if only isolated prompts read the text
    written: Tensor | None = None  # (rows, steps): the tokens that a decoder reads of a text to write


class StoredPool(msgspec.Struct, frozen=True, kw_only=True):
    """The value of a pool in stored form: a store keeps it, a part reads it."""

    values: Tensor  # (rows, positions, layers, width) float32
    mask: Tensor  # (rows, positions)


def read_rows(states: States, pool: Pool, prompts: int) -> States:
    """The rows that the pool reads: the `prompts` first ones, or those of the text after them."""
    if not prompts:
        return states
    return _chosen_rows(states, slice(0, prompts)) if pool.positions == "prompt" else text_rows(states, prompts)


def text_rows(states: States, prompts: int) -> States:
    """The rows of the text after those of prompts."""
    return _chosen_rows(states, slice(prompts, None)) if prompts else states


def _chosen_rows(states: States, chosen: slice) -> States:
    hidden = tuple(h[:, chosen] for h in states.hidden)
    return States(hidden=hidden, mask=states.mask[:, chosen], first=states.first)


def stored_value(states: States, pool: Pool, words: Tensor | None) -> StoredPool:
    """The value of a pool in stored form before its codec: (rows, positions, layers, width) in float32.

    With layers 'mean' and a codec after the mean there is one layer; with a codec before the mean the averaged layers
    are kept separately, since each is encoded alone (Du et al. 2020). A word without its own sub-token (cut off, or
    normalized to nothing) is a row of zeros.
    """
    depth = states.depth
    if pool.layers == "mean" and pool.of > depth:
        raise PlanError("a pool reads more layers than its path runs", got=pool.of, allowed=depth)
    chosen = {"last": [depth], "mean": list(range(depth - pool.of + 1, depth + 1)), "all": list(range(1, depth + 1))}
    layers = [states.layer(i) for i in chosen[pool.layers]]
    mask = states.mask
    if pool.positions in PLACE_OF:
        index = (mask.sum(dim=1) - 1).clamp(0, PLACE_OF[pool.positions]).view(-1, 1, 1)
        layers, mask = [h.gather(1, index.expand(-1, -1, h.shape[-1])) for h in layers], mask[:, :1]
    elif pool.positions == "mean":
        weights = (mask / mask.sum(dim=1, keepdim=True)).unsqueeze(-1)
        layers = [(h.float() * weights).sum(dim=1, keepdim=True) for h in layers]
        mask = mask.new_ones(len(mask), 1)
    elif pool.positions == "tokens":
        if words is None:
            raise PlanError("a path that reads words needs each word's first sub-token", do="give the batch its words")
        mask = words >= 0
        index = words.clamp(min=0).long().unsqueeze(-1)
        layers = [h.gather(1, index.expand(-1, -1, h.shape[-1])) * mask.unsqueeze(-1) for h in layers]
    if pool.layers == "mean" and not pool.codec.before_mean:
        total = sum(layers[1:], layers[0].float())
        return StoredPool(values=(total / len(layers)).unsqueeze(2), mask=mask)
    return StoredPool(values=torch.stack([h.float() for h in layers], dim=2), mask=mask)


def stored_values(trunk: Trunk, paths: Sequence[Path], batch: TextBatch) -> list[np.ndarray]:
    """The value of each stored path over the trunk's own layers before its codec, from one pass without gradients.

    float32 (positions of all texts, layers, width): every token, or one per text.
    """
    depths = [path.depth for path in paths]
    states = trunk.go_on(trunk.start(batch.ids, batch.mask, segments=batch.segments), stop=max(depths, default=0))
    values = []
    for path, depth in zip(paths, depths, strict=True):
        value = stored_value(states.upto(depth), path.pool, None)
        values.append(value.values[value.mask])
    return to_host(values) if batch.ids.is_cuda else [value.numpy() for value in values]


def coded(value: StoredPool, codec: Codec, tokens: np.ndarray | None) -> StoredPool:
    """The value as a reader of the store would see it: encoded and decoded.

    `tokens` (rows, positions) are those of `plan.coding.tokens_of`; None: positions without tokens.
    """
    if codec.format.is_exact:
        return value
    of = np.full((1, 1), NO_TOKEN) if tokens is None else tokens
    decoded = through(value.values.detach().cpu().numpy().astype(np.float32), codec, of[:, :, None])
    return StoredPool(values=torch.from_numpy(decoded).to(value.values.device), mask=value.mask)


def _tokens_of(pool: Pool, batch: TextBatch) -> np.ndarray | None:
    """The token id of each position that the pool reads, if its codec needs it."""
    if not isinstance(pool.codec.format, TokenCodec):
        return None
    words = None if batch.words is None else batch.words.cpu().numpy()
    return tokens_of(pool, ids=batch.ids.cpu().numpy(), mask=batch.mask.cpu().numpy(), words=words)
