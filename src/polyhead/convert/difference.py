"""Whether two encoders differ by matrices of low rank, as after merging a low-rank adapter."""

from __future__ import annotations

import numpy as np

from polyhead.encoder.data import TrunkData
from polyhead.values import Value

LOW = 8  # a delta is of low rank up to min(rows, columns) / LOW
_FLOAT32, _BFLOAT16, _FLOAT16 = 2.0**-23, 2.0**-7, 2.0**-10  # spacing of the numbers around 1


class EncoderDifference(Value):
    """The arrays of an encoder that differ from the base, and the rank of W - W0 over its matrices.

    A singular value counts if it exceeds the effect of rounding: the spacing of the stored precision times the root
    mean square of W times (sqrt(rows) + sqrt(columns)). The search ends at the first matrix that is not of low rank.
    """

    matrices: tuple[str, ...]  # names of the differing arrays
    vectors: tuple[str, ...]
    rank: int  # the largest found
    largest: str  # the matrix with that rank, "" for none
    allowed: int  # the largest rank that is low for that matrix
    is_low_rank: bool  # at least one matrix differs, and all that do are of low rank


def encoder_difference(data: TrunkData, base: TrunkData) -> EncoderDifference:
    """The difference of the layers and embeddings that both encoders have."""
    common = [name for name in data.arrays if name in base.arrays]
    changed = [name for name in common if not np.array_equal(data.arrays[name], base.arrays[name])]
    matrices = [name for name in changed if data.arrays[name].ndim == 2]
    vectors = tuple(name for name in changed if data.arrays[name].ndim != 2)
    rank, largest, allowed = 0, "", 0
    for name in sorted(matrices, key=lambda name: data.arrays[name].size):
        own_rank, limit = rank_of(data.arrays[name], base.arrays[name]), low_rank(data.arrays[name].shape)
        if own_rank > rank or own_rank > limit:
            rank, largest, allowed = own_rank, name, limit
        if own_rank > limit:
            break
    return EncoderDifference(
        matrices=tuple(matrices),
        vectors=vectors,
        rank=rank,
        largest=largest,
        allowed=allowed,
        is_low_rank=bool(matrices) and rank <= allowed,
    )


def low_rank(shape: tuple[int, ...]) -> int:
    """The largest rank that counts as low for a matrix of this shape."""
    return max(1, min(shape) // LOW)


def rank_of(matrix: np.ndarray, base: np.ndarray) -> int:
    """The numerical rank of matrix - base; see `EncoderDifference` for the tolerance."""
    delta = np.asarray(matrix, np.float64) - base
    if delta.shape[0] > delta.shape[1]:
        delta = delta.T
    if delta.shape[1] > 2 * delta.shape[0]:  # the word vectors: a triangle has the same singular values
        delta = np.linalg.qr(delta.T, mode="r")
    size = np.sqrt(np.mean(np.square(np.maximum(np.abs(matrix), np.abs(base)), dtype=np.float64)))
    noise = max(spacing(matrix), spacing(base)) * size * sum(np.sqrt(matrix.shape))
    return int(np.sum(np.linalg.svd(delta, compute_uv=False) > noise))


def spacing(array: np.ndarray) -> float:
    """Spacing around 1 of the precision in which float32 numbers were stored, judged by bits that are never set."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    if not np.any(bits & 0xFFFF):
        return _BFLOAT16
    return _FLOAT32 if np.any(bits & 0x1FFF) else _FLOAT16
