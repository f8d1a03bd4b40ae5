"""Extraction: features of every text of a file into a store, each text once, despite interruptions and repeats.

The store is the only record. A document's id is a digest of its text, so an existing text is not encoded again: an
interrupted job resumes, new rows of a file are added, and several jobs may fill one store.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path as FilePath
from typing import Any, Literal

import numpy as np

from polyhead.arguments import check_fields
from polyhead.data.rows import open_rows
from polyhead.encoder.data import TrunkData
from polyhead.encoder.shape import WORD_VECTORS
from polyhead.engine.backends.base import Backend
from polyhead.engine.inputs import is_blank_input
from polyhead.errors import BadValue, ConfigError, DataError, EmptyData, NoStore, StoreError
from polyhead.machine import one_blas_thread, processors
from polyhead.plan import Path
from polyhead.plan.coding import encode
from polyhead.progress import UNIT_SECONDS, Show, UnitSize, progress_line, stopped_with
from polyhead.store.corpus import create_corpus, open_corpus
from polyhead.store.corpus.base import PackedRows, Schema
from polyhead.store.corpus.ids import document_id, window_id
from polyhead.store.jobs.columns import Roles, RowInput, roles_of
from polyhead.store.jobs.documents import PIECE_ROWS, drawn_rows, file_of_texts
from polyhead.store.taps import (
    BatchValues,
    Tap,
    batch_values,
    column_of,
    entry_batches,
    is_whole,
    kept_paths,
    sample_values,
    with_constants,
)
from polyhead.store.words import NO_ENTRIES, packed_words
from polyhead.text.encodings import Encodings, ranges, starts_of
from polyhead.text.processes import TokenizerInput, TokenizerPool
from polyhead.text.tokenize import Input, Tokenizer, repair, windows_of
from polyhead.values import Value, to_json

TOKEN_BUDGET = 4096  # tokens of a batch on a processor
APPEND_BYTES = 128 * 2**20  # maximum waiting for an append
APPEND_SECONDS = 2 * UNIT_SECONDS  # a kill loses this, and the current unit: 30 s
WAITING = 2  # batches that wait for their codecs
SAMPLE_ROWS = 4  # rows sampled for each text that calibrates a codec, since some are empty or repeated
ROLES = ("text", "text_b", "tokens")  # roles of columns that make a document


class ExtractRequest(Value):
    """The features to keep, and the texts."""

    columns: dict[str, str] = {}  # column to read by its role, one of `ROLES`
    separate: bool = False  # the two texts of a pair are two documents; else one, read together
    words: bool = False  # also keep hashes of each text's words
    long_texts: Literal["cut", "windows"] = "cut"  # windows: one document for each window of a long text
    per: Literal["tensor", "dimension"] = "tensor"  # scope of a codec's constants, if it has any
    processes: int | None = None  # number of tokenizing processes; 0: a thread; None: by the number of processors

    def __post_init__(self) -> None:
        check_fields(self)
        wrong = sorted(set(self.columns) - set(ROLES))
        if wrong:
            raise ConfigError("documents are made of other columns", got=wrong, allowed=ROLES)
        if self.words and self.long_texts == "windows":
            raise ConfigError(
                "a store keeps the words of whole texts, and not of their parts",
                got="words and long_texts 'windows'",
                do="cut long texts, or leave out words and tasks that read them",
            )
        if self.processes is not None and self.processes < 0:
            raise ConfigError("a number of processes is 0 or more", got=self.processes)


class ExtractSummary(Value):
    """The result of an extraction. Rows are those of the file; a row is one document, or several."""

    store: str
    rows: int
    unread: int  # rows without a readable text
    first_unread: str  # the reason for the first of them
    documents: int  # documents that this run added
    before: int  # documents already in the store
    repeated: int  # repeated in the file
    cut: int  # texts of these rows, encoded now, that were longer than the trunk's limit
    cut_tokens: int  # their tokens that no document holds
    max_tokens: int  # tokens that the trunk read
    tokens: int
    total: int  # documents of the store
    precision: str
    seconds: float
    documents_a_second: float


def extract(
    location: FilePath | str,
    source: FilePath | str,
    paths: Sequence[Path | Tap],
    wish: ExtractRequest,
    *,
    trunk: TrunkData,
    backend: Backend,
    show: Show = lambda text: None,
) -> ExtractSummary:
    """Adds every text of a file to the store, which is created if it does not exist.

    `source` is a file of rows, or `datasets:owner/name[/config][:split]`. `paths` are the values to keep, all from one
    pass of the trunk: taps, or stored paths of tasks. Constants of codecs are computed from texts of the file when the
    store is created, and stay the store's.

    Raises StoreError for a store of another trunk, tokenizer, precision or codec, and for a full disk: appended
    documents stay. DataError and MissingColumn for an unreadable file, EmptyData for one without rows.
    """
    began = time.monotonic()
    job = _Extraction(str(location), str(source), wish, trunk, backend, show)
    job.open([path.path(trunk) if isinstance(path, Tap) else path for path in paths])
    job.fill()
    return job.summary(time.monotonic() - began)


def feature_origin(trunk: TrunkData, *, precision: str, long_texts: str) -> dict[str, str]:
    """The origin of a store's features: `Schema.source`. Stores of another origin are refused."""
    tokenizer = hashlib.sha256(trunk.tokenizer + to_json(trunk.settings)).hexdigest()
    return {"trunk": trunk.digest, "tokenizer": tokenizer, "precision": precision, "long_texts": long_texts}


class _Extraction:
    """One call: the file, the store, and documents waiting for an append."""

    def __init__(
        self, location: str, source: str, wish: ExtractRequest, trunk: TrunkData, backend: Backend, show: Show
    ) -> None:
        self._location, self._wish, self._trunk, self._show = location, wish, trunk, show
        self._backend, self._file = backend, open_rows(source)
        self._source, self._name = source, FilePath(source).name
        show(f"looking at {self._name}")
        self._survey = self._file.survey(show)
        if not self._survey.rows:
            raise EmptyData(f"{source} holds no row", do="give a file with rows")
        roles = roles_of(source, self._survey, wish.columns).columns
        self._roles = Roles(columns={role: columns for role, columns in roles.items() if role in ROLES})
        if not self._roles.columns:
            raise DataError(
                f"no column of {source} holds texts", got=list(roles), allowed=ROLES, do="name it: --text COLUMN"
            )
        if wish.separate and "text_b" not in self._roles.columns:
            do = "leave 'separate' out, or name the column of the second text: --text-b COLUMN"
            raise ConfigError(f"{source} holds no pairs whose texts could be two documents", got="separate", do=do)
        self._windows = windows_of(trunk.settings.max_tokens) if wish.long_texts == "windows" else None
        self._width = None if not backend.packs else trunk.architecture.width
        self._waiting: list[tuple[list[bytes], dict[str, PackedRows]]] = []
        self._waiting_ids: set[bytes] = set()
        self._unit = UnitSize(PIECE_ROWS)  # of a chunk that is encoded at once
        self._first_unread = ""
        # For chunks in tokenization: first row and end in the file, and the number of known documents up to there.
        self._read = deque[tuple[int, int, int]]()
        self._rows = self._unread = self._documents = self._before = self._repeated = 0
        self._cut = self._cut_tokens = self._tokens = 0

    def open(self, paths: Sequence[Path]) -> None:
        """Opens the store, or creates it with codecs calibrated on texts of the file."""
        source = feature_origin(self._trunk, precision=self._backend.precision, long_texts=self._wish.long_texts)
        try:
            self._store = open_corpus(self._location)
        except NoStore:
            whole, texts = self._calibrated(paths), file_of_texts(self._source, self._wish.columns)
            columns = tuple(column_of(path, self._trunk.architecture.width) for path in dict.fromkeys(whole))
            schema = Schema(features=columns, words=self._wish.words, source=source | texts)
            try:
                self._store = create_corpus(self._location, schema)
            except StoreError as refused:  # another extraction may have made it since, with codecs from its own texts
                try:
                    self._store = open_corpus(self._location)
                except StoreError:
                    raise refused from None
        check_source(self._location, self._store.schema.source, source)
        if self._wish.words and not self._store.schema.words:
            do = "extract into another store: what a store keeps cannot be changed"
            raise StoreError(f"{self._location} does not keep the words of its texts", do=do)
        kept = kept_paths(self._location, paths, self._store.schema.features)
        others = [column for column in self._store.schema.features if column.path not in kept]
        if any(column.path is None for column in others):
            raise StoreError(f"{self._location} does not say what it keeps", do="extract into another store")
        # Every document has all features of the store, including those not requested this time.
        self._paths = [column.path for column in self._store.schema.features if column.path is not None]
        # By fragment: the documents stored before this run that the file repeats, True once met.
        self._met = {fragment.name: np.zeros(fragment.rows, bool) for fragment in self._store.fragments}

    def fill(self) -> None:
        """Encodes what the store lacks."""
        began = self._appended = time.monotonic()
        with stopped_with(self._kept, "new documents"):
            self._fill(began)
        self._append()
        if self._unread == self._rows:
            raise DataError(f"no row of {self._name} can be read", got=self._first_unread, do="give another file")

    def _fill(self, began: float) -> None:
        settings, wish = self._trunk.settings, self._wish
        processes = wish.processes if wish.processes is not None else max(0, min(4, processors() // 4))
        # Other multiplications must not take the encoder's processors.
        with (
            one_blas_thread(),
            ThreadPoolExecutor(1, "polyhead-pack") as packer,
            TokenizerPool(self._trunk.tokenizer, settings, processes=processes) as pool,
        ):
            self._pad_id = pool.tokenizer.pad_id
            for piece, encodings in pool.tokenized(self._pieces()):
                (first, stop, known), started = self._read.popleft(), time.monotonic()
                for share in self._encode(piece.inputs, encodings, packer):
                    done, seconds = first + round(share * (stop - first)), time.monotonic() - began
                    total, before = self._survey.rows, min(known, done)
                    facts: dict[str, Any] = {"done": done, "total": total, "seconds": seconds, "before": before}
                    self._show(progress_line(self._name, unit="rows", **facts))
                self._unit.took(len(piece.inputs), time.monotonic() - started)
                if self._is_due():
                    self._append()

    def _kept(self) -> int:
        """Appends encoded documents when the user stops the job; returns how many documents it added in all."""
        self._append()
        return self._documents

    def summary(self, seconds: float) -> ExtractSummary:
        """The summary of the run."""
        self._store.refresh()
        return ExtractSummary(
            store=repair(self._location),
            rows=self._rows,
            unread=self._unread,
            first_unread=self._first_unread,
            documents=self._documents,
            before=self._before,
            repeated=self._repeated,
            cut=self._cut,
            cut_tokens=self._cut_tokens,
            max_tokens=self._trunk.settings.max_tokens,
            tokens=self._tokens,
            total=sum(fragment.rows for fragment in self._store.fragments),
            precision=self._backend.precision,
            seconds=seconds,
            documents_a_second=self._documents / seconds,
        )

    def _pieces(self) -> Iterator[TokenizerInput]:
        """Inputs that the store lacks, each once; single texts and pairs separately."""
        for chunk in self._file.chunks(self._roles.wanted, start=0, size=PIECE_ROWS):
            inputs = self._inputs(self._roles.inputs(chunk))
            fresh = self._fresh([document_id(text) for text in inputs])
            start, self._rows = self._rows, self._rows + len(chunk)
            done, known = 0, self._before + self._repeated
            for size in (1, 2):
                texts = [inputs[row] for row in fresh if len(inputs[row]) == size]
                while texts:
                    piece, texts = texts[: self._unit.rows], texts[self._unit.rows :]
                    first, done = start + len(chunk) * done // len(fresh), done + len(piece)
                    self._read.append((first, start + len(chunk) * done // len(fresh), known))
                    yield TokenizerInput(inputs=piece, windows=self._windows)

    def _fresh(self, ids: Sequence[bytes]) -> list[int]:
        """The first row of each document that is neither stored nor waiting; the others are counted."""
        self._store.refresh()
        met, fresh, before = [self._met.get(each.name) for each in self._store.fragments], dict[bytes, int](), 0
        for row, (document, (place, stored)) in enumerate(zip(ids, self._store.find(ids).tolist(), strict=True)):
            if place < 0 and document not in self._waiting_ids:
                fresh.setdefault(document, row)
            elif place >= 0 and (of_old := met[place]) is not None and not of_old[stored]:
                of_old[stored], before = True, before + 1
        self._before += before
        self._repeated += len(ids) - before - len(fresh)
        self._waiting_ids.update(fresh)
        return list(fresh.values())

    def _inputs(self, rows: Sequence[RowInput | BadValue]) -> list[Input]:
        """The texts of these rows; those without one that can be read are counted."""
        inputs: list[Input] = []
        for row in rows:
            texts = [] if isinstance(row, BadValue) else [row.input]
            if self._wish.separate:
                texts = [(text,) for each in texts for text in each]
            readable = [text for text in texts if not is_blank_input(text)]
            inputs += readable
            if not readable:
                self._unread += 1
                why = str(row) if isinstance(row, BadValue) else f"{row.where}: the text is empty"
                self._first_unread = self._first_unread or why
        return inputs

    def _encode(self, inputs: Sequence[Input], encodings: Encodings, packer: Executor) -> Iterator[float]:
        """Encodes one chunk, and keeps its packed features in file order until the next append.

        The `packer` encodes values of a batch by their codecs while the trunk reads the next. Yields the finished share
        of the chunk's tokens, batch by batch.
        """
        single = np.ones(len(encodings.row), np.int64)
        lengths = [encodings.lengths if path.pool.positions == "all" else single for path in self._paths]
        starts = [starts_of(each) for each in lengths]
        columns, done = self._store.schema.features, 0
        packed = [
            np.empty((start[-1], column.token_bytes), np.uint8) for start, column in zip(starts, columns, strict=True)
        ]
        packing: deque[Future[None]] = deque()
        texts = [inputs[row] for row in encodings.row.tolist()] if self._store.schema.words else []
        words = [NO_ENTRIES for _ in texts]

        def pack(members: np.ndarray, values: Sequence[BatchValues]) -> None:
            for number, (value, column) in enumerate(zip(values, columns, strict=True)):
                raw = encode(value.values, column.codec, value.tokens[:, None]).reshape(-1, column.token_bytes)
                packed[number][ranges(starts[number][:-1][members], lengths[number][members])] = raw
            if texts:
                hashed = packed_words([texts[member] for member in members.tolist()])
                for member, entries in zip(members.tolist(), hashed, strict=True):
                    words[member] = entries

        budget = self._backend.breadth * TOKEN_BUDGET
        for members, batch in entry_batches(encodings, pad_id=self._pad_id, budget=budget, width=self._width):
            packing.append(packer.submit(pack, members, batch_values(self._backend.features, self._paths, batch)))
            if len(packing) > WAITING:
                packing.popleft().result()
            done += int(batch.mask.sum())
            yield done / len(encodings.ids)
        for each in packing:
            each.result()
        rows = [PackedRows.of(each, data) for each, data in zip(lengths, packed, strict=True)]
        rows += [PackedRows.of(list(map(len, words)), np.concatenate(words))] if texts else []
        numbered = zip(encodings.row.tolist(), encodings.window.tolist(), strict=True)
        ids = [window_id(inputs[row], window) for row, window in numbered]
        self._waiting.append((ids, dict(zip(self._store.schema.names, rows, strict=True))))
        self._tokens += len(encodings.ids)
        self._cut += int((encodings.cut > 0).sum()) if self._windows is None else 0
        self._cut_tokens += int(encodings.cut.sum())

    def _is_due(self) -> bool:
        waiting = sum(rows.data.nbytes for _, kept in self._waiting for rows in kept.values())
        return waiting >= APPEND_BYTES or time.monotonic() - self._appended >= APPEND_SECONDS

    def _append(self) -> None:
        """Appends the waiting documents as one fragment."""
        if self._waiting:
            ids = [each for piece_ids, _ in self._waiting for each in piece_ids]
            features = {}
            for name in self._store.schema.names:
                rows = [kept[name] for _, kept in self._waiting]
                lengths = np.concatenate([each.lengths for each in rows])
                data = rows[0].data if len(rows) == 1 else np.concatenate([each.data for each in rows])
                features[name] = PackedRows.of(lengths, data)
            self._documents += self._store.append(ids, features)
            self._waiting = []
            self._waiting_ids.difference_update(ids)  # chunks still being tokenized keep theirs
        self._appended = time.monotonic()

    def _calibrated(self, paths: Sequence[Path]) -> list[Path]:
        """The paths with constants of their codecs, calibrated on texts sampled over the whole file."""
        open_codecs = [path.pool.codec for path in paths if not is_whole(path.pool.codec)]
        if not open_codecs:
            return list(paths)
        rows = max(codec.format.sample for codec in open_codecs)
        self._show(f"fixing codecs from up to {min(rows, self._survey.rows):,} texts of {self._name}")
        inputs = self._sample(rows)
        if not inputs:
            raise DataError(f"no row of {self._name} can be read", got=self._first_unread, do="give another file")
        self._unread, self._first_unread = 0, ""  # those of the sample, which are read again
        tokenizer = Tokenizer(self._trunk.tokenizer, self._trunk.settings)

        def values(path: Path, count: int) -> Iterator[BatchValues]:
            encode = self._backend.features
            return sample_values(encode, path, inputs[:count], tokenizer, budget=TOKEN_BUDGET, width=self._width)

        words = self._trunk.arrays[WORD_VECTORS]
        return [with_constants(path, values, per=self._wish.per, words=words) for path in paths]

    def _sample(self, count: int) -> list[Input]:
        """Up to so many distinct texts of rows sampled over the whole file, always the same ones."""
        rng = np.random.default_rng(0)
        rows = list(drawn_rows(self._file, self._roles, self._survey.rows, SAMPLE_ROWS * count, rng))
        distinct = list(dict.fromkeys(self._inputs(rows)))
        chosen = rng.permutation(len(distinct))[:count]
        return [distinct[number] for number in chosen.tolist()]


def check_source(location: str, stored: dict[str, str], wanted: dict[str, str]) -> None:
    """Raises StoreError if a store's features have another origin: trunk, tokenizer, precision or windows."""
    differing = [name for name in wanted if stored.get(name) != wanted[name]]
    if differing:
        raise StoreError(
            f"{location} holds features of another {' and another '.join(differing).replace('_', ' ')}",
            got={name: wanted[name] for name in differing},
            allowed={name: stored.get(name, "not said") for name in differing},
            do="take what the store was made with, or extract into another store",
        )
