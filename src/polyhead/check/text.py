"""Checks of texts: empty, too long, wrongly decoded, cut off, or no texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from polyhead.check.split_rows import Finding, SplitRows, counted
from polyhead.text.question import texts_of

# The characters that cp1252 or Latin-1 makes of the first byte of a UTF-8 letter, and of the bytes after it.
MISREAD = re.compile(
    "[\u00c2-\u00f4][\u0080-\u00bf\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192\u02c6\u02dc\u2013-\u203a\u20ac\u2122]{1,3}"
)
CONTROLS = re.compile("[\u0080-\u009f]")  # letters of cp1252, read as Latin-1
LOST = "\ufffd"
INVISIBLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u200b\u2060\ufeff\u00ad]")
MARKUP = re.compile(
    r"</?[a-zA-Z][a-zA-Z0-9]*(?:\s[^<>]{0,200})?/?>|&(?:amp|lt|gt|quot|apos|nbsp|#\d{1,6}|#x[0-9a-fA-F]{1,5});"
)
MARKED = 0.01  # share of rows with tags or entities from which on they are reported
CUT_SHARE, CUT_LEAST, CUT_LENGTH = 0.005, 10, 60  # number of rows with exactly the maximum length, and that length
WORDLESS = 0.5  # share of rows without a letter from which on a column is not a text
LETTER = re.compile(r"[^\W\d_]")
FEW = 20  # rows: with fewer, shares are not reported


def empty(split: SplitRows, limit: int) -> Iterator[Finding]:
    """Rows without a text or a label, and a split that has no other rows."""
    if split.reading.examples is None and not split.reading.wrong:
        message, do = f"none of {counted(split.reading.rows, 'row')} has both a text and a label", "give rows that have"
        yield split.found("unusable", "fault", message, do=do, places=())
    if rows := split.reading.empty:
        message = f"{counted(len(rows), 'row')} without a text; training skips them"
        do = "remove the rows, or give their texts"
        yield split.found("empty_text", "hint", message, do=do, places=split.at(rows))
    if rows := split.reading.unlabelled:
        message = f"{counted(len(rows), 'row')} without a label; training skips them"
        yield split.found("unlabelled", "hint", message, do="label the rows, or remove them", places=split.at(rows))
    if rows := split.reading.overlapping:
        handling = "the rows are left out" if split.source.overlaps == "skip" else "the longest are kept"
        message = f"{counted(len(rows), 'row')} with labelled spans that overlap; {handling}, as 'overlaps' says"
        do = "label spans apart, or make a task of each level"
        yield split.found("overlapping_spans", "hint", message, do=do, places=split.at(rows))


def long_inputs(split: SplitRows, limit: int) -> Iterator[Finding]:
    """Inputs with more words than the encoder reads tokens: the end of each is lost for certain."""
    if split.task.long_texts == "windows":
        return
    likely = np.flatnonzero(split.lengths > 2 * (limit - 2))
    if split.task.pair == "separate":
        sizes = {i: max(len(text.split()) for text in texts_of(split.inputs[i])) for i in likely.tolist()}
    else:
        sizes = {i: len(split.texts[i].split()) for i in likely.tolist()}
    cut = [index for index, words in sizes.items() if words > limit - 2]
    if cut:
        longest = max(sizes.values())
        message = f"{counted(len(cut), 'text')} of up to {longest:,} words; the encoder reads {limit:,} tokens"
        windows = 'long_texts = "windows", ' if "long_texts" in split.kind.uses else ""
        do = f"set {windows}a larger trunk.max_tokens, or shorten them"
        yield split.found("over_long", "hint", message, do=do, indices=cut)


def misread(split: SplitRows, limit: int) -> Iterator[Finding]:
    """Texts decoded with another encoding than they were written in."""
    wrong = [i for i, text in enumerate(split.texts) if not text.isascii() and is_misread(text)]
    if wrong:
        message = f"{counted(len(wrong), 'text')} read in another encoding than written, such as 'Ã©' for 'é'"
        do = "read the source as UTF-8 and export it again"
        yield split.found("mojibake", "fault", message, do=do, indices=wrong)


def is_misread(text: str) -> bool:
    """Whether letters of the text are UTF-8 bytes that were read as cp1252 or Latin-1, or were lost."""
    if LOST in text or CONTROLS.search(text) is not None:
        return True
    return any(_decodes(match[0]) for match in MISREAD.finditer(text))


def _decodes(run: str) -> bool:
    """Whether the first letter of a run, with one to three after it, is a letter in UTF-8."""
    for encoding in ("cp1252", "latin-1"):
        for size in range(2, len(run) + 1):
            try:
                letter = run[:size].encode(encoding).decode("utf-8")
            except UnicodeError:
                continue
            if len(letter) == 1:
                return True
    return False


def invisible(split: SplitRows, limit: int) -> Iterator[Finding]:
    """Invisible characters, which the tokenizer drops or splits words at."""
    wrong = [i for i, text in enumerate(split.texts) if INVISIBLE.search(text) is not None]
    if wrong:
        message = f"{counted(len(wrong), 'text')} with control characters or zero-width spaces"
        yield split.found("invisible", "hint", message, do="remove these characters", indices=wrong)


def markup(split: SplitRows, limit: int) -> Iterator[Finding]:
    """Tags and entities of HTML."""
    wrong = [i for i, t in enumerate(split.texts) if ("<" in t or "&" in t) and MARKUP.search(t) is not None]
    if len(wrong) >= max(2, MARKED * len(split)):
        message = f"{counted(len(wrong), 'text')} with tags or entities of HTML"
        do = "turn the markup into plain text, as it will be when the task is asked"
        yield split.found("markup", "hint", message, do=do, indices=wrong)


def cut_off(split: SplitRows, limit: int) -> Iterator[Finding]:
    """Many texts of exactly the maximum length: a database column, or an export, cut them."""
    if split.kind.per_option or not len(split):
        return
    lengths = [max(map(len, texts_of(value))) for value in split.inputs]
    most = max(lengths)
    alike = [index for index, length in enumerate(lengths) if length == most]
    below = Counter(lengths)
    expected = sum(below[most - step] for step in range(1, 6)) / 5
    if most >= CUT_LENGTH and len(alike) >= max(CUT_LEAST, CUT_SHARE * len(split), 5 * expected):
        if len({split.keys[index] for index in alike}) < len(alike) / 2:
            return  # one repeated text
        message = f"{counted(len(alike), 'text')} of exactly {most:,} characters, and none longer: they look cut off"
        yield split.found("cut_off", "hint", message, do="export the texts in full", indices=alike)


def wordless(split: SplitRows, limit: int) -> Iterator[Finding]:
    """A column with numbers, codes or symbols instead of texts, or the same text in every row."""
    if len(split) < FEW:
        return
    without = [index for index, text in enumerate(split.texts) if LETTER.search(text) is None]
    if len(without) >= WORDLESS * len(split):
        message = f"{counted(len(without), 'text')} without a letter: the column may not be the text"
        yield split.found("no_text", "fault", message, do="name the column of the text", indices=without)
    if len(set(split.keys)) == 1:
        message = "every row has the same text"
        do = "name the column of the text"
        yield split.found("constant_text", "fault", message, do=do, indices=range(len(split)))


CHECKS = (empty, long_inputs, misread, invisible, markup, cut_off, wordless)
