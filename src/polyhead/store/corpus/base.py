"""The interface of corpus stores: documents by id, packed features of every token, and columns of results.

A store grows by fragments. A fragment holds the documents of one append; it is complete or absent, and its rows never
move. A column of results (a task's labels or scores) is added fragment by fragment: a fragment without it is not done
yet, which is all that an interrupted job needs to know.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Self

import msgspec
import numpy as np

from polyhead.errors import StoreError
from polyhead.plan import Codec, Path
from polyhead.plan.cost import vector_bytes
from polyhead.plugins import packages_of
from polyhead.store.corpus.ids import IdIndex, as_ids, first_of_each
from polyhead.store.corpus.joining import fragment_groups, with_joined
from polyhead.values import Value

WORDS, WORD_BYTES = "words", 3  # the name of hashed words beside the digests of features, and bytes of one of them
FILE_KEYS = ("texts", "columns")  # of `Schema.source`: the first file that was extracted, and the named columns
JOINED_BYTES = 2**30  # of features that fragments are joined to at most, which are in memory meanwhile
ATTEMPTS = 1000  # at a commit, of which each lost one means that another writer made progress


def is_name(name: str) -> bool:
    """Whether features or a column may have this name, which becomes part of file names."""
    return re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}", name) is not None


def check_column_name(name: str, subject: str) -> None:
    """Raises StoreError if the `subject`, such as a column, cannot have this name."""
    if not is_name(name):
        raise StoreError(f"{subject} cannot have this name", got=name, allowed="letters, digits, '-', '_' and '.'")


class FeatureColumn(Value):
    """The features kept of every token: the stored value of a path, named by its digest."""

    digest: str
    layers: int  # stored layers per token
    width: int
    codec: Codec
    path: Path | None = None  # the path with this stored value, as far as its writer knew; the digest is the path's

    @property
    def token_bytes(self) -> int:
        """Bytes of one token: all its stored layers."""
        return self.layers * vector_bytes(self.codec, self.width)


class Schema(Value, omit_defaults=True):
    """The content of a store for each document. `source` is the origin of features, such as the trunk's digest."""

    features: tuple[FeatureColumn, ...]
    words: bool = False  # also hashes of each text's words (`store.words`)
    source: dict[str, str] = {}
    plugins: dict[str, str] = {}  # packages that register its codecs, if Polyhead itself does not

    @property
    def origin(self) -> dict[str, str]:
        """The part of the source that all features of the store share: all but the file that it was made from."""
        return {name: value for name, value in self.source.items() if name not in FILE_KEYS}

    @property
    def names(self) -> tuple[str, ...]:
        """The stored items of a document: tokens, by the digests of features, and words."""
        return (*(column.digest for column in self.features), *([WORDS] if self.words else ()))

    def item_bytes(self, name: str) -> int:
        """Bytes of one token of these features, or of one word; raises StoreError if they are not kept."""
        return WORD_BYTES if self.words and name == WORDS else self.column(name).token_bytes

    def column(self, digest: str) -> FeatureColumn:
        """The feature column with this digest; raises StoreError with the existing ones."""
        for column in self.features:
            if column.digest == digest:
                return column
        allowed = [column.digest for column in self.features]
        do = "extract these features first, or choose a task that reads what is kept"
        raise StoreError(f"the store keeps no features '{digest}'", allowed=allowed, do=do)


def check_schema(stored: Schema, wanted: Schema, location: str) -> None:
    """Raises StoreError if the store at `location` has other content than requested."""
    for name in ("features", "words", "origin"):
        if getattr(stored, name) != getattr(wanted, name):
            what = "source differs" if name == "origin" else f"{name} differ"
            got, allowed, do = getattr(stored, name), getattr(wanted, name), "use another place, or delete this store"
            raise StoreError(f"{location} keeps other features: its {what}", got=got, allowed=allowed, do=do)


def checked_schema(schema: Schema) -> Schema:
    """The schema of a new store, with the packages that its codecs need.

    Raises StoreError if features have no layers or dimensions, or a name that is not a valid file name.
    """
    for column in schema.features:
        check_column_name(column.digest, "features")
        if column.layers < 1 or column.width < 1:
            got = f"{column.layers} and {column.width}"
            raise StoreError("a store needs at least one layer and one dimension", got=got)
    codecs = {f"codec '{column.codec.name}'": column.codec.format for column in schema.features}
    return msgspec.structs.replace(schema, plugins=packages_of(codecs))


def check_results(column: str, results: Mapping[str, np.ndarray], rows: int) -> None:
    """Raises StoreError if results have no name, or another length than the fragment's rows."""
    check_column_name(column, "a column of results")
    if not results:
        raise StoreError(f"column '{column}' has no results", do="give at least one array")
    for name, array in results.items():
        check_column_name(name, "results")
        if array.ndim not in (1, 2) or len(array) != rows:
            got, allowed = f"'{name}' of shape {array.shape}", f"({rows},) or ({rows}, numbers)"
            raise StoreError("results of another number of rows", got=got, allowed=allowed)


class PackedRows(msgspec.Struct, frozen=True, kw_only=True):
    """Encoded features of some documents, concatenated."""

    offsets: np.ndarray  # (rows + 1,) int64, in tokens
    data: np.ndarray  # (tokens, token_bytes) uint8

    @classmethod
    def of(cls, lengths: Sequence[int] | np.ndarray, data: np.ndarray) -> Self:
        """Rows with these lengths in tokens."""
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return cls(offsets=offsets, data=data)

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each row."""
        return np.diff(self.offsets)

    def between(self, start: int, stop: int) -> PackedRows:
        """The rows from `start` to `stop`, not copied."""
        first, last = self.offsets[[start, stop]].tolist()
        return PackedRows(offsets=self.offsets[start : stop + 1] - first, data=self.data[first:last])

    def take(self, rows: np.ndarray) -> PackedRows:
        """Some rows, copied, in the order given."""
        starts, stops = self.offsets[:-1][rows].tolist(), self.offsets[1:][rows].tolist()
        parts = [self.data[start:stop] for start, stop in zip(starts, stops, strict=True)]
        data = np.concatenate(parts) if parts else self.data[:0]
        return PackedRows.of(self.lengths[rows], data)


class Fragment(Value):
    """The documents of one append."""

    name: str
    rows: int
    results: tuple[str, ...]  # columns of results in this fragment


class ResultFacts(Value):
    """The content of a column of results, for a reader who has only the store."""

    task: str
    kind: str
    labels: tuple[str, ...]  # by their numbers in the column
    version: str
    record: str  # SHA-256 of the version's task.json
    trunk: str  # digest
    arrays: dict[str, str]  # names and dtypes


class CorpusStore(ABC):
    """A store as one reader or writer sees it: the fragments of one version; `refresh` switches to the newest.

    Any number of processes may append and put columns at once. Every change is a new version, made completely or not at
    all: `_commit` fails if another writer was first, and the change is then repeated on top of theirs.
    """

    schema: Schema
    _location: str
    _records: tuple[Any, ...]  # the fragments of this version in the store's own form: each has a name and rows

    def __init__(self) -> None:
        self._indices: dict[str, IdIndex] = {}
        self._rows: dict[tuple[str, str], PackedRows] = {}

    @classmethod
    @abstractmethod
    def create(cls, location: str, schema: Schema) -> Self:
        """Opens the store at `location`, or creates it; raises StoreError if a different one exists."""

    @classmethod
    @abstractmethod
    def open(cls, location: str) -> Self:
        """The store at `location`; raises StoreError if there is none."""

    @property
    @abstractmethod
    def version(self) -> int:
        """The number of the current version; it only grows."""

    @property
    @abstractmethod
    def fragments(self) -> tuple[Fragment, ...]:
        """The fragments of this version, oldest first."""

    @abstractmethod
    def refresh(self) -> None:
        """Switches to the newest version."""

    @abstractmethod
    def ids(self, fragment: str) -> np.ndarray:
        """The ids of a fragment's documents, (rows, 16) uint8, in the order of its rows."""

    @abstractmethod
    def rows(self, fragment: str, digest: str) -> PackedRows:
        """The features of a fragment's documents, without a copy if the store can."""

    @abstractmethod
    def tokens(self, fragment: str, name: str) -> int:
        """The number of tokens of a fragment's documents, or of words, without reading their features."""

    @abstractmethod
    def index(self, fragment: str) -> IdIndex:
        """The index of a fragment's ids."""

    @abstractmethod
    def put_columns(self, fragment: str, columns: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Adds or replaces a fragment's columns of results: arrays (rows, ...) by name; StoreError if it is gone."""

    @abstractmethod
    def results(self, fragment: str, column: str) -> dict[str, np.ndarray] | None:
        """A column of results of a fragment; None if it is not done yet."""

    @abstractmethod
    def describe(self, column: str, facts: ResultFacts) -> None:
        """Stores facts about a column of results, replacing earlier ones."""

    @abstractmethod
    def described(self) -> dict[str, ResultFacts]:
        """The facts from `describe`, by column."""

    @abstractmethod
    def drop_results(self, column: str) -> None:
        """Removes a column of results from every fragment."""

    @abstractmethod
    def sweep(self, *, age: float) -> int:
        """Removes files that no version needs and that are older than `age` seconds; returns their bytes."""

    @abstractmethod
    def verify(self) -> None:
        """Reads every byte; raises StoreError that names a file changed since it was written."""

    @abstractmethod
    def _write(self, ids: np.ndarray, features: Mapping[str, PackedRows]) -> Any:
        """Writes a fragment that no version names yet."""

    @abstractmethod
    def _join(self, group: Sequence[Any]) -> Any:
        """Writes one fragment with all rows of several, and their results."""

    @abstractmethod
    def _commit(self, records: Sequence[Any], about: Any = None) -> bool:
        """Makes a version with these fragments and facts; False if another writer was first."""

    @abstractmethod
    def _discard(self, record: Any) -> None:
        """Removes a written fragment that no version will name, unless `sweep` does so."""

    def append(self, ids: Sequence[bytes] | np.ndarray, features: Mapping[str, PackedRows]) -> int:
        """Adds documents, (rows, 16) uint8 or as many bytes, as one fragment, and returns how many were new.

        Documents whose id exists already, or is repeated in `ids`, are skipped. Raises StoreError if features do not
        fit the schema, or the disk is full; then nothing is kept.
        """
        ids = as_ids(ids)
        check_features(self.schema, ids, features)
        written, rows_written = None, np.empty(0, np.int64)

        def appended(records: Sequence[Any]) -> tuple[Sequence[Any], Any] | None:
            nonlocal written, rows_written
            rows = self.lacking(ids)
            if not np.array_equal(rows, rows_written):  # at first, and after another writer added some of them
                if written is not None:
                    self._discard(written)
                taken = {digest: each.take(rows) for digest, each in features.items()}
                written, rows_written = self._write(ids[rows], taken) if len(rows) else None, rows
            return None if written is None else ((*records, written), None)

        return len(rows_written) if self._change(appended) else 0

    def put_results(self, fragment: str, column: str, results: Mapping[str, np.ndarray]) -> None:
        """Adds or replaces one column: see `put_columns`."""
        self.put_columns(fragment, {column: results})

    def compact(self, *, rows: int) -> int:
        """Joins neighbouring fragments into ones of up to so many rows and JOINED_BYTES; returns the number removed.

        Columns of results are kept: only fragments with the same ones are joined.
        """
        self.refresh()
        gone, tried = 0, set[str]()  # groups are looked for again in each version, which others may have changed
        groups = partial(fragment_groups, rows=rows, size=cache(self._bytes), largest=JOINED_BYTES)
        while True:
            try:
                group = next((each for each in groups(self.fragments) if each[0].name not in tried), None)
                if group is None:
                    return gone
                before = [self._record(fragment.name) for fragment in group]
                joined = self._join(before)
            except StoreError:
                version = self.version
                self.refresh()
                if self.version == version:  # else another process joined these, and swept them
                    raise
                continue
            tried.add(group[0].name)
            if self._change(partial(with_joined, before=before, joined=joined)):
                gone += len(before) - 1
            else:
                self._discard(joined)

    def _change(self, change: Callable[[Sequence[Any]], tuple[Sequence[Any], Any] | None]) -> bool:
        """Commits what `change` makes of the newest version's fragments: others, and facts; False if it gives None."""
        for _ in range(ATTEMPTS):
            self.refresh()
            if (wanted := change(self._records)) is None:
                return False
            if self._commit(*wanted):
                return True
        raise StoreError(f"{self._location} is written to by too many processes at once", do="try again later")

    def _turn_to(self, records: Sequence[Any]) -> None:
        """Switches to these fragments, and drops cached data of others."""
        self._records, self._named = tuple(records), {record.name: record for record in records}
        self._indices = {name: index for name, index in self._indices.items() if name in self._named}
        self._rows = {key: rows for key, rows in self._rows.items() if key[0] in self._named}

    def _bytes(self, fragment: str) -> int:
        return sum(self.tokens(fragment, name) * self.schema.item_bytes(name) for name in self.schema.names)

    def _record(self, name: str) -> Any:
        if name not in self._named:
            do = "read `fragments` again: it was joined with others since"
            raise StoreError(f"the store has no fragment '{name}'", do=do)
        return self._named[name]

    def find(self, ids: Sequence[bytes] | np.ndarray) -> np.ndarray:
        """The place of each document, int64 (rows, 2): the number of its fragment and its row there; -1 if absent."""
        ids = as_ids(ids)
        places = np.full((len(ids), 2), -1, np.int64)
        for number, fragment in enumerate(self.fragments):
            rows = self.index(fragment.name).find(ids)
            is_present = rows >= 0
            places[is_present, 0], places[is_present, 1] = number, rows[is_present]
        return places

    def lacking(self, ids: np.ndarray) -> np.ndarray:
        """Rows of ids that the store lacks, each id once, in order, int64."""
        absent = np.flatnonzero(self.find(ids)[:, 0] < 0)
        rows: np.ndarray = absent[first_of_each(ids[absent])]
        return rows

    def take(self, ids: Sequence[bytes] | np.ndarray, digest: str) -> PackedRows:
        """Features of documents by id, in the order given, repeats allowed; raises StoreError if one is absent."""
        places = self.find(ids)
        absent = np.flatnonzero(places[:, 0] < 0)
        if len(absent):
            problem, got = f"the store lacks {len(absent)} of {len(places)} rows", absent[:5].tolist()
            do = "extract these documents first"
            raise StoreError(problem, got=f"no features for rows {got}", do=do, rows=absent.tolist())
        nothing = np.empty((0, self.schema.item_bytes(digest)), np.uint8)
        parts: list[np.ndarray] = [nothing] * len(places)
        for number in np.unique(places[:, 0]).tolist():
            rows = self.rows(self._records[number].name, digest)
            for index in np.flatnonzero(places[:, 0] == number).tolist():
                row = places[index, 1]
                parts[index] = rows.data[rows.offsets[row] : rows.offsets[row + 1]]
        data = np.concatenate(parts) if parts else nothing
        return PackedRows.of([len(part) for part in parts], data)


def check_features(schema: Schema, ids: np.ndarray, features: Mapping[str, PackedRows]) -> None:
    """Raises StoreError if the features differ from the schema, or their number from that of the ids."""
    if set(features) != set(schema.names):
        raise StoreError("other features than the store keeps", got=sorted(features), allowed=sorted(schema.names))
    for name in schema.names:
        rows, size = features[name], schema.item_bytes(name)
        if len(rows.offsets) != len(ids) + 1:
            raise StoreError("every id needs one row", got=f"{len(ids)} ids and {len(rows.offsets) - 1} rows")
        tokens = int(rows.offsets[-1])
        if rows.data.dtype != np.uint8 or rows.data.shape != (tokens, size):
            got, allowed = f"{rows.data.dtype} {rows.data.shape}", f"uint8 ({tokens}, {size})"
            raise StoreError("features of another shape", got=got, allowed=allowed)
