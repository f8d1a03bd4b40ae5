"""Patterns that cut a text of any script into words.

A mark (vowel signs, points, accents, variation selectors) belongs to its letter, and so do invisible joiners between
two letters. Each letter of a script without spaces between words is a word, and so is each syllable of Hangul, where
particles follow a name without a space: an answer can begin and end at each of them. Other letters form a word together
with the digits that follow them. Leading digits are a word: `10mg` is a number and a unit.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache

# Letters of these are words of their own: Thai, Lao, Burmese, Hangul, Khmer, Tai, Balinese, Kana, Han and others.
# Digits and punctuation of the same blocks are not.
_ALONE = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u115f\u1780-\u17ff\u1980-\u19ff\u1a20-\u1aaf\u1b00-\u1b7f\u3005-\u318f"
    "\u31a0-\u31ff\u3400-\u9fff\ua000-\ua4cf\ua960-\ua9df\ua9e0-\ua9ff\uaa60-\uaadf\uac00-\ud7a3\uf900-\ufaff"
    "\uff66-\uff9d\uffa0-\uffdc\U00016fe0-\U00018d8f\U0001aff0-\U0001b2ff\U00020000-\U0003ffff"
)
# Characters that belong to the letter before them, in addition to Unicode's marks: vowels and last consonants of
# decomposed Hangul, half-width marks of Kana, skin tones, tags of flags.
_FOLLOWING = "\u1160-\u11ff\ud7b0-\ud7ff\uff9e\uff9f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f"
_JOINERS = "\u00ad\u180e\u200c\u200d\u2060"  # soft hyphen, Mongolian vowel separator, ZWNJ, ZWJ, word joiner
# never words: zero-width space, direction marks
_HIDDEN = _JOINERS + "\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff"
_STACKING = "\u1039\u17d2"  # marks of Burmese and Khmer that put the next letter under the current one
_PLAIN = re.compile(r"[^\W\d]\w*|\d+|[^\w\s\x1c-\x1f]", re.ASCII)  # Python's \s of ASCII lacks four blanks
_SHOWN = re.compile(rf"[^\s\x00-\x1f\x7f-\x9f{_HIDDEN}]")


def has_visible(text: str) -> bool:
    """Whether the text holds anything but blanks, control characters and characters that are never shown."""
    return _SHOWN.search(text) is not None


def word_pattern(text: str) -> re.Pattern[str]:
    """The pattern that matches each word of a text; it runs in linear time."""
    return _PLAIN if text.isascii() else _of_all_scripts()


def stands_alone(letter: str) -> bool:
    """Whether the letter is one of a script in which each is a word."""
    return _lone_letter().match(letter) is not None


@cache
def _lone_letter() -> re.Pattern[str]:
    return re.compile(f"[{_ALONE}]")


@cache
def marks() -> str:
    """All marks, as the inside of a pattern's character set; computed once: it tests every character."""
    runs: list[list[int]] = []
    for code in (*range(0x300, 0x20000), *range(0xE0100, 0xE01F0)):
        if unicodedata.category(chr(code)).startswith("M"):
            if runs and runs[-1][1] == code - 1:
                runs[-1][1] = code
            else:
                runs.append([code, code])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in runs)


@cache
def _of_all_scripts() -> re.Pattern[str]:
    mark = f"[{marks()}{_FOLLOWING}]"
    first, letter = rf"[^\W\d{_ALONE}{_FOLLOWING}]", rf"[^\W{_ALONE}{_FOLLOWING}]"
    lone = rf"(?=[^\W\d])[{_ALONE}]{mark}*"
    symbol = rf"[^\w\s{_HIDDEN}]{mark}*"
    return re.compile(
        rf"{first}{letter}*(?:(?:{mark}+|[{_JOINERS}]+(?={letter}|{mark}))+{letter}*)*"
        rf"|\d+{mark}*"
        rf"|{lone}(?:(?<=[{_STACKING}]){lone})*"
        rf"|{symbol}(?:\u200d{symbol})*"
        rf"|[{_FOLLOWING}]+"
    )
