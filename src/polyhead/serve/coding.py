"""Bodies that a client compressed: read where this Python can, never to more than a body may hold."""

from __future__ import annotations

from typing import Any

from polyhead.serve.http import HttpError


def plain_body(body: bytes, coding: str, *, most: int) -> bytes:
    """The body of a request with this `Content-Encoding`: "" or "identity" as it is, "zstd" where that is installed.

    Raises HttpError: 415 for any other coding, 413 for more than `most` bytes, 400 for a body that is broken.
    """
    if coding in ("", "identity"):
        return body
    zstd = _zstd() if coding == "zstd" else None
    if zstd is None:
        raise HttpError(
            415,
            "the body is compressed in a way that the server does not read",
            got=coding,
            allowed="a body as it is, or zstd where the server has 'backports.zstd' or Python 3.14",
            do="send it as it is; of TypeSafeClient: compression=False",
        )
    reader = zstd.ZstdDecompressor()
    try:
        content: bytes = reader.decompress(body, max_length=most + 1)
    except zstd.ZstdError as error:
        raise HttpError(400, "the body is not what its 'Content-Encoding' says", got=str(error)) from None
    if len(content) > most:
        raise HttpError(413, "the body is too large", allowed=f"{most:,} bytes", do="send less at once")
    if not reader.eof:
        raise HttpError(400, "the body is not what its 'Content-Encoding' says", got="the end is missing")
    return content


def _zstd() -> Any:
    """The module of Python 3.14, or the same for those before it; None where neither is there."""
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        try:
            from backports import zstd
        except ImportError:
            return None
    return zstd
