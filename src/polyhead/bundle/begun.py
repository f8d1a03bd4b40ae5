"""Commands under way, recorded before they change anything.

A command may be killed after its change is live and before it reports so. When it is repeated, it finds its record and
does not make the change twice: a second rollback would go back by two versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path as FilePath

from polyhead.bundle.files import read_inside, writing
from polyhead.bundle.format import BEGUN, LARGEST_JSON
from polyhead.bundle.manifest import Live
from polyhead.config import Value, from_json, to_json
from polyhead.errors import PolyheadError
from polyhead.files import replace_file


class StartedOperation(Value):
    """A command that has not reported its end yet."""

    operation: str
    asked: tuple[str, ...]  # what tells it from other commands of the operation
    before: dict[str, Live]  # what was live of the tasks that it changes
    wanted: dict[str, str]  # the versions that it makes live

    def is_done(self, lines: Mapping[str, Live]) -> bool:
        """Whether the wanted versions are live, and other versions were before."""
        live = {name: lines[name].version for name in self.wanted if name in lines}
        return live == self.wanted != {name: line.version for name, line in self.before.items()}


class Attempt(Value):
    """A command, and whether it had made its change before it was killed."""

    begun: StartedOperation
    is_done: bool


def attempt(
    root: FilePath,
    operation: str,
    asked: Sequence[str],
    *,
    lines: Mapping[str, Live],
    wanted: Callable[[], Mapping[str, str]],
) -> Attempt:
    """Records what the command is going to do, unless the same command was killed after it had done that.

    `lines` are the live versions of the tasks; `wanted` finds the versions to make live. Call `finish` afterwards.
    """
    previous = _read(root)
    is_same = previous is not None and (previous.operation, previous.asked) == (operation, tuple(asked))
    if previous is not None and is_same and previous.is_done(lines):
        return Attempt(begun=previous, is_done=True)
    versions = dict(wanted())
    before = {name: lines[name] for name in versions if name in lines}
    begun = StartedOperation(operation=operation, asked=tuple(asked), before=before, wanted=versions)
    with writing(root, f"'{operation}' on {root} failed, and nothing was changed"):
        replace_file(root / BEGUN, to_json(begun), root=root)
    return Attempt(begun=begun, is_done=False)


def finish(root: FilePath, begun: StartedOperation) -> None:
    """Removes the record: the command has reported its end, or it failed and changed nothing."""
    if _read(root) == begun:
        with suppress(OSError):
            (root / BEGUN).unlink(missing_ok=True)


@contextmanager
def forgotten_if_it_fails(root: FilePath, begun: StartedOperation) -> Iterator[None]:
    """Removes the record if the block, which changes all or nothing, fails."""
    try:
        yield
    except Exception:
        finish(root, begun)
        raise


def _read(root: FilePath) -> StartedOperation | None:
    try:
        return from_json(read_inside(root, BEGUN, limit=LARGEST_JSON), StartedOperation, source=str(root / BEGUN))
    except (PolyheadError, RecursionError):
        return None
