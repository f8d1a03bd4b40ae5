"""How deep lists and tables of a file stand in each other: counted before it is decoded, with work that is linear."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from polyhead.errors import ConfigError

DEEPEST = 64  # levels of lists and tables in JSON or TOML that somebody else wrote
# What may hold any sign: strings of three quotes and of one, and comments; one that does not end goes to the end.
_QUOTED = re.compile(
    r'"""(?:\\.|[^\\])*?(?:"""|\Z)|'
    r"'''.*?(?:'''|\Z)|"
    r'"(?:\\.|[^"\\\n])*"?|'
    r"'[^'\n]*'?|#[^\n]*",
    re.DOTALL,
)


def toml_of(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; raises OSError, and ConfigError for what is no TOML or is nested too deeply.

    Levels are counted before they are read: Python's reader takes a time that grows with their square.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        bare = _QUOTED.sub("x", text).translate({ord(" "): None, ord("\t"): None})
        dots = max(key.count(".") for key in re.split(r"[=,\[\]{}\n]", bare))
        if dots > DEEPEST or is_deep(bare.encode("utf-8", "replace")):
            raise ConfigError(f"{path} is nested too deeply", allowed=f"{DEEPEST} levels", do="write flatter tables")
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML", got=error, do="fix that line") from None


def check_depth(raw: bytes, *, source: str) -> None:
    """Raises ConfigError for JSON of more than DEEPEST levels, before it is decoded."""
    if is_deep(raw):
        allowed = f"{DEEPEST} levels of lists and objects"
        raise ConfigError(f"{source} is nested too deeply", allowed=allowed, do="write flatter values")


def is_deep(body: bytes) -> bool:
    """Whether JSON has more than DEEPEST levels; anything else may be either."""
    if body.count(b"[") + body.count(b"{") <= DEEPEST:
        return False
    if b"\\" in body:  # what is escaped ends no string
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    signs = np.frombuffer(body, np.uint8)
    is_outside = np.cumsum(signs == ord('"'), dtype=np.int32) % 2 == 0
    signs = signs[is_outside]
    steps = np.isin(signs, (ord("["), ord("{"))).astype(np.int8) - np.isin(signs, (ord("]"), ord("}")))
    return bool(np.cumsum(steps, dtype=np.int32).max(initial=0) > DEEPEST)
