"""The documentation site builds without a warning, holds the pages for users, and asks no other server for anything."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="the site's generator is not installed: pip install '.[docs]'")
pytest.importorskip("furo", reason="the site's theme is not installed: pip install '.[docs]'")
pytest.importorskip("myst_parser", reason="the site's reader of Markdown is not installed: pip install '.[docs]'")

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
KEPT = ("bundle-format.md", "compat.md")  # pages of the project that users need
LOADING = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "object": "data"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    (line,) = re.findall(r"^\t\$\(PY\) -m sphinx (.+) build/site$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    command = [sys.executable, "-m", "sphinx", *line.split(), "-d", str(folder / "read"), str(folder / "built")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"})
    assert "-W" in command and done.returncode == 0, done.stderr
    return folder / "built"


class Addresses(HTMLParser):
    """Collects what a browser would fetch to show a page."""

    def __init__(self):
        super().__init__()
        self.loaded, self.inline = [], []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag in LOADING and given.get(LOADING[tag]):
            self.loaded.append(given[LOADING[tag]])
        self.inline.append(given.get("style") or "")


def loaded_by(text):
    parser = Addresses()
    parser.feed(text)
    styles = re.findall(r"<style[^>]*>(.*?)</style>", text, re.DOTALL) + parser.inline
    return parser.loaded + [address for style in styles for address in imported_by(style)]


def imported_by(style):
    found = re.findall(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)", style)
    return [one or other for one, other in found]


def is_elsewhere(address):
    return re.match(r"(?:https?:)?//", address) is not None


def test_pages_for_users_are_in_the_site_and_those_for_contributors_are_not(site):
    pages = sorted((ROOT / "docs").rglob("*.md"))
    project = ROOT / "docs" / "project"
    users = [page for page in pages if not page.is_relative_to(project)] + [project / name for name in KEPT]
    assert len(users) > 35
    for page in pages:
        built = (site / page.relative_to(ROOT)).with_suffix(".html")
        assert built.is_file() == (page in users), page.name
    assert "<code" in (site / "docs/guides/security.html").read_text().split("docs/project/attacks.md")[0][-200:]
    assert "url=docs/index.html" in (site / "index.html").read_text()


def test_nothing_is_loaded_from_another_server(site):
    pages, styles = sorted(site.rglob("*.html")), sorted(site.rglob("*.css"))
    assert len(pages) > 35 and styles
    for page in pages:
        loaded = loaded_by(page.read_text(encoding="utf-8"))
        assert not [address for address in loaded if is_elsewhere(address)], page.name
        assert loaded or page.name == "index.html"
    for style in styles:
        assert not [address for address in imported_by(style.read_text(encoding="utf-8")) if is_elsewhere(address)]


def test_a_button_copies_commands_without_their_prompt(site):
    assert "copybutton.js" in (site / "docs/start/command-line.html").read_text(encoding="utf-8")
    script = (site / "_static/copybutton.js").read_text(encoding="utf-8")
    (prompt,) = re.findall(r"formatCopyText\(text, '(.*?)', true, true, true,", script)
    assert re.match(prompt.replace("\\\\", "\\"), "$ polyhead demo")


def test_what_a_page_loads_is_found():
    """By hand: a script, a style sheet, a font in a style; a link that a reader may follow is none."""
    text = (
        '<script src="//a.example/a.js"></script><link href="https://b.example/b.css"><a href="https://c.example">c</a>'
        "<style>@font-face{src:url(https://d.example/d.woff)}</style><p style=\"background:url('e.png')\">"
    )
    assert loaded_by(text) == ["//a.example/a.js", "https://b.example/b.css", "https://d.example/d.woff", "e.png"]
    assert [is_elsewhere(address) for address in loaded_by(text)] == [True, True, True, False]
