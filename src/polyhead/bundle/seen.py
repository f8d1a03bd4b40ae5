"""A summary of the rows that a task was validated on: directions of mean vectors, lengths and scores; no text.

It lies beside the part, in a file of the version. `polyhead drift` compares other rows with it.
"""

from __future__ import annotations

from pathlib import Path as FilePath

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from polyhead.bundle.format import SEEN
from polyhead.bundle.read import Bundle
from polyhead.errors import CorruptFile
from polyhead.tasks.kinds import kind_of
from polyhead.values import Value

MOST = 512  # rows that are kept


class Seen(Value, eq=False):
    """Rows of one distribution; of a task whose answers have no scores `scores` is (rows, 0)."""

    vectors: np.ndarray  # float32 (rows, width): of length 1
    lengths: np.ndarray  # float32 (rows,): characters
    scores: np.ndarray  # float32 (rows, labels): probabilities; of a number its place in the range

    def take(self, rows: np.ndarray) -> Seen:
        """Some of the rows."""
        return Seen(vectors=self.vectors[rows], lengths=self.lengths[rows], scores=self.scores[rows])

    def sample(self, seed: int, most: int = MOST) -> Seen:
        """At most so many rows, drawn without repetition."""
        rows = np.random.default_rng(seed).permutation(len(self.lengths))[:most]
        return self.take(np.sort(rows))

    def content(self) -> bytes:
        """The bytes of the file; vectors and scores are kept in half precision."""
        arrays = {"vectors": self.vectors, "scores": self.scores.reshape(len(self.lengths), -1)}
        halves = {name: np.ascontiguousarray(array, np.float16) for name, array in arrays.items()}
        content: bytes = save({**halves, "lengths": np.ascontiguousarray(self.lengths, np.float32)})
        return content


def seen_of(bundle: Bundle, name: str) -> Seen | None:
    """The summary of a task's live version; None where it has none. Raises CorruptFile."""
    content, path = bundle.seen(name), bundle.root / "tasks" / name / bundle.version(name) / SEEN
    if content is None:
        return None
    task = bundle.record(name).task
    return _read(content, path, bundle.architecture.width, scores=(0, kind_of(task).width(task)))


def _read(content: bytes, path: FilePath, width: int, *, scores: tuple[int, ...]) -> Seen:
    """`scores` are the widths that its scores may have."""
    try:
        arrays = {name: array.astype(np.float32) for name, array in load(content).items()}
        seen = Seen(vectors=arrays.pop("vectors"), lengths=arrays.pop("lengths"), scores=arrays.pop("scores"))
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise CorruptFile(f"{path} cannot be read", got=error, do="restore the folder", path=path) from None
    rows, held = seen.lengths.size, (seen.vectors, seen.lengths, seen.scores)
    fits = [array.shape for array in held[:2]] == [(rows, width), (rows,)]
    fits = fits and seen.scores.shape in [(rows, columns) for columns in scores]
    if arrays or not fits or rows > MOST or not all(np.isfinite(array).all() for array in held):
        raise CorruptFile(
            f"{path} contradicts itself",
            got=[*(f"{array.shape}" for array in held), *sorted(arrays)],
            allowed=f"vectors (rows, {width}), lengths (rows,), scores (rows, {scores[-1]}), {MOST} rows, all finite",
            do="restore the folder",
            path=path,
        )
    return seen
