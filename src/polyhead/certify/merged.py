"""The proof of a merge: each task answers its probes in the merged bundle with the bits of its original bundle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np

from polyhead.bundle.live_versions import Probe
from polyhead.bundle.merge import merge_bundles, select_from
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
    recorded_precision,
)
from polyhead.engine.session import Session
from polyhead.errors import IsolationError
from polyhead.plan import merge
from polyhead.plan.cost import cost_of
from polyhead.progress import counted
from polyhead.project.strategies.branch import tap_of
from polyhead.values import Value

TOGETHER = 8  # probes of each task that are also answered with the merged plan, all tasks at once


class MergeSource(Value):
    """A bundle to merge, as it was named, and which of its tasks; None: all."""

    folder: str
    tasks: tuple[str, ...] | None = None


class MergeProof(Value):
    """A task whose outputs on its probes are the same bits in its own bundle and in the merged one."""

    task: str
    source: str
    version: str  # there
    tap: int  # layers of the trunk that it reads
    layers: int  # of its own
    precision: str = "float32"  # in which it was proven here
    trained_in: str = "float32"
    probes: int = 0  # 0: it has none, so nothing was asked


class MergeTotals(Value):
    """The cost of answering one text, and the size of the arrays that this takes."""

    layer_evaluations: int = 0
    flops: int = 0
    bytes: int = 0

    @classmethod
    def of(cls, bundle: Bundle, tokens: int) -> MergeTotals:
        """All tasks of a bundle that read its trunk, on a text of so many tokens."""
        if not bundle.tasks:
            return cls()
        plan = merge({name: record.path for name, record in bundle.tasks.items()})
        cost = cost_of(plan, bundle.architecture, tokens, folded=True)
        return cls(layer_evaluations=cost.layer_evaluations, flops=cost.flops, bytes=cost.bytes)


class MergeReport(Value):
    """A bundle that was made of others: what was proven, and what answering costs apart and merged."""

    bundle: str
    trunk: str  # its digest
    tasks: tuple[MergeProof, ...]
    tokens: int
    separate: MergeTotals  # bundles that are served apart, each with a merged plan of its own
    merged: MergeTotals
    certificate: Certificate


def merge_proven(
    out: str, sources: Sequence[MergeSource], *, tokens: int, actor: str, show: Callable[[str], None]
) -> MergeReport:
    """Merges bundles into the new bundle `out`, which is there only once every task answered its probes the same.

    Raises what `merge_bundles` and `certify_merged` raise.
    """
    # Not verified here, so that a task that does not fit the common trunk is refused with both sides named.
    opened = [Bundle.open(source.folder, verify=False) for source in sources]
    chosen = {place: source.tasks for place, source in enumerate(sources) if source.tasks is not None}
    taken, certificates = list[Bundle](), list[Certificate]()

    def prove(merged: Bundle) -> None:
        taken.extend(select_from(bundle, source.tasks) for source, bundle in zip(sources, opened, strict=True))
        certificates.append(certify_merged(merged, taken, show=show, actor=actor))

    merged = merge_bundles(out, opened, tasks=chosen, prove=prove)
    apart = [MergeTotals.of(bundle, tokens) for bundle in taken]
    fields = MergeTotals.__struct_fields__
    return MergeReport(
        bundle=str(merged.root),
        trunk=merged.digest,
        tasks=tuple(_proofs(merged, sources, taken, certificates[0])),
        tokens=tokens,
        separate=MergeTotals(**{name: sum(getattr(totals, name) for totals in apart) for name in fields}),
        merged=MergeTotals.of(merged, tokens),
        certificate=certificates[0],
    )


def _proofs(
    merged: Bundle, sources: Sequence[MergeSource], taken: Sequence[Bundle], certificate: Certificate
) -> Iterator[MergeProof]:
    backend = backend_here()
    for source, choice in zip(sources, taken, strict=True):
        for name, line in choice.lines.items():
            record = merged.tasks[name]
            tap = tap_of(record.path)
            yield MergeProof(
                task=name,
                source=source.folder,
                version=line.version,
                tap=tap,
                layers=sum(node.stop - node.start for node in record.path.layers) - tap,
                precision=precision_here(record, backend),
                trained_in=recorded_precision(record),
                probes=certificate.after[name].probes,
            )


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
        names = [name for name in precisions if precisions[name] == precision]
        view = merged.view({name: merged.lines[name] for name in names})
        session = Session(view, backend=backend, precision=precision, deterministic=True)
        _refuse([name for name in names if not _is_alike(session, name, readable_probes(merged, name))])


def _is_alike(session: Session, name: str, probes: Sequence[Probe]) -> bool:
    """Whether the task's answers, scores included, do not depend on the other requested tasks."""
    few = probes[:: max(1, len(probes) // TOGETHER)][:TOGETHER]
    words = [None if p.words is None else np.array(p.words, np.int32).reshape(-1, 2) for p in few]
    alone_results, joint_results = (
        session.predict([probe.input for probe in few], tasks=tasks, words=words)
        for tasks in ([name], list(session.records))
    )
    return [result.answers[name] for result in alone_results] == [result.answers[name] for result in joint_results]


def _refuse(names: Sequence[str]) -> None:
    if names:
        raise IsolationError(
            "tasks answer their probes otherwise in the merged bundle, so it was not written",
            got=names,
            allowed="the bits of the bundles that they come from",
            do="run `polyhead tasks verify` on those; if it finds no file that was touched, report it",
            tasks=tuple(names),
        )
