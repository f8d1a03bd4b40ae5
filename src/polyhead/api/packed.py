"""A bundle as bytes, for pickles."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path as FilePath

from polyhead.bundle.format import BUNDLE


def packed(folder: FilePath) -> bytes:
    """The bundle in this folder as a tar file; empty without a bundle."""
    content = io.BytesIO()
    if (folder / BUNDLE).exists():
        with tarfile.open(fileobj=content, mode="w") as archive:
            archive.add(folder, arcname="bundle")
    return content.getvalue()


def unpack(content: bytes, folder: FilePath) -> None:
    """Puts a packed bundle into this folder."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(folder.parent, filter="data")
