"""An earlier version of tasks made live again, with its proof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath

from polyhead.bundle.versions import made_with
from polyhead.bundle.write import set_versions
from polyhead.certify.certificate import Ledger
from polyhead.certify.change import CertifiedChange, certified_once
from polyhead.certify.prover import Prover


def roll_back(
    root: FilePath, names: Sequence[str], version: str | None = None, *, actor: str = "", prover: Prover | None = None
) -> CertifiedChange:
    """Makes `version` of the first task live, by default the one before, and of the others those made with it.

    The command is done once: see `certified_once`; the caller ends it with `bundle.journal.finish`. Raises UnknownTask,
    BundleError where there is no such version, IsolationError.
    """

    def act(wanted: Mapping[str, str]) -> None:
        records = Ledger(root).records()
        set_versions(root, wanted, records={name: records.get((name, made)) for name, made in wanted.items()})

    return certified_once(
        root,
        "rollback",
        act,
        arguments=[*names, version or ""],
        wanted=lambda: made_with(root, names, version),
        changing=names,
        actor=actor,
        prover=prover,
    )
