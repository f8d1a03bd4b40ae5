"""Features of the frozen trunk, computed once: one pass in evaluation mode for all stored values that a text lacks."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path as FilePath

import msgspec
import numpy as np

from polyhead import plan as planning
from polyhead.codecs import EXACT, NO_TOKEN
from polyhead.codecs.base import evenly_spaced
from polyhead.encoder.data import TrunkData
from polyhead.encoder.shape import WORD_VECTORS
from polyhead.engine.backends import BACKENDS, TRAINING_BACKEND, encoding_backend, open_backend
from polyhead.engine.backends.base import Backend, TokenBatch
from polyhead.engine.backends.prefix import with_every_token
from polyhead.errors import MissingExtra
from polyhead.files import open_plain, remove_leftovers, replace_file
from polyhead.plan import Codec, Path
from polyhead.progress import UNIT_SECONDS
from polyhead.project.strategies.base import with_codec
from polyhead.store.corpus.ids import document_id
from polyhead.store.features import FeatureStore
from polyhead.store.taps import EncodeFeatures, batch_values, entry_batches, fixed_codec, sample_values
from polyhead.text.encodings import Encodings
from polyhead.text.processes import TokenizerInput, TokenizerPool
from polyhead.text.tokenize import Input, Tokenizer, encoded_at, windows_of
from polyhead.text.words import first_subtokens
from polyhead.train.data.source import Extraction, FeatureRequest, FeatureSource, Filled, Per, value_key
from polyhead.train.runs import cache_folder, deep

TOKEN_BUDGET = 4096  # padded tokens per batch
FLUSH_BYTES = 256 * 2**20  # bytes of waiting float32 values, over all stores: then each writes a segment,
FLUSH_SECONDS = 3 * UNIT_SECONDS  # and after this time in any case: a kill loses no more
PIECE = 8192  # inputs tokenized and sorted by length at a time


class Extractor(FeatureSource):
    """A frozen trunk, its tokenizer, and the folder of stores that it fills."""

    def __init__(self, data: TrunkData, *, folder: FilePath, precision: str) -> None:
        """`folder` has a folder for each precision and backend: features of two of these differ in their last bits."""
        self.data, self.facts = data, data.facts
        self.folder = folder / f"{precision}-{encoding_backend(precision)}"
        self.precision, self._codecs = precision, dict[bytes, Codec]()
        self.tokenizer = Tokenizer(data.tokenizer, data.settings)

    @classmethod
    def within(cls, data: TrunkData, cache: FilePath, *, precision: str) -> Extractor:
        """An extractor that keeps features in this cache; raises TrainError if the cache holds links."""
        extractor = cls(data, folder=cache / "features", precision=precision)
        cache_folder(cache, "features", extractor.folder.name)
        return extractor

    @cached_property
    def backend(self) -> Backend:
        """Runs the trunk; opened when the first text is encoded."""
        name = encoding_backend(self.precision)
        if self.precision not in BACKENDS[name].precisions:
            auto = "set training.precision = 'auto'"
            raise MissingExtra("torch", "train", f"reading texts in {self.precision} on this machine", instead=auto)
        if name == TRAINING_BACKEND:
            deep("nn.runtime:within_limits")()
        return open_backend(name, self.data, {}, precision=self.precision)

    def features(self, paths: Sequence[Path], batch: TokenBatch) -> list[np.ndarray]:
        """The stored value of each path before its codec, from one pass (see `Backend.features`)."""
        return self.backend.features(paths, batch)

    @property
    def _width(self) -> int | None:
        return self.data.architecture.width if self.backend.packs else None

    def keeps(self, path: Path, *, is_named: bool) -> bool:
        """Always true: missing values are encoded."""
        return True

    def remember(self, paths: Sequence[Path]) -> None:
        """Records the constants of these paths' codecs for later paths."""
        for path in paths:
            per: Per = "dimension" if len(path.pool.codec.scale) > 1 else "tensor"
            self._codecs.setdefault(value_key(path, per), path.pool.codec)

    def coded(self, path: Path, *, is_named: bool, per: Per, inputs: Callable[[], Sequence[Input]]) -> Path:
        """The path with its codec, the same for all paths of one stored value."""
        key = value_key(path, per)
        if key not in self._codecs:
            self._codecs[key] = self.calibrated(path, inputs(), per=per)
        return with_codec(path, self._codecs[key])

    def calibrated(self, path: Path, inputs: Sequence[Input], *, per: Per) -> Codec:
        """The path's codec with constants from as many of these (training) inputs as it needs, evenly spaced."""
        pool = path.stored().pool
        if not pool.codec.format.is_fixed_from_data:
            return pool.codec
        sample = pool.codec.format.sample
        raw = msgspec.structs.replace(pool, codec=Codec(name=EXACT, before_mean=pool.codec.before_mean))
        path = with_every_token(Path(nodes=(*path.stored().nodes[:-1], raw)))
        chosen = [inputs[i] for i in evenly_spaced(len(inputs), sample)]
        values = sample_values(self.features, path, chosen, self.tokenizer, budget=TOKEN_BUDGET, width=self._width)
        return fixed_codec(pool.codec, values, per=per, words=self.data.arrays[WORD_VECTORS])

    def fill(self, wanted: Sequence[FeatureRequest], *, update: Filled | None = None) -> Extraction:
        """Encodes every input that some store lacks, once for all stores; a killed run loses only unwritten ones."""
        began = time.monotonic()
        pending = _Pending([_Open(self.store(request.path), request) for request in wanted])
        journal = Journal(self.folder, [planning.digest(request.path.stored()) for request in wanted])
        every = [text for request in wanted for text in request.inputs]
        known = len(set(every)) - len(pending.waiting)
        inputs = journal.begin(list(pending.waiting), every)
        passes = done = tokens = cut = 0
        windowed = {text for request in wanted if request.windows is not None for text in request.inputs}
        with TokenizerPool(self.data.tokenizer, self.data.settings) as pool:
            for piece, encodings in pool.tokenized(self._pieces(inputs, pending, windowed)):
                texts = [piece.inputs[row] for row in encodings.row.tolist()]
                is_missing = np.array([text in pending.waiting for text in texts], bool)
                is_first = is_missing & (encodings.window == 0)
                pending.expect(int(is_first.sum()), encodings.lengths[is_missing])
                batches = entry_batches(encodings, pad_id=self.tokenizer.pad_id, budget=TOKEN_BUDGET, width=self._width)
                for entries, batch in batches:
                    if not is_missing[entries].any():
                        continue
                    pending.add(self.features, encodings, entries, [texts[entry] for entry in entries.tolist()], batch)
                    passes += len(entries)
                    done += int(is_first[entries].sum())
                    tokens += int(batch.mask.sum())
                    cut += int((encodings.cut[entries] > 0).sum())
                    if update is not None:
                        update(done, len(pending.waiting), pending.share(tokens))
        pending.flush()
        journal.end()
        seconds = time.monotonic() - began
        return Extraction(passes=passes, known=known, reused=pending.reused, tokens=tokens, cut=cut, seconds=seconds)

    def _pieces(
        self, inputs: Sequence[Input], pending: _Pending, windowed: Collection[Input]
    ) -> Iterator[TokenizerInput]:
        """Chunks of inputs of which one is missing; the next is tokenized while the trunk reads the current one."""
        windows = windows_of(self.tokenizer.max_tokens)
        for is_windowed, size in itertools.product((False, True), (1, 2)):
            texts = [text for text in inputs if (text in windowed) == is_windowed and len(text) == size]
            for start in range(0, len(texts), PIECE):
                piece = texts[start : start + PIECE]
                if any(text in pending.waiting for text in piece):
                    yield TokenizerInput(
                        inputs=piece, windows=windows if is_windowed else None, offsets=pending.reads_words
                    )


class _Open:
    """A store being filled: its missing keys, and the values not yet written."""

    def __init__(self, store: FeatureStore, request: FeatureRequest) -> None:
        self.store, self.path = store, with_every_token(request.path.stored())
        keys = request.keys()
        lacking = store.missing(keys)
        self.reused = len(keys) - len(lacking)
        self.lacking = {keys[i]: i for i in lacking}  # key -> index in the request
        self.request = request
        self.keys: list[bytes] = []
        self.values: list[np.ndarray] = []
        self.tokens: list[np.ndarray] = []
        self.bytes = 0

    def window(self, index: int) -> int:
        return 0 if self.request.windows is None else self.request.windows[index]

    def add(self, key: bytes, value: np.ndarray, tokens: np.ndarray) -> None:
        self.keys.append(key)
        self.values.append(value)
        self.tokens.append(tokens)
        self.bytes += value.nbytes

    def taken(self) -> tuple[list[bytes], list[np.ndarray], list[np.ndarray]]:
        """Removes and returns the unwritten keys, values and tokens."""
        taken = self.keys, self.values, self.tokens
        self.keys, self.values, self.tokens, self.bytes = [], [], [], 0
        return taken


class _Pending:
    """The distinct inputs that stores lack, and the stores that lack each."""

    def __init__(self, stores: Sequence[_Open]) -> None:
        self.stores = stores
        self.reused = sum(store.reused for store in stores)
        self.reads_words = any(store.request.words is not None for store in stores)
        self._flushed = time.monotonic()
        self._texts = self._tokens = 0  # expected so far
        self.waiting: dict[Input, list[tuple[_Open, bytes, int]]] = {}
        for store in stores:
            for key, index in store.lacking.items():
                self.waiting.setdefault(store.request.inputs[index], []).append((store, key, index))

    def expect(self, texts: int, lengths: np.ndarray) -> None:
        """Counts texts that are encoded next; `lengths` (windows,) are their tokens."""
        self._texts += texts
        self._tokens += int(lengths.sum())

    def share(self, tokens: int) -> float:
        """The share of the work that is done after so many tokens, if later texts are as long as those so far."""
        return min(1.0, tokens * self._texts / max(1, self._tokens * len(self.waiting)))

    def add(
        self,
        encode: EncodeFeatures,
        encodings: Encodings,
        entries: np.ndarray,
        texts: Sequence[Input],
        batch: TokenBatch,
    ) -> None:
        """Encodes one batch and passes on the missing values; `texts` are those of its rows."""
        windows = encodings.window[entries].tolist()
        lacking: list[list[tuple[int, bytes, int]]] = [[] for _ in self.stores]
        number = {id(store): place for place, store in enumerate(self.stores)}
        for row, (text, window) in enumerate(zip(texts, windows, strict=True)):
            for store, key, index in self.waiting.get(text, ()):
                if window == store.window(index):
                    lacking[number[id(store)]].append((row, key, index))
        paths = list(dict.fromkeys(store.path for store, rows in zip(self.stores, lacking, strict=True) if rows))
        values = dict(zip(paths, batch_values(encode, paths, batch), strict=True)) if paths else {}
        for store, rows in zip(self.stores, lacking, strict=True):
            for row, key, index in rows:
                value, token_ids = values[store.path].of(row), values[store.path].tokens_of(row)
                if store.request.words is not None:
                    places = first_subtokens(encoded_at(encodings, int(entries[row])), store.request.words[index])
                    value = np.asarray(value[np.maximum(places, 0)] * (places >= 0)[:, None, None])
                    token_ids = np.where(places >= 0, token_ids[np.maximum(places, 0)], NO_TOKEN)
                store.add(key, value, token_ids)
        is_late = time.monotonic() - self._flushed >= FLUSH_SECONDS
        if is_late or sum(store.bytes for store in self.stores) >= FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes one fragment to each store, whatever the number of requests for it."""
        by_store: dict[FeatureStore, dict[bytes, tuple[np.ndarray, np.ndarray]]] = {}
        for waiting in self.stores:
            keys, values, tokens = waiting.taken()
            by_store.setdefault(waiting.store, {}).update(zip(keys, zip(values, tokens, strict=True), strict=True))
        for store, rows in by_store.items():
            if rows:
                values, tokens = map(list, zip(*rows.values(), strict=True))
                store.append(list(rows), values, tokens)
        self._flushed = time.monotonic()


KEY_BYTES = len(document_id(("",)))


class Journal:
    """A file of input keys for one set of stores; it exists only while an extraction is unfinished."""

    def __init__(self, folder: FilePath, digests: Sequence[str]) -> None:
        name = hashlib.sha256("".join(sorted(set(digests))).encode()).hexdigest()[:16]
        self._file = folder / f"extraction-{name}.keys"

    def begin(self, lacking: Sequence[Input], known: Sequence[Input]) -> list[Input]:
        """The inputs to batch: those of the unfinished extraction that lacked all of `lacking`, else `lacking`.

        `known` are all inputs of this extraction, stored or not.
        """
        if not lacking and not self._file.exists():
            return []  # nothing is written if nothing is to be done
        started = self._read()
        texts = {document_id(text): text for text in known} if started else {}
        if started and {document_id(text) for text in lacking} <= set(started) <= set(texts):
            return [texts[key] for key in started]
        self._write([document_id(text) for text in lacking])
        return list(lacking)

    def end(self) -> None:
        """Deletes the list: everything is stored."""
        self._file.unlink(missing_ok=True)

    def _read(self) -> list[bytes]:
        try:
            with open_plain(self._file) as file:
                raw = file.read()
        except OSError:  # no list, or an invalid one: it is made again
            raw = b""
        return [raw[i : i + KEY_BYTES] for i in range(0, len(raw) - KEY_BYTES + 1, KEY_BYTES)]

    def _write(self, keys: Sequence[bytes]) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self._file.parent, of=self._file.name)
        replace_file(self._file, b"".join(keys))
