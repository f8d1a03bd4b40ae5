"""ONNX models on disk: one file, or beside it a second that holds the arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path as FilePath

import numpy as np
import onnx

from polyhead.engine.backends.onnx.ops import INLINE
from polyhead.files import write_file

LARGEST = 1 << 30  # bytes of one file: protobuf reads no message of 2 GiB, and needs twice its bytes to write one
ALIGNED = 4096  # bytes: where an array begins, so that it can be mapped into memory


def write_model(
    path: FilePath, model: onnx.ModelProto, arrays: Mapping[str, np.ndarray], *, largest: int = LARGEST
) -> dict[str, str]:
    """Writes the model with its arrays, those of more than `largest` bytes together to `<name>.data` beside it.

    Gives the SHA-256, in hex, of each file by its name.
    """
    apart = {name: array for name, array in arrays.items() if array.nbytes > INLINE}
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    initializers = [one for one in whole.graph.initializer if one.name in apart]
    if whole.ByteSize() + sum(array.nbytes for array in apart.values()) <= largest:
        for one in initializers:
            del one.external_data[:]
            one.data_location = onnx.TensorProto.DEFAULT
            one.raw_data = apart[one.name].tobytes()
        return {path.name: write_file(path, [whole.SerializeToString()])}
    beside, chunks, at = path.with_name(f"{path.name}.data"), list[memoryview | bytes](), 0
    for one in initializers:
        array = np.ascontiguousarray(apart[one.name])
        chunks += [b"\0" * (-at % ALIGNED), array.reshape(-1).view(np.uint8).data]
        at += -at % ALIGNED
        del one.external_data[:]
        for key, value in (("location", beside.name), ("offset", at), ("length", array.nbytes)):
            one.external_data.add(key=key, value=str(value))
        at += array.nbytes
    return {path.name: write_file(path, [whole.SerializeToString()]), beside.name: write_file(beside, chunks)}
