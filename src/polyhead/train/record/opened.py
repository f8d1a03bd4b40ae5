"""The bundle that a run over a frozen trunk writes into: found as it must be, or made."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from polyhead.bundle.create import write_bundle
from polyhead.bundle.format import BUNDLE, LOCK, TOKENIZER, TRUNK, TRUNK_RECORD, WEIGHTS
from polyhead.bundle.models import check_no_models
from polyhead.bundle.read import Bundle
from polyhead.errors import WrongTrunk
from polyhead.files import remove_files
from polyhead.trunk.data import TrunkData


def opened(root: Path, data: TrunkData, names: Iterable[str]) -> Bundle:
    """The bundle there, if it stands on the same trunk; else a new one.

    `names` are the tasks that will be trained. Raises WrongTrunk for a bundle on another trunk, unless a run that was
    stopped before its first task left it, and BadName for names of tasks that own their models.
    """
    if not (root / BUNDLE).exists():
        return write_bundle(root, data)
    bundle = Bundle.open(root)
    if bundle.digest != data.digest and _holds_nothing_more(root):
        remove_files(root, [BUNDLE])  # the rest is what is left of a bundle that is not made yet
        return write_bundle(root, data)
    if bundle.digest != data.digest:
        raise WrongTrunk(
            f"the bundle {root.name} stands on another trunk",
            got=f"this project's trunk {_described(data)}, the bundle's {_described(bundle.trunk())}",
            do="name another bundle in the project file, or give the bundle's own trunk and max_tokens",
        )
    check_no_models(root, names)
    return bundle


def _holds_nothing_more(root: Path) -> bool:
    """Whether no task was ever written there, the trunk was not learned, and nothing of anybody else's is there."""
    names = {entry.name for entry in root.iterdir()} | {entry.name for entry in (root / TRUNK).iterdir()}
    return names <= {BUNDLE, LOCK, TRUNK, TRUNK_RECORD, WEIGHTS, TOKENIZER}


def _described(data: TrunkData) -> str:
    return f"{data.digest[:16]} ({data.name}, max_tokens {data.settings.max_tokens})"
