"""Outputs of many tasks at once for documents of a store, directly from their packed features.

A codec's decoded values are `numbers @ matrix + shift` (`FeatureCodec.affine`): for sign the numbers are the bits
themselves, for principal components their levels. The matrix is folded into a pooler's queries and values and into the
first map. The shift cancels in the softmax, whose weights sum to 1, and is a bias afterwards. The rest is one pass over
the numbers: documents of equal length together, as many as fit in the processor's cache, unpacked once for all tasks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from polyhead.codecs.base import Affine
from polyhead.engine.backends.base import LoadedTask
from polyhead.engine.backends.reference.layer import gelu, normalized
from polyhead.engine.compile.heads import Slot, folded_task
from polyhead.errors import StoreError
from polyhead.plan import PLACE_OF, TRUNK, Activation, Path, owners_of
from polyhead.plan.cost import WORD_WEIGHTS
from polyhead.store.corpus.base import FeatureColumn, PackedRows
from polyhead.store.words import MOST_COLUMNS, word_outputs
from polyhead.store.writing import StoredWriting
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import RowKind, Task
from polyhead.values import Value

BLOCK_BYTES = 2**20  # float32 numbers, and one task's pooled values: half of a processor's second-level cache
# positions that a pool reads and a store keeps; all but the last give one vector per text
_STORED = (*PLACE_OF, "mean", "attention")
LARGEST_SCORE = 80.0  # e^80 is 6e34, and e^-80 is not a subnormal number


class PackedTask(Value, eq=False):
    """One task's arrays with the codec folded in; float32. L layers of n numbers are concatenated."""

    heads: int  # 0: a document is one vector
    scores: np.ndarray | None  # (heads, L n)
    values: np.ndarray | None  # (heads, L n, d / heads); None: multiplied into `first`
    first: np.ndarray  # (inputs, outputs)
    first_bias: np.ndarray
    second: np.ndarray | None  # (outputs, labels)
    second_bias: np.ndarray | None
    activation: Activation
    norm: float | None = None  # epsilon of a layer norm behind the activation
    is_bounded: bool = False  # every score is small enough for its exponential in float32
    words: np.ndarray | None = None  # (columns of hashed words, labels)
    beside: FeatureColumn | None = None  # of layers side by side, which are decoded and scaled before the first map

    @property
    def width(self) -> int:
        """The number of outputs."""
        return len(self.first_bias if self.second_bias is None else self.second_bias)


class PackedTasks:
    """Several tasks that read one feature column, folded; can be sent to other processes."""

    def __init__(
        self, column: FeatureColumn, tasks: Mapping[str, PackedTask], writing: StoredWriting | None = None
    ) -> None:
        self.column, self.tasks, self.writing = column, dict(tasks), writing

    @classmethod
    def of(
        cls, column: FeatureColumn, tasks: Mapping[str, LoadedTask], writing: StoredWriting | None = None
    ) -> PackedTasks:
        """The tasks with these paths and arrays, all of which read this column; those of `writing` write texts."""
        return cls(column, {name: packed_head(task, column) for name, task in tasks.items()}, writing)

    @property
    def names(self) -> tuple[str, ...]:
        """All tasks."""
        return (*self.tasks, *(() if self.writing is None else self.writing.tasks))

    def only(self, names: Sequence[str]) -> PackedTasks:
        """Some of the tasks."""
        writing = None if self.writing is None else self.writing.only(names)
        return PackedTasks(self.column, {name: self.tasks[name] for name in names if name in self.tasks}, writing)

    @property
    def words(self) -> dict[str, np.ndarray]:
        """The weights of hashed words of each task that reads some."""
        return {name: task.words for name, task in self.tasks.items() if task.words is not None}

    def outputs(self, rows: PackedRows, words: PackedRows | None = None) -> dict[str, np.ndarray]:
        """Each task's outputs for documents, float32 (rows, labels), or texts (rows,); NaN or "" without a token.

        `words` are their hashed words, where a task reads some.
        Raises StoreError if a document has several vectors and the tasks read one.
        """
        lengths = rows.lengths
        outputs = {name: np.full((len(lengths), task.width), np.nan, np.float32) for name, task in self.tasks.items()}
        heads = max((task.heads for task in self.tasks.values()), default=0)
        if self.writing is not None:
            outputs |= self.writing.texts(rows)
        if not self.tasks:
            return outputs
        if not heads and lengths.max(initial=0) > 1:
            got = f"{lengths.max()} in row {lengths.argmax()}"
            raise StoreError("these features are one vector a document", got=got, do="extract them again")
        wide = self.column.layers * _numbers_of(self.column)
        scratch = _Scratch(wide, heads)
        for tokens, members in _by_length(lengths, scratch.documents):
            numbers = scratch.numbers[: len(members) * tokens]
            _unpack(self.column, _taken(rows, members, tokens), numbers)
            block = numbers.reshape(len(members), tokens, wide)
            for name, task in self.tasks.items():
                outputs[name][members] = _answered(task, block, scratch)
        for name, added in word_outputs(words, self.words).items() if words is not None else ():
            outputs[name] += added
        return outputs


def means(column: FeatureColumn, rows: PackedRows) -> np.ndarray:
    """Each document's mean decoded vector over layers and tokens, float32 (rows, width); NaN without a token."""
    per_layer = _numbers_of(column)
    scratch = _Scratch(column.layers * per_layer, 1)
    packed_means = np.full((len(rows.lengths), per_layer), np.nan, np.float32)
    for tokens, members in _by_length(rows.lengths, scratch.documents):
        numbers = scratch.numbers[: len(members) * tokens]
        _unpack(column, _taken(rows, members, tokens), numbers)
        vectors = tokens * column.layers
        shares = np.full(vectors, 1 / vectors, np.float32)
        packed_means[members] = shares @ numbers.reshape(len(members), vectors, per_layer)
    return column.codec.format.affine(column.codec).decoded(packed_means)


def _numbers_of(column: FeatureColumn) -> int:
    """The count of numbers in one layer of a token."""
    return column.codec.format.numbers_width(column.width, column.codec)


def _unpack(column: FeatureColumn, raw: np.ndarray, numbers: np.ndarray) -> None:
    """uint8 (tokens, token_bytes) into float32 (tokens, L n)."""
    raw = raw.reshape(len(raw) * column.layers, -1)
    column.codec.format.numbers(raw, column.codec, numbers.reshape(len(raw), -1))


class _Scratch:
    """Memory that blocks share, so that it stays in the cache."""

    def __init__(self, wide: int, heads: int) -> None:
        self._wide, self._heads = wide, heads
        self._numbers = np.empty((0, wide), np.float32)
        self._pooled = np.empty((0, wide), np.float32)

    def documents(self, tokens: int) -> int:
        """The number of documents of this length in a block."""
        documents = max(1, BLOCK_BYTES // (4 * self._wide * max(tokens, self._heads)))
        if documents * tokens > len(self._numbers):
            self._numbers = np.empty((documents * tokens, self._wide), np.float32)
        if documents * self._heads > len(self._pooled):
            self._pooled = np.empty((documents * self._heads, self._wide), np.float32)
        return documents

    @property
    def numbers(self) -> np.ndarray:
        return self._numbers

    def pooled(self, documents: int, heads: int) -> np.ndarray:
        return self._pooled[: documents * heads].reshape(documents, heads, self._wide)


def _by_length(lengths: np.ndarray, documents: Callable[[int], int]) -> Iterator[tuple[int, np.ndarray]]:
    """Rows of one length, in blocks; those without tokens are skipped."""
    order = np.argsort(lengths, kind="stable")
    ordered = lengths[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=0))  # the first of each length; none of length 0
    for start, stop in itertools.pairwise([*starts.tolist(), len(order)]):
        tokens = int(ordered[start])
        size = documents(tokens)
        for at in range(start, stop, size):
            yield tokens, order[at : min(at + size, stop)]


def _taken(rows: PackedRows, members: np.ndarray, tokens: int) -> np.ndarray:
    """The packed tokens of rows of one length, concatenated."""
    starts = rows.offsets[members]
    if starts[-1] - starts[0] == (len(members) - 1) * tokens and (np.diff(starts) == tokens).all():
        return np.asarray(rows.data[starts[0] : starts[-1] + tokens])
    places = (starts[:, None] + np.arange(tokens)).reshape(-1)
    taken: np.ndarray = np.take(rows.data, places, axis=0)
    return taken


def _answered(task: PackedTask, block: np.ndarray, scratch: _Scratch) -> np.ndarray:
    """Outputs of a block (documents, tokens, L n) of numbers."""
    documents = len(block)
    if task.scores is None:
        x = block[:, 0] if task.beside is None else _side_by_side(block[:, 0], task.beside)
    else:
        weights = task.scores @ block.transpose(0, 2, 1)  # (documents, heads, tokens)
        if not task.is_bounded:  # computing the maximum takes as long as the rest of a softmax
            weights -= weights.max(axis=2, keepdims=True)
        np.exp(weights, out=weights)
        # Not a product with ones: OpenBLAS 0.3.31 reads memory that nobody wrote where a row has 5 numbers.
        weights /= np.einsum("dht->dh", weights)[:, :, None]
        pooled = np.matmul(weights, block, out=scratch.pooled(documents, task.heads))
        if task.values is None:
            x = pooled.reshape(documents, -1)
        else:
            x = (pooled.transpose(1, 0, 2) @ task.values).transpose(1, 0, 2).reshape(documents, -1)
    out: np.ndarray = x @ task.first + task.first_bias
    if task.second is not None and task.second_bias is not None:
        hidden = _ACTIVATIONS[task.activation](out)
        if task.norm is not None:
            hidden = hidden - hidden.mean(axis=-1, keepdims=True)
            hidden /= np.sqrt(np.square(hidden).mean(axis=-1, keepdims=True) + np.float32(task.norm))
        out = hidden @ task.second + task.second_bias
    return out


def _side_by_side(numbers: np.ndarray, column: FeatureColumn) -> np.ndarray:
    """The layers of documents (documents, L n), decoded and scaled to the length sqrt(width), (documents, L d)."""
    by_layer = numbers.reshape(len(numbers), column.layers, -1)
    return normalized(column.codec.format.affine(column.codec).decoded(by_layer)).reshape(len(numbers), -1)


def _relu(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum(values, np.float32(0)))


_ACTIVATIONS: Mapping[Activation, Callable[[np.ndarray], np.ndarray]] = {"tanh": np.tanh, "relu": _relu, "gelu": gelu}


def packed_head(task: LoadedTask, column: FeatureColumn) -> PackedTask:
    """A task's pooler and head, folded with each other and with the codec of its column."""
    path = task.path
    slot = folded_task(task, width=column.width)
    # In a mean of layers, each encoded by itself, every layer has an equal share; other maps have one for each.
    shares = column.layers if path.pool.layers == "mean" else 1
    affine = column.codec.format.affine(column.codec)
    shift = np.tile(affine.shift * np.ones(column.width), column.layers)
    if path.pool.layers == "beside":
        return _packed_task(task, slot, first=slot.first, bias=slot.first_bias, beside=column)
    if slot.scores is None or slot.values is None:
        matrix = np.tile(slot.first.astype(np.float64), (shares, 1)) / shares
        first = _numbered(matrix.T, affine, column).T
        return _packed_task(task, slot, first=first, bias=slot.first_bias + shift @ matrix)
    scores = _numbered(np.tile(slot.scores.T.astype(np.float64), (1, shares)) / shares, affine, column)  # (heads, L n)
    values = np.tile(slot.values.astype(np.float64), (1, shares, 1)) / shares  # (heads, L d, d / heads)
    first = slot.first.astype(np.float64)
    bias = slot.first_bias + np.einsum("x,hxi->hi", shift, values).reshape(-1) @ first
    values = _numbered(values.transpose(0, 2, 1), affine, column).transpose(0, 2, 1)  # (heads, L n, d / heads)
    heads, wide, inner = values.shape
    by_head = first.reshape(heads, inner, -1)
    is_bounded = _is_bounded(scores, affine, column)
    if heads * first.shape[1] <= len(first) + first.shape[1] / wide * len(first):  # fewer products than in two steps
        whole = np.einsum("hxi,hio->hxo", values, by_head).reshape(heads * wide, -1)
        return _packed_task(task, slot, first=whole, bias=bias, scores=scores, is_bounded=is_bounded)
    return _packed_task(task, slot, first=first, bias=bias, scores=scores, values=values, is_bounded=is_bounded)


def _packed_task(
    task: LoadedTask,
    slot: Slot,
    *,
    first: np.ndarray,
    bias: np.ndarray,
    scores: np.ndarray | None = None,
    values: np.ndarray | None = None,
    is_bounded: bool = False,
    beside: FeatureColumn | None = None,
) -> PackedTask:
    """The task in float32, with the rest of its head as in the slot."""
    head = task.path.head

    def small(array: np.ndarray | None) -> np.ndarray | None:
        return None if array is None else np.ascontiguousarray(array, np.float32)

    return PackedTask(
        heads=0 if scores is None else len(scores),
        scores=small(scores),
        values=small(values),
        first=np.ascontiguousarray(first, np.float32),
        first_bias=bias.astype(np.float32),
        second=slot.second,
        second_bias=slot.second_bias,
        activation=head.activation,
        norm=head.norm,
        is_bounded=is_bounded,
        words=np.asarray(task.arrays[WORD_WEIGHTS]) if head.words else None,
        beside=beside,
    )


def _numbered(values: np.ndarray, affine: Affine, column: FeatureColumn) -> np.ndarray:
    """The factors of numbers, (..., L n), from those of decoded values, (..., L d)."""
    by_layer = affine.folded(values.reshape(*values.shape[:-1], column.layers, column.width))
    return by_layer.reshape(*values.shape[:-1], -1)


def _is_bounded(scores: np.ndarray, affine: Affine, column: FeatureColumn) -> bool:
    """Whether no numbers of the codec can make a score too large."""
    if not np.isfinite(affine.highest).all():
        return False
    by_layer = scores.reshape(len(scores), column.layers, -1)
    ends = by_layer * affine.highest
    highest, lowest = np.maximum(ends, 0).sum(axis=(1, 2)), np.minimum(ends, 0).sum(axis=(1, 2))
    if affine.added is not None:
        added = affine.added.astype(np.float32) @ by_layer.transpose(1, 2, 0).astype(np.float32)  # (layers, any, heads)
        highest, lowest = highest + added.max(axis=1).sum(axis=0), lowest + added.min(axis=1).sum(axis=0)
    return bool((highest <= LARGEST_SCORE).all() and (lowest >= -LARGEST_SCORE).all())


def check_packed(task: Task, path: Path, *, words: bool) -> None:
    """Raises StoreError, with advice, for a task that a store alone cannot answer; `words`: it keeps hashed words."""
    kind, owners = kind_of(task), sorted(set(owners_of(path.stored())) - {TRUNK})
    do = ", or train it with the strategy 'pooled' and words = false"
    if not isinstance(kind, RowKind) and not kind.generates:
        reason, do = f"kind '{task.kind}' needs the text beside its features", ""
    elif path.head.words and task.pair != "none":
        reason = "its head reads the words of two texts, and a store keeps those of single texts"
    elif path.head.words > MOST_COLUMNS:
        reason = f"its head reads {path.head.words:,} columns of words, and a store keeps {MOST_COLUMNS:,}"
    elif path.head.words and not words:
        reason = "its head reads the words of the text, and this store does not keep them"
        do = ", or extract the texts into another store with --words"
    elif path.head.separate:
        reason = "it compares two texts that are read separately"
        do = ", or train it with pair = 'joined', the strategy 'pooled' and words = false"
    elif path.embed.prompts:
        reason = "its prompt stands before the text while the trunk reads it"
    elif owners:
        reason = f"the trunk's states pass layers of its own ({', '.join(owners)}) before they are pooled"
    elif path.pool.positions not in _STORED and not kind.generates:
        reason = f"it reads positions '{path.pool.positions}', which depend on more than the text"
    else:
        return
    raise StoreError(
        f"task '{task.name}' cannot be answered from stored features: {reason}",
        allowed="tasks that pool the trunk's states over the whole text: first, second, mean or attention",
        do=f"answer it from the texts with `polyhead predict`{do}",
    )
