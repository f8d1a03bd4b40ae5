"""How deep lists and tables of a file stand in each other: counted before it is decoded, with work that is linear."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from polyhead.errors import ConfigError

DEEPEST = 64  # levels of lists and tables in JSON or TOML that somebody else wrote
PART = 262_144  # bytes that are looked at before other threads may run
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
    return body.count(b"[") + body.count(b"{") > DEEPEST and levels_and_values(body)[0] > DEEPEST


def levels_and_values(body: bytes) -> tuple[int, int]:
    """The levels of lists and objects in JSON, and the values in all of them; of anything else any two numbers.

    The body is read in parts, between which other threads run.
    """
    import numpy as np  # nothing else here needs it, and `polyhead --help` reads this file

    deepest = values = level = 0
    is_outside = True
    for part in _parts(body):
        if b"\\" in part:  # what is escaped ends no string
            part = part.replace(b"\\\\", b"").replace(b'\\"', b"")
        signs = np.frombuffer(part, np.uint8)
        outside = (np.cumsum(signs == ord('"'), dtype=np.int32) % 2 == 0) == is_outside
        is_outside = bool(outside[-1]) if len(outside) else is_outside
        signs = signs[outside]
        openings, ends = np.isin(signs, (ord("["), ord("{"))), np.isin(signs, (ord("]"), ord("}")))
        levels = level + np.cumsum(openings.astype(np.int32) - ends)
        values += int(openings.sum()) + int((signs == ord(",")).sum())
        deepest, level = max(deepest, int(levels.max(initial=0))), int(levels[-1]) if len(levels) else level
    return deepest, values


def _parts(body: bytes) -> Iterator[bytes]:
    """The body in parts of about PART bytes, none of which ends between a backslash and the sign that it escapes."""
    start = 0
    while start < len(body):
        part = body[start : start + PART]
        if (len(part) - len(part.rstrip(b"\\"))) % 2:
            part = body[start : start + PART + 1]
        start += len(part)
        yield part
