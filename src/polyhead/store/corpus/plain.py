"""A corpus store in plain files of one folder; it only needs numpy.

    STORE/store.json                            format and schema
    STORE/codecs/DIGEST.safetensors             arrays of a codec that has some
    STORE/versions/00000001.json ...            fragments of each version, and their columns; the highest number is read
    STORE/fragments/NAME/ids.bin                16 bytes a document
    STORE/fragments/NAME/index.bin              sorted prefixes of ids, uint64, then the row of each, uint32
    STORE/fragments/NAME/DIGEST.lengths.bin     tokens of each document, uint32
    STORE/fragments/NAME/DIGEST.data.bin        their encoded features, one after another
    STORE/fragments/NAME/words.lengths.bin ...  the same of hashed words, where they are kept
    STORE/results/COLUMN/NAME.safetensors       results of a fragment's documents
    STORE/results/COLUMN.json                   facts about the column, for people

Nothing is ever changed in place. Files are written and flushed first; a version that names them is then put under the
next number, which fails if another writer took that number, and is repeated on top of theirs. No version names the
files of a killed writer, so nobody reads them, and `sweep` removes them later.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import msgspec
import numpy as np
from safetensors.numpy import load, save

from polyhead.errors import NoStore, StoreError
from polyhead.files import (
    LARGEST_CONFIG,
    is_temporary,
    make_folder,
    put_if_absent,
    read_plain,
    refuse_links,
    remove_files,
    replace_file,
    sync_folder,
    write_file,
)
from polyhead.store.corpus.base import (
    ATTEMPTS,
    CorpusStore,
    Fragment,
    PackedRows,
    ResultFacts,
    Schema,
    check_column_name,
    check_results,
    check_schema,
    checked_schema,
    is_name,
)
from polyhead.store.corpus.ids import ID_BYTES, IdIndex
from polyhead.store.corpus.joining import gone_since
from polyhead.store.corpus.plain_files import (
    Stored,
    check_content,
    damaged,
    disk_errors,
    forget,
    is_forgotten,
    mapped,
    memory,
    named_files,
    numbers_in,
    packed_texts,
    put_schema,
    read_schema,
    read_sealed,
    read_version,
    sealed,
    unpacked_texts,
    unreadable,
)

FOLDERS = ("versions", "fragments", "results")
FORGETTING, PATIENCE = 64, 3600.0  # every 64th commit empties versions replaced an hour ago; a writer may take that
LARGEST_RESULTS = 2**34  # bytes of one fragment's column


class PlainStore(CorpusStore):
    """A store in plain files of one folder."""

    def __init__(self, folder: Path, schema: Schema) -> None:
        super().__init__()
        self._folder, self._location, self.schema = folder, str(folder), schema
        self._number = 0
        self._turn_to(())
        self.refresh()

    @classmethod
    def create(cls, location: str, schema: Schema) -> Self:
        """Opens the store in this folder, or creates it; raises StoreError if a different one exists."""
        folder = Path(location)
        schema = checked_schema(schema)
        with disk_errors(folder, "the store cannot be made"):
            folder.mkdir(parents=True, exist_ok=True)
            for name in FOLDERS:
                make_folder(folder / name, root=folder)
            put_schema(folder, schema)
        store = cls.open(location)
        check_schema(store.schema, schema, location)
        return store

    @classmethod
    def open(cls, location: str) -> Self:
        """The store in this folder; raises StoreError if there is none, or one of another format."""
        path = Path(location) / "store.json"
        if not path.exists():
            do = "give the folder of a store, or make one: polyhead features extract"
            raise NoStore(f"there is no store at {location}", do=do)
        with disk_errors(path.parent, "the store cannot be opened"):
            for name in FOLDERS:
                refuse_links(path.parent / name, root=path.parent)
        return cls(Path(location), read_schema(path))

    @property
    def version(self) -> int:
        """The number of the current version; 0 before the first append."""
        return self._number

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        """The fragments of this version, oldest first."""
        return tuple(Fragment(name=each.name, rows=each.rows, results=tuple(each.results)) for each in self._records)

    def refresh(self) -> None:
        """Switches to the newest version."""
        for _ in range(ATTEMPTS):
            number = max(numbers_in(self._folder), default=0)
            if number == self._number:
                return
            path = self._path(number)
            if is_forgotten(path) and max(numbers_in(self._folder)) > number:  # since it was listed
                continue
            self._turn_to(read_version(path))
            self._number = number
            return
        raise StoreError(f"{self._folder} changes faster than it can be read", do="wait for its writers")

    def ids(self, fragment: str) -> np.ndarray:
        """The ids of a fragment's documents, (rows, 16) uint8, memory-mapped."""
        stored = self._record(fragment)
        return self._mapped(stored, "ids.bin", np.uint8, (stored.rows, ID_BYTES))

    def rows(self, fragment: str, digest: str) -> PackedRows:
        """The features of a fragment's documents, memory-mapped."""
        if (fragment, digest) not in self._rows:
            stored, size = self._record(fragment), self.schema.item_bytes(digest)
            tokens = stored.tokens[digest]
            lengths = self._mapped(stored, f"{digest}.lengths.bin", np.dtype("<u4"), (stored.rows,))
            data = self._mapped(stored, f"{digest}.data.bin", np.uint8, (tokens, size))
            if int(lengths.sum(dtype=np.int64)) != tokens:
                raise damaged(self._file(stored, f"{digest}.lengths.bin"), "its lengths do not add up")
            self._rows[fragment, digest] = PackedRows.of(lengths, data)
        return self._rows[fragment, digest]

    def tokens(self, fragment: str, name: str) -> int:
        """The number of tokens of a fragment's documents, or of words, as its version says."""
        stored: Stored = self._record(fragment)
        return stored.tokens[name]

    def index(self, fragment: str) -> IdIndex:
        """The index of a fragment's ids, memory-mapped."""
        if fragment not in self._indices:
            stored = self._record(fragment)
            index = self._mapped(stored, "index.bin", np.uint8, (12 * stored.rows,))
            prefixes, rows = index[: 8 * stored.rows].view("<u8"), index[8 * stored.rows :].view("<u4")
            if len(rows) and int(rows.max()) >= stored.rows:
                raise damaged(self._file(stored, "index.bin"), "it names rows that are not there")
            self._indices[fragment] = IdIndex(self.ids(fragment), prefixes, rows)
        return self._indices[fragment]

    def put_columns(self, fragment: str, columns: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Adds columns of results to a fragment, or replaces them."""
        stored = self._record(fragment)
        for column, results in columns.items():
            check_results(column, results, stored.rows)
        written = {column: self._write_results(stored, column, results) for column, results in columns.items()}

        def added(records: Sequence[Stored]) -> tuple[list[Stored], None]:
            self._record(fragment)  # still there
            return [
                msgspec.structs.replace(each, results=each.results | written) if each.name == fragment else each
                for each in records
            ], None

        self._change(added)  # if that fails the files stay: a version may name them, or `sweep` removes them

    def results(self, fragment: str, column: str) -> dict[str, np.ndarray] | None:
        """A column of results of a fragment; None if it is not done yet."""
        stored = self._record(fragment)
        if column not in stored.results:
            return None
        file, digest = stored.results[column]
        path = self._folder / "results" / column / file
        with self._reading(stored, column):
            try:
                content = read_plain(path, limit=LARGEST_RESULTS)
            except OSError as error:
                raise unreadable(path, error) from None
            if hashlib.sha256(content).hexdigest() != digest:
                raise damaged(path, "it was changed since it was written")
        return dict(unpacked_texts(load(content)))

    def describe(self, column: str, facts: ResultFacts) -> None:
        """Stores facts about a column of results, replacing earlier ones."""
        check_column_name(column, "a column of results")
        path = self._folder / "results" / f"{column}.json"
        with disk_errors(path, "facts about a column cannot be written"):
            replace_file(path, sealed(facts))

    def described(self) -> dict[str, ResultFacts]:
        """The facts from `describe`, by column."""
        folder = self._folder / "results"
        names = sorted(name[:-5] for name in os.listdir(folder) if name.endswith(".json"))
        return {name: read_sealed(folder / f"{name}.json", ResultFacts) for name in names if is_name(name)}

    def drop_results(self, column: str) -> None:
        """Removes a column of results from every fragment."""

        def without(records: Sequence[Stored]) -> tuple[list[Stored], None]:
            others = [{name: file for name, file in each.results.items() if name != column} for each in records]
            kept = zip(records, others, strict=True)
            return [msgspec.structs.replace(stored, results=results) for stored, results in kept], None

        self._change(without)

    def sweep(self, *, age: float) -> int:
        """Removes files that no version needs and that are older than `age` seconds; returns their bytes.

        Those that no version ever named may be of a writer at work: they stay for an hour at least.
        """
        self.refresh()
        paths = list(map(self._path, numbers_in(self._folder)))
        known = named_files(paths)
        forget(paths, age)
        needed, freed, now = named_files(paths), 0, time.time()

        def is_left(place: tuple[str, str], entry: os.DirEntry[str]) -> bool:
            patience = age if place in known else max(age, PATIENCE)
            return place not in needed and entry.stat(follow_symlinks=False).st_mtime <= now - patience

        for place, entry in self._removable():
            with suppress(FileNotFoundError):  # another sweep was first
                if not is_left(place, entry):
                    continue
                if _is_folder(entry):
                    freed += sum(file.stat(follow_symlinks=False).st_size for file in os.scandir(entry.path))
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    freed += entry.stat(follow_symlinks=False).st_size
                    remove_files(Path(entry.path).parent, [entry.name])
        return freed

    def _removable(self) -> Iterator[tuple[tuple[str, str], os.DirEntry[str]]]:
        """Fragments, files of results and unfinished versions, with the column and name of each."""
        yield from ((("", each.name), each) for each in _listed(self._folder / "fragments") if _is_folder(each))
        for column in filter(_is_folder, _listed(self._folder / "results")):
            yield from (((column.name, each.name), each) for each in _listed(column.path))
        yield from ((("", each.name), each) for each in _listed(self._folder / "versions") if is_temporary(each.name))

    def verify(self) -> None:
        """Reads every byte; raises StoreError that names a file changed since it was written."""
        for stored in self._records:
            for name in stored.files:
                with self._reading(stored):
                    check_content(self._file(stored, name), stored.files[name])
            for column in stored.results:
                self.results(stored.name, column)

    def _path(self, number: int) -> Path:
        return self._folder / "versions" / f"{number:08d}.json"

    def _file(self, stored: Stored, name: str) -> Path:
        return self._folder / "fragments" / stored.name / name

    def _write(self, ids: np.ndarray, features: Mapping[str, PackedRows]) -> Stored:
        """Writes a fragment that no version names yet."""
        prefixes, order = IdIndex.of(ids).arrays()
        contents = {"ids.bin": [ids], "index.bin": [prefixes.astype("<u8"), order.astype("<u4")]}
        for digest, rows in features.items():
            contents[f"{digest}.lengths.bin"] = [rows.lengths.astype("<u4")]
            contents[f"{digest}.data.bin"] = [rows.data]
        name = secrets.token_hex(8)
        folder = self._folder / "fragments" / name
        needed = sum(array.nbytes for arrays in contents.values() for array in arrays)
        try:
            with disk_errors(self._folder, f"{len(ids)} rows cannot be written", needed=needed):
                make_folder(folder, root=self._folder)
                files = {file: write_file(folder / file, map(memory, arrays)) for file, arrays in contents.items()}
                sync_folder(folder)
        except StoreError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        tokens = {digest: len(rows.data) for digest, rows in features.items()}
        return Stored(name=name, rows=len(ids), tokens=tokens, files=files)

    def _write_results(self, stored: Stored, column: str, results: Mapping[str, np.ndarray]) -> tuple[str, str]:
        """Writes a file that no version names yet; its name and SHA-256."""
        content = save(dict(packed_texts(results)))
        path = self._folder / "results" / column / f"{stored.name}-{secrets.token_hex(4)}.safetensors"
        with disk_errors(path, f"results of {stored.rows} rows cannot be written", needed=len(content)):
            make_folder(path.parent, root=self._folder)
            digest = write_file(path, [content])
            sync_folder(path.parent)
        return path.name, digest

    def _discard(self, record: Stored) -> None:
        """Removes a fragment that no version names."""
        shutil.rmtree(self._folder / "fragments" / record.name, ignore_errors=True)

    def _join(self, group: Sequence[Stored]) -> Stored:
        """One fragment with all rows of several, and their results."""
        ids = np.concatenate([self.ids(each.name) for each in group])
        features = {}
        for kept in self.schema.names:
            parts = [self.rows(each.name, kept) for each in group]
            data = np.concatenate([part.data for part in parts])
            features[kept] = PackedRows.of(np.concatenate([part.lengths for part in parts]), data)
        joined: Stored = self._write(ids, features)
        results = {}
        for column_name in group[0].results:
            arrays = [self.results(each.name, column_name) or {} for each in group]
            whole = {name: np.concatenate([part[name] for part in arrays]) for name in arrays[0]}
            results[column_name] = self._write_results(joined, column_name, whole)
        return msgspec.structs.replace(joined, results=results)

    def _commit(self, records: Sequence[Stored], about: None = None) -> bool:
        """Puts a version under the next number; False if another writer was first."""
        number, content = self._number + 1, sealed(records)
        if len(content) > LARGEST_CONFIG:  # which no reader would open
            raise StoreError(
                f"{self._folder} would have too many fragments and columns",
                got=f"a version of {len(content):,} bytes",
                allowed=f"{LARGEST_CONFIG:,} bytes",
                do="join its fragments: polyhead features compact; nothing was kept of this change",
            )
        with disk_errors(self._folder, "a version cannot be written", needed=len(content)):
            try:
                put_if_absent(self._path(number), content)
            except FileExistsError:
                return False
        self._number = number
        self._turn_to(records)
        if number % FORGETTING == 0:
            with suppress(StoreError):  # the new version is there, even if old ones stay
                forget(list(map(self._path, numbers_in(self._folder))), PATIENCE)
        return True

    def _mapped(self, stored: Stored, name: str, kind: type | np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        path, digest = self._file(stored, name), stored.files.get(name, "")
        with self._reading(stored):
            return mapped(path, np.dtype(kind), shape, digest=digest, root=self._folder)

    @contextmanager
    def _reading(self, stored: Stored, column: str = "") -> Iterator[None]:
        """A context whose error says so if the newest version does without this fragment, or this file of results."""
        try:
            yield
        except StoreError:
            newest = {each.name: each for each in PlainStore.open(self._location)._records}.get(stored.name)
            if newest is not None and newest.results.get(column) == stored.results.get(column):
                raise
            raise gone_since(self._location, stored.name) from None


def _listed(folder: Path | str) -> list[os.DirEntry[str]]:
    """The entries of a folder, none where another sweep removed it."""
    with suppress(FileNotFoundError):
        return list(os.scandir(folder))
    return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)
