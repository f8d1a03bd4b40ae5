"""Weight files of a folder, read array by array: safetensors whole or in shards, or torch's own format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import safetensors
import torch
from torch import Tensor

from polyhead.config import Value
from polyhead.errors import TrunkNotFound, WeightsMismatch
from polyhead.files import LARGEST_CONFIG, open_plain, read_plain

WHOLE, INDEX, PICKLED = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"


class Checkpoint(Value, eq=False):
    """The names of a checkpoint's arrays and the file that holds each; nothing is read until asked for."""

    files: Mapping[str, Path]
    loaded: Mapping[str, Tensor] | None = None  # the arrays of a pickled file, which can only be read whole

    def read(self, names: Mapping[str, str]) -> dict[str, np.ndarray]:
        """Float32 arrays for {new name: the checkpoint's name}.

        Raises WeightsMismatch for a file that cannot be read and for an array that is no finite float.
        """
        arrays: dict[str, np.ndarray] = {}
        for file in dict.fromkeys(self.files[name] for name in names.values()):
            inside = {new: name for new, name in names.items() if self.files[name] == file}
            arrays |= {new: _checked(tensor, inside[new]) for new, tensor in self._tensors(file, inside).items()}
        return arrays

    def _tensors(self, file: Path, names: Mapping[str, str]) -> dict[str, Tensor]:
        if self.loaded is not None:
            return {new: self.loaded[name] for new, name in names.items()}
        try:
            with safetensors.safe_open(file, framework="pt") as opened:
                return {new: opened.get_tensor(name) for new, name in names.items()}
        except (safetensors.SafetensorError, OSError) as error:
            raise _unreadable(file, error) from None


def open_checkpoint(folder: Path) -> Checkpoint:
    """The folder's weights, safetensors first; raises TrunkNotFound where there are none."""
    if (folder / WHOLE).is_file():
        return open_file(folder / WHOLE)
    if (folder / INDEX).is_file():
        return _sharded(folder)
    if (folder / PICKLED).is_file():
        loaded = _unpickled(folder / PICKLED)
        return Checkpoint(files=dict.fromkeys(loaded, folder / PICKLED), loaded=loaded)
    raise TrunkNotFound(
        f"no weights in {folder}", allowed=[WHOLE, INDEX, PICKLED], do="give a folder saved by `save_pretrained`"
    )


def open_file(file: Path) -> Checkpoint:
    """The arrays of one safetensors file; raises WeightsMismatch for a file that cannot be read."""
    return Checkpoint(files=dict.fromkeys(_names(file), file))


def _names(file: Path) -> list[str]:
    try:
        open_plain(file).close()
        with safetensors.safe_open(file, framework="pt") as opened:
            return list(opened.keys())
    except (safetensors.SafetensorError, OSError) as error:
        raise _unreadable(file, error) from None


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def _sharded(folder: Path) -> Checkpoint:
    try:
        index = msgspec.json.decode(read_plain(folder / INDEX, limit=LARGEST_CONFIG), type=_Index)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise _unreadable(folder / INDEX, error) from None
    for shard in sorted(set(index.weight_map.values())):
        if "/" in shard or "\\" in shard or not shard.endswith(".safetensors"):
            raise WeightsMismatch(f"{INDEX} names a file outside its folder or of another kind", got=shard)
        absent = {name for name, file in index.weight_map.items() if file == shard}
        if (folder / shard).is_file():
            absent -= set(_names(folder / shard))
        if absent:
            raise WeightsMismatch(
                f"shard {shard} does not hold all that {INDEX} says", got=sorted(absent)[:5], do="download it again"
            )
    return Checkpoint(files={name: folder / shard for name, shard in index.weight_map.items()})


def _unpickled(file: Path) -> dict[str, Tensor]:
    try:
        # The only torch.load: a foreign file. weights_only reads tensors and plain containers and runs no code.
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler raises errors of many types for a broken file
        raise _unreadable(file, error) from None
    if not isinstance(loaded, dict):
        raise WeightsMismatch(f"{file.name} holds no state dict", got=type(loaded).__name__)
    return {name: value for name, value in loaded.items() if isinstance(name, str) and isinstance(value, Tensor)}


def _checked(tensor: Tensor, name: str) -> np.ndarray:
    if not tensor.is_floating_point():
        raise WeightsMismatch(f"array '{name}' does not hold real numbers", got=tensor.dtype)
    array: np.ndarray = tensor.detach().float().contiguous().numpy()
    if not np.isfinite(array).all():
        raise WeightsMismatch(f"array '{name}' holds infinite or undefined numbers", do="get the weights again")
    return array


def _unreadable(file: Path, error: Exception) -> WeightsMismatch:
    return WeightsMismatch(
        f"{file} cannot be read",
        got=str(error).splitlines()[0] if str(error) else type(error).__name__,
        do="download or save it again",
    )
