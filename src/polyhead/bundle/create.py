"""A new bundle of a trunk, without tasks."""

from __future__ import annotations

from pathlib import Path as FilePath

from polyhead.bundle.files import writing
from polyhead.bundle.format import BUNDLE, FORMAT, TOKENIZER, TRUNK, TRUNK_RECORD, WEIGHTS
from polyhead.bundle.manifest import BundleFile
from polyhead.bundle.read import Bundle
from polyhead.bundle.write import is_leftover, write_trunk
from polyhead.config import to_json
from polyhead.errors import BundleError
from polyhead.files import remove_files, remove_leftovers, replace_file
from polyhead.trunk.data import TrunkData


def write_bundle(root: FilePath | str, trunk: TrunkData) -> Bundle:
    """A new bundle of this trunk, without tasks; raises BundleError unless the folder is absent or empty."""
    from polyhead.bundle.read import Bundle  # here, since a bundle's methods call this module

    root = FilePath(root)
    what = f"the bundle {root} cannot be created"
    try:
        root.mkdir(parents=True, exist_ok=True)
        _check_empty(root)  # before a lock is left in a folder of somebody else's
    except OSError as error:
        raise BundleError(what, got=error.strerror, do="give a folder that can be written") from error
    with writing(root, what):
        _check_empty(root)
        remove_leftovers(root)
        remove_files(root / TRUNK, (TRUNK_RECORD, WEIGHTS, TOKENIZER))
        digest = write_trunk(root, trunk)
        replace_file(root / BUNDLE, to_json(BundleFile(format=FORMAT, trunk=digest, tasks={})))
    return Bundle.open(root)


def _check_empty(root: FilePath) -> None:
    foreign = sorted(entry.name for entry in root.iterdir() if not is_leftover(entry))
    if foreign:
        is_bundle = BUNDLE in foreign
        raise BundleError(
            f"{root} holds something already",
            got=foreign[:5],
            do="open it, or name a new folder" if is_bundle else "name a new or an empty folder",
        )
