"""Texts to token ids, exactly as the trunk's tokenizer gives them, cut or read in windows by our rules alone.

The padding and truncation that a tokenizer file declares are switched off: batches are padded to their
longest row (`text.batch`) and the limit is the trunk's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import tokenizers

from polyhead.config import Value
from polyhead.errors import ConfigError, WeightsMismatch
from polyhead.trunk_data import TextSettings

Input = tuple[str] | tuple[str, str]
"""One text, or a pair of texts read jointly."""

CHUNK_ROWS, CHUNK_CHARACTERS = 1024, 2_000_000  # of one call to the library: bounds the memory of its answers
_LONE = re.compile("[\ud800-\udfff]")


class Windows(Value):
    """Read a long input in windows of `size` tokens (special tokens included) that share `stride` tokens."""

    size: int
    stride: int

    def __post_init__(self) -> None:
        if not 0 <= self.stride < self.size:
            raise ConfigError(
                "windows must move forward",
                got=f"size {self.size}, stride {self.stride}",
                allowed="0 <= stride < size",
            )


def windows_of(max_tokens: int) -> Windows:
    """How a text over so many tokens is read where a task asks for windows: they share a quarter of their size."""
    return Windows(size=max_tokens, stride=max_tokens // 4)


class Encoded(Value, eq=False):
    """One input, or one window of it, as token ids.

    `cut` and `repaired` are facts of the whole row; its first window holds them, later ones hold 0, so that
    sums count once. `offsets` are characters of the text that `sequence` names, and (0, 0) for special
    tokens.
    """

    row: int  # index into the inputs
    window: int
    ids: np.ndarray  # int32 (tokens,)
    segments: np.ndarray  # int32 (tokens,)
    offsets: np.ndarray  # int32 (tokens, 2)
    sequence: np.ndarray  # int8 (tokens,): 0 first text, 1 second text, -1 special token
    cut: int  # tokens that no window holds
    repaired: int  # lone surrogates replaced by U+FFFD
    texts: int = 1  # texts of the input; each has tokens here, unless it is blank to the tokenizer


def lone_surrogates(text: str) -> int:
    """How many characters are halves of a surrogate pair, which no tokenizer and no UTF-8 file can hold."""
    return 0 if text.isascii() else len(_LONE.findall(text))


def repair(text: str) -> str:
    """The text with each lone surrogate replaced by U+FFFD: one for one, so that offsets stay true."""
    return text if text.isascii() else _LONE.sub("\ufffd", text)


class _Tokens(Value, eq=False):
    """The tokens of one text, without special tokens."""

    ids: np.ndarray
    offsets: np.ndarray

    def part(self, start: int, stop: int) -> _Tokens:
        return _Tokens(ids=self.ids[start:stop], offsets=self.offsets[start:stop])


class _Template(Value, eq=False):
    """The special tokens around the texts, found by encoding a probe: pieces before, between and after."""

    ids: tuple[np.ndarray, ...]
    segments: tuple[np.ndarray, ...]
    text_segments: tuple[int, ...]

    @property
    def size(self) -> int:
        return sum(len(piece) for piece in self.ids)


class Tokeniser:
    """Encodes inputs with a `tokenizers` JSON file.

    Ids and segments equal the library's own for inputs within the limit, and the `longest_first` truncation
    of `transformers` beyond it. Raises WeightsMismatch when the bytes are not such a file.
    """

    def __init__(self, tokenizer: bytes, settings: TextSettings) -> None:
        self.max_tokens = settings.max_tokens
        self._tokenizer = _load(tokenizer)
        self.pad_id = _pad_id(self._tokenizer)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._templates: dict[int, _Template] = {}

    @property
    def vocabulary(self) -> int:
        """One more than the largest id that can occur; a trunk needs at least as many word vectors."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode(self, inputs: Sequence[Input], *, windows: Windows | None = None) -> list[Encoded]:
        """Every input in order; with `windows`, several entries for one that is longer than a window."""
        return [
            encoded
            for start, stop in _chunks(inputs)
            for encoded in self._chunk(inputs, start, stop, windows)
        ]

    def _chunk(
        self, inputs: Sequence[Input], start: int, stop: int, windows: Windows | None
    ) -> Iterator[Encoded]:
        limit = None if windows else self.max_tokens
        texts = [text for given in inputs[start:stop] for text in given]
        found = self._tokenizer.encode_batch([repair(text) for text in texts], add_special_tokens=False)
        position = 0
        for row in range(start, stop):
            size = len(inputs[row])
            several = found[position : position + size]
            repaired = sum(lone_surrogates(text) for text in texts[position : position + size])
            tokens = [_tokens(encoding, limit) for encoding in several]
            lengths = [len(encoding) for encoding in several]
            position += size
            yield from self._row(row, tokens, lengths, repaired, windows)

    def _row(
        self, row: int, tokens: list[_Tokens], lengths: list[int], repaired: int, windows: Windows | None
    ) -> Iterator[Encoded]:
        template = self._template(len(tokens))
        room = self._room(template, windows)
        if windows is None or sum(lengths) <= room:
            kept = longest_first(lengths, room)
            pieces = [part.part(0, size) for part, size in zip(tokens, kept, strict=True)]
            yield _assembled(
                template, pieces, row=row, window=0, cut=sum(lengths) - sum(kept), repaired=repaired
            )
            return
        windowed = list(_window_spans(lengths, room, windows.stride))
        cut = sum(lengths) - sum(stop for _, stop in windowed[-1])
        for index, spans in enumerate(windowed):
            pieces = [part.part(*span) for part, span in zip(tokens, spans, strict=True)]
            facts = {"cut": cut, "repaired": repaired} if index == 0 else {"cut": 0, "repaired": 0}
            yield _assembled(template, pieces, row=row, window=index, **facts)

    def _room(self, template: _Template, windows: Windows | None) -> int:
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

    def _template(self, texts: int) -> _Template:
        if texts not in self._templates:
            self._templates[texts] = _find_template(self._tokenizer, texts)
        return self._templates[texts]


def longest_first(lengths: Sequence[int], room: int) -> list[int]:
    """Tokens to keep of one text or a pair, as `longest_first` of `tokenizers`: the longer one loses first.

    When both are longer than half the room, the shorter gets the half rounded down; of equals, that is the
    first.
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


def _assembled(
    template: _Template, texts: list[_Tokens], *, row: int, window: int, cut: int, repaired: int
) -> Encoded:
    ids, segments, offsets, sequence = [], [], [], []
    for index, (piece, piece_segments) in enumerate(zip(template.ids, template.segments, strict=True)):
        ids.append(piece)
        segments.append(piece_segments)
        offsets.append(np.zeros((len(piece), 2), np.int32))
        sequence.append(np.full(len(piece), -1, np.int8))
        if index < len(texts):
            text = texts[index]
            ids.append(text.ids)
            segments.append(np.full(len(text.ids), template.text_segments[index], np.int32))
            offsets.append(text.offsets)
            sequence.append(np.full(len(text.ids), index, np.int8))
    return Encoded(
        row=row,
        window=window,
        ids=np.concatenate(ids),
        segments=np.concatenate(segments),
        offsets=np.concatenate(offsets),
        sequence=np.concatenate(sequence),
        cut=cut,
        repaired=repaired,
        texts=len(texts),
    )


def _load(tokenizer: bytes) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_buffer(tokenizer)
    except Exception as error:  # the library raises bare Exception for a file it cannot read
        raise WeightsMismatch(
            "the tokenizer cannot be read", got=error, allowed="a tokenizer.json of the `tokenizers` library"
        ) from None


def _pad_id(tokenizer: tokenizers.Tokenizer) -> int:
    """The file's own padding id, else that of the usual names, else 0: padded positions are masked anyway."""
    if tokenizer.padding:
        return int(tokenizer.padding["pad_id"])
    known = (tokenizer.token_to_id(name) for name in ("[PAD]", "<pad>"))
    return next((index for index in known if index is not None), 0)


def _chunks(inputs: Sequence[Input]) -> Iterator[tuple[int, int]]:
    """Ranges of rows whose texts are encoded by one call."""
    start, characters = 0, 0
    for row, given in enumerate(inputs):
        size = sum(len(text) for text in given)
        if row > start and (characters + size > CHUNK_CHARACTERS or row - start >= CHUNK_ROWS):
            yield start, row
            start, characters = row, 0
        characters += size
    if start < len(inputs):
        yield start, len(inputs)


def _tokens(encoding: tokenizers.Encoding, limit: int | None) -> _Tokens:
    return _Tokens(
        ids=np.array(encoding.ids[:limit], np.int32),
        offsets=np.array(encoding.offsets[:limit], np.int32).reshape(-1, 2),
    )


def _find_template(tokenizer: tokenizers.Tokenizer, texts: int) -> _Template:
    probe = _probe(tokenizer)
    plain = tokenizer.encode(probe, add_special_tokens=False)
    whole = tokenizer.encode(probe, probe if texts == 2 else None)
    runs: list[tuple[list[int], list[int]]] = [([], [])]
    text_segments, index = [], 0
    while index < len(whole.ids):
        if whole.sequence_ids[index] is None:
            runs[-1][0].append(whole.ids[index])
            runs[-1][1].append(whole.type_ids[index])
            index += 1
            continue
        text_segments.append(whole.type_ids[index])
        order = (whole.sequence_ids[index], whole.ids[index : index + len(plain.ids)])
        if order != (len(runs) - 1, plain.ids):
            raise WeightsMismatch("the tokenizer places texts in an order of its own", got=whole.tokens)
        runs.append(([], []))
        index += len(plain.ids)
    if len(text_segments) != texts:
        raise WeightsMismatch(
            "the tokenizer repeats or drops a text", got=whole.tokens, do="use another trunk"
        )
    return _Template(
        ids=tuple(np.array(run[0], np.int32) for run in runs),
        segments=tuple(np.array(run[1], np.int32) for run in runs),
        text_segments=tuple(text_segments),
    )


def _probe(tokenizer: tokenizers.Tokenizer) -> str:
    """A short text that has at least one token."""
    candidates = ["a", "the", "0", ".", *sorted(tokenizer.get_vocab(with_added_tokens=False))[:1000]]
    for text in candidates:
        if len(tokenizer.encode(text, add_special_tokens=False)):
            return text
    raise WeightsMismatch(
        "the tokenizer finds no token in any text", do="use the tokenizer that belongs to the trunk"
    )
