"""The documentation site: `make docs` builds it from the Markdown pages as they are, offline, into build/site.

Pages hold no directive of the generator. The navigation is the lists of links in docs/index.md, section by section.
"""

import re
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
HOME = "docs/index"
LISTS = {HOME, "docs/project/papers"}  # pages whose lists of links are the navigation below them
DECISIONS = "docs/project/decisions"  # a page, and the folder of what it lists

project = "Polyhead"
author = "The Polyhead authors"
release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
extensions = ["myst_parser"]
root_doc = HOME
include_patterns = ["CHANGELOG.md", "CONTRIBUTING.md", "changes/README.md"]
include_patterns += ["docs/**.md", "examples/**.md", "studies/**.md"]
exclude_patterns = [".*", "build", "dist", "shared", "src", "tests", "benchmarks", "results", "**/__pycache__"]
html_theme = "furo"
html_title = f"Polyhead {release}"
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {"top_of_page_buttons": []}
myst_heading_anchors = 4
# Code of a kind that the highlighter does not know, or that shows a question and its answer, is shown as it is.
suppress_warnings = ["misc.highlighting_failure"]


def with_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Adds hidden lists of pages: of the sections of a page of lists, and of the decisions."""
    if page in LISTS:
        for section in re.split(r"^## ", source[0], flags=re.MULTILINE):
            targets = re.findall(r"^\* \[.+?\]\((\S+?)\.md\)", section, re.MULTILINE)
            source[0] += _list_of(section.splitlines()[0], targets) if targets else ""
    if page == DECISIONS:
        source[0] += _list_of("Decisions", ["decisions/*"])


def _list_of(title: str, pages: list[str]) -> str:
    caption = [] if title.startswith("#") else [f":caption: {title}"]
    lines = ["", "", "```{toctree}", ":hidden:", ":glob:", *caption, "", *pages, "```"]
    return "\n".join(lines) + "\n"


def write_front_door(app: Sphinx, error: Exception | None) -> None:
    """The site's first address leads to the home page."""
    if error is None and app.builder.format == "html":
        lead = f'<!doctype html><title>Polyhead</title><meta http-equiv="refresh" content="0; url={HOME}.html">\n'
        (Path(app.outdir) / "index.html").write_text(lead, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Connects the two functions above to the events of a build."""
    app.connect("source-read", with_navigation)
    app.connect("build-finished", write_front_door)
