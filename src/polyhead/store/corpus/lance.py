"""A store of a corpus as a Lance dataset: one row a document, in a local folder or an object store such as S3.

    id                    16 bytes
    tokens_DIGEST         tokens of the document, uint32
    features_DIGEST       their encoded features, one binary value, not compressed
    COLUMN.NAME           results, null where they are not done yet (the dot is written as "__")

The dataset is read in place by DuckDB, Polars and Arrow. Appends and results are committed as Lance's `Merge` of the
whole list of fragments, which fails whenever another commit came first, whatever it changed, and is then made again on
top of it. An `Append` would not fail, so two writers could keep one document twice.
"""

from __future__ import annotations

import dataclasses
import datetime
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np

from polyhead.config import from_json, to_json
from polyhead.errors import ConfigError, NoStore, StoreError
from polyhead.store.corpus.arrow import ABOUT, array_of, arrow_schema, ids_of, packed_rows, plain_array, table_of
from polyhead.store.corpus.base import (
    CorpusStore,
    Fragment,
    IdIndex,
    PackedRows,
    ResultFacts,
    Schema,
    as_ids,
    check_columns,
    check_features,
    check_name,
    check_results,
    check_schema,
    groups,
)
from polyhead.store.corpus.lance_library import is_conflict, modules
from polyhead.store.corpus.lance_tables import bring_tables, put_tables

FORMAT = "2.2"  # of data files: pinned, as older versions of Lance do not read newer ones
FACTS = "polyhead:column:"  # how keys of a dataset's configuration begin that describe columns of results
ATTEMPTS = 1000  # at a commit, of which each lost one means that another writer made progress


class LanceStore(CorpusStore):
    """A store in a Lance dataset."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._lance, self._arrow = modules()
        with reading(location):
            self._dataset = self._lance.dataset(location)
        about = (self._dataset.schema.metadata or {}).get(ABOUT)
        if about is None:
            raise StoreError(f"{location} is a Lance dataset, but no store of features", do="give another location")
        try:
            self.schema = from_json(about, Schema, source=location)
        except ConfigError as error:
            raise StoreError(f"{location} is damaged", got=error, do="restore it from a copy") from None
        bring_tables(self._lance, location, (column.codec.arrays for column in self.schema.features))
        self._indices: dict[str, IdIndex] = {}
        self._rows: dict[tuple[str, str], PackedRows] = {}

    @classmethod
    def create(cls, location: str, schema: Schema) -> Self:
        """Opens the store there, made where there is none; raises StoreError where another one is there."""
        check_columns(schema)
        lance, arrow = modules()
        empty = arrow_schema(arrow, schema).empty_table()
        try:
            store = cls.open(location)
        except StoreError:
            put_tables(lance, arrow, location, (column.codec.arrays for column in schema.features), format=FORMAT)
            try:
                lance.write_dataset(empty, location, mode="create", data_storage_version=FORMAT)
            except OSError as error:
                if "already exists" not in str(error):  # made by another process since
                    do = "give a place that can be written"
                    raise StoreError(f"{location}: the store cannot be made", got=error, do=do) from None
            store = cls.open(location)
        check_schema(store.schema, schema, location)
        return store

    @classmethod
    def open(cls, location: str) -> Self:
        """The store there; raises StoreError where there is none."""
        return cls(location)

    @property
    def version(self) -> int:
        """Lance's number of the version that is read."""
        number: int = self._dataset.version
        return number

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        """The fragments of this version, by their number."""
        columns, fields = self._columns(), self._fields()
        fragments = []
        for fragment in self._dataset.get_fragments():
            held = {field for file in fragment.metadata.files for field in file.fields}
            results = tuple(
                column for column, names in columns.items() if any(fields[name] in held for name in names.values())
            )
            fragments.append(Fragment(name=str(fragment.fragment_id), rows=fragment.count_rows(), results=results))
        return tuple(fragments)

    def refresh(self) -> None:
        """Turns to the newest version."""
        with reading(self._location):
            self._dataset = self._lance.dataset(self._location)
        names = {str(fragment.fragment_id) for fragment in self._dataset.get_fragments()}
        self._indices = {name: index for name, index in self._indices.items() if name in names}
        self._rows = {key: rows for key, rows in self._rows.items() if key[0] in names}

    def append(self, ids: Sequence[bytes] | np.ndarray, features: Mapping[str, PackedRows]) -> int:
        """Adds documents as one fragment; those that are there already are left out. Returns how many were new."""
        ids = as_ids(ids)
        check_features(self.schema, ids, features)
        fragments: list[Any] = []
        written = np.empty(0, np.int64)
        for _ in range(ATTEMPTS):
            self.refresh()
            rows = self.lacking(ids)
            if not len(rows):
                return 0
            if not np.array_equal(rows, written):  # at first, and when another writer added some of them
                table = table_of(
                    self._arrow, self.schema, ids[rows], {digest: each.take(rows) for digest, each in features.items()}
                )
                fragments, written = self._write(table), rows
            if self._commit([*self._metadata(), *self._numbered(fragments)]):
                return len(rows)
        raise self._busy()

    def ids(self, fragment: str) -> np.ndarray:
        """The ids of a fragment's documents, (rows, 16) uint8."""
        return ids_of(self._read(fragment, ["id"]).column("id"))

    def index(self, fragment: str) -> IdIndex:
        """The index of a fragment's ids, made when it is first needed."""
        if fragment not in self._indices:
            self._indices[fragment] = IdIndex.of(self.ids(fragment))
        return self._indices[fragment]

    def rows(self, fragment: str, digest: str) -> PackedRows:
        """The features of a fragment's documents, in memory."""
        if (fragment, digest) not in self._rows:
            column = self.schema.column(digest)
            table = self._read(fragment, [f"tokens_{digest}", f"features_{digest}"])
            tokens, features = table.column(f"tokens_{digest}"), table.column(f"features_{digest}")
            rows = packed_rows(tokens, features, column.token_bytes)
            if rows is None:
                raise StoreError(
                    f"fragment {fragment} of {self._location} is damaged: its lengths do not fit its features",
                    do="restore it from a copy, or delete the store and encode its texts again",
                )
            self._rows = {(fragment, digest): rows}  # the last one alone: they are no maps of files
        return self._rows[fragment, digest]

    def put_results(self, fragment: str, column: str, results: Mapping[str, np.ndarray]) -> None:
        """Adds a column of results to a fragment, or replaces it."""
        check_results(column, results, self._fragment(fragment).count_rows())
        arrays = {f"{column}__{name}": array_of(self._arrow, array) for name, array in results.items()}
        for name, array in arrays.items():
            self._declare(column, name, array.type)
        added = [self._write_column(name, array) for name, array in arrays.items()]
        for _ in range(ATTEMPTS):
            self._fragment(fragment)
            fields = self._fields()
            if not set(arrays) <= set(fields):
                raise StoreError(f"column '{column}' was dropped while its results were written", do="write them again")
            replaced = {fields[name] for name in self._columns()[column].values()}
            fragments = []
            for metadata in self._metadata():
                if str(metadata.id) == fragment:
                    kept = [file for file in metadata.files if not set(file.fields) & replaced]
                    metadata = dataclasses.replace(metadata, files=[*kept, *added])
                fragments.append(metadata)
            if self._commit(fragments):
                return
            self.refresh()
        raise self._busy()

    def results(self, fragment: str, column: str) -> dict[str, np.ndarray] | None:
        """A column of results of a fragment; None where it is not done yet."""
        names = self._columns().get(column, {})
        held = {field for file in self._fragment(fragment).metadata.files for field in file.fields}
        there = {name: full for name, full in names.items() if self._fields()[full] in held}
        if not there:
            return None
        table = self._read(fragment, list(there.values()))
        return {name: plain_array(self._arrow, table.column(full).combine_chunks()) for name, full in there.items()}

    def describe(self, column: str, facts: ResultFacts) -> None:
        """Keeps facts about a column of results in the configuration of the dataset."""
        check_name(column, "a column of results")
        self.refresh()
        self._retried(lambda: self._dataset.update_config({FACTS + column: to_json(facts, indent=0).decode()}))

    def described(self) -> dict[str, ResultFacts]:
        """What `describe` was given, by column."""
        config = self._dataset.config()
        return {
            name.removeprefix(FACTS): from_json(value.encode(), ResultFacts, source=self._location)
            for name, value in config.items()
            if name.startswith(FACTS)
        }

    def drop_results(self, column: str) -> None:
        """Removes a column of results from every fragment."""
        self.refresh()
        names = list(self._columns().get(column, {}).values())
        if names:
            self._retried(lambda: self._dataset.drop_columns(names))

    def compact(self, *, rows: int) -> int:
        """Joins neighbouring fragments into some of up to about so many rows; returns how many fragments went."""
        self.refresh()
        gone = 0
        for group in list(groups(self.fragments, rows)):
            names = {fragment.name for fragment in group}
            before = {str(metadata.id): metadata for metadata in self._metadata() if str(metadata.id) in names}
            joined = self._join(group)
            for _ in range(ATTEMPTS):
                there = {str(metadata.id): metadata for metadata in self._metadata()}
                if {name: there.get(name) for name in names} != before:
                    break  # another process joined them, or added a column
                if self._put(self._rewritten(list(before.values()), joined)):
                    gone += len(group) - 1
                    break
                self.refresh()
        return gone

    def sweep(self, *, age: float) -> int:
        """Removes old versions, and files that are older than `age` seconds; returns their bytes.

        Lance itself keeps files of commits that did not end for at least seven days.
        """
        self.refresh()
        stats = self._dataset.cleanup_old_versions(older_than=datetime.timedelta(seconds=age))
        freed: int = stats.bytes_removed
        return freed

    def verify(self) -> None:
        """Reads every byte; raises StoreError where lengths and features do not fit, or Lance cannot read a file."""
        for fragment in self.fragments:
            self.ids(fragment.name)
            for column in self.schema.features:
                self.rows(fragment.name, column.digest)
            for name in fragment.results:
                self.results(fragment.name, name)

    def _fragment(self, name: str) -> Any:
        for fragment in self._dataset.get_fragments():
            if str(fragment.fragment_id) == name:
                return fragment
        raise StoreError(
            f"the store has no fragment '{name}'", do="read `fragments` again: it was joined with others since"
        )

    def _metadata(self) -> list[Any]:
        return [fragment.metadata for fragment in self._dataset.get_fragments()]

    def _fields(self) -> dict[str, int]:
        """Lance's number of each field."""
        return {field.name(): field.id() for field in self._dataset.lance_schema.fields()}

    def _columns(self) -> dict[str, dict[str, str]]:
        """Columns of results: the names of their arrays, each with the name of its field."""
        columns: dict[str, dict[str, str]] = {}
        for field in self._dataset.schema:
            column, dots, name = field.name.rpartition("__")
            if dots:
                columns.setdefault(column, {})[name] = field.name
        return columns

    def _read(self, fragment: str, columns: list[str]) -> Any:
        with reading(self._location):
            return self._fragment(fragment).to_table(columns=columns)

    def _write(self, table: Any) -> list[Any]:
        """Writes a fragment that no version names yet."""
        with writing(self._location, table.num_rows, table.nbytes):
            options = {"mode": "append", "data_storage_version": FORMAT, "max_rows_per_file": table.num_rows}
            written: list[Any] = self._lance.fragment.write_fragments(table, self._location, **options)
        return written

    def _numbered(self, fragments: Sequence[Any]) -> list[Any]:
        """Fragments under the numbers after those that are taken."""
        first = max((metadata.id for metadata in self._metadata()), default=-1) + 1
        return [dataclasses.replace(metadata, id=first + i) for i, metadata in enumerate(fragments)]

    def _write_column(self, name: str, array: Any) -> Any:
        """Writes a data file of one declared column."""
        from lance.file import LanceFileWriter
        from lance.fragment import DataFile

        table, file = self._arrow.table({name: array}), f"{secrets.token_hex(16)}.lance"
        with writing(self._location, table.num_rows, table.nbytes):
            path = f"{self._location.rstrip('/')}/data/{file}"
            with LanceFileWriter(path, table.schema, version=FORMAT) as writer:
                writer.write_batch(table)
        major, minor = map(int, FORMAT.split("."))
        return DataFile(file, [self._fields()[name]], [0], major, minor, writer.size_bytes)

    def _declare(self, column: str, name: str, kind: Any) -> None:
        """Adds a field of nulls for a column's array, where there is none; raises StoreError for another type."""
        for _ in range(ATTEMPTS):
            self.refresh()
            if name not in self._dataset.schema.names:
                self._retried(lambda: self._dataset.add_columns(self._arrow.field(name, kind)))
                continue
            if self._dataset.schema.field(name).type == kind:
                return
            got, allowed = f"{name} of {kind}", str(self._dataset.schema.field(name).type)
            do = f"drop the results of '{column}' first, or give them another name"
            raise StoreError(f"results of '{column}' have another type than before", got=got, allowed=allowed, do=do)
        raise self._busy()

    def _join(self, group: Sequence[Fragment]) -> list[Any]:
        """One fragment of all rows of several, with their results in files of their own."""
        base = arrow_schema(self._arrow, self.schema).names
        tables = [self._read(fragment.name, base) for fragment in group]
        (metadata,) = self._write(self._arrow.concat_tables(tables).cast(arrow_schema(self._arrow, self.schema)))
        files = list(metadata.files)
        for column in group[0].results:
            for name in self._columns()[column].values():
                parts = [self._read(fragment.name, [name]).column(name).combine_chunks() for fragment in group]
                files.append(self._write_column(name, self._arrow.concat_arrays(parts)))
        return [dataclasses.replace(metadata, files=files)]

    def _commit(self, fragments: list[Any]) -> bool:
        """Commits a list of fragments; False where another writer was first."""
        return self._put(self._lance.LanceOperation.Merge(fragments=fragments, schema=self._dataset.lance_schema))

    def _rewritten(self, old: list[Any], new: list[Any]) -> Any:
        """The operation that puts new fragments in the place of old ones."""
        operation = self._lance.LanceOperation
        group = operation.RewriteGroup(old_fragments=old, new_fragments=new)
        return operation.Rewrite(groups=[group], rewritten_indices=[])

    def _put(self, operation: Any) -> bool:
        """Commits an operation on the version that is read; False where another writer was first."""
        try:
            self._dataset = self._lance.LanceDataset.commit(
                self._location, operation, read_version=self._dataset.version, max_retries=0
            )
        except (OSError, RuntimeError) as error:
            if not is_conflict(error):
                raise StoreError(f"{self._location}: a version cannot be written", got=error, do="try again") from None
            return False
        return True

    def _retried(self, change: Callable[[], object]) -> None:
        """Makes one of Lance's own changes, again where another writer was first."""
        for _ in range(ATTEMPTS):
            try:
                change()
            except (OSError, RuntimeError) as error:
                if not is_conflict(error):
                    raise StoreError(f"{self._location} cannot be changed", got=error, do="try again") from None
                self.refresh()
                continue
            self.refresh()
            return
        raise self._busy()

    def _busy(self) -> StoreError:
        return StoreError(f"{self._location} is written to by too many processes at once", do="try again later")


@contextmanager
def reading(location: str) -> Iterator[None]:
    """Turns Lance's errors into a StoreError."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        if "not found" in str(error).lower():
            do = "give the place of a store, or make one with `create`"
            raise NoStore(f"there is no store at {location}", got=str(error).splitlines()[0], do=do) from None
        raise StoreError(f"{location} cannot be read", got=str(error).splitlines()[0], do="restore it") from None


@contextmanager
def writing(location: str, rows: int, needed: int) -> Iterator[None]:
    """Turns a disk's errors into a StoreError that says how many bytes were needed."""
    try:
        yield
    except OSError as error:
        what = f"{location}: {rows} rows cannot be written, {needed} bytes were needed"
        do = "make room, or give a place that can be written; nothing was kept of this change"
        raise StoreError(what, got=str(error).splitlines()[0], do=do, needed=needed) from None
