"""Readers of older formats, by number; `bundle/format.py` says how to add one. There is none yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from polyhead.bundle.manifest import BundleFile

READERS: Mapping[int, Callable[[bytes, str], BundleFile]] = {}
