"""Untrusted tokenizer files: each is tried in a separate process before this process opens it.

A file may make the library panic, exhaust the memory, run for minutes or return other ids at every call. A trial takes
0.1 to 0.2 s, and 1 s for a quarter of a million pieces, once per file and process.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys

import msgspec
import tokenizers

from polyhead.errors import WeightsMismatch
from polyhead.text import trial
from polyhead.values import Value

LARGEST = 2**26  # bytes; the largest of published encoders, with a million pieces, has 62 MB
MEMORY, SECONDS = 2**30, 3  # per trial, plus 12 bytes and 0.5 µs for each byte of the file
PATIENCE = 120  # wall-clock seconds, however busy the machine is
WHAT = "the tokenizer cannot be used"
ALLOWED = "a tokenizer.json of the `tokenizers` library that gives every text the same ids at every call"
_LOST = (SystemExit, KeyboardInterrupt, GeneratorExit)


class Facts(Value):
    """Facts about a file that passed its trial."""

    vocabulary: int  # one more than the largest id that can occur: pieces, special tokens, padding


# SHA-256 of files tried already. The first is that of all-MiniLM-L6-v2, with which the package is tested.
_KNOWN: dict[str, Facts] = {"be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037": Facts(vocabulary=30522)}


class _Found(msgspec.Struct):
    """The result that a trial prints."""

    facts: Facts | None = None
    wrong: str | None = None


def tokenizer_facts(content: bytes) -> Facts:
    """Facts about a tokenizer file after its trial; raises WeightsMismatch for a file that must not be opened."""
    digest = hashlib.sha256(content).hexdigest()
    if digest not in _KNOWN:
        _KNOWN[digest] = _tried(content)
    return _KNOWN[digest]


def open_tokenizer(content: bytes) -> tokenizers.Tokenizer:
    """The file, opened after its trial."""
    tokenizer_facts(content)
    try:
        return tokenizers.Tokenizer.from_buffer(content)
    except BaseException as error:
        raise failed(error, WHAT) from None


def failed(error: BaseException, problem: str) -> BaseException:
    """The error to raise for a library error (its panics are not an `Exception`); interrupts pass unchanged."""
    if isinstance(error, _LOST):
        return error
    return WeightsMismatch(problem, got=error, allowed=ALLOWED, do="use the tokenizer that belongs to the trunk")


def check_ids(content: bytes, vectors: int, *, owner: str) -> None:
    """Raises WeightsMismatch if the tokenizer has ids without a word vector."""
    largest = tokenizer_facts(content).vocabulary - 1
    if largest >= vectors:
        raise WeightsMismatch(
            f"the tokenizer of {owner} does not fit the weights: it has ids that have no word vector",
            got=f"ids up to {largest}",
            allowed=f"ids up to {vectors - 1}",
            do="give the tokenizer that belongs to the weights",
        )


def _tried(content: bytes) -> Facts:
    if len(content) > LARGEST:
        raise _refused(f"{len(content):,} bytes, and {LARGEST:,} are allowed")
    limits = (MEMORY + 12 * len(content), SECONDS + len(content) // 2_000_000)
    try:
        # -P: the script's folder must not be an import path.
        process = subprocess.run(
            [sys.executable, "-P", trial.__file__, *map(str, limits)],
            input=content,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _refused(f"no end of its trial after {PATIENCE} seconds") from None
    except OSError as error:
        raise _refused(f"no trial: {error.strerror} ({sys.executable or 'no Python'})") from None
    try:
        result = msgspec.json.decode(process.stdout, type=_Found)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Killed by the limit on processor time or on memory.
        memory, seconds = limits
        raise _refused(
            f"its trial ended with {process.returncode}: more than {seconds} s or {memory / 2**30:.1f} GiB are needed"
        ) from None
    if result.facts is None:
        raise _refused(result.wrong or "no answer")
    return result.facts


def _refused(why: str) -> WeightsMismatch:
    return WeightsMismatch(WHAT, got=why, allowed=ALLOWED, do="use the tokenizer that belongs to the trunk")
