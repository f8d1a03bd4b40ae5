"""What a store of a corpus is: documents by id, packed features of every token, and columns of results.

A store grows by fragments. A fragment holds the documents of one append; it is there whole or not at all, and its rows
never move. A column of results (a task's labels or scores) is added fragment by fragment: a fragment without it is not
done yet, which is all that an interrupted job needs to know.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Self

import msgspec
import numpy as np

from polyhead.errors import StoreError
from polyhead.plan import Codec, Path
from polyhead.plan.cost import vector_bytes
from polyhead.plugins import packages_of
from polyhead.values import Value

ID_BYTES = 16


def document_id(texts: Sequence[str], extra: str = "") -> bytes:
    """16 bytes of SHA-256 over the exact strings of one input (text or pair); `extra` tells windows apart."""
    # The length before each string keeps ("ab", "c") and ("a", "bc") apart; lone surrogates have bytes too.
    encoded = [text.encode("utf-8", "surrogatepass") for text in (extra, *texts)]
    return hashlib.sha256(b"".join(len(e).to_bytes(8, "little") + e for e in encoded)).digest()[:ID_BYTES]


def window_id(texts: Sequence[str], window: int) -> bytes:
    """The id of a part of an input that is too long, numbered from 0; the first has that of the input."""
    return document_id(texts, f"window:{window}" if window else "")


def is_name(name: str) -> bool:
    """Whether features or a column may have this name, which becomes the name of files."""
    return re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}", name) is not None


def check_column_name(name: str, what: str) -> None:
    """Raises StoreError where `what` cannot have this name."""
    if not is_name(name):
        raise StoreError(f"{what} cannot have this name", got=name, allowed="letters, digits, '-', '_' and '.'")


class FeatureColumn(Value):
    """What is kept of every token: the stored value of a path, named by its digest."""

    digest: str
    layers: int  # stored layers of a token
    width: int
    codec: Codec
    path: Path | None = None  # whose stored value this is, as far as its writer knew; the digest is that of this path

    @property
    def token_bytes(self) -> int:
        """Bytes of one token: all its stored layers."""
        return self.layers * vector_bytes(self.codec, self.width)


class Schema(Value):
    """What a store keeps of each document. `source` says where features come from, such as the trunk's digest."""

    features: tuple[FeatureColumn, ...]
    source: dict[str, str] = {}
    plugins: dict[str, str] = {}  # packages that register its codecs, where Polyhead itself does not

    def column(self, digest: str) -> FeatureColumn:
        """The features of this digest; raises StoreError with those that are kept."""
        for column in self.features:
            if column.digest == digest:
                return column
        raise StoreError(
            f"the store keeps no features '{digest}'",
            allowed=[column.digest for column in self.features],
            do="extract these features first, or choose a task that reads what is kept",
        )


def check_schema(there: Schema, wanted: Schema, location: str) -> None:
    """Raises StoreError where the store at `location` keeps something else than what is wanted."""
    for name in ("features", "source"):
        if getattr(there, name) != getattr(wanted, name):
            raise StoreError(
                f"{location} keeps other features: its {name} differ{'' if name == 'features' else 's'}",
                got=getattr(there, name),
                allowed=getattr(wanted, name),
                do="use another place, or delete this store",
            )


def checked_schema(schema: Schema) -> Schema:
    """The schema of a new store, with the packages that its codecs need.

    Raises StoreError where features have no layers or dimensions, or a name that no file can have.
    """
    for column in schema.features:
        check_column_name(column.digest, "features")
        if column.layers < 1 or column.width < 1:
            got = f"{column.layers} and {column.width}"
            raise StoreError("a store needs at least one layer and one dimension", got=got)
    codecs = {f"codec '{column.codec.name}'": column.codec.format for column in schema.features}
    return msgspec.structs.replace(schema, plugins=packages_of(codecs))


def check_results(column: str, results: Mapping[str, np.ndarray], rows: int) -> None:
    """Raises StoreError where results have no name, or are not as many as a fragment's rows."""
    check_column_name(column, "a column of results")
    if not results:
        raise StoreError(f"column '{column}' has no results", do="give at least one array")
    for name, array in results.items():
        check_column_name(name, "results")
        if array.ndim not in (1, 2) or len(array) != rows:
            got, allowed = f"'{name}' of shape {array.shape}", f"({rows},) or ({rows}, numbers)"
            raise StoreError("results of another number of rows", got=got, allowed=allowed)


class PackedRows(msgspec.Struct, frozen=True, kw_only=True):
    """Encoded features of some documents, one after another."""

    offsets: np.ndarray  # (rows + 1,) int64, in tokens
    data: np.ndarray  # (tokens, token_bytes) uint8

    @classmethod
    def of(cls, lengths: Sequence[int] | np.ndarray, data: np.ndarray) -> Self:
        """Rows of these lengths in tokens."""
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return cls(offsets=offsets, data=data)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row."""
        return np.diff(self.offsets)

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
    results: tuple[str, ...]  # columns of results that this fragment has


class ResultFacts(Value):
    """What a column of results holds, for a reader who has the store alone."""

    task: str
    kind: str
    labels: tuple[str, ...]  # by the numbers that stand in the column
    version: str
    record: str  # SHA-256 of the version's task.json
    trunk: str  # digest
    arrays: dict[str, str]  # names and dtypes


class CorpusStore(ABC):
    """A store as one reader or writer sees it: the fragments of one version; `refresh` turns to the newest.

    Any number of processes may append and put columns at once. Every change is a new version, made whole or not at all.
    """

    schema: Schema

    @classmethod
    @abstractmethod
    def create(cls, location: str, schema: Schema) -> Self:
        """Opens the store at `location`, made where there is none.

        Raises StoreError where another store is there: other features, codec, or source.
        """

    @classmethod
    @abstractmethod
    def open(cls, location: str) -> Self:
        """The store at `location`; raises StoreError where there is none."""

    @property
    @abstractmethod
    def version(self) -> int:
        """The number of the version that is read; it only grows."""

    @property
    @abstractmethod
    def fragments(self) -> tuple[Fragment, ...]:
        """The fragments of this version, oldest first."""

    @abstractmethod
    def refresh(self) -> None:
        """Turns to the newest version."""

    @abstractmethod
    def append(self, ids: Sequence[bytes] | np.ndarray, features: Mapping[str, PackedRows]) -> int:
        """Adds documents, (rows, 16) uint8 or as many bytes, as one fragment, and returns how many were new.

        Documents whose id is there already, or twice in `ids`, are left out. Raises StoreError where features do not
        fit the schema, or the disk is full; then nothing is kept.
        """

    @abstractmethod
    def ids(self, fragment: str) -> np.ndarray:
        """The ids of a fragment's documents, (rows, 16) uint8, in the order of its rows."""

    @abstractmethod
    def rows(self, fragment: str, digest: str) -> PackedRows:
        """The features of a fragment's documents, not copied where the store can."""

    @abstractmethod
    def index(self, fragment: str) -> IdIndex:
        """The index of a fragment's ids."""

    @abstractmethod
    def put_results(self, fragment: str, column: str, results: Mapping[str, np.ndarray]) -> None:
        """Adds a column of results to a fragment, or replaces it: arrays (rows, ...) by name, such as label and score.

        Raises StoreError where the rows are not as many as the fragment's, or the fragment is gone (compacted away).
        """

    @abstractmethod
    def results(self, fragment: str, column: str) -> dict[str, np.ndarray] | None:
        """A column of results of a fragment; None where it is not done yet."""

    @abstractmethod
    def describe(self, column: str, facts: ResultFacts) -> None:
        """Keeps facts about a column of results, in place of earlier ones."""

    @abstractmethod
    def described(self) -> dict[str, ResultFacts]:
        """What `describe` was given, by column."""

    @abstractmethod
    def drop_results(self, column: str) -> None:
        """Removes a column of results from every fragment."""

    @abstractmethod
    def compact(self, *, rows: int) -> int:
        """Joins neighbouring fragments into some of up to about so many rows; returns how many fragments went.

        Columns of results are kept: fragments are joined only where they have the same ones.
        """

    @abstractmethod
    def sweep(self, *, age: float) -> int:
        """Removes files that no version needs and that are older than `age` seconds; returns their bytes."""

    @abstractmethod
    def verify(self) -> None:
        """Reads every byte; raises StoreError that names a file changed since it was written."""

    def find(self, ids: Sequence[bytes] | np.ndarray) -> np.ndarray:
        """Where each document is, int64 (rows, 2): the number of its fragment and its row there; -1 where it is not."""
        ids = as_ids(ids)
        places = np.full((len(ids), 2), -1, np.int64)
        for number, fragment in enumerate(self.fragments):
            rows = self.index(fragment.name).find(ids)
            there = rows >= 0
            places[there, 0], places[there, 1] = number, rows[there]
        return places

    def lacking(self, ids: np.ndarray) -> np.ndarray:
        """Rows of ids that the store lacks, each id once, in order, int64."""
        absent = np.flatnonzero(self.find(ids)[:, 0] < 0)
        rows: np.ndarray = absent[first_of_each(ids[absent])]
        return rows

    def take(self, ids: Sequence[bytes] | np.ndarray, digest: str) -> PackedRows:
        """Features of documents by id, in the order given, repeats allowed; raises StoreError where one is absent."""
        places = self.find(ids)
        absent = np.flatnonzero(places[:, 0] < 0)
        if len(absent):
            raise StoreError(
                f"the store lacks {len(absent)} of {len(places)} rows",
                got=f"no features for rows {absent[:5].tolist()}",
                do="extract these documents first",
                rows=absent.tolist(),
            )
        column = self.schema.column(digest)
        parts: list[np.ndarray] = [np.empty((0, column.token_bytes), np.uint8)] * len(places)
        for number in np.unique(places[:, 0]).tolist():
            rows = self.rows(self.fragments[number].name, digest)
            for index in np.flatnonzero(places[:, 0] == number).tolist():
                row = places[index, 1]
                parts[index] = rows.data[rows.offsets[row] : rows.offsets[row + 1]]
        data = np.concatenate(parts) if parts else np.empty((0, column.token_bytes), np.uint8)
        return PackedRows.of([len(part) for part in parts], data)


def as_ids(ids: Sequence[bytes] | np.ndarray) -> np.ndarray:
    """Ids as uint8 (rows, 16); raises StoreError for ids of another length."""
    if not isinstance(ids, np.ndarray):
        wrong = next((one for one in ids if len(one) != ID_BYTES), None)
        if wrong is not None:
            raise StoreError("an id has the wrong length", got=f"{len(wrong)} bytes", allowed=f"{ID_BYTES} bytes")
        ids = np.frombuffer(b"".join(ids), np.uint8).reshape(-1, ID_BYTES)
    if ids.dtype != np.uint8 or ids.ndim != 2 or ids.shape[1] != ID_BYTES:
        raise StoreError("ids have another shape", got=f"{ids.dtype} {ids.shape}", allowed=f"uint8 (rows, {ID_BYTES})")
    return np.ascontiguousarray(ids)


def check_features(schema: Schema, ids: np.ndarray, features: Mapping[str, PackedRows]) -> None:
    """Raises StoreError where the features are not those of the schema, or not of as many rows as there are ids."""
    wanted = {column.digest for column in schema.features}
    if set(features) != wanted:
        raise StoreError("other features than the store keeps", got=sorted(features), allowed=sorted(wanted))
    for column in schema.features:
        rows = features[column.digest]
        if len(rows.offsets) != len(ids) + 1:
            raise StoreError("every id needs one row", got=f"{len(ids)} ids and {len(rows.offsets) - 1} rows")
        tokens = int(rows.offsets[-1])
        if rows.data.dtype != np.uint8 or rows.data.shape != (tokens, column.token_bytes):
            raise StoreError(
                "features of another shape",
                got=f"{rows.data.dtype} {rows.data.shape}",
                allowed=f"uint8 ({tokens}, {column.token_bytes})",
            )


def first_of_each(ids: np.ndarray) -> np.ndarray:
    """The first row of every different id, ascending, int64."""
    _, first = np.unique(np.ascontiguousarray(ids).view(f"V{ID_BYTES}")[:, 0], return_index=True)
    rows: np.ndarray = np.sort(first)
    return rows


class IdIndex:
    """Finds rows by id: the first 8 bytes of each sorted, with the rows they belong to."""

    def __init__(self, ids: np.ndarray, prefixes: np.ndarray, rows: np.ndarray) -> None:
        """`ids` (rows, 16) uint8; `prefixes` (rows,) uint64, sorted; `rows` (rows,) uint32."""
        self._ids, self._prefixes, self._rows = ids, prefixes, rows

    @classmethod
    def of(cls, ids: np.ndarray) -> Self:
        """The index of these ids."""
        prefixes = prefixes_of(ids)
        order = np.argsort(prefixes, kind="stable")
        return cls(ids, prefixes[order], order.astype(np.uint32))

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """What a store writes: sorted prefixes, and the rows they belong to."""
        return self._prefixes, self._rows

    def find(self, ids: np.ndarray) -> np.ndarray:
        """The row of each id, int64 (rows,); -1 where it is not."""
        places = np.full(len(ids), -1, np.int64)
        if not len(self._ids):
            return places
        wanted = prefixes_of(ids)
        at = np.searchsorted(self._prefixes, wanted)
        open_ = np.flatnonzero(at < len(self._prefixes))
        while len(open_):  # once, unless two ids share their first 8 bytes
            open_ = open_[self._prefixes[at[open_]] == wanted[open_]]
            rows = self._rows[at[open_]].astype(np.int64)
            equal = (self._ids[rows] == ids[open_]).all(axis=1)
            places[open_[equal]] = rows[equal]
            open_ = open_[~equal]
            at[open_] += 1
            open_ = open_[at[open_] < len(self._prefixes)]
        return places


def prefixes_of(ids: np.ndarray) -> np.ndarray:
    """The first 8 bytes of ids (rows, 16) as numbers, uint64 (rows,)."""
    numbers: np.ndarray = np.ascontiguousarray(ids[:, :8]).view(">u8")[:, 0].astype(np.uint64)
    return numbers
