"""Tokenization ahead of the encoder: in a thread, or in separate processes."""

from __future__ import annotations

import logging
import multiprocessing
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Self

import msgspec

from polyhead.encoder.data import TextSettings
from polyhead.text.encodings import Encodings
from polyhead.text.tokenize import Input, Tokenizer, Windows

log = logging.getLogger(__name__)
AHEAD = 2  # tokenized chunks that wait for the encoder, in addition to those in progress


class TokenizerInput(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs that are tokenized together: all single texts, or all pairs."""

    inputs: Sequence[Input]
    windows: Windows | None = None
    offsets: bool = False


class TokenizerPool:
    """A context manager that tokenizes chunks in order, ahead of their reader, and stops its workers at the end.

    With `processes`, that many processes tokenize (`spawn`), so that the reader's interpreter is free; else a thread
    does. If a process is killed, its chunk is tokenized in the calling process.
    """

    def __init__(self, tokenizer: bytes, settings: TextSettings, *, processes: int = 0) -> None:
        self.tokenizer, self._processes, self._executor = Tokenizer(tokenizer, settings), processes, _thread()
        if processes:
            context = multiprocessing.get_context("spawn")
            self._executor = ProcessPoolExecutor(
                processes, mp_context=context, initializer=_open, initargs=(tokenizer, settings)
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)

    def tokenized(self, pieces: Iterable[TokenizerInput]) -> Iterator[tuple[TokenizerInput, Encodings]]:
        """Each chunk and its encodings, in order."""
        waiting: deque[tuple[TokenizerInput, Future[Encodings]]] = deque()
        try:
            for piece in pieces:
                waiting.append((piece, self._submit(piece)))
                if len(waiting) > AHEAD + max(0, self._processes - 1):
                    yield self._finished(*waiting.popleft())
            while waiting:
                yield self._finished(*waiting.popleft())
        finally:
            for _, future in waiting:
                future.cancel()

    def _submit(self, piece: TokenizerInput) -> Future[Encodings]:
        if self._processes:
            try:
                return self._executor.submit(_encode, piece)
            except BrokenProcessPool:
                self._processes, self._executor = 0, _thread()
        return self._executor.submit(encode_texts, self.tokenizer, piece)

    def _finished(self, piece: TokenizerInput, future: Future[Encodings]) -> tuple[TokenizerInput, Encodings]:
        try:
            return piece, future.result()
        except BrokenProcessPool:
            log.warning("a process that tokenized was ended: this process tokenizes from here on")
            return piece, encode_texts(self.tokenizer, piece)


def encode_texts(tokenizer: Tokenizer, piece: TokenizerInput) -> Encodings:
    """The chunk's encodings."""
    return tokenizer.encodings(piece.inputs, windows=piece.windows, offsets=piece.offsets)


def _thread() -> Executor:
    return ThreadPoolExecutor(1, "polyhead-tokenize")


_OPENED: list[Tokenizer] = []  # the tokenizer of a worker process


def _open(tokenizer: bytes, settings: TextSettings) -> None:
    _OPENED[:] = [Tokenizer(tokenizer, settings)]


def _encode(piece: TokenizerInput) -> Encodings:
    return encode_texts(_OPENED[0], piece)
