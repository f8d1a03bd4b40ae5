"""Work folders beside a file of the user: each carries a marker, and no folder without one is touched.

A folder has its marker from the first moment, and is renamed before it is emptied. A kill therefore never leaves a
folder under its name without a marker.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from polyhead.errors import ConfigError
from polyhead.files import is_temporary, opened_folder, plain_in, temporary_name, write_file

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
        with opened_folder(folder.parent) as parent:
            made = temporary_name(folder.name)
            os.mkdir(made, dir_fd=parent)
            try:
                write_file(folder.with_name(made) / MARKER, [working.marker])
                os.rename(made, folder.name, src_dir_fd=parent, dst_dir_fd=parent)
            except OSError as error:
                _clear(parent, made, working)
                if error.errno not in RACES:
                    raise


def is_claimed(folder: Path, working: WorkFolder) -> bool:
    """Whether the folder is there with its marker; raises ConfigError as `claim`."""
    if not os.path.lexists(folder):
        return False
    if folder.is_symlink() or not folder.is_dir():
        raise _taken(folder, working, "a link" if folder.is_symlink() else "a file")
    with suppress(FileNotFoundError), opened_folder(folder, root=folder.parent) as handle:
        if _marker(handle, working) == working.marker:
            return True
        if exists := sorted(os.listdir(handle)):
            raise _taken(folder, working, f"a folder of {', '.join(exists[:5])}, without {MARKER}")
    return False


def dissolve(folder: Path, working: WorkFolder) -> None:
    """Removes a claimed folder; if it holds something that is not ours, that and the marker stay."""
    with suppress(OSError), opened_folder(folder.parent) as parent:
        with opened_folder(folder, root=folder.parent) as handle:
            names = [name for name in os.listdir(handle) if name != MARKER]
            if not all(_is_ours(handle, name, working) for name in names):
                for name in names:
                    _remove(handle, name, working)
                return
        gone = temporary_name(folder.name)
        try:
            os.rename(folder.name, gone, src_dir_fd=parent, dst_dir_fd=parent)
        except OSError:
            gone = folder.name
        _clear(parent, gone, working)


def sweep(folder: Path, working: WorkFolder) -> None:
    """Removes what killed processes left beside the folder: folders not yet renamed, or renamed to be removed."""
    with suppress(OSError), opened_folder(folder.parent) as parent:
        for name in os.listdir(parent):
            if is_temporary(name, of=folder.name):
                _clear(parent, name, working)


def _marker(handle: int, working: WorkFolder) -> bytes | None:
    try:
        with plain_in(handle, MARKER) as file:
            return file.read(len(working.marker) + 1)
    except OSError:
        return None


def _clear(parent: int, name: str, working: WorkFolder) -> None:
    """Removes our content of a marked folder, the marker last, then the folder; nothing of other folders."""
    with suppress(OSError):
        handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
        try:
            content = _marker(handle, working)  # a kill may have cut it short before the folder had its name
            if content is not None and working.marker.startswith(content):
                for inside in os.listdir(handle):
                    _remove(handle, inside, working)
                if os.listdir(handle) == [MARKER]:
                    os.unlink(MARKER, dir_fd=handle)
        finally:
            os.close(handle)
        os.rmdir(name, dir_fd=parent)


def _is_ours(handle: int, name: str, working: WorkFolder) -> bool:
    mode = os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode
    if stat.S_ISDIR(mode):
        return name in working.trees
    return name != MARKER and (working.is_ours(name) or is_temporary(name))


def _remove(handle: int, name: str, working: WorkFolder) -> None:
    """Removes a file, a link or a folder of ours; the target of a link stays."""
    with suppress(OSError):
        if not _is_ours(handle, name, working):
            return
        if name in working.trees:
            shutil.rmtree(name, ignore_errors=True, dir_fd=handle)
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=handle)


def _taken(folder: Path, working: WorkFolder, got: str) -> ConfigError:
    return ConfigError(
        f"{folder} is where {working.purpose} would be, and something else has its name",
        got=got,
        allowed=f"nothing, an empty folder, or one that Polyhead made, with {MARKER} in it",
        do="move it away, or write under another name",
    )
