"""Tensors of the Open Inference Protocol: JSON, or its binary extension, where data follow the JSON in the body."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from itertools import islice
from math import prod
from typing import Annotated, Any

import msgspec
import numpy as np
from starlette.responses import Response

from polyhead.errors import BadValue
from polyhead.serve.formats.base import Wire
from polyhead.serve.http import JSON, HttpError, json_value, raw
from polyhead.values import Value

LENGTH_HEADER = "Inference-Header-Content-Length"  # bytes of JSON before the data
MOST_TENSORS = 8  # of a request: a text has one, a pair two
MOST_DIMENSIONS = 8  # of a tensor
TEXT, DTYPES = "BYTES", {"FP32": "<f4", "FP64": "<f8"}


class TensorParameters(Wire):
    """The location of a tensor's data."""

    binary_data_size: int | None = None
    binary_data: bool | None = None
    classification: int | None = None
    shared_memory_region: str | None = None


class InputTensor(Wire):
    """A tensor of a request."""

    name: str
    shape: list[int]
    datatype: str
    data: Any = None
    parameters: TensorParameters = TensorParameters()


EXAMPLE = {"name": "text", "shape": [1], "datatype": TEXT, "data": ["where is my order?"]}


class AskedOutput(Wire):
    """A tensor that a request wants."""

    name: str
    parameters: TensorParameters = TensorParameters()


class InferParameters(Wire):
    """Options of a request."""

    binary_data_output: bool = False
    timeout: int | None = None  # microseconds
    familiar: bool = False  # as `/v1/predict` takes it, and so is the limit
    none_below: float | None = None


class InferRequest(Wire):
    """A request without its binary data."""

    inputs: Annotated[list[InputTensor], msgspec.Meta(examples=[[EXAMPLE]])]
    outputs: list[AskedOutput] = []
    id: str | None = None
    parameters: InferParameters = InferParameters()


class TensorFacts(Value):
    """A tensor that a model takes or gives; -1 is the number of inputs."""

    name: str
    datatype: str
    shape: list[int]


class Tensor(Value, eq=False):
    """A tensor of an answer: strings in a list, numbers in an array."""

    facts: TensorFacts
    values: np.ndarray | list[str]


_DECODER = msgspec.json.Decoder(InferRequest)


def request_in(body: bytes, json_bytes: str | None) -> tuple[InferRequest, bytes]:
    """A request and the binary data after its JSON; raises HttpError for an invalid body."""
    size = len(body)
    if json_bytes is not None:
        size = int(json_bytes) if re.fullmatch("[0-9]{1,18}", json_bytes) else -1
        if not 0 <= size <= len(body):
            raise HttpError(
                400,
                f"the header {LENGTH_HEADER} does not fit the body",
                got=json_bytes[:40],
                allowed=f"0 to {len(body)}",
            )
    return json_value(body[:size], _DECODER), body[size:]


def tensor_texts(requested: InferRequest, binary: bytes, *, most: int) -> dict[str, list[str]]:
    """The texts of each input tensor, by name.

    Raises BadValue for other tensors, for one of more than `most` texts, and for data that do not fit.
    """
    texts, start = dict[str, list[str]](), 0
    for tensor in requested.inputs:
        if len(texts) == MOST_TENSORS:
            raise BadValue("the request has too many inputs", got=f"{len(requested.inputs):,}", allowed=MOST_TENSORS)
        if tensor.name in texts:
            raise BadValue(f"two inputs are named '{tensor.name}'", do="send the texts of both in one")
        if tensor.parameters.shared_memory_region is not None:
            raise BadValue(
                f"input '{tensor.name}' lies in shared memory, which this server does not read",
                do="send its data in the body",
            )
        if tensor.datatype != TEXT:
            raise BadValue(f"input '{tensor.name}' is no text", got=tensor.datatype, allowed=TEXT)
        size = tensor.parameters.binary_data_size
        if size is not None and tensor.data is not None:
            do = "leave out one of the two"
            raise BadValue(f"input '{tensor.name}' has its data twice: in itself, and in binary behind it", do=do)
        if size is None:
            texts[tensor.name] = _limited(_flat(tensor.data, tensor.name), tensor.name, most)
        else:
            if not 0 <= size <= len(binary) - start:
                raise BadValue(f"input '{tensor.name}' ends before its data do", got=f"{size} bytes")
            strings = _strings(binary[start : start + size], tensor.name)
            texts[tensor.name] = _limited(strings, tensor.name, most)
            start += size
        # Many dimensions would take long to multiply.
        is_shape = 0 < len(tensor.shape) <= MOST_DIMENSIONS and min(tensor.shape) >= 0
        if not is_shape or prod(tensor.shape) != len(texts[tensor.name]):
            raise BadValue(
                f"the data of input '{tensor.name}' do not fit its shape",
                got=f"{len(texts[tensor.name])} values",
                allowed=f"shape {tensor.shape[:8]}",
            )
    if start != len(binary):
        raise BadValue("the body has data that no input names", got=f"{len(binary) - start} bytes")
    return texts


def _limited(texts: Iterator[str], name: str, most: int) -> list[str]:
    listed = list(islice(texts, most + 1))
    if len(listed) > most:
        problem, do = f"the request holds too many inputs: the texts of '{name}'", "send several requests"
        raise BadValue(problem, got=f"over {most:,}", allowed=f"{most:,}", do=do)
    return listed


def _flat(data: object, name: str) -> Iterator[str]:
    """Strings of lists in lists."""
    waiting: list[Any] = [data]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += reversed(value)
        elif isinstance(value, str):
            yield value
        else:
            raise BadValue(f"input '{name}' holds what is no text", got=repr(value)[:100], allowed="strings")


def _strings(data: bytes, name: str) -> Iterator[str]:
    """Each after its length, 4 bytes, little-endian."""
    start = 0
    while start < len(data):
        stop = start + 4 + (struct.unpack_from("<I", data, start)[0] if start + 4 <= len(data) else len(data))
        if stop > len(data):
            raise BadValue(f"the data of input '{name}' end within a text", do="write each length in 4 bytes, then it")
        try:
            yield data[start + 4 : stop].decode("utf-8")
        except UnicodeDecodeError:
            raise BadValue(f"a text of input '{name}' is not UTF-8") from None
        start = stop


def answer_with(tensors: Sequence[Tensor], requested: InferRequest, fields: dict[str, Any]) -> Response:
    """The tensors as an answer: each in binary or JSON, as the request wants it; `fields` go before them."""
    wanted = {output.name: output.parameters.binary_data for output in requested.outputs}
    binary = list[bytes]()
    outputs = list[dict[str, Any]]()
    for tensor in tensors:
        output = msgspec.to_builtins(tensor.facts)
        is_binary = wanted.get(tensor.facts.name)
        if requested.parameters.binary_data_output if is_binary is None else is_binary:
            binary.append(tensor_bytes(tensor))
            output["parameters"] = {"binary_data_size": len(binary[-1])}
        else:
            output["data"] = raw([np.ravel(tensor.values).tolist()])[0]
        outputs.append(output)
    header = msgspec.json.encode({**fields, "outputs": outputs})
    if not binary:
        return Response(header, media_type=JSON)
    headers = {LENGTH_HEADER: str(len(header))}
    return Response(b"".join([header, *binary]), media_type="application/octet-stream", headers=headers)


def tensor_bytes(tensor: Tensor) -> bytes:
    """The data of a tensor in binary; each text after its length, 4 bytes, little-endian."""
    if isinstance(tensor.values, list):
        texts = [text.encode("utf-8", "surrogatepass") for text in tensor.values]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
    values: np.ndarray = np.asarray(tensor.values, DTYPES[tensor.facts.datatype])
    return values.tobytes()
