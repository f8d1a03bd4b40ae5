"""The values that a store keeps of each text: taps, which specify layers and a codec, and batches of their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from polyhead import plan as planning
from polyhead.arguments import check_fields
from polyhead.bundle.manifest import TaskRecord
from polyhead.codecs import CODECS, EXACT, ONE_BIT
from polyhead.encoder.data import TrunkData
from polyhead.engine.backends.base import TokenBatch
from polyhead.engine.backends.prefix import stored_layers, stored_paths, with_every_token
from polyhead.errors import BackendError, ConfigError, StoreError, UnknownTask
from polyhead.plan import PLACE_OF, Codec, Embed, Path, Pool, shared_layers
from polyhead.plan.coding import calibrate, tokens_of
from polyhead.project.strategies.base import with_codec
from polyhead.store.corpus.base import FeatureColumn
from polyhead.text.batch import Cut, batch_indices, cuts, pad_cut
from polyhead.text.encodings import Encodings, starts_of
from polyhead.text.tokenize import Input, Tokenizer
from polyhead.values import Value

MOST_VECTORS = 2**17  # vectors that calibrate a codec: 200 MB at width 384
EncodeFeatures = Callable[[Sequence[Path], TokenBatch], list[np.ndarray]]
"""`Backend.features`."""


class BatchValues(msgspec.Struct, frozen=True, kw_only=True):
    """The stored values of one batch: `values` are float32 (positions, layers, width), text after text."""

    starts: np.ndarray  # int64 (texts + 1,): where each text's positions begin
    values: np.ndarray
    tokens: np.ndarray  # int64 (positions,): the vocabulary id of each, as in `plan.coding.tokens_of`

    def of(self, text: int) -> np.ndarray:
        """The value of one text, (positions, layers, width), not copied."""
        return self.values[self.starts[text] : self.starts[text + 1]]

    def tokens_of(self, text: int) -> np.ndarray:
        """The token ids of one text, (positions,), not copied."""
        return self.tokens[self.starts[text] : self.starts[text + 1]]


def entry_batches(
    encodings: Encodings, *, pad_id: int, budget: int, width: int | None = None
) -> Iterator[tuple[np.ndarray, TokenBatch]]:
    """The entries of each batch, int64 (texts,), and their tokens: every entry once, the longest first.

    With the `width` of a trunk whose backend reads no padding, a batch combines texts that fill rows together. `budget`
    is in tokens, with their padding if it is read.
    """
    lengths = encodings.lengths
    if width is None:
        batch_cuts = cuts(lengths, token_budget=budget)
    else:
        groups = batch_indices(lengths, budget=budget, width=width)
        batch_cuts = (Cut(members=group, rows=len(group), tokens=int(lengths[group[0]])) for group in groups)
    for cut in batch_cuts:
        rows = pad_cut(encodings, cut, pad_id=pad_id)
        words = np.full((len(rows.ids), 1), -1, np.int64)
        yield cut.members, TokenBatch(ids=rows.ids, mask=rows.mask, segments=rows.segments, words=words)


def batch_values(encode: EncodeFeatures, paths: Sequence[Path], batch: TokenBatch) -> list[BatchValues]:
    """The value of each path for the texts of a batch, from one pass."""
    every, single = starts_of(batch.mask.sum(axis=1)), np.arange(len(batch.ids) + 1)
    path_values = []
    for path, values in zip(paths, encode(paths, batch), strict=True):
        tokens = tokens_of(path.pool, ids=batch.ids, mask=batch.mask, words=None)
        is_every = path.pool.positions == "all"
        path_values.append(
            BatchValues(
                starts=every if is_every else single,
                values=values,
                tokens=tokens[batch.mask] if is_every else tokens[:, 0],
            )
        )
    return path_values


def sample_values(
    encode: EncodeFeatures,
    path: Path,
    inputs: Sequence[Input],
    tokenizer: Tokenizer,
    *,
    budget: int,
    width: int | None = None,
) -> Iterator[BatchValues]:
    """The stored value of a path for some texts, batch by batch, to calibrate a codec.

    If long texts would give more than about MOST_VECTORS, they are thinned out evenly. `budget` and `width` are those
    of `entry_batches`.
    """
    if path.pool.positions == "all":
        vectors = stored_layers(path) * sum(len(each.ids) for each in _by_size(inputs, tokenizer))
        inputs = inputs[:: -(-vectors // MOST_VECTORS) or 1]
    for encodings in _by_size(inputs, tokenizer):
        for _, batch in entry_batches(encodings, pad_id=tokenizer.pad_id, budget=budget, width=width):
            yield from batch_values(encode, [path], batch)


def _by_size(inputs: Sequence[Input], tokenizer: Tokenizer) -> Iterator[Encodings]:
    """Single texts and pairs, separately."""
    for size in sorted({len(texts) for texts in inputs}):
        yield tokenizer.encodings([texts for texts in inputs if len(texts) == size])


def fixed_codec(
    codec: Codec, pieces: Iterable[BatchValues], *, per: Literal["tensor", "dimension"], words: np.ndarray
) -> Codec:
    """The codec with constants computed from these values; `words` are the word vectors of their trunk."""
    batches = list(pieces)
    return calibrate(
        np.concatenate([piece.values for piece in batches]),
        name=codec.name,
        per=per,
        before_mean=codec.before_mean,
        tokens=np.concatenate([piece.tokens for piece in batches])[:, None],
        words=words,
    )


FORM = "LAYERS or LAYERS:CODEC, with LAYERS 'last', 'meanN' (of the last N) or 'all', such as mean4:token1"
Values = Callable[[Path, int], Iterable[BatchValues]]
"""The stored value of a path for so many training texts."""


class Tap(Value):
    """Every token of some layers of the trunk, encoded by a codec."""

    layers: Literal["last", "mean", "all"] = "mean"
    of: int = 4  # number of last layers that `mean` averages; at most the trunk's depth
    codec: str = ONE_BIT
    per: Literal["tensor", "dimension"] = "tensor"  # scope of the codec's constants, if it has any
    before_mean: bool = False  # encode each layer separately

    def __post_init__(self) -> None:
        check_fields(self)
        CODECS.named(self.codec)
        if self.of < 1:
            raise ConfigError("a tap averages at least one layer", got=self.of)

    @classmethod
    def parsed(cls, text: str) -> Tap:
        """The tap from its command-line form; raises ConfigError."""
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
        layers = self.layers if depth else "last"  # a static table has none to mix
        pool = Pool(
            layers=layers,
            of=min(self.of, depth) if layers == "mean" else 1,
            positions="all",
            codec=Codec(name=self.codec, before_mean=self.before_mean),
        )
        return Path(nodes=(Embed(trunk=trunk.digest), *shared_layers(depth), pool))


def tapped_paths(tasks: Mapping[str, TaskRecord], names: Sequence[str]) -> list[Path]:
    """The stored values that these tasks read, each once, with every token if they read words.

    Raises UnknownTask, and BackendError for a task that reads more than the trunk's own layers.
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
    """Whether nothing is left to calibrate."""
    return not codec.format.is_fixed_from_data or bool(codec.scale or codec.arrays)


def kept_path(path: Path, kept: Sequence[FeatureColumn]) -> Path | None:
    """The path as a store keeps it: unchanged, or with the constants of the store's codec of that name."""
    for column in kept:
        wanted = path.pool.codec
        is_same = (column.codec.name, column.codec.before_mean) == (wanted.name, wanted.before_mean)
        candidate = path if is_whole(wanted) or not is_same else with_codec(path, column.codec)
        if planning.digest(candidate) == column.digest:
            return candidate
    return None


def kept_paths(location: str, paths: Sequence[Path], kept: Sequence[FeatureColumn]) -> list[Path]:
    """The paths as a store keeps them; raises StoreError for one that it does not keep, naming both."""
    candidates = []
    for path in paths:
        candidate = kept_path(path, kept)
        if candidate is None:
            raise StoreError(
                f"{location} keeps other features than were asked for",
                got=path_text(path),
                allowed=[kept_in_words(column) for column in kept],
                do="ask for what it keeps, or extract into another store: what a store keeps cannot be changed",
            )
        candidates.append(candidate)
    return candidates


def with_constants(path: Path, values: Values, *, per: Literal["tensor", "dimension"], words: np.ndarray) -> Path:
    """The path with its codec calibrated on the values of some texts, if necessary.

    `words` are the word vectors of the trunk, (vocabulary, any).
    """
    codec = path.pool.codec
    if is_whole(codec):
        return path
    raw = values(with_codec(path, Codec(name=EXACT, before_mean=codec.before_mean)), codec.format.sample)
    return with_codec(path, fixed_codec(codec, raw, per=per, words=words))


def path_text(path: Path) -> str:
    """The stored value of a path in words: `mean of layers 3 to 6, every token, token1`."""
    pool, depth = path.pool, path.depth
    first = depth - pool.of + 1
    mean = f"mean of layers {first} to {depth}" if pool.of > 1 else f"mean of layer {depth} alone"
    layers = {"last": f"layer {depth}", "mean": mean, "all": f"layers 1 to {depth}"}
    all_positions = {"all": "every token", "mean": "mean of all tokens", **{name: f"{name} token" for name in PLACE_OF}}
    positions = all_positions[pool.positions]
    before = ", each layer by itself" if pool.codec.before_mean and pool.layers == "mean" else ""
    return f"{layers[pool.layers]}, {positions}, {pool.codec.name}{before}"


def kept_in_words(column: FeatureColumn) -> str:
    """The content of a store's column in words."""
    if column.path is None:
        return f"{column.layers} x {column.width} a token, {column.codec.name} (digest {column.digest[:12]})"
    return path_text(column.path)
