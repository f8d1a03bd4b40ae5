"""What a store keeps of each document: taps, which say layers and a codec, as paths of a trunk."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from polyhead import plan as planning
from polyhead.arguments import check_fields
from polyhead.bundle.manifest import TaskRecord
from polyhead.codecs import CODECS, EXACT, ONE_BIT
from polyhead.encoder.data import TrunkData
from polyhead.engine.backends.prefix import stored_layers, stored_paths, with_every_token
from polyhead.errors import BackendError, ConfigError, StoreError, UnknownTask
from polyhead.plan import Codec, Embed, Layers, Path, Pool
from polyhead.project.strategies.base import with_codec
from polyhead.store.corpus.base import FeatureColumn
from polyhead.store.fill import BatchValues, fixed_codec
from polyhead.values import Value

FORM = "LAYERS or LAYERS:CODEC, with LAYERS 'last', 'meanN' (of the last N) or 'all', such as mean4:token1"
Values = Callable[[Path, int], Iterable[BatchValues]]
"""The stored value of a path for so many training texts."""


class Tap(Value):
    """Every token of some layers of the trunk, written by a codec."""

    layers: Literal["last", "mean", "all"] = "mean"
    of: int = 4  # last layers that `mean` averages; cut to the trunk's depth
    codec: str = ONE_BIT
    per: Literal["tensor", "dimension"] = "tensor"  # of the codec's constants, where it has any
    before_mean: bool = False  # each layer by itself is written

    def __post_init__(self) -> None:
        check_fields(self)
        CODECS.named(self.codec)
        if self.of < 1:
            raise ConfigError("a tap averages at least one layer", got=self.of)

    @classmethod
    def parsed(cls, text: str) -> Tap:
        """The tap that a command line names; raises ConfigError."""
        match = re.fullmatch(r"(last|all|mean)(\d{1,4})?(?::(\w+))?", text)
        if match is None or (match[1] != "mean" and match[2]):
            raise ConfigError("a tap has another form", got=text, allowed=FORM)
        layers: Literal["last", "mean", "all"] = (
            "last" if match[1] == "last" else "all" if match[1] == "all" else "mean"
        )
        return cls(layers=layers, of=int(match[2] or 4), codec=match[3] or ONE_BIT)

    def path(self, trunk: TrunkData) -> Path:
        """The path of the tap over a trunk, with the codec's name and without its constants."""
        depth = trunk.architecture.layers
        pool = Pool(
            layers=self.layers,
            of=min(self.of, depth) if self.layers == "mean" else 1,
            positions="all",
            codec=Codec(name=self.codec, before_mean=self.before_mean),
        )
        return Path(nodes=(Embed(trunk=trunk.digest), Layers(start=0, stop=depth), pool))


def tapped_paths(tasks: Mapping[str, TaskRecord], names: Sequence[str]) -> list[Path]:
    """What these tasks read of a store, each value once, every token where they read words.

    Raises UnknownTask, and BackendError for a task that does not follow from the trunk's own layers.
    """
    unknown = [name for name in names if name not in tasks]
    if unknown:
        raise UnknownTask(f"the bundle has no task {', '.join(map(repr, unknown))}", got=unknown, allowed=sorted(tasks))
    paths = []
    for name in names:
        try:
            paths += stored_paths([with_every_token(tasks[name].path.stored())])
        except BackendError as error:
            raise BackendError(f"task '{name}' cannot be answered from a store: {error.what}", do=error.do) from None
    return list(dict.fromkeys(paths))


def column_of(path: Path, width: int) -> FeatureColumn:
    """The features that a store keeps for a stored path."""
    return FeatureColumn(
        digest=planning.digest(path), layers=stored_layers(path), width=width, codec=path.pool.codec, path=path
    )


def is_whole(codec: Codec) -> bool:
    """Whether nothing is left to be fixed from data."""
    return not codec.format.is_fixed_from_data or bool(codec.scale or codec.arrays)


def kept_path(path: Path, kept: Sequence[FeatureColumn]) -> Path | None:
    """The path as a store keeps it: itself, or with the constants that the store's codec of that name has."""
    for column in kept:
        wanted = path.pool.codec
        is_same = (column.codec.name, column.codec.before_mean) == (wanted.name, wanted.before_mean)
        candidate = path if is_whole(wanted) or not is_same else with_codec(path, column.codec)
        if planning.digest(candidate) == column.digest:
            return candidate
    return None


def kept_paths(location: str, paths: Sequence[Path], kept: Sequence[FeatureColumn]) -> list[Path]:
    """The paths as a store keeps them; raises StoreError for one that it does not keep, naming both."""
    several = []
    for path in paths:
        candidate = kept_path(path, kept)
        if candidate is None:
            raise StoreError(
                f"{location} keeps other features than were asked for",
                got=path_text(path),
                allowed=[kept_in_words(column) for column in kept],
                do="ask for what it keeps, or extract into another store: what a store keeps cannot be changed",
            )
        several.append(candidate)
    return several


def with_constants(path: Path, values: Values, *, per: Literal["tensor", "dimension"], words: np.ndarray) -> Path:
    """The path with the constants of its codec fixed from the values of some texts, where it has any.

    `words` are the word vectors of the trunk, (vocabulary, any).
    """
    codec = path.pool.codec
    if is_whole(codec):
        return path
    raw = values(with_codec(path, Codec(name=EXACT, before_mean=codec.before_mean)), codec.format.sample)
    return with_codec(path, fixed_codec(codec, raw, per=per, words=words))


def path_text(path: Path) -> str:
    """What a stored path keeps, for people: `mean of layers 3 to 6, every token, token1`."""
    pool, depth = path.pool, path.layers[-1].stop if path.layers else 0
    first = depth - pool.of + 1
    mean = f"mean of layers {first} to {depth}" if pool.of > 1 else f"mean of layer {depth} alone"
    layers = {"last": f"layer {depth}", "mean": mean, "all": f"layers 1 to {depth}"}
    positions = {"all": "every token", "first": "first token", "mean": "mean of all tokens"}[pool.positions]
    before = ", each layer by itself" if pool.codec.before_mean and pool.layers == "mean" else ""
    return f"{layers[pool.layers]}, {positions}, {pool.codec.name}{before}"


def kept_in_words(column: FeatureColumn) -> str:
    """What a column of a store keeps, for people."""
    if column.path is None:
        return f"{column.layers} x {column.width} a token, {column.codec.name} (digest {column.digest[:12]})"
    return path_text(column.path)
