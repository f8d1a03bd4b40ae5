"""A trunk as plain data: its shape, arrays and tokenizer, and the digest of all that determines its states."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import msgspec
import numpy as np

from polyhead.encoder.decoder import Decoder
from polyhead.encoder.shape import Architecture, trunk_arrays
from polyhead.errors import WeightsMismatch
from polyhead.values import Value, digested

FINITE_CHUNK = 2**20  # numbers checked at once; the mask stays in the processor's cache


class TextSettings(Value):
    """Settings for converting a text to token ids; part of the trunk's digest."""

    max_tokens: int  # special tokens included; longer inputs are cut, or read in windows if a task requests it


class TrunkFacts(Value):
    """The facts about a trunk that need no arrays."""

    name: str  # its origin, for people
    architecture: Architecture
    tokenizer: bytes  # a `tokenizers` JSON file
    settings: TextSettings
    digest: str


class CheckpointPooler(msgspec.Struct, frozen=True, kw_only=True):
    """`tanh(W h + b)` of the first position's state h, as a checkpoint has it (Devlin et al. 2019)."""

    weight: np.ndarray  # (width, width)
    bias: np.ndarray


class CheckpointDecoder(msgspec.Struct, frozen=True, kw_only=True):
    """The decoder of a checkpoint, from which heads that generate can start."""

    shape: Decoder
    arrays: Mapping[str, np.ndarray]  # float32, named as `encoder.decoder.decoder_arrays` says
    config: bytes  # config.json
    generation: bytes | None  # generation_config.json, where there is one

    @property
    def digest(self) -> str:
        """SHA-256, in hex, over the arrays."""
        return arrays_digest(self.arrays)


class HashedArrays(msgspec.Struct, frozen=True, eq=False):
    """Arrays, and their `arrays_digest`."""

    arrays: Mapping[str, np.ndarray]
    digest: str


class TrunkData(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that determines a trunk's states. `arrays` are float32, named as `architecture.trunk_arrays` says."""

    name: str  # its origin, for people
    architecture: Architecture
    arrays: Mapping[str, np.ndarray]
    tokenizer: bytes  # a `tokenizers` JSON file; its own padding and truncation are ignored
    settings: TextSettings
    pooler: CheckpointPooler | None = None  # what poolers may start from; no part of the trunk, nor of its digest
    decoder: Callable[[], CheckpointDecoder] | None = None  # reads what generating heads may start from; likewise
    hashed: HashedArrays | None = None  # arrays that were hashed when they were read

    def __post_init__(self) -> None:
        check_arrays(self.arrays, dict(trunk_arrays(self.architecture)), owner=f"trunk '{self.name}'")
        if not 3 <= self.settings.max_tokens <= self.architecture.max_tokens:
            raise WeightsMismatch(
                f"trunk '{self.name}' cannot read inputs of that length",
                got=f"max_tokens = {self.settings.max_tokens}",
                allowed=f"3 to {self.architecture.max_tokens}",
            )

    @property
    def digest(self) -> str:
        """SHA-256, in hex, over shape, arrays, tokenizer and text settings; computed anew at every call."""
        return trunk_digest(self.architecture, arrays_digest(self.arrays), self.tokenizer, self.settings)

    @property
    def known_digest(self) -> str:
        """The digest, without hashing again what was hashed when it was read; for arrays that nobody writes to."""
        if self.hashed is None or self.hashed.arrays is not self.arrays:
            return self.digest
        return trunk_digest(self.architecture, self.hashed.digest, self.tokenizer, self.settings)

    @property
    def facts(self) -> TrunkFacts:
        """Everything except the arrays."""
        return TrunkFacts(
            name=self.name,
            architecture=self.architecture,
            tokenizer=self.tokenizer,
            settings=self.settings,
            digest=self.digest,
        )

    def blended(self, other: TrunkData, share: float) -> TrunkData:
        """A trunk with `share` of these weights plus `1 - share` of the other's, which has the same shape."""
        if share == 1:
            return self
        mixed = {
            name: (share * array.astype(np.float64) + (1 - share) * other.arrays[name]).astype(np.float32)
            for name, array in self.arrays.items()
        }
        return msgspec.structs.replace(self, arrays=mixed)


def trunk_digest(architecture: Architecture, arrays: str, tokenizer: bytes, settings: TextSettings) -> str:
    """The digest of a trunk from the digest of its arrays, so that a reader need not hash the arrays again."""
    facts = {"architecture": architecture, "settings": settings, "arrays": arrays}
    content = msgspec.json.encode(digested(facts), order="sorted") + hashlib.sha256(tokenizer).digest()
    return hashlib.sha256(content).hexdigest()


def arrays_digest(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256, in hex, over names, types, shapes and bytes, in the order of the names."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        total.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        total.update(array.data if array.size else b"")
    return total.hexdigest()


def check_arrays(arrays: Mapping[str, np.ndarray], expected: Mapping[str, tuple[int, ...]], *, owner: str) -> None:
    """Raises WeightsMismatch that names every array that is missing, extra, of another shape, or not finite."""
    missing, extra = sorted(set(expected) - set(arrays)), sorted(set(arrays) - set(expected))
    if missing or extra:
        raise WeightsMismatch(
            f"the arrays of {owner} are not the ones its shape calls for",
            got=f"missing {missing[:5] or 'none'}, extra {extra[:5] or 'none'}",
            do="give the weights that belong to this configuration",
        )
    wrong = [f"{n}: {arrays[n].shape} for {shape}" for n, shape in expected.items() if arrays[n].shape != shape]
    if wrong:
        raise WeightsMismatch(
            f"arrays of {owner} have another shape than their configuration says",
            got=wrong[:5],
            do="give the weights that belong to this configuration",
        )
    check_finite(arrays, owner=owner)


def check_finite(arrays: Mapping[str, np.ndarray], *, owner: str) -> None:
    """Raises WeightsMismatch that names every array with numbers that are not finite.

    6 ms for 90 MB, where SHA-256 takes 50.
    """
    wrong = {name: problem for name, array in arrays.items() if (problem := _not_finite(array)) is not None}
    if wrong:
        raise WeightsMismatch(
            f"arrays of {owner} hold values that no answer can be computed with",
            got=[f"{name}: {problem}" for name, problem in wrong.items()][:5],
            allowed="finite numbers in floating point",
            do="restore the arrays from a copy, or train or convert them again",
        )


def _not_finite(array: np.ndarray) -> str | None:
    """The first value that is not finite, or the wrong dtype; None for finite floats."""
    if array.dtype.kind != "f":
        return f"values of type {array.dtype}"
    flat = np.ascontiguousarray(array).reshape(-1)
    for start in range(0, flat.size, FINITE_CHUNK):
        is_finite = np.isfinite(flat[start : start + FINITE_CHUNK])
        if not is_finite.all():
            return str(flat[start + int(np.argmin(is_finite))])
    return None
