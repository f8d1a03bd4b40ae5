"""Text as a terminal may get it: names, labels, cards and errors tell what is in files, and files may hold commands."""

from __future__ import annotations

import re

# What makes a terminal do anything but show letters in order: controls, ends of lines, signs that turn the order.
COMMANDS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def shown(text: str) -> str:
    """The text as a terminal may get it: names, labels and cards come from files, which may hold commands for it."""
    return COMMANDS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def shown_lines(text: str) -> str:
    """The same of several lines."""
    return "\n".join(map(shown, text.split("\n")))


def json_shown(raw: bytes) -> bytes:
    """The same JSON, in which strings have nothing that a terminal would take for a command."""
    text = raw.decode()
    if text.isascii():  # JSON itself escapes controls below 0x20
        return raw.replace(b"\x7f", b"\\u007f")
    return "\n".join(COMMANDS.sub(_in_json, line) for line in text.split("\n")).encode()


def _in_json(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
