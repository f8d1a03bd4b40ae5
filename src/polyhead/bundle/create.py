"""A new bundle of a trunk, without tasks."""

from __future__ import annotations

import shutil
from pathlib import Path as FilePath

from polyhead.bundle.files import write_arrays, writing_bundle
from polyhead.bundle.format import BUNDLE, FORMAT, LOCK, TOKENIZER, TRUNK, TRUNK_RECORD, WEIGHTS
from polyhead.bundle.manifest import BundleFile, TrunkRecord, read_bundle_file
from polyhead.bundle.read import Bundle
from polyhead.encoder.data import TrunkData, arrays_digest, trunk_digest
from polyhead.errors import BundleError
from polyhead.files import (
    is_temporary,
    link_or_copy,
    remove_files,
    remove_leftovers,
    replace_file,
    sync_folder,
    temporary_name,
    write_file,
)
from polyhead.values import to_json


def write_bundle(root: FilePath | str, trunk: TrunkData) -> Bundle:
    """Creates a bundle of this trunk, without tasks; raises BundleError unless the folder is absent or empty."""
    root = FilePath(root)
    problem = f"the bundle {root} cannot be created"
    try:
        root.mkdir(parents=True, exist_ok=True)
        _check_empty(root)  # before a lock file is left in a folder that is not ours
    except OSError as error:
        raise BundleError(problem, got=error.strerror, do="give a folder that can be written") from error
    with writing_bundle(root, problem):
        _check_empty(root)
        remove_leftovers(root)
        remove_files(root / TRUNK, (TRUNK_RECORD, WEIGHTS, TOKENIZER))
        digest = _write_trunk(root, trunk)
        replace_file(root / BUNDLE, to_json(BundleFile(format=FORMAT, trunk=digest, tasks={})))
    return Bundle.open(root)


def linked_bundle(root: FilePath, other: FilePath) -> None:
    """Creates a bundle with another one's trunk and no tasks; its files are hard links if the disk allows.

    No file of a bundle is ever rewritten, so later changes of one bundle do not affect the other. Raises
    BundleError as `write_bundle` does.
    """
    problem = f"the bundle {root} cannot be created"
    root.mkdir(parents=True, exist_ok=True)
    with writing_bundle(root, problem):
        _check_empty(root)
        trunk, temporary = read_bundle_file(other).trunk, root / temporary_name(TRUNK)
        try:
            temporary.mkdir()
            for name in (TRUNK_RECORD, WEIGHTS, TOKENIZER):
                link_or_copy(other / TRUNK / name, temporary / name)
            temporary.rename(root / TRUNK)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        replace_file(root / BUNDLE, to_json(BundleFile(format=FORMAT, trunk=trunk, tasks={})))


def _check_empty(root: FilePath) -> None:
    foreign = sorted(entry.name for entry in root.iterdir() if not _is_leftover(entry))
    if foreign:
        is_bundle = BUNDLE in foreign
        raise BundleError(
            f"{root} is not empty",
            got=foreign[:5],
            do="open it, or name a new folder" if is_bundle else "name a new or an empty folder",
        )


def _is_leftover(entry: FilePath) -> bool:
    """True if the folder holds only what a writer left that was killed before it wrote bundle.json."""
    if entry.name == TRUNK and entry.is_dir() and not entry.is_symlink():
        return {file.name for file in entry.iterdir()} <= {TRUNK_RECORD, WEIGHTS, TOKENIZER}
    return entry.name == LOCK or is_temporary(entry.name)


def _write_trunk(root: FilePath, trunk: TrunkData) -> str:
    """Writes the folder of a trunk in one step; its digest."""
    temporary = root / temporary_name(TRUNK)
    try:
        temporary.mkdir()
        record = TrunkRecord(
            name=trunk.name,
            architecture=trunk.architecture,
            settings=trunk.settings,
            arrays=arrays_digest(trunk.arrays),
            weights=write_arrays(temporary / WEIGHTS, trunk.arrays),
            tokenizer=write_file(temporary / TOKENIZER, [trunk.tokenizer]),
        )
        write_file(temporary / TRUNK_RECORD, [to_json(record)])
        sync_folder(temporary)
        temporary.rename(root / TRUNK)
        sync_folder(root)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return trunk_digest(record.architecture, record.arrays, trunk.tokenizer, record.settings)
