"""A summary of the rows that a task was validated on: directions of mean vectors, lengths and scores; no text.

It is a file of the task's version. `polyhead drift` compares other rows with it, and the familiarity of a text in
answers is computed from it: for a task with one label per text, from the centres of the labels' training rows.
"""

from __future__ import annotations

from pathlib import Path as FilePath

import msgspec
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
    centres: np.ndarray | None = None  # float32 (labels with rows, width): directions of the means of training rows
    far: np.ndarray | None = None  # float32 (rows,): how far each lies from the nearest centre, its own row left out

    def take(self, rows: np.ndarray) -> Seen:
        """Some of the rows."""
        far = None if self.far is None else self.far[rows]
        return msgspec.structs.replace(
            self, vectors=self.vectors[rows], lengths=self.lengths[rows], scores=self.scores[rows], far=far
        )

    def beside(self, centres: np.ndarray | None) -> Seen:
        """The same summary with these centres, which are of other rows."""
        far = None if centres is None else centre_distances(self.vectors, centres).min(axis=1)
        return msgspec.structs.replace(self, centres=centres, far=far)

    def sample(self, seed: int, most: int = MOST) -> Seen:
        """At most so many rows, drawn without repetition."""
        rows = np.random.default_rng(seed).permutation(len(self.lengths))[:most]
        return self.take(np.sort(rows))

    def content(self) -> bytes:
        """The bytes of the file; vectors and scores are kept in half precision."""
        arrays = {"vectors": self.vectors, "scores": self.scores.reshape(len(self.lengths), -1)}
        floats = {"lengths": self.lengths}
        if self.centres is not None and self.far is not None:
            arrays["centres"], floats["far"] = self.centres, self.far
        halves = {name: np.ascontiguousarray(array, np.float16) for name, array in arrays.items()}
        content: bytes = save({**halves, **{name: np.ascontiguousarray(a, np.float32) for name, a in floats.items()}})
        return content


def centre_distances(vectors: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Euclidean distances of directions, float32 (rows, centres)."""
    return np.asarray(np.sqrt(np.maximum(2 - 2 * vectors @ centres.T, 0)), np.float32)


def seen_of(bundle: Bundle, name: str) -> Seen | None:
    """The summary of a task's live version; None if it has none. Raises CorruptFile."""
    content, path = bundle.seen(name), bundle.root / "tasks" / name / bundle.version(name) / SEEN
    if content is None:
        return None
    task = bundle.record(name).task
    return _read(content, path, bundle.architecture.width, scores=(0, kind_of(task).width(task)))


def kept_centres(bundle: Bundle, name: str) -> np.ndarray | None:
    """The centres of a task's live version; None if it has none. Raises CorruptFile."""
    seen = seen_of(bundle, name) if name in bundle.lines else None
    return None if seen is None else seen.centres


def _read(content: bytes, path: FilePath, width: int, *, scores: tuple[int, ...]) -> Seen:
    """`scores` are the widths that its scores may have."""
    try:
        arrays = {name: array.astype(np.float32) for name, array in load(content).items()}
        more = {name: arrays.pop(name) for name in ("centres", "far") if name in arrays}
        seen = Seen(vectors=arrays.pop("vectors"), lengths=arrays.pop("lengths"), scores=arrays.pop("scores"), **more)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise CorruptFile(f"{path} cannot be read", got=error, do="restore the folder", path=path) from None
    rows = seen.lengths.size
    held: tuple[np.ndarray, ...] = (seen.vectors, seen.lengths, seen.scores)
    fits = [array.shape for array in held[:2]] == [(rows, width), (rows,)]
    fits = fits and seen.scores.shape in [(rows, columns) for columns in scores]
    if seen.centres is not None or seen.far is not None:
        centres, far = np.asarray(more.get("centres", ())), np.asarray(more.get("far", ()))
        fits = fits and far.shape == (rows,) and centres.ndim == 2 and 0 < len(centres) <= max(scores)
        fits = fits and centres.shape[1] == width
        held = (*held, centres, far)
    if arrays or not fits or rows > MOST or not all(np.isfinite(array).all() for array in held):
        raise CorruptFile(
            f"{path} contradicts itself",
            got=[*(f"{array.shape}" for array in held), *sorted(arrays)],
            allowed=f"vectors (rows, {width}), lengths (rows,), scores (rows, {scores[-1]}), {MOST} rows, all finite, "
            f"and centres (labels, {width}) with far (rows,) or neither",
            do="restore the folder",
            path=path,
        )
    return seen
