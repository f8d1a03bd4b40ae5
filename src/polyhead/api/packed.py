"""A bundle as bytes, for pickles."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Collection
from pathlib import Path as FilePath

from polyhead.bundle.format import BUNDLE


def packed(folder: FilePath, *, left_out: Collection[str] = ()) -> bytes:
    """The bundle in this folder as a tar file, without the files of these paths; empty without a bundle."""
    paths = {f"bundle/{path}" for path in left_out}
    content = io.BytesIO()
    if (folder / BUNDLE).exists():
        with tarfile.open(fileobj=content, mode="w") as archive:
            archive.add(folder, arcname="bundle", filter=lambda member: None if member.name in paths else member)
    return content.getvalue()


def unpack(content: bytes, folder: FilePath) -> None:
    """Puts a packed bundle into this folder."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(folder.parent, filter="data")
