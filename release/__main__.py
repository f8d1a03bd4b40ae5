"""Makes a release, all but the upload.

    python -m release VERSION [--skip-checks]

Works in build/release/VERSION on a branch of its own, `release-VERSION`; your checkout stays as it is. There it

1. moves the fragments of changes/ into CHANGELOG.md, writes the version, brings THIRD_PARTY_NOTICES.md and CITATION.cff
   up to date, and commits;
2. runs `.ci/run`, `make studies-test` and `make demo` in an environment made for it (`--skip-checks`: does not);
3. builds the wheel and the source distribution twice, which must agree byte for byte, and looks into them;
4. installs the wheel into empty environments, without extras and with each extra alone, and tries it in each;
5. writes dist/ with SHA256SUMS and the release's text, tags `vVERSION`, and prints what is left to do by hand.

What fails leaves no tag; the folder stays to be looked at, and the next run begins anew.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import date
from pathlib import Path

from release import changelog, files, notices, trial

ROOT = Path(__file__).parents[1]
VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)((a|b|rc)\d+)?")


def main() -> None:
    """Reads the command line, and makes the release."""
    parser = argparse.ArgumentParser(
        prog="python -m release", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("version", metavar="VERSION", help="as docs/project/compat.md chooses it, such as 0.2.0")
    parser.add_argument("--skip-checks", action="store_true", help="step 2 was done for this commit already")
    options = parser.parse_args()
    if not VERSION.fullmatch(options.version):
        parser.error(f"{options.version!r} is no version: write MAJOR.MINOR.PATCH, such as 0.2.0 or 0.2.0rc1")
    try:
        make(options.version, skip_checks=options.skip_checks, say=say)
    except (ValueError, subprocess.CalledProcessError) as error:
        sys.exit(f"release {options.version} failed: {error}")


def say(line: str) -> None:
    """Prints it now."""
    print(line, flush=True)


def make(version: str, *, skip_checks: bool, say: Callable[[str], None]) -> None:
    """All steps. Raises ValueError, with what to do, or CalledProcessError of the command that failed."""
    if changed := git("status", "--porcelain"):
        raise ValueError(f"the checkout has changes that are not committed; commit or stash them first:\n{changed}")
    if git("tag", "--list", f"v{version}"):
        raise ValueError(f"the tag v{version} exists already: choose a higher version")
    source = begun(version)
    say(f"1 prepare   {source.relative_to(ROOT)}, branch release-{version}")
    prepare(source, version, day=date.today())
    if skip_checks:
        say("2 check     skipped")
    else:
        for command in ([".ci/run"], ["make", "studies-test"], ["make", "demo"]):
            say(f"2 check     {' '.join(command)}")
            subprocess.run(command, cwd=source, check=True)
    say("3 build     wheel and source distribution, twice")
    dist = source / "dist"
    built = files.build(source, dist)
    with tempfile.TemporaryDirectory() as again:
        for first, second in zip(built, files.build(source, Path(again)), strict=True):
            if first.read_bytes() != second.read_bytes():
                raise ValueError(f"{first.name} differs when it is built again: something of the machine is in it")
    say("4 try       in empty environments")
    with tempfile.TemporaryDirectory() as folder:
        outcomes = trial.try_all(built[0], source / "constraints.txt", Path(folder), say)
    if failed := [outcome.name for outcome in outcomes if outcome.error is not None]:
        raise ValueError(f"the wheel does not work in these environments: {', '.join(failed)}")
    (dist / "SHA256SUMS").write_text(files.checksums(built), encoding="utf-8")
    text = changelog.part_of((source / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    (dist / "RELEASE.md").write_text(text, encoding="utf-8")
    git("tag", "-a", f"v{version}", "-m", f"Polyhead {version}", folder=source)
    say(f"5 ready     {dist.relative_to(ROOT)}, tag v{version}")
    say(f"left: git merge --ff-only release-{version} && git push origin main v{version}; then upload the two files:")
    say(f"      twine upload {dist.relative_to(ROOT)}/polyhead-{version}*; the release's text is RELEASE.md")


def git(*arguments: str, folder: Path = ROOT) -> str:
    """What git prints. Raises CalledProcessError."""
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def begun(version: str) -> Path:
    """A fresh work tree of HEAD on the release's branch; one that an earlier try left is thrown away."""
    source = ROOT / "build" / "release" / version
    shutil.rmtree(source, ignore_errors=True)
    git("worktree", "prune")
    git("worktree", "add", "--quiet", "-B", f"release-{version}", str(source), "HEAD")
    return source


def prepare(source: Path, version: str, *, day: date) -> None:
    """Changelog, version, notices and citation, in one commit."""
    pieces = changelog.fragments(source / "changes")
    log = source / "CHANGELOG.md"
    text = changelog.released(log.read_text(encoding="utf-8"), version, changelog.lines_of(pieces), day=day)
    log.write_text(text, encoding="utf-8")
    for piece in pieces:
        piece.unlink()
    replaced(source / "pyproject.toml", r'^version = ".*"$', f'version = "{version}"')
    replaced(source / "src" / "polyhead" / "_version.py", r'^__version__ = ".*"$', f'__version__ = "{version}"')
    replaced(source / "CITATION.cff", r"^version: .*$", f"version: {version}")
    replaced(source / "CITATION.cff", r"^date-released: .*$", f"date-released: {day.isoformat()}")
    (source / notices.PAGE.name).write_text(notices.page(), encoding="utf-8")
    git("add", "--all", folder=source)
    git("commit", "--quiet", "-m", f"Release {version}", folder=source)


def replaced(path: Path, pattern: str, line: str) -> None:
    """Writes `line` in place of the one line that matches. Raises ValueError where not exactly one does."""
    content, count = re.subn(pattern, line, path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    if count != 1:
        raise ValueError(f"{path.name} has {count} lines like {pattern}; 1 is needed")
    path.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
