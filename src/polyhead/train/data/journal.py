"""What an extraction set out to encode, so that one that was killed goes on in the very same batches.

A state's last bits depend on the batch it is computed in. The batches follow from the inputs that were lacking at
the start; a resumed extraction lacks fewer, so it takes the first one's list and leaves out batches that are done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from polyhead.files import open_plain, remove_leftovers, replace_file
from polyhead.store.features import key_of
from polyhead.text.tokenize import Input

KEY_BYTES = len(key_of(("",)))


class Journal:
    """One file of input keys for one set of stores; it is there only while an extraction is unfinished."""

    def __init__(self, folder: Path, digests: Sequence[str]) -> None:
        name = hashlib.sha256("".join(sorted(set(digests))).encode()).hexdigest()[:16]
        self._file = folder / f"extraction-{name}.keys"

    def begin(self, lacking: Sequence[Input], known: Sequence[Input]) -> list[Input]:
        """The inputs to batch: those of the unfinished extraction that lacked all of `lacking`, else `lacking`.

        `known` are all inputs of this extraction, stored or not.
        """
        if not lacking and not self._file.exists():
            return []  # nothing is written where nothing is to be done
        started = self._read()
        texts = {key_of(text): text for text in known} if started else {}
        if started and {key_of(text) for text in lacking} <= set(started) <= set(texts):
            return [texts[key] for key in started]
        self._write([key_of(text) for text in lacking])
        return list(lacking)

    def end(self) -> None:
        """Forgets the list: everything is stored."""
        self._file.unlink(missing_ok=True)

    def _read(self) -> list[bytes]:
        try:
            with open_plain(self._file) as file:
                raw = file.read()
        except OSError:  # none, or none of ours: the list is made anew
            raw = b""
        return [raw[i : i + KEY_BYTES] for i in range(0, len(raw) - KEY_BYTES + 1, KEY_BYTES)]

    def _write(self, keys: Sequence[bytes]) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self._file.parent, of=self._file.name)
        replace_file(self._file, b"".join(keys))
