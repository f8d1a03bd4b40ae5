"""Files of a plain store: named by versions, checked when read, with errors for failed writes."""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from polyhead.codecs.tables import read_tables, write_tables
from polyhead.errors import PolyheadError, StoreError
from polyhead.files import LARGEST_CONFIG, open_plain, put_if_absent, read_plain, replace_file
from polyhead.machine import MappedFile
from polyhead.plugins import unregistered
from polyhead.store.corpus.base import Schema, is_name
from polyhead.values import Value, to_json, to_value

FORMAT = 1
UTF8 = ".utf8"  # the end of the name of texts
MAPPED = 64 * 1024  # minimum bytes of a memory-mapped file
DENIED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM)  # to this process, by the system
Stamp = tuple[int, int, int]  # attributes that change with a file's content: inode, size and time


class StoreFile(Value):
    """`store.json`."""

    format: int
    schema: Schema


class Stored(Value):
    """A fragment as a version names it: the SHA-256 of each file, and of its results."""

    name: str
    rows: int
    tokens: dict[str, int]
    files: dict[str, str]
    results: dict[str, tuple[str, str]] = {}  # column: file and its SHA-256


T = TypeVar("T")


def sealed(content: object) -> bytes:
    """The JSON of a store's file: its content, and the SHA-256 of that."""
    return to_json({"digest": _digest(msgspec.to_builtins(content)), "content": content})


def put_schema(folder: Path, schema: Schema) -> None:
    """Writes the schema, after the tables of its codecs, unless another process did."""
    write_tables(folder, (column.codec.arrays for column in schema.features))
    with suppress(FileExistsError):
        content = sealed(StoreFile(format=FORMAT, schema=schema))
        put_if_absent(folder / "store.json", content)


def read_schema(path: Path) -> Schema:
    """The schema in this `store.json`, with the tables of its codecs loaded; StoreError for another format."""
    file = read_sealed(path, StoreFile)
    if file.format != FORMAT:
        got, allowed = f"format {file.format}", f"format {FORMAT}"
        raise StoreError(f"{path} was written by another version", got=got, allowed=allowed)
    read_tables(path.parent, (column.codec.arrays for column in file.schema.features))
    return file.schema


def memory(array: np.ndarray) -> memoryview:
    """The bytes of an array."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def mapped(path: Path, kind: np.dtype, shape: tuple[int, ...], *, digest: str, root: Path) -> np.ndarray:
    """An array from a file, its bytes checked once per process; no step below `root` may be a link.

    It is memory-mapped, or read if it is small; no file stays open.
    """
    size = kind.itemsize * int(np.prod(shape, dtype=np.int64))
    try:
        with open_plain(path, root=root) as file:
            status = os.fstat(file.fileno())
            if status.st_size != size:
                fault = "truncated" if status.st_size < size else "too long"
                raise damaged(path, f"it is {fault}: {status.st_size} bytes, {size} were written")
            check_once(path, digest, (status.st_ino, status.st_size, status.st_mtime_ns))
            if not size:
                return np.empty(shape, kind)  # an empty file cannot be mapped
            if size <= MAPPED:
                return np.frombuffer(file.read(), kind).reshape(shape)
            return np.asarray(MappedFile(file.fileno(), size)).view(kind).reshape(shape)
    except OSError as error:
        raise unreadable(path, error) from None


def numbers_in(folder: Path) -> list[int]:
    """The numbers of a store's versions, ascending, including emptied ones."""
    try:
        names = os.listdir(folder / "versions")
    except OSError as error:
        raise unreadable(folder / "versions", error) from None
    return sorted(int(name[:-5]) for name in names if re.fullmatch(r"\d{8,18}\.json", name))


def is_forgotten(path: Path) -> bool:
    """True if a version was emptied by `forget`."""
    return path.lstat().st_size == 0


def forget(versions: Sequence[Path], age: float) -> None:
    """Empties versions, oldest first, that were replaced more than `age` seconds ago; their numbers stay taken.

    A free number could be taken by a writer that had read the version before it long ago. Its data would be below the
    newest version, and be lost.
    """
    for path, following in zip(versions, versions[1:], strict=False):
        if not is_forgotten(path) and following.lstat().st_mtime <= time.time() - age:
            with disk_errors(path, "an old version cannot be emptied"):
                replace_file(path, b"")


def named_files(versions: Sequence[Path]) -> set[tuple[str, str]]:
    """The fragments that these versions name, each as ("", name), and the files of results, as (column, name)."""
    fragments = list[Stored]()
    for path in versions:
        try:
            fragments += () if is_forgotten(path) else read_version(path)
        except StoreError:
            if not is_forgotten(path):  # by another process, since it was looked at
                raise
    results = {(column, file) for each in fragments for column, (file, _) in each.results.items()}
    return results | {("", each.name) for each in fragments}


def damaged(path: Path, why: str) -> StoreError:
    """The error for a changed file; it names the store, the folder with `store.json`."""
    store = next((folder for folder in path.parents if (folder / "store.json").exists()), path.parent)
    do = f"restore it from a copy, or delete {store} and encode its texts again"
    return StoreError(f"{path} is damaged: {why}", do=do)


def unreadable(path: Path, error: OSError) -> StoreError:
    """The error for a file that cannot be opened: it is damaged, unless the system denies it to this process."""
    if error.errno in DENIED:
        do = "let this process read it: see the file's permissions, or its limits of open files and memory (ulimit -a)"
        return StoreError(f"{path} cannot be read", got=error.strerror, do=do)
    return damaged(path, "it is missing" if isinstance(error, FileNotFoundError) else str(error))


@functools.lru_cache(maxsize=2**16)
def check_once(path: Path, digest: str, stamp: Stamp) -> None:
    """Hashes a file once per process, and again if its inode, size or time changes (90 MB take 50 ms)."""
    check_content(path, digest)


def check_content(path: Path, digest: str) -> None:
    """Raises StoreError if a file's SHA-256 differs."""
    try:
        with open_plain(path) as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, error) from None
    if content != digest:
        raise damaged(path, "it was changed since it was written")


def read_version(path: Path) -> tuple[Stored, ...]:
    """The fragments of a version, with every name inside the store's folder."""
    fragments = read_sealed(path, tuple[Stored, ...])
    for stored in fragments:
        names = [stored.name, *stored.tokens, *stored.results, *(file for file, _ in stored.results.values())]
        if stored.rows < 0 or not all(map(is_name, names)):
            raise damaged(path, "it names files outside the store, or fewer rows than none")
    return fragments


def read_sealed(path: Path, kind: type[T]) -> T:
    """A JSON file of the store; raises StoreError that names it if it was changed since it was written."""
    try:
        data = msgspec.json.decode(read_plain(path, limit=LARGEST_CONFIG))
    except OSError as error:
        raise unreadable(path, error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(path, str(error)) from None
    content = data.get("content") if isinstance(data, dict) else None
    if content is None or data != {"digest": _digest(content), "content": content}:
        raise damaged(path, "it was changed since it was written")
    try:
        return to_value(content, kind, source=str(path))  # type: ignore[type-var]  # a tuple of values too
    except PolyheadError as error:
        schema = content.get("schema") if isinstance(content, dict) else None
        missing = unregistered(error, StoreError, path, schema.get("plugins") if isinstance(schema, dict) else None)
        raise missing or damaged(path, str(error)) from None


def packed_texts(results: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Results as a file of numbers holds them: texts (rows,) as UTF-8 (rows, bytes), filled up with zeros."""
    for name, array in results.items():
        if array.dtype.kind not in "UO":
            yield name, np.ascontiguousarray(array)
            continue
        encoded = np.array([str(text).encode() for text in array.tolist()], np.bytes_)
        width = max(1, encoded.dtype.itemsize)
        yield name + UTF8, np.frombuffer(encoded.astype(f"S{width}").tobytes(), np.uint8).reshape(-1, width)


def unpacked_texts(arrays: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """The results that such a file holds."""
    for name, array in arrays.items():
        if not name.endswith(UTF8):
            yield name, array
            continue
        rows = [row.tobytes().rstrip(b"\0").decode() for row in array]
        yield name.removesuffix(UTF8), np.array(rows, np.str_)


def _digest(content: object) -> str:
    return hashlib.sha256(to_json(content)).hexdigest()


@contextmanager
def disk_errors(path: Path, problem: str, *, needed: int = 0) -> Iterator[None]:
    """A context that turns a disk's errors into a StoreError with the number of bytes needed."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{path}: {problem}" + (f", {needed} bytes were needed" if needed else ""),
            got=error.strerror,
            do="make room, or give a folder that can be written; nothing was kept of this change",
            needed=needed,
        ) from error
