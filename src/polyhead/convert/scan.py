"""The layers that encoders share bit for bit, and the savings of merging them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from polyhead.bundle.owners import owner_named
from polyhead.encoder.data import TrunkData, arrays_digest
from polyhead.encoder.shape import RELATIVE, Architecture
from polyhead.errors import TrunkError, WrongTrunk
from polyhead.plan import TRUNK, Delta, Embed, Head, Layers, Node, Path, Plan, Pool, Step, merge, shared_layers
from polyhead.plan.cost import cost_of, parameters
from polyhead.text.tokenizer_file import open_tokenizer
from polyhead.values import Value, digested


class ScannedEncoder(Value):
    """The digests of an encoder; for an adapter, those of its base, with its layers in `adapted`."""

    name: str
    architecture: Architecture
    tokenizer: str  # digest of its content without padding and truncation
    embeddings: str
    layers: tuple[str, ...]
    pool: Pool = Pool()
    head: Head | None = None  # None: only an encoder, or an unreadable head
    base: str = ""
    adapted: tuple[Layers, ...] = ()

    @property
    def root(self) -> str:
        """Digest of shape, tokenizer and embeddings, which must be equal before any layer can be shared."""
        facts = [digested(_shape(self)), self.tokenizer, self.embeddings]
        return hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()

    @property
    def parameters(self) -> int:
        """The number of parameters that it has when it runs alone."""
        return parameters(merge({self.name: self.path(len(self.layers), trunk=self.root)}), self.architecture)

    @property
    def ends(self) -> tuple[Node, ...]:
        """The nodes after the last layer; only a pool without a head."""
        return (self.pool,) if self.head is None else (self.pool, self.head)

    @property
    def run(self) -> tuple[tuple[str, Delta | None], ...]:
        """For each layer the digest of its arrays, and its delta."""
        deltas = {i: node.delta for node in self.adapted for i in range(node.start, node.stop)}
        return tuple((layer, deltas.get(i)) for i, layer in enumerate(self.layers))

    def own(self, start: int) -> tuple[Layers, ...]:
        """The model's layers from `start` on: the trunk's with its deltas, or its own."""
        depth = len(self.layers)
        whole = self.adapted or (Layers(start=0, stop=depth, weights=owner_named(self.name)),)
        return tuple(msgspec.structs.replace(node, start=max(start, node.start)) for node in whole if node.stop > start)

    def path(self, tap: int, *, trunk: str) -> Path:
        """The first `tap` layers of the trunk of this digest, then the model's own layers and head.

        An adapter runs all layers of the trunk, with its deltas.
        """
        layers = self.adapted or (*shared_layers(tap), *self.own(tap))
        return Path(nodes=(Embed(trunk=trunk), *layers, *self.ends))


class SharedLayers(Value):
    """The equal layers of two encoders, and the first difference."""

    one: str
    other: str
    layers: int | None  # equal layers from the first on; 0: the embeddings alone; None: nothing
    differs: str  # "" if one is a prefix of the other

    @property
    def prefix(self) -> str:
        """What is equal, in words."""
        if not self.layers:
            return "nothing" if self.layers is None else "embeddings"
        return "embeddings, layer 1" if self.layers == 1 else f"embeddings, layers 1 to {self.layers}"

    def beside(self, name: str) -> str:
        """The other one of the two."""
        return self.other if self.one == name else self.one


class Group(Value):
    """Encoders over one trunk: `depth` layers of the encoder `trunk`, and the number of them that each model reads."""

    trunk: str
    depth: int
    taps: dict[str, int]


class ScanTotals(Value):
    """The total cost of some models on one text, and the bytes of their arrays in float32."""

    layers: int
    flops: int
    bytes: int


def scanned(data: TrunkData, ends: tuple[Pool, Head | None] = (Pool(), None)) -> ScannedEncoder:
    """The digests of an encoder; `ends` are what reads its last layer, if known."""
    shape = data.architecture
    return ScannedEncoder(
        name=data.name,
        architecture=shape,
        tokenizer=tokenizer_digest(data.tokenizer),
        embeddings=_block(data.arrays, "embeddings."),
        layers=tuple(_block(data.arrays, f"layers.{i}.", f"{RELATIVE}.") for i in range(shape.layers)),
        pool=ends[0],
        head=ends[1],
    )


def tokenizer_digest(tokenizer: bytes) -> str:
    """SHA-256, in hex, of a tokenizer file's content without padding, truncation and layout."""
    opened = open_tokenizer(tokenizer)
    opened.no_padding()
    opened.no_truncation()
    return hashlib.sha256(str(opened.to_str()).encode()).hexdigest()


def shared(first: ScannedEncoder, second: ScannedEncoder) -> SharedLayers:
    """How far two encoders are equal: shape and tokenizer, then embeddings, then layers 1, 2, ..., all bit for bit."""
    layers, differs = None, ""
    if _shape(first) != _shape(second):
        differs = f"the shape ({_shape_difference(first.architecture, second.architecture)})"
    elif first.tokenizer != second.tokenizer:
        differs = "the tokenizer"
    elif first.embeddings != second.embeddings:
        differs = "the embeddings"
    else:
        equal = [a == b for a, b in zip(first.run, second.run, strict=False)]
        layers = equal.index(False) if False in equal else len(equal)
        differs = f"layer {layers + 1}" if layers < len(equal) else ""
    return SharedLayers(one=first.name, other=second.name, layers=layers, differs=differs)


def pairs(models: Sequence[ScannedEncoder]) -> list[SharedLayers]:
    """The shared layers of every two models."""
    return [shared(first, second) for i, first in enumerate(models) for second in models[i + 1 :]]


def group_of(models: Sequence[ScannedEncoder]) -> Group:
    """The models over the deepest prefix that two of them share, at least one layer; for one model, all its layers.

    Raises TrunkError that names two models which do not even share their embeddings.
    """
    if len(models) == 1:
        return over(models[0], models)
    sharing_pairs = [pair for pair in pairs(models) if pair.layers is not None]
    if not sharing_pairs:
        raise _apart(shared(models[0], models[1]))
    best = max(sharing_pairs, key=lambda pair: pair.layers or 0)  # the first among equals
    trunk = next(model for model in models if model.name == best.one)
    return over(trunk, models, depth=max(1, best.layers or 0))


def over(trunk: ScannedEncoder, models: Sequence[ScannedEncoder], *, depth: int | None = None) -> Group:
    """The models over the first `depth` layers of `trunk` (by default all).

    Raises TrunkError for a model that shares nothing, WrongTrunk for an adapter whose base is not the trunk.
    """
    depth = len(trunk.layers) if depth is None else depth
    taps = {}
    for model in models:
        if model.base:
            _check_base(model, trunk, depth)
        common = shared(trunk, model)
        if common.layers is None:
            raise _apart(common)
        taps[model.name] = min(common.layers, depth)
    return Group(trunk=trunk.name, depth=depth, taps=taps)


def groups_of_models(models: Sequence[ScannedEncoder], base: ScannedEncoder | None = None) -> list[Group]:
    """Groups of models that share something: those over `base` first, then in the given order."""
    result: list[Group] = []
    remaining = list(models)
    if base is not None:
        relatives, remaining = _near(base, remaining)
        result += [over(base, relatives)] if relatives else []
    while remaining:
        relatives, remaining = _near(remaining[0], remaining)
        result.append(group_of(relatives))
    return result


def separate_cost(models: Sequence[ScannedEncoder], tokens: int) -> ScanTotals:
    """Cost of the models if each runs its own encoder."""
    plans = [(merge({each.name: each.path(len(each.layers), trunk=each.root)}), each.architecture) for each in models]
    return _totals(plans, tokens)


def together(grouped: Sequence[Group], models: Mapping[str, ScannedEncoder], tokens: int) -> ScanTotals:
    """Cost of the models if every group is merged over its trunk."""
    plans = []
    for group in grouped:
        any_of_them = models[next(iter(group.taps))]
        plan = merge({name: models[name].path(tap, trunk="") for name, tap in group.taps.items()})
        plans.append((plan, any_of_them.architecture.first_layers(group.depth)))
    return _totals(plans, tokens)


def _totals(plans: Sequence[tuple[Plan, Architecture]], tokens: int) -> ScanTotals:
    costs = [cost_of(plan, shape, tokens) for plan, shape in plans]
    return ScanTotals(
        layers=sum(cost.layer_evaluations for cost in costs),
        flops=sum(cost.flops for cost in costs),
        bytes=sum(cost.bytes for cost in costs),
    )


def sharing(models: Sequence[ScannedEncoder], names: Mapping[str, str]) -> Plan:
    """A plan for drawing, not for running: layers that several models share bit for bit occur once.

    It may contain several trunks, and layers outside the trunk that only some models share.
    """
    steps: list[Step] = []
    remaining = list(models)
    while remaining:
        near, remaining = _near(remaining[0], remaining)
        steps.append(_step(Embed(trunk=near[0].root), -1, near, names))
        _grow(steps, near, 0, len(steps) - 1, names)
    return Plan(steps=tuple(steps))


def _grow(
    steps: list[Step], models: Sequence[ScannedEncoder], start: int, parent: int, names: Mapping[str, str]
) -> None:
    """Adds the models' layers after the first `start`, which all of them share."""
    if len(models) == 1:
        (model,) = models
        owner = owner_named(names[model.name])
        for node in (*(_owned(node, owner) for node in model.own(start)), *model.ends):
            steps.append(_step(node, parent, models, names))
            parent = len(steps) - 1
        return
    stop = start
    while len({model.run[stop : stop + 1] for model in models}) == 1 and stop < len(models[0].layers):
        stop += 1
    if stop > start:
        steps.append(_step(Layers(start=start, stop=stop), parent, models, names))
        parent = len(steps) - 1
    for layer in dict.fromkeys(model.run[stop : stop + 1] for model in models):
        same = [model for model in models if model.run[stop : stop + 1] == layer]
        for members in [same] if layer else [[model] for model in same]:
            _grow(steps, members, stop, parent, names)


def _step(node: Node, parent: int, models: Sequence[ScannedEncoder], names: Mapping[str, str]) -> Step:
    return Step(node=node, parent=parent, tasks=tuple(names[model.name] for model in models))


def _owned(node: Layers, owner: str) -> Layers:
    """The same layers under another owner."""
    if node.delta is not None:
        return msgspec.structs.replace(node, delta=msgspec.structs.replace(node.delta, part=owner))
    return node if node.weights == TRUNK else msgspec.structs.replace(node, weights=owner)


def _near(
    model: ScannedEncoder, candidates: Sequence[ScannedEncoder]
) -> tuple[list[ScannedEncoder], list[ScannedEncoder]]:
    """The candidates that share at least the embeddings with this model, and the others."""
    near = [candidate for candidate in candidates if candidate.root == model.root]
    return near, [candidate for candidate in candidates if candidate.root != model.root]


def _block(arrays: Mapping[str, np.ndarray], prefix: str, *others: str) -> str:
    """The digest of the arrays whose names begin so; the first prefix is left out of names."""
    read = {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith((prefix, *others))}
    return arrays_digest(read)


def _shape(model: ScannedEncoder) -> Architecture:
    """The parts of the shape that must be equal; the depth only where a norm stands behind the last layer."""
    shape = model.architecture
    return msgspec.structs.replace(shape, layers=shape.whole_layers if shape.norm_first else 1, cut_from=None)


def _shape_difference(first: Architecture, second: Architecture) -> str:
    """The first differing fields, ignoring depth where it may differ."""
    names = (name for name in ("family", *Architecture.__struct_fields__) if name not in ("layers", "cut_from"))
    if first.norm_first and second.norm_first and first.whole_layers != second.whole_layers:
        return f"layers {first.whole_layers} and {second.whole_layers}, of which the last has a norm"
    values = {name: (getattr(first, name), getattr(second, name)) for name in names}
    different = [f"{name} {a} and {b}" for name, (a, b) in values.items() if a != b]
    return ", ".join([*different[:2], *(["..."] if len(different) > 2 else [])])


def _check_base(model: ScannedEncoder, trunk: ScannedEncoder, depth: int) -> None:
    """Raises WrongTrunk unless the trunk's first layers are exactly the adapter's base, bit for bit."""
    common = shared(trunk, msgspec.structs.replace(model, adapted=()))
    if common.layers is None or min(common.layers, depth) < len(model.layers):
        raise WrongTrunk(
            f"{model.name} adapts another encoder than {trunk.name}",
            got=f"its base {model.base}, of which {common.differs or 'the depth'} differs",
            allowed=f"a base whose arrays are those of {trunk.name}, bit for bit",
            do="import it over its own base, into a bundle of its own",
        )


def _apart(pair: SharedLayers) -> TrunkError:
    return TrunkError(
        f"{pair.one} and {pair.other} share nothing",
        got=f"{pair.differs} differs".replace("embeddings differs", "embeddings differ"),
        allowed="one tokenizer, one shape apart from depth, and embeddings that are equal bit for bit",
        do="leave one of them out; a model whose embeddings were trained is a trunk of its own",
    )
