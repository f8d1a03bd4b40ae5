"""Texts to token ids: exactly the trunk's tokenizer, with cutting and windows by Polyhead's own rules.

The padding and truncation that a tokenizer file declares are switched off: batches are padded to their
longest row (`text.batch`) and the limit is the trunk's.
"""

from __future__ import annotations

import copy
import re
import threading
from array import array
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import tokenizers

from polyhead.encoder.data import TextSettings
from polyhead.errors import ConfigError
from polyhead.text.encodings import Encodings, Template, concatenate_encodings, find_template, starts_of, whole_encoding
from polyhead.text.prefix import SPARE, encoded_beginnings, tokens_beyond
from polyhead.text.tokenizer_file import failed, open_tokenizer
from polyhead.values import Value

Input = tuple[str] | tuple[str, str]
"""One text, or a pair of texts read jointly."""

AT_ONCE = 8192  # characters or tokens processed without a pause in which other threads can run
CHUNK_ROWS, CHUNK_CHARACTERS = 1024, 2_000_000  # per call to the library: bounds the memory of its results
UNKNOWN = ("[UNK]", "<unk>")  # for models of the library that do not say it
_LONE = re.compile("[\ud800-\udfff]")


class Windows(Value):
    """Read a long input in windows of `size` tokens (special tokens included) that share `stride` tokens."""

    size: int
    stride: int

    def __post_init__(self) -> None:
        if not 0 <= self.stride < self.size:
            raise ConfigError(
                "windows must move forward", got=f"size {self.size}, stride {self.stride}", allowed="0 <= stride < size"
            )


def windows_of(max_tokens: int) -> Windows:
    """Windows of `max_tokens` tokens that share a quarter of their size."""
    return Windows(size=max_tokens, stride=max_tokens // 4)


class Encoded(Value, eq=False):
    """One input, or one window of it, as token ids.

    `cut` and `repaired` describe the whole row: its first window holds them, later ones hold 0, so that sums count
    once. `offsets` are characters of the text that `sequence` names, and (0, 0) for special tokens.
    """

    row: int  # index into the inputs
    window: int
    ids: np.ndarray  # int32 (tokens,)
    segments: np.ndarray  # int32 (tokens,)
    offsets: np.ndarray  # int32 (tokens, 2)
    sequence: np.ndarray  # int8 (tokens,): 0 first text, 1 second text, -1 special token
    cut: int  # tokens that no window holds; a lower bound for a text of over a million characters
    repaired: int  # lone surrogates replaced by U+FFFD
    texts: int = 1  # texts of the input; each has tokens here, unless the tokenizer finds none in it


def lone_surrogates(text: str) -> int:
    """The number of lone surrogates, which neither a tokenizer nor a UTF-8 file can hold."""
    return 0 if text.isascii() else len(_LONE.findall(text))


def repair(text: str) -> str:
    """The text with each lone surrogate replaced by U+FFFD: one for one, so that offsets stay true."""
    return text if text.isascii() else _LONE.sub("\ufffd", text)


class Tokenizer:
    """Encodes inputs with a `tokenizers` JSON file.

    Ids and segments equal the library's own for inputs within the limit, and the `longest_first` truncation
    of `transformers` beyond it. Raises WeightsMismatch when the bytes are not such a file.
    """

    def __init__(self, tokenizer: bytes, settings: TextSettings) -> None:
        self.max_tokens = settings.max_tokens
        self._tokenizer = open_tokenizer(tokenizer)
        self.pad_id = _pad_id(self._tokenizer)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._templates: dict[int, Template] = {}
        self.most_kept = 0  # how many of the last results of `encodings` are kept
        self._kept: dict[tuple[object, ...], Encodings] = {}
        self._keeping = threading.Lock()

    @property
    def unknown_ids(self) -> frozenset[int]:
        """The ids that stand for characters without a piece of their own."""
        names = {getattr(self._tokenizer.model, "unk_token", None), *UNKNOWN}
        ids = [self._tokenizer.token_to_id(name) for name in names if name is not None]
        return frozenset(number for number in ids if number is not None)

    def limited(self, max_tokens: int) -> Tokenizer:
        """The same for inputs of at most so many tokens."""
        limited = copy.copy(self)
        limited.max_tokens, limited.most_kept, limited._kept = max_tokens, 0, {}
        return limited

    def decode(self, ids: np.ndarray) -> str:
        """The text of these ids, without special tokens and without blanks at its ends."""
        return str(self._tokenizer.decode(ids.tolist(), skip_special_tokens=True)).strip()

    def encode(self, inputs: Sequence[Input], *, windows: Windows | None = None) -> list[Encoded]:
        """Encodings of all inputs in order; with `windows`, several for an input longer than a window."""
        entries: dict[int, list[Encoded]] = {row: [] for row in range(len(inputs))}
        for size in sorted({len(texts) for texts in inputs}):
            rows = np.array([row for row, texts in enumerate(inputs) if len(texts) == size], np.int64)
            alike = [inputs[row] for row in rows]
            for start, stop in _chunks(alike):
                encodings = self._chunk(alike[start:stop], rows[start:stop], windows, offsets=True)
                for entry, row in enumerate(encodings.row.tolist()):
                    entries[row].append(encoded_at(encodings, entry))
        return [encoded for row in entries.values() for encoded in row]

    def encodings(self, inputs: Sequence[Input], *, windows: Windows | None = None, offsets: bool = False) -> Encodings:
        """`encode` in flat arrays, for inputs that are all single texts or all pairs; offsets on request."""
        if not self.most_kept:
            return self._encodings(inputs, windows, offsets=offsets)
        key = (tuple(inputs), windows, offsets)
        with self._keeping:
            answer = self._kept.pop(key, None)
        if answer is None:
            answer = self._encodings(inputs, windows, offsets=offsets)
        with self._keeping:
            self._kept[key] = answer
            while len(self._kept) > self.most_kept:
                del self._kept[next(iter(self._kept))]
        return answer

    def _encodings(self, inputs: Sequence[Input], windows: Windows | None, *, offsets: bool) -> Encodings:
        if len(inputs) == 1 and (whole := self._whole(inputs[0], windows, offsets=offsets)) is not None:
            return whole
        rows = np.arange(len(inputs))
        spans = _chunks(inputs) if inputs else [(0, 0)]
        return concatenate_encodings([self._chunk(inputs[a:b], rows[a:b], windows, offsets=offsets) for a, b in spans])

    def _whole(self, texts: Input, windows: Windows | None, *, offsets: bool) -> Encodings | None:
        """The result of `_chunk` for one short text without cuts or repairs, in fewer steps; else None."""
        if len(texts) > 1 or len(texts[0]) > AT_ONCE or lone_surrogates(texts[0]):
            return None
        template = self._template(1)
        room, (answer,) = self._room(template, windows), self._encoded([texts[0]], offsets=offsets)
        return whole_encoding(answer, template, offsets=offsets) if len(answer) <= room else None

    def _chunk(self, inputs: Sequence[Input], rows: np.ndarray, windows: Windows | None, *, offsets: bool) -> Encodings:
        size = len(inputs[0]) if inputs else 1
        template = self._template(size)
        room = self._room(template, windows)
        texts, repaired = _repaired([text for pair in inputs for text in pair])
        answers, more = self._read_texts(texts, size, room, windows, offsets=offsets)
        lengths = np.fromiter(map(len, answers), np.int64, len(answers)).reshape(-1, size)
        read = _read(lengths, more.reshape(-1, size), room, windows)
        sizes = read.stops - read.starts
        segments = template.repeated(template.segments, template.text_segments, sizes)
        row_repaired = repaired if size == 1 else repaired.reshape(-1, size).sum(axis=1)
        facts = {"cut": read.cut, "beyond": read.beyond, "repaired": row_repaired}
        if len(read.row) > len(lengths):
            facts = {name: np.where(read.window == 0, fact[read.row], 0) for name, fact in facts.items()}
        encodings = Encodings(
            row=rows[read.row],
            window=read.window,
            starts=starts_of(sizes.sum(axis=1) + template.size),
            ids=_flat((answer.ids for answer in answers), read, template.ids),
            segments=segments.astype(np.int32),
            texts=size,
            **facts,
        )
        if not offsets:
            return encodings
        special = [[0] * len(piece) for piece in template.ids]
        sequence = template.repeated([[-1] * len(piece) for piece in special], range(size), sizes)
        pairs = _flat_pairs(map(_offsets, answers), read, special)
        return msgspec.structs.replace(encodings, offsets=pairs, sequence=sequence.astype(np.int8))

    def _read_texts(
        self, texts: list[str], size: int, room: int, windows: Windows | None, *, offsets: bool
    ) -> tuple[list[tokenizers.Encoding], np.ndarray]:
        """The encoded part of each text, and the number of tokens after it, int64 (texts,).

        For a very long single text that is cut, the rest is not counted.
        """
        encode = partial(self._encoded, offsets=offsets)
        # Windows read the whole text, so a minimum is not needed.
        least = 0 if windows else room + SPARE
        answers, sizes = encoded_beginnings(texts, encode, least)
        if windows is None and size == 1:
            # A divided word may have more tokens than the whole word, by fewer than SPARE.
            fewer = [1 - SPARE if start < len(text) else 0 for text, start in zip(texts, sizes, strict=True)]
            return answers, np.array(fewer, np.int64)
        more = (tokens_beyond(text, start, encode) for text, start in zip(texts, sizes, strict=True))
        return answers, np.fromiter(more, np.int64, len(texts))

    def _encoded(self, texts: list[str], *, offsets: bool) -> list[tokenizers.Encoding]:
        """The library's encodings; it spreads several texts over the processors."""
        try:
            if len(texts) == 1 and len(texts[0]) <= AT_ONCE:
                # The fastest call for one text, but it blocks other threads.
                return [self._tokenizer.encode(texts[0], add_special_tokens=False)]
            encode = self._tokenizer.encode_batch if offsets else self._tokenizer.encode_batch_fast
            answers: list[tokenizers.Encoding] = encode(texts, add_special_tokens=False)
        except BaseException as error:
            raise failed(error, "the tokenizer cannot read a text") from None
        return answers

    def _room(self, template: Template, windows: Windows | None) -> int:
        """Tokens left for the texts."""
        size = windows.size if windows else self.max_tokens
        least = template.size + (windows.stride if windows else 0) + len(template.text_segments)
        if not least <= size <= self.max_tokens:
            raise ConfigError(
                "inputs cannot be read at this length",
                got=f"{size} tokens" + (f" with a stride of {windows.stride}" if windows else ""),
                allowed=f"at least {least} and at most {self.max_tokens}, special tokens included",
                do="change the windows or the trunk's max_tokens",
            )
        return size - template.size

    def _template(self, texts: int) -> Template:
        if texts not in self._templates:
            self._templates[texts] = find_template(self._tokenizer, texts)
        return self._templates[texts]


def longest_first(lengths: Sequence[int], room: int) -> list[int]:
    """Tokens to keep of one text or a pair, as `longest_first` of `tokenizers`: the longer one loses first.

    When both are longer than half the room, the shorter gets half, rounded down; of two equally long texts, the first
    does.
    """
    if sum(lengths) <= room:
        return list(lengths)
    if len(lengths) == 1:
        return [room]
    short, long = (0, 1) if lengths[0] <= lengths[1] else (1, 0)
    kept = [0, 0]
    kept[short] = lengths[short] if 2 * lengths[short] <= room else room // 2
    kept[long] = room - kept[short]
    return kept


def _window_spans(lengths: list[int], room: int, stride: int) -> Iterator[list[tuple[int, int]]]:
    """For each window, the range of tokens of every text.

    A pair keeps its shorter text whole, up to half the room.
    """
    longer = max(range(len(lengths)), key=lambda index: (lengths[index], index))  # as `longest_first` cuts
    others = [room // 2 if index != longer else 0 for index in range(len(lengths))]
    beside = min(sum(others), room - stride - 1, sum(lengths) - lengths[longer])
    size, start = room - beside, 0
    while True:
        stop = min(start + size, lengths[longer])
        yield [(start, stop) if index == longer else (0, beside) for index in range(len(lengths))]
        if stop == lengths[longer]:
            return
        start += size - stride


class _Read(Value, eq=False):
    """The ranges of each text's tokens that the entries hold."""

    row: np.ndarray  # int64 (entries,)
    window: np.ndarray  # int64 (entries,)
    starts: np.ndarray  # int64 (entries, texts)
    stops: np.ndarray  # int64 (entries, texts)
    cut: np.ndarray  # int64 (inputs,): tokens that no entry holds
    beyond: np.ndarray  # int64 (inputs,): tokens that the first entry does not hold


def _read(lengths: np.ndarray, more: np.ndarray, room: int, windows: Windows | None) -> _Read:
    """The tokens to read of inputs with `lengths` encoded and `more` other tokens, (inputs, texts)."""
    rows, nothing, zeros = np.arange(len(lengths)), np.zeros(len(lengths), np.int64), np.zeros_like(lengths)
    total, unread = lengths.sum(axis=1), more.sum(axis=1)
    beyond = np.maximum(0, total - room) + unread
    whole = _Read(row=rows, window=nothing, starts=zeros, stops=lengths, cut=unread, beyond=beyond)
    long = [row for row, size in enumerate(total.tolist()) if size > room]
    if not long:
        return whole
    if windows is None:
        kept = lengths.copy()
        for row in long:
            kept[row] = longest_first((lengths[row] + more[row]).tolist(), room)
        return msgspec.structs.replace(whole, stops=kept, cut=beyond)
    counts, cut = nothing + 1, unread.copy()
    window_spans = {row: np.array(list(_window_spans(lengths[row].tolist(), room, windows.stride))) for row in long}
    for row, spans in window_spans.items():  # (windows, texts, 2)
        counts[row], cut[row] = len(spans), cut[row] + total[row] - spans[-1, :, 1].sum()
    rows, first = np.repeat(rows, counts), np.cumsum(counts) - counts
    starts, stops = zeros[rows], lengths[rows]
    for row, spans in window_spans.items():
        entries = slice(first[row], first[row] + counts[row])
        starts[entries], stops[entries] = spans[..., 0], spans[..., 1]
    window = np.arange(len(rows)) - first[rows]
    return _Read(row=rows, window=window, starts=starts, stops=stops, cut=cut, beyond=beyond)


def _laid(texts: Iterator[list[Any]], read: _Read, special: Sequence[list[Any]]) -> Iterator[list[Any]]:
    """For each entry, the values of its texts' tokens and of the special tokens around them."""
    last, row_texts = -1, list[list[Any]]()
    spans = zip(read.row.tolist(), read.starts.tolist(), read.stops.tolist(), strict=True)
    for row, starts, stops in spans:
        if row != last:
            last, row_texts = row, [next(texts) for _ in starts]
        values = special[0]
        for text, start, stop, after in zip(row_texts, starts, stops, special[1:], strict=True):
            values = values + text[start:stop] + after
        yield values


def _flat(texts: Iterator[list[int]], read: _Read, special: Sequence[list[int]]) -> np.ndarray:
    flat = array("i")  # the fastest way from many lists to one array, twice as fast as numpy's own
    for entry in _laid(texts, read, special):
        for start in range(0, len(entry), AT_ONCE):
            flat.fromlist(entry[start : start + AT_ONCE])
    return np.array(flat, np.int32)


def _offsets(answer: tokenizers.Encoding) -> list[tuple[int, int]]:
    """The characters of each token; for very many tokens, read one by one so that other threads can run."""
    if len(answer) <= AT_ONCE:
        return list(answer.offsets)
    return [answer.token_to_chars(token) or (0, 0) for token in range(len(answer))]


def _flat_pairs(texts: Iterator[list[tuple[int, int]]], read: _Read, special: Sequence[list[int]]) -> np.ndarray:
    flat = array("i")
    for entry in _laid(texts, read, [[(value, value) for value in piece] for piece in special]):
        for start in range(0, len(entry), AT_ONCE):
            flat.fromlist(list(chain.from_iterable(entry[start : start + AT_ONCE])))
    return np.array(flat, np.int32).reshape(-1, 2)


def encoded_at(encodings: Encodings, entry: int) -> Encoded:
    """One entry as a single encoding; the encodings must have offsets."""
    assert encodings.offsets is not None and encodings.sequence is not None
    tokens = slice(encodings.starts[entry], encodings.starts[entry + 1])
    return Encoded(
        row=int(encodings.row[entry]),
        window=int(encodings.window[entry]),
        ids=encodings.ids[tokens],
        segments=encodings.segments[tokens],
        offsets=encodings.offsets[tokens],
        sequence=encodings.sequence[tokens],
        cut=int(encodings.cut[entry]),
        repaired=int(encodings.repaired[entry]),
        texts=encodings.texts,
    )


def _pad_id(tokenizer: tokenizers.Tokenizer) -> int:
    """The file's padding id, else the id of the usual names, else 0: padded positions are masked anyway."""
    if tokenizer.padding:
        return int(tokenizer.padding["pad_id"])
    known = (tokenizer.token_to_id(name) for name in ("[PAD]", "<pad>"))
    return next((index for index in known if index is not None), 0)


def _chunks(inputs: Sequence[Input]) -> Iterator[tuple[int, int]]:
    """Ranges of rows whose texts are encoded by one call."""
    start, characters = 0, 0
    for row, texts in enumerate(inputs):
        size = sum(len(text) for text in texts)
        if row > start and (characters + size > CHUNK_CHARACTERS or row - start >= CHUNK_ROWS):
            yield start, row
            start, characters = row, 0
        characters += size
    if start < len(inputs):
        yield start, len(inputs)


def _repaired(texts: list[str]) -> tuple[list[str], np.ndarray]:
    """The texts without lone surrogates, and the number that each held."""
    try:
        "".join(texts).encode()  # hardly any text has one, and this is the fastest check
    except UnicodeEncodeError:
        return list(map(repair, texts)), np.array(list(map(lone_surrogates, texts)), np.int64)
    return texts, np.zeros(len(texts), np.int64)
