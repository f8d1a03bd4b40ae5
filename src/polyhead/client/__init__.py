"""A client for a server, using only the standard library and msgspec; vectors also need numpy.

    from polyhead.client import Client
    with Client("http://127.0.0.1:8000") as client:
        client.predict(["where is my parcel?"]).results[0].answers

Errors are those of `polyhead.errors`.
"""

from polyhead.client.answers import ClientResult, Prediction, StreamPart, TaskInfo, Version
from polyhead.client.client import AnswerStream, AsyncClient, AsyncStream, Client
from polyhead.client.connection import Call

__all__ = [
    "AsyncClient",
    "AsyncStream",
    "Call",
    "Client",
    "StreamPart",
    "Prediction",
    "ClientResult",
    "AnswerStream",
    "TaskInfo",
    "Version",
]
