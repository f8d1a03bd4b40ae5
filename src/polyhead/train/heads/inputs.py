"""Inputs of linear heads from kept features, the arrays of solved heads, and outputs of heads from their arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from polyhead.engine.backends.base import FeatureBatch
from polyhead.engine.backends.reference.layer import normalized
from polyhead.plan import PLACE_OF, Path
from polyhead.tasks.task import LossName
from polyhead.text.hashing import HashedRows
from polyhead.train.data.batches import UNLABELLED, outputs_of
from polyhead.train.data.kept_examples import KeptBatch, KeptExamples
from polyhead.train.heads.hashed_basis import HashedBasis
from polyhead.train.heads.linear import Inputs, Solution, numbered
from polyhead.train.runs import deep

AT_ONCE = 256  # examples whose inputs are computed at a time
MOST_NUMBERS = 2**28  # of the inputs: one gibibyte of float32
SEED = 0  # of drawing the examples that are read
QUERY = "pool.query"
WEIGHT, BIAS, WORDS = "head.output.weight", "head.output.bias", "words.weight"

Arrays = Mapping[str, np.ndarray]


def is_linear(path: Path) -> bool:
    """Whether outputs are a linear function of what is kept."""
    pool, head = path.pool, path.head
    is_plain = pool.positions in (*PLACE_OF, "mean", "tokens") and pool.layers != "learned"
    return is_plain and not head.hidden and head.hidden_part is None


def attends_alike(path: Path, arrays: Arrays) -> bool:
    """Whether an attention pooler without a hidden layer gives the mean of all tokens, as `solved_arrays` makes one."""
    return path.pool.positions == "attention" and not path.head.hidden and not arrays[QUERY].any()


def solved_arrays(path: Path, solution: Solution, span: HashedBasis | None) -> dict[str, np.ndarray]:
    """The arrays of a solved head, with those of a pooler that gives the mean; `span` is of words that it reads."""
    words = 0 if span is None else span.size
    arrays = {WEIGHT: np.ascontiguousarray(solution.weight[:, words:], np.float32)}
    arrays[BIAS] = np.asarray(solution.bias, np.float32)
    if span is not None:
        arrays[WORDS] = np.ascontiguousarray(span.weights(solution.weight[:, :words]), np.float32)
    return arrays | (_mean_pooler(arrays[WEIGHT].shape[1]) if path.pool.positions == "attention" else {})


def _mean_pooler(width: int) -> dict[str, np.ndarray]:
    """Attention whose scores are all 0, and whose values are the states."""
    arrays: dict[str, np.ndarray] = {QUERY: np.zeros(width, np.float32)}
    for name in ("inner_query", "key", "value", "output"):
        matrix = np.eye(width) if name in ("value", "output") else np.zeros((width, width))
        arrays[f"pool.{name}.weight"] = matrix.astype(np.float32)
        arrays[f"pool.{name}.bias"] = np.zeros(width, np.float32)
    return arrays


def scaled(arrays: Arrays, scale: float) -> dict[str, np.ndarray]:
    """The arrays of the same part with outputs times `scale`."""
    ends = (WEIGHT, BIAS, WORDS)
    return {name: array * np.float32(scale) if name in ends else array for name, array in arrays.items()}


def shifted(arrays: Arrays, offset: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays of the same part with `offset` (labels,) added to its outputs."""
    return {**arrays, BIAS: arrays[BIAS] + offset.astype(np.float32)}


def head_outputs(path: Path, arrays: Arrays, examples: KeptExamples, width: int) -> list[np.ndarray]:
    """The outputs of the part with these arrays for every example, in order; `width` is the encoder's.

    Raises MissingExtra for one that is not linear where torch is not installed.
    """
    answer: Callable[[KeptBatch], np.ndarray] = partial(_answered, path, arrays)
    if not is_linear(path) and not attends_alike(path, arrays):
        outputs: list[np.ndarray] = deep("heads.stepped:part_outputs")(path, arrays, examples, width)
        return outputs
    return outputs_of(answer, examples)


def _answered(path: Path, arrays: Arrays, batch: KeptBatch) -> np.ndarray:
    read = read_inputs(path, batch)
    outputs: np.ndarray = read @ arrays[WEIGHT].T + arrays[BIAS]
    if path.head.words and batch.hashed is not None:
        outputs += HashedRows.of(batch.hashed).sums(arrays[WORDS]).reshape(outputs.shape)
    return outputs


def read_inputs(path: Path, batch: KeptBatch) -> np.ndarray:
    """What a linear head on the path reads: (rows, inputs), or (rows, words, inputs) for a path that reads words.

    Of a text in windows their mean, which gives the mean of their outputs. With their neighbours if it has them; of
    layers side by side, as many times the width; of pairs, both compared.
    """
    features = _features(path, batch.features)
    if batch.windows:
        stops = np.cumsum(batch.windows)
        return np.stack([part.mean(axis=0) for part in np.split(features, stops[:-1])])
    if not path.head.separate:
        return features
    assert batch.second is not None
    return pair_inputs(features, _features(path, batch.second))


def _features(path: Path, batch: FeatureBatch) -> np.ndarray:
    rows, tokens, layers, _ = batch.values.shape
    if path.pool.layers == "beside":
        mixed = normalized(batch.values).reshape(rows, tokens, -1)
    else:
        mixed = batch.values[:, :, 0] if layers == 1 else batch.values.mean(axis=2)
    if path.pool.positions == "attention":
        shares = batch.mask / np.maximum(batch.mask.sum(axis=1, keepdims=True), 1)
        return np.asarray(np.einsum("rt,rtd->rd", shares.astype(np.float32), mixed))
    if path.pool.positions != "tokens":
        return mixed[:, 0]
    window = path.head.window
    if not window:
        return mixed
    padded = np.pad(mixed * batch.mask[:, :, None], ((0, 0), (window, window), (0, 0)))
    return np.concatenate([padded[:, start : start + tokens] for start in range(2 * window + 1)], axis=-1)


def pair_inputs(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """[u, v, |u - v|, u * v] (rows, 4 width), of two texts' features, each scaled to the length sqrt(width).

    At that length the mean of u * v is the cosine, and single values stay near one (decision 0010).
    """
    u, v = normalized(first), normalized(second)
    return np.concatenate([u, v, np.abs(u - v), u * v], axis=-1)


def inputs_of(path: Path, examples: KeptExamples, *, loss: LossName, outputs: int) -> Inputs:
    """The inputs of a linear head on the path for the examples. Words without a token are omitted.

    Of texts read in windows members are the texts, and places their words.
    If these exceed `MOST_NUMBERS`, only as many examples are read as fit, drawn so that fewer are among more: heads are
    compared by those that both read.
    """
    sample = read_inputs(path, examples.batch(np.arange(min(AT_ONCE, examples.count))))
    most = int(MOST_NUMBERS * min(AT_ONCE, examples.count) / max(sample.size, 1))
    drawn = np.sort(np.random.default_rng(SEED).permutation(examples.count)[: max(1, most)])
    pieces: list[tuple[np.ndarray, ...]] = []
    for members in np.array_split(drawn, -(-len(drawn) // AT_ONCE)):
        batch = examples.batch(members)
        pieces.append(_rows(read_inputs(path, batch), batch))
    values, labels, members_of_rows, places = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    if examples.windows is not None:
        members_of_rows, places = examples.windows.places(members_of_rows, places)
    return Inputs(
        values=values,
        targets=numbered(labels) if loss == "ranking" else labels,
        members=members_of_rows,
        places=places,
        loss="cross_entropy" if loss == "word_cross_entropy" else loss,
        outputs=outputs,
        cosine=values.shape[1] * 3 // 4 if path.head.separate else None,
    )


def _rows(read: np.ndarray, batch: KeptBatch) -> tuple[np.ndarray, ...]:
    """Inputs, targets, examples and places in these: one row for each text, each labelled word, or each option."""
    targets, members = batch.targets, np.asarray(batch.members, np.int64)
    if read.ndim == 3:
        labelled = targets != UNLABELLED
        rows, places = labelled.nonzero()
        return read[labelled], targets[labelled], members[rows], places
    if targets.ndim == 2 and targets.dtype.kind != "f":
        members = members[targets[:, 0]]
        return read, np.stack([members, targets[:, 1]], axis=1), members, np.zeros_like(members)
    return read, targets, members, np.zeros_like(members)
