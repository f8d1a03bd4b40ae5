"""OpenAI's embeddings, which text-embeddings-inference, vLLM and Infinity answer too: vectors of the same pass."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from polyhead.serve.event_loop import off_loop
from polyhead.serve.exchange import RequestCost
from polyhead.serve.formats.asking import Vectors, check_dimensions, short_trunk_name, text_list, vectors_of
from polyhead.serve.formats.base import Operation, Wire, WireFormat, post
from polyhead.serve.http import body_value, json_content, raw
from polyhead.serve.service import Service
from polyhead.values import Value

PATHS = ("/v1/embeddings", "/embeddings")


class EmbeddingsRequest(Wire):
    """Texts, and the form of their vectors."""

    input: Annotated[Any, msgspec.Meta(examples=[["where is my order?"]])]  # a text or a list of texts
    encoding_format: Literal["float", "base64"] | None = None  # None: float, though OpenAI's own client asks base64
    dimensions: int | None = None  # None, or the 0 of Infinity's client: all
    modality: Literal["text"] = "text"  # of Infinity


class Embedding(Value):
    """A vector of length 1: numbers, or its little-endian float32 in base64."""

    embedding: list[float] | str
    index: int
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(Value):
    """Tokens that were read, special tokens included."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(Value):
    """A vector for each text, in order."""

    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    x_receipt: RequestCost
    object: Literal["list"] = "list"


class EmbeddingsFormat(WireFormat):
    """`/v1/embeddings`, and `/embeddings` for clients of Infinity.

    Vectors are the mean of the trunk's last states over all tokens, divided by their length, as sentence-transformers
    gives them for all-MiniLM. The request's `model` is not looked at: a bundle has one trunk.
    """

    name = "embeddings"

    def operations(self) -> Sequence[Operation]:
        """An entry for each path."""
        summary, types = "Vectors of texts, as OpenAI's clients ask for them.", (EmbeddingsRequest, EmbeddingsAnswer)
        return [post(path, _embeddings, summary, request=types[0], response=types[1]) for path in PATHS]


_DECODER = msgspec.json.Decoder(EmbeddingsRequest)


async def _embeddings(service: Service, request: Request) -> Response:
    requested = await body_value(request, _DECODER)
    texts = text_list(service, requested.input, "input")
    check_dimensions(service, requested.dimensions or None)
    vectors = await vectors_of(service, request, texts)
    return await off_loop(vectors.rows.size, _response, service, requested, vectors)


def _response(service: Service, requested: EmbeddingsRequest, vectors: Vectors) -> Response:
    is_base64 = requested.encoding_format == "base64"
    rows = vectors.normalized(requested.dimensions or None)
    tokens = vectors.costs.tokens
    return json_content(
        EmbeddingsAnswer(
            data=raw(
                Embedding(embedding=_in_base64(row) if is_base64 else row.tolist(), index=index)
                for index, row in enumerate(rows)
            ),
            model=short_trunk_name(service),
            usage=EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens),
            x_receipt=vectors.costs,
        )
    )


def _in_base64(row: np.ndarray) -> str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode("ascii")
