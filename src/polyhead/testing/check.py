"""One thing that must hold."""

from __future__ import annotations

from collections.abc import Callable

from polyhead.config import Value


class Check(Value, eq=False):
    """One thing that must hold of one subject; `run` raises AssertionError where it does not."""

    subject: str
    name: str
    run: Callable[[], None]
