"""What lies outside of a folder, before and after: nothing of the user's is touched."""

import contextlib
import hashlib
import os
import shutil
import stat

PLANTS = ("link to a file", "link to a folder", "dangling link", "folder", "pipe")
SMALL = 2**16  # bytes of files that are kept to be compared; of larger ones a digest is
OTHERS = "of others"  # the folder that links lead into


def listed(root, *, but=()):
    """Every name below `root`, but what is below the paths `but`, with its kind, and its bytes or where it leads to."""
    but, start, found = {str(path) for path in but}, len(str(root)) + 1, {}
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if f"{folder}/{name}" not in but]
        for name in (*folders, *files):
            path = f"{folder}/{name}"
            if path not in but:
                found[path[start:]] = _told(path)
    return found


@contextlib.contextmanager
def untouched(root, *, but=()):
    """Asserts that what is done inside changes nothing below `root`, but below the paths `but`."""
    before = listed(root, but=but)
    assert before, "nothing is there that could be touched"
    yield
    assert listed(root, but=but) == before


def make_others(root, *names):
    """A folder of somebody else's, with a file of each name, and with folders that hold one too; its path."""
    folder = root / OTHERS
    for name in ("mine.txt", *names):
        (folder / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "files" / name).write_text(f"{name} of somebody else's")
        (folder / "folders" / name).mkdir(parents=True)
        (folder / "folders" / name / "mine.txt").write_text("mine")
    return folder


def plant(path, kind, others):
    """Puts something of this kind under a name, in place of what is there; links lead into the folder `others`."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "link to a file":
        path.symlink_to(others / "files" / "mine.txt")
    elif kind == "link to a folder":
        path.symlink_to(others / "files")
    elif kind == "link to folders":
        path.symlink_to(others / "folders")
    elif kind == "dangling link":
        path.symlink_to(others / "nothing")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        assert kind == "folder"
        path.mkdir()
        (path / "mine.txt").write_text("mine")


def _told(path):
    found = os.lstat(path)
    kind = stat.filemode(found.st_mode)
    if stat.S_ISLNK(found.st_mode):
        return kind, os.readlink(path)
    if not stat.S_ISREG(found.st_mode):
        return (kind,)
    with open(path, "rb") as file:
        if found.st_size <= SMALL:
            return kind, found.st_size, file.read()
        return kind, found.st_size, hashlib.file_digest(file, "sha256").hexdigest()
