"""The wheel and the source distribution: how they are built, and what must be in them and what must not."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

# What a wheel holds beside Python files, each by one example, and what a source distribution begins with.
IN_WHEEL = ("polyhead/py.typed", "polyhead/sample/messages.jsonl", "polyhead/sample/polyhead.toml")
IN_SDIST = ("src/polyhead/", "README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "PKG-INFO")
LEGAL = ("LICENSE", "THIRD_PARTY_NOTICES.md")
NOT_IN_SDIST = ("results/", "runs/", "benchmarks/", "studies/", "changes/", "tests/", "release/", ".github/")


def build(source: Path, into: Path) -> list[Path]:
    """Builds both from `source` into the folder `into`, and looks into them.

    Raises ValueError for a file that is missing or should not be there; CalledProcessError where the build fails.
    """
    seconds = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=source, check=True, capture_output=True, text=True
    ).stdout.strip()
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(into), str(source)],
        check=True,
        env={**os.environ, "SOURCE_DATE_EPOCH": seconds},  # the same commit gives the same bytes
    )
    wheel, sdist = next(into.glob("*.whl")), next(into.glob("*.tar.gz"))
    with zipfile.ZipFile(wheel) as archive:
        check_wheel(archive.namelist())
    with tarfile.open(sdist) as archive:
        check_sdist([name.partition("/")[2] for name in archive.getnames()])
    return [wheel, sdist]


def check_wheel(names: list[str]) -> None:
    """Raises ValueError unless these are the names of a whole wheel and of nothing else."""
    strange = [name for name in names if not name.startswith("polyhead/") and ".dist-info/" not in name]
    if strange:
        raise ValueError(f"files in the wheel that are not the package's: {', '.join(strange[:5])}")
    missing = [name for name in IN_WHEEL if name not in names]
    missing += [name for name in LEGAL if not any(each.endswith(f".dist-info/licenses/{name}") for each in names)]
    if missing:
        raise ValueError(f"files that the wheel lacks: {', '.join(missing)}")


def check_sdist(names: list[str]) -> None:
    """Raises ValueError unless these are the names of a whole source distribution and of nothing else."""
    strange = [name for name in names if name.startswith(NOT_IN_SDIST)]
    if strange:
        raise ValueError(f"files in the source distribution that are for developers: {', '.join(strange[:5])}")
    missing = [name for name in (*IN_SDIST, *LEGAL) if not any(each.startswith(name) for each in names)]
    if missing:
        raise ValueError(f"files that the source distribution lacks: {', '.join(missing)}")


def checksums(files: list[Path]) -> str:
    """Lines as `sha256sum --check` reads them."""
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(files))
