"""Texts as they are compared: without case, spaces and punctuation."""

from __future__ import annotations

import re

_LOWER = bytes.maketrans(bytes(range(65, 91)), bytes(range(97, 123)))
_DROPPED = bytes(code for code in range(128) if not chr(code).isalnum())
_SIGNS = re.compile(r"[\W_]+")


def letters_of(text: str) -> str:
    """Letters and digits, in small letters."""
    if text.isascii():  # several times as fast
        return text.encode().translate(_LOWER, _DROPPED).decode()
    return _SIGNS.sub("", text.casefold())
