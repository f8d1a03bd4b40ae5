"""The proof of a merge: each task answers its probes in the merged bundle with the bits of its original bundle."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from polyhead.bundle.notes import Probe
from polyhead.bundle.read import Bundle
from polyhead.certify.certificate import Certificate, Ledger, bundle_hash
from polyhead.certify.proof import locked
from polyhead.engine.probes import (
    ProbeAnswers,
    ProbeRunner,
    backend_here,
    numerics_label,
    precision_here,
    readable_probes,
)
from polyhead.engine.session import Session
from polyhead.errors import IsolationError
from polyhead.progress import counted

TOGETHER = 8  # probes of each task that are also answered with the merged plan, all tasks at once


def certify_merged(
    merged: Bundle, sources: Sequence[Bundle], *, show: Callable[[str], None], actor: str = ""
) -> Certificate:
    """Writes the certificate into the merged bundle; raises IsolationError if a task answers differently there.

    `sources` hold the tasks taken from each bundle.
    """
    before: dict[str, ProbeAnswers] = {}
    for bundle in sources:
        tasks = counted(len(bundle.lines), "task")
        show(f"asking {tasks} of {bundle.root}")
        before |= ProbeRunner(bundle).answered(bundle.lines)
    show("asking the merged bundle")
    after = ProbeRunner(merged).answered(merged.lines)
    moved = {name for source in sources for name in source.lines if source.tasks[name] != merged.tasks[name]}
    _check(before, after, moved)
    _check_together(merged)
    with locked(merged.root, "merge"):
        return Ledger(merged.root).write(
            Certificate(
                operation="merge",
                changed={name: (None, line.version) for name, line in merged.lines.items()},
                numerics=numerics_label(),
                before=before,
                after=after,
                unchanged=True,
                bundle=bundle_hash(merged.root),
                actor=actor or msgspec.UNSET,
            )
        )


def _check(before: dict[str, ProbeAnswers], after: dict[str, ProbeAnswers], moved: set[str]) -> None:
    """Raises for tasks whose answers or records differ; those in `moved` read a family under a new name."""

    def compared(name: str, answered: ProbeAnswers) -> tuple[str, int, str]:
        return "" if name in moved else answered.record, answered.probes, answered.sha256

    _refuse([name for name in before if compared(name, before[name]) != compared(name, after[name])])


def _check_together(merged: Bundle) -> None:
    """Answers some probes with the merged plan, all tasks of one precision at once, and with each task alone."""
    backend = backend_here()
    precisions = {name: precision_here(record, backend) for name, record in merged.tasks.items()}
    for precision in sorted(set(precisions.values())):
        names = [name for name in merged.tasks if precisions[name] == precision]
        view = merged.view({name: merged.lines[name] for name in names})
        session = Session(view, backend=backend, precision=precision, deterministic=True)
        _refuse([name for name in names if not _is_alike(session, name, readable_probes(merged, name))])


def _is_alike(session: Session, name: str, probes: Sequence[Probe]) -> bool:
    """Whether the task's answers, scores included, do not depend on the other requested tasks."""
    few = probes[:: max(1, len(probes) // TOGETHER)][:TOGETHER]
    words = [None if p.words is None else np.array(p.words, np.int32).reshape(-1, 2) for p in few]
    alone, beside = (
        session.predict([probe.input for probe in few], tasks=tasks, words=words)
        for tasks in ([name], list(session.records))
    )
    return [result.answers[name] for result in alone] == [result.answers[name] for result in beside]


def _refuse(names: Sequence[str]) -> None:
    if names:
        raise IsolationError(
            "tasks answer their probes otherwise in the merged bundle, so it was not written",
            got=names,
            allowed="the bits of the bundles that they come from",
            do="run `polyhead tasks verify` on those; if it finds no file that was touched, report it",
            tasks=tuple(names),
        )
