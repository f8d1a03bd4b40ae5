"""Bundles on the Hugging Face hub: uploaded unchanged, downloaded into a new folder and checked."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path as FilePath
from typing import Any

from polyhead._version import __version__
from polyhead.api.encoder import copy_bundle
from polyhead.bundle.atomic import check_absent, new_bundle_at
from polyhead.bundle.format import (
    BUNDLE,
    CERTIFICATES,
    FAMILIES,
    LINEAGE,
    TASKS,
    TOKENIZER,
    TRUNK,
    TRUNK_RECORD,
    WEIGHTS,
)
from polyhead.bundle.manifest import VERSION
from polyhead.bundle.owners import place_of
from polyhead.bundle.read import Bundle
from polyhead.bundle.task_archive import FAMILY_LIMITS, LIMITS
from polyhead.certify.certificate import NAME as CERTIFICATE
from polyhead.engine.probes import FILE as AGREEMENTS
from polyhead.engine.scale_files import CACHE, kept_files
from polyhead.errors import BundleError, MissingExtra
from polyhead.progress import counted

CARD = "README.md"


def push(folder: FilePath, repository: str, *, private: bool = True, token: str | None = None) -> str:
    """Uploads a bundle as `owner/name`; returns the address of the commit. Raises BundleError if the hub refuses."""
    hub = _hub()
    with tempfile.TemporaryDirectory() as work:
        copy = FilePath(work, "bundle")
        copy_bundle(folder, copy)  # an upload may take minutes, in which others change the bundle
        card = copy / CARD
        if not card.exists():
            card.write_text(hub_card(Bundle.open(copy), repository), encoding="utf-8")
        try:
            api = hub.HfApi(token=token)
            api.create_repo(repository, private=private, exist_ok=True)
            done = api.upload_folder(folder_path=str(copy), repo_id=repository)
        except Exception as error:
            raise _failed("upload the bundle to", repository, error) from error
    return str(getattr(done, "commit_url", done))


def pull(repository: str, folder: FilePath, *, revision: str | None = None, token: str | None = None) -> FilePath:
    """Downloads the bundle `owner/name` into a new folder, which is complete or absent.

    Raises BundleError if the hub refuses, or a file differs from the bundle's records.
    """
    check_absent(folder.resolve())
    hub = _hub()
    try:
        downloaded = FilePath(hub.snapshot_download(repository, revision=revision, token=token))
    except Exception as error:
        raise _failed("download the bundle", repository, error) from error
    with new_bundle_at(folder) as building:
        # The hub's cache holds links to its files.
        shutil.copytree(downloaded, building, symlinks=False, ignore=shutil.ignore_patterns(".git*", ".cache"))
        _remove_unlisted(building)
        Bundle.open(building).verify()
    return folder


def _remove_unlisted(root: FilePath) -> None:
    """Removes the files of a repository that the bundle does not list."""
    bundle = Bundle.open(root, verify=False)
    families = {place_of(owner)[1] for owner in bundle.families}
    of_versions = {TASKS: (bundle.lines, {*LIMITS}), FAMILIES: (families, FAMILY_LIMITS)}
    plain = {(BUNDLE,), (AGREEMENTS,), *((TRUNK, name) for name in (TRUNK_RECORD, WEIGHTS, TOKENIZER, LINEAGE))}
    plain |= {(CACHE, name) for name in kept_files(bundle)}

    def is_listed(parts: tuple[str, ...]) -> bool:
        if len(parts) == 4 and parts[0] in of_versions:
            names, files = of_versions[parts[0]]
            return parts[1] in names and VERSION.fullmatch(parts[2]) is not None and parts[3] in files
        is_certificate = parts[0] == CERTIFICATES and len(parts) == 2 and CERTIFICATE.fullmatch(parts[1]) is not None
        return parts in plain or is_certificate

    for path in sorted(root.rglob("*"), reverse=True):  # content of a folder before the folder
        if path.is_dir() and not path.is_symlink():
            with suppress(OSError):
                path.rmdir()  # only if it is empty
        elif not is_listed(path.relative_to(root).parts):
            path.unlink()


def hub_card(bundle: Bundle, repository: str) -> str:
    """The hub's page for the bundle: the tasks with their scores, and how to use them."""
    rows = []
    for name, record in bundle.tasks.items():
        metric, value = bundle.headline(name)
        score = "" if value is None else f"{value:.3f}"
        rows.append(f"| {name} | {record.task.kind} | {', '.join(record.task.labels)} | {metric} | {score} |")
    table = "\n".join(["| task | kind | labels | metric | score |", "|---|---|---|---|---|", *rows])
    tasks = counted(len(bundle.tasks), "task")
    return (
        f"---\nlibrary_name: polyhead\ntags: [polyhead, text-classification]\n---\n# {repository}\n\n"
        f"{tasks} over one encoder ({bundle.trunk_name}), written by polyhead {__version__}.\n\n"
        f"{table}\n\n```python\nfrom polyhead import Model\n\n"
        f'model = Model.pull("{repository}", "bundle")\nmodel.predict(["a text"])\n```\n'
    )


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise MissingExtra("huggingface_hub", "train", "the hub") from None
    return huggingface_hub


def _failed(action: str, repository: str, error: Exception) -> BundleError:
    return BundleError(
        f"cannot {action} {repository}",
        got=f"{type(error).__name__}: {error}",
        do="check the name (owner/name), the network, and the token (`hf auth login`, or token=...)",
    )
