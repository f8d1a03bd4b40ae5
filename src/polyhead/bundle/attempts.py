"""Versions that were trained and lost to the live one, so that they are not trained again.

They are listed in the bundle's `attempts.json`, which no digest covers; without it they are trained once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path as FilePath

from polyhead.bundle.files import read_inside, writing
from polyhead.bundle.format import LARGEST_JSON
from polyhead.bundle.manifest import Live, decoded, read_bundle_file
from polyhead.bundle.models import read_models_file
from polyhead.config import Value, to_json
from polyhead.errors import CorruptFile, PolyheadError
from polyhead.files import replace_file

FILE = "attempts.json"


class Attempt(Value):
    """A way of training that lost, and the record (SHA-256 of task.json) of the live version that it lost to."""

    fingerprint: str
    record: str
    metric: str
    live: float  # what the live version scored on the rows that were compared
    tried: float  # what the attempt scored on the same

    def line(self) -> str:
        """`accuracy 0.9100 against 0.9200`."""
        return f"{self.metric} {self.tried:.4f} against {self.live:.4f}"


class _File(Value):
    attempts: dict[str, Attempt] = {}  # by task


def read_attempts(root: FilePath) -> dict[str, Attempt]:
    """The last attempt of each task that lost to the version that is live; raises CorruptFile for a damaged file."""
    return _in_force(root, _read(root))


def keep_attempts(root: FilePath, new: Mapping[str, Attempt]) -> None:
    """Notes attempts, by task; those that no longer count go."""
    with writing(root, f"{FILE} cannot be written in {root}"):
        replace_file(root / FILE, to_json(_File(attempts=_in_force(root, {**_read(root), **new}))))


def _in_force(root: FilePath, attempts: Mapping[str, Attempt]) -> dict[str, Attempt]:
    lines: dict[str, Live] = {**read_bundle_file(root).tasks, **read_models_file(root).models}
    return {
        name: attempt for name, attempt in attempts.items() if name in lines and lines[name].record == attempt.record
    }


def _read(root: FilePath) -> dict[str, Attempt]:
    path = root / FILE
    if not (path.is_file() or path.is_symlink()):
        return {}
    try:
        return decoded(read_inside(root, FILE, limit=LARGEST_JSON), _File, path).attempts
    except PolyheadError as error:
        raise CorruptFile(
            f"{path} cannot be read", got=error, do="delete it: what lost once is then trained once more", path=path
        ) from None
