"""spaCy's DocBin files (`.spacy`), read without spaCy: zlib over msgpack, with strings by their hashes."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from polyhead.data.formats.base import FileFormat, Numbered
from polyhead.data.formats.spacy import labels_of_cats
from polyhead.errors import BadValue, DataError
from polyhead.files import open_plain

LARGEST_UNPACKED = 2**30  # bytes
ORTH, ENT_IOB, ENT_TYPE = 65, 77, 78  # spaCy's numbers of token attributes
INSIDE, BEGINS = 1, 3
MASK, FACTOR = 2**64 - 1, 0xC6A4A7935BD1E995
AS_JSON_LINES = (
    "write it as JSON Lines: import json, spacy; from spacy.tokens import DocBin; "
    "print(*(json.dumps(d.to_json()) for d in DocBin().from_disk(FILE).get_docs(spacy.blank('en').vocab)), sep='\\n')"
)


class SpacyBinary(FileFormat):
    """One row per document: `text`, `spans` if it has any attribute of entities, and `labels` from `cats`."""

    name = "spaCy (DocBin)"

    @classmethod
    def knows(cls, path: str, head: bytes) -> bool:
        """Recognized by the file name and the first packed bytes."""
        return path.lower().endswith(".spacy")

    def rows(self, path: str) -> Numbered:
        """For a document without annotations, entities and labels are None."""
        packed = _unpacked(path)
        try:
            texts, documents = _documents(packed)
            has_cats = any(packed.get("cats") or ())
            self.counts["documents with groups of spans, which are left out"] += sum(
                map(bool, packed.get("span_groups") or ())
            )
            for number, (tokens, spaces, cats) in enumerate(documents, start=1):
                try:
                    labels = {"labels": labels_of_cats(cats, self.counts)} if has_cats else {}
                    yield number, _row(tokens, spaces, texts, list(packed["attrs"])) | labels
                except BadValue as error:
                    yield error.at(f"{Path(path).name} row {number}", source=path, row=number)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{path} is no DocBin of spaCy 3", got=error, do=AS_JSON_LINES) from None


def hash_of(text: str) -> int:
    """spaCy's hash of a string: MurmurHash64A with seed 1 over UTF-8."""
    data = text.encode()
    if not data:
        return 0
    value = 1 ^ (len(data) * FACTOR & MASK)
    whole = len(data) & ~7
    for at in range(0, whole, 8):
        part = int.from_bytes(data[at : at + 8], "little") * FACTOR & MASK
        part = (part ^ (part >> 47)) * FACTOR & MASK
        value = (value ^ part) * FACTOR & MASK
    if tail := data[whole:]:
        value = (value ^ int.from_bytes(tail, "little")) * FACTOR & MASK
    value = (value ^ (value >> 47)) * FACTOR & MASK
    return value ^ (value >> 47)


def _unpacked(path: str) -> dict[str, Any]:
    with open_plain(path) as file:
        raw = file.read(LARGEST_UNPACKED + 1)
    try:
        reader = zlib.decompressobj()
        content = reader.decompress(raw, LARGEST_UNPACKED)
        if not reader.eof:
            raise ValueError(f"it is cut, or unpacks to more than {LARGEST_UNPACKED:,} bytes")
        packed = msgspec.msgpack.decode(content)
    except (zlib.error, ValueError, RecursionError) as error:
        raise DataError(f"{path} is no DocBin of spaCy 3", got=error, do=AS_JSON_LINES) from None
    if not isinstance(packed, dict):
        raise DataError(f"{path} is no DocBin of spaCy 3", got=type(packed).__name__, do=AS_JSON_LINES)
    return packed


def _documents(packed: Mapping[str, Any]) -> tuple[dict[int, str], list[tuple[np.ndarray, np.ndarray, Any]]]:
    """The strings by hash, and each document's tokens, uint64 (tokens, attributes), spaces and labels."""
    attributes = len(packed["attrs"])
    lengths = np.frombuffer(packed["lengths"], np.int32)
    tokens = np.frombuffer(packed["tokens"], np.uint64).reshape(-1, attributes)
    spaces = np.frombuffer(packed["spaces"], bool)
    if (lengths < 0).any() or lengths.sum() != len(tokens) or len(spaces) != len(tokens):
        raise ValueError("the numbers of tokens differ")
    flags = packed.get("flags") or [{}] * len(lengths)
    cats = packed.get("cats") or [{}] * len(lengths)
    ends = np.cumsum(lengths)
    texts = {hash_of(text): text for text in packed["strings"]}
    documents = []
    for end, length, flag, labels in zip(ends, lengths, flags, cats, strict=True):
        follows = spaces[end - length : end] | bool(flag.get("has_unknown_spaces"))
        documents.append((tokens[end - length : end], follows, labels))
    return texts, documents


def _row(
    tokens: np.ndarray, spaces: np.ndarray, texts: Mapping[int, str], attributes: Sequence[int]
) -> dict[str, object]:
    words = [texts[int(key)] for key in tokens[:, attributes.index(ORTH)]]
    parts = [word + (" " if space else "") for word, space in zip(words, spaces, strict=True)]
    text, begins = "".join(parts), [*accumulate(map(len, parts), initial=0)][:-1]
    if ENT_IOB not in attributes or ENT_TYPE not in attributes:
        return {"text": text}
    marks = tokens[:, attributes.index(ENT_IOB)].tolist()
    names = tokens[:, attributes.index(ENT_TYPE)].tolist()
    if len(marks) and not any(marks):
        return {"text": text, "spans": None}  # no word has an annotation of entities
    spans: list[dict[str, Any]] = []
    before = None
    for word, begin, mark, name in zip(words, begins, marks, names, strict=True):
        if mark == BEGINS:
            spans.append({"start": begin, "end": begin + len(word), "label": texts[name]})
        elif mark == INSIDE:
            if before not in (BEGINS, INSIDE):  # spaCy itself refuses it too
                raise BadValue("an entity goes on that did not begin", got=word, do="correct the document")
            spans[-1]["end"] = begin + len(word)
        before = mark
    return {"text": text, "spans": spans}
