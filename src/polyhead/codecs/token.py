"""token1: one bit per dimension, spent on the difference between a vector and the mean for its token.

Most of a token's vector follows from which token it is (decision 39). Two bytes identify the token; the rest encodes
principal components of the difference, as `pca1` does.
"""

from __future__ import annotations

import zlib
from contextlib import suppress
from functools import lru_cache
from typing import Any, ClassVar

import msgspec
import numpy as np

from polyhead.codecs.base import NO_TOKEN, Affine, Constants, TokenCodec, evenly_spaced
from polyhead.codecs.pca import AT_ONCE, LARGEST, LARGEST_SPAN, ROWS, allocated, fitted, pack_bits, planes, principal
from polyhead.codecs.tables import Table, table_named
from polyhead.errors import StoreError

NAME_BYTES = 2  # of a table row, up to 65,536
MOST_ROWS = 2 ** (8 * NAME_BYTES)
# A token's mean is shrunk to the prediction from its word vector, which counts as this many observations. On tweets 1
# to 4 lost the same (decision 39).
PRIOR = 2.0
RIDGE = 10.0  # prior weight, relative to as many tokens of word vectors with variance 1
LEFT_OUT = 0.005  # share of the variance: what the token predicts and no number encodes (decision 39)
# A token's numbers are half steps around 64, from 1 to 127, and twice a level is at most 62: their sum fits in one
# byte, so that a reader adds bytes. For components without bits they go from 48 to 80. A finer grid lost 0.002 of the
# variance less and made the file a third larger.
CENTRE, REACH, COARSE_REACH = 64, 63, 16
MOST_BITS = 5  # bits of a component: with more, half steps would not reach from one token to another
LARGEST_TABLE = 2**28  # numbers of all tokens
LARGEST_VOCABULARY = 2**24  # number of values that float32 distinguishes
NAMES = ("basis", "bits", "mean", "means", "step", "tokens", "vocabulary", "zero")


class _Code(msgspec.Struct, frozen=True, eq=False):
    """A table in the form used for encoding and decoding: m components, n of which have bits."""

    row: np.ndarray  # (vocabulary + 1,) int64: the row of each token, from -1 on
    means: np.ndarray  # (rows, m) uint8, up to 127
    turn: np.ndarray  # (width, n) float64: components, in units of steps
    offset: np.ndarray  # (n,) float64
    top: np.ndarray  # (n,) float64: the highest level
    bits: np.ndarray  # (n,) int64
    weights: np.ndarray  # uint8, for each bit of a vector: its contribution to a number
    back: np.ndarray  # (m, width) float32
    shift: np.ndarray  # (width,) float32


class Token1(TokenCodec):
    """`q = clip(round(V^T (x - m) / s - b_t + z), 0, 2^k - 1)` and `x = m + V s (b_t + q - z)`, b_t of token t.

    Table: `mean` (width,), `basis` (m, width), and per component `step`, `zero` and `bits` k, which may be 0 (m,);
    `vocabulary` (1,), the `tokens` (r - 1,) that have their own row, and `means`, the bytes (r, m), deflated: b_t is
    half the difference between the token's row and 64; the first row is for all other tokens. A vector is the number of
    its row (2 bytes, little-endian) and the bits as in `Components`. The numbers in decoding are integers, and their
    sums are exact.
    """

    name = "token1"
    has_arrays = True
    sample: ClassVar[int] = 2048

    def row_bytes(self, width: int) -> int:
        """Bytes of one encoded vector: the row, and one bit per dimension, for less than 32 dimensions half a bit."""
        return NAME_BYTES + _level_bytes(width)

    def encode_tokens(self, values: np.ndarray, tokens: np.ndarray, constants: Constants) -> np.ndarray:
        """float32 (..., width) as uint8 (..., row_bytes)."""
        width = values.shape[-1]
        code, flat = self._code(constants, width), values.reshape(-1, width)
        rows = _rows(code, tokens.reshape(-1))
        raw = np.empty((len(flat), self.row_bytes(width)), np.uint8)
        raw[:, :NAME_BYTES] = rows.astype("<u2")[:, None].view(np.uint8)
        means = code.means[:, : len(code.bits)]
        for start in range(0, len(flat), AT_ONCE):
            chunk = slice(start, start + AT_ONCE)
            # In float64 a vector's levels do not depend on the other vectors in the product.
            turned = np.clip(flat[chunk], -LARGEST, LARGEST).astype(np.float64) @ code.turn
            turned += code.offset - 0.5 * means[rows[chunk]]
            pack_bits(np.clip(np.rint(turned), 0, code.top).astype(np.uint8), code.bits, raw[chunk, NAME_BYTES:])
        return raw.reshape(*values.shape[:-1], -1)

    def decode(self, raw: np.ndarray, width: int, constants: Constants) -> np.ndarray:
        """uint8 (..., row_bytes) as float32 (..., width)."""
        code, flat = self._code(constants, width), raw.reshape(-1, raw.shape[-1])
        numbers = np.empty((len(flat), len(code.back)), np.float32)
        _numbers(flat, code, numbers)
        values: np.ndarray = numbers @ code.back + code.shift
        return values.reshape(*raw.shape[:-1], width)

    def affine(self, constants: Constants) -> Affine:
        """Maps the numbers of components, levels and token offsets combined, back to features."""
        code = _code_of(constants.arrays)
        highest = np.zeros(len(code.back))
        highest[: len(code.bits)] = 2 * code.top
        return Affine(
            matrix=code.back.astype(np.float64), shift=code.shift.astype(np.float64), highest=highest, added=code.means
        )

    def numbers_width(self, width: int, constants: Constants) -> int:
        """The number of components."""
        return len(self._code(constants, width).back)

    def numbers(self, raw: np.ndarray, constants: Constants, out: np.ndarray) -> None:
        """The numbers of the components."""
        _numbers(raw, _code_of(constants.arrays), out)

    def token_inputs(self, tokens: np.ndarray, constants: Constants) -> np.ndarray:
        """The numbers in each token's row."""
        code = _code_of(constants.arrays)
        return np.asarray(code.means[_rows(code, tokens)], np.float32)

    def graph_with_tokens(self, ops: Any, x: Any, inputs: Any, constants: Constants) -> Any:
        """Products with constants, and rounding between them."""
        code = _code_of(constants.arrays)
        has_bits, half = len(code.bits), ops.constant(np.array(0.5, np.float32))
        near = ops.minimum(ops.maximum(x, ops.constant(np.array(-LARGEST))), ops.constant(np.array(LARGEST)))
        turned = ops.matmul(near, ops.constant(code.turn.astype(np.float32)))
        turned = ops.add(turned, ops.constant(code.offset.astype(np.float32)))
        about = ops.multiply(ops.slice(inputs, -1, 0, has_bits), half)
        levels = ops.maximum(ops.round(ops.subtract(turned, about)), ops.constant(np.zeros(1, np.float32)))
        levels = ops.minimum(levels, ops.constant(code.top.astype(np.float32)))
        # Two sums instead of one: both are exact, and so is their sum.
        back = ops.matmul(levels, ops.constant(2 * code.back[:has_bits]))
        return ops.add(ops.add(back, ops.matmul(inputs, ops.constant(code.back))), ops.constant(code.shift))

    def learn_tokens(self, values: np.ndarray, tokens: np.ndarray, words: np.ndarray) -> dict[str, np.ndarray]:
        """The table, from training features (rows, width)."""
        flat = np.clip(values, -LARGEST, LARGEST).astype(np.float32)
        mean = flat.mean(axis=0, dtype=np.float64)
        flat -= mean.astype(np.float32)
        named = _with_rows(tokens, len(words))
        means, residuals = _of_tokens(flat, tokens, words, named)
        variance, basis = principal(_products(residuals) / len(residuals))
        largest = max(np.abs(mean).max(), np.abs(residuals).max(), np.abs(means).max())
        least = max(largest / LARGEST_SPAN, np.finfo(np.float32).tiny)
        useful = np.where(variance > least**2, variance, 0)
        bits = allocated(useful, 8 * _level_bytes(values.shape[-1]), most=MOST_BITS)
        has_bits = int((bits > 0).sum())
        basis = np.concatenate([basis[:has_bits], _without_bits(flat, residuals, basis[has_bits:])])
        bits = np.where(np.arange(len(basis)) < has_bits, bits[: len(basis)], 0)
        projected = means @ basis.T.astype(np.float32)
        reach = np.where(bits > 0, REACH, COARSE_REACH)
        # components without bits
        step, zero = np.maximum(2 * np.abs(projected).max(axis=0) / reach, least), np.zeros(len(basis))
        sample = residuals[evenly_spaced(len(residuals), ROWS)].astype(np.float64)
        fit = fitted(sample @ basis[:has_bits].T, bits[:has_bits], least=least)
        step[:has_bits], zero[:has_bits] = fit
        numbers = CENTRE + np.clip(np.rint(2 * projected / step), -reach, reach)
        return {
            "mean": mean,
            "basis": basis,
            "step": step,
            "zero": zero,
            "bits": bits.astype(np.float64),
            "vocabulary": np.array([len(words)], np.float64),
            "tokens": named.astype(np.float64),
            "means": np.frombuffer(zlib.compress(numbers.astype(np.uint8).tobytes()), np.uint8),
        }

    def _code(self, constants: Constants, width: int) -> _Code:
        code = _code_of(constants.arrays)
        if len(code.shift) != width or int(code.bits.sum()) > 8 * _level_bytes(width):
            raise StoreError(
                f"codec '{self.name}' has other arrays than vectors of width {width} need",
                got=f"arrays of width {len(code.shift)} and {int(code.bits.sum())} bits",
                do="fix them from training features with `calibrate`",
            )
        return code


def _level_bytes(width: int) -> int:
    return max(-(-width // 8) - NAME_BYTES, -(-width // 16))


def _rows(code: _Code, tokens: np.ndarray) -> np.ndarray:
    """Each token's row of the table, int64; raises StoreError for a token outside the vocabulary."""
    if tokens.size and not NO_TOKEN <= tokens.min() <= tokens.max() < len(code.row) - 1:
        raise StoreError(
            "these vectors are of tokens that the codec's vocabulary does not have",
            got=f"tokens {tokens.min()} to {tokens.max()}",
            allowed=f"0 to {len(code.row) - 2}, or {NO_TOKEN} for no token",
            do="give the tokens of the trunk whose features fixed the codec",
        )
    rows: np.ndarray = code.row[tokens - NO_TOKEN]
    return rows


def _numbers(raw: np.ndarray, code: _Code, out: np.ndarray) -> None:
    """Writes the numbers of uint8 (rows, row_bytes) into float32 (rows, m)."""
    rows = np.ascontiguousarray(raw[:, :NAME_BYTES]).view("<u2")[:, 0]
    if rows.size and int(rows.max()) >= len(code.means):
        raise StoreError(
            "vectors name a row that the codec's table does not have",
            got=int(rows.max()),
            allowed=f"0 to {len(code.means) - 1}",
            do="restore the store from a copy, or extract the features again",
        )
    whole = np.take(code.means, rows, axis=0)
    bits = np.unpackbits(raw, axis=1)[:, 8 * NAME_BYTES : 8 * NAME_BYTES + len(code.weights)]
    bits *= code.weights
    start = 0
    for _, counts in planes(code.bits):
        whole[:, : len(counts)] += bits[:, start : start + len(counts)]
        start += len(counts)
    out[...] = whole


def _with_rows(tokens: np.ndarray, vocabulary: int) -> np.ndarray:
    """The tokens with their own row, ascending: all, or the most frequent ones, then the first ones."""
    if (tokens == NO_TOKEN).all():
        return np.zeros(0, np.int64)
    if vocabulary < MOST_ROWS:
        return np.arange(vocabulary)
    count = np.bincount(tokens[tokens >= 0], minlength=vocabulary)
    return np.sort(np.argsort(-count, kind="stable")[: MOST_ROWS - 1])


def _of_tokens(
    centred: np.ndarray, tokens: np.ndarray, words: np.ndarray, named: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The mean to subtract for each row, float32 (1 + named, width), and the residuals of these vectors.

    Each residual uses the mean over the token's other vectors, as will happen for vectors outside this sample.
    """
    row = np.zeros(len(words) + 1, np.int64)
    row[named + 1] = np.arange(1, len(named) + 1)
    rows = row[tokens + 1]
    count = np.bincount(rows, minlength=len(named) + 1).astype(np.float32)
    total = np.zeros((len(count), centred.shape[1]), np.float32)
    np.add.at(total, rows, centred)
    total[0] = 0  # nothing is subtracted for no token and for rare tokens
    prior = np.zeros_like(total)
    if len(named):
        prior[1:] = PRIOR * _predicted(words[named], total[1:], count[1:])
    means = (total + prior) / (count + PRIOR)[:, None]
    total += prior
    residuals = centred - np.where(
        (rows > 0)[:, None], (total[rows] - centred) / (count[rows] - 1 + PRIOR)[:, None], np.float32(0)
    )
    return means, residuals


def _predicted(words: np.ndarray, total: np.ndarray, count: np.ndarray) -> np.ndarray:
    """The mean vector of each token, predicted by the linear map from word vectors that best fits the observed ones."""
    words = words.astype(np.float32) - words.mean(axis=0, dtype=np.float64).astype(np.float32)
    words /= max(float(words.std(dtype=np.float64)), 1e-12)
    words = np.concatenate([words, np.ones((len(words), 1), np.float32)], axis=1)
    seen = np.flatnonzero(count)
    weight = (count[seen] / (count[seen] + PRIOR))[:, None].astype(np.float64)
    x, y = words[seen].astype(np.float64), total[seen] / count[seen, None].astype(np.float64)
    matrix = np.linalg.solve((x * weight).T @ x + RIDGE * np.eye(x.shape[1]), (x * weight).T @ y)
    return np.asarray(words @ matrix.astype(np.float32))


def _without_bits(centred: np.ndarray, residuals: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """Components without bits (any, width) that the token predicts, the largest first; they lie in the span of `basis`.

    Components that together are LEFT_OUT of the variance are omitted, so that a reader multiplies fewer numbers.
    """
    if not len(basis):
        return basis
    told = (centred - residuals) @ basis.T.astype(np.float32)
    variance, turn = principal(_products(told) / len(told))
    untold = np.cumsum(variance[::-1])[::-1] > LEFT_OUT * np.trace(_products(centred)) / len(centred)
    return np.asarray(turn[untold] @ basis)


def _products(vectors: np.ndarray) -> np.ndarray:
    """`X^T X` in float64, computed in blocks of vectors."""
    pieces = (vectors[i : i + AT_ONCE].astype(np.float64) for i in range(0, len(vectors), AT_ONCE))
    return np.asarray(sum(piece.T @ piece for piece in pieces))


@lru_cache(maxsize=8)
def _code_of(digest: str) -> _Code:
    table = table_named(digest)
    means = _inflated(table)
    if means is None or not _is_sound(table, means):
        raise StoreError(
            f"table {digest} is not one of tokens and components",
            got={name: f"{array.dtype} {array.shape}" for name, array in table.items()},
            allowed=f"mean (width,), basis (m, width), step, zero and bits (m,), bits up to {MOST_BITS} and falling, "
            "vocabulary (1,), tokens (r - 1,) of it, ascending, and means, (r, m) bytes up to 127, deflated",
        )
    mean, basis, step, zero = (table[name].astype(np.float64) for name in ("mean", "basis", "step", "zero"))
    bits = table["bits"].astype(np.int64)
    has_bits = int((bits > 0).sum())
    turn, back = (basis[:has_bits] / step[:has_bits, None]).T, basis * (step[:, None] / 2)
    shift, top = mean - (zero * step) @ basis, np.exp2(bits) - 1
    # On this grid no partial sum of a decoded value needs more than the 24 digits of float32.
    largest = 2 * top + means.max(axis=0) + CENTRE
    grid = np.exp2(np.ceil(np.log2(np.max(np.abs(shift) + largest @ np.abs(back)))) - 23)
    back = np.rint(back / grid) * grid
    weights = [2 << counts - 1 - place for place, counts in planes(bits[:has_bits])]
    row = np.zeros(int(table["vocabulary"][0]) + 1, np.int64)
    row[table["tokens"].astype(np.int64) + 1] = np.arange(1, len(means))
    return _Code(
        row=row,
        means=means,
        turn=turn,
        offset=zero[:has_bits] + CENTRE / 2 - mean @ turn,
        top=top[:has_bits],
        bits=bits[:has_bits],
        weights=np.concatenate(weights).astype(np.uint8),
        back=back.astype(np.float32),
        shift=(np.rint(shift / grid) * grid - CENTRE * back.sum(axis=0)).astype(np.float32),
    )


def _inflated(table: Table) -> np.ndarray | None:
    """The rows of the tokens, uint8 (r, m); None if the table has other arrays, or invalid bytes."""
    if tuple(sorted(table)) != NAMES or table["means"].dtype != np.uint8 or table["means"].ndim != 1:
        return None
    rows, components = 1 + table["tokens"].size, len(np.atleast_1d(table["basis"]))
    if rows * components > LARGEST_TABLE:
        return None
    inflating = zlib.decompressobj()
    with suppress(zlib.error):
        content = inflating.decompress(table["means"].tobytes(), rows * components + 1)
        if inflating.eof and len(content) == rows * components:
            return np.frombuffer(content, np.uint8).reshape(rows, components)
    return None


def _is_sound(table: Table, means: np.ndarray) -> bool:
    mean, basis, bits, tokens, vocabulary = (table[n] for n in ("mean", "basis", "bits", "tokens", "vocabulary"))
    if mean.ndim != 1 or basis.ndim != 2 or not 0 < len(basis) <= basis.shape[1] == len(mean):
        return False
    if any(table[name].shape != (len(basis),) for name in ("step", "zero", "bits")):
        return False
    if tokens.ndim != 1 or vocabulary.shape != (1,) or len(means) > MOST_ROWS:
        return False
    numbers = [array for name, array in table.items() if name != "means"]
    if any(array.dtype != np.float32 or not np.isfinite(array).all() for array in numbers):
        return False
    edges = np.concatenate([[NO_TOKEN], tokens, vocabulary])
    return bool(
        (table["step"] >= np.finfo(np.float32).tiny).all()
        and np.isin(bits, range(MOST_BITS + 1)).all()
        and bits[0] > 0
        and (np.diff(bits) <= 0).all()
        and means.max() < 2 * CENTRE
        and 0 <= vocabulary[0] <= LARGEST_VOCABULARY
        and (edges == np.rint(edges)).all()
        and (np.diff(edges) > 0).all()
    )
