"""The documentation site: `make docs` builds it from the Markdown pages for users, offline, into build/site.

Pages hold no directive of the generator. The navigation is the lists of links in docs/index.md, section by section.
Pages of docs/project are for contributors and stay in the repository, except two that users need.
"""

import posixpath
import re
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
HOME = "docs/index"

project = "Polyhead"
author = "The Polyhead authors"
release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
extensions = ["myst_parser", "sphinx_copybutton"]
root_doc = HOME
include_patterns = ["CHANGELOG.md", "docs/*.md", "docs/start/*.md", "docs/guides/*.md", "docs/reference/*.md"]
include_patterns += ["docs/project/bundle-format.md", "docs/project/compat.md", "examples/**.md"]
exclude_patterns = ["**/__pycache__"]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_title = f"Polyhead {release}"
html_copy_source = False
# The button of a block copies commands alone: neither their prompt nor what they print.
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {"top_of_page_buttons": []}
myst_heading_anchors = 4
# Code of a kind that the highlighter does not know, or that shows a question and its answer, is shown as it is.
suppress_warnings = ["misc.highlighting_failure"]


def with_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Names pages outside the site by their paths, and adds hidden lists of the pages of each section to the home."""

    def named(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), link[2]))
        return link[0] if target.removesuffix(".md") in app.env.found_docs else f"{link[1]} (`{target}`)"

    source[0] = re.sub(r"\[([^\]]+)\]\(([^)\s:#]+\.md)(?:#[^)\s]*)?\)", named, source[0])
    if page == HOME:
        for section in re.split(r"^## ", source[0], flags=re.MULTILINE):
            targets = re.findall(r"^\* \[.+?\]\((\S+?)\.md\)", section, re.MULTILINE)
            source[0] += _list_of(section.splitlines()[0], targets) if targets else ""


def _list_of(title: str, pages: list[str]) -> str:
    return "\n".join(["", "", "```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```"]) + "\n"


def write_front_door(app: Sphinx, error: Exception | None) -> None:
    """The site's first address leads to the home page."""
    if error is None and app.builder.format == "html":
        lead = f'<!doctype html><title>Polyhead</title><meta http-equiv="refresh" content="0; url={HOME}.html">\n'
        (Path(app.outdir) / "index.html").write_text(lead, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Connects the two functions above to the events of a build."""
    app.connect("source-read", with_navigation)
    app.connect("build-finished", write_front_door)
