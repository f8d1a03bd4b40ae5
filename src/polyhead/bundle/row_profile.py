"""The profile of the rows that a task was validated on: mean vectors, lengths and scores, without the texts.

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


class RowProfile(Value, eq=False):
    """Rows of one distribution. `scores` is (rows, 0) for a task whose answers have no scores."""

    vectors: np.ndarray  # float32 (rows, width): mean vectors, scaled to length 1
    lengths: np.ndarray  # float32 (rows,): characters
    scores: np.ndarray  # float32 (rows, labels): probabilities; for numbers (rows, 1), the fraction of the range
    centres: np.ndarray | None = None  # float32 (labels with rows, width): means of their training rows, of length 1
    far: np.ndarray | None = None  # float32 (rows,): distance to the nearest centre, computed without the row itself

    def take(self, rows: np.ndarray) -> RowProfile:
        """Some of the rows."""
        far = None if self.far is None else self.far[rows]
        return msgspec.structs.replace(
            self, vectors=self.vectors[rows], lengths=self.lengths[rows], scores=self.scores[rows], far=far
        )

    def with_centres(self, centres: np.ndarray | None) -> RowProfile:
        """The same profile with these centres, computed from other rows."""
        far = None if centres is None else centre_distances(self.vectors, centres).min(axis=1)
        return msgspec.structs.replace(self, centres=centres, far=far)

    def sample(self, seed: int, most: int = MOST) -> RowProfile:
        """At most `most` rows, drawn without repetition."""
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
    """Euclidean distances of vectors of length 1, float32 (rows, centres)."""
    return np.asarray(np.sqrt(np.maximum(2 - 2 * vectors @ centres.T, 0)), np.float32)


def stored_profile(bundle: Bundle, name: str) -> RowProfile | None:
    """The profile of a task's live version; None if it has none. Raises CorruptFile."""
    content, path = bundle.seen(name), bundle.root / "tasks" / name / bundle.version(name) / SEEN
    if content is None:
        return None
    task = bundle.record(name).task
    return _read(content, path, bundle.architecture.width, scores=(0, kind_of(task).width(task)))


def stored_centres(bundle: Bundle, name: str) -> np.ndarray | None:
    """The centres of a task's live version; None if it has none. Raises CorruptFile."""
    profile = stored_profile(bundle, name) if name in bundle.lines else None
    return None if profile is None else profile.centres


def _read(content: bytes, path: FilePath, width: int, *, scores: tuple[int, ...]) -> RowProfile:
    """The profile in a file; `scores` are the allowed numbers of columns of its scores."""
    try:
        arrays = {name: array.astype(np.float32) for name, array in load(content).items()}
        more = {name: arrays.pop(name) for name in ("centres", "far") if name in arrays}
        profile = RowProfile(
            vectors=arrays.pop("vectors"), lengths=arrays.pop("lengths"), scores=arrays.pop("scores"), **more
        )
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise CorruptFile(f"{path} cannot be read", got=error, do="restore the folder", path=path) from None
    rows = profile.lengths.size
    held: tuple[np.ndarray, ...] = (profile.vectors, profile.lengths, profile.scores)
    fits = [array.shape for array in held[:2]] == [(rows, width), (rows,)]
    fits = fits and profile.scores.shape in [(rows, columns) for columns in scores]
    if profile.centres is not None or profile.far is not None:
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
    return profile
