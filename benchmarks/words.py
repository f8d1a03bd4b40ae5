"""How much there is to read: words of the pages for users."""

from __future__ import annotations

import re
from pathlib import Path

from studies.settings import ROOT

DOCS = ROOT / "docs"
GENERATED = re.compile(r"<!-- (.+?):start -->\n.*?<!-- \1:end -->", re.DOTALL)


def words_by_hand(page: Path) -> int:
    """Words, code's too, without the generated parts; bars of tables and other signs alone are none."""
    text = GENERATED.sub("", page.read_text(encoding="utf-8"))
    return sum(any(sign.isalnum() for sign in word) for word in text.split())


def user_pages() -> list[Path]:
    """Pages for users: all but the project's own."""
    return [page for page in sorted(DOCS.rglob("*.md")) if not page.is_relative_to(DOCS / "project")]


def user_words() -> dict[str, object]:
    """Counts the words of all user pages together, and of the longest page."""
    words = {str(page.relative_to(DOCS)): words_by_hand(page) for page in user_pages()}
    longest = max(words, key=lambda name: words[name])
    return {"pages": len(words), "words": sum(words.values()), "longest": longest, "longest_words": words[longest]}
