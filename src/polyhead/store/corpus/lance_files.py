"""Data files of a Lance store, codec tables, and the seal of its versions, as Lance does not detect changed bytes."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from polyhead.codecs.tables import RESTORE, is_known, table_bytes, take_table
from polyhead.errors import CorruptFile, MissingExtra, PolyheadError, StoreError
from polyhead.plugins import unregistered
from polyhead.store.corpus.arrow import binary_values, id_array, plain_array
from polyhead.store.corpus.base import Schema
from polyhead.values import Value, from_json, to_json


def modules() -> tuple[Any, Any]:
    """Lance and Arrow; raises MissingExtra if they are not installed."""
    try:
        import lance
        import lance.fragment
        import lance.schema
        import pyarrow
    except ImportError:
        raise MissingExtra("pylance", "lance", "a store in Lance") from None
    return lance, pyarrow


def is_conflict(error: Exception) -> bool:
    """Whether a commit failed only because another came first, even long ago, with the version before it deleted."""
    text = str(error).lower()
    return "conflict" in type(error).__name__.lower() or "conflict" in text or ".manifest was not found" in text


def is_fault(error: BaseException) -> bool:
    """Whether an error is Lance's own, including a panic of its native code, which is not an `Exception`."""
    return isinstance(error, (OSError, ValueError, RuntimeError, NotImplementedError)) or (
        type(error).__name__ == "PanicException"
    )


def make_dataset(lance: Any, content: Any, place: str, *, location: str) -> None:
    """Writes a dataset of the store at `location`, unless it is there: another process may make it meanwhile."""
    try:
        lance.write_dataset(content, place, mode="create", data_storage_version=FORMAT)
    except OSError as error:
        if "already exists" not in str(error):
            do = "give a place that can be written"
            raise StoreError(f"{location}: the store cannot be made", got=error, do=do) from None


def put_tables(lance: Any, arrow: Any, location: str, digests: Iterable[str]) -> None:
    """Writes each named table that is not there yet; "" is skipped."""
    for digest in set(digests) - {""}:
        content = arrow.table({"content": arrow.array([table_bytes(digest)], arrow.large_binary())})
        make_dataset(lance, content, _place(location, digest), location=location)


def bring_tables(lance: Any, location: str, digests: Iterable[str]) -> None:
    """Loads the named tables; raises StoreError for one that is absent or was changed."""
    check_tables(lance, location, (digest for digest in digests if not is_known(digest)))


def check_tables(lance: Any, location: str, digests: Iterable[str]) -> None:
    """Reads the named tables, loaded or not; raises StoreError for one that is absent or was changed."""
    for digest in set(digests) - {""}:
        place = _place(location, digest)
        try:
            (content,) = lance.dataset(place).to_table().column("content").to_pylist()
            take_table(content, digest, Path(place))
        except CorruptFile as error:
            raise StoreError(error.what, got=error.got, do=RESTORE) from None
        except BaseException as error:
            if not is_fault(error) and not isinstance(error, (KeyError, TypeError)):
                raise
            got = (str(error).splitlines() or [""])[0]
            raise StoreError(f"the arrays of a codec cannot be read: {place}", got=got, do=RESTORE) from None


def _place(location: str, digest: str) -> str:
    return f"{location.rstrip('/')}/_codecs/{digest}.lance"


FORMAT = "2.2"  # of data files: pinned, since older versions of Lance do not read newer ones
SEAL = b"polyhead:seal"
NAME_LETTERS = 16  # letters of the random prefix of file names


class LanceFile(Value):
    """A data file: its name, and its columns, in its own order."""

    path: str
    columns: tuple[str, ...]
    size: int | None  # bytes


class LanceFragment(Value):
    """A fragment, named after the file with its ids."""

    name: str
    rows: int
    files: tuple[LanceFile, ...]

    @property
    def columns(self) -> frozenset[str]:
        """The columns in any of its files."""
        return frozenset(name for file in self.files for name in file.columns)

    def without(self, columns: Sequence[str]) -> tuple[LanceFile, ...]:
        """The files with none of these columns."""
        return tuple(file for file in self.files if not set(columns) & set(file.columns))


def fragments_in(dataset: Any, location: str) -> tuple[LanceFragment, ...]:
    """The fragments of a version; raises StoreError if the version is not as Polyhead wrote it."""
    names = {field.id(): str(field.name()) for field in dataset.lance_schema.fields()}
    fragments = []
    for metadata in (fragment.metadata for fragment in dataset.get_fragments()):
        files = tuple(
            LanceFile(
                path=str(file.path), columns=tuple(names.get(n, "") for n in file.fields), size=file.file_size_bytes
            )
            for file in metadata.files
        )
        name = next((file.path[:NAME_LETTERS] for file in files if "id" in file.columns), "")
        fragments.append(LanceFragment(name=name, rows=metadata.physical_rows, files=files))
    seal = (dataset.schema.metadata or {}).get(SEAL, b"")
    if seal != _seal(dataset.schema, fragments, dataset.version):
        raise changed(location, f"what version {dataset.version} says of its fragments and columns")
    return tuple(fragments)


def schema_in(about: bytes, location: str) -> Schema:
    """The schema of a version with a checked seal; StoreError names a codec that nothing registers."""
    try:
        return from_json(about, Schema, source=location)
    except PolyheadError as error:
        data = msgspec.json.decode(about)
        missing = unregistered(error, StoreError, location, data.get("plugins") if isinstance(data, dict) else None)
        raise missing or StoreError(f"{location} is damaged", got=error, do="restore it from a copy") from None


def with_seal(schema: Any, fragments: Sequence[LanceFragment], version: int) -> Any:
    """An Arrow schema with the seal of a version of these fragments."""
    return schema.with_metadata({**(schema.metadata or {}), SEAL: _seal(schema, fragments, version)})


def metadata_of(fragment: LanceFragment, number: int, schema: Any) -> Any:
    """A fragment for a Lance commit; its fields are numbered in the order of the schema's columns."""
    from lance.fragment import DataFile, FragmentMetadata

    numbers, (major, minor) = {name: at for at, name in enumerate(schema.names)}, map(int, FORMAT.split("."))
    files = [
        DataFile(file.path, [numbers[c] for c in file.columns], [*range(len(file.columns))], major, minor, file.size)
        for file in fragment.files
    ]
    return FragmentMetadata(number, files, fragment.rows)


def write_fragment(location: str, table: Any) -> LanceFragment:
    """Writes documents in the form of `table_of`: a file of their ids, and one for each column of features."""
    name = secrets.token_hex(NAME_LETTERS // 2)
    tokens = [each for each in table.column_names if each.startswith("tokens_")]
    groups = [["id"], *([each, each.replace("tokens_", "features_", 1)] for each in tokens)]
    files = tuple(write_columns(location, table.select(group), name=name) for group in groups)
    return LanceFragment(name=name, rows=table.num_rows, files=files)


def write_columns(location: str, table: Any, *, name: str = "") -> LanceFile:
    """Writes a data file of these columns, which no version names yet."""
    from lance.file import LanceFileWriter

    path = f"{name or secrets.token_hex(NAME_LETTERS // 2)}-{_digest(table)}.lance"
    with LanceFileWriter(f"{location.rstrip('/')}/data/{path}", table.schema, version=FORMAT) as writer:
        writer.write_batch(table)
    return LanceFile(path=path, columns=tuple(table.column_names), size=writer.size_bytes)


def check_values(table: Any, file: LanceFile, location: str) -> None:
    """Raises StoreError if a file's columns were changed since they were written."""
    if file.path[NAME_LETTERS:] != f"-{_digest(table.select(list(file.columns)))}.lance":
        raise changed(location, f"data/{file.path}")


def changed(location: str, part: str) -> StoreError:
    """The error for a store that was changed since it was written."""
    do = f"restore it from a copy, or delete {location} and encode its texts again"
    return StoreError(f"{location} is damaged: {part} was changed since it was written", do=do)


def _seal(schema: Any, fragments: Sequence[LanceFragment], version: int) -> bytes:
    metadata = {key: value for key, value in (schema.metadata or {}).items() if key != SEAL}
    fields = [f"{field.name}: {field.type}" for field in schema]
    total = hashlib.sha256(to_json([version, fields, list(fragments)]))
    for key in sorted(metadata):
        total.update(to_json([key.decode("utf-8", "replace"), metadata[key].decode("utf-8", "replace")]))
    return total.hexdigest().encode()


def _digest(table: Any) -> str:
    """SHA-256 over names, types and values of columns."""
    total = hashlib.sha256()
    for name in table.column_names:
        total.update(f"{name}\0".encode())
        for part in _parts(table.column(name)):
            total.update(f"{part.dtype.str}{part.shape}\0".encode())
            total.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def _parts(column: Any) -> Iterator[np.ndarray]:
    """The values of a column as plain arrays: ids; the lengths and bytes of features; or numbers."""
    import pyarrow

    if pyarrow.types.is_fixed_size_binary(column.type):
        yield id_array(column)
    elif pyarrow.types.is_large_binary(column.type):
        offsets, raw = binary_values(column)
        yield np.diff(offsets)
        yield raw
    else:
        yield plain_array(pyarrow, column.combine_chunks())
