"""Work folders beside a file of the user: each carries a marker, and no folder without one is touched.

A folder has its marker from the first moment, and is renamed before it is emptied. A kill therefore never leaves a
folder under its name without a marker.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from polyhead.errors import ConfigError
from polyhead.files import is_temporary, open_plain, temporary_name, write_file

MARKER = "made-by-polyhead.txt"
RACES = (errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)  # another process was faster


class WorkFolder(msgspec.Struct, frozen=True, kw_only=True):
    """The purpose of a folder, and the names in it that are ours, beside files that are not whole yet."""

    purpose: str
    is_ours: Callable[[str], bool]  # whether a file of this name is
    trees: tuple[str, ...] = ()  # folders in it that are removed with all they hold

    @property
    def marker(self) -> bytes:
        """What the marker holds."""
        return f"Polyhead made this folder for {self.purpose}, and removes what it wrote here.\n".encode()


def claim(folder: Path, working: WorkFolder) -> None:
    """Makes the folder with its marker, unless it is there; an empty folder gets the marker.

    Raises ConfigError, and changes nothing, if something else has its name: a link, a file, an unmarked folder.
    """
    while not is_claimed(folder, working):
        made = folder.with_name(temporary_name(folder.name))
        made.mkdir()
        try:
            write_file(made / MARKER, [working.marker])
            made.rename(folder)
        except OSError as error:
            _clear(made, working)
            if error.errno not in RACES:
                raise


def is_claimed(folder: Path, working: WorkFolder) -> bool:
    """Whether the folder is there with its marker; raises ConfigError as `claim`."""
    if not os.path.lexists(folder):
        return False
    if folder.is_symlink() or not folder.is_dir():
        raise _taken(folder, working, "a link" if folder.is_symlink() else "a file")
    with suppress(FileNotFoundError):
        if _marker(folder, working) == working.marker:
            return True
        if exists := sorted(os.listdir(folder)):
            raise _taken(folder, working, f"a folder of {', '.join(exists[:5])}, without {MARKER}")
    return False


def dissolve(folder: Path, working: WorkFolder) -> None:
    """Removes a claimed folder; if it holds something that is not ours, that and the marker stay."""
    if folder.is_symlink():
        return
    with suppress(OSError):
        inside = [path for path in folder.iterdir() if path.name != MARKER]
        if not all(_is_ours(path, working) for path in inside):
            for path in inside:
                _remove(path, working)
            return
        gone = folder.with_name(temporary_name(folder.name))
        try:
            folder.rename(gone)
        except OSError:
            gone = folder
        _clear(gone, working)


def sweep(folder: Path, working: WorkFolder) -> None:
    """Removes what killed processes left beside the folder: folders not yet renamed, or renamed to be removed."""
    with suppress(OSError):
        for path in folder.parent.iterdir():
            if is_temporary(path.name, of=folder.name):
                _clear(path, working)


def _marker(folder: Path, working: WorkFolder) -> bytes | None:
    try:
        with open_plain(folder / MARKER, root=folder.parent) as file:
            return file.read(len(working.marker) + 1)
    except OSError:
        return None


def _clear(folder: Path, working: WorkFolder) -> None:
    """Removes our content of a marked folder, the marker last, then the folder; nothing of other folders."""
    with suppress(OSError):
        content = _marker(folder, working)  # a kill may have cut it short before the folder had its name
        if content is not None and working.marker.startswith(content):
            for path in folder.iterdir():
                _remove(path, working)
            if os.listdir(folder) == [MARKER]:
                (folder / MARKER).unlink()
        folder.rmdir()


def _is_ours(path: Path, working: WorkFolder) -> bool:
    if path.is_dir() and not path.is_symlink():
        return path.name in working.trees
    return path.name != MARKER and (working.is_ours(path.name) or is_temporary(path.name))


def _remove(path: Path, working: WorkFolder) -> None:
    """Removes a file, a link or a folder of ours; the target of a link stays."""
    with suppress(OSError):
        if _is_ours(path, working):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def _taken(folder: Path, working: WorkFolder, got: str) -> ConfigError:
    return ConfigError(
        f"{folder} is where {working.purpose} would be, and something else has its name",
        got=got,
        allowed=f"nothing, an empty folder, or one that Polyhead made, with {MARKER} in it",
        do="move it away, or write under another name",
    )
