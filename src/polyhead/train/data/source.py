"""The source of training features: texts that a frozen trunk encodes, or an existing store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path as FilePath
from typing import Literal

import msgspec
import numpy as np

from polyhead import plan as planning
from polyhead.encoder.data import TrunkFacts
from polyhead.engine.backends.prefix import stored_layers
from polyhead.plan import Path
from polyhead.progress import counted, in_bytes, pace
from polyhead.store.corpus.ids import document_id
from polyhead.store.features import FeatureStore
from polyhead.tasks.task import Task
from polyhead.text.tokenize import Input, Tokenizer
from polyhead.text.words import first_subtokens
from polyhead.train.data.windows import TextWindows, WordWindows

Per = Literal["tensor", "dimension"]
"""What one constant of a codec is for."""
Filled = Callable[[int, int, float], None]
"""Hears the number of finished inputs, their total, and the share of the work that is done, since inputs differ."""


class FeatureRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs whose stored value a task needs; `words` (words, 2) are each text's words, for paths per word."""

    path: Path  # any path; its stored form is what is kept
    inputs: Sequence[Input]
    words: Sequence[np.ndarray] | None = None
    windows: Sequence[int] | None = None  # the window of each to read; None: the first, after cutting
    origin: str = ""  # a description of the inputs for errors, such as "task 'mood', train"
    rows: Sequence[int] | None = None  # the file row of each

    def keys(self) -> list[bytes]:
        """The keys of the values; with other words, or in a later window, a text read per word is another value."""
        words = self.words if self.words is not None else [None] * len(self.inputs)
        texts = zip(self.inputs, words, self.numbers, strict=True)
        return [document_id(text, _read(text_words, window)) for text, text_words, window in texts]

    @property
    def numbers(self) -> Sequence[int]:
        """The window number of each."""
        return self.windows if self.windows is not None else [0] * len(self.inputs)

    def each(self, windows: TextWindows | None) -> FeatureRequest:
        """The same for every window of the inputs, each with its words; unchanged without windows."""
        if windows is None:
            return self
        rows, words = windows.texts.tolist(), None
        if self.words is not None and isinstance(windows, WordWindows):
            words = [self.words[row][read] for row, read in zip(rows, windows.read, strict=True)]
        return msgspec.structs.replace(
            self,
            inputs=[self.inputs[row] for row in rows],
            words=words,
            windows=windows.numbers.tolist(),
            rows=None if self.rows is None else [self.rows[row] for row in rows],
        )


def _read(words: np.ndarray | None, window: int) -> str:
    """Facts that distinguish values of one text: its words, and the window."""
    of = "" if words is None else "words:" + np.ascontiguousarray(words, np.int32).tobytes().hex()
    return f"window:{window}:{of}" if window else of


class Extraction(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an extraction."""

    passes: int  # inputs, or windows of them, that the trunk encoded
    known: int = 0  # different inputs whose values all existed already
    reused: int  # stored values that existed already
    tokens: int
    cut: int  # encoded inputs that are longer than the trunk's limit
    seconds: float


def value_key(path: Path, per: Per) -> bytes:
    """The stored value of a path, without codec constants."""
    pool = path.stored().pool
    bare = msgspec.structs.replace(pool.codec, scale=(), zero=(), arrays="")
    of = per if pool.codec.format.has_constants else ""
    return msgspec.json.encode([msgspec.structs.replace(pool, codec=bare), of])


class FeatureSource(ABC):
    """Features of a frozen trunk, in stores below a folder, one for each path's stored value.

    Stores are separate for each precision, since a digest identifies a value and not how it was computed.
    """

    facts: TrunkFacts
    tokenizer: Tokenizer
    folder: FilePath  # of the stores
    precision: str  # of the trunk that computes, or computed, the features
    doing = "encoding"  # the action of `fill`, for people
    encodes = True  # whether it has features of any text, or only of stored ones

    def store(self, path: Path) -> FeatureStore:
        """The store of a path's stored value; it is opened once, since each holds files open."""
        digest = planning.digest(path.stored())
        if digest not in self._stores:
            self._stores[digest] = FeatureStore.open(
                self.folder,
                digest=digest,
                layers=stored_layers(path),
                width=self.facts.architecture.width,
                codec=path.stored().pool.codec,
            )
        return self._stores[digest]

    @cached_property
    def _stores(self) -> dict[str, FeatureStore]:
        return {}

    def first_subtokens(self, inputs: Sequence[Input], words: Sequence[np.ndarray]) -> list[np.ndarray]:
        """`text.words.first_subtokens` of the words of each input."""
        encoded = self.tokenizer.encode(inputs)
        return [first_subtokens(encoding, spans) for encoding, spans in zip(encoded, words, strict=True)]

    def has_words(self, task: Task) -> bool:
        """Whether a head of this task that reads words can be answered from where the features come from."""
        return True

    @abstractmethod
    def keeps(self, path: Path, *, is_named: bool) -> bool:
        """Whether features of the path are available, in its codec if it `is_named` (without constants)."""

    def remember(self, paths: Sequence[Path]) -> None:  # noqa: B027
        """Records the constants of these paths' codecs for later paths."""

    @abstractmethod
    def coded(self, path: Path, *, is_named: bool, per: Per, inputs: Callable[[], Sequence[Input]]) -> Path:
        """A path with available features, with its codec and its constants.

        `inputs` returns the training inputs that determine constants if nothing else does; `per` is the scope of each
        constant.
        """

    def summary(self, extraction: Extraction) -> str:
        """A line that describes the work of `fill`."""
        rate = extraction.passes / extraction.seconds if extraction.seconds else 0.0
        size = sum(store.nbytes for store in self._stores.values())
        how = f" ({pace(rate)})" if rate else ""
        facts = [f"encoded {counted(extraction.passes, 'input')} once{how}"]
        facts += [f"{extraction.known:,} encoded before"] * bool(extraction.known)
        facts += [f"{counted(extraction.cut, 'input')} cut to what the encoder reads"] * bool(extraction.cut)
        return ", ".join([*facts, f"{in_bytes(size)} of features kept"])

    @abstractmethod
    def fill(self, wanted: Sequence[FeatureRequest], *, update: Filled | None = None) -> Extraction:
        """Adds every missing value to the stores."""
