"""Checkpoints of training runs: a module's weights, the states of random generators, and their file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import safetensors
import torch
from torch import Tensor, nn

from polyhead.deep.nn import dropout
from polyhead.errors import TrainError
from polyhead.files import open_plain, remove_leftovers, replacing

if TYPE_CHECKING:
    from polyhead.train.runs import ProcessRank

_STATE = "state"
_DTYPES = {  # by the format's names
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def learned_state(module: nn.Module) -> dict[str, Tensor]:
    """The module's state without frozen parameters, such as a frozen trunk's."""
    frozen = {name for name, p in module.named_parameters(remove_duplicate=False) if not p.requires_grad}
    return {name: value for name, value in module.state_dict().items() if name not in frozen}


def restore(module: nn.Module, state: dict[str, Tensor]) -> None:
    """Loads a `learned_state`; other parameters are unchanged."""
    module.load_state_dict({**module.state_dict(), **state})


def copied(module: nn.Module) -> dict[str, Tensor]:
    """A copy of `learned_state`."""
    return {name: value.detach().clone() for name, value in learned_state(module).items()}


def generator_state(device: str) -> Tensor:
    """The state of the generator for dropout on this device."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_rng_state(device)
    return dropout.generator().get_state()


def draw_on(states: Sequence[Tensor], place: ProcessRank) -> None:
    """Sets this process's generator to its state.

    Does nothing if the states are of another number of processes, or of another kind of device.
    """
    if len(states) != place.world or len(states[place.rank]) != len(generator_state(place.device)):
        return
    if torch.device(place.device).type == "cuda":
        torch.cuda.set_rng_state(states[place.rank], place.device)
    else:
        dropout.generator().set_state(states[place.rank])


def write_checkpoint(checkpoint: Path, state: dict[str, Any]) -> None:
    """Writes tensors as a safetensors file; numbers, strings and the structure are JSON in its header.

    `state` nests dicts, lists, tuples, tensors and JSON values. The file replaces the old one once complete. Raises
    TrainError, and leaves nothing half-written, if the disk refuses.
    """
    tensors: list[Tensor] = []
    metadata = {_STATE: json.dumps(_encoded(state, tensors, {}))}
    try:
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(checkpoint.parent, of=checkpoint.name)  # never those of a concurrent run
        with replacing(checkpoint) as file:
            _write_tensors(file, tensors, metadata)
    except OSError as error:
        raise TrainError(
            f"cannot write the checkpoint {checkpoint}",
            got=error.strerror or error,
            do="free some disk space and run the same command again; finished tasks and epochs are kept",
        ) from None


def read_checkpoint(checkpoint: Path) -> dict[str, Any]:
    """The state of a checkpoint file, with tensors on the CPU; raises TrainError for a damaged file."""
    try:
        open_plain(checkpoint).close()
        with safetensors.safe_open(checkpoint, framework="pt") as file:
            encoded = json.loads((file.metadata() or {})[_STATE])
            tensors = [file.get_tensor(str(index)) for index in range(len(file.keys()))]
        state: dict[str, Any] = _decoded(encoded, tensors)
    except (safetensors.SafetensorError, OSError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise TrainError(
            f"the checkpoint {checkpoint} cannot be read",
            got=str(error).splitlines()[0] if str(error) else type(error).__name__,
            do="delete it; the task then starts anew, and finished tasks are kept",
        ) from None
    return state


def _encoded(value: Any, tensors: list[Tensor], known: dict[tuple[object, ...], int]) -> Any:
    """`value` as JSON; tensors move to `tensors`, each memory once, and leave their index."""
    match value:
        case Tensor():
            memory = (value.data_ptr(), value.dtype, value.shape, value.stride(), value.device)
            if not value.numel() or memory not in known:
                known[memory] = len(tensors)
                tensors.append(value)
            return {"tensor": known[memory]}
        case dict():  # as pairs, since keys may be integers
            return {"dict": [[key, _encoded(item, tensors, known)] for key, item in value.items()]}
        case tuple():
            return {"tuple": [_encoded(item, tensors, known) for item in value]}
        case list():
            return [_encoded(item, tensors, known) for item in value]
    return value


def _decoded(value: Any, tensors: Sequence[Tensor]) -> Any:
    match value:
        case {"tensor": index}:
            return tensors[index]
        case {"dict": pairs}:
            return {key: _decoded(item, tensors) for key, item in pairs}
        case {"tuple": items}:
            return tuple(_decoded(item, tensors) for item in items)
        case list():
            return [_decoded(item, tensors) for item in value]
    return value


def _write_tensors(file: IO[bytes], tensors: Sequence[Tensor], metadata: dict[str, str]) -> None:
    """Writes the safetensors format, tensor after tensor: `safetensors.torch.save` would copy them all first."""
    header: dict[str, object] = {"__metadata__": metadata}
    order, end = sorted(range(len(tensors)), key=lambda index: -tensors[index].itemsize), 0  # so that all are aligned
    for index in order:
        tensor = tensors[index]
        start, end = end, end + tensor.nbytes
        header[str(index)] = {"dtype": _DTYPES[tensor.dtype], "shape": tensor.shape, "data_offsets": (start, end)}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    file.write(len(encoded).to_bytes(8, "little") + encoded)
    for index in order:
        file.write(tensors[index].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
