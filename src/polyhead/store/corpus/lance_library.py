"""The library of Lance: where it is not installed, and what its errors mean."""

from __future__ import annotations

from typing import Any

from polyhead.errors import MissingExtra


def modules() -> tuple[Any, Any]:
    """Lance and Arrow; raises MissingExtra where they are not installed."""
    try:
        import lance
        import lance.fragment
        import lance.schema
        import pyarrow
    except ImportError:
        raise MissingExtra("pylance", "lance", "a store in Lance") from None
    return lance, pyarrow


def is_conflict(error: Exception) -> bool:
    """Whether a commit failed only because another came first, maybe so long ago that the version before it is gone."""
    text = str(error).lower()
    return "conflict" in type(error).__name__.lower() or "conflict" in text or ".manifest was not found" in text


def is_fault(error: BaseException) -> bool:
    """Whether an error is Lance's own, a panic of its native code among them, which is no `Exception`."""
    return isinstance(error, (OSError, ValueError, RuntimeError, NotImplementedError)) or (
        type(error).__name__ == "PanicException"
    )
