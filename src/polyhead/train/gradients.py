"""What training needs torch for: found in `deep` by name, and imported when it is first needed."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any


def deep(name: str) -> Any:
    """`module:name` of the room with torch; raises MissingExtra where torch is not installed."""
    return resolve_name(f"polyhead.deep.{name}")
