"""THIRD_PARTY_NOTICES.md: what Polyhead needs that others made, each with its licence, from the installed packages.

python -m release.notices [--check]
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "THIRD_PARTY_NOTICES.md"
NOT_SHIPPED = ("compat", "docs", "dev", "all")  # extras for developers, and the one of other extras
# Licences that the packages' own metadata do not name, or name as a whole text; read in their files.
LICENCES = {"msgspec": "BSD-3-Clause", "tomli-w": "MIT"}
# Of extras that the developers' environment leaves out, for their size.
NOT_INSTALLED = {"ray": "Apache-2.0", "datasets": "Apache-2.0", "tensorboard": "Apache-2.0"}
CLASSIFIERS = {
    "MIT License": "MIT",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
TOP = """# Third-party notices

Polyhead's own files are under the Apache License 2.0 ([LICENSE](LICENSE)). Neither the wheel nor the source
distribution holds code, weights or texts of others: the sample's messages were written for it. What it needs is
installed beside it by the package manager, under licences of its own. `python -m release.notices` writes this page from
the metadata of the versions in `constraints.txt`.

| package | version tried | licence | needed for |
|---|---|---|---|
"""
BOTTOM = """
The default encoder, `minilm`, is all-MiniLM-L6-v2 by the sentence-transformers authors (Apache-2.0), which users
install or download themselves. A bundle that is made with it holds its weights: who passes such a bundle on passes them
on too, under that licence. The same is true of any other encoder and its licence.
"""


def page() -> str:
    """The page, from pyproject.toml and what is installed.

    Raises PackageNotFoundError for a package that is not.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = dict[str, list[str]]()
    for requirement in project["dependencies"]:
        needed.setdefault(_name(requirement), []).append("always")
    for extra, requirements in project["optional-dependencies"].items():
        if extra not in NOT_SHIPPED:
            for requirement in requirements:
                needed.setdefault(_name(requirement), []).append(f"`{extra}`")
    rows = [f"| {name} | {_version(name)} | {_licence(name)} | {', '.join(uses)} |" for name, uses in needed.items()]
    return TOP + "\n".join(sorted(rows, key=str.lower)) + "\n" + BOTTOM


def _name(requirement: str) -> str:
    match = re.match(r"[\w.-]+", requirement)
    assert match is not None
    return match[0]


def _version(name: str) -> str:
    pinned = re.search(rf"^{re.escape(name)}==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE | re.I)
    if pinned:
        return pinned[1]
    return "untried" if name in NOT_INSTALLED else metadata(name)["Version"]


def _licence(name: str) -> str:
    if name in LICENCES | NOT_INSTALLED:
        return (LICENCES | NOT_INSTALLED)[name]
    about = metadata(name)
    if "License-Expression" in about:
        return about["License-Expression"]
    if "License" in about and 0 < len(about["License"]) < 40:
        return about["License"]
    classifiers = [each.rpartition(" :: ")[2] for each in about.get_all("Classifier") or () if "License ::" in each]
    return ", ".join(CLASSIFIERS.get(each, each) for each in classifiers) or "see its files"


def main() -> None:
    """Writes the page, or checks it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where the page is out of date")
    options = parser.parse_args()
    try:
        content = page()
    except PackageNotFoundError as error:
        sys.exit(f"{error.name} is not installed: its licence cannot be read; install the extras of make test, and it")
    if options.check:
        sys.exit(PAGE.read_text(encoding="utf-8") != content)
    PAGE.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
