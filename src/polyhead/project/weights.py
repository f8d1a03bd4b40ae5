"""Checkpoints' weights: the arrays of safetensors files, of shards, or of a pickled file, read one at a time."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import msgspec
import numpy as np
import safetensors

from polyhead.encoder.names import ArrayRows
from polyhead.errors import MissingExtra, TrunkNotFound, WeightsMismatch
from polyhead.files import LARGEST_CONFIG, open_plain, read_plain
from polyhead.values import Value

WHOLE, INDEX, PICKLED = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"


class WeightFiles(Value, eq=False):
    """The names of a checkpoint's arrays and the file of each; arrays are read on demand."""

    files: Mapping[str, Path]
    loaded: Mapping[str, np.ndarray] | None = None  # the arrays of a pickled file, which can only be read whole

    def read(self, names: Mapping[str, str | ArrayRows]) -> dict[str, np.ndarray]:
        """Float32 arrays for {new name: the checkpoint's name, or rows of an array there}; one at a time is converted.

        Raises WeightsMismatch for an unreadable file and for an array that is not of finite floats.
        """
        places = {new: ArrayRows(name=place) if isinstance(place, str) else place for new, place in names.items()}
        arrays: dict[str, np.ndarray] = {}
        for file in dict.fromkeys(self.files[place.name] for place in places.values()):
            inside = {new: place for new, place in places.items() if self.files[place.name] == file}
            arrays |= {new: _checked(array, inside[new].name) for new, array in self._arrays(file, inside)}
        return arrays

    def stored(self, name: str) -> np.ndarray | None:
        """The array of this name as it is stored; None where there is none."""
        if name not in self.files:
            return None
        return dict(self._arrays(self.files[name], {name: ArrayRows(name=name)}))[name]

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of the array of this name; None where there is none."""
        if name not in self.files or self.loaded is not None:
            array = None if self.loaded is None else self.loaded.get(name)
            return None if array is None else array.shape
        with _opened(self.files[name]) as opened:
            return tuple(opened.get_slice(name).get_shape())

    def _arrays(self, file: Path, places: Mapping[str, ArrayRows]) -> Iterator[tuple[str, np.ndarray]]:
        if self.loaded is not None:
            for new, place in places.items():
                array = self.loaded[place.name]
                yield new, array[slice(*place.bounds(len(array)))] if place.of > 1 else array
            return
        with _opened(file) as opened:
            for new, place in places.items():
                stored = opened.get_slice(place.name)
                kind, shape = stored.get_dtype(), stored.get_shape()
                bounds = place.bounds(shape[0]) if place.of > 1 and shape else None
                if kind == "BF16":
                    yield new, _bfloat16(file, place.name, bounds)
                    continue
                try:
                    yield new, stored[slice(*bounds)] if bounds else opened.get_tensor(place.name)
                except (TypeError, AttributeError):  # numpy lacks the type
                    raise WeightsMismatch(
                        f"{file} holds numbers of a type that is not read",
                        got=kind,
                        allowed=["F32", "F16", "BF16", "F64"],
                        do="save the model in one of these",
                    ) from None


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safetensors.safe_open(file, framework="np") as opened:
            yield opened
    except (safetensors.SafetensorError, OSError) as error:
        raise _unreadable(file, error) from None


def _bfloat16(file: Path, name: str, bounds: tuple[int, int] | None) -> np.ndarray:
    """An array of bfloat16, which numpy lacks, or rows of it, as float32; the file is known to be whole."""
    with open_plain(file) as opened:
        (size,) = struct.unpack("<Q", opened.read(8))
        entry = msgspec.json.decode(opened.read(size), type=dict[str, Any])[name]
        shape, (start, stop) = entry["shape"], entry["data_offsets"]
        if bounds is not None:
            row = (stop - start) // max(1, shape[0])
            start, stop, shape = start + bounds[0] * row, start + bounds[1] * row, [bounds[1] - bounds[0], *shape[1:]]
        opened.seek(8 + size + start)
        halves = np.frombuffer(opened.read(stop - start), "<u2")
    return (halves.astype(np.uint32) << 16).view(np.float32).reshape(shape)


def open_checkpoint(folder: Path) -> WeightFiles:
    """The folder's weights, safetensors first; raises TrunkNotFound if there are none."""
    if (folder / WHOLE).is_file():
        return open_weights(folder / WHOLE)
    if (folder / INDEX).is_file():
        return _sharded(folder)
    if (folder / PICKLED).is_file():
        loaded = _unpickled(folder / PICKLED)
        return WeightFiles(files=dict.fromkeys(loaded, folder / PICKLED), loaded=loaded)
    raise TrunkNotFound(
        f"no weights in {folder}", allowed=[WHOLE, INDEX, PICKLED], do="give a folder saved by `save_pretrained`"
    )


def open_weights(file: Path) -> WeightFiles:
    """The arrays of one safetensors file; raises WeightsMismatch for an unreadable file."""
    return WeightFiles(files=dict.fromkeys(_names(file), file))


def _names(file: Path) -> list[str]:
    try:
        open_plain(file).close()
    except OSError as error:
        raise _unreadable(file, error) from None
    with _opened(file) as opened:
        return list(opened.keys())


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def _sharded(folder: Path) -> WeightFiles:
    try:
        index = msgspec.json.decode(read_plain(folder / INDEX, limit=LARGEST_CONFIG), type=_Index)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise _unreadable(folder / INDEX, error) from None
    by_shard: dict[str, set[str]] = {}
    for name, shard in index.weight_map.items():
        by_shard.setdefault(shard, set()).add(name)
    for shard, absent in sorted(by_shard.items()):
        if "/" in shard or "\\" in shard or not shard.endswith(".safetensors"):
            raise WeightsMismatch(f"{INDEX} names a file outside its folder or of another kind", got=shard)
        if (folder / shard).is_file():
            absent -= set(_names(folder / shard))
        if absent:
            raise WeightsMismatch(
                f"shard {shard} does not hold all that {INDEX} says", got=sorted(absent)[:5], do="download it again"
            )
    return WeightFiles(files={name: folder / shard for name, shard in index.weight_map.items()})


def _unpickled(file: Path) -> dict[str, np.ndarray]:
    unpickled = of_torch("unpickled", f"reading {file.name}, which torch pickled,")
    try:
        loaded: dict[str, np.ndarray] = unpickled(file)
    except WeightsMismatch:
        raise
    except Exception as error:  # the unpickler raises errors of many types for a broken file
        raise _unreadable(file, error) from None
    return loaded


def _checked(array: np.ndarray, name: str) -> np.ndarray:
    if array.dtype.kind != "f":
        raise WeightsMismatch(f"array '{name}' does not hold real numbers", got=array.dtype)
    array = np.ascontiguousarray(array, np.float32)
    if not np.isfinite(array).all():
        raise WeightsMismatch(f"array '{name}' holds infinite or undefined numbers", do="get the weights again")
    return array


def _unreadable(file: Path, error: Exception) -> WeightsMismatch:
    return WeightsMismatch(f"{file} cannot be read", got=first_line(error), do="download or save it again")


def of_torch(name: str, purpose: str) -> Any:
    """A reader of foreign files that needs torch; raises MissingExtra that names the purpose."""
    try:
        return resolve_name(f"polyhead.deep.nn.library:{name}")
    except (ImportError, MissingExtra):
        raise MissingExtra("torch", "train", purpose) from None


def first_line(error: Exception) -> str:
    """The message of another library's error, in one line."""
    return next(iter(str(error).splitlines()), type(error).__name__).removeprefix("Got: ")
