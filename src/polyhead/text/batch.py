"""Encoded inputs as rows: padded batches cut by a budget of tokens, and short texts packed into rows."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from polyhead.errors import ConfigError
from polyhead.text.encodings import Encodings
from polyhead.text.tokenize import Encoded
from polyhead.values import Value


class PaddedBatch(Value, eq=False):
    """Rows of similar length. Rows past `len(members)` are spare rows that fill a fixed shape."""

    ids: np.ndarray  # int64 (rows, tokens)
    mask: np.ndarray  # bool (rows, tokens); a spare row has one true position, so that no softmax is empty
    segments: np.ndarray  # int64 (rows, tokens)
    members: np.ndarray  # int64: for each row, its index in the batched inputs


class Cut(Value, eq=False):
    """The inputs of one batch, and its shape."""

    members: np.ndarray  # int64
    rows: int
    tokens: int


def cuts(
    lengths: np.ndarray,
    *,
    token_budget: int,
    multiple_of: int = 1,
    fixed_rows: int | None = None,
    max_tokens: int | None = None,
) -> Iterator[Cut]:
    """Every input once, longest first, so that the batch with the largest memory need comes first.

    `rows * padded tokens` stays within `token_budget`, unless a single row exceeds it. Lengths are rounded up to
    `multiple_of`, but not beyond `max_tokens`. With `fixed_rows` every batch has exactly that many rows, whatever the
    budget.
    """
    if token_budget < 1 or multiple_of < 1 or (fixed_rows is not None and fixed_rows < 1):
        raise ConfigError(
            "batches cannot be made with these numbers",
            got=f"token_budget {token_budget}, multiple_of {multiple_of}, fixed_rows {fixed_rows}",
            allowed="positive numbers",
        )
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = max(1, int(lengths[order[start]]))
        tokens = -(-longest // multiple_of) * multiple_of  # rounded up
        if max_tokens is not None:
            tokens = max(longest, min(tokens, max_tokens))
        rows = fixed_rows or max(1, token_budget // tokens)
        members = order[start : start + rows]
        yield Cut(members=members, rows=fixed_rows or len(members), tokens=tokens)
        start += rows


def batches(
    encoded: Sequence[Encoded],
    *,
    token_budget: int,
    pad_id: int,
    multiple_of: int = 1,
    fixed_rows: int | None = None,
    max_tokens: int | None = None,
) -> Iterator[PaddedBatch]:
    """Padded batches by `cuts`. Put answers back in order with `answers[batch.members] = ...`."""
    lengths = np.array([len(entry.ids) for entry in encoded], np.int64)
    for cut in cuts(
        lengths, token_budget=token_budget, multiple_of=multiple_of, fixed_rows=fixed_rows, max_tokens=max_tokens
    ):
        members = [encoded[member] for member in cut.members]
        ids, segments = (np.concatenate([getattr(entry, name) for entry in members]) for name in ("ids", "segments"))
        yield _padded(ids, segments, lengths[cut.members], cut, pad_id)


def pad_cut(encodings: Encodings, cut: Cut, *, pad_id: int) -> PaddedBatch:
    """The members of a cut as a batch."""
    tokens = encodings.tokens_of(cut.members)
    lengths = encodings.lengths[cut.members]
    return _padded(encodings.ids[tokens], encodings.segments[tokens], lengths, cut, pad_id)


def _padded(ids: np.ndarray, segments: np.ndarray, lengths: np.ndarray, cut: Cut, pad_id: int) -> PaddedBatch:
    """A padded batch from the members' tokens, concatenated."""
    shape = (cut.rows, cut.tokens)
    mask = np.zeros(shape, bool)
    mask[: len(lengths)] = np.arange(cut.tokens) < lengths[:, None]
    wide, kinds = np.full(shape, pad_id, np.int64), np.zeros(shape, np.int64)
    wide[mask], kinds[mask] = ids, segments
    mask[len(lengths) :, 0] = True
    return PaddedBatch(ids=wide, mask=mask, segments=kinds, members=cut.members)


ROW = 64  # positions of a row, unless a text is longer
LINE = 256  # positions of texts that share one row: few shapes occur, and its attention adds a ninth of the work
FULL = 0.85  # a row of that length is used if tokens fill this share of it


LINES = (*range(8, 64, 8), *range(64, 128, 16), *range(128, LINE + 1, 32))


class Packing(Value, eq=False):
    """The position of each text in the batch."""

    rows: int
    tokens: int  # positions of a row
    row: np.ndarray  # (texts,) int64
    start: np.ndarray  # (texts,) int64: position of its first token in the row


def few(rows: int, positions: int) -> tuple[int, int]:
    """The shape rounded up, so that few shapes occur: a runtime prepares each shape, and keeps about a megabyte for it.

    Rows are rounded to multiples of 2 above 8 and of 4 above 32; positions above 16 to eighths of a power of two. One
    row of up to `LINE` positions has one of `LINES`, all of which can be prepared beforehand.
    """
    if rows == 1 and positions <= LINE:
        return 1, next(size for size in LINES if size >= positions)
    step = 1 << max(0, (positions - 1).bit_length() - 4)
    each = 1 if rows <= 8 else 2 if rows <= 32 else 4
    return -(-rows // each) * each, -(-positions // step) * step


def pack_texts(lengths: np.ndarray, *, width: int, line: int = 0) -> Packing:
    """The cheapest packing of texts of these lengths (at least 1) into rows, for an encoder of this width.

    Where texts leave much of a row free, rows of two and three times the length are tried too. Texts of at most `line`
    tokens in all share one row.
    """
    if (total := int(lengths.sum())) <= line:
        return best_fit(lengths, tokens=total)
    least = max(ROW, int(lengths.max(initial=1)))
    packing = best_fit(lengths, tokens=least)
    if lengths.sum() >= FULL * packing.rows * packing.tokens:
        return packing
    longer = [best_fit(lengths, tokens=times * least) for times in (2, 3)]
    return min([packing, *longer], key=lambda candidate: work(candidate.rows, candidate.tokens, width=width))


def batch_indices(lengths: np.ndarray, *, budget: int, width: int) -> Iterator[np.ndarray]:
    """Indices of the texts of each batch, every text once, the longest of a batch first; lengths are at least 1.

    Rows are filled by first fit decreasing; where packing does not pay, texts of similar length form a batch. Rows
    times positions stay within the budget, unless a single text exceeds it.
    """
    order = np.argsort(-lengths, kind="stable")
    members: dict[int, list[int]] = {}
    for member, size in zip(order[::-1].tolist(), lengths[order[::-1]].tolist(), strict=True):
        members.setdefault(size, []).append(member)
    while members:
        taken = _best({size: len(texts) for size, texts in members.items()}, budget, width)
        chosen: list[int] = []
        for size in sorted(taken, reverse=True):
            chosen += [members[size].pop() for _ in range(taken[size])]
            if not members[size]:
                del members[size]
        yield np.array(chosen, np.int64)


def _best(counts: Mapping[int, int], budget: int, width: int) -> dict[int, int]:
    """The number of texts of each length in the next batch: the choice with the least work per token."""
    longest = max(counts)
    least = max(ROW, longest)
    unpacked, most = dict[int, int](), max(1, budget // longest)
    for size in sorted(counts, reverse=True):
        unpacked[size] = min(counts[size], most)
        most -= unpacked[size]
    tries = [(work(*few(sum(unpacked.values()), longest), width=width) / _tokens(unpacked), unpacked)]
    for tokens in (least, 2 * least, 3 * least):
        rows, counted = _rows(counts, tokens, most=max(1, budget // tokens))
        tries.append((work(*few(rows, tokens), width=width) / _tokens(counted), counted))
        if _tokens(counted) >= FULL * rows * tokens:
            break
    _, best = min(tries, key=lambda candidate: candidate[0])
    return {size: number for size, number in best.items() if number}


def _rows(counts: Mapping[int, int], tokens: int, *, most: int) -> tuple[int, dict[int, int]]:
    """Up to `most` rows, filled by first fit decreasing: the number of rows used, and of texts of each length."""
    remaining, sizes, taken = dict(counts), sorted(counts), dict.fromkeys(counts, 0)
    for row in range(most):
        room = tokens
        while (place := bisect_right(sizes, room) - 1) >= 0:
            size = sizes[place]
            number = min(remaining[size], room // size)
            taken[size], remaining[size], room = taken[size] + number, remaining[size] - number, room - number * size
            if not remaining[size]:
                sizes.pop(place)
        if not sizes:
            return row + 1, taken
    return most, taken


def _tokens(counts: Mapping[int, int]) -> int:
    return sum(size * number for size, number in counts.items())


def work(rows: int, tokens: int, *, width: int) -> float:
    """Cost of a layer on rows of this shape: `24 d^2 t + 4 t^2 d` per row (see `cost`), in units of `24 d^2`."""
    return rows * tokens * (1 + tokens / (6 * width))


def best_fit(lengths: np.ndarray, *, tokens: int) -> Packing:
    """A packing of texts into few rows of this many tokens, by best fit decreasing.

    It needs at most 11/9 of the fewest possible rows, plus 4 (Johnson et al. 1974).
    """
    order = np.argsort(-lengths, kind="stable")
    free: dict[int, list[int]] = {}  # rows by their free room
    rooms: list[int] = []  # the keys of `free`, ascending
    row, start = [0] * len(lengths), [0] * len(lengths)
    rows = 0
    for text, size in zip(order.tolist(), lengths[order].tolist(), strict=True):
        at = bisect_left(rooms, size)
        if at < len(rooms):
            room = rooms[at]
            place = free[room].pop()
            if not free[room]:
                rooms.pop(at)
        else:
            room, place = tokens, rows
            rows += 1
        row[text], start[text] = place, tokens - room
        fitting = free.setdefault(room - size, [])
        if not fitting:
            insort(rooms, room - size)
        fitting.append(place)
    return Packing(rows=rows, tokens=tokens, row=np.array(row, np.int64), start=np.array(start, np.int64))
