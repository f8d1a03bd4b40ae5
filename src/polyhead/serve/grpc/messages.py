"""The protocol's messages, and their conversion to the server's requests and answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from polyhead.errors import BadValue, MissingExtra
from polyhead.serve.formats.tensors import (
    MOST_DIMENSIONS,
    MOST_TENSORS,
    AskedOutput,
    InferParameters,
    InferRequest,
    InputTensor,
    Tensor,
    TensorFacts,
    TensorParameters,
    tensor_bytes,
)
from polyhead.serve.http import MOST_VALUES

PACKAGE = "inference"
_TENSOR = (
    "1 name string",
    "2 datatype string",
    "3 shape *int64",
    "4 parameters *ParametersEntry",
    "5 contents InferTensorContents",
)
# Message -> its fields: number, name, type; "*" is a list. Numbers and types are the protocol's. A map is a list of
# entries, which has the same bytes; contents of other types than text, which no model reads, are left out.
FIELDS: Mapping[str, Sequence[str]] = {
    "ServerLiveRequest": (),
    "ServerLiveResponse": ("1 live bool",),
    "ServerReadyRequest": (),
    "ServerReadyResponse": ("1 ready bool",),
    "ModelReadyRequest": ("1 name string", "2 version string"),
    "ModelReadyResponse": ("1 ready bool",),
    "ServerMetadataRequest": (),
    "ServerMetadataResponse": ("1 name string", "2 version string", "3 extensions *string"),
    "ModelMetadataRequest": ("1 name string", "2 version string"),
    "ModelMetadataResponse": (
        "1 name string",
        "2 versions *string",
        "3 platform string",
        "4 inputs *TensorMetadata",
        "5 outputs *TensorMetadata",
    ),
    "TensorMetadata": ("1 name string", "2 datatype string", "3 shape *int64"),
    "InferParameter": (
        "1 bool_param bool",
        "2 int64_param int64",
        "3 string_param string",
        "4 double_param double",
        "5 uint64_param uint64",
    ),
    "ParametersEntry": ("1 key string", "2 value InferParameter"),
    "InferTensorContents": ("8 bytes_contents *bytes",),
    "InferInputTensor": _TENSOR,
    "InferRequestedOutputTensor": ("1 name string", "2 parameters *ParametersEntry"),
    "ModelInferRequest": (
        "1 model_name string",
        "2 model_version string",
        "3 id string",
        "4 parameters *ParametersEntry",
        "5 inputs *InferInputTensor",
        "6 outputs *InferRequestedOutputTensor",
        "7 raw_input_contents *bytes",
    ),
    "InferOutputTensor": _TENSOR,
    "ModelInferResponse": (
        "1 model_name string",
        "2 model_version string",
        "3 id string",
        "4 parameters *ParametersEntry",
        "5 outputs *InferOutputTensor",
        "6 raw_output_contents *bytes",
    ),
}
CHOICE = "parameter_choice"  # of `InferParameter`, which has one of its fields
# Fields of a request, by number, in which fields are counted too: inputs with their contents, and outputs.
COUNTED: dict[int, Any] = {5: {5: {}}, 6: {}}


@cache
def message_classes() -> Mapping[str, Any]:
    """The classes of the messages, in a pool of their own; raises MissingExtra without protobuf."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        raise MissingExtra("protobuf", "grpc", "gRPC") from None
    file = descriptor_pb2.FileDescriptorProto(name="polyhead_inference.proto", package=PACKAGE, syntax="proto3")
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        is_choice = name == "InferParameter"
        if is_choice:
            message.oneof_decl.add(name=CHOICE)
        for number, field, kind in (words.split() for words in fields):
            plain = kind.removeprefix("*")
            descriptor = message.field.add(name=field, number=int(number))
            descriptor.label = descriptor.LABEL_REPEATED if plain != kind else descriptor.LABEL_OPTIONAL
            descriptor.type = getattr(descriptor, f"TYPE_{'MESSAGE' if plain in FIELDS else plain.upper()}")
            if plain in FIELDS:
                descriptor.type_name = f".{PACKAGE}.{plain}"
            if is_choice:
                descriptor.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    named = pool.FindMessageTypeByName
    return {name: message_factory.GetMessageClass(named(f"{PACKAGE}.{name}")) for name in FIELDS}


def message_in(data: bytes, name: str) -> Any:
    """The message of these bytes; raises BadValue for bytes that are none, or of too many fields."""
    from google.protobuf.message import DecodeError

    message = message_classes()[name]()
    check_fields_of(data)
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise BadValue(f"the request is no {name}", got=str(error)) from None
    return message


def check_fields_of(data: bytes) -> None:
    """Raises BadValue for more than MOST_VALUES fields: each may take many times its bytes when it is read."""
    waiting, count = [(0, len(data), COUNTED)], 0
    while waiting:
        place, end, within = waiting.pop()
        for number, start, stop in _fields(data, place, end):
            count += 1
            if count > MOST_VALUES:
                do = "send several requests"
                raise BadValue("the request holds too many values", allowed=MOST_VALUES, do=do)
            if number in within:
                waiting.append((start, stop, within[number]))


def _fields(data: bytes, place: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The number of each field, and where its bytes are; those of numbers are none."""
    while place < end:
        tag, place = _varint(data, place, end)
        start = place
        if tag & 7 == 2:
            size, start = _varint(data, place, end)
            place = start + size
        elif tag & 7 == 0:
            _, place = _varint(data, place, end)
            start = place
        else:
            start = place = place + {1: 8, 5: 4}.get(tag & 7, end)
        if place > end:
            raise _broken()
        yield tag >> 3, start, place


def _varint(data: bytes, place: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= end:
            break
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
    raise _broken()


def _broken() -> BadValue:
    return BadValue("the request is no message of the protocol", do="use a client of the Open Inference Protocol")


def infer_request(message: Any) -> tuple[InferRequest, bytes]:
    """A `ModelInferRequest` as the server has it, and the data that stand behind its tensors."""
    raw, tensors = message.raw_input_contents, message.inputs
    if len(tensors) > MOST_TENSORS:
        raise BadValue("the request has too many inputs", got=len(tensors), allowed=MOST_TENSORS)
    if raw and len(raw) != len(tensors):
        raise BadValue("'raw_input_contents' has not one entry for each input", got=len(raw), allowed=len(tensors))
    sizes: list[int | None] = [len(each) for each in raw] or [None] * len(tensors)
    inputs = [_input(each, size) for each, size in zip(tensors, sizes, strict=True)]
    outputs = [
        AskedOutput(name=each.name, parameters=_converted(each.parameters, TensorParameters))
        for each in message.outputs
    ]
    parameters = _converted(message.parameters, InferParameters)
    return InferRequest(inputs=inputs, outputs=outputs, id=message.id or None, parameters=parameters), b"".join(raw)


def _input(tensor: Any, size: int | None) -> InputTensor:
    parameters = msgspec.structs.replace(_converted(tensor.parameters, TensorParameters), binary_data_size=size)
    texts = [_text(each, tensor.name) for each in tensor.contents.bytes_contents]
    return InputTensor(
        name=tensor.name,
        shape=list(tensor.shape[: MOST_DIMENSIONS + 1]),  # more are refused, whatever they are
        datatype=tensor.datatype,
        data=texts if texts or size is None else None,
        parameters=parameters,
    )


def _text(content: bytes, name: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise BadValue(f"a text of input '{name}' is not UTF-8") from None


def _converted(entries: Iterable[Any], of: Any) -> Any:
    """Parameters as a value of this type; raises BadValue for one of another type than it has."""
    values = {each.key: getattr(each.value, each.value.WhichOneof(CHOICE) or "", None) for each in entries}
    try:
        return msgspec.convert({name: value for name, value in values.items() if value is not None}, of)
    except msgspec.ValidationError as error:
        raise BadValue("a parameter is of another type", got=str(error)) from None


def infer_response(facts: Mapping[str, Any], tensors: Sequence[Tensor]) -> bytes:
    """A `ModelInferResponse` of the facts of an answer: its tensors in binary, as Triton sends them."""
    classes = message_classes()
    names = {name: facts[name] for name in ("model_name", "model_version", "id") if name in facts}
    entries = [
        classes["ParametersEntry"](key=key, value=classes["InferParameter"](string_param=value))
        for key, value in facts["parameters"].items()
    ]
    outputs = [
        classes["InferOutputTensor"](name=each.name, datatype=each.datatype, shape=each.shape)
        for each in (tensor.facts for tensor in tensors)
    ]
    raw = [tensor_bytes(tensor) for tensor in tensors]
    response = classes["ModelInferResponse"](**names, parameters=entries, outputs=outputs, raw_output_contents=raw)
    return bytes(response.SerializeToString())


def tensor_metadata(tensors: Iterable[TensorFacts]) -> list[Any]:
    """`TensorMetadata` of each."""
    tensor_class = message_classes()["TensorMetadata"]
    return [tensor_class(name=each.name, datatype=each.datatype, shape=each.shape) for each in tensors]
