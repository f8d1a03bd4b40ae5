"""Limits of the numbers in a project file; None, which means a default, is accepted."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from polyhead.errors import ConfigError


def check_least(table: str, value: msgspec.Struct, least: Mapping[str, float]) -> None:
    """Raises ConfigError for a field below its minimum; `table` precedes its name in the error."""
    for name, limit in least.items():
        number = getattr(value, name)
        if number is not None and not (number >= limit and math.isfinite(number)):
            raise ConfigError(f"{table}{name} is too small", got=number, allowed=f"{limit} or more")


def check_positive(table: str, value: msgspec.Struct, *names: str) -> None:
    """Raises ConfigError for a field that is not positive."""
    for name in names:
        number = getattr(value, name)
        if number is not None and not (number > 0 and math.isfinite(number)):
            raise ConfigError(f"{table}{name} must be positive", got=number, allowed="a number above 0")


def check_shares(table: str, value: msgspec.Struct, *names: str) -> None:
    """Raises ConfigError for a field that is not a share below one."""
    for name in names:
        if not 0 <= getattr(value, name) < 1:
            raise ConfigError(f"{table}{name} is a share", got=getattr(value, name), allowed="0 to below 1")
