"""The library of Lance: where it is not installed, and which of its errors are conflicts of writers."""

from __future__ import annotations

from typing import Any

from polyhead.errors import MissingExtra


def modules() -> tuple[Any, Any]:
    """Lance and Arrow; raises MissingExtra where they are not installed."""
    try:
        import lance
        import lance.fragment
        import pyarrow
    except ImportError:
        raise MissingExtra("pylance", "lance", "a store in Lance") from None
    return lance, pyarrow


def is_conflict(error: Exception) -> bool:
    """Whether a commit failed only because another came first."""
    return "conflict" in type(error).__name__.lower() or "conflict" in str(error).lower()
