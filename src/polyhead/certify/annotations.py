"""New versions of tasks with the same answers but other annotations: the calibration, or the profile of rows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path as FilePath

import msgspec

from polyhead.bundle.journal import Attempt, keep_attempts, read_attempts
from polyhead.bundle.read import Bundle
from polyhead.bundle.row_profile import RowProfile
from polyhead.bundle.write import Draft, add_tasks
from polyhead.certify.certificate import Certificate
from polyhead.certify.proof import certified
from polyhead.engine.probes import ProbeRunner
from polyhead.errors import BundleError, IsolationError, LockError, PolyheadError
from polyhead.tasks.calibration import Calibration
from polyhead.values import Value

TITLES = ("## Calibration", "## What its rows looked like")


class Annotations(Value, eq=False):
    """The annotations to set; None keeps the current one."""

    calibration: Calibration | None = None
    seen: RowProfile | None = None
    card: Mapping[str, str] = {}  # sections of the card, by their titles (of TITLES)


def keep_annotations(
    root: FilePath | str, wanted: Mapping[str, Annotations], *, read: Bundle, actor: str = ""
) -> Certificate:
    """Makes a new version of each of these tasks live, in one step, with the usual proof and an additional one.

    Other tasks answer with the same bits, and so do the tasks themselves: their raw outputs are compared too. `read` is
    the bundle from which the values were computed. Decisions about the version before hold for the new one: a rollback,
    an attempt that lost to it. Raises BundleError if a task has changed since, IsolationError.
    """
    root = FilePath(root)

    def act() -> None:
        now = Bundle.open(root, verify=False)
        changed = [name for name in wanted if now.lines.get(name) != read.lines[name]]
        if changed:
            raise BundleError(
                f"the bundle {root} was changed meanwhile", got=f"another version of {changed}", do="run it again"
            )
        before = ProbeRunner(now).answered(wanted)
        add_tasks(root, [_draft(now, name, annotations) for name, annotations in wanted.items()], replace=True)
        after = ProbeRunner(Bundle.open(root)).answered(wanted)
        differing = [name for name in wanted if before[name].sha256 != after[name].sha256]
        if differing:
            raise IsolationError(
                "the annotations changed the answers themselves, so the bundle was put back",
                got=differing,
                allowed="the same bits on every probe",
                do="run `polyhead tasks verify`; if it finds no file that was touched, report it",
                tasks=tuple(differing),
            )

    lost = dict[str, Attempt]()
    with suppress(PolyheadError):  # the list may be missing at any time
        lost = {name: attempt for name, attempt in read_attempts(root).items() if name in wanted}
    certificate = certified(root, "update", act, changing=list(wanted), actor=actor)
    if lost:
        records = {name: certificate.after[name].record for name in lost}
        with suppress(BundleError, LockError):  # the new versions are live; what lost is trained once more
            keep_attempts(root, {n: msgspec.structs.replace(a, record=records[n]) for n, a in lost.items()})
    return certificate


def _draft(bundle: Bundle, name: str, annotations: Annotations) -> Draft:
    record = bundle.tasks[name]
    calibration = annotations.calibration or record.calibration
    return Draft(
        record=msgspec.structs.replace(record, calibration=calibration, files={}),
        arrays=bundle.part(name),
        scores=bundle.scores(name),
        probes=bundle.probes(name),
        card=with_sections(bundle.card(name), annotations.card),
        seen=bundle.seen(name) if annotations.seen is None else annotations.seen.content(),
        pinned=bundle.lines[name].pinned,
    )


def with_sections(card: str, sections: Mapping[str, str]) -> str:
    """The card with these sections at its end, replacing those with the same titles."""
    kept, is_replaced = [], False
    for line in card.splitlines():
        is_replaced = line.strip() in sections if line.startswith("## ") else is_replaced
        if not is_replaced:
            kept.append(line)
    text = "\n".join(kept).rstrip()
    return "\n\n".join([text, *(f"{title}\n\n{body}" for title, body in sections.items())]) + "\n"
