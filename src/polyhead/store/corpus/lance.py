"""A corpus store as a Lance dataset: one row per document, in a local folder or an object store such as S3.

    id                    16 bytes
    tokens_DIGEST         tokens of the document, uint32
    features_DIGEST       their encoded features, one binary value, not compressed
    COLUMN.NAME           results, null where they are not done yet (the dot is written as "__")

DuckDB, Polars and Arrow read the dataset in place. Anything in addition to rows is in the metadata of its schema: the
store's schema, facts about columns of results, and a seal over all of a version. Every change is committed with the
whole list of fragments, which fails whenever another commit came first, whatever it changed, and is then repeated on
top of it. Lance's own `Append` would not fail, so two writers could keep one document twice; nor would it renew the
seal.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import msgspec
import numpy as np

from polyhead.errors import NoStore, StoreError
from polyhead.store.corpus.arrow import ABOUT, array_of, arrow_schema, id_array, packed_rows, plain_array, rows_table
from polyhead.store.corpus.base import (
    WORDS,
    CorpusStore,
    Fragment,
    PackedRows,
    ResultFacts,
    Schema,
    check_column_name,
    check_results,
    check_schema,
    checked_schema,
)
from polyhead.store.corpus.ids import IdIndex
from polyhead.store.corpus.joining import gone_since
from polyhead.store.corpus.lance_files import (
    LanceFragment,
    bring_tables,
    changed,
    check_tables,
    check_values,
    fragments_in,
    is_conflict,
    is_fault,
    make_dataset,
    metadata_of,
    modules,
    put_tables,
    schema_in,
    with_seal,
    write_columns,
    write_fragment,
)
from polyhead.values import from_json, to_json

FACTS = b"polyhead:column:"  # prefix of metadata keys that describe columns of results


class LanceStore(CorpusStore):
    """A store in a Lance dataset."""

    def __init__(self, location: str) -> None:
        super().__init__()
        self._location = location
        self._lance, self._arrow = modules()
        with opening(location):
            dataset = self._lance.dataset(location)
            about = (dataset.schema.metadata or {}).get(ABOUT)
        if about is None:
            raise StoreError(f"{location} is a Lance dataset, but no store of features", do="give another location")
        self._read_version(dataset)
        self.schema = schema_in(about, location)
        bring_tables(self._lance, location, (column.codec.arrays for column in self.schema.features))

    @classmethod
    def create(cls, location: str, schema: Schema) -> Self:
        """Opens the store there, or creates it; raises StoreError if a different one exists."""
        schema = checked_schema(schema)
        lance, arrow = modules()
        empty = with_seal(arrow_schema(arrow, schema), (), 1).empty_table()
        try:
            store = cls.open(location)
        except NoStore:
            put_tables(lance, arrow, location, (column.codec.arrays for column in schema.features))
            make_dataset(lance, empty, location, location=location)
            store = cls.open(location)
        check_schema(store.schema, schema, location)
        return store

    @classmethod
    def open(cls, location: str) -> Self:
        """The store there; raises StoreError if there is none."""
        return cls(location)

    @property
    def version(self) -> int:
        """Lance's number of the current version."""
        number: int = self._dataset.version
        return number

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        """The fragments of this version, in the order of their rows."""
        columns = self._columns()
        return tuple(
            Fragment(
                name=each.name,
                rows=each.rows,
                results=tuple(column for column, names in columns.items() if each.columns & set(names.values())),
            )
            for each in self._records
        )

    def refresh(self) -> None:
        """Switches to the newest version."""
        with opening(self._location):
            dataset = self._lance.dataset(self._location)
        self._read_version(dataset)

    def ids(self, fragment: str) -> np.ndarray:
        """The ids of a fragment's documents, (rows, 16) uint8."""
        return id_array(self._read(fragment, ["id"]).column("id"))

    def tokens(self, fragment: str, name: str) -> int:
        """The number of tokens of a fragment's documents, or of words: their column alone, which is not checked."""
        column = f"tokens_{name}"
        return int(self._table(self._record(fragment), [column]).column(column).to_numpy().sum(dtype=np.int64))

    def index(self, fragment: str) -> IdIndex:
        """The index of a fragment's ids, built on first use."""
        if fragment not in self._indices:
            self._indices[fragment] = IdIndex.of(self.ids(fragment))
        return self._indices[fragment]

    def rows(self, fragment: str, digest: str) -> PackedRows:
        """The features of a fragment's documents, in memory."""
        if (fragment, digest) not in self._rows:
            size = self.schema.item_bytes(digest)
            table = self._read(fragment, [f"tokens_{digest}", f"features_{digest}"])
            tokens, features = table.column(f"tokens_{digest}"), table.column(f"features_{digest}")
            rows = packed_rows(tokens, features, size)
            if rows is None:
                raise changed(self._location, f"fragment {fragment}, of which lengths do not fit the features,")
            # Only the last one, and words beside it, since they are not memory-mapped.
            kept = {key: each for key, each in self._rows.items() if key[0] == fragment and WORDS in (key[1], digest)}
            self._rows = kept | {(fragment, digest): rows}
        return self._rows[fragment, digest]

    def put_columns(self, fragment: str, columns: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Adds columns of results to a fragment, or replaces them."""
        tables, files = {}, []
        for column, results in columns.items():
            check_results(column, results, self._record(fragment).rows)
            arrays = {f"{column}__{name}": array_of(self._arrow, each) for name, each in results.items()}
            tables[column] = self._arrow.table(arrays)
        self._schema_with(tables)  # refused before anything is written
        for table in tables.values():
            with lance_errors(self._location, table):
                files.append(write_columns(self._location, table))

        def added(records: Sequence[LanceFragment]) -> tuple[Sequence[LanceFragment], Any]:
            schema, known = self._schema_with(tables), self._columns()
            old = [name for column in tables for name in known.get(column, {}).values()]
            self._record(fragment)  # still exists
            return [
                msgspec.structs.replace(each, files=(*each.without(old), *files)) if each.name == fragment else each
                for each in records
            ], schema

        self._change(added)

    def results(self, fragment: str, column: str) -> dict[str, np.ndarray] | None:
        """A column of results of a fragment; None if it is not done yet."""
        held = self._record(fragment).columns
        stored = {name: full for name, full in self._columns().get(column, {}).items() if full in held}
        if not stored:
            return None
        table = self._read(fragment, list(stored.values()))
        return {name: plain_array(self._arrow, table.column(full).combine_chunks()) for name, full in stored.items()}

    def describe(self, column: str, facts: ResultFacts) -> None:
        """Stores facts about a column of results in the metadata of the dataset's schema."""
        check_column_name(column, "a column of results")
        added = {FACTS + column.encode(): to_json(facts, indent=0)}

        def described(records: Sequence[LanceFragment]) -> tuple[Sequence[LanceFragment], Any]:
            schema = self._dataset.schema
            return records, schema.with_metadata({**schema.metadata, **added})

        self._change(described)

    def described(self) -> dict[str, ResultFacts]:
        """The facts from `describe`, by column."""
        return {
            key.removeprefix(FACTS).decode(): from_json(value, ResultFacts, source=self._location)
            for key, value in self._dataset.schema.metadata.items()
            if key.startswith(FACTS)
        }

    def drop_results(self, column: str) -> None:
        """Removes a column of results from every fragment."""

        def without(records: Sequence[LanceFragment]) -> tuple[Sequence[LanceFragment], Any]:
            schema, names = self._dataset.schema, list(self._columns().get(column, {}).values())
            others = self._arrow.schema([each for each in schema if each.name not in names], metadata=schema.metadata)
            return [msgspec.structs.replace(each, files=each.without(names)) for each in records], others

        self._change(without)

    def sweep(self, *, age: float) -> int:
        """Removes old versions, and files that are older than `age` seconds; returns their bytes.

        Lance itself keeps files of unfinished commits for at least seven days.
        """
        self.refresh()
        stats = self._dataset.cleanup_old_versions(older_than=datetime.timedelta(seconds=age))
        freed: int = stats.bytes_removed
        return freed

    def verify(self) -> None:
        """Reads every value; raises StoreError that names a file changed since it was written."""
        self.refresh()
        check_tables(self._lance, self._location, (column.codec.arrays for column in self.schema.features))
        for fragment in self._records:
            self._read(fragment.name, sorted(fragment.columns))

    def _read_version(self, dataset: Any) -> None:
        """Switches to this version; raises StoreError if it was changed since it was written."""
        with reading(self._location):
            self._dataset = dataset
            self._turn_to(fragments_in(dataset, self._location))
            self._pieces = dict(zip(self._named, dataset.get_fragments(), strict=True))

    def _columns(self) -> dict[str, dict[str, str]]:
        """Columns of results: the names of their arrays, each with the name of its field."""
        columns: dict[str, dict[str, str]] = {}
        for field in self._dataset.schema:
            column, dots, name = field.name.rpartition("__")
            if dots:
                columns.setdefault(column, {})[name] = field.name
        return columns

    def _schema_with(self, tables: Mapping[str, Any]) -> Any:
        """The schema with fields for columns' arrays; raises StoreError if one exists with another type."""
        schema = self._dataset.schema
        for column, field in ((column, field) for column, table in tables.items() for field in table.schema):
            if field.name not in schema.names:
                schema = schema.append(field)
            elif schema.field(field.name).type != field.type:
                got, allowed = f"{field.name} of {field.type}", str(schema.field(field.name).type)
                do = f"drop the results of '{column}' first, or give them another name"
                raise StoreError(
                    f"results of '{column}' have another type than before", got=got, allowed=allowed, do=do
                )
        return schema

    def _read(self, fragment: str, columns: Sequence[str]) -> Any:
        """Columns of a fragment, with the others in their files; all of these are checked."""
        record = self._record(fragment)
        files = [file for file in record.files if set(columns) & set(file.columns)]
        table = self._table(record, [name for file in files for name in file.columns])
        with reading(self._location):
            table = table.combine_chunks()
            for file in files:
                check_values(table, file, self._location)
        return table

    def _table(self, record: LanceFragment, columns: Sequence[str]) -> Any:
        """Columns of a fragment, not checked; the error says so if the newest version does without their files."""
        try:
            with reading(self._location):
                return self._pieces[record.name].to_table(columns=list(columns))
        except StoreError:
            needed = {file.path for file in record.files if set(columns) & set(file.columns)}
            if needed <= {file.path for each in LanceStore.open(self._location)._records for file in each.files}:
                raise
            raise gone_since(self._location, record.name) from None

    def _write(self, ids: np.ndarray, features: Mapping[str, PackedRows]) -> LanceFragment:
        """Writes a fragment that no version names yet."""
        table = rows_table(self._arrow, self.schema, ids, features)
        with lance_errors(self._location, table):
            return write_fragment(self._location, table)

    def _discard(self, record: LanceFragment) -> None:
        """Leaves it to `sweep`: an object store may list files late."""

    def _join(self, group: Sequence[LanceFragment]) -> LanceFragment:
        """One fragment with all rows of several, and their results in separate files."""
        schema = arrow_schema(self._arrow, self.schema)
        tables = [self._read(each.name, sorted(each.columns)) for each in group]
        whole = self._arrow.concat_tables([table.select(sorted(group[0].columns)) for table in tables]).combine_chunks()
        with lance_errors(self._location, whole):
            joined = write_fragment(self._location, whole.select(schema.names).cast(schema))
            results = [
                write_columns(self._location, whole.select(list(file.columns)))
                for file in group[0].without(schema.names)
            ]
        return msgspec.structs.replace(joined, files=(*joined.files, *results))

    def _commit(self, records: Sequence[LanceFragment], about: Any = None) -> bool:
        """Commits a version with these fragments, or returns False if another was first; `about` is another schema."""
        number, operations = self._dataset.version, self._lance.LanceOperation
        fragments, schema = records, self._dataset.schema if about is None else about
        numbers = {name: piece.fragment_id for name, piece in self._pieces.items()}
        for fragment in fragments:
            numbers.setdefault(fragment.name, max(numbers.values(), default=-1) + 1)
        is_kept = {each.name for each in self._records} <= {each.name for each in fragments}
        grows = schema.names[: len(self._dataset.schema)] == self._dataset.schema.names
        # A Merge keeps the numbers of fragments and fields; it must keep all, which a compaction and a drop do not.
        operation = operations.Merge if is_kept and grows else operations.Overwrite
        whole = self._lance.schema.LanceSchema.from_pyarrow(with_seal(schema, fragments, number + 1))
        listed = [metadata_of(fragment, numbers[fragment.name], schema) for fragment in fragments]
        change = operation(whole, listed) if operation is operations.Overwrite else operation(listed, whole)
        try:
            dataset = self._lance.LanceDataset.commit(self._location, change, read_version=number, max_retries=0)
        except (OSError, RuntimeError) as error:
            if not is_conflict(error):
                raise StoreError(f"{self._location}: a version cannot be written", got=error, do="try again") from None
            return False
        self._read_version(dataset)
        return True


@contextmanager
def opening(location: str) -> Iterator[None]:
    """A context that turns Lance's errors into a StoreError, and into NoStore without a dataset."""
    try:
        with reading(location):
            yield
    except StoreError as error:
        if "was not found" in str(error.got) and "Dataset at path" in str(error.got):
            do = "give the place of a store, or make one: polyhead features extract"
            raise NoStore(f"there is no store at {location}", got=error.got, do=do) from None
        raise


@contextmanager
def reading(location: str) -> Iterator[None]:
    """A context that turns Lance's errors, and faults of its library at unexpected bytes, into a StoreError."""
    try:
        yield
    except BaseException as error:
        if not is_fault(error):
            raise
        got = (str(error).splitlines() or [""])[0]
        do = f"restore it from a copy, or delete {location} and encode its texts again"
        raise StoreError(f"{location} cannot be read", got=got, do=do) from None


@contextmanager
def lance_errors(location: str, table: Any) -> Iterator[None]:
    """A context that turns a disk's errors into a StoreError with the number of bytes needed."""
    try:
        yield
    except OSError as error:
        problem = f"{location}: {table.num_rows} rows cannot be written, {table.nbytes} bytes were needed"
        do = "make room, or give a place that can be written; nothing was kept of this change"
        raise StoreError(problem, got=str(error).splitlines()[0], do=do, needed=table.nbytes) from None
