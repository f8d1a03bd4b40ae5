"""Running commands, and rejected training: two files next to bundle.json that no digest covers.

A command may be killed after its change is live and before it reports it. Repeated, it finds its record and does not
make the change twice: a second rollback would go back by two versions. Trained versions that were worse than the live
one are listed in `attempts.json`, so that they are not trained again; without it they are trained once more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path as FilePath

from polyhead.bundle.files import read_inside, writing_bundle
from polyhead.bundle.format import BEGUN, LARGEST_JSON
from polyhead.bundle.manifest import Live, decoded, read_bundle_file
from polyhead.errors import CorruptFile, PolyheadError
from polyhead.files import replace_file
from polyhead.values import Value, from_json, to_json


class StartedOperation(Value):
    """A command that has not reported its end yet."""

    operation: str
    arguments: tuple[str, ...]  # of the command, to recognise it when it is run again
    before: dict[str, Live]  # live versions of the tasks that it changes
    wanted: dict[str, str]  # versions that it makes live

    def is_done(self, lines: Mapping[str, Live]) -> bool:
        """True if the wanted versions are live now and others were live before."""
        live = {name: lines[name].version for name in self.wanted if name in lines}
        return live == self.wanted != {name: line.version for name, line in self.before.items()}


def start_operation(
    root: FilePath,
    operation: str,
    arguments: Sequence[str],
    *,
    lines: Mapping[str, Live],
    wanted: Callable[[], Mapping[str, str]],
) -> StartedOperation:
    """Records what the command is going to do; where the same command was killed after it had done that, that record.

    `lines` are the live versions of the tasks; `wanted` finds the versions to make live. Call `finish` afterwards.
    """
    previous = _read_begun(root)
    is_same = previous is not None and (previous.operation, previous.arguments) == (operation, tuple(arguments))
    if previous is not None and is_same and previous.is_done(lines):
        return previous
    versions = dict(wanted())
    before = {name: lines[name] for name in versions if name in lines}
    started = StartedOperation(operation=operation, arguments=tuple(arguments), before=before, wanted=versions)
    with writing_bundle(root, f"'{operation}' on {root} failed, and nothing was changed"):
        replace_file(root / BEGUN, to_json(started))
    return started


def finish(root: FilePath, started: StartedOperation) -> None:
    """Removes the record: the command has reported its end, or it failed and changed nothing."""
    if _read_begun(root) == started:
        with suppress(OSError):
            (root / BEGUN).unlink(missing_ok=True)


def _read_begun(root: FilePath) -> StartedOperation | None:
    try:
        return from_json(read_inside(root, BEGUN, limit=LARGEST_JSON), StartedOperation, source=str(root / BEGUN))
    except (PolyheadError, RecursionError):
        return None


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
    return _in_force(root, _read_attempts(root))


def keep_attempts(root: FilePath, new: Mapping[str, Attempt]) -> None:
    """Records attempts, by task, and removes outdated ones; one whose scores are no numbers is not recorded."""
    scored = {name: attempt for name, attempt in new.items() if math.isfinite(attempt.live + attempt.tried)}
    with writing_bundle(root, f"{FILE} cannot be written in {root}"):
        replace_file(root / FILE, to_json(_File(attempts=_in_force(root, {**_read_attempts(root), **scored}))))


def _in_force(root: FilePath, attempts: Mapping[str, Attempt]) -> dict[str, Attempt]:
    lines = read_bundle_file(root).tasks
    return {
        name: attempt for name, attempt in attempts.items() if name in lines and lines[name].record == attempt.record
    }


def _read_attempts(root: FilePath) -> dict[str, Attempt]:
    path = root / FILE
    if not (path.is_file() or path.is_symlink()):
        return {}
    try:
        return decoded(read_inside(root, FILE, limit=LARGEST_JSON), _File, path).attempts
    except PolyheadError as error:
        raise CorruptFile(
            f"{path} cannot be read", got=error, do="delete it: what lost once is then trained once more", path=path
        ) from None
