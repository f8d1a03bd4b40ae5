"""The encoder of a model: found by its name, and compared with the encoder of the bundle in the model's folder."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path as FilePath
from pathlib import PureWindowsPath

import msgspec

from polyhead.bundle.atomic import new_bundle_at
from polyhead.bundle.format import BUNDLE, LOCK
from polyhead.bundle.manifest import read_trunk_record
from polyhead.bundle.read import Bundle
from polyhead.encoder.data import TrunkData
from polyhead.errors import BundleError, MissingExtra, TrunkNotFound, WrongTrunk
from polyhead.project.encoders import ENCODERS, HUB_ID, MINILM
from polyhead.project.pretrained import encoder_folder, load_trunk, stated_shape

KEEP = "leave `trunk` out to keep the bundle's encoder, or give another `folder`"
HUBS = {encoder.name: encoder.hub for encoder in ENCODERS.values()}


def named_encoder(name: str) -> TrunkData:
    """The encoder called `name`: if that is a bundle's folder, the bundle's encoder, else as `load_trunk` finds it.

    Raises BundleError for a bundle that cannot be read, and the errors of `load_trunk`.
    """
    return Bundle.open(_folder(name)).trunk() if _is_bundle(name) else load_trunk(name)


def encoder_of(folder: FilePath, name: str | None) -> str:
    """The encoder that a model in `folder` begins with; if none is named, the one its bundle records, or else minilm.

    Raises WrongTrunk if the folder's bundle has another encoder than the one named, TrunkNotFound if that one cannot
    be found and the bundle records another name, and for a name that no encoder can have. A path may come to exist.
    """
    if not _is_bundle(folder):
        if name is not None and name not in ENCODERS and not {*name} & {"/", "\\"}:
            encoder_folder(name)
        return MINILM if name is None else name
    if name is None:
        recorded = read_trunk_record(folder).name
        return next((short for short, hub in HUBS.items() if recorded in (short, hub)), recorded)
    bundle = Bundle.open(folder, verify=False)
    if not _is_encoder_of(bundle, name):
        raise WrongTrunk(
            f"the bundle in {folder} has another encoder than the one named, and all its tasks share it",
            got=name,
            allowed=f"{bundle.trunk_name}, under any name",
            do=KEEP,
        )
    return name


def shown_encoder(folder: FilePath, name: str) -> str:
    """The name of the encoder of the folder's bundle, without a path; `name` if there is no bundle."""
    if not _is_bundle(folder):
        return name
    recorded = read_trunk_record(folder).name
    return recorded if HUB_ID.fullmatch(recorded) else PureWindowsPath(recorded).name  # which reads both kinds of path


def _is_encoder_of(bundle: Bundle, name: str) -> bool:
    """True if the encoder called `name` has the weights and the tokenizer of the bundle's; `max_tokens` may differ.

    A name that the bundle records is believed unless it is a folder's: no hub is asked, and minilm's 90 MB are not
    read again (1 s). A trunk that a recipe trained further thus goes by the name of its beginning.
    """
    record = read_trunk_record(bundle.root)
    if _is_bundle(name):
        other = read_trunk_record(_folder(name))
        same = {"name": record.name, "settings": record.settings, "weights": record.weights}
        return msgspec.structs.replace(other, **same) == record
    is_folder = name not in ENCODERS and _folder(name).is_dir()
    if not is_folder and HUBS.get(name, name) == HUBS.get(record.name, record.name):
        return True
    try:
        if stated_shape(name) not in (None, record.architecture):
            return False
        data = load_trunk(name)
    except (TrunkNotFound, MissingExtra) as error:
        raise TrunkNotFound(
            f"the encoder '{name}' cannot be compared with the encoder of the bundle in {bundle.root}",
            got=error.what,
            allowed=record.name,
            do=KEEP,
            name=name,
        ) from error
    is_alike = data.architecture == record.architecture
    return is_alike and msgspec.structs.replace(data, settings=record.settings).digest == bundle.digest


def _is_bundle(place: FilePath | str) -> bool:
    return (_folder(place) / BUNDLE).is_file()


def _folder(place: FilePath | str) -> FilePath:
    return FilePath(os.path.expanduser(place))


def packed(folder: FilePath, *, left_out: Collection[str] = ()) -> bytes:
    """The bundle in this folder as a tar file, without the files at `left_out`; b"" if there is no bundle."""
    paths = {f"bundle/{path}" for path in left_out}
    content = io.BytesIO()
    if (folder / BUNDLE).exists():
        with _at_rest(folder), tarfile.open(fileobj=content, mode="w") as archive:
            archive.add(folder, arcname="bundle", filter=lambda member: None if member.name in paths else member)
    return content.getvalue()


def copy_bundle(folder: FilePath, target: FilePath) -> None:
    """Copies the bundle in `folder` to a new folder; raises BundleError if that would lie inside the bundle."""
    if target.resolve().is_relative_to(folder.resolve()):
        problem = f"the bundle in {folder} cannot be saved into itself"
        raise BundleError(problem, got=target, do="name a new folder outside of it")
    with new_bundle_at(target) as building, _at_rest(folder):
        shutil.copytree(folder, building, ignore=shutil.ignore_patterns(LOCK, "*.tmp"))


@contextmanager
def _at_rest(folder: FilePath) -> Iterator[None]:
    """A context in which no other process or thread changes the bundle, so that its files fit together.

    A folder that this process may not write is read as it is.
    """
    from polyhead.certify.proof import locked

    with locked(folder, "save") if os.access(folder, os.W_OK) else nullcontext():
        yield


def unpack(content: bytes, folder: FilePath) -> None:
    """Puts a packed bundle into this folder."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(folder.parent, filter="data")
